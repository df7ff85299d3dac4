"""A task of a job becomes the recording of its member."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aboard.jobs.experiment import pickled
from aboard.jobs.member import read_payload
from aboard.runs.manifest import Manifest

TELLS = """
import json, os, sys
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["COLOUR"], os.environ["ABOARD_JOB"]]))
print("ABOARD_HPARAMS" in os.environ)
"""


def run_member(payload: dict, number: int, place: Path) -> str:
    path = place / "payload.json"
    path.write_text(json.dumps(payload))
    variables = {**os.environ, "ABOARD_RUN": "another/run", "ABOARD_LOGDIR": str(place / "other")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "aboard.jobs.member", str(path), str(number)],
        capture_output=True,
        text=True,
        check=False,
        env=variables,
        cwd="/",
    )
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


@pytest.fixture
def payload(tmp_path: Path) -> dict:
    return {
        "job": "k3x",
        "root": str(tmp_path / "runs"),
        "experiment": "cifar10",
        "run": "{job}-{number}",
        "command": [sys.executable, "-c", TELLS, "{lr}", "{text}", "{number}", '{"a": 1}'],
        "members": [{"lr": 0.1, "text": "a b"}, {"lr": 0.01, "text": "0.5"}],
        "environment": {"COLOUR": "light-{lr}"},
        "tags": {"baseline": True, "team": "vision"},
        "workdir": str(tmp_path),
        "function": "",
        "path": [],
    }


def test_a_member_gets_its_values_and_records_them(payload, tmp_path):
    said = run_member(payload, 2, tmp_path)
    assert said.startswith("0\n"), said
    words, place, colour, job = json.loads(said.splitlines()[1])
    assert words == ["0.01", "0.5", "2", '{"a": 1}']
    assert (place, colour, job) == (str(tmp_path), "light-0.01", "k3x")
    assert said.splitlines()[2] == "False"
    record = Manifest.from_json((tmp_path / "runs/cifar10/k3x-2/run.json").read_bytes())
    assert record.hparams == {"lr": 0.01, "text": "0.5"}
    assert record.tags == {"baseline": True, "team": "vision"}
    assert record.job == "k3x"
    assert record.state == "completed"


def test_a_run_lies_where_the_engine_looks_for_logs(payload, tmp_path):
    said = run_member(payload | {"logs": "logs"}, 1, tmp_path)
    assert said.startswith("0\n"), said
    (found,) = (tmp_path / "runs").rglob("run.json")
    assert found.parent == tmp_path / "runs" / "cifar10" / "k3x-1" / "logs"
    run = Manifest.from_json(found.read_bytes())
    assert (run.experiment, run.name, run.job) == ("cifar10", "k3x-1", "k3x")
    assert not (tmp_path / "other").exists()


def test_a_payload_may_be_compressed(payload, tmp_path):
    path = tmp_path / "payload.json.gz"
    path.write_bytes(gzip.compress(json.dumps(payload).encode()))
    assert read_payload(str(path)) == payload


def test_its_exit_code_is_that_of_the_program_and_another_attempt_continues(payload, tmp_path):
    payload["command"] = [sys.executable, "-c", "import sys; sys.exit(3)"]
    payload["environment"] = {}
    for _ in range(2):
        assert run_member(payload, 1, tmp_path).startswith("3\n")
    record = Manifest.from_json((tmp_path / "runs/cifar10/k3x-1/run.json").read_bytes())
    assert len(record.attempts) == 2
    assert record.exit_code == 3


def test_a_function_is_called_with_its_arguments(payload, tmp_path):
    pytest.importorskip("cloudpickle")

    def train(lr, text, *, offset):
        print(lr + offset, text)
        if text == "0.5":
            raise ValueError("diverged")

    payload |= {"command": [], "environment": {}, "function": pickled(train, {"offset": 1})}
    assert "1.1 a b\n" in run_member(payload, 1, tmp_path)
    said = run_member(payload, 2, tmp_path)
    assert said.startswith("1\n")
    assert "ValueError: diverged" in said


def test_a_payload_that_cannot_be_read_is_one_line(payload, tmp_path):
    del payload["root"]
    said = run_member(payload, 1, tmp_path)
    assert said.startswith("1\naboard: ")
    assert "member 1 of the job cannot be started: KeyError('root')" in said
    assert "Traceback" not in said
