"""TensorBoard's `DataProvider` over the index, from which all stock plugins read.

TensorBoard's experiment id is the id of a board. Scalars come from the index; other values are read
from their event files on request and are not cached. A value that can no longer be read, because
its file changed or was deleted, is left out and logged once.
"""

# ruff: noqa: ARG002 - every method of the interface has a `ctx`

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import math
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from aboard.events.messages import (
    ORIGIN_AUDIO,
    ORIGIN_HISTOGRAM,
    ORIGIN_IMAGE,
    ORIGIN_SIMPLE,
    DecodeError,
    Malformed,
    Value,
    keep_tensorflow_out,
    load_protos,
    parse_metadata,
)
from aboard.index import Pointer, Series, Tag, UnknownName
from aboard.index.library import Library
from aboard.index.series import read_records
from aboard.index.tags import About, Tags
from aboard.tensorboard.board import Board, BoardRun, Listing

keep_tensorflow_out()

from tensorboard import errors  # noqa: E402
from tensorboard.data import provider as tb  # noqa: E402
from tensorboard.plugins.custom_scalar import layout_pb2  # noqa: E402
from tensorboard.plugins.custom_scalar import metadata as custom_scalars  # noqa: E402

_SIGNATURE = 16


class BlobKey(NamedTuple):
    board: str
    run: str
    tag: str
    step: int
    place: int


class BadKey(ValueError):
    """A key that this process did not sign."""


class Signer:
    """Signs the keys of blobs, so that keys cannot be forged or used on another board."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret if secret is not None else secrets.token_bytes(32)

    def sign(self, key: BlobKey) -> str:
        content = json.dumps(key, separators=(",", ":")).encode()
        return _encode(self._signature(content) + content)

    def read(self, text: str) -> BlobKey:
        try:
            octets = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (binascii.Error, ValueError):
            raise BadKey(text) from None
        signature, content = octets[:_SIGNATURE], octets[_SIGNATURE:]
        # Decoding ignores invalid characters.
        if _encode(octets) != text or not hmac.compare_digest(signature, self._signature(content)):
            raise BadKey(text)
        return BlobKey(*json.loads(content))

    def _signature(self, content: bytes) -> bytes:
        return hmac.digest(self._secret, content, hashlib.sha256)[:_SIGNATURE]


def _encode(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).decode().rstrip("=")


_OLD_FORMS = {ORIGIN_IMAGE: "image", ORIGIN_HISTOGRAM: "histo", ORIGIN_AUDIO: "audio"}


def display_name(name: str, about: About) -> str:
    """Return the display name of a tag; values in an old format have only the tag."""
    is_old = about.origin in _OLD_FORMS or about.origin == ORIGIN_SIMPLE
    return about.kind.display_name or (name if is_old else "")


@lru_cache(maxsize=4096)
def plugin_content(origin: int, metadata: bytes | None) -> bytes:
    if origin == ORIGIN_SIMPLE:
        return b""
    if origin in _OLD_FORMS:
        tensorboard = load_protos()
        value = tensorboard.summary_pb2.Summary.Value(tag="x")
        getattr(value, _OLD_FORMS[origin]).SetInParent()
        content: bytes = tensorboard.data_compat.migrate_value(value).metadata.plugin_data.content
        return content
    try:
        return parse_metadata(metadata or b"").content
    except Malformed:
        return b""


EXPERIMENT_TAG = "_hparams_/experiment"  # TensorBoard defines it in a module with heavy imports


@lru_cache(maxsize=16)
def merged(contents: frozenset[bytes]) -> bytes | None:
    """Merge the experiments of the hparams plugin; None if none can be parsed."""
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    experiments = [one for one in map(_parsed, sorted(contents)) if one is not None]
    if not experiments:
        return None
    whole = api_pb2.Experiment()
    whole.CopyFrom(min(experiments, key=lambda one: one.time_created_secs))
    del whole.hparam_infos[:], whole.metric_infos[:]
    hparams: dict[str, list[Any]] = {}
    metrics: dict[tuple[str, str], Any] = {}
    for experiment in experiments:
        for info in experiment.hparam_infos:
            hparams.setdefault(info.name, []).append(info)
        for info in experiment.metric_infos:
            metrics.setdefault((info.name.tag, info.name.group), info)
    whole.hparam_infos.extend(_hparam(hparams[name]) for name in sorted(hparams))
    whole.metric_infos.extend(metrics[name] for name in sorted(metrics))
    content: bytes = plugin_data_pb2.HParamsPluginData(
        version=metadata.PLUGIN_DATA_VERSION, experiment=whole
    ).SerializeToString()
    return content


def _parsed(content: bytes) -> Any:
    from tensorboard.plugins.hparams import error, metadata

    try:
        return metadata.parse_experiment_plugin_data(content)
    except (error.HParamsError, load_protos().NotAMessage):
        return None


def _hparam(infos: list[Any]) -> Any:
    """Merge the declarations of one hyperparameter, so that all of its values are allowed."""
    from tensorboard.plugins.hparams import api_pb2

    whole = api_pb2.HParamInfo(
        name=infos[0].name,
        description=_first(info.description for info in infos),
        display_name=_first(info.display_name for info in infos),
        differs=any(info.differs for info in infos),
    )
    types = {info.type for info in infos}
    whole.type = types.pop() if len(types) == 1 else api_pb2.DATA_TYPE_STRING
    # If one declares no domain, any value is allowed.
    domains = {info.WhichOneof("domain") for info in infos if not types}
    if domains == {"domain_interval"}:
        whole.domain_interval.min_value = min(info.domain_interval.min_value for info in infos)
        whole.domain_interval.max_value = max(info.domain_interval.max_value for info in infos)
    if domains == {"domain_discrete"}:
        for info in infos:
            for value in info.domain_discrete.values:
                if value not in whole.domain_discrete.values:
                    whole.domain_discrete.values.append(value)
    return whole


def _first(words: Iterable[str]) -> str:
    return next((word for word in words if word), "")


Band = frozenset[str]


def read_layout(content: bytes) -> frozenset[Band]:
    """Return the tags of each margin chart of a layout: value, lower and upper."""
    try:
        layout = layout_pb2.Layout.FromString(content)
    except load_protos().NotAMessage:
        return frozenset()
    return frozenset(
        frozenset((one.value, one.lower, one.upper))
        for category in layout.category
        for chart in category.chart
        for one in chart.margin.series
    )


def join_bands(bands: Iterable[Band]) -> dict[str, set[str]]:
    """Return for each tag of a band all tags that need the same steps; bands can share tags."""
    joined: dict[str, set[str]] = {}
    for band in bands:
        parts = {id(part): part for tag in band for part in [joined.setdefault(tag, {tag})]}
        whole, *others = sorted(parts.values(), key=len, reverse=True)
        for part in others:
            whole |= part
            joined |= dict.fromkeys(part, whole)
    return joined


T = TypeVar("T")
Filter = Any
ByRun = dict[str, dict[str, T]]

_log = logging.getLogger(__name__)


class BoardRequest:
    """A request to a board, with one state of the board for the entire request."""

    def __init__(self, board: str) -> None:
        self.board = board
        self.runs: dict[str, BoardRun] | None = None
        self.bands: dict[str, set[str]] | None = None  # see `join_bands`
        self.sampled: dict[tuple[str, str, int], Series] = {}  # of bands: run, tag, limit
        self.is_incomplete = False  # some value could not be read


current_request: ContextVar[BoardRequest | None] = ContextVar("current_request", default=None)
_MOST_BLOBS = 10_000  # per step


class Boards:
    def __init__(self, library: Library) -> None:
        self.library = library
        self.index = library.index
        self._listings: dict[str, Listing] = {}

    def add(self, board: Board) -> None:
        self._listings[board.id] = Listing(board, self.library)

    def remove(self, board_id: str) -> None:
        self._listings.pop(board_id, None)

    def get(self, board_id: str) -> Listing | None:
        return self._listings.get(board_id)

    def __iter__(self) -> Iterator[Board]:
        return iter([listing.board for listing in self._listings.values()])


class BoardDataProvider(tb.DataProvider):  # type: ignore[misc]
    def __init__(self, boards: Boards, signer: Signer | None = None) -> None:
        self._boards = boards
        self._index = boards.index
        self._signer = signer if signer is not None else Signer()
        self._layout = lru_cache(maxsize=4096)(self._read_layout)

    def __str__(self) -> str:
        return "BoardDataProvider"

    def experiment_metadata(self, ctx: object = None, *, experiment_id: str) -> Any:
        board = self._listing(experiment_id).board
        return tb.ExperimentMetadata(data_location=board.location, experiment_name=board.title)

    def list_plugins(self, ctx: object = None, *, experiment_id: str) -> list[str]:
        runs = self._runs(experiment_id).values()
        return sorted({kind.plugin for run in runs for kind in run.tags.kinds()} - {""})

    def list_runs(self, ctx: object = None, *, experiment_id: str) -> list[Any]:
        return [
            tb.Run(run_id=run.name, run_name=run.name, start_time=run.start_time)
            for run in self._runs(experiment_id).values()
        ]

    def list_scalars(self, ctx: object = None, **query: Any) -> ByRun[Any]:
        return self._list("scalar", partial(_listed, tb.ScalarTimeSeries), **query)

    def list_tensors(self, ctx: object = None, **query: Any) -> ByRun[Any]:
        found = self._list("tensor", partial(_listed, tb.TensorTimeSeries), **query)
        return _with_one_experiment(found) if query["plugin_name"] == "hparams" else found

    def list_blob_sequences(self, ctx: object = None, **query: Any) -> ByRun[Any]:
        def listed(tags: Tags, name: str) -> Any:
            rows = tags.end(name).rows
            return _listed(tb.BlobSequenceTimeSeries, tags, name, max_length=rows)

        return self._list("blob_sequence", listed, **query)

    def read_scalars(
        self, ctx: object = None, *, downsample: int | None = None, **query: Any
    ) -> ByRun[list[Any]]:
        limit = _limit(downsample)

        def read(run: str, tag: Tag) -> list[Any]:
            if not tag.is_scalar:
                raise ValueError(f"{tag.name!r} of run {run!r} has values that are not scalars")
            if not limit:
                return []
            series = self._sample(query["experiment_id"], run, tag, limit)
            columns = (column.tolist() for column in series)
            return [
                tb.ScalarDatum(step=step, wall_time=wall, value=value)
                for step, wall, value in zip(*columns, strict=True)
            ]

        return self._each("scalar", read, **query)

    def read_last_scalars(self, ctx: object = None, **query: Any) -> ByRun[Any]:
        """Return the last values; tags with values that are not scalars are left out."""

        def last(_: str, tag: Tag) -> Any:
            if not tag.is_scalar:
                raise UnknownName(tag.name)
            value = math.nan if tag.last_value is None else tag.last_value
            return tb.ScalarDatum(step=tag.last_step, wall_time=tag.last_wall_time, value=value)

        return self._each("scalar", last, **query)

    def read_tensors(
        self, ctx: object = None, *, downsample: int | None = None, **query: Any
    ) -> ByRun[list[Any]]:
        """Return tensors; tags without a readable value are left out."""
        limit = _limit(downsample)

        def read(_: str, tag: Tag) -> list[Any]:
            pointers = _evenly(self._index.pointers(tag), limit)
            data = [
                tb.TensorDatum(step=value.step, wall_time=value.wall_time, numpy=array)
                for value in _readable(tag, pointers)
                if (array := _tensor(value)) is not None
            ]
            if limit and not data:
                raise UnknownName(tag.name)
            return data

        return self._each("tensor", read, **query)

    def read_blob_sequences(
        self, ctx: object = None, *, downsample: int | None = None, **query: Any
    ) -> ByRun[list[Any]]:
        limit = _limit(downsample)

        def read(run: str, tag: Tag) -> list[Any]:
            pointers = _evenly(self._index.pointers(tag), limit)
            board = query["experiment_id"]
            return [self._sequence(board, run, tag, pointer) for pointer in pointers]

        return self._each("blob_sequence", read, **query)

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

    def read_blob(self, ctx: object = None, *, blob_key: str) -> bytes:
        try:
            key = self._signer.read(blob_key)
        except BadKey:
            raise errors.NotFoundError("blob not found") from None
        request = current_request.get()
        if request is not None and key.board != request.board:
            raise errors.NotFoundError("blob not found on this board")
        run = self._runs(key.board).get(key.run)
        tag = run.tags.get(key.tag) if run else None
        if tag is not None:
            with suppress(UnknownName):
                for value in _readable(tag, self._index.pointers(tag, step=key.step)):
                    blobs = _blobs(value)
                    if key.place < len(blobs):
                        return blobs[key.place]
        raise errors.NotFoundError(
            f"{key.tag!r} of run {key.run!r} can no longer be read at step {key.step}"
        )

    def _sample(self, board: str, run: str, tag: Tag, limit: int) -> Series:
        """Sample a series at the same steps as the others of its margin chart."""
        request = current_request.get()
        if request is None or request.board != board:
            request = BoardRequest(board)
        together = self._bands(request).get(tag.name) if tag.points > limit >= 1 else None
        if not together:
            return self._index.series(tag, samples=limit)
        if (run, tag.name, limit) not in request.sampled:
            held = self._runs(board)[run].tags
            tags = [held[name] for name in together if name in held and held[name].is_scalar]
            series = self._index.many_series(tags, samples=limit, together=True)
            for one, sampled in zip(tags, series, strict=True):
                if sampled is not None:
                    request.sampled[run, one.name, limit] = sampled
        if (found := request.sampled.get((run, tag.name, limit))) is None:
            raise UnknownName(tag.name)
        return found

    def _bands(self, request: BoardRequest) -> dict[str, set[str]]:
        if request.bands is None:
            bands: set[Band] = set()
            for run in self._runs(request.board).values():
                tag = run.tags.get(custom_scalars.CONFIG_SUMMARY_TAG)
                if tag is not None and tag.kind.plugin == custom_scalars.PLUGIN_NAME:
                    with suppress(UnknownName):
                        bands |= self._layout(tag)
            request.bands = join_bands(bands)
        return request.bands

    def _read_layout(self, tag: Tag) -> frozenset[Band]:
        for value in _readable(tag, self._index.pointers(tag)[-1:]):
            array = _tensor(value)
            if array is not None and array.size == 1 and isinstance(array.item(), bytes):
                return read_layout(array.item())
        raise UnknownName(tag.name)

    def _listing(self, board: str) -> Listing:
        if not isinstance(board, str):
            raise TypeError(f"the id of a board is a str, not {board!r}")
        listing = self._boards.get(board)
        if listing is None:
            raise errors.NotFoundError(f"board {board!r} not found")
        return listing

    def _runs(self, board: str) -> dict[str, BoardRun]:
        request = current_request.get()
        if request is None or request.board != board:
            return self._listing(board).runs()
        if request.runs is None:
            request.runs = self._listing(board).runs()
        return request.runs

    def _each(self, data_class: str, answer: Callable[[str, Tag], T], **query: Any) -> ByRun[T]:
        """Call `answer` for each tag of a query, except those removed since they were listed."""
        result: ByRun[T] = {}
        for run, tags, names in self._found(data_class, **query):
            for name in names:
                with suppress(UnknownName):
                    result.setdefault(run, {})[name] = answer(run, tags[name])
        return result

    def _list(self, data_class: str, answer: Callable[[Tags, str], T], **query: Any) -> ByRun[T]:
        """Call `answer` for each tag of a query; there may be a million."""
        found = self._found(data_class, **query)
        listed = ((run, {name: answer(tags, name) for name in names}) for run, tags, names in found)
        return {run: held for run, held in listed if held}

    def _found(
        self,
        data_class: str,
        *,
        experiment_id: str,
        plugin_name: str,
        run_tag_filter: Filter = None,
    ) -> Iterator[tuple[str, Tags, Iterable[str]]]:
        def matches(about: About) -> bool:
            return about.kind[:2] == (plugin_name, data_class)

        runs = self._runs(experiment_id)
        for run in _requested(run_tag_filter.runs if run_tag_filter else None, runs):
            tags = runs[run].tags
            if run_tag_filter is None or run_tag_filter.tags is None:
                yield run, tags, tags.select(matches)
            else:
                given = _requested(run_tag_filter.tags, tags)
                yield run, tags, [name for name in given if matches(tags.about(name))]


def _requested(names: Collection[str] | None, held: Mapping[str, Any]) -> Iterator[str]:
    if names is None:
        return iter(held)
    return iter(dict.fromkeys(name for name in names if name in held))


def _listed(time_series: Any, tags: Tags, name: str, **more: int) -> Any:
    about, end = tags.about(name), tags.end(name)
    return time_series(
        max_step=end.last_step,
        max_wall_time=end.max_wall_time,
        plugin_content=plugin_content(about.origin, about.metadata),
        description=about.kind.description,
        display_name=display_name(name, about),
        **more,
    )


def _with_one_experiment(found: ByRun[Any]) -> ByRun[Any]:
    """Replace every experiment by the merge of all."""
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
    if not isinstance(downsample, int):
        raise TypeError(f"`downsample` must be a number of values, not {downsample!r}")
    return downsample


def _evenly(pointers: list[Pointer], limit: int) -> list[Pointer]:
    """Keep at most `limit` pointers, evenly spaced and including the last."""
    if limit < 0:
        raise ValueError(f"cannot sample a series down to {limit} values")
    if len(pointers) <= limit:
        return pointers
    places = np.linspace(len(pointers) - 1, 0, limit).round().astype(int)[::-1]
    return [pointers[place] for place in places]


def _readable(tag: Tag, pointers: Sequence[Pointer]) -> Iterator[Value]:
    request = current_request.get()

    def leave_out(pointer: Pointer, error: Exception) -> None:
        if request is not None:
            request.is_incomplete = True
        _report(pointer.uri, tag.name, str(error))

    return read_records(tag, pointers, on_error=leave_out)


def _tensor(value: Value) -> Any:
    try:
        array = value.tensor
    except DecodeError as error:
        _report("", value.tag, str(error))
        return None
    return _text(value, array) if value.plugin == "text" else array


def _text(value: Value, array: Any) -> Any:
    """Return what the text plugin can show, because one bad value would fail the tag."""
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
    _log.warning("a value of %r%s is left out: %s", tag, f" in {uri}" if uri else "", error)
