"""Messages given in pieces, repeated fields and groups mean what they mean to protobuf."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.events import encode
from aboard.events.messages import delimited, load_protos, varint
from aboard.events.records import frame
from tests import summaries
from tests.events.cores import CORES, same_numbers, scan

tensorboard = load_protos()
pytestmark = pytest.mark.parametrize("core", list(CORES))

WALL = b"\x09" + struct.pack("<d", 2.5)
GROUP = varint(99 << 3 | 3) + b"\x08\x01" + varint(99 << 3 | 4)
NESTED = varint(77 << 3 | 3) + GROUP + delimited(3, b"x") + varint(77 << 3 | 4)


def simple(tag: str, number: float) -> bytes:
    return encode.scalar(tag, number).encode()


def event(*parts: bytes) -> bytes:
    return WALL + b"\x10\x03" + b"".join(parts)


def summary(*values: bytes) -> bytes:
    return delimited(5, b"".join(delimited(1, value) for value in values))


def test_the_summaries_of_an_event_are_taken_together(core):
    data = event(summary(simple("a", 1.0)), summary(), summary(simple("b", 2.0), simple("a", 3.0)))
    result = scan(frame(data), core=core)
    assert result.points("a") == [(3, 1.0), (3, 3.0)]
    assert result.points("b") == [(3, 2.0)]
    assert result.taken.events == 1


def test_another_kind_of_event_in_between_replaces_what_was_before(core):
    data = event(summary(simple("a", 1.0)), delimited(4, b"graph"), summary(simple("b", 2.0)))
    result = scan(frame(data), core=core)
    assert [one.tag for one in result.series] == [b"b"]


def test_the_pieces_of_a_tensor_are_taken_together(core):
    proto = encode.tensor_proto(0.1, "float64")
    pieces = delimited(8, proto[:2]) + delimited(8, b"") + delimited(8, proto[2:])
    value = delimited(1, b"x") + pieces
    assert scan(frame(event(summary(value))), core=core).points("x") == [(3, 0.1)]
    two = delimited(1, b"x") + delimited(8, proto) + delimited(8, proto)
    (pointer,) = scan(frame(event(summary(two))), core=core).pointers
    assert pointer.step == 3


def test_the_pieces_of_metadata_are_taken_together(core):
    described = summaries.metadata("text", b"content", description="words")
    shown = summaries.metadata("", display_name="Name")
    value = delimited(1, b"x") + delimited(9, described) + b"\x15\0\0\0\0" + delimited(9, shown)
    (series,) = scan(frame(event(summary(value))), core=core).series
    merged = tensorboard.summary_pb2.SummaryMetadata.FromString(series.metadata)
    assert merged.plugin_data.plugin_name == "text"
    assert (merged.summary_description, merged.display_name) == ("words", "Name")


def test_a_tag_in_a_piece_of_run_metadata(core):
    data = event(delimited(8, delimited(1, b"trace")), delimited(8, delimited(2, b"run")))
    result = scan(frame(data), core=core)
    assert [one.tag for one in result.series] == [b"trace"]


@pytest.mark.parametrize("group", [GROUP, NESTED])
def test_groups_are_passed_over_wherever_they_are(core, group):
    tensor = group + encode.tensor_proto(1.5, "float32") + group
    value = group + delimited(1, b"x") + delimited(8, tensor) + group
    data = event(group, delimited(5, group + delimited(1, value)), group)
    result = scan(frame(data), core=core)
    assert result.points("x") == [(3, 1.5)]
    assert result.damage == []


def test_a_group_behind_the_values_is_no_value(core):
    data = frame(event(summary(simple("a", 1.0)), NESTED)) * 3
    assert scan(data, core=core).points("a") == [(3, 1.0)] * 3


@pytest.mark.parametrize(
    "group",
    [
        GROUP[:2],
        GROUP[-2:],
        varint(98 << 3 | 3) + GROUP[-2:],
        varint(8 | 3) * 101 + varint(8 | 4) * 101,
    ],
)
def test_a_group_that_does_not_end_as_it_began_is_damage(core, group):
    result = scan(frame(event(summary(simple("a", 1.0)), group)), core=core)
    assert len(result.damage) == 1
    assert result.scalars == []


# Whatever the fields, protobuf and the scanner see the same.

NUMBERS = st.floats(width=32, allow_nan=False)
TENSORS = st.builds(
    encode.tensor_proto, NUMBERS, st.sampled_from(["float32", "float64", "bfloat16"])
)
PIECES = st.one_of(
    TENSORS,
    TENSORS.flatmap(lambda one: st.integers(0, 1).map(lambda late: one[2:] if late else one[:2])),
    st.just(b""),
    st.just(delimited(2, b"\x18\x01")),
    st.just(delimited(2, b"\x18\x00")),
)
METADATA = st.sampled_from([encode.metadata("scalars"), encode.metadata("text"), b""])
VALUE_FIELDS = st.one_of(
    st.sampled_from(["a", "b"]).map(lambda tag: delimited(1, tag.encode())),
    NUMBERS.map(lambda number: b"\x15" + struct.pack("<f", number)),
    PIECES.map(lambda piece: delimited(8, piece)),
    METADATA.map(lambda piece: delimited(9, piece)),
    st.just(delimited(3, b"old")),
    st.sampled_from([4, 5, 6]).map(lambda field: delimited(field, b"")),
    st.sampled_from([GROUP, NESTED]),
)
VALUES = st.lists(VALUE_FIELDS, max_size=6).map(b"".join)
EVENT_FIELDS = st.one_of(
    st.lists(VALUES, max_size=3).map(lambda values: summary(*values)),
    st.lists(VALUES, max_size=3).map(lambda values: summary(*values)),
    st.sampled_from([delimited(3, b"version"), delimited(4, b"graph"), delimited(8, b"")]),
    st.sampled_from([GROUP, NESTED, b"\x10\x07"]),
)


@given(st.lists(EVENT_FIELDS, max_size=4).map(b"".join))
def test_the_scanner_sees_what_protobuf_sees(core, data):
    parsed = tensorboard.event_pb2.Event.FromString(data)
    result = scan(frame(data), core=core)
    assert (result.taken.events, result.damage) == (1, [])
    if parsed.WhichOneof("what") != "summary":
        assert (len(result.scalars), len(result.pointers)) == (0, 1)
        return
    seen = sorted([*result.scalars, *result.pointers], key=lambda one: one.series)
    values = sorted(parsed.summary.value, key=lambda one: one.tag)
    assert len(seen) == len(values)
    points = {one.tag: [] for one in result.series}
    for row in result.scalars:
        points[result.series[row.series].tag].append(row.payload)
    for tag, numbers in points.items():
        expected = [
            number
            for value in values
            if value.tag.encode() == tag and (number := number_of(value)) is not None
        ]
        # What is a number to protobuf is a pointer where the metadata says it is no scalar.
        assert len(numbers) <= len(expected)
        if len(numbers) == len(expected):
            assert same_numbers(numbers, expected)
        simples = [one for one in values if one.WhichOneof("value") == "simple_value"]
        assert len(numbers) >= sum(one.tag.encode() == tag for one in simples)


def number_of(value) -> float | None:
    """Return the one number that a value of protobuf is, if it is one."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.simple_value
    proto = value.tensor
    if kind != "tensor" or proto.tensor_shape.unknown_rank or proto.dtype not in (1, 2, 14):
        return None
    with np.errstate(invalid="ignore"):
        return _number(proto)


def _number(proto) -> float | None:
    width = {1: "<f4", 2: "<f8", 14: "<u2"}[proto.dtype]
    typed = {1: proto.float_val, 2: proto.double_val, 14: proto.half_val}[proto.dtype]
    if proto.tensor_content:
        if len(proto.tensor_content) != np.dtype(width).itemsize:
            return None
        number = np.frombuffer(proto.tensor_content, width)[0]
    elif len(typed) > 1:
        return None
    else:
        number = np.dtype(width).type(typed[0] if typed else 0)
    if proto.dtype == 14:
        return float((np.uint32(number) << 16).view(np.float32))
    return float(number)
