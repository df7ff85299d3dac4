"""Protobufs to event files, for code that builds its own: the interface of PyTorch's FileWriter."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from aboard.events import encode
from aboard.events.encode import EncodedValue
from aboard.events.writer import EventWriter
from aboard.track.arrays import to_step
from aboard.track.say import say_problem, say_recovered


class FileWriter:
    """Write events to a file of its own in a directory; `max_queue` is there, and does nothing."""

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        max_queue: int = 10,  # noqa: ARG002 - every caller passes it
        flush_secs: float = 1,
        filename_suffix: str = "",
        *,
        purge_step: int | None = None,
    ) -> None:
        self._directory = os.fspath(log_dir)
        self._flush_secs = flush_secs
        self._suffix = filename_suffix
        self._is_closed = False
        self.event_writer = self._open(purge_step)

    def get_logdir(self) -> str:
        """Return the directory of the file."""
        return self._directory

    def add(self, values: Iterable[EncodedValue], step: Any = None, walltime: Any = None) -> None:
        """Append values at a step."""
        self.event_writer.add(values, to_step(step), wall_time=walltime)

    def add_event(self, event: Any, step: Any = None, walltime: float | None = None) -> None:
        """Append an `Event` protobuf; its time, and its step if one is given, are set."""
        event.wall_time = time.time() if walltime is None else walltime
        if step is not None:
            event.step = to_step(step)
        self.event_writer.write(event.SerializeToString())

    def add_summary(
        self, summary: Any, global_step: Any = None, walltime: float | None = None
    ) -> None:
        """Append a `Summary` protobuf."""
        values = [EncodedValue(value.tag, value.SerializeToString()) for value in summary.value]
        self.add(values, global_step, walltime)

    def add_graph(self, graph_profile: Any, walltime: float | None = None) -> None:
        """Append a `GraphDef` and the `RunMetadata` that belongs to it."""
        graph, profile = (message.SerializeToString() for message in graph_profile)
        self.add_traced_graph(graph, profile, walltime)

    def add_onnx_graph(self, graph: Any, walltime: float | None = None) -> None:
        """Append a `GraphDef`."""
        self.event_writer.graph(graph.SerializeToString(), wall_time=walltime)

    def add_traced_graph(
        self, graph_def: bytes, run_metadata: bytes, walltime: float | None = None
    ) -> None:
        """Append a serialized graph and the `RunMetadata` that belongs to it, if there is any."""
        self.event_writer.graph(graph_def, wall_time=walltime)
        if run_metadata:
            now = time.time() if walltime is None else walltime
            self.event_writer.write(encode.tagged_run_metadata(now, 0, "step1", run_metadata))

    def flush(self) -> None:
        """Write what is buffered to the file."""
        self.event_writer.flush()

    def close(self) -> None:
        """Flush and close."""
        self.event_writer.close()
        self._is_closed = True

    def reopen(self) -> None:
        """Go on with another file in the same directory, if this one is closed."""
        if self._is_closed:
            self.event_writer = self._open()
            self._is_closed = False

    def _open(self, purge_step: int | None = None) -> EventWriter:
        return EventWriter(
            self._directory,
            flush_secs=self._flush_secs,
            suffix=self._suffix,
            purge_step=purge_step,
            on_error=say_problem,
            on_recovered=say_recovered,
        )
