"""Event files to columns: the scalars of a block of bytes, and where the rest is.

A *series* is a tag of one file, numbered in the order in which tags appear. A
*point* is one scalar of a series; every other value is a *pointer* to the record
that holds it. The work is done by the C core, or by its twin in `fallback` where
the core was not compiled (or ABOARD_PURE_PYTHON is set); both follow scan.h and
pack.h. Columns are handed out as bytes, so that nothing here needs numpy.
"""

# ruff: noqa: D102 - the protocols below only name what `Scanner` explains

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from aboard.events.fallback import PythonCore


CHUNK_VALUES = 4096


class Chunk(NamedTuple):
    """Up to 4,096 values of a series that follow each other, as arrays of this machine's order.

    Steps are 64-bit integers; of three or more that rise evenly, or not at all, only
    the first and the stride are there. Wall times are 64-bit floats.
    """

    size: int
    """The number of values."""
    steps: bytes
    walls: bytes
    payload: bytes
    """Of points their values, as 32-bit floats where the series is not wide, or else as
    64-bit ones. Of each pointer three 64-bit integers: the record's offset, the length
    of its data, and the first dimension of its tensor."""


class Part(NamedTuple):
    """What a series got since the last take, in file order."""

    series: int
    """Its number; -1 for records that belong to no tag: file versions, session logs."""
    size: int
    """The number of values."""
    first_step: int
    last_step: int
    min_step: int
    max_step: int
    rising: bool
    """Whether every step is greater than the one before."""
    last_wall: float
    max_wall: float
    """Minus infinity where no wall time is a number."""
    last_value: float | None
    """None for pointers."""
    rows: int
    """The largest of its pointers."""
    chunks: list[Chunk]


class Damage(NamedTuple):
    """A span of bytes in which no good record starts."""

    offset: int
    length: int


class Taken(NamedTuple):
    """What was scanned since the last take, by series."""

    points: list[Part]
    pointers: list[Part]
    damage: list[Damage]
    events: int


class Series(NamedTuple):
    """A tag of a file, as its first values describe it."""

    tag: bytes
    metadata: bytes | None
    """The serialized SummaryMetadata of the first value that has one."""
    origin: int
    """The field of Summary.Value that holds its values, or an ORIGIN_ constant."""
    kind: int
    """A CLASS_ constant: what the metadata says."""
    wide: bool
    """Whether a value needs more than a 32-bit float."""


Block = bytes | bytearray | memoryview
RawChunk = tuple[int, bytes, bytes, bytes]
RawPart = tuple[
    int, int, int, int, int, int, bool, float, float, float | None, int, Sequence[RawChunk]
]
RawTaken = tuple[Sequence[RawPart], Sequence[RawPart], list[tuple[int, int]], int]


class Core(Protocol):
    """What both implementations offer; see `Scanner` for the meaning."""

    @property
    def want(self) -> int: ...
    @property
    def damage_start(self) -> int: ...
    @property
    def hold(self) -> int: ...
    @property
    def first_wall(self) -> float | None: ...
    @property
    def pending(self) -> int: ...
    def scan(self, block: Block, offset: int, end: int) -> int: ...
    def take(self) -> RawTaken: ...
    def series(self) -> list[tuple[bytes, bytes | None, int, int, bool]]: ...


class CoreFactory(Protocol):
    """Makes a core that starts inside damage, or with tags already classified."""

    def __call__(self, damage_start: int = -1, known: Iterable[tuple[bytes, int]] = ()) -> Core: ...


def _python_core(damage_start: int = -1, known: Iterable[tuple[bytes, int]] = ()) -> PythonCore:
    from aboard.events.fallback import PythonCore

    return PythonCore(damage_start, known)


def cores() -> dict[str, CoreFactory]:
    """Return the implementations at hand, the preferred one first."""
    found: dict[str, CoreFactory] = {}
    if not os.environ.get("ABOARD_PURE_PYTHON"):
        try:
            from aboard.events import _scanner
        except ImportError:
            pass
        else:
            found["c"] = _scanner.Scanner
    found["python"] = _python_core
    return found


def core_name() -> Literal["c", "python"]:
    """Return which implementation serves."""
    return "c" if "c" in cores() else "python"


class Scanner:
    """Scans one file, block by block, from any place where a record starts.

    Args:
        damage_start: where the damage began that the first block continues, or -1.
        known: tags whose CLASS_ an earlier part of the file has told.
        core: the implementation; the best one at hand by default.
    """

    def __init__(
        self,
        damage_start: int = -1,
        known: Iterable[tuple[bytes, int]] = (),
        core: CoreFactory | None = None,
    ) -> None:
        factory = core if core is not None else next(iter(cores().values()))
        self._core = factory(damage_start, known)

    def scan(self, block: Block, offset: int, end: int) -> int:
        """Scan a block that starts at `offset` of a file of `end` bytes.

        Returns:
            The offset at which the next block must start. It must hold at least
            `want` bytes, or reach the end of the file, to make progress.
        """
        return self._core.scan(block, offset, end)

    @property
    def want(self) -> int:
        """The number of bytes that the next block must hold."""
        return self._core.want

    @property
    def first_wall(self) -> float | None:
        """The wall time of the first event scanned, None before there was one."""
        return self._core.first_wall

    @property
    def pending(self) -> int:
        """The number of values that were scanned and not taken."""
        return self._core.pending

    def resume(self, next_offset: int) -> tuple[int, int]:
        """Return (offset, damage start) to continue from once the file has grown."""
        core = self._core
        offset = core.hold if core.hold >= 0 else next_offset
        return offset, core.damage_start if core.damage_start < offset else -1

    def take(self) -> Taken:
        """Return and forget what was scanned since the last take."""
        points, pointers, damage, events = self._core.take()
        return Taken(
            [_part(one) for one in points],
            [_part(one) for one in pointers],
            [Damage(*span) for span in damage],
            events,
        )

    def series(self) -> list[Series]:
        """Return every series seen so far; its place in the list is its number."""
        return [Series(*one) for one in self._core.series()]


def _part(raw: RawPart) -> Part:
    return Part._make((*raw[:-1], [Chunk._make(one) for one in raw[-1]]))


class Scanned(NamedTuple):
    """One block that went through a scanner."""

    start: int
    length: int
    reached: int
    """Where the next block starts; at the end of the file, what is behind it is not yet whole."""
    at_end: bool


def scan_blocks(
    scanner: Scanner,
    readinto: Callable[[int, memoryview], int],
    start: int,
    end: int,
    buffer: bytearray,
) -> Iterator[Scanned]:
    """Drive a scanner over bytes `start` to `end` of a file; yield after every block.

    Memory stays at the buffer's size unless a single record is larger. A file
    that turns out shorter than `end` is scanned as far as it goes.
    """
    while True:
        if len(buffer) < scanner.want <= end - start:
            buffer.extend(bytes(scanner.want - len(buffer)))
        with memoryview(buffer) as whole, whole[: max(0, end - start)] as room:
            got = readinto(start, room) if room else 0
            if got < len(room):
                end = start + got
            with room[:got] as block:
                reached = scanner.scan(block, start, end)
        at_end = start + got >= end
        yield Scanned(start, got, reached, at_end)
        if at_end:
            return
        start = reached
