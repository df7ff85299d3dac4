"""Good records are found behind any damage, at a cost that grows with the file and no faster."""

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.events import encode
from aboard.events.messages import delimited
from aboard.events.records import crc32c, frame, mask
from aboard.events.scanner import Scanner, scan_blocks
from tests.events.scanning import CORES, scan

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
    # A header that claims 8 bytes makes a good record of the next one: a length and its checksum.
    st.lists(st.integers(0, 30_000).filter(lambda claim: claim != 8), max_size=20),
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
    return sum(len(one.content) for one in blocks)


# With work that grows with the square of the size, these would take minutes.


def test_a_file_of_headers_that_claim_half_of_it(core):
    size = 1 << 22
    assert sent(header(size // 2) * (size // 12), core) < 3 * size


def test_a_file_of_headers_that_claim_all_that_follows(core):
    size = 1 << 21
    data = b"".join(header(size - at - 16) for at in range(0, size - 16, 12))
    assert sent(data + bytes(size - len(data)), core) < 3 * size


def calls(data: bytes) -> int:
    """Scan a file with the Python core; return how many functions were called."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    scan(data[:4096], core="python")  # tables are computed once
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        scan(data, core="python", block=1 << 20)
    finally:
        sys.setprofile(before)
    return count


def damaged_between_records(count: int) -> bytes:
    return (frame(b"") + b"x") * count


def tags_with_late_metadata(count: int) -> bytes:
    metadata = delimited(9, delimited(1, delimited(1, b"scalars")))
    simple = b"\x15" + struct.pack("<f", 1.0)
    values = [delimited(1, b"%d" % i) + simple for i in range(count)]
    both = [more for value in values for more in (value, metadata + value)]
    head = b"\x09" + struct.pack("<d", 1.0) + b"\x10\x01"
    return b"".join(frame(head + delimited(5, delimited(1, value))) for value in both)


@pytest.mark.parametrize("crafted", [damaged_between_records, tags_with_late_metadata])
def test_crafted_files_cost_the_python_core_a_bounded_number_of_calls(core, crafted):
    if core != "python":
        pytest.skip("the C core calls no Python functions")
    few, many = (calls(crafted(count)) for count in (250, 1000))
    assert many < 5 * few
    if crafted is damaged_between_records:
        assert many < 60 * 1000


LIMITS = (1000, 5000)


def torn(record: bytes) -> bytes:
    return record[:500] + bytes([record[500] ^ 1]) + record[501:]


@pytest.mark.parametrize("block", [16, 100, 1500, 1 << 16])
def test_a_long_record_is_verified_before_it_is_held(core, block):
    small = long_record(0, 10)
    good, bad = long_record(1, 3000), torn(long_record(2, 4000))
    data = small + good + bad + small + good
    largest = 0

    def readinto(offset, room):
        nonlocal largest
        largest = max(largest, len(room))
        piece = data[offset : offset + len(room)]
        room[: len(piece)] = piece
        return len(piece)

    scanner = Scanner(core=CORES[core], limits=LIMITS)
    blocks = list(scan_blocks(scanner, readinto, 0, len(data), bytearray(block)))
    taken = scanner.take()
    places = [0, len(small), len(data) - len(small + good), len(data) - len(good)]
    assert [one.offset for one in taken.damage] == [len(small + good)]
    assert [one.length for one in taken.damage] == [len(bad)]
    result = scan(data, core=core, block=block, limits=LIMITS)
    assert found(result) == list(zip([0, 1, 0, 1], places, strict=True))
    assert largest <= max(block, len(good))
    assert (blocks[-1].at_end, blocks[-1].reached) == (True, len(data))


@pytest.mark.parametrize("block", [16, 1500, 1 << 16])
def test_a_record_that_is_too_large_is_passed_over_as_a_whole(core, block):
    inside = long_record(9, 10).decode("latin-1")
    huge = frame(encode.event(1.0, 1, [encode.text("notes", inside + "x" * 9000)]))
    data = long_record(0, 10) + b"damage" + huge + long_record(2, 10)
    result = scan(data, core=core, block=block, limits=LIMITS)
    first = len(long_record(0, 10))
    assert [step for step, _ in found(result)] == [0, 2]
    assert result.damage == [(first, 6), (first + 6, len(huge))]


def test_a_long_record_that_is_not_complete_is_read_when_it_is(core):
    small, good = long_record(0, 10), long_record(1, 3000)
    data = small + good + small
    for cut in (len(small) + 5, len(small) + 700, len(small + good) - 1):
        result = scan(data[:cut], core=core, block=100, limits=LIMITS)
        assert result.resume == (len(small), -1)
        assert result.damage == []


def test_a_scan_that_stops_within_a_long_record_goes_on_before_it(core):
    small, good = long_record(0, 10), long_record(1, 3000)
    data = small + good
    scanner = Scanner(core=CORES[core], limits=LIMITS)
    reached = scanner.scan(data[:600], 0, len(data))
    assert (reached, scanner.resume(reached)) == (600, (len(small), -1))


@pytest.mark.parametrize("block", [200, 1 << 20])
def test_many_headers_that_claim_long_records_are_read_a_few_times(core, block):
    size = 1 << 17
    data = header(size // 2) * (size // 12)
    scanner = Scanner(core=CORES[core], limits=LIMITS)
    handed = 0

    def readinto(offset, room):
        nonlocal handed
        piece = data[offset : offset + len(room)]
        room[: len(piece)] = piece
        handed += len(piece)
        return len(piece)

    for _ in scan_blocks(scanner, readinto, 0, len(data), bytearray(block)):
        pass
    assert handed < 6 * size


@given(
    st.lists(
        st.tuples(st.sampled_from(["good", "torn", "lie", "junk"]), st.integers(0, 7000)),
        max_size=6,
    )
)
def test_blocks_make_no_difference_to_long_records(core, parts):
    pieces = []
    for number, (kind, size) in enumerate(parts):
        record = long_record(number, size)
        damaged = record[:30] + bytes([record[30] ^ 1]) + record[31:]
        pieces.append(
            {"good": record, "torn": damaged, "lie": header(size), "junk": bytes(size % 50)}[kind]
        )
    data = b"".join(pieces)
    results = [
        scan(data, core=one, block=block, limits=LIMITS).plain
        for one in {core, "python"}
        for block in (64, 1024, 1 << 18)
    ]
    assert all(one == results[0] for one in results)


def test_the_digest_changes_with_any_record_and_goes_on_from_any_place(core):
    records = [long_record(step, 10 * step) for step in range(20)]
    data = b"".join(records[:10]) + b"damage" + b"".join(records[10:])
    whole = scan(data, core=core).digest
    assert whole == scan(data, core=core, digest_only=True, block=64).digest
    assert whole == scan(data, core="python", block=300).digest
    middle = len(b"".join(records[:4]))
    first = Scanner(core=CORES[core])
    first.scan(data[:middle], 0, middle)
    second = Scanner(core=CORES[core], digest=first.digest)
    second.scan(data[middle:], middle, len(data))
    assert second.digest == whole
    for place in (3, 12):
        changed = [*records]
        changed[place] = long_record(99, 10 * place)
        other = b"".join(changed[:10]) + b"damage" + b"".join(changed[10:])
        assert len(other) == len(data)
        assert scan(other, core=core).digest != whole


def test_good_records_between_headers_that_lie(core):
    count = 200
    size = 1 << 20
    data = (header(size // 2) + frame(b"")) * count
    data += header(size // 2) * ((size - len(data)) // 12)
    result = scan(data, core=core)
    assert result.taken.events == count
    assert sent(data, core) < 4 * size
