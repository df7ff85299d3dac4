"""Arrays to bytes of `TensorProto`: any element type that event files know, in any of its forms."""

from __future__ import annotations

from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aboard.events.wire import delimited, integer_field, varint


class _DataType(NamedTuple):
    number: int
    field: int
    storage: str
    """The little-endian numpy type of the elements; a varint per element unless it is a float."""


_DATA_TYPES = {
    "float32": _DataType(1, 5, "<f4"),
    "float64": _DataType(2, 6, "<f8"),
    "int32": _DataType(3, 7, "<i4"),
    "uint8": _DataType(4, 7, "<u1"),
    "int16": _DataType(5, 7, "<i2"),
    "int8": _DataType(6, 7, "<i1"),
    "complex64": _DataType(8, 9, "<c8"),
    "int64": _DataType(9, 10, "<i8"),
    "bool": _DataType(10, 11, "?"),
    "bfloat16": _DataType(14, 13, "<u2"),
    "uint16": _DataType(17, 7, "<u2"),
    "complex128": _DataType(18, 12, "<c16"),
    "float16": _DataType(19, 13, "<u2"),
    "uint32": _DataType(22, 16, "<u4"),
    "uint64": _DataType(23, 17, "<u8"),
}
_DT_STRING = 7


def tensor_proto(
    array: npt.ArrayLike, dtype: str | None = None, *, content: bool | None = None
) -> bytes:
    """Encode any array of numbers, text or bytes as a `TensorProto`.

    `dtype` names the element type where it is not the array's own; `bfloat16`, which numpy
    lacks, may be named too. `content` chooses between raw `tensor_content` and the typed field
    of the element type; unless told, single elements take the typed field, which is shorter to
    read, where TensorBoard can read it back.
    """
    elements = np.asarray(array)
    if dtype is None and elements.dtype.kind in "SUTO":
        if not isinstance(array, np.ndarray):
            elements = np.array(array, dtype=object)  # a bytes array would drop trailing zeros
        return _string_tensor(elements)
    name = dtype or elements.dtype.name
    if name not in _DATA_TYPES:
        raise TypeError(f"cannot write elements of type {name} to an event file")
    data_type = _DATA_TYPES[name]
    with np.errstate(over="ignore"):  # beyond the type: infinite
        stored = _stored(elements, name, data_type)
    if content is None:
        content = stored.size != 1 or name in ("uint32", "uint64", "bfloat16")
    if content:
        payload = delimited(4, stored.tobytes()) if stored.size else b""
    elif stored.dtype.kind in "fc":
        payload = delimited(data_type.field, stored.tobytes())
    else:
        payload = delimited(data_type.field, b"".join(map(varint, stored.ravel().tolist())))
    return integer_field(1, data_type.number) + _shape(stored.shape) + payload


def single(tag: str, number: npt.ArrayLike, dtype: str | None) -> npt.NDArray[Any]:
    """Return the one number that a scalar is, or raise if its type cannot hold it.

    A float may lose digits, and is infinite where it is too large, as a cast makes it.
    """
    elements = np.asarray(number)
    if elements.size != 1:
        raise ValueError(f"the value of {tag!r} is not one number, but {elements.size}")
    element, name = elements.item(), dtype or elements.dtype.name
    if isinstance(element, str | bytes) or not isinstance(element, Number):
        raise TypeError(f"the value of {tag!r} is not a number: {element!r:.60}")
    if not _fits(element, name):
        raise ValueError(f"the value of {tag!r} does not fit into {name}: {element!r:.60}")
    return elements


def _fits(element: Any, name: str) -> bool:
    if name.startswith("complex"):
        return True
    if isinstance(element, complex):
        return False
    if name == "bool":
        return element in (0, 1)
    if name not in _DATA_TYPES or "float" in name:
        return True
    limits = np.iinfo(name)
    return bool(element == element // 1 and limits.min <= element <= limits.max)


def _stored(elements: npt.NDArray[Any], name: str, data_type: _DataType) -> npt.NDArray[Any]:
    if name == "bfloat16":
        if elements.dtype.name != name:
            return _bfloat16_bits(elements.astype("<f4"))
        return elements.view("<u2")
    if name == "float16":
        return elements.astype("<f2").view("<u2")
    return elements.astype(data_type.storage, copy=False)


def _bfloat16_bits(numbers: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    bits = numbers.view("<u4")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, rounded).astype("<u2")


def _string_tensor(elements: npt.NDArray[Any]) -> bytes:
    strings = [_as_bytes(element) for element in elements.ravel().tolist()]
    return (
        integer_field(1, _DT_STRING)
        + _shape(elements.shape)
        + b"".join([delimited(8, string) for string in strings])
    )


def _as_bytes(element: object) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode()
    raise TypeError(f"cannot write a {type(element).__name__} to an event file: {element!r:.60}")


def _shape(shape: tuple[int, ...]) -> bytes:
    return delimited(2, b"".join([delimited(2, integer_field(1, size)) for size in shape]))
