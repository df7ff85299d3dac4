"""Which run a job had begun before its scheduler started it again.

A small file beside the runs, called after what the job and its successor have in common, names the
last one. So a restart asks for one file, however many runs there are.
"""

from __future__ import annotations

import contextlib
import hashlib

from aboard.runs.layout import BadName, check_name, directory_of
from aboard.storage import NotFound, Storage, StorageError


def remember(storage: Storage, folder: str, key: str, name: str) -> None:
    """Note the run that a job has begun; one that cannot be restarted has no key."""
    if key:
        with contextlib.suppress(StorageError):  # it is only for the case that it is restarted
            storage.write(_file(folder, key), name.encode())


def recall(storage: Storage, folder: str, key: str) -> str | None:
    """Return the run that was noted, if any was."""
    with contextlib.suppress(NotFound, BadName, UnicodeDecodeError):
        return check_name(storage.read(_file(folder, key)).decode(), "run")
    return None


def _file(folder: str, key: str) -> str:
    digest = hashlib.sha256(key.encode(errors="replace")).hexdigest()[:16]
    return directory_of(folder, f".restart-{digest}")
