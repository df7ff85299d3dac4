"""The scanning core in Python and numpy, used if the C core was not compiled.

It follows the rules of scan.h and pack.h, which define the terms. All checksums of a block are
computed together, and records that differ from an earlier one only in time, step and value are
recognized and read together, without parsing. The *head* of an event is its wall time and step as
most writers write them: first, without a step of zero, and directly followed by the summary.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aboard.events.messages import (
    CLASS_OTHER,
    CLASS_SCALAR,
    CLASS_UNKNOWN,
    ORIGIN_AUDIO,
    ORIGIN_GRAPH,
    ORIGIN_IMAGE,
    ORIGIN_NONE,
    ORIGIN_RUN_METADATA,
    ORIGIN_SIMPLE,
    Event,
    Malformed,
    ParsedValue,
    is_one_field,
    parse_event,
    parse_metadata,
)
from aboard.events.records import CRC_TABLE, HEADER, MAX_LENGTH, OVERHEAD, library_crc32c, mask
from aboard.events.scanner import (
    CHUNK_VALUES,
    MAX_RECORD,
    MAX_UNVERIFIED,
    Block,
    Chunk,
    Part,
    RawSeries,
    RawTaken,
    Sketch,
)

_LENGTH = struct.Struct("<Q")
_FLOAT = struct.Struct("<f")
_PROBES = (-1234.5, 777.25)
_FIRST_SLAB, _SLAB = 1 << 8, 1 << 16  # bytes searched for headers at once, increasing
_MOST_SHAPES, _MAX_SHAPE = 4, 4096  # of a series; the size of one
U32 = npt.NDArray[np.uint32]
Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
_ROWS = {ORIGIN_IMAGE: 3, ORIGIN_AUDIO: 1}


_Point = tuple[int, int, int, float, float]  # offset, series, step, wall time, value
_Pointer = tuple[int, int, int, float, int, int]  # offset, series, step, wall time, length, rows


@dataclass(slots=True)
class _Series:
    tag: bytes
    kind: int = CLASS_UNKNOWN
    metadata: bytes | None = None
    origin: int = ORIGIN_NONE
    wide: bool = False
    unsure: bool = False
    shapes: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Long:
    """A long record that is being verified; see scan.h."""

    start: int
    end: int
    is_held: bool  # whether `hold` is this record
    state: int = 0xFFFFFFFF


class PythonCore:
    def __init__(
        self,
        damage_start: int = -1,
        known: Iterable[tuple[bytes, int]] = (),
        digest: int = 0,
        digest_only: bool = False,
        limits: tuple[int, int] = (MAX_UNVERIFIED, MAX_RECORD),
    ) -> None:
        self.reset(damage_start, known, digest)
        self._digest_only = digest_only
        self._max_unverified, self._max_record = limits

    def reset(
        self, damage_start: int = -1, known: Iterable[tuple[bytes, int]] = (), digest: int = 0
    ) -> None:
        self._digest_only = False
        self._max_unverified, self._max_record = MAX_UNVERIFIED, MAX_RECORD
        self.want = HEADER
        self.again = False
        self.digest = digest
        self.damage_start = damage_start
        self.hold = -1
        self.first_wall: float | None = None
        self._long: _Long | None = None
        self._verified = self._doubted = -1
        self._series: list[_Series] = []
        self._numbers: dict[bytes, int] = {}
        self._shapes: dict[bytes, int] = {}
        self._has_damage = damage_start >= 0  # anywhere in the file so far
        self._recognised: list[ValueColumns] = []
        self._points: list[_Point] = []
        self._pointers: list[_Pointer] = []
        self._damage: list[tuple[int, int]] = []
        self._events = 0
        for tag, kind in known:
            self._series[self._number(tag)].kind = kind

    @property
    def series_count(self) -> int:
        return len(self._series)

    @property
    def pending(self) -> int:
        recognised = sum(len(one.series) for one in self._recognised)
        return recognised + len(self._points) + len(self._pointers)

    def series(self, numbers: list[int] | None = None, /) -> list[RawSeries]:
        some = self._series if numbers is None else [self._series[one] for one in numbers]
        return [(s.tag, s.metadata, s.origin, s.kind, s.wide, s.unsure) for s in some]

    def take(self) -> RawTaken:
        wide = {number for number, one in enumerate(self._series) if one.wide}
        taken = (
            pack(joined([*self._recognised, _points(self._points)]), wide),
            pack(_pointers(self._pointers), wide),
            sorted(self._damage),
            self._events,
        )
        self._recognised, self._points, self._pointers = [], [], []
        self._damage, self._events = [], 0
        return taken

    def scan(self, block: Block, offset: int, end: int) -> int:
        if offset < 0 or len(block) > end - offset:
            raise ValueError("the block does not lie within the file")
        block = bytes(block)
        self.want, self.again = HEADER, False
        if self._long is not None:
            return self._scan_long(self._long, block, 0, offset, end)
        at = self._scan_good(block, offset) if self.damage_start < 0 else 0
        if len(block) - at < HEADER:
            return offset + at
        return self._scan_warily(block, at, offset, end)

    def _scan_good(self, block: bytes, base: int) -> int:
        """Scan consecutive good records from the start; return where they end."""
        bounds = np.array(_bounds(block, self._max_unverified, self._verified - base), np.int64)
        good = verify(block, bounds)
        if good:
            self._scan_records(block, bounds[:good], bounds[1 : good + 1], base)
        return int(bounds[good])

    def _scan_warily(self, block: bytes, at: int, base: int, end: int) -> int:
        """Scan a block with damage; return where the next block starts.

        The damage may be crafted to cost time, so the headers of a span are verified together, at
        a cost that does not depend on the lengths that they claim.
        """
        marks = Marks(block)
        words = everywhere(block, "<u4")
        last, slab = len(block) - HEADER, _FIRST_SLAB
        searched = at
        while (searched := max(searched, at)) <= last:
            places = headers(block, searched, searched + slab)
            searched += slab
            slab = min(2 * slab, _SLAB)
            totals = words[places].astype(np.int64) + OVERHEAD
            is_whole = totals <= len(block) - places
            is_good = np.zeros(len(places), bool)
            is_good[is_whole] = have_checksums(
                block, places[is_whole], totals[is_whole] - OVERHEAD, marks
            )
            columns = places.tolist(), totals.tolist(), is_whole.tolist(), is_good.tolist()
            good, at, stop = self._follow(zip(*columns, strict=True), at, base, end)
            if good:
                starts, ends = np.array(good, np.int64).T
                self._scan_records(block, starts, ends, base)
            if stop >= 0:
                return self._stop_at(block, stop, base, end)
        if at > last:
            return base + at
        self._begin_damage(base + at)
        return base + last + 1

    def _follow(
        self, headers: Iterable[tuple[int, int, bool, bool]], at: int, base: int, end: int
    ) -> tuple[list[tuple[int, int]], int, int]:
        """Follow headers from `at` on: place, size of the record, whether it is complete and good.

        Return the starts and ends of good records, the end of the last one, and the start of the
        record that stops the search, or -1.
        """
        good: list[tuple[int, int]] = []
        for place, total, is_whole, is_good in headers:
            offset = base + place
            if place < at:  # in a good record
                continue
            if total > end - offset:
                self.hold = offset if self.hold < 0 else self.hold
                continue
            is_long = total > self._max_unverified and offset != self._verified
            if is_long and offset < self._doubted:
                continue
            if is_whole and not is_long and not is_good:
                continue
            if place > at:
                self._begin_damage(base + at)
            if is_long or not is_whole:
                return good, at, place
            self._end_damage(offset)
            at = place + total
            good.append((place, at))
        return good, at, -1

    def _stop_at(self, block: bytes, at: int, base: int, end: int) -> int:
        """Handle a record that is long or not complete in the block; return where to continue."""
        offset = base + at
        total = int(everywhere(block, "<u4")[at]) + OVERHEAD
        if total > self._max_unverified and offset != self._verified:
            self._long = _Long(offset, offset + total, self.hold < 0)
            if self.hold < 0:
                self.hold = offset
            return self._scan_long(self._long, block, at + HEADER, base, end)
        self.want = total
        if self._has_damage and offset != self._verified:  # see scan.h
            self.want = min(2 * total, end - offset)
        return offset

    def _scan_long(self, long: _Long, block: bytes, at: int, base: int, end: int) -> int:
        if long.end > end:  # the file has become shorter
            self._long = None
            return long.start
        some = block[at : max(at, long.end - 4 - base)]
        long.state = running(long.state, some)
        at += len(some)
        if len(block) - at < 4:
            return base + at
        checksum = block[at : at + 4]
        self._long = None
        if long.is_held:
            self.hold = -1
        self.again = True
        if mask(long.state ^ 0xFFFFFFFF) != int.from_bytes(checksum, "little"):
            self._doubted = long.end
            self._begin_damage(long.start)
            return long.start + 1
        total = long.end - long.start
        if total <= self._max_record:
            self._verified = long.start
            self.want = total
            return long.start
        self._end_damage(long.start)
        self._add_to_digest(np.array([long.start]), np.frombuffer(checksum, "<u4"))
        self._damage.append((long.start, total))
        return long.end

    def _scan_records(self, block: bytes, starts: Ints, ends: Ints, base: int) -> None:
        """Scan good records: parse those of unknown shape, in order, and recognize the others."""
        self._add_to_digest(base + starts, everywhere(block, "<u4")[ends - 4])
        if self._digest_only:
            self._events += len(starts)
            return
        offsets, starts, ends = base + starts, starts + HEADER, ends - 4
        walls, steps, stops = _heads(block, starts, ends)
        numbers: list[int] = []
        number_of, note = self._shapes.get, numbers.append
        for first, last in zip(stops.tolist(), (ends - 4).tolist(), strict=True):
            shape = block[first:last]
            number = number_of(shape, -1)
            if number < 0:
                place = len(numbers)
                self._record(block[starts[place] : last + 4], int(offsets[place]), shape)
            note(number)
        known = np.array(numbers, np.int64)
        some = np.flatnonzero(known >= 0)
        self._events += len(some)
        with np.errstate(invalid="ignore"):  # raised for a signaling NaN
            values = everywhere(block, "<f4")[ends[some] - 4].astype(np.float64)
        columns = offsets[some], known[some], steps[some], walls[some], values
        self._recognised.append(ValueColumns(*columns))

    def _add_to_digest(self, offsets: Ints, checksums: npt.NDArray[np.uint32]) -> None:
        factors = 2 * offsets.astype(np.uint64) + np.uint64(1)
        added = int(((checksums.astype(np.uint64) + np.uint64(1)) * factors).sum(dtype=np.uint64))
        self.digest = (self.digest + added) & 0x7FFF_FFFF_FFFF_FFFF

    def _end_damage(self, offset: int) -> None:
        if self.damage_start >= 0:
            self._damage.append((self.damage_start, offset - self.damage_start))
        self.damage_start = self.hold = -1

    def _begin_damage(self, offset: int) -> None:
        self._has_damage = True
        if self.damage_start < 0:
            self.damage_start = offset

    def _record(self, data: bytes, offset: int, shape: bytes) -> None:
        points, pointers = len(self._points), len(self._pointers)
        try:
            event = parse_event(data)
            self._apply(event, offset, len(data))
        except Malformed:
            del self._points[points:], self._pointers[pointers:]
            self._damage.append((offset, len(data) + OVERHEAD))
            return
        self._events += 1
        if self.first_wall is None:
            self.first_wall = event.wall
        if len(event.values) == 1 and len(self._points) == points + 1:
            self._learn(data, event, shape)

    def _apply(self, event: Event, offset: int, length: int) -> None:
        match event.what:
            case 5:
                for value in event.values:
                    self._add(value, event, offset, length)
                if event.malformed:
                    raise Malformed
            case 4 | 8:
                number = self._number(event.tag if event.what == 8 else b"__run_graph__")
                one = self._series[number]
                origin = ORIGIN_RUN_METADATA if event.what == 8 else ORIGIN_GRAPH
                one.origin = one.origin or origin
                if one.kind == CLASS_UNKNOWN:
                    one.kind = CLASS_OTHER
                    self._forget_shapes(one)
                self._pointers.append((offset, number, event.step, event.wall, length, 1))
            case _:
                self._pointers.append((offset, -1, event.step, event.wall, length, 0))

    def _add(self, value: ParsedValue, event: Event, offset: int, length: int) -> None:
        number = self._number(value.tag)
        one = self._series[number]
        one.origin = one.origin or value.origin
        if value.metadata is not None and one.metadata is None:
            one.metadata = value.metadata
            one.kind = one.kind or _class_of(value.metadata)
            self._forget_shapes(one)
        if value.origin == ORIGIN_SIMPLE:
            self._points.append((offset, number, event.step, event.wall, value.simple))
            return
        rows = _ROWS.get(value.origin, 0)
        if value.tensor is not None:
            tensor, rows = value.tensor, value.tensor.rows
            if tensor.single is not None and one.kind == CLASS_UNKNOWN:
                one.unsure = True
            may_be_scalar = one.kind == CLASS_SCALAR or (
                one.kind == CLASS_UNKNOWN and tensor.rank == 0
            )
            if tensor.single is not None and may_be_scalar:
                self._points.append((offset, number, event.step, event.wall, tensor.single))
                one.wide = one.wide or tensor.wide
                return
        self._pointers.append((offset, number, event.step, event.wall, length, rows))

    def _number(self, tag: bytes) -> int:
        number = self._numbers.get(tag)
        if number is None:
            number = self._numbers[tag] = len(self._series)
            self._series.append(_Series(tag))
        return number

    def _learn(self, data: bytes, event: Event, shape: bytes) -> None:
        """Remember the shape of a record if its last four bytes are its only value."""
        tag = event.values[0].tag
        if len(shape) > _MAX_SHAPE or len(self._series[self._numbers[tag]].shapes) == _MOST_SHAPES:
            return
        if not shape or not is_one_field(shape + data[-4:]):
            return  # a field after the summary might override it
        for probe in _PROBES:
            changed = parse_event(data[:-4] + _FLOAT.pack(probe))
            if changed.malformed or len(changed.values) != 1:
                return
            value = changed.values[0]
            number = value.simple if value.tensor is None else value.tensor.single
            if value.tag != tag or number != probe:
                return
        number = self._shapes[shape] = self._numbers[tag]
        self._series[number].shapes.append(shape)

    def _forget_shapes(self, one: _Series) -> None:
        for shape in one.shapes:
            del self._shapes[shape]
        one.shapes.clear()


def _points(rows: Sequence[_Point]) -> ValueColumns:
    return ValueColumns(*_columns(rows, "qqqdd"))


def _pointers(rows: Sequence[_Pointer]) -> ValueColumns:
    offsets, series, steps, walls, lengths, tensor_rows = _columns(rows, "qqqdqq")
    # No tensor has more rows than bytes, whatever its shape says.
    payload = np.stack([offsets, lengths, np.clip(tensor_rows, 0, lengths)], axis=1)
    return ValueColumns(offsets, series, steps, walls, payload)


def _columns(rows: Sequence[_Point] | Sequence[_Pointer], kinds: str) -> list[npt.NDArray[Any]]:
    columns = zip(*rows, strict=True) if rows else ((),) * len(kinds)
    return [np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]


def _class_of(metadata: bytes) -> int:
    parsed = parse_metadata(metadata)
    is_scalar = parsed.data_class == 1 if parsed.data_class else parsed.plugin == "scalars"
    return CLASS_SCALAR if is_scalar else CLASS_OTHER


def _bounds(block: bytes, most: int, verified: int) -> list[int]:
    """Return where records start according to their unverified lengths, and where the last ends.

    Stops at a record that is not complete, or larger than `most` and not at `verified`.
    """
    at = 0
    found = [at]
    last = len(block) - OVERHEAD
    while at <= last:
        length = _LENGTH.unpack_from(block, at)[0]
        if length > last - at or (length > most - OVERHEAD and at != verified):
            break
        at += length + OVERHEAD
        found.append(at)
    return found


# The heads of many records at once.


WALL_KEY, STEP_KEY, SUMMARY_KEY = 0x09, 0x10, 0x2A
_LEAST = 16  # the length of a record with a head, a shape and a value


def _heads(block: bytes, starts: Ints, ends: Ints) -> tuple[Floats, Ints, Ints]:
    """Return wall times, steps and the ends of heads: the end of the record if it has no head."""
    octets = everywhere(block, "u1")
    walls, steps = np.zeros(len(starts)), np.zeros(len(starts), np.int64)
    some = np.flatnonzero((ends - starts >= _LEAST) & (octets[starts] == WALL_KEY))
    walls[some] = everywhere(block, "<f8")[starts[some] + 1]
    at = starts + 9
    unread = some[octets[at[some]] == STEP_KEY]
    at[unread] += 1
    for shift in range(0, 63, 7):  # a longer number is negative; the parser handles it
        if not len(unread):
            break
        digits = octets[at[unread]].astype(np.int64)
        steps[unread] |= (digits & 0x7F) << shift
        at[unread] += 1
        unread = unread[digits >= 0x80]
    at[unread] = ends[unread]
    found = some[octets[at[some]] == SUMMARY_KEY]
    stops = ends.copy()
    stops[found] = at[found]
    return walls, steps, stops


# Values to the parts of their series.


class ValueColumns(NamedTuple):
    """Values in any order: `payload` has one column for points, three for pointers."""

    offsets: Ints  # of their records in the file; those of one record are in order
    series: Ints
    steps: Ints
    walls: Floats
    payload: Floats | Ints


def joined(values: Iterable[ValueColumns]) -> ValueColumns:
    return ValueColumns(*(np.concatenate(column) for column in zip(*values, strict=True)))


def pack(values: ValueColumns, wide: Collection[int]) -> list[Part]:
    """Return the values as one part per series; points take 32 bits, in `wide` series 64."""
    ordered = _some(values, np.lexsort((values.offsets, values.series)))
    series = ordered.series
    cuts = np.flatnonzero(series[1:] != series[:-1]) + 1
    bounds = [0, *cuts.tolist(), len(series)] if len(series) else []
    return [_part(_some(ordered, slice(*ends)), wide) for ends in pairwise(bounds)]


def _some(values: ValueColumns, places: Ints | slice) -> ValueColumns:
    return ValueColumns._make(column[places] for column in values)


def _part(values: ValueColumns, wide: Collection[int]) -> Part:
    series, (_, _, steps, walls, payload) = int(values.series[0]), values
    is_point = payload.ndim == 1
    stored = payload.astype(np.float32) if is_point and series not in wide else payload
    return Part(
        series=series,
        size=len(steps),
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        min_step=int(steps.min()),
        max_step=int(steps.max()),
        rising=bool((steps[1:] > steps[:-1]).all()),
        last_wall=float(walls[-1]),
        max_wall=float(np.fmax.reduce(walls, initial=-np.inf)),
        last_value=float(payload[-1]) if is_point else None,
        rows=0 if is_point else int(payload[:, 2].max()),
        chunks=list(_chunks(steps, walls, stored)),
    )


def _chunks(steps: Ints, walls: Floats, payload: npt.NDArray[Any]) -> Iterator[Chunk]:
    is_points = payload.ndim == 1
    for start in range(0, len(steps), CHUNK_VALUES):
        cut = slice(start, start + CHUNK_VALUES)
        times, values = walls[cut], payload[cut]
        sketched = _sketch(steps[cut], times, values).pack() if is_points else b""
        columns = (_shortened(steps[cut]).tobytes(), times.tobytes(), values.tobytes())
        yield Chunk(len(times), *columns, sketched)


def sketch(size: int, steps: bytes, walls: bytes, payload: bytes) -> bytes:
    if size < 1:
        raise ValueError("the columns are not those of a chunk of points")
    stored = np.frombuffer(steps, np.int64)
    if len(stored) != size:
        stored = stored[0] + stored[1] * np.arange(size, dtype=np.int64)
    values = np.frombuffer(payload, np.float32 if len(payload) == 4 * size else np.float64)
    return _sketch(stored, np.frombuffer(walls, np.float64), values).pack()


def _sketch(steps: Ints, walls: Floats, payload: npt.NDArray[Any]) -> Sketch:
    later = np.minimum.accumulate(steps[::-1])[::-1]
    left = np.flatnonzero(np.append(steps[:-1] < later[1:], True))
    steps, walls = steps[left], walls[left]
    with np.errstate(invalid="ignore"):
        values = payload[left].astype(np.float64)
    values[np.isnan(values)] = np.nan
    finite = np.isfinite(values)
    has_finite = bool(finite.any())
    low, low_step, low_wall = high, high_step, high_wall = math.nan, 0, 0.0
    if has_finite:
        at = int(np.argmin(np.where(finite, values, np.inf)))
        low, low_step, low_wall = float(values[at]), int(steps[at]), float(walls[at])
        at = int(np.argmax(np.where(finite, values, -np.inf)))
        high, high_step, high_wall = float(values[at]), int(steps[at]), float(walls[at])
    kinds = (np.isnan(values), values == np.inf, values == -np.inf)
    nans, ups, downs = (int(kind.sum()) for kind in kinds)
    return Sketch(
        len(values),
        int(steps[0]),
        int(steps[-1]),
        float(walls[0]),
        float(walls[-1]),
        float(values[-1]),
        low,
        low_step,
        high,
        high_step,
        _total(values[finite], left[finite]),
        nans,
        ups + downs,
        ups,
        downs,
        float(values[0]),
        low_wall,
        high_wall,
        *_first(kinds[0], steps, walls),
        *_first(kinds[1], steps, walls),
        *_first(kinds[2], steps, walls),
    )


def _first(kind: npt.NDArray[np.bool_], steps: Ints, walls: Floats) -> tuple[int, float]:
    place = int(np.argmax(kind))
    return (int(steps[place]), float(walls[place])) if kind[place] else (0, 0.0)


def _total(values: Floats, places: Ints) -> float:
    """Add values in the same order as pack.h."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = [
            np.add.accumulate(np.append(0.0, values[places % 4 == lane][::-1]))[-1]
            for lane in range(4)
        ]
        return float((sums[0] + sums[1]) + (sums[2] + sums[3]))


def _shortened(steps: Ints) -> Ints:
    """Return first step and stride of evenly spaced steps; other steps unchanged."""
    if len(steps) < 3:
        return steps
    strides = np.diff(steps)
    if (strides == strides[0]).all() and (steps[1:] >= steps[:-1]).all():
        return np.array([steps[0], strides[0]])
    return steps


# CRC32C of many pieces of a block at once.
#
# Computing a checksum is serial, so those of many pieces advance together, four bytes per step. A
# long piece is passed to google-crc32c or, if that is not installed, cut into lanes whose results
# are combined, since a checksum is linear. For the same reason the checksum of any piece follows
# from those of the bytes before its start and its end, which `Marks` keeps; so overlapping pieces
# cost no more than others.

_library = library_crc32c()
_LONG = 256 if _library else 2048  # pieces from this length on are faster one by one
_STRIDE = 64  # between the marks of a block


def everywhere(block: bytes | Octets, kind: str) -> npt.NDArray[Any]:
    """Return a view of a block as overlapping numbers, one at each byte."""
    count = len(block) - np.dtype(kind).itemsize + 1
    return np.ndarray((max(0, count),), kind, block, strides=(1,))


@functools.cache
def _tables() -> tuple[U32, U32, U32]:
    """Return the effect on a checksum of one byte, and of the halves of four bytes."""
    one = np.array(CRC_TABLE, np.uint32)
    by_bytes = [one]
    for _ in range(3):
        by_bytes.append(one[by_bytes[-1] & 0xFF] ^ (by_bytes[-1] >> 8))
    low, high = np.arange(1 << 16) & 0xFF, np.arange(1 << 16) >> 8
    return one, by_bytes[3][low] ^ by_bytes[2][high], by_bytes[1][low] ^ by_bytes[0][high]


def _four_more(states: U32, words: U32) -> U32:
    _, early, late = _tables()
    mixed = states ^ words
    advanced: U32 = early[mixed & 0xFFFF] ^ late[mixed >> 16]
    return advanced


def _advance(states: U32, block: bytes | Octets, starts: Ints, lengths: Ints) -> U32:
    order = np.argsort(-lengths, kind="stable")
    starts, lengths, states = starts[order], lengths[order], states[order]
    words, octets, one = everywhere(block, "<u4"), everywhere(block, "u1"), _tables()[0]
    steps = int(lengths[0]) // 4 if len(lengths) else 0
    # The longest come first, so that each step advances a prefix of them.
    concerned = np.searchsorted(-lengths, np.arange(-4, -4 * steps - 1, -4), side="right")
    for step, count in enumerate(concerned.tolist()):
        states[:count] = _four_more(states[:count], words[starts[:count] + 4 * step])
    for rest in range(3):
        some = np.flatnonzero(lengths % 4 > rest)
        mixed = states[some] ^ octets[starts[some] + lengths[some] // 4 * 4 + rest]
        states[some] = one[mixed & 0xFF] ^ (states[some] >> 8)
    advanced = np.empty_like(states)
    advanced[order] = states
    return advanced


def _fresh(count: int) -> U32:
    return np.full(count, 0xFFFFFFFF, np.uint32)


def _masked(states: U32) -> U32:
    crcs = ~states
    return (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(0xA282EAD8)


@functools.cache
def _zeros(power: int) -> U32:
    """Return the effect of 2 ** `power` zero bytes on each octet of a state; effects add up."""
    octets = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32)[:, None])
    if power:
        return _after_zeros(_after_zeros(octets, power - 1), power - 1)
    return _advance(
        octets.ravel(), np.zeros(1, np.uint8), np.zeros(1024, np.int64), np.ones(1024, np.int64)
    ).reshape(4, 256)


def _after_zeros(states: U32, power: int) -> U32:
    table = _zeros(power)
    moved: U32 = table[0, states & 0xFF] ^ table[1, states >> 8 & 0xFF]
    moved ^= table[2, states >> 16 & 0xFF] ^ table[3, states >> 24]
    return moved


def _moved(states: U32, lengths: Ints) -> U32:
    """Advance each checksum by a number of zero bytes."""
    states = states.copy()
    for power in range(int(lengths.max(initial=0)).bit_length()):
        some = np.flatnonzero(lengths >> power & 1)
        states[some] = _after_zeros(states[some], power)
    return states


class Marks:
    """The checksums of everything before evenly spaced places of a block."""

    def __init__(self, block: bytes) -> None:
        self._block = block

    @functools.cached_property
    def _states(self) -> U32:
        count = len(self._block) // _STRIDE
        lengths = np.full(count, _STRIDE, np.int64)
        states = _advance(
            np.zeros(count, np.uint32), self._block, np.arange(count) * _STRIDE, lengths
        )
        # Join each with the one before, then pairs with the pairs before, and so on.
        for doubling in range(max(0, count - 1).bit_length()):
            reach = 1 << doubling
            power = doubling + _STRIDE.bit_length() - 1
            states[reach:] ^= _after_zeros(states[:-reach], power)
        return np.concatenate([np.zeros(1, np.uint32), states])

    def advanced(self, starts: Ints, lengths: Ints) -> U32:
        before, behind = self._until(starts), self._until(starts + lengths)
        return _moved(before ^ np.uint32(0xFFFFFFFF), lengths) ^ behind

    def _until(self, places: Ints) -> U32:
        marks = places // _STRIDE
        return _advance(self._states[marks], self._block, marks * _STRIDE, places % _STRIDE)


def of_long_piece(data: bytes) -> int:
    if _library is not None:
        return _library(data)
    piece = np.frombuffer(data, np.uint8)
    lanes = int(len(piece) ** 0.5)
    width = len(piece) // lanes
    states = np.zeros(lanes, np.uint32)
    states[:1] = _fresh(1)
    states = _advance(states, piece, np.arange(lanes) * width, np.full(lanes, width))
    left = np.array([lanes * width])
    while len(states) > 1:
        if len(states) % 2:
            states = np.concatenate([np.zeros(1, np.uint32), states])
        states = _moved(states[::2], np.full(len(states) // 2, width)) ^ states[1::2]
        width *= 2
    return int(_advance(states, piece, left, len(piece) - left)[0]) ^ 0xFFFFFFFF


def verify(block: bytes, bounds: Ints) -> int:
    """Return how many records come before the first bad one; `bounds` includes the last end."""
    starts, lengths = bounds[:-1], np.diff(bounds) - OVERHEAD
    of_data = _fresh(len(starts))
    is_long = lengths >= _LONG
    short = np.flatnonzero(~is_long)
    of_data[short] = _advance(of_data[short], block, starts[short] + HEADER, lengths[short])
    for place in np.flatnonzero(is_long):
        data = block[starts[place] + HEADER : bounds[place + 1] - 4]
        of_data[place] = of_long_piece(data) ^ 0xFFFFFFFF
    return _good_until(_has_header(block, starts) & _ends_with(block, starts, lengths, of_data))


def have_checksums(block: bytes, starts: Ints, lengths: Ints, marks: Marks) -> Bools:
    if not len(starts):
        return np.zeros(0, bool)
    return _ends_with(block, starts, lengths, marks.advanced(starts + HEADER, lengths))


def _has_header(block: bytes, starts: Ints) -> Bools:
    words = everywhere(block, "<u4")
    of_length = _four_more(_fresh(len(starts)), words[starts])
    same: Bools = _masked(_four_more(of_length, words[starts + 4])) == words[starts + 8]
    return same


def _ends_with(block: bytes, starts: Ints, lengths: Ints, states: U32) -> Bools:
    same: Bools = _masked(states) == everywhere(block, "<u4")[starts + HEADER + lengths]
    return same


def _good_until(good: Bools) -> int:
    bad = np.flatnonzero(~good)
    return int(bad[0]) if len(bad) else len(good)


def headers(block: bytes, start: int, stop: int) -> Ints:
    """Return every place from `start` to `stop` where the header of a record may begin."""
    words = everywhere(block, "<u4")
    stop = min(stop, len(block) - HEADER + 1)
    low, high, stored = (words[start + shift : stop + shift] for shift in (0, 4, 8))
    likely = np.flatnonzero((high == 0) & (low <= MAX_LENGTH))
    crcs = _masked(_four_more(_four_more(_fresh(len(likely)), low[likely]), high[likely]))
    places: Ints = start + likely[crcs == stored[likely]]
    return places


def running(state: int, data: bytes) -> int:
    """Add bytes to an unfinished checksum, which begins with all bits set."""
    state_of_zeros = _moved(np.array([state ^ 0xFFFFFFFF], np.uint32), np.array([len(data)]))
    return int(state_of_zeros[0]) ^ of_long_piece(data) ^ 0xFFFFFFFF
