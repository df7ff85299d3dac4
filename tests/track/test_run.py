"""What a training logs with `aboard.init`, as readers find it; ranks; and disks that refuse."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aboard
from aboard import EventWriter, track
from aboard.events import encode
from aboard.runs import manifest
from aboard.runs.catalog import RunExists
from aboard.runs.manifest import Manifest
from aboard.storage import Entry, Unreachable, open_storage
from aboard.storage.local import LocalStorage
from aboard.track import run as run_module
from aboard.track.environment import NoLaunch
from aboard.track.run import LastSteps, Run, RunRecord, SilentRun, Stages
from tests.track.readers import read_stock
from tests.track.training import points, record, start, train
from tests.waiting import until


@pytest.fixture(autouse=True)
def _no_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ABOARD_ROOT", "ABOARD_RUN", "ABOARD_LOGDIR", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_stages_steps_and_counters(tmp_path: Path) -> None:
    with aboard.init("x", root=tmp_path) as run:
        assert (run.name, run.experiment, run.uri) == ("run1", "x", f"{tmp_path}/x/run1")
        assert run.logdir == run.uri
        for epoch in range(3):
            run.log_metrics({"loss": 1 / (epoch + 1), "lr": np.float32(0.5)}, stage="train")
            run.log_metrics({"acc": epoch, "epoch": epoch * 10}, step_name="epoch", stage="eval")
        run.log_metrics({"acc": np.array([7])}, stage="eval")
        run.log_metrics({"total": 1}, step=np.int64(5))
        run.log_metrics({"total": 2, "epoch": 4}, step=8, step_name="epoch")
    assert points(tmp_path, "x/run1/train", "loss") == [(0, 1.0), (1, 0.5), (2, 0.3333)]
    assert points(tmp_path, "x/run1/eval", "acc") == [(0, 0.0), (10, 1.0), (20, 2.0), (21, 7.0)]
    assert points(tmp_path, "x/run1", "total") == [(5, 1.0), (8, 2.0)]
    found = record(tmp_path / "x" / "run1")
    assert found["metrics"] == {
        "train/loss": pytest.approx(1 / 3), "train/lr": 0.5, "eval/acc": 7.0, "total": 2.0
    }  # fmt: skip
    assert found["state"] == "completed"


@pytest.mark.parametrize(
    ("metrics", "options", "problem"),
    [
        ({"loss": "low"}, {}, "the metric 'loss' is 'low', not a number"),
        ({"loss": "0.5"}, {}, "the metric 'loss' is '0.5', not a number"),
        ({"loss": None}, {}, "the metric 'loss' is None, not a number"),
        ({"a": 1, "loss": np.zeros(2)}, {}, "the metric 'loss' is array([0., 0.]), not a number"),
        ({"loss": 10**400}, {}, "the metric 'loss' is 1000000"),
        ({"loss": Decimal("sNaN")}, {}, "the metric 'loss' is Decimal('sNaN'), not a number"),
        ({"loss": 1}, {"step": 1.5}, "the step is 1.5, not a whole number"),
        ({"loss": 1}, {"step": "1"}, "the step is '1', not a whole number"),
        ({"e": 1.5}, {"step_name": "e"}, "the step 'e' is 1.5, not a whole number"),
        ({"e": np.nan}, {"step_name": "e"}, "the step 'e' is nan, not a whole number"),
        (
            {"loss": 1, "acc": 2},
            {"step_name": "epoch"},
            "no metric 'epoch' for the step; the metrics are loss, acc",
        ),
        ({"loss": 1}, {"stage": "../x"}, "the name of the stage, '..', begins with a dot. "),
    ],
)
def test_what_is_not_logged(
    tmp_path: Path, metrics: dict[str, float], options: dict[str, object], problem: str
) -> None:
    with aboard.init(root=tmp_path) as run:
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is below
            run.log_metrics(metrics, **options)  # type: ignore[arg-type]
        assert str(caught.value).startswith(problem)
        run.log_metrics({"loss": 3})
    assert points(tmp_path, "default/run1", "loss") == [(0, 3.0)]


@pytest.mark.parametrize(
    ("metrics", "options", "problem"),
    [
        ([("a", 1)], {}, "metrics must be a mapping of names to numbers, not a list: [('a', 1)]"),
        ([("a", 1)], {"step_name": "a"}, "metrics must be a mapping of names to numbers, not a li"),
        (0.5, {"step": 1}, "metrics must be a mapping of names to numbers, not a float: 0.5"),
        ({"a": 1}, {"stage": None}, "the stage is None, not a string such as 'train'"),
        ({"a": 1}, {"stage": 3}, "the stage is 3, not a string such as 'train'"),
        ({"a": 1}, {"stage": ["a"]}, "the stage is ['a'], not a string such as 'train'"),
        ({"a": 1}, {"step_name": ["a"]}, "step_name is ['a'], not the name of a metric"),
        ({1: 1}, {}, "tag must be a string, not int: 1"),
    ],
)
def test_what_is_of_the_wrong_kind(
    tmp_path: Path, metrics: Any, options: dict[str, Any], problem: str
) -> None:
    with aboard.init(root=tmp_path) as run, pytest.raises(TypeError) as caught:
        run.log_metrics(metrics, **options)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"experiment": 5}, "experiment is 5, not a string"),
        ({"experiment": ["a"]}, "experiment is ['a'], not a string"),
        ({"name": b"a"}, "name is b'a', not a string"),
        ({"root": 5}, "root is 5, not a path or URI"),
        ({"workspace": {}}, "workspace is {}, not a string"),
        ({"job": [1]}, "job is [1], not a string"),
        ({"tags": 5}, "tags must be a name, several names, or a mapping from names to values, not"),
        ({"tags": b"a"}, "tags must be a name, several names, or a mapping from names to values"),
        ({"hparams": 5}, "hyperparameters must be a mapping from names to values"),
        ({"resume": "false"}, "resume is 'false', not True, False or None"),
        ({"flush_secs": "1"}, "flush_secs is '1', not a number of seconds"),
        ({"flush_secs": None}, "flush_secs is None, not a number of seconds"),
    ],
)
def test_arguments_of_the_wrong_type_are_named(
    tmp_path: Path, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TypeError) as caught:
        aboard.init(**{"root": tmp_path} | arguments)
    assert str(caught.value).startswith(problem)
    assert not list(tmp_path.iterdir())


def test_numbers_of_every_kind(tmp_path: Path) -> None:
    numbers: list[Any] = [Decimal("0.5"), Fraction(1, 2), np.float16(0.5), np.array(0.5), 0.5]
    with aboard.init(root=tmp_path) as run:
        for number in numbers:
            run.log_metrics({"loss": number, "count": 1})
    found = points(tmp_path, "default/run1", "loss")
    assert found == [(step, 0.5) for step in range(len(numbers))]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"rank": "first"}, "rank is 'first', not a whole number"),
        ({"purge_step": "x"}, "purge_step is 'x', not a whole number"),
        ({"ranks": "some"}, "ranks must be 'first' or 'all', not 'some'"),
        ({"flush_secs": -1}, "flush_secs must be at least 0, not -1"),
    ],
)
def test_what_a_run_cannot_begin_with(
    tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        aboard.init(root=tmp_path / "root", **options)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("rank", ["0", -1, np.int64(0)])
def test_a_rank_that_says_first_logs(tmp_path: Path, rank: Any) -> None:
    with aboard.init("x", "a", tmp_path, rank=rank) as run:
        assert (run.active, run.rank) == (True, 0)


def test_numbers_for_names_can_be_read_again(tmp_path: Path) -> None:
    aboard.init("x", "a", tmp_path, job=17, workspace=3).finish()  # type: ignore[arg-type]
    with aboard.init("x", "a", tmp_path, resume=True):
        found = record(tmp_path / "x/a")
    assert (found["job"], found["workspace"]) == ("17", "3")


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    run = aboard.init(root=tmp_path)
    with pytest.raises(ValueError, match="one of completed, failed, killed, not 'lost'"):
        run.finish("lost")
    run.finish()
    run.finish("failed")
    for log in (
        lambda: run.log_metrics({"a": 1}),
        lambda: run.log_metrics({"a": 1}, stage="new"),
        lambda: run.log_text("a", "b"),
        lambda: run.log_hparams({"a": 1}),
        lambda: run.tag("late"),
    ):
        with pytest.raises(ValueError, match="the run default/run1 is finished; open another run"):
            log()
    found = record(tmp_path / "default/run1")
    assert (found["state"], found["hparams"], found["tags"]) == ("completed", {}, {})


@pytest.mark.parametrize("exit_code", ["x", "3", 3.0, np.float64(3), [3]])
def test_an_exit_code_must_be_an_integer(tmp_path: Path, exit_code: Any) -> None:
    run = aboard.init("x", "a", tmp_path)
    with pytest.raises(TypeError, match="exit_code must be an integer or None, not "):
        run.finish(exit_code=exit_code)
    run.finish(exit_code=np.int64(3))
    found = record(tmp_path / "x/a")
    assert (found["state"], found["exit_code"]) == ("failed", 3)


def test_an_attempt_that_was_taken_over_ends_only_itself(tmp_path: Path) -> None:
    first = aboard.init("x", "a", tmp_path)
    second = aboard.init("x", "a", tmp_path, resume=True)
    first.finish("failed", 3)
    found = record(tmp_path / "x/a")
    assert (found["state"], found["exit_code"], found["ended"]) == ("running", None, None)
    assert [one["state"] for one in found["attempts"]] == ["failed", "running"]
    second.finish("completed", 0)
    found = record(tmp_path / "x/a")
    assert (found["state"], found["exit_code"]) == ("completed", 0)
    assert [one["exit_code"] for one in found["attempts"]] == [3, 0]


def test_metrics_may_be_logged_while_the_record_catches_up(tmp_path: Path) -> None:
    class Tag(str):
        __slots__ = ()

        def __format__(self, how: str) -> str:
            run.log_metrics({"new": 2}, stage="train")  # as another thread may at this point
            return str(self)

    with aboard.init("x", "a", tmp_path) as run:
        run.log_metrics({Tag("loss"): 1}, stage="train")
        run.tag("now")
        found = record(tmp_path / "x/a")
        assert (found["tags"], found["metrics"]["train/loss"]) == ({"now": True}, 1.0)


def test_hyperparameters_that_somebody_wrote_by_hand_do_no_harm(tmp_path: Path) -> None:
    aboard.init("x", "a", tmp_path).finish()
    path = tmp_path / "x/a/run.json"
    document = record(path.parent)
    document["hparams"] = {"layers": [64, 64], "opt": {"name": "sgd"}}
    path.write_text(json.dumps(document))
    with aboard.init("x", "a", tmp_path, resume=True, hparams={"lr": 2}) as run:
        run.log_metrics({"loss": 1})
        run.log_hparams({"lr": 3})
    found = record(path.parent)
    assert (found["state"], found["hparams"]["layers"]) == ("completed", [64, 64])
    stock = read_stock(tmp_path)
    shown = stock["x/a", "_hparams_/session_start_info"].content.session_start_info.hparams
    assert shown["layers"].string_value == "[64, 64]"


def test_two_runs_at_once(tmp_path: Path) -> None:
    with aboard.init("x", root=tmp_path) as first, aboard.init("x", root=tmp_path) as second:
        assert aboard.current_run() is second
        first.log_metrics({"loss": 1})
        second.log_metrics({"loss": 2})
    assert points(tmp_path, "x/run1", "loss") == [(0, 1.0)]
    assert points(tmp_path, "x/run2", "loss") == [(0, 2.0)]


def test_hyperparameters_reach_tensorboard_and_the_record(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with aboard.init("x", root=tmp_path, hparams={"lr": 0.1, "opt": {"name": "sgd"}}) as run:
        run.log_hparams({"layers": 3, "bias": True, "seed": None})
        run.log_metrics({"loss": 1})
        assert capfd.readouterr().err == ""
        run.log_hparams({"late": 1})
    assert capfd.readouterr().err == (
        "aboard: hyperparameters logged after the first metric are kept in run.json, "
        "but TensorBoard does not show them.\n"
    )
    stock = read_stock(tmp_path)
    shown = stock["x/run1", "_hparams_/session_start_info"].content.session_start_info.hparams
    values = {name: getattr(one, one.WhichOneof("kind")) for name, one in shown.items()}
    assert values == {"lr": 0.1, "opt.name": "sgd", "layers": 3, "bias": True, "seed": "None"}
    end = stock["x/run1", "_hparams_/session_end_info"].content.session_end_info
    assert end.status == 1
    assert record(tmp_path / "x/run1")["hparams"] == {
        "lr": 0.1, "opt.name": "sgd", "layers": 3, "bias": True, "seed": None, "late": 1
    }  # fmt: skip


def test_tags_and_names(tmp_path: Path) -> None:
    tags = {"who": "me"}
    with aboard.init("x", "a", tmp_path, tags=tags, workspace="w", job="17") as run:
        run.tag(["good"])
    found = record(tmp_path / "x/a")
    assert found["tags"] == {"who": "me", "good": True}
    assert (found["workspace"], found["job"], found["experiment"]) == ("w", "17", "x")
    assert found["attempts"][0]["pid"] == os.getpid()
    with pytest.raises(RunExists, match="x/a already"):
        aboard.init("x", "a", tmp_path)


def test_the_fallback_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(track, "_printed", set())
    for _ in range(2):
        aboard.init().finish()
    expected = f"logs go to {tmp_path}/runs, because neither root= nor ABOARD_ROOT is set."
    assert capfd.readouterr().err == f"aboard: {expected}\n"
    assert {path.name for path in (tmp_path / "runs/default").iterdir()} == {"run1", "run2"}


def test_importing_costs_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import sys, aboard; aboard.init('x', root='.').finish()\n"
        "heavy = {'torch', 'tensorboard', 'typer', 'rich', 'obstore', 'tensorflow', 'keras'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# Ranks.
def test_a_silent_rank_has_every_call_and_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = aboard.init("x", root=tmp_path / "root", hparams={"a": 1}, tags="b")
    assert (run.active, run.rank) == (False, 1)
    assert aboard.current_run() is run
    public = {name for name, _ in inspect.getmembers(Run, callable) if not name.startswith("_")}
    assert {"log_metrics", "log_image", "log_graph", "tag", "flush", "finish"} <= public
    for name in public - {"finish"}:
        getattr(run, name)("anything", 1, step=3, stage="x")
    throwaway = Path(run.logdir)
    assert throwaway.is_dir()
    assert run.logdir == str(throwaway)
    with run:
        pass
    assert aboard.current_run() is None
    assert isinstance(run, SilentRun)
    assert not (tmp_path / "root").exists()
    shutil.rmtree(throwaway)
    given = aboard.init("x", root=tmp_path / "root", rank=0)
    assert given.active
    given.finish()


RANKED = """
with aboard.init('x', root='.', ranks='all') as run:
    run.log_metrics({'loss': run.rank})
    print(run.name, run.rank)
    sys.stdout.flush()
"""
LAUNCH = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}


def test_all_ranks_agree_on_one_run(tmp_path: Path) -> None:
    for launch in range(1, 3):
        port = str(29500 + launch)
        ranks = [
            start(RANKED, tmp_path, **LAUNCH | {"RANK": str(rank), "MASTER_PORT": port})
            for rank in (2, 1, 0)
        ]
        for number, process in zip((2, 1, 0), ranks, strict=True):
            out, err = process.communicate(timeout=100)
            assert (out, err) == (f"run{launch} {number}\n", "")
    for rank in range(3):
        assert points(tmp_path, f"x/run2/rank-{rank}", "loss") == [(0, float(rank))]
    assert record(tmp_path / "x/run2")["metrics"] == {"rank-0/loss": 0.0}


def test_an_announcement_of_an_earlier_launch_is_not_believed(tmp_path: Path) -> None:
    script = """
from aboard.storage import open_storage
from aboard.track.environment import Rank, announce_name, wait_for_name
storage, rank = open_storage('.'), Rank(1, 2, 'x', 'launch')
real = time.time
time.time = lambda: real() - float(sys.argv[1])
announce_name(storage, 'x', rank, 'old')
time.time = real
try:
    print(wait_for_name(storage, 'x', rank, seconds=0.5))
except TimeoutError as error:
    print(error)
"""
    assert train(script, tmp_path, "0").out == "old\n"
    assert train(script, tmp_path, "30").out == (
        f"rank 1 waited 0 s for rank 0 to name its run in {tmp_path}/x. Call aboard.init "
        "in rank 0 too, with the same root and ranks='all'.\n"
    )


def test_ranks_of_a_bucket_that_is_away_agree_all_the_same(
    tmp_path: Path, closed_port: int
) -> None:
    told = LAUNCH | {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed_port}",
        "ABOARD_FINISH_SECS": "0",
    }
    told |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    script = """
from aboard.track import start
wait = start.wait_for_name
start.wait_for_name = lambda *told: wait(*told, seconds=0.1)
run = aboard.init('x', root='s3://bucket/runs', ranks='all')
print(run.name, run.uri)
sys.stdout.flush()
os._exit(0)
"""
    ranks = [start(script, tmp_path, **told | {"RANK": str(rank)}) for rank in range(2)]
    (first, said), (second, also_said) = (one.communicate(timeout=100) for one in ranks)
    name = first.split()[0]
    assert first == second == f"{name} s3://bucket/runs/x/{name}\n"
    for text in (said, also_said):
        assert text.startswith("aboard: s3://bucket")
        assert f"The run is named {name}; its logs are sent when the bucket is reachable.\n" in text


def test_no_rank_logs_to_a_run_that_the_first_one_is_refused(tmp_path: Path) -> None:
    aboard.init("x", "a", tmp_path).finish()
    script = """
from aboard.track import start
wait = start.wait_for_name
start.wait_for_name = lambda *told: wait(*told, seconds=2)
aboard.init('x', 'a', '.', ranks='all').log_metrics({'loss': 1})
"""
    ranks = [start(script, tmp_path, **LAUNCH | {"RANK": str(rank)}) for rank in range(2)]
    (_, refused), (_, alone) = (one.communicate(timeout=100) for one in ranks)
    assert "already exists" in refused.splitlines()[-1]
    assert "rank 1 waited 2 s for rank 0 to name its run" in alone.splitlines()[-1]
    assert [path.name for path in (tmp_path / "x/a").iterdir()] == ["run.json"]


def test_ranks_that_are_only_guessed_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LAUNCH.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NODE_RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(NoLaunch, match=r"ranks='all' would mix them up\. Pass rank="):
        aboard.init("x", root=tmp_path, ranks="all")
    for rank in (0, 2):
        with aboard.init("x", "a", tmp_path, ranks="all", rank=rank) as run:
            assert run.logdir == f"{tmp_path}/x/a/rank-{rank}"
    with aboard.init("x", root=tmp_path) as silent:
        assert not silent.active


def test_ranks_that_cannot_agree_say_so(tmp_path: Path) -> None:
    ended = train(RANKED, tmp_path, RANK="1", WORLD_SIZE="2")
    assert "ranks='all' needs a run name that every rank knows" in ended.err.splitlines()[-1]


# Disks that refuse.
def test_a_root_that_may_not_be_written(shared_directory: Path) -> None:
    shared_directory.chmod(0o555)
    # Python may be where nobody can read, so what is imported later is imported first.
    nobody = "init = aboard.init\nos.getuid() or (os.setgid(65534), os.setuid(65534))\n"
    script = f"import getpass, secrets, traceback\n{nobody}init('x', root='.')"
    ended = train(script, shared_directory)
    assert ended.code == 1
    last = ended.err.splitlines()[-1]
    place = shared_directory.resolve()
    denied = "permission denied. Check the owner and mode of the path."
    assert last == f"aboard.storage.base.PermissionDenied: {place}: {denied}"
    assert ended.err.count("Traceback (most recent call last)") == 1
    assert list(shared_directory.iterdir()) == []


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    ended = train("aboard.init('x', root='runs')", tmp_path)
    assert ended.code == 1
    last = ended.err.splitlines()[-1]
    assert "a part of the path is a file. Check the path." in last
    assert (tmp_path / "runs").read_text() == ""


def test_a_disk_that_fills_up_does_not_stop_a_training(tiny_disk: Path) -> None:
    script = """
with aboard.init('x', root='.', flush_secs=0) as run:
    for i in range(3000):
        run.log_metrics({'loss': i})
    run.tag('late')
print('trained')
"""
    ended = train(script, tiny_disk)
    assert (ended.code, ended.out) == (0, "trained\n")
    lines = ended.err.splitlines()
    assert 1 <= len(lines) <= 5
    assert all(line.startswith("aboard: ") for line in lines)
    assert "No space left on device" in lines[0]
    assert re.search(r"[1-9]\d* of the last records cannot be written to", ended.err)
    record(tiny_disk / "x/run1")
    found = points(tiny_disk, "x/run1", "loss")
    assert found == [(step, float(step)) for step in range(len(found))]
    assert len(found) > 500


def begun(directory: Path) -> Path:
    record = Manifest("a")
    record.begin(at=time.time(), host="h", pid=1)
    (directory / manifest.FILE_NAME).write_bytes(record.to_json())
    return directory


def test_a_heart_beats_on_after_any_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    storage = open_storage(str(begun(tmp_path)))
    problems = [RuntimeError("changed"), OSError("no")]

    def catch_up(record: Manifest) -> None:
        if problems:
            raise problems.pop()
        record.tags["caught"] = "up"

    record = RunRecord(storage, catch_up, 1)
    record.start_heartbeat(0.01)
    until(lambda: manifest.read(storage).tags == {"caught": "up"})
    record.stop_heartbeat()
    assert capfd.readouterr().err == (
        "aboard: the record of the run cannot be written; the training continues. OSError: no\n"
    )


def test_a_beat_that_was_held_up_does_not_bring_an_ended_run_back(tmp_path: Path) -> None:
    storage = open_storage(str(begun(tmp_path)))
    record = RunRecord(storage, lambda _: None, 1)
    record.stop_heartbeat()
    record.change(lambda one: one.end("failed", 3, number=1))
    record.change(record._set_heartbeat)
    assert manifest.read(storage).state == "failed"


# The stages of a run, and the steps at which a resumed one continues.


@pytest.fixture
def stages(tmp_path: Path) -> Stages:
    """Give the stages of a second attempt, after one that logged two metrics at steps 0 to 9."""
    with EventWriter(tmp_path / "train") as writer:
        for step in range(10):
            writer.scalars({"loss": 1.0, "accuracy": 1.0}, step)
    return second(tmp_path)


def second(directory: Path, **options: bool) -> Stages:
    return Stages(directory, last_steps=LastSteps([LocalStorage(str(directory))]), **options)


def steps(stages: Stages, tag: str) -> list[int]:
    for writer in stages.all_writers():
        writer.close()
    return [point.step for point in read_stock(stages.directory)["train", tag].points]


def test_a_metric_that_was_there_takes_its_stage_back(stages: Stages) -> None:
    stages.log({"loss": 2.0, "accuracy": 2.0}, 6, "train")
    stages.writers["train"].scalars({"loss": 3.0, "accuracy": 3.0}, 7)
    assert steps(stages, "loss") == steps(stages, "accuracy") == list(range(8))


def test_a_metric_that_goes_on_takes_nothing_back(stages: Stages) -> None:
    stages.log({"loss": 2.0}, 10, "train")
    assert steps(stages, "loss") == list(range(11))
    assert steps(stages, "accuracy") == list(range(10))


def test_a_metric_that_is_new_takes_nothing_back(stages: Stages) -> None:
    for step in (3, 6):
        stages.log({"test": 2.0}, step, "train")
    assert "train" not in stages.writers
    assert steps(stages, "test") == [3, 6]
    assert steps(stages, "loss") == list(range(10))


def test_a_metric_that_counts_epochs_takes_no_batches_back(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "train") as writer:
        for step in range(10):
            writer.scalar("loss", 1.0, step)
            writer.scalar("accuracy of an epoch", 1.0, step // 2)
    stages = second(tmp_path)
    stages.log({"accuracy of an epoch": 2.0}, 4, "train")
    stages.log({"loss": 2.0}, 10, "train")
    assert steps(stages, "loss") == list(range(11))


def test_what_was_logged_before_a_stage_is_taken_back_stays(stages: Stages) -> None:
    stages.add([encode.text("note", "resumed")], 9, "train")
    stages.log({"test": 2.0}, 8, "train")
    stages.log({"loss": 2.0}, 6, "train")
    assert steps(stages, "note") == [9]
    assert steps(stages, "test") == [8]
    assert steps(stages, "loss") == list(range(7))


def test_not_more_is_remembered_than_needs_be(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_MAX_PENDING_RECORDS", 3)
    for step in range(4):
        assert "train" not in stages.writers
        stages.log({"test": 2.0}, step, "train")
    assert "train" in stages.writers
    monkeypatch.setattr(run_module, "_MAX_PENDING_BYTES", 100)
    stages.add([encode.text("note", "x" * 101)], 1, "eval")
    assert "eval" in stages.writers


def test_what_only_adds_takes_nothing_back(stages: Stages) -> None:
    adding = second(stages.directory, rewinds=False)
    adding.log({"loss": 2.0}, 9, "train")
    assert steps(adding, "loss") == [*range(10), 9]
    assert steps(adding, "accuracy") == list(range(10))


def write(directory: Path, *at: int) -> None:
    with EventWriter(directory) as writer:
        for step in at:
            writer.scalar("loss", 1.0, step)


class Hanging(LocalStorage):
    """A storage that answers only when it is let go."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.go = threading.Event()

    def list(self, *names: Any, **options: Any) -> Iterator[Entry]:
        self.go.wait()
        return super().list(*names, **options)


class Away(LocalStorage):
    def list(self, *_: Any, **__: Any) -> Iterator[Entry]:
        raise Unreachable(self.uri, "cannot be reached")


class InBlocks(LocalStorage):
    """A storage that gives no more than a block at once."""

    largest = 0

    def readinto(self, name: str, start: int, buffer: memoryview) -> int:
        self.largest = max(self.largest, len(buffer))
        return super().readinto(name, start, buffer)

    def read(self, *_: Any) -> bytes:
        raise AssertionError("this reads a file as a whole")


def test_every_stage_goes_on_from_its_highest_step(tmp_path: Path) -> None:
    write(tmp_path / "rank-1", 5, 9, 7)
    write(tmp_path / "rank-1/eval", 3)
    write(tmp_path / "train", 99)
    last = LastSteps([LocalStorage(str(tmp_path))], "rank-1")
    assert [last.of(stage) for stage in ("", "eval", "train")] == [9, 3, None]


def test_what_is_in_several_places_goes_on_from_the_highest(tmp_path: Path) -> None:
    write(tmp_path / "spool/train", 8)
    write(tmp_path / "bucket/train", 4)
    write(tmp_path / "bucket/eval", 2)
    places = [LocalStorage(str(tmp_path / name)) for name in ("spool", "nowhere", "bucket")]
    last = LastSteps(places)
    assert [last.of("train"), last.of("eval")] == [8, 2]


def test_files_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_BLOCK_BYTES", 1000)
    write(tmp_path, *range(2000))
    storage = InBlocks(str(tmp_path))
    assert LastSteps([storage]).of("") == 1999
    assert 0 < storage.largest <= 1000


def test_a_storage_that_does_not_answer_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "_LAST_STEPS_SECS", 0.05)
    write(tmp_path, 5)
    storage = Hanging(str(tmp_path))
    last = LastSteps([storage])
    assert last.of("eval") is None
    monkeypatch.setattr(run_module, "_LAST_STEPS_SECS", 3600.0)
    assert last.of("train") is None
    storage.go.set()
    last._thread.join()
    assert last.of("") == 5
    assert capfd.readouterr().err == (
        "aboard: the last step of the run is unknown, so steps count from 0 again. "
        "no answer within 0 s\n"
    )


def test_a_storage_that_is_away_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    last = LastSteps([Away(str(tmp_path))])
    assert [last.of("train"), last.of("eval")] == [None, None]
    told = capfd.readouterr().err
    assert told.startswith(
        "aboard: the last step of the run is unknown, so steps count from 0 again."
    )
    assert (told.count("\n"), "cannot be reached" in told) == (1, True)


def test_an_attempt_that_logged_only_hyperparameters_is_no_step(tmp_path: Path) -> None:
    write(tmp_path, 5, 9)
    with EventWriter(tmp_path) as writer:
        writer.add([encode.hparams_start({"lr": 0.1})], 0)
    last = LastSteps([LocalStorage(str(tmp_path))])
    assert (last.of(""), last.by_tag("")) == (9, {"loss": 9})


def test_every_tag_has_a_last_step(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "here") as writer:
        writer.scalar("loss", 1.0, 9)
        writer.add([encode.text("note", "a")], 4)
    write(tmp_path / "there", 11)
    storages = [LocalStorage(str(tmp_path / place)) for place in ("here", "there")]
    assert LastSteps(storages).by_tag("") == {"loss": 11, "note": 4}
