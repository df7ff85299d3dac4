"""Requests to boards through the hub: headers, errors, and boards that fail."""

import asyncio
import contextlib
import gzip
import json
import logging
import socket
import ssl
import sys
import threading
from dataclasses import replace

import aiohttp
import httpx
import pytest

from aboard import EventWriter
from aboard.executors.base import Address, Spec
from aboard.executors.process import ProcessExecutor
from aboard.hub.proxy import NotServing, Proxy, fetch_status, path_below, probe, public_cookie
from aboard.web.server import make_certificate
from tests.hub.fronts import TOKEN, answer
from tests.hub.hubs import QUICK
from tests.waiting import until

# A real board


@pytest.fixture
def real(front, tmp_path):
    """Run `aboard view` and put it behind the proxy; give its own address."""
    with EventWriter(tmp_path / "logs" / "run1") as writer:
        for step in range(50):
            writer.scalar("loss", 1 / (step + 1), step)
    command = (sys.executable, "-m", "aboard", "view", str(tmp_path / "logs"))
    options = ("--json", "--no-browser", "--port", "0")
    executor = ProcessExecutor()
    handle = executor.start(Spec("one", (*command, *options), tmp_path / "one"))
    try:
        front.boards["one"] = until(lambda: executor.address(handle))
        until(lambda: front.get("data/runs").json() == ["run1"])
        yield front.boards["one"]
    finally:
        executor.stop(handle, now=True)
        until(lambda: executor.poll({"one": handle})["one"].state == "ended")


def test_a_real_board_shows_the_same_behind_the_proxy(front, real):
    direct = f"http://{real.host}:{real.port}{real.path}"
    bearer = {"authorization": f"Bearer {real.token}"}
    asked = {"requests": json.dumps([{"plugin": "scalars", "tag": "loss"}])}
    path = "data/plugin/timeseries/timeSeries"
    proxied = front.ask("POST", path, data=asked)
    assert proxied.json() == httpx.post(direct + path, data=asked, headers=bearer, **QUICK).json()
    points = proxied.json()[0]["runToSeries"]["run1"]
    assert [(one["step"], one["value"]) for one in points[:2]] == [(0, 1.0), (1, 0.5)]
    page = front.get()
    assert page.status_code == 200
    assert "<tf-tensorboard" in page.text or "<tb-webapp" in page.text
    assert "set-cookie" not in page.headers


def test_compressed_bodies_pass_unchanged(front, real):
    headers = {"accept-encoding": "gzip"}
    with (
        httpx.Client(**QUICK) as client,
        client.stream("GET", front.url + "index.js", headers=headers) as got,
    ):
        compressed = b"".join(got.iter_raw())
        assert got.headers["content-encoding"] == "gzip"
        assert int(got.headers["content-length"]) == len(compressed)
    plain = front.get("index.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert gzip.decompress(compressed) == plain.content


# What a board sees


def test_a_board_sees_its_own_token_and_none_of_the_hubs_secrets(front, scripted):
    board = scripted(answer())
    front.get(
        "page?a=1&key=once&b=%20x",
        headers={
            "authorization": "Bearer the-hubs-token",
            "cookie": "aboard-6006-ab=session; theme=dark; aboard-csrf=c",
            "x-aboard-csrf": "c",
            "x-forwarded-for": "10.0.0.1",
            "x-forwarded-prefix": "/evil",
            "forwarded": "for=10.0.0.1",
            "x-real-ip": "10.0.0.1",
            "via": "1.1 other",
            "x_forwarded_for": "10.0.0.1",
            "accept-language": "de",
        },
    )
    assert board.requests[0].startswith(b"GET /b/view/page?a=1&b=%20x HTTP/1.1\r\n")
    heads = dict(board.heads)
    assert heads["authorization"] == f"Bearer {TOKEN}"
    assert heads["cookie"] == "theme=dark"
    assert heads["host"] == f"127.0.0.1:{board.address.port}"
    assert heads["accept-language"] == "de"
    assert [name for name, _ in board.heads].count("authorization") == 1
    for absent in (
        b"the-hubs-token",
        b"session",
        b"10.0.0.1",
        b"csrf",
        b"once",
        b"other",
        b"/evil",
    ):
        assert absent not in board.requests[0]


def test_hop_by_hop_headers_end_at_the_proxy(front, scripted):
    board = scripted(
        answer(
            b"Connection: x-inner, close",
            b"X-Inner: 1",
            b"Keep-Alive: 9",
            b"Upgrade: h2c",
            b"X-End: 2",
        )
    )
    headers = {"connection": "x-outer, close", "x-outer": "1", "te": "trailers", "x-end": "2"}
    got = front.get(headers=headers)
    assert got.headers["x-end"] == "2"
    assert not {"x-inner", "keep-alive", "upgrade"} & set(got.headers)
    heads = dict(board.heads)
    assert heads["x-end"] == "2"
    assert not {"x-outer", "te"} & set(heads)


def test_only_the_token_is_added_to_a_request(front, scripted):
    board = scripted(answer())
    front.send(b"GET /b/one/ HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n")
    assert {name for name, _ in board.heads} == {"host", "authorization"}


def test_the_hubs_own_origin_becomes_the_boards_and_another_stays(front, scripted):
    board = scripted(answer())
    hub = f"http://127.0.0.1:{front.port}"
    front.ask("POST", headers={"origin": hub, "referer": f"{hub}/b/one/page?x=1"})
    heads, own = dict(board.heads), f"http://127.0.0.1:{board.address.port}"
    assert (heads["origin"], heads["referer"]) == (own, f"{own}/b/view/page")
    front.ask("POST", headers={"origin": "http://evil.test", "referer": "http://evil.test/?s=1"})
    heads = dict(board.heads)
    assert heads["origin"] == "http://evil.test"
    assert "referer" not in heads
    front.ask("POST", headers={"referer": f"{hub}/share/secret"})
    assert "referer" not in dict(board.heads)


@pytest.mark.parametrize(
    "path",
    [
        "../other",
        "..%2fother",
        "%2e%2e/other",
        "a/%252e%252e/%252e%252e/x",
        "a/..",
        "a\\..\\b",
        "/evil.test/",
        "%2fevil.test",
        "a%0d%0aX-Bad:1",
        "a%00b",
    ],
)
def test_no_path_leads_out_of_a_board(front, scripted, path):
    board = scripted(answer())
    request = f"GET /b/one/{path} HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n"
    status = front.send(request.encode()).split(b" ")[1]
    assert status in (b"400", b"404")
    assert not board.requests


@pytest.mark.parametrize("path", [b"/%62/one/", b"/b/%6fne/x", b"/b/one%2Fx/"])
def test_a_board_has_one_spelling(front, scripted, path):
    board = scripted(answer())
    got = front.send(b"GET " + path + b" HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n")
    assert got.split(b" ")[1] in (b"400", b"404")
    assert not board.requests


def test_odd_but_harmless_addresses_arrive_unchanged(front, scripted):
    board = scripted(answer())
    path = b"a%2Fb/./%C3%BC/~x;y=1?q=%2B+&&empty=&%zz"
    front.send(b"GET /b/one/" + path + b" HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n")
    assert board.requests[0].startswith(b"GET /b/view/" + path.replace(b"&&", b"&") + b" HTTP/1.1")


def test_ambiguous_request_headers_do_not_pass(scripted, front):
    board = scripted(answer())
    sent = []

    async def ask():
        async def receive():
            await asyncio.sleep(0 if not sent else 60)
            return {"type": "http.request", "body": b""}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/b/one/",
            "raw_path": b"/b/one/",
            "root_path": "/b/one",
            "query_string": b"",
            "path_params": {"board": "one"},
            "headers": [
                (b"host", b"hub"),
                (b"x-a", b"1\r\nx-evil: 1"),
                (b"x b", b"1"),
                (b"x-c", b"1"),
            ],
        }
        async with contextlib.aclosing(Proxy(front.boards.get)) as proxy:
            await proxy(scope, receive, send)

    asyncio.run(ask())
    assert b"evil" not in board.requests[0]
    assert dict(board.heads)["x-c"] == "1"
    assert sent[0]["status"] == 200


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "BREW"])
def test_methods_that_would_show_the_token_are_refused(front, scripted, method):
    board = scripted(answer())
    got = front.ask(method)
    assert got.status_code == 405
    assert "GET" in got.headers["allow"]
    assert not board.requests


# What a client sees


@pytest.mark.parametrize(
    ("location", "public"),
    [
        ("http://127.0.0.1:{port}/b/view/page?x=1#y", "/b/one/page?x=1#y"),
        ("http://localhost:{port}/b/view/", "/b/one/"),
        ("//localhost:{port}/b/view/x", "/b/one/x"),
        ("/b/view/x", "/b/one/x"),
        ("next", "/b/one/a/next"),
        ("../x", "/b/one/x"),
        ("../../../../x", "/b/one/"),
        ("/", "/b/one/"),
        ("/api/v1/boards", "/b/one/"),
        ("/b/view//evil.test/", "/b/one//evil.test/"),
        ("https://docs.test/page", "https://docs.test/page"),
        ("http://127.0.0.1:1/x", "http://127.0.0.1:1/x"),
        ("javascript:alert(1)", None),
        ("http://[broken/", None),
    ],
)
def test_redirects_stay_below_the_board(front, scripted, location, public):
    def redirect(board, connection):
        target = location.format(port=board.address.port).encode()
        connection.sendall(answer(b"Location: " + target, status=b"302 Found"))

    scripted(redirect)
    got = front.get("a/b")
    assert got.status_code == 302
    assert got.headers.get("location") == public


@pytest.mark.parametrize(
    ("cookie", "public"),
    [
        (b"a=1", b"a=1; Path=/b/one/"),
        (b"a=1; Path=/; HttpOnly", b"a=1; HttpOnly; Path=/b/one/"),
        (b"a=1; path=/b/view/sub; Domain=hub.test", b"a=1; Path=/b/one/sub"),
        (b"a=1; Path=/b/viewer; SameSite=Lax", b"a=1; SameSite=Lax; Path=/b/one/"),
        (b"a=x=y; Secure; ; Max-Age=3", b"a=x=y; Max-Age=3; Path=/b/one/; Secure"),
        (b"aboard-6006-ab=evil; Path=/", b""),
        (b"Aboard-x=evil", b""),
        (b"__Host-aboard-x=evil; Path=/; Secure", b""),
        (b"=aboard-6006-ab=evil", b""),
        (b"aboard-6006", b""),
        (b"a b=1", b""),
        (b"", b""),
    ],
)
def test_cookies_stay_below_the_board_and_cannot_replace_the_hubs(cookie, public):
    assert public_cookie(cookie, "/b/one/", "/b/view/", secure=False) == public


def test_cookies_are_secure_if_the_hub_uses_tls():
    cookie = public_cookie(b"a=1; Secure", "/b/one/", "/b/view/", secure=True)
    assert cookie == b"a=1; Path=/b/one/; Secure"


def test_each_cookie_of_a_response_is_checked(front, scripted):
    scripted(answer(b"Set-Cookie: a=1; Path=/", b"Set-Cookie: aboard-x=1", b"set-cookie: b=2"))
    got = front.get().headers.get_list("set-cookie")
    assert got == ["a=1; Path=/b/one/", "b=2; Path=/b/one/"]


def test_a_board_does_not_speak_for_the_hub(front, scripted):
    names = [
        b"Clear-Site-Data",
        b"Service-Worker-Allowed",
        b"Strict-Transport-Security",
        b"Access-Control-Allow-Origin",
        b"X-Accel-Redirect",
        b"X-Sendfile",
        b"Alt-Svc",
        b"WWW-Authenticate",
    ]
    scripted(answer(*(name + b": /" for name in names), b"Server: nasty", b"Date: yesterday"))
    got = front.get()
    assert not {name.decode().lower() for name in names} & set(got.headers)
    assert "nasty" not in str(got.headers)
    assert "yesterday" not in str(got.headers)
    assert got.headers["x-frame-options"] == "SAMEORIGIN"


def test_ambiguous_response_headers_are_dropped(front, scripted):
    scripted(answer(b"X-A: 1\x0b2", b"X-B: a\rSet-Cookie: aboard-x=1", b"X-C: 1"))
    got = front.send(b"GET /b/one/ HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n")
    assert b"aboard-x" not in got
    assert b"\x0b" not in got


@pytest.mark.parametrize("status", [b"304 Not Modified", b"204 No Content", b"404 Not Found"])
def test_the_status_passes(front, scripted, status):
    body = b"" if status[0:1] in b"23" else b"none"
    scripted(answer(b'etag: "x"', status=status, body=body))
    got = front.get()
    assert got.status_code == int(status[:3])
    assert got.headers["etag"] == '"x"'
    assert got.content == body


def test_the_response_to_head_has_its_length_and_no_body(front, scripted):
    scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\nconnection: close\r\n\r\n")
    got = front.ask("HEAD")
    assert got.headers["content-length"] == "1234"
    assert got.content == b""


# Boards that are not there

PAGE = {"accept": "text/html"}


def test_a_starting_board_tells_when_to_retry(front):
    front.boards["one"] = NotServing("starting")
    got = front.get(headers=PAGE)
    assert (got.status_code, got.headers["retry-after"]) == (503, "2")
    assert "This board is starting." in got.text
    assert 'http-equiv="refresh"' in got.text


def test_a_waiting_board_shows_the_reason_and_the_end_of_its_log(front):
    log = ("pulling <image>", "`rm -rf`")
    front.boards["one"] = NotServing("starting", "Resources & <script>alert(1)</script>", log)
    page = front.get(headers=PAGE).text
    assert "Resources &amp; &lt;script&gt;alert(1)&lt;/script&gt;." in page
    assert "<pre>pulling &lt;image&gt;\n`rm -rf`</pre>" in page
    assert "<script" not in page
    assert 'http-equiv="refresh"' in page
    error = front.get().json()["error"]
    assert error["hint"].startswith("Resources & <script>alert(1)</script>. This page opens")


def test_a_board_of_another_hub_is_reported(front):
    front.boards["one"] = NotServing("elsewhere")
    got = front.get(headers=PAGE)
    assert got.status_code == 503
    assert "This board can be reached only through another hub." in got.text


@pytest.mark.parametrize("state", ["stopping", "stopped", "failed", "lost", "unheard-of"])
def test_a_stopped_board_shows_the_reason_and_what_to_do(front, state):
    front.boards["one"] = NotServing(state, "used 2.1 GiB of 2.0 GiB <memory>")
    page = front.get(headers=PAGE)
    assert page.status_code == 503
    assert "Used 2.1 GiB of 2.0 GiB &lt;memory&gt;." in page.text
    assert "aboard restart one" in page.text
    assert "retry-after" not in page.headers
    assert front.get().json()["error"]["code"] == f"board_{state}"


def test_a_board_that_does_not_listen_is_reported(front, closed_port):
    front.boards["one"] = Address("127.0.0.1", closed_port, "/b/view/", TOKEN)
    got = front.get(headers=PAGE)
    assert got.status_code == 503
    assert "This board does not answer." in got.text
    assert "aboard restart one" in got.text
    assert TOKEN not in got.text


def test_an_unknown_board_is_not_found(front):
    got = front.get()
    assert (got.status_code, got.json()["error"]["code"]) == (404, "not_found")


def test_an_address_is_cut_at_the_hubs_own_prefix():
    scope = {"path": "/hub/b/one/x", "raw_path": b"/hub/b/one/x", "root_path": "/hub/b/one"}
    assert path_below(scope) == "/x"
    assert path_below({**scope, "raw_path": b"/hub/b/two/x"}) is None


# Boards behind TLS: the hub sends nothing to a server with another certificate.


STATUS = b'{"runs": 3, "problems": [], "missing_fields": ["no run has it."]}'


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
def tls_board(tmp_path):
    opened = SecureBoard(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def impostor(tls_board):
    """Give the address of a board whose place another server has taken."""
    return replace(tls_board.address, fingerprint=make_certificate()[1])


def test_the_right_certificate_opens_the_board_and_its_connection_is_reused(front, tls_board):
    front.boards["one"] = tls_board.address
    for _ in range(3):
        assert front.get("data/status").content == STATUS
    assert tls_board.connections == 1
    assert f"Bearer {TOKEN}".encode() in tls_board.received
    assert b"GET /b/view/data/status" in tls_board.received


def test_a_server_with_another_certificate_gets_nothing_and_a_page_reports_it(
    front, tls_board, impostor, caplog
):
    front.boards["one"] = impostor
    with caplog.at_level(logging.WARNING, "aboard.hub"):
        got = front.get("data/status", headers={"accept": "text/html"})
    assert got.status_code == 502
    assert "Another server answers at the address of this board." in got.text
    assert "board_impersonated" in got.text
    assert "a server with a different certificate answers" in caplog.text
    assert tls_board.connections == 1
    assert tls_board.received == b""
    assert TOKEN not in caplog.text + got.text


def test_a_connection_that_was_opened_for_one_certificate_is_not_used_for_another(
    front, tls_board, impostor
):
    front.boards["one"] = tls_board.address
    assert front.get().status_code == 200
    front.boards["one"] = impostor
    assert front.get().status_code == 502


def test_a_websocket_is_refused_as_well(front, tls_board, impostor):
    front.boards["one"] = impostor

    async def connect():
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{front.url}socket".replace("http", "ws", 1)),
        ):
            pass

    with pytest.raises(aiohttp.WSServerHandshakeError):
        asyncio.run(connect())
    assert tls_board.connections == 1
    assert tls_board.received == b""


def test_probes_check_the_certificate_before_they_send_the_token(tls_board, impostor):
    assert probe(tls_board.address) == ""
    assert fetch_status(tls_board.address) == (3, [], ["no run has it."])
    tls_board.received = b""
    said = "a server with a different certificate answers at its address"
    assert probe(impostor) == said
    assert fetch_status(impostor) == (None, (), None)
    assert tls_board.received == b""


def test_a_probe_reports_why_a_board_does_not_respond(tls_board):
    tls_board.close()
    assert probe(tls_board.address) == "connection refused"


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
