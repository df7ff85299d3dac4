"""The framing of event files: how one record follows another.

A record is `u64le length | u32le crc(length) | data | u32le crc(data)`, each
checksum a CRC32C that is rotated and offset ("masked") so that a record inside
a record does not verify by accident. What the data means is not known here.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator

HEADER = 12
OVERHEAD = 16
MAX_LENGTH = 2**31 - 1
"""Protobuf cannot serialize more, so a longer record can only be damage."""

_POLYNOMIAL = 0x82F63B78


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
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _best_crc32c() -> Callable[[bytes], int]:
    if not os.environ.get("ABOARD_PURE_PYTHON"):
        try:
            from aboard.events._scanner import crc32c
        except ImportError:
            pass
        else:
            return crc32c
    return _crc32c_python


crc32c = _best_crc32c()


def mask(crc: int) -> int:
    """Return the form in which a checksum is stored."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """Return `data` as one record."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        (
            length,
            struct.pack("<I", mask(crc32c(length))),
            data,
            struct.pack("<I", mask(crc32c(data))),
        )
    )


def unframe(record: bytes) -> bytes:
    """Return the data of one whole record, or raise ValueError if it is damaged."""
    if len(record) < OVERHEAD:
        raise ValueError("the record is shorter than its framing")
    length, length_crc = struct.unpack_from("<QI", record)
    if mask(crc32c(record[:8])) != length_crc:
        raise ValueError("the checksum of the record's length does not match")
    if length != len(record) - OVERHEAD:
        raise ValueError("the record's length is not what its header says")
    data = record[HEADER:-4]
    if mask(crc32c(data)) != int.from_bytes(record[-4:], "little"):
        raise ValueError("the checksum of the record's data does not match")
    return data


def read_records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, data) of each record of a whole, undamaged file."""
    offset = 0
    while offset + OVERHEAD <= len(data):
        total = OVERHEAD + int.from_bytes(data[offset : offset + 8], "little")
        yield offset, unframe(data[offset : offset + total])
        offset += total
