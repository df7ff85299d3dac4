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
from aboard.track.segments import segment_name
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


def test_who_may_not_look_leaves_what_an_earlier_attempt_sent(spooled):
    spooled.target.fails = lambda name: None if name else PermissionDenied("s3://x", "no", "")
    for generation, text in enumerate((b"one\n", b"two\n")):
        spooled.target.inner.write(segment_name("output.log", generation, 0), text)
    spooled.write("output.log", b"three\n")
    assert spooled.round(last=False).complete
    spooled.restart()
    spooled.write("output.log", b"more\n")
    assert spooled.round(last=True).complete
    found = [spooled.target.read(name) for name in spooled.names()]
    assert found == [b"one\n", b"two\n", b"three\nmore\n"]


def test_who_may_not_look_knows_its_own_file_after_a_lost_answer(spooled, monkeypatch):
    spooled.target.fails = lambda name: None if name else PermissionDenied("s3://x", "no", "")
    create = spooled.target.create_new

    def lost(name: str, content: bytes) -> None:
        create(name, content)
        create(name, content)

    monkeypatch.setattr(spooled.target, "create_new", lost)
    spooled.write(EVENTS, VERSION)
    assert spooled.round(last=True).complete
    assert spooled.names() == [EVENTS]


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


def attempt(pid: int, started: float, state: State, **changed: object) -> bytes:
    """Make the record of a process that knows of no other attempt."""
    made = Manifest("run1", "mnist", created=started, **changed)
    made.begin(at=started, host="host", pid=pid)
    if state is not State.RUNNING:
        made.end(state, 0, f"end of {pid}", at=started + 50)
    return made.to_json()


@pytest.mark.parametrize("first_sent", [1, 2])
def test_attempts_that_do_not_know_of_each_other_are_put_in_order(first_sent):
    one = attempt(1, 1e9, State.FAILED, hparams={"lr": 1, "depth": 3}, tags={"a": True})
    two = attempt(2, 2e9, State.COMPLETED, hparams={"lr": 2}, tags={"b": True})
    sent, later = (one, two) if first_sent == 1 else (two, one)
    merged = record_to_send(later, sent)
    found = Manifest.from_json(merged)
    assert [(one.number, one.pid, one.state) for one in found.attempts] == [
        (1, 1, State.FAILED),
        (2, 2, State.COMPLETED),
    ]
    assert (found.state, found.reason, found.started) == (State.COMPLETED, "end of 2", 1e9)
    assert (found.hparams, found.created) == ({"lr": 2, "depth": 3}, 1e9)
    assert found.tags == {"a": True, "b": True}
    assert record_to_send(one, merged) is None
    assert record_to_send(two, merged) is None


def test_an_attempt_among_others_tells_of_its_end():
    one = attempt(1, 1e9, State.RUNNING)
    merged = record_to_send(attempt(2, 2e9, State.RUNNING), one)
    found = Manifest.from_json(merged)
    assert [one.state for one in found.attempts] == [State.KILLED, State.RUNNING]
    found = Manifest.from_json(record_to_send(attempt(2, 2e9, State.FAILED), merged))
    assert [one.state for one in found.attempts] == [State.KILLED, State.FAILED]
    assert (found.state, found.reason) == (State.FAILED, "end of 2")
