"""What arrived, looked at again: missing, cut short, overtaken by a later attempt."""

import json

import pytest
from carrying import EVENTS, VERSION, Spooled, scalar_record

from aboard.events.records import frame
from aboard.runs.manifest import Manifest, State
from aboard.storage import PermissionDenied, Unreachable
from aboard.track import segments
from aboard.track.handover import record_to_send
from aboard.track.ledger import Ledger
from aboard.track.shipper import send_left_behind
from aboard.track.spool import Spool


@pytest.fixture
def spooled(tmp_path) -> Spooled:
    return Spooled(tmp_path)


def test_what_went_missing_is_sent_again(spooled):
    spooled.write(EVENTS, VERSION + frame(bytes(segments.SMALLEST)) + scalar_record(1))
    spooled.round()
    spooled.write(EVENTS, scalar_record(2))
    spooled.write("run.json", b"{}")
    assert spooled.round(last=True).complete
    assert spooled.sending.verify()
    # A request that was given up long ago is carried out after all.
    spooled.target.inner.write(EVENTS, VERSION)
    spooled.target.inner.delete("run.json")
    assert not spooled.sending.verify()
    assert spooled.round(last=True).complete
    assert spooled.sending.verify()
    assert spooled.arrived() == (spooled.files / EVENTS).read_bytes()
    assert "run.json" in spooled.names()


def test_who_may_write_but_not_look_can_ship(spooled):
    spooled.target.fails = lambda name: None if name else PermissionDenied("s3://x", "no", "")
    spooled.write(EVENTS, VERSION)
    assert spooled.round(last=True).complete
    assert spooled.sending.verify()
    assert spooled.arrived() == VERSION


@pytest.mark.parametrize("stale", [b"hel", b""])
def test_a_file_that_was_cut_short_is_sent_again(spooled, stale):
    spooled.write("notes.txt", b"hello")
    assert spooled.round(last=True).complete
    spooled.target.inner.write("notes.txt", stale)
    assert not spooled.sending.verify()
    assert spooled.round(last=True).complete
    assert spooled.sending.verify()
    assert spooled.target.read("notes.txt") == b"hello"


def test_an_earlier_record_of_the_same_size_is_replaced(spooled):
    running, killed = record(State.RUNNING), record(State.KILLED)
    spooled.write("run.json", killed)
    assert spooled.round(last=True).complete
    spooled.target.inner.write("run.json", running.ljust(len(killed)))
    assert not spooled.sending.verify()
    assert spooled.round(last=True).complete
    assert spooled.sending.verify()
    assert spooled.target.read("run.json") == killed


def test_a_record_that_may_not_be_read_is_sent_and_believed(spooled, monkeypatch):
    def hidden(*_: object) -> bytes:
        raise PermissionDenied("s3://x", "no", "")

    monkeypatch.setattr(spooled.target, "read", hidden)
    spooled.write("run.json", record(State.KILLED))
    assert spooled.round(last=True).complete
    assert spooled.sending.verify()
    assert spooled.target.inner.read("run.json") == record(State.KILLED)


def test_a_record_that_cannot_be_compared_is_not_sent_blindly(spooled, monkeypatch):
    def away(*_: object) -> bytes:
        raise Unreachable("s3://x", "it does not answer", "")

    spooled.write("run.json", record(State.KILLED))
    with monkeypatch.context() as patched:
        patched.setattr(spooled.target, "read", away)
        assert isinstance(spooled.round(last=True).problem, Unreachable)
    assert spooled.names() == []
    assert spooled.round(last=True).complete
    assert spooled.names() == ["run.json"]


def test_many_files_are_noted_together(spooled, monkeypatch):
    held = Ledger(spooled.path, clock=lambda: 0.0)
    spooled.sending._ledger = held
    saved = []
    save = held.save
    monkeypatch.setattr(held, "save", lambda: saved.append(len(held.whole)) or save())
    for number in range(50):
        spooled.write(f"picture-{number}.png", b"x")
    assert spooled.round(last=True).complete
    assert saved == [50]
    assert len(Ledger(spooled.path).whole) == 50


# Attempts at one run.


def record(*ends: State) -> bytes:
    """Make the record of a run with attempts that ended so."""
    made = Manifest("run1", "mnist")
    for number, state in enumerate(ends, 1):
        made.begin(at=1e9 + number * 100, host="host", pid=number)
        if state is not State.RUNNING:
            made.end(state, 0, f"end of {number}", at=1e9 + number * 100 + 50)
    return made.to_json()


@pytest.fixture
def left(tmp_path):
    """Leave a spool behind as a first attempt does whose machine lost its power."""
    (tmp_path / "bucket").mkdir()
    spool = Spool.create(str(tmp_path / "bucket"), 1)
    (spool.files / "run.json").write_bytes(record(State.RUNNING))
    (spool.files / "notes.txt").write_bytes(b"hello")
    return spool


def test_a_spool_left_behind_tells_a_later_attempt_only_of_its_own_end(left, tmp_path):
    held = tmp_path / "bucket" / "run.json"
    held.write_bytes(record(State.RUNNING, State.COMPLETED))
    assert send_left_behind(left, left.owner(), lambda _: None).complete
    found = Manifest.from_json(held.read_bytes())
    assert (found.state, found.reason, found.exit_code) == (State.COMPLETED, "end of 2", 0)
    first, second = found.attempts
    assert (first.state, second.state) == (State.KILLED, State.COMPLETED)
    assert "ended without a word" in first.reason
    assert (tmp_path / "bucket" / "notes.txt").read_bytes() == b"hello"
    assert not left.directory.exists()


def test_a_spool_left_behind_leaves_a_run_in_progress_alone(left, tmp_path):
    held = tmp_path / "bucket" / "run.json"
    held.write_bytes(record(State.RUNNING, State.RUNNING))
    assert send_left_behind(left, left.owner(), lambda _: None).complete
    assert held.read_bytes() == record(State.RUNNING, State.RUNNING)
    assert not left.directory.exists()


def test_what_keeps_changing_in_the_bucket_is_kept_and_said(left, tmp_path, monkeypatch):
    monkeypatch.setattr("aboard.track.sending.Sending.verify", lambda _: False)
    outcome = send_left_behind(left, left.owner(), lambda _: None)
    assert "not there, or not as they were sent" in str(outcome.problem)
    assert left.directory.exists()


def test_whose_record_counts():
    one, two = record(State.FAILED), record(State.RUNNING, State.COMPLETED)
    assert record_to_send(one, None) == one
    assert record_to_send(one, one) is None
    assert record_to_send(two, one) == two, "the later attempt knows of the earlier"
    assert record_to_send(one, b"damaged") == one
    assert record_to_send(b"not ours to read", two) == b"not ours to read"
    told = json.loads(record_to_send(one, two))
    assert [one["state"] for one in told["attempts"]] == ["failed", "completed"]
    assert record_to_send(one, json.dumps(told).encode()) is None, "it is told already"
    assert record_to_send(record(State.RUNNING), two) is None, "there is no end to tell of"
    other = two.replace(b'"host": "host"', b'"host": "elsewhere"')
    assert record_to_send(one, other) is None, "that first attempt is not ours"
