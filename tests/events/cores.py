"""The scanning cores of this machine, and files delivered to them in odd blocks."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from aboard.events import encode
from aboard.events.records import frame
from aboard.events.scanner import Damage, Part, Scanner, Series, Taken, cores, scan_blocks
from aboard.index.series import unpack

CORES = cores()


class Row(NamedTuple):
    """One value: `payload` is a number, or (offset, length, rows)."""

    series: int
    step: int
    wall: float
    payload: Any


def rows(parts: list[Part]) -> list[Row]:
    """Return every value of some parts."""
    found = []
    for part in parts:
        form = 1 if part.last_value is None else 0
        for chunk in part.chunks:
            columns = unpack(*chunk[:4], form=form)
            lists = (columns.steps, columns.walls, columns.payload)
            found += [
                Row(part.series, *one) for one in zip(*(c.tolist() for c in lists), strict=True)
            ]
    return found


@dataclass
class Result:
    taken: Taken
    series: list[Series]
    resume: tuple[int, int]
    digest: int

    @property
    def plain(self):
        """Everything, in a form that compares exactly, NaN included."""
        taken = self.taken
        parts = [*taken.points, *taken.pointers]
        told = [["NaN" if repr(one) == "nan" else one for one in part] for part in parts]
        return told, taken.damage, taken.events, self.series, self.resume, self.digest

    @property
    def scalars(self) -> list[Row]:
        return rows(self.taken.points)

    @property
    def pointers(self) -> list[Row]:
        return rows(self.taken.pointers)

    def points(self, tag):
        """Return the (step, value) pairs of a tag."""
        number = [one.tag for one in self.series].index(tag.encode())
        return [(one.step, one.payload) for one in self.scalars if one.series == number]

    @property
    def damage(self) -> list[Damage]:
        return self.taken.damage


def scan(data: bytes, *, core: str = "", block: int = 1 << 16, **options) -> Result:
    """Scan a whole file, delivered in blocks of the given size."""
    scanner = Scanner(core=CORES[core] if core else None, **options)

    def readinto(offset, room):
        piece = data[offset : offset + len(room)]
        room[: len(piece)] = piece
        return len(piece)

    reached = 0
    for scanned in scan_blocks(scanner, readinto, 0, len(data), bytearray(block)):
        reached = scanned.reached
    resume = scanner.resume(reached)
    return Result(scanner.take(), scanner.series(), resume, scanner.digest)


def scalar_event(step: int, value: float = 0.5, tag: str = "loss", wall: float = 1.0) -> bytes:
    return encode.event(wall, step, [encode.scalar(tag, value)])


def scalar_file(steps, **options) -> bytes:
    return b"".join(frame(scalar_event(step, **options)) for step in steps)


def same_numbers(left, right) -> bool:
    return np.array_equal(np.asarray(left, float), np.asarray(right, float), equal_nan=True)
