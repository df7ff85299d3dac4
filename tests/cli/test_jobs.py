"""`aboard submit` and `aboard jobs`, on an engine that does what the test says."""

import json
import os
import time
from pathlib import Path

import pytest

from aboard.cli.app import run
from aboard.cli.completion import offers_for
from aboard.jobs import service
from aboard.runs.manifest import State
from tests.jobs.scripted_engine import RUNNING, Desk, ScriptedEngine, ended


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ABOARD_ROOT", raising=False)
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("ABOARD_CONFIG", str(tmp_path / "aboard.toml"))
    (tmp_path / "aboard.toml").write_text("")
    desk = Desk(tmp_path / "runs")
    monkeypatch.setattr(service, "batch_executor", lambda _: lambda _profiles: desk.engine)
    return desk


@pytest.fixture
def types(capfd: pytest.CaptureFixture[str]):
    """Type a command; return its exit code, and what it printed."""

    def types(*words: str) -> tuple[int, str, str]:
        code = run(list(words))
        return code, *capfd.readouterr()

    return types


def test_a_sweep_is_submitted_and_listed(desk, types):
    code, out, err = types(
        "submit", "--name", "first", "--experiment", "cifar10", "--sweep", "lr=0.1,0.01",
        "--sweep", "depth=2..3", "--env", "SEED={number}", "--env", "HOME", "--tag", "baseline",
        "--memory", "1GiB", "--time", "2h", "--", "true", "--lr", "{lr}", "--depth={depth}",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert out == "first: 4 members on process; check it with: aboard jobs show first\n"
    batch = desk.engine.batches["aboard-first-1"]
    assert batch.resources.memory == 1 << 30
    assert batch.resources.time == 7200
    payload = json.loads(batch.payload)
    assert payload["members"][3] == {"lr": 0.01, "depth": 3}
    assert payload["tags"] == {"baseline": True}
    assert payload["environment"] == {"SEED": "{number}", "HOME": os.environ["HOME"]}
    desk.tell("first", 1, RUNNING)
    code, out, _ = types("jobs")
    assert out.splitlines()[0].split()[:3] == ["JOB", "STATE", "EXPERIMENT"]
    assert out.splitlines()[1].split()[:3] == ["first", "running", "cifar10"]
    assert "1 running, 3 pending" in out
    assert "true --lr '{lr}' '--depth={depth}'" in out
    _, out, _ = types("jobs", "show", "fir")
    assert "cifar10/first-4" in out
    assert "aboard start job:first" in out
    assert "resources    memory 1.0 GiB, time 2h\n" in out
    found = json.loads(types("jobs", "--json")[1])["jobs"]
    assert found[0]["states"] == {"running": 1, "pending": 3}
    assert "members" not in found[0]
    desk.tell("first", 2, ended(1))  # the query that sees it says so too
    assert json.loads(types("jobs", "--json")[1])["jobs"][0]["states"]["failed"] == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--on", "slrum", "--", "true"], "unknown engine 'slrum'. Did you mean 'slurm'?"),
        (["--", "true", "{missing}"], "unknown placeholder {missing}. Known: number, job;"),
        (["--sweep", "lr=", "--", "true"], "there are no values"),
        (["--memory", "much", "--", "true"], "'much' is not a size"),
        (["--env", "A=1", "--env", "A=2", "--", "true"], "A is given twice"),
        (["--env", "NOT_SET_HERE", "--", "true"], "--env 'NOT_SET_HERE' is not set here"),
        (["--env", "=1", "--", "true"], "--env '=1' has no name"),
        (["--hparam", "lr=1", "--sweep", "lr=1,2", "--", "true"], "'lr' has a sweep"),
        (["--name", "A B", "--", "true"], "invalid name of a job: 'A B'"),
        (["--", "no-such-program"], "no-such-program: program not found"),
        (["--gpus", "-1", "--", "true"], "-1"),
        (["--cpus", "nan", "--", "true"], "cpus is nan. Use a number."),
        (["--", ""], "'': program not found"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_is_one_line_and_leaves_nothing(desk, types, words, problem):
    code, out, err = types("submit", *words)
    assert code == 2, err
    assert out == ""
    assert problem in err
    assert err.count("\n") == 1
    assert not desk.root.exists()
    document = json.loads(types("submit", "--json", *words)[1])
    assert problem in document["errors"][0]["message"]


def test_a_name_that_is_taken_is_wrong_usage_and_a_refusal_a_failure(desk, types):
    types("submit", "--name", "a", "--", "true")
    code, _, err = types("submit", "--name", "a", "--", "true")
    assert (code, "already has a job 'a'" in err) == (2, True)
    desk.engine.refusal = "slurm: there is no partition 'gpu'."
    code, _, err = types("submit", "--name", "b", "--", "true")
    assert (code, err) == (1, "aboard: slurm: there is no partition 'gpu'.\n")
    assert not (desk.root / ".jobs/b").exists()


def test_invalid_settings_of_an_engine_are_wrong_usage(desk, types, tmp_path):
    (tmp_path / "aboard.toml").write_text("[executors.slrum]\n")
    code, _, err = types("submit", "--", "true")
    assert code == 2
    assert "unknown engine 'slrum'. Did you mean 'slurm'?" in err
    assert not desk.root.exists()


def test_a_dry_run_shows_members_and_what_the_engine_gets(desk, types):
    code, out, _ = types("submit", "--dry-run", "--name", "a", "--repeat", "2", "--", "true")
    assert code == 0
    assert out.splitlines()[0] == f"aboard-a-1: 2 tasks in {Path.cwd()}"
    assert out.splitlines()[2].split() == ["NUMBER", "RUN", "REPEAT"]
    assert out.splitlines()[4].split() == ["2", "default/a-2", "2"]
    document = json.loads(types("submit", "--dry-run", "--json", "--", "true")[1])
    assert "1 tasks" in document["preview"]
    assert not desk.root.exists()
    assert desk.engine.batches == {}


def test_a_swept_value_that_the_command_does_not_get_is_told(desk, types):
    swept = ("--sweep", "lr=0.1,0.01", "--sweep", "x=1,2", "--sweep", "y=1,2")
    code, out, err = types("submit", *swept, "--env", "X={x}", "--", "echo", "{{y}}")
    assert (code, out.count("\n")) == (0, 1)
    assert err == (
        "aboard: {lr}, {y} are not used in the command; the values are hyperparameters of the runs,"
        " and in the variable ABOARD_HPARAMS.\n"
    )
    _, out, err = types("submit", "--dry-run", "--json", "--sweep", "x=1,2", "--", "true")
    assert len(json.loads(out)["members"]) == 2
    assert err.startswith("aboard: {x} is not used in the command;")


def test_a_member_that_failed_is_shown_with_its_last_line(desk, types):
    types("submit", "--name", "a", "--repeat", "2", "--", "true")
    for number in (1, 2):
        desk.record("a", number, None)
        desk.record("a", number, State.FAILED, 1)
        desk.tell("a", number, ended(1))
    output = desk.root / "default/a-1/output.log"
    output.write_text("Traceback (most recent call last):\nValueError: no data\n\n")
    _, out, _ = types("jobs", "show", "a")
    assert "exit code 1: ValueError: no data\n" in out
    assert out.splitlines()[-1].endswith("exit code 1")  # it wrote nothing
    members = json.loads(types("jobs", "show", "a", "--json")[1])["members"]
    assert [one["reason"] for one in members] == ["exit code 1"] * 2


def test_waiting_exits_with_the_code_of_the_worst_member(desk, types):
    types("submit", "--name", "a", "--sweep", "x=1..3", "--", "true")
    desk.record("a", 1, None)
    desk.record("a", 1, State.COMPLETED, 0)
    for number, code in enumerate([0, 3, 2], 1):
        desk.tell("a", number, ended(code))
    code, out, _ = types("jobs", "wait", "a")
    assert (code, out) == (3, "a: failed (1 completed, 2 failed): exit code 3\n")
    code, out, _ = types("jobs", "retry", "a", "2")
    assert (code, out) == (0, "a: resubmitted 1 member\n")
    code, _, err = types("jobs", "wait", "a", "--timeout", "0.01")
    assert (code, "job a is running after 0.01 s" in err) == (1, True)


def test_ctrl_c_ends_the_waiting_and_not_the_job(desk, types, monkeypatch):
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    code, _, err = types("submit", "--name", "a", "--wait", "--", "true")
    assert code == 130
    assert err == "aboard: job a keeps running; stop it with: aboard jobs stop a\n"
    assert desk.engine.cancelled == []


def test_stopping_some_reports_those_that_cannot_be(desk, types):
    types("submit", "--name", "a", "--", "true")
    code, out, err = types("jobs", "stop", "a", "nothing")
    assert code == 1
    assert out == "stopping a (killed)\n"
    assert "job 'nothing' not found" in err
    assert types("jobs", "stop", "a")[1] == "already stopped: a (killed)\n"
    document = json.loads(types("jobs", "stop", "nothing", "--json")[1])
    assert document["errors"][0]["code"] == "not_found"


def test_deleting_some_reports_those_that_cannot_be(desk, types):
    for name in ("a", "b"):
        types("submit", "--name", name, "--", "true")
    desk.tell("a", 1, ended(0))
    desk.tell("b", 1, RUNNING)
    code, out, err = types("jobs", "delete", "a", "b")
    assert (code, out) == (1, "deleted a (completed)\n")
    assert err == "aboard: job b is running. Stop it first, or wait until it ends.\n"
    assert [one["id"] for one in json.loads(types("jobs", "--json")[1])["jobs"]] == ["b"]
    desk.tell("b", 1, ended(0))
    document = json.loads(types("jobs", "delete", "b", "--json")[1])
    assert [one["id"] for one in document["deleted"]] == ["b"]
    assert document["errors"] == []


def test_logs_of_several_members_have_their_numbers(desk, types):
    types("submit", "--name", "a", "--sweep", "x=1..10", "--", "true")
    desk.engine.words = b"one\ntwo\n"
    _, out, _ = types("jobs", "logs", "a")
    assert out.splitlines()[:3] == [" 1 | one", " 1 | two", " 2 | one"]
    assert types("jobs", "logs", "a", "10")[1] == "one\ntwo\n"
    desk.tell("a", 3, ended(1))
    assert types("jobs", "logs", "a", "--failed", "--tail", "1")[1] == "two\n"
    document = json.loads(types("jobs", "logs", "a", "3", "--json")[1])
    assert document["members"] == [{"number": 3, "lines": ["one", "two"]}]


def test_jobs_are_found_from_another_directory(desk, types, tmp_path, monkeypatch):
    types("submit", "--name", "a", "--", "true")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "a" in types("jobs", "show", "a")[1]
    code, _, err = types("jobs", "show", "b")
    assert (code, "job 'b' not found" in err) == (1, True)
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path / "another"))
    assert "no jobs were found" in types("jobs")[2]


def test_states_are_checked(desk, types):
    types("submit", "--name", "a", "--", "true")
    assert types("jobs", "--state", "pending")[1]
    assert "no job is failed. See all of them: aboard jobs" in types("jobs", "--state", "failed")[2]
    assert types("jobs", "--state", "fialed")[0] == 2
    assert types("jobs", "show", "a", "--state", "fialed")[0] == 2


def test_a_job_goes_on_without_a_board(desk, types, monkeypatch):
    monkeypatch.setenv("ABOARD_HUB", "http://localhost:9")
    code, out, err = types("submit", "--name", "a", "--board", "--", "true")
    assert code == 0
    assert out.startswith("a: 1 member on process")
    assert "job a continues without a board" in err
    assert isinstance(desk.engine, ScriptedEngine)


def test_tab_completes_jobs_and_engines(desk, types):
    types("submit", "--name", "alpha", "--", "true")
    assert offers_for(["jobs", "show"], "al") == [("alpha", "job")]
    assert offers_for(["submit", "--on"], "sl") == [("slurm", "engine")]
