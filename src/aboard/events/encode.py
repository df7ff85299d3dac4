"""Encodes values as `Event` protobufs, by hand, so that a training loop pays little.

A builder (`scalar`, `text`, `images`, ...) makes an `EncodedValue`: one value of one tag, with the
metadata that its tag needs once per file. `event` puts values at a step. `tensor_proto` encodes
arrays, `png`, `animated_png` and `wav` images and audio.
"""

from __future__ import annotations

import io
import json
import struct
import wave
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import count
from numbers import Number
from operator import index
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from aboard.events.messages import (
    DATA_CLASSES,
    DT_STRING,
    ELEMENT_TYPES,
    SESSION_START,
    VARINT,
    ElementType,
    HParam,
    delimited,
    float64_field,
    integer_field,
    text_field,
    varint,
)

FILE_VERSION = "brain.Event:2"
WRITER = "aboard.events.writer"

_wall_time = struct.Struct("<Bd").pack
_simple_value = struct.Struct("<Bf").pack


class EncodedValue(NamedTuple):
    """One value of one tag, not yet at a step.

    `metadata` is a serialized `SummaryMetadata`, or empty. Readers expect it on the first value of
    a tag in a run; `bare` removes it from later ones.
    """

    tag: str
    fields: bytes
    metadata: bytes = b""

    def encode(self) -> bytes:
        return self.fields + delimited(9, self.metadata) if self.metadata else self.fields

    def bare(self) -> EncodedValue:
        return self._replace(metadata=b"") if self.metadata else self


# Events.


def event(wall_time: float, step: int, values: Iterable[EncodedValue]) -> bytes:
    return _event(wall_time, step, 5, b"".join([delimited(1, value.encode()) for value in values]))


def file_version(wall_time: float, writer: str = WRITER) -> bytes:
    """Encode the event that opens every file and names the software that wrote it."""
    version = _event(wall_time, 0, 3, FILE_VERSION.encode())
    return version + delimited(10, text_field(1, writer)) if writer else version


def graph(wall_time: float, graph_def: bytes, step: int = 0) -> bytes:
    return _event(wall_time, step, 4, graph_def)


def tagged_run_metadata(wall_time: float, step: int, tag: str, run_metadata: bytes) -> bytes:
    return _event(wall_time, step, 8, text_field(1, tag) + delimited(2, run_metadata))


def session_start(wall_time: float, step: int) -> bytes:
    """Encode the start of a session: readers drop earlier points from that step on."""
    return _event(wall_time, step, 7, integer_field(1, 1))


def step_number(step: SupportsIndex) -> int:
    try:
        number = index(step)
    except TypeError:
        problem = f"step must be an integer, not {type(step).__name__}: {step!r:.60}"
        raise TypeError(problem) from None
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
    plugin: str, content: bytes = b"", *, data_class: str = "", description: str = ""
) -> bytes:
    """Encode a `SummaryMetadata`; readers know the data class of standard plugins."""
    plugin_data = text_field(1, plugin) + (delimited(2, content) if content else b"")
    fields = (delimited(1, plugin_data) if plugin_data else b"") + text_field(3, description)
    return fields + integer_field(4, DATA_CLASSES.index(data_class))


# One builder for each kind of summary.


def scalar(tag: str, number: float) -> EncodedValue:
    """Build a scalar in the oldest and shortest form: 32 bits, without metadata."""
    try:
        return EncodedValue(tag, _tag(tag) + _simple_value(0x15, number))
    except OverflowError:  # beyond float32: infinite, as after a cast
        return EncodedValue(tag, _tag(tag) + _simple_value(0x15, np.inf if number > 0 else -np.inf))


def scalar_tensor(
    tag: str,
    number: npt.ArrayLike,
    dtype: str | None = None,
    *,
    content: bool | None = None,
) -> EncodedValue:
    proto = tensor_proto(_single(tag, number, dtype), dtype, content=content)
    return EncodedValue(tag, _tag(tag) + delimited(8, proto), metadata("scalars"))


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
    return EncodedValue(
        tag,
        _tag(tag) + delimited(8, tensor_proto(array, dtype)),
        metadata(plugin, plugin_content, data_class=data_class, description=description),
    )


def _known(tag: str, plugin: str, array: npt.ArrayLike, content: bytes = b"") -> EncodedValue:
    """Build a tensor of a plugin whose data class every reader knows."""
    return tensor(tag, array, plugin=plugin, plugin_content=content, data_class="")


def text(tag: str, text: str | Sequence[Any] | npt.NDArray[Any]) -> EncodedValue:
    return _known(tag, "text", text)


def histogram(tag: str, buckets: npt.ArrayLike) -> EncodedValue:
    """Build a histogram of rows `left edge, right edge, count`; see `histogram_buckets`."""
    rows = np.asarray(buckets, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise ValueError(f"a histogram must have three columns, not the shape {rows.shape}")
    return _known(tag, "histograms", rows)


def histogram_buckets(numbers: npt.ArrayLike, count: int = 30) -> npt.NDArray[np.float64]:
    """Sort the finite numbers into buckets of equal width.

    As in TensorFlow, equal numbers all go into the last of `count` buckets of zero width. Without
    numbers there are no buckets.
    """
    if count < 1:
        raise ValueError(f"buckets must be at least 1, not {count}")
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


class Histogram(NamedTuple):
    moments: tuple[float, float, float, float, float]  # lowest, highest, count, sum, sum of squares
    limits: npt.NDArray[Any]
    counts: npt.NDArray[Any]


def torch_histogram(
    numbers: npt.NDArray[Any],
    bins: str | int | npt.ArrayLike = "tensorflow",
    most: int | None = None,
) -> Histogram:
    """Sort the finite numbers into buckets as PyTorch does, at most `most` of them.

    `bins` is `tensorflow`, for buckets that grow by a tenth, or anything `numpy.histogram` takes.
    """
    if not numbers.size:
        raise ValueError("expected at least one number, got none")
    finite = numbers.astype(np.float64).ravel()
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return Histogram((0.0,) * 5, np.zeros(1), np.zeros(1))
    edges = torch_edges() if isinstance(bins, str) and bins == "tensorflow" else bins
    counts, limits = np.histogram(finite, bins=edges)
    if most is not None and len(counts) > most:
        each = len(counts) // most
        starts = np.arange(0, len(counts), each)
        counts, limits = np.add.reduceat(counts, starts), np.append(limits[starts], limits[-1])
    filled = np.flatnonzero(counts)
    if filled.size:
        first, last = int(filled[0]), int(filled[-1])
        # An empty bucket before the first marks where the first one begins.
        counts = np.concatenate([[0], counts[first : last + 1]])
        limits = limits[first : last + 2]
    else:  # all numbers lie beyond the buckets
        counts, limits = np.array([finite.size]), np.array([finite.max()])
    with np.errstate(over="ignore"):
        total, squares = float(finite.sum()), float(finite @ finite)
    low, high = float(finite.min()), float(finite.max())
    return Histogram((low, high, float(finite.size), total, squares), limits, counts)


@cache
def torch_edges() -> npt.NDArray[np.float64]:
    """Return edges from -1e20 to 1e20, each a tenth further from zero than the one before."""
    edges = []
    edge = 1e-12
    while edge < 1e20:
        edges.append(edge)
        edge *= 1.1
    above = np.array(edges)
    return np.concatenate([-above[::-1], [0.0], above])


def images(tag: str, encoded: Sequence[bytes], width: int, height: int) -> EncodedValue:
    return _known(tag, "images", [str(width).encode(), str(height).encode(), *encoded])


def audio(tag: str, wavs: Sequence[bytes], labels: Sequence[str] | None = None) -> EncodedValue:
    clips = np.empty((len(wavs), 2), dtype=object)
    for row, clip in enumerate(zip(wavs, labels or [""] * len(wavs), strict=True)):
        clips[row] = clip
    return _known(tag, "audio", clips, integer_field(2, 11))


def pr_curve(tag: str, curve: npt.ArrayLike) -> EncodedValue:
    # One column per threshold; rows: true and false positives, true and false negatives, precision,
    # recall.
    rows = np.asarray(curve, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[0] != 6:
        raise ValueError(f"a precision-recall curve must have six rows, not the shape {rows.shape}")
    return _known(tag, "pr_curves", rows, integer_field(2, rows.shape[1]))


_MESH_PARTS = {"VERTEX": (1, "float32"), "FACE": (2, "int32"), "COLOR": (3, "uint8")}


def mesh(
    tag: str,
    vertices: npt.ArrayLike,
    faces: npt.ArrayLike | None = None,
    colors: npt.ArrayLike | None = None,
    config: Mapping[str, Any] | None = None,
) -> list[EncodedValue]:
    """Build a batch of meshes: values for vertices, faces and colors, each `[batch, n, 3]`."""
    given = zip(_MESH_PARTS, (vertices, faces, colors), strict=True)
    parts = [(name, np.asarray(part)) for name, part in given if part is not None]
    components = sum(1 << _MESH_PARTS[name][0] for name, _ in parts)
    values = []
    for name, part in parts:
        if part.ndim != 3 or part.shape[2] != 3:
            raise ValueError(f"a mesh part must have the shape [batch, n, 3], not {part.shape}")
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
    return _known("custom_scalars__config__", "custom_scalars", layout)


def keras_graph(model_json: str) -> EncodedValue:
    return _known("keras", "graph_keras_model", model_json, b"1")


# Hyperparameters are in the metadata; the tensor is empty.


def hparam_info(
    name: str,
    *,
    domain: Sequence[HParam] = (),
    kind: type | None = None,  # str, bool or float
) -> bytes:
    info = text_field(1, name)
    if domain:
        listed = b"".join([delimited(1, _hparam(choice, name)) for choice in domain])
        return info + integer_field(4, _hparam_type(type(domain[0]))) + delimited(5, listed)
    return info + integer_field(4, _hparam_type(kind)) if kind else info


def metric_info(tag: str) -> bytes:
    """Describe a metric to show with hyperparameters: a scalar tag."""
    return delimited(1, text_field(2, tag))


def hparams_experiment(hparams: Iterable[bytes], metrics: Iterable[bytes]) -> EncodedValue:
    infos = [delimited(4, info) for info in hparams] + [delimited(5, info) for info in metrics]
    return _hparams("_hparams_/experiment", delimited(2, b"".join(infos)))


def hparams_start(
    hparams: Mapping[str, HParam], *, group: str = "", start_time: float = 0.0
) -> EncodedValue:
    session = b""
    for name, value in hparams.items():
        session += delimited(1, text_field(1, name) + delimited(2, _hparam(value, name)))
    session += text_field(4, group) + float64_field(5, start_time)
    return _hparams(SESSION_START, delimited(3, session))


_STATUSES = {"unknown": 0, "success": 1, "failure": 2, "running": 3}


def hparams_end(status: str = "success") -> EncodedValue:
    session = integer_field(1, _STATUSES[status])
    return _hparams("_hparams_/session_end_info", delimited(4, session))


def _hparams(tag: str, content: bytes) -> EncodedValue:
    return _known(tag, "hparams", np.zeros(0, np.float32), content)


def _hparam(value: HParam, name: str) -> bytes:
    if isinstance(value, str):
        return delimited(3, value.encode(errors="backslashreplace"))
    if isinstance(value, bool | np.bool_):
        return varint(4 << 3 | VARINT) + varint(int(value))
    try:
        return float64_field(2, float(value))
    except OverflowError:  # an integer beyond the range of a float
        return delimited(3, str(value).encode())
    except (TypeError, ValueError):
        kind = type(value).__name__
        problem = f"the hyperparameter {name!r} is a {kind}, not a number, a bool or a string"
        raise TypeError(f"{problem}: {value!r:.60}") from None


def _hparam_type(kind: type) -> int:
    return {str: 1, bool: 2}.get(kind, 3)


# The forms of TensorFlow 1, still written by PyTorch and tensorboardX.


def legacy_image(
    tag: str, encoded: bytes, width: int, height: int, colorspace: int = 3
) -> EncodedValue:
    image = integer_field(1, height) + integer_field(2, width) + integer_field(3, colorspace)
    return EncodedValue(tag, _tag(tag) + delimited(4, image + delimited(4, encoded)))


def legacy_audio(tag: str, wav: bytes, rate: float, channels: int, frames: int) -> EncodedValue:
    clip = _simple_value(0x0D, rate) + integer_field(2, channels) + integer_field(3, frames)
    clip += delimited(4, wav) + text_field(5, "audio/wav")
    return EncodedValue(tag, _tag(tag) + delimited(6, clip))


def legacy_histogram(
    tag: str, moments: Iterable[float], limits: npt.ArrayLike, counts: npt.ArrayLike
) -> EncodedValue:
    """Build a histogram of buckets, each given by its upper limit; see `torch_histogram`."""
    histo = b"".join([float64_field(field, moment) for field, moment in enumerate(moments, 1)])
    histo += delimited(6, np.asarray(limits, "<f8").tobytes())
    histo += delimited(7, np.asarray(counts, "<f8").tobytes())
    return EncodedValue(tag, _tag(tag) + delimited(5, histo))


@lru_cache(maxsize=4096)
def _tag(tag: str) -> bytes:
    return delimited(1, tag.encode())


# Tensors of all element types of event files.


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


def _single(tag: str, number: npt.ArrayLike, dtype: str | None) -> npt.NDArray[Any]:
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


# Parts of the graphs and layouts that PyTorch writes.

_PRODUCER = 22  # the version of TensorFlow's graphs that PyTorch claims


def custom_scalars_layout(layout: Mapping[str, Mapping[str, Sequence[Any]]]) -> bytes:
    """Encode `{category: {chart: ["Multiline" or "Margin", tags]}}` as a `Layout`."""
    categories = []
    for category, charts in layout.items():
        encoded = text_field(1, category)
        for title, chart in charts.items():
            encoded += delimited(2, text_field(1, title) + _chart(title, *chart))
        categories.append(delimited(2, encoded))
    return b"".join(categories)


def _chart(title: str, kind: str, tags: Sequence[str]) -> bytes:
    if kind == "Margin":
        if len(tags) != 3:
            needs = "three tags, of a value, its lower and its upper bound"
            raise ValueError(f"the margin chart {title!r} needs {needs}, not {len(tags)} tags")
        series = b"".join([text_field(field, tag) for field, tag in enumerate(tags, 1)])
        return delimited(3, delimited(1, series))
    if kind != "Multiline":
        raise ValueError(f"the chart {title!r} must be 'Multiline' or 'Margin', not {kind!r}")
    return delimited(2, b"".join([delimited(1, tag.encode()) for tag in tags]))


def graph_node(
    name: str, operation: str, inputs: Iterable[str], attributes: Mapping[str, bytes]
) -> bytes:
    node = text_field(1, name) + text_field(2, operation)
    node += b"".join([delimited(3, one.encode()) for one in inputs])
    for key, value in attributes.items():
        node += delimited(5, text_field(1, key) + delimited(2, value))
    return node


def text_attribute(text: str) -> bytes:
    return delimited(2, text.encode())


def type_attribute(number: int) -> bytes:
    return varint(6 << 3) + varint(number)


def shape_attribute(sizes: Iterable[int]) -> bytes:
    return delimited(7, b"".join([delimited(2, varint(1 << 3) + varint(size)) for size in sizes]))


def graph_def(nodes: Iterable[bytes]) -> bytes:
    versions = delimited(4, varint(1 << 3) + varint(_PRODUCER))
    return b"".join([delimited(1, node) for node in nodes]) + versions


# Pixels to PNG, also animated, and samples to WAV, with numpy and the standard library alone.

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}


def png(pixels: npt.ArrayLike) -> bytes:
    """Encode `[height, width]` or `[height, width, channels]` pixels, one to four channels.

    Integers range from 0 to 255, floats and booleans from 0 to 1. Values outside are clipped, and
    NaN is black.
    """
    shades = _channels_last(levels(np.asarray(pixels)), np.shape(pixels))
    return (
        _PNG_SIGNATURE
        + _png_chunk(b"IHDR", _png_header(shades))
        + _png_chunk(b"IDAT", _png_data(shades))
        + _png_chunk(b"IEND", b"")
    )


def animated_png(frames: Sequence[npt.ArrayLike], rate: float) -> bytes:
    """Encode frames of one size, each as `png` takes it, shown `rate` a second in a loop."""
    sizes = {np.shape(frame) for frame in frames}
    if len(sizes) != 1:
        raise ValueError(f"the frames of a video must have one shape, not {sorted(sizes)}")
    if not 0.02 <= rate <= 1000:
        raise ValueError(f"a video must have 0.02 to 1000 frames a second, not {rate}")
    pictures = [_channels_last(levels(np.asarray(frame)), np.shape(frame)) for frame in frames]
    height, width, _ = pictures[0].shape
    from fractions import Fraction

    pause = Fraction(1 / rate).limit_denominator(1000)  # 50 seconds still fit 16 bits
    chunks = [_png_chunk(b"IHDR", _png_header(pictures[0]))]
    chunks.append(_png_chunk(b"acTL", struct.pack(">II", len(pictures), 0)))
    numbers = count()
    for place, picture in enumerate(pictures):
        control = struct.pack(">IIIII", next(numbers), width, height, 0, 0)
        control += struct.pack(">HHBB", pause.numerator, pause.denominator, 0, 0)
        chunks.append(_png_chunk(b"fcTL", control))
        if place:
            number = struct.pack(">I", next(numbers))
            chunks.append(_png_chunk(b"fdAT", number + _png_data(picture)))
        else:
            chunks.append(_png_chunk(b"IDAT", _png_data(picture)))
    return _PNG_SIGNATURE + b"".join(chunks) + _png_chunk(b"IEND", b"")


def wav(samples: npt.ArrayLike, rate: int) -> bytes:
    """Encode `[frames]` or `[frames, channels]` samples as 16-bit PCM.

    Floats range from -1 to 1 and are clipped; `int16` samples are unchanged.
    """
    if rate < 1:
        raise ValueError(f"rate must be at least 1, not {rate}")
    frames = np.asarray(samples)
    if frames.ndim == 1:
        frames = frames[:, None]
    if frames.ndim != 2 or not frames.shape[1]:
        shape = np.shape(samples)
        raise ValueError(f"audio must have the shape [frames] or [frames, channels], not {shape}")
    if frames.dtype.kind == "f":
        frames = np.round(np.clip(np.nan_to_num(frames, nan=0.0), -1, 1) * 0x7FFF)
    elif frames.dtype != np.int16:
        raise TypeError(f"audio samples must be floats or int16, not {frames.dtype}")
    clip = io.BytesIO()
    with wave.open(clip, "wb") as out:
        out.setnchannels(frames.shape[1])
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(frames.astype("<i2").tobytes())
    return clip.getvalue()


def levels(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    if pixels.dtype.kind == "f":
        scaled = np.clip(np.nan_to_num(pixels, nan=0.0), 0, 1) * 255
        return np.asarray(np.round(scaled), np.uint8)
    if pixels.dtype.kind == "b":
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype.kind in "iu":
        return np.asarray(np.clip(pixels, 0, 255), np.uint8)
    raise TypeError(f"pixels of an image must be numbers, not {pixels.dtype}")


def _channels_last(shades: npt.NDArray[np.uint8], given: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    if shades.ndim == 2:
        shades = shades[:, :, None]
    if shades.ndim != 3 or shades.shape[2] not in _PNG_COLOR_TYPES or not shades.size:
        raise ValueError(
            "an image must have the shape [height, width] or [height, width, 1 to 4 channels], "
            f"not {given}"
        )
    return shades


def _png_header(shades: npt.NDArray[np.uint8]) -> bytes:
    height, width, channels = shades.shape
    return struct.pack(">IIBBBBB", width, height, 8, _PNG_COLOR_TYPES[channels], 0, 0, 0)


def _png_data(shades: npt.NDArray[np.uint8]) -> bytes:
    height, width, channels = shades.shape
    unfiltered = np.zeros((height, 1 + width * channels), np.uint8)
    unfiltered[:, 1:] = shades.reshape(height, -1)
    return zlib.compress(unfiltered.tobytes())


def _png_chunk(name: bytes, payload: bytes) -> bytes:
    checksum = zlib.crc32(name + payload)
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", checksum)
