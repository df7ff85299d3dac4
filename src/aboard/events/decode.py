"""One record in, typed values out, through the migrations with which TensorBoard reads old files.

Whatever form a value was written in, it comes out as a tensor that belongs to a plugin and has a
class of data. Finding records is left to `scanner`, which also reads plain scalars by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from aboard.events import protos

DATA_CLASSES = ("", "scalar", "tensor", "blob_sequence")

_DT_STRING, _DT_BFLOAT16, _DT_UINT32, _DT_UINT64 = 7, 14, 22, 23
_NOT_WHAT_IT_SAYS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What TensorBoard's own conversions raise for a message that makes no sense."""
_MAX_REPEATS = 1 << 24
"""A constant tensor stores one element; a damaged shape must not repeat it into all memory."""


class DecodeError(ValueError):
    """Bytes that are no event, or a tensor that is not what it says."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value of one tag at one step."""

    tag: str
    step: int
    wall_time: float
    plugin: str
    data_class: str
    """`scalar`, `tensor` or `blob_sequence`; empty if neither file nor plugin says."""
    metadata: bytes
    """The serialized `SummaryMetadata` of the tag, its class of data filled in."""
    tensor_proto: Any = field(repr=False)

    @property
    def tensor(self) -> npt.NDArray[Any]:
        """The value as an array, made anew at each call; text as bytes, bfloat16 as float32."""
        try:
            return _array(self.tensor_proto)
        except _NOT_WHAT_IT_SAYS as error:
            raise self._unreadable("tensor", str(error)) from error

    @property
    def blobs(self) -> list[bytes]:
        """The members of a blob sequence: images with their size first, audio clips, graphs."""
        if self.tensor_proto.dtype != _DT_STRING:
            raise self._unreadable("blobs", f"its type {self.tensor_proto.dtype} is not text")
        return list(self.tensor.ravel())

    def _unreadable(self, what: str, reason: str) -> DecodeError:
        return DecodeError(f"cannot read the {what} of {self.tag!r} at step {self.step}: {reason}")


def decode(data: bytes, metadata: Mapping[str, bytes] | None = None) -> list[Value]:
    """Decode one serialized `Event`; an event that holds no values gives none.

    `metadata` maps a tag to the serialized `SummaryMetadata` of its first value in the run, as
    written or as `Value.metadata` gave it, because later values omit it.
    """
    tensorboard = protos.load()
    try:
        event = tensorboard.event_pb2.Event.FromString(data)
        first = _first_metadata(event, metadata or {})
        with np.errstate(over="ignore"):
            event = tensorboard.data_compat.migrate_event(event)
            events = tensorboard.dataclass_compat.migrate_event(event, first)
    except tensorboard.NotAMessage as error:
        raise DecodeError(f"not an event: {error}") from error
    except _NOT_WHAT_IT_SAYS as error:
        raise DecodeError(f"cannot migrate an event: {error}") from error
    return [value for each in events for value in _values(each, metadata or {})]


@lru_cache(maxsize=4096)
def migrated_metadata(metadata: bytes) -> bytes:
    """Fill in the class of data in the `SummaryMetadata` of a plugin that TensorBoard knows."""
    tensorboard = protos.load()
    event = tensorboard.event_pb2.Event()
    event.summary.value.add().metadata.ParseFromString(metadata)
    (event,) = tensorboard.dataclass_compat.migrate_event(event, {})
    return bytes(event.summary.value[0].metadata.SerializeToString())


def _first_metadata(event: Any, metadata: Mapping[str, bytes]) -> dict[str, Any]:
    """Parse the metadata the event's tags began with, in the form the migration expects.

    A missing class of data tells it to migrate a value, so a class that was filled in is taken
    out again. Metadata without a plugin belongs to an old value, which brings its plugin along.
    """
    summary_metadata = protos.load().summary_pb2.SummaryMetadata
    first = {}
    for value in event.summary.value:
        given = summary_metadata.FromString(metadata.get(value.tag, b""))
        if not given.plugin_data.plugin_name:
            continue
        bare = summary_metadata()
        bare.CopyFrom(given)
        bare.ClearField("data_class")
        filled_in = migrated_metadata(bare.SerializeToString()) == given.SerializeToString()
        first[value.tag] = bare if filled_in else given
    return first


def _values(event: Any, metadata: Mapping[str, bytes]) -> Iterator[Value]:
    summary_metadata = protos.load().summary_pb2.SummaryMetadata
    for value in event.summary.value:
        if not value.HasField("tensor"):
            continue
        own = value.metadata
        first = summary_metadata.FromString(migrated_metadata(metadata.get(value.tag, b"")))
        if first.plugin_data.plugin_name:
            own = first
        yield Value(
            tag=value.tag or value.node_name,
            step=event.step,
            wall_time=event.wall_time,
            plugin=own.plugin_data.plugin_name,
            data_class=DATA_CLASSES[own.data_class] if own.data_class in range(4) else "",
            metadata=own.SerializeToString(),
            tensor_proto=value.tensor,
        )


def _array(proto: Any) -> npt.NDArray[Any]:
    shape = [dim.size for dim in proto.tensor_shape.dim]
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if not 0 <= count <= max(_MAX_REPEATS, proto.ByteSize()):
        raise ValueError(f"its shape is {shape}")
    if proto.dtype == _DT_BFLOAT16:
        bits = _elements(proto.tensor_content, proto.half_val, "<u2", count)
        return (bits.astype("<u4") << 16).view("<f4").reshape(shape)
    if proto.dtype == _DT_UINT32:
        return _elements(proto.tensor_content, proto.uint32_val, "<u4", count).reshape(shape)
    if proto.dtype == _DT_UINT64:
        return _elements(proto.tensor_content, proto.uint64_val, "<u8", count).reshape(shape)
    array: npt.NDArray[Any] = protos.load().tensor_util.make_ndarray(proto)
    return array


def _elements(content: bytes, typed: Any, dtype: str, count: int) -> npt.NDArray[Any]:
    """Read the elements of a type that TensorBoard's own conversion does not know."""
    elements = np.frombuffer(content, dtype) if content else np.array(typed, dtype)
    return np.repeat(elements, count) if len(elements) == 1 else elements
