"""Sockets, addresses, certificates, and a server that shuts down cleanly.

`listen` binds the port before anything slow begins, so that an address can be shown at once. A
connection uses a file descriptor before it sends a secret, so the server limits connections without
one, and the time for headers. Authentication is left to `gate`.
"""

from __future__ import annotations

import asyncio
import errno
import getpass
import hashlib
import ipaddress
import logging
import resource
import shlex
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from aboard.system import requires
from aboard.web.pages import Problem
from aboard.web.request import CONNECTION, is_loopback, secured

with requires("h11", "uvicorn"):
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCALHOST = "localhost"
DEFAULT_PORT = 6006
_PORTS = 100  # to try, until one is free
GRACE = 2
HEADER_SECONDS = 10.0  # also for a TLS handshake
MAX_FILES = 65_536
MAX_UNTRUSTED = 1024
_BACKLOG = 1024
_SWITCH_SECONDS = 0.001  # then a thread releases the interpreter lock to another
_ACCEPT_BATCH = 128
_LOG_SECONDS = 10.0
_CERTIFICATE_TIME = timedelta(days=3650)  # clients compare the fingerprint, not the dates
_Address = tuple[socket.AddressFamily, str]


class ListenError(Exception):
    """An address or port on which the server cannot listen."""


class ServeError(Exception):
    """An application that cannot be started."""


def listen(host: str = LOCALHOST, port: int | None = None) -> list[socket.socket]:
    """Open listening sockets, one for each address of the host, all on one port.

    Port 0 means any; without a port, the first free one of 100 ports from 6006.
    """
    if port is not None and not 0 <= port <= 65535:
        raise ListenError(f"invalid port {port}. Choose one from 1024 to 65535.")
    addresses = _addresses(host)
    candidates = range(DEFAULT_PORT, DEFAULT_PORT + _PORTS) if port is None else [port] * 10
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
            f"port {port} on {host} is in use. "
            "Choose another port, or give none to use the first free one."
        )
    if port is None:
        last = DEFAULT_PORT + _PORTS - 1
        raise ListenError(
            f"ports {DEFAULT_PORT} to {last} on {host} are all in use. Choose another port."
        )
    raise ListenError(f"no port on {host} is free. Stop a server, or listen on another address.")


def listen_beside(
    sockets: Sequence[socket.socket], host: str, port: int | None = None
) -> list[socket.socket]:
    """Open a second port of a host: the given one if it is free, or one after the first."""
    first: int = sockets[0].getsockname()[1]
    preferred = [] if port is None else [port]
    for candidate in [*preferred, *range(first + 1, min(first + _PORTS, 65535))]:
        with suppress(ListenError):
            return listen(host, candidate)
    return listen(host, 0)


def urls(sockets: Sequence[socket.socket], host: str, scheme: str = "http") -> list[str]:
    """Return the addresses of listening sockets; see `addresses`."""
    return addresses(host, sockets[0].getsockname()[1], scheme)


def addresses(host: str, port: int, scheme: str = "http") -> list[str]:
    """Return the addresses to open, best first, without a path: `http://localhost:6006`."""
    names = [host]
    if _is_wildcard(host):
        # Not "localhost": another user may have bound its other address family.
        names = [socket.gethostname(), LOCALHOST if ":" in host else "127.0.0.1"]
    return [f"{scheme}://{_in_url(name)}:{port}" for name in names]


def exposure(host: str) -> str | None:
    """Return a warning if other machines can reach an address."""
    if is_loopback(host):
        return None
    where = "all networks of this machine" if _is_wildcard(host) else f"the network, as {host}"
    return (
        f"listening on {where}: every machine there can reach this port, and traffic is not"
        " encrypted. Use localhost and an SSH tunnel if you do not trust the network."
    )


def forwarding_hint(environ: Mapping[str, str], *ports: int) -> str | None:
    """Return the command that forwards ports to the machine of a user who is logged in with SSH.

    In a Slurm job on another node, the node from which it was submitted is the jump host.
    """
    host = socket.gethostname()
    login = environ.get("SLURM_SUBMIT_HOST", "") if "SLURM_JOB_ID" in environ else ""
    if login.partition(".")[0] == host.partition(".")[0]:
        login = ""
    connection = environ.get("SSH_CONNECTION", "").split()
    if not connection and not login:
        return None
    # Our address, not "localhost": see `addresses`.
    command = ["ssh", "-N"]
    for port in ports:
        command += ["-L", f"{port}:127.0.0.1:{port}"]
    other_port = connection[3] if len(connection) == 4 and connection[3] != "22" else ""
    if login:
        command += ["-J", f"{_user_at()}{login}{f':{other_port}' if other_port else ''}"]
    elif other_port:
        command += ["-p", other_port]
    return shlex.join([*command, f"{_user_at()}{host}"])


def serve(
    app: ASGIApp,
    sockets: Sequence[socket.socket],
    *,
    on_ready: Callable[[], None] | None = None,
    grace: int = GRACE,
    certificate: tuple[Path, Path] | None = None,
) -> signal.Signals | None:
    """Serve until SIGINT, SIGTERM or SIGHUP, and return the signal.

    Requests in progress get `grace` seconds to finish; a second SIGINT aborts them. Requests are
    not logged, because their URLs may contain secrets. `certificate` has the files of a TLS
    certificate and its key. Raise `ServeError` if the application cannot be started.
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
        raise ServeError("the server could not start. See its log.") from None
    finally:
        _close(sockets)
    return server.ended_by


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit before `serve`, so that resources are closed."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _handling(_ending_signals(), end):
        yield


@contextmanager
def _handling(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _ending_signals() -> list[signal.Signals]:
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup
        return [signal.SIGTERM]
    return [signal.SIGTERM, signal.SIGHUP]


_ACCEPT_STEPS = 3  # of the loop, until an accepted connection has a protocol, which is then closed


class UntrustedConnections:
    """The connections that have not sent a valid secret, oldest first.

    Above `limit`, one is closed: the oldest without a request, or else the oldest.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, connection: Connection) -> None:
        self._held[connection] = None
        if len(self._held) > self.limit:
            self.close(1)

    def discard(self, connection: Connection) -> None:
        self._held.pop(connection, None)

    def close(self, count: int) -> None:
        for _ in range(min(count, len(self._held))):
            oldest = next(iter(self._held))
            chosen = next((one for one in self._held if one.is_idle), oldest)
            del self._held[chosen]
            chosen.abort()

    def abort_handshakes(self) -> None:
        for connection in [one for one in self._held if one.transport is None]:
            connection.abort()


class Connection(H11Protocol):
    """A connection with a timeout for headers, untrusted until a request has a valid secret.

    uvicorn has no such timeout, and its `limit_concurrency` responds with 503 to the owner too when
    others hold too many connections.

    This uses undocumented attributes of `H11Protocol`: `app`, `conn`, `cycle`, `headers`, `loop`,
    `transport`, `handle_websocket_upgrade`, `send_400_response` and `shutdown`. Checked with
    uvicorn 0.54; tests/web/test_server.py fails if they change.
    """

    def __init__(
        self, untrusted: UntrustedConnections, tls: ssl.SSLContext | None, **of_uvicorn: Any
    ) -> None:
        super().__init__(**of_uvicorn)
        self._untrusted = untrusted
        self._tls = tls
        self._tcp: asyncio.Transport | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""
        self._deadline: asyncio.TimerHandle | None = None
        self.ending = asyncio.Event()
        self._app = self.app
        self.app = self._answer

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def is_trusted(self) -> None:
        self._untrusted.discard(self)

    def abort(self) -> None:
        if self._tcp is not None:
            self._tcp.abort()

    def shutdown(self) -> None:
        """Finish the request in progress; requests that need not finish can watch `ending`."""
        self.ending.set()
        super().shutdown()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._tcp = transport
        self._untrusted.add(self)
        if self._tls is None:
            super().connection_made(transport)
            self._set_deadline()
        else:
            # Not left to `create_server`, which cannot close a connection during the handshake.
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._start_tls(self._tls, transport))

    async def _start_tls(self, context: ssl.SSLContext, transport: asyncio.Transport) -> None:
        try:
            encrypted = await self.loop.start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=HEADER_SECONDS
            )
        except OSError:
            encrypted = None
        if encrypted is None or encrypted.is_closing():
            self._forget()
            return
        super().connection_made(encrypted)
        self._set_deadline()
        if self._early:
            self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:  # it arrived with the end of the handshake
            self._early += data
            return
        super().data_received(data)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if self.transport is not None:
            super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        if _has_two_lengths(self.headers):
            self.send_400_response(_TWO_LENGTHS.message)
            return
        self._forget()
        super().handle_websocket_upgrade(event)

    def _set_deadline(self) -> None:
        """Limit the time for receiving headers."""
        is_waiting = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if is_waiting and self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.abort)
        elif not is_waiting:
            self._clear_deadline()

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _forget(self) -> None:
        self._clear_deadline()
        self._untrusted.discard(self)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse requests that an application must not get."""
        problem = None
        if scope["method"] == "CONNECT":
            problem = _NO_TUNNEL
        elif _has_two_lengths(scope["headers"]):
            problem = _TWO_LENGTHS
        if problem is None:
            app: Any = self._app
            await app({**scope, CONNECTION: self}, receive, send)
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": secured(list(message["headers"]), b"")}
            await send(message)

        await problem(scope, receive, send_secured)


_TWO_LENGTHS = Problem(
    400,
    "two_lengths",
    "This request gives its length in two ways.",
    "Send either Content-Length or Transfer-Encoding.",
    (("connection", "close"),),
)
_NO_TUNNEL = Problem(
    405,
    "no_tunnel",
    "Method not allowed: this server is not a proxy.",
    "Use GET.",
    (("allow", "GET, HEAD, POST"), ("connection", "close")),
)


def _has_two_lengths(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    names = {name.lower() for name, _ in headers}
    return {b"content-length", b"transfer-encoding"} <= names


class _Server(uvicorn.Server):
    """uvicorn with limited connections, without its log, and without raising signals again.

    This uses undocumented parts of `uvicorn.Server`: `capture_signals`, `handle_exit`, `lifespan`,
    `servers`, `server_state`, `shutdown`, `started` and `startup`. Checked with uvicorn 0.54;
    tests/web/test_server.py fails if they change.
    """

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
        config.load()  # reads the certificate, to report an invalid one at once
        super().__init__(config)
        self.ended_by: signal.Signals | None = None
        self._on_ready = on_ready
        self._untrusted = UntrustedConnections(min(max_open_files() // 4, MAX_UNTRUSTED))
        self._logged_at = -_LOG_SECONDS

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        make = partial(
            Connection,
            self._untrusted,
            self.config.ssl,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        # When the loop waits for the network, a computing thread may take the interpreter lock.
        sys.setswitchinterval(_SWITCH_SECONDS)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_error)
        for listener in sockets or ():
            # asyncio accepts as many connections as the backlog before it serves them.
            server = await loop.create_server(make, sock=listener, backlog=_ACCEPT_BATCH)
            listener.listen(_BACKLOG)
            self.servers.append(server)
        if self._on_ready is not None:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down within the grace period, without logging unfinished requests."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        for server in self.servers:
            server.close()
        for _ in range(_ACCEPT_STEPS):
            await asyncio.sleep(0)
        self._untrusted.abort_handshakes()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with _handling([signal.SIGINT, *_ending_signals()], self.handle_exit):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.ended_by = self.ended_by or signal.Signals(sig)
        super().handle_exit(sig, frame)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Close connections when no file can be opened; asyncio retries after a second."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _NO_MORE_FILES:
            loop.default_exception_handler(context)
            return
        self._untrusted.close(_ACCEPT_BATCH)
        now = time.monotonic()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            logging.getLogger("aboard.web").error(
                "cannot accept connections: %s. Trying again; raise the limit of open files"
                " (ulimit -n) if this continues.",
                (error.strerror or str(error)).lower(),
            )


_NO_MORE_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unbounded = resource.RLIM_INFINITY
    limit = MAX_FILES if hard == unbounded else min(hard, MAX_FILES)
    if soft != unbounded and soft < limit:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def max_open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_FILES if soft == resource.RLIM_INFINITY else min(soft, MAX_FILES)


def _addresses(host: str) -> list[_Address]:
    if host == LOCALHOST:
        # Both, whatever the resolver returns: a browser may try either, and another user's server
        # at the other one would get our key.
        return [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(
            f"unknown host {host!r}. Use localhost, 0.0.0.0, or an address of this machine."
        ) from error
    return sorted({(family, str(address[0])) for family, _, _, _, address in found})


def _bind_all(addresses: list[_Address], port: int) -> list[socket.socket]:
    """Bind every address to one port, or none; a machine may lack IPv6."""
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
    # With the protocol, so that asyncio detects TCP and sends small responses at once.
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
    errno.EACCES: "is reserved for the system. Choose a port from 1024.",
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


# Certificates for listeners whose clients know the fingerprint.


def make_certificate() -> tuple[str, str]:
    """Return a new key and its certificate as PEM, and the certificate's SHA-256 in hex.

    The certificate names no host, because clients compare its fingerprint.
    """
    with requires("cryptography"):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aboard")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # the board's clock may be slow
        .not_valid_after(now + _CERTIFICATE_TIME)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    der = certificate.public_bytes(serialization.Encoding.DER)
    return (private + public).decode(), hashlib.sha256(der).hexdigest()


@cache
def pinning_context() -> ssl.SSLContext:
    """Return a context that accepts any certificate; the caller compares its fingerprint."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
