"""From a spool to its target: what is new is sent, round by round.

A round looks at every file once. A growing file goes in segments (see `segments`), and the files
of a directory in the order of their names, each only when the one before has arrived: TensorBoard
never returns to a file once it has seen the next. Other files go whole, when they have come to
rest. When a round takes place, and what follows a failed one, is left to `shipper`.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from aboard.events.records import HEADER
from aboard.runs.manifest import FILE_NAME as MANIFEST
from aboard.storage import (
    AlreadyExists,
    BadUri,
    NoCredentials,
    NoSuchBucket,
    NotFound,
    PermissionDenied,
    Storage,
    StorageError,
    StorageFull,
    Unreachable,
    Unreadable,
)
from aboard.storage.base import unreadable
from aboard.storage.local import TEMPORARY
from aboard.track.handover import record_to_send
from aboard.track.ledger import Growing, Ledger, reconcile
from aboard.track.segments import (
    LARGEST,
    Cutter,
    cutter_of,
    head_of,
    is_full,
    segment_name,
    stored_segments,
)

_TAIL = 64
_HEAD = 4096
_WHOLE_BYTES_PER_SECOND = 1 << 20
"""A file that keeps changing is sent again no faster than this, on average."""
_NOT_SENT = (TEMPORARY, ".nfs")
"""How the names of files begin that are not there for long: ours, and what NFS calls a deleted one
that is still open."""
_EVERYTHING_FAILS = (Unreachable, NoCredentials, NoSuchBucket, StorageFull)


class Found(NamedTuple):
    """A file in the spool."""

    name: str
    path: Path
    """Where it really is, for one that a link leads to."""
    status: os.stat_result

    @property
    def version(self) -> str:
        """Changes whenever the file does."""
        return f"{self.status.st_size}.{self.status.st_mtime_ns:x}.{self.status.st_ino:x}"


@dataclass(slots=True)
class Round:
    """What came of a round."""

    left: int = 0
    """Bytes that are there and have not arrived."""
    problem: StorageError | None = None
    """The first thing that went wrong."""
    refused: str = ""
    """Why a file can never arrive, if there is such a file."""
    sent: int = 0
    busy: bool = False
    """Whether a large file is on its way."""

    @property
    def complete(self) -> bool:
        """Whether everything that can arrive has arrived."""
        return not self.left and self.problem is None


Progress = Callable[[int], None]


class Sending:
    """The files of one spool on their way to one target."""

    def __init__(
        self, files: Path, ledger: Ledger, storage: Storage, *, progress: Progress | None = None
    ) -> None:
        self._files = files
        self._ledger = ledger
        self._storage = storage
        self._progress = progress or (lambda _: None)
        self._listed: dict[str, int] | None = None
        self._may_list = True
        self._known = set(ledger.growing)
        self._looked_at: dict[str, str] = {}
        """The version at which a growing file had nothing to send, and another file was seen."""
        self._sent_at: dict[str, float] = {}
        self._refused: dict[str, str] = {}
        self._aside = ThreadPoolExecutor(1)
        """Where large files are sent, so that curves need not wait for a checkpoint."""
        self._large: tuple[Found, Future[None]] | None = None

    def round(self, *, last: bool) -> Round:
        """Send what is new.

        Args:
            last: no more is written, so that nothing is to wait for: an unfinished record goes
                too, and files need not come to rest.
        """
        result = Round()
        self._refused.clear()
        try:
            self._settle_large(result)
            for files in self._directories():
                self._send_directory(files, result, last=last)
        except _EVERYTHING_FAILS as error:
            result.problem = error
        result.left = self.left()
        if not self._ledger.written:
            self._ledger.save()
        result.refused = next(iter(self._refused.values()), "")
        result.busy = self._large is not None
        return result

    def left(self) -> int:
        """Count the bytes that have not arrived, without sending any."""
        return sum(self._left_of(one) for files in self._directories() for one in files)

    def verify(self) -> bool:
        """Compare with what the bucket holds; what is not there, or not all of it, is sent again.

        A request that was given up may be carried out long after the one that followed it.
        """
        listed = self._list()
        if listed is None:
            return True
        right = True
        for name, entry in self._ledger.growing.items():
            for number, (segment, size) in enumerate(entry.sizes(name).items()):
                if listed.get(segment) != size and self._send_again(name, entry, number):
                    right = False
        for name, version in list(self._ledger.whole.items()):
            if not self._is_right(name, version, listed.get(name)):
                right = False
                self._ledger.forget_whole(name)
        return right

    def _is_right(self, name: str, version: str, size: int | None) -> bool:
        """Say whether the bucket holds a file as it was sent."""
        if size is None:
            return False
        if not _is_record(name):
            return version.partition(".")[0] == str(size)
        found, held = self._find(name), self._held(name)
        if found is None or held is None:
            return True  # nothing to send again, or we may not look
        return record_to_send(_content_of(found.path), held) is None

    # Files.

    def _directories(self) -> Iterator[list[Found]]:
        """Yield the files of each directory in the order of their names.

        Each is looked at after all of them were found: what was written to one before the next
        appeared is seen.
        """
        pending = [""]
        while pending:
            directory = pending.pop()
            names: list[str] = []
            with contextlib.suppress(OSError), os.scandir(self._files / directory) as entries:
                for entry in entries:
                    name = f"{directory}/{entry.name}" if directory else entry.name
                    if entry.name.startswith(_NOT_SENT):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(name)
                    else:
                        names.append(name)
            yield [one for name in sorted(names) if (one := self._find(name))]

    def _find(self, name: str) -> Found | None:
        """Look at a regular file; a link counts if what it leads to is in the spool too."""
        path = self._files / name
        try:
            if path.is_symlink():
                path = path.resolve(strict=True)
                if not path.is_relative_to(self._files.resolve()):
                    return None
            status = path.stat(follow_symlinks=False)
        except (OSError, RuntimeError):
            return None
        return Found(name, path, status) if stat.S_ISREG(status.st_mode) else None

    def _left_of(self, found: Found) -> int:
        name, size = found.name, found.status.st_size
        if name in self._refused:
            return 0
        if cutter_of(name) is None:
            return 0 if self._ledger.whole.get(name) == found.version else max(size, 1)
        entry = self._ledger.growing.get(name)
        return max(0, size - entry.sent) if entry else size

    def _send_directory(self, files: list[Found], result: Round, *, last: bool) -> None:
        blocked = False
        for found in files:
            cutter = cutter_of(found.name)
            with self._noting(found, result) as failed:
                if cutter is None:
                    self._send_whole(found, result, last=last)
                elif not blocked:
                    self._send_growing(found, cutter, result, last=last)
            blocked |= cutter is not None and bool(failed)

    @contextlib.contextmanager
    def _noting(self, found: Found, result: Round) -> Iterator[list[StorageError]]:
        """Note what is wrong with a file, and go on with others unless they would fail too."""
        failed: list[StorageError] = []
        try:
            yield failed
        except BadUri as error:
            self._refused[found.name] = f"{str(found.path)!a}: {error.problem}. Rename the file."
        except Unreadable as error:
            self._refused[found.name] = str(error)
        except _EVERYTHING_FAILS:
            raise
        except StorageError as error:
            failed.append(error)
            result.problem = result.problem or error

    # Growing files.

    def _send_growing(self, found: Found, cutter: Cutter, result: Round, *, last: bool) -> None:
        if not found.status.st_size:
            return
        if not last and self._looked_at.get(found.name) == found.version:
            return
        with _readable(found.path) as file:
            entry = self._entry(found, file)
            size = found.status.st_size
            while (end := self._next_end(file, entry, cutter, size, last=last)) is not None:
                full = end.full or is_full(end.at - entry.start, entry.start, entry.resent)
                if end.at > entry.sent:
                    self._send_segment(found.name, file, entry, end.at, result, sealed=full)
                else:
                    entry.seal()
                    self._ledger.save()
                if not full:
                    break
        self._looked_at[found.name] = found.version

    def _next_end(
        self, file: int, entry: Growing, cutter: Cutter, size: int, *, last: bool
    ) -> _End | None:
        """Decide where the last segment ends now; None if there is nothing new to send."""
        available = size - entry.sent
        if available <= 0:
            return None
        first = entry.sent == entry.start
        room = max(0, LARGEST - (entry.head if entry.cuts else 0) - (entry.sent - entry.start))
        cut = cutter(_pread(file, room + HEADER, entry.sent), available, room, first)
        if last and not cut.full:
            length = min(available, max(room, cut.length))
            cut = cut._replace(length=length, full=available > length)
        if not cut.length and not cut.full:
            return None
        return _End(entry.sent + cut.length, cut.full)

    def _entry(self, found: Found, file: int) -> Growing:
        """Return the entry of a file, begun or put right where that is needed."""
        name, status = found.name, found.status
        entry = self._ledger.growing.get(name)
        if name in self._known or entry is None:
            entry = self._first_look(found, file, entry)
        if entry.inode and (
            entry.inode != status.st_ino
            or status.st_size < entry.sent
            or _tail(file, entry.sent) != entry.tail
        ):
            entry = Growing(entry.generation + 1)
        if not entry.inode:
            entry.inode, entry.tail = status.st_ino, _tail(file, entry.sent)
        if not entry.head and not entry.cuts:
            entry.head = len(head_of(_pread(file, _HEAD, 0)))
        if self._ledger.growing.get(name) is not entry:
            self._ledger.growing[name] = entry
            # Before anything is sent: who finds a file that no entry speaks of leaves it alone.
            self._ledger.save()
        return entry

    def _first_look(self, found: Found, file: int, entry: Growing | None) -> Growing:
        """Compare an entry with the bucket, once per process and file."""
        if self._listed is None:
            listed = self._list()
            self._listed, self._may_list = listed or {}, listed is not None
        self._known.discard(found.name)
        if entry is not None or self._ledger.lost:
            head = len(head_of(_pread(file, _HEAD, 0)))
            size = found.status.st_size
            right = reconcile(found.name, entry, size, head, self._listed)
            if right is not None:
                return right
        if entry is not None:
            return entry
        stored = stored_segments(found.name, self._listed)
        return Growing(stored.generation + 1 if stored else 0)

    def _send_segment(
        self, name: str, file: int, entry: Growing, end: int, result: Round, *, sealed: bool
    ) -> None:
        content = self._content(file, entry, len(entry.cuts), end)
        if entry.sent or self._may_list:
            self._storage.write(segment_name(name, entry.generation, len(entry.cuts)), content)
        else:
            self._send_unlisted(name, entry, content)
        news = end - entry.sent
        entry.arrived(end, sealed=sealed)
        entry.tail = _tail(file, end)
        self._ledger.save()
        result.sent += news
        self._progress(news)

    def _send_unlisted(self, name: str, entry: Growing, content: bytes) -> None:
        """Send a file's first segment where only trying tells whether its name is taken."""
        while True:
            segment = segment_name(name, entry.generation, 0)
            try:
                return self._storage.create_new(segment, content)
            except AlreadyExists:
                held = self._held(segment)
                if held and content.startswith(held):  # ours: the answer was lost, or we were
                    return self._storage.write(segment, content)
                entry.generation += 1

    def _send_again(self, name: str, entry: Growing, number: int) -> bool:
        """Send a segment once more, unless its file is gone."""
        end = entry.cuts[number] if number < len(entry.cuts) else entry.sent
        found = self._find(name)
        if found is None:
            return False
        with _readable(found.path) as file:
            content = self._content(file, entry, number, end)
        self._storage.write(segment_name(name, entry.generation, number), content)
        return True

    @staticmethod
    def _content(file: int, entry: Growing, number: int, end: int) -> bytes:
        start = entry.cuts[number - 1] if number else 0
        head = _pread(file, entry.head, 0) if number else b""
        return head + _pread(file, end - start, start)

    def _list(self) -> dict[str, int] | None:
        """List the target; None where we may write but not look."""
        try:
            return {entry.name: entry.size for entry in self._storage.list()}
        except PermissionDenied:
            return None
        except NoSuchBucket:
            raise
        except NotFound:
            return {}

    # Whole files.

    def _send_whole(self, found: Found, result: Round, *, last: bool) -> None:
        name, version, size = found.name, found.version, found.status.st_size
        if self._ledger.whole.get(name) == version:
            return
        at_rest = self._looked_at.get(name) == version or _is_record(name)
        self._looked_at[name] = version
        rested = time.monotonic() - self._sent_at.get(name, float("-inf"))
        if not last and (not at_rest or rested < size / _WHOLE_BYTES_PER_SECOND):
            return
        if size > LARGEST:
            if self._large is None:
                upload = self._aside.submit(self._storage.upload, name, found.path)
                self._large = (found, upload)
            return
        if _is_record(name):
            self._send_record(found)
        else:
            self._storage.upload(name, found.path)
        self._arrived_whole(found)
        result.sent += size

    def _send_record(self, found: Found) -> None:
        record = record_to_send(_content_of(found.path), self._held(found.name))
        if record is not None:
            self._storage.write(found.name, record)

    def _held(self, name: str) -> bytes | None:
        """Return what the target holds under a name; None where that is nothing, or hidden."""
        try:
            return self._storage.read(name)
        except NoSuchBucket:
            raise
        except (NotFound, PermissionDenied):
            return None

    def _settle_large(self, result: Round) -> None:
        """Note what came of the large file that was sent aside."""
        if self._large is None or not self._large[1].done():
            return
        (found, upload), self._large = self._large, None
        with self._noting(found, result):
            upload.result()
            self._arrived_whole(found)
            result.sent += found.status.st_size

    def _arrived_whole(self, found: Found) -> None:
        self._sent_at[found.name] = time.monotonic()
        self._ledger.note_whole(found.name, found.version)
        self._progress(found.status.st_size)


class _End(NamedTuple):
    """Where a segment ends in its file, and whether it is complete."""

    at: int
    full: bool


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[int]:
    try:
        # A link may have taken the file's place since we looked.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_record(name: str) -> bool:
    return name.rpartition("/")[2] == MANIFEST


def _content_of(path: Path) -> bytes:
    with _readable(path) as file:
        return _pread(file, os.fstat(file).st_size, 0)


def _pread(file: int, size: int, start: int) -> bytes:
    chunks = []
    while size > 0 and (chunk := os.pread(file, size, start)):
        chunks.append(chunk)
        start += len(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _tail(file: int, end: int) -> int:
    """Return a checksum of the bytes before an offset."""
    start = max(0, end - _TAIL)
    return zlib.crc32(_pread(file, end - start, start))
