"""The hot routes of TensorBoard's API, answered from arrays instead of objects.

The answers equal those of the stock plugins, which build a Python object per
point and turn each into JSON with the standard library: most of a second for a
page of curves. Requests that are not for scalars go to the stock plugin.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from aboard.events import protos
from aboard.index import Series, Tag
from aboard.tensorboard.board import BoardRun, Listing
from aboard.tensorboard.failures import FAILURES, reason_of
from aboard.tensorboard.metadata import display_name, plugin_content
from aboard.tensorboard.provider import (
    BoardDataProvider,
    BoardRequest,
    Boards,
    current_request,
)

protos.keep_tensorflow_out()

from tensorboard import plugin_util  # noqa: E402
from tensorboard.plugins import base_plugin  # noqa: E402
from tensorboard.plugins.histogram import metadata as histogram_metadata  # noqa: E402
from tensorboard.plugins.image import metadata as image_metadata  # noqa: E402
from tensorboard.plugins.metrics import metrics_plugin  # noqa: E402
from tensorboard.plugins.scalar import metadata as scalar_metadata  # noqa: E402

JsonBytes = bytes
Runs = Mapping[str, BoardRun]

SCALAR_SAMPLES = 1000
"""Points per curve, as in stock TensorBoard."""

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


class BadRequest(ValueError):  # noqa: N818 - named by what is wrong
    """A request that lacks what it must have."""


class HotRoutes:
    """Answers for the routes that a page of curves asks for again and again.

    Args:
        boards: the boards of this process.
        provider: the provider over them, for what the stock plugin answers.
        samples: how many points of each plugin's series are shown.
    """

    def __init__(
        self, boards: Boards, provider: BoardDataProvider, samples: Mapping[str, int]
    ) -> None:
        self._boards = boards
        self._samples = samples.get("scalars", SCALAR_SAMPLES)
        context = base_plugin.TBContext(data_provider=provider, sampling_hints=dict(samples))
        self._stock = metrics_plugin.MetricsPlugin(context)

    def environment(self, listing: Listing) -> JsonBytes:
        """Answer `data/environment`: the title and where the data is."""
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

    def runs(self, listing: Listing) -> JsonBytes:
        """Answer `data/runs`: names by the time of their first event."""
        runs = sorted(
            listing.runs().values(),
            key=lambda run: (math.inf if run.start_time is None else run.start_time, run.name),
        )
        return orjson.dumps([run.name for run in runs])

    def tags(self, listing: Listing) -> JsonBytes:
        """Answer `timeseries/tags`: which tags each run has, and what they are about."""
        runs = listing.runs().values()
        scalars = _versioned(runs, "scalars")
        histograms = _versioned(runs, "histograms")
        images = _versioned(runs, "images")
        sampled: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
        for run, tags in images.items():
            for tag in tags:
                # The first two blobs of an image summary are its width and height.
                sampled[tag.name][run] = {"maxSamplesPerStep": tag.rows - 2}
        answer = {
            "scalars": {"runTagInfo": _names(scalars), "tagDescriptions": _about(scalars)},
            "histograms": {"runTagInfo": _names(histograms), "tagDescriptions": _about(histograms)},
            "images": {"tagDescriptions": _about(images), "tagRunSampledInfo": sampled},
        }
        return orjson.dumps(answer)

    def scalar_tags(self, listing: Listing) -> JsonBytes:
        """Answer `scalars/tags`: how each tag of each run is called and described."""
        return _described(_versioned(listing.runs().values(), "scalars"))

    def histogram_tags(self, listing: Listing) -> JsonBytes:
        """Answer `histograms/tags` and `distributions/tags`."""
        return _described(_versioned(listing.runs().values(), "histograms"))

    def time_series(self, listing: Listing, asked: list[dict[str, Any]]) -> JsonBytes:
        """Answer `timeseries/timeSeries`: the points of some tags in all or one of the runs."""
        current = BoardRequest(listing.board.id)
        current.runs = listing.runs()
        current_request.set(current)
        answers = [self._answer(listing, current.runs, one) for one in asked]
        return orjson.dumps(answers, option=_OPTIONS)

    def _answer(self, listing: Listing, runs: Runs, request: dict[str, Any]) -> dict[str, Any]:
        tag, run = request.get("tag"), request.get("run")
        if request.get("plugin") != "scalars" or not isinstance(tag, str):
            return self._stock_answer(listing, request)
        if run and not isinstance(run, str):
            raise BadRequest(f"'run' must be the name of a run, not {run!r}")
        found: dict[str, Any] = self._stock._create_base_response(request)
        names = [run] if run else None
        found["runToSeries"] = {
            name: [
                {"wallTime": wall, "step": step, "value": value}
                for wall, step, value in zip(*_columns(series), strict=True)
            ]
            for name, series in self._read(runs, tag, names)
        }
        return found

    def _stock_answer(self, listing: Listing, request: dict[str, Any]) -> dict[str, Any]:
        """Let the stock plugin answer for one series; others do not suffer if it fails."""
        try:
            answer = self._stock._get_time_series(None, listing.board.id, request)
        except FAILURES as error:
            answer = self._stock._create_base_response(request)
            answer["error"] = reason_of(error, f"for {request.get('tag')!r}")
        return dict(_cleansed(answer))

    def multirun(self, listing: Listing, tags: list[str], runs: list[str]) -> JsonBytes:
        """Answer `scalars/scalars_multirun`: one tag of the given runs."""
        if len(tags) != 1:
            raise BadRequest("tag must be specified exactly once")
        answer = {
            name: list(zip(*_columns(series), strict=True))
            for name, series in self._read(listing.runs(), tags[0], runs)
        }
        return orjson.dumps(answer, option=_OPTIONS)

    def _read(
        self, runs: Runs, tag_name: str, names: list[str] | None
    ) -> Iterable[tuple[str, Series]]:
        found = {}
        for name in runs if names is None else names:
            tag = runs[name].tags.get(tag_name) if name in runs else None
            if tag is not None and (tag.kind.plugin, tag.kind.data_class) == ("scalars", "scalar"):
                found[name] = tag
        series = self._boards.index.many_series(list(found.values()), samples=self._samples)
        return [(name, one) for name, one in zip(found, series, strict=True) if one is not None]


def read_requests(text: str | None) -> list[dict[str, Any]]:
    """Read the field `requests` of `timeseries/timeSeries`.

    Raises:
        BadRequest: it is not what the frontend sends.
    """
    if not text:
        raise BadRequest("Missing 'requests' field")
    try:
        asked = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise BadRequest("Unable to parse 'requests' as JSON") from None
    if asked in ({}, ""):
        return []  # as TensorBoard reads it
    if not isinstance(asked, list) or not all(isinstance(one, dict) for one in asked):
        raise BadRequest("'requests' must be a list of objects")
    return asked


def _columns(series: Series) -> tuple[list[Any], list[int], list[Any]]:
    """Return wall times, steps and values as JSON can hold them."""
    return _numbers(series.wall_times), series.steps.tolist(), _numbers(series.values)


def _numbers(column: npt.NDArray[np.float64]) -> list[Any]:
    numbers: list[Any] = column.tolist()
    finite = np.isfinite(column)
    if not finite.all():
        for place in np.flatnonzero(~finite).tolist():
            numbers[place] = _word(numbers[place])
    return numbers


def _word(number: float) -> str:
    """Return how TensorBoard writes a number that JSON has no form for."""
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _cleansed(answer: Any) -> Any:
    from tensorboard.backend import json_util

    return json_util.Cleanse(answer)


Versioned = dict[str, list[Tag]]


_PLUGINS: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    "scalars": ("scalar", scalar_metadata.parse_plugin_metadata),
    "histograms": ("tensor", histogram_metadata.parse_plugin_metadata),
    "images": ("blob_sequence", image_metadata.parse_plugin_metadata),
}
"""The class of data of each plugin, and what reads the version out of its metadata."""


def _versioned(runs: Iterable[BoardRun], plugin: str) -> Versioned:
    """Return each run's tags of a plugin, less those of a version TensorBoard does not know."""
    data_class, parse = _PLUGINS[plugin]
    found: Versioned = {}
    for run in runs:
        tags = [
            tag
            for tag in run.tags.values()
            if tag.kind.plugin == plugin and tag.kind.data_class == data_class
        ]
        if tags:
            found[run.name] = [tag for tag in tags if _is_known(plugin_content(tag), parse)]
    return found


def _is_known(content: bytes, parse: Callable[[bytes], Any]) -> bool:
    try:
        return not content or parse(content).version <= 0
    except protos.load().NotAMessage:
        return False


def _described(tags: Versioned) -> JsonBytes:
    answer = {
        run: {
            tag.name: {
                "displayName": display_name(tag),
                "description": _html(tag.kind.description),
            }
            for tag in held
        }
        for run, held in tags.items()
    }
    return orjson.dumps(answer)


@lru_cache(maxsize=1024)
def _html(markdown: str) -> str:
    html: str = plugin_util.markdown_to_safe_html(markdown)
    return html


def _names(tags: Versioned) -> dict[str, list[str]]:
    return {run: sorted(tag.name for tag in held) for run, held in tags.items()}


def _about(tags: Versioned) -> dict[str, str]:
    """Return the description of each tag as HTML, all of them where runs disagree."""
    described: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    runs_of: dict[str, set[str]] = defaultdict(set)
    for run, held in tags.items():
        for tag in held:
            description = tag.kind.description
            if description:
                described[tag.name][description].add(run)
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
