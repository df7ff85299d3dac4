"""Compare the two scanning cores on random, damaged event files.

    python fuzz/differential.py [--cases N] [--seed N] [--jobs N]

Every case is generated from its number: events with fields in unusual order, repeated, unknown
or of the wrong type, values of every dtype, and metadata that comes early, late or never; then
bytes are flipped, cut, moved and inserted. Both cores get the file in the same blocks, and must
agree on all results after each block.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from seeds import DTYPES, built_events, fixture_files

from aboard.events import encode
from aboard.events.encode import delimited, varint
from aboard.events.records import crc32c, frame, mask
from aboard.events.scanner import Chunk, Part, Scanner, Sketch, Taken, cores

FINDINGS = Path(__file__).parent / "out" / "findings"
BUILT = list(built_events())
FIXTURES = [one for one in fixture_files() if len(one) < 60_000]
TAGS = [b"loss", b"acc", b"", b"__run_graph__", b"\xff\xfe", "größe".encode(), b"x" * 70]
PLUGINS = ["scalars", "text", "", "own", "scalar", "images"]
WHOLE_NUMBERS = [0, 1, 2, 127, 128, 255, 256, 65535, 2**31, 2**32 - 1, 2**53 + 1, 2**63, 2**64 - 1]
EDGES = [0.0, -0.0, 1.5, -1234.5, float("nan"), float("inf"), float("-inf"), 1e-320, 1e300, 3e38]


def any_varint(rng: random.Random) -> bytes:
    """Return a number in base 128, sometimes longer than necessary or truncated."""
    encoded = bytearray(
        varint(rng.choice(WHOLE_NUMBERS) if rng.random() < 0.5 else rng.getrandbits(7))
    )
    if rng.random() < 0.05:
        encoded[-1] |= 0x80
        encoded += b"\x80" * rng.randrange(4) + rng.choice([b"\x00", b"\x01", b"\x80"])
    return bytes(encoded)


def unknown_field(rng: random.Random) -> bytes:
    """Return a field that is unknown, of another type, or broken."""
    number, wire = rng.randrange(0 if rng.random() < 0.01 else 1, 20), rng.choice([0, 1, 2, 5])
    if rng.random() < 0.2:
        inside = b"".join(unknown_field(rng) for _ in range(rng.choice([0, 1, 1, 2])))
        return varint(number << 3 | 3) + inside + varint(number << 3 | 4)
    if rng.random() < 0.02:
        wire = rng.choice([3, 4, 6, 7])
    content = {
        0: any_varint(rng),
        1: rng.randbytes(8),
        2: varint(3) + rng.randbytes(rng.choice([3, 3, 3, 2])),
        5: rng.randbytes(4),
    }
    return varint(number << 3 | wire) + content.get(wire, b"")


def message(rng: random.Random, parts: list[bytes], odd: float) -> bytes:
    """Join the fields of a message; the odder, the more often in an unusual way."""
    parts = list(parts)
    if rng.random() < odd:
        rng.shuffle(parts)
    if parts and rng.random() < odd / 2:
        parts.append(rng.choice(parts))
    if parts and rng.random() < odd / 4:
        parts.remove(rng.choice(parts))
    if rng.random() < odd / 2:
        parts.insert(rng.randrange(len(parts) + 1), unknown_field(rng))
    return b"".join(parts)


def any_shape(rng: random.Random, odd: float) -> bytes:
    sizes = rng.choice([[], [], [], [1], [1, 1], [0], [2], [3, 1]])
    dims = [
        delimited(
            2,
            message(
                rng,
                [b"\x08" + (any_varint(rng) if rng.random() < odd / 4 else varint(size))],
                odd / 4,
            ),
        )
        for size in sizes
    ]
    if rng.random() < odd / 8:
        dims.append(b"\x18" + any_varint(rng))
    return delimited(2, message(rng, dims, odd / 4))


def any_tensor(rng: random.Random, odd: float) -> bytes:
    """Return a TensorProto of about one element, with its value in any of the fields."""
    if rng.random() < 0.6 - odd / 2:
        number = rng.choice([0, 1, 100])
        return encode.tensor_proto(number, rng.choice(DTYPES), content=rng.random() < 0.5)
    dtype = rng.choice([1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 17, 19, 22, 23, 200])
    parts = [b"\x08" + varint(dtype), any_shape(rng, odd)]
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        field = rng.choice([4, 5, 6, 7, 10, 11, 13, 16, 17])
        width = {4: rng.choice([1, 2, 4, 8]), 5: 4, 6: 8}.get(field, 0)
        count = rng.choice([0, 1, 1, 1, 2])
        elements = [rng.randbytes(width) if width else any_varint(rng) for _ in range(count)]
        if rng.random() < 0.5 or field == 4:
            parts.append(
                delimited(field, b"".join(elements)[: 100 if rng.random() > odd / 8 else 3])
            )
        else:
            wire = {5: 5, 6: 1}.get(field, 0)
            parts += [varint(field << 3 | wire) + element for element in elements]
    return message(rng, parts, odd / 2)


def any_metadata(rng: random.Random, odd: float) -> bytes:
    plugin = message(
        rng, [delimited(1, rng.choice(PLUGINS).encode()), delimited(2, b"content")], odd
    )
    parts = [delimited(1, plugin), delimited(2, b"name")]
    if rng.random() < 0.3:
        parts.append(b"\x20" + varint(rng.choice([0, 1, 1, 2, 3, 9])))
    return message(rng, parts, odd)


def any_value(rng: random.Random, odd: float, tags: list[bytes]) -> bytes:
    """Return a Summary.Value of any kind."""
    number = rng.choice(EDGES) if rng.random() < 0.5 else rng.random()
    parts = [delimited(rng.choice([1] * 9 + [7]), rng.choice(tags))]
    kind = rng.random()
    if kind < 0.4:
        parts.append(b"\x15" + encode_float(number))
    elif kind < 0.85:
        parts.append(delimited(8, any_tensor(rng, odd)))
    else:
        parts.append(delimited(rng.choice([4, 5, 6]), rng.randbytes(rng.randrange(6))))
    if rng.random() < 0.15:
        parts.append(delimited(9, any_metadata(rng, odd)))
    return message(rng, parts, odd)


def encode_float(number: float) -> bytes:
    return np.float32(np.clip(number, -3e38, 3e38) if np.isfinite(number) else number).tobytes()


def any_event(rng: random.Random, odd: float, tags: list[bytes]) -> bytes:
    """Return an Event of any kind."""
    if rng.random() < 0.05:
        return rng.choice(BUILT)
    head = [b"\x09" + struct.pack("<d", rng.choice(EDGES)), b"\x10" + any_varint(rng)]
    kind = rng.random()
    if kind < 0.85:
        values = [
            delimited(1, any_value(rng, odd, tags))
            for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 4]))
        ]
        head.append(delimited(5, message(rng, values, odd / 2)))
    elif kind < 0.9:
        inside = [delimited(1, rng.choice(tags)), delimited(2, b"run metadata")]
        head.append(delimited(8, message(rng, inside, odd)))
    elif kind < 0.97:
        head.append(delimited(rng.choice([3, 4, 6, 7, 9]), rng.randbytes(rng.randrange(9))))
    if rng.random() < 0.01:
        head.append(delimited(15, rng.randbytes(rng.randrange(1500, 12_000))))
    return message(rng, head, odd)


def repeated_events(rng: random.Random, odd: float, tags: list[bytes]) -> Iterator[bytes]:
    """Yield events that differ only in time, step and last bytes, as a training writes them."""
    value = any_value(rng, odd, tags)
    tail = [delimited(5, delimited(1, value))]
    if rng.random() < odd / 2:
        again = rng.choice([b"\x09" + rng.randbytes(8), b"\x10\x07", delimited(4, b"g"), tail[0]])
        tail = [tail[0], again, tail[0]]
    joined = b"".join(tail)
    step = rng.choice(WHOLE_NUMBERS[:11])
    for _ in range(rng.randrange(2, 12)):
        step += rng.choice([1, 1, 1, 0, -1])
        time_and_step = b"\x09" + struct.pack("<d", rng.random()) + b"\x10" + varint(max(step, 0))
        end = encode_float(rng.choice(EDGES)) if rng.random() < 0.9 else rng.randbytes(4)
        yield time_and_step + joined[:-4] + end


def any_file(rng: random.Random) -> bytes:
    """Return an event file without damage."""
    if FIXTURES and rng.random() < 0.02:
        return rng.choice(FIXTURES)
    odd = rng.choice([0, 0, 0.1, 0.3, 0.6])
    tags = rng.sample(TAGS, rng.randrange(1, 4))
    events: list[bytes] = []
    while len(events) < 20 and rng.random() < 0.85:
        if rng.random() < 0.4:
            events += repeated_events(rng, odd, tags)
        else:
            events.append(any_event(rng, odd, tags))
    if len(events) > 3 and rng.random() < 0.2:
        rng.shuffle(events)
    return b"".join(map(frame, events))


def header(length: int) -> bytes:
    """Return the header of a record of the given length."""
    octets = struct.pack("<Q", length)
    return octets + struct.pack("<I", mask(crc32c(octets)))


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Return the file with a few bytes flipped, cut, moved or inserted."""
    octets = bytearray(content)
    for _ in range(rng.choice([0, 0, 1, 1, 2, 5])):
        at = rng.randrange(len(octets) + 1)
        size = rng.choice([1, 3, 12, 16, 60])
        match rng.randrange(7):
            case 0 if at < len(octets):
                octets[at] ^= 1 << rng.randrange(8)
            case 1:
                del octets[at : at + size]
            case 2:
                octets[at:at] = rng.randbytes(size)
            case 3:
                octets[at:at] = octets[at // 2 : at // 2 + size]
            case 4:
                octets[at:at] = frame(b"")[: rng.randrange(17)]
            case 5:
                octets[at:at] = header(rng.randrange(1 << rng.randrange(1, 12)))
            case 6:  # many that claim much
                claims = [rng.randrange(len(octets) + 20) for _ in range(rng.randrange(20))]
                octets[at:at] = b"".join(map(header, claims))
    if rng.random() < 0.3:
        del octets[rng.randrange(len(octets) + 1) :]
    if rng.random() < 0.003:
        at = rng.randrange(len(octets) + 1)
        octets[at:at] = rng.randbytes(rng.randrange(60_000, 140_000))
    return bytes(octets)


def comparable(taken: Taken) -> list[object]:
    """Return the results in a form that compares exactly, with all NaNs equal."""
    return [*map(_comparable_part, (*taken.points, *taken.pointers)), taken.damage, taken.events]


def _comparable_part(part: Part) -> list[object]:
    fields = ["NaN" if repr(one) == "nan" else one for one in part[:-1]]
    return [*fields, *(column for chunk in part.chunks for column in _comparable_columns(chunk))]


def _comparable_columns(chunk: Chunk) -> Iterator[object]:
    yield repr(Sketch.of(chunk.sketch)) if chunk.sketch else ""
    yield chunk.steps
    yield _without_kinds_of_nan(np.frombuffer(chunk.walls))
    width = {4: np.float32, 8: np.float64, 24: np.int64}[len(chunk.payload) // chunk.size]
    yield _without_kinds_of_nan(np.frombuffer(chunk.payload, width))


def _without_kinds_of_nan(column: np.ndarray) -> bytes:
    return np.where(np.isnan(column), np.nan, column).tobytes()


def first_difference(rng: random.Random, content: bytes) -> str:
    """Scan with both cores in the same blocks; return the first difference, or empty."""
    damage_start = rng.choice([-1, -1, -1, 0])
    known = [(tag, rng.randrange(3)) for tag in rng.sample(TAGS, rng.choice([0, 0, 2]))]
    limits = rng.choice([(1 << 24, 1 << 28), (100, 1000), (16, 1 << 20)])
    both = [
        Scanner(damage_start, known, core=cores()[name], limits=limits) for name in ("c", "python")
    ]
    start, end, largest = 0, len(content), rng.choice([1 << 17, 1 << 17, 500, 40])
    while True:
        size = min(max(rng.randrange(1, largest + 1), both[0].want), end - start)
        block = content[start : start + size]
        reached = [one.scan(block, start, end) for one in both]
        at_end = start + size >= end and not both[0].again
        seen = {
            "reached": reached,
            "want": [one.want for one in both],
            "again": [one.again for one in both],
            "digest": [one.digest for one in both],
            "pending": [one.pending for one in both],
            "first wall": [str(one.first_wall) for one in both],
            "resume": [one.resume(reached[0]) for one in both],
        }
        if at_end or rng.random() < 0.2:
            seen["taken"] = [comparable(one.take()) for one in both]
            seen["series"] = [one.series() for one in both]
        for name, (left, right) in seen.items():
            if left != right:
                return f"{name} after bytes {start} to {start + size}: {left} and {right}"
        if at_end:
            return ""
        start = reached[0]


def run_case(seed: int, case: int) -> str:
    rng = random.Random(f"{seed} {case}")
    content = damaged(rng, any_file(rng))
    try:
        return first_difference(rng, content)
    except Exception as error:  # noqa: BLE001 - neither core may raise on any input
        return f"{type(error).__name__}: {error}"


def run_cases(seed: int, first: int, last: int) -> list[tuple[int, str]]:
    found = ((case, run_case(seed, case)) for case in range(first, last))
    return [(case, difference) for case, difference in found if difference]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if list(cores()) != ["c", "python"]:
        print("differential: the C core is not compiled", file=sys.stderr)
        return 2
    started, step = time.monotonic(), 500
    differences: list[tuple[int, str]] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        parts = [
            pool.submit(run_cases, options.seed, first, min(first + step, options.cases))
            for first in range(0, options.cases, step)
        ]
        for part in parts:
            differences += part.result()
    seconds = time.monotonic() - started
    print(f"{options.cases} cases in {seconds:.0f} s, {len(differences)} differ")
    for case, difference in differences[:10]:
        rng = random.Random(f"{options.seed} {case}")
        FINDINGS.mkdir(parents=True, exist_ok=True)
        path = FINDINGS / f"differential-{options.seed}-{case}"
        path.write_bytes(damaged(rng, any_file(rng)))
        print(f"case {case} ({path}): {difference[:300]}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
