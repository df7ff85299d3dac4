"""Files in a bucket or container of a cloud, through one object store library.

`settings` finds the endpoint and the credentials. Nothing is sent before the first call of a
method. Requests to a storage that does not answer fail after about twelve seconds, the search for a
machine's identity after two. The library reports most failures as one kind of error with a long
text, from which `_explain` derives the cause. The text can contain signed URLs, so it is shown,
shortened, only if the cause is unknown.
"""

import http.client
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import obstore.store
from obstore.exceptions import BaseError

from aboard.storage.base import (
    JOBS,
    AlreadyExists,
    BadUri,
    Changed,
    Entry,
    Kind,
    ListingProblem,
    NoCredentials,
    NoSuchBucket,
    NoSuchPath,
    PermissionDenied,
    RemoteUri,
    Storage,
    StorageError,
    StorageFull,
    Unreachable,
    Unsupported,
    bucket_of,
    check_range,
    name_parts,
    prefix_parts,
    traffic,
    unreadable,
)
from aboard.storage.settings import CLOUDS, Identity, Keys, Probe, no_credentials, variables_of

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta, UpdateVersion
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Credential

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
            store = _connect(self._root, patience=_patience(len(data)))
            self._count("write", _upload_requests(len(data), _SMALLEST_PART), len(data))
            store.put(key, data)

    def upload(self, name: str, path: Path) -> None:
        key = self._key(name)
        try:
            file = path.open("rb")
        except OSError as error:
            raise unreadable(path, error) from error
        with file, self._explained(name):
            size = path.stat().st_size
            part = max(_SMALLEST_PART, -(-size // _MOST_PARTS))
            store = _connect(self._root, patience=_patience(min(size, part * _PARTS_AT_ONCE)))
            self._count("write", _upload_requests(size, part), size)
            store.put(key, file, chunk_size=part, max_concurrency=_PARTS_AT_ONCE)

    def create_new(self, name: str, data: bytes | memoryview) -> None:
        key = self._key(name)
        with self._explained(name):
            # OSS rejects the standard condition, and has its own header for it.
            # https://github.com/apache/arrow-rs-object-store/issues/416
            is_oss = self._root.scheme == "oss"
            header = _OSS_CREATE_ONLY if is_oss else None
            store = _connect(self._root, patience=_patience(len(data)), header=header)
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
            store = _connect(self._root, patience=_patience(len(data)))
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
        store = _connect(self._root)
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
            options: GetOptions = {"range": {"offset": start} if end is None else (start, end)}
            try:
                return self._ask("read").get(key, options=options), 0
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
            found = _connect(self._root, header=header, once=True).get(key)
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
            raise _explain(self._root, name, error) from error


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


# Connections.

_RETRIES: "RetryConfig" = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=10),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
}
_READ_TIMEOUT = timedelta(seconds=6)
_KEYS_ARE_FRESH = timedelta(minutes=15)
_RELEVANT_VARIABLES: tuple[str, ...] = tuple(
    start for cloud in CLOUDS.values() for start in cloud.variables
)
_SHARED_VARIABLES = {"HOME", "SSL_CERT_FILE", "SSL_CERT_DIR"} | {
    f"{protocol}_PROXY" for protocol in ("HTTP", "HTTPS", "ALL", "NO")
}
_memory_stores: "dict[str, ObjectStore]" = {}
_processes = set[int]()


def _connect(
    uri: RemoteUri,
    *,
    patience: int | None = None,
    header: tuple[str, str] | None = None,
    once: bool = False,
) -> "ObjectStore":
    """Return the client for a bucket; `patience` is the timeout of an upload in seconds.

    `header` is sent with every request; a client used `once` is not cached.
    """
    if _processes and os.getpid() not in _processes:
        # The library's threads exist only in the parent, so a request would never finish.
        # https://github.com/tokio-rs/tokio/issues/4301
        problem = "a forked process cannot use the connections of its parent"
        raise Unreachable(str(uri), problem, "Start the process with the 'spawn' method.")
    _processes.add(os.getpid())
    if uri.scheme == "memory":
        return _memory_stores.setdefault(uri.bucket, obstore.store.MemoryStore())
    variables, hidden = variables_of(uri)
    environment = tuple(item for item in variables.items() if _is_relevant(item[0].upper()))
    try:
        make = _client.__wrapped__ if once else _client
        return make(uri._replace(path=""), patience, header, environment, hidden)
    except StorageError as error:
        raise type(error)(str(uri), error.problem, error.hint) from error


def _is_relevant(name: str) -> bool:
    return name.startswith(_RELEVANT_VARIABLES) or name in _SHARED_VARIABLES


@lru_cache(maxsize=64)
def _client(
    uri: RemoteUri,
    patience: int | None,
    header: tuple[str, str] | None,
    environment: tuple[tuple[str, str], ...],
    hidden: frozenset[str],
) -> "ObjectStore":
    cloud = CLOUDS[uri.cloud]
    found = cloud.find(uri, dict(environment), Path.home())
    for name in found.identity.outranked_by:
        if name in hidden:
            problem = f"{name} of this process takes precedence over the credentials of the root"
            hint = "Unset it, or use another kind of credentials for the root."
            raise NoCredentials(str(uri), problem, hint)
    if found.identity.machine_service and not _answers(found.identity.machine_service):
        raise no_credentials(uri)
    options: dict[str, Any] = {
        "config": {"skip_signature": False} | found.config | found.identity.config,
        "client_options": _client_options(found.endpoint, patience, header)
        | _certificates(uri, found.certificates),
        "retry_config": _RETRIES,
        "credential_provider": _credential_provider(uri, found.identity),
    }
    try:
        store = getattr(obstore.store, cloud.store)
        return cast("ObjectStore", store(uri.bucket.partition("@")[0], **options))
    except BaseError as error:
        raise _explain(uri, "", error) from error


def _client_options(
    endpoint: str, patience: int | None, header: tuple[str, str] | None
) -> "ClientConfig":
    options: ClientConfig = {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=3),
        "timeout": timedelta(seconds=patience or 3600),
    }
    if patience is None:
        # This timeout also counts while a request is sent, so uploads have their own.
        options["read_timeout"] = _READ_TIMEOUT
    if header:
        options["default_headers"] = dict([header])
    return options


def _certificates(uri: RemoteUri, path: str) -> "ClientConfig":
    if not path:
        return {}
    try:
        return {"root_certificate": Path(path).expanduser().read_text()}
    except (OSError, ValueError):
        problem = f"the certificates in {path} cannot be read"
        raise Unreachable(str(uri), problem, "Check AWS_CA_BUNDLE.") from None


def _credential_provider(uri: RemoteUri, identity: Identity) -> Any:
    if (keys := identity.keys) is not None:
        return lambda: _credential(keys())
    if identity.secret is not None:
        secret = {**identity.secret, "expires_at": None}
        return lambda: secret
    if not identity.needs_package:
        return None
    try:
        if identity.needs_package == "boto3":
            return _boto3_provider(identity.login)
        return _google_provider(identity.login)
    except ImportError:
        package = identity.needs_package
        problem = f"these credentials need the package {package}"
        raise NoCredentials(str(uri), problem, f"Run: pip install {package}") from None
    except Exception as failure:
        raise no_credentials(uri, f"the login failed: {failure}") from failure


def _boto3_provider(login: Mapping[str, str]) -> Any:
    import botocore.session  # type: ignore[import-untyped]
    from obstore.auth.boto3 import Boto3CredentialProvider

    # A profile passed here outranks keys in the environment of the process.
    session = botocore.session.Session(profile=login["profile"])
    for name, value in login.items():
        session.set_config_variable(name, value)
    return Boto3CredentialProvider(session)


def _google_provider(login: Mapping[str, str]) -> Any:
    import google.auth
    from obstore.auth.google import GoogleCredentialProvider

    scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
    with warnings.catch_warnings():
        # Deprecated for files from untrusted sources; the user named this one.
        warnings.simplefilter("ignore", DeprecationWarning)
        credentials, _ = google.auth.load_credentials_from_file(login["file"], scopes=scopes)
    return GoogleCredentialProvider(credentials)


def _credential(keys: Keys) -> "S3Credential":
    return {
        "access_key_id": keys.access_key,
        "secret_access_key": keys.secret_key,
        "token": keys.token,
        "expires_at": datetime.now(UTC) + _KEYS_ARE_FRESH,
    }


def _answers(probe: Probe) -> bool:  # without a metadata service the request hangs
    address = urlsplit(probe.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=2)
    headers = {
        "X-aws-ec2-metadata-token-ttl-seconds": "60",
        "Metadata-Flavor": "Google",
        "Metadata": "true",
    }
    try:
        connection.request(probe.method, address.path, headers=headers)
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


# Errors.

_METADATA_SERVICE = re.compile(
    r"performing \w+ \S*(169\.254\.169\.254|/latest/api/token|/latest/meta-data"
    r"|/computeMetadata/|/metadata/identity)"
)
_REJECTED = {
    "AuthenticationFailed": "the credentials are not accepted",
    "ExpiredToken": "the credentials have expired",
    "InvalidAccessKeyId": "the access key is unknown",
    "InvalidAuthenticationInfo": "the credentials are not accepted",
    "InvalidToken": "the session token is not accepted",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "SecurityTokenExpired": "the credentials have expired",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
}
_TRUST = "For a private authority, set SSL_CERT_FILE to a file with its certificate."
_CONNECTION_CAUSES = (
    ("failed to lookup address", "the host name {host} is unknown"),
    ("dns error", "the host name {host} is unknown"),
    ("ConnectionRefused", "{host} refuses connections"),
    ("InvalidContentType", "{host} does not speak HTTPS"),
    ("kind: Interrupted", "the connection to {host} was lost"),
    ("", "{host} does not answer"),
)


def _explain(root: RemoteUri, name: str, error: Exception) -> StorageError:
    place = root._replace(path="/".join(filter(None, (root.path, name))))
    text = str(error)
    code, status = _find(r"<Code>\s*(\w+)\s*</Code>", text), _find(r"status code: (\d{3})", text)
    if _METADATA_SERVICE.search(text):
        return no_credentials(place)
    return (
        _by_code(place, code)
        or _by_type(place, type(error).__name__, status, text)
        or _by_status(place, status, text)
    )


def _by_code(place: RemoteUri, code: str) -> StorageError | None:
    uri = str(place)
    if code in _REJECTED:
        return no_credentials(place, _REJECTED[code])
    if code in {"NoSuchBucket", "ContainerNotFound"}:
        hint = "Check its name and the account."
        return NoSuchBucket(uri, f"the bucket '{place.bucket}' does not exist", hint)
    if code == "InvalidBucketName":
        return BadUri(uri, f"'{place.bucket}' is not a valid bucket name", "Check it.")
    if code in {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"}:
        return StorageFull(uri, "the quota is used up", "Delete files or ask for more.")
    return None


def _by_type(  # noqa: PLR0911 (a table in the form of a function)
    place: RemoteUri, kind: str, status: str, text: str
) -> StorageError | None:
    uri = str(place)
    if kind == "AlreadyExistsError":
        return AlreadyExists(uri, "this already exists", "Choose another name.")
    if kind == "PreconditionError":
        return Changed(uri, "the file has changed", "Read it again.")
    if kind in {"NotSupportedError", "NotImplementedError"} or status == "501":
        return Unsupported(uri, "the storage does not support this", "Use another server.")
    if kind == "InvalidPathError":
        problem = "the name of an object has an empty part ('//') or a control character"
        return BadUri(uri, problem, "Rename that object.")
    if kind in {"ValueError", "UnicodeEncodeError"}:
        problem = "the name has a character that buckets do not allow"
        return BadUri(uri, problem, "Use another name.")
    if kind == "UnauthenticatedError" or status == "401" or "failed to authenticate" in text:
        return no_credentials(place, "the credentials are not accepted")
    if kind == "PermissionDeniedError" or status == "403":
        hint = f"Ask for permission to read and write in the bucket '{place.bucket}'."
        return PermissionDenied(uri, "the credentials do not allow this", hint)
    if kind == "FileNotFoundError" or status == "404":
        return NoSuchPath(uri, "file not found", "Check the name.")
    return _region_problem(uri, text)


def _region_problem(uri: str, text: str) -> StorageError | None:
    marks = "redirect without LOCATION", "PermanentRedirect", "AuthorizationHeaderMalformed"
    if not any(mark in text for mark in marks):
        return None
    region = _find(r"expecting '([\w-]+)'", text) or _find(r"<Region>([\w-]+)</Region>", text)
    where = f"the region {region}" if region else "another region"
    hint = f"Set AWS_REGION={region or '<region>'}."
    return StorageError(uri, f"the bucket is in {where}", hint)


def _by_status(place: RemoteUri, status: str, text: str) -> StorageError:
    uri = str(place)
    if status.startswith("5") or status == "429":
        return Unreachable(uri, f"the storage answers with error {status}", "Try again later.")
    if "HTTP error" in text or "error decoding response body" in text:
        host = _find(r"performing \w+ \w+://([^/\s?]+)", text) or "the storage"
        if reason := _find(r"InvalidCertificate\(\s*(\w+)", text):
            problem = f"the certificate of {host} is not trusted ({reason})"
            return Unreachable(uri, problem, _TRUST)
        cause = next(problem for mark, problem in _CONNECTION_CAUSES if mark in text)
        hint = f"Check the network, and {CLOUDS[place.cloud].endpoint} if you set it."
        return Unreachable(uri, cause.format(host=host), hint)
    first_line = text.partition("\n")[0].partition("?")[0][:200]
    return StorageError(uri, f"the storage failed: {first_line}", "Check the storage's settings.")


def _find(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""
