import asyncio
import logging
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from aboard.web import gate as web_gate
from aboard.web.gate import Throttle
from aboard.web.tokens import TokenAccess
from tests.waiting import until_async
from tests.web.visitors import (
    BEARER,
    ORIGIN,
    PAGE,
    TOKEN,
    Visitor,
    access_with,
    call,
    gate_to,
    let_in,
    never,
    raw_scope,
)

LOGIN_PATH = TokenAccess.login.path
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"]
PATHS = ["/", "/b/board/", "/font-roboto/x.woff2", "/no/such/thing", "/_aboard/other", "/index.js"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", METHODS)
def test_nothing_answers_without_a_secret(method: str, path: str) -> None:
    response = Visitor(gate_to(never)).ask(method, path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == 'Bearer realm="aboard"'


def test_loopback_is_a_stranger_like_any_other() -> None:
    for address in ("127.0.0.1", "::1"):
        start, _ = call(gate_to(never), raw_scope("/", client=(address, 50000)))
        assert start["status"] == 401


def test_programs_are_told_how_to_send_the_token() -> None:
    assert Visitor(gate_to()).get("/", accept="*/*").json() == {
        "error": {
            "code": "not_authenticated",
            "message": "A link or a token is needed.",
            "hint": "Send a token in a header: Authorization: Bearer TOKEN",
        }
    }


def test_people_are_told_what_this_is_and_get_a_form() -> None:
    response = Visitor(gate_to()).get("/b/board/?tab=x", **PAGE)
    assert response.status_code == 401
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "This is Aboard, which shows training runs." in response.text
    assert '<form method="post" action="../../_aboard/login">' in response.text
    assert 'value="/b/board/?tab=x"' in response.text
    wrong = Visitor(gate_to()).get("/b/board/?tab=x&key=", **PAGE)
    assert "Invalid link." in wrong.text
    assert 'value="/b/board/?tab=x"' in wrong.text


class TestWrites:
    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({}, 200),
            ({"origin": ORIGIN}, 200),
            ({"sec_fetch_site": "same-origin"}, 200),
            ({"origin": "http://board.test:7007"}, 403),
            ({"origin": "null"}, 403),
            ({"sec_fetch_site": "same-site"}, 403),
            ({"sec_fetch_site": "cross-site"}, 403),
        ],
    )
    def test_by_cookie_they_come_from_our_own_pages(
        self, headers: dict[str, str], status: int
    ) -> None:
        visitor = let_in(gate_to())
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert visitor.ask(method, "/b/x", headers=headers).status_code == status
        assert visitor.get("/b/x", **headers).status_code == 200

    def test_by_token_they_come_from_anywhere(self) -> None:
        headers = {**BEARER, "origin": "http://elsewhere.test"}
        assert Visitor(gate_to()).ask("POST", "/b/x", headers=headers).status_code == 200

    def test_the_refusal_says_why(self) -> None:
        refused = let_in(gate_to()).ask("POST", "/", headers={"origin": "http://elsewhere.test"})
        assert refused.json()["error"]["code"] == "cross_origin"
        assert "elsewhere" not in refused.text


class TestAddresses:
    @pytest.mark.parametrize(
        ("path", "raw"),
        [
            ("/../etc/passwd", b"/../etc/passwd"),
            ("/b/../../etc/passwd", b"/b/%2e%2e/%2e%2e/etc/passwd"),
            ("/b/%2e%2e/x", b"/b/%252e%252e/x"),
            ("/b/\x00", b"/b/%00"),
            ("/b\\..\\x", b"/b%5c..%5cx"),
            ("//elsewhere.test/", b"//elsewhere.test/"),
            ("//elsewhere.test/", b"/%2felsewhere.test/"),
            ("http://elsewhere.test/", b"http://elsewhere.test/"),
            ("*", b"*"),
        ],
    )
    def test_those_that_could_mean_two_things_are_refused(self, path: str, raw: bytes) -> None:
        gate = gate_to(never)
        start, body = call(gate, raw_scope(path, raw_path=raw, headers=BEARER))
        assert start["status"] == 400
        assert b"bad_path" in body["body"]
        start, body = call(gate, raw_scope(path, raw_path=raw, headers=PAGE))
        assert start["status"] == 401
        assert b'name="next" type="hidden" value="/"' in body["body"]
        assert b"elsewhere" not in body["body"]

    @pytest.mark.parametrize("host", ["evil.test", "evil.test:6006", 'e"><script>', ""])
    def test_the_host_header_appears_nowhere(self, host: str) -> None:
        routes = [Mount("/b", routes=[Route("/x/", lambda _: PlainTextResponse("here"))])]
        access = access_with()
        gate = gate_to(Starlette(routes=routes), access)
        cookie = "; ".join(f"{k}={v}" for k, v in let_in(gate, "http://h:6006").cookies.items())
        key = access.key
        for headers in (PAGE, {}, BEARER, {"cookie": cookie}, {**BEARER, "origin": "http://a"}):
            for method in ("GET", "POST"):
                for query in (b"", f"key={key}".encode()):
                    scope = raw_scope(
                        "/b/x", method=method, query_string=query, headers={"host": host, **headers}
                    )
                    scope["root_path"] = ""
                    sent = call(gate, scope)
                    answer = repr(sent)
                    assert sent[0]["status"] in {303, 307, 401, 403}
                    assert "evil" not in answer
                    assert "<script" not in answer


def test_headers_that_the_inside_trusts_cannot_be_spoofed() -> None:
    spoofed = {
        "Tensorboard-Experiment-Id": "other-board",
        "X-Forwarded-For": "10.0.0.1",
        "X-Forwarded-Proto": "https",
        "Forwarded": "for=10.0.0.1",
    }
    visitor = Visitor(gate_to())
    seen = {name for name, _ in visitor.get("/", **BEARER, **spoofed).json()["headers"]}
    assert not seen & {name.lower() for name in spoofed}
    secure = {"x-forwarded-proto": "https"}
    response = visitor.ask("POST", LOGIN_PATH, data={"token": TOKEN}, headers=secure)
    assert "Secure" not in response.headers["set-cookie"]


def test_every_response_carries_the_headers_of_safety() -> None:
    visitor = let_in(gate_to())
    stranger = Visitor(gate_to())
    responses = [
        visitor.get("/"),
        visitor.get("/?key=x"),
        visitor.ask("POST", "/", headers={"origin": "null"}),
        stranger.get("/"),
        stranger.get("/", **PAGE),
        Visitor(gate_to(never)).get("/", **BEARER),
    ]
    assert [response.status_code for response in responses] == [200, 303, 403, 401, 401, 500]
    for response in responses:
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "SAMEORIGIN"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert response.headers["cross-origin-opener-policy"] == "same-origin"
        assert response.headers["referrer-policy"] in {"no-referrer", "same-origin"}
        assert response.headers["cache-control"] in {"private", "no-store"}
        assert not any(name.startswith("access-control") for name in response.headers)


class TestBodies:
    """A body is limited, whether its length is given or not."""

    @pytest.fixture(autouse=True)
    def limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(web_gate, "MAX_BODY_BYTES", 10)
        monkeypatch.setattr(web_gate, "MAX_BOARD_BODY_BYTES", 20)

    def send(self, path: str, size: int, *, with_length: bool) -> int:
        async def read(scope: Any, receive: Any, send: Any) -> None:
            while (await receive()).get("more_body"):
                pass
            await PlainTextResponse("read")(scope, receive, send)

        headers = {**BEARER, **({"content-length": str(size)} if with_length else {})}
        pieces = [
            {"type": "http.request", "body": b"x", "more_body": left > 1}
            for left in range(size, 0, -1)
        ]
        sent = call(gate_to(read), raw_scope(path, method="POST", headers=headers), *pieces)
        return int(sent[0]["status"])

    @pytest.mark.parametrize("with_length", [True, False])
    def test_a_larger_one_is_refused(self, with_length: bool) -> None:
        sizes = [("/x", 10), ("/x", 11), ("/b/x/", 20), ("/b/x/", 21)]
        statuses = [self.send(path, size, with_length=with_length) for path, size in sizes]
        assert statuses == [200, 413, 200, 413]


class TestFailures:
    def test_an_error_becomes_a_page_without_a_traceback(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        response = Visitor(gate_to(never)).get("/b/x", **BEARER, **PAGE)
        assert response.status_code == 500
        assert "Something went wrong on the server." in response.text
        assert "a request came through" not in response.text
        assert "Traceback" not in response.text
        assert [record.getMessage() for record in caplog.records] == ["GET '/b/x' failed"]
        assert "a request came through" in caplog.text

    def test_an_answer_that_has_begun_is_cut_off(self, caplog: pytest.LogCaptureFixture) -> None:
        async def half(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise ValueError("lost the disk")

        sent = call(gate_to(half), raw_scope("/", headers=BEARER))
        assert [message["type"] for message in sent] == ["http.response.start"]
        assert "lost the disk" in caplog.text


class TestWrongSecrets:
    def test_they_wait_longer_each_time(self) -> None:
        waited: list[float] = []

        async def sleep(seconds: float) -> None:
            waited.append(seconds)

        access = access_with(throttle=Throttle(clock=lambda: 0.0, sleep=sleep))
        gate = gate_to(access=access)
        visitor = Visitor(gate)
        visitor.get("/?key=wrong")
        visitor.get("/", authorization="Bearer wrong")
        visitor.ask("POST", LOGIN_PATH, data={"token": "wrong"})
        assert waited == [0.1, 0.2, 0.4]
        visitor.get("/")
        visitor.get("/", **BEARER)
        assert visitor.get(f"/?key={access.key}").status_code == 303
        assert visitor.get("/").status_code == 200
        assert waited == [0.1, 0.2, 0.4]

    def test_a_hundred_of_them_do_not_hold_up_a_right_one(self) -> None:
        access = access_with(throttle=Throttle(first=3600, longest=3600))
        gate = gate_to(never, access)

        async def rush() -> tuple[int, list[int]]:
            guesses = [
                asyncio.create_task(Visitor(gate).ask_async("GET", f"/?key=guess{number}"))
                for number in range(100)
            ]
            await until_async(lambda: sum(guess.done() for guess in guesses) >= 36)
            right = await Visitor(gate).ask_async("GET", f"/?key={access.key}")
            turned_away = [guess.result().status_code for guess in guesses if guess.done()]
            for guess in guesses:
                guess.cancel()
            await asyncio.gather(*guesses, return_exceptions=True)
            return right.status_code, turned_away

        status, turned_away = asyncio.run(rush())
        assert status == 303
        assert turned_away == [429] * 36


class TestManyGuesses:
    """Only so many guesses at a token that a user chose are checked."""

    def counting(self, throttle: Throttle) -> tuple[TokenAccess, list[str]]:
        access = access_with(throttle=throttle)
        compared: list[str] = []
        is_token = access.is_token

        def count(text: str) -> bool:
            compared.append(text)
            return is_token(text)

        access.is_token = count  # type: ignore[method-assign]
        return access, compared

    def test_a_guess_too_many_is_not_compared(self) -> None:
        throttle = Throttle(clock=lambda: 0.0, first=0.0, turns=3, max_wait=0.0)
        access, compared = self.counting(throttle)
        gate = gate_to(access=access)
        visitor = Visitor(gate)
        answers = [visitor.get("/", authorization=f"Bearer guess{n}") for n in range(10)]
        assert [one.status_code for one in answers] == [401] * 3 + [429] * 7
        assert len(compared) == 3
        refused = visitor.get("/", **BEARER)
        assert refused.status_code == 429
        assert refused.headers["connection"] == "close"
        assert refused.headers["x-content-type-options"] == "nosniff"
        assert visitor.ask("POST", LOGIN_PATH, data={"token": TOKEN}).status_code == 429
        websocket = raw_scope("/b/x", headers={"host": "h", **BEARER}, type="websocket")
        sent = call(gate, websocket, {"type": "websocket.connect"})
        assert sent == [{"type": "websocket.close", "code": 4401}]
        assert len(compared) == 3

    def test_the_right_one_gets_its_turn(self) -> None:
        now = [0.0]
        throttle = Throttle(clock=lambda: now[0], first=0.0, turns=3, per_second=1.0, max_wait=0.0)
        visitor = Visitor(gate_to(throttle=throttle))
        while visitor.get("/", authorization="Bearer guess").status_code != 429:
            pass
        assert visitor.get("/", **BEARER).status_code == 429
        now[0] += 1.0
        for _ in range(20):
            assert visitor.get("/", **BEARER).status_code == 200

    def test_sessions_and_links_do_not_wait(self) -> None:
        throttle = Throttle(clock=lambda: 0.0, first=0.0, turns=3, max_wait=0.0)
        access = access_with(throttle=throttle)
        gate = gate_to(access=access)
        holder = let_in(gate)
        stranger = Visitor(gate)
        while stranger.get("/", authorization="Bearer guess").status_code != 429:
            pass
        assert holder.get("/").status_code == 200
        assert holder.get("/", **BEARER).status_code == 200
        assert Visitor(gate).get(f"/?key={access.key}").status_code == 303
        link = {"token": f"http://board.test/?key={access.key}"}
        assert Visitor(gate).ask("POST", LOGIN_PATH, data=link).status_code == 303

    def test_a_token_that_nobody_guesses_waits_for_nobody(self) -> None:
        throttle = Throttle(clock=lambda: 0.0, first=0.0, turns=3, max_wait=0.0)
        access = access_with(None, throttle=throttle)
        gate = gate_to(access=access)
        visitor = Visitor(gate)
        for number in range(20):
            wrong = visitor.get("/", authorization=f"Bearer guess{number}")
            assert wrong.status_code == 401
            right = visitor.get("/", authorization=f"Bearer {access.token}")
            assert right.status_code == 200


class TestWebsockets:
    def open(self, gate: Any, path: str = "/b/x", **headers: str) -> list[dict[str, Any]]:
        scope = raw_scope(path, headers={"host": "h", **headers}, type="websocket", scheme="ws")
        del scope["method"]
        return call(gate, scope, {"type": "websocket.connect"})

    def test_without_a_secret_they_are_refused_before_they_open(self) -> None:
        gate = gate_to(never)
        refused = [{"type": "websocket.close", "code": 4401}]
        assert self.open(gate) == refused
        assert self.open(gate, authorization="Bearer wrong") == refused
        assert self.open(gate, cookie="aboard-6006-x=y") == refused

    def test_with_one_they_come_through_and_it_is_withheld(self) -> None:
        seen: list[Any] = []

        async def accept(scope: Any, receive: Any, send: Any) -> None:
            seen.extend(scope["headers"])
            await send({"type": "websocket.accept"})

        assert self.open(gate_to(accept), **BEARER) == [{"type": "websocket.accept"}]
        assert seen == [(b"host", b"h")]

    def test_another_origins_page_cannot_use_the_cookie(self) -> None:
        gate = gate_to(never)
        visitor = let_in(gate, "http://h:6006")
        cookie = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
        sent = self.open(gate, cookie=cookie, origin="http://elsewhere.test")
        assert sent == [{"type": "websocket.close", "code": 4403}]

    def test_bad_addresses_and_failures(self, caplog: pytest.LogCaptureFixture) -> None:
        sent = self.open(gate_to(never), "/b/../x", **BEARER)
        assert sent == [{"type": "websocket.close", "code": 4400}]
        assert self.open(gate_to(never), **BEARER) == [{"type": "websocket.close", "code": 1011}]
        assert "websocket '/b/x' failed" in caplog.text


def test_the_lifespan_reaches_the_application() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    call(gate_to(app), {"type": "lifespan"})
    assert seen == ["lifespan"]


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


def test_no_secret_is_ever_logged_or_sent_back(
    everything_logged: pytest.LogCaptureFixture,
) -> None:
    access = access_with()
    key = access.key
    gate = gate_to(access=access)
    visitor = Visitor(gate)
    responses = [
        visitor.get(f"/b/?key={key}x", **PAGE),
        visitor.get(f"/b/?key={key}", **PAGE),
        visitor.get(f"/b/?key={key}", **PAGE),
        visitor.get("/b/", **PAGE),
        Visitor(gate).get(f"/b/?a=1&key={key}", **PAGE),
        Visitor(gate).get(f"/?x=1&key={key}&y=2", **BEARER),
        Visitor(gate).get("/", authorization=f"Bearer {TOKEN}x"),
        Visitor(gate_to(never, access)).get(f"/?key={key}", **BEARER),
        Visitor(gate).ask("POST", LOGIN_PATH, data={"token": f"{TOKEN}x"}, headers=PAGE),
    ]
    (session,) = visitor.cookies.values()
    for response in responses:
        sent = [value for name, value in response.headers.items() if name != "set-cookie"]
        for secret in (key, TOKEN, session):
            assert secret not in response.text
            assert secret not in " ".join(sent)
    for secret in (key, TOKEN, session):
        assert secret not in re.sub("HTTP Request: .*", "", everything_logged.text)
    assert "refused a wrong secret from" in everything_logged.text


# What opens the gate: tokens, keys, cookies and the login page.


class TestToken:
    def test_it_opens_every_path(self) -> None:
        visitor = Visitor(gate_to())
        assert visitor.get("/b/x/", **BEARER).status_code == 200
        assert visitor.get("/b/x/", authorization=f"bEARER  {TOKEN} ").status_code == 200
        assert not visitor.cookies

    @pytest.mark.parametrize(
        "header", [f"Bearer {TOKEN}x", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, "Bearer é"]
    )
    def test_anything_else_does_not(self, header: str) -> None:
        scope = raw_scope("/", headers={"authorization": header})
        start, _ = call(gate_to(never), scope)
        assert start["status"] == 401

    def test_it_is_not_taken_from_the_address(self) -> None:
        for query in (f"token={TOKEN}", f"key={TOKEN}", f"access_token={TOKEN}"):
            assert Visitor(gate_to(never)).get(f"/?{query}").status_code == 401

    def test_the_application_never_sees_it(self) -> None:
        response = Visitor(gate_to()).get("/x", **BEARER)
        assert TOKEN not in response.text


class TestKey:
    def test_it_becomes_a_cookie_and_leaves_the_address(self) -> None:
        access = access_with()
        visitor = Visitor(gate_to(access=access))
        key = access.key
        response = visitor.get(f"/b/x/?a=1&key={key}&b=%2F", **PAGE)
        assert response.status_code == 303
        assert response.headers["location"] == "./?a=1&b=%2F"
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert key not in str(response.headers)
        seen = visitor.get(urljoin(str(response.url), response.headers["location"])).json()
        assert seen["path"] == "/b/x/"
        assert seen["query"] == "a=1&b=%2F"
        assert not any(name == "cookie" for name, _ in seen["headers"])

    def test_it_opens_again_and_again_while_the_process_lives(self) -> None:
        now = [1000.0]
        access = access_with(clock=lambda: now[0])
        gate = gate_to(access=access)
        link = f"/b/x/?key={access.key}"
        for _ in range(3):
            browser = Visitor(gate)
            assert browser.get(link, **PAGE).status_code == 303
            assert browser.get("/b/x/").status_code == 200
            now[0] += 365 * 86400.0
        other = Visitor(gate_to(access=access_with())).get(link, **PAGE)
        assert other.status_code == 401
        assert "Invalid link." in other.text
        assert "Aboard may have restarted since" in other.text
        assert "set-cookie" not in other.headers

    def test_it_leads_on_a_browser_that_is_in_already(self) -> None:
        access = access_with()
        visitor = Visitor(gate_to(access=access))
        link = f"/b/x/?key={access.key}"
        assert visitor.get(link).status_code == 303
        again = visitor.get(link)
        assert again.status_code == 303
        assert again.headers["location"] == "./"
        assert "set-cookie" not in again.headers

    @pytest.mark.parametrize("method", ["HEAD", "POST", "OPTIONS"])
    def test_only_get_redeems_it(self, method: str) -> None:
        access = access_with()
        gate = gate_to(access=access)
        link = f"/?key={access.key}"
        refused = Visitor(gate).ask(method, link)
        assert refused.status_code == 401
        assert "set-cookie" not in refused.headers

    def test_the_application_never_sees_it(self) -> None:
        access = access_with()
        key = access.key
        seen = Visitor(gate_to(access=access)).get(f"/?k%65y={key}&a=1", **BEARER).json()
        assert seen["query"] == "a=1"

    def test_an_address_that_is_refused_does_not_redeem_it(self) -> None:
        access = access_with()
        gate = gate_to(never, access)
        query = f"key={access.key}".encode()
        start, _ = call(gate, raw_scope("//elsewhere.test/", query_string=query))
        assert start["status"] == 401
        assert b"location" not in dict(start["headers"])
        assert Visitor(gate).get(f"/?{query.decode()}").status_code == 303


class TestCookie:
    def cookie_of(self, origin: str) -> str:
        visitor = Visitor(gate_to(), origin)
        response = visitor.ask("POST", LOGIN_PATH, data={"token": TOKEN})
        return str(response.headers["set-cookie"])

    def test_its_attributes(self) -> None:
        cookie = self.cookie_of("http://localhost:6006")
        assert re.fullmatch(
            "aboard-6006-[0-9a-f]{8}=[A-Za-z0-9_-]{43}; "
            "Path=/; Max-Age=2592000; HttpOnly; SameSite=Lax",
            cookie,
        )
        assert self.cookie_of("https://board.test:6006").endswith("; SameSite=Lax; Secure")

    def test_each_listener_of_a_host_has_its_own(self) -> None:
        names = {self.cookie_of(f"http://localhost:{port}").split("=")[0] for port in (1, 2, 3)}
        assert len(names) == 3

    def test_another_machine_behind_a_forwarded_port_has_its_own(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = self.cookie_of("http://localhost:6006").split("=")[0]
        monkeypatch.setattr("socket.gethostname", lambda: "another-node")
        assert self.cookie_of("http://localhost:6006").split("=")[0] != here

    def test_it_opens(self) -> None:
        visitor = let_in(gate_to())
        assert visitor.get("/b/x/").status_code == 200

    def test_of_another_process_it_does_not(self) -> None:
        visitor = let_in(gate_to())
        visitor.gate = gate_to(never)
        assert visitor.get("/b/x/").status_code == 401

    def test_a_planted_one_beside_it_does_no_harm(self) -> None:
        visitor = let_in(gate_to())
        name, value = next(iter(visitor.cookies.items()))
        both = {"cookie": f"{name}=planted; {name}={value}; {name}="}
        assert Visitor(visitor.gate).get("/", **both).status_code == 200

    def test_the_application_never_sees_it(self) -> None:
        visitor = let_in(gate_to())
        visitor.cookies.set("theme", "dark", domain="board.test")
        seen = dict(visitor.get("/").json()["headers"])
        assert seen["cookie"] == "theme=dark"


class TestLogin:
    def log_in(self, secret: str, target: str = "/b/x/?a=1", **options: Any) -> httpx.Response:
        form = {"token": secret, "next": target}
        gate = options.pop("gate", None) or gate_to()
        return Visitor(gate).ask("POST", LOGIN_PATH, data=form, headers=PAGE, **options)

    def test_a_token_in_the_body_opens(self) -> None:
        response = self.log_in(f" {TOKEN}\n")
        assert response.status_code == 303
        assert urljoin(str(response.url), response.headers["location"]) == f"{ORIGIN}/b/x/?a=1"
        assert response.headers["cache-control"] == "no-store"

    def test_a_pasted_link_or_key_opens_too(self) -> None:
        access = access_with()
        gate = gate_to(access=access)
        for secret in (access.key, f"http://localhost/b/?x=1&key={access.key}#top"):
            assert self.log_in(secret, gate=gate).status_code == 303

    def test_the_page_says_what_to_paste(self) -> None:
        response = Visitor(gate_to()).get("/b/", **PAGE)
        hint = "Open the link that <code>aboard view</code> printed, or paste that link or the"
        assert hint in response.text
        assert "<label>Link or token" in response.text

    def test_a_wrong_one_gets_the_form_again(self) -> None:
        response = self.log_in("wrong-secret-here")
        assert response.status_code == 401
        assert "Invalid token." in response.text
        assert 'value="/b/x/?a=1"' in response.text
        assert 'action="../_aboard/login"' in response.text
        assert "wrong-secret-here" not in response.text

    @pytest.mark.parametrize(
        "target",
        [
            "//elsewhere.test/",
            "https://elsewhere.test/",
            "/\\elsewhere.test",
            "/..//elsewhere.test",
            "javascript:alert(1)",
            "",
            LOGIN_PATH,
        ],
    )
    def test_it_leads_nowhere_else(self, target: str) -> None:
        response = self.log_in(TOKEN, target)
        assert urljoin(str(response.url), response.headers["location"]) == f"{ORIGIN}/"

    def test_no_header_can_be_smuggled_in(self) -> None:
        response = self.log_in(TOKEN, "/b/?x\r\nSet-Cookie: a=b")
        assert response.headers["location"] == "../b/?x%0D%0ASet-Cookie:%20a=b"

    def test_the_address_of_the_form_leads_to_the_start(self) -> None:
        gate = gate_to()
        assert Visitor(gate).get(LOGIN_PATH, **PAGE).status_code == 401
        inside = let_in(gate).get(LOGIN_PATH)
        assert urljoin(str(inside.url), inside.headers["location"]) == f"{ORIGIN}/"

    def test_what_is_no_form_is_a_wrong_secret(self) -> None:
        gate = gate_to(never)
        for body in (b"", b"\xff\x00=%%%", b"token=" + b"x" * 100_000, b"&".join([b"a=1"] * 50)):
            assert Visitor(gate).ask("POST", LOGIN_PATH, content=body).status_code == 401
        sent = call(gate, raw_scope(LOGIN_PATH, method="POST"), {"type": "http.disconnect"})
        assert sent[0]["status"] == 401


# Wrong secrets delay and limit further attempts.


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_delay_grows_with_each_failure_up_to_a_limit() -> None:
    throttle = Throttle(clock=Clock())
    delays = [throttle.failed() for _ in range(8)]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_failures_are_forgotten() -> None:
    clock = Clock()
    throttle = Throttle(clock=clock, forget=5)
    for _ in range(1000):
        throttle.failed()
    clock.now += 25
    assert throttle.failed() == 2.0
    clock.now += 50
    assert throttle.failed() == 0.1


def test_only_so_many_wait() -> None:
    async def rush() -> tuple[list[bool], bool]:
        held: list[asyncio.Future[None]] = []

        def sleep(_: float) -> asyncio.Future[None]:
            held.append(asyncio.get_running_loop().create_future())
            return held[-1]

        throttle = Throttle(sleep=sleep, max_waiting=3)
        tasks = [asyncio.create_task(throttle.hold()) for _ in range(10)]
        await asyncio.sleep(0)
        assert len(held) == 3
        for future in held:
            future.set_result(None)
        answers = [await task for task in tasks]
        later = asyncio.create_task(throttle.hold())
        await asyncio.sleep(0)
        held[-1].set_result(None)
        return answers, await later

    answers, later = asyncio.run(rush())
    assert answers == [True] * 3 + [False] * 7
    assert later


def test_whoever_gives_up_makes_room() -> None:
    async def leave() -> bool:
        throttle = Throttle(max_waiting=1, first=60, longest=60)
        waiting = asyncio.create_task(throttle.hold())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        again = asyncio.create_task(throttle.hold())
        await asyncio.sleep(0)
        is_waiting = not again.done()
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        return is_waiting

    assert asyncio.run(leave())


class TestTurns:
    def throttle(self, clock: Clock, waited: list[float]) -> Throttle:
        async def sleep(seconds: float) -> None:
            waited.append(round(seconds, 6))

        return Throttle(clock=clock, sleep=sleep, turns=3, per_second=5.0, max_wait=1.0)

    def take(self, throttle: Throttle, count: int) -> list[bool]:
        async def take() -> list[bool]:
            return [await throttle.acquire() for _ in range(count)]

        return asyncio.run(take())

    def test_a_few_are_there_at_once_and_then_only_so_many_in_a_second(self) -> None:
        waited: list[float] = []
        throttle = self.throttle(Clock(), waited)
        assert self.take(throttle, 3) == [True] * 3
        assert waited == []
        assert self.take(throttle, 20) == [True] * 5 + [False] * 15
        assert waited == [0.2, 0.4, 0.6, 0.8, 1.0]

    def test_whoever_is_turned_away_takes_no_turn(self) -> None:
        waited: list[float] = []
        clock = Clock()
        throttle = self.throttle(clock, waited)
        self.take(throttle, 1000)
        clock.now += 0.2
        assert self.take(throttle, 2) == [True, False]

    def test_they_come_back_with_time_and_no_more_than_a_few(self) -> None:
        waited: list[float] = []
        clock = Clock()
        throttle = self.throttle(clock, waited)
        self.take(throttle, 8)
        waited.clear()
        clock.now += 3600
        assert self.take(throttle, 4) == [True] * 4
        assert waited == [0.2]

    def test_those_who_are_right_use_none_up(self) -> None:
        waited: list[float] = []
        throttle = self.throttle(Clock(), waited)
        for _ in range(100):
            assert self.take(throttle, 1) == [True]
            throttle.release()
        assert waited == []
