"""The directories that a process keeps to when it reads, wherever symbolic links lead.

A hub for a team shows what lies below its roots, and whoever logs there may put a link to anything
that the hub's user can read. `LocalStorage` looks at what it has opened. Others, such as the
plugins of TensorBoard, open paths of their own: Python tells of each, and one that begins in a
confined directory and ends outside of all is refused. A path is looked at before it is opened, so
whoever changes a link in that very moment can still win, and code that does not open its files
through Python is not seen. Nor are paths that begin at an open directory (`dir_fd`) or at
`/proc/self/fd/N`: Python does not tell where these are, or they begin outside.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from aboard.storage.base import PermissionDenied

# Strings throughout: a Path object per file would double the cost of a walk.
_WATCHED = frozenset({"open", "os.listdir", "os.scandir", "sqlite3.connect"})
_REASON = "a link leads out of its root"

_real: tuple[str, ...] = ()
_written: tuple[str, ...] = ()
_is_watching = False
_here = threading.local()


def confine(directories: Iterable[str]) -> None:
    """Let this process read no local file outside of these directories, wherever links lead.

    Without any, it may read them all.
    """
    global _real, _written, _is_watching  # noqa: PLW0603 - it is about the whole process
    given = [os.path.abspath(directory) for directory in directories]  # noqa: PTH100
    _real = tuple(_with_slash(os.path.realpath(directory)) for directory in given)
    _written = (*_real, *map(_with_slash, given))
    if _real and not _is_watching:
        sys.addaudithook(_watch)
        _is_watching = True


def admit(directory: str) -> None:
    """Let a confined process also read in a directory of its own, in which it makes links."""
    if _real:
        confine([*_written, directory])


def is_confined() -> bool:
    """Say whether this process keeps to some directories."""
    return bool(_real)


def leads_out(path: str) -> bool:
    """Say whether a path ends where this process may not read."""
    return bool(_real) and not _is_inside(os.path.realpath(path))


def check_path(path: str) -> None:
    """Check that a path does not lead out.

    Raises:
        PermissionDenied: it does.
    """
    if leads_out(path):
        raise PermissionDenied(path, _REASON, "Put the files below the root.")


def check_opened(path: str, descriptor: int) -> None:
    """Check what was opened, and not what the path means by now.

    Raises:
        PermissionDenied: it is outside.
    """
    # Of a deleted file it ends in " (deleted)", which is as much inside.
    if _real and not _is_inside(os.readlink(f"/proc/self/fd/{descriptor}")):  # noqa: PTH115
        raise PermissionDenied(path, _REASON, "Put the file below the root.")


@contextmanager
def unwatched() -> Iterator[None]:
    """Open what is checked afterwards, or was before."""
    before = getattr(_here, "is_unwatched", False)
    _here.is_unwatched = True
    try:
        yield
    finally:
        _here.is_unwatched = before


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _WATCHED or not _real or getattr(_here, "is_unwatched", False):
        return
    given = arguments[0]
    if not isinstance(given, (str, bytes, os.PathLike)):
        return
    path = os.fsdecode(given)
    if event == "sqlite3.connect" and path.startswith("file:"):
        from urllib.parse import unquote, urlsplit  # here, since most need neither

        path = unquote(urlsplit(path).path)
    as_written = _with_slash(path), _with_slash(os.path.abspath(path))  # noqa: PTH100
    if any(text.startswith(_written) for text in as_written) and leads_out(path):
        raise PermissionError(errno.EACCES, _REASON, path)


def _is_inside(real: str) -> bool:
    return _with_slash(real).startswith(_real)


def _with_slash(path: str) -> str:
    return path if path.endswith("/") else f"{path}/"
