"""Listening and serving: sockets, their addresses in words, and a server that ends cleanly.

`listen` holds the port before anything slow begins, so that an address can be shown at once;
`serve` runs an application on it until a signal comes. Who may come in is left to `gate`.
"""

from __future__ import annotations

import errno
import getpass
import ipaddress
import logging
import shlex
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from aboard.web.connections import (
    MOST_STRANGERS,
    Connection,
    Door,
    Strangers,
    allow_many_files,
    open_files,
)
from aboard.web.errors import ListenError, ServeError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

LOCALHOST = "localhost"
DEFAULT_PORT = 6006
GRACE = 2
_BACKLOG = 1024
_NOT_STARTED = "the server could not start. Its log says why."
_Address = tuple[socket.AddressFamily, str]


def listen(
    host: str = LOCALHOST, port: int | None = None, *, search: int = 100
) -> list[socket.socket]:
    """Open listening sockets, one for each address of the host, all on one port.

    Args:
        host: a name or an address; "0.0.0.0" or "::" for every network this machine is on.
        port: taken as given, 0 for any; without one, the first free one from 6006 on.
        search: how many ports to try when none is given.

    Raises:
        ListenError: there is no such address here, or no free port.
    """
    if port is not None and not 0 <= port <= 65535:
        raise ListenError(f"port {port} does not exist. Choose one from 1024 to 65535.")
    addresses = _addresses(host)
    candidates = range(DEFAULT_PORT, DEFAULT_PORT + search) if port is None else [port] * 10
    for candidate in candidates:
        try:
            return _bind_all(addresses, candidate)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _explain(host, candidate, error) from error
            if port:
                break
    if port:
        raise ListenError(
            f"port {port} on {host} is taken. "
            "Choose another one, or give none to use the first that is free."
        )
    if port is None:
        last = DEFAULT_PORT + search - 1
        raise ListenError(
            f"the ports {DEFAULT_PORT} to {last} on {host} are all taken. Choose another one."
        )
    raise ListenError(f"no port on {host} is free. Stop a server, or listen on another address.")


def urls(sockets: Sequence[socket.socket], host: str, scheme: str = "http") -> list[str]:
    """Return the addresses to open, the best first, without a path: `http://localhost:6006`."""
    port = sockets[0].getsockname()[1]
    names = [host]
    if _is_wildcard(host):
        # Of "localhost", someone else may hold the address family that we do not.
        names = [socket.gethostname(), LOCALHOST if ":" in host else "127.0.0.1"]
    return [f"{scheme}://{_in_url(name)}:{port}" for name in names]


def exposure(host: str) -> str | None:
    """Say what it means to listen on an address that is not this machine's own."""
    if host == LOCALHOST or _is_loopback(host):
        return None
    where = "every network of this machine" if _is_wildcard(host) else f"the network, as {host}"
    return (
        f"listening on {where}: whoever can reach it can try to get in, and what is sent is not "
        "encrypted. Use localhost and an SSH tunnel if you do not trust the network."
    )


def forwarding_hint(environ: Mapping[str, str], port: int) -> str | None:
    """Return the command that brings a port to the machine a user came from over SSH."""
    connection = environ.get("SSH_CONNECTION", "").split()
    if not connection:
        return None
    # An address of ours, not "localhost": see `urls`.
    command = ["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}"]
    if len(connection) == 4 and connection[3] != "22":
        command += ["-p", connection[3]]
    return shlex.join([*command, f"{_user_at()}{socket.gethostname()}"])


def serve(
    app: ASGIApp,
    sockets: Sequence[socket.socket],
    *,
    on_ready: Callable[[], None] | None = None,
    grace: int = GRACE,
    certificate: tuple[Path, Path] | None = None,
) -> signal.Signals | None:
    """Serve until SIGINT, SIGTERM or SIGHUP, and return which one came.

    Requests under way get `grace` seconds to end; a second SIGINT ends them at once. Nothing is
    logged about requests, because their addresses may hold a secret. The process may open as many
    files as the system lets it.

    Args:
        app: what to serve.
        sockets: where.
        on_ready: is called when connections are accepted.
        grace: seconds.
        certificate: the files of a TLS certificate and its key, to serve https.

    Raises:
        ServeError: the application could not be started.
    """
    allow_many_files()
    try:
        server = _Server(app, on_ready, grace, certificate)
    except (OSError, ssl.SSLError) as error:
        reason = (error.strerror or str(error)).lower()
        raise ServeError(f"the TLS certificate or its key cannot be used: {reason}.") from error
    try:
        server.run(list(sockets))
    except SystemExit:
        raise ServeError(_NOT_STARTED) from None
    finally:
        _close(sockets)
    return server.ended_by


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the process as an error does, so that what is open is closed.

    For what is made before `serve`, which has its own way, begins.
    """

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in _ending_signals()}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _ending_signals() -> list[signal.Signals]:
    """Return the signals that ask this process to end, other than SIGINT."""
    wanted = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which nohup asks for
        wanted.append(signal.SIGHUP)
    return wanted


@contextmanager
def serving(
    app: ASGIApp, sockets: Sequence[socket.socket], *, grace: int = GRACE
) -> Iterator[None]:
    """Serve in a thread for as long as the context lasts.

    Raises:
        ServeError: the application could not be started.
    """
    ready = threading.Event()
    server = _Server(app, ready.set, grace)

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
        if not server.started:
            raise ServeError(_NOT_STARTED)
        yield
    finally:
        server.should_exit = True
        thread.join()
        _close(sockets)


class _Server(uvicorn.Server):
    """Uvicorn, quiet, and leaving to its caller what a signal means."""

    def __init__(
        self,
        app: ASGIApp,
        on_ready: Callable[[], None] | None,
        grace: int,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            access_log=False,
            log_config=None,
            log_level=logging.ERROR,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=grace,
            ssl_certfile=certificate and certificate[0],
            ssl_keyfile=certificate and certificate[1],
        )
        config.load()  # reads the certificate, so that a bad one is told before anything runs
        super().__init__(config)
        self.ended_by: signal.Signals | None = None
        self._on_ready = on_ready
        self._door: Door | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, and say so."""
        await super().startup([])
        strangers = Strangers(min(open_files() // 4, MOST_STRANGERS))
        make = partial(
            Connection,
            strangers,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        self._door = Door(make, strangers, self.config.ssl)
        self._door.open(sockets or [])
        if self._on_ready is not None:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End within the time of grace, without a word about those who did not."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        if self._door is not None:
            self._door.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take signals as the wish to end, and do not raise them again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = [signal.SIGINT, *_ending_signals()]
        before = {number: signal.signal(number, self.handle_exit) for number in wanted}
        try:
            yield
        finally:
            for number, action in before.items():
                signal.signal(number, action)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the first signal."""
        self.ended_by = self.ended_by or signal.Signals(sig)
        super().handle_exit(sig, frame)


def _addresses(host: str) -> list[_Address]:
    """Return the addresses that a host means here, IPv4 first."""
    if host == LOCALHOST:
        # Both, whatever the resolver says: a browser may try either, and finding another user's
        # server there would hand our key to it.
        return [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(
            f"{host!r} is not a known host. Use localhost, 0.0.0.0, or an address of this machine."
        ) from error
    addresses = {(family, str(address[0])) for family, _, _, _, address in found}
    return sorted(addresses)


def _bind_all(addresses: list[_Address], port: int) -> list[socket.socket]:
    """Bind every address to one port, or none; loopback without IPv6 is loopback too."""
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            try:
                sockets.append(_bind(family, address, port))
            except OSError as error:
                if not sockets or error.errno not in _NO_SUCH_ADDRESS:
                    raise
            port = port or sockets[0].getsockname()[1]
    except BaseException:
        _close(sockets)
        raise
    return sockets


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    # Named, so that asyncio sees TCP and sends small answers at once.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            only = 0 if _is_wildcard(address) else 1
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        info = socket.getaddrinfo(address, port, family, socket.SOCK_STREAM)
        listener.bind(info[0][4])
        # Until it listens, another user's socket could still take the same port.
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


_NO_SUCH_ADDRESS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
_REASONS = {
    errno.EACCES: "is reserved for the system. Choose one from 1024 on.",
    errno.EADDRNOTAVAIL: "cannot be used: this machine has no such address. Use localhost.",
    errno.EAFNOSUPPORT: "cannot be used: this machine has no IPv6. Use localhost or 127.0.0.1.",
}


def _explain(host: str, port: int, error: OSError) -> ListenError:
    reason = _REASONS.get(
        error.errno or 0, f"cannot be used: {(error.strerror or str(error)).lower()}. Use another."
    )
    return ListenError(f"port {port} on {host} {reason}")


def _is_wildcard(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return False


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _user_at() -> str:
    # A container may run as a user without a name.
    with suppress(KeyError, OSError):
        return f"{getpass.getuser()}@"
    return ""


def _in_url(name: str) -> str:
    return f"[{name.replace('%', '%25')}]" if ":" in name else name


def _close(sockets: Sequence[socket.socket]) -> None:
    for listener in sockets:
        listener.close()
