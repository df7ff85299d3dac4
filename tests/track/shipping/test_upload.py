"""From a spool to a storage: everything arrives, in order, and little of it twice."""

import errno
import json
import random
import tempfile
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from aboard.events.records import frame
from aboard.runs import manifest
from aboard.runs.manifest import Manifest, State
from aboard.storage import PermissionDenied, StorageError, Unreachable
from aboard.track.shipping import segments, upload
from aboard.track.shipping.segments import Ledger, SentRecord, segment_name
from aboard.track.shipping.shipper import send_abandoned
from aboard.track.shipping.spool import Spool
from aboard.track.shipping.upload import record_to_send
from tests.track.shipping.shipments import (
    EVENTS,
    VERSION,
    Spooled,
    StockReader,
    append,
    indexed_steps,
    scalar_record,
    steps_in,
)


@pytest.fixture
def spooled(tmp_path) -> Spooled:
    return Spooled(tmp_path)


def test_a_file_grows_in_the_bucket(spooled):
    spooled.write(EVENTS, VERSION + scalar_record(0))
    assert spooled.round().sent == len(VERSION + scalar_record(0))
    spooled.write(EVENTS, scalar_record(1))
    spooled.round()
    assert spooled.names() == [EVENTS]
    assert steps_in(spooled.arrived()) == [0, 1]


def test_nothing_new_is_nothing_sent(spooled):
    spooled.write(EVENTS, VERSION)
    spooled.write("run.json", b"{}")
    spooled.round()
    before = len(spooled.target.writes)
    for _ in range(3):
        assert spooled.round().complete
    assert len(spooled.target.writes) == before
    spooled.restart()
    assert spooled.round(last=True).complete
    assert len(spooled.target.writes) == before


def test_an_unfinished_record_waits_for_the_end(spooled):
    spooled.write(EVENTS, VERSION + scalar_record(0)[:-1])
    result = spooled.round()
    assert spooled.arrived() == VERSION
    assert result.left == len(scalar_record(0)) - 1
    assert spooled.round(last=True).complete
    assert spooled.arrived() == (spooled.files / EVENTS).read_bytes()


def test_later_segments_begin_with_the_version(spooled):
    spooled.write(EVENTS, VERSION + frame(bytes(segments.MIN_SIZE)))
    spooled.round()
    spooled.write(EVENTS, scalar_record(1))
    spooled.round()
    assert spooled.names() == [EVENTS, f"{EVENTS}.s000001"]
    second = (spooled.target.directory / f"{EVENTS}.s000001").read_bytes()
    assert second == VERSION + scalar_record(1)


def test_a_burst_is_cut_into_pieces_and_sent_once(spooled):
    chunk = frame(bytes(100_000))
    content = VERSION + chunk * 250
    spooled.write(EVENTS, content)
    assert spooled.round().complete
    assert spooled.arrived() == content
    assert len(spooled.names()) == 4
    assert max(size for _, size in spooled.target.writes) <= segments.MAX_SIZE
    assert spooled.target.total <= len(content) + 4 * len(VERSION)


def test_a_record_larger_than_a_segment_arrives(spooled):
    content = VERSION + frame(bytes(segments.MAX_SIZE + 5)) + scalar_record(1)
    spooled.write(EVENTS, content)
    assert spooled.round().complete
    assert spooled.arrived() == content
    assert len(spooled.names()) == 3


def test_a_file_that_is_no_event_file_arrives_at_the_end(spooled):
    noise = random.Random(3).randbytes(200_000)
    spooled.write("x.tfevents.zip", noise)
    spooled.round()
    assert spooled.names() == []
    assert spooled.round(last=True).complete
    assert spooled.arrived("x.tfevents.zip") == noise


def test_damage_arrives_with_what_follows_it(spooled):
    damage = b"\xff" * 40
    spooled.write(EVENTS, VERSION + scalar_record(0) + damage + scalar_record(1))
    spooled.round()
    assert spooled.arrived() == (spooled.files / EVENTS).read_bytes()


def test_output_is_cut_between_lines(spooled):
    lines = b"".join(b"epoch %d\n" % number for number in range(20_000))
    for start in range(0, len(lines), 10_000):
        spooled.write("output.log", lines[start : start + 10_000])
        spooled.round()
    assert spooled.round(last=True).complete
    assert spooled.arrived("output.log") == lines
    assert len(spooled.names()) > 2
    for name in spooled.names():
        assert (spooled.target.directory / name).read_bytes().endswith(b"\n")


# How much is sent.


def grown(spooled, sizes) -> tuple[int, int]:
    """Write so many bytes per round; return what was written and the open segments' sum."""
    written = open_segments = 0
    for size in sizes:
        record = scalar_record(1) if size < 5_000 else frame(bytes(1_000))
        spooled.write(EVENTS, record * max(1, size // len(record)))
        spooled.round()
        entry = spooled.uploader._ledger.growing[EVENTS]
        written = entry.sent
        open_segments += entry.sent - entry.start
    assert spooled.round(last=True).complete
    return written, open_segments


WRITERS = {
    "slow": [60] * 400,
    "steady": [9_000] * 300,
    "fast": [300_000] * 100,
    "bursty": [100, 100, 20_000_000, 100, 5_000_000] * 2,
    "mixed": [random.Random(5).choice([60, 2_000, 70_000, 900_000]) for _ in range(150)],
}


@pytest.mark.parametrize("sizes", WRITERS.values(), ids=WRITERS)
def test_little_is_sent_twice(spooled, sizes):
    written, open_segments = grown(spooled, sizes)
    assert spooled.target.total <= 1.2 * written + open_segments
    assert spooled.arrived() == (spooled.files / EVENTS).read_bytes()
    # However slowly a file grows, all that is sent stays a multiple of what was written.
    beyond = spooled.target.total - len(sizes) * segments.MIN_SIZE
    assert beyond <= 6 * written


def test_the_number_of_segments_grows_slowly(spooled):
    written, _ = grown(spooled, [100_000] * 400)
    assert written > 35_000_000
    assert len(spooled.names()) < 120


# In order.


def test_the_next_file_waits_for_the_one_before(spooled):
    first, second = "events.out.tfevents.1", "events.out.tfevents.2"
    spooled.write(first, VERSION + scalar_record(0))
    spooled.write(second, VERSION + scalar_record(1))
    spooled.target.fails = lambda name: name == first and PermissionDenied(name, "no", "")
    assert isinstance(spooled.round().problem, PermissionDenied)
    assert spooled.names() == []
    spooled.target.fails = lambda name: None
    assert spooled.round().complete
    assert [name for name, _ in spooled.target.writes] == [first, second]


def test_one_directory_does_not_wait_for_another(spooled):
    spooled.write("a/events.out.tfevents.1", VERSION)
    spooled.write("b/events.out.tfevents.1", VERSION)
    spooled.target.fails = lambda name: name.startswith("b/") and PermissionDenied(name, "no", "")
    result = spooled.round()
    assert spooled.names() == ["a/events.out.tfevents.1"]
    assert not result.complete
    assert result.left == len(VERSION)


def test_when_nothing_can_arrive_nothing_else_is_tried(spooled):
    for number in range(5):
        spooled.write(f"{number}/events.out.tfevents.1", VERSION)
    asked = []

    def away(name: str) -> Exception:
        asked.append(name)
        return Unreachable("s3://x", "it does not answer", "Wait.")

    spooled.target.fails = away
    assert str(spooled.round().problem) == "s3://x: it does not answer. Wait."
    assert len(asked) == 1
    assert spooled.round().left == 5 * len(VERSION)


# Readers.


def test_every_reader_sees_every_point_at_every_moment(spooled, index, monkeypatch):
    monkeypatch.setattr(segments, "MIN_SIZE", 2_000)
    stock = StockReader(spooled.target.directory / "train")
    chance = random.Random(11)
    step = 0
    spooled.write(EVENTS, VERSION)
    for turn in range(30):
        for _ in range(chance.choice([0, 1, 3, 40, 150])):
            spooled.write(EVENTS, scalar_record(step))
            step += 1
        torn = scalar_record(step)
        spooled.write(EVENTS, torn[:7])
        if turn % 7 == 6:
            spooled.restart()
        spooled.round()
        expected = list(range(step))
        assert indexed_steps(str(spooled.target.directory), index) == expected
        assert stock.steps() == expected
        spooled.write(EVENTS, torn[7:])
        step += 1
    assert len(spooled.names()) > 5
    spooled.round(last=True)
    assert stock.steps() == list(range(step))
    assert StockReader(spooled.target.directory / "train").steps() == list(range(step))


# Crashes.


@pytest.mark.parametrize("forgets", ["nothing", "last", "all"])
def test_a_crash_at_any_moment_loses_and_doubles_nothing(spooled, forgets, monkeypatch):
    """A write that was carried out but never noted, a ledger that is behind, or lost."""
    monkeypatch.setattr(segments, "MIN_SIZE", 1_000)
    chance = random.Random(forgets)

    save = Ledger.save

    def crash() -> None:
        if chance.random() < 0.3:
            raise KeyboardInterrupt

    def save_maybe(held: Ledger) -> bool:
        # The first mention of a file is the one that must not be forgotten.
        first = any(not entry.sent for entry in held.growing.values())
        return save(held) if first or chance.random() < 0.3 else True

    spooled.target.noted = crash
    if forgets == "last":
        monkeypatch.setattr(Ledger, "save", save_maybe)
    spooled.write(EVENTS, VERSION)
    for step in range(300):
        spooled.write(EVENTS, scalar_record(step))
        if step % 3 == 0:
            try:
                spooled.round()
            except KeyboardInterrupt:
                if forgets == "all":
                    spooled.path.unlink()
                spooled.restart()
    spooled.target.noted = lambda: None
    spooled.restart()
    assert spooled.round(last=True).complete
    assert spooled.uploader.verify()
    assert spooled.arrived() == (spooled.files / EVENTS).read_bytes()
    assert len(spooled.names()) > 3


def test_a_full_disk_stops_nothing(spooled, monkeypatch):
    monkeypatch.setattr(segments, "MIN_SIZE", 1_000)
    spooled.write(EVENTS, VERSION)
    spooled.round()
    with monkeypatch.context() as full:
        full.setattr("aboard.track.shipping.segments.replace_json", lambda path, document: False)
        for step in range(100):
            spooled.write(EVENTS, scalar_record(step))
            spooled.round()
    assert len(spooled.names()) > 3
    assert steps_in(spooled.arrived()) == list(range(100))
    spooled.restart()  # with a ledger that has heard of nothing since the disk was full
    spooled.write(EVENTS, scalar_record(100))
    assert spooled.round(last=True).complete
    assert steps_in(spooled.arrived()) == list(range(101))


def test_the_ledger_is_written_when_the_disk_has_room_again(spooled, monkeypatch):
    spooled.write(EVENTS, VERSION)
    with monkeypatch.context() as full:
        full.setattr("aboard.track.shipping.segments.replace_json", lambda path, document: False)
        spooled.round()
    spooled.round()
    assert Ledger(spooled.path).growing[EVENTS].sent == len(VERSION)


# What was there before, and what is replaced.


def test_names_that_are_taken_are_left_alone(spooled):
    spooled.target.inner.write("output.log", b"of the first attempt\n")
    spooled.target.inner.write("output.log.s000001", b"and more of it\n")
    spooled.write("output.log", b"of the second\n")
    spooled.round()
    spooled.restart()
    spooled.write("output.log", b"attempt\n")
    spooled.round()
    held = {name: spooled.target.read(name) for name in spooled.names()}
    assert held == {
        "output.log": b"of the first attempt\n",
        "output.log.s000001": b"and more of it\n",
        "output.log.v000001": b"of the second\nattempt\n",
    }


@pytest.mark.parametrize("how", ["shorter", "another", "rewritten"])
def test_a_replaced_file_replaces_nothing(spooled, how):
    path = spooled.files / EVENTS
    spooled.write(EVENTS, VERSION + scalar_record(0) * 5)
    spooled.round()
    if how == "shorter":
        path.write_bytes(VERSION + scalar_record(7))
    elif how == "another":
        append(path.with_name(".new"), VERSION + scalar_record(7))
        path.with_name(".new").replace(path)
    else:
        path.write_bytes(VERSION + scalar_record(7) * 9)
    spooled.round()
    assert spooled.names() == [EVENTS, f"{EVENTS}.v000001"]
    assert spooled.target.read(f"{EVENTS}.v000001") == path.read_bytes()
    assert steps_in(spooled.target.read(EVENTS)) == [0] * 5


def test_what_is_deleted_here_stays_there(spooled):
    spooled.write(EVENTS, VERSION)
    spooled.round()
    (spooled.files / EVENTS).unlink()
    assert spooled.round(last=True).complete
    assert spooled.uploader.verify()
    assert spooled.names() == [EVENTS]


# Whole files.


def test_a_file_is_sent_when_it_has_come_to_rest(spooled):
    spooled.write("notes.txt", b"one")
    spooled.round()
    assert spooled.names() == []
    spooled.write("notes.txt", b" two")
    spooled.round()
    assert spooled.names() == []
    spooled.round()
    assert spooled.target.read("notes.txt") == b"one two"


def test_the_record_of_the_run_is_sent_at_once(spooled):
    spooled.write("run.json", b"{}")
    spooled.round()
    assert spooled.target.read("run.json") == b"{}"


def test_a_large_file_does_not_hold_up_the_others(spooled):
    import threading

    going = threading.Event()
    create = spooled.target.create_new

    def slow(name: str, content: bytes) -> None:
        assert name != "model" or going.wait(180)
        create(name, content)

    spooled.target.create_new = slow
    spooled.write("model", bytes(segments.MAX_SIZE + 1))
    spooled.write(EVENTS, VERSION)
    result = spooled.round(last=True)
    assert spooled.names() == [EVENTS]
    assert result.left == segments.MAX_SIZE + 1
    going.set()
    while not spooled.round(last=True).complete:
        pass
    assert len(spooled.target.read("model")) == segments.MAX_SIZE + 1


def test_a_large_file_for_which_there_is_no_room_twice_is_sent_in_parts(spooled, monkeypatch):
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    spooled.write("model", bytes(segments.MAX_SIZE + 1))
    while not spooled.round(last=True).complete:
        pass
    assert len(spooled.target.read("model")) == segments.MAX_SIZE + 1
    assert sorted(spooled.files.iterdir()) == [spooled.files / "model"]


def test_a_large_file_that_keeps_changing_is_not_sent_every_time(spooled):
    for turn in range(20):
        (spooled.files / "model").write_bytes(bytes([turn]) * 6_000_000)
        spooled.round()
        spooled.round()
    assert spooled.target.sent["model"] == 6_000_000
    assert spooled.round(last=True).complete
    assert spooled.target.read("model", 0, 1) == bytes([19])


# What is not sent.


def test_hidden_files_arrive_and_unfinished_ones_stay(spooled):
    for name in (".aboard-tmp-123", "a/.nfs00000001", ".hydra/config.yaml", "a/.hidden"):
        spooled.write(name, b"x")
    assert spooled.round(last=True).complete
    assert spooled.names() == [".hydra/config.yaml", "a/.hidden"]


def test_a_link_out_of_the_spool_is_not_followed(spooled, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_bytes(b"secret")
    (spooled.files / "link").symlink_to(secret / "key")
    (spooled.files / "x.tfevents.1").symlink_to(secret / "key")
    (spooled.files / "below").symlink_to(secret)
    (spooled.files / "circle").symlink_to(spooled.files / "circle")
    (spooled.files / "nowhere").symlink_to(spooled.files / "absent")
    spooled.write("model-5", b"weights")
    (spooled.files / "latest").symlink_to("model-5")
    assert spooled.round(last=True).complete
    assert spooled.names() == ["latest", "model-5"]
    assert spooled.target.read("latest") == b"weights"


def test_a_file_that_can_never_arrive_is_reported_and_blocks_no_other(spooled):
    spooled.write("b\\ad/\x01.txt", b"x")
    spooled.write("good.txt", b"y")
    spooled.target.fails = lambda name: (
        upload.BadUri(name, "the name has a control character", "Rename it.")
        if "\x01" in name
        else None
    )
    result = spooled.round(last=True)
    assert result.complete
    assert "control character" in result.refused
    assert spooled.names() == ["good.txt"]


def test_another_error_is_a_problem_and_is_tried_again(spooled):
    spooled.write("run.json", b"{}")
    spooled.target.fails = lambda name: StorageError("s3://x", "it is broken", "") if name else None
    assert str(spooled.round().problem) == "s3://x: it is broken."
    spooled.target.fails = lambda name: None
    assert spooled.round().complete


# What arrived, looked at again: missing, cut short, overtaken by a later attempt.


def test_what_went_missing_is_sent_again(spooled):
    spooled.write(EVENTS, VERSION + frame(bytes(segments.MIN_SIZE)) + scalar_record(1))
    spooled.round()
    spooled.write(EVENTS, scalar_record(2))
    spooled.write("run.json", b"{}")
    assert spooled.round(last=True).complete
    assert spooled.uploader.verify()
    # A request that was given up long ago is carried out after all.
    spooled.target.inner.write(EVENTS, VERSION)
    spooled.target.inner.delete("run.json")
    assert not spooled.uploader.verify()
    assert spooled.round(last=True).complete
    assert spooled.uploader.verify()
    assert spooled.arrived() == (spooled.files / EVENTS).read_bytes()
    assert "run.json" in spooled.names()


def test_shipping_needs_no_right_to_list(spooled):
    spooled.target.fails = lambda name: None if name else PermissionDenied("s3://x", "no", "")
    spooled.write(EVENTS, VERSION)
    assert spooled.round(last=True).complete
    assert spooled.uploader.verify()
    assert spooled.arrived() == VERSION


def test_without_the_right_to_list_nothing_is_overwritten(spooled):
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


def test_without_the_right_to_list_a_lost_response_is_recognised(spooled, monkeypatch):
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
    assert not spooled.uploader.verify()
    assert spooled.round(last=True).complete
    assert spooled.uploader.verify()
    assert spooled.target.read("notes.txt") == b"hello"


def test_an_earlier_record_of_the_same_size_is_replaced(spooled):
    running, killed = record(State.RUNNING), record(State.KILLED)
    spooled.write("run.json", killed)
    assert spooled.round(last=True).complete
    spooled.target.inner.write("run.json", running.ljust(len(killed)))
    assert not spooled.uploader.verify()
    assert spooled.round(last=True).complete
    assert spooled.uploader.verify()
    assert spooled.target.read("run.json") == killed


def test_a_record_that_may_not_be_read_is_sent_and_believed(spooled, monkeypatch):
    def hidden(*_: object) -> bytes:
        raise PermissionDenied("s3://x", "no", "")

    monkeypatch.setattr(spooled.target, "read", hidden)
    spooled.write("run.json", record(State.KILLED))
    assert spooled.round(last=True).complete
    assert spooled.uploader.verify()
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
    spooled.uploader._ledger = held
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
    assert send_abandoned(left, left.owner(), lambda _: None).complete
    found = Manifest.from_json(held.read_bytes())
    assert (found.state, found.reason, found.exit_code) == (State.COMPLETED, "end of 2", 0)
    first, second = found.attempts
    assert (first.state, second.state) == (State.KILLED, State.COMPLETED)
    assert "exited without notice" in first.reason
    assert (tmp_path / "bucket" / "notes.txt").read_bytes() == b"hello"
    assert not left.directory.exists()


def test_a_spool_left_behind_leaves_a_run_in_progress_alone(left, tmp_path):
    held = tmp_path / "bucket" / "run.json"
    held.write_bytes(record(State.RUNNING, State.RUNNING))
    assert send_abandoned(left, left.owner(), lambda _: None).complete
    assert held.read_bytes() == record(State.RUNNING, State.RUNNING)
    assert not left.directory.exists()


def test_files_that_keep_changing_in_the_bucket_are_reported(left, tmp_path, monkeypatch):
    monkeypatch.setattr("aboard.track.shipping.upload.Uploader.verify", lambda _: False)
    outcome = send_abandoned(left, left.owner(), lambda _: None)
    assert "missing or have changed" in str(outcome.problem)
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


def test_what_users_add_to_a_record_in_the_bucket_stays():
    ours = record(State.RUNNING)
    theirs = Manifest.from_json(ours)
    theirs.edit({"baseline": True}, "of the paper")
    later = Manifest.from_json(ours)
    later.edit({"seed": 3})
    later.heartbeat += 30
    sent = Manifest.from_json(record_to_send(later.to_json(), theirs.to_json()))
    assert (sent.tags, sent.note) == ({"baseline": True, "seed": 3}, "of the paper")
    assert sent.heartbeat == later.heartbeat
    assert record_to_send(ours, theirs.to_json()) is None, "nothing else has changed"
    other = attempt(9, 3e9, State.COMPLETED)
    assert Manifest.from_json(record_to_send(other, sent.to_json())).note == "of the paper"


# What users do to a record in the bucket while its run goes on.


def edited(content: bytes, tags: dict[str, Any], note: str) -> bytes:
    """Return a record with these tags and this note alone."""
    made = Manifest.from_json(content)
    made.tags, made.note = tags, note
    return made.to_json()


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "after another attempt"])
def test_what_one_side_adds_changes_or_removes_holds(is_alone):
    ours = record(State.RUNNING)
    theirs = ours if is_alone else record_to_send(ours, attempt(9, 1e8, State.FAILED))

    def merged(kind: Callable[[str], tuple[dict[str, Any], str]], *values: str) -> str:
        """Merge tags or notes that were sent, are here, and are there."""
        sent, here, there = map(kind, values)
        found = record_to_send(
            edited(ours, *here), held := edited(theirs, *there), SentRecord(*sent)
        )
        after = Manifest.from_json(found or held)
        return after.note or after.tags.get("stage", "")

    def as_tag(value: str) -> tuple[dict[str, Any], str]:
        return ({"stage": value} if value else {}), ""

    def as_note(value: str) -> tuple[dict[str, Any], str]:
        return {}, value

    for sent, here, there in product(["", "draft", "final", "paper"], repeat=3):
        for kind in (as_tag, as_note):
            found = merged(kind, sent, here, there)
            if here == sent:
                assert found == there, (sent, here, there)
            elif there == sent:
                assert found == here, (sent, here, there)
            else:  # nothing that was written is lost to a removal
                assert found in ({here, there} - {""} or {""}), (sent, here, there)


def test_what_is_not_known_to_be_removed_stays():
    sent = edited(record(State.RUNNING), {"stage": "draft"}, "first")
    for known in (None, SentRecord({"stage": "draft"}, "first", heartbeat=3e9)):  # and sent before
        found = Manifest.from_json(record_to_send(sent, record(State.RUNNING), known))
        assert (found.tags, found.note) == ({"stage": "draft"}, "first"), known


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("has_conditions", [False, True])
def test_a_run_that_goes_on_does_not_undo_what_users_change(spooled, restarts, has_conditions):
    running = Manifest.from_json(record(State.RUNNING))
    running.edit({"baseline": True, "stage": "draft", "epoch": 1}, "first")

    def beat(**tags: object) -> Manifest:
        """Let the training write its record again, and the shipper send it."""
        running.heartbeat += 30
        running.edit(tags)
        (spooled.files / "run.json").write_bytes(running.to_json())
        if restarts:
            spooled.restart()
        if not has_conditions:
            spooled.uploader._has_conditions = False
        assert spooled.round(last=True).complete
        assert spooled.uploader.verify()
        return manifest.read(spooled.target)

    def change(tags: dict[str, Any], note: str) -> None:
        manifest.update(spooled.target.inner, lambda record: record.edit(tags, note))

    beat()
    change({"baseline": None, "stage": "final", "mine": 1}, "")
    for epoch in (2, 3):
        found = beat(epoch=epoch)
        assert found.tags == {"stage": "final", "mine": 1, "epoch": epoch}
        assert (found.note, found.heartbeat) == ("", running.heartbeat)
    change({"mine": None, "baseline": True}, "of the paper")
    found = beat(stage="done", best=7)
    assert found.tags == {"stage": "done", "epoch": 3, "baseline": True, "best": 7}
    assert found.note == "of the paper"


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
