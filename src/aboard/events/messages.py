"""Event protobufs to plain tuples, in Python: what the scanning rules look at.

Reads only as much of a message as the scanner and the index need, and does not
import protobuf. The rules are those of scan.h and wire.h: of a number or text that
is repeated the last one counts, the pieces of a message are taken together, a field
of the wrong wire type is unknown, and anything that cannot be walked to its end is
malformed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = 0, 1, 2, 3, 4, 5
_MAX_GROUPS = 100
_U64 = (1 << 64) - 1
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")


class Malformed(ValueError):  # noqa: N818 - named by what is wrong
    """The bytes are not a protobuf message."""


class Field(NamedTuple):
    """One field: its number, its wire type, and its bytes or its number."""

    number: int
    wire: int
    value: int
    octets: bytes


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _U64, at
        shift += 7
    raise Malformed("a number is cut off")


def fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message in their order, groups left out.

    Raises:
        Malformed: where it breaks.
    """
    groups: list[int] = []
    for field in _tokens(data):
        if field.wire == GROUP:
            if len(groups) == _MAX_GROUPS:
                raise Malformed("there are too many groups in each other")
            groups.append(field.number)
        elif field.wire == GROUP_END:
            if not groups or groups.pop() != field.number:
                raise Malformed("a group ends that did not begin")
        elif not groups:
            yield field
    if groups:
        raise Malformed("a group does not end")


def is_one_field(data: bytes) -> bool:
    """Say whether a message is one field and nothing else, not even a group."""
    return sum(1 for _ in _tokens(data)) == 1


def _fields_of(pieces: Iterable[bytes]) -> Iterator[Field]:
    """Yield the fields of a message that is given in pieces."""
    return chain.from_iterable(map(fields, pieces))


def _tokens(data: bytes) -> Iterator[Field]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if not number:
            raise Malformed("a field has no number")
        if wire == VARINT:
            value, at = _varint(data, at)
            yield Field(number, wire, value, b"")
            continue
        if wire in (GROUP, GROUP_END):
            yield Field(number, wire, 0, b"")
            continue
        if wire == BYTES:
            size, at = _varint(data, at)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise Malformed("a field has an unknown type")
        if size > len(data) - at:
            raise Malformed("a field is cut off")
        octets = data[at : at + size]
        at += size
        yield Field(number, wire, 0 if wire == BYTES else int.from_bytes(octets, "little"), octets)


def _signed(value: int, bits: int = 64) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class Metadata(NamedTuple):
    """The parts of a SummaryMetadata."""

    plugin: str = ""
    content: bytes = b""
    display_name: str = ""
    description: str = ""
    data_class: int = 0


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "backslashreplace")


def parse_metadata(*pieces: bytes) -> Metadata:
    """Parse a SummaryMetadata."""
    result = Metadata()
    for f in _fields_of(pieces):
        match f.number, f.wire:
            case 1, 2:
                for inner in fields(f.octets):
                    match inner.number, inner.wire:
                        case 1, 2:
                            result = result._replace(plugin=_text(inner.octets))
                        case 2, 2:
                            result = result._replace(content=inner.octets)
            case 2, 2:
                result = result._replace(display_name=_text(f.octets))
            case 3, 2:
                result = result._replace(description=_text(f.octets))
            case 4, 0:
                result = result._replace(data_class=f.value)
    return result


class DType(NamedTuple):
    """How a numeric dtype is stored, and read as a number."""

    width: int
    typed_field: int
    wide: bool
    code: str
    """The struct code of its bits; "e" for half, "B" for bfloat16's bits."""


_DTYPES = {
    1: DType(4, 5, False, "<f"),
    2: DType(8, 6, True, "<d"),
    3: DType(4, 7, True, "<i"),
    4: DType(1, 7, False, "<B"),
    5: DType(2, 7, False, "<h"),
    6: DType(1, 7, False, "<b"),
    9: DType(8, 10, True, "<q"),
    10: DType(1, 11, False, "?"),
    14: DType(2, 13, False, "bfloat16"),
    17: DType(2, 7, False, "<H"),
    19: DType(2, 13, False, "<e"),
    22: DType(4, 16, True, "<I"),
    23: DType(8, 17, True, "<Q"),
}


def _number(dtype: DType, bits: int) -> float:
    if dtype.code == "?":
        return float(bits != 0)
    octets = (bits & ((1 << 8 * dtype.width) - 1)).to_bytes(dtype.width, "little")
    if dtype.code == "bfloat16":
        return float(_FLOAT.unpack(b"\0\0" + octets)[0])
    return float(struct.unpack(dtype.code, octets)[0])


class Tensor(NamedTuple):
    """What the scanner needs of a TensorProto."""

    rank: int
    rows: int
    single: float | None
    """The only element of a numeric tensor of one element."""
    wide: bool


def _shape(data: bytes, known: bool) -> tuple[list[int], bool]:
    sizes = []
    for f in fields(data):
        if (f.number, f.wire) == (3, VARINT):
            known = not f.value
        if (f.number, f.wire) == (2, BYTES):
            size = 0
            for inner in fields(f.octets):
                if (inner.number, inner.wire) == (1, VARINT):
                    size = _signed(inner.value)
            sizes.append(size)
    return sizes, known


def _typed(pieces: Iterable[bytes], wanted: int) -> Iterator[int]:
    """Yield the bits of each element of a typed field, packed or not."""
    own = {5: FIXED32, 6: FIXED64}.get(wanted, VARINT)
    for f in _fields_of(pieces):
        if f.number != wanted:
            continue
        if f.wire == own:
            yield f.value
        elif f.wire == BYTES:
            at, width = 0, 4 if own == FIXED32 else 8
            while at < len(f.octets):
                if own == VARINT:
                    value, at = _varint(f.octets, at)
                elif len(f.octets) - at < width:
                    raise Malformed("a number is cut off")
                else:
                    value = int.from_bytes(f.octets[at : at + width], "little")
                    at += width
                yield value


def parse_tensor(*pieces: bytes) -> Tensor:
    """Parse a TensorProto as far as the scanner needs it."""
    code, content = 0, b""
    sizes: list[int] = []
    known = True
    for f in _fields_of(pieces):
        match f.number, f.wire:
            case 1, 0:
                code = f.value
            case 2, 2:
                more, known = _shape(f.octets, known)
                sizes += more
            case 4, 2:
                content = f.octets
    dtype = _DTYPES.get(code)
    tensor = Tensor(len(sizes), sizes[0] if sizes else 1, None, dtype is not None and dtype.wide)
    if dtype is None or not known or any(size != 1 for size in sizes):
        return tensor
    if content:
        if len(content) != dtype.width:
            return tensor
        return tensor._replace(single=_number(dtype, int.from_bytes(content, "little")))
    stored = list(_typed(pieces, dtype.typed_field))
    if len(stored) > 1:
        return tensor
    # As TensorFlow does: an element that is not stored is zero.
    return tensor._replace(single=_number(dtype, stored[0] if stored else 0))


class Value(NamedTuple):
    """One Summary.Value."""

    tag: bytes = b""
    origin: int = 0
    """The number of the field that holds the value."""
    metadata: bytes | None = None
    simple: float = 0.0
    tensor: Tensor | None = None


def parse_value(data: bytes) -> Value:
    """Parse a Summary.Value."""
    tag = node = b""
    what, content, metadata = 0, list[bytes](), list[bytes]()
    for f in fields(data):
        match f.number, f.wire:
            case 1, 2:
                tag = f.octets
            case 7, 2:
                node = f.octets
            case 9, 2:
                metadata.append(f.octets)
            case (2, 5) | (3, 2) | (4, 2) | (5, 2) | (6, 2) | (8, 2):
                if f.number != what:
                    what, content = f.number, []
                content.append(f.octets)
    # An old kind of histogram, that nobody reads any more, takes the place of another value.
    value = Value(tag or node, 0 if what == 3 else what)
    if metadata:
        parse_metadata(*metadata)
        value = value._replace(metadata=b"".join(metadata))
    if what == 2:
        return value._replace(simple=_FLOAT.unpack(content[-1])[0])
    if what == 8:
        return value._replace(tensor=parse_tensor(*content))
    return value


class Event(NamedTuple):
    """One Event; `what` is the number of the field that is set, 0 for none."""

    wall: float
    step: int
    what: int
    values: list[Value]
    tag: bytes
    """Of a tagged_run_metadata."""
    malformed: bool
    """Whether a value was malformed; those before it are in `values`."""


def parse_event(data: bytes) -> Event:
    """Parse an Event; raise `Malformed` if not even its own fields can be read."""
    wall, step, what, pieces = 0.0, 0, 0, list[bytes]()
    for f in fields(data):
        match f.number, f.wire:
            case 1, 1:
                wall = _DOUBLE.unpack(f.octets)[0]
            case 2, 0:
                step = _signed(f.value)
            case ((3 | 4 | 5 | 6 | 7 | 8 | 9), 2):
                if f.number != what:
                    what, pieces = f.number, []
                pieces.append(f.octets)
    values: list[Value] = []
    tag = b""
    if what == 8:
        for f in _fields_of(pieces):
            if (f.number, f.wire) == (1, BYTES):
                tag = f.octets
    if what == 5:
        try:
            for f in _fields_of(pieces):
                if (f.number, f.wire) == (1, BYTES):
                    values.append(parse_value(f.octets))
        except Malformed:
            return Event(wall, step, what, values, tag, True)
    return Event(wall, step, what, values, tag, False)
