"""Uploads the files of a spool to its target, in rounds.

A round checks every file once. Growing files are sent in segments (see `segments`), and those of a
directory in the order of their names, each only when the one before has arrived: TensorBoard never
returns to a file after it has seen the next. Other files are sent when they have stopped changing.
`shipper` decides when a round takes place.

A request may take effect long after it timed out here, or twice. So a name is written with one
content, or replaced on the condition that it still has the version that was sent before.
"""

from __future__ import annotations

import contextlib
import heapq
import mmap
import os
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from aboard.events.records import HEADER
from aboard.runs.manifest import FILE_NAME as MANIFEST
from aboard.runs.manifest import Attempt, BadManifest, Manifest, State, ended_name
from aboard.storage import (
    AlreadyExists,
    BadUri,
    Changed,
    NoCredentials,
    NoSuchBucket,
    NoSuchPath,
    PermissionDenied,
    Storage,
    StorageError,
    StorageFull,
    Unreachable,
    Unreadable,
    Unsupported,
)
from aboard.storage.base import is_refusal, unreadable
from aboard.storage.local import TEMPORARY
from aboard.track.shipping.segments import (
    MAX_SIZE,
    Cutter,
    GrowingFile,
    Ledger,
    SentRecord,
    cutter_of,
    head_of,
    is_full,
    pause_before,
    reconcile,
    segment_name,
    stored_segments,
)

LARGE = MAX_SIZE  # bytes; a larger file is sent in the background
_ONE_REQUEST = 256 << 20  # of a slow network, within the timeout of a request
_TAIL = 64
_HEAD = 4096
_WHOLE_BYTES_PER_SECOND = 1 << 20  # on average, for a file that keeps changing
_SKIPPED = (TEMPORARY, ".nfs")  # NFS's names of open files that were deleted
_MAX_CONFLICTS = 10
_EVERYTHING_FAILS = (Unreachable, NoCredentials, NoSuchBucket, StorageFull)


Content = bytes | memoryview


class SpooledFile(NamedTuple):
    name: str
    path: Path  # with links resolved
    status: os.stat_result

    @property
    def version(self) -> str:
        return f"{self.status.st_size}.{self.status.st_mtime_ns:x}.{self.status.st_ino:x}"


@dataclass(slots=True)
class Round:
    left: int = 0  # bytes that have not arrived
    problem: StorageError | None = None  # the first one
    refused: str = ""  # why a file can never arrive, if any
    sent: int = 0
    busy: bool = False  # a large file is being sent

    @property
    def complete(self) -> bool:
        return not self.left and self.problem is None


Progress = Callable[[int], None]


class Uploader:
    def __init__(
        self, files: Path, ledger: Ledger, storage: Storage, *, progress: Progress | None = None
    ) -> None:
        self._files = files
        self._ledger = ledger
        self._storage = storage
        self._progress = progress or (lambda _: None)
        self._listed: dict[str, int] | None = None
        self._unchecked = set(ledger.growing)
        # The version at which a growing file had nothing to send, or another file was seen.
        self._checked: dict[str, str] = {}
        self._sent_at: dict[str, float] = {}
        self._refused: dict[str, str] = {}
        # Whether the target honours conditions; None until tried.
        self._has_conditions: bool | None = None
        self._creates = True  # the target can create a file conditionally
        self._versions: dict[str, str] = {}  # of objects in the target
        self._records: dict[str, bytes] = {}  # of runs, at the versions above
        self._background = ThreadPoolExecutor(1)  # so that curves do not wait for a checkpoint
        self._large: tuple[SpooledFile, Future[None]] | None = None

    def round(self, *, last: bool) -> Round:
        """Send new data; in the `last` round also incomplete records and changing files."""
        result = Round()
        self._refused.clear()
        try:
            self._settle_large(result)
            for files in self._directories():
                self._send_directory(files, result, last=last)
        except _EVERYTHING_FAILS as error:
            result.problem = error
        result.left = self.left()
        if not self._ledger.saved:
            self._ledger.save()
        result.refused = next(iter(self._refused.values()), "")
        result.busy = self._large is not None
        return result

    def left(self) -> int:
        return sum(self._left_of(one) for files in self._directories() for one in files)

    def verify(self) -> bool:
        """Compare with the bucket; return False if something has to be sent again."""
        listed = self._list()
        if listed is None:
            return True
        right = True
        for name, entry in self._ledger.growing.items():
            for number, (segment, size) in enumerate(entry.sizes(name).items()):
                if listed.get(segment) != size and self._send_again(name, entry, number):
                    right = False
        for name, version in list(self._ledger.whole.items()):
            if not self._is_stored(name, version, listed.get(name)):
                right = False
                self._versions.pop(name, None)
                self._ledger.set_whole(name, None)
        return right

    def _is_stored(self, name: str, version: str, size: int | None) -> bool:
        if size is None or not _is_record(name):
            return version.partition(".")[0] == str(size)
        found, stored = self._find(name), self._read_stored(name)
        if found is None or stored is None:
            return True  # nothing to send again, or no permission to read
        sent = self._ledger.records.get(name)
        return record_to_send(_content_of(found.path), stored, sent) is None

    def _directories(self) -> Iterator[list[SpooledFile]]:
        """Yield the files of each directory in the order of their names.

        Sizes are read after all names are listed, so that data written to one file before the
        next appeared is included.
        """
        pending = [""]
        while pending:
            directory = pending.pop()
            names: list[str] = []
            with contextlib.suppress(OSError), os.scandir(self._files / directory) as entries:
                for entry in entries:
                    name = f"{directory}/{entry.name}" if directory else entry.name
                    if entry.name.startswith(_SKIPPED):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(name)
                    else:
                        names.append(name)
            yield [one for name in sorted(names) if (one := self._find(name))]

    def _find(self, name: str) -> SpooledFile | None:
        """Return a regular file; a link counts if it leads to a file in the spool."""
        path = self._files / name
        try:
            if path.is_symlink():
                path = path.resolve(strict=True)
                if not path.is_relative_to(self._files.resolve()):
                    return None
            status = path.stat(follow_symlinks=False)
        except (OSError, RuntimeError):
            return None
        return SpooledFile(name, path, status) if stat.S_ISREG(status.st_mode) else None

    def _left_of(self, found: SpooledFile) -> int:
        name, size = found.name, found.status.st_size
        if name in self._refused:
            return 0
        if cutter_of(name) is None:
            return 0 if self._ledger.whole.get(name) == found.version else max(size, 1)
        entry = self._ledger.growing.get(name)
        return max(0, size - entry.sent) if entry else size

    def _send_directory(self, files: list[SpooledFile], result: Round, *, last: bool) -> None:
        blocked = False
        for found in files:
            cutter = cutter_of(found.name)
            with self._collect_errors(found, result) as failed:
                if cutter is None:
                    self._send_whole(found, result, last=last)
                elif not blocked:
                    blocked = not self._send_growing(found, cutter, result, last=last)
            blocked |= cutter is not None and bool(failed)

    @contextlib.contextmanager
    def _collect_errors(self, found: SpooledFile, result: Round) -> Iterator[list[StorageError]]:
        """Record an error of one file and continue, unless the others would fail too."""
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

    def _send_growing(
        self, found: SpooledFile, cutter: Cutter, result: Round, *, last: bool
    ) -> bool:
        """Send new data of a file; return whether the next file may follow."""
        unchanged = self._checked.get(found.name) == found.version
        if not found.status.st_size or (unchanged and not last):
            return True
        with _readable(found.path) as file:
            entry = self._entry(found, file)
            size = found.status.st_size
            if not last and self._pauses(found.name, entry, size):
                return False
            while (segment := self._next_end(file, entry, cutter, size, last=last)) is not None:
                end, full = segment
                full = full or is_full(end - entry.start, entry.start, entry.resent)
                if end == entry.sent or not self._may_grow(found.name, file, entry):
                    entry.seal()
                    self._ledger.save()
                else:
                    self._send_segment(found, file, entry, end, result, sealed=full)
                    if entry.sent == end and not full:
                        break
        self._checked[found.name] = found.version
        return True

    def _pauses(self, name: str, entry: GrowingFile, size: int) -> bool:
        """Return whether to wait, so that a slowly growing file has few segments."""
        if self._has_conditions is not False or entry.sent == entry.start == 0:
            return False
        if is_full(size - entry.sent, entry.sent, 0):
            return False
        waited = time.monotonic() - self._sent_at.get(name, float("-inf"))
        return waited < pause_before(len(entry.cuts))

    def _may_grow(self, name: str, file: int, entry: GrowingFile) -> bool:
        """Return whether the last segment may be replaced by a longer one."""
        if entry.sent == entry.start:
            return True
        if self._has_conditions is not None:
            return self._has_conditions
        segment = segment_name(name, entry.generation, len(entry.cuts))
        content = _segment_content(file, entry, len(entry.cuts), entry.sent)
        return self._checks_conditions(segment, content)

    def _next_end(
        self, file: int, entry: GrowingFile, cutter: Cutter, size: int, *, last: bool
    ) -> tuple[int, bool] | None:
        """Return the new end of the last segment, and whether it is complete then."""
        if entry.sent < entry.pending <= size and not self._has_conditions:
            return entry.pending, False  # this content may already have the name
        available = size - entry.sent
        if available <= 0:
            return None
        first = entry.sent == entry.start
        room = max(0, MAX_SIZE - (entry.head if entry.cuts else 0) - (entry.sent - entry.start))
        cut = cutter(_pread(file, room + HEADER, entry.sent), available, room, first)
        if last and not cut.full:
            length = min(available, max(room, cut.length))
            cut = cut._replace(length=length, full=available > length)
        if not cut.length and not cut.full:
            return None
        return entry.sent + cut.length, cut.full

    def _entry(self, found: SpooledFile, file: int) -> GrowingFile:
        name, status = found.name, found.status
        entry = self._ledger.growing.get(name)
        if name in self._unchecked or entry is None:
            entry = self._compare_with_bucket(found, file, entry)
        if entry.inode and (
            entry.inode != status.st_ino
            or status.st_size < entry.sent
            or _tail(file, entry.sent) != entry.tail
        ):
            entry = GrowingFile(entry.generation + 1)
        if not entry.inode:
            entry.inode, entry.tail = status.st_ino, _tail(file, entry.sent)
        if not entry.head and not entry.cuts:
            entry.head = len(head_of(_pread(file, _HEAD, 0)))
        if self._ledger.growing.get(name) is not entry:
            self._ledger.growing[name] = entry
            # Before anything is sent: an object without an entry belongs to another writer.
            self._ledger.save()
        return entry

    def _compare_with_bucket(
        self, found: SpooledFile, file: int, entry: GrowingFile | None
    ) -> GrowingFile:
        """Return a file's entry, corrected by the bucket; once per process and file."""
        if self._listed is None:
            listed = self._list()
            self._listed = listed or {}
        self._unchecked.discard(found.name)
        if entry is not None or self._ledger.lost:
            head = len(head_of(_pread(file, _HEAD, 0)))
            right = reconcile(found.name, entry, found.status.st_size, head, self._listed)
            if right is not None:
                return right
        if entry is not None:
            return entry
        stored = stored_segments(found.name, self._listed)
        return GrowingFile(stored[0] + 1 if stored else 0)

    def _send_segment(
        self,
        found: SpooledFile,
        file: int,
        entry: GrowingFile,
        end: int,
        result: Round,
        *,
        sealed: bool,
    ) -> None:
        """Send the last segment, or replace it by a longer one."""
        if entry.sent > entry.start:
            content = _segment_content(file, entry, len(entry.cuts), end)
            self._replace(segment_name(found.name, entry.generation, len(entry.cuts)), content)
        else:
            end = self._create_segment(found, file, entry, end)
        added = end - entry.sent
        entry.advance(end, sealed=sealed or self._has_conditions is False)
        entry.tail = _tail(file, end)
        self._ledger.save()
        self._sent_at[found.name] = time.monotonic()
        result.sent += added
        self._progress(added)

    def _create_segment(self, found: SpooledFile, file: int, entry: GrowingFile, end: int) -> int:
        """Send a segment under a free name; return the end of the stored one."""
        repeated, number = entry.pending == end, len(entry.cuts)
        if not repeated:
            entry.pending = end
            self._ledger.save()
        content = _segment_content(file, entry, number, end)
        while True:
            segment = segment_name(found.name, entry.generation, number)
            try:
                self._create(segment, content)
            except AlreadyExists:
                stored = self._read_stored(segment)
            else:
                return end
            if stored is None and (repeated or number):
                return end  # an earlier request took effect; no permission to read it
            if stored:
                there = end + len(stored) - len(content)
                same = entry.start < there <= found.status.st_size
                if same and stored == _segment_content(file, entry, number, there):
                    return there
            if number:
                self._ledger.growing[found.name] = GrowingFile(entry.generation + 1)
                place = f"{self._storage.uri}/{segment}"
                hint = "The file is sent under another name."
                raise StorageError(place, "another process has written this object", hint)
            entry.generation += 1
            self._ledger.save()  # else the next process would use the earlier name again

    def _send_again(self, name: str, entry: GrowingFile, number: int) -> bool:
        end = entry.cuts[number] if number < len(entry.cuts) else entry.sent
        found = self._find(name)
        if found is None:
            return False
        with _readable(found.path) as file:
            content = _segment_content(file, entry, number, end)
        self._replace(segment_name(name, entry.generation, number), content)
        return True

    # Objects, and conditional writes.

    def _create(self, name: str, content: Content) -> None:
        if self._creates:
            try:
                self._storage.create_new(name, content)
            except StorageError as error:
                if self._has_conditions or not is_refusal(error):
                    raise
            else:
                return
        self._storage.write(name, content)
        self._creates = self._has_conditions = False

    def _replace(self, name: str, content: Content, *, new: bool = False) -> None:
        """Replace the content of an object, so that no earlier request can change it again."""
        if new:  # probably
            with contextlib.suppress(AlreadyExists):
                self._create(name, content)
                return
        for _ in range(_MAX_CONFLICTS):
            if self._write_version(name, content) or self._holds(name, content):
                return
        raise self._contested(name)

    def _checks_conditions(self, name: str, content: bytes) -> bool:
        """Return whether the target honours conditions; try it on an object with this content."""
        if self._has_conditions is None:
            # Without permission to read versions, there are no conditions.
            may_ask = bool(self._version_of(name))
            self._has_conditions = may_ask and self._storage.has_conditions(name, content)
        return self._has_conditions

    def _contested(self, name: str) -> StorageError:
        problem = "another process keeps replacing this object"
        return StorageError(f"{self._storage.uri}/{name}", problem, "Let only one write it.")

    def _write_version(self, name: str, content: Content) -> bool:
        """Write an object if it has the known version; return whether it had."""
        version = self._version_of(name)
        try:
            if version is None:
                self._create(name, content)
            elif version:
                self._versions[name] = self._storage.replace(name, content, version)
            else:
                self._storage.write(name, content)
        except (Changed, AlreadyExists):
            self._versions.pop(name, None)
            return False
        except StorageError as error:
            if self._has_conditions or not is_refusal(error):
                raise
            self._storage.write(name, content)
            self._has_conditions = False
        return True

    def _version_of(self, name: str) -> str | None:
        """Return the version of an object; None if it is missing, "" without conditions."""
        if self._has_conditions is False:
            return ""
        if name not in self._versions:
            try:
                self._versions[name] = self._storage.version(name)
            except NoSuchBucket:
                raise
            except NoSuchPath:
                return None
            except (Unsupported, PermissionDenied):
                if self._has_conditions:
                    raise
                return ""
        return self._versions[name]

    def _list(self) -> dict[str, int] | None:
        """List the target; None without permission."""
        try:
            return {entry.name: entry.size for entry in self._storage.list()}
        except PermissionDenied:
            return None
        except NoSuchBucket:
            raise
        except NoSuchPath:
            return {}

    def _read_stored(self, name: str) -> bytes | None:
        """Return an object of the target; None if it is missing or not readable."""
        try:
            return self._storage.read(name)
        except NoSuchBucket:
            raise
        except (NoSuchPath, PermissionDenied):
            return None

    def _holds(self, name: str, content: Content) -> bool:
        """Return whether an object of the target has this content, reading it in parts."""
        held = 0
        try:
            for part in self._storage.stream(name, 0, len(content) + 1):
                if content[held : held + len(part)] != part:
                    return False
                held += len(part)
        except NoSuchBucket:
            raise
        except (NoSuchPath, PermissionDenied):
            return False
        return held == len(content)

    def _send_whole(self, found: SpooledFile, result: Round, *, last: bool) -> None:
        name, version, size = found.name, found.version, found.status.st_size
        if self._ledger.whole.get(name) == version:
            return
        at_rest = self._checked.get(name) == version or _is_record(name)
        self._checked[name] = version
        rested = time.monotonic() - self._sent_at.get(name, float("-inf"))
        if not last and (not at_rest or rested < size / _WHOLE_BYTES_PER_SECOND):
            return
        if size > LARGE:
            if self._large is None:
                upload = self._background.submit(self._send_large, found)
                self._large = (found, upload)
            return
        if _is_record(name):
            self._send_record(name, _content_of(found.path))
        else:
            self._replace(name, _content_of(found.path), new=name not in self._ledger.whole)
        self._note_whole(found, result)

    def _send_large(self, found: SpooledFile) -> None:
        """Send a file in one conditional request; a larger one in parts, unconditionally."""
        content = None
        if self._has_conditions is not False and found.status.st_size <= _ONE_REQUEST:
            content = _copy_of(found.path)
        if content is None:  # no condition applies to parts
            self._storage.upload(found.name, found.path)
        else:
            self._replace(found.name, content, new=found.name not in self._ledger.whole)

    def _send_record(self, name: str, ours: bytes) -> None:
        for _ in range(_MAX_CONFLICTS):
            stored = self._records.pop(name, None)
            if stored is None or not self._versions.get(name):
                self._versions.pop(name, None)
                self._version_of(name)  # before the content, which may change in between
                stored = self._read_stored(name)
            record = record_to_send(ours, stored, self._ledger.records.get(name))
            if record is None or self._write_version(name, record):
                with contextlib.suppress(BadManifest):
                    self._ledger.set_record(name, _sent(Manifest.from_json(ours)))
                if held := record or stored:
                    self._records[name] = held
                    self._keep_end(name, held)
                return
        raise self._contested(name)

    def _keep_end(self, name: str, content: bytes) -> None:
        """Copy the record of an ended run, if a delayed request could replace it."""
        try:
            record = Manifest.from_json(content)
        except BadManifest:
            return
        if record.state is State.RUNNING or self._checks_conditions(name, content):
            return
        with contextlib.suppress(AlreadyExists):
            self._create(f"{name.removesuffix(MANIFEST)}{ended_name(record)}", content)

    def _settle_large(self, result: Round) -> None:
        if self._large is None or not self._large[1].done():
            return
        (found, upload), self._large = self._large, None
        with self._collect_errors(found, result):
            upload.result()
            self._note_whole(found, result)

    def _note_whole(self, found: SpooledFile, result: Round) -> None:
        self._sent_at[found.name] = time.monotonic()
        self._ledger.set_whole(found.name, found.version)
        result.sent += found.status.st_size
        self._progress(found.status.st_size)


def _segment_content(file: int, entry: GrowingFile, number: int, end: int) -> bytes:
    start = entry.cuts[number - 1] if number else 0
    head = _pread(file, entry.head, 0) if number else b""
    return head + _pread(file, end - start, start)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[int]:
    try:
        # A link may have replaced the file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _copy_of(path: Path) -> memoryview | None:
    """Map a copy of a file, which cannot change or shrink; None without disk space for it."""
    with (
        _readable(path) as file,
        contextlib.suppress(OSError, ValueError),  # raised for an empty file
        tempfile.TemporaryFile(prefix=TEMPORARY, dir=path.parent) as copy,
    ):
        shutil.copyfileobj(os.fdopen(file, "rb", closefd=False), copy, MAX_SIZE)
        copy.flush()
        return memoryview(mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ))
    return None


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
    start = max(0, end - _TAIL)
    return zlib.crc32(_pread(file, end - start, start))


# The record of a run, `run.json`. Several attempts may write it without knowing of each other: a
# machine that restarts sends the files of an earlier attempt, when the run may have continued and
# ended elsewhere; an attempt that began while the bucket was unreachable knows no earlier ones.

_MERGED = ("hparams", "metrics")
_EDITED = ("tags", "note")  # by users, in the target
_OF_THE_RUN = ("name", "experiment", "created", "started", "attempts", "schema", "others")
_OF_LAST_ATTEMPT = {one.name for one in fields(Manifest)}.difference(_MERGED, _EDITED, _OF_THE_RUN)
_ABSENT = object()


def record_to_send(
    ours: bytes, theirs: bytes | None, sent: SentRecord | None = None
) -> bytes | None:
    """Return the new record of the target, or None if it does not change.

    Users edit the tags and the note of the target's record. Their changes since ours was `sent`
    are preserved. If `sent` is unknown, no tag is removed.

    If later attempts followed, only the end of an attempt is added, and only after the last of them
    has ended: until then its next heartbeat would overwrite it. Attempts that do not know of each
    other are ordered by their start.
    """
    if theirs is None:
        return ours
    try:
        old, new = Manifest.from_json(ours), Manifest.from_json(theirs)
    except BadManifest:
        return None if ours == theirs else ours
    if sent is None or new.heartbeat < sent.heartbeat:  # a delayed request replaced it
        sent = SentRecord()
    if not all(map(_is_same, old.attempts, new.attempts)):
        merged = _merge(old, new, sent).to_json()
        return None if merged == theirs else merged
    if len(new.attempts) <= len(old.attempts):
        edits = _merge_edits(old, new, sent)
        if edits != (old.tags, old.note):
            old.tags, old.note = edits
            ours = old.to_json()
        return None if ours == theirs else ours
    if not old.attempts or new.state is State.RUNNING:
        return None
    known = new.attempts[len(old.attempts) - 1]
    return new.to_json() if _copy_end(old.attempts[-1], known) else None


def _sent(record: Manifest) -> SentRecord:
    return SentRecord(record.tags, record.note, record.heartbeat)


def _merge_edits(
    ours: Manifest, theirs: Manifest, sent: SentRecord, *, is_last: bool = True
) -> tuple[dict[str, Any], str]:
    """Return the tags and the note with the changes of both sides.

    If both changed a tag, a value takes precedence over its removal, and ours over theirs if our
    attempt is the last. If both changed the note, theirs wins: a user wrote it.
    """
    tags = {}
    for name in {**theirs.tags, **ours.tags}:
        before, mine, yours = (one.tags.get(name, _ABSENT) for one in (sent, ours, theirs))
        value = mine if is_last else yours
        if mine == before or (mine is _ABSENT and yours != before):
            value = yours
        elif yours == before or yours is _ABSENT:
            value = mine
        if value is not _ABSENT:
            tags[name] = value
    if ours.note == sent.note:
        return tags, theirs.note
    return tags, ours.note if theirs.note == sent.note else theirs.note or ours.note


def _is_same(one: Attempt, other: Attempt) -> bool:
    return (one.host, one.pid, one.started) == (other.host, other.pid, other.started)


def _copy_end(ours: Attempt, theirs: Attempt) -> bool:
    """Copy the end of an attempt; return whether that changed anything."""
    if ours.state is State.RUNNING:
        return False
    end = ours.state, ours.ended, ours.exit_code, ours.reason
    changed = end != (theirs.state, theirs.ended, theirs.exit_code, theirs.reason)
    theirs.state, theirs.ended, theirs.exit_code, theirs.reason = end
    return changed


def _merge(ours: Manifest, theirs: Manifest, sent: SentRecord) -> Manifest:
    """Add our attempts to their record; the record with the last attempt has precedence."""
    last = ours.attempts[-1]
    others = [a for a in theirs.attempts if not any(_is_same(a, b) for b in ours.attempts)]
    # Each record has its attempts in order, whatever the clocks of their hosts.
    attempts = list(heapq.merge(others, ours.attempts, key=lambda one: one.started))
    for before, after in pairwise(attempts):
        if before.state is State.RUNNING:
            before.state, before.ended = State.KILLED, after.started
            before.reason = "another attempt began"
    for number, attempt in enumerate(attempts, 1):
        attempt.number = number
    is_last = attempts[-1] is last
    for name in _MERGED:
        mine, yours = getattr(ours, name), getattr(theirs, name)
        setattr(theirs, name, {**yours, **mine} if is_last else {**mine, **yours})
    if is_last:
        for name in _OF_LAST_ATTEMPT:
            setattr(theirs, name, getattr(ours, name))
    theirs.tags, theirs.note = _merge_edits(ours, theirs, sent, is_last=is_last)
    theirs.created = min(filter(None, (ours.created, theirs.created)), default=0.0)
    theirs.started, theirs.attempts = attempts[0].started, attempts
    return theirs
