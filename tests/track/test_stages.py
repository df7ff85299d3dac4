"""The stages of a run, and the steps at which a resumed one continues."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aboard import EventWriter
from aboard.events import encode
from aboard.storage import Entry, Unreachable
from aboard.storage.local import LocalStorage
from aboard.track import run as run_module
from aboard.track.run import LastSteps, Stages
from tests.track.reading import read_stock


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
