"""The contract every storage keeps, and the errors they share.

A storage is a root with files below it, each known by a name relative to that root. How names
become paths or keys is left to the implementations; how a URI becomes a storage, to `uri`.
"""

# ruff: noqa: N818
# An error is named by what is wrong: NotFound, StorageFull.

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class StorageError(Exception):
    """Something a storage could not do: where, what went wrong, and what to do about it.

    Attributes:
        place: where, to be compared with other places.
        uri: the same, to be printed.
    """

    def __init__(self, uri: str, problem: str, hint: str = "") -> None:
        self.place = uri
        self.uri = _printable(uri)
        self.problem = _printable(problem).rstrip(". ")
        self.hint = _printable(hint)
        # Not that of OSError, which some are as well: it would take a URI for a number.
        Exception.__init__(self, uri, self.problem, self.hint)

    def __str__(self) -> str:
        sentence = f"{self.uri}: {self.problem}."
        return f"{sentence} {self.hint}" if self.hint else sentence


class NotFound(StorageError, FileNotFoundError):
    """There is no such file, or no such root."""

    def __init__(self, uri: str, problem: str, hint: str = "") -> None:
        super().__init__(uri, problem, hint)
        self.errno, self.strerror, self.filename = errno.ENOENT, self.problem, uri


class NoSuchBucket(NotFound):
    """The bucket or container itself does not exist."""


class AlreadyExists(StorageError):
    """The name is taken."""


class PermissionDenied(StorageError):
    """The storage knows who asks, and refuses."""


class NoCredentials(StorageError):
    """Nobody said who asks, or the storage does not accept what they said."""


class Unreachable(StorageError):
    """The storage did not answer."""


class StorageFull(StorageError):
    """No space, or no quota, is left."""


class Unreadable(StorageError):
    """A local file that was to be stored cannot be read."""


class BadUri(StorageError):
    """The URI or the name cannot mean a file."""


class UnknownScheme(BadUri):
    """The URI is of a kind we do not read."""


class Entry(NamedTuple):
    """One file as a listing shows it.

    Attributes:
        name: relative to the storage's root, separated by '/'.
        size: in bytes, when it was listed.
        version: changes whenever the file is written or replaced; means nothing else.
    """

    name: str
    size: int
    version: str


ListingProblem = Callable[[StorageError], None]


class Storage(ABC):
    """Files below one root.

    An implementation *must* define `list`, `read`, `write`, `create_new` and `delete`. It *may*
    define `readinto`, where it can fill a buffer with fewer copies than `read` makes, `upload`,
    where it can send a file without holding all of it, and `was_replaced`, where a version tells a
    file that was replaced from one that was appended to. Every verb raises `StorageError` and
    nothing else when the outside world is the cause, and may be called from several threads at
    once.
    """

    uri: str
    """The root, in canonical form, without a trailing slash."""

    @abstractmethod
    def list(
        self, prefix: str = "", *, containing: str = "", on_error: ListingProblem | None = None
    ) -> Iterator[Entry]:
        """Yield every file below the directory `prefix`, or the one file of that name.

        Args:
            prefix: a directory or file; 'run1' covers 'run1/…' and never 'run10/…'. One that does
                not exist yields nothing.
            containing: keep only files whose last path part contains this.
            on_error: receives what went wrong in a part of the tree, and the rest goes on.
                Without it the first such error is raised.

        Raises:
            NotFound: the root does not exist.
        """

    @abstractmethod
    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from `start` up to `end`, fewer where the file ends before that.

        Raises:
            ValueError: `start` is negative, or `end` before it.
        """

    def readinto(self, name: str, start: int, buffer: memoryview) -> int:
        """Fill `buffer` from `start` on, and return how many bytes there were."""
        content = self.read(name, start, start + len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def was_replaced(self, before: str, after: str) -> bool:  # noqa: ARG002 - they may not tell
        """Say whether two versions of a file tell that it is another file than before."""
        return False

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file: a reader sees the old content or the new, never a mixture."""

    def upload(self, name: str, path: "Path") -> None:
        """Create or replace a file with the content of a local one, as `write` does.

        Raises:
            Unreadable: the local file cannot be read.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error
        self.write(name, data)

    @abstractmethod
    def create_new(self, name: str, data: bytes) -> None:
        """Create a file that does not exist; of many who try at once, exactly one succeeds.

        Raises:
            AlreadyExists: the name is taken.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file.

        Raises:
            NotFound: there is none of that name.
        """


def unreadable(path: "Path", error: OSError) -> Unreadable:
    """Say why a local file cannot be read."""
    problem = (error.strerror or str(error)).lower()
    return Unreadable(str(path), f"the file cannot be read: {problem}", "Check the file.")


def check_range(start: int, end: int | None) -> None:
    """Refuse a range that begins before the file or ends before it begins."""
    if start < 0 or (end is not None and end < start):
        raise ValueError(f"there is no range from {start} to {end} in a file")


def name_parts(uri: str, name: str) -> tuple[str, ...]:
    """Split a name into its path parts, refusing one that could mean a file outside the root."""
    parts = tuple(name.split("/"))
    if ".." in parts or name.startswith("/"):
        raise BadUri(f"{uri}/{name}", "the name leads out of its root", "Use a name below it.")
    if "" in parts or "." in parts or "\0" in name:
        raise BadUri(
            f"{uri}/{name}",
            "the name has an empty part, a '.' part or a NUL character",
            "Use a name such as 'run1/events.out.tfevents'.",
        )
    return parts


def prefix_parts(uri: str, prefix: str) -> tuple[str, ...]:
    """Split a prefix as `name_parts` does, but allow none at all and a trailing slash."""
    stripped = prefix.removesuffix("/")
    return name_parts(uri, stripped) if stripped else ()


def _printable(text: str) -> str:
    """Keep an error on one line, and printable where a file name is not Unicode."""
    one_line = " ".join(text.split())
    return one_line.encode("utf-8", "backslashreplace").decode("utf-8")
