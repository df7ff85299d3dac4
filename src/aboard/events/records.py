"""The framing of records in event files.

A record is `u64le length | u32le crc(length) | data | u32le crc(data)`. Each checksum is a CRC32C,
rotated and offset ("masked") so that a record inside a record does not verify by accident.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from aboard.system import compiled

HEADER = 12
OVERHEAD = 16
MAX_LENGTH = 2**31 - 1  # protobuf cannot serialize more; a longer record is damage

_POLYNOMIAL = 0x82F63B78
_LONG = 4096  # from this length on numpy is faster than a loop over bytes


def _byte_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


CRC_TABLE = _byte_table()


def _crc32c_python(data: bytes) -> int:
    if len(data) >= _LONG:
        from aboard.events.fallback import of_long_piece  # a circular import

        return of_long_piece(data)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def library_crc32c() -> Callable[[bytes], int] | None:
    """Return the function of google-crc32c, if it is installed with its compiled core."""
    try:
        import google_crc32c
    except ImportError:
        return None
    return google_crc32c.value if google_crc32c.implementation == "c" else None


_core = compiled("aboard.events._scanner")
crc32c: Callable[[bytes], int] = _core.crc32c if _core else library_crc32c() or _crc32c_python


def mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    length_crc, data_crc = (struct.pack("<I", mask(crc32c(part))) for part in (length, data))
    return b"".join((length, length_crc, data, data_crc))


def unframe(record: bytes) -> bytes:
    if len(record) < OVERHEAD:
        raise ValueError("the record is shorter than its framing")
    length, length_crc = struct.unpack_from("<QI", record)
    if mask(crc32c(record[:8])) != length_crc:
        raise ValueError("the checksum of the record's length does not match")
    if length != len(record) - OVERHEAD:
        raise ValueError("the length of the record does not match its header")
    data = record[HEADER:-4]
    if mask(crc32c(data)) != int.from_bytes(record[-4:], "little"):
        raise ValueError("the checksum of the record's data does not match")
    return data


def ends(records: bytes | bytearray, start: int = 0, stop: int | None = None) -> Iterator[int]:
    end = start
    last = len(records) if stop is None else stop
    while end < last:
        end += OVERHEAD + int.from_bytes(records[end : end + 8], "little")
        yield end
