"""The records of an event file, without the scanner, and with every checksum verified."""

from collections.abc import Iterator

from aboard.events.records import OVERHEAD, ends, unframe


def unframed(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the data of each record; part of a record at the end is left out."""
    start = 0
    for end in ends(data, stop=len(data) - OVERHEAD + 1):
        yield start, unframe(data[start:end])
        start = end
