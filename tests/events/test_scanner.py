"""The scanner's rules, each on both cores."""

import math
import os
import struct
import subprocess
import sys
from functools import partial
from itertools import pairwise
from operator import itemgetter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aboard.events import encode, fallback, scanner
from aboard.events.messages import (
    CLASS_OTHER,
    CLASS_SCALAR,
    ORIGIN_GRAPH,
    ORIGIN_RUN_METADATA,
    ORIGIN_SIMPLE,
    delimited,
    varint,
)
from aboard.events.records import crc32c, frame, mask
from aboard.events.scanner import Scanner, Sketch, scan_blocks
from tests.events.cores import CORES, rows, same_numbers, scalar_event, scalar_file, scan

SKETCHES = [fallback.sketch, scanner.sketch]
pytestmark = pytest.mark.parametrize("core", list(CORES))

DTYPES = {
    "float32": 0.1,
    "float64": 0.1,
    "float16": 0.333,
    "bfloat16": 3.140625,
    "int8": -7,
    "int16": -30000,
    "int32": -(2**31),
    "int64": 2**53 - 1,
    "uint8": 255,
    "uint16": 65535,
    "uint32": 2**32 - 1,
    "uint64": 2**53,
    "bool": True,
}


def one_event(*values: bytes, wall: float = 2.5, step: int = 3) -> bytes:
    """An event of raw Summary.Value messages."""
    summary = b"".join(delimited(1, value) for value in values)
    return b"\x09" + struct.pack("<d", wall) + b"\x10" + varint(step) + delimited(5, summary)


def test_both_cores_are_tested(core):
    if os.environ.get("ABOARD_PURE_PYTHON"):
        assert list(CORES) == ["python"]
    else:
        assert list(CORES) == ["c", "python"]


def test_simple_values_come_out_as_columns(core):
    result = scan(scalar_file(range(5), value=0.25, wall=9.5), core=core)
    assert result.points("loss") == [(step, 0.25) for step in range(5)]
    assert [one.wall for one in result.scalars] == [9.5] * 5
    assert result.taken.events == 5
    assert result.series[0].origin == ORIGIN_SIMPLE
    assert not result.series[0].wide


@pytest.mark.parametrize("content", [True, False], ids=["tensor_content", "typed field"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_keeps_its_value(core, dtype, content):
    number = DTYPES[dtype]
    value = encode.scalar_tensor("x", number, dtype, content=content)
    result = scan(frame(encode.event(1.0, 1, [value])), core=core)
    expected = float(np.dtype(dtype).type(number)) if dtype != "bfloat16" else number
    assert result.points("x") == [(1, expected)]
    assert result.series[0].kind == CLASS_SCALAR
    assert result.series[0].wide == (dtype in {"float64", "int32", "int64", "uint32", "uint64"})


@given(bits=st.integers(0, 0xFFFF), dtype=st.sampled_from(["half", "bfloat16"]))
def test_sixteen_bit_floats_are_exact(core, bits, dtype):
    number = 19 if dtype == "half" else 14
    tensor = b"\x08" + varint(number) + b"\x12\x00" + delimited(4, struct.pack("<H", bits))
    value = delimited(1, b"h") + delimited(8, tensor)
    ((_, got),) = scan(frame(one_event(value)), core=core).points("h")
    raw = struct.pack("<H", bits)
    expected = (
        struct.unpack("<e", raw)[0] if dtype == "half" else struct.unpack("<f", b"\0\0" + raw)[0]
    )
    assert same_numbers(got, expected)
    assert math.copysign(1, got) == math.copysign(1, expected) or math.isnan(got)


def test_packed_and_unpacked_typed_fields_are_the_same(core):
    shape = b"\x12\x00"
    packed = b"\x08\x01" + shape + delimited(5, struct.pack("<f", 1.5))
    unpacked = b"\x08\x01" + shape + b"\x2d" + struct.pack("<f", 1.5)
    for tensor in (packed, unpacked):
        value = delimited(1, b"t") + delimited(8, tensor)
        assert scan(frame(one_event(value)), core=core).points("t") == [(3, 1.5)]


def test_a_value_that_is_not_stored_is_zero(core):
    value = delimited(1, b"t") + delimited(8, b"\x08\x01\x12\x00")
    assert scan(frame(one_event(value)), core=core).points("t") == [(3, 0.0)]


def test_fields_come_in_any_order_among_unknown_ones(core):
    unknown = delimited(99, b"?") + b"\xa0\x06\x07" + b"\xa5\x06abcd" + b"\xa1\x06abcdefgh"
    tensor = delimited(4, struct.pack("<d", 0.1)) + unknown + b"\x12\x00" + b"\x08\x02"
    value = unknown + delimited(8, tensor) + delimited(1, b"late tag") + unknown
    event = delimited(5, unknown + delimited(1, value)) + unknown + b"\x10\x07"
    event += b"\x09" + struct.pack("<d", 4.0)
    result = scan(frame(event), core=core)
    assert result.points("late tag") == [(7, 0.1)]
    assert [one.wall for one in result.scalars] == [4.0]


def test_a_known_field_of_another_wire_type_is_unknown(core):
    event = b"\x08\x05" + scalar_event(6, 0.5)  # field 1 as a varint
    assert scan(frame(event), core=core).points("loss") == [(6, 0.5)]


def test_an_event_may_hold_many_values_of_many_kinds(core):
    values = [
        encode.scalar("a", 1.0),
        encode.text("note", "hello"),
        encode.scalar_tensor("b", 2.0, "float64"),
        encode.scalar("a", 3.0),
    ]
    result = scan(frame(encode.event(1.0, 5, values)), core=core)
    assert result.points("a") == [(5, 1.0), (5, 3.0)]
    assert result.points("b") == [(5, 2.0)]
    [pointer] = result.pointers
    offset, _, _ = pointer.payload
    assert (result.series[pointer.series].tag, offset) == (b"note", 0)


def test_negative_and_huge_steps(core):
    steps = [-1, -(2**63), 2**63 - 1, 0, 127, 128, 16384]
    result = scan(scalar_file(steps), core=core)
    assert [step for step, _ in result.points("loss")] == steps


def test_nan_and_infinities_are_values(core):
    values = [math.nan, math.inf, -math.inf, -0.0]
    data = b"".join(frame(scalar_event(i, v)) for i, v in enumerate(values))
    got = [value for _, value in scan(data, core=core).points("loss")]
    assert same_numbers(got, values)


def test_a_signalling_nan_is_a_nan_like_any_other(core):
    events = [scalar_event(step)[:-4] + b"\x01\x00\xa0\x7f" for step in range(4)]
    got = scan(b"".join(map(frame, events)), core=core).points("loss")
    assert [step for step, value in got if math.isnan(value)] == [0, 1, 2, 3]


def test_metadata_is_kept_from_its_first_occurrence(core):
    first = encode.scalar_tensor("x", 1.0)
    second = encode.scalar_tensor("x", 2.0)._replace(metadata=encode.metadata("text"))
    third = encode.scalar_tensor("x", 3.0).bare()
    data = b"".join(frame(encode.event(1.0, i, [v])) for i, v in enumerate((first, second, third)))
    result = scan(data, core=core)
    assert result.points("x") == [(0, 1.0), (1, 2.0), (2, 3.0)]
    assert result.series[0].metadata == first.metadata


def test_a_scalar_of_another_plugin_is_a_pointer(core):
    value = encode.tensor("x", np.float32(1.0), plugin="mine")
    later = value.bare()
    data = b"".join(frame(encode.event(1.0, i, [v])) for i, v in enumerate((value, later)))
    result = scan(data, core=core)
    assert result.scalars == []
    assert [one.step for one in result.pointers] == [0, 1]
    assert result.series[0].kind == CLASS_OTHER


def test_metadata_that_comes_late_counts_from_there_on(core):
    described = encode.tensor("x", np.float32(1.0), plugin="mine")
    values = [described.bare()] * 3 + [described] + [described.bare()] * 3
    events = [encode.event(1.0, step, [value]) for step, value in enumerate(values)]
    result = scan(b"".join(map(frame, events)), core=core)
    assert [one.step for one in result.scalars] == [0, 1, 2]
    assert [one.step for one in result.pointers] == [3, 4, 5, 6]


def test_what_an_earlier_part_of_the_file_told_still_counts(core):
    data = frame(encode.event(1.0, 1, [encode.tensor("x", np.float32(1.0)).bare()]))
    assert len(scan(data, core=core).scalars) == 1
    known = scan(data, core=core, known=[(b"x", CLASS_OTHER)])
    assert known.scalars == []


def test_one_element_of_any_rank_is_a_scalar_if_the_plugin_says_so(core):
    value = encode.tensor("x", np.array([[7.0]]), plugin="scalars", data_class="")
    data = frame(encode.event(1.0, 1, [value]))
    assert scan(data, core=core).points("x") == [(1, 7.0)]
    bare = frame(encode.event(1.0, 1, [value.bare()]))
    assert scan(bare, core=core).scalars == []


def test_pointers_say_how_many_rows_a_tensor_has(core):
    values = [
        encode.images("img", [b"one", b"two"], 4, 4),
        encode.tensor("matrix", np.zeros((5, 3))),
        encode.legacy_image("old", b"png", 1, 1),
    ]
    result = scan(frame(encode.event(1.0, 1, values)), core=core)
    found = {result.series[one.series].tag: one.payload[2] for one in result.pointers}
    assert found == {b"img": 4, b"matrix": 5, b"old": 3}
    assert [part.rows for part in result.taken.pointers] == [4, 5, 3]


def test_graphs_and_run_metadata_have_tags_of_their_own(core):
    data = frame(encode.file_version(1.0)) + frame(encode.graph(2.0, b"graph"))
    data += frame(encode.tagged_run_metadata(3.0, 4, "step4", b"stats"))
    result = scan(data, core=core)
    assert [(one.tag, one.origin) for one in result.series] == [
        (b"__run_graph__", ORIGIN_GRAPH),
        (b"step4", ORIGIN_RUN_METADATA),
    ]
    assert [one.series for one in result.pointers] == [-1, 0, 1]
    assert result.taken.events == 3


def test_a_value_from_before_tags_is_named_by_its_node(core):
    value = delimited(7, b"node") + b"\x15" + struct.pack("<f", 1.0)
    assert scan(frame(one_event(value)), core=core).points("node") == [(3, 1.0)]


def test_a_cut_off_record_is_not_yet_there(core):
    data = scalar_file(range(3))
    for cut in range(1, len(data) // 3):
        result = scan(data[:-cut], core=core)
        assert len(result.points("loss")) == 2
        assert result.damage == []
        assert result.resume == (2 * len(data) // 3, -1)


def test_scanning_resumes_where_it_stopped(core):
    data = scalar_file(range(3))
    offset, damage_start = scan(data[:-5], core=core).resume
    scanner = Scanner(damage_start, core=CORES[core])
    assert scanner.scan(data[offset:], offset, len(data)) == len(data)
    assert [one.step for one in rows(scanner.take().points)] == [2]


def test_a_scanner_begins_another_file_as_if_it_were_new(core):
    first = scalar_file(range(3)) + bytes(100) + frame(scalar_event(9, tag="other"))[:-5]
    second = scalar_file(range(5), tag="acc")
    known = [(b"acc", CLASS_SCALAR)]
    new = Scanner(known=known, digest=7, core=CORES[core])
    used = Scanner(core=CORES[core])
    used.scan(first, 0, len(first))
    used.reset(known=known, digest=7)
    for one in (new, used):
        assert one.first_wall is None
        assert one.scan(second, 0, len(second)) == len(second)
    assert used.resume(len(second)) == new.resume(len(second))
    assert used.digest == new.digest
    assert used.take() == new.take()
    assert used.series() == new.series()


def test_a_scanner_begins_another_file_in_the_middle_of_damage(core):
    whole = scalar_file([1]) + bytes(100) + scalar_file([2])
    start = len(scalar_file([1])) + 50
    scanner = Scanner(core=CORES[core])
    scanner.reset(start - 50)
    scanner.scan(whole[start:], start, len(whole))
    assert scanner.take().damage == [(start - 50, 100)]


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**31, 2**62])
def test_absurd_lengths_are_damage_and_are_never_allocated(core, length):
    packed = struct.pack("<Q", length)
    lie = packed + struct.pack("<I", mask(crc32c(packed))) + b"abc"
    data = lie + scalar_file(range(2))
    result = scan(data, core=core)
    assert result.points("loss") == [(0, 0.5), (1, 0.5)]
    assert result.damage == [(0, len(lie))]


def test_a_length_past_the_end_hides_no_good_record(core):
    packed = struct.pack("<Q", 10_000)
    lie = packed + struct.pack("<I", mask(crc32c(packed)))
    data = scalar_file([1]) + lie + scalar_file([2])
    for block in (64, 1 << 16):
        result = scan(data, core=core, block=block)
        assert [step for step, _ in result.points("loss")] == [1, 2]
        assert result.damage == [(len(scalar_file([1])), len(lie))]


def test_damage_at_the_end_is_open_until_a_good_record_follows(core):
    good, garbage = scalar_file([1]), bytes(range(100))
    offset, damage_start = scan(good + garbage, core=core).resume
    assert damage_start == len(good)
    assert offset == len(good) + len(garbage) - 11
    whole = good + garbage + scalar_file([2])
    scanner = Scanner(damage_start, core=CORES[core])
    scanner.scan(whole[offset:], offset, len(whole))
    taken = scanner.take()
    assert taken.damage == [(len(good), len(garbage))]
    assert [one.step for one in rows(taken.points)] == [2]


def test_a_message_that_cannot_be_parsed_is_damage(core):
    bad = frame(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
    half_bad = frame(one_event(encode.scalar("ok", 1.0).encode(), b"\x0a\x7f"))
    data = scalar_file([1]) + bad + half_bad + scalar_file([2])
    result = scan(data, core=core)
    assert [step for step, _ in result.points("loss")] == [1, 2]
    assert result.points("ok") == []
    first = len(scalar_file([1]))
    assert result.damage == [(first, len(bad)), (first + len(bad), len(half_bad))]


def test_a_record_larger_than_the_block_is_read_whole(core):
    big = frame(encode.event(1.0, 1, [encode.text("long", "x" * 5000)]))
    data = scalar_file([0]) + big + scalar_file([2])
    result = scan(data, core=core, block=64)
    assert [step for step, _ in result.points("loss")] == [0, 2]
    assert [one.payload[1] for one in result.pointers] == [len(big) - 16]


def test_a_block_outside_the_file_is_refused(core):
    with pytest.raises(ValueError, match="does not lie within"):
        Scanner(core=CORES[core]).scan(b"abc", 0, 2)
    with pytest.raises(ValueError, match="does not lie within"):
        Scanner(core=CORES[core]).scan(b"", -1, 2)


def test_thousands_of_tags(core):
    tags = [f"layer/{i}/weight" for i in range(5000)]
    data = b"".join(frame(scalar_event(1, tag=tag)) for tag in tags)
    result = scan(data * 2, core=core)
    assert [one.tag.decode() for one in result.series] == tags
    assert [part.size for part in result.taken.points] == [2] * len(tags)


def test_values_are_handed_out_in_chunks(core):
    [part] = scan(scalar_file(range(10, 9010)), core=core).taken.points
    assert [chunk.size for chunk in part.chunks] == [4096, 4096, 808]
    assert [len(chunk.payload) for chunk in part.chunks] == [4 * 4096, 4 * 4096, 4 * 808]
    starts = [struct.unpack("2q", chunk.steps) for chunk in part.chunks]
    assert starts == [(10, 1), (4106, 1), (8202, 1)]


def test_a_wide_series_keeps_64_bits_of_every_value(core):
    values = [encode.scalar("x", 0.5), encode.scalar_tensor("x", 0.1, "float64")]
    data = b"".join(frame(encode.event(1.0, i, [v])) for i, v in enumerate(values))
    [part] = scan(data, core=core).taken.points
    assert part.chunks[0].payload == struct.pack("2d", 0.5, 0.1)


@pytest.mark.parametrize(
    ("steps", "stored"),
    [
        ([5, 7], [5, 7]),
        ([5, 7, 9], [5, 2]),
        ([5, 5, 5, 5], [5, 0]),
        ([5, 7, 8], [5, 7, 8]),
        ([9, 7, 5], [9, 7, 5]),
        ([-(2**63), -1, 2**63 - 2], [-(2**63), 2**63 - 1]),
        ([0, 2**63 - 1, -2, 2**63 - 3], [0, 2**63 - 1, -2, 2**63 - 3]),  # even but for overflow
    ],
)
def test_steps_that_rise_evenly_take_no_room(core, steps, stored):
    result = scan(scalar_file(steps), core=core)
    [part] = result.taken.points
    assert part.chunks[0].steps == struct.pack(f"{len(stored)}q", *stored)
    assert [step for step, _ in result.points("loss")] == steps


some_steps = st.lists(
    st.integers(0, 5) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9
) | st.builds(range, st.integers(0, 9), st.integers(10, 50), st.integers(1, 3)).map(list)


@given(steps=some_steps, walls=st.lists(st.floats(), min_size=60, max_size=60))
def test_a_part_says_what_it_holds(core, steps, walls):
    walls = walls[: len(steps)]
    events = [scalar_event(step, wall=wall) for step, wall in zip(steps, walls, strict=True)]
    [part] = scan(b"".join(map(frame, events)), core=core).taken.points
    times = [wall for wall in walls if not math.isnan(wall)]
    assert (part.size, part.first_step, part.last_step) == (len(steps), steps[0], steps[-1])
    assert (part.min_step, part.max_step) == (min(steps), max(steps))
    assert part.rising == all(before < after for before, after in pairwise(steps))
    assert part.max_wall == max(times, default=-math.inf)
    assert same_numbers(part.last_wall, walls[-1])
    assert (part.last_value, part.rows) == (0.5, 0)
    assert [one.step for one in rows([part])] == steps


numbers = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0])


@given(
    points=st.lists(st.tuples(st.integers(0, 30), numbers), min_size=1, max_size=40),
    wide=st.booleans(),
)
def test_a_sketch_tells_of_what_restarts_leave(core, points, wide):
    make = partial(encode.scalar_tensor, dtype="float64") if wide else encode.scalar
    events = [
        encode.event(float(wall), step, [make("loss", value)])
        for wall, (step, value) in enumerate(points)
    ]
    [part] = scan(b"".join(map(frame, events)), core=core).taken.points
    [chunk] = part.chunks
    found = Sketch.of(chunk.sketch)
    left = [
        (step, float(wall), value)
        for wall, (step, value) in enumerate(points)
        if all(later > step for later, _ in points[wall + 1 :])
    ]
    finite = [one for one in left if math.isfinite(one[2])]
    odd = [[one for one in left if repr(one[2]) == kind] for kind in ("nan", "inf", "-inf")]
    counts = (found.size, found.nans, found.ups, found.downs, found.infinities)
    assert counts == (len(left), *map(len, odd), len(odd[1]) + len(odd[2]))
    total = math.fsum(one[2] for one in finite)
    assert math.isclose(found.total, total, abs_tol=1e-9 * sum(abs(one[2]) for one in finite))
    assert same_numbers((found.first_step, found.first_wall, found.first), left[0])
    assert same_numbers((found.last_step, found.last_wall, found.last), left[-1])
    low = (found.low_step, found.low_wall, found.low)
    high = (found.high_step, found.high_wall, found.high)
    assert same_numbers(low, min(finite, key=itemgetter(2), default=(0, 0, math.nan)))
    assert same_numbers(high, max(finite, key=itemgetter(2), default=(0, 0, math.nan)))
    firsts = (one[0][:2] if one else (0, 0) for one in odd)
    assert found[-6:] == tuple(number for one in firsts for number in one)
    assert {sketch(*chunk[:4]) for sketch in SKETCHES} == {chunk.sketch}


# Properties: what may happen to a file.

kinds = st.sampled_from(["simple", "tensor", "double", "text", "many", "graph", "version"])


@st.composite
def recorded_files(draw):
    """A file as a list of framed records, each with a step of its own."""
    records = []
    for step, kind in enumerate(draw(st.lists(kinds, min_size=1, max_size=12))):
        tag = draw(st.sampled_from(["a", "loss", "x/y"]))
        number = draw(st.floats(width=32))
        match kind:
            case "simple":
                values = [encode.scalar(tag, number)]
            case "tensor":
                values = [encode.scalar_tensor(tag, np.float32(number))]
            case "double":
                values = [encode.scalar_tensor(tag, number, "float64")]
            case "text":
                values = [encode.text("t/" + tag, draw(st.text(max_size=20)))]
            case _:
                values = [encode.scalar(tag, number), encode.text("t", "x")]
        event = {
            "graph": lambda step=step: encode.graph(1.0, b"g" * step, step),
            "version": lambda: encode.file_version(1.0),
        }.get(kind, lambda step=step, values=values: encode.event(1.0, step, values))()
        records.append(frame(event))
    return records


@settings(max_examples=60)
@given(records=recorded_files(), block=st.integers(16, 400))
def test_block_boundaries_do_not_matter(core, records, block):
    data = b"".join(records)
    assert scan(data, core=core, block=block).plain == scan(data, core="python").plain


damages = st.lists(
    st.tuples(
        st.sampled_from(["flip", "insert", "delete", "zero"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=60),
    ),
    max_size=3,
)


@settings(max_examples=100)
@given(records=recorded_files(), damage=damages, cut=st.integers(0, 40), block=st.integers(16, 300))
@example(
    records=[scalar_file([i]) for i in range(4)], damage=[("delete", 0.3, b"12")], cut=0, block=64
)
def test_damage_never_costs_a_good_record(core, records, damage, cut, block):
    data = bytearray(b"".join(records))
    # Which record each byte belongs to; -1 once it is not the byte that was written.
    owner = [i for i, record in enumerate(records) for _ in record]
    for how, where, octets in damage:
        at = int(where * len(data))
        match how:
            case "flip":
                data[at : at + 1] = bytes([data[at] ^ (octets[0] or 1)]) if data else b""
                owner[at : at + 1] = [-1] if owner else []
            case "insert":
                data[at:at] = octets
                owner[at:at] = [-1] * len(octets)
            case "delete":
                del data[at : at + len(octets)]
                del owner[at : at + len(octets)]
            case "zero":
                n = len(data[at : at + len(octets)])
                data[at : at + n] = bytes(n)
                owner[at : at + n] = [-1] * n
    if cut:
        del data[-cut:]
        del owner[-cut:]
    intact = [
        (number, owner.index(number))
        for number, record in enumerate(records)
        if owner.count(number) == len(record)
        and owner[owner.index(number) : owner.index(number) + len(record)] == [number] * len(record)
    ]
    result = scan(bytes(data), core=core, block=block)
    assert result.plain == scan(bytes(data), core="python").plain
    assert result.taken.events >= len(intact)
    spans = result.damage
    assert all(a.offset + a.length <= b.offset for a, b in pairwise(spans))
    for number, at in intact:
        end = at + len(records[number])
        assert all(s.offset >= end or s.offset + s.length <= at for s in spans)
    assert 0 <= result.resume[0] <= len(data)


@settings(max_examples=60)
@given(data=st.binary(max_size=400), block=st.integers(16, 200))
def test_any_bytes_are_scanned_without_an_error(core, data, block):
    framed = b"".join(frame(piece) for piece in data.split(b"\0"))
    for file in (data, framed):
        result = scan(file, core=core, block=block)
        assert result.plain == scan(file, core="python").plain


def test_without_the_c_core_the_fallback_serves(core):
    code = "from aboard.events.scanner import core_name; print(core_name())"
    environment = {**os.environ, "ABOARD_PURE_PYTHON": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "python"


# Good records are found behind any damage, at a cost that grows with the file and no faster.


def header(length: int) -> bytes:
    """Return the header of a record of so many bytes."""
    octets = struct.pack("<Q", length)
    return octets + struct.pack("<I", mask(crc32c(octets)))


def long_record(step: int, size: int) -> bytes:
    return frame(encode.event(1.0, step, [encode.text("notes", "x" * size)]))


def found(result):
    return [(one.step, one.payload[0]) for one in result.pointers]


@pytest.mark.parametrize("size", [0, 63, 64, 1023, 1024, 4096, 4097, 70_000])
def test_records_of_any_length_are_found_behind_damage(core, size):
    good = long_record(1, size), long_record(2, 3 * size + 5)
    data = b"damage" + good[0] + b"more" + good[1]
    result = scan(data, core=core, block=1 << 18)
    second = 10 + len(good[0])
    assert found(result) == [(1, 6), (2, second)]
    assert result.damage == [(0, 6), (second - 4, 4)]


@given(
    st.integers(4000, 20_000),
    # A header that claims 8 bytes makes a good record of the next one: a length and its checksum.
    st.lists(st.integers(0, 30_000).filter(lambda claim: claim != 8), max_size=20),
    st.integers(0, 19_000),
    st.sampled_from([1 << 18, 5000, 100]),
)
def test_headers_that_lie_hide_nothing(core, size, claims, flipped, block):
    torn = bytearray(long_record(1, size))
    torn[12 + flipped % (len(torn) - 12)] ^= 1
    lies = b"".join(map(header, claims))
    last = long_record(3, size)
    data = bytes(torn) + lies + long_record(2, size) + lies + last
    result = scan(data, core=core, block=block)
    assert found(result) == [(2, len(torn) + len(lies)), (3, len(data) - len(last))]


def sent(data: bytes, core: str, block: int = 1 << 16) -> int:
    """Scan a file; return how many bytes were handed to the scanner, some of them again."""
    scanner = Scanner(core=CORES[core])

    def readinto(offset, room):
        piece = data[offset : offset + len(room)]
        room[: len(piece)] = piece
        return len(piece)

    blocks = scan_blocks(scanner, readinto, 0, len(data), bytearray(block))
    return sum(len(one.content) for one in blocks)


# With work that grows with the square of the size, these would take minutes.


def test_a_file_of_headers_that_claim_half_of_it(core):
    size = 1 << 22
    assert sent(header(size // 2) * (size // 12), core) < 3 * size


def test_a_file_of_headers_that_claim_all_that_follows(core):
    size = 1 << 21
    data = b"".join(header(size - at - 16) for at in range(0, size - 16, 12))
    assert sent(data + bytes(size - len(data)), core) < 3 * size


def calls(data: bytes) -> int:
    """Scan a file with the Python core; return how many functions were called."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    scan(data[:4096], core="python")  # tables are computed once
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        scan(data, core="python", block=1 << 20)
    finally:
        sys.setprofile(before)
    return count


def damaged_between_records(count: int) -> bytes:
    return (frame(b"") + b"x") * count


def tags_with_late_metadata(count: int) -> bytes:
    metadata = delimited(9, delimited(1, delimited(1, b"scalars")))
    simple = b"\x15" + struct.pack("<f", 1.0)
    values = [delimited(1, b"%d" % i) + simple for i in range(count)]
    both = [more for value in values for more in (value, metadata + value)]
    head = b"\x09" + struct.pack("<d", 1.0) + b"\x10\x01"
    return b"".join(frame(head + delimited(5, delimited(1, value))) for value in both)


@pytest.mark.parametrize("crafted", [damaged_between_records, tags_with_late_metadata])
def test_crafted_files_cost_the_python_core_a_bounded_number_of_calls(core, crafted):
    if core != "python":
        pytest.skip("the C core calls no Python functions")
    few, many = (calls(crafted(count)) for count in (250, 1000))
    assert many < 5 * few
    if crafted is damaged_between_records:
        assert many < 60 * 1000


LIMITS = (1000, 5000)


def torn(record: bytes) -> bytes:
    return record[:500] + bytes([record[500] ^ 1]) + record[501:]


@pytest.mark.parametrize("block", [16, 100, 1500, 1 << 16])
def test_a_long_record_is_verified_before_it_is_held(core, block):
    small = long_record(0, 10)
    good, bad = long_record(1, 3000), torn(long_record(2, 4000))
    data = small + good + bad + small + good
    largest = 0

    def readinto(offset, room):
        nonlocal largest
        largest = max(largest, len(room))
        piece = data[offset : offset + len(room)]
        room[: len(piece)] = piece
        return len(piece)

    scanner = Scanner(core=CORES[core], limits=LIMITS)
    blocks = list(scan_blocks(scanner, readinto, 0, len(data), bytearray(block)))
    taken = scanner.take()
    places = [0, len(small), len(data) - len(small + good), len(data) - len(good)]
    assert [one.offset for one in taken.damage] == [len(small + good)]
    assert [one.length for one in taken.damage] == [len(bad)]
    result = scan(data, core=core, block=block, limits=LIMITS)
    assert found(result) == list(zip([0, 1, 0, 1], places, strict=True))
    assert largest <= max(block, len(good))
    assert (blocks[-1].at_end, blocks[-1].reached) == (True, len(data))


@pytest.mark.parametrize("block", [16, 1500, 1 << 16])
def test_a_record_that_is_too_large_is_passed_over_as_a_whole(core, block):
    inside = long_record(9, 10).decode("latin-1")
    huge = frame(encode.event(1.0, 1, [encode.text("notes", inside + "x" * 9000)]))
    data = long_record(0, 10) + b"damage" + huge + long_record(2, 10)
    result = scan(data, core=core, block=block, limits=LIMITS)
    first = len(long_record(0, 10))
    assert [step for step, _ in found(result)] == [0, 2]
    assert result.damage == [(first, 6), (first + 6, len(huge))]


def test_a_long_record_that_is_not_complete_is_read_when_it_is(core):
    small, good = long_record(0, 10), long_record(1, 3000)
    data = small + good + small
    for cut in (len(small) + 5, len(small) + 700, len(small + good) - 1):
        result = scan(data[:cut], core=core, block=100, limits=LIMITS)
        assert result.resume == (len(small), -1)
        assert result.damage == []


def test_a_scan_that_stops_within_a_long_record_goes_on_before_it(core):
    small, good = long_record(0, 10), long_record(1, 3000)
    data = small + good
    scanner = Scanner(core=CORES[core], limits=LIMITS)
    reached = scanner.scan(data[:600], 0, len(data))
    assert (reached, scanner.resume(reached)) == (600, (len(small), -1))


@pytest.mark.parametrize("block", [200, 1 << 20])
def test_many_headers_that_claim_long_records_are_read_a_few_times(core, block):
    size = 1 << 17
    data = header(size // 2) * (size // 12)
    scanner = Scanner(core=CORES[core], limits=LIMITS)
    handed = 0

    def readinto(offset, room):
        nonlocal handed
        piece = data[offset : offset + len(room)]
        room[: len(piece)] = piece
        handed += len(piece)
        return len(piece)

    for _ in scan_blocks(scanner, readinto, 0, len(data), bytearray(block)):
        pass
    assert handed < 6 * size


@given(
    st.lists(
        st.tuples(st.sampled_from(["good", "torn", "lie", "junk"]), st.integers(0, 7000)),
        max_size=6,
    )
)
def test_blocks_make_no_difference_to_long_records(core, parts):
    pieces = []
    for number, (kind, size) in enumerate(parts):
        record = long_record(number, size)
        damaged = record[:30] + bytes([record[30] ^ 1]) + record[31:]
        pieces.append(
            {"good": record, "torn": damaged, "lie": header(size), "junk": bytes(size % 50)}[kind]
        )
    data = b"".join(pieces)
    results = [
        scan(data, core=one, block=block, limits=LIMITS).plain
        for one in {core, "python"}
        for block in (64, 1024, 1 << 18)
    ]
    assert all(one == results[0] for one in results)


def test_the_digest_changes_with_any_record_and_goes_on_from_any_place(core):
    records = [long_record(step, 10 * step) for step in range(20)]
    data = b"".join(records[:10]) + b"damage" + b"".join(records[10:])
    whole = scan(data, core=core).digest
    assert whole == scan(data, core=core, digest_only=True, block=64).digest
    assert whole == scan(data, core="python", block=300).digest
    middle = len(b"".join(records[:4]))
    first = Scanner(core=CORES[core])
    first.scan(data[:middle], 0, middle)
    second = Scanner(core=CORES[core], digest=first.digest)
    second.scan(data[middle:], middle, len(data))
    assert second.digest == whole
    for place in (3, 12):
        changed = [*records]
        changed[place] = long_record(99, 10 * place)
        other = b"".join(changed[:10]) + b"damage" + b"".join(changed[10:])
        assert len(other) == len(data)
        assert scan(other, core=core).digest != whole


def test_good_records_between_headers_that_lie(core):
    count = 200
    size = 1 << 20
    data = (header(size // 2) + frame(b"")) * count
    data += header(size // 2) * ((size - len(data)) // 12)
    result = scan(data, core=core)
    assert result.taken.events == count
    assert sent(data, core) < 4 * size
