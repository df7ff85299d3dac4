"""`SummaryWriter`: the interface of `torch.utils.tensorboard.SummaryWriter`, without PyTorch.

A script that imports it from here writes the same data as before, to a directory or a bucket, and
a disk error does not stop it. `aboard.track.media` converts the arguments; if PyTorch's format
differs from that of a run, the writer uses PyTorch's.
"""

# ruff: noqa: A002 - parameters have PyTorch's names

from __future__ import annotations

import atexit
import json
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from aboard.events import encode
from aboard.events.encode import EncodedValue
from aboard.events.writer import EventWriter
from aboard.storage.base import canonical, is_remote
from aboard.track import notify, notify_recovered
from aboard.track.arrays import (
    Levels,
    arranged,
    errors_named,
    figure_pixels,
    named_error,
    resized,
    table_of,
    texts_of,
    to_number,
    to_numpy,
    to_reals,
    to_step,
    torch_frames,
    torch_image,
    torch_levels,
    with_boxes,
)
from aboard.track.environment import default_logdir, logdir_from_environment
from aboard.track.media import (
    frame_rate,
    graph_of,
    labels_of,
    matrix_of,
    mesh_parts,
    onnx_graph,
    pr_curve,
    torch_audio_samples,
    write_embedding,
)

if TYPE_CHECKING:
    from aboard.track.shipping.shipper import Shipment

_MOST_THRESHOLDS = 127  # PyTorch's limit
_MOST_EXPORTED = 1_000_000  # points of `add_scalars` that are kept for an export, 24 bytes each


class EventFileWriter(EventWriter):
    """An event writer with the methods of TensorBoard's."""

    def get_logdir(self) -> str:
        return str(self.directory)

    def add_event(self, event: Any) -> None:
        """Append an `Event` unchanged."""
        try:
            serialized = event.SerializeToString()
        except AttributeError:
            raise TypeError(f"expected an Event, got a {type(event).__name__}") from None
        self.write(serialized)


class _NoEventFileWriter:
    """The methods of an event writer that writes nothing."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def get_logdir(self) -> str:
        return str(self.directory)

    def _ignore(self, *_: object, **__: object) -> None:
        pass

    add = add_event = write = scalar = scalars = flush = close = _ignore


class _Metadata(NamedTuple):
    """The default step and time of events."""

    step: Any = None
    walltime: float | None = None


class FileWriter:
    """The interface of PyTorch's `FileWriter`, for code that builds its own protobufs."""

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        max_queue: int = 10,  # noqa: ARG002 - PyTorch's signature
        flush_secs: float = 1,
        filename_suffix: str = "",
        *,
        purge_step: int | None = None,
        write_to_disk: bool = True,
    ) -> None:
        self.metadata: _Metadata | None = None
        self._directory = os.fspath(log_dir)
        self._flush_secs = flush_secs
        self._suffix = filename_suffix
        self._writes = write_to_disk
        self._closed = False
        self.event_writer = self._open(purge_step)

    def get_logdir(self) -> str:
        return self._directory

    def add(self, values: Iterable[EncodedValue], step: Any = None, walltime: Any = None) -> None:
        step, walltime = self.completed(step, walltime)
        self.event_writer.add(values, to_step(step), wall_time=walltime)

    def add_event(self, event: Any, step: Any = None, walltime: float | None = None) -> None:
        step, walltime = self.completed(step, walltime)
        event.wall_time = time.time() if walltime is None else walltime
        if step is not None:
            event.step = to_step(step)
        self.event_writer.add_event(event)

    def add_summary(
        self, summary: Any, global_step: Any = None, walltime: float | None = None
    ) -> None:
        values = [EncodedValue(value.tag, value.SerializeToString()) for value in summary.value]
        self.add(values, global_step, walltime)

    def add_graph(self, graph_profile: Any, walltime: float | None = None) -> None:
        graph, profile = (message.SerializeToString() for message in graph_profile)
        self.add_traced_graph(graph, profile, walltime)

    def add_onnx_graph(self, graph: Any, walltime: float | None = None) -> None:
        self.add_traced_graph(graph.SerializeToString(), b"", walltime)

    def add_traced_graph(
        self, graph_def: bytes, run_metadata: bytes, walltime: float | None = None
    ) -> None:
        walltime = self.completed(None, walltime).walltime
        now = time.time() if walltime is None else walltime
        self.event_writer.write(encode.graph(now, graph_def))
        if run_metadata:
            self.event_writer.write(encode.tagged_run_metadata(now, 0, "step1", run_metadata))

    @contextmanager
    def use_metadata(
        self, *, global_step: Any = None, walltime: float | None = None
    ) -> Iterator[Self]:
        """Set the default step and time of events in the block, as tensorboardX does."""
        if global_step is None and walltime is None:
            raise ValueError("use_metadata needs a global_step, a walltime, or both")
        before, self.metadata = self.metadata, _Metadata(global_step, walltime)
        try:
            yield self
        finally:
            self.metadata = before

    def completed(self, step: Any, walltime: float | None) -> _Metadata:
        """Return a step and a time, by default those of `use_metadata`."""
        default = self.metadata or _Metadata()
        return _Metadata(
            default.step if step is None else step,
            default.walltime if walltime is None else walltime,
        )

    def flush(self) -> None:
        self.event_writer.flush()

    def close(self) -> None:
        self.event_writer.close()
        self._closed = True

    def reopen(self) -> None:
        if self._closed:
            self.event_writer = self._open()
            self._closed = False

    def _open(self, purge_step: int | None = None) -> EventFileWriter | _NoEventFileWriter:
        if not self._writes:
            return _NoEventFileWriter(self._directory)
        return EventFileWriter(
            self._directory,
            flush_secs=self._flush_secs,
            suffix=self._suffix,
            purge_step=purge_step,
            on_error=notify,
            on_recovered=notify_recovered,
        )


class SummaryWriter:
    """Writes everything TensorBoard shows to event files, with the methods of PyTorch's writer.

    Args:
        log_dir: a directory, or the URI of a bucket, to which the files are sent while they are
            written. By default the log directory of the platform, or PyTorch's.
        max_queue: has no effect; the queue is limited in bytes.
        flush_secs: how long a record may stay in memory.
        write_to_disk, logdir: parameters of tensorboardX. With `write_to_disk=False` nothing is
            written; `logdir` is another name of `log_dir`.

    After `close`, the next call opens another file.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: float = 1,
        filename_suffix: str = "",
        *,
        write_to_disk: bool = True,
        logdir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.log_dir = log_dir or logdir or logdir_from_environment() or default_logdir(comment)
        self.purge_step = purge_step
        self.max_queue = max_queue
        self.flush_secs = flush_secs
        self.filename_suffix = filename_suffix
        self.file_writer: FileWriter | None = None
        self.all_writers: dict[str, FileWriter] | None = None
        self._writes = write_to_disk
        self._shipment: Shipment | None = None
        self._exported: dict[str, tuple[array[float], array[int], array[float]]] = {}
        self._unexported = _MOST_EXPORTED  # how many more points are kept
        self._get_file_writer()

    @property
    def default_bins(self) -> list[float]:
        edges: list[float] = encode.torch_edges().tolist()
        return edges

    def get_logdir(self) -> str | os.PathLike[str]:
        """Return the directory of the files; for a bucket, the local one they are sent from."""
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
        number = _number(tag, scalar_value)
        kind = ("float64" if double_precision else "float32") if new_style else None
        writer = self._get_file_writer()
        if writer.metadata is not None:
            global_step, walltime = writer.completed(global_step, walltime)
        writer.event_writer.scalar(
            tag, number, to_step(global_step), dtype=kind, wall_time=walltime
        )

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        main = self._get_file_writer()
        global_step, walltime = main.completed(global_step, walltime)
        now = time.time() if walltime is None else walltime
        directory, writers = main.get_logdir(), self.all_writers or {}
        step = to_step(global_step)
        numbers = {tag: _number(main_tag, value) for tag, value in tag_scalar_dict.items()}
        for tag, number in numbers.items():
            run = f"{directory}/{main_tag.replace('/', '_')}_{tag}"
            if run not in writers:
                writers[run] = self._writer_below(run, self.filename_suffix)
            writers[run].event_writer.scalar(main_tag, number, step, wall_time=now)
            if self._unexported:
                self._unexported -= 1
                times, steps, values = self._exported.setdefault(
                    run, (array("d"), array("q"), array("d"))
                )
                times.append(now)
                steps.append(step)
                values.append(number)

    def export_scalars_to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the points of `add_scalars` since the last export, as tensorboardX does.

        The document is `{directory: [[time, step, value], …], …}`. The first million points are
        kept for it.
        """
        rows = {run: list(zip(*kept, strict=True)) for run, kept in self._exported.items()}
        Path(path).write_text(json.dumps(rows))
        if not self._unexported:
            notify(f"{path} has the first {_MOST_EXPORTED} points; the event files have all.")
        self._exported, self._unexported = {}, _MOST_EXPORTED

    def add_tensor(
        self, tag: str, tensor: Any, global_step: Any = None, walltime: float | None = None
    ) -> None:
        """Add a tensor of any shape; bfloat16 is written as float32, which all readers support."""
        with errors_named("tensor", tag):
            value = encode.tensor(tag, to_numpy(tensor), plugin="tensor", data_class="")
        self._add([value], global_step, walltime)

    def add_hparams(
        self,
        hparam_dict: dict[str, Any],
        metric_dict: dict[str, Any],
        hparam_domain_discrete: dict[str, list[Any]] | None = None,
        run_name: str | None = None,
        global_step: Any = None,
        *,
        name: str | None = None,
    ) -> None:
        if not isinstance(hparam_dict, dict) or not isinstance(metric_dict, dict):
            raise TypeError("hparam_dict and metric_dict must be dictionaries")
        records = _session_records(hparam_dict, metric_dict, hparam_domain_discrete)
        results = {tag: _number(tag, value) for tag, value in metric_dict.items()}
        main = self._get_file_writer()
        global_step, _ = main.completed(global_step, None)
        directory = Path(main.get_logdir(), run_name or name or str(time.time()))
        session = self._writer_below(directory)
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
        with errors_named("histogram", tag):
            histogram = encode.torch_histogram(to_reals(values), bins, max_bins)
            value = encode.legacy_histogram(tag, *histogram)
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
        with errors_named("histogram", tag):
            limits, counts = to_numpy(bucket_limits), to_numpy(bucket_counts)
            if limits.shape != counts.shape or limits.ndim != 1:
                raise ValueError(
                    f"expected a count for each limit, got {counts.shape} for {limits.shape}"
                )
            moments = [to_number(moment) for moment in (min, max, num, sum, sum_squares)]
            value = encode.legacy_histogram(tag, moments, limits, counts)
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
        with errors_named("precision-recall curve", tag):
            thresholds = min(num_thresholds, _MOST_THRESHOLDS)
            curve = pr_curve(labels, predictions, weights, thresholds)
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
        num_thresholds: int = 127,  # noqa: ARG002 - follows from the data
        weights: Any = None,  # noqa: ARG002 - part of the counts
        walltime: float | None = None,
    ) -> None:
        rows = (
            true_positive_counts,
            false_positive_counts,
            true_negative_counts,
            false_negative_counts,
            precision,
            recall,
        )
        with errors_named("precision-recall curve", tag):
            value = encode.pr_curve(tag, to_numpy(rows))
        self._add([value], global_step, walltime)

    # Images, audio and text.

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: Any = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        with errors_named("image", tag):
            value = _image(tag, torch_image(img_tensor, dataformats))
        self._add([value], global_step, walltime)

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: Any = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        if isinstance(img_tensor, list) and len(dataformats) == 3:
            dataformats = f"N{dataformats}"  # tensorboardX names the axes of each
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
        names = [labels] if isinstance(labels, str) else labels
        with errors_named("image", tag):
            boxes = to_numpy(box_tensor)
            if names is not None and len(names) != len(boxes):
                names = None
            drawn = torch_image(img_tensor, dataformats)
            drawn = resized(with_boxes(drawn, boxes, names), rescale)
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
        with errors_named("figure", tag):
            if isinstance(figure, list):
                drawn = [figure_pixels(one, close=close) for one in figure]
                whole = torch_image(drawn, "NHWC")
            else:
                whole = figure_pixels(figure, close=close)
        self._add([_image(tag, whole)], global_step, walltime)

    def add_video(
        self,
        tag: str,
        vid_tensor: Any,
        global_step: Any = None,
        fps: float = 4,
        walltime: float | None = None,
    ) -> None:
        with errors_named("video", tag):
            frames = torch_frames(vid_tensor)
            _, height, width, channels = frames.shape
            encoded = encode.animated_png(list(frames), fps)
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
        with errors_named("audio", tag):
            samples, rate = torch_audio_samples(snd_tensor), frame_rate(sample_rate)
            value = encode.legacy_audio(tag, encode.wav(samples, rate), rate, 1, len(samples))
        self._add([value], global_step, walltime)

    def add_text(
        self, tag: str, text_string: str, global_step: Any = None, walltime: float | None = None
    ) -> None:
        with errors_named("text", tag):
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
        with errors_named("mesh", tag):
            values = encode.mesh(tag, *mesh_parts(vertices, faces, colors), config_dict)
        self._add(values, global_step, walltime)

    # Models.

    def add_onnx_graph(self, prototxt: str | os.PathLike[str]) -> None:
        """Add the graph of an ONNX file; this needs the package onnx."""
        self._get_file_writer().add_traced_graph(onnx_graph(prototxt).graph_def, b"")

    def add_graph(
        self,
        model: Any,
        input_to_model: Any = None,
        verbose: bool = False,
        use_strict_trace: bool = True,
    ) -> None:
        """Add the graph of a PyTorch or Keras model, of TensorFlow, or a `GraphDef`."""
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
        with errors_named("embedding", tag):
            vectors = matrix_of(mat)
            known = None
            if metadata is not None:
                known = (
                    table_of(metadata, metadata_header) if metadata_header else labels_of(metadata)
                )
            shown = None
            if label_img is not None:
                pixels = arranged(to_numpy(label_img), "NCHW", "NHWC")
                shown = list(torch_levels(pixels))
            directory = self._get_file_writer().get_logdir()
            if self._writes:
                write_embedding(directory, tag, to_step(global_step), vectors, known, shown)

    # Charts of several scalars.

    def add_custom_scalars_multilinechart(
        self, tags: Sequence[str], category: str = "default", title: str = "untitled"
    ) -> None:
        self.add_custom_scalars({category: {title: ["Multiline", tags]}})

    def add_custom_scalars_marginchart(
        self, tags: Sequence[str], category: str = "default", title: str = "untitled"
    ) -> None:
        self.add_custom_scalars({category: {title: ["Margin", tags]}})

    def add_custom_scalars(self, layout: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
        self._add([encode.custom_scalars(encode.custom_scalars_layout(layout))])

    # The files.

    @contextmanager
    def use_metadata(
        self, *, global_step: Any = None, walltime: float | None = None
    ) -> Iterator[Self]:
        """Set the default step and time in the block, as tensorboardX does."""
        with self._get_file_writer().use_metadata(global_step=global_step, walltime=walltime):
            yield self

    def flush(self) -> None:
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
        if self.file_writer is None:
            self.file_writer = FileWriter(
                self._local_directory(),
                self.max_queue,
                self.flush_secs,
                self.filename_suffix,
                purge_step=self.purge_step,
                write_to_disk=self._writes,
            )
            self.purge_step = None
            self.all_writers = {self.file_writer.get_logdir(): self.file_writer}
        return self.file_writer

    def _writer_below(self, directory: str | os.PathLike[str], suffix: str = "") -> FileWriter:
        return FileWriter(
            directory, self.max_queue, self.flush_secs, suffix, write_to_disk=self._writes
        )

    def _local_directory(self) -> str | os.PathLike[str]:
        place = os.fspath(self.log_dir)
        if is_remote(place) and self._writes:
            from aboard.track.shipping.shipper import Shipment

            self._shipment = Shipment(place)
            atexit.register(self.close)
            return self._shipment.directory
        return canonical(place) if place.startswith("file:") else place


def _number(tag: str, value: Any) -> float:
    """Convert a number as PyTorch's writer does, which also parses texts."""
    if type(value) is float:
        return value
    try:
        if isinstance(value, np.ndarray) and value.dtype.kind in "US" and value.size == 1:
            value = value.item()
        return float(value) if isinstance(value, str | bytes) else to_number(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise named_error("scalar", tag, error) from error


def _image(tag: str, shades: Levels) -> EncodedValue:
    height, width, channels = shades.shape
    return encode.legacy_image(tag, encode.png(shades), width, height, channels)


def _session_records(
    hparams: Mapping[str, Any],
    metrics: Mapping[str, Any],
    domains: Mapping[str, Sequence[Any]] | None = None,
) -> list[EncodedValue]:
    """Convert as PyTorch does: booleans are numbers, and None is omitted."""
    domains = domains or {}
    plain = {
        name: _hparam_value(name, value) for name, value in hparams.items() if value is not None
    }
    for name, domain in domains.items():
        if name not in plain or not _is_domain_of(plain[name], domain):
            raise TypeError(
                f"hparam_domain_discrete[{name!r}] must list values of hparam_dict[{name!r}]"
            )
    infos = [
        encode.hparam_info(
            name,
            kind=type(value),
            domain=[_hparam_value(name, one) for one in domains.get(name, ())],
        )
        for name, value in plain.items()
    ]
    return [
        encode.hparams_experiment(infos, [encode.metric_info(tag) for tag in metrics]),
        encode.hparams_start(plain),
        encode.hparams_end(),
    ]


def _is_domain_of(value: str | float, domain: Any) -> bool:
    kind = str if isinstance(value, str) else int | float
    return isinstance(domain, list | tuple) and all(isinstance(one, kind) for one in domain)


def _hparam_value(name: str, value: Any) -> str | float:
    if isinstance(value, str):
        return value
    try:
        return to_number(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the hyperparameter {name!r} must be a bool, int, float, str or a tensor with one "
            f"number: {error}"
        ) from error
