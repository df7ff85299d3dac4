"""Examines why a board would be empty or look wrong: gathers facts about a source, applies rules.

A source that cannot be read is also a finding. Event files are read through the index; anything
read beyond that is bounded.
"""

from __future__ import annotations

import grp
import math
import os
import pwd
import stat
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches
from itertools import islice
from pathlib import Path

import numpy as np

from aboard.doctor import rules
from aboard.doctor.rules import Facts, Finding, NotFinite, Steps, named, requests, slow_index
from aboard.events.files import EVENT_FILE, STAMPED
from aboard.index.index import Index, Progress
from aboard.index.library import Library
from aboard.index.query import EventFile
from aboard.index.sources import Source
from aboard.index.tags import Tag
from aboard.runs.manifest import State
from aboard.storage import (
    NoSuchPath,
    PermissionDenied,
    StorageError,
    bucket_of,
    canonical,
    is_remote,
    join,
    open_storage,
    split,
    traffic,
)
from aboard.system import file_system_of

_MOST_SERIES = 200  # whose values are read
_STATS = 5000
_SECONDS = 2.0  # for each search of the surroundings
_LEVELS_UP = 3
_LEVELS_DOWN = 4
_REMOTE_NAMES = 3000
_SIBLINGS = 200
_PASSED_BY = {"node_modules", "__pycache__", "proc", "sys", "dev"}
_ENDED = frozenset({State.COMPLETED, State.FAILED, State.KILLED})


@dataclass(slots=True)
class Examination:
    source: str
    findings: list[Finding] = field(default_factory=list)
    runs: int = 0
    tags: int = 0
    values: int = 0
    files: int = 0
    bytes: int = 0
    last_write: float | None = None
    sources: Sequence[str] | None = None  # of a board; each is examined separately


def examine(
    index: Index, text: str, *, now: float | None = None, progress: Progress | None = None
) -> Examination:
    """Examine a path, a URI or an event file; the index is refreshed first."""
    try:
        source = Source.parse(text)
    except StorageError as error:
        return Examination(text, [_unreadable(error)])
    place = join(source.uri, source.only)
    before = traffic.pages_listed(place)
    try:
        report = index.refresh(source, progress=progress)
    except StorageError as error:
        return Examination(place, [_explain(place, error)])
    facts = _gather(index, source, time.time() if now is None else now)
    found = [_explain(problem.uri, problem) for problem in report.problems]
    if facts.files:
        found += rules.diagnose(facts)
    elif not report.files_failed:
        found.append(_nothing_in(place))
    found += _misnamed(place)
    found += _one_of_several(source, facts)
    if is_remote(place):
        found.append(_requests(index, place, traffic.pages_listed(place) - before))
    times = [when for file in facts.files if (when := facts.written(file)) is not None]
    return Examination(
        place,
        rules.worst_first(found),
        runs=len(facts.runs),
        tags=len(facts.tags),
        values=sum(file.values for file in facts.files),
        files=len(facts.files),
        bytes=sum(file.size for file in facts.files),
        last_write=max(times, default=None),
    )


def drop_repeats(examined: Sequence[Examination]) -> None:
    seen: set[object] = set()
    for one in reversed(examined):  # the last one has counted all requests
        kept = []
        for finding in one.findings:
            is_total = finding.code == "requests"
            key = (finding.code, finding.where) if is_total else finding
            if key in seen or (finding.code == "one-of-several" and len(examined) > 1):
                continue
            seen.add(key)
            kept.append(finding)
        one.findings = kept


def examine_index(index: Index) -> list[Finding]:
    found = [
        Finding(
            "index-place", "warning", problem.message, (str(index.path or "memory"),), problem.hint
        )
        for problem in index.problems
    ]
    if index.path is not None:
        kind = file_system_of(index.path)
        found += slow_index(str(index.path), write_seconds(index.path.parent), kind)
    return found


def write_seconds(directory: Path) -> float:
    """Measure a small write that reaches the disk, such as each commit to the index makes."""
    taken = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(3):
            started = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _gather(index: Index, source: Source, now: float) -> Facts:
    files, tags = index.files(source), index.tags(source)
    modified, grown = ({}, set()) if is_remote(source.uri) else _modified(files)
    return Facts(
        place=source.uri,
        now=now,
        runs=[run.name for run in index.runs(source)],
        files=files,
        modified=modified,
        grown=grown,
        tags=tags,
        damage=index.damages(source),
        steps=_steps(index, tags),
        not_finite=_not_finite(index, tags),
        ended=_has_ended(index, source, files, now),
    )


def _has_ended(index: Index, source: Source, files: Sequence[EventFile], now: float) -> bool:
    """Return whether all runs have ended; False for a bucket, which would need another listing."""
    if is_remote(source.uri) or not files:
        return False
    library = Library(index)
    try:
        library.refresh_records(source)
    except StorageError:
        return False
    records = (library.record_of(source, one) for one in {file.directory for file in files})
    return all(one is not None and one.state_at(now) in _ENDED for one in records)


def _modified(files: list[EventFile]) -> tuple[dict[str, float], set[str]]:
    newest = sorted(files, key=lambda one: -(one.last_wall or math.inf))
    times, grown = {}, set()
    for file in newest[:_STATS]:
        path = join(file.directory, file.name)
        try:
            status = Path(path).stat()
        except OSError:
            continue
        times[path] = status.st_mtime
        if status.st_size > file.size:
            grown.add(path)
    return times, grown


def _steps(index: Index, tags: list[Tag]) -> list[Steps]:
    uneven = [
        (tag, part)
        for tag in tags
        for part in tag.segments
        if tag.is_scalar and not part.increasing
    ]
    found = []
    for tag, part in uneven[:_MOST_SERIES]:
        steps = index.written_steps(part)
        gaps = np.diff(steps)
        behind = steps[1:][gaps < 0]
        found.append(
            Steps(
                run=tag.run,
                tag=tag.name,
                uri=join(part.directory, part.file_name),
                points=part.points,
                backwards=len(behind),
                back_to=int(behind.min()) if len(behind) else None,
                repeated=int((gaps == 0).sum()),
                lowest=part.min_step,
                highest=part.max_step,
            )
        )
    return found


def _not_finite(index: Index, tags: list[Tag]) -> list[NotFinite]:
    ended = [
        tag for tag in tags if tag.last_value is not None and not math.isfinite(tag.last_value)
    ]
    found = []
    for tag in ended[:_MOST_SERIES]:
        series = index.series(tag)
        good = np.flatnonzero(np.isfinite(series.values))
        first = int(good[-1]) + 1 if len(good) else 0
        if first >= len(series.steps):
            continue  # it was continued or deleted meanwhile
        found.append(
            NotFinite(tag.run, tag.name, tag.last_value or 0.0, int(series.steps[first]), not first)
        )
    return found


def _nothing_in(place: str) -> Finding:
    near = nearest_with_events(place)
    return Finding(
        "no-event-files",
        "error",
        "no event files here or below, so a board would be empty; event files have"
        f" '{EVENT_FILE}' in their names",
        (place,),
        f"Open {near}, which has some."
        if near
        else "Check the path, and that the job has written something; often only rank 0 writes.",
    )


def _misnamed(place: str) -> list[Finding]:
    found = [] if is_remote(place) else _mistaken_below(place)
    if not found:
        return []
    kinds = " or a ".join(sorted({kind for _, kind in found}))
    return [
        Finding(
            "not-a-file",
            "error" if found[0][0] == place else "warning",
            f"a {kinds} is named like an event file, but cannot be read as one",
            named(f"{path} ({kind})" for path, kind in found),
            f"Make the job write files, and use names without '{EVENT_FILE}' for directories.",
        )
    ]


def _one_of_several(source: Source, facts: Facts) -> list[Finding]:
    if list(facts.runs) != ["."] or is_remote(source.uri) or source.only:
        return []
    count = _siblings_with_events(source.uri)
    if not count:
        return []
    return [
        Finding(
            "one-of-several",
            "info",
            "this is a single run, with others next to it",
            (source.uri,),
            f"Open {Path(source.uri).parent} to see them together.",
        )
    ]


def _explain(place: str, error: StorageError) -> Finding:
    if is_remote(place):
        finding = _unreadable(error)
        near = nearest_with_events(place) if isinstance(error, NoSuchPath) else None
        return finding._replace(advice=f"Open {near}, which has event files.") if near else finding
    if isinstance(error, PermissionDenied):
        return _closed(place, error)
    if isinstance(error, NoSuchPath):
        return next(iter(_misnamed(place)), None) or _missing(place, error)
    return _unreadable(error)


def _unreadable(error: StorageError) -> Finding:
    return Finding("unreadable", "error", error.problem, (error.uri,), error.hint)


def _missing(place: str, error: StorageError) -> Finding:
    if Path(place).exists():
        near = nearest_with_events(place)
        advice = f"Open {near}, which has event files." if near else error.hint
        return Finding("not-a-directory", "error", error.problem, (place,), advice)
    parent = _existing_parent(place)
    similar = _similar_names(place)
    if similar:
        advice = f"Did you mean {' or '.join(similar)}?"
    else:
        near = nearest_with_events(place)
        advice = f"Open {near}, which has event files." if near else "Check the path."
    what = f"no such file or directory; the existing part of the path is {parent}"
    return Finding("path-missing", "error", what, (place,), advice)


def _closed(place: str, error: StorageError) -> Finding:
    part, mode = _closed_part(place)
    return Finding(
        "no-permission",
        "error",
        f"{error.problem} for the user {_user(os.geteuid())}" + (f": {mode}" if mode else ""),
        (part,),
        "Ask its owner to let you read it (chmod o+rX, or g+rX if you are in its group).",
    )


def _requests(index: Index, place: str, pages: int) -> Finding:
    hours: dict[int, tuple[int, int]] = {}
    for one in index.traffic(place):
        count, size = hours.get(one.hour, (0, 0))
        hours[one.hour] = (count + one.requests, size + one.bytes)
    return requests(bucket_of(place), hours, pages)


# The surroundings of a path without event files, searched in bounded time.


def nearest_with_events(place: str, *, seconds: float = _SECONDS) -> str | None:
    """Return the nearest directory above or next to a place with event files in or below it."""
    try:
        if is_remote(place):
            return _remote_with_events(canonical(place))
        return _local_with_events(Path(canonical(place)), time.monotonic() + seconds)
    except (OSError, StorageError):
        return None


def _local_with_events(place: Path, deadline: float) -> str | None:
    for above in islice(place.parents, _LEVELS_UP):
        if above == above.parent:
            return None
        if not above.is_dir():
            continue
        name = place.relative_to(above).parts[0]
        for directory in _walk(above, name, deadline):
            if not directory.is_relative_to(place) and _has_event_file(directory):
                # Opening the child of `above` shows all of it.
                parts = directory.relative_to(above).parts[:1]
                return str(above.joinpath(*parts))
    return None


def _walk(top: Path, name: str, deadline: float) -> Iterator[Path]:
    """Yield directories, the nearest first, and among these the most similar names first."""
    level = [top]
    for depth in range(_LEVELS_DOWN):
        below = []
        for directory in level:
            if time.monotonic() > deadline:
                return
            yield directory
            below += _directories(directory)
        if depth == 0:
            below.sort(key=lambda one: -SequenceMatcher(None, one.name, name).ratio())
        level = below


def _directories(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as found:
            names = [one.name for one in found if one.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [directory / n for n in sorted(names) if n[0] != "." and n not in _PASSED_BY]


def _has_event_file(directory: Path) -> bool:
    try:
        with os.scandir(directory) as found:
            return any(EVENT_FILE in one.name and one.is_file() for one in found)
    except OSError:
        return False


def _mistaken_below(place: str) -> list[tuple[str, str]]:
    """Return paths at or below a place that are named like event files but are not, and why."""
    if kind := _mistaken(Path(place)):
        return [(place, kind)]
    deadline = time.monotonic() + _SECONDS
    found = []
    for directory, below, files in os.walk(place):
        if time.monotonic() > deadline:
            break
        below[:] = sorted(name for name in below if name[0] != ".")
        for name in sorted([*below, *files]):
            path = Path(directory, name)
            if kind := _mistaken(path):
                found.append((str(path), kind))
    return found


def _mistaken(path: Path) -> str:
    if EVENT_FILE not in path.name:
        return ""
    try:
        mode = path.stat().st_mode
    except OSError:
        return ""
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISDIR(mode) and (not STAMPED.search(path.name) or _has_event_file(path)):
        return ""
    return next((kind for test, kind in _KINDS if test(mode)), "special file")


_KINDS = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


def _remote_with_events(place: str) -> str | None:
    for _ in range(_LEVELS_UP - 1):
        above, name = split(place)
        if not name:
            return None
        try:
            for entry in islice(open_storage(above).list(), _REMOTE_NAMES):
                directory, _, file = entry.name.rpartition("/")
                if EVENT_FILE in file:
                    return join(above, directory.partition("/")[0])
        except StorageError:
            pass
        place = above
    return None


def _siblings_with_events(directory: str) -> int:
    place = Path(directory)
    siblings = [one for one in _directories(place.parent) if one != place][:_SIBLINGS]
    deadline = time.monotonic() + _SECONDS
    return sum(
        any(map(_has_event_file, [one, *_directories(one)[:10]]))
        for one in siblings
        if time.monotonic() < deadline
    )


def _existing_parent(path: str) -> str:
    place = Path(path).parent
    while not place.is_dir() and place != place.parent:
        place = place.parent
    return str(place)


def _similar_names(path: str) -> list[str]:
    """Return similar names in the nearest existing directory, for the first missing part."""
    parent = Path(_existing_parent(path))
    name = Path(path).relative_to(parent).parts[0]
    try:
        names = sorted(os.listdir(parent))  # noqa: PTH208 (names are all we want)
    except OSError:
        return []
    folded = {one.casefold(): one for one in reversed(names)}
    near = get_close_matches(name.casefold(), folded, n=3, cutoff=0.6)
    return [str(parent / folded[one]) for one in near]


def _closed_part(path: str) -> tuple[str, str]:
    """Return the part of a path that denies access, its mode and owner: `drwx------ ann:lab`."""
    place = Path(path)
    for above in reversed(place.parents):
        if not os.access(above, os.X_OK):
            place = above
            break
    try:
        status = place.stat()
    except OSError:
        return str(place), ""
    owner = f"{_user(status.st_uid)}:{_group(status.st_gid)}"
    return str(place), f"{stat.filemode(status.st_mode)} {owner}"


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
