"""Logging of images, audio, text, histograms, graphs and embeddings.

`arrays` converts the types of the frameworks to numpy arrays, rows and pixels.
"""

from __future__ import annotations

import re
import sys
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aboard.events import encode
from aboard.events.encode import EncodedValue, png
from aboard.events.messages import delimited, keep_tensorflow_out
from aboard.events.writer import EventWriter
from aboard.storage.base import NoSuchPath, StorageError
from aboard.storage.local import LocalStorage
from aboard.track import notify
from aboard.track.arrays import (
    Array,
    Levels,
    Table,
    batch_levels,
    errors_named,
    figure_pixels,
    grid,
    image_levels,
    in_color,
    markdown,
    table_of,
    texts_of,
    to_numpy,
    to_reals,
    to_whole,
)

Samples = npt.NDArray[np.int16]
_SAMPLE_TYPES = (np.dtype("int16"), np.dtype("int32"), np.dtype("uint8"))
_MAX_RATE = 10**8
_SMALLEST_COUNT = 1e-7

CONFIG_FILE = "projector_config.pbtxt"  # may have entries of other programs
_ENTRY = re.compile(rb"embeddings \{\n(?: .*\n)*\}\n")
_config = threading.Lock()


class MediaLog(ABC):
    """Logs anything but numbers. A subclass must define `_at` and `_write`.

    The default step is the last one of the stage. The description is Markdown, shown next to the
    data; the first one of a tag counts. On a `TypeError` or `ValueError` nothing is logged.
    """

    @abstractmethod
    def _at(self, stage: str, step: int | None) -> tuple[EventWriter, int]:
        """Return the writer of a stage's directory and the step to log at."""

    @abstractmethod
    def _write(self, values: Sequence[EncodedValue], step: int | None, stage: str) -> None:
        """Write values at a step of a stage."""

    def log_image(
        self,
        tag: str,
        image: Any,
        *,
        dataformats: str | None = None,
        step: int | None = None,
        stage: str = "",
        description: str = "",
    ) -> None:
        """Log an image: an array, a tensor, or a Pillow image.

        Integers are levels from 0 to 255, floats and booleans span 0 to 1; values outside are
        clipped. `dataformats` names the axes, such as `CHW`, `HWC` or `HW`; without it, the axis
        with 1, 3 or 4 elements has the channels.
        """
        with errors_named("image", tag):
            value = _images(tag, [image_levels(image, dataformats)])
        self._add([value], step, stage, description)

    def log_images(
        self,
        tag: str,
        images: Any,
        *,
        dataformats: str | None = None,
        step: int | None = None,
        stage: str = "",
        description: str = "",
    ) -> None:
        """Log several images of one size: a batch, such as `NCHW` or `NHWC`, or a sequence."""
        with errors_named("images", tag):
            value = _images(tag, batch_levels(images, dataformats))
        self._add([value], step, stage, description)

    def log_figure(
        self,
        tag: str,
        figure: Any,
        *,
        close: bool = False,
        step: int | None = None,
        stage: str = "",
        description: str = "",
    ) -> None:
        """Log a matplotlib figure, or several of one size, as `savefig` draws it."""
        figures = figure if isinstance(figure, list | tuple) else [figure]
        with errors_named("figure", tag):
            drawn = [figure_pixels(one, close=close) for one in figures]
            value = _images(tag, batch_levels(drawn, "HWC"))
        self._add([value], step, stage, description)

    def log_histogram(
        self,
        tag: str,
        values: Any,
        *,
        buckets: int = 30,
        step: int | None = None,
        stage: str = "",
        description: str = "",
    ) -> None:
        """Log the distribution of the finite numbers, in buckets of equal width."""
        with errors_named("histogram", tag):
            if buckets < 1:
                raise ValueError(f"expected at least one bucket, got {buckets}")
            value = encode.histogram(tag, encode.histogram_buckets(to_reals(values), buckets))
        self._add([value], step, stage, description)

    def log_text(
        self,
        tag: str,
        text: str | Sequence[Any],
        *,
        step: int | None = None,
        stage: str = "",
        description: str = "",
    ) -> None:
        """Log a text in Markdown, or a table of texts as nested sequences."""
        with errors_named("text", tag):
            value = encode.text(tag, texts_of(text))
        self._add([value], step, stage, description)

    def log_table(
        self,
        tag: str,
        rows: Any,
        *,
        columns: Sequence[str] | None = None,
        step: int | None = None,
        stage: str = "",
        description: str = "",
    ) -> None:
        """Log a table among the texts: a data frame, a mapping of columns, mappings, or rows.

        The first thousand rows and hundred columns are shown. Cells are Markdown.
        """
        with errors_named("table", tag):
            value = encode.text(tag, markdown(table_of(rows, columns)))
        self._add([value], step, stage, description)

    def log_audio(
        self,
        tag: str,
        samples: Any,
        rate: int,
        *,
        step: int | None = None,
        stage: str = "",
        description: str = "",
    ) -> None:
        """Log audio of `rate` frames a second; the shorter of two axes has the channels.

        Floats span -1 to 1, values outside are clipped; integers span all their bits.
        """
        with errors_named("audio", tag):
            value = encode.audio(tag, [encode.wav(audio_samples(samples), frame_rate(rate))])
        self._add([value], step, stage, description)

    def log_pr_curve(
        self,
        tag: str,
        labels: Any,
        predictions: Any,
        *,
        weights: Any = None,
        thresholds: int = 127,
        step: int | None = None,
        stage: str = "",
        description: str = "",
    ) -> None:
        """Log precision and recall of predictions from 0 to 1 for labels 0 and 1."""
        with errors_named("precision-recall curve", tag):
            check_probabilities(labels, predictions)
            if thresholds < 2:
                raise ValueError(f"expected at least two thresholds, got {thresholds}")
            value = encode.pr_curve(tag, pr_curve(labels, predictions, weights, thresholds))
        self._add([value], step, stage, description)

    def log_mesh(
        self,
        tag: str,
        vertices: Any,
        *,
        faces: Any = None,
        colors: Any = None,
        config: Mapping[str, Any] | None = None,
        step: int | None = None,
        stage: str = "",
        description: str = "",
    ) -> None:
        """Log a mesh, or a point cloud if there are no faces: `[n, 3]`, or `[batch, n, 3]`.

        Colors are levels from 0 to 255, or floats from 0 to 1. `config` is for three.js.
        """
        with errors_named("mesh", tag):
            values = encode.mesh(tag, *mesh_parts(vertices, faces, colors), config)
        self._add(values, step, stage, description)

    def log_embedding(
        self,
        tag: str,
        matrix: Any,
        *,
        metadata: Any = None,
        images: Any = None,
        dataformats: str | None = None,
        step: int | None = None,
        stage: str = "",
    ) -> None:
        """Log vectors, one per row, for the projector.

        `metadata` is a label for each vector, or a table as for `log_table`; `images` is a small
        image for each vector, as for `log_images`.
        """
        with errors_named("embedding", tag):
            vectors = matrix_of(matrix)
            known = None if metadata is None else labels_of(metadata)
            shown = None if images is None else batch_levels(images, dataformats)
            writer, at = self._at(stage, _step(step))
            write_embedding(writer.directory, tag, at, vectors, known, shown)

    def log_graph(self, model: Any, example_input: Any = None, *, stage: str = "") -> None:
        """Log a graph: a PyTorch model, run on an example, Keras, TensorFlow, or a `GraphDef`."""
        graph = graph_of(model, example_input)
        writer, _ = self._at(stage, 0)
        if graph.keras_json:
            writer.add([encode.keras_graph(graph.keras_json)], 0)
        else:
            writer.write(encode.graph(time.time(), graph.graph_def))

    def _add(
        self, values: Iterable[EncodedValue], step: int | None, stage: str, description: str
    ) -> None:
        self._write([_described(value, description) for value in values], _step(step), stage)


def _step(step: Any) -> int | None:
    return None if step is None else to_whole(step, "the step")


def _images(tag: str, shades: Sequence[Levels]) -> EncodedValue:
    height, width = shades[0].shape[:2]
    return encode.images(tag, [encode.png(one) for one in shades], width, height)


def _described(value: EncodedValue, description: str) -> EncodedValue:
    if not description:
        return value
    return value._replace(metadata=value.metadata + delimited(3, description.encode()))


# Meshes and point clouds: vertices, faces and colors, all `[batch, n, 3]`.
def mesh_parts(
    vertices: Any, faces: Any = None, colors: Any = None
) -> tuple[Array, Array | None, Array | None]:
    points = _mesh_part("vertices", vertices)
    corners = None if faces is None else _mesh_part("faces", faces)
    shades = None if colors is None else _mesh_part("colors", colors)
    if shades is not None:
        if shades.shape != points.shape:
            raise ValueError(
                f"expected a color for each vertex, got {shades.shape} for {points.shape}"
            )
        if shades.dtype.kind == "f" and shades.size and shades.max() <= 1:
            shades = np.round(shades * 255)
        shades = np.clip(shades, 0, 255)
    return points, corners, shades


def _mesh_part(name: str, values: Any) -> Array:
    part = to_reals(values)
    part = part[None] if part.ndim == 2 else part
    if part.ndim != 3 or part.shape[2] != 3:
        raise ValueError(f"expected {name} of the shape [batch, n, 3], got {part.shape}")
    return part


# Audio: 16 bits a sample, `[frames, channels]`.
def audio_samples(samples: Any) -> Samples:
    frames = to_numpy(samples)
    if frames.ndim not in (1, 2) or not frames.size:
        raise ValueError(f"expected [frames] or [frames, channels], got the shape {frames.shape}")
    if frames.ndim == 2 and frames.shape[0] < frames.shape[1]:
        frames = frames.T
    return _sixteen_bits(frames, np.round)


def torch_audio_samples(samples: Any) -> Samples:
    """Return one mono clip as PyTorch does, which rounds towards zero."""
    frames = to_numpy(samples).squeeze()
    if frames.ndim != 1 or not frames.size:
        raise ValueError(f"expected the samples of one channel, got the shape {frames.shape}")
    if frames.dtype.kind in "biu" and frames.dtype not in _SAMPLE_TYPES:
        frames = frames.astype(np.float64)
    return _sixteen_bits(frames, np.trunc)


def frame_rate(rate: Any) -> int:
    number = to_whole(rate, "the rate")
    if not 0 < number <= _MAX_RATE:
        raise ValueError(f"expected a rate from 1 to {_MAX_RATE} frames a second, got {number}")
    return number


def _sixteen_bits(frames: Array, rounded: Any) -> Samples:
    if frames.dtype == np.int16:
        return frames
    if frames.dtype == np.int32:
        return (frames >> 16).astype(np.int16)
    if frames.dtype == np.uint8:
        return (frames.astype(np.int16) - 128) << 8
    if frames.dtype.kind != "f":
        raise TypeError(f"expected floats, int16, int32 or uint8, got {frames.dtype}")
    return np.asarray(rounded(np.clip(np.nan_to_num(frames, nan=0.0), -1, 1) * 0x7FFF), np.int16)


# Precision-recall curves.
def pr_curve(labels: Any, predictions: Any, weights: Any = None, thresholds: int = 127) -> Array:
    """Count true and false predictions at each threshold from 0 to 1.

    The rows: true positives, false positives, true negatives, false negatives, precision, recall.
    NaN among the predictions is ignored.
    """
    truths, guesses = to_reals(labels).astype(np.float64), to_reals(predictions)
    importance = to_reals(1.0 if weights is None else weights).astype(np.float64)
    if truths.shape != guesses.shape:
        raise ValueError(
            f"expected a label for each prediction, got {truths.shape} and {guesses.shape}"
        )
    if importance.ndim and importance.shape != truths.shape:
        raise ValueError(
            f"expected a weight for each label, got {importance.shape} for {truths.shape}"
        )
    if thresholds < 1:
        raise ValueError(f"expected at least one threshold, got {thresholds}")
    reached = np.floor(guesses * (thresholds - 1)).ravel()
    counts = (reached >= 0) & (reached < thresholds)
    places = reached[counts].astype(np.int64)
    positive = (truths * importance).ravel()[counts]
    negative = ((1.0 - truths) * importance).ravel()[counts]
    # A prediction is positive at a threshold if it reaches this one or a higher one.
    tp, fp = (
        np.bincount(places, weights=part, minlength=thresholds)[::-1].cumsum()[::-1]
        for part in (positive, negative)
    )
    fn, tn = tp[0] - tp, fp[0] - fp
    precision = tp / np.maximum(_SMALLEST_COUNT, tp + fp)
    recall = tp / np.maximum(_SMALLEST_COUNT, tp + fn)
    return np.stack((tp, fp, tn, fn, precision, recall))


def check_probabilities(labels: Any, predictions: Any) -> None:
    truths, guesses = to_reals(labels), to_reals(predictions)
    if not np.isin(truths, (0, 1)).all():
        raise ValueError(f"expected labels that are 0 or 1, got {truths.max()}")
    if (guesses < 0).any() or (guesses > 1).any():
        raise ValueError(
            f"expected predictions from 0 to 1, got {np.nanmin(guesses)} to {np.nanmax(guesses)}"
        )


class Graph(NamedTuple):
    """A graph in TensorBoard's format: of operations, or of the layers of a Keras model."""

    graph_def: bytes = b""
    run_metadata: bytes = b""
    keras_json: str = ""


def graph_of(
    model: Any, example: Any = None, *, verbose: bool = False, strict: bool = True
) -> Graph:
    if isinstance(model, bytes):
        return Graph(model)
    if hasattr(model, "SerializeToString"):
        return Graph(model.SerializeToString())
    if hasattr(model, "as_graph_def"):
        return Graph(model.as_graph_def().SerializeToString())
    if hasattr(model, "to_json") and hasattr(model, "get_config"):  # Keras, possibly on PyTorch
        return Graph(keras_json=model.to_json())
    if _is_torch(model):
        return _traced(model, example, verbose, strict)
    if hasattr(model, "graph") and hasattr(model.graph, "as_graph_def"):  # a concrete tf.function
        return Graph(model.graph.as_graph_def().SerializeToString())
    kind = f"{type(model).__module__}.{type(model).__name__}"
    raise TypeError(
        f"cannot create a graph of a {kind}; expected a torch.nn.Module, a Keras model, "
        f"a TensorFlow graph or a GraphDef"
    )


def onnx_graph(path: str | PathLike[str]) -> Graph:
    try:
        onnx = import_module("onnx")
    except ImportError as error:
        raise ImportError(
            "reading an ONNX file needs the package onnx: pip install onnx"
        ) from error
    graph = onnx.load(path).graph
    nodes = []
    for end in (*graph.input, *graph.output):
        tensor = end.type.tensor_type
        attributes = {
            "dtype": encode.type_attribute(tensor.elem_type),
            "shape": encode.shape_attribute([size.dim_value for size in tensor.shape.dim]),
        }
        nodes.append(encode.graph_node(end.name, "Variable", (), attributes))
    for node in graph.node:
        parameters = [" = ".join(str(one) for _, one in at.ListFields()) for at in node.attribute]
        attributes = {"parameters": encode.text_attribute(", ".join(parameters))}
        nodes.append(encode.graph_node(node.output[0], node.op_type, node.input, attributes))
    return Graph(encode.graph_def(nodes))


def _is_torch(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(
        model, torch.nn.Module | torch.jit.ScriptFunction | torch.jit.ScriptModule
    )


def _traced(model: Any, example: Any, verbose: bool, strict: bool) -> Graph:
    if example is None:
        raise ValueError(
            f"the graph of a {type(model).__name__} is found by running it: pass an example input"
        )
    if "tensorflow" not in sys.modules:
        keep_tensorflow_out()  # PyTorch's module would import it
    # Private: checked with PyTorch 2.13. tests/track/test_summary.py compares its graphs.
    tracing = import_module("torch.utils.tensorboard._pytorch_graph")
    with warnings.catch_warnings():
        # PyTorch has no public way to get this graph.
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        traced, statistics = tracing.graph(model, example, verbose, strict)
    return Graph(traced.SerializeToString(), statistics.SerializeToString())


def matrix_of(vectors: Any) -> Array:
    matrix = to_numpy(vectors)
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"expected a matrix, one vector a row, got the shape {matrix.shape}")
    return matrix


def labels_of(given: Any) -> Table:
    if not hasattr(given, "columns") and not isinstance(given, dict):
        labels = given.tolist() if hasattr(given, "tolist") else list(given)
        if not any(isinstance(label, dict | list | tuple) for label in labels):
            return Table([], [[label] for label in labels])
        given = labels
    return table_of(given)


def write_embedding(
    directory: str | PathLike[str],
    tag: str,
    step: int,
    matrix: Array,
    metadata: Table | None = None,
    images: Sequence[Levels] | None = None,
) -> None:
    storage = LocalStorage(str(Path(directory).absolute()))
    place = f"{step:05}/{_escaped(tag)}"
    files = {"tensors.tsv": _lines(map(str, row) for row in matrix.tolist())}
    if metadata is not None:
        _check_count("labels", len(metadata.rows), len(matrix))
        header = [metadata.columns] if len(metadata.columns) > 1 else []
        files["metadata.tsv"] = _lines(map(_one_line, row) for row in (*header, *metadata.rows))
    size = None
    if images is not None:
        _check_count("images", len(images), len(matrix))
        size = images[0].shape[1], images[0].shape[0]
        files["sprite.png"] = png(_sprite(images))
    entry = _entry(f"{tag}:{step:05}", place, metadata is not None, size)
    try:
        for name, content in files.items():
            storage.write(f"{place}/{name}", content)
        with _config:
            try:
                before = storage.read(CONFIG_FILE)
            except NoSuchPath:
                before = b""
            storage.write(CONFIG_FILE, _with_entry(before, entry))
    except StorageError as error:
        notify(f"the embedding {tag!r} was not written: {error}")


def _check_count(what: str, count: int, vectors: int) -> None:
    if count != vectors:
        raise ValueError(f"expected {what} for {vectors} vectors, got {count}")


def _escaped(tag: str) -> str:
    escaped = tag.replace("%", "%25").replace("/", "%2f").replace("\\", "%5c")
    return escaped if escaped.strip(".") else escaped.replace(".", "%2e") or "%"


def _lines(rows: Iterable[Iterable[str]]) -> bytes:
    return "".join(["\t".join(row) + "\n" for row in rows]).encode()


def _one_line(cell: Any) -> str:
    text = str(cell)
    return text if text.isprintable() else " ".join(re.split(r"[\t\r\n]", text))


def _sprite(images: Sequence[Levels]) -> Levels:
    sheet = grid(np.stack([in_color(one) for one in images]), int(np.ceil(len(images) ** 0.5)))
    height, width, channels = sheet.shape
    square = np.zeros((max(height, width), width, channels), np.uint8)
    square[:height] = sheet
    return square


def _entry(name: str, place: str, has_metadata: bool, image_size: tuple[int, int] | None) -> bytes:
    lines = [f"  tensor_name: {_quoted(name)}"]
    if has_metadata:
        lines.append(f"  metadata_path: {_quoted(f'{place}/metadata.tsv')}")
    if image_size is not None:
        lines += ["  sprite {", f"    image_path: {_quoted(f'{place}/sprite.png')}"]
        lines += [f"    single_image_dim: {size}" for size in image_size] + ["  }"]
    lines.append(f"  tensor_path: {_quoted(f'{place}/tensors.tsv')}")
    return "\n".join(["embeddings {", *lines, "}\n"]).encode()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _with_entry(config: bytes, entry: bytes) -> bytes:
    name = entry.split(b"\n", 2)[1]
    kept = _ENTRY.sub(lambda one: b"" if name in one[0].split(b"\n") else one[0], config)
    return kept + (b"\n" if kept and not kept.endswith(b"\n") else b"") + entry
