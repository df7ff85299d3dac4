"""The headers that every response carries, whoever wrote it.

They keep browsers from guessing types, framing us, sending our addresses elsewhere, and caching
for others. A Content-Security-Policy is left to whoever wrote the page.
"""

from __future__ import annotations

from urllib.parse import urlsplit

_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_BY_DEFAULT = (
    # Not "no-referrer": browsers then send forms with "Origin: null", like a stranger's.
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"private"),
)
_FORCED = frozenset(name for name, _ in _ALWAYS)


def secured(headers: list[tuple[bytes, bytes]], host: bytes) -> list[tuple[bytes, bytes]]:
    """Return a response's headers, made safe; `host` is the request's Host header."""
    kept = [_made_safe(name.lower(), value, host) for name, value in headers if _is_kept(name)]
    present = {name for name, _ in kept}
    return [*kept, *_ALWAYS, *(pair for pair in _BY_DEFAULT if pair[0] not in present)]


def _is_kept(name: bytes) -> bool:
    lowered = name.lower()
    return lowered not in _FORCED and not lowered.startswith(b"access-control-")


def _made_safe(name: bytes, value: bytes, host: bytes) -> tuple[bytes, bytes]:
    if name == b"cache-control":
        # What needs a secret is never for a cache that others share.
        return name, value.lower().replace(b"public", b"private")
    if name == b"location":
        return name, _relative(value, host)
    return name, value


def _relative(location: bytes, host: bytes) -> bytes:
    """Cut a host out of a redirect that was built from the request's own Host header."""
    try:
        parts = urlsplit(location.decode("latin-1"))
    except ValueError:
        return location
    if not parts.netloc or parts.netloc.encode("latin-1").lower() != host.lower():
        return location
    path = "/" + parts.path.lstrip("/\\")
    return parts._replace(scheme="", netloc="", path=path).geturl().encode("latin-1")
