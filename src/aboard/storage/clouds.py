"""From a remote URI to a connection: one object store client per cloud, with bounded patience.

`settings` says where to go and as whom; here that becomes a client of the object store library.
A storage that does not answer is given up after about twelve seconds, and a machine without an
identity of its own within two.
"""

import http.client
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore.store

from aboard.storage import settings
from aboard.storage.base import NoCredentials, StorageError, Unreachable
from aboard.storage.explain import explain, kind_of_cloud, no_credentials
from aboard.storage.settings import Identity, Keys, Probe
from aboard.storage.uri import RemoteUri, is_remote

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
_KEYS_ARE_FRESH = timedelta(minutes=15)
_FINDERS = {"s3": settings.s3, "gs": settings.gcs, "az": settings.azure, "oss": settings.oss}

_VARIABLES = {
    "s3": ("AWS_",),
    "gs": ("GOOGLE_", "CLOUDSDK_", "STORAGE_"),
    "az": ("AZURE_", "AZURITE_", "IDENTITY_ENDPOINT", "IDENTITY_HEADER"),
    "oss": ("OSS_", "ALIBABA_"),
}
_RELEVANT_VARIABLES = re.compile(
    r"(AWS|GOOGLE|CLOUDSDK|STORAGE|AZURE|AZURITE|OSS|ALIBABA)_.*"
    r"|HOME|SSL_CERT_FILE|SSL_CERT_DIR|(HTTP|HTTPS|ALL|NO)_PROXY",
    re.IGNORECASE,
)
_memory_stores: "dict[str, ObjectStore]" = {}
_processes = set[int]()
_profiles: dict[str, dict[str, str]] = {}


def connect(
    uri: RemoteUri, *, patience: int | None = None, header: tuple[str, str] | None = None
) -> "ObjectStore":
    """Give the client for a bucket, the same one while the environment says the same.

    Args:
        uri: the bucket; its path plays no part.
        patience: how many seconds an upload may take; without it, the little that a question may.
        header: to send with every request.
    """
    if _processes and os.getpid() not in _processes:
        # The library's threads stayed behind in the parent, and a request would wait for ever.
        # https://github.com/tokio-rs/tokio/issues/4301
        problem = "a forked process cannot use the connections of its parent"
        raise Unreachable(str(uri), problem, "Start the process with the 'spawn' method.")
    _processes.add(os.getpid())
    if uri.scheme == "memory":
        return _memory_stores.setdefault(uri.bucket, obstore.store.MemoryStore())
    variables, hidden = _variables_of(uri)
    environment = filter(lambda item: _RELEVANT_VARIABLES.fullmatch(item[0]), variables.items())
    try:
        return _connect(uri._replace(path=""), patience, header, tuple(environment), hidden)
    except StorageError as error:
        raise type(error)(str(uri), error.problem, error.hint) from error


def set_profile(uri: str, variables: Mapping[str, str]) -> None:
    """Let variables hold for what lies below a URI, over those of the environment; or none."""
    _profiles[uri.rstrip("/")] = dict(variables)


def credentials(variables: Mapping[str, str], uris: Iterable[str]) -> dict[str, str]:
    """Return those variables that the clouds of some places know, and no others."""
    schemes = {uri.partition("://")[0] for uri in uris if is_remote(uri)} - {"memory"}
    known = tuple(start for one in schemes for start in _VARIABLES[kind_of_cloud(one)])
    return {name: value for name, value in variables.items() if name.upper().startswith(known)}


def _variables_of(uri: RemoteUri) -> tuple[Mapping[str, str], frozenset[str]]:
    """Return the variables that hold for a place, and those of the process that do not."""
    place = f"{uri}/"
    above = [root for root in _profiles if place.startswith(f"{root}/")]
    if not above:
        return os.environ, frozenset()
    profile = _profiles[max(above, key=len)]
    variables = settings.overlaid(kind_of_cloud(uri.scheme), os.environ, profile)
    return variables, frozenset(os.environ.keys() - variables.keys())


@lru_cache(maxsize=64)
def _connect(
    uri: RemoteUri,
    patience: int | None,
    header: tuple[str, str] | None,
    environment: tuple[tuple[str, str], ...],
    hidden: frozenset[str],
) -> "ObjectStore":
    cloud = kind_of_cloud(uri.scheme)
    found = _FINDERS[cloud](uri, dict(environment), Path.home())
    for name in found.identity.outranked_by:
        if name in hidden:
            problem = f"{name} of this process outranks the credentials of the root"
            raise NoCredentials(str(uri), problem, "Unset it, or give the root another kind.")
    if found.identity.machine_service and not _answers(found.identity.machine_service):
        raise no_credentials(str(uri), uri.scheme)
    options: dict[str, Any] = {
        "config": {"skip_signature": False} | found.config | found.identity.config,
        "client_options": _client_options(found.endpoint, patience, header)
        | _certificates(uri, found.certificates),
        "retry_config": _RETRIES,
        "credential_provider": _credential_provider(uri, found.identity),
    }
    try:
        if cloud == "gs":
            return obstore.store.GCSStore(uri.bucket, **options)
        if cloud == "az":
            return obstore.store.AzureStore(uri.bucket.partition("@")[0], **options)
        return obstore.store.S3Store(uri.bucket, **options)
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
        # It also runs while a request is being sent, which is why an upload has patience instead.
        options["read_timeout"] = timedelta(seconds=6)
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
    if identity.keys is not None:
        return _KeyProvider(identity.keys)
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
        raise no_credentials(str(uri), uri.scheme, f"the login failed: {failure}") from failure


def _boto3_provider(login: Mapping[str, str]) -> Any:
    import botocore.session  # type: ignore[import-untyped]
    from obstore.auth.boto3 import Boto3CredentialProvider

    # A profile that is named here outranks keys in the environment of the process.
    session = botocore.session.Session(profile=login["profile"])
    for name, value in login.items():
        session.set_config_variable(name, value)
    return Boto3CredentialProvider(session)


def _google_provider(login: Mapping[str, str]) -> Any:
    import google.auth  # type: ignore[import-untyped]
    from obstore.auth.google import GoogleCredentialProvider

    scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
    with warnings.catch_warnings():
        # It is deprecated for files of strangers; this one the user has named.
        warnings.simplefilter("ignore", DeprecationWarning)
        credentials, _ = google.auth.load_credentials_from_file(login["file"], scopes=scopes)
    return GoogleCredentialProvider(credentials)


class _KeyProvider:
    """Hands out a key pair, and asks for it anew when it may have been replaced."""

    def __init__(self, keys: Callable[[], Keys]) -> None:
        self._keys = keys

    def __call__(self) -> "S3Credential":
        access_key, secret_key, token = self._keys()
        return {
            "access_key_id": access_key,
            "secret_access_key": secret_key,
            "token": token,
            "expires_at": datetime.now(UTC) + _KEYS_ARE_FRESH,
        }


def _answers(probe: Probe) -> bool:
    """Say whether this machine has a metadata service; without one a request would wait long."""
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
