"""What the gate reads from a request, and which headers pass in either direction.

The application gets no secrets, no headers that a proxy or a WSGI bridge would trust, and no
ambiguous paths. Every response has headers that keep browsers from guessing types, framing the
page, and caching it for others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, unquote_plus, urlsplit

from aboard.system import machine_digest

if TYPE_CHECKING:
    from starlette.types import Scope

Headers = Iterable[tuple[bytes, bytes]]

CONNECTION = "aboard.connection"  # scope key: the connection of the request
COOKIE_PREFIX = "aboard-"
KEY = "key"
PREFIX = "aboard.prefix"  # scope key: the hub's path prefix, removed from the request's path
ORIGIN = "aboard.origin"  # scope key: the requested origin, if the server has several
HOME = "aboard.home"  # scope key: the origin where users log in, if it is another one
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
# A page on another port can set cookies before ours, as many as a browser keeps for a host.
_MAX_COOKIES = 256
_SAFE = "%/?!$&'()*+,;=:@~"
_WITHHELD = frozenset(
    {b"authorization", b"forwarded", b"proxy", b"proxy-authorization", b"tensorboard-experiment-id"}
)
_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_BY_DEFAULT = (
    # Not "no-referrer": browsers would send forms with "Origin: null", like another site's.
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"private"),
)
_FORCED = frozenset(name for name, _ in _ALWAYS)


@dataclass(frozen=True, slots=True)
class Request:
    """What the gate reads from a request; `target` is its path and query without the key.

    Only GET requests have a `key`, so that a preview with HEAD does not redeem it. `home` is the
    origin where users log in; empty if it is this one.
    """

    method: str
    path: str
    target: str
    key: str | None
    bearer: str | None
    cookies: tuple[tuple[str, str], ...]
    session_cookie: str
    accepts_html: bool
    is_cross_origin: bool
    path_is_clean: bool
    home: str = ""

    @property
    def own_address(self) -> str:
        """The target as a relative URL, because a proxy may remove a prefix that we do not know."""
        path, question, query = self.target.partition("?")
        return f"./{path.rpartition('/')[2]}{question}{query}"

    @property
    def sessions(self) -> tuple[str, ...]:
        """Values of the session cookie; a browser may send several."""
        return self.cookie(self.session_cookie)

    def cookie(self, name: str) -> tuple[str, ...]:
        found = dict.fromkeys(value for known, value in self.cookies if known == name)
        return tuple(found)[:_MAX_COOKIES]


def read_request(scope: Scope) -> Request:
    headers = list(scope["headers"])
    path = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
    query, key = split_key(scope.get("query_string", b"").decode("latin-1"))
    is_clean = is_clean_path(scope["path"]) and is_clean_path(path)
    method = scope.get("method", "")
    return Request(
        method=method,
        path=scope["path"],
        target=_quoted(path, query),
        key=key if method == "GET" and is_clean else None,
        bearer=bearer_of(headers),
        cookies=tuple(_cookies(headers)),
        session_cookie=session_cookie_name(scope),
        accepts_html=accepts_html(scope),
        is_cross_origin=_is_cross_origin(headers),
        path_is_clean=is_clean,
        home=scope.get(HOME, ""),
    )


def bearer_of(headers: Headers) -> str | None:
    """Return the token of a request, valid or not; None if it has none."""
    scheme, _, bearer = first_header(headers, b"authorization").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else None


def session_cookie_name(scope: Scope) -> str:
    """Return the name of a listener's session cookie.

    Browsers share cookies between the ports of a host, and forwarded ports of many machines are
    all "localhost". So the name contains the port and a digest of machine and user.
    """
    port = (scope.get("server") or ("", 0))[1] or 0
    # Behind a proxy, two origins of one listener may be two ports of one host.
    origin = scope.get(ORIGIN, "")
    return f"{COOKIE_PREFIX}{port}-{machine_digest()}{f'-{origin}' if origin else ''}"


def make_cookie(scope: Scope, name: str, value: str, *, path: str = "/", seconds: int) -> str:
    # Lax, not Strict: links in a chat or wiki should open for users who are logged in.
    cookie = (
        f"{name}={value}; Path={scope.get(PREFIX, '')}{path}; Max-Age={seconds}; HttpOnly;"
        " SameSite=Lax"
    )
    return f"{cookie}; Secure" if scope.get("scheme") == "https" else cookie


def accepts_html(scope: Scope) -> bool:
    return "text/html" in first_header(scope["headers"], b"accept").lower()


def is_clean_path(path: str) -> bool:
    """Return whether a path has the same meaning however often it is decoded."""
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
    """Remove the key from a query; return the unchanged rest and the key."""
    kept, key = [], None
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if unquote_plus(name) == KEY:
            key = unquote_plus(value)
        elif part:
            kept.append(part)
    return "&".join(kept), key


def local_target(text: str) -> str | None:
    """Return a path and query that stay on this server; None for any other text."""
    path, _, query = text.partition("?")
    if not is_clean_path(path):
        return None
    return _quoted(path, split_key(query)[0])


def withhold_secrets(scope: Scope) -> Scope:
    query, _ = split_key(scope.get("query_string", b"").decode("latin-1"))
    return {
        **scope,
        "headers": _kept_headers(scope["headers"]),
        "query_string": query.encode("latin-1"),
    }


def is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def first_header(headers: Headers, name: bytes) -> str:
    for known, value in headers:
        if known.lower() == name:
            return value.decode("latin-1")
    return ""


def secured(headers: list[tuple[bytes, bytes]], host: bytes) -> list[tuple[bytes, bytes]]:
    """Return safe response headers; a Content-Security-Policy is left to the author of the page."""
    kept = [_sanitized(name.lower(), value, host) for name, value in headers if _is_kept(name)]
    present = {name for name, _ in kept}
    return [*kept, *_ALWAYS, *(pair for pair in _BY_DEFAULT if pair[0] not in present)]


def _is_kept(name: bytes) -> bool:
    lowered = name.lower()
    return lowered not in _FORCED and not lowered.startswith(b"access-control-")


def _sanitized(name: bytes, value: bytes, host: bytes) -> tuple[bytes, bytes]:
    if name == b"cache-control":
        # Responses that need a secret must not be stored in shared caches.
        return name, value.lower().replace(b"public", b"private")
    if name == b"location":
        return name, _relative(value, host)
    return name, value


def _relative(location: bytes, host: bytes) -> bytes:
    """Remove the host from a redirect that was built from the request's Host header."""
    try:
        parts = urlsplit(location.decode("latin-1"))
    except ValueError:
        return location
    if not parts.netloc or parts.netloc.encode("latin-1").lower() != host.lower():
        return location
    path = "/" + parts.path.lstrip("/\\")
    return parts._replace(scheme="", netloc="", path=path).geturl().encode("latin-1")


def _quoted(path: str, query: str) -> str:
    text = f"{path}?{query}" if query else path
    return quote(text, safe=_SAFE, encoding="latin-1", errors="replace")


def _kept_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    kept = []
    for name, value in headers:
        lowered = name.lower()
        # WSGI does not distinguish "-" and "_", so a name with "_" could replace another header.
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


def _is_cross_origin(headers: Headers) -> bool:
    site = first_header(headers, b"sec-fetch-site").lower()
    if site:
        return site not in {"same-origin", "none"}
    origin = first_header(headers, b"origin").lower()
    if not origin:
        return False
    # The scheme is ignored: behind a proxy that terminates TLS, ours is not the browser's.
    try:
        return urlsplit(origin).netloc != first_header(headers, b"host").lower()
    except ValueError:
        return True
