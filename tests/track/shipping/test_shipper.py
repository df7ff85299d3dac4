"""The shipper's decisions: when to go on, when all has arrived, and when to give up."""

import dataclasses
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aboard.storage import StorageError, Unreachable
from aboard.track.shipping import shipper, spool, upload
from aboard.track.shipping.shipper import start_shipper
from aboard.track.shipping.spool import Spool
from tests.waiting import until


@pytest.fixture
def target(tmp_path) -> str:
    (tmp_path / "target").mkdir()
    return str(tmp_path / "target")


class Moody:
    """Sends as a real one does, after a few days on which everything goes wrong."""

    def __init__(self, outcomes, verdicts=()):
        self.outcomes = list(outcomes)
        self.verdicts = list(verdicts)
        self.verified = 0

    def round(self, *, last: bool) -> upload.Round:
        outcome = self.outcomes.pop(0) if self.outcomes else upload.Round()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def verify(self) -> bool:
        self.verified += 1
        verdict = self.verdicts.pop(0) if self.verdicts else True
        if isinstance(verdict, Exception):
            raise verdict
        return verdict


def test_an_internal_error_does_not_end_a_shipper(target, spool_root, capfd):
    mine = Spool.create(target, 0.01)
    mine.mark("finish")
    moody = Moody([ZeroDivisionError("oops"), MemoryError(), upload.Round(left=5)])
    assert shipper.Shipper(mine, mine.owner(), moody).serve() == shipper.Result.ARRIVED
    assert moody.verified == 1
    assert mine.is_marked("done")
    assert "ZeroDivisionError: oops" in capfd.readouterr().err


def test_what_never_arrives_is_kept(target, spool_root):
    mine = Spool.create(target, 0.01)
    mine.mark("finish")
    moody = Moody([upload.Round(refused="x: the name is impossible.")])
    assert shipper.Shipper(mine, mine.owner(), moody).serve() == shipper.Result.KEPT
    expected = spool.Status(os.getpid(), 0, "x: the name is impossible.", kept=True, refused=True)
    assert mine.status() == expected
    assert mine.files.exists()


def test_an_orphan_gives_up_after_a_day(target):
    mine = Spool.create(target, 0.01)
    owner = dataclasses.replace(mine.owner(), boot="before")
    hours = iter(range(1000))
    away = upload.Round(left=5, problem=Unreachable("s3://x", "it does not answer", ""))
    serving = shipper.Shipper(mine, owner, Moody([away] * 100), clock=lambda: next(hours) * 3600.0)
    assert serving.serve() == shipper.Result.KEPT
    assert mine.status().kept
    assert "it does not answer" in mine.status().problem


def test_a_bucket_that_does_not_answer_at_the_end_is_asked_again(target, monkeypatch):
    monkeypatch.setattr(shipper, "_MAX_DELAY_AT_END", 0.01)
    mine = Spool.create(target, 0.01)
    mine.mark("finish")
    away = StorageError("s3://x", "it answers with an error", "")
    moody = Moody([], [away, False] * 4 + [away] * 12)
    assert shipper.Shipper(mine, mine.owner(), moody).serve() == shipper.Result.ARRIVED
    assert moody.verified == 21
    assert mine.status() == spool.Status(os.getpid())


def test_what_is_never_as_it_was_sent_is_kept(target, monkeypatch):
    monkeypatch.setattr(shipper, "_MAX_DELAY_AT_END", 0.01)
    mine = Spool.create(target, 0.01)
    mine.mark("finish")
    moody = Moody([], [False] * 100)
    assert shipper.Shipper(mine, mine.owner(), moody).serve() == shipper.Result.KEPT
    assert moody.verified == 5
    assert "missing or have changed" in mine.status().problem


WRITER = """
import sys
with open(sys.argv[1], "ab", buffering=0) as file:
    print("open", flush=True)
    sys.stdin.readline()
    file.write(b"the last words")
"""


@pytest.fixture
def writer(tmp_path):
    """Start processes that have a file open until they are told to write and to end."""
    started = []

    def start(path: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WRITER, path]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe))
        assert started[-1].stdout.readline() == b"open\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def serving(mine: Spool, **options: object) -> shipper.Shipper:
    storage = upload.Uploader(
        mine.files, shipper.Ledger(mine.ledger), shipper.open_storage(mine.owner().target)
    )
    return shipper.Shipper(mine, mine.owner(), storage, **options)


def test_a_writer_is_waited_for_after_the_owner_has_finished(target, writer):
    mine = Spool.create(target, 0.01)
    child = writer(mine.files / "output.log")
    mine.mark("finish")
    served = start_shipper(mine)
    until(lambda: mine.status().pid)
    assert not mine.is_marked("done")
    child.communicate(b"\n")
    assert served.wait(180) == shipper.Result.ARRIVED
    assert (Path(target) / "output.log").read_bytes() == b"the last words"


def test_a_process_that_keeps_a_file_open_is_named_after_a_while(target, writer, monkeypatch):
    """Nobody needs to wait for it, but what it writes later arrives all the same."""
    monkeypatch.setattr(shipper, "_WRITER_SECS", 0.2)
    mine = Spool.create(target, 0.01)
    child = writer(mine.files / "output.log")
    mine.mark("finish")
    results = []
    thread = threading.Thread(target=lambda: results.append(serving(mine).serve()))
    thread.start()
    until(lambda: mine.status().writer == child.pid)
    mine.mark("alone")
    assert thread.is_alive()
    child.communicate(b"\n")
    thread.join(180)
    assert results == [shipper.Result.ARRIVED]
    assert not mine.directory.exists()
    assert (Path(target) / "output.log").read_bytes() == b"the last words"


def test_a_large_file_on_its_way_is_waited_for(target, writer, monkeypatch):
    """Else the machine might be switched off before it has arrived."""
    monkeypatch.setattr(shipper, "_WRITER_SECS", 0.0)
    mine = Spool.create(target, 0.01)
    child = writer(mine.files / "output.log")
    mine.mark("finish")
    told = []
    monkeypatch.setattr(mine, "report", told.append)
    moody = Moody([upload.Round(left=9, busy=True)] * 3)
    thread = threading.Thread(target=shipper.Shipper(mine, mine.owner(), moody).serve)
    thread.start()
    until(lambda: any(one.writer for one in told))
    child.communicate(b"\n")
    thread.join(180)
    assert [one.writer for one in told if one.left] == [0] * len([one for one in told if one.left])
    assert len([one for one in told if one.left]) >= 1


def test_a_process_without_open_files_is_not_waited_for_after_a_day(target, monkeypatch):
    mine = Spool.create(target, 0.01)
    mine.mark("finish")
    told = {**os.environ, "ABOARD_LOGDIR": str(mine.files)}
    hours = iter(range(1000))
    with subprocess.Popen(["sleep", "60"], env=told) as idle:
        until(lambda: mine.writer() == (idle.pid, False))
        moody = Moody([])
        served = shipper.Shipper(mine, mine.owner(), moody, clock=lambda: next(hours) * 3600.0)
        assert served.serve() == shipper.Result.ARRIVED
        idle.kill()
    assert next(hours) > 24


def test_the_owner_itself_is_not_waited_for(target, writer):
    mine = Spool.create(target, 0.01)
    child = writer(mine.files / "output.log")
    assert mine.writer() == (child.pid, True)
    assert mine.writer(besides=child.pid) is None


def test_the_shipper_is_known_before_anything_is_sent(target):
    mine = Spool.create(target, 0.01)
    mine.report(spool.Status(7, 5, "it does not answer", kept=True))
    mine.mark("finish")
    seen = []

    class Looking(Moody):
        def round(self, *, last: bool) -> upload.Round:
            seen.append(mine.status())
            return super().round(last=last)

    shipper.Shipper(mine, mine.owner(), Looking([])).serve()
    assert seen == [spool.Status(os.getpid(), 5, "it does not answer")]
