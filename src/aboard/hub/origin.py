"""The hub's own address: as browsers write it, behind whichever proxy, and in its cookies.

What a proxy says about a request counts only if the proxy is trusted; from anybody else it would
let a client choose what the hub believes of him.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from aboard.hub.auth import Opened
from aboard.hub.config import Config
from aboard.hub.forwarding import PREFIX
from aboard.web.request import COOKIE_PREFIX, listener_cookie

if TYPE_CHECKING:
    from starlette.types import Scope

_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


def as_sent(scope: Scope, config: Config) -> Scope:
    """Return a request as its client sent it: before proxies, and without the prefix."""
    path, raw = scope["path"], scope.get("raw_path")
    prefix = config.prefix
    if prefix and path.startswith(f"{prefix}/"):
        path = path[len(prefix) :]
        raw = raw[len(prefix.encode()) :] if raw and raw.startswith(prefix.encode()) else None
    scope = {**scope, "path": path, "raw_path": raw or path.encode(), "root_path": ""}
    scope[PREFIX] = prefix
    client = scope.get("client")
    if not config.trusted_proxies or client is None or not _is_trusted(client[0], config):
        return scope
    told = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    headers = list(scope["headers"])
    if host := told.get(b"x-forwarded-host", "").rpartition(",")[2].strip():
        headers = [pair for pair in headers if pair[0].lower() != b"host"]
        headers.append((b"host", host.encode("latin-1")))
    proto = told.get(b"x-forwarded-proto", "").rpartition(",")[2].strip().lower()
    scheme = scope.get("scheme", "http")
    if proto in _SCHEMES:
        secure = _SCHEMES[proto] == "https"
        plain = "ws" if scope["type"] == "websocket" else "http"
        scheme = f"{plain}s" if secure else plain
    address = _client_before(told.get(b"x-forwarded-for", ""), client[0], config)
    return {**scope, "headers": headers, "scheme": scheme, "client": (address, 0)}


def address_of(scope: Scope, config: Config) -> str:
    """Return the hub's address, without a slash at the end."""
    if config.url:
        return config.url
    host = next((value for name, value in scope["headers"] if name.lower() == b"host"), b"")
    name = host.decode("latin-1") or ":".join(map(str, scope.get("server") or ("localhost",)))
    return f"{_SCHEMES[scope.get('scheme', 'http')]}://{name}"


def session_cookie(scope: Scope, config: Config, opened: Opened) -> str:
    """Return the header that gives a browser its session."""
    age = max(int(opened.session.expires - opened.session.created), 1)
    return _cookie(scope, config, listener_cookie(scope), opened.secret, "/", age)


def end_cookie(scope: Scope, config: Config) -> str:
    """Return the header that takes a session from a browser."""
    return _cookie(scope, config, listener_cookie(scope), "", "/", 0)


def share_cookie_name(board_id: str) -> str:
    """Return the name of the cookie of whoever came with a link."""
    return f"{COOKIE_PREFIX}share-{board_id}"


def share_cookie(scope: Scope, config: Config, board_id: str, secret: str, age: int) -> str:
    """Return the header that shows one board to a browser."""
    return _cookie(scope, config, share_cookie_name(board_id), secret, f"/b/{board_id}/", age)


def _cookie(scope: Scope, config: Config, name: str, value: str, path: str, age: int) -> str:
    # Lax, not Strict: a link in a chat or a wiki should open for those who are logged in.
    cookie = f"{name}={value}; Path={config.prefix}{path}; Max-Age={age}; HttpOnly; SameSite=Lax"
    return f"{cookie}; Secure" if address_of(scope, config).startswith("https:") else cookie


def _client_before(told: str, address: str, config: Config) -> str:
    """Return the last address in a chain of proxies that is not one of ours."""
    for hop in reversed([one.strip() for one in told.split(",") if one.strip()]):
        if not _is_trusted(address, config):
            break
        try:
            address = str(ipaddress.ip_address(hop))
        except ValueError:
            break
    return address


def _is_trusted(address: str, config: Config) -> bool:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(known in network for network in config.trusted_proxies)
