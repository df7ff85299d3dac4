"""What a reviewer found once, and must not come back."""

import os
import threading
import time

import numpy as np
import pytest

from aboard.events import encode
from aboard.events.records import frame
from aboard.events.writer import EventWriter
from aboard.index import Index, Source, UnknownName
from aboard.index.logs import Logs
from aboard.storage.base import BadUri, NoSuchPath, open_storage


def event(step, value, tag="x"):
    return frame(encode.event(float(step), step, [encode.scalar_tensor(tag, value)]))


def test_doubles_stay_doubles_when_a_single_follows_later(tmp_path, index):
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(event(1, np.float64(0.1)))
    logs = Logs(tmp_path, index=index)
    with path.open("ab") as file:
        file.write(event(2, np.float32(0.5)))
    logs.refresh()
    assert logs.series(".", "x").values.tolist() == [0.1, 0.5]


def test_the_points_of_a_deleted_run_never_become_those_of_another(tmp_path, index):
    for run in ("a", "b"):
        with EventWriter(tmp_path / run) as writer:
            writer.scalar("loss", 1.0, 1)
    logs = Logs(tmp_path, index=index)
    held = logs.tag("b", "loss")
    for path in (tmp_path / "b").iterdir():
        path.unlink()
    with EventWriter(tmp_path / "c") as writer:
        writer.scalar("other", 7.0, 1)
    logs.refresh()
    with pytest.raises(UnknownName, match="'loss' of run 'b' is no longer in"):
        index.series(held)


def test_an_index_that_is_removed_in_use_is_made_again_and_private(tmp_path, index):
    with EventWriter(tmp_path / "run") as writer:
        writer.scalar("loss", 1.0, 1)
    logs = Logs(tmp_path, index=index)
    assert index.path is not None
    with index._connections.lend(), index._connections.lend():
        for file in index.path.parent.iterdir():
            file.unlink()
        assert index.tags(logs.source) == []
        assert index.path.stat().st_mode & 0o077 == 0
    logs.refresh()
    assert logs.series("run", "loss").steps.tolist() == [1]


def test_moving_to_memory_while_others_wait_for_a_connection(tmp_path, index, monkeypatch):
    with EventWriter(tmp_path / "run") as writer:
        writer.scalar("loss", 1.0, 1)
    source = Source.parse(str(tmp_path))
    index.refresh(source)
    errors = []

    def ask():
        for _ in range(50):
            try:
                index.runs(source)
            except Exception as error:  # noqa: BLE001
                errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    index._connections._lock.acquire()
    index._connections._close_idle()
    index._connections._move_to_memory("the disk is full", OSError())
    index._connections.generation += 1
    time.sleep(0.05)
    index._connections._lock.release()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_bucket_directory_called_tfevents_is_a_directory(tmp_path, index):
    bucket = f"memory://{tmp_path.name}/exp/tfevents"
    open_storage(bucket).write("run/events.out.tfevents.1", event(1, 1.0))
    logs = Logs(bucket, index=index)
    assert [run.name for run in logs.runs] == ["run"]
    assert logs.refresh().files_unchanged == 1


def test_a_deleted_run_goes_although_another_directory_cannot_be_listed(tmp_path, index):
    for run in ("kept", "gone"):
        with EventWriter(tmp_path / run) as writer:
            writer.scalar("loss", 1.0, 1)
    logs = Logs(tmp_path, index=index)
    (tmp_path / "bad").mkdir()
    with open(os.fsencode(tmp_path / "bad") + b"/\xff.tfevents", "wb"):  # noqa: PTH123
        pass
    for path in (tmp_path / "gone").iterdir():
        path.unlink()
    report = logs.refresh()
    assert len(report.problems) == 1
    assert [run.name for run in logs.runs] == ["kept"]


def test_a_source_that_is_away_for_a_while_stays_in_the_index(tmp_path, index):
    with EventWriter(tmp_path / "logs" / "run") as writer:
        writer.scalar("loss", 1.0, 1)
    logs = Logs(tmp_path / "logs", index=index)
    (tmp_path / "logs").rename(tmp_path / "elsewhere")
    with pytest.raises(NoSuchPath):
        logs.refresh()
    assert [run.name for run in logs.runs] == ["run"]
    (tmp_path / "elsewhere").rename(tmp_path / "logs")
    assert logs.refresh().bytes_read == 0


def test_a_shape_that_lies_is_not_believed(tmp_path, index):
    huge = encode.delimited(2, encode.delimited(2, b"\x08" + encode.varint(2**60)))
    tensor = b"\x08\x07" + huge + encode.delimited(8, b"png")
    value = encode.EncodedValue(
        "image",
        encode.delimited(1, b"image") + encode.delimited(8, tensor),
        encode.metadata("images"),
    )
    data = frame(encode.event(1.0, 1, [value]))
    (tmp_path / "events.out.tfevents.1").write_bytes(data)
    logs = Logs(tmp_path, index=index)
    assert logs.tag(".", "image").rows <= len(data)


def test_a_tag_keeps_its_form_when_a_later_file_omits_its_metadata(tmp_path, index):
    value = encode.tensor("x", np.float32(1.0), plugin="mine", data_class="")
    for number, written in enumerate((value, value.bare())):
        data = frame(encode.event(1.0, number, [written]))
        (tmp_path / f"events.out.tfevents.{number}").write_bytes(data)
    (tag,) = Logs(tmp_path, index=index).tags
    assert not tag.is_scalar


def test_an_index_that_was_given_stays_open(tmp_path, index):
    with Logs(tmp_path, index=index):
        pass
    assert index.runs(Source.parse(str(tmp_path))) == []


def test_a_bad_source_does_not_leave_its_index_open(tmp_path, monkeypatch):
    closed = []
    real = Index.close
    monkeypatch.setattr(Index, "close", lambda self: (closed.append(self), real(self)))
    with pytest.raises(NoSuchPath):
        Logs(tmp_path / "nowhere")
    assert len(closed) == 1


def test_a_path_that_is_no_text_is_refused(tmp_path):
    with pytest.raises(BadUri, match="not UTF-8"):
        Source.parse(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
