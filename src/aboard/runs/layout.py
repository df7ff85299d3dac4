"""Where runs lie below a root, `<root>/<experiment>/<run>/`, and how a run gets a name nobody has.

A name is claimed by creating its `run.json`, which only one of many can do, on a disk as in a
bucket; a thousand jobs can start at once with no server between them.
"""

from __future__ import annotations

import contextlib
import random
import re
import secrets
import time
from collections.abc import Callable

from aboard.runs.manifest import FILE_NAME, Manifest
from aboard.storage import AlreadyExists, NotFound, PermissionDenied, Storage

DEFAULT_EXPERIMENT = "default"
_FORBIDDEN = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f]')
_LONGEST_NAME = 128
_CLAIM = "claim"
"""The field of a record that tells apart who claims a name at the same time."""
_JUMPS = (1, 4, 16, 64, 256, 1024)

Describe = Callable[[str], Manifest]
"""Makes the manifest of a run from its name."""


class BadName(ValueError):  # noqa: N818 - named by what is wrong
    """A name that cannot be that of an experiment or a run."""


class RunExists(Exception):  # noqa: N818 - named by what is wrong
    """The name is taken."""


def directory_of(experiment: str, name: str) -> str:
    """Return where a run lies below its root."""
    return f"{experiment}/{name}" if experiment else name


def check_name(name: str, what: str) -> str:
    """Return a name that can be a directory on every storage, or raise `BadName`."""
    problem = ""
    if not name or name != name.strip():
        problem = "is empty, or begins or ends with a space"
    elif found := _FORBIDDEN.search(name):
        problem = f"has the character {found[0]!r} in it"
    elif name.startswith("."):
        problem = "begins with a dot"
    elif len(name.encode(errors="replace")) > _LONGEST_NAME:
        problem = f"is longer than {_LONGEST_NAME} bytes"
    if problem:
        hint = "Use letters, digits, '-', '_', '.', '=' and the like"
        raise BadName(f"the name of the {what}, {name!r:.60}, {problem}. {hint}.")
    return name


def claim(storage: Storage, experiment: str, name: str, describe: Describe) -> Manifest:
    """Claim a name of the caller's choice.

    Raises:
        RunExists: there is such a run, or a directory of that name with files in it.
    """
    if _is_taken(storage, experiment, name):
        raise _exists(storage, experiment, name)
    manifest = describe(name)
    if not create_record(storage, directory_of(experiment, name), manifest):
        raise _exists(storage, experiment, name)
    return manifest


def claim_next(storage: Storage, experiment: str, describe: Describe, first: int = 1) -> Manifest:
    """Claim the next free name of `run1`, `run2`, …; others who do the same get other names.

    The end of the row is found by doubling and halving, one request each. Whoever then loses a
    name to another jumps ahead, further each time, so that a crowd scatters instead of queueing.
    The row begins with the number that is the first.
    """
    number = _end_of_row(
        lambda number: number < first or _has_record(storage, experiment, f"run{number}")
    )
    lost = 0
    while True:
        manifest = describe(f"run{number}")
        record = _record(experiment, manifest.name)
        if not create_record(storage, directory_of(experiment, manifest.name), manifest):
            furthest = _JUMPS[min(lost, len(_JUMPS) - 1)]
            number += random.randint(1, furthest)  # noqa: S311 - no secret
            lost += 1
            continue
        files = storage.list(directory_of(experiment, manifest.name))
        if all(file.name == record for file in files):
            return manifest
        storage.delete(record)  # somebody has files there without being a run of ours
        number += 1


def create_record(storage: Storage, directory: str, manifest: Manifest) -> bool:
    """Create the record of a run that has none; say whether it is ours.

    A request whose answer was lost is repeated, and then finds what it has created itself.
    """
    manifest.others[_CLAIM] = secrets.token_hex(8)
    record, content = f"{directory}/{FILE_NAME}".lstrip("/"), manifest.to_json()
    try:
        storage.create_new(record, content)
    except AlreadyExists:
        with contextlib.suppress(NotFound, PermissionDenied):
            return storage.read(record) == content
        return False
    return True


def unclaimed_name(wanted: str | None) -> str:
    """Make a name that needs no claim, for when the storage cannot be asked."""
    return f"{wanted or time.strftime('run-%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def _record(experiment: str, name: str) -> str:
    return f"{directory_of(experiment, name)}/{FILE_NAME}"


def _exists(storage: Storage, experiment: str, name: str) -> RunExists:
    where = f"{storage.uri}/{directory_of(experiment, name)}"
    return RunExists(f"there is a run at {where} already. Resume it, or choose another name.")


def _has_record(storage: Storage, experiment: str, name: str) -> bool:
    try:
        storage.read(_record(experiment, name), 0, 1)
    except NotFound:
        return False
    return True


def _is_taken(storage: Storage, experiment: str, name: str) -> bool:
    try:
        return next(iter(storage.list(directory_of(experiment, name))), None) is not None
    except NotFound:  # the root itself is still to come
        return False


def _end_of_row(is_taken: Callable[[int], bool]) -> int:
    """Return a free number whose neighbour below is taken, or 1."""
    low, high = 0, 1
    while is_taken(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_taken(middle) else (low, middle)
    return high
