"""Images, audio, text and histograms of runs, one step at a time.

Values are read from their event files on request and are not cached.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from aboard.boards.model import BadValue, NoSuchName
from aboard.events.decode import DecodeError, Value
from aboard.index import Index, Pointer, Source, Tag, UnknownName
from aboard.index.series import read_records
from aboard.runs.catalog import KnownRun
from aboard.storage import StorageError

_MOST_STEPS = 1000  # listed per tag
_MOST_BLOBS = 100  # per step
_MOST_TEXTS, _LONGEST_TEXT = 100, 100_000
_MOST_BUCKETS = 1000


class Kind(StrEnum):
    """The type of a tag's values."""

    IMAGE = "image"
    AUDIO = "audio"
    TEXT = "text"
    HISTOGRAM = "histogram"


KINDS = {
    "images": Kind.IMAGE,
    "audio": Kind.AUDIO,
    "text": Kind.TEXT,
    "histograms": Kind.HISTOGRAM,
}
"""By the plugin of TensorBoard that shows them."""

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
)
_UNKNOWN = "application/octet-stream"


class Medium(NamedTuple):
    """The values of a tag at a step; only one of the last three fields is filled."""

    tag: str
    kind: Kind
    steps: Sequence[int]  # at most a thousand, including the first and the last
    step: int
    wall_time: float
    blobs: int
    texts: Sequence[str]
    buckets: Sequence[tuple[float, float, float]]  # from, to, count


def read_medium(index: Index, run: KnownRun, name: str, step: int | None) -> Medium:
    """Return the last values at or before a step, or the first values if all are later."""
    tag, kind = _find(index, run, name)
    pointers = _pointers(index, tag)
    if not pointers:
        raise _unreadable(name, run)
    before = [one for one in pointers if step is None or one.step <= step]
    pointer = before[-1] if before else pointers[0]
    value = _read(tag, pointer, name, run)
    return Medium(
        tag=name,
        kind=kind,
        steps=_thinned([one.step for one in pointers]),
        step=pointer.step,
        wall_time=pointer.wall_time,
        blobs=len(_blobs(kind, value)),
        texts=_texts(value) if kind is Kind.TEXT else (),
        buckets=_buckets(value) if kind is Kind.HISTOGRAM else (),
    )


def read_blob(index: Index, run: KnownRun, name: str, step: int, place: int) -> bytes:
    """Return an image or audio clip of a step."""
    tag, kind = _find(index, run, name)
    for pointer in _pointers(index, tag, step)[-1:]:
        blobs = _blobs(kind, _read(tag, pointer, name, run))
        if place < len(blobs):
            return blobs[place]
    raise NoSuchName(
        f"{name!r} of {run.label} has no value {place} at step {step}.",
        "List its steps: GET /api/v1/runs/{id}/media",
    )


def content_type(content: bytes) -> str:
    """Return the media type of a blob by its first bytes; never one that a browser runs."""
    for beginning, found in _BEGINNINGS:
        if content.startswith(beginning):
            return found
    if content[:4] == b"RIFF":
        return {b"WAVE": "audio/wav", b"WEBP": "image/webp"}.get(content[8:12], _UNKNOWN)
    return _UNKNOWN


def _find(index: Index, run: KnownRun, name: str) -> tuple[Tag, Kind]:
    """Find a tag by `TAG` or `DIRECTORY/TAG`; the run's own directory takes precedence."""
    for directory, tag_name in _places(name):
        tag = index.find_tag(Source(run.uri), directory, tag_name)
        if tag is not None:
            kind = KINDS.get(tag.kind.plugin)
            if kind is None or tag.is_scalar:
                raise BadValue(
                    f"{name!r} of {run.label} is not an image, audio, text or histogram.",
                    "Read scalars with POST /api/v1/series; open a board for other types.",
                )
            return tag, kind
    raise NoSuchName(
        f"{run.label} has no tag {name[:200]!r}.", "List its tags: GET /api/v1/runs/{id}/metrics"
    )


def _places(name: str) -> Iterator[tuple[str, str]]:
    yield ".", name
    at = name.rfind("/")
    while at > 0:
        yield name[:at], name[at + 1 :]
        at = name.rfind("/", 0, at)


def _pointers(index: Index, tag: Tag, step: int | None = None) -> list[Pointer]:
    try:
        return index.pointers(tag, step=step)
    except UnknownName:  # it was removed since it was found
        return []


def _read(tag: Tag, pointer: Pointer, name: str, run: KnownRun) -> Value:
    try:
        for value in read_records(tag, [pointer]):
            return value
    except (StorageError, ValueError) as error:
        raise _unreadable(name, run) from error
    raise _unreadable(name, run)


def _unreadable(name: str, run: KnownRun) -> NoSuchName:
    return NoSuchName(
        f"{name!r} of {run.label} can no longer be read.",
        "Its event file may be gone. List its files: GET /api/v1/runs/{id}/files",
    )


def _blobs(kind: Kind, value: Value) -> list[bytes]:
    try:
        if kind is Kind.IMAGE:
            return value.blobs[2 : 2 + _MOST_BLOBS]  # after width and height
        if kind is Kind.AUDIO:
            labelled = value.tensor.ndim == 2  # each clip and its label
            return value.blobs[:: 2 if labelled else 1][:_MOST_BLOBS]
    except DecodeError:
        pass
    return []


def _texts(value: Value) -> list[str]:
    try:
        found = value.blobs[:_MOST_TEXTS]
    except DecodeError:
        return []
    return [one.decode(errors="replace")[:_LONGEST_TEXT] for one in found]


def _buckets(value: Value) -> list[tuple[float, float, float]]:
    try:
        rows = value.tensor.tolist()
        found = [(float(low), float(high), float(count)) for low, high, count in rows]
    except (DecodeError, TypeError, ValueError):
        return []
    return [one for one in found if all(map(math.isfinite, one))][:_MOST_BUCKETS]


def _thinned(steps: list[int]) -> list[int]:
    distinct = sorted(set(steps))
    if len(distinct) <= _MOST_STEPS:
        return distinct
    last = len(distinct) - 1
    return [distinct[round(at * last / (_MOST_STEPS - 1))] for at in range(_MOST_STEPS)]
