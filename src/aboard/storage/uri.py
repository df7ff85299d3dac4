"""Parses what users type, paths, `file://` URIs and URIs of clouds, and opens the storage.

Nothing here reads a disk or the network, except for the working directory of relative paths. Names
in buckets are taken literally; only `file://` URIs are percent-decoded.
"""

import os
import posixpath
import re
from typing import NamedTuple

from aboard.storage.base import BadUri, Storage, UnknownScheme
from aboard.system import require

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
    """The parts of a remote URI; `path` has no slash at either end."""

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


def split(uri: str) -> tuple[str, str]:
    """Split off the last part: the URI to open, and the name of the file in it."""
    place = _parse(uri)
    if isinstance(place, RemoteUri):
        above, _, name = place.path.rpartition("/")
        return str(place._replace(path=above)), name
    return posixpath.split(place)


def _parse(uri: str) -> str | RemoteUri:
    if not uri or "\0" in uri:
        raise BadUri(repr(uri), "not a path or URI", "Give a directory or a bucket.")
    if not uri.isascii() and uri != uri.encode(errors="replace").decode():
        raise BadUri(uri, "the path is not UTF-8", "Rename it.")
    match = _SCHEME.match(uri)
    if match is None:
        if lost := _LOST_SLASH.match(uri):
            scheme = _MEANT.get(lost[1].lower(), lost[1].lower())
            meant = f"{scheme}://{uri[lost.end() :].lstrip('/')}"
            raise BadUri(uri, "'://' is missing", f"Did you mean {meant}?")
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
    meant = _MEANT.get(scheme) or (near[0] if near else None)
    clouds = dict.fromkeys(cloud for cloud in SCHEMES.values() if cloud != "memory")
    known = f"Supported: plain paths and {', '.join(f'{one}://' for one in ('file', *clouds))}."
    return f"Did you mean {meant}://{rest}? {known}" if meant else known


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
