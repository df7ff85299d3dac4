"""Sweeps and placeholders, as users write them; and a task becomes the recording of its member."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.jobs import BadJob
from aboard.jobs.experiment import pickled
from aboard.jobs.member import check_placeholders, expand, fill, parse_sweeps, read_payload
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


def test_lists_and_ranges_become_values():
    assert parse_sweeps(["lr=0.1,1e-3", "depth=2..4", "wide=true,false", "model=a, b"]) == {
        "lr": [0.1, 0.001],
        "depth": [2, 3, 4],
        "wide": [True, False],
        "model": ["a", "b"],
    }
    assert parse_sweeps(["n=2..10..2", "m=1,3..5", "k=3..1..-1", "z=-2..0"]) == {
        "n": [2, 4, 6, 8, 10],
        "m": [1, 3, 4, 5],
        "k": [3, 2, 1],
        "z": [-2, -1, 0],
    }
    assert parse_sweeps(["path=../a,b..c", "id=007,8"]) == {
        "path": ["../a", "b..c"],
        "id": ["007", 8],
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lr", "NAME=VALUES"),
        ("=1", "NAME=VALUES"),
        ("lr=", "there are no values"),
        ("lr= , ", "there are no values"),
        ("lr=1,,2", "one of the values is empty"),
        ("lr=4..2", "the range 4..2 is empty. Write 2..4."),
        ("lr=1..5..0", "step 0"),
        ("lr=0.1..0.5", "whole numbers"),
        ("lr=1..x", "a range has whole numbers, as in 2..4. List the values."),
        ("lr=1..", "whole numbers"),
    ],
)
def test_what_is_no_sweep_says_so_in_one_line(text, problem):
    with pytest.raises(BadJob, match=problem) as error:
        parse_sweeps([text])
    assert "\n" not in str(error.value)


def test_a_name_is_swept_once():
    with pytest.raises(BadJob, match="lr is given twice"):
        parse_sweeps(["lr=1", "lr=2"])


def test_a_sweep_is_the_product_of_its_lists_and_the_last_changes_fastest():
    found = expand({"lr": [0.1, 0.01], "depth": [2, 3]}, hparams={"model": "a"})
    assert found == [
        {"model": "a", "lr": 0.1, "depth": 2},
        {"model": "a", "lr": 0.1, "depth": 3},
        {"model": "a", "lr": 0.01, "depth": 2},
        {"model": "a", "lr": 0.01, "depth": 3},
    ]
    assert expand({}, repeat=2) == [{"repeat": 1}, {"repeat": 2}]
    assert expand({}) == [{}]


@pytest.mark.parametrize(
    ("sweep", "options", "problem"),
    [
        ({"lr": []}, {}, "the sweep of 'lr' is empty"),
        ({"lr": [1, 1]}, {}, "has 1 twice"),
        ({"number": [1]}, {}, "every job has"),
        ({"repeat": [1]}, {"repeat": 2}, "every job has"),
        ({"a b": [1]}, {}, "is not a valid name"),
        ({"lr": [1]}, {"hparams": {"lr": 2}}, "has a sweep and a single value"),
        ({"a": list(range(1000)), "b": list(range(1000))}, {}, "At most 100,000"),
    ],
)
def test_a_sweep_that_cannot_be_says_why(sweep, options, problem):
    with pytest.raises(BadJob, match=problem):
        expand(sweep, **options)


def test_one_and_true_are_two_values():
    assert len(expand({"x": [1, "1", True]})) == 3


def test_names_in_braces_are_filled_and_all_else_stays():
    values = {"lr": 0.1, "wide": True, "optimizer.lr": 2, "number": 3}
    assert fill("--lr={lr}", values) == "--lr=0.1"
    assert fill("{wide}/{number}/{optimizer.lr}", values) == "true/3/2"
    for text in ('{"a": 1}', '{"a": {"b": 2}}', "{}", "{ lr }", "${lr}", "{1}", "{a-b}", "{x.y}"):
        assert fill(text, values) == text
    assert fill("{{lr}}", values) == "{lr}"


def test_a_placeholder_for_nothing_is_an_error_that_lists_the_known():
    with pytest.raises(BadJob) as error:
        check_placeholders(["--lr", "{lr} {missing}"], ["lr"], "the command")
    assert str(error.value) == (
        "the command: unknown placeholder {missing}. Known: lr, number, job;"
        " write {{missing}} for the text {missing}."
    )
    check_placeholders(["{{missing}}", "${HOME}", '{"a": 1}', "{a.b}"], [], "the command")


@given(st.text(), st.dictionaries(st.from_regex(r"[a-z]{1,3}", fullmatch=True), st.text()))
def test_text_without_names_in_braces_is_never_changed(text, values):
    assert fill(text.replace("{", "("), values) == text.replace("{", "(")
