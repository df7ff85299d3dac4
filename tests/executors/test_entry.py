"""The first process of a board or a task on an engine: what it reads, and what it becomes."""

import json
import os
import subprocess
import sys

from aboard.executors.base import PYTHON

SHOWS = """
import os, sys
print("to the file")
print(os.environ["COLOUR"], os.environ.get("ABOARD_CERTIFICATE"), sys.argv[1:], file=sys.stderr)
"""


def enter(directory, *words, address=None):
    given = ["--address", str(address)] if address else []
    command = [sys.executable, "-m", "aboard.executors.entry", str(directory), *given, "--", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_becomes_the_command_with_its_environment(tmp_path):
    (tmp_path / "environment.json").write_text(json.dumps({"COLOUR": "green"}))
    (tmp_path / "certificate.pem").write_text("")
    address = tmp_path / "address"
    words = (PYTHON, "-c", SHOWS, "--", "--address", "x")
    done = enter(tmp_path, *words, address=address)
    assert (done.returncode, done.stdout) == (0, "")
    certificate = tmp_path / "certificate.pem"
    assert done.stderr == f"green {certificate} ['--', '--address', 'x']\n"
    assert address.read_text() == "to the file\n"
    assert address.stat().st_mode & 0o077 == 0
    enter(tmp_path, PYTHON, "-c", "print(1)", address=address)
    assert address.read_text() == "1\n"


def test_without_its_environment_it_ends_with_one_line(tmp_path):
    done = enter(tmp_path, "true")
    assert done.returncode == 1
    assert done.stderr.startswith(f"aboard: {tmp_path}/environment.json: the board's environment")
    assert done.stderr.count("\n") == 1


def test_a_program_that_does_not_exist_is_reported_as_a_shell_does(tmp_path):
    (tmp_path / "environment.json").write_text("{}")
    done = enter(tmp_path, "/no/such/program")
    assert (done.returncode, done.stderr) == (
        127,
        "aboard: /no/such/program: No such file or directory.\n",
    )
    done = enter(tmp_path, str(tmp_path))
    assert done.returncode == 126


def test_a_task_of_an_indexed_job_finds_its_number(tmp_path):
    file = tmp_path / "numbers.json"
    file.write_text(json.dumps({"numbers": [3, 7, 9], "cancelled": [9]}))
    shows = [sys.executable, "-S", "-c", "import sys; print(sys.argv[1:])", "payload"]
    outputs = []
    for index in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "aboard.executors.entry", "--numbers", file, "--", *shows],
            env={**os.environ, "JOB_COMPLETION_INDEX": index},
            capture_output=True,
            text=True,
            check=False,
        )
        outputs.append((done.returncode, done.stdout + done.stderr))
    assert outputs[0] == (0, "['payload', '7']\n")
    assert outputs[1] == (143, "aboard: task 9 was cancelled before it began.\n")
