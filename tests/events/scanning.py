"""What the scanner's tests share: every core at hand, and files delivered in odd blocks."""

from dataclasses import dataclass

import numpy as np

from aboard.events import encode
from aboard.events.records import frame
from aboard.events.scanner import Damage, Scanner, Series, Taken, cores, scan_blocks

CORES = cores()


@dataclass
class Result:
    taken: Taken
    series: list[Series]
    resume: tuple[int, int]

    @property
    def plain(self):
        """Everything, in a form that compares exactly, NaN included."""
        taken = self.taken
        columns = [column.tobytes() for column in (*taken.points, *taken.pointers)]
        return columns, taken.damage, taken.events, self.series, self.resume

    def points(self, tag):
        """Return the (step, value) pairs of a tag."""
        number = [one.tag for one in self.series].index(tag.encode())
        mine = self.taken.points.series == number
        return list(
            zip(
                self.taken.points.step[mine].tolist(),
                self.taken.points.value[mine].tolist(),
                strict=True,
            )
        )

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
    return Result(scanner.take(), scanner.series(), scanner.resume(reached))


def scalar_event(step: int, value: float = 0.5, tag: str = "loss", wall: float = 1.0) -> bytes:
    return encode.event(wall, step, [encode.scalar(tag, value)])


def scalar_file(steps, **options) -> bytes:
    return b"".join(frame(scalar_event(step, **options)) for step in steps)


def same_numbers(left, right) -> bool:
    return np.array_equal(np.asarray(left, float), np.asarray(right, float), equal_nan=True)
