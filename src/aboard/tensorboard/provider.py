"""TensorBoard's `DataProvider` over the index: what every stock plugin reads from.

The experiment id that TensorBoard passes around is the id of a board. Scalars
come from the index; everything else is read from its event file when a plugin
asks for it, and not kept. Files change and vanish meanwhile: a value that can no
longer be read is left out and said in the log once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from aboard.events import protos
from aboard.events.decode import DecodeError, Value
from aboard.index import Index, Pointer, Tag, UnknownName
from aboard.index.records import read_records
from aboard.tensorboard.board import Board, BoardRun, Listing
from aboard.tensorboard.experiments import EXPERIMENT_TAG, merged
from aboard.tensorboard.keys import BadKey, BlobKey, Signer
from aboard.tensorboard.metadata import describe

protos.keep_tensorflow_out()

from tensorboard import errors  # noqa: E402
from tensorboard.data import provider as tb  # noqa: E402

T = TypeVar("T")
Filter = Any
ByRun = dict[str, dict[str, T]]

_log = logging.getLogger(__name__)


class BoardRequest:
    """A request to a board; however often its plugin asks, the board is in one state."""

    def __init__(self, board: str) -> None:
        self.board = board
        self.runs: dict[str, BoardRun] | None = None


current_request: ContextVar[BoardRequest | None] = ContextVar("current_request", default=None)
"""The request that is being answered."""


_MOST_BLOBS = 10_000
"""Blobs of one step that are offered."""


class Boards:
    """The boards that a process serves."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._listings: dict[str, Listing] = {}

    def add(self, board: Board) -> None:
        """Serve a board, or serve it in another form than before."""
        self._listings[board.id] = Listing(board, self.index)

    def remove(self, board_id: str) -> None:
        """Stop serving a board."""
        self._listings.pop(board_id, None)

    def get(self, board_id: str) -> Listing | None:
        """Return a board's listing, or None if it is not served."""
        return self._listings.get(board_id)

    def __iter__(self) -> Iterator[Board]:
        return iter([listing.board for listing in self._listings.values()])


class BoardDataProvider(tb.DataProvider):  # type: ignore[misc]
    """Answers TensorBoard's questions about boards."""

    def __init__(self, boards: Boards, signer: Signer | None = None) -> None:
        self._boards = boards
        self._index = boards.index
        self._signer = signer if signer is not None else Signer()

    def __str__(self) -> str:
        return "BoardDataProvider"

    def experiment_metadata(self, ctx: object = None, *, experiment_id: str) -> Any:  # noqa: ARG002
        """Tell where the board's data is."""
        board = self._listing(experiment_id).board
        return tb.ExperimentMetadata(data_location=board.location, experiment_name=board.title)

    def list_plugins(self, ctx: object = None, *, experiment_id: str) -> list[str]:  # noqa: ARG002
        """Name the plugins that have data; their tabs are enabled."""
        runs = self._runs(experiment_id).values()
        return sorted({tag.kind.plugin for run in runs for tag in run.tags.values()} - {""})

    def list_runs(self, ctx: object = None, *, experiment_id: str) -> list[Any]:  # noqa: ARG002
        """Name the runs and when they began."""
        return [
            tb.Run(run_id=run.name, run_name=run.name, start_time=run.start_time)
            for run in self._runs(experiment_id).values()
        ]

    def list_scalars(
        self,
        ctx: object = None,  # noqa: ARG002
        *,
        experiment_id: str,
        plugin_name: str,
        run_tag_filter: Filter = None,
    ) -> ByRun[Any]:
        """Describe the scalar tags of a plugin."""
        return self._each(
            experiment_id, plugin_name, "scalar", run_tag_filter, _described(tb.ScalarTimeSeries)
        )

    def list_tensors(
        self,
        ctx: object = None,  # noqa: ARG002
        *,
        experiment_id: str,
        plugin_name: str,
        run_tag_filter: Filter = None,
    ) -> ByRun[Any]:
        """Describe the tensor tags of a plugin."""
        found = self._each(
            experiment_id, plugin_name, "tensor", run_tag_filter, _described(tb.TensorTimeSeries)
        )
        return _with_one_experiment(found) if plugin_name == "hparams" else found

    def list_blob_sequences(
        self,
        ctx: object = None,  # noqa: ARG002
        *,
        experiment_id: str,
        plugin_name: str,
        run_tag_filter: Filter = None,
    ) -> ByRun[Any]:
        """Describe the blob sequences of a plugin."""

        def listed(_: str, tag: Tag) -> Any:
            return _described(tb.BlobSequenceTimeSeries, max_length=tag.rows)(_, tag)

        return self._each(experiment_id, plugin_name, "blob_sequence", run_tag_filter, listed)

    def read_scalars(
        self,
        ctx: object = None,  # noqa: ARG002
        *,
        experiment_id: str,
        plugin_name: str,
        downsample: int | None = None,
        run_tag_filter: Filter = None,
    ) -> ByRun[list[Any]]:
        """Read scalars, sampled down so that spikes survive."""

        def read(_: str, tag: Tag) -> list[Any]:
            limit = _limit(downsample)
            if not limit:
                return []
            series = self._index.series(tag, samples=limit)
            columns = (column.tolist() for column in series)
            return [
                tb.ScalarDatum(step=step, wall_time=wall, value=value)
                for step, wall, value in zip(*columns, strict=True)
            ]

        return self._each(experiment_id, plugin_name, "scalar", run_tag_filter, read)

    def read_last_scalars(
        self,
        ctx: object = None,  # noqa: ARG002
        *,
        experiment_id: str,
        plugin_name: str,
        run_tag_filter: Filter = None,
    ) -> ByRun[Any]:
        """Read the last point of each scalar, which the index has at hand."""

        def last(_: str, tag: Tag) -> Any:
            value = math.nan if tag.last_value is None else tag.last_value
            return tb.ScalarDatum(step=tag.last_step, wall_time=tag.last_wall_time, value=value)

        return self._each(experiment_id, plugin_name, "scalar", run_tag_filter, last)

    def read_tensors(
        self,
        ctx: object = None,  # noqa: ARG002
        *,
        experiment_id: str,
        plugin_name: str,
        downsample: int | None = None,
        run_tag_filter: Filter = None,
    ) -> ByRun[list[Any]]:
        """Read tensors from their files; a tag of which none can be read is left out."""

        def read(_: str, tag: Tag) -> list[Any]:
            pointers = _evenly(self._index.pointers(tag), _limit(downsample))
            return [
                tb.TensorDatum(step=value.step, wall_time=value.wall_time, numpy=array)
                for value in _readable(tag, pointers)
                if (array := _tensor(value)) is not None
            ]

        found = self._each(experiment_id, plugin_name, "tensor", run_tag_filter, read)
        held = {
            run: {tag: data for tag, data in tags.items() if data} for run, tags in found.items()
        }
        return {run: tags for run, tags in held.items() if tags}

    def read_blob_sequences(
        self,
        ctx: object = None,  # noqa: ARG002
        *,
        experiment_id: str,
        plugin_name: str,
        downsample: int | None = None,
        run_tag_filter: Filter = None,
    ) -> ByRun[list[Any]]:
        """Name the blobs of each step; their bytes are read one by one, later."""

        def read(run: str, tag: Tag) -> list[Any]:
            pointers = _evenly(self._index.pointers(tag), _limit(downsample))
            return [self._sequence(experiment_id, run, tag, pointer) for pointer in pointers]

        return self._each(experiment_id, plugin_name, "blob_sequence", run_tag_filter, read)

    def _sequence(self, board: str, run: str, tag: Tag, pointer: Pointer) -> Any:
        keys = (
            BlobKey(board, run, tag.name, pointer.step, place)
            for place in range(min(pointer.rows, _MOST_BLOBS))
        )
        return tb.BlobSequenceDatum(
            step=pointer.step,
            wall_time=pointer.wall_time,
            values=tuple(tb.BlobReference(self._signer.sign(key)) for key in keys),
        )

    def read_blob(self, ctx: object = None, *, blob_key: str) -> bytes:  # noqa: ARG002
        """Read one blob from its file, if its key belongs to the board that is asked."""
        try:
            key = self._signer.read(blob_key)
        except BadKey:
            raise errors.NotFoundError("there is no such blob") from None
        request = current_request.get()
        if request is None or key.board != request.board:
            raise errors.NotFoundError("there is no such blob on this board")
        run = self._runs(key.board).get(key.run)
        tag = run.tags.get(key.tag) if run else None
        if tag is not None:
            with suppress(UnknownName):
                for value in _readable(tag, self._index.pointers(tag, step=key.step)):
                    blobs = _blobs(value)
                    if key.place < len(blobs):
                        return blobs[key.place]
        raise errors.NotFoundError(
            f"{key.tag!r} of run {key.run!r} cannot be read any more at step {key.step}"
        )

    def _listing(self, board: str) -> Listing:
        listing = self._boards.get(board)
        if listing is None:
            raise errors.NotFoundError(f"there is no board {board!r}")
        return listing

    def _runs(self, board: str) -> dict[str, BoardRun]:
        """Return the runs of a board, the same ones throughout a request."""
        request = current_request.get()
        if request is None or request.board != board:
            return self._listing(board).runs()
        if request.runs is None:
            request.runs = self._listing(board).runs()
        return request.runs

    def _each(
        self,
        board: str,
        plugin: str,
        data_class: str,
        only: Filter,
        answer: Callable[[str, Tag], T],
    ) -> ByRun[T]:
        """Answer for every tag of a plugin and class of data that passes a filter."""
        result: ByRun[T] = {}
        for run, tag in self._tags(board, plugin, data_class, only):
            with suppress(UnknownName):  # it is gone since it was listed
                result.setdefault(run, {})[tag.name] = answer(run, tag)
        return result

    def _tags(
        self, board: str, plugin: str, data_class: str, only: Filter
    ) -> Iterator[tuple[str, Tag]]:
        runs = self._runs(board)
        for name in _wanted(only.runs if only else None, runs):
            tags = runs[name].tags
            for tag_name in _wanted(only.tags if only else None, tags):
                tag = tags[tag_name]
                if tag.kind.plugin == plugin and tag.kind.data_class == data_class:
                    yield name, tag


def _wanted(names: Collection[str] | None, held: Mapping[str, Any]) -> Iterator[str]:
    """Yield the held names that are asked for; None asks for all."""
    if names is None:
        return iter(held)
    return iter(dict.fromkeys(name for name in names if name in held))


def _described(time_series: Any, **more: int) -> Callable[[str, Tag], Any]:
    def build(_: str, tag: Tag) -> Any:
        content, display_name, description = describe(tag)
        return time_series(
            max_step=tag.last_step,
            max_wall_time=tag.max_wall_time,
            plugin_content=content,
            description=description,
            display_name=display_name,
            **more,
        )

    return build


def _with_one_experiment(found: ByRun[Any]) -> ByRun[Any]:
    """Describe every experiment by all that any of them declares."""
    runs = [run for run, tags in found.items() if EXPERIMENT_TAG in tags]
    contents = frozenset(found[run][EXPERIMENT_TAG].plugin_content for run in runs)
    content = merged(contents) if len(contents) > 1 else None
    if content is not None:
        for run in runs:
            one = found[run][EXPERIMENT_TAG]
            found[run][EXPERIMENT_TAG] = tb.TensorTimeSeries(
                max_step=one.max_step,
                max_wall_time=one.max_wall_time,
                plugin_content=content,
                description=one.description,
                display_name=one.display_name,
            )
    return found


def _limit(downsample: int | None) -> int:
    if downsample is None:
        raise TypeError("`downsample` is required")
    return downsample


def _evenly(pointers: list[Pointer], limit: int) -> list[Pointer]:
    """Keep at most `limit` pointers, spread evenly, the last one always among them."""
    if len(pointers) <= limit:
        return pointers
    if limit < 1:
        return []
    places = np.linspace(len(pointers) - 1, 0, limit).round().astype(int)[::-1]
    return [pointers[place] for place in places]


def _readable(tag: Tag, pointers: Sequence[Pointer]) -> Iterator[Value]:
    """Read the records that are where the index says."""
    return read_records(
        tag, pointers, on_error=lambda pointer, error: _report(pointer.uri, tag.name, str(error))
    )


def _tensor(value: Value) -> Any:
    try:
        array = value.tensor
    except DecodeError as error:
        _report("", value.tag, str(error))
        return None
    return _text(value, array) if value.plugin == "text" else array


def _text(value: Value, array: Any) -> Any:
    """Give what the text plugin can show, lest it fail with all of the tag over one value."""
    if array.dtype != object:
        _report("", value.tag, f"at step {value.step} it is {array.dtype}, not text")
        return None
    texts = [text.decode(errors="replace").encode() for text in array.flat]
    return np.array(texts, object).reshape(array.shape)


def _blobs(value: Value) -> list[bytes]:
    try:
        return value.blobs
    except DecodeError as error:
        _report("", value.tag, str(error))
        return []


@lru_cache(maxsize=1024)
def _report(uri: str, tag: str, error: str) -> None:
    """Say once that a value is left out."""
    _log.warning("a value of %r%s is left out: %s", tag, f" in {uri}" if uri else "", error)
