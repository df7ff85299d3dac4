"""`SummaryWriter`: the interface of `torch.utils.tensorboard.SummaryWriter`, without PyTorch.

A script that imports it from here writes the same data as before, to a directory or to a bucket,
and an error of the disk does not stop it. What a method makes of its arguments is left to the
modules that `MediaLog` uses too, in the forms that PyTorch writes.
"""

# ruff: noqa: A002 - parameters are called what PyTorch calls them

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from aboard.events import encode, media, pytorch
from aboard.events.encode import EncodedValue
from aboard.storage.base import StorageError
from aboard.storage.uri import canonical, is_remote
from aboard.track import curves, drawings, pictures
from aboard.track.arrays import to_number, to_numpy, to_step
from aboard.track.embedding import labels_of, matrix_of, write_embedding
from aboard.track.env import default_logdir, logdir_from_environment
from aboard.track.file_writer import FileWriter
from aboard.track.graph import graph_of, onnx_graph
from aboard.track.pictures import Levels
from aboard.track.say import say
from aboard.track.sessions import session_records
from aboard.track.shapes import mesh_parts
from aboard.track.sounds import frame_rate, torch_clip
from aboard.track.tables import table_of, texts_of
from aboard.track.wrong import about, wrong

if TYPE_CHECKING:
    from aboard.track.shipment import Shipment

_MOST_THRESHOLDS = 127
"""PyTorch's limit."""


class SummaryWriter:
    """Write everything TensorBoard shows to event files.

    Args:
        log_dir: a directory, or a bucket's URI, to which the files are carried while they are
            written. By default what the platform says, or `runs/<time>_<host><comment>`.
        comment: ends the name of the default directory.
        purge_step: hides what an earlier, crashed process wrote from this step on.
        max_queue: kept for those who pass it; records are counted in bytes here.
        flush_secs: how long a record may stay in memory.
        filename_suffix: ends the names of event files.

    After `close`, the next call opens another file. `global_step` is a whole number, `walltime`
    seconds since 1970, which is now unless told.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: float = 1,
        filename_suffix: str = "",
    ) -> None:
        self.log_dir = log_dir or logdir_from_environment() or default_logdir(comment)
        self.purge_step = purge_step
        self.max_queue = max_queue
        self.flush_secs = flush_secs
        self.filename_suffix = filename_suffix
        self.file_writer: FileWriter | None = None
        self.all_writers: dict[str, FileWriter] | None = None
        self._shipment: Shipment | None = None
        self._get_file_writer()

    @property
    def default_bins(self) -> list[float]:
        """The edges of the buckets of a histogram with `bins="tensorflow"`."""
        edges: list[float] = curves.default_edges().tolist()
        return edges

    def get_logdir(self) -> str | os.PathLike[str]:
        """Return the directory of the files: for a bucket, the one they are carried from."""
        return self._get_file_writer().get_logdir() if self._shipment else self.log_dir

    # Numbers.

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: Any = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Add a number: 32 bits of it, or 64 if both flags are set."""
        number = _number(tag, scalar_value)
        kind = ("float64" if double_precision else "float32") if new_style else None
        writer = self._get_file_writer().event_writer
        writer.scalar(tag, number, to_step(global_step), dtype=kind, wall_time=walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Add several numbers to one chart: each to a run of its own, `<main_tag>_<tag>`."""
        now = time.time() if walltime is None else walltime
        directory = self._get_file_writer().get_logdir()
        writers = self.all_writers or {}
        step = to_step(global_step)
        numbers = {tag: _number(main_tag, value) for tag, value in tag_scalar_dict.items()}
        for tag, number in numbers.items():
            run = f"{directory}/{main_tag.replace('/', '_')}_{tag}"
            if run not in writers:
                writers[run] = FileWriter(
                    run, self.max_queue, self.flush_secs, self.filename_suffix
                )
            writers[run].event_writer.scalar(main_tag, number, step, wall_time=now)

    def add_tensor(
        self, tag: str, tensor: Any, global_step: Any = None, walltime: float | None = None
    ) -> None:
        """Add a tensor of any shape; bfloat16 is written as float32, which every reader knows."""
        with about("tensor", tag):
            value = encode.tensor(tag, to_numpy(tensor), plugin="tensor", data_class="")
        self._add([value], global_step, walltime)

    def add_hparams(
        self,
        hparam_dict: dict[str, Any],
        metric_dict: dict[str, Any],
        hparam_domain_discrete: dict[str, list[Any]] | None = None,
        run_name: str | None = None,
        global_step: Any = None,
    ) -> None:
        """Add a session to compare: hyperparameters and results, in a run below this one."""
        if not isinstance(hparam_dict, dict) or not isinstance(metric_dict, dict):
            raise TypeError("hparam_dict and metric_dict should be dictionaries")
        records = session_records(hparam_dict, metric_dict, hparam_domain_discrete)
        results = {tag: _number(tag, value) for tag, value in metric_dict.items()}
        directory = Path(self._get_file_writer().get_logdir(), run_name or str(time.time()))
        session = FileWriter(directory, self.max_queue, self.flush_secs)
        for record in records:
            session.add([record], global_step)
        for tag, number in results.items():
            session.event_writer.scalar(tag, number, to_step(global_step))
        session.close()

    # Distributions and curves.

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: Any = None,
        bins: Any = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Add the distribution of the finite numbers; `bins` is as for `numpy.histogram`."""
        with about("histogram", tag):
            *moments, limits, counts = curves.torch_histogram(values, bins, max_bins)
            value = pytorch.histogram(tag, moments, limits, counts)
        self._add([value], global_step, walltime)

    def add_histogram_raw(
        self,
        tag: str,
        min: float,
        max: float,
        num: float,
        sum: float,
        sum_squares: float,
        bucket_limits: Any,
        bucket_counts: Any,
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Add a distribution whose buckets, given by their upper limits, are counted already."""
        with about("histogram", tag):
            limits, counts = to_numpy(bucket_limits), to_numpy(bucket_counts)
            if limits.shape != counts.shape or limits.ndim != 1:
                raise ValueError(
                    f"expected a count for each limit, got {counts.shape} for {limits.shape}"
                )
            moments = [to_number(moment) for moment in (min, max, num, sum, sum_squares)]
            value = pytorch.histogram(tag, moments, limits, counts)
        self._add([value], global_step, walltime)

    def add_pr_curve(
        self,
        tag: str,
        labels: Any,
        predictions: Any,
        global_step: Any = None,
        num_thresholds: int = 127,
        weights: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Add precision and recall of predictions from 0 to 1, at up to 127 thresholds."""
        with about("precision-recall curve", tag):
            thresholds = min(num_thresholds, _MOST_THRESHOLDS)
            curve = curves.pr_curve(labels, predictions, weights, thresholds)
        self._add([encode.pr_curve(tag, curve)], global_step, walltime)

    def add_pr_curve_raw(
        self,
        tag: str,
        true_positive_counts: Any,
        false_positive_counts: Any,
        true_negative_counts: Any,
        false_negative_counts: Any,
        precision: Any,
        recall: Any,
        global_step: Any = None,
        num_thresholds: int = 127,  # noqa: ARG002 - the data tells
        weights: Any = None,  # noqa: ARG002 - they count already
        walltime: float | None = None,
    ) -> None:
        """Add precision and recall that are counted already, a number for each threshold."""
        rows = (
            true_positive_counts,
            false_positive_counts,
            true_negative_counts,
            false_negative_counts,
            precision,
            recall,
        )
        with about("precision-recall curve", tag):
            value = encode.pr_curve(tag, to_numpy(rows))
        self._add([value], global_step, walltime)

    # Pictures, sounds and texts.

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: Any = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Add an image: uint8 from 0 to 255, anything else from 0 to 1."""
        with about("image", tag):
            value = _image(tag, pictures.torch_picture(img_tensor, dataformats))
        self._add([value], global_step, walltime)

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: Any = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Add a batch of images as one, eight in a row."""
        self.add_image(tag, img_tensor, global_step, walltime, dataformats)

    def add_image_with_boxes(
        self,
        tag: str,
        img_tensor: Any,
        box_tensor: Any,
        global_step: Any = None,
        walltime: float | None = None,
        rescale: float = 1,
        dataformats: str = "CHW",
        labels: Sequence[str] | str | None = None,
    ) -> None:
        """Add an image with a frame for each box `x1, y1, x2, y2`; labels if there is one each."""
        names = [labels] if isinstance(labels, str) else labels
        with about("image", tag):
            boxes = to_numpy(box_tensor)
            if names is not None and len(names) != len(boxes):
                names = None
            drawn = pictures.torch_picture(img_tensor, dataformats)
            drawn = drawings.resized(drawings.with_boxes(drawn, boxes, names), rescale)
            value = _image(tag, drawn)
        self._add([value], global_step, walltime)

    def add_figure(
        self,
        tag: str,
        figure: Any,
        global_step: Any = None,
        close: bool = True,
        walltime: float | None = None,
    ) -> None:
        """Add a matplotlib figure, or a list of them as one image, eight in a row."""
        with about("figure", tag):
            if isinstance(figure, list):
                drawn = [drawings.figure_pixels(one, close=close) for one in figure]
                whole = pictures.torch_picture(drawn, "NHWC")
            else:
                whole = drawings.figure_pixels(figure, close=close)
        self._add([_image(tag, whole)], global_step, walltime)

    def add_video(
        self,
        tag: str,
        vid_tensor: Any,
        global_step: Any = None,
        fps: float = 4,
        walltime: float | None = None,
    ) -> None:
        """Add videos `[n, time, channels, height, width]` as one animated image."""
        with about("video", tag):
            frames = pictures.torch_frames(vid_tensor)
            _, height, width, channels = frames.shape
            encoded = media.animated_png(list(frames), fps)
        value = encode.legacy_image(tag, encoded, width, height, channels)
        self._add([value], global_step, walltime)

    def add_audio(
        self,
        tag: str,
        snd_tensor: Any,
        global_step: Any = None,
        sample_rate: int = 44100,
        walltime: float | None = None,
    ) -> None:
        """Add a mono sound, from -1 to 1."""
        with about("audio", tag):
            samples, rate = torch_clip(snd_tensor), frame_rate(sample_rate)
            value = encode.legacy_audio(tag, media.wav(samples, rate), rate, 1, len(samples))
        self._add([value], global_step, walltime)

    def add_text(
        self, tag: str, text_string: str, global_step: Any = None, walltime: float | None = None
    ) -> None:
        """Add a text in Markdown."""
        with about("text", tag):
            value = encode.text(f"{tag}/text_summary", [texts_of(text_string)])
        self._add([value], global_step, walltime)

    def add_mesh(
        self,
        tag: str,
        vertices: Any,
        colors: Any = None,
        faces: Any = None,
        config_dict: Mapping[str, Any] | None = None,
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Add meshes, or clouds of points without faces, `[batch, n, 3]`."""
        with about("mesh", tag):
            values = encode.mesh(tag, *mesh_parts(vertices, faces, colors), config_dict)
        self._add(values, global_step, walltime)

    # Models.

    def add_onnx_graph(self, prototxt: str | os.PathLike[str]) -> None:
        """Add the graph of an ONNX file, which needs the package onnx."""
        self._get_file_writer().add_traced_graph(onnx_graph(prototxt).graph_def, b"")

    def add_graph(
        self,
        model: Any,
        input_to_model: Any = None,
        verbose: bool = False,
        use_strict_trace: bool = True,
    ) -> None:
        """Add the graph of a PyTorch module, found by running it on an input.

        Keras models, TensorFlow's graphs and serialized `GraphDef`s are taken too.
        """
        graph = graph_of(model, input_to_model, verbose=verbose, strict=use_strict_trace)
        if graph.keras_json:
            self._add([encode.keras_graph(graph.keras_json)])
        else:
            self._get_file_writer().add_traced_graph(graph.graph_def, graph.run_metadata)

    def add_embedding(
        self,
        mat: Any,
        metadata: Any = None,
        label_img: Any = None,
        global_step: Any = None,
        tag: str = "default",
        metadata_header: Sequence[str] | None = None,
    ) -> None:
        """Add vectors, one a row, with a label and an image `[n, channels, height, width]` each."""
        with about("embedding", tag):
            vectors = matrix_of(mat)
            known = None
            if metadata is not None:
                known = (
                    table_of(metadata, metadata_header) if metadata_header else labels_of(metadata)
                )
            shown = None
            if label_img is not None:
                pixels = pictures.arranged(to_numpy(label_img), "NCHW", "NHWC")
                shown = list(pictures.torch_levels(pixels))
            directory = self._get_file_writer().get_logdir()
            try:
                write_embedding(directory, tag, to_step(global_step), vectors, known, shown)
            except StorageError as error:
                say(f"the embedding {tag!r} was not written: {error}")

    # Charts of several scalars.

    def add_custom_scalars_multilinechart(
        self, tags: Sequence[str], category: str = "default", title: str = "untitled"
    ) -> None:
        """Lay out one chart that shows several scalars."""
        self.add_custom_scalars({category: {title: ["Multiline", tags]}})

    def add_custom_scalars_marginchart(
        self, tags: Sequence[str], category: str = "default", title: str = "untitled"
    ) -> None:
        """Lay out one chart of a scalar between two others: value, lower, upper."""
        self.add_custom_scalars({category: {title: ["Margin", tags]}})

    def add_custom_scalars(self, layout: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
        """Lay out charts: `{category: {chart: ["Multiline" or "Margin", tags]}}`."""
        self._add([encode.custom_scalars(pytorch.custom_scalars_layout(layout))])

    # The files.

    def flush(self) -> None:
        """Write everything that was added to its files."""
        for writer in (self.all_writers or {}).values():
            writer.flush()

    def close(self) -> None:
        """Flush and close; for a bucket, wait until everything is there."""
        for writer in (self.all_writers or {}).values():
            writer.close()
        self.file_writer = self.all_writers = None
        if self._shipment is not None:
            atexit.unregister(self.close)
            self._shipment.finish()
            self._shipment = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.close()

    def _add(
        self,
        values: Sequence[EncodedValue],
        step: Any = None,
        walltime: float | None = None,
    ) -> None:
        self._get_file_writer().add(values, step, walltime)

    def _get_file_writer(self) -> FileWriter:
        """Return the writer of the directory itself, opened anew after `close`."""
        if self.file_writer is None:
            self.file_writer = FileWriter(
                self._local_directory(),
                self.max_queue,
                self.flush_secs,
                self.filename_suffix,
                purge_step=self.purge_step,
            )
            self.purge_step = None
            self.all_writers = {self.file_writer.get_logdir(): self.file_writer}
        return self.file_writer

    def _local_directory(self) -> str | os.PathLike[str]:
        place = os.fspath(self.log_dir)
        if is_remote(place):
            from aboard.track.shipment import Shipment

            self._shipment = Shipment(place)
            atexit.register(self.close)
            return self._shipment.directory
        return canonical(place) if place.startswith("file:") else place


def _number(tag: str, value: Any) -> float:
    try:
        return to_number(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise wrong("scalar", tag, error) from error


def _image(tag: str, shades: Levels) -> EncodedValue:
    height, width, channels = shades.shape
    return encode.legacy_image(tag, media.png(shades), width, height, channels)
