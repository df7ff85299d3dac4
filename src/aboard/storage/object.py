"""Files in a bucket or container of a cloud, through one object store library.

Here are the verbs. `clouds` finds the endpoint and the credentials, `explain` turns refusals into
errors that say what to do. Nothing is sent before the first verb is used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from obstore.exceptions import BaseError

from aboard.storage import clouds, traffic
from aboard.storage.base import (
    Entry,
    ListingProblem,
    NotFound,
    Storage,
    StorageError,
    check_range,
    name_parts,
    prefix_parts,
    unreadable,
)
from aboard.storage.explain import explain
from aboard.storage.uri import RemoteUri

if TYPE_CHECKING:
    from pathlib import Path

    from obstore import Bytes, GetOptions, ObjectMeta
    from obstore.store import ObjectStore

_PAGE = 1000
_QUICK_UPLOAD = 64 << 10
_SLOWEST = 32 << 10
"""Bytes per second: an upload that is slower than this is given up, and can be tried again."""
_LONGEST_UPLOAD = 600
_SMALLEST_PART, _MOST_PARTS, _PARTS_AT_ONCE = 5 << 20, 9_000, 4
_OSS_CREATE_ONLY = ("x-oss-forbid-overwrite", "true")


class ObjectStorage(Storage):
    """The objects below one prefix of a bucket.

    A directory is a name with objects below it, so a root without any does not exist, except
    that a bucket itself can be empty.
    """

    def __init__(self, root: RemoteUri) -> None:
        self.uri = str(root)
        self._root = root
        self._bucket = traffic.bucket_of(self.uri)

    def list(
        self, prefix: str = "", *, containing: str = "", on_error: ListingProblem | None = None
    ) -> Iterator[Entry]:
        """Yield the objects below `prefix`: one request for each thousand."""
        key = "/".join((*self._root_parts, *prefix_parts(self.uri, prefix)))
        found = False
        for meta in self._objects(key, prefix, on_error):
            found = True
            path = meta["path"]
            if path != key and containing in path.rpartition("/")[2]:
                yield self._entry(meta)
        if found or not key:
            return
        single = self._head(key)
        if prefix and single is not None:
            if containing in key.rpartition("/")[2]:
                yield self._entry(single)
        elif not prefix or not self._root_exists():
            raise self._nothing_here(single)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from `start` up to `end`, fewer where the object ends before that."""
        content = self._get(name, start, end)
        return content.to_bytes() if content is not None else b""

    def readinto(self, name: str, start: int, buffer: memoryview) -> int:
        """Fill `buffer` from `start` on, with one copy."""
        content = self._get(name, start, start + len(buffer))
        if content is None:
            return 0
        buffer[: len(content)] = memoryview(content)
        return len(content)

    def write(self, name: str, data: bytes) -> None:
        """Create or replace an object."""
        key = self._key(name)
        with self._explained(name):
            store = clouds.connect(self._root, patience=_patience(len(data)))
            self._count("write", traffic.upload_requests(len(data)), len(data))
            store.put(key, data)

    def upload(self, name: str, path: "Path") -> None:
        """Create or replace an object with the content of a file, read as it is sent."""
        key = self._key(name)
        try:
            file = path.open("rb")
        except OSError as error:
            raise unreadable(path, error) from error
        with file, self._explained(name):
            size = path.stat().st_size
            part = max(_SMALLEST_PART, -(-size // _MOST_PARTS))
            store = clouds.connect(self._root, patience=_patience(min(size, part * _PARTS_AT_ONCE)))
            self._count("write", 1 if size <= part else 2 + -(-size // part), size)
            store.put(key, file, chunk_size=part, max_concurrency=_PARTS_AT_ONCE)

    def create_new(self, name: str, data: bytes) -> None:
        """Create an object that does not exist."""
        key = self._key(name)
        with self._explained(name):
            if self._root.scheme == "oss":
                # OSS rejects the standard condition, and has a header of its own for it.
                # https://github.com/apache/arrow-rs-object-store/issues/416
                store = clouds.connect(
                    self._root, patience=_patience(len(data)), header=_OSS_CREATE_ONLY
                )
                self._count("write", 1, len(data))
                store.put(key, data, use_multipart=False)
            else:
                store = clouds.connect(self._root, patience=_patience(len(data)))
                self._count("write", 1, len(data))
                store.put(key, data, mode="create")

    def delete(self, name: str) -> None:
        """Remove an object."""
        key = self._key(name)
        with self._explained(name):
            # Some services answer the same whether there was an object or not.
            self._ask("read").head(key)
            self._ask("delete").delete(key)

    def _ask(self, kind: traffic.Kind) -> "ObjectStore":
        """Give the client for one request, and count that request."""
        store = clouds.connect(self._root)
        self._count(kind)
        return store

    def _count(self, kind: traffic.Kind, requests: int = 1, size: int = 0) -> None:
        traffic.count(self._bucket, kind, requests, size)

    @property
    def _root_parts(self) -> tuple[str, ...]:
        return tuple(self._root.path.split("/")) if self._root.path else ()

    def _key(self, name: str) -> str:
        return "/".join((*self._root_parts, *name_parts(self.uri, name)))

    def _entry(self, meta: "ObjectMeta") -> Entry:
        name = meta["path"].removeprefix(self._root.path).removeprefix("/")
        version = meta["e_tag"] or meta["version"] or meta["last_modified"].isoformat()
        return Entry(name, meta["size"], version.strip('"'))

    def _get(self, name: str, start: int, end: int | None) -> "Bytes | None":
        """Get a range, or None where it is empty."""
        key = self._key(name)
        check_range(start, end)
        with self._explained(name):
            if end == start:
                self._ask("read").head(key)
                return None
            try:
                content = self._get_range(key, start, end)
            except BaseError as error:
                text = str(error)
                if "status code: 416" in text or "Wanted range starting at" in text:
                    return None
                raise
            self._count("read", 0, len(content))
            return content

    def _get_range(self, key: str, start: int, end: int | None) -> "Bytes":
        store = self._ask("read")
        if end is not None:
            return store.get_range(key, start=start, end=end)
        options: GetOptions = {"range": {"offset": start}} if start else {}
        return store.get(key, options=options).bytes()

    def _head(self, key: str) -> "ObjectMeta | None":
        try:
            with self._explained(""):
                return self._ask("read").head(key)
        except NotFound:
            return None

    def _objects(
        self, key: str, prefix: str, on_error: ListingProblem | None
    ) -> Iterator["ObjectMeta"]:
        """List everything below a key, or, past a name the library rejects, all that it can."""
        last = ""  # listings are in the order of the keys
        try:
            with self._explained(prefix):
                pages = self._ask("list").list(key or None, chunk_size=_PAGE)
                for number, page in enumerate(pages):
                    if number:
                        self._count("list")
                    for meta in page:
                        last = meta["path"]
                        yield meta
        except StorageError as error:
            if on_error is None or type(error.__cause__).__name__ != "InvalidPathError":
                raise
        else:
            return
        for meta in self._objects_by_directory(key, on_error):
            if meta["path"] > last:
                yield meta

    def _objects_by_directory(self, key: str, on_error: ListingProblem) -> Iterator["ObjectMeta"]:
        """List with one request per directory, so that a bad name costs only its own directory."""
        pending = [key]
        while pending:
            directory = pending.pop()
            try:
                with self._explained(directory.removeprefix(self._root.path).strip("/")):
                    listing = self._ask("list").list_with_delimiter(directory or None)
            except StorageError as error:
                on_error(error)
                continue
            yield from listing["objects"]
            pending.extend(reversed(listing["common_prefixes"]))

    def _root_exists(self) -> bool:
        if not self._root.path:
            return True
        with self._explained(""):
            for page in self._ask("list").list(self._root.path, chunk_size=1):
                return bool(page)
        return False

    def _nothing_here(self, single: "ObjectMeta | None") -> NotFound:
        if single is not None:
            return NotFound(self.uri, "this is a file, not a directory", "Open its directory.")
        return NotFound(self.uri, "nothing is stored here", "Check the path.")

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except (BaseError, FileNotFoundError, ValueError) as error:
            raise explain(self._root, name, error) from error


def _patience(size: int) -> int | None:
    """Return how many seconds a request may take that sends so much; one of a few numbers."""
    if size <= _QUICK_UPLOAD:
        return None
    seconds = 60
    while seconds * _SLOWEST < size and seconds < _LONGEST_UPLOAD:
        seconds *= 2
    return min(seconds, _LONGEST_UPLOAD)
