"""The contract every storage keeps, and the errors they share.

A storage is a root with files below it, each known by a name relative to that root. How names
become paths or keys is left to the implementations; how a URI becomes a storage, to `uri`.
"""

# ruff: noqa: N818
# Errors are named by what is wrong: NoSuchPath, StorageFull.

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class StorageError(Exception):
    """Something a storage could not do: where, what went wrong, and what to do about it.

    `place` is where, to compare with other places; `uri` is the same, to print.
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


class NoSuchPath(StorageError, FileNotFoundError):
    def __init__(self, uri: str, problem: str, hint: str = "") -> None:
        super().__init__(uri, problem, hint)
        self.errno, self.strerror, self.filename = errno.ENOENT, self.problem, uri


class NoSuchBucket(NoSuchPath):
    """The bucket or container itself does not exist."""


class AlreadyExists(StorageError):
    """The name is taken."""


class Changed(StorageError):
    """The file is not, or no longer, of the version that was to be replaced."""


class Unsupported(StorageError):
    """The storage cannot do this."""


class PermissionDenied(StorageError):
    """The storage accepts the credentials, and refuses the request."""


class NoCredentials(StorageError):
    """There are no credentials, or the storage does not accept them."""


class Unreachable(StorageError):
    """The storage did not answer."""


class StorageFull(StorageError):
    """No space, or no quota, is left."""


class Unreadable(StorageError):
    """A local file that was to be stored cannot be read."""


class BadUri(StorageError):
    """The URI or the name is not valid."""


class UnknownScheme(BadUri):
    """The scheme of the URI is not supported."""


class Entry(NamedTuple):
    """One file of a listing; `version` changes whenever the file is written or replaced."""

    name: str  # relative to the storage's root, separated by '/'
    size: int
    version: str


ListingProblem = Callable[[StorageError], None]

JOBS = ".jobs"
"""A directory with the records of jobs and files of theirs; only a listing within it shows them."""


class Storage(ABC):
    """Files below one root.

    An implementation *must* define `list`, `read`, `write`, `create_new` and `delete`. It *may*
    define `readinto`, where it can fill a buffer with fewer copies than `read` makes, `stream`,
    where one request can bring a large range in parts, `upload`, where it can send a file without
    holding all of it, `has_paths`, where other code may open a file by its path, `was_replaced`,
    where a version shows that a file was replaced and not appended to, and `version`, `replace` and
    `has_conditions`, where a request can depend on the version of a file. Every verb raises
    `StorageError` and nothing else when the outside world is
    the cause, and may be called from several threads at once.
    """

    uri: str
    """The root, in canonical form, without a trailing slash."""

    @abstractmethod
    def list(
        self, prefix: str = "", *, containing: str = "", on_error: ListingProblem | None = None
    ) -> Iterator[Entry]:
        """Yield every file below the directory `prefix`, or the one file of that name.

        'run1' covers 'run1/…' and never 'run10/…'. A prefix that does not exist yields nothing; a
        root that does not exist raises `NoSuchPath`. `containing` keeps only files whose last path
        part contains it; a directory `.jobs` below the prefix is left out. `on_error` receives what
        went wrong in a part of the tree, and the rest goes on; without it the first such error is
        raised.
        """

    @abstractmethod
    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of a range, fewer where the file ends; ValueError for a bad range."""

    def readinto(self, name: str, start: int, buffer: memoryview) -> int:
        """Fill `buffer` from `start` on, and return how many bytes there were."""
        content = self.read(name, start, start + len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def stream(self, name: str, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a range as they arrive, for a reader that takes its time."""
        yield self.read(name, start, end)

    @property
    def has_paths(self) -> bool:
        """Whether a file may be opened as a local one: by its name, below the URI."""
        return False

    def was_replaced(self, before: str, after: str) -> bool:  # noqa: ARG002 - not every version can tell
        """Tell from two versions of a file whether it was replaced."""
        return False

    @abstractmethod
    def write(self, name: str, data: bytes | memoryview) -> None:
        """Create or replace a file: a reader sees the old content or the new, never a mixture."""

    def upload(self, name: str, path: "Path") -> None:
        """Write the content of a local file; raise `Unreadable` if that cannot be read."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error
        self.write(name, data)

    @abstractmethod
    def create_new(self, name: str, data: bytes | memoryview) -> None:
        """Create a file, or raise `AlreadyExists`; of concurrent calls exactly one succeeds."""

    def version(self, name: str) -> str:  # noqa: ARG002
        """Return the version of a file for `replace`; not that of its `Entry`."""
        raise self._has_no_conditions()

    def replace(self, name: str, data: bytes | memoryview, version: str) -> str:  # noqa: ARG002
        """Replace one version of a file; return the next, or raise `Changed` if it is another."""
        raise self._has_no_conditions()

    def has_conditions(self, name: str, data: bytes) -> bool:  # noqa: ARG002
        """Tell whether `replace` depends on the version; some servers ignore the condition.

        Tries to replace a version that does not exist. `data` is the content that the file has, so
        that success changes nothing.
        """
        return False

    def _has_no_conditions(self) -> Unsupported:
        return Unsupported(self.uri, "no file can be replaced on a condition", "Write it.")

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file; raise `NoSuchPath` if there is none of that name."""


def is_refusal(error: StorageError) -> bool:
    """Tell whether a server may have refused a condition: they do so in many ways."""
    return type(error) in (StorageError, Unsupported)


def unreadable(path: "Path", error: OSError) -> Unreadable:
    problem = (error.strerror or str(error)).lower()
    return Unreadable(str(path), f"the file cannot be read: {problem}", "Check the file.")


def check_range(start: int, end: int | None) -> None:
    if start < 0 or (end is not None and end < start):
        raise ValueError(f"there is no range from {start} to {end} in a file")


def name_parts(uri: str, name: str) -> tuple[str, ...]:
    """Split a name into its path parts, refusing one that could mean a file outside the root."""
    parts = tuple(name.split("/"))
    if ".." in parts or name.startswith("/"):
        raise BadUri(f"{uri}/{name}", "the name leads out of its root", "Use a name below it.")
    if "" in parts or "." in parts or "\0" in name:
        problem = "the name has an empty part, a '.' part or a NUL character"
        raise BadUri(f"{uri}/{name}", problem, "Use a name such as 'run1/metrics.txt'.")
    return parts


def prefix_parts(uri: str, prefix: str) -> tuple[str, ...]:
    """Split a prefix as `name_parts` does, but allow none at all and a trailing slash."""
    stripped = prefix.removesuffix("/")
    return name_parts(uri, stripped) if stripped else ()


def _printable(text: str) -> str:
    """Keep an error on one line, and printable where a file name is not Unicode."""
    one_line = " ".join(text.split())
    return one_line.encode("utf-8", "backslashreplace").decode("utf-8")
