"""Shared parts of all listeners: the gate and its secrets, error pages, sockets and the server.

A viewer or hub wraps its application in a `Gate`, opens sockets with `listen`, and runs with
`serve`. This package does not know what is served.
"""

from aboard.web.gate import Gate
from aboard.web.server import (
    ListenError,
    ServeError,
    ending_in_order,
    exposure,
    forwarding_hint,
    listen,
    listen_beside,
    serve,
    urls,
)
from aboard.web.tokens import TokenAccess, TokenError, read_token_file

__all__ = [
    "Gate",
    "ListenError",
    "ServeError",
    "TokenAccess",
    "TokenError",
    "ending_in_order",
    "exposure",
    "forwarding_hint",
    "listen",
    "listen_beside",
    "read_token_file",
    "serve",
    "urls",
]
