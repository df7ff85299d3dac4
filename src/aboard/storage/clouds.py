"""Connections to clouds: clients of the object store library, and the meaning of its errors.

`settings` finds the endpoint and the credentials. Requests to a storage that does not answer fail
after about twelve seconds, the search for a machine's identity after two. The library reports most
failures as one kind of error with a long text, from which `explain` derives the cause. The text can
contain signed URLs, so it is shown, shortened, only if the cause is unknown.
"""

import http.client
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import obstore.store

from aboard.storage import settings
from aboard.storage.base import (
    SCHEMES,
    AlreadyExists,
    BadUri,
    Changed,
    NoCredentials,
    NoSuchBucket,
    NoSuchPath,
    PermissionDenied,
    RemoteUri,
    StorageError,
    StorageFull,
    Unreachable,
    Unsupported,
    is_remote,
)
from aboard.storage.settings import (
    CLOUDS,
    Identity,
    Keys,
    Probe,
    login_files,
    no_credentials,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Credential

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
_memory_stores: "dict[str, ObjectStore]" = {}
_processes = set[int]()
_profiles: dict[str, dict[str, str]] = {}


def connect(
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
    variables, hidden = _variables_of(uri)
    environment = tuple(item for item in variables.items() if _is_relevant(item[0].upper()))
    try:
        make = _connect.__wrapped__ if once else _connect
        return make(uri._replace(path=""), patience, header, environment, hidden)
    except StorageError as error:
        raise type(error)(str(uri), error.problem, error.hint) from error


def set_profile(uri: str, variables: Mapping[str, str]) -> None:
    """Set variables that override the environment below a URI; an empty mapping removes them."""
    _profiles[uri.rstrip("/")] = dict(variables)


def profiles() -> dict[str, dict[str, str]]:
    """Return the variables that `set_profile` has set, by URI."""
    return dict(_profiles)


def credentials(variables: Mapping[str, str], uris: Iterable[str]) -> dict[str, str]:
    """Return only the variables that the clouds of these URIs use."""
    known = tuple(start for cloud in _clouds(uris) for start in CLOUDS[cloud].variables)
    return {name: value for name, value in variables.items() if name.upper().startswith(known)}


def credential_files(variables: Mapping[str, str], uris: Iterable[str]) -> tuple[Path, ...]:
    """Return only the credential files that the clouds of these URIs read."""
    home = Path(variables.get("HOME") or Path.home())
    found = [path for cloud in _clouds(uris) for path in login_files(cloud, variables, home)]
    return tuple(dict.fromkeys(found))


def _clouds(uris: Iterable[str]) -> list[str]:
    found = {SCHEMES[uri.partition("://")[0]] for uri in uris if is_remote(uri)}
    return sorted(found - {"memory"})


def _variables_of(uri: RemoteUri) -> tuple[Mapping[str, str], frozenset[str]]:
    """Return the variables that apply to a URI, and those of the process that do not."""
    place = f"{uri}/"
    above = [root for root in _profiles if place.startswith(f"{root}/")]
    if not above:
        return os.environ, frozenset()
    profile = _profiles[max(above, key=len)]
    variables = settings.overlaid(uri.cloud, os.environ, profile)
    return variables, frozenset(os.environ.keys() - variables.keys())


def _is_relevant(name: str) -> bool:
    return name.startswith(_RELEVANT_VARIABLES) or name in _SHARED_VARIABLES


@lru_cache(maxsize=64)
def _connect(
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
            problem = f"{name} of this process outranks the credentials of the root"
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
    except obstore.exceptions.BaseError as error:
        raise explain(uri, "", error) from error


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


def explain(root: RemoteUri, name: str, error: Exception) -> StorageError:
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
        return Unsupported(uri, "the storage cannot do this", "Use another server.")
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
