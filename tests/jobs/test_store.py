"""The records of jobs, on a disk and in a bucket."""

import os
import secrets
import threading
from pathlib import Path

import pytest

from aboard.executors import start
from aboard.jobs import JobExists, NoSuchJob
from aboard.jobs.model import Ending, JobRecord, MemberState
from aboard.jobs.store import JobStore, MemberLog, find_job_roots, remember_root
from aboard.storage import is_remote, open_storage


def make_record(root: str, job: str = "a", created: float = 1.0) -> JobRecord:
    return JobRecord(
        id=job, root=root, experiment="e", run="{job}", command=["true"], on="process",
        members=[{"lr": 0.1}], created=created,
    )  # fmt: skip


@pytest.fixture(params=["disk", "bucket"])
def store(request, tmp_path, monkeypatch):
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path / "state"))
    if request.param == "disk":
        return JobStore(str(tmp_path / "runs"))
    return JobStore(f"memory://jobs-{secrets.token_hex(4)}/runs")


def test_an_id_is_claimed_once(store):
    store.create(make_record(store.root))
    with pytest.raises(JobExists):
        store.create(make_record(store.root, created=2.0))
    assert store.read("a").members == [{"lr": 0.1}]


def test_records_are_listed_the_newest_first(store):
    assert store.records() == []
    for at, job in enumerate(["a", "b", "c"]):
        store.create(make_record(store.root, job, created=at))
    assert [one.id for one in store.records()] == ["c", "b", "a"]
    assert {one.root for one in store.records()} == {store.root}
    assert sorted(store.ids()) == ["a", "b", "c"]


def test_what_has_not_changed_is_not_read_again(store, monkeypatch):
    for job in ("a", "b"):
        store.create(make_record(store.root, job))
        if not is_remote(store.root):
            os.utime(Path(store.root, ".jobs", job, "job.json"), (1000, 1000))
    read = []
    from_json = JobRecord.from_json.__func__

    def counted(cls, text, root):
        record = from_json(cls, text, root)
        read.append(record.id)
        return record

    monkeypatch.setattr(JobRecord, "from_json", classmethod(counted))
    first = store.records()
    assert sorted(read) == ["a", "b"]
    first[0].settled["1"] = ["failed", 1, "only its caller knows"]
    assert [one.settled for one in store.records()] == [{}, {}]
    assert len(read) == 2
    store.update("b", lambda record: record.settle(1, Ending(MemberState.COMPLETED, 0)))
    read.clear()
    assert {one.id: bool(one.settled) for one in store.records()} == {"a": False, "b": True}
    assert read == ["b"]
    store.delete(first[0])
    assert len(store.records()) == 1


def test_a_record_is_changed_by_one_after_the_other(store):
    store.create(make_record(store.root))

    def count(record: JobRecord) -> None:
        record.others["count"] = record.others.get("count", 0) + 1

    def change() -> None:
        for _ in range(5):
            store.update("a", count)

    threads = [threading.Thread(target=change) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert store.read("a").others["count"] == 20


def test_what_was_deleted_is_gone_with_its_files(store):
    record = make_record(store.root)
    store.create(record)
    directory = store.directory("a", 1)
    directory.mkdir(parents=True)
    (directory / "payload.json").write_text("{}")
    store.delete(record)
    assert not directory.parent.exists()
    with pytest.raises(NoSuchJob, match="has no job 'a'"):
        store.read("a")
    with pytest.raises(NoSuchJob):
        store.update("a", lambda _: None)
    store.delete(record)
    assert store.ids() == []


def test_files_with_secrets_are_never_in_a_bucket(tmp_path, monkeypatch):
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path))
    one, other = JobStore("memory://x/runs"), JobStore("memory://y/runs")
    assert one.directory("a", 1).is_relative_to(tmp_path / "jobs")
    assert one.directory("a", 1) != other.directory("a", 1)


def test_roots_are_remembered_for_other_directories(tmp_path, monkeypatch):
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("ABOARD_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    here, gone = tmp_path / "here", tmp_path / "gone"
    here.mkdir()
    for root in (here, gone, here):
        remember_root(str(root))
    assert find_job_roots() == [str(here)]
    assert find_job_roots([str(gone)]) == [str(gone)]


# The logs of members, on a disk and in a bucket.


@pytest.fixture(params=["disk", "bucket"])
def root(request, tmp_path):
    bucket = f"memory://logs-{secrets.token_hex(4)}/runs"
    return str(tmp_path) if request.param == "disk" else bucket


def read(log: MemberLog, **options: object) -> bytes:
    return b"".join(log.read(**options))


def test_what_the_run_recorded_comes_after_what_the_engine_has(root):
    log = MemberLog(make_record(root), 1, lambda *_: [b"waiting\n"])
    assert read(log, to_end=False) == b"waiting\n"
    assert read(log, to_end=False) == b""
    storage = open_storage(root)
    storage.write("e/a/output.log", b"1\n2")
    assert read(log, to_end=False) == b"1\n"
    storage.write("e/a/output.log", b"1\n2\n3\n")
    assert read(log, to_end=False, tail=1) == b"3\n"
    storage.write("e/a/output.log", b"1\n2\n3\n4")
    assert read(log, to_end=True) == b"4"


def test_in_a_bucket_a_log_is_a_row_of_files():
    root = f"memory://logs-{secrets.token_hex(4)}/runs"
    storage = open_storage(root)
    storage.write("e/a/output.log", b"1\n")
    storage.write("e/a/output.log.s000001", b"2\n")
    storage.write("e/a/train/output.log", b"of another\n")
    log = MemberLog(make_record(root), 1, lambda *_: ())
    assert read(log, to_end=False) == b"1\n2\n"
    storage.write("e/a/output.log.s000001", b"2\n3\n")
    storage.write("e/a/output.log.s000002", b"4\n")
    assert read(log, to_end=False) == b"3\n4\n"


@pytest.mark.parametrize("tail", [None, 0, 1, 3, 7, 50])
@pytest.mark.parametrize("content", [b"", b"1\n", b"12345678\n\n9", b"1\n2\n345\n6", b"\n" * 9])
def test_a_log_is_read_in_blocks(root, monkeypatch, content, tail):
    """It may be larger than the memory."""
    monkeypatch.setattr("aboard.jobs.store._BLOCK", 4)
    monkeypatch.setattr(start, "_TAIL_BLOCK", 4)
    storage = open_storage(root)
    storage.write("e/a/output.log", content)
    if "memory:" in root:
        storage.write("e/a/output.log.s000001", content)
        content += content
    pieces = list(MemberLog(make_record(root), 1, lambda *_: ()).read(tail=tail, to_end=True))
    lines = content.splitlines(keepends=True)
    wanted = lines if tail is None else lines[max(len(lines) - tail, 0) :]
    assert b"".join(pieces) == b"".join(wanted)
    assert all(0 < len(piece) <= 4 for piece in pieces)


def test_what_is_before_the_tail_does_not_come_later(root):
    storage = open_storage(root)
    storage.write("e/a/output.log", b"1\n2\n")
    log = MemberLog(make_record(root), 1, lambda *_: ())
    assert read(log, tail=0, to_end=False) == b""
    storage.write("e/a/output.log", b"1\n2\n3\n")
    assert read(log, to_end=False) == b"3\n"


def test_only_the_beginning_of_what_an_engine_has_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("aboard.jobs.store._MOST_OF_ENGINE", 1000)
    read_pieces = []

    def engine_log(*_):
        for number in range(100_000):
            read_pieces.append(number)
            yield b"line %d\n" % number

    log = MemberLog(make_record(str(tmp_path)), 1, engine_log)
    *lines, last = read(log, to_end=False).splitlines()
    assert lines == [b"line %d" % number for number in range(len(lines))]
    assert 900 < sum(len(one) + 1 for one in lines) <= 1000
    assert last.startswith(b"aboard: the rest of the engine's log is not shown")
    assert len(read_pieces) == len(lines) + 1
    assert read(log, to_end=False) == b""
