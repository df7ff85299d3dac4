"""Tensors: converts arrays to `TensorProto` and back, for all element types of event files."""

from __future__ import annotations

from numbers import Number
from typing import Any

import numpy as np
import numpy.typing as npt

from aboard.events import protos
from aboard.events.messages import (
    DT_BFLOAT16,
    DT_STRING,
    ELEMENT_TYPES,
    ElementType,
    delimited,
    integer_field,
    varint,
)

_UNKNOWN_TO_TENSORBOARD = {
    DT_BFLOAT16: ("half_val", "<u2"),
    22: ("uint32_val", "<u4"),
    23: ("uint64_val", "<u8"),
}
_MAX_REPEATS = 1 << 24  # a damaged shape must not repeat one element into all memory


def tensor_proto(
    array: npt.ArrayLike, dtype: str | None = None, *, content: bool | None = None
) -> bytes:
    """Encode any array of numbers, text or bytes as a `TensorProto`.

    `dtype` is the element type if it differs from the array's, which may be `bfloat16`. `content`
    selects raw `tensor_content` instead of the typed field; by default single elements use the
    typed field, which is shorter, if TensorBoard can read it back.
    """
    elements = np.asarray(array)
    if dtype is None and elements.dtype.kind in "SUTO":
        if not isinstance(array, np.ndarray):
            elements = np.array(array, dtype=object)  # a bytes array would drop trailing zeros
        return _string_tensor(elements)
    name = dtype or elements.dtype.name
    if name not in ELEMENT_TYPES:
        raise TypeError(f"cannot write elements of type {name} to an event file")
    kind = ELEMENT_TYPES[name]
    with np.errstate(over="ignore"):  # beyond the type: infinite
        stored = _stored(elements, name, kind)
    if content is None:
        content = stored.size != 1 or name in ("uint32", "uint64", "bfloat16")
    if content:
        payload = delimited(4, stored.tobytes()) if stored.size else b""
    elif stored.dtype.kind in "fc":
        payload = delimited(kind.field, stored.tobytes())
    else:
        payload = delimited(kind.field, b"".join(map(varint, stored.ravel().tolist())))
    return integer_field(1, kind.number) + _shape(stored.shape) + payload


def single(tag: str, number: npt.ArrayLike, dtype: str | None) -> npt.NDArray[Any]:
    """Return a scalar as an array of one number, or raise if its type cannot represent it.

    As in a cast, a float may lose digits, and becomes infinite if it is too large.
    """
    elements = np.asarray(number)
    if elements.size != 1:
        raise ValueError(f"the value of {tag!r} must be one number, not {elements.size}")
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
    if name not in ELEMENT_TYPES or "float" in name:
        return True
    limits = np.iinfo(name)
    return bool(element == element // 1 and limits.min <= element <= limits.max)


def _stored(elements: npt.NDArray[Any], name: str, kind: ElementType) -> npt.NDArray[Any]:
    if name == "bfloat16":
        if elements.dtype.name != name:
            return _bfloat16_bits(elements.astype("<f4"))
        return elements.view("<u2")
    if name == "float16":
        return elements.astype("<f2").view("<u2")
    return elements.astype(kind.code, copy=False)


def _bfloat16_bits(numbers: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    bits = numbers.view("<u4")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, rounded).astype("<u2")


def _string_tensor(elements: npt.NDArray[Any]) -> bytes:
    strings = [_as_bytes(element) for element in elements.ravel().tolist()]
    return (
        integer_field(1, DT_STRING)
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


def array(proto: Any) -> npt.NDArray[Any]:
    """Decode a `TensorProto`, text as bytes and bfloat16 as float32; ValueError for a bad shape."""
    shape = [dim.size for dim in proto.tensor_shape.dim]
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if not 0 <= count <= max(_MAX_REPEATS, proto.ByteSize()):
        raise ValueError(f"its shape is {shape}")
    if proto.dtype not in _UNKNOWN_TO_TENSORBOARD:
        elements: npt.NDArray[Any] = protos.load().tensor_util.make_ndarray(proto)
        return elements
    field, dtype = _UNKNOWN_TO_TENSORBOARD[proto.dtype]
    content = proto.tensor_content
    elements = np.frombuffer(content, dtype) if content else np.array(getattr(proto, field), dtype)
    if len(elements) == 1:
        elements = np.repeat(elements, count)
    if proto.dtype == DT_BFLOAT16:
        elements = (elements.astype("<u4") << 16).view("<f4")
    return elements.reshape(shape)
