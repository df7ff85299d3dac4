"""How the batch scripts run their command, in a bash without Slurm."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from aboard.executors import slurm

CHILD = Path(slurm.__file__).with_name("child.sh")
ENDS = """
import signal, sys, time

def end(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(7)

signal.signal(signal.SIGTERM, end)
print("begun", flush=True)
while True:
    time.sleep(0.1)  # a signal just before a long sleep would be handled after it
"""
SCRIPT = """
finish() { echo "code $1"; exit; }
end() { aboard_has_task end finish 143 || return; kill -TERM "$aboard_task" 2>/dev/null; }
trap end TERM
eval "$BEFORE"
aboard_spawn "$@" </dev/null
aboard_join
finish "$aboard_code"
"""


def script(*command: str) -> list[str]:
    return ["bash", "-c", f". {CHILD}{SCRIPT}", "bash", *command]


def run(*command: str, before: str = "") -> str:
    environment = os.environ | {"BEFORE": before}
    done = subprocess.run(
        script(*command), env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr


def test_the_exit_code_is_that_of_the_command():
    assert run("sh", "-c", "echo out; echo err >&2; exit 3") == "out\ncode 3\nerr\n"
    assert run("sh", "-c", "kill -KILL $$") == "code 137\n"
    assert run("no-such-program").startswith("code 127\n")


def test_a_signal_to_all_processes_at_once_loses_no_exit_code():
    for _ in range(60):
        with subprocess.Popen(
            script(sys.executable, "-S", "-c", ENDS),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as job:
            assert job.stdout.readline() == "begun\n"
            os.killpg(job.pid, signal.SIGCONT)  # as Slurm does
            os.killpg(job.pid, signal.SIGTERM)
            assert job.stdout.read() == "code 7\n"


def test_a_signal_to_the_script_alone_reaches_the_command_at_any_moment():
    for moment in range(60):
        with subprocess.Popen(
            script("sh", "-c", "echo begun; exec sleep 600"),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as job:
            assert job.stdout.readline() == "begun\n"
            time.sleep(moment / 20_000)
            os.kill(job.pid, signal.SIGTERM)
            assert job.stdout.read() == "code 143\n"


def test_a_signal_before_the_command_begins_ends_the_script():
    assert run("true", before="kill -TERM $$") == "code 143\n"


def test_a_signal_while_the_command_begins_reaches_it():
    assert run("sleep", "600", before="aboard_begun=1; kill -TERM $$") == "code 143\n"
