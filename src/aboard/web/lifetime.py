"""Files and directories that should not outlive their process.

They are removed when they are no longer needed. A process that is killed cannot do that, so the
next one does: each holds a lock on what is its own, which ends with it, however it ends. Names say
whose they are and on which machine, because locks may not reach other machines.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aboard.web.request import this_machine

_LOCK = "lock"


@contextmanager
def own_directory(name: str) -> Iterator[Path]:
    """Make a directory among the temporary files, for as long as the context lasts."""
    above = Path(tempfile.gettempdir())
    prefix = f"{name}-{this_machine()}-"
    _remove_abandoned(above, f"{prefix}*")
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
    try:
        with _locked(directory / f"new-{_LOCK}", directory / _LOCK):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def own_file(above: Path, name: str, suffix: str, text: str) -> Iterator[Path]:
    """Write a file that only its user can read, for as long as the context lasts.

    Raises:
        OSError: it cannot be written.
    """
    prefix = f"{name}-{this_machine()}-"
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
    """Hold a lock on a file, which is nobody's to see before it is locked."""
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _try_to_lock(descriptor)  # where that is impossible, nobody else can either
        new.rename(path)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(above: Path, pattern: str) -> None:
    """Remove what is ours and has the name of such files, if its process is no more."""
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
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
