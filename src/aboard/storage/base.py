"""The contract of a storage, its errors, the URIs that name one, and the count of its requests.

A storage is a root with files below it, each identified by a name relative to that root.
Implementations map names to paths or keys. Nothing here reads a disk or the network, except for the
working directory of relative paths.
"""

import errno
import os
import posixpath
import re
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from aboard.system import require

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


def _printable(text: str) -> str:
    """Put a text on one line, and escape what is not Unicode."""
    one_line = " ".join(text.split())
    return one_line.encode("utf-8", "backslashreplace").decode("utf-8")


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


# Schemes and their clouds, as in `settings.CLOUDS`; "memory" is for tests.
SCHEMES = {one: one for one in ("s3", "gs", "az", "oss", "memory")} | {
    "abfs": "az",
    "abfss": "az",
}
_NAMES_ELSEWHERE = {"s3": "s3a s3n aws", "gs": "gcs google", "az": "azure adl wasb wasbs"}
_MEANT = {name: scheme for scheme, names in _NAMES_ELSEWHERE.items() for name in names.split()}
_MEANT["aliyun"] = "oss"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONTAINER_AT_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*")
_LOST_SLASH = re.compile(rf"({'|'.join([*SCHEMES, 'gcs'])}):", re.IGNORECASE)


class RemoteUri(NamedTuple):
    """The parts of a remote URI; `path` has no slash at either end, and is taken literally."""

    scheme: str
    bucket: str
    path: str

    @property
    def cloud(self) -> str:
        return SCHEMES[self.scheme]

    def __str__(self) -> str:
        return join(f"{self.scheme}://{self.bucket}", self.path)


def open_storage(uri: str) -> Storage:
    """Open the storage rooted at a path or URI. No request is made until it is used."""
    place = _parse(uri)
    if isinstance(place, RemoteUri):
        require("obstore", install="obstore")
        from aboard.storage.object import ObjectStorage

        return ObjectStorage(place)
    from aboard.storage.local import LocalStorage

    return LocalStorage(place)


def is_remote(uri: str) -> bool:
    return isinstance(_parse(uri), RemoteUri)


def canonical(uri: str) -> str:
    """Normalise a path or URI: absolute, no trailing slash, links kept."""
    return str(_parse(uri))


def join(uri: str, name: str) -> str:
    return f"{uri.rstrip('/')}/{name}" if name else uri


def is_below(uri: str, place: str) -> bool:
    return uri == place or uri.startswith(place.rstrip("/") + "/")


def below_any(places: Iterable[str]) -> Callable[[str], bool]:
    """Return a test for URIs that are one of the places or below one."""
    exact = set(places)
    above = {place.rstrip("/") + "/" for place in exact}
    lengths = sorted({len(place) for place in above})

    def is_inside(uri: str) -> bool:
        return uri in exact or any(uri[:length] in above for length in lengths)

    return is_inside


def split(uri: str) -> tuple[str, str]:
    """Split off the last part: the URI to open, and the name of the file in it."""
    place = _parse(uri)
    if isinstance(place, RemoteUri):
        above, _, name = place.path.rpartition("/")
        return str(place._replace(path=above)), name
    return posixpath.split(place)


def bucket_of(uri: str) -> str:
    """Return the bucket that a remote URI names: `s3://logs` for `s3://logs/a/b`."""
    return "/".join(canonical(uri).split("/")[:3])


def _parse(uri: str) -> str | RemoteUri:
    if not uri or "\0" in uri:
        raise BadUri(repr(uri), "not a path or URI", "Give a directory or a bucket.")
    if not uri.isascii() and uri != uri.encode(errors="replace").decode():
        raise BadUri(uri, "the path is not UTF-8", "Rename it.")
    match = _SCHEME.match(uri)
    if match is None:
        if lost := _LOST_SLASH.match(uri):
            scheme = _MEANT.get(lost[1].lower(), lost[1].lower())
            suggested = f"{scheme}://{uri[lost.end() :].lstrip('/')}"
            raise BadUri(uri, "'://' is missing", f"Did you mean {suggested}?")
        if uri.lower().startswith("file:/"):
            return _file_path(uri)
        return _absolute(os.path.expanduser(uri))  # noqa: PTH111 (a Path drops what it thinks idle)
    scheme = match[1].lower()
    if scheme == "file":
        return _file_path(uri)
    rest = uri[match.end() :]
    if scheme not in SCHEMES:
        raise UnknownScheme(uri, f"'{scheme}://' is not supported", _suggest(scheme, rest))
    return _remote(uri, scheme, rest)


def _suggest(scheme: str, rest: str) -> str:
    import difflib

    near = difflib.get_close_matches(scheme, SCHEMES, n=1)
    suggested = _MEANT.get(scheme) or (near[0] if near else None)
    clouds = dict.fromkeys(cloud for cloud in SCHEMES.values() if cloud != "memory")
    known = f"Supported: plain paths and {', '.join(f'{one}://' for one in ('file', *clouds))}."
    return f"Did you mean {suggested}://{rest}? {known}" if suggested else known


def _remote(uri: str, scheme: str, rest: str) -> RemoteUri:
    bucket, _, path = rest.partition("/")
    if not bucket:
        raise BadUri(uri, "the bucket is missing", f"Write {scheme}://bucket/path.")
    if scheme.startswith("abfs"):
        if not _CONTAINER_AT_ACCOUNT.fullmatch(bucket):
            hint = f"Write {scheme}://container@account.dfs.core.windows.net/path."
            raise BadUri(uri, "the container or the account is missing", hint)
    elif not _BUCKET.fullmatch(bucket):
        hint = "Bucket names consist of letters, digits, '.', '-' and '_'."
        raise BadUri(uri, f"'{bucket}' is not a valid bucket name", hint)
    parts = [part for part in path.split("/") if part]
    if "." in parts or ".." in parts:
        raise BadUri(uri, "'.' and '..' have no meaning in a bucket", "Write the path out.")
    return RemoteUri(scheme, bucket, "/".join(parts))


def _file_path(uri: str) -> str:
    from urllib.parse import unquote

    host, path = "", uri[len("file:") :]
    if path.startswith("//"):
        host, _, path = path[2:].partition("/")
    if host not in {"", "localhost"}:
        problem = f"a file URI names a path on this machine, not '{host}'"
        raise BadUri(uri, problem, "Write file:///absolute/path or just the path.")
    return _absolute("/" + unquote(path))


def _absolute(path: str) -> str:
    absolute = os.path.abspath(path)  # noqa: PTH100 (Path.resolve would follow symbolic links)
    return "/" + absolute.lstrip("/")


Kind = Literal["list", "read", "write", "delete"]  # `list` counts pages; `read` includes HEAD


class Traffic(NamedTuple):
    """Requests and bytes: received for reads, sent for writes."""

    requests: int = 0
    bytes: int = 0


Counts = dict[tuple[str, Kind], Traffic]  # by bucket, as `bucket_of` writes it


class TrafficCount:
    """The requests to each bucket, and the bytes they transferred.

    Requests that the object store library retries count once, and listings as one request per
    thousand names. The index persists what it takes from here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total: defaultdict[tuple[str, Kind], Traffic] = defaultdict(Traffic)
        self._untaken: defaultdict[tuple[str, Kind], Traffic] = defaultdict(Traffic)

    def count(self, bucket: str, kind: Kind, requests: int = 1, size: int = 0) -> None:
        with self._lock:
            for counts in (self._total, self._untaken):
                before = counts[bucket, kind]
                counts[bucket, kind] = Traffic(before.requests + requests, before.bytes + size)

    def snapshot(self) -> Counts:
        with self._lock:
            return dict(self._total)

    def pages_listed(self, uri: str) -> int:
        """Return the number of pages of listings requested from the bucket that a URI names."""
        return self.snapshot().get((bucket_of(uri), "list"), Traffic()).requests

    def take(self) -> Counts:
        with self._lock:
            taken = dict(self._untaken)
            self._untaken.clear()
            return taken

    def give_back(self, counts: Counts) -> None:
        """Undo a `take` whose counts could not be saved."""
        with self._lock:
            for key, one in counts.items():
                before = self._untaken[key]
                self._untaken[key] = Traffic(
                    before.requests + one.requests, before.bytes + one.bytes
                )


traffic = TrafficCount()
"""The traffic of this process."""
