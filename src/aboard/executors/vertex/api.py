"""A client of Vertex AI's REST API, with retries, deadlines and errors.

It uses google-auth's `AuthorizedSession`. The package google-cloud-aiplatform has the same calls,
but is ten times as large and takes five times as long to import: see docs/how-to/vertex.md.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aboard.executors.base import ExecutorError
from aboard.system import Backoff, explain

_EXTRA = "'aboard[vertex]'"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_PACKAGES = frozenset({"google", "requests", "cryptography"})
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 60.0
_FIRST_BACKOFF, _LONGEST_BACKOFF = 1.0, 32.0
_TRANSIENT = frozenset({500, 502, 503, 504})
_PAGE = 1000
_OPERATION_SECONDS = 1.0
_LOGIN = "Run: gcloud auth application-default login"


class VertexError(ExecutorError):
    """A call failed, in one line.

    `status` is the HTTP status; 0 if there was no response. A `refused` call had no effect; after
    any other error, the call may have been carried out in full or in part.
    """

    def __init__(self, message: str, status: int = 0, *, refused: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.refused = refused or 400 <= status < 500


@dataclass(frozen=True, slots=True)
class Location:
    """A project and a location of Vertex, and the endpoint; Google's by default."""

    project: str
    location: str
    endpoint: str = ""

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.location}"

    @property
    def url(self) -> str:
        return self.endpoint.rstrip("/") or f"https://{self.location}-aiplatform.googleapis.com"


class Vertex:
    """A thread-safe client for one location of Vertex.

    A call retries for at most `patience` seconds while Vertex is overloaded or a quota is used up,
    and stops earlier if `closed` is set.
    """

    def __init__(
        self, place: Location, *, patience: float = 60.0, closed: threading.Event | None = None
    ) -> None:
        self.place = place
        self._patience = patience
        self._closed = closed or threading.Event()
        self._lock = threading.Lock()
        self._opened: Any = None

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    def get(self, name: str, **query: Any) -> dict[str, Any]:
        return self.call("GET", name, query=query, repeatable=True)

    def list(self, name: str, key: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield the items of a collection, page by page."""
        token = ""
        while True:
            page = self.get(name, pageSize=_PAGE, pageToken=token, **query)
            yield from page.get(key, ())
            token = page.get("nextPageToken", "")
            if not token:
                return

    def post(self, name: str, body: Mapping[str, Any], **query: Any) -> dict[str, Any]:
        return self.call("POST", name, body, query=query)

    def patch(self, name: str, body: Mapping[str, Any], **query: Any) -> dict[str, Any]:
        return self.call("PATCH", name, body, query=query, repeatable=True)

    def tensorboard(self, name: str, *, create: bool = True) -> dict[str, Any]:
        """Return the managed TensorBoard of a display name, the oldest of several."""
        parent = f"{self.place.parent}/tensorboards"
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        found = self.list(parent, "tensorboards", filter=f'display_name="{quoted}"')
        exact = [one for one in found if one.get("displayName") == name]
        if exact:
            return min(exact, key=lambda one: str(one.get("createTime", "")))
        return self._finish(self.post(parent, {"displayName": name})) if create else {}

    def _finish(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for the result of a long operation."""
        deadline = time.monotonic() + 5 * self._patience
        while not operation.get("done"):
            if time.monotonic() > deadline or self._closed.wait(_OPERATION_SECONDS):
                raise VertexError(f"{self._where}: {operation['name']} did not finish. Try again.")
            operation = self.get(operation["name"])
        if error := operation.get("error"):
            raise VertexError(f"{self._where}: {_line(error.get('message', ''))}")
        return dict(operation.get("response", {}))

    def call(
        self,
        method: str,
        name: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        repeatable: bool = False,
    ) -> dict[str, Any]:
        """Send a request until Vertex has answered it.

        A request over a quota (429) had no effect and is retried. After other failures, only a
        `repeatable` request is retried: any other may have been carried out.

        Raises:
            VertexError: the request failed, or the quota did not allow it in time.
        """
        deadline = time.monotonic() + self._patience
        backoff = Backoff(_FIRST_BACKOFF, _LONGEST_BACKOFF)
        while True:
            try:
                return self._send(method, name, body, query)
            except _Failure as failure:
                again = failure.status == 429 or (repeatable and failure.transient)
                pause = max(failure.retry_after, backoff.grow() * random.uniform(0.5, 1.0))  # noqa: S311
                if not again or time.monotonic() + pause > deadline or self._closed.wait(pause):
                    raise self._explained(failure) from failure.__cause__

    def _send(
        self,
        method: str,
        name: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        session = self._session()
        import requests
        from google.auth import exceptions

        try:
            answer = session.request(
                method,
                f"{self.place.url}/v1/{name}",
                json=body,
                params={key: value for key, value in (query or {}).items() if value != ""},
                timeout=(_CONNECT_SECONDS, _READ_SECONDS),
                max_allowed_time=_READ_SECONDS,
            )
        except exceptions.RefreshError as error:
            raise _Failure(401, str(error)) from error
        except exceptions.TransportError as error:  # no token, so the request was not sent
            raise _Failure(0, str(error), transient=True, sent=False) from error
        except requests.exceptions.ConnectionError as error:
            raise _Failure(0, "connection failed", transient=True) from error
        except requests.exceptions.RequestException as error:
            raise _Failure(0, _line(str(error)), transient=True) from error
        if not 200 <= answer.status_code < 300:
            raise _Failure.of(answer)
        try:
            document = answer.json()
        except ValueError as error:
            raise _Failure(0, "the response is not JSON") from error
        return document if isinstance(document, dict) else {}

    def _session(self) -> Any:
        with self._lock:
            if self._opened is None:
                self._opened = _open_session()
            return self._opened

    @property
    def _where(self) -> str:
        return f"Vertex, project {self.place.project} in {self.place.location}"

    def _explained(self, failure: _Failure) -> VertexError:
        detail = f": {failure.message}" if failure.message else ""
        match failure.status:
            case 0:
                problem = f"Vertex does not answer at {self.place.url}{detail}. Check the network."
            case 401:
                problem = f"the Google credentials have expired or are not valid{detail}. {_LOGIN}"
            case 403:
                problem = (
                    f"{self._where}: permission denied{detail}. Ask for the role Vertex AI User"
                    " (roles/aiplatform.user), and check that the project exists."
                )
            case 404:
                problem = f"{self._where}: not found{detail}. Check the project and the location."
            case 429:
                problem = (
                    f"{self._where}: quota exceeded{detail}. Try later, or ask for more quota."
                )
            case status if status < 500:
                problem = f"{self._where}: the request was rejected{detail}."
            case status:
                problem = f"{self._where}: Vertex failed with status {status}{detail}. Try again."
        return VertexError(problem, failure.status, refused=not failure.sent)


class _Failure(Exception):
    def __init__(
        self, status: int, message: str, *, transient: bool = False, sent: bool = True
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _line(message)
        self.transient = transient or status in _TRANSIENT
        self.sent = sent
        self.retry_after = 0.0

    @classmethod
    def of(cls, answer: Any) -> _Failure:
        try:
            error = answer.json()["error"]
            message = str(error["message"])
        except (ValueError, LookupError, TypeError):
            message = ""
        failure = cls(answer.status_code, message)
        after = answer.headers.get("retry-after", "")
        failure.retry_after = float(after) if after.isdecimal() else 0.0
        return failure


def _open_session() -> Any:
    """Return a session with the credentials of this user or machine."""
    try:
        import google.auth
        from google.auth import exceptions
        from google.auth.transport.requests import AuthorizedSession
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        raise ExecutorError(explain("google-auth", "requests", install=_EXTRA)) from error
    try:
        credentials, _ = google.auth.default(scopes=_SCOPES)
    except exceptions.GoogleAuthError as error:
        raise VertexError(
            f"no usable Google credentials: {_line(str(error))}. {_LOGIN},"
            " or set GOOGLE_APPLICATION_CREDENTIALS.",
            refused=True,
        ) from error
    return AuthorizedSession(credentials)


def _line(text: str) -> str:
    """Return the start of a message as one line, without a final dot."""
    line = re.sub(r"\s+", " ", text).strip().rstrip(".")
    return line if len(line) <= 300 else f"{line[:300]}…"


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", text.lower())[:60]
