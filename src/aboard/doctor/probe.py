"""Searches the surroundings of a path without event files, in bounded time."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import time
from collections.abc import Iterator
from difflib import SequenceMatcher, get_close_matches
from itertools import islice
from pathlib import Path

from aboard.events.files import EVENT_FILE, STAMPED
from aboard.storage import StorageError, canonical, is_remote, join, open_storage, split

_SECONDS = 2.0
_LEVELS_UP = 3
_LEVELS_DOWN = 4
_REMOTE_NAMES = 3000
_SIBLINGS = 200
_PASSED_BY = {"node_modules", "__pycache__", "proc", "sys", "dev"}


def with_events(place: str, *, seconds: float = _SECONDS) -> str | None:
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


def misnamed(place: str, *, seconds: float = _SECONDS) -> list[tuple[str, str]]:
    """Return paths at or below a place that are named like event files but are not, and why."""
    if kind := _mistaken(Path(place)):
        return [(place, kind)]
    deadline = time.monotonic() + seconds
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


def siblings_with_events(directory: str) -> int:
    place = Path(directory)
    siblings = [one for one in _directories(place.parent) if one != place][:_SIBLINGS]
    deadline = time.monotonic() + _SECONDS
    return sum(
        any(map(_has_event_file, [one, *_directories(one)[:10]]))
        for one in siblings
        if time.monotonic() < deadline
    )


def existing_parent(path: str) -> str:
    place = Path(path).parent
    while not place.is_dir() and place != place.parent:
        place = place.parent
    return str(place)


def similar_names(path: str) -> list[str]:
    """Return similar names in the nearest existing directory, for the first missing part."""
    parent = Path(existing_parent(path))
    name = Path(path).relative_to(parent).parts[0]
    try:
        names = sorted(os.listdir(parent))  # noqa: PTH208 (names are all we want)
    except OSError:
        return []
    folded = {one.casefold(): one for one in reversed(names)}
    near = get_close_matches(name.casefold(), folded, n=3, cutoff=0.6)
    return [str(parent / folded[one]) for one in near]


def closed_part(path: str) -> tuple[str, str]:
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


def myself() -> str:
    return _user(os.geteuid())
