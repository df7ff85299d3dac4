"""An application that shows what it was sent, and visitors to its gate."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx

from aboard.web.gate import Gate, Throttle
from aboard.web.tokens import TokenAccess

PAGE = {"accept": "text/html,application/xhtml+xml"}
TOKEN = "a-token-that-nobody-guesses"
BEARER = {"authorization": f"Bearer {TOKEN}"}
ORIGIN = "http://board.test:6006"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the request, as JSON."""
    shown = {
        "path": scope["path"],
        "query": scope["query_string"].decode(),
        "headers": [[name.decode(), value.decode()] for name, value in scope["headers"]],
    }
    kind = (b"content-type", b"application/json")
    await send({"type": "http.response.start", "status": 200, "headers": [kind]})
    await send({"type": "http.response.body", "body": json.dumps(shown).encode()})


async def never(scope: Any, receive: Any, send: Any) -> None:
    """Stand behind a gate that should let nothing through."""
    raise AssertionError("a request came through")


def access_with(token: str | None = TOKEN, **options: Any) -> TokenAccess:
    """Return access whose throttle does not wait."""
    options.setdefault("throttle", Throttle(first=0.0))
    return TokenAccess(token, **options)


def gate_to(app: Any = echo, access: TokenAccess | None = None, **options: Any) -> Gate:
    return Gate(app, access or access_with(**options))


class Visitor:
    """A browser or a program, with a cookie jar, that follows no redirects by itself."""

    def __init__(self, gate: Gate, origin: str = ORIGIN, **headers: str) -> None:
        self.gate = gate
        self.origin = origin
        self.headers = headers
        self.cookies = httpx.Cookies()

    def get(self, target: str, **headers: str) -> httpx.Response:
        return self.ask("GET", target, headers=headers)

    def ask(self, method: str, target: str, **options: Any) -> httpx.Response:
        return asyncio.run(self.ask_async(method, target, **options))

    async def ask_async(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        spelled = {
            name.replace("_", "-"): value
            for name, value in {**self.headers, **(headers or {})}.items()
        }
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(self.gate, raise_app_exceptions=True),
            base_url=self.origin,
            cookies=self.cookies,
        ) as client:
            response = await client.request(method, target, headers=spelled, **options)
            self.cookies = client.cookies
            return response


def let_in(gate: Gate, origin: str = ORIGIN) -> Visitor:
    """Return a visitor with a cookie."""
    visitor = Visitor(gate, origin)
    access = gate._access
    assert isinstance(access, TokenAccess)
    form = {"token": access.token}
    assert visitor.ask("POST", "/_aboard/login", data=form).status_code == 303
    return visitor


def raw_scope(
    path: str,
    *,
    raw_path: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return a scope as a server makes it, for addresses that clients would tidy up."""
    return {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "server": ("127.0.0.1", 6006),
        "client": ("127.0.0.1", 50000),
        "path": path,
        "raw_path": path.encode() if raw_path is None else raw_path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        **changes,
    }


def call(app: Any, scope: dict[str, Any], *incoming: dict[str, Any]) -> list[dict[str, Any]]:
    """Run an ASGI application once, and return what it sent."""
    waiting = list(incoming) or [{"type": "http.request", "body": b"", "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return waiting.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent
