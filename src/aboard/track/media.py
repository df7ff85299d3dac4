"""What a run logs besides numbers: pictures, sounds, texts, distributions, graphs and the like.

Every call takes what the frameworks have at hand; how that becomes pixels, samples or rows is
left to the modules of those names. Where it is written is left to the run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aboard.events import encode, media
from aboard.events.encode import EncodedValue
from aboard.events.wire import delimited
from aboard.events.writer import EventWriter
from aboard.storage.base import StorageError
from aboard.track import drawings, pictures
from aboard.track.arrays import to_reals, to_whole
from aboard.track.curves import check_probabilities, pr_curve
from aboard.track.embedding import labels_of, matrix_of, write_embedding
from aboard.track.graph import graph_of
from aboard.track.pictures import Levels
from aboard.track.say import say
from aboard.track.shapes import mesh_parts
from aboard.track.sounds import clip_of, frame_rate
from aboard.track.tables import markdown, table_of, texts_of
from aboard.track.wrong import about


class MediaLog(ABC):
    """Log anything but numbers.

    You must define `_at` and `_write`; there is nothing you may define besides. All calls share
    these options:

    Args:
        step: when, as a whole number; the run knows the current step if none is given.
        stage: such as `train` or `eval`.
        description: in Markdown, shown beside the data; the first one of a tag counts.

    Raises:
        TypeError: what is given is not what the call logs.
        ValueError: its shape, or the values in it, are not; nothing is logged.
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
        """Log an image: an array, a tensor, or one of Pillow's.

        Integers are levels from 0 to 255, floats and booleans span 0 to 1, and what lies outside
        is clipped. `dataformats` names the axes, such as `CHW`, `HWC` or `HW`; without it, the
        axis of 1, 3 or 4 elements is that of the channels.
        """
        with about("image", tag):
            value = _images(tag, [pictures.picture(image, dataformats)])
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
        with about("images", tag):
            value = _images(tag, pictures.batch(images, dataformats))
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
        """Log a matplotlib figure, or several of one size, as it would be saved to a file."""
        figures = figure if isinstance(figure, list | tuple) else [figure]
        with about("figure", tag):
            drawn = [drawings.figure_pixels(one, close=close) for one in figures]
            value = _images(tag, pictures.batch(drawn, "HWC"))
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
        """Log how the finite ones of some numbers are distributed, in buckets of equal width."""
        with about("histogram", tag):
            if buckets < 1:
                raise ValueError(f"expected one bucket or more, got {buckets}")
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
        with about("text", tag):
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
        with about("table", tag):
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
        """Log a sound of `rate` frames a second; the shorter of two axes is that of the channels.

        Floats span -1 to 1, and what lies outside is clipped; integers span all their bits.
        """
        with about("audio", tag):
            value = encode.audio(tag, [media.wav(clip_of(samples), frame_rate(rate))])
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
        """Log precision and recall of predictions from 0 to 1 for labels that are 0 or 1."""
        with about("precision-recall curve", tag):
            check_probabilities(labels, predictions)
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
        """Log a mesh, or a cloud of points without faces: `[n, 3]`, or `[batch, n, 3]`.

        Colors are levels from 0 to 255, or floats from 0 to 1. `config` is for three.js.
        """
        with about("mesh", tag):
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
        """Log vectors, one a row, for the projector.

        `metadata` is a label for each, or a table of several columns in any form that
        `log_table` takes; `images` is a small picture for each, as `log_images` takes them.
        """
        with about("embedding", tag):
            vectors = matrix_of(matrix)
            known = None if metadata is None else labels_of(metadata)
            shown = None if images is None else pictures.batch(images, dataformats)
            writer, at = self._at(stage, _step(step))
            try:
                write_embedding(writer.directory, tag, at, vectors, known, shown)
            except StorageError as error:
                say(f"the embedding {tag!r} was not logged: {error}")

    def log_graph(self, model: Any, example_input: Any = None, *, stage: str = "") -> None:
        """Log the graph of a model: of PyTorch, with an example to run it on, Keras or TensorFlow.

        A serialized `GraphDef` is taken as it is.
        """
        graph = graph_of(model, example_input)
        writer, _ = self._at(stage, 0)
        if graph.keras_json:
            writer.add([encode.keras_graph(graph.keras_json)], 0)
        else:
            writer.graph(graph.graph_def)

    def _add(
        self, values: Iterable[EncodedValue], step: int | None, stage: str, description: str
    ) -> None:
        self._write([_described(value, description) for value in values], _step(step), stage)


def _step(step: Any) -> int | None:
    return None if step is None else to_whole(step, "the step")


def _images(tag: str, shades: Sequence[Levels]) -> EncodedValue:
    height, width = shades[0].shape[:2]
    return encode.images(tag, [media.png(one) for one in shades], width, height)


def _described(value: EncodedValue, description: str) -> EncodedValue:
    if not description:
        return value
    return value._replace(metadata=value.metadata + delimited(3, description.encode()))
