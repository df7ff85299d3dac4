"""What a cloud's refusal means, in the user's words.

The object store library reports almost everything as one kind of error with a long text. This
module reads that text — the service's error code, the HTTP status, the cause of a failed
connection — and names the one thing to do. The text itself is shown only where nothing better is
known, and then cut short: it can hold signed addresses.
"""

import re

from aboard.storage.base import (
    AlreadyExists,
    BadUri,
    NoCredentials,
    NoSuchBucket,
    NotFound,
    PermissionDenied,
    StorageError,
    StorageFull,
    Unreachable,
)
from aboard.storage.uri import RemoteUri, join

CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket"
    " set AWS_NO_SIGN_REQUEST=true.",
    "gs": "Run 'gcloud auth application-default login', or set GOOGLE_APPLICATION_CREDENTIALS to"
    " a key file; for a public bucket set GOOGLE_SKIP_SIGNATURE=true.",
    "az": "Set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY"
    " or AZURE_STORAGE_SAS_TOKEN, or run 'az login'; for a public container set"
    " AZURE_SKIP_SIGNATURE=true.",
    "oss": "Set OSS_ACCESS_KEY_ID and OSS_ACCESS_KEY_SECRET, or run 'ossutil config'.",
}
_ENDPOINTS = {
    "s3": "AWS_ENDPOINT_URL",
    "gs": "STORAGE_EMULATOR_HOST",
    "az": "AZURE_STORAGE_ENDPOINT",
    "oss": "OSS_ENDPOINT",
}
_METADATA_SERVICE = re.compile(
    r"performing \w+ \S*(169\.254\.169\.254|/latest/api/token|/latest/meta-data"
    r"|/computeMetadata/|/metadata/identity)"
)
_REJECTED = {
    "AuthenticationFailed": "the credentials are not accepted",
    "ExpiredToken": "the credentials have expired",
    "InvalidAccessKeyId": "the access key is not known",
    "InvalidAuthenticationInfo": "the credentials are not accepted",
    "InvalidToken": "the session token is not accepted",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "SecurityTokenExpired": "the credentials have expired",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
}
_TRUST = "If its authority is your own, set SSL_CERT_FILE to a file with that one's certificate."
_CONNECTION_CAUSES = (
    ("failed to lookup address", "the name of {host} is not known"),
    ("dns error", "the name of {host} is not known"),
    ("ConnectionRefused", "{host} refuses connections"),
    ("InvalidContentType", "{host} does not speak HTTPS"),
    ("kind: Interrupted", "the connection to {host} was lost"),
    ("", "{host} does not answer"),
)


def kind_of_cloud(scheme: str) -> str:
    """Give the one scheme that stands for a cloud's several."""
    return "az" if scheme.startswith("abfs") else scheme


def no_credentials(
    uri: str, scheme: str, problem: str = "no credentials were found"
) -> StorageError:
    """Say that nobody told us who we are."""
    return NoCredentials(uri, problem, CREDENTIALS.get(kind_of_cloud(scheme), ""))


def explain(root: RemoteUri, name: str, error: Exception) -> StorageError:
    """Turn an error of the object store library, raised for a file below a root, into ours."""
    uri, text = join(str(root), name), str(error)
    code, status = _find(r"<Code>\s*(\w+)\s*</Code>", text), _find(r"status code: (\d{3})", text)
    if _METADATA_SERVICE.search(text):
        return no_credentials(uri, root.scheme)
    return (
        _by_code(uri, root, code)
        or _by_type(uri, root, type(error).__name__, status, text)
        or _by_status(uri, root, status, text)
    )


def _by_code(uri: str, root: RemoteUri, code: str) -> StorageError | None:
    if code in _REJECTED:
        return no_credentials(uri, root.scheme, _REJECTED[code])
    if code in {"NoSuchBucket", "ContainerNotFound"}:
        hint = "Check its name and the account."
        return NoSuchBucket(uri, f"there is no bucket '{root.bucket}'", hint)
    if code == "InvalidBucketName":
        return BadUri(uri, f"'{root.bucket}' cannot be a bucket", "Check its name.")
    if code in {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"}:
        return StorageFull(uri, "the quota is used up", "Delete files or ask for more.")
    return None


def _by_type(  # noqa: PLR0911 (a table in the form of a function)
    uri: str, root: RemoteUri, kind: str, status: str, text: str
) -> StorageError | None:
    if kind == "AlreadyExistsError":
        return AlreadyExists(uri, "this exists already", "Choose another name.")
    if kind == "InvalidPathError":
        problem = "the name of an object has an empty part ('//') or a control character"
        return BadUri(uri, problem, "Rename that object.")
    if kind in {"ValueError", "UnicodeEncodeError"}:
        problem = "the name has a character that a bucket cannot hold"
        return BadUri(uri, problem, "Use another name.")
    if kind == "UnauthenticatedError" or status == "401" or "failed to authenticate" in text:
        return no_credentials(uri, root.scheme, "the credentials are not accepted")
    if kind == "PermissionDeniedError" or status == "403":
        hint = f"Ask for the right to read and write in the bucket '{root.bucket}'."
        return PermissionDenied(uri, "these credentials may not do this", hint)
    if kind == "FileNotFoundError" or status == "404":
        return NotFound(uri, "there is no such file", "Check the name.")
    return _region_problem(uri, text)


def _region_problem(uri: str, text: str) -> StorageError | None:
    marks = "redirect without LOCATION", "PermanentRedirect", "AuthorizationHeaderMalformed"
    if not any(mark in text for mark in marks):
        return None
    region = _find(r"expecting '([\w-]+)'", text) or _find(r"<Region>([\w-]+)</Region>", text)
    return StorageError(
        uri,
        f"the bucket is in {f'the region {region}' if region else 'another region'}",
        f"Set AWS_REGION={region or '<region>'}.",
    )


def _by_status(uri: str, root: RemoteUri, status: str, text: str) -> StorageError:
    if status.startswith("5") or status == "429":
        return Unreachable(uri, f"the storage answers with error {status}", "Try again later.")
    if "HTTP error" in text or "error decoding response body" in text:
        host = _find(r"performing \w+ \w+://([^/\s?]+)", text) or "the storage"
        if reason := _find(r"InvalidCertificate\(\s*(\w+)", text):
            problem = f"the certificate of {host} is not trusted ({reason})"
            return Unreachable(uri, problem, _TRUST)
        cause = next(problem for mark, problem in _CONNECTION_CAUSES if mark in text)
        endpoint = _ENDPOINTS.get(kind_of_cloud(root.scheme), "the endpoint")
        hint = f"Check the network, and {endpoint} if you set it."
        return Unreachable(uri, cause.format(host=host), hint)
    first_line = text.partition("\n")[0].partition("?")[0][:200]
    return StorageError(uri, f"the storage failed: {first_line}", "Check the storage's settings.")


def _find(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""
