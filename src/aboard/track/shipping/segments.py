"""The segments of a growing file, and the ledger of what has arrived.

Objects in a bucket cannot be appended to, so a growing file is sent as segments, cut between
records or lines. All but the last are sealed and never change. The last is replaced as it grows, on
the condition that it still has the version that was sent before: a delayed request then has no
effect. In a bucket without such conditions, each segment is sealed when it is sent, and its name
identifies its content.

The ledger lets another process continue after a crash. An entry has the end of a segment before it
is sent, and `reconcile` corrects an entry that is behind or lost. `upload` reads and
sends the files.
"""

from __future__ import annotations

import contextlib
import json
import re
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from aboard.events.files import EVENT_FILE
from aboard.events.records import HEADER, MAX_LENGTH, OVERHEAD, crc32c, mask, unframe
from aboard.storage.local import TEMPORARY

MAX_SIZE = 8 << 20  # unless a single record is larger
MIN_SIZE = 64 << 10  # the last segment is sent again until it has this many bytes
OUTPUT_LOG = "output.log"
_GROWTH = 8
_LARGE = 1 << 20
_MAX_RESENT, _MAX_RESENT_LARGE = 4, 1
_MAX_HEAD = 4096
_PAUSE, _MAX_PAUSE = 0.5, 60.0
_SEGMENT = re.compile(r"(?P<generation>\.v(\d{6,}))?(?P<number>\.s(\d{6,}))?")
_SAVE_SECS = 1.0  # for complete files: sending one again does no harm


class Cut(NamedTuple):
    length: int
    full: bool  # the next unit is complete and belongs to the next segment


# Takes bytes that begin between two units, the number of bytes that follow in the file (which may
# be more), the room left in the segment, and whether the segment is empty so far.
Cutter = Callable[[bytes, int, int, bool], Cut]


def cutter_of(name: str) -> Cutter | None:
    base = name.rpartition("/")[2]
    if EVENT_FILE in base:
        return after_record
    return after_line if base == OUTPUT_LOG else None


def segment_name(name: str, generation: int, number: int) -> str:
    """Return the name of a segment: names sort in order, the first is that of the file."""
    of_generation = f".v{generation:06}" if generation else ""
    return f"{name}{of_generation}{f'.s{number:06}' if number else ''}"


def stored_segments(name: str, listed: Mapping[str, int]) -> tuple[int, list[int]] | None:
    """Return a file's latest generation, and its segments' sizes, from a listing."""
    generations: dict[int, dict[int, int]] = {}
    for one, size in listed.items():
        match = _SEGMENT.fullmatch(one, len(name)) if one.startswith(name) else None
        if match:
            generations.setdefault(int(match[2] or 0), {})[int(match[4] or 0)] = size
    if not generations:
        return None
    latest = max(generations)
    sizes: list[int] = []
    while len(sizes) in generations[latest]:
        sizes.append(generations[latest][len(sizes)])
    return latest, sizes


def segment_ends(sizes: Iterable[int], head: int) -> list[int]:
    """Return the ends of segments of these sizes; all but the first repeat the head."""
    ends: list[int] = []
    for size in sizes:
        ends.append(ends[-1] + size - head if ends else size)
    return ends


def is_full(size: int, sealed: int, resent: int) -> bool:
    """Return whether a segment is large enough to be sealed.

    The more bytes are `sealed` before it, the larger it may become, so that the number of segments
    grows with the logarithm of the file's size. A file that grows slowly is cut sooner, so that the
    `resent` bytes stay a small multiple of its size, a smaller one if the segment is large.
    """
    if size < MIN_SIZE:
        return False
    most = _MAX_RESENT_LARGE if size >= _LARGE else _MAX_RESENT
    return size >= min(sealed // _GROWTH, MAX_SIZE) or resent >= most * size


def pause_before(segments: int) -> float:
    """Return the seconds to wait before the next segment, without conditional writes."""
    return min(_PAUSE * segments, _MAX_PAUSE)


def head_of(block: bytes) -> bytes:
    """Return the record with the file's version, if the file begins with one."""
    length = _length_at(block, 0)
    if length is None or OVERHEAD + length > min(len(block), _MAX_HEAD):
        return b""
    record = block[: OVERHEAD + length]
    try:
        return record if b"brain.Event:" in unframe(record) else b""
    except ValueError:
        return b""


def after_record(block: bytes, available: int, room: int, first: bool) -> Cut:
    end = 0
    while (unit := _next_unit(block, end, available)) is not None:
        if end + unit > room:
            return Cut(unit, True) if first and not end else Cut(end, True)
        end += unit
    return Cut(end, False)


def _next_unit(block: bytes, start: int, available: int) -> int | None:
    """Return the length of the next complete record, including damage before it."""
    if start + HEADER > len(block):
        return None
    length = _length_at(block, start)
    if length is not None:
        total = OVERHEAD + length
        return total if start + total <= available else None
    found = _end_of_next_record(block, start + 1, available)
    if found is not None:
        return found - start
    unreadable = MAX_SIZE - _MAX_HEAD
    return unreadable if available - start >= unreadable else None


def _length_at(block: bytes, start: int) -> int | None:
    if start + HEADER > len(block):
        return None
    length, checksum = struct.unpack_from("<QI", block, start)
    if length > MAX_LENGTH or mask(crc32c(block[start : start + 8])) != checksum:
        return None
    return int(length)


def _end_of_next_record(block: bytes, start: int, available: int) -> int | None:
    # Lengths are below 2**32, so the second half of each is zero.
    place = block.find(bytes(4), start + 4)
    while place >= 0:
        begin = place - 4
        length = _length_at(block, begin)
        if length is not None and begin + OVERHEAD + length <= available:
            return begin + OVERHEAD + length
        place = block.find(bytes(4), place + 1)
    return None


def after_line(block: bytes, available: int, room: int, first: bool) -> Cut:
    """Cut after the end of a line; a line that fills a segment is cut anywhere."""
    inside = block[:room]
    end = max(inside.rfind(b"\n"), inside.rfind(b"\r")) + 1
    if end == 0 and first and len(inside) == room:
        end = room
    return Cut(end, available > room)


@dataclass(slots=True)
class GrowingFile:
    generation: int = 0  # a file that was replaced begins another one
    inode: int = 0
    head: int = 0  # how many bytes at the start of the file all other segments repeat
    cuts: list[int] = field(default_factory=list)  # where the sealed segments end
    sent: int = 0  # how many bytes have arrived, including the last segment
    pending: int = 0  # the end of a segment that may have been sent
    resent: int = 0  # how many bytes of the last segment were sent more than once
    tail: int = 0  # a checksum of the last bytes that arrived, to detect a replaced file

    @property
    def start(self) -> int:  # of the last segment
        return self.cuts[-1] if self.cuts else 0

    def advance(self, end: int, *, sealed: bool) -> None:
        self.resent += self.sent - self.start
        self.sent, self.pending = end, 0
        if sealed:
            self.seal()

    def seal(self) -> None:
        self.cuts.append(self.sent)
        self.resent = 0

    def sizes(self, name: str) -> dict[str, int]:
        starts = [0, *self.cuts]
        ends = [*self.cuts, self.sent] if self.sent > self.start else self.cuts
        return {
            segment_name(name, self.generation, number): end - start + (self.head if number else 0)
            for number, (start, end) in enumerate(zip(starts, ends, strict=False))
        }


class SentRecord(NamedTuple):
    """The fields of a run's record that users may edit in the target, as they were sent."""

    tags: Mapping[str, Any] = {}
    note: str = ""
    heartbeat: float = 0.0


class Ledger:
    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._saved_at = clock()
        self.growing: dict[str, GrowingFile] = {}
        self.whole: dict[str, str] = {}  # the version of each complete file that arrived
        self.records: dict[str, SentRecord] = {}  # of runs, as they were last sent
        self.lost = False  # the file was missing or unreadable
        self.saved = True  # the file is up to date; a full disk prevents that
        try:
            document = json.loads(path.read_bytes())
            self.growing = {name: _growing(entry) for name, entry in document["growing"].items()}
            self.whole = {str(name): str(version) for name, version in document["whole"].items()}
            records = document.get("records", {})  # an earlier version did not write them
            self.records = {name: SentRecord(**entry) for name, entry in records.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self.growing, self.whole, self.records, self.lost = {}, {}, {}, True

    @staticmethod
    def create(path: Path) -> None:
        """Write an empty ledger, since a missing one counts as lost."""
        path.write_text(json.dumps({"growing": {}, "whole": {}}))

    def save(self) -> bool:
        document = {
            "growing": {name: asdict(entry) for name, entry in self.growing.items()},
            "whole": self.whole,
            "records": {name: record._asdict() for name, record in self.records.items()},
        }
        self._saved_at = self._clock()
        self.saved = replace_json(self._path, document)
        return self.saved

    def set_whole(self, name: str, version: str | None) -> None:
        """Record the version of a complete file that arrived; None to send it again."""
        if version is None:
            self.whole.pop(name, None)
        else:
            self.whole[name] = version
        self.saved = False
        if self._clock() - self._saved_at >= _SAVE_SECS:
            self.save()

    def set_record(self, name: str, record: SentRecord) -> None:
        """Record how a record was sent; save changed tags at once, to not send them again."""
        before = self.records.get(name, SentRecord())
        self.records[name] = record
        self.saved = False
        if (before.tags, before.note) != (record.tags, record.note):
            self.save()


def _growing(entry: dict[str, Any]) -> GrowingFile:
    numbers = ("generation", "inode", "head", "sent", "resent", "tail")
    cuts = [int(cut) for cut in entry["cuts"]]
    pending = int(entry.get("pending", 0))  # an earlier version did not write it
    return GrowingFile(cuts=cuts, pending=pending, **{key: int(entry[key]) for key in numbers})


def reconcile(
    name: str, known: GrowingFile | None, size: int, head: int, listed: Mapping[str, int]
) -> GrowingFile | None:
    """Return a corrected entry, or None if the ledger has everything in the bucket.

    A segment is started only when the one before is complete. So if the bucket (`listed`) has
    segments that the ledger does not know, the bucket is right.
    """
    generation, sizes = stored_segments(name, listed) or (0, [])
    if known and (generation != known.generation or len(sizes) <= len(known.cuts) + 1):
        return None
    ends = segment_ends(sizes, head)
    if not ends or ends != sorted(ends) or ends[-1] > size:
        return None
    return GrowingFile(generation, head=head, cuts=ends[:-1], sent=ends[-1])


def replace_json(path: Path, document: Mapping[str, Any]) -> bool:
    """Replace a JSON file atomically; return whether that succeeded."""
    # Without fsync: after a power failure, `reconcile` corrects it.
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        temporary.write_text(json.dumps(document))
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        return False
    return True
