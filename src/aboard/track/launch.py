"""How the ranks of one launch agree on a run when only the first of them may claim a name.

The first rank leaves the name in a small file of the experiment, called after the launch; the
others wait for it. A file that an earlier launch left behind is older than the process that reads
it, and not believed. Where the storage cannot be asked, every rank makes the same name up.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from pathlib import Path

from aboard.storage import NotFound, Storage, StorageError, is_remote
from aboard.track.rank import Rank
from aboard.track.say import say

_WAIT_SECS = 120.0
_POLL_SECS = 0.2
_HEAD_START_SECS = 60.0
"""The first rank names its run no longer than that before another node's ranks have started."""
_HEAD_START_ON_A_HOST_SECS = 5.0
_imported = time.time()


class NoLaunch(ValueError):  # noqa: N818 - named by what is wrong
    """What the processes of this launch have in common, or who is who of them, is not known."""


def announce(storage: Storage, experiment: str, rank: Rank, name: str) -> None:
    """Tell the other ranks of this launch which run is theirs.

    A bucket that cannot be reached is said: a training goes on.
    """
    file = _file(experiment, rank)
    told = {"run": name, "at": time.time(), "host": socket.gethostname()}
    try:
        storage.write(file, json.dumps(told).encode())
    except StorageError as error:
        if not is_remote(storage.uri):
            raise
        if name != (theirs := unclaimed_name(rank)):
            say(f"the other ranks cannot be told of {name} and will log as {theirs}. {error}")


def unclaimed_name(rank: Rank) -> str:
    """Make a name that every rank of this launch makes too, without asking the storage.

    Raises:
        NoLaunch: the launcher cannot be told from another.
    """
    return f"{time.strftime('run-%Y%m%d', time.gmtime())}-{_digest(rank)}"


def wait_for_name(
    storage: Storage, experiment: str, rank: Rank, seconds: float = _WAIT_SECS
) -> str:
    """Return the run that the first rank announced.

    A bucket that cannot be reached all the while is said, and the name made up.

    Raises:
        TimeoutError: it announced none.
        NoLaunch: the launcher cannot be told from another.
    """
    file = _file(experiment, rank)
    deadline = time.monotonic() + seconds
    problem: StorageError | None = None
    while True:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            content, problem = _read(storage, file)
            told = json.loads(content)
            here = told["host"] == socket.gethostname()
            head_start = _HEAD_START_ON_A_HOST_SECS if here else _HEAD_START_SECS
            if float(told["at"]) >= _started() - head_start:
                return str(told["run"])
        if problem is not None and not is_remote(storage.uri):
            raise problem
        if time.monotonic() > deadline:
            if problem is not None:
                name = unclaimed_name(rank)
                say(f"{problem} The run is called {name}, and its logs are sent when that changes.")
                return name
            raise TimeoutError(
                f"rank {rank.number} waited {seconds:.0f} s for rank 0 to name its run in "
                f"{storage.uri}/{experiment}. Does rank 0 call aboard.init too, with the same "
                "root and ranks='all'?"
            )
        time.sleep(_POLL_SECS)


def _read(storage: Storage, file: str) -> tuple[bytes, StorageError | None]:
    """Return the announcement, nothing where there is none, and why it cannot be known."""
    try:
        return storage.read(file), None
    except NotFound:
        return b"", None
    except StorageError as error:
        return b"", error


def _file(experiment: str, rank: Rank) -> str:
    return f"{experiment}/.launch-{_digest(rank)}.json"


def _digest(rank: Rank) -> str:
    if not rank.launch:
        raise NoLaunch(
            "ranks='all' needs a name that every rank knows, since the launcher of these "
            "processes cannot be told from another. Give name=, or set ABOARD_RUN."
        )
    return hashlib.sha256(rank.launch.encode()).hexdigest()[:16]


def _started() -> float:
    """Return when this process started, or where that is not known, when it came here."""
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(after_name[19])
        up = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError):
        return _imported
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
