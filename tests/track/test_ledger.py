"""What arrived, remembered: through crashes, full disks and lost ledgers."""

import json

import pytest

from aboard.track import ledger
from aboard.track.ledger import Growing, Ledger, reconcile
from aboard.track.segments import segment_name


@pytest.fixture
def path(tmp_path):
    ledger.create(tmp_path / "ledger.json")
    return tmp_path / "ledger.json"


def test_what_is_written_down_is_read_again(path):
    first = Ledger(path)
    assert not first.lost
    first.growing["a"] = Growing(1, 2, 3, [10, 20], 25, 5, 99)
    first.note_whole("run.json", "v1")
    first.note_whole("model", "v2")
    first.forget_whole("model")
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
def test_a_damaged_ledger_is_lost_and_said_to_be(path, content):
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
        held.note_whole("run.json", "v1")
        assert not held.save()
    assert not held.written
    assert held.whole == {"run.json": "v1"}
    assert path.read_bytes() == before
    assert held.save()
    assert json.loads(path.read_bytes())["whole"] == {"run.json": "v1"}


def test_many_files_are_written_down_together(path):
    """What that costs grows with their number, not with its square."""
    now = [100.0]
    held = Ledger(path, clock=lambda: now[0])
    for number in range(300):
        held.note_whole(f"picture-{number}", "v1")
    assert not held.written
    assert Ledger(path).whole == {}
    now[0] += 1.5
    held.note_whole("picture-300", "v1")
    assert held.written
    assert Ledger(path).whole == held.whole
    held.forget_whole("picture-0")
    assert not held.written
    assert "picture-0" in Ledger(path).whole


def test_a_segment_grows_and_is_sealed():
    entry = Growing(head=10)
    entry.arrived(100, sealed=False)
    entry.arrived(150, sealed=False)
    assert (entry.start, entry.sent, entry.resent) == (0, 150, 100)
    entry.arrived(180, sealed=True)
    assert (entry.start, entry.sent, entry.resent) == (180, 180, 0)
    assert entry.sizes("f") == {"f": 180}
    entry.arrived(200, sealed=False)
    assert entry.sizes("f") == {"f": 180, "f.s000001": 30}


def listing(*sizes, generation=0):
    return {segment_name("f", generation, number): size for number, size in enumerate(sizes)}


def test_a_ledger_that_is_behind_learns_from_the_bucket():
    behind = Growing(head=10, cuts=[100], sent=120)
    right = reconcile("f", behind, 1000, 10, listing(100, 60, 60))
    assert right == Growing(head=10, cuts=[100, 150], sent=200)
    # Only the segment it knows of, grown since: that is sent again anyway.
    assert reconcile("f", behind, 1000, 10, listing(100, 60)) is None
    assert reconcile("f", behind, 1000, 10, {}) is None
    assert reconcile("f", behind, 1000, 10, listing(100, 60, 60, generation=1)) is None


def test_a_lost_ledger_is_made_anew_from_the_bucket():
    assert reconcile("f", None, 1000, 10, listing(100, 60)) == Growing(
        head=10, cuts=[100], sent=150
    )
    assert reconcile("f", None, 1000, 10, listing(100, 60, generation=2)).generation == 2
    assert reconcile("f", None, 149, 10, listing(100, 60)) is None, "it would not be this file"
    assert reconcile("f", None, 1000, 10, {"other": 5}) is None
