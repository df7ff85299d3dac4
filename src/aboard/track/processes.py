"""What can be known of other processes of this machine: since when they run, what they write to.

Linux tells in /proc; where there is none, only whether a process exists is known.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from aboard.track import env


class Writer(NamedTuple):
    """A process that writes below a directory, or may."""

    pid: int
    writes: bool
    """Whether it has a file open there; else it was told to log there, and may open one."""


def start_of(pid: int) -> int:
    """Return when a process started, in ticks since the machine did; 0 if it runs no longer."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0 if Path("/proc/self/stat").exists() else _signalled(pid)
    # The name in parentheses may hold anything.
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def _signalled(pid: int) -> int:
    """Say whether a process exists, where there is no /proc to ask for more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return 0
    except OSError:
        pass
    return 1


def writer_below(directory: Path, *, besides: int = 0) -> Writer | None:
    """Return another process, not that one, that writes below a directory, or else may."""
    may: Writer | None = None
    for pid in running():
        if pid in (besides, os.getpid()):
            continue
        if _writes_below(Path("/proc", str(pid)), f"{directory}/"):
            return Writer(pid, writes=True)
        if may is None and logdir_of(pid) == os.fsencode(directory) and start_of(pid):
            may = Writer(pid, writes=False)
    return may


def logdir_of(pid: int) -> bytes | None:
    """Return the log directory that a process was told when it started, if it was."""
    mark = os.fsencode(f"{env.LOGDIR}=")
    with contextlib.suppress(OSError):
        for variable in Path("/proc", str(pid), "environ").read_bytes().split(b"\0"):
            if variable.startswith(mark):
                return variable.removeprefix(mark)
    return None


def running() -> list[int]:
    """Return all processes of this machine, as far as they are in sight."""
    try:
        return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal()]
    except OSError:
        return []


def _writes_below(process: Path, directory: str) -> bool:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return False
    for one in descriptors:
        with contextlib.suppress(OSError, ValueError):
            if os.readlink(one).startswith(directory) and _is_writable(process, one.name):  # noqa: PTH115
                return True
    return False


def _is_writable(process: Path, descriptor: str) -> bool:
    for line in (process / "fdinfo" / descriptor).read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
