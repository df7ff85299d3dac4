"""Log trees to measure with: many runs, tags and steps, every value different.

A tree is made once and kept. Records of one tag whose steps take the same number of bytes differ
only in time, step, value and checksum, so they are filled in as columns of a matrix.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from aboard.events import encode, fallback
from aboard.events.records import HEADER, OVERHEAD, frame

Style = Literal["simple", "tensor"]
Octets = npt.NDArray[np.uint8]

VERSION = 1
"""Part of every tree's name, so that trees of an older generator are not used."""
START = 1.7e9
PROBE = 1234.5
STEPS_AT_ONCE = 8192


class Tree(NamedTuple):
    """The size of a log tree, and how its scalars are written."""

    runs: int
    tags: int
    steps: int
    style: Style = "simple"

    @property
    def points(self) -> int:
        """The number of scalars in it."""
        return self.runs * self.tags * self.steps

    @property
    def name(self) -> str:
        """The name of its directory, unique for its size and style."""
        return f"{self.runs}x{self.tags}x{self.steps}-{self.style}-{VERSION}"

    def __str__(self) -> str:
        return f"{self.runs:,} runs x {self.tags} tags x {self.steps:,} steps, {self.style}"


def make(tree: Tree, cache: Path) -> Path:
    """Return the directory of a tree, making it if it does not exist."""
    place = cache / "trees" / tree.name
    if place.is_dir():
        return place
    unfinished = place.with_name(f"{place.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    for run in range(tree.runs):
        path = file_of(unfinished, run)
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            file.write(frame(encode.file_version(START + run, "")))
            for part in records(tree, run, 0, tree.steps):
                file.write(part)
    unfinished.rename(place)
    return place


def file_of(place: Path, run: int) -> Path:
    """Return the event file of a run."""
    return place / f"run_{run:05}" / f"events.out.tfevents.{1_700_000_000 + run}.host.{run}.0"


def warm(place: Path) -> int:
    """Read every file once into the page cache; return their total size."""
    total = 0
    with memoryview(bytearray(1 << 20)) as buffer:
        for path in place.rglob("*tfevents*"):
            with path.open("rb", buffering=0) as file:
                while got := file.readinto(buffer):
                    total += got
    return total


def records(tree: Tree, run: int, first: int, last: int) -> Iterator[bytes]:
    """Yield the records of a run for steps `first` to `last - 1`, all tags of a step together."""
    for start, stop in _evenly_encoded(first, last):
        steps = np.arange(start, stop)
        columns = [_column(tree, run, tag, steps) for tag in range(tree.tags)]
        if start == 0 and tree.style == "tensor":
            # As in TensorFlow 2, only the first value of a tag carries its metadata.
            yield b"".join(_first_record(tree, run, tag) for tag in range(tree.tags))
            columns = [column[1:] for column in columns]
        yield np.concatenate(columns, axis=1).tobytes()


def _evenly_encoded(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of steps whose numbers take the same number of bytes."""
    while first < last:
        ends = [1, *(1 << 7 * size for size in range(1, 9)), last, first + STEPS_AT_ONCE]
        end = min(end for end in ends if end > first)
        yield first, min(end, last)
        first = end


def tag_name(tag: int) -> str:
    """Return the name of a tag by its number."""
    return ("train/loss", "train/accuracy", "eval/loss", "lr")[tag % 4] + f"_{tag}"


def _walls(run: int, tag: int, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return START + run * 10 + steps * 0.125 + tag / 1024


def _numbers(run: int, tag: int, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    noise = np.random.default_rng([run, tag, int(steps[0])]).normal(0, 0.05, len(steps))
    return (np.exp(-steps / 1000) + tag + noise).astype(np.float32)


def _event(tree: Tree, tag: int, wall: float, step: int, number: float, *, bare: bool) -> bytes:
    if tree.style == "simple":
        value = encode.scalar(tag_name(tag), number)
    else:
        value = encode.scalar_tensor(tag_name(tag), np.float32(number), content=False)
    return encode.event(wall, step, [value.bare() if bare else value])


def _first_record(tree: Tree, run: int, tag: int) -> bytes:
    zero = np.zeros(1, np.int64)
    wall, number = float(_walls(run, tag, zero)[0]), float(_numbers(run, tag, zero)[0])
    return frame(_event(tree, tag, wall, 0, number, bare=False))


def _column(tree: Tree, run: int, tag: int, steps: npt.NDArray[np.int64]) -> Octets:
    """Return the records of one tag, a row for each step."""
    first = int(steps[0])
    walls, numbers = _walls(run, tag, steps), _numbers(run, tag, steps)
    if len(steps) == 1:  # faster without a matrix
        record = frame(_event(tree, tag, float(walls[0]), first, float(numbers[0]), bare=True))
        return np.frombuffer(record, np.uint8)[None]
    template = frame(_event(tree, tag, START, first, PROBE, bare=True))
    rows = np.tile(np.frombuffer(template, np.uint8), (len(steps), 1))
    _fill(rows, HEADER + 1, walls.astype("<f8"))
    for place in range(len(encode.varint(first)) if first else 0):
        more = steps >> 7 * (place + 1) > 0
        rows[:, HEADER + 10 + place] = (steps >> 7 * place & 0x7F) | more << 7
    _fill(rows, template.rindex(np.float32(PROBE).tobytes()), numbers.astype("<f4"))
    count, width = rows.shape
    starts = np.arange(count) * width + HEADER
    lengths = np.full(count, width - OVERHEAD)
    states = fallback._advance(fallback._fresh(count), rows.reshape(-1), starts, lengths)
    _fill(rows, width - 4, fallback._masked(states).astype("<u4"))
    return rows


def _fill(rows: Octets, place: int, values: npt.NDArray[Any]) -> None:
    width = values.dtype.itemsize
    rows[:, place : place + width] = values.view(np.uint8).reshape(len(rows), width)
