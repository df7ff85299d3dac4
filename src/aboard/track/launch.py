"""How the ranks of one launch agree on a run when only the first of them may claim a name.

The first rank leaves the name in a small file of the experiment, called after the launch; the
others wait for it. A file that an earlier launch left behind is older than the process that reads
it, and not believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from pathlib import Path

from aboard.storage import NotFound, Storage
from aboard.track.rank import Rank

_WAIT_SECS = 120.0
_POLL_SECS = 0.2
_HEAD_START_SECS = 60.0
"""The first rank names its run no longer than that before another node's ranks have started."""
_HEAD_START_ON_A_HOST_SECS = 5.0
_imported = time.time()


class NoLaunch(ValueError):  # noqa: N818 - named by what is wrong
    """What the processes of this launch have in common is not known."""


def announce(storage: Storage, experiment: str, rank: Rank, name: str) -> None:
    """Tell the other ranks of this launch which run is theirs."""
    told = {"run": name, "at": time.time(), "host": socket.gethostname()}
    storage.write(_file(experiment, rank), json.dumps(told).encode())


def wait_for_name(
    storage: Storage, experiment: str, rank: Rank, seconds: float = _WAIT_SECS
) -> str:
    """Return the run that the first rank announced.

    Raises:
        TimeoutError: it announced none.
        NoLaunch: the launcher cannot be told from another.
    """
    file = _file(experiment, rank)
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(NotFound, ValueError, KeyError, TypeError):
            told = json.loads(storage.read(file))
            here = told["host"] == socket.gethostname()
            head_start = _HEAD_START_ON_A_HOST_SECS if here else _HEAD_START_SECS
            if float(told["at"]) >= _started() - head_start:
                return str(told["run"])
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"rank {rank.number} waited {seconds:.0f} s for rank 0 to name its run in "
                f"{storage.uri}/{experiment}. Does rank 0 call aboard.init too, with the same "
                "root and ranks='all'?"
            )
        time.sleep(_POLL_SECS)


def _file(experiment: str, rank: Rank) -> str:
    if not rank.launch:
        raise NoLaunch(
            "ranks='all' needs a name that every rank knows, since the launcher of these "
            "processes cannot be told from another. Give name=, or set ABOARD_RUN."
        )
    digest = hashlib.sha256(rank.launch.encode()).hexdigest()[:16]
    return f"{experiment}/.launch-{digest}.json"


def _started() -> float:
    """Return when this process started, or where that is not known, when it came here."""
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(after_name[19])
        up = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError):
        return _imported
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
