"""Runs in buckets: the same index, with few requests."""

import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.events import encode
from aboard.events.records import frame
from aboard.index import reader
from aboard.index.logs import Logs
from aboard.storage import traffic
from aboard.storage.base import NoSuchPath, PermissionDenied, Traffic, Unreachable, open_storage
from aboard.storage.object import ObjectStorage


def events(*steps):
    return b"".join(
        frame(encode.event(float(step), step, [encode.scalar("loss", step / 2)])) for step in steps
    )


@pytest.fixture(params=["memory", "s3", "rclone"])
def bucket(request, tmp_path):
    if request.param == "memory":
        return f"memory://{tmp_path.name}/logs"
    return request.getfixturevalue(f"{request.param}_bucket") + f"/{tmp_path.name}"


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


def test_an_object_that_begins_and_goes_on_alike_is_read_again(bucket, index):
    storage = open_storage(bucket)
    storage.write("a/events.out.tfevents.1", events(*range(100)))
    logs = Logs(bucket, index=index)
    steps = [*range(20), *range(79, 19, -1), *range(80, 110)]
    storage.write("a/events.out.tfevents.1", events(*steps))
    logs.refresh()
    (tag,) = logs.tags
    assert tag.points == 110
    assert index.written_steps(tag.segments[0]).tolist() == steps
    same_size = list(range(110))
    assert len(events(*same_size)) == len(events(*steps))
    storage.write("a/events.out.tfevents.1", events(*same_size))
    logs.refresh()
    (tag,) = logs.tags
    assert index.written_steps(tag.segments[0]).tolist() == same_size


def test_a_refresh_makes_one_listing_and_one_read_per_grown_file(index, monkeypatch, tmp_path):
    bucket = f"memory://{tmp_path.name}/logs"
    storage = open_storage(bucket)
    for run in range(10):
        storage.write(f"run{run}/events.out.tfevents.1", events(1, 2))
    logs = Logs(bucket, index=index)
    calls = []
    for verb in ("list", "read", "readinto", "stream"):
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
            in_time.append(left.wait(180))
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
    with pytest.raises(NoSuchPath, match=r"tfevents\.9: no such file"):
        Logs(f"{bucket}/a/events.out.tfevents.9", index=index)


def test_a_missing_bucket_is_an_error(s3_bucket, index):
    with pytest.raises(NoSuchPath, match="no-such-bucket"):
        Logs("s3://no-such-bucket/logs", index=index)


def test_one_unreadable_object_does_not_stop_the_rest(index, monkeypatch, tmp_path):
    bucket = f"memory://{tmp_path.name}/logs"
    for run in ("a", "b"):
        open_storage(bucket).write(f"{run}/events.out.tfevents.1", events(1))
    real = ObjectStorage.stream

    def stream(self, name, start, end):
        if name.startswith("a/"):
            raise PermissionDenied(f"{bucket}/{name}", "access denied", "Ask for s3:GetObject.")
        return real(self, name, start, end)

    monkeypatch.setattr(ObjectStorage, "stream", stream)
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


# Downloads.


def test_a_large_file_is_one_request(index, tmp_path):
    bucket = f"memory://{tmp_path.name}/logs"
    content = events(*range(120_000))
    assert len(content) > 4 * reader.BLOCK
    open_storage(bucket).write("events.out.tfevents.1", content)
    before = traffic.snapshot()
    logs = Logs(bucket, index=index)
    key = (f"memory://{tmp_path.name}", "read")
    assert traffic.snapshot()[key].requests - before.get(key, Traffic()).requests == 1
    assert len(logs.series(".", "loss").steps) == 120_000


class Breaking:
    """A storage of one file, whose downloads break after a number of bytes each time."""

    uri = "memory://breaking"

    def __init__(self, content, after):
        self.content, self.after, self.requests = content, after, 0

    def stream(self, name, start, end):
        self.requests += 1
        for at in range(start, min(end, start + self.after), 7):
            yield memoryview(self.content)[at : min(at + 7, end, start + self.after)]
        if start + self.after < end:
            raise Unreachable(self.uri, "the connection was lost")


@given(
    after=st.integers(1, 400),
    blocks=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 120)), max_size=30),
)
def test_a_download_that_breaks_goes_on_where_it_was(after, blocks):
    content = bytes(range(256)) * 4
    storage = Breaking(content, after)
    download = reader._Download(storage, "file", 0, len(content))
    offset = 0
    for length, back in blocks:  # the next block begins in the last one, or before it
        offset = max(0, offset - back)
        room = bytearray(min(length, len(content) - offset))
        assert download.readinto(offset, memoryview(room)) == len(room)
        assert room == content[offset : offset + len(room)]
        offset += len(room)


def test_a_download_that_brings_nothing_is_an_error():
    download = reader._Download(Breaking(b"some content", 0), "file", 0, 12)
    with pytest.raises(Unreachable):
        download.readinto(0, memoryview(bytearray(5)))


def test_large_files_wait_until_there_is_memory_for_them(index, monkeypatch, tmp_path):
    bucket = f"memory://{tmp_path.name}/logs"
    storage = open_storage(bucket)
    for run in range(12):
        storage.write(f"run{run}/events.out.tfevents.1", events(*range(2000)))
    monkeypatch.setattr(reader, "_FILE_BYTES", 1024)
    monkeypatch.setattr(reader, "_DOWNLOADED_BYTES", 3 * 1024)
    real, lock = ObjectStorage.stream, threading.Lock()
    opened, most = set(), 0

    def stream(self, name, start, end):
        nonlocal most
        with lock:
            opened.add(name)
            most = max(most, len(opened))
        try:
            yield from real(self, name, start, end)
        finally:
            with lock:
                opened.discard(name)

    monkeypatch.setattr(ObjectStorage, "stream", stream)
    logs = Logs(bucket, index=index)
    assert all(len(logs.series(f"run{run}", "loss").steps) == 2000 for run in range(12))
    assert 1 <= most <= 3
