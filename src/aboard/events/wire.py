"""The wire format of protobuf, outwards: numbers and fields to bytes.

What the fields mean is left to `encode` and `tensors`; `messages` reads what is written here.
"""

from __future__ import annotations

import struct

VARINT, FIXED64, DELIMITED = 0, 1, 2

_double = struct.Struct("<d").pack


def varint(number: int) -> bytes:
    """Encode an integer in base 128; a negative one as its 64-bit two's complement."""
    if 0 <= number < 0x80:
        return _ONE_BYTE[number]
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"{number} does not fit in 64 bits")
    number &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_ONE_BYTE = [bytes([number]) for number in range(0x80)]


def delimited(field: int, payload: bytes) -> bytes:
    """Encode a field of bytes, text or a message, also when it is empty."""
    return varint(field << 3 | DELIMITED) + varint(len(payload)) + payload


def text_field(field: int, text: str) -> bytes:
    """Encode a field of text, which is left out when it is empty."""
    return delimited(field, text.encode()) if text else b""


def integer_field(field: int, number: int) -> bytes:
    """Encode a field of an integer, which is left out when it is zero."""
    return varint(field << 3 | VARINT) + varint(number) if number else b""


def float64_field(field: int, number: float) -> bytes:
    """Encode a field of a 64-bit float, also when it is zero."""
    return varint(field << 3 | FIXED64) + _double(number)
