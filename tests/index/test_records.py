"""Records read from the event files that hold them."""

import pytest

from aboard.events import encode
from aboard.events.writer import EventWriter
from aboard.index import Source
from aboard.index.records import read_records


@pytest.fixture
def notes(index, tmp_path):
    """Write three texts; give their file, their tag and their pointers."""
    with EventWriter(tmp_path) as writer:
        for step in range(3):
            writer.add([encode.text("note", f"text {step}")], step)
    source = Source(str(tmp_path))
    index.refresh(source)
    (tag,) = index.tags(source)
    return next(tmp_path.iterdir()), tag, index.pointers(tag)


def test_records_come_in_their_order(notes):
    _, tag, pointers = notes
    assert [value.tag for value in read_records(tag, pointers)] == ["note"] * 3


def test_a_record_that_changed_is_reported_and_the_others_are_read(notes):
    path, tag, pointers = notes
    content = bytearray(path.read_bytes())
    content[pointers[1].offset + 14] ^= 0xFF
    path.write_bytes(content)
    failed = []
    values = list(read_records(tag, pointers, on_error=lambda one, _: failed.append(one)))
    assert (len(values), failed) == (2, [pointers[1]])
    with pytest.raises(ValueError, match="checksum"):
        list(read_records(tag, pointers))


def test_a_file_that_is_gone_is_reported_for_every_record(notes):
    path, tag, pointers = notes
    path.unlink()
    failed = []
    assert not list(read_records(tag, pointers, on_error=lambda one, _: failed.append(one)))
    assert failed == list(pointers)


def test_an_event_that_holds_a_tag_twice_gives_one_value_the_last(index, tmp_path):
    with EventWriter(tmp_path) as writer:
        for step in range(2):
            twice = [encode.text("note", f"{which} at {step}") for which in ("first", "last")]
            writer.add([*twice, encode.scalar("loss", 1.0), encode.scalar("loss", 2.0)], step)
    source = Source(str(tmp_path))
    index.refresh(source)
    loss, note = index.tags(source)
    assert loss.last_value == 2.0
    assert index.series(loss).values.tolist() == [2.0, 2.0]
    texts = [value.tensor.item() for value in read_records(note, index.pointers(note))]
    assert texts == [b"last at 0", b"last at 1"]
