"""The contract of a storage, and the errors of all storages.

A storage is a root with files below it, each identified by a name relative to that root.
Implementations map names to paths or keys; `uri` maps URIs to storages.
"""

# ruff: noqa: N818
# Errors are named after the problem: NoSuchPath, StorageFull.

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class StorageError(Exception):
    """A storage failed: where, what is wrong, and what to do.

    `place` is the URI for comparison with others; `uri` is the same, printable.
    """

    def __init__(self, uri: str, problem: str, hint: str = "") -> None:
        self.place = uri
        self.uri = _printable(uri)
        self.problem = _printable(problem).rstrip(". ")
        self.hint = _printable(hint)
        # Not super(): OSError, a base of some of these, takes its first argument for an errno.
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
    """The file does not have the version that was to be replaced."""


class Unsupported(StorageError):
    """The storage cannot do this."""


class PermissionDenied(StorageError):
    """The storage accepts the credentials but denies the request."""


class NoCredentials(StorageError):
    """No credentials were found, or the storage does not accept them."""


class Unreachable(StorageError):
    """The storage did not answer."""


class StorageFull(StorageError):
    """The disk is full or the quota is used up."""


class Unreadable(StorageError):
    """A local file that was to be uploaded cannot be read."""


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
"""The directory of job records and their files; listed only if the prefix is within it."""


class Storage(ABC):
    """Files below one root.

    An implementation *must* define `list`, `read`, `write`, `create_new` and `delete`. It *may*
    define `readinto`, if it can fill a buffer with fewer copies than `read`; `stream`, if one
    request can return a large range in parts; `upload`, if it can send a file without holding it in
    memory; `has_paths`, if other code may open a file by its path; `was_replaced`, if versions show
    that a file was replaced and not appended to; and `version`, `replace` and `has_conditions`, if
    a request can depend on the version of a file. Every method is safe to call from several
    threads, and raises only `StorageError` for causes outside the program.
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
        part contains it; a directory `.jobs` below the prefix is left out. `on_error` receives the
        errors of parts of the tree, and the listing continues; without it the first one is raised.
        """

    @abstractmethod
    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of a range, fewer at the end of the file; ValueError for a bad range."""

    def readinto(self, name: str, start: int, buffer: memoryview) -> int:
        """Read into `buffer` from offset `start`; return the number of bytes read."""
        content = self.read(name, start, start + len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def stream(self, name: str, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a range as they arrive, for a slow reader."""
        yield self.read(name, start, end)

    @property
    def has_paths(self) -> bool:
        """Whether files may be opened by path: the URI joined with the name."""
        return False

    def was_replaced(self, before: str, after: str) -> bool:  # noqa: ARG002 - for overrides
        """Return whether a file was replaced between two versions, not appended to."""
        return False

    @abstractmethod
    def write(self, name: str, data: bytes | memoryview) -> None:
        """Create or replace a file atomically: a reader sees the old or the new content."""

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
        """Return the version of a file for `replace`; it differs from that of its `Entry`."""
        raise self._has_no_conditions()

    def replace(self, name: str, data: bytes | memoryview, version: str) -> str:  # noqa: ARG002
        """Replace a file that has this version; return the new version, or raise `Changed`."""
        raise self._has_no_conditions()

    def has_conditions(self, name: str, data: bytes) -> bool:  # noqa: ARG002
        """Return whether `replace` checks the version; some servers ignore the condition.

        Tries to replace a version that does not exist, with `data`, the present content of the
        file, so that success changes nothing.
        """
        return False

    def _has_no_conditions(self) -> Unsupported:
        problem = "conditional writes are not supported"
        return Unsupported(self.uri, problem, "Write unconditionally.")

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file; raise `NoSuchPath` if it does not exist."""


def is_refusal(error: StorageError) -> bool:
    """Return whether an error may mean that the server rejected a condition."""
    return type(error) in (StorageError, Unsupported)


def unreadable(path: "Path", error: OSError) -> Unreadable:
    problem = (error.strerror or str(error)).lower()
    return Unreadable(str(path), f"the file cannot be read: {problem}", "Check the file.")


def check_range(start: int, end: int | None) -> None:
    if start < 0 or (end is not None and end < start):
        raise ValueError(f"invalid range: {start} to {end}")


def name_parts(uri: str, name: str) -> tuple[str, ...]:
    """Split a name into its path parts; reject one that could lead out of the root."""
    parts = tuple(name.split("/"))
    if ".." in parts or name.startswith("/"):
        raise BadUri(f"{uri}/{name}", "the name leads out of its root", "Use a name below it.")
    if "" in parts or "." in parts or "\0" in name:
        problem = "the name has an empty part, a '.' part or a NUL character"
        raise BadUri(f"{uri}/{name}", problem, "Use a name such as 'run1/metrics.txt'.")
    return parts


def prefix_parts(uri: str, prefix: str) -> tuple[str, ...]:
    """Split a prefix as `name_parts` does, but allow an empty one and a trailing slash."""
    stripped = prefix.removesuffix("/")
    return name_parts(uri, stripped) if stripped else ()


def _printable(text: str) -> str:
    """Put a text on one line, and escape what is not Unicode."""
    one_line = " ".join(text.split())
    return one_line.encode("utf-8", "backslashreplace").decode("utf-8")
