"""Files in a bucket or container of a cloud, through one object store library.

`clouds` connects and explains errors. Nothing is sent before the first call of a method.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from obstore.exceptions import BaseError

from aboard.storage import clouds
from aboard.storage.base import (
    JOBS,
    Changed,
    Entry,
    Kind,
    ListingProblem,
    NoCredentials,
    NoSuchBucket,
    NoSuchPath,
    RemoteUri,
    Storage,
    StorageError,
    StorageFull,
    Unreachable,
    bucket_of,
    check_range,
    name_parts,
    prefix_parts,
    traffic,
    unreadable,
)

if TYPE_CHECKING:
    from pathlib import Path

    from obstore import GetOptions, GetResult, ObjectMeta, UpdateVersion
    from obstore.store import ObjectStore

_PAGE = 1000
_QUICK_UPLOAD = 64 << 10
_SLOWEST = 32 << 10  # bytes per second: a slower upload fails
_LONGEST_UPLOAD = 600
_SMALLEST_PART, _MOST_PARTS, _PARTS_AT_ONCE = 5 << 20, 9_000, 4
_NEXT = " "  # between ETag and generation; each cloud checks one of them
_NO_VERSION = f'"00000000000000000000000000000000"{_NEXT}1'
_NOT_PARTIAL = "Received non-partial response when range requested"
_CHUNK = 256 << 10
_CHANGES = 5  # how often a file may change between two requests before reading fails
_OSS_CREATE_ONLY = ("x-oss-forbid-overwrite", "true")


class ObjectStorage(Storage):
    """The objects below one prefix of a bucket.

    A directory exists only if there are objects below it, so an empty root does not exist, unless
    it is the bucket itself.
    """

    def __init__(self, root: RemoteUri) -> None:
        self.uri = str(root)
        self._root = root
        self._bucket = bucket_of(self.uri)
        self._ignores_ranges = False

    def list(
        self, prefix: str = "", *, containing: str = "", on_error: ListingProblem | None = None
    ) -> Iterator[Entry]:
        key = "/".join((*self._root_parts, *prefix_parts(self.uri, prefix)))
        start = len(key) + 1 if key else 0
        found = False
        for meta in self._objects(key, prefix, on_error):
            found = True
            path = meta["path"]
            if path == key or f"/{JOBS}/" in f"/{path[start:]}":
                continue
            if containing in path.rpartition("/")[2]:
                yield self._entry(meta)
        if found or not key:
            return
        single = self._head(key)
        if prefix and single is not None:
            if containing in key.rpartition("/")[2]:
                yield self._entry(single)
        elif not prefix or not self._root_exists():
            if single is not None:
                raise NoSuchPath(self.uri, "this is a file, not a directory", "Open its directory.")
            raise NoSuchPath(self.uri, "nothing is stored here", "Check the path.")

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return b"".join(self._parts(name, start, end))

    def readinto(self, name: str, start: int, buffer: memoryview) -> int:
        filled = 0
        for part in self._parts(name, start, start + len(buffer)):
            buffer[filled : filled + len(part)] = part
            filled += len(part)
        return filled

    def stream(self, name: str, start: int, end: int) -> Iterator[memoryview]:
        return self._parts(name, start, end)

    def write(self, name: str, data: bytes | memoryview) -> None:
        key = self._key(name)
        with self._explained(name):
            store = clouds.connect(self._root, patience=_patience(len(data)))
            self._count("write", _upload_requests(len(data), _SMALLEST_PART), len(data))
            store.put(key, data)

    def upload(self, name: str, path: "Path") -> None:
        key = self._key(name)
        try:
            file = path.open("rb")
        except OSError as error:
            raise unreadable(path, error) from error
        with file, self._explained(name):
            size = path.stat().st_size
            part = max(_SMALLEST_PART, -(-size // _MOST_PARTS))
            store = clouds.connect(self._root, patience=_patience(min(size, part * _PARTS_AT_ONCE)))
            self._count("write", _upload_requests(size, part), size)
            store.put(key, file, chunk_size=part, max_concurrency=_PARTS_AT_ONCE)

    def create_new(self, name: str, data: bytes | memoryview) -> None:
        key = self._key(name)
        with self._explained(name):
            # OSS rejects the standard condition, and has its own header for it.
            # https://github.com/apache/arrow-rs-object-store/issues/416
            is_oss = self._root.scheme == "oss"
            header = _OSS_CREATE_ONLY if is_oss else None
            store = clouds.connect(self._root, patience=_patience(len(data)), header=header)
            self._count("write", 1, len(data))
            if is_oss:
                store.put(key, data, use_multipart=False)
            else:
                store.put(key, data, mode="create")

    def version(self, name: str) -> str:
        if self._root.scheme == "oss":  # it ignores the condition
            raise self._has_no_conditions()
        key = self._key(name)
        with self._explained(name):
            meta = self._ask("read").head(key)
        return _version(meta["e_tag"], meta["version"])

    def replace(self, name: str, data: bytes | memoryview, version: str) -> str:
        if self._root.scheme == "oss" or not version:
            raise self._has_no_conditions()
        key = self._key(name)
        e_tag, _, generation = version.partition(_NEXT)
        expected: UpdateVersion = {"e_tag": e_tag} if e_tag else {}
        if generation:
            expected["version"] = generation
        with self._explained(name):
            store = clouds.connect(self._root, patience=_patience(len(data)))
            self._count("write", 1, len(data))
            result = store.put(key, data, mode=expected)
        return _version(result["e_tag"], result["version"])

    def has_conditions(self, name: str, data: bytes) -> bool:
        try:
            self.replace(name, data, _NO_VERSION)
        except Changed:
            return True
        except (Unreachable, NoCredentials, NoSuchBucket, StorageFull):
            raise
        except StorageError:  # servers reject unknown conditions in many ways
            pass
        return False

    def delete(self, name: str) -> None:
        key = self._key(name)
        with self._explained(name):
            # Some services succeed even if there was no object.
            self._ask("read").head(key)
            self._ask("delete").delete(key)

    def _ask(self, kind: Kind) -> "ObjectStore":
        store = clouds.connect(self._root)
        self._count(kind)
        return store

    def _count(self, kind: Kind, requests: int = 1, size: int = 0) -> None:
        traffic.count(self._bucket, kind, requests, size)

    @property
    def _root_parts(self) -> tuple[str, ...]:
        return tuple(self._root.path.split("/")) if self._root.path else ()

    def _key(self, name: str) -> str:
        return "/".join((*self._root_parts, *name_parts(self.uri, name)))

    def _entry(self, meta: "ObjectMeta") -> Entry:
        name = meta["path"].removeprefix(self._root.path).removeprefix("/")
        return Entry(name, meta["size"], _stamp(meta))

    def _parts(self, name: str, start: int, end: int | None) -> Iterator[memoryview]:
        """Yield a range as it arrives; nothing if it is empty."""
        key = self._key(name)
        check_range(start, end)
        with self._explained(name):
            if end == start:
                self._ask("read").head(key)
                return
            try:
                found, skipped = self._open(key, start, end)
            except BaseError as error:
                text = str(error)
                if "status code: 416" in text or "Wanted range starting at" in text:
                    return
                raise
            left = sys.maxsize if end is None else end - start
            for chunk in found.stream(min_chunk_size=_CHUNK) if found else ():
                part = memoryview(chunk)[skipped : skipped + left]
                skipped -= min(skipped, len(chunk))
                left -= len(part)
                self._count("read", 0, len(part))
                yield part
                if not left:
                    return

    def _open(self, key: str, start: int, end: int | None) -> "tuple[GetResult | None, int]":
        """Request a range; return the response, and how many of its bytes precede the range."""
        if not start and end is None:
            return self._ask("read").get(key), 0
        if not self._ignores_ranges:
            wanted: GetOptions = {"range": {"offset": start} if end is None else (start, end)}
            try:
                return self._ask("read").get(key, options=wanted), 0
            except BaseError as error:
                if _NOT_PARTIAL not in str(error):
                    raise
                self._ignores_ranges = True
        if not start:
            return self._ask("read").get(key), 0
        return self._open_whole(key, start, end)

    def _open_whole(self, key: str, start: int, end: int | None) -> "tuple[GetResult | None, int]":
        """Request a range from a server that answers with status 200 instead of 206.

        The library rejects such a response. Some servers send only the range nevertheless, so it
        is requested in a header that the library does not interpret. From others the whole file
        arrives, and the bytes before the range are skipped.
        """
        header = ("range", f"bytes={start}-{'' if end is None else end - 1}")
        for _ in range(_CHANGES):
            whole = self._ask("read").head(key)
            if start >= whole["size"]:
                return None, 0
            self._count("read")
            found = clouds.connect(self._root, header=header, once=True).get(key)
            if _stamp(found.meta) == _stamp(whole):
                # A range that does not start at 0 is shorter than the file.
                return found, start if found.meta["size"] == whole["size"] else 0
        problem = "the file changes while it is read"
        raise Unreachable(str(self._root._replace(path=key)), problem, "Try again later.")

    def _head(self, key: str) -> "ObjectMeta | None":
        try:
            with self._explained(""):
                return self._ask("read").head(key)
        except NoSuchPath:
            return None

    def _objects(
        self, key: str, prefix: str, on_error: ListingProblem | None
    ) -> Iterator["ObjectMeta"]:
        """List everything below a key; after a name that the library rejects, by directory."""
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
        """List with one request per directory, so that a bad name affects only its directory."""
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

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except (BaseError, FileNotFoundError, ValueError) as error:
            raise clouds.explain(self._root, name, error) from error


def _version(e_tag: str | None, generation: str | None) -> str:
    return f"{e_tag or ''}{_NEXT}{generation}" if generation else e_tag or ""


def _stamp(meta: "ObjectMeta") -> str:
    version = meta["e_tag"] or meta["version"] or meta["last_modified"].isoformat()
    return version.strip('"')


def _upload_requests(size: int, part: int) -> int:
    return 1 if size <= part else 2 + -(-size // part)


def _patience(size: int) -> int | None:
    """Return the timeout in seconds for sending `size` bytes; one of a few values."""
    if size <= _QUICK_UPLOAD:
        return None
    seconds = 60
    while seconds * _SLOWEST < size and seconds < _LONGEST_UPLOAD:
        seconds *= 2
    return min(seconds, _LONGEST_UPLOAD)
