"""Good records are found behind any damage, at a cost that grows with the file and no faster."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scanning import CORES, scan

from aboard.events import encode
from aboard.events.records import crc32c, frame, mask
from aboard.events.scanner import Scanner, scan_blocks

pytestmark = pytest.mark.parametrize("core", list(CORES))


def header(length: int) -> bytes:
    """Return the header of a record of so many bytes."""
    octets = struct.pack("<Q", length)
    return octets + struct.pack("<I", mask(crc32c(octets)))


def long_record(step: int, size: int) -> bytes:
    return frame(encode.event(1.0, step, [encode.text("notes", "x" * size)]))


def found(result):
    return [(one.step, one.payload[0]) for one in result.pointers]


@pytest.mark.parametrize("size", [0, 63, 64, 1023, 1024, 4096, 4097, 70_000])
def test_records_of_any_length_are_found_behind_damage(core, size):
    good = long_record(1, size), long_record(2, 3 * size + 5)
    data = b"damage" + good[0] + b"more" + good[1]
    result = scan(data, core=core, block=1 << 18)
    second = 10 + len(good[0])
    assert found(result) == [(1, 6), (2, second)]
    assert result.damage == [(0, 6), (second - 4, 4)]


@given(
    st.integers(4000, 20_000),
    st.lists(st.integers(0, 30_000), max_size=20),
    st.integers(0, 19_000),
    st.sampled_from([1 << 18, 5000, 100]),
)
def test_headers_that_lie_hide_nothing(core, size, claims, flipped, block):
    torn = bytearray(long_record(1, size))
    torn[12 + flipped % (len(torn) - 12)] ^= 1
    lies = b"".join(map(header, claims))
    last = long_record(3, size)
    data = bytes(torn) + lies + long_record(2, size) + lies + last
    result = scan(data, core=core, block=block)
    assert found(result) == [(2, len(torn) + len(lies)), (3, len(data) - len(last))]


def sent(data: bytes, core: str, block: int = 1 << 16) -> int:
    """Scan a file; return how many bytes were handed to the scanner, some of them again."""
    scanner = Scanner(core=CORES[core])

    def readinto(offset, room):
        piece = data[offset : offset + len(room)]
        room[: len(piece)] = piece
        return len(piece)

    blocks = scan_blocks(scanner, readinto, 0, len(data), bytearray(block))
    return sum(one.length for one in blocks)


# With work that grows with the square of the size, these would take minutes.


def test_a_file_of_headers_that_claim_half_of_it(core):
    size = 1 << 22
    assert sent(header(size // 2) * (size // 12), core) < 3 * size


def test_a_file_of_headers_that_claim_all_that_follows(core):
    size = 1 << 21
    data = b"".join(header(size - at - 16) for at in range(0, size - 16, 12))
    assert sent(data + bytes(size - len(data)), core) < 3 * size


def test_good_records_between_headers_that_lie(core):
    count = 200
    size = 1 << 20
    data = (header(size // 2) + frame(b"")) * count
    data += header(size // 2) * ((size - len(data)) // 12)
    result = scan(data, core=core)
    assert result.taken.events == count
    assert sent(data, core) < 4 * size
