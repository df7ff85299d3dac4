"""Temporary files and directories that are removed with their process.

A killed process cannot remove them, so the next one does: each process locks its own, and the lock
is released when the process exits. Names contain a digest of user and machine, because locks may
not work across machines.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aboard.system import try_lock
from aboard.web.request import machine_digest

_LOCK = "lock"


@contextmanager
def own_directory(name: str) -> Iterator[Path]:
    """Create a temporary directory and remove it when the context exits."""
    above = Path(tempfile.gettempdir())
    prefix = f"{name}-{machine_digest()}-"
    _remove_abandoned(above, f"{prefix}*")
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
    try:
        with _locked(directory / f"new-{_LOCK}", directory / _LOCK):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def own_file(above: Path, name: str, suffix: str, text: str) -> Iterator[Path]:
    """Write a file that only its owner can read; remove it when the context exits."""
    prefix = f"{name}-{machine_digest()}-"
    _remove_abandoned(above, f"{prefix}*{suffix}")
    descriptor, made = tempfile.mkstemp(prefix=f".{prefix}", dir=above)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    path = Path(made)
    shown = path.with_name(f"{path.name[1:]}{suffix}")
    try:
        with _locked(path, shown):
            yield shown
    finally:
        path.unlink(missing_ok=True)
        shown.unlink(missing_ok=True)


@contextmanager
def _locked(new: Path, path: Path) -> Iterator[None]:
    """Lock a file before renaming it to the name that other processes look for."""
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _try_to_lock(descriptor)  # may fail: where locks do not work, nothing is removed
        new.rename(path)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(above: Path, pattern: str) -> None:
    """Remove files and directories of this user whose process has exited."""
    for path in above.glob(pattern):
        try:
            status = path.lstat()
            is_directory = stat.S_ISDIR(status.st_mode)
            if status.st_uid != os.geteuid() or not (is_directory or stat.S_ISREG(status.st_mode)):
                continue
            lock = path / _LOCK if is_directory else path
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if not _try_to_lock(descriptor):
                continue
            if is_directory:
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def _try_to_lock(descriptor: int) -> bool:
    try:
        return try_lock(descriptor)
    except OSError:
        return False
