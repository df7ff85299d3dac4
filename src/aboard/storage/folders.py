"""Listing a local directory again: only the directories in it that changed since are read.

What a directory holds is remembered together with its times and its inode, which change with
whatever is added, taken away or moved. Files that grow do not show there, so each is still asked
for its own size and version, unless its name is all that is wanted.
"""

# ruff: noqa: PTH116
# Strings throughout, as in `local`.

import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from aboard.events.mounts import file_system_of
from aboard.storage.base import Entry, ListingProblem, StorageError
from aboard.storage.local import (
    Contents,
    Directory,
    LocalStorage,
    Wanted,
    entry_of,
    explain,
    is_unicode,
    scan,
)

_UNSETTLED_NS = 2_000_000_000
"""What changed this recently may change once more and keep its time: clocks of files are coarse."""
_EXACT = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}
)
"""File systems that keep the time of a directory by this machine's clock, and up to date."""


class Folder(NamedTuple):
    """What a directory held, of that which is wanted.

    Attributes:
        mark: another one whenever something in the directory was added, taken away or moved.
        files: their names, with '/' between them.
        below: the names of the directories in it, likewise.
    """

    mark: str
    files: str
    below: str


class Folders:
    """Lists a storage, and remembers its directories from one time to the next.

    A directory is read again as long as it changed a moment ago; if it holds links, for what they
    lead to changes by itself; and if it is on another file system, or one not known to be exact.

    Args:
        storage: what is listed.
        known: what is remembered, by the directory's name below the root. What is found to be so
            still is taken out; what is left at the end is to be forgotten.
        is_wanted: which files are listed.
        is_described: which of them with size and version; the others have 0 and none.

    Attributes:
        found: what is to be remembered instead.
    """

    def __init__(
        self,
        storage: LocalStorage,
        known: dict[str, Folder],
        is_wanted: Wanted,
        is_described: Wanted,
    ) -> None:
        self.found: dict[str, Folder] = {}
        self._storage = storage
        self._known = known
        self._is_wanted = is_wanted
        self._is_described = is_described
        self._settled_before = time.time_ns() - _UNSETTLED_NS
        self._device = _exact_device(storage.uri)

    def list(self, *, on_error: ListingProblem | None = None) -> Iterator[Entry]:
        """Yield the files that are wanted, in the order of `LocalStorage.list`."""
        return self._storage.walk(self._look, on_error=on_error)

    def _look(self, directory: Directory) -> Contents:
        status = os.stat(directory.path)  # before it is read: what comes in meanwhile shows later
        mark = f"{status.st_mtime_ns:x}.{status.st_ctime_ns:x}.{status.st_ino:x}"
        known = self._known.get(directory.name)
        if known is not None and known.mark == mark and status.st_dev == self._device:
            del self._known[directory.name]
            return self._again(directory, known)
        contents = scan(directory, self._is_wanted, self._is_described)
        changed = max(status.st_mtime_ns, status.st_ctime_ns)
        if (
            status.st_dev == self._device
            and changed < self._settled_before
            and not contents.has_links
            and not contents.problems
        ):
            files = _names(directory, contents.files)
            below = _names(directory, contents.below)
            if is_unicode(directory.name) and is_unicode(below):
                self.found[directory.name] = Folder(mark, files, below)
        return contents

    def _again(self, directory: Directory, known: Folder) -> Contents:
        """Return what a directory holds that has not changed."""
        problems: list[StorageError] = []
        files: list[Entry] = []
        below: list[Directory] = []
        place, above = directory.path, f"{directory.name}/" if directory.name else ""
        if known.files:
            for name in known.files.split("/"):
                if not self._is_described(name):
                    files.append(Entry(above + name, 0, ""))
                    continue
                try:
                    status = os.stat(f"{place}/{name}")
                except OSError as error:
                    if error.errno != errno.ENOENT:  # or it was deleted just now
                        problems.append(explain(f"{place}/{name}", error))
                    continue
                if stat.S_ISREG(status.st_mode):
                    files.append(entry_of(above + name, status))
        if known.below:
            for name in known.below.split("/"):
                below.append(Directory(f"{place}/{name}", above + name, directory))
        return Contents(files, below, problems)


def _names(directory: Directory, held: "Sequence[Entry] | Sequence[Directory]") -> str:
    above = len(directory.name) + 1 if directory.name else 0
    return "/".join([one.name[above:] for one in held])


def _exact_device(path: str) -> int | None:
    """Return the device of a path, if its times are exact."""
    from pathlib import Path

    try:
        return os.stat(path).st_dev if file_system_of(Path(path)) in _EXACT else None
    except OSError:
        return None
