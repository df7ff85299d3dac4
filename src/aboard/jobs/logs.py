"""The recorded output of a run, in its storage, and the log of a member of a job.

Until a member's run has begun, its log is the engine's log of its task, of which only the beginning
is shown. Logs may be larger than memory, so they are read in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from aboard.executors.start import Read, start_of_tail
from aboard.jobs.model import JobRecord
from aboard.storage import NoSuchPath, is_remote, join, open_storage
from aboard.track.shipping.segments import OUTPUT_LOG

_BLOCK = 1 << 20
_MOST_OF_ENGINE = 16 << 20
_CUT = b"aboard: the rest of the engine's log is not shown, because its run has not begun.\n"

EngineLog = Callable[[JobRecord, int], Iterable[bytes]]


class RunLog:
    """Reads the recorded output of a run, then what is appended to it."""

    def __init__(self, root: str, directory: str) -> None:
        self._directory = directory
        self._storage = open_storage(root)
        self._is_remote = is_remote(root)
        self._position = 0

    def size(self) -> int:
        """Return the current number of bytes."""
        return sum(self._files().values())

    def seek(self, position: int) -> None:
        """Set the offset at which `read` begins."""
        self._position = position

    def read_range(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from one offset to another, in blocks."""
        read = self._reader(self._files())
        while begin < end and (block := read(begin, min(begin + _BLOCK, end))):
            yield block
            begin += len(block)

    def read(self, *, tail: int | None = None, to_end: bool) -> Iterator[bytes]:
        """Yield new lines; with `to_end`, also an incomplete last one.

        Chunks consist of complete lines, unless one is longer than a block.
        """
        files = self._files()
        read, end = self._reader(files), sum(files.values())
        for piece, position in _pieces(read, self._position, end, tail, to_end=to_end):
            self._position = position
            if piece:
                yield piece

    def _files(self) -> dict[str, int]:
        """Return the files of the recorded output and their sizes; none before the run has begun.

        In a bucket, a log is a sequence of files, of which the last is replaced as it grows.
        """
        name = join(self._directory, OUTPUT_LOG) if self._directory else OUTPUT_LOG
        place = self._directory if self._is_remote else name
        try:
            found = sorted(self._storage.list(place, containing=OUTPUT_LOG))
        except NoSuchPath:
            return {}
        return {one.name: one.size for one in found if one.name.startswith(name)}

    def _reader(self, files: Mapping[str, int]) -> Read:
        def read(begin: int, end: int) -> bytes:
            pieces: list[bytes] = []
            for name, size in files.items():
                if begin < size and end > 0:
                    pieces.append(self._storage.read(name, max(begin, 0), min(end, size)))
                begin, end = begin - size, end - size
            return b"".join(pieces)

        return read


class MemberLog(RunLog):
    """Reads the log of a member, then what is appended to it."""

    def __init__(self, record: JobRecord, number: int, engine_log: EngineLog) -> None:
        super().__init__(record.root, record.run_directory(number))
        self._record = record
        self._number = number
        self._engine_log = engine_log
        self._of_engine = 0  # how much of the engine's log was read

    def read(self, *, tail: int | None = None, to_end: bool) -> Iterator[bytes]:
        """Yield lines as `RunLog.read` does; those of the engine while the run has none."""
        if self._files():
            yield from super().read(tail=tail, to_end=to_end)
            return
        text = self._text_of_engine()

        def read(first: int, last: int) -> bytes:
            return text[first:last]

        for piece, position in _pieces(read, self._of_engine, len(text), tail, to_end=to_end):
            self._of_engine = position
            if piece:
                yield piece

    def _text_of_engine(self) -> bytes:
        """Return the beginning of the engine's log."""
        text = bytearray()
        for piece in self._engine_log(self._record, self._number):
            text += piece
            if len(text) > _MOST_OF_ENGINE:
                del text[_MOST_OF_ENGINE:]
                del text[text.rfind(b"\n") + 1 or len(text) :]
                text += _CUT
                break
        return bytes(text)


def _pieces(
    read: Read, begin: int, end: int, tail: int | None, *, to_end: bool
) -> Iterator[tuple[bytes, int]]:
    """Yield a part of a log in blocks, each with the offset after it."""
    if not to_end and begin < end:
        first = max(begin, end - _BLOCK)
        complete = read(first, end).rfind(b"\n") + 1
        if complete or first == begin:
            end = first + complete
    if tail is not None:
        begin = start_of_tail(read, begin, end, tail)
        yield b"", begin  # skips what is before it
    while begin < end:
        block = read(begin, min(begin + _BLOCK, end))
        if not block:  # it was truncated
            return
        if begin + len(block) < end:
            block = block[: block.rfind(b"\n") + 1] or block
        begin += len(block)
        yield block, begin
