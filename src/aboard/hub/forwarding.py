"""What of a request reaches a board behind the hub, and what of its answer comes back.

Pure functions over headers and addresses. A board hears from nobody but the hub: it sees none of
the hub's secrets, and nothing that says who is before the hub. What it answers stays below its own
address, and cannot speak for the hub.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit

from aboard.executors.base import Address
from aboard.web.headers import secured
from aboard.web.request import COOKIE_PREFIX, is_clean_path, withhold_secrets

if TYPE_CHECKING:
    from starlette.types import Scope

Headers = list[tuple[bytes, bytes]]

PREFIX = "aboard.prefix"
"""Where a scope has the path before all addresses of the hub, which was cut off its own path."""
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_TO_BOARDS = frozenset(
    {
        # Who asks, as other proxies tell it, and what to do instead.
        b"cf-connecting-ip",
        b"client-ip",
        b"true-client-ip",
        b"via",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-http-method",
        b"x-http-method-override",
        b"x-method-override",
        b"x-original-url",
        b"x-real-ip",
        b"x-rewrite-url",
        b"x-scheme",
        b"x-script-name",
        # The server before us has answered that already.
        b"expect",
        # Written anew.
        b"host",
    }
)
_NOT_FROM_BOARDS = frozenset(
    {
        # They speak for a whole host, which is the hub's.
        b"alt-svc",
        b"clear-site-data",
        b"nel",
        b"origin-agent-cluster",
        b"report-to",
        b"reporting-endpoints",
        b"service-worker-allowed",
        b"set-cookie2",
        b"strict-transport-security",
        b"www-authenticate",
        # Web servers before the hub would obey them.
        b"x-accel-buffering",
        b"x-accel-charset",
        b"x-accel-expires",
        b"x-accel-limit-rate",
        b"x-accel-redirect",
        b"x-lighttpd-send-file",
        b"x-sendfile",
        # Our server writes its own.
        b"date",
        b"server",
    }
)
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_UNSENDABLE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("#", "")


def path_below(scope: Scope) -> str | None:
    """Return what an address has below its board, as it was written; None if it may not be used.

    The scope is that of an application mounted at the board: `root_path` is the board's address.
    """
    path = scope["path"]
    raw: bytes = scope.get("raw_path") or quote(path).encode()
    root = scope.get("root_path", "")
    if not path.startswith(f"{root}/") or not raw.startswith(f"{root}/".encode()):
        return None
    below = _written(raw[len(root.encode()) :])
    if not is_clean_path(path[len(root) :]) or not is_clean_path(below):
        return None
    return below


def query_of(scope: Scope) -> str:
    """Return a request's query as a board may see it, with its question mark."""
    query: bytes = withhold_secrets(scope)["query_string"]
    return f"?{_written(query)}" if query else ""


def origin(address: Address) -> str:
    """Return the scheme, host and port of a board's own listener."""
    return f"http://{authority(address)}"


def authority(address: Address) -> str:
    """Return the host and port of a board's own listener."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"


def request_headers(scope: Scope, address: Address) -> list[tuple[str, str]]:
    """Return the headers that a request has on its way to a board."""
    headers: Headers = withhold_secrets(scope)["headers"]
    hub = next((value for name, value in headers if name.lower() == b"host"), b"").lower()
    lengthless = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    kept = []
    for name, value in _end_to_end(headers):
        if name in _NOT_TO_BOARDS or name.startswith((b"sec-websocket-", b"x-aboard-")):
            continue
        if name == b"content-length" and lengthless:
            continue
        if name in (b"origin", b"referer"):
            value = _seen_from_board(name, value, hub, scope, address)  # noqa: PLW2901
            if not value:
                continue
        kept.append((name.decode("ascii"), _text(value)))
    return [
        ("host", authority(address)),
        *kept,
        ("authorization", f"Bearer {address.token}"),
    ]


def response_headers(
    headers: Iterable[tuple[bytes, bytes]], scope: Scope, address: Address, asked: str
) -> Headers:
    """Return the headers that a board's answer has on its way to the client.

    Args:
        headers: as the board sent them.
        scope: the client's request.
        address: the board's own listener.
        asked: the path on the board's own listener that was asked for.
    """
    headers = list(headers)
    lengthless = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    public = _public(scope)
    kept: Headers = []
    for name, value in _end_to_end(headers):
        if name in _NOT_FROM_BOARDS or (name == b"content-length" and lengthless):
            continue
        if name in (b"location", b"content-location"):
            value = _public_location(value, public, address, asked)  # noqa: PLW2901
        elif name == b"set-cookie":
            value = public_cookie(  # noqa: PLW2901
                value, public, address.path, secure=scope.get("scheme") == "https"
            )
        if value:
            kept.append((name, value))
    host = next((value for name, value in scope["headers"] if name.lower() == b"host"), b"")
    return secured(kept, host)


def _public(scope: Scope) -> str:
    """Return the path of a board as browsers write it."""
    return f"{scope.get(PREFIX, '')}{scope.get('root_path', '')}/"


def public_cookie(cookie: bytes, public: str, private: str, *, secure: bool) -> bytes:
    """Return a board's cookie, confined to the board's address; empty if it may not be set."""
    pair, *attributes = [part.strip(b" \t") for part in cookie.split(b";")]
    name, equals, value = pair.partition(b"=")
    name = name.strip(b" \t")
    # A cookie without a name is sent as its value alone, and so could pass for one of ours.
    if not equals or not _TOKEN.fullmatch(name) or _is_hub_cookie(name):
        return b""
    path = public
    kept = [name + b"=" + value.strip(b" \t")]
    for attribute in attributes:
        key, _, text = attribute.partition(b"=")
        match key.strip(b" \t").lower():
            case b"path":
                path = _public_path(text.strip(b" \t").decode("latin-1"), public, private)
            case b"domain" | b"secure" | b"":
                secure = secure or key.lower() == b"secure"
            case _:
                kept.append(attribute)
    kept.append(b"Path=" + path.encode("latin-1"))
    if secure:
        kept.append(b"Secure")
    return b"; ".join(kept)


def _is_hub_cookie(name: bytes) -> bool:
    lowered = name.lower()
    for prefix in (b"__host-", b"__secure-"):
        lowered = lowered.removeprefix(prefix)
    return lowered.startswith(COOKIE_PREFIX.encode())


def _public_path(path: str, public: str, private: str) -> str:
    """Return a path of a board's listener as the hub's clients know it."""
    if path.startswith(private):
        return public + path[len(private) :]
    return public


def _public_location(location: bytes, public: str, address: Address, asked: str) -> bytes:
    """Return where a redirect leads, as the hub's clients know it; empty if nowhere."""
    try:
        target = urljoin(origin(address) + asked, location.decode("latin-1"))
        parts = urlsplit(target)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return b""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return b""
    if port != address.port or not _same_host(parts.hostname, address.host):
        return _written(target.encode("latin-1"), "#").encode()
    path = _public_path(parts.path, public, address.path)
    if not is_clean_path(path):
        path = public
    relative = parts._replace(scheme="", netloc="", path=path).geturl()
    return _written(relative.encode("latin-1"), "#").encode()


def _same_host(one: str, other: str) -> bool:
    return one.lower() == other.lower() or (_is_loopback(one) and _is_loopback(other))


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _seen_from_board(
    name: bytes, value: bytes, hub: bytes, scope: Scope, address: Address
) -> bytes:
    """Return the hub's own origin or page as the board knows it; another's page stays unnamed."""
    try:
        parts = urlsplit(value.decode("latin-1"))
    except ValueError:
        return b"null" if name == b"origin" else b""
    is_own = parts.netloc.lower().encode("latin-1") == hub
    if name == b"origin":
        # Another site's stays what it is: the board shall be able to refuse it.
        return origin(address).encode() if is_own else value
    public = _public(scope)
    if not is_own or not parts.path.startswith(public):
        return b""
    path = address.path + parts.path[len(public) :]
    return f"{origin(address)}{_written(path.encode('latin-1'))}".encode()


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers that go further than to the next listener, with lower-case names."""
    lowered = [(name.lower(), value.strip(b" \t")) for name, value in headers]
    named = {
        option.strip().lower()
        for name, value in lowered
        if name == b"connection"
        for option in value.split(b",")
    }
    return [
        (name, value)
        for name, value in lowered
        if name not in _HOP_BY_HOP
        and name not in named
        and _TOKEN.fullmatch(name)
        and not _UNSENDABLE.search(value)
    ]


def _written(text: bytes, more: str = "") -> str:
    """Return a part of an address in visible ASCII characters, which is how it is sent."""
    return quote(text, safe=_VISIBLE + more)


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
