"""The two encoders of queued scalars: the same bytes, which protobuf reads back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aboard.events import encode, protos
from aboard.events.records import ends, read_records
from aboard.events.writer import Values, python_records, scalar_records

event_pb2 = protos.load().event_pb2

TAG = st.text(st.characters(exclude_categories=["Cs"]))
STEP = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300)
ONE = st.tuples(TAG, st.floats(), STEP, st.floats())
MANY = st.dictionaries(TAG, st.floats(), max_size=30).flatmap(
    lambda numbers: st.tuples(
        st.just(tuple(numbers)), st.just(tuple(numbers.values())), STEP, st.floats()
    )
)
OTHER = st.sampled_from([b"event", Values([encode.text("a", "b")], 1, 2.0)])


@settings(max_examples=40)
@given(st.lists(ONE | MANY | OTHER), st.integers(0, 3))
def test_both_encoders_give_the_same_bytes_and_stop_at_the_same_entry(entries, start):
    core = pytest.importorskip("aboard.events._encoder", reason="the C core was not compiled")
    assert core.records(entries, start) == python_records(entries, start)


@settings(max_examples=40)
@given(st.lists(ONE | MANY))
def test_protobuf_reads_what_was_queued(entries):
    records, stop = scalar_records(entries, 0)
    assert stop == len(entries)
    read = [event_pb2.Event.FromString(data) for _, data in read_records(records)]
    assert len(read) == len(entries)
    for event, (tags, _, step, _) in zip(read, entries, strict=True):
        assert event.step == step
        assert [value.tag for value in event.summary.value] == (
            [tags] if isinstance(tags, str) else list(tags)
        )


def test_a_tag_of_any_length_has_room():
    for length in (0, 1, 100, 127, 128, 16383, 16384, 3_000_000):
        entries = [("x" * length, 1.0, 2, 3.0)] * 2
        assert scalar_records(entries, 0) == python_records(entries, 0)


@given(st.lists(ONE, max_size=5))
def test_the_ends_are_those_of_the_records(entries):
    records, _ = python_records(entries, 0)
    starts = [offset for offset, _ in read_records(records)]
    assert [0, *ends(records)] == [*starts, len(records)]


@pytest.mark.parametrize("entry", [(1, 2.0, 3, 4.0), ("a", None, 3, 4.0), ("a", 1.0, 2**64, 4.0)])
def test_the_core_survives_what_is_never_queued(entry):
    core = pytest.importorskip("aboard.events._encoder", reason="the C core was not compiled")
    with pytest.raises((TypeError, SystemError, OverflowError)):
        core.records([("a", 1.0, 1, 1.0), entry], 0)


def test_the_core_refuses_a_start_before_the_first_entry():
    core = pytest.importorskip("aboard.events._encoder", reason="the C core was not compiled")
    for start in (-1, -(2**62)):
        with pytest.raises(ValueError, match=f"records start at 0 or later, not at {start}"):
            core.records([("a", 1.0, 1, 1.0)], start)


def test_the_core_survives_a_list_that_becomes_shorter():
    core = pytest.importorskip("aboard.events._encoder", reason="the C core was not compiled")

    class Shortening:
        def __float__(self):
            del entries[1:]
            return 1.0

    entries = [("a", Shortening(), 1, 1.0), ("a", 1.0, 2, 1.0)]
    with pytest.raises(IndexError):
        core.records(entries, 0)


@given(st.lists(ONE, min_size=1, max_size=5), st.data())
def test_the_ends_are_those_between_two_records(entries, data):
    records, _ = python_records(entries, 0)
    bounds = [0, *ends(records)]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(entries))] * 2)))
    assert list(ends(records, bounds[start], bounds[stop])) == bounds[start + 1 : stop + 1]
