"""Jobs from their submission to their end, on an engine that does what the test says."""

import json
import math
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from aboard.executors.base import ExecutorError, Resources, TaskState, TaskStatus
from aboard.executors.process import ProcessBatches
from aboard.executors.slurm.cluster import SlurmSettings
from aboard.jobs import BadJob, JobError, JobExists, JobTimeout, NoSuchJob, store
from aboard.jobs.service import JobRequest, Jobs
from aboard.jobs.store import JobStore
from aboard.runs.manifest import State
from aboard.storage import PermissionDenied, StorageError, Unreachable
from tests.jobs.scripted_engine import RUNNING, Desk, ended

ROOT = Path(__file__).parents[2]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "runs")


def states(status) -> list[str]:
    return [one.state.value for one in status.members]


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_sweep_is_one_batch_with_a_run_for_each_member(desk, tmp_path):
    status = desk.submit(
        "python", "-c", "{lr}", experiment="cifar10", sweep={"lr": [0.1, 0.01]}, name="first"
    )
    batch = desk.engine.batches["aboard-first-1"]
    assert batch.numbers == (1, 2)
    assert batch.command[1:] == ("-P", "-m", "aboard.jobs.member")
    assert batch.writes == (desk.root,)
    payload = json.loads(batch.payload)
    assert payload["members"] == [{"lr": 0.1}, {"lr": 0.01}]
    assert payload["command"] == ["python", "-c", "{lr}"]
    assert [one.run for one in status.members] == ["cifar10/first-1", "cifar10/first-2"]
    assert status.state == "pending"
    shown = json.loads((desk.root / ".jobs/first/job.json").read_text())
    assert shown["submissions"][0]["handle"] == {"name": "aboard-first-1"}
    assert stat.S_IMODE((desk.root / ".jobs/first/submission.json").stat().st_mode) == 0o600


def test_one_member_has_the_name_of_its_job(desk):
    assert desk.submit(name="only").members[0].run == "default/only"
    status = desk.submit()
    assert len(status.id) == 6
    assert status.id[0].isalpha()
    assert desk.submit(name="swept", sweep={"a": [1]}).members[0].run == "default/swept-1"


def test_the_engine_says_who_waits_and_runs_and_the_run_how_it_ended(desk):
    desk.submit(name="a", sweep={"x": [1, 2, 3, 4]})
    desk.tell("a", 1, RUNNING)
    for number in (2, 3):
        desk.record("a", number, None)
    desk.record("a", 2, State.COMPLETED, 0)
    desk.record("a", 3, State.FAILED, 3)
    desk.tell("a", 2, ended(0))
    desk.tell("a", 3, ended(3))
    status = desk.jobs.get("a")
    assert states(status) == ["running", "completed", "failed", "pending"]
    assert status.members[2].exit_code == 3
    assert status.members[2].reason == "exit code 3"
    assert status.members[3].reason == "Priority"
    assert status.members[0].unit == "77"
    assert status.state == "running"
    settled = json.loads((desk.root / ".jobs/a/job.json").read_text())["settled"]
    assert settled == {"2": ["completed", 0, ""], "3": ["failed", 3, "exit code 3"]}


def test_a_stale_heartbeat_of_a_task_that_runs_is_running(desk):
    desk.submit(name="a")
    desk.record("a", 1, None)  # its heartbeat is decades old
    desk.tell("a", 1, RUNNING)
    assert desk.jobs.get("a").state == "running"


def test_a_task_that_ended_while_its_run_says_running_failed_for_the_engines_reason(desk):
    desk.submit(name="a")
    desk.record("a", 1, None)
    desk.tell("a", 1, ended(-9, "OUT_OF_MEMORY"))
    status = desk.jobs.get("a")
    assert status.members[0][3:6] == ("failed", -9, "OUT_OF_MEMORY")
    assert status.exit_code == 137


def test_a_task_that_ended_before_its_run_began_failed_with_its_last_words(desk):
    desk.submit(name="a")
    desk.engine.words = b"loading\naboard: train.py: no such program.\n"
    desk.tell("a", 1, ended(127))
    member = desk.jobs.get("a").members[0]
    assert member.state == "failed"
    assert member.reason == "exit code 127: loading | aboard: train.py: no such program."


def test_what_the_engine_has_forgotten_is_lost_unless_its_run_knows(desk):
    desk.submit(name="a", sweep={"x": [1, 2]})
    desk.record("a", 1, None)
    desk.record("a", 1, State.COMPLETED, 0)
    for number in (1, 2):
        desk.tell("a", number, ended(None))
    assert states(desk.jobs.get("a")) == ["completed", "lost"]


def test_a_query_that_fails_is_unknown_and_never_failed(desk):
    desk.submit(name="a", sweep={"x": [1, 2, 3]})
    desk.record("a", 1, None)
    desk.record("a", 1, State.COMPLETED, 0)
    desk.record("a", 2, None)
    desk.engine.is_down = True
    status = desk.jobs.get("a")
    assert states(status) == ["completed", "unknown", "unknown"]
    assert status.state == "unknown"
    assert status.reason == "slurmctld does not answer"
    desk.engine.is_down = False
    assert states(desk.jobs.get("a")) == ["completed", "pending", "pending"]


def test_finished_members_cost_no_query(desk):
    for name in ("a", "b"):
        desk.submit(name=name)
        desk.tell(name, 1, ended(0))
    assert [one.state for one in desk.jobs.list()] == ["completed", "completed"]
    assert desk.engine.queries == 1
    assert desk.engine.released == ["aboard-b-1", "aboard-a-1"]
    assert [one.state for one in desk.look_anew().list()] == ["completed", "completed"]
    assert desk.engine.queries == 1


def test_stopping_reaches_every_member_also_those_that_wait(desk):
    desk.submit(name="a", sweep={"x": [1, 2, 3]})
    desk.tell("a", 1, RUNNING)
    desk.tell("a", 3, ended(0))
    status = desk.jobs.stop("a")
    assert desk.engine.cancelled == [("aboard-a-1", [1, 2])]
    assert states(status) == ["killed", "killed", "completed"]
    assert status.state == "stopped"
    assert desk.jobs.stop("a").state == "stopped"
    assert len(desk.engine.cancelled) == 1


def test_retry_submits_those_that_failed_and_their_runs_continue(desk):
    desk.submit(name="a", sweep={"x": [1, 2, 3]}, environment={"TOKEN": "s3cret-s3cret"})
    for number, (state, code) in enumerate([(State.COMPLETED, 0), (State.FAILED, 1)], 1):
        desk.record("a", number, None)
        desk.record("a", number, state, code)
        desk.tell("a", number, ended(code))
    desk.tell("a", 3, RUNNING)
    status = desk.jobs.retry("a")
    batch = desk.engine.batches["aboard-a-2"]
    assert batch.numbers == (2,)
    assert batch.attempt == 2
    assert batch.directory != desk.engine.batches["aboard-a-1"].directory
    assert json.loads(batch.payload)["environment"] == {"TOKEN": "s3cret-s3cret"}
    assert states(desk.jobs.get("a")) == ["completed", "pending", "running"]
    # The first attempt's record says failed, and says nothing about the second.
    desk.tell("a", 2, ended(1), attempt=2)
    desk.engine.words = b"node is broken\n"
    member = desk.jobs.get("a").members[1]
    assert (member.state, member.reason) == ("failed", "exit code 1: node is broken")
    desk.jobs.retry("a", [2])
    desk.record("a", 2, None)
    desk.record("a", 2, State.COMPLETED, 0)
    desk.tell("a", 2, ended(0), attempt=3)
    desk.tell("a", 3, ended(0))
    status = desk.jobs.get("a")
    assert status.state == "completed"
    assert not (desk.root / ".jobs/a/submission.json").exists()


def test_there_may_be_nothing_to_retry(desk):
    desk.submit(name="a")
    with pytest.raises(BadJob, match="no member failed"):
        desk.jobs.retry("a")
    with pytest.raises(BadJob, match="member 1 is pending"):
        desk.jobs.retry("a", [1])
    with pytest.raises(BadJob, match="members 1 to 1, not 2"):
        desk.jobs.retry("a", [2])


def test_a_retry_that_the_engine_refuses_changes_nothing(desk):
    desk.submit(name="a")
    desk.tell("a", 1, ended(1))
    before = desk.jobs.get("a").document(members=True)
    desk.engine.refusal = "slurm: no such partition."
    with pytest.raises(ExecutorError, match="no such partition"):
        desk.jobs.retry("a")
    assert desk.jobs.get("a").document(members=True) == before
    assert files_below(desk.root) == [".jobs/a/job.json", ".jobs/a/submission.json"]


def test_what_the_engine_refuses_leaves_nothing_behind(desk):
    desk.engine.refusal = "slurm: invalid partition 'gpu'."
    with pytest.raises(ExecutorError, match="invalid partition"):
        desk.submit(name="a")
    assert not desk.root.exists()
    desk.engine.refusal = ""
    assert desk.submit(name="a").id == "a"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on": "slrum"}, "unknown engine 'slrum'. Did you mean 'slurm'"),
        ({"on": "process:long"}, "process has no profile 'long'"),
        ({"command": ["true", "{missing}"]}, r"unknown placeholder \{missing\}"),
        ({"environment": {"A": "{missing}"}}, r"the variable A: unknown placeholder \{missing\}"),
        ({"environment": {"A=B": "1"}}, "is not a valid name of an environment variable"),
        ({"sweep": {"lr": []}}, "the sweep of 'lr' is empty"),
        ({"sweep": {"lr": "0.1,0.2"}}, "Write a list of values"),
        ({"members": []}, "the job has no members"),
        ({"command": []}, "the command is missing"),
        ({"command": ["no-such-program"]}, "no-such-program: program not found"),
        ({"command": ["./no-such-script"]}, "no-such-script: program not found"),
        ({"name": "Not_a_name"}, "invalid name of a job"),
        ({"name": "2300"}, "invalid name of a job"),
        ({"experiment": "a/b"}, "contains the character '/'"),
        ({"resources": Resources(gpus=-1)}, "gpus is -1"),
        ({"resources": Resources(cpus=0)}, "cpus is 0"),
        ({"resources": Resources(cpus=math.nan)}, "cpus is nan. Use a number"),
        ({"resources": Resources(cpus="two")}, "cpus is 'two'. Use a number"),
        ({"resources": Resources(gpus=1.5)}, "gpus is 1.5. Use a whole number"),
        ({"parallel": 0}, "parallel is 0"),
        ({"repeat": 0}, "repeat is 0"),
        ({"repeat": "twice"}, "repeat is 'twice'. Use a number"),
        ({"workdir": Path("/no/such/place")}, "/no/such/place: working directory not found"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_leaves_nothing_behind(desk, options, problem):
    with pytest.raises(BadJob, match=problem) as error:
        desk.jobs.submit(JobRequest(**{"command": ["true"], **options}))
    assert "\n" not in str(error.value)
    assert "--" not in str(error.value)  # Python and REST have no options of a command line
    assert not desk.root.exists()


def test_a_job_that_has_ended_can_be_deleted_and_its_runs_stay(desk):
    desk.submit(name="a", sweep={"x": [1, 2]})
    desk.tell("a", 1, RUNNING)
    with pytest.raises(BadJob, match=r"job a is running\. Stop it first, or wait until it ends"):
        desk.jobs.delete("a")
    with pytest.raises(BadJob, match="job a is running"):
        desk.jobs.delete("a", force=True)
    desk.record("a", 1, None)
    desk.record("a", 1, State.COMPLETED, 0)
    desk.tell("a", 1, ended(0))
    desk.tell("a", 2, ended(3))
    assert desk.jobs.delete("a").state == "failed"
    assert desk.jobs.list() == []
    assert desk.engine.released == ["aboard-a-1"]
    assert not (desk.root / ".jobs").exists()
    assert (desk.root / "default/a-1/run.json").exists()
    with pytest.raises(NoSuchJob, match="job 'a' not found"):
        desk.jobs.delete("a")
    with pytest.raises(JobExists, match=r"already has a run 'default/a-1'\. Choose another name"):
        desk.submit(name="a", sweep={"x": [1, 2]})
    assert not (desk.root / ".jobs").exists()
    expected = (
        r"has a run 'default/a-1' of an earlier job 'a', which job:a would select too\. Choose"
    )
    for options in ({}, {"experiment": "other"}):  # its run has another name
        with pytest.raises(JobExists, match=expected):
            desk.submit(name="a", **options)
    shutil.rmtree(desk.root / "default/a-1")
    desk.submit(name="a")


def test_a_run_whose_name_begins_like_that_of_a_job_is_not_its_run(desk):
    desk.submit(name="a-1")
    desk.record("a-1", 1, None)
    desk.submit(name="a")


def test_a_job_whose_engine_is_gone_is_deleted_by_force(desk):
    desk.submit(name="a")
    desk.tell("a", 1, TaskStatus(TaskState.UNKNOWN, reason="there is no such cluster"))
    with pytest.raises(BadJob, match=r"job a is unknown\. Use force to delete it"):
        desk.jobs.delete("a")
    desk.jobs.delete("a", force=True)
    assert desk.jobs.list() == []


def test_only_its_submitter_deletes_a_job(desk, monkeypatch):
    desk.submit(name="a")
    desk.tell("a", 1, ended(0))
    assert desk.jobs.get("a").has_ended
    monkeypatch.setattr(store, "_owner", lambda _: os.getuid() + 1)
    with pytest.raises(JobError, match="job a is not yours"):
        desk.jobs.delete("a")
    assert [one.id for one in desk.jobs.list()] == ["a"]


def test_a_name_is_taken_once(desk):
    desk.submit(name="a")
    with pytest.raises(JobExists, match="already has a job 'a'"):
        desk.submit(name="a")
    assert desk.jobs.get("a").state == "pending"


def test_no_secret_is_in_the_record(desk):
    desk.submit(
        "true", "--api-key", "hunter2hunter2", name="a", hparams={"password": "hunter2hunter2"},
        environment={"MY_TOKEN": "hunter2hunter2", "THREADS": "4"},
    )  # fmt: skip
    text = (desk.root / ".jobs/a/job.json").read_text()
    assert "hunter2" not in text
    assert json.loads(text)["environment"]["THREADS"] == "4"
    assert b"hunter2hunter2" in desk.engine.batches["aboard-a-1"].payload


def test_a_submitter_that_was_killed_is_found_by_the_next_look(desk):
    """Killed after the engine has accepted: the same submission is found, and not made twice."""

    def die() -> None:
        raise KeyboardInterrupt

    desk.engine.before_answer = die
    with pytest.raises(KeyboardInterrupt):
        desk.submit(name="a", sweep={"x": [1, 2]})
    desk.engine.before_answer = lambda: None
    assert str(desk.problems.pop()).endswith("stop it with: aboard jobs stop a")
    status = desk.look_anew().get("a")
    assert states(status) == ["pending", "pending"]
    assert status.record.submissions[0].handle == {"name": "aboard-a-1"}
    assert list(desk.engine.batches) == ["aboard-a-1"]


def failing_after(monkeypatch, desk):
    """Let no record be changed from the moment on at which the engine accepts a batch."""
    update = JobStore.update
    accepted = []
    desk.engine.before_answer = lambda: accepted.append(True)

    def failing(self: JobStore, job: str, change: object) -> object:
        if accepted:
            raise Unreachable(self.root, "no answer")
        return update(self, job, change)

    monkeypatch.setattr(JobStore, "update", failing)
    return accepted


def test_a_batch_that_the_engine_has_is_found_although_its_handle_could_not_be_noted(
    desk, monkeypatch
):
    accepted = failing_after(monkeypatch, desk)
    with pytest.raises(JobError, match=r"no answer.*stop it with: aboard jobs stop a$"):
        desk.submit(name="a", sweep={"x": [1, 2]})
    assert states(desk.jobs.get("a")) == ["pending", "pending"]  # still without a handle
    accepted.clear()
    desk.engine.before_answer = lambda: None
    status = desk.look_anew().stop("a")  # by the same process, which has not ended
    assert desk.engine.cancelled == [("aboard-a-1", None)]
    assert (status.state, list(desk.engine.batches)) == ("stopped", ["aboard-a-1"])


def test_a_retry_that_the_engine_has_is_not_undone(desk, monkeypatch):
    desk.submit(name="a")
    desk.tell("a", 1, ended(1))
    desk.jobs.get("a")
    accepted = failing_after(monkeypatch, desk)
    with pytest.raises(JobError, match="was submitted anyway"):
        desk.jobs.retry("a")
    accepted.clear()
    desk.engine.before_answer = lambda: None
    status = desk.look_anew().get("a")
    assert states(status) == ["pending"]
    assert [one.handle for one in status.record.submissions] == [
        {"name": "aboard-a-1"},
        {"name": "aboard-a-2"},
    ]


def test_a_submission_that_never_reached_the_engine_is_removed(desk, monkeypatch):
    script = """
import os, pathlib, signal, sys
from aboard.jobs import service
from tests.jobs.scripted_engine import Desk
service.write_kept = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
Desk(pathlib.Path(sys.argv[1])).submit(name="a")
"""
    killed = subprocess.run(
        [sys.executable, "-c", script, str(desk.root)], cwd=ROOT, capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (desk.root / ".jobs/a/job.json").exists()
    with pytest.raises(NoSuchJob, match="was never submitted"):
        desk.jobs.get("a")
    assert desk.jobs.list() == []
    assert files_below(desk.root) == []


def test_what_another_user_submitted_is_only_looked_at(desk, monkeypatch):
    """A record below a shared root has any text in it that its author chose."""
    for name in ("ended", "running", "failed", "interrupted"):
        desk.submit(name=name)
    desk.tell("failed", 1, ended(3))
    assert desk.jobs.get("failed").state == "failed"
    desk.tell("running", 1, RUNNING)
    desk.tell("ended", 1, ended(3))
    path = desk.root / ".jobs/interrupted/job.json"
    record = json.loads(path.read_text())
    record["submissions"][0] |= {"handle": None, "by": ""}
    path.write_text(json.dumps(record))
    desk.engine.words = b"not for others"
    before = {name: (desk.root / name).read_bytes() for name in files_below(desk.root)}
    submitted, released = dict(desk.engine.batches), list(desk.engine.released)

    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    jobs = desk.look_anew()
    shown = {one.id: one.state.value for one in jobs.list()}
    assert shown == {
        "ended": "failed",
        "running": "running",
        "failed": "failed",
        "interrupted": "pending",
    }
    assert jobs.get("ended").reason == "exit code 3"
    assert list(jobs.logs("ended")) == []
    for change, job in ((jobs.stop, "running"), (jobs.retry, "failed")):
        with pytest.raises(JobError, match=f"job {job} is not yours. Only "):
            change(job)
    assert {name: (desk.root / name).read_bytes() for name in files_below(desk.root)} == before
    assert (desk.engine.batches, desk.engine.released) == (submitted, released)
    assert desk.engine.cancelled == []


HANDLES = {
    "process": {"directory": "/nowhere", "numbers": "1", "host": "h", "boot": "b"},
    "slurm": {
        "profile": "",
        "user": 1,
        "place": "/nowhere",
        "directory": "/nowhere",
        "memory": None,
        "ranks": False,
        "arrays": [{"job": "5", "offset": 0, "indices": "1"}],
    },
    "kubernetes": {
        "profile": "",
        "server": "https://elsewhere",
        "namespace": "default",
        "name": "a",
        "indexed": True,
        "numbers": "1",
        "memory": None,
    },
    "vertex": {"project": "p", "location": "l", "endpoint": "", "jobs": {"1": "a"}},
}


@pytest.mark.parametrize("engine", HANDLES)
def test_a_handle_of_any_content_hides_no_other_job(desk, tmp_path, engine):
    """One user's record must not keep the others from seeing theirs."""
    desk.submit(name="a")
    path = desk.root / ".jobs/a/job.json"
    record = json.loads(path.read_text())
    many = "1-99999999999"
    arrays = [[{"job": one, "offset": 0, "indices": "1"}] for one in ("--all", None, {})]
    arrays += [[{"job": "5", "offset": 0, "indices": many}], None, 7, [None]]
    others = {"numbers": [many, None, [], "x"], "jobs": [None, 7, many], "arrays": arrays}
    forged = [{}]
    for key, value in HANDLES[engine].items():
        values = others.get(key, ["../..", 1e308, None, [], {}])
        forged += [{**HANDLES[engine], key: one} for one in values if one != value]
    for number, handle in enumerate(forged):
        (tmp_path / f"runs/.jobs/forged{number}").mkdir()
        record["submissions"][0]["handle"] = handle
        document = {**record, "id": f"forged{number}", "on": engine}
        (tmp_path / f"runs/.jobs/forged{number}/job.json").write_text(json.dumps(document))
    settings = {"slurm": {"": SlurmSettings(programs=tmp_path)}}
    with Jobs([str(desk.root)], {engine: settings.get(engine, {}), "process": {}}) as jobs:
        jobs._executors["process"] = desk.engine if engine != "process" else ProcessBatches()
        jobs._is_mine = lambda _: False
        shown = {one.id: one.document(members=True)["state"] for one in jobs.list()}
    assert len(shown) == len(forged) + 1
    assert shown["forged0"] == "unknown"


@pytest.mark.parametrize(
    "change",
    [
        {"settled": {"1": ["completed"]}},
        {"settled": {"1": ["completed", 0, "", 4]}},
        {"settled": {"1": ["failed", "x", ""]}},
        {"settled": {"1": ["failed", 1, {}]}},
        {"settled": {"2": ["completed", 0, ""]}},
        {"resources": {"memory": "2GiB"}},
    ],
)
def test_a_record_of_the_wrong_form_is_damaged(desk, change):
    desk.submit(name="a")
    path = desk.root / ".jobs/a/job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert desk.jobs.list() == []
    assert "the record of a job is damaged" in str(desk.problems[0])


def test_members_can_be_retried_until_all_have_completed(desk):
    desk.submit(name="a", sweep={"x": [1, 2, 3]})
    for number, code in ((1, 0), (2, 3), (3, 3)):
        desk.tell("a", number, ended(code))
    desk.jobs.get("a")
    desk.jobs.retry("a", [2])
    desk.jobs.retry("a", [3])
    desk.engine.states["aboard-a-2"][2] = ended(0)
    assert states(desk.jobs.get("a")) == ["completed", "completed", "pending"]
    desk.engine.states["aboard-a-3"][3] = ended(3)
    assert states(desk.jobs.get("a")) == ["completed", "completed", "failed"]
    assert states(desk.jobs.retry("a")) == ["completed", "completed", "pending"]


@pytest.fixture
def bucket_desk(tmp_path, monkeypatch) -> Desk:
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path / "state"))
    return Desk(f"memory://service-{os.urandom(4).hex()}/runs")


def test_another_machine_leaves_an_interrupted_submission_alone(bucket_desk, tmp_path, monkeypatch):
    """The engine may have accepted it, and only the first machine can find out."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    bucket_desk.engine.before_answer = interrupt
    with pytest.raises(KeyboardInterrupt):
        bucket_desk.submit(name="a")
    bucket_desk.engine.before_answer = lambda: None
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path / "another machine"))
    assert [one.id for one in bucket_desk.look_anew().list()] == ["a"]
    assert "can be retried only on" in str(bucket_desk.problems[-1])
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path / "state"))
    assert [one.id for one in bucket_desk.look_anew().list()] == ["a"]
    assert bucket_desk.jobs.stop("a").state == "stopped"


def test_a_record_in_a_bucket_with_paths_of_another_is_only_looked_at(bucket_desk):
    bucket_desk.submit(name="a")
    jobs = bucket_desk.look_anew(strict=True)
    (job_store,) = jobs.stores

    def forge(record):
        record.submissions[0].handle |= {"directory": "/home/ada"}

    job_store.update("a", forge)
    with pytest.raises(JobError, match="job a is not yours"):
        jobs.stop("a")
    bucket_desk.tell("a", 1, ended(0))
    assert jobs.get("a").state == "completed"
    assert bucket_desk.engine.released == []


def test_jobs_are_ones_own_where_files_get_another_owner(desk, tmp_path, monkeypatch):
    """As on NFS, which gives the files of root to nobody."""
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path / "state"))
    desk.submit(name="before")
    monkeypatch.setattr(store, "_owner", lambda _: os.getuid() + 1)
    placed = desk.submit(name="after").record.submissions[0].directory
    assert Path(placed).is_relative_to(tmp_path / "state")  # where nobody else can change it
    assert [one.name for one in (desk.root / ".jobs/after").iterdir()] == ["job.json"]
    assert desk.jobs.stop("after").state == "stopped"
    with pytest.raises(JobError, match="job before is not yours"):
        desk.jobs.stop("before")


def test_a_record_that_names_another_job_is_damaged(desk):
    desk.submit(name="a")
    desk.submit(name="b")
    (desk.root / ".jobs/b/job.json").write_bytes((desk.root / ".jobs/a/job.json").read_bytes())
    assert [one.id for one in desk.jobs.list()] == ["a"]
    assert "the record of another job" in str(desk.problems[0])


def test_another_process_that_submits_just_now_is_left_alone(desk):
    def look() -> None:
        assert desk.look_anew().get("a").state == "pending"
        assert "is being submitted" in desk.look_anew().get("a").reason

    desk.engine.before_answer = look
    desk.submit(name="a")
    assert desk.problems == []


def test_jobs_are_found_by_the_beginning_of_their_ids(desk):
    desk.submit(name="abc")
    desk.submit(name="abd")
    assert desk.jobs.find("abc").id == "abc"
    assert desk.jobs.find("job:abd").id == "abd"
    with pytest.raises(NoSuchJob, match="abc, abd"):
        desk.jobs.find("ab")
    for wrong in ("x", "", "../a"):
        with pytest.raises(NoSuchJob, match="not found below"):
            desk.jobs.find(wrong)


@pytest.mark.parametrize(
    "change",
    [
        {"created": "today"},
        {"user": None},
        {"members": 7},
        {"members": [7]},
        {"command": [7]},
        {"settled": []},
        {"settled": {"1": []}},
        {"settled": {"1": ["gone"]}},
        {"settled": {"2": ["completed"]}},
        {"submissions": [{"attempt": 1, "numbers": [2], "at": 1, "by": "", "directory": ""}]},
        {"submissions": [{"attempt": 1, "numbers": 1, "at": 1, "by": "", "directory": ""}]},
    ],
)
def test_a_record_of_another_form_is_damaged(desk, change):
    desk.submit(name="good")
    desk.submit(name="bad")
    path = desk.root / ".jobs/bad/job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert [one.document(members=True)["id"] for one in desk.jobs.list()] == ["good"]
    assert "the record of a job is damaged" in str(desk.problems[0])


def test_a_record_leads_to_no_file_outside_of_its_root(desk):
    (desk.root.parent / "secret/run").mkdir(parents=True)
    (desk.root.parent / "secret/run/output.log").write_text("secret")
    desk.submit(name="run")
    path = desk.root / ".jobs/run/job.json"
    record = json.loads(path.read_text()) | {"experiment": "../secret"}
    path.write_text(json.dumps(record))
    with pytest.raises(StorageError, match="the name leads out of its root"):
        list(desk.jobs.logs("run"))


def test_a_damaged_record_harms_no_other(desk):
    desk.submit(name="a")
    desk.submit(name="b")
    (desk.root / ".jobs/a/job.json").write_text('{"id": "a"')
    assert [one.id for one in desk.jobs.list()] == ["b"]
    assert "is damaged" in str(desk.problems[0])
    with pytest.raises(JobError, match="is damaged"):
        desk.jobs.get("a")


def test_fields_of_a_newer_version_are_kept(desk):
    desk.submit(name="a")
    path = desk.root / ".jobs/a/job.json"
    newer = {"newer": [1], "resources": {"gpus": 1, "tpus": 8}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **newer}))
    desk.tell("a", 1, ended(0))
    status = desk.jobs.get("a")
    assert (status.state, status.record.needs.gpus) == ("completed", 1)
    assert json.loads(path.read_text())["newer"] == [1]


def test_waiting_ends_with_the_job_or_with_patience(desk):
    desk.submit(name="a", sweep={"x": [1, 2]})
    with pytest.raises(JobTimeout, match=r"job a is pending after 0\.05 s"):
        desk.jobs.wait("a", timeout=0.05)
    seen = []

    def on_change(status) -> None:
        seen.append(dict(status.counts))
        desk.tell("a", 1, ended(0))
        if len(seen) > 1:
            desk.tell("a", 2, ended(5))

    status = desk.jobs.wait("a", on_change=on_change)
    assert seen[-1] == {"completed": 1, "failed": 1}
    assert (status.state, status.exit_code) == ("failed", 5)


def test_waiting_goes_on_while_the_storage_does_not_answer(desk, monkeypatch):
    desk.submit(name="a")
    read, failures = JobStore.read, iter([True, True])

    def sometimes(self: JobStore, job: str) -> object:
        desk.tell("a", 1, RUNNING)
        if next(failures, False):
            raise Unreachable(self.root, "no answer")
        desk.tell("a", 1, ended(0))
        return read(self, job)

    record = desk.jobs.find("a")
    monkeypatch.setattr(desk.jobs, "find", lambda _: record)
    monkeypatch.setattr(JobStore, "read", sometimes)
    assert desk.jobs.wait("a", timeout=180).state == "completed"


def test_logs_are_those_of_the_run_and_before_it_those_of_the_engine(desk):
    desk.submit(name="a", sweep={"x": [1, 2]})
    desk.engine.words = b"module load cuda\n"
    output = desk.root / "default/a-2/output.log"
    output.parent.mkdir(parents=True)
    output.write_bytes(b"epoch 1\nepoch 2\nepoch 3")
    assert list(desk.jobs.logs("a")) == [
        (1, b"module load cuda\n"),
        (2, b"epoch 1\nepoch 2\nepoch 3"),
    ]
    assert list(desk.jobs.logs("a", [2], tail=1)) == [(2, b"epoch 3")]
    with pytest.raises(BadJob, match="members 1 to 2, not 3"):
        list(desk.jobs.logs("a", [3]))


def test_following_goes_on_until_the_member_has_ended(desk):
    desk.submit(name="a")
    desk.tell("a", 1, RUNNING)
    output = desk.root / "default/a/output.log"
    output.parent.mkdir(parents=True)
    output.write_bytes(b"epoch 1\nepo")
    pieces = desk.jobs.logs("a", follow=True)
    assert next(pieces) == (1, b"epoch 1\n")
    output.write_bytes(b"epoch 1\nepoch 2\nend")
    desk.tell("a", 1, ended(0))
    assert b"".join(piece for _, piece in pieces) == b"epoch 2\nend"


def test_a_root_that_may_only_be_read_can_be_looked_at(desk, monkeypatch):
    desk.submit(name="a")
    desk.tell("a", 1, ended(0))

    def refuse(self: JobStore, job: str, change: object) -> None:
        raise PermissionDenied(self.root, "permission denied")

    monkeypatch.setattr(JobStore, "update", refuse)
    assert desk.jobs.get("a").state == "completed"
    assert isinstance(desk.problems[0], PermissionDenied)


def test_an_engine_that_is_not_installed_is_unknown(desk, monkeypatch):
    desk.submit(name="a")
    jobs = Jobs([str(desk.root)], {"process": {}})

    def missing(engine: str) -> None:
        raise ImportError("no docker")

    monkeypatch.setattr("aboard.jobs.service.batch_executor", missing)
    status = jobs.get("a")
    assert (status.state, status.reason) == ("unknown", "no docker")


def test_threads_that_need_an_engine_at_once_share_one(desk, monkeypatch):
    desk.submit(name="a")
    made, closed = [], []
    both = threading.Barrier(2)

    class Slow(ProcessBatches):
        def open(self) -> None:
            made.append(self)
            with suppress(threading.BrokenBarrierError):
                both.wait(0.5)  # until another thread makes one too

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr("aboard.jobs.service.batch_executor", lambda _: Slow)
    with Jobs([str(desk.root)], {"process": {}}) as jobs, ThreadPoolExecutor(2) as pool:
        assert len(list(pool.map(jobs.get, ["a", "a"]))) == 2
    assert (len(made), closed) == (1, made)


def test_without_its_engine_a_member_is_unknown_until_its_run_has_completed(desk):
    desk.submit(name="a", sweep={"x": [1, 2]})
    desk.record("a", 1, None)
    desk.record("a", 1, State.COMPLETED, 0)
    status = Jobs([str(desk.root)], {}).get("a")
    assert states(status) == ["completed", "unknown"]
    assert status.reason == "jobs on process cannot be managed from here."
