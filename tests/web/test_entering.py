import re
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from aboard.web.tokens import TokenAccess
from tests.web.visiting import (
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
