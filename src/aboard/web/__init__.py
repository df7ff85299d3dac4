"""What every listener shares: the gate with its secrets, error pages, sockets and the server.

A viewer or a hub wraps its application in a `Gate`, opens sockets with `listen`, and runs with
`serve`. Nothing here knows what is served.
"""

from aboard.web.access import Access, Redeemed
from aboard.web.brake import Brake
from aboard.web.errors import ListenError, ServeError, TokenError, WebError
from aboard.web.gate import Gate
from aboard.web.pages import Problem, Reply
from aboard.web.server import (
    ending_in_order,
    exposure,
    forwarding_hint,
    listen,
    serve,
    serving,
    urls,
)
from aboard.web.tokens import new_token, read_token_file, write_token_file

__all__ = [
    "Access",
    "Brake",
    "Gate",
    "ListenError",
    "Problem",
    "Redeemed",
    "Reply",
    "ServeError",
    "TokenError",
    "WebError",
    "ending_in_order",
    "exposure",
    "forwarding_hint",
    "listen",
    "new_token",
    "read_token_file",
    "serve",
    "serving",
    "urls",
    "write_token_file",
]
