"""Bodies through the proxy, of any size, chunked or truncated; and WebSockets."""

import asyncio
import json
import os
import resource
import socket
import threading
import time

import aiohttp
import httpx
import pytest
from aiohttp import web

from aboard.executors.base import Address
from aboard.hub.proxy import NotServing
from tests.hub.fronts import TOKEN
from tests.hub.hubs import QUICK
from tests.waiting import until

MIB = 1 << 20


# Bodies


def test_pieces_arrive_as_they_are_sent(front, scripted):
    go_on = threading.Event()

    def in_pieces(_, connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        assert go_on.wait(180)
        connection.sendall(b"6;x=y\r\nsecond\r\n0\r\nX-Trailer: 1\r\n\r\n")

    scripted(in_pieces)
    with httpx.Client(**QUICK) as client, client.stream("GET", front.url) as got:
        pieces = got.iter_raw()
        assert next(pieces) == b"first"
        go_on.set()
        assert b"".join(pieces) == b"second"


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        (b"content-length: 100\r\n\r\nonly this", b""),
        (b"transfer-encoding: chunked\r\n\r\n9\r\nonly this\r\n", b""),
        (b"transfer-encoding: chunked\r\n\r\n9\r\nonly this\r\n", b"nonsense\r\n"),
    ],
)
def test_a_truncated_response_stays_truncated(front, scripted, head, rest):
    go_on = threading.Event()

    def cut(_, connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + head)
        assert go_on.wait(180)
        connection.sendall(rest)

    scripted(cut)
    with httpx.Client(**QUICK) as client, client.stream("GET", front.url) as got:
        pieces = got.iter_raw()
        assert next(pieces) == b"only this"
        go_on.set()
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)


@pytest.mark.parametrize(
    ("nasty", "code"),
    [
        (b"", "board_ended"),
        (b"HTTP/1.1 200 O", "board_ended"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "bad_answer"),
        (b"HTTP/1.1 700 What\r\ncontent-length: 0\r\n\r\n", "bad_answer"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            "bad_answer",
        ),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", "bad_answer"),
    ],
)
def test_an_invalid_response_is_reported(front, scripted, nasty, code):
    scripted(nasty)
    got = front.ask("POST", content=b"x")
    assert got.status_code == 502
    assert got.json()["error"]["code"] == code
    assert "aboard restart one" in got.json()["error"]["hint"]


def test_huge_bodies_pass_both_ways_in_little_memory(front, board_of):
    pieces, piece = 256, os.urandom(MIB)

    async def upload(request):
        total = 0
        async for block in request.content.iter_any():
            total += len(block)
        return web.Response(text=str(total))

    async def download(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(pieces):
            await response.write(piece)
        return response

    board_of(web.post("/b/view/up", upload), web.get("/b/view/down", download))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    got = front.ask("POST", "up", content=(piece for _ in range(pieces)))
    assert got.text == str(pieces * MIB)
    with httpx.Client(**QUICK) as client, client.stream("GET", front.url + "down") as got:
        time.sleep(0.5)  # a client that is slow to begin must not fill the proxy
        assert sum(len(block) for block in got.iter_raw()) == pieces * MIB
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 64 * MIB


def test_a_client_that_leaves_ends_the_request_at_the_board(front, board_of):
    begun, ended = threading.Event(), threading.Event()

    async def never(request):
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    board_of(web.get("/b/view/never", never), web.post("/b/view/never", never))
    for request in (
        b"GET /b/one/never HTTP/1.1\r\nhost: hub\r\n\r\n",
        b"POST /b/one/never HTTP/1.1\r\nhost: hub\r\ncontent-length: 4\r\n\r\nbody",
    ):
        begun.clear()
        ended.clear()
        with socket.create_connection(("127.0.0.1", front.port)) as connection:
            connection.sendall(request)
            assert begun.wait(180)
        assert ended.wait(180)


def test_a_client_that_leaves_in_the_middle_of_its_body_ends_it_too(front, board_of):
    begun, ended = threading.Event(), threading.Event()

    async def read(request):
        begun.set()
        try:
            await request.read()
        finally:
            ended.set()
        return web.Response()

    board_of(web.post("/b/view/read", read))
    with socket.create_connection(("127.0.0.1", front.port)) as connection:
        connection.sendall(
            b"POST /b/one/read HTTP/1.1\r\nhost: hub\r\ncontent-length: 9\r\n\r\nhalf"
        )
        assert begun.wait(180)
    assert ended.wait(180)


# WebSockets


async def _echo(request):
    connection = web.WebSocketResponse(protocols=["two"], max_msg_size=16 * MIB)
    await connection.prepare(request)
    await connection.send_str(json.dumps(dict(request.headers)))
    async for message in connection:
        if message.data == "close":
            await connection.close(code=4321, message=b"as you wish")
        elif message.data == "drop":
            request.transport.abort()
        elif message.type == aiohttp.WSMsgType.TEXT:
            await connection.send_str(message.data)
        else:
            await connection.send_bytes(message.data)
    return connection


def test_websockets_pass_both_ways(front, board_of):
    board_of(web.get("/b/view/echo", _echo))
    large = os.urandom(3 * MIB)

    async def script(connection):
        heads = {name.lower(): text for name, text in (await connection.receive_json()).items()}
        await connection.send_str("grüß dich")
        assert await connection.receive_str() == "grüß dich"
        await connection.send_bytes(large)
        assert await connection.receive_bytes() == large
        assert connection.protocol == "two"
        return heads

    headers = {"cookie": "aboard-x=secret", "authorization": "Bearer the-hubs"}
    heads = front.talk(script, protocols=["one", "two"], headers=headers, max_msg_size=0)
    assert heads["authorization"] == f"Bearer {TOKEN}"
    assert "cookie" not in heads


def test_the_close_code_of_a_websocket_is_passed_on(front, board_of):
    board_of(web.get("/b/view/echo", _echo))

    async def closed(connection):
        await connection.receive()
        await connection.send_str("close")
        message = await connection.receive()
        return message.data, message.extra

    assert front.talk(closed) == (4321, "as you wish")

    async def dropped(connection):
        await connection.receive()
        await connection.send_str("drop")
        return (await connection.receive()).data

    assert front.talk(dropped) == 1011


def test_a_client_that_leaves_ends_the_websocket_at_the_board(front, board_of):
    codes = []

    async def wait(request):
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        await connection.receive()
        codes.append(connection.close_code)
        return connection

    board_of(web.get("/b/view/echo", wait))

    async def leave(connection):
        await connection.close(code=4000)

    front.talk(leave)
    assert until(lambda: codes) == [4000]


@pytest.mark.parametrize(
    "found", [None, NotServing("stopped"), Address("127.0.0.1", 1, "/", TOKEN)]
)
def test_a_websocket_to_an_unknown_board_is_refused(front, found):
    front.boards["one"] = found
    with pytest.raises(aiohttp.WSServerHandshakeError):
        front.talk(lambda connection: connection.receive())
