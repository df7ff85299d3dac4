"""Where a resumed run left off, found without keeping a training waiting."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aboard import EventWriter
from aboard.storage import Entry, Unreachable
from aboard.storage.local import LocalStorage
from aboard.track import steps
from aboard.track.steps import LastSteps


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
    monkeypatch.setattr(steps, "_BLOCK_BYTES", 1000)
    write(tmp_path, *range(2000))
    storage = InBlocks(str(tmp_path))
    assert LastSteps([storage]).of("") == 1999
    assert 0 < storage.largest <= 1000


def test_a_storage_that_does_not_answer_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "_PATIENCE_SECS", 0.05)
    write(tmp_path, 5)
    storage = Hanging(str(tmp_path))
    last = LastSteps([storage])
    assert last.of("eval") is None
    monkeypatch.setattr(steps, "_PATIENCE_SECS", 3600.0)
    assert last.of("train") is None
    storage.go.set()
    last._thread.join()
    assert last.of("") == 5
    assert capfd.readouterr().err == (
        "aboard: where the run left off is not known, so steps that are not told count from 0 "
        "again. no answer within 0 s\n"
    )


def test_a_storage_that_is_away_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    last = LastSteps([Away(str(tmp_path))])
    assert [last.of("train"), last.of("eval")] == [None, None]
    told = capfd.readouterr().err
    assert told.startswith(
        "aboard: where the run left off is not known, so steps that are not told count"
    )
    assert (told.count("\n"), "cannot be reached" in told) == (1, True)


def test_an_attempt_that_logged_only_hyperparameters_is_no_step(tmp_path: Path) -> None:
    write(tmp_path, 5, 9)
    with EventWriter(tmp_path) as writer:
        writer.hparams({"lr": 0.1})
    last = LastSteps([LocalStorage(str(tmp_path))])
    assert (last.of(""), last.by_tag("")) == (9, {"loss": 9})


def test_every_tag_has_a_last_step(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "here") as writer:
        writer.scalar("loss", 1.0, 9)
        writer.text("note", "a", 4)
    write(tmp_path / "there", 11)
    storages = [LocalStorage(str(tmp_path / place)) for place in ("here", "there")]
    assert LastSteps(storages).by_tag("") == {"loss": 11, "note": 4}
