"""The heart of a run beats on, whatever happens to its record."""

import time
from pathlib import Path

import pytest

from aboard.runs import manifest
from aboard.runs.manifest import Manifest
from aboard.storage import open_storage
from aboard.track.heartbeat import RunRecord
from tests.waiting import until


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
