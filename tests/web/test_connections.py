import asyncio
import errno
import logging
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from visiting import BEARER, TOKEN, call, echo, gate_to, let_in, raw_scope

from aboard.web import Access, Gate, connections, listen, serving, urls
from aboard.web import server as web_server
from aboard.web.connections import Door, Strangers, allow_many_files, open_files, trust

BEGUN = b"GET / HTTP/1.1\r\nHost: a\r\n"
SECRET = f"Authorization: Bearer {TOKEN}\r\n".encode()


class Someone:
    """A connection, as the bookkeeping sees it."""

    def __init__(self, *, is_idle: bool = True) -> None:
        self.is_idle = is_idle
        self.is_cut = False
        self.trusted = False

    def cut(self) -> None:
        self.is_cut = True

    def is_trusted(self) -> None:
        self.trusted = True


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """Serve something behind a gate."""
    sockets = listen("127.0.0.1", 0)
    name = sockets[0].getsockname()
    with serving(Gate(echo, Access(TOKEN)), sockets):
        yield name


def answer_to(address: tuple[str, int], sent: bytes) -> bytes:
    """Send something; return all that comes until the connection is closed."""
    with socket.create_connection(address, timeout=30) as client:
        client.sendall(sent)
        received = b""
        with suppress(ConnectionResetError):
            while part := client.recv(65536):
                received += part
        return received


class TestStrangers:
    def add(self, strangers: Strangers, *several: Any) -> None:
        for one in several:
            strangers.add(one)

    def test_the_oldest_goes_when_there_are_too_many(self) -> None:
        strangers = Strangers(2)
        first, second, third = Someone(), Someone(), Someone()
        self.add(strangers, first, second, third)
        assert [one.is_cut for one in (first, second, third)] == [True, False, False]
        assert len(strangers) == 2

    def test_one_that_asks_for_nothing_goes_before_one_that_does(self) -> None:
        strangers = Strangers(2)
        first, second, third = Someone(is_idle=False), Someone(), Someone()
        self.add(strangers, first, second, third)
        assert [one.is_cut for one in (first, second, third)] == [False, True, False]

    def test_those_who_showed_a_secret_or_left_do_not_count(self) -> None:
        strangers = Strangers(1)
        first, second = Someone(), Someone()
        self.add(strangers, first)
        strangers.discard(first)  # type: ignore[arg-type]
        self.add(strangers, second)
        assert not first.is_cut
        assert not second.is_cut


class TestTrust:
    @pytest.mark.parametrize("way", ["token", "session", "key", "form"])
    def test_whoever_shows_a_secret_is_no_stranger(self, way: str) -> None:
        access = Access(TOKEN)
        gate = gate_to(access=access)
        cookie = "; ".join(f"{k}={v}" for k, v in let_in(gate, "http://h:6006").cookies.items())
        headers = {"token": BEARER, "session": {"cookie": cookie}}.get(way, {})
        query = f"key={access.mint_key()}".encode() if way == "key" else b""
        someone = Someone()
        scope = raw_scope("/", headers=headers, query_string=query)
        scope["aboard.connection"] = someone
        incoming = {"type": "http.request", "body": b"", "more_body": False}
        if way == "form":
            scope |= {"method": "POST", "path": "/_aboard/login", "raw_path": b"/_aboard/login"}
            incoming["body"] = f"token={TOKEN}".encode()
        call(gate, scope, incoming)
        assert someone.trusted

    @pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"cookie": "a=b"}])
    def test_nobody_else_is(self, headers: dict[str, str]) -> None:
        someone = Someone()
        scope = raw_scope("/", headers=headers)
        scope["aboard.connection"] = someone
        call(gate_to(), scope)
        assert not someone.trusted

    def test_another_server_has_no_such_connections(self) -> None:
        trust(raw_scope("/"))


class TestHeaders:
    @pytest.mark.parametrize("sent", [b"", b"GET", BEGUN])
    def test_those_that_never_end_end_the_connection(
        self, sent: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
        sockets = listen("127.0.0.1", 0)
        name = sockets[0].getsockname()
        with serving(Gate(echo, Access(TOKEN)), sockets):
            assert answer_to(name, sent) == b""

    def test_also_those_of_a_second_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connections, "HEADER_SECONDS", 1.0)
        sockets = listen("127.0.0.1", 0)
        name = sockets[0].getsockname()
        with (
            serving(Gate(echo, Access(TOKEN)), sockets),
            socket.create_connection(name, timeout=30) as client,
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
        monkeypatch.setattr(connections, "HEADER_SECONDS", 1.0)

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(2.0)
            await echo(scope, receive, send)

        sockets = listen("127.0.0.1", 0)
        with serving(Gate(slow, Access(TOKEN)), sockets):
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


def test_a_crowd_that_says_nothing_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "open_files", lambda: 40)
    sockets = listen("127.0.0.1", 0)
    name = sockets[0].getsockname()
    with serving(Gate(echo, Access(TOKEN)), sockets), ExitStack() as stack:
        crowd = [stack.enter_context(socket.create_connection(name, timeout=30)) for _ in range(50)]
        for client in crowd:
            client.sendall(BEGUN)
        url = urls(sockets, "127.0.0.1")[0]
        assert httpx.get(url, headers=BEARER, trust_env=False, timeout=30).status_code == 200
        for client in crowd[:30]:
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""


SCRIPT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from aboard.web import Access, Gate, listen, serve, urls

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})

sockets = listen(port=0)
ready = lambda: print(urls(sockets, "127.0.0.1")[0], flush=True)
serve(Gate(app, Access(sys.argv[1])), sockets, on_ready=ready)
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
            for _ in range(200):
                client = stack.enter_context(socket.create_connection(name, timeout=30))
                client.sendall(BEGUN)
            for _ in range(3):
                answer = httpx.get(url, headers=BEARER, trust_env=False, timeout=30)
                assert answer.text == "here"
        finally:
            process.terminate()
    assert "Traceback" not in (tmp_path / "errors").read_text()
    assert len((tmp_path / "errors").read_text().splitlines()) <= 3


def test_that_no_file_can_be_opened_is_said_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def knock() -> None:
        with socket.socket() as listener:
            door = Door(lambda: pytest.fail("nobody came"), Strangers(10))
            door.open([listener])
            for _ in range(1000):
                door._pause(listener, OSError(errno.EMFILE, "Too many open files"))
            door.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(knock())
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("no connection can be taken in: too many open files. Trying again;")


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
