"""Where growing files are cut: between records or lines, nothing lost, nothing doubled."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.events import encode
from aboard.events.records import frame
from aboard.track.shipping import segments
from aboard.track.shipping.segments import (
    Cut,
    GrowingFile,
    Ledger,
    after_line,
    after_record,
    is_full,
    reconcile,
    segment_ends,
    segment_name,
)
from tests.framing import unframed

VERSION = frame(encode.file_version(1.0, "test"))


def pieces(cutter, content: bytes, room: int) -> list[bytes]:
    """Cut a file that is complete into segments."""
    found, start = [], 0
    while start < len(content):
        block = content[start : start + room + 12]
        cut = cutter(block, len(content) - start, room, True)
        if not cut.length:
            break
        found.append(content[start : start + cut.length])
        start += cut.length
    return found


@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(64, 900))
def test_records_are_never_cut(records, room):
    framed = [frame(record) for record in records]
    found = pieces(after_record, b"".join(framed), room)
    assert b"".join(found) == b"".join(framed)
    for piece in found:
        held = [data for _, data in unframed(piece)]
        assert b"".join(map(frame, held)) == piece
        assert len(piece) <= room or len(held) == 1


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=10), st.data())
def test_an_unfinished_record_waits(records, data):
    framed = b"".join(map(frame, records))
    cut_off = data.draw(st.integers(1, len(frame(records[-1]))))
    content = framed[: len(framed) - cut_off]
    expected = b"".join(map(frame, records[:-1]))
    assert after_record(content, len(content), 1 << 20, True) == Cut(len(expected), False)


@given(st.binary(min_size=1, max_size=60), st.integers(0, 3))
def test_damage_goes_with_the_record_after_it(damage, before):
    good = frame(b"good")
    content = good * before + b"\xff" * 12 + damage + good * 2
    assert b"".join(pieces(after_record, content, 1 << 20)) == content
    first = after_record(content, len(content), len(good) * before + 1, True)
    if before:
        assert first == Cut(len(good) * before, True)


def test_what_is_no_event_file_waits_until_it_fills_a_segment():
    noise = random.Random(1).randbytes(segments.MAX_SIZE + 12)
    assert after_record(noise[:1000], 1000, segments.MAX_SIZE, True) == Cut(0, False)
    cut = after_record(noise, 2 * segments.MAX_SIZE, segments.MAX_SIZE, True)
    assert 0 < cut.length <= segments.MAX_SIZE


def test_a_record_larger_than_a_segment_is_a_segment():
    small, large = frame(b"x"), frame(bytes(5000))
    content = small + large + small
    assert pieces(after_record, content, 100) == [small, large, small]
    # Its end need not be in the block that was read.
    assert after_record(large[:112], len(large) + 5, 100, True) == Cut(len(large), True)
    assert after_record(large[:112], len(large) - 1, 100, True) == Cut(0, False)
    assert after_record(large[:112], len(large), 100, False) == Cut(0, True)


@given(st.lists(st.text("ab\n\r", max_size=30)), st.integers(8, 40))
def test_lines_are_cut_at_their_ends(parts, room):
    content = "\n".join([*parts, ""]).encode()
    found = pieces(after_line, content, room)
    assert b"".join(found) == content
    assert all(len(piece) <= room for piece in found)
    for piece in found[:-1]:
        assert piece.endswith((b"\n", b"\r")) or len(piece) == room


def test_an_unfinished_line_waits():
    assert after_line(b"one\ntw", 6, 100, True) == Cut(4, False)
    assert after_line(b"tw", 2, 100, True) == Cut(0, False)
    assert after_line(b"10%\r20%\r30", 10, 100, True) == Cut(8, False)


@pytest.mark.parametrize(
    ("name", "cutter"),
    [
        ("events.out.tfevents.1.host", after_record),
        ("train/events.out.tfevents.1.host.v2", after_record),
        ("output.log", after_line),
        ("attempt-2/output.log", after_line),
        ("my-output.log", None),
        ("tfevents/model.bin", None),
        ("run.json", None),
    ],
)
def test_which_files_grow(name, cutter):
    assert segments.cutter_of(name) is cutter


def test_names_sort_in_the_order_in_which_they_are_written():
    names = [
        segment_name("train/x.tfevents.1", generation, number)
        for generation in (0, 1, 2)
        for number in (0, 1, 2, 10, 999_999)
    ]
    assert names[:2] == ["train/x.tfevents.1", "train/x.tfevents.1.s000001"]
    assert names == sorted(names)
    assert len(set(names)) == len(names)


@given(st.integers(0, 3), st.lists(st.integers(1, 1000), min_size=1, max_size=12))
def test_stored_segments_are_found_again(generation, sizes):
    listed = {segment_name("a/x", generation, number): size for number, size in enumerate(sizes)}
    older = {segment_name("a/x", g, n): 7 for g in range(generation) for n in range(3)}
    others = {"a/xy": 1, "a/x.s1": 1, "a/x.part": 1, "b/a/x": 1}
    assert segments.stored_segments("a/x", {**others, **older, **listed}) == (generation, sizes)
    assert segments.stored_segments("a/z", listed) is None


def test_ends_are_counted_without_the_repeated_heads():
    assert segment_ends([100, 60, 60], 10) == [100, 150, 200]


def test_a_segment_is_sealed_when_it_is_worth_it():
    assert not is_full(segments.MIN_SIZE - 1, 10**9, 10**9)
    assert is_full(segments.MIN_SIZE, 0, 0)
    assert not is_full(segments.MIN_SIZE, 16 * segments.MIN_SIZE, 0)
    assert is_full(2 * segments.MIN_SIZE, 16 * segments.MIN_SIZE, 0)
    assert is_full(segments.MAX_SIZE, 10**12, 0)
    # One that is sent again and again is sealed sooner.
    assert not is_full(segments.MIN_SIZE, 10**12, 3 * segments.MIN_SIZE)
    assert is_full(segments.MIN_SIZE, 10**12, 4 * segments.MIN_SIZE)
    assert is_full(2 << 20, 10**12, 2 << 20)


def test_the_version_of_a_file_is_its_head():
    record = frame(encode.event(1.0, 1, [encode.scalar("a", 1.0)]))
    assert segments.head_of(VERSION + record) == VERSION
    assert segments.head_of(VERSION) == VERSION
    for other in (VERSION[:-1], record, b"", b"text that is none", VERSION[:-1] + b"\0"):
        assert segments.head_of(other) == b""


# What arrived, remembered: through crashes, full disks and lost ledgers.


@pytest.fixture
def path(tmp_path):
    Ledger.create(tmp_path / "ledger.json")
    return tmp_path / "ledger.json"


def test_what_is_written_down_is_read_again(path):
    first = Ledger(path)
    assert not first.lost
    first.growing["a"] = GrowingFile(1, 2, 3, [10, 20], 25, 5, 99)
    first.set_whole("run.json", "v1")
    first.set_whole("model", "v2")
    first.set_whole("model", None)
    assert first.save()
    again = Ledger(path)
    assert again.growing == first.growing
    assert again.whole == {"run.json": "v1"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"growing": {"a": {}}, "whole": {}}',
        b'{"growing": {"a": 1}, "whole": {}}',
        b"\xff",
    ],
)
def test_a_damaged_ledger_counts_as_lost(path, content):
    path.write_bytes(content)
    held = Ledger(path)
    assert held.lost
    assert (held.growing, held.whole) == ({}, {})


def test_a_missing_ledger_was_lost(tmp_path):
    assert Ledger(tmp_path / "absent.json").lost


def test_a_ledger_that_cannot_be_written_goes_on_in_memory(path, monkeypatch):
    held = Ledger(path)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.write_text", full)
        held.set_whole("run.json", "v1")
        assert not held.save()
    assert not held.saved
    assert held.whole == {"run.json": "v1"}
    assert path.read_bytes() == before
    assert held.save()
    assert json.loads(path.read_bytes())["whole"] == {"run.json": "v1"}


def test_many_files_are_written_down_together(path):
    """What that costs grows with their number, not with its square."""
    now = [100.0]
    held = Ledger(path, clock=lambda: now[0])
    for number in range(300):
        held.set_whole(f"picture-{number}", "v1")
    assert not held.saved
    assert Ledger(path).whole == {}
    now[0] += 1.5
    held.set_whole("picture-300", "v1")
    assert held.saved
    assert Ledger(path).whole == held.whole
    held.set_whole("picture-0", None)
    assert not held.saved
    assert "picture-0" in Ledger(path).whole


def test_a_segment_grows_and_is_sealed():
    entry = GrowingFile(head=10)
    entry.advance(100, sealed=False)
    entry.advance(150, sealed=False)
    assert (entry.start, entry.sent, entry.resent) == (0, 150, 100)
    entry.advance(180, sealed=True)
    assert (entry.start, entry.sent, entry.resent) == (180, 180, 0)
    assert entry.sizes("f") == {"f": 180}
    entry.advance(200, sealed=False)
    assert entry.sizes("f") == {"f": 180, "f.s000001": 30}


def listing(*sizes, generation=0):
    return {segment_name("f", generation, number): size for number, size in enumerate(sizes)}


def test_a_ledger_that_is_behind_learns_from_the_bucket():
    behind = GrowingFile(head=10, cuts=[100], sent=120)
    right = reconcile("f", behind, 1000, 10, listing(100, 60, 60))
    assert right == GrowingFile(head=10, cuts=[100, 150], sent=200)
    # Only the segment it knows of, grown since: that is sent again anyway.
    assert reconcile("f", behind, 1000, 10, listing(100, 60)) is None
    assert reconcile("f", behind, 1000, 10, {}) is None
    assert reconcile("f", behind, 1000, 10, listing(100, 60, 60, generation=1)) is None


def test_a_lost_ledger_is_restored_from_the_bucket():
    assert reconcile("f", None, 1000, 10, listing(100, 60)) == GrowingFile(
        head=10, cuts=[100], sent=150
    )
    assert reconcile("f", None, 1000, 10, listing(100, 60, generation=2)).generation == 2
    assert reconcile("f", None, 149, 10, listing(100, 60)) is None, "it would not be this file"
    assert reconcile("f", None, 1000, 10, {"other": 5}) is None
