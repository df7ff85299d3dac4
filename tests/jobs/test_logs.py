"""The logs of members, on a disk and in a bucket."""

import secrets

import pytest

from aboard.executors import start
from aboard.jobs import store
from aboard.jobs.store import MemberLog
from aboard.storage import open_storage
from tests.jobs.test_store import make_record


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
    monkeypatch.setattr(store, "_BLOCK", 4)
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
    monkeypatch.setattr(store, "_MOST_OF_ENGINE", 1000)
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
