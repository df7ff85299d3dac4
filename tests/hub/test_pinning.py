"""Boards behind TLS: the hub sends nothing to a server with another certificate."""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from dataclasses import replace

import aiohttp
import pytest

from aboard.executors.base import Address
from aboard.hub.proxy import fetch_status, probe
from aboard.web.server import make_certificate
from tests.hub.fronts import TOKEN, answer

STATUS = b'{"runs": 3, "problems": []}'


class SecureBoard:
    """A board with a certificate: keeps what it decrypts, and counts connections."""

    def __init__(self, directory):
        pem, fingerprint = make_certificate()
        (directory / "pem").write_text(pem)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(directory / "pem")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(
            "127.0.0.1", self._listener.getsockname()[1], "/b/view/", TOKEN, fingerprint
        )
        self.received = b""
        self.connections = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self):
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain):
        with contextlib.suppress(OSError):
            plain.settimeout(60)
            with self._context.wrap_socket(plain, server_side=True) as connection:
                request = b""
                while block := connection.recv(65536):
                    self.received += block
                    request += block
                    if b"\r\n\r\n" in request:
                        connection.sendall(answer(body=STATUS).replace(b"close", b"keep-alive"))
                        request = b""


@pytest.fixture
def board(tmp_path):
    opened = SecureBoard(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def impostor(board):
    """Give the address of a board whose place another server has taken."""
    return replace(board.address, fingerprint=make_certificate()[1])


def test_the_right_certificate_opens_the_board_and_its_connection_is_reused(front, board):
    front.boards["one"] = board.address
    for _ in range(3):
        assert front.get("data/status").content == STATUS
    assert board.connections == 1
    assert f"Bearer {TOKEN}".encode() in board.received
    assert b"GET /b/view/data/status" in board.received


def test_a_server_with_another_certificate_gets_nothing_and_a_page_reports_it(
    front, board, impostor, caplog
):
    front.boards["one"] = impostor
    with caplog.at_level(logging.WARNING, "aboard.hub"):
        got = front.get("data/status", headers={"accept": "text/html"})
    assert got.status_code == 502
    assert "Another server answers in the place of this board." in got.text
    assert "board_impersonated" in got.text
    assert "another server with another certificate answers" in caplog.text
    assert board.connections == 1
    assert board.received == b""
    assert TOKEN not in caplog.text + got.text


def test_a_connection_that_was_opened_for_one_certificate_is_not_used_for_another(
    front, board, impostor
):
    front.boards["one"] = board.address
    assert front.get().status_code == 200
    front.boards["one"] = impostor
    assert front.get().status_code == 502


def test_a_websocket_is_refused_as_well(front, board, impostor):
    front.boards["one"] = impostor

    async def connect():
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{front.url}socket".replace("http", "ws", 1)),
        ):
            pass

    with pytest.raises(aiohttp.WSServerHandshakeError):
        asyncio.run(connect())
    assert board.connections == 1
    assert board.received == b""


def test_probes_check_the_certificate_before_they_send_the_token(board, impostor):
    assert probe(board.address) == ""
    assert fetch_status(board.address) == (3, [])
    board.received = b""
    said = "another server with another certificate answers at its address"
    assert probe(impostor) == said
    assert fetch_status(impostor) == (None, [])
    assert board.received == b""


def test_a_probe_reports_why_a_board_does_not_respond(board):
    board.close()
    assert probe(board.address) == "connection refused"


def test_a_server_without_tls_in_the_place_of_a_board_gets_nothing(impostor):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = replace(impostor, port=listener.getsockname()[1])
        received = []

        def serve():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                received.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert probe(address)
        thread.join(180)
        assert TOKEN.encode() not in received[0]
