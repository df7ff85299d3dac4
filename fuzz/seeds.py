"""Generate the initial corpus of the fuzzer: events of every kind, as inputs of scan_fuzz.c.

    python fuzz/seeds.py DIRECTORY

Takes events from the builders in `aboard.events.encode` and from the test fixtures, and damages
some, so that the fuzzer does not have to discover protobuf.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from aboard.events import encode
from aboard.events.records import ends, frame, unframe

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
LARGEST = 2048
"""Longer inputs only make the fuzzer slow."""

DTYPES = (
    *("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
    *("uint64", "bool", "float16", "bfloat16", "complex64"),
)


def built_events() -> Iterator[bytes]:
    """Yield an event of every kind that this project writes."""
    yield encode.file_version(1.0)
    yield encode.graph(1.0, b"graph", 3)
    yield encode.tagged_run_metadata(1.0, 2, "trace", b"metadata")
    values = [
        encode.scalar("loss", 0.5),
        encode.scalar("loss", float("nan")),
        encode.text("notes", "words"),
        encode.histogram("weights", [[0, 1, 2]]),
        encode.images("pictures", [b"png"], 1, 1),
        encode.audio("sounds", [b"wav"]),
        encode.legacy_image("picture", b"png", 1, 1),
        encode.legacy_audio("sound", b"wav", 8000, 1, 1),
        encode.legacy_histogram("weight", (1, 1, 1, 1, 1), [2.0], [1]),
        encode.hparams_start({"lr": 0.1}),
        encode.tensor("matrix", [[1.0, 2.0]], plugin="own", data_class="scalar"),
        encode.tensor("row", [1.0], plugin="scalars"),
    ]
    for dtype in DTYPES:
        for content in (False, True):
            values.append(encode.scalar_tensor(f"{dtype}", 1, dtype, content=content))
            again = encode.scalar_tensor("tensor", dtype != "bool", dtype, content=content)
            values.append(again.bare())
    for step, value in enumerate(values):
        yield encode.event(1.5, step << 4 * step % 60, [value])
    yield encode.event(2.0, -1, values[:4])
    yield encode.event(2.0, 1, [encode.scalar(f"tag{number}", number) for number in range(40)])


def fixture_files() -> list[bytes]:
    return [path.read_bytes() for path in sorted(FIXTURES.rglob("*tfevents*"))]


def raw(content: bytes, cut: int = 0xFFFF) -> bytes:
    """Return the input that makes the fuzzer scan a file unchanged."""
    return struct.pack("<BBH", 0, len(content) & 0xFF, cut) + content


def pieces(events: Sequence[bytes], operations: Sequence[int] = (0,), cut: int = 0x8000) -> bytes:
    """Return the input that makes the fuzzer frame events, and damage some."""
    parts = [struct.pack("<BBH", 3 | len(events) << 2 & 0xFC, len(events[0]) & 0xFF, cut)]
    for number, event in enumerate(events):
        operation = operations[number % len(operations)]
        parts += [struct.pack("<BH", operation, len(event)), event]
    return b"".join(parts)


def seeds() -> Iterator[bytes]:
    """Yield every input of the corpus."""
    events = [
        *built_events(),
        *{
            unframe(content[start:end])
            for content in fixture_files()
            for start, end in pairwise([0, *ends(content)])
        },
    ]
    events = sorted((one for one in events if len(one) < LARGEST // 2), key=len)
    for event in events:
        yield pieces([event])
    # A flipped bit, a cut, a wrong checksum and unframed bytes, each between intact records.
    operations = (0, 0x7D, 0, 0x86, 0, 0xFF, 0, 0x04)
    for first in range(0, len(events), 8):
        group = events[first : first + 8]
        yield pieces(group)
        yield pieces(group, operations)
        yield raw(b"".join(map(frame, group)), 0x4000)
    yield pieces([frame(events[0]), events[1]], (0x04, 0))
    yield raw(b"")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    count = 0
    for count, seed in enumerate(seeds(), 1):
        if len(seed) <= LARGEST:
            (directory / f"seed-{count:04}").write_bytes(seed)
    print(f"{count} seeds in {directory}")


if __name__ == "__main__":
    main()
