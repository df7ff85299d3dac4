import asyncio
import errno
import logging
import resource
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from aboard.web import Gate, TokenAccess, listen, serving, urls
from aboard.web import server as web_server
from aboard.web.gate import trust
from aboard.web.server import UntrustedConnections, allow_many_files, open_files
from tests.web.visiting import BEARER, TOKEN, call, echo, gate_to, let_in, raw_scope

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
    monkeypatch.setattr(web_server, "open_files", lambda: 40)
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
        monkeypatch.setattr(web_server, "open_files", lambda: 40)
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


SCRIPT = """
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
    (tmp_path / "served.py").write_text(SCRIPT)
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
        assert 0 < open_files() <= 65_536

    def test_a_system_that_refuses_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise ValueError("not allowed to raise maximum limit")

        monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
        monkeypatch.setattr(resource, "setrlimit", refuse)
        allow_many_files()
        assert open_files() == 256
