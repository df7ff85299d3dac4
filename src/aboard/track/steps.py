"""Where a resumed run left off: the last step in the event files of a stage."""

from __future__ import annotations

from aboard.events.scanner import Scanner
from aboard.storage import NotFound, Storage, StorageError
from aboard.track.say import say


def last_step(storage: Storage, directory: str) -> int | None:
    """Return the highest step in the newest files of a directory that have any, or None.

    A storage that cannot be read is said, and taken for empty: a training goes on.
    """
    above = f"{directory}/" if directory else ""
    try:
        names = sorted(
            entry.name
            for entry in storage.list(directory, containing="tfevents")
            if "/" not in entry.name.removeprefix(above)
        )
        for name in reversed(names):
            if (last := _last_of(storage.read(name))) is not None:
                return last
    except NotFound:
        pass
    except StorageError as error:
        say(f"where the run left off is not known, so steps count from 0 again. {error}")
    return None


def _last_of(content: bytes) -> int | None:
    """Return the highest step of any value, damaged records left aside."""
    scanner = Scanner()
    scanner.scan(content, 0, len(content))
    taken = scanner.take()
    parts = (*taken.points, *taken.pointers)
    return max((part.max_step for part in parts if part.series >= 0), default=None)
