"""Scans event files into columns: scalars, and pointers to all other values.

A *series* is a tag of one file, numbered in the order in which tags appear. A *point* is one scalar
of a series; every other value is a *pointer* to its record. The C core does the work, or its twin
in `fallback` if the core was not compiled or ABOARD_PURE_PYTHON is set; both follow scan.h and
pack.h. Columns are returned as bytes, so that nothing here needs numpy. A *sketch* is a few numbers
that summarize the points of a chunk, so that they need not be read.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from math import isnan
from typing import Any, Literal, NamedTuple, Protocol

from aboard.system import compiled

CHUNK_VALUES = 4096
_CORE_VERSION = 7
MAX_UNVERIFIED = 16 << 20  # a longer record is held in memory only after its checksum is verified
MAX_RECORD = 256 << 20  # a longer one is skipped, and counts as damage; both as in scan.h


class Chunk(NamedTuple):
    """Up to 4,096 consecutive values of a series, as arrays in this machine's byte order.

    Steps are 64-bit integers; of three or more evenly spaced or equal steps, only the first and the
    stride are stored. Wall times are 64-bit floats. Values of points are 64-bit floats if the
    series is wide, else 32-bit floats. A pointer is three 64-bit integers: the record's offset, the
    length of its data, and the first dimension of its tensor. `sketch` summarizes points; it is
    empty for pointers.
    """

    size: int
    steps: bytes
    walls: bytes
    payload: bytes
    sketch: bytes = b""


_TOTALS = "qqqddddqdqdqq"
CODES = _TOTALS + "qqddd" + "qd" * 3  # of a sketch's fields, for `struct` and numpy
_LAYOUT, _HEAD = struct.Struct(CODES), struct.Struct(_TOTALS)


class Totals(NamedTuple):
    """Totals of points with increasing steps, which can be added to those of later points.

    `low` and `high` are the smallest and the largest finite value, each at its first step; NaN if
    there is none.
    """

    size: int
    first_step: int
    last_step: int
    first_wall: float
    last_wall: float
    last: float
    low: float
    low_step: int
    high: float
    high_step: int
    total: float  # of the finite values
    nans: int
    infinities: int

    @classmethod
    def of(cls, sketch: bytes) -> Totals:
        return cls._make(_HEAD.unpack_from(sketch))

    def followed_by(self, after: Totals) -> Totals | None:
        """Add the totals of later points; None if these supersede some of the points."""
        if after.first_step <= self.first_step:
            return after
        if after.first_step <= self.last_step:
            return None
        low, low_step = self.low, self.low_step
        if after.low < low or isnan(low):
            low, low_step = after.low, after.low_step
        high, high_step = self.high, self.high_step
        if after.high > high or isnan(high):
            high, high_step = after.high, after.high_step
        return Totals(
            self.size + after.size,
            self.first_step,
            after.last_step,
            self.first_wall,
            after.last_wall,
            after.last,
            low,
            low_step,
            high,
            high_step,
            self.total + after.total,
            self.nans + after.nans,
            self.infinities + after.infinities,
        )


class Sketch(NamedTuple):
    """A sketch of the points of a chunk that no restart within it superseded.

    These are the points without an equal or smaller step after them, so their steps increase. The
    fields are those of `sketch` in pack.h, the totals first. `nan`, `up` and `down` (infinities)
    are the first of their kind, without meaning if there is none.
    """

    size: int
    first_step: int
    last_step: int
    first_wall: float
    last_wall: float
    last: float
    low: float
    low_step: int
    high: float
    high_step: int
    total: float
    nans: int
    infinities: int
    ups: int
    downs: int
    first: float
    low_wall: float
    high_wall: float
    nan_step: int
    nan_wall: float
    up_step: int
    up_wall: float
    down_step: int
    down_wall: float

    @classmethod
    def of(cls, stored: bytes) -> Sketch:
        return cls._make(_LAYOUT.unpack(stored))

    def pack(self) -> bytes:
        return _LAYOUT.pack(*self)


class Part(NamedTuple):
    """The values of a series since the last take, in file order."""

    series: int  # -1 for records that belong to no tag: file versions, session logs
    size: int
    first_step: int
    last_step: int
    min_step: int
    max_step: int
    rising: bool  # every step is greater than the previous one
    last_wall: float
    max_wall: float  # minus infinity if no wall time is a number
    last_value: float | None  # None for pointers
    rows: int  # the largest of its pointers
    chunks: list[Chunk]


class Damage(NamedTuple):
    """A span of bytes in which no good record starts."""

    offset: int
    length: int


class Taken(NamedTuple):
    points: list[Part]
    pointers: list[Part]
    damage: list[Damage]
    events: int


class Series(NamedTuple):
    tag: bytes
    metadata: bytes | None  # the serialized SummaryMetadata of the first value that has one
    origin: int  # the field of Summary.Value with its values, or an ORIGIN_ constant
    kind: int  # a CLASS_ constant, from the metadata
    wide: bool  # a value needs more than a 32-bit float
    unsure: bool  # a single number was read before the class was known


Block = bytes | bytearray | memoryview
RawChunk = tuple[int, bytes, bytes, bytes, bytes]
RawPart = tuple[
    int, int, int, int, int, int, bool, float, float, float | None, int, Sequence[RawChunk]
]
RawSeries = tuple[bytes, bytes | None, int, int, bool, bool]
RawTaken = tuple[Sequence[RawPart], Sequence[RawPart], list[tuple[int, int]], int]
SmallPart = tuple[tuple[Any, ...], tuple[Any, ...]]
"""The columns of a segment in the index after `file`, in the order in which `index.store` declares
them, and those of its only chunk after `id`."""
RawSmallFile = tuple[int, int, int, int, int, float | None, bytes, list[SmallPart]]


class SmallFile(NamedTuple):
    """A complete small file that has only good records."""

    events: int
    points: int
    records: int  # of tags that are not scalars
    reached: int
    digest: int
    first_wall: float | None
    tail: bytes  # the last 256 bytes before what was reached
    parts: list[SmallPart]


class Core(Protocol):
    @property
    def want(self) -> int: ...
    @property
    def damage_start(self) -> int: ...
    @property
    def hold(self) -> int: ...
    @property
    def again(self) -> bool: ...
    @property
    def digest(self) -> int: ...
    @property
    def first_wall(self) -> float | None: ...
    @property
    def series_count(self) -> int: ...
    @property
    def pending(self) -> int: ...
    def reset(
        self, damage_start: int = -1, known: Iterable[tuple[bytes, int]] = (), digest: int = 0
    ) -> None: ...
    def scan(self, block: Block, offset: int, end: int) -> int: ...
    def take(self) -> RawTaken: ...
    def series(self, numbers: list[int] = ..., /) -> list[RawSeries]: ...


class CoreFactory(Protocol):
    def __call__(
        self,
        damage_start: int = -1,
        known: Iterable[tuple[bytes, int]] = (),
        digest: int = 0,
        digest_only: bool = False,
        limits: tuple[int, int] = ...,
    ) -> Core: ...


def _python_core(*args: Any, **options: Any) -> Core:
    from aboard.events.fallback import PythonCore

    return PythonCore(*args, **options)


def cores() -> dict[str, CoreFactory]:
    """Return the available implementations, the preferred one first."""
    core = _compiled_core()
    return ({"c": core.Scanner} if core else {}) | {"python": _python_core}


def _compiled_core() -> Any:
    core = compiled("aboard.events._scanner")
    is_current = getattr(core, "VERSION", 0) == _CORE_VERSION  # else compiled from other sources
    return core if is_current else None


def scan_small_files(files: list[tuple[bytes, int]], least: int) -> list[SmallFile | None]:
    """Read many small local files, by path and size, in one call into the C core.

    Chunks of fewer than `least` points have no sketch. None stands for a file that cannot be read,
    is damaged or unusual; without the C core, for every file.
    """
    core = _compiled_core()
    if core is None:
        return [None] * len(files)
    scans = core.scan_files(files, least)
    return [None if scan is None else SmallFile._make(scan) for scan in scans]


def sketch(size: int, steps: bytes, walls: bytes, payload: bytes) -> bytes:
    """Return the sketch of points in columns as of a chunk, but of any length."""
    core = _compiled_core()
    if core is None:
        from aboard.events import fallback as core
    sketched: bytes = core.sketch(size, steps, walls, payload)
    return sketched


def core_name() -> Literal["c", "python"]:
    return "c" if "c" in cores() else "python"


class Scanner:
    """Scans one file, block by block, from any place where a record starts.

    The first block continues damage that began at `damage_start`, unless that is -1. `known` has
    tags with the CLASS_ known from an earlier part of the run. `digest` is that of the records
    before the first block; with `digest_only` no record is parsed. `limits` are the sizes of the
    longest record that is held unverified, and of the longest that is held at all.
    """

    def __init__(
        self,
        damage_start: int = -1,
        known: Iterable[tuple[bytes, int]] = (),
        core: CoreFactory | None = None,
        *,
        digest: int = 0,
        digest_only: bool = False,
        limits: tuple[int, int] = (MAX_UNVERIFIED, MAX_RECORD),
    ) -> None:
        factory = core if core is not None else next(iter(cores().values()))
        self._core = factory(damage_start, known, digest, digest_only, limits)

    def reset(
        self, damage_start: int = -1, known: Iterable[tuple[bytes, int]] = (), digest: int = 0
    ) -> None:
        """Begin another file in the memory of the last one, which a new scanner would allocate."""
        self._core.reset(damage_start, known, digest)

    def scan(self, block: Block, offset: int, end: int) -> int:
        """Scan a block at `offset` of a file of `end` bytes; return where the next one must start.

        The next block must hold at least `want` bytes, or reach the end of the file.
        """
        return self._core.scan(block, offset, end)

    @property
    def want(self) -> int:
        return self._core.want

    @property
    def again(self) -> bool:
        """Whether the next block must be scanned even if this one reached the end of the file."""
        return self._core.again

    @property
    def digest(self) -> int:
        """A digest of the places and checksums of all good records so far."""
        return self._core.digest

    @property
    def first_wall(self) -> float | None:
        return self._core.first_wall

    @property
    def series_count(self) -> int:
        return self._core.series_count

    @property
    def pending(self) -> int:
        return self._core.pending

    def resume(self, next_offset: int) -> tuple[int, int]:
        """Return (offset, damage start) to continue from once the file has grown."""
        core = self._core
        offset = core.hold if core.hold >= 0 else next_offset
        return offset, core.damage_start if core.damage_start < offset else -1

    def take(self) -> Taken:
        points, pointers, damage, events = self._core.take()
        spans = [Damage(*span) for span in damage]
        return Taken(list(map(_part, points)), list(map(_part, pointers)), spans, events)

    def series(self) -> list[Series]:
        """Return every series so far, in the order of their numbers."""
        return [Series(*one) for one in self._core.series()]

    def series_of(self, taken: Taken) -> dict[int, Series]:
        """Return the series with values in `taken`, by number."""
        parts = (*taken.points, *taken.pointers)
        numbers = sorted({part.series for part in parts if part.series >= 0})
        return dict(zip(numbers, map(Series._make, self._core.series(numbers)), strict=True))


def _part(raw: RawPart) -> Part:
    return Part._make((*raw[:-1], [Chunk._make(one) for one in raw[-1]]))


class Scanned(NamedTuple):
    start: int
    content: memoryview  # valid until the next block is read
    reached: int
    """Where the next block starts; at the end of the file, an incomplete record follows it."""
    at_end: bool

    @property
    def end(self) -> int:
        return self.start + len(self.content)


_large = threading.Lock()  # held by the reader of a record that is larger than its buffer


def scan_blocks(
    scanner: Scanner,
    readinto: Callable[[int, memoryview], int],
    start: int,
    end: int,
    buffer: bytearray,
) -> Iterator[Scanned]:
    """Scan the bytes from `start` to `end` of a file; yield after every block.

    A record larger than the buffer gets its own buffer, which only one thread at a time may have.
    If the file is shorter than `end`, the scan stops at its end.
    """
    at_end = False
    while not at_end:
        need = min(scanner.want, end - start)
        with _large if need > len(buffer) else nullcontext():
            room = memoryview(buffer if need <= len(buffer) else bytearray(need))
            room = room[: max(0, end - start)]
            got = readinto(start, room) if room else 0
            if got < len(room):
                end = start + got
            content = room[:got]
            reached = scanner.scan(content, start, end)
            at_end = start + got >= end and not scanner.again
            yield Scanned(start, content, reached, at_end)
            content.release()
            del room, content
        start = reached
