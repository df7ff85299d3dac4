import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aboard.web import pages
from aboard.web.pages import LoginForm, Problem
from tests.web.visitors import BEARER, Visitor, call, gate_to, raw_scope

PAGE = {"accept": "text/html"}
ALL = [value for value in vars(pages).values() if isinstance(value, Problem)]


class Outline(HTMLParser):
    """What a browser would fetch, and which elements are left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag not in {"meta", "input", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.code)
def test_a_page_is_complete_in_itself(problem: Problem) -> None:
    reply = problem.reply(as_page=True, form=LoginForm("./x", "/b/"))
    text = reply.body.decode()
    outline = Outline(text)
    assert outline.open == []
    assert outline.fetched == []
    assert "script" not in outline.tags
    assert re.search("url\\(|@import|https?:", text) is None
    assert outline.tags.count("h1") == 1
    assert '<html lang="en">' in text


@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.code)
def test_the_policy_allows_the_style_of_the_page_and_nothing_else(problem: Problem) -> None:
    reply = problem.reply(as_page=True)
    style = re.search("<style>(.*)</style>", reply.body.decode(), re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert dict(reply.headers)["content-security-policy"] == (
        f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'self'"
    )


@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.code)
def test_programs_get_json(problem: Problem) -> None:
    start, body = call(problem, raw_scope("/"))
    assert start["status"] == problem.status
    assert (b"content-type", b"application/json") in start["headers"]
    assert json.loads(body["body"]) == {
        "error": {"code": problem.code, "message": problem.message, "hint": problem.hint}
    }


def test_people_get_a_page() -> None:
    start, body = call(pages.NOT_FOUND, raw_scope("/", headers=PAGE))
    assert start["status"] == 404
    assert (b"content-type", b"text/html; charset=utf-8") in start["headers"]
    assert b"Page not found." in body["body"]


def test_errors_are_never_cached() -> None:
    for problem in ALL:
        assert dict(problem.reply(as_page=False).headers)["cache-control"] == "no-store"


def test_head_gets_the_length_but_no_body() -> None:
    start, body = call(pages.NOT_FOUND, raw_scope("/", method="HEAD"))
    assert body["body"] == b""
    assert int(dict(start["headers"])[b"content-length"]) > 0


def test_a_page_may_reload_by_itself() -> None:
    problem = Problem(503, "starting", "The board starts.", "Wait a moment.", reload=2)
    assert b'<meta http-equiv="refresh" content="2">' in problem.reply(as_page=True).body


def test_text_cannot_become_markup() -> None:
    problem = Problem(400, "<i>", "<script>alert(1)</script>", '"><img src=x>')
    form = LoginForm("./x", '/b/?"><script>')
    text = problem.reply(as_page=True, form=form).body.decode()
    assert "<script" not in text
    assert "<img" not in text
    assert "<i>" not in text


def test_a_hint_has_lines_and_commands() -> None:
    problem = Problem(503, "ended", "It has ended.", "Why <so>.\nAgain: `aboard restart x`")
    page = problem.reply(as_page=True).body.decode()
    assert '<p class="hint">Why &lt;so&gt;.</p>' in page
    assert '<p class="hint">Again: <code>aboard restart x</code></p>' in page
    error = json.loads(problem.reply(as_page=False).body)["error"]
    assert error["hint"] == "Why <so>. Again: aboard restart x"


def test_starlettes_own_errors_can_be_ours() -> None:
    def broken(_: Request) -> Response:
        raise ValueError("lost the disk")

    handlers: Any = {404: lambda *_: pages.NOT_FOUND, 500: lambda *_: pages.INTERNAL}
    app = Starlette(routes=[Route("/broken", broken)], exception_handlers=handlers)
    visitor = Visitor(gate_to(app), **BEARER)
    assert visitor.get("/nowhere").json()["error"]["code"] == "not_found"
    assert visitor.get("/broken").json()["error"]["code"] == "internal_error"


@pytest.mark.parametrize("problem", ALL)
def test_a_websocket_is_closed_with_the_status(problem: Problem) -> None:
    sent = call(problem, raw_scope("/", type="websocket"), {"type": "websocket.connect"})
    assert sent == [{"type": "websocket.close", "code": 4000 + problem.status}]
