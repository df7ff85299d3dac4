"""The scanning core in Python and numpy, for where the C core was not compiled.

Rule for rule the twin of scan.h, which defines the terms. Two things make it
fast enough to be useful: the checksums of a whole block are computed together,
and records that differ from an earlier one only in their time, step and value are
recognised and read together, without being parsed.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aboard.events.crc import (
    Ints,
    Marks,
    everywhere,
    have_checksums,
    headers,
    verify,
    verify_warily,
)
from aboard.events.heads import read_heads
from aboard.events.messages import (
    Event,
    Malformed,
    Value,
    is_one_field,
    parse_event,
    parse_metadata,
)
from aboard.events.origins import (
    CLASS_OTHER,
    CLASS_SCALAR,
    CLASS_UNKNOWN,
    ORIGIN_AUDIO,
    ORIGIN_GRAPH,
    ORIGIN_IMAGE,
    ORIGIN_NONE,
    ORIGIN_RUN_METADATA,
    ORIGIN_SIMPLE,
)
from aboard.events.packing import Values, joined, pack
from aboard.events.records import HEADER, OVERHEAD
from aboard.events.scanner import Block, RawTaken

_LENGTH = struct.Struct("<Q")
_FLOAT = struct.Struct("<f")
_PROBES = (-1234.5, 777.25)
_FIRST_RECORDS = 8
"""How many records behind damage are verified at once, at first."""
_ROWS = {ORIGIN_IMAGE: 3, ORIGIN_AUDIO: 1}


_Point = tuple[int, int, int, float, float]
"""Offset, series, step, wall time and value."""
_Pointer = tuple[int, int, int, float, int, int]
"""Offset, series, step, wall time, length and rows."""


class _Series:
    __slots__ = ("kind", "metadata", "origin", "shapes", "tag", "wide")

    def __init__(self, tag: bytes) -> None:
        self.tag = tag
        self.kind = CLASS_UNKNOWN
        self.metadata: bytes | None = None
        self.origin = ORIGIN_NONE
        self.wide = False
        self.shapes: list[bytes] = []


class PythonCore:
    """See `aboard.events.scanner.Scanner`, which offers the same in better words."""

    def __init__(self, damage_start: int = -1, known: Iterable[tuple[bytes, int]] = ()) -> None:
        self.want = HEADER
        self.damage_start = damage_start
        self.hold = -1
        self.first_wall: float | None = None
        self._series: list[_Series] = []
        self._numbers: dict[bytes, int] = {}
        self._shapes: dict[bytes, int] = {}
        self._has_forgotten = False
        self._has_damage = damage_start >= 0
        """Whether there was any in the file, so far."""
        self._recognised: list[Values] = []
        self._points: list[_Point] = []
        self._pointers: list[_Pointer] = []
        self._damage: list[tuple[int, int]] = []
        self._events = 0
        for tag, kind in known:
            self._series[self._number(tag)].kind = kind

    @property
    def pending(self) -> int:
        """The number of values not taken yet."""
        recognised = sum(len(one.series) for one in self._recognised)
        return recognised + len(self._points) + len(self._pointers)

    def series(self) -> list[tuple[bytes, bytes | None, int, int, bool]]:
        """Return (tag, metadata, origin, kind, wide) of every series."""
        return [(s.tag, s.metadata, s.origin, s.kind, s.wide) for s in self._series]

    def take(self) -> RawTaken:
        """Return what was scanned, and forget it."""
        wide = {number for number, one in enumerate(self._series) if one.wide}
        taken = (
            pack(joined([*self._recognised, _points(self._points)]), wide),
            pack(_pointers(self._pointers), wide),
            self._damage,
            self._events,
        )
        self._recognised, self._points, self._pointers = [], [], []
        self._damage, self._events = [], 0
        return taken

    def scan(self, block: Block, offset: int, end: int) -> int:
        """Scan a block; return where the next one must start."""
        if offset < 0 or len(block) > end - offset:
            raise ValueError("the block does not lie within the file")
        block = bytes(block)
        self.want = HEADER
        at = self._scan_good(block, 0, offset) if self.damage_start < 0 else 0
        if len(block) - at < HEADER:
            return offset + at
        # Who damaged the file may mean to keep us busy: from here on nothing is read twice.
        marks = Marks(block)
        while True:
            at, found = self._search(block, at, offset, end, marks)
            if not found:
                return offset + at
            at = self._scan_warily(block, at, offset, marks)
            if len(block) - at < HEADER:
                return offset + at

    def _scan_good(self, block: bytes, at: int, base: int) -> int:
        """Scan the good records that follow each other from `at`; return where they end."""
        bounds = np.array(_bounds(block, at), np.int64)
        good = verify(block, bounds)
        if good:
            self._scan_records(block, bounds[: good + 1], base)
        return int(bounds[good])

    def _scan_warily(self, block: bytes, at: int, base: int, marks: Marks) -> int:
        """Do the same behind damage, more and more records at a time while they are good."""
        self._end_damage(base + at)
        most = _FIRST_RECORDS
        while True:
            bounds = np.array(_bounds(block, at, most), np.int64)
            good = verify_warily(block, bounds, marks)
            if good:
                self._scan_records(block, bounds[: good + 1], base)
            at = int(bounds[good])
            if good < most:
                return at
            most *= 2

    def _scan_records(self, block: bytes, bounds: Ints, base: int) -> None:
        """Scan good records: parse those of unknown shape, in order, and recognise the others."""
        starts, ends = bounds[:-1] + HEADER, bounds[1:] - 4
        heads = read_heads(block, starts, ends)
        spans = zip(heads.ends.tolist(), (ends - 4).tolist(), strict=True)
        shapes = [block[first:last] for first, last in spans]
        numbers = np.empty(len(shapes), np.int64)
        at = 0
        while at < len(shapes):
            numbers[at:] = [self._shapes.get(shape, -1) for shape in shapes[at:]]
            unknown = np.flatnonzero(numbers[at:] < 0) + at
            at = len(shapes)
            for place in unknown.tolist():
                numbers[place] = self._shapes.get(shapes[place], -1)
                if numbers[place] < 0:
                    data = block[starts[place] : ends[place]]
                    self._record(data, base + int(bounds[place]), shapes[place])
                if self._has_forgotten:
                    self._has_forgotten, at = False, place + 1
                    break
        known = np.flatnonzero(numbers >= 0)
        self._events += len(known)
        with np.errstate(invalid="ignore"):  # which a signalling NaN is said to be
            values = everywhere(block, "<f4")[ends[known] - 4].astype(np.float64)
        self._recognised.append(
            Values(
                base + bounds[known], numbers[known], heads.steps[known], heads.walls[known], values
            )
        )

    def _search(self, block: bytes, at: int, base: int, end: int, marks: Marks) -> tuple[int, bool]:
        """Find the next good record at or after `at`.

        Returns:
            Where it is, or where the block has to be continued; and whether it was found.
        """
        words = everywhere(block, "<u4")
        for places in headers(block, at):
            lengths = words[places].astype(np.int64)
            totals = lengths + OVERHEAD
            is_cut = totals > end - base - places
            is_open = (totals > len(block) - places) & ~is_cut
            until = int(np.argmax(is_open)) if is_open.any() else len(places)
            whole = np.flatnonzero(~is_cut[:until])
            good = whole[have_checksums(block, places[whole], lengths[whole], marks)]
            if len(good):
                until = int(good[0])
            cut = places[:until][is_cut[:until]]
            if len(cut) and self.hold < 0:
                self.hold = base + int(cut[0])
            if until < len(places):
                place = int(places[until])
                if place > at:
                    self._begin_damage(base + at)
                if not len(good):
                    self._want_whole(int(totals[until]), end - base - place)
                return place, len(good) > 0
        self._begin_damage(base + at)
        return len(block) - HEADER + 1, False

    def _want_whole(self, total: int, left: int) -> None:
        """Ask for a record, and if there was damage, for more: see scan.h."""
        self.want = min(2 * total, left) if self._has_damage else total

    def _begin_damage(self, offset: int) -> None:
        self._has_damage = True
        if self.damage_start < 0:
            self.damage_start = offset

    def _end_damage(self, offset: int) -> None:
        if self.damage_start < 0:
            return
        self._damage.append((self.damage_start, offset - self.damage_start))
        self.damage_start = self.hold = -1

    def _record(self, data: bytes, offset: int, shape: bytes) -> None:
        """Scan one good record by parsing it."""
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
                one.origin = one.origin or (
                    ORIGIN_RUN_METADATA if event.what == 8 else ORIGIN_GRAPH
                )
                if one.kind == CLASS_UNKNOWN:
                    one.kind = CLASS_OTHER
                    self._forget_shapes(one)
                self._pointers.append((offset, number, event.step, event.wall, length, 1))
            case _:
                self._pointers.append((offset, -1, event.step, event.wall, length, 0))

    def _add(self, value: Value, event: Event, offset: int, length: int) -> None:
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
        """Remember the shape of a record whose last four bytes are its only value.

        Whether they are is found out by changing them and parsing again.
        """
        if not shape or not is_one_field(shape + data[-4:]):
            return  # what follows the summary may be what counts
        tag = event.values[0].tag
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
        """Forget the shapes of a series, whose values may now be something else."""
        self._has_forgotten = self._has_forgotten or bool(one.shapes)
        for shape in one.shapes:
            del self._shapes[shape]
        one.shapes.clear()


def _points(rows: Sequence[_Point]) -> Values:
    offsets, series, steps, walls, numbers = _columns(rows, "qqqdd")
    return Values(offsets, series, steps, walls, numbers)


def _pointers(rows: Sequence[_Pointer]) -> Values:
    offsets, series, steps, walls, lengths, tensor_rows = _columns(rows, "qqqdqq")
    # No tensor has more rows than bytes, whatever its shape says.
    payload = np.stack([offsets, lengths, np.clip(tensor_rows, 0, lengths)], axis=1)
    return Values(offsets, series, steps, walls, payload)


def _columns(rows: Sequence[_Point] | Sequence[_Pointer], kinds: str) -> list[npt.NDArray[Any]]:
    columns = zip(*rows, strict=True) if rows else ((),) * len(kinds)
    return [np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]


def _class_of(metadata: bytes) -> int:
    parsed = parse_metadata(metadata)
    if parsed.data_class:
        return CLASS_SCALAR if parsed.data_class == 1 else CLASS_OTHER
    return CLASS_SCALAR if parsed.plugin == "scalars" else CLASS_OTHER


def _bounds(block: bytes, at: int, most: int = sys.maxsize) -> list[int]:
    """Return where records start as their lengths claim, unverified, and where the last ends."""
    found = [at]
    last = len(block) - OVERHEAD
    while at <= last and len(found) <= most:
        length = _LENGTH.unpack_from(block, at)[0]
        if length > last - at:
            break
        at += length + OVERHEAD
        found.append(at)
    return found
