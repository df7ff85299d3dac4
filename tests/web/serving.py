"""A server in a thread of the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from aboard.web.server import GRACE, _Server

if TYPE_CHECKING:
    from starlette.types import ASGIApp


@contextmanager
def serving(app: ASGIApp, sockets: Sequence[socket.socket]) -> Iterator[None]:
    """Serve in a thread until the context exits."""
    ready = threading.Event()
    server = _Server(app, ready.set, GRACE)

    def run() -> None:
        try:
            with suppress(SystemExit):
                server.run(list(sockets))
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="aboard-web", daemon=True)
    thread.start()
    try:
        ready.wait()
        assert server.started
        yield
    finally:
        server.should_exit = True
        thread.join()
        for listener in sockets:
            listener.close()
