"""Decodes a record into typed values, with the migrations that TensorBoard applies to old files.

In whatever form a value was written, it is returned as a tensor with a plugin and a data class.
`scanner` finds records, and reads plain scalars itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from aboard.events import protos
from aboard.events.messages import DT_BFLOAT16, DT_STRING

DATA_CLASSES = ("", "scalar", "tensor", "blob_sequence")

_NOT_WHAT_IT_SAYS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""The errors that TensorBoard's conversions raise for an invalid message."""
_UNKNOWN_TO_TENSORBOARD = {
    DT_BFLOAT16: ("half_val", "<u2"),
    22: ("uint32_val", "<u4"),
    23: ("uint64_val", "<u8"),
}
_MAX_REPEATS = 1 << 24  # a damaged shape must not repeat one element into all memory


class DecodeError(ValueError):
    """Bytes that are not an event, or an inconsistent tensor."""


@dataclass(frozen=True, slots=True)
class Value:
    tag: str
    step: int
    wall_time: float
    plugin: str
    data_class: str
    """`scalar`, `tensor` or `blob_sequence`; empty if neither file nor plugin defines it."""
    metadata: bytes
    """The serialized `SummaryMetadata` of the tag, with its data class filled in."""
    tensor_proto: Any = field(repr=False)

    @property
    def tensor(self) -> npt.NDArray[Any]:
        """The value as a new array; text as bytes, bfloat16 as float32."""
        try:
            return _array(self.tensor_proto)
        except _NOT_WHAT_IT_SAYS as error:
            raise self._unreadable("tensor", str(error)) from error

    @property
    def blobs(self) -> list[bytes]:
        """The members of a blob sequence: images (after their size), audio clips or graphs."""
        if self.tensor_proto.dtype != DT_STRING:
            raise self._unreadable("blobs", f"its type {self.tensor_proto.dtype} is not text")
        return list(self.tensor.ravel())

    def _unreadable(self, what: str, reason: str) -> DecodeError:
        return DecodeError(f"cannot read the {what} of {self.tag!r} at step {self.step}: {reason}")


def decode(data: bytes, metadata: Mapping[str, bytes] | None = None) -> list[Value]:
    """Decode a serialized `Event` into its values, which may be none.

    `metadata` maps a tag to the serialized `SummaryMetadata` of its first value in the run, as
    written or from `Value.metadata`, because later values omit it.
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
    """Fill in the data class in the `SummaryMetadata` of a plugin that TensorBoard knows."""
    tensorboard = protos.load()
    event = tensorboard.event_pb2.Event()
    event.summary.value.add().metadata.ParseFromString(metadata)
    (event,) = tensorboard.dataclass_compat.migrate_event(event, {})
    return bytes(event.summary.value[0].metadata.SerializeToString())


def _first_metadata(event: Any, metadata: Mapping[str, bytes]) -> dict[str, Any]:
    """Parse the first metadata of the event's tags, in the form the migration expects.

    The migration handles values whose data class is missing, so a class that was filled in is
    removed again. Metadata without a plugin belongs to an old value, which implies its plugin.
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
    """Decode a `TensorProto`, text as bytes and bfloat16 as float32; ValueError for a bad shape."""
    shape = [dim.size for dim in proto.tensor_shape.dim]
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if not 0 <= count <= max(_MAX_REPEATS, proto.ByteSize()):
        raise ValueError(f"its shape is {shape}")
    if proto.dtype not in _UNKNOWN_TO_TENSORBOARD:
        elements: npt.NDArray[Any] = protos.load().tensor_util.make_ndarray(proto)
        return elements
    name, dtype = _UNKNOWN_TO_TENSORBOARD[proto.dtype]
    content = proto.tensor_content
    elements = np.frombuffer(content, dtype) if content else np.array(getattr(proto, name), dtype)
    if len(elements) == 1:
        elements = np.repeat(elements, count)
    if proto.dtype == DT_BFLOAT16:
        elements = (elements.astype("<u4") << 16).view("<f4")
    return elements.reshape(shape)
