"""The hot routes of TensorBoard's API, answered from arrays instead of objects.

The responses equal those of the stock plugins, which take most of a second for a page of curves.
Requests for other data than scalars need the stock plugin, and descriptions its Markdown; both may
be slow, so a worker answers them. Curves are written piece by piece, so that a large response does
not delay other requests.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from http import HTTPStatus
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from aboard.events.messages import keep_tensorflow_out, load_protos
from aboard.index import Series, Tag
from aboard.index.tags import About
from aboard.tensorboard.board import BoardRun, Listing
from aboard.tensorboard.provider import (
    BoardDataProvider,
    BoardRequest,
    Boards,
    current_request,
    display_name,
    plugin_content,
)

keep_tensorflow_out()

from tensorboard import errors  # noqa: E402
from tensorboard.backend import json_util  # noqa: E402
from tensorboard.plugins.histogram import metadata as histogram_metadata  # noqa: E402
from tensorboard.plugins.image import metadata as image_metadata  # noqa: E402
from tensorboard.plugins.scalar import metadata as scalar_metadata  # noqa: E402

POINTS_PER_CURVE = 1000  # TensorBoard's default, like the limits of other plugins
# Errors of plugins that are caused by the request or the data.
FAILURES = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    re.error,
    errors.PublicError,
)

_log = logging.getLogger(__name__)


def status_of(error: Exception) -> HTTPStatus:
    if isinstance(error, errors.PublicError):
        return HTTPStatus(error.http_code)
    return HTTPStatus.NOT_FOUND if isinstance(error, LookupError) else HTTPStatus.BAD_REQUEST


def reason_of(error: Exception, path: str) -> str:
    """Return and log the reason of an error in one line."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    _log.warning("TensorBoard cannot answer %s: %s", path, reason)
    return f"TensorBoard cannot answer this: {reason}"


_CACHE_BYTES = 16 << 20
_LARGEST_SHARE = 4
_ENTRY_BYTES = 512  # memory of a cached response besides its body


class ResponseCache:
    """A cache of response bodies that drops the least recently used first.

    Most of the work for a response is writing numbers as JSON and compressing them. One response
    may take at most a quarter of the cache.
    """

    def __init__(self, most_bytes: int = _CACHE_BYTES) -> None:
        self._most = most_bytes
        self.largest = most_bytes // _LARGEST_SHARE - _ENTRY_BYTES
        self._size = 0
        self._bodies: OrderedDict[Hashable, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> bytes | None:
        with self._lock:
            body = self._bodies.get(key)
            if body is not None:
                self._bodies.move_to_end(key)
            return body

    def put(self, key: Hashable, body: bytes) -> None:
        size = len(body) + _ENTRY_BYTES
        if len(body) > self.largest:
            return
        with self._lock:
            before = self._bodies.pop(key, None)
            self._size += size - (0 if before is None else len(before) + _ENTRY_BYTES)
            self._bodies[key] = body
            while self._size > self._most:
                self._size -= len(self._bodies.popitem(last=False)[1]) + _ENTRY_BYTES


Runs = Mapping[str, BoardRun]

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS

TIME_SERIES = "data/plugin/timeseries/timeSeries"
MOST_ENTRIES = 2_000  # of one request for series; the page sends one per visible card
_MOST_VALUES = 16 * MOST_ENTRIES
_LONGEST_REQUESTS = 8 << 20
_SERIES_AT_ONCE = 32
_POINTS_AT_ONCE = 16_384
_POINTS_READ_AT_ONCE = 1_000_000


class BadRequest(ValueError):
    """An invalid request."""

    status = HTTPStatus.BAD_REQUEST


class TooLarge(BadRequest):
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def json_headers(*, compressed: bool) -> list[tuple[str, str]]:
    headers = [
        ("content-type", "application/json"),
        ("cache-control", "no-cache, must-revalidate"),
        ("vary", "accept-encoding"),
    ]
    return [*headers, ("content-encoding", "gzip")] if compressed else headers


class HotRoutes:
    """The routes; responses of `described` contain descriptions as HTML."""

    def __init__(
        self, boards: Boards, provider: BoardDataProvider, samples: Mapping[str, int]
    ) -> None:
        self._boards = boards
        self._samples = samples.get("scalars", POINTS_PER_CURVE)
        self._context = {"data_provider": provider, "sampling_hints": dict(samples)}
        self.described: dict[str, Callable[[Listing], Iterator[bytes]]] = {
            "data/plugin/timeseries/tags": self.tags,
            "data/plugin/scalars/tags": self.scalar_tags,
            "data/plugin/histograms/tags": self.histogram_tags,
            "data/plugin/distributions/tags": self.histogram_tags,
        }

    def environment(self, listing: Listing) -> bytes:
        from tensorboard import version

        board = listing.board
        answer = {
            "version": version.VERSION,
            "data_location": board.location,
            "window_title": board.title,
            "experiment_name": board.title,
            "experiment_description": "",
            "creation_time": 0,
        }
        return orjson.dumps(answer)

    def runs(self, listing: Listing) -> bytes:
        """Return the runs, except those with only hyperparameters, which the HParams tab shows."""
        runs = sorted(
            (run for run in listing.runs().values() if not run.only_hparams),
            key=lambda run: (math.inf if run.start_time is None else run.start_time, run.name),
        )
        return orjson.dumps([run.name for run in runs])

    def tags(self, listing: Listing) -> Iterator[bytes]:
        runs = listing.runs()
        scalars, histograms, images = (_versioned(runs.values(), plugin) for plugin in _PLUGINS)
        for plugin, found in (("scalars", scalars), ("histograms", histograms)):
            yield b'{"' if plugin == "scalars" else b',"'
            yield plugin.encode() + b'":{"runTagInfo":{'
            yield from _joined(
                orjson.dumps(run) + b":" + names for run, names in _sorted_names(found)
            )
            yield b'},"tagDescriptions":' + orjson.dumps(_about(runs, found)) + b"}"
        sampled: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
        for run, names in images.items():
            for name in names:
                # The first two blobs of an image summary are its width and height.
                sampled[name][run] = {"maxSamplesPerStep": runs[run].tags[name].rows - 2}
        about_images = {"tagDescriptions": _about(runs, images), "tagRunSampledInfo": sampled}
        yield b',"images":' + orjson.dumps(about_images) + b"}"

    def scalar_tags(self, listing: Listing) -> Iterator[bytes]:
        return _described(listing.runs(), "scalars")

    def histogram_tags(self, listing: Listing) -> Iterator[bytes]:
        return _described(listing.runs(), "histograms")

    def has_descriptions(self, listing: Listing) -> bool:
        runs = listing.runs().values()
        return any(kind.description for run in runs for kind in run.tags.kinds())

    def time_series(self, listing: Listing, requests: list[dict[str, Any]]) -> Iterator[bytes]:
        """Yield the response in parts; each takes milliseconds if all requests are for scalars."""
        current = BoardRequest(listing.board.id)
        current.runs = listing.runs()
        current_request.set(current)
        yield b"["
        for place, one in enumerate(requests):
            yield b"," if place else b""
            if is_for_scalars(one):
                yield from self._curves(current.runs, one)
            else:
                yield orjson.dumps(self._stock_answer(listing, one), option=_OPTIONS)
        yield b"]"

    def _curves(self, runs: Runs, request: dict[str, Any]) -> Iterator[bytes]:
        run = request.get("run")
        yield orjson.dumps(_repeated(request))[:-1] + b',"runToSeries":{'
        series = self._read(runs, request["tag"], [run] if run else None)
        yield from _members(series, _time_points)
        yield b"}}"

    @cached_property
    def _stock(self) -> Any:
        """TensorBoard's plugin for images and histograms, imported when a page shows some."""
        from tensorboard.plugins.base_plugin import TBContext
        from tensorboard.plugins.metrics.metrics_plugin import MetricsPlugin

        return MetricsPlugin(TBContext(**self._context))

    def _stock_answer(self, listing: Listing, request: dict[str, Any]) -> dict[str, Any]:
        """Answer for one series with the stock plugin; a failure does not affect the others."""
        try:
            # Private: checked with TensorBoard 2.21 by tests/tensorboard/test_private_names.py.
            answer = self._stock._get_time_series(None, listing.board.id, request)
        except FAILURES as error:
            answer = _repeated(request)
            answer["error"] = reason_of(error, f"for {request.get('tag')!r}")
        return dict(json_util.Cleanse(answer))

    def multirun(self, listing: Listing, tags: list[str], runs: list[str]) -> Iterator[bytes]:
        if len(tags) != 1:
            raise BadRequest("tag must be specified exactly once")
        yield b"{"
        yield from _members(self._read(listing.runs(), tags[0], runs), _rows)
        yield b"}"

    def _read(
        self, runs: Runs, tag_name: str, names: list[str] | None
    ) -> Iterator[tuple[str, Series]]:
        found = {}
        for name in runs if names is None else names:
            held = runs[name].tags if name in runs else {}
            tag = held.get(tag_name)
            if tag is not None and tag.kind[:2] == ("scalars", "scalar"):
                found[name] = tag
        for some in _batches(found):
            tags = [found[name] for name in some]
            series = self._boards.index.many_series(tags, samples=self._samples)
            for name, one in zip(some, series, strict=True):
                if one is not None:
                    yield name, one


def _repeated(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that its response repeats."""
    kinds = {"plugin": object, "tag": object, "run": str, "sample": int}
    return {
        key: request.get(key) for key, kind in kinds.items() if isinstance(request.get(key), kind)
    }


def _batches(tags: Mapping[str, Tag]) -> Iterator[list[str]]:
    """Yield batches of few series and points; a group counts with all of its members."""
    batch: list[str] = []
    points = 0
    for name, tag in tags.items():
        if batch and (len(batch) >= _SERIES_AT_ONCE or points > _POINTS_READ_AT_ONCE):
            yield batch
            batch, points = [], 0
        batch.append(name)
        points += tag.points
    if batch:
        yield batch


def is_for_scalars(request: Mapping[str, Any]) -> bool:
    return request.get("plugin") == "scalars" and isinstance(request.get("tag"), str)


Points = Callable[[Sequence[Any], Sequence[int], Sequence[Any]], list[Any]]


def _members(found: Iterable[tuple[str, Series]], points: Points) -> Iterator[bytes]:
    """Yield the members of a JSON object of curves by run, long ones in several parts."""
    comma = b""
    for name, series in found:
        yield comma + orjson.dumps(name) + b":["
        comma = b","
        for start in range(0, len(series.steps), _POINTS_AT_ONCE):
            part = slice(start, start + _POINTS_AT_ONCE)
            columns = (
                json_numbers(series.wall_times[part]),
                series.steps[part].tolist(),
                json_numbers(series.values[part]),
            )
            yield (b"," if start else b"") + orjson.dumps(points(*columns))[1:-1]
        yield b"]"


def _time_points(walls: Sequence[Any], steps: Sequence[int], values: Sequence[Any]) -> list[Any]:
    return [
        {"wallTime": wall, "step": step, "value": value}
        for wall, step, value in zip(walls, steps, values, strict=True)
    ]


def _rows(walls: Sequence[Any], steps: Sequence[int], values: Sequence[Any]) -> list[Any]:
    return list(zip(walls, steps, values, strict=True))


def read_requests(text: str | None) -> list[dict[str, Any]]:
    if not text:
        raise BadRequest("Missing 'requests' field")
    if len(text) > _LONGEST_REQUESTS:
        raise TooLarge(f"'requests' is longer than {_LONGEST_REQUESTS >> 20} MB. Send several")
    if sum(map(text.count, ",[{")) > _MOST_VALUES:  # parsing millions would delay all requests
        raise TooLarge(
            f"'requests' has too many values: at most {MOST_ENTRIES:,} entries are allowed."
            " Send several requests"
        )
    try:
        requests = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise BadRequest("Unable to parse 'requests' as JSON") from None
    if requests in ({}, ""):
        return []  # like TensorBoard
    if not isinstance(requests, list) or not all(isinstance(one, dict) for one in requests):
        raise BadRequest("'requests' must be a list of objects")
    if len(requests) > MOST_ENTRIES:
        raise TooLarge(
            f"'requests' has {len(requests):,} entries: at most {MOST_ENTRIES:,} are allowed."
            " Send several requests"
        )
    for one in requests:
        run = one.get("run")
        if run and is_for_scalars(one) and not isinstance(run, str):
            raise BadRequest(f"'run' must be the name of a run, not {run!r}")
    return requests


def json_numbers(column: npt.NDArray[np.float64]) -> list[Any]:
    """Return numbers for JSON: those that are not finite become strings."""
    numbers: list[Any] = column.tolist()
    finite = np.isfinite(column)
    if not finite.all():
        for place in np.flatnonzero(~finite).tolist():
            numbers[place] = _word(numbers[place])
    return numbers


def _word(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


Versioned = dict[str, Sequence[str]]  # the names of tags by run

# The data class of each plugin, and the parser of its metadata, which has a version.
_PLUGINS: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    "scalars": ("scalar", scalar_metadata.parse_plugin_metadata),
    "histograms": ("tensor", histogram_metadata.parse_plugin_metadata),
    "images": ("blob_sequence", image_metadata.parse_plugin_metadata),
}


def _versioned(runs: Iterable[BoardRun], plugin: str) -> Versioned:
    """Return each run's tags of a plugin, except versions that TensorBoard does not know."""
    data_class, parse = _PLUGINS[plugin]

    def matches(about: About) -> bool:
        return about.kind[:2] == (plugin, data_class)

    def is_known(about: About) -> bool:
        return matches(about) and _is_known(plugin_content(about.origin, about.metadata), parse)

    return {run.name: run.tags.select(is_known) for run in runs if run.tags.select(matches)}


def _is_known(content: bytes, parse: Callable[[bytes], Any]) -> bool:
    try:
        return not content or parse(content).version <= 0
    except load_protos().NotAMessage:
        return False


def _joined(members: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the members of a JSON object with commas between them."""
    for place, member in enumerate(members):
        yield b"," + member if place else member


def _described(runs: Runs, plugin: str) -> Iterator[bytes]:
    yield b"{"
    found = _versioned(runs.values(), plugin)
    yield from _joined(orjson.dumps(run) + b":" + about for run, about in _about_tags(runs, found))
    yield b"}"


def _about_tags(runs: Runs, found: Versioned) -> Iterator[tuple[str, bytes]]:
    """Yield the names and descriptions of each run's tags as JSON, cached for equal runs."""
    before: list[tuple[str, About]] = []
    written = b"{}"
    for run, names in found.items():
        tags = runs[run].tags
        held = [(name, tags.about(name)) for name in names]
        if held != before:
            before, written = (
                held,
                orjson.dumps({name: _about_tag(name, one) for name, one in held}),
            )
        yield run, written


def _about_tag(name: str, about: About) -> dict[str, str]:
    return {
        "displayName": display_name(name, about),
        "description": _html(about.kind.description),
    }


@lru_cache(maxsize=1024)
def _html(markdown: str) -> str:
    if not markdown:
        return ""
    from tensorboard import plugin_util

    html: str = plugin_util.markdown_to_safe_html(markdown)
    return html


def _sorted_names(found: Versioned) -> Iterator[tuple[str, bytes]]:
    """Yield the names of each run's tags as JSON, cached for equal runs."""
    before: Sequence[str] = ()
    written = b"[]"
    for run, names in found.items():
        if names != before:
            before, written = names, orjson.dumps(sorted(names))
        yield run, written


def _about(runs: Runs, found: Versioned) -> dict[str, str]:
    """Return the description of each tag as HTML; if runs disagree, all descriptions."""
    described: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    runs_of: dict[str, set[str]] = defaultdict(set)
    for run, names in found.items():
        tags = runs[run].tags
        if not any(kind.description for kind in tags.kinds()):
            continue
        for name in names:
            if description := tags.about(name).kind.description:
                described[name][description].add(run)
                runs_of[description].add(run)
    return {name: _html(_combined(sorted(texts), runs_of)) for name, texts in described.items()}


def _combined(texts: list[str], runs_of: Mapping[str, set[str]]) -> str:
    if len(texts) == 1:
        return texts[0]
    parts = ["# Multiple descriptions"]
    for text in texts:
        runs = sorted(runs_of[text])
        parts.append(f"## For run{'s' if len(runs) > 1 else ''}: {', '.join(runs)}\n{text}")
    return "\n".join(parts)
