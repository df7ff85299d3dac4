"""The scanning core in Python and numpy, for where the C core was not compiled.

Rule for rule the twin of scan.h, which defines the terms. Two things make it
fast enough to be useful: the checksums of a whole block are computed together,
column by column, and a record that differs from an earlier one only in its
time, step and value is recognised without being parsed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import itemgetter

import numpy as np

from aboard.events.crc import headers, verify
from aboard.events.messages import Event, Malformed, Value, fields, parse_event, parse_metadata
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
from aboard.events.records import HEADER, OVERHEAD
from aboard.events.scanner import Block, RawPointers, RawPoints

_LENGTH = struct.Struct("<Q")
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_value_at = _FLOAT.unpack_from
_HEAD = re.compile(rb"\x09(.{8})(?:\x10([\x80-\xff]{0,8}[\x00-\x7f]))?(?=\x2a)", re.DOTALL)
"""Wall time and step at the start of an event, with its summary right behind them."""
_PROBES = (-1234.5, 777.25)
_ROWS = {ORIGIN_IMAGE: 3, ORIGIN_AUDIO: 1}


_Point = tuple[int, int, float, float]
"""Series, step, wall time and value; plain tuples, as there are very many."""
_Pointer = tuple[int, int, float, int, int, int]
"""Series, step, wall time, offset, length and rows."""
_POINT_COLUMNS = (np.int32, np.int64, np.float64, np.float64)
_POINTER_COLUMNS = (np.int32, np.int64, np.float64, np.int64, np.int64, np.int64)


class _Series:
    __slots__ = ("kind", "metadata", "origin", "tag", "wide")

    def __init__(self, tag: bytes) -> None:
        self.tag = tag
        self.kind = CLASS_UNKNOWN
        self.metadata: bytes | None = None
        self.origin = ORIGIN_NONE
        self.wide = False


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
        self._points: list[_Point] = []
        self._pointers: list[_Pointer] = []
        self._damage: list[tuple[int, int]] = []
        self._events = 0
        for tag, kind in known:
            self._series[self._number(tag)].kind = kind

    @property
    def pending(self) -> int:
        """The number of values not taken yet."""
        return len(self._points) + len(self._pointers)

    def series(self) -> list[tuple[bytes, bytes | None, int, int, bool]]:
        """Return (tag, metadata, origin, kind, wide) of every series."""
        return [(s.tag, s.metadata, s.origin, s.kind, s.wide) for s in self._series]

    def take(self) -> tuple[RawPoints, RawPointers, list[tuple[int, int]], int]:
        """Return the columns as bytes, and forget them."""
        p = _columns(self._points, _POINT_COLUMNS)
        q = _columns(self._pointers, _POINTER_COLUMNS)
        points = (p[0], p[1], p[2], p[3])
        pointers = (q[0], q[1], q[2], q[3], q[4], q[5])
        taken = points, pointers, self._damage, self._events
        self._points, self._pointers, self._damage, self._events = [], [], [], 0
        return taken

    def scan(self, block: Block, offset: int, end: int) -> int:
        """Scan a block; return where the next one must start."""
        if offset < 0 or len(block) > end - offset:
            raise ValueError("the block does not lie within the file")
        block = bytes(block)
        self.want = HEADER
        at = 0
        while True:
            at = self._scan_good(block, at, offset)
            if len(block) - at < HEADER:
                return offset + at
            at, found = self._search(block, at, offset, end)
            if not found:
                return offset + at

    def _scan_good(self, block: bytes, at: int, base: int) -> int:
        """Scan the good records that follow each other from `at`; return where they end."""
        spans = _frames(block, at)
        good = verify(block, spans)
        if good and self.damage_start >= 0:
            self._end_damage(base + at)
        for start, length in spans[:good]:
            at = start + HEADER
            if not self._recognise(block, at, at + length):
                self._record(block[at : at + length], base + start)
        if good == 0:
            return at
        start, length = spans[good - 1]
        return start + length + OVERHEAD

    def _search(self, block: bytes, at: int, base: int, end: int) -> tuple[int, bool]:
        """Find the next good record at or after `at`.

        Returns:
            Where it is, or where the block has to be continued; and whether it was found.
        """
        for place in headers(block, at):
            if place > at and self.damage_start < 0:
                self.damage_start = base + at
            length = _LENGTH.unpack_from(block, place)[0]
            total = length + OVERHEAD
            if total > end - base - place:
                if self.hold < 0:
                    self.hold = base + place
            elif total > len(block) - place:
                self.want = total
                return place, False
            elif verify(block, [(place, length)]):
                return place, True
        if self.damage_start < 0:
            self.damage_start = base + at
        return len(block) - HEADER + 1, False

    def _end_damage(self, offset: int) -> None:
        self._damage.append((self.damage_start, offset - self.damage_start))
        self.damage_start = self.hold = -1

    def _record(self, data: bytes, offset: int) -> None:
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
            self._learn(data, event)

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
                    self._shapes.clear()
                self._pointers.append((number, event.step, event.wall, offset, length, 1))
            case _:
                self._pointers.append((-1, event.step, event.wall, offset, length, 0))

    def _add(self, value: Value, event: Event, offset: int, length: int) -> None:
        number = self._number(value.tag)
        one = self._series[number]
        one.origin = one.origin or value.origin
        if value.metadata is not None and one.metadata is None:
            one.metadata = value.metadata
            one.kind = one.kind or _class_of(value.metadata)
            self._shapes.clear()
        if value.origin == ORIGIN_SIMPLE:
            self._points.append((number, event.step, event.wall, value.simple))
            return
        rows = _ROWS.get(value.origin, 0)
        if value.tensor is not None:
            tensor, rows = value.tensor, value.tensor.rows
            may_be_scalar = one.kind == CLASS_SCALAR or (
                one.kind == CLASS_UNKNOWN and tensor.rank == 0
            )
            if tensor.single is not None and may_be_scalar:
                self._points.append((number, event.step, event.wall, tensor.single))
                one.wide = one.wide or tensor.wide
                return
        self._pointers.append((number, event.step, event.wall, offset, length, rows))

    def _number(self, tag: bytes) -> int:
        number = self._numbers.get(tag)
        if number is None:
            number = self._numbers[tag] = len(self._series)
            self._series.append(_Series(tag))
        return number

    def _recognise(self, block: bytes, start: int, end: int) -> bool:
        """Scan a record by its shape, if that is known."""
        head = _HEAD.match(block, start, end)
        if head is None:
            return False
        number = self._shapes.get(block[head.end() : end - 4])
        if number is None:
            return False
        wall, step = head.groups()
        points = (number, _step(step), _DOUBLE.unpack(wall)[0], _value_at(block, end - 4)[0])
        self._points.append(points)
        self._events += 1
        return True

    def _learn(self, data: bytes, event: Event) -> None:
        """Remember the shape of a record whose last four bytes are its only value.

        Whether they are is found out by changing them and parsing again.
        """
        head = _HEAD.match(data)
        if head is None or len(list(fields(data[head.end() :]))) != 1:
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
        self._shapes[data[head.end() : -4]] = self._numbers[tag]


def _columns(
    rows: Sequence[_Point] | Sequence[_Pointer], kinds: Sequence[type[np.generic]]
) -> list[bytes]:
    """Return the rows, sorted by series, as the bytes of one array per column."""
    columns = zip(*sorted(rows, key=itemgetter(0)), strict=True) if rows else ((),) * len(kinds)
    return [np.array(column, kind).tobytes() for column, kind in zip(columns, kinds, strict=True)]


def _class_of(metadata: bytes) -> int:
    parsed = parse_metadata(metadata)
    if parsed.data_class:
        return CLASS_SCALAR if parsed.data_class == 1 else CLASS_OTHER
    return CLASS_SCALAR if parsed.plugin == "scalars" else CLASS_OTHER


@lru_cache(maxsize=1 << 12)
def _step(octets: bytes | None) -> int:
    """Read the number of a head's step; the tags of a step come one after another."""
    step = 0
    for place, byte in enumerate(octets or b""):
        step |= (byte & 0x7F) << 7 * place
    return step


def _frames(block: bytes, at: int) -> list[tuple[int, int]]:
    """Return (place, length) of the records as their lengths claim, unverified."""
    found = []
    last = len(block) - OVERHEAD
    while at <= last:
        length = _LENGTH.unpack_from(block, at)[0]
        if length > last - at:
            break
        found.append((at, length))
        at += length + OVERHEAD
    return found
