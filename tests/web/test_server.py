import asyncio
import errno
import logging
import os
import random
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from aboard.web import (
    Gate,
    ListenError,
    ServeError,
    TokenAccess,
    ending_in_order,
    forwarding_hint,
    listen,
    serve,
    urls,
)
from aboard.web import server as web_server
from aboard.web.gate import trust
from aboard.web.server import (
    DEFAULT_PORT,
    UntrustedConnections,
    allow_many_files,
    exposure,
    max_open_files,
)
from tests.hub.hubs import QUICK
from tests.waiting import until
from tests.web.serving import serving
from tests.web.visitors import BEARER, TOKEN, call, echo, gate_to, let_in, raw_scope

SCRIPT = """
import asyncio, sys
from aboard.web import Gate, TokenAccess, listen, serve, urls

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here", "more_body": True})
    if scope["path"] == "/slow":
        await asyncio.sleep(600)
    await send({"type": "http.response.body", "body": b""})

sockets = listen(port=0)
ready = lambda: print(urls(sockets, "localhost")[0], flush=True)
ended = serve(Gate(app, TokenAccess(sys.argv[1])), sockets, on_ready=ready)
print(ended.name, flush=True)
"""


@contextmanager
def held(*ports: int) -> Iterator[None]:
    """Listen on these ports of 127.0.0.1, as another program does."""
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


def close(sockets: list[socket.socket]) -> None:
    for listener in sockets:
        listener.close()


def port_of(sockets: list[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1])


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@pytest.fixture
def free_range(monkeypatch: pytest.MonkeyPatch) -> int:
    """Move the default port to a range of free ports."""
    for first in random.Random(os.getpid()).sample(range(20_000, 30_000), 400):
        try:
            close(listen(port=first))
            close(listen(port=first + 1))
            close(listen(port=first + 2))
        except ListenError:
            continue
        monkeypatch.setattr(web_server, "DEFAULT_PORT", first)
        return first
    pytest.skip("no three free ports in a row")


class TestListen:
    def test_the_default_is_tensorboards_port(self) -> None:
        assert DEFAULT_PORT == 6006

    def test_without_a_port_the_first_free_one_is_taken(
        self, free_range: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with held(free_range, free_range + 1):
            sockets = listen()
            assert port_of(sockets) == free_range + 2
            close(sockets)
        with held(free_range, free_range + 1):
            monkeypatch.setattr(web_server, "_PORTS", 2)
            last = free_range + 1
            with pytest.raises(ListenError, match=f"ports {free_range} to {last} on localhost are"):
                listen()

    def test_a_port_that_was_asked_for_is_not_exchanged(self, free_range: int) -> None:
        with held(free_range), pytest.raises(ListenError) as caught:
            listen("localhost", free_range)
        assert str(caught.value) == (
            f"port {free_range} on localhost is in use. "
            "Choose another port, or give none to use the first free one."
        )

    def test_two_listeners_never_share_a_port(self) -> None:
        sockets = listen(port=0)
        with pytest.raises(ListenError, match="is in use"):
            listen("localhost", port_of(sockets))
        with pytest.raises(ListenError, match="is in use"):
            listen("127.0.0.1", port_of(sockets))
        close(sockets)

    def test_a_port_can_be_used_again_at_once(self) -> None:
        with serving(Gate(echo, TokenAccess(TOKEN)), sockets := listen(port=0)):
            port = port_of(sockets)
            httpx.get(f"http://127.0.0.1:{port}/", **QUICK)
        close(listen("localhost", port))

    @needs_ipv6
    def test_localhost_is_both_of_its_addresses(self) -> None:
        sockets = listen("localhost", 0)
        assert [listener.getsockname()[:2] for listener in sockets] == [
            ("127.0.0.1", port_of(sockets)),
            ("::1", port_of(sockets)),
        ]
        close(sockets)

    @needs_ipv6
    def test_a_port_of_localhost_that_someone_half_holds_is_taken(self, free_range: int) -> None:
        with socket.create_server(("::1", free_range), family=socket.AF_INET6):
            sockets = listen()
            assert port_of(sockets) == free_range + 1
            close(sockets)

    def test_localhost_without_ipv6(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bind = web_server._bind

        def without_ipv6(family: Any, address: str, port: int) -> socket.socket:
            if family == socket.AF_INET6:
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            return bind(family, address, port)

        monkeypatch.setattr(web_server, "_bind", without_ipv6)
        sockets = listen("localhost", 0)
        assert len(sockets) == 1
        close(sockets)

    @needs_ipv6
    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1", "127.0.0.1"])
    def test_other_addresses(self, host: str) -> None:
        sockets = listen(host, 0)
        assert [listener.getsockname()[0] for listener in sockets] == [host]
        if host in {"0.0.0.0", "::"}:
            socket.create_connection(("127.0.0.1", port_of(sockets))).close()
        close(sockets)

    @pytest.mark.parametrize(
        ("host", "port", "message"),
        [
            ("localhost", 70000, "invalid port 70000. Choose one from 1024 to 65535."),
            (
                "no.such.host.invalid",
                0,
                "unknown host 'no.such.host.invalid'. Use localhost",
            ),
            ("192.0.2.1", 7777, "port 7777 on 192.0.2.1 cannot be used: this machine has no such"),
        ],
    )
    def test_what_cannot_be_listened_on_is_explained(
        self, host: str, port: int, message: str
    ) -> None:
        with pytest.raises(ListenError, match=re.escape(message)):
            listen(host, port)

    def test_a_reserved_port_is_explained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> socket.socket:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(web_server, "_bind", refuse)
        with pytest.raises(ListenError, match="port 80 on localhost is reserved for the system"):
            listen("localhost", 80)


class TestAddresses:
    @pytest.mark.parametrize(
        ("host", "expected"),
        [
            ("localhost", ["http://localhost:{port}"]),
            ("127.0.0.1", ["http://127.0.0.1:{port}"]),
            ("0.0.0.0", ["http://node7:{port}", "http://127.0.0.1:{port}"]),
            ("::", ["http://node7:{port}", "http://localhost:{port}"]),
            ("::1", ["http://[::1]:{port}"]),
            ("fe80::1%eth0", ["http://[fe80::1%25eth0]:{port}"]),
            ("node7.cluster.test", ["http://node7.cluster.test:{port}"]),
        ],
    )
    def test_urls(self, host: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("socket.gethostname", lambda: "node7")
        sockets = listen(port=0)
        port = port_of(sockets)
        assert urls(sockets, host) == [url.format(port=port) for url in expected]
        close(sockets)

    def test_exposure(self) -> None:
        assert exposure("localhost") is None
        assert exposure("127.0.0.1") is None
        assert exposure("::1") is None
        assert "all networks of this machine" in (exposure("0.0.0.0") or "")
        assert "all networks of this machine" in (exposure("::") or "")
        assert "the network, as node7: every machine there can reach" in (exposure("node7") or "")

    def test_forwarding_hint(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("socket.gethostname", lambda: "node7")
        monkeypatch.setattr("getpass.getuser", lambda: "ada")
        came = {"SSH_CONNECTION": "10.0.0.5 51000 10.0.0.7 22"}
        assert forwarding_hint({}, 6006) is None
        assert forwarding_hint(came, 6006) == "ssh -N -L 6006:127.0.0.1:6006 ada@node7"
        two = "ssh -N -L 6006:127.0.0.1:6006 -L 6007:127.0.0.1:6007 ada@node7"
        assert forwarding_hint(came, 6006, 6007) == two
        other = {"SSH_CONNECTION": "fe80::1 51000 fe80::2 2222"}
        assert forwarding_hint(other, 6007) == "ssh -N -L 6007:127.0.0.1:6007 -p 2222 ada@node7"

    def test_forwarding_hint_from_a_compute_node(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("socket.gethostname", lambda: "node7")
        monkeypatch.setattr("getpass.getuser", lambda: "ada")
        job = {"SLURM_JOB_ID": "17", "SLURM_SUBMIT_HOST": "login2.example.org"}
        hop = "ssh -N -L 6006:127.0.0.1:6006 -J ada@login2.example.org"
        assert forwarding_hint(job, 6006) == f"{hop} ada@node7"
        other = job | {"SSH_CONNECTION": "10.0.0.5 51000 10.0.0.7 2222"}
        assert forwarding_hint(other, 6006) == f"{hop}:2222 ada@node7"
        submitted_here = {"SLURM_JOB_ID": "17", "SLURM_SUBMIT_HOST": "node7.example.org"}
        assert forwarding_hint(submitted_here, 6006) is None

    def test_forwarding_hint_of_a_user_without_a_name(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def nameless() -> str:
            raise KeyError("getpwuid(): uid not found: 4711")

        monkeypatch.setattr("socket.gethostname", lambda: "node7")
        monkeypatch.setattr("getpass.getuser", nameless)
        came = {"SSH_CONNECTION": "10.0.0.5 51000 10.0.0.7 22"}
        assert forwarding_hint(came, 6006) == "ssh -N -L 6006:127.0.0.1:6006 node7"


class TestServing:
    def test_a_stranger_on_the_same_machine_stays_outside(self) -> None:
        sockets = listen(port=0)
        with serving(Gate(echo, TokenAccess(TOKEN)), sockets):
            for listener in sockets:
                address = listener.getsockname()
                with socket.create_connection(address[:2], timeout=10) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
                    answer = stranger.recv(65536)
                assert answer.startswith(b"HTTP/1.1 401 ")
                assert b"evil" not in answer
                assert b"\r\nserver:" not in answer.lower()

    def test_the_way_in(self) -> None:
        access = TokenAccess(TOKEN)
        sockets = listen(port=0)
        with (
            serving(Gate(echo, access), sockets),
            httpx.Client(base_url=urls(sockets, "localhost")[0], **QUICK) as client,
        ):
            opened = client.get(f"/b/x/?a=1&key={access.key}", follow_redirects=True)
            assert opened.json()["query"] == "a=1"
            assert str(opened.url).endswith("/b/x/?a=1")
            assert client.get("/b/x/").status_code == 200

    @pytest.mark.parametrize(
        "target",
        [b"/../x", b"/%2e%2e/x", b"/b%5cx", b"//evil.test/", b"http://evil.test/x", b"/%00", b"*"],
    )
    def test_addresses_that_no_client_would_send(self, target: bytes) -> None:
        sockets = listen(port=0)
        with serving(Gate(echo, TokenAccess(TOKEN)), sockets):
            for secret, status in ((b"", b"401"), (b"Authorization: Bearer %s\r\n", b"400")):
                header = secret.replace(b"%s", TOKEN.encode())
                with socket.create_connection(sockets[0].getsockname(), timeout=10) as client:
                    client.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n" % (target, header))
                    assert client.recv(65536).startswith(b"HTTP/1.1 " + status)

    def test_a_websocket_without_a_secret_is_refused(self) -> None:
        sockets = listen(port=0)
        with (
            serving(Gate(echo, TokenAccess(TOKEN)), sockets),
            socket.create_connection(sockets[0].getsockname(), timeout=10) as client,
        ):
            client.sendall(
                b"GET /b/x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            assert client.recv(65536)[:12] in {b"HTTP/1.1 401", b"HTTP/1.1 403"}

    def test_no_log_line_holds_a_secret(self, caplog: pytest.LogCaptureFixture) -> None:
        access = TokenAccess(TOKEN)
        key = access.key
        sockets = listen(port=0)
        with caplog.at_level(logging.DEBUG), serving(Gate(echo, access), sockets):
            for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
                assert logging.getLogger(name).getEffectiveLevel() <= logging.ERROR
            for _ in range(2):
                with socket.create_connection(sockets[0].getsockname(), timeout=10) as client:
                    client.sendall(b"GET /?key=%s HTTP/1.1\r\nHost: x\r\n\r\n" % key.encode())
                    client.recv(65536)
        assert key not in caplog.text

    def test_an_application_that_cannot_start_is_reported(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def broken(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": "no disk"})

        sockets = listen(port=0)
        with pytest.raises(ServeError, match=r"could not start\. See its log\."):
            serve(broken, sockets)
        assert "no disk" in caplog.text
        assert all(listener.fileno() == -1 for listener in sockets)


def is_refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


class TestEnding:
    @contextmanager
    def process(self, tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
        script = tmp_path / "served.py"
        script.write_text(SCRIPT)
        with subprocess.Popen(
            [sys.executable, str(script), TOKEN],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                yield process, int(line.rpartition(":")[2])
            finally:
                process.kill()

    def ask(self, port: int, path: str) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", port), timeout=180)
        header = f"Authorization: Bearer {TOKEN}"
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
        received = b""
        while b"here" not in received:
            received += client.recv(65536)
        return client

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_ends_it_with_connections_open(
        self, tmp_path: Path, number: signal.Signals
    ) -> None:
        with self.process(tmp_path) as (process, port):
            with self.ask(port, "/"), socket.create_connection(("127.0.0.1", port)):
                process.send_signal(number)
                out, err = process.communicate(timeout=180)
            assert process.returncode == 0
            assert out == f"{number.name}\n"
            assert err == ""
            assert is_refused(port)

    def test_a_request_that_never_ends_does_not_keep_it(self, tmp_path: Path) -> None:
        with self.process(tmp_path) as (process, port), self.ask(port, "/slow"):
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=180)
        assert (process.returncode, out, err) == (0, "SIGINT\n", "")

    def test_a_second_interrupt_ends_it_at_once(self, tmp_path: Path) -> None:
        with self.process(tmp_path) as (process, port), self.ask(port, "/slow"):
            process.send_signal(signal.SIGINT)
            until(lambda: is_refused(port))
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=180)
        assert (process.returncode, out, err) == (0, "SIGINT\n", "")

    def test_a_closed_terminal_does_not_end_what_ignores_it(self, tmp_path: Path) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; it is inherited
        try:
            with self.process(tmp_path) as (process, port):
                process.send_signal(signal.SIGHUP)
                self.ask(port, "/").close()
                process.send_signal(signal.SIGTERM)
                out, err = process.communicate(timeout=180)
        finally:
            signal.signal(signal.SIGHUP, before)
        assert (process.returncode, out, err) == (0, "SIGTERM\n", "")

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_before_that_unwinds(self, number: signal.Signals) -> None:
        closed = []
        before = signal.getsignal(number)

        def interrupted() -> None:
            with ending_in_order():
                try:
                    os.kill(os.getpid(), number)
                    time.sleep(30)
                finally:
                    closed.append(True)

        with pytest.raises(SystemExit) as caught:
            interrupted()
        assert caught.value.code == 128 + number
        assert closed
        assert signal.getsignal(number) is before


# Connections before a secret was shown.


BEGUN = b"GET / HTTP/1.1\r\nHost: a\r\n"
SECRET = f"Authorization: Bearer {TOKEN}\r\n".encode()


class FakeConnection:
    """A connection that only counts."""

    def __init__(self, *, is_idle: bool = True) -> None:
        self.is_idle = is_idle
        self.is_aborted = False
        self.trusted = False

    def abort(self) -> None:
        self.is_aborted = True

    def is_trusted(self) -> None:
        self.trusted = True


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """Serve something behind a gate."""
    sockets = listen("127.0.0.1", 0)
    name = sockets[0].getsockname()
    with serving(Gate(echo, TokenAccess(TOKEN)), sockets):
        yield name


def answer_to(address: tuple[str, int], sent: bytes) -> bytes:
    """Send something; return all that comes until the connection is closed."""
    with socket.create_connection(address, timeout=180) as client:
        client.sendall(sent)
        received = b""
        with suppress(ConnectionResetError):
            while part := client.recv(65536):
                received += part
        return received


class TestUntrustedConnections:
    def add(self, untrusted: UntrustedConnections, *several: Any) -> None:
        for one in several:
            untrusted.add(one)

    def test_the_oldest_goes_when_there_are_too_many(self) -> None:
        untrusted = UntrustedConnections(2)
        first, second, third = FakeConnection(), FakeConnection(), FakeConnection()
        self.add(untrusted, first, second, third)
        assert [one.is_aborted for one in (first, second, third)] == [True, False, False]
        assert len(untrusted) == 2

    def test_one_that_asks_for_nothing_goes_before_one_that_does(self) -> None:
        untrusted = UntrustedConnections(2)
        first, second, third = FakeConnection(is_idle=False), FakeConnection(), FakeConnection()
        self.add(untrusted, first, second, third)
        assert [one.is_aborted for one in (first, second, third)] == [False, True, False]

    def test_those_who_showed_a_secret_or_left_do_not_count(self) -> None:
        untrusted = UntrustedConnections(1)
        first, second = FakeConnection(), FakeConnection()
        self.add(untrusted, first)
        untrusted.discard(first)  # type: ignore[arg-type]
        self.add(untrusted, second)
        assert not first.is_aborted
        assert not second.is_aborted


class TestTrust:
    @pytest.mark.parametrize("way", ["token", "session", "key", "form"])
    def test_whoever_shows_a_secret_is_no_stranger(self, way: str) -> None:
        access = TokenAccess(TOKEN)
        gate = gate_to(access=access)
        cookie = "; ".join(f"{k}={v}" for k, v in let_in(gate, "http://h:6006").cookies.items())
        headers = {"token": BEARER, "session": {"cookie": cookie}}.get(way, {})
        query = f"key={access.key}".encode() if way == "key" else b""
        connection = FakeConnection()
        scope = raw_scope("/", headers=headers, query_string=query)
        scope["aboard.connection"] = connection
        incoming = {"type": "http.request", "body": b"", "more_body": False}
        if way == "form":
            scope |= {"method": "POST", "path": "/_aboard/login", "raw_path": b"/_aboard/login"}
            incoming["body"] = f"token={TOKEN}".encode()
        call(gate, scope, incoming)
        assert connection.trusted

    @pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"cookie": "a=b"}])
    def test_nobody_else_is(self, headers: dict[str, str]) -> None:
        connection = FakeConnection()
        scope = raw_scope("/", headers=headers)
        scope["aboard.connection"] = connection
        call(gate_to(), scope)
        assert not connection.trusted

    def test_another_server_has_no_such_connections(self) -> None:
        trust(raw_scope("/"))


class TestHeaders:
    @pytest.mark.parametrize("sent", [b"", b"GET", BEGUN])
    def test_those_that_never_end_end_the_connection(
        self, sent: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(web_server, "HEADER_SECONDS", 0.2)
        sockets = listen("127.0.0.1", 0)
        name = sockets[0].getsockname()
        with serving(Gate(echo, TokenAccess(TOKEN)), sockets):
            assert answer_to(name, sent) == b""

    def test_also_those_of_a_second_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(web_server, "HEADER_SECONDS", 0.4)
        sockets = listen("127.0.0.1", 0)
        name = sockets[0].getsockname()
        with (
            serving(Gate(echo, TokenAccess(TOKEN)), sockets),
            socket.create_connection(name, timeout=180) as client,
        ):
            client.sendall(BEGUN + SECRET + b"\r\n")
            received = b""
            while b'"/"' not in received:
                received += client.recv(65536)
            client.sendall(BEGUN)
            with suppress(ConnectionResetError):
                while client.recv(65536):
                    pass

    def test_a_request_may_take_longer_to_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(web_server, "HEADER_SECONDS", 0.4)

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0.6)
            await echo(scope, receive, send)

        sockets = listen("127.0.0.1", 0)
        with serving(Gate(slow, TokenAccess(TOKEN)), sockets):
            url = urls(sockets, "127.0.0.1")[0]
            assert httpx.get(url, headers=BEARER, trust_env=False).status_code == 200

    @pytest.mark.parametrize("secret", [b"", SECRET])
    def test_two_lengths_are_one_too_many(self, address: tuple[str, int], secret: bytes) -> None:
        lengths = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"
        smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n" + SECRET + b"\r\n"
        begun = b"POST / HTTP/1.1\r\nHost: a\r\n" + secret + lengths
        answer = answer_to(address, begun + b"\r\n0\r\n\r\n" + smuggled)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"two_lengths" in answer
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"x-content-type-options: nosniff" in answer
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
        answer = answer_to(address, BEGUN + secret + lengths + upgrade + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")

    @pytest.mark.parametrize("target", [b"/b/x", b"example.test:443"])
    def test_there_are_no_tunnels(
        self, address: tuple[str, int], target: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        begun = b"CONNECT " + target + b" HTTP/1.1\r\nHost: a\r\n" + SECRET
        assert answer_to(address, begun + b"\r\n").startswith(b"HTTP/1.1 405 ")
        assert caplog.text == ""


def test_a_crowd_of_silent_connections_does_not_lock_the_owner_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web_server, "max_open_files", lambda: 40)
    sockets = listen("127.0.0.1", 0)
    name = sockets[0].getsockname()
    with serving(Gate(echo, TokenAccess(TOKEN)), sockets), ExitStack() as stack:
        crowd = [
            stack.enter_context(socket.create_connection(name, timeout=180)) for _ in range(50)
        ]
        for client in crowd:
            client.sendall(BEGUN)
        url = urls(sockets, "127.0.0.1")[0]
        assert httpx.get(url, headers=BEARER, trust_env=False, timeout=180).status_code == 200
        for client in crowd[:30]:
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("tls")
    made = directory / "own.pem", directory / "own-key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"]
    command += ["ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(made[1]), "-out", str(made[0])]
    subprocess.run(command, check=True, capture_output=True)
    return made


class TestTls:
    """Handshakes that never end are bounded like headers that never end."""

    @contextmanager
    def served(self, certificate: tuple[Path, Path]) -> Iterator[tuple[str, int]]:
        sockets = listen("127.0.0.1", 0)
        server = web_server._Server(Gate(echo, TokenAccess(TOKEN)), None, 2, certificate)
        thread = threading.Thread(target=server.run, args=[sockets])
        thread.start()
        try:
            yield sockets[0].getsockname()
        finally:
            server.should_exit = True
            thread.join()

    def get(self, address: tuple[str, int], certificate: tuple[Path, Path]) -> httpx.Response:
        context = ssl.create_default_context(cafile=str(certificate[0]))
        url = f"https://127.0.0.1:{address[1]}/"
        return httpx.get(url, headers=BEARER, verify=context, trust_env=False, timeout=180)

    def test_a_crowd_does_not_lock_the_owner_out(
        self, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(web_server, "max_open_files", lambda: 40)
        with self.served(certificate) as address, ExitStack() as stack:
            crowd = [stack.enter_context(socket.create_connection(address, 30)) for _ in range(50)]
            assert self.get(address, certificate).status_code == 200
            for client in crowd[:30]:
                with suppress(ConnectionResetError):
                    assert client.recv(1) == b""

    def test_handshakes_and_headers_have_a_time_limit(
        self, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(web_server, "HEADER_SECONDS", 0.3)
        context = ssl.create_default_context(cafile=str(certificate[0]))
        with self.served(certificate) as address:
            for sent in (b"", b"GET / HTTP/1.1\r\n\r\n"):
                assert b"HTTP" not in answer_to(address, sent)
            with (
                socket.create_connection(address, timeout=180) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
            ):
                client.sendall(BEGUN)
                with suppress(OSError):
                    assert client.recv(1) == b""

    def test_a_request_in_the_packet_that_ends_the_handshake_is_answered(
        self, certificate: tuple[Path, Path]
    ) -> None:
        context = ssl.create_default_context(cafile=str(certificate[0]))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with self.served(certificate) as address, socket.create_connection(address, 30) as plain:
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            plain.sendall(outgoing.read())
            while True:
                incoming.write(plain.recv(65536))
                try:
                    client.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                break
            client.write(BEGUN + SECRET + b"Connection: close\r\n\r\n")
            plain.sendall(outgoing.read())
            pieces = [b"nothing yet"]
            while pieces[-1]:
                incoming.write(plain.recv(65536))
                with suppress(ssl.SSLWantReadError):
                    while pieces[-1]:
                        pieces.append(client.read(65536))
            assert b'"path": "/"' in b"".join(pieces)
            # After the server's goodbye say ours: asyncio waits half a minute for it, and longer
            # than that for one that came too early.
            client.unwrap()
            plain.sendall(outgoing.read())


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from aboard.web import Gate, TokenAccess, listen, serve, urls

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})

sockets = listen(port=0)
ready = lambda: print(urls(sockets, "127.0.0.1")[0], flush=True)
serve(Gate(app, TokenAccess(sys.argv[1])), sockets, on_ready=ready)
"""


def test_more_connections_than_files_can_be_open(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(FEW_FILES)
    with (
        (tmp_path / "errors").open("wb") as errors,
        subprocess.Popen(
            [sys.executable, tmp_path / "served.py", TOKEN], stdout=subprocess.PIPE, stderr=errors
        ) as process,
        ExitStack() as stack,
    ):
        try:
            assert process.stdout is not None
            url = process.stdout.readline().decode().strip()
            name = ("127.0.0.1", int(url.rpartition(":")[2]))
            for _ in range(120):
                client = stack.enter_context(socket.create_connection(name, timeout=180))
                client.sendall(BEGUN)
            for _ in range(3):
                answer = httpx.get(url, headers=BEARER, trust_env=False, timeout=180)
                assert answer.text == "here"
        finally:
            process.terminate()
    assert "Traceback" not in (tmp_path / "errors").read_text()
    assert len((tmp_path / "errors").read_text().splitlines()) <= 3


def test_that_no_file_can_be_opened_is_logged_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = web_server._Server(echo, None, 0)
    idle = FakeConnection()
    server._untrusted.add(idle)  # type: ignore[arg-type]
    loop = asyncio.new_event_loop()
    error = OSError(errno.EMFILE, "Too many open files")
    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            server._on_loop_error(loop, {"message": "socket.accept()", "exception": error})
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("cannot accept connections: too many open files. Trying again;")
    assert idle.is_aborted
    with caplog.at_level(logging.ERROR):
        server._on_loop_error(loop, {"message": "a bug", "exception": ValueError("of ours")})
    assert "a bug" in caplog.text
    loop.close()


class TestFiles:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ((256, 4096), 4096),
            ((1024, resource.RLIM_INFINITY), 65_536),
            ((1024, 1_000_000), 65_536),
            ((200_000, 1_000_000), 200_000),
            ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), resource.RLIM_INFINITY),
        ],
    )
    def test_as_many_are_allowed_as_may_be(
        self, before: tuple[int, int], after: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits = [before]
        monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
        monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))
        allow_many_files()
        assert limits[-1] == (after, before[1])
        assert 0 < max_open_files() <= 65_536

    def test_a_system_that_refuses_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise ValueError("not allowed to raise maximum limit")

        monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
        monkeypatch.setattr(resource, "setrlimit", refuse)
        allow_many_files()
        assert max_open_files() == 256
