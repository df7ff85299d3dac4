"""Values in, bytes of `Event` protobufs out, encoded by hand so that a training loop pays little.

A builder (`scalar`, `text`, `images`, ...) makes an `EncodedValue`: one value of one tag, with the
metadata its tag needs once per file. `event` puts values at a step; arrays are left to `tensors`,
framing to `records`, files to `writer`, and pixels and samples to `media`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from aboard.events.tensors import single, tensor_proto
from aboard.events.wire import (
    VARINT,
    delimited,
    float64_field,
    integer_field,
    text_field,
    varint,
)

FILE_VERSION = "brain.Event:2"
WRITER = "aboard.events.writer"

DATA_CLASSES = {"": 0, "scalar": 1, "tensor": 2, "blob_sequence": 3}

_wall_time = struct.Struct("<Bd").pack
_simple_value = struct.Struct("<Bf").pack

HParam = bool | int | float | str


class EncodedValue(NamedTuple):
    """One value of one tag, not yet at a step.

    `metadata` is a serialized `SummaryMetadata`, or empty. Readers look for it on the first
    value of a tag in a run, so a writer leaves it out of later ones: `bare`.
    """

    tag: str
    fields: bytes
    metadata: bytes = b""

    def encode(self) -> bytes:
        """Serialize as `Summary.Value`, metadata included."""
        return self.fields + delimited(9, self.metadata) if self.metadata else self.fields

    def bare(self) -> EncodedValue:
        """Leave the metadata out, as every value of a tag but its first may."""
        return self._replace(metadata=b"") if self.metadata else self


# Events.


def event(wall_time: float, step: int, values: Iterable[EncodedValue]) -> bytes:
    """Encode an event that holds `values` at `step`."""
    return _event(wall_time, step, 5, b"".join([delimited(1, value.encode()) for value in values]))


def file_version(wall_time: float, writer: str = WRITER) -> bytes:
    """Encode the event that opens every file and names the software that wrote it."""
    version = _event(wall_time, 0, 3, FILE_VERSION.encode())
    return version + delimited(10, text_field(1, writer)) if writer else version


def graph(wall_time: float, graph_def: bytes, step: int = 0) -> bytes:
    """Encode an event with the run's graph, a serialized `GraphDef`."""
    return _event(wall_time, step, 4, graph_def)


def tagged_run_metadata(wall_time: float, step: int, tag: str, run_metadata: bytes) -> bytes:
    """Encode an event with the `RunMetadata` of one traced step."""
    return _event(wall_time, step, 8, text_field(1, tag) + delimited(2, run_metadata))


def session_start(wall_time: float, step: int) -> bytes:
    """Encode the start of a session, at which readers drop what they have from that step on."""
    return _event(wall_time, step, 7, integer_field(1, 1))


def step_number(step: SupportsIndex) -> int:
    """Return a step of any integer type as a plain integer of 64 bits."""
    try:
        number = index(step)
    except TypeError:
        raise TypeError(f"step is an integer, not a {type(step).__name__}: {step!r:.60}") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"the step {number} does not fit in 64 bits")
    return number


def _event(wall_time: float, step: int, field: int, payload: bytes) -> bytes:
    head = _wall_time(0x09, wall_time)
    if step:
        head += b"\x10" + varint(step_number(step))
    return head + delimited(field, payload)


# Metadata.


@lru_cache(maxsize=1024)
def metadata(
    plugin: str,
    content: bytes = b"",
    *,
    data_class: str = "",
    display_name: str = "",
    description: str = "",
) -> bytes:
    """Encode a `SummaryMetadata`; readers derive the class of the plugins they know."""
    plugin_data = text_field(1, plugin) + (delimited(2, content) if content else b"")
    return (
        (delimited(1, plugin_data) if plugin_data else b"")
        + text_field(2, display_name)
        + text_field(3, description)
        + integer_field(4, DATA_CLASSES[data_class])
    )


# One builder for each kind of summary.


def scalar(tag: str, number: float) -> EncodedValue:
    """Build a scalar in the oldest and shortest form, which keeps 32 bits and needs no metadata."""
    try:
        return EncodedValue(tag, _tag(tag) + _simple_value(0x15, number))
    except OverflowError:  # beyond float32: what a cast makes of it
        return EncodedValue(tag, _tag(tag) + _simple_value(0x15, np.inf if number > 0 else -np.inf))


def scalar_tensor(
    tag: str,
    number: npt.ArrayLike,
    dtype: str | None = None,
    *,
    content: bool | None = None,
    metadata: bytes = metadata("scalars"),
) -> EncodedValue:
    """Build a scalar of any numeric type, as TensorFlow 2 writes them."""
    proto = tensor_proto(single(tag, number, dtype), dtype, content=content)
    return EncodedValue(tag, _tag(tag) + delimited(8, proto), metadata)


def tensor(
    tag: str,
    array: npt.ArrayLike,
    dtype: str | None = None,
    *,
    plugin: str = "",
    plugin_content: bytes = b"",
    data_class: str = "tensor",
    description: str = "",
) -> EncodedValue:
    """Build a tensor for any plugin, with the class of data TensorBoard shall take it for."""
    return EncodedValue(
        tag,
        _tag(tag) + delimited(8, tensor_proto(array, dtype)),
        metadata(plugin, plugin_content, data_class=data_class, description=description),
    )


def _known(tag: str, plugin: str, array: npt.ArrayLike, content: bytes = b"") -> EncodedValue:
    """Build a tensor of a plugin whose class of data every reader knows."""
    return tensor(tag, array, plugin=plugin, plugin_content=content, data_class="")


def text(tag: str, text: str | Sequence[Any] | npt.NDArray[Any]) -> EncodedValue:
    """Build a text, or a table of texts, in Markdown."""
    return _known(tag, "text", text)


def histogram(tag: str, buckets: npt.ArrayLike) -> EncodedValue:
    """Build a histogram of rows `left edge, right edge, count`; see `histogram_buckets`."""
    rows = np.asarray(buckets, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise ValueError(f"a histogram has three columns, not the shape {rows.shape}")
    return _known(tag, "histograms", rows)


def histogram_buckets(numbers: npt.ArrayLike, count: int = 30) -> npt.NDArray[np.float64]:
    """Sort the finite numbers into buckets of equal width.

    Numbers that are all the same fall into the last of `count` buckets without width, as
    TensorFlow does it; no numbers give no buckets.
    """
    if count < 1:
        raise ValueError(f"buckets is at least 1, not {count}")
    finite = np.asarray(numbers, dtype=np.float64).ravel()
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return np.zeros((0, 3))
    low, high = finite.min(), finite.max()
    if low == high:
        counts = np.zeros(count)
        counts[-1] = finite.size
        edges = np.full(count + 1, low)
    else:
        edges = np.linspace(low / 4, high / 4, count + 1) * 4  # the range itself may overflow
        edges = np.clip(edges, low, high)
        edges[0], edges[-1] = low, high
        inner = np.searchsorted(edges[1:-1], finite, side="right")
        counts = np.bincount(inner, minlength=count).astype(np.float64)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)


def images(tag: str, encoded: Sequence[bytes], width: int, height: int) -> EncodedValue:
    """Build a sequence of encoded images of one size."""
    return _known(tag, "images", [str(width).encode(), str(height).encode(), *encoded])


def audio(tag: str, wavs: Sequence[bytes], labels: Sequence[str] | None = None) -> EncodedValue:
    """Build a sequence of WAV clips, each with a label in Markdown."""
    names = labels or [""] * len(wavs)
    clips = np.empty((len(wavs), 2), dtype=object)
    for row, (wav, label) in enumerate(zip(wavs, names, strict=True)):
        clips[row] = wav, label
    return _known(tag, "audio", clips, integer_field(2, 11))


def pr_curve(tag: str, curve: npt.ArrayLike) -> EncodedValue:
    """Build a precision-recall curve of six rows, one column per threshold.

    The rows: true positives, false positives, true negatives, false negatives, precision, recall.
    """
    rows = np.asarray(curve, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[0] != 6:
        raise ValueError(f"a precision-recall curve has six rows, not the shape {rows.shape}")
    return _known(tag, "pr_curves", rows, integer_field(2, rows.shape[1]))


_MESH_PARTS = {"VERTEX": (1, "float32"), "FACE": (2, "int32"), "COLOR": (3, "uint8")}


def mesh(
    tag: str,
    vertices: npt.ArrayLike,
    faces: npt.ArrayLike | None = None,
    colors: npt.ArrayLike | None = None,
    config: Mapping[str, Any] | None = None,
) -> list[EncodedValue]:
    """Build a batch of meshes: a value each for vertices, faces and colors, all `[batch, n, 3]`."""
    given = zip(_MESH_PARTS, (vertices, faces, colors), strict=True)
    parts = [(name, np.asarray(part)) for name, part in given if part is not None]
    components = sum(1 << _MESH_PARTS[name][0] for name, _ in parts)
    values = []
    for name, part in parts:
        if part.ndim != 3 or part.shape[2] != 3:
            raise ValueError(f"a mesh part has the shape [batch, n, 3], not {part.shape}")
        number, dtype = _MESH_PARTS[name]
        content = (
            text_field(2, tag)
            + integer_field(3, number)
            + text_field(5, json.dumps(dict(config or {}), sort_keys=True))
            + delimited(6, b"".join(map(varint, part.shape)))
            + integer_field(7, components)
        )
        values.append(_known(f"{tag}_{name}", "mesh", part.astype(dtype), content))
    return values


def custom_scalars(layout: bytes) -> EncodedValue:
    """Build the layout of the custom scalars dashboard from a serialized `Layout`."""
    return _known("custom_scalars__config__", "custom_scalars", layout)


def keras_graph(model_json: str, tag: str = "keras") -> EncodedValue:
    """Build the conceptual graph of a Keras model from `model.to_json()`."""
    return _known(tag, "graph_keras_model", model_json, b"1")


def trace(tag: str, run_metadata: bytes) -> EncodedValue:
    """Build a traced step with its graph, a serialized `RunMetadata`, as TensorFlow 2 does."""
    return _known(tag, "graph_run_metadata_graph", run_metadata, b"1")


# Hyperparameters live in the metadata; the tensor is empty.


def hparam_info(
    name: str,
    *,
    domain: Sequence[HParam] = (),
    interval: tuple[float, float] | None = None,
    display_name: str = "",
    description: str = "",
) -> bytes:
    """Describe a hyperparameter by the values it may take or the interval they lie in."""
    info = text_field(1, name) + text_field(2, display_name) + text_field(3, description)
    if interval:
        low, high = interval
        return (
            info
            + integer_field(4, 3)
            + delimited(6, float64_field(1, low) + float64_field(2, high))
        )
    if domain:
        listed = b"".join([delimited(1, _hparam(choice, name)) for choice in domain])
        return info + integer_field(4, _hparam_type(domain)) + delimited(5, listed)
    return info


def metric_info(
    tag: str, *, group: str = "", display_name: str = "", description: str = ""
) -> bytes:
    """Describe a metric to show beside hyperparameters: a scalar tag, in a run below `group`."""
    name = text_field(1, group) + text_field(2, tag)
    return delimited(1, name) + text_field(3, display_name) + text_field(4, description)


def hparams_experiment(
    hparams: Iterable[bytes],
    metrics: Iterable[bytes],
    *,
    name: str = "",
    description: str = "",
    user: str = "",
    time_created: float = 0.0,
) -> EncodedValue:
    """Build the description of an experiment from `hparam_info` and `metric_info`."""
    experiment = (
        text_field(1, description)
        + text_field(2, user)
        + float64_field(3, time_created)
        + b"".join([delimited(4, info) for info in hparams])
        + b"".join([delimited(5, info) for info in metrics])
        + text_field(6, name)
    )
    return _hparams("_hparams_/experiment", delimited(2, experiment))


def hparams_start(
    hparams: Mapping[str, HParam], *, group: str = "", start_time: float = 0.0
) -> EncodedValue:
    """Build the start of a session: the hyperparameters of a run."""
    entries = [
        text_field(1, name) + delimited(2, _hparam(value, name)) for name, value in hparams.items()
    ]
    session = b"".join([delimited(1, entry) for entry in entries])
    session += text_field(4, group) + float64_field(5, start_time)
    return _hparams("_hparams_/session_start_info", delimited(3, session))


_STATUSES = {"unknown": 0, "success": 1, "failure": 2, "running": 3}


def hparams_end(status: str = "success", *, end_time: float = 0.0) -> EncodedValue:
    """Build the end of a session: `success`, `failure`, `running` or `unknown`."""
    session = integer_field(1, _STATUSES[status]) + float64_field(2, end_time)
    return _hparams("_hparams_/session_end_info", delimited(4, session))


def _hparams(tag: str, content: bytes) -> EncodedValue:
    return _known(tag, "hparams", np.zeros(0, np.float32), content)


def _hparam(value: HParam, name: str) -> bytes:
    if isinstance(value, str):
        return delimited(3, value.encode())
    if isinstance(value, bool | np.bool_):
        return varint(4 << 3 | VARINT) + varint(int(value))
    try:
        return float64_field(2, float(value))
    except (TypeError, ValueError):
        kind = type(value).__name__
        problem = f"the hyperparameter {name!r} is a {kind}, not a number, a bool or a text"
        raise TypeError(f"{problem}: {value!r:.60}") from None


def _hparam_type(domain: Sequence[HParam]) -> int:
    if isinstance(domain[0], str):
        return 1
    return 2 if isinstance(domain[0], bool) else 3


# The forms of TensorFlow 1, still written by PyTorch and tensorboardX.


def legacy_image(
    tag: str, encoded: bytes, width: int, height: int, colorspace: int = 3
) -> EncodedValue:
    """Build one encoded image; `colorspace` is its number of channels."""
    image = integer_field(1, height) + integer_field(2, width) + integer_field(3, colorspace)
    return EncodedValue(tag, _tag(tag) + delimited(4, image + delimited(4, encoded)))


def legacy_audio(tag: str, wav: bytes, rate: float, channels: int, frames: int) -> EncodedValue:
    """Build one WAV clip."""
    clip = _simple_value(0x0D, rate) + integer_field(2, channels) + integer_field(3, frames)
    clip += delimited(4, wav) + text_field(5, "audio/wav")
    return EncodedValue(tag, _tag(tag) + delimited(6, clip))


def legacy_histogram(
    tag: str, numbers: npt.ArrayLike, limits: npt.ArrayLike, counts: npt.ArrayLike
) -> EncodedValue:
    """Build a histogram of `numbers`: `counts` of buckets, each given by its upper limit."""
    flat = np.asarray(numbers, dtype=np.float64).ravel()
    low, high = (flat.min(), flat.max()) if flat.size else (0.0, 0.0)
    moments = (low, high, flat.size, flat.sum(), flat @ flat)
    histo = b"".join([float64_field(field, number) for field, number in enumerate(moments, 1)])
    histo += delimited(6, np.asarray(limits, "<f8").tobytes())
    histo += delimited(7, np.asarray(counts, "<f8").tobytes())
    return EncodedValue(tag, _tag(tag) + delimited(5, histo))


@lru_cache(maxsize=4096)
def _tag(tag: str) -> bytes:
    return delimited(1, tag.encode())
