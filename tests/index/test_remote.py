"""Runs in buckets: the same index, with few requests."""

import subprocess
import sys
import threading

import pytest

from aboard.events import encode
from aboard.events.records import frame
from aboard.index.logs import Logs
from aboard.storage.base import NotFound, PermissionDenied
from aboard.storage.object import ObjectStorage
from aboard.storage.uri import open_storage


def events(*steps):
    return b"".join(
        frame(encode.event(float(step), step, [encode.scalar("loss", step / 2)])) for step in steps
    )


@pytest.fixture(params=["memory", "s3"])
def bucket(request, tmp_path):
    if request.param == "memory":
        return f"memory://{tmp_path.name}/logs"
    return request.getfixturevalue("s3_bucket") + f"/{tmp_path.name}"


def test_a_tree_in_a_bucket_is_read_and_followed(bucket, index):
    storage = open_storage(bucket)
    storage.write("a/events.out.tfevents.1", events(*range(1000)))
    storage.write("a/checkpoint", b"not ours")
    storage.write("b/c/events.out.tfevents.1", events(1))
    logs = Logs(bucket, index=index)
    assert [run.name for run in logs.runs] == ["a", "b/c"]
    assert logs.series("a", "loss").steps.tolist() == list(range(1000))
    assert logs.refresh().bytes_read == 0
    storage.write("a/events.out.tfevents.1", events(*range(1005)))
    report = logs.refresh()
    assert report.bytes_read == len(events(*range(1000, 1005)))
    assert logs.series("a", "loss").steps.tolist() == list(range(1005))
    storage.write("a/events.out.tfevents.1", events(*range(5, 1200)))
    logs.refresh()
    assert logs.series("a", "loss").steps.tolist() == list(range(5, 1200))
    storage.delete("b/c/events.out.tfevents.1")
    logs.refresh()
    assert [run.name for run in logs.runs] == ["a"]


def test_a_refresh_makes_one_listing_and_one_read_per_grown_file(index, monkeypatch, tmp_path):
    bucket = f"memory://{tmp_path.name}/logs"
    storage = open_storage(bucket)
    for run in range(10):
        storage.write(f"run{run}/events.out.tfevents.1", events(1, 2))
    logs = Logs(bucket, index=index)
    calls = []
    for verb in ("list", "read", "readinto"):
        real = getattr(ObjectStorage, verb)

        def count(self, *args, verb=verb, real=real, **options):
            calls.append(verb)
            return real(self, *args, **options)

        monkeypatch.setattr(ObjectStorage, verb, count)
    logs.refresh()
    assert calls == ["list"]
    calls.clear()
    storage.write("run3/events.out.tfevents.1", events(1, 2, 3))
    logs.refresh()
    assert calls == ["list", "read"]
    assert logs.series("run3", "loss").steps.tolist() == [1, 2, 3]


def test_records_are_read_from_the_bucket(bucket, index):
    note = frame(encode.event(1.0, 3, [encode.text("note", "from afar")]))
    open_storage(bucket).write("events.out.tfevents.1", events(1) + note)
    (value,) = Logs(bucket, index=index).records(".", "note")
    assert value.tensor.item() == b"from afar"


def test_records_are_read_a_few_ahead_and_no_more(index, monkeypatch, tmp_path):
    bucket = f"memory://{tmp_path.name}/logs"
    notes = [frame(encode.event(1.0, step, [encode.text("n", str(step))])) for step in range(200)]
    open_storage(bucket).write("events.out.tfevents.1", b"".join(notes))
    logs = Logs(bucket, index=index)
    read = []
    real = ObjectStorage.read

    def count(self, name, *span):
        read.append(span)
        return real(self, name, *span)

    monkeypatch.setattr(ObjectStorage, "read", count)
    values = logs.records(".", "n")
    assert read == []
    assert [next(values).step for _ in range(3)] == [0, 1, 2]
    assert len(read) <= 3 + 16
    values.close()
    assert len(read) <= 3 + 16
    assert [value.step for value in logs.records(".", "n")] == list(range(200))


def test_whoever_leaves_does_not_wait_for_records(index, monkeypatch, tmp_path):
    bucket = f"memory://{tmp_path.name}/logs"
    notes = [frame(encode.event(1.0, step, [encode.text("n", str(step))])) for step in range(50)]
    open_storage(bucket).write("events.out.tfevents.1", b"".join(notes))
    logs = Logs(bucket, index=index)
    real, left = ObjectStorage.read, threading.Event()
    in_time = []

    def read(self, name, start, end):
        if start > 0:
            in_time.append(left.wait(60))
        return real(self, name, start, end)

    monkeypatch.setattr(ObjectStorage, "read", read)
    values = logs.records(".", "n")
    assert next(values).step == 0
    values.close()
    left.set()
    assert all(in_time)


def test_one_file_in_a_bucket_is_a_source(bucket, index):
    open_storage(bucket).write("a/events.out.tfevents.1", events(1, 2))
    logs = Logs(f"{bucket}/a/events.out.tfevents.1", index=index)
    assert logs.series(".", "loss").steps.tolist() == [1, 2]
    with pytest.raises(NotFound, match=r"tfevents\.9: there is no such file"):
        Logs(f"{bucket}/a/events.out.tfevents.9", index=index)


def test_a_missing_bucket_is_an_error(s3_bucket, index):
    with pytest.raises(NotFound, match="no-such-bucket"):
        Logs("s3://no-such-bucket/logs", index=index)


def test_one_unreadable_object_does_not_stop_the_rest(index, monkeypatch, tmp_path):
    bucket = f"memory://{tmp_path.name}/logs"
    for run in ("a", "b"):
        open_storage(bucket).write(f"{run}/events.out.tfevents.1", events(1))
    real = ObjectStorage.readinto

    def readinto(self, name, start, buffer):
        if name.startswith("a/"):
            raise PermissionDenied(f"{bucket}/{name}", "access denied", "Ask for s3:GetObject.")
        return real(self, name, start, buffer)

    monkeypatch.setattr(ObjectStorage, "readinto", readinto)
    logs = Logs(bucket, index=index)
    assert [problem.problem for problem in logs.report.problems] == ["access denied"]
    assert [run.name for run in logs.runs] == ["b"]


def test_a_local_tree_imports_nothing_of_a_cloud(tmp_path):
    code = (
        "import sys, aboard; aboard.open(sys.argv[1]);"
        "print(sorted({'obstore', 'tensorboard', 'rich', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
