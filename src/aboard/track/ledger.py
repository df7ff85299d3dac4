"""What of a spool has arrived: kept on disk, so that another process can go on from there.

An entry is written down after what it says has happened, never before. A ledger that cannot be
written, because the disk is full, goes on in memory; one that is behind, or lost, is put right with
what the bucket holds (see `reconcile`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aboard.storage.local import TEMPORARY
from aboard.track import segments

_SAVE_SECS = 1.0
"""How long whole files that arrived may go unwritten; to send one again does no harm."""


@dataclass(slots=True)
class Growing:
    """A file that is sent in segments."""

    generation: int = 0
    inode: int = 0
    head: int = 0
    """How many bytes of its beginning are repeated in each segment but the first."""
    cuts: list[int] = field(default_factory=list)
    """Where the sealed segments end; all of them have arrived."""
    sent: int = 0
    """How much of the file has arrived, in sealed segments and in the last."""
    resent: int = 0
    """How much of the last segment was sent more than once."""
    tail: int = 0
    """A checksum of the last bytes that arrived, to notice a file that was replaced."""

    @property
    def start(self) -> int:
        """Where the last segment begins."""
        return self.cuts[-1] if self.cuts else 0

    def arrived(self, end: int, *, sealed: bool) -> None:
        """Note that the last segment arrived, up to this end."""
        self.resent += self.sent - self.start
        self.sent = end
        if sealed:
            self.seal()

    def seal(self) -> None:
        """Note that the last segment, as it arrived, stays as it is."""
        self.cuts.append(self.sent)
        self.resent = 0

    def sizes(self, name: str) -> dict[str, int]:
        """Return what the bucket should hold of it: names and sizes."""
        starts = [0, *self.cuts]
        ends = [*self.cuts, self.sent] if self.sent > self.start else self.cuts
        return {
            segments.segment_name(name, self.generation, number): end
            - start
            + (self.head if number else 0)
            for number, (start, end) in enumerate(zip(starts, ends, strict=False))
        }


class Ledger:
    """The entries of one spool."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._saved = clock()
        self.growing: dict[str, Growing] = {}
        self.whole: dict[str, str] = {}
        """The version of each file that arrived as a whole."""
        self.lost = False
        """Whether what was written down cannot be read."""
        self.written = True
        """Whether all that is known here is also on the disk."""
        self._load()

    def save(self) -> bool:
        """Write everything down; say whether that was possible."""
        document = {
            "growing": {name: asdict(entry) for name, entry in self.growing.items()},
            "whole": self.whole,
        }
        self._saved = self._clock()
        self.written = replace(self._path, document)
        return self.written

    def note_whole(self, name: str, version: str) -> None:
        """Note that a version of a file arrived as a whole; it is written down soon."""
        self.whole[name] = version
        self._save_soon()

    def forget_whole(self, name: str) -> None:
        """Note that a file must be sent again."""
        self.whole.pop(name, None)
        self._save_soon()

    def _save_soon(self) -> None:
        self.written = False
        if self._clock() - self._saved >= _SAVE_SECS:
            self.save()

    def _load(self) -> None:
        try:
            document = json.loads(self._path.read_bytes())
            self.growing = {
                name: Growing(**_of_growing(entry)) for name, entry in document["growing"].items()
            }
            self.whole = {str(name): str(version) for name, version in document["whole"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self.growing, self.whole, self.lost = {}, {}, True


def create(path: Path) -> None:
    """Write an empty ledger: one that is not there at all was lost."""
    path.write_text(json.dumps({"growing": {}, "whole": {}}))


def reconcile(
    name: str, known: Growing | None, size: int, head: int, listed: Mapping[str, int]
) -> Growing | None:
    """Put an entry right with what the bucket holds; None where it is right, or nothing is there.

    The next segment is begun only when the one before is complete. So the bucket knows better
    where it holds segments that the ledger has not heard of.

    Args:
        name: of the file.
        known: its entry.
        size: of the file now.
        head: how many bytes its later segments repeat.
        listed: names and sizes in the bucket.
    """
    stored = segments.stored_segments(name, listed)
    if stored is None or not stored.sizes:
        return None
    if known is not None and (
        stored.generation != known.generation or len(stored.sizes) <= len(known.cuts) + 1
    ):
        return None
    ends = segments.ends_of(stored.sizes, head)
    if ends != sorted(ends) or ends[-1] > size:
        return None
    return Growing(stored.generation, head=head, cuts=ends[:-1], sent=ends[-1])


def _of_growing(entry: dict[str, Any]) -> dict[str, Any]:
    numbers = {
        key: int(entry[key]) for key in ("generation", "inode", "head", "sent", "resent", "tail")
    }
    return {**numbers, "cuts": [int(cut) for cut in entry["cuts"]]}


def replace(path: Path, document: Mapping[str, Any]) -> bool:
    """Write a JSON file in one step; say whether that was possible."""
    # Without fsync: what a power failure takes away, `reconcile` brings back.
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        temporary.write_text(json.dumps(document))
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        return False
    return True
