"""What a request says about its sender, and what of it may reach the application.

Pure functions over ASGI scopes. The application sees no secret, no header that a proxy or a
bridge to WSGI would trust, and no path that could mean two things.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, unquote_plus, urlsplit

if TYPE_CHECKING:
    from starlette.types import Scope

Headers = Iterable[tuple[bytes, bytes]]

COOKIE_PREFIX = "aboard-"
KEY = "key"
READING = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_MOST_SESSIONS = 256
"""A page on another port can plant cookies before ours, as many as a browser holds for a host."""
_SAFE = "%/?!$&'()*+,;=:@~"
_WITHHELD = frozenset(
    {b"authorization", b"forwarded", b"proxy", b"proxy-authorization", b"tensorboard-experiment-id"}
)


@dataclass(frozen=True, slots=True)
class Request:
    """What the gate looks at in a request.

    `target` is the path and query without the key; `key` is there only where it may be used up,
    which a HEAD of some preview should not do.
    """

    method: str
    path: str
    target: str
    key: str | None
    bearer: str | None
    sessions: tuple[str, ...]
    accepts_html: bool
    from_elsewhere: bool
    path_is_clean: bool

    @property
    def own_address(self) -> str:
        """The target relative to itself: a proxy may have cut off a prefix we do not know."""
        path, question, query = self.target.partition("?")
        return f"./{path.rpartition('/')[2]}{question}{query}"


def read_request(scope: Scope, cookie: str) -> Request:
    """Look at a request; `cookie` is the name of the cookie that holds a session."""
    headers = list(scope["headers"])
    path = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
    query, key = split_key(scope.get("query_string", b"").decode("latin-1"))
    is_clean = is_clean_path(scope["path"]) and is_clean_path(path)
    method = scope.get("method", "")
    sessions = [value for name, value in _cookies(headers) if name == cookie]
    scheme, _, bearer = _first(headers, b"authorization").partition(" ")
    return Request(
        method=method,
        path=scope["path"],
        target=_spelled(path, query),
        key=key if method == "GET" and is_clean else None,
        bearer=bearer.strip() if scheme.lower() == "bearer" else None,
        sessions=tuple(dict.fromkeys(sessions))[:_MOST_SESSIONS],
        accepts_html=accepts_html(scope),
        from_elsewhere=_is_from_elsewhere(headers),
        path_is_clean=is_clean,
    )


def listener_cookie(scope: Scope) -> str:
    """Return the name of the cookie that holds a session with a listener.

    Browsers share cookies between the ports of a host, and forwarded ports of many machines are
    all "localhost": so the name has the port, and says whose machine it is.
    """
    port = (scope.get("server") or ("", 0))[1] or 0
    return f"{COOKIE_PREFIX}{port}-{this_machine()}"


def this_machine() -> str:
    """Return a short name of this machine and its user, which does not tell either."""
    text = f"{socket.gethostname()} {os.getuid()}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def accepts_html(scope: Scope) -> bool:
    """Say whether the client asked for pages rather than for data."""
    return "text/html" in _first(scope["headers"], b"accept").lower()


def is_clean_path(path: str) -> bool:
    """Say whether a path means the same to everyone who may decode it, once or twice over."""
    for _ in range(3):
        if not path.startswith("/") or path.startswith("//") or "\\" in path:
            return False
        if ".." in path.split("/") or any(ord(sign) < 0x20 or ord(sign) == 0x7F for sign in path):
            return False
        decoded = unquote(path)
        if decoded == path:
            return True
        path = decoded
    return False


def split_key(query: str) -> tuple[str, str | None]:
    """Take the one-time key out of a query; everything else stays as it was written."""
    kept, key = [], None
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if unquote_plus(name) == KEY:
            key = unquote_plus(value)
        elif part:
            kept.append(part)
    return "&".join(kept), key


def local_target(text: str) -> str | None:
    """Return a path and query that stay on this server, or None if the text is none."""
    path, _, query = text.partition("?")
    if not is_clean_path(path):
        return None
    return _spelled(path, split_key(query)[0])


def withhold_secrets(scope: Scope) -> Scope:
    """Return the scope that the application sees."""
    query, _ = split_key(scope.get("query_string", b"").decode("latin-1"))
    return {
        **scope,
        "headers": _kept_headers(scope["headers"]),
        "query_string": query.encode("latin-1"),
    }


def _spelled(path: str, query: str) -> str:
    """Put a path and a query together, of characters that a header or a page can hold."""
    text = f"{path}?{query}" if query else path
    return quote(text, safe=_SAFE, encoding="latin-1", errors="replace")


def _kept_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    kept = []
    for name, value in headers:
        lowered = name.lower()
        # WSGI spells "-" and "_" alike, so a name with "_" can pass for any other header.
        if b"_" in lowered or lowered in _WITHHELD or lowered.startswith(b"x-forwarded-"):
            continue
        if lowered == b"cookie":
            others = [
                f"{key}={text}"
                for key, text in _cookies([(name, value)])
                if not key.startswith(COOKIE_PREFIX)
            ]
            if not others:
                continue
            value = "; ".join(others).encode("latin-1")  # noqa: PLW2901
        kept.append((name, value))
    return kept


def _cookies(headers: Headers) -> list[tuple[str, str]]:
    pairs = []
    for name, value in headers:
        if name.lower() == b"cookie":
            for part in value.decode("latin-1").split(";"):
                key, _, text = part.strip().partition("=")
                if key:
                    pairs.append((key, text))
    return pairs


def _is_from_elsewhere(headers: Headers) -> bool:
    """Say whether a browser reports that another origin's page sent this request."""
    headers = list(headers)
    site = _first(headers, b"sec-fetch-site").lower()
    if site:
        return site not in {"same-origin", "none"}
    origin = _first(headers, b"origin").lower()
    if not origin:
        return False
    # The scheme is left out: behind a proxy that ends TLS, ours is not the browser's.
    try:
        return urlsplit(origin).netloc != _first(headers, b"host").lower()
    except ValueError:
        return True


def _first(headers: Headers, wanted: bytes) -> str:
    for name, value in headers:
        if name.lower() == wanted:
            return value.decode("latin-1")
    return ""
