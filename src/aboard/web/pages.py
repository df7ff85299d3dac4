"""Pages for what goes wrong, and the same in JSON for programs.

Each page is complete in itself: no script, no other file, and a policy that allows none. They say
nothing of what is behind the gate, because a stranger may read them.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aboard.web.request import accepts_html

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2430; --soft: #566173; --line: #8a94a6;
  --accent: #b34700; --on-accent: #fff; --ground: #f3f5f8; }
@media (prefers-color-scheme: dark) { :root { --paper: #1b2028; --ink: #e9edf3; --soft: #a7b1c2;
  --line: #6d7789; --accent: #ffa14a; --on-accent: #1b2028; --ground: #12161c; } }
* { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; padding: 1.5rem;
  background: var(--ground); color: var(--ink); font: 1rem/1.55 system-ui, sans-serif; }
main { width: 100%; max-width: 34rem; padding: 2.25rem 2.5rem; background: var(--paper);
  border-top: .3rem solid var(--accent); border-radius: .5rem;
  box-shadow: 0 1px 3px #0003, 0 8px 30px #0001; }
.name { margin: 0 0 1.25rem; font-weight: 650; letter-spacing: .02em; color: var(--accent); }
h1 { margin: 0 0 .75rem; font-size: 1.5rem; line-height: 1.25; }
p { margin: 0 0 .75rem; }
.hint { color: var(--soft); overflow-wrap: anywhere; }
code { padding: .1rem .35rem; border-radius: .25rem; background: var(--ground);
  font: .9em ui-monospace, monospace; color: var(--ink); }
form { margin-top: 1.5rem; }
label { display: block; flex: 1 1 12rem; font-weight: 600; }
.row { display: flex; flex-wrap: wrap; align-items: end; gap: .75rem; }
input { display: block; width: 100%; margin-top: .35rem; }
input, button { padding: .6rem .8rem; border: 1px solid var(--line); border-radius: .35rem;
  background: var(--paper); color: inherit; font: inherit; }
button { border-color: var(--accent); background: var(--accent); color: var(--on-accent);
  font-weight: 600; cursor: pointer; }
ul { margin: 0; padding: 0; list-style: none; }
li { padding: .6rem 0; border-top: 1px solid var(--ground); overflow-wrap: anywhere; }
li a { font-weight: 600; color: var(--accent); }
li span { display: block; font-size: .9rem; color: var(--soft); }
.foot { justify-content: space-between; align-items: center; }
.foot p { margin: 0; color: var(--soft); }
:focus-visible { outline: .2rem solid var(--accent); outline-offset: .15rem; }
.code { margin: 1.75rem 0 0; font-size: .85rem; color: var(--soft); }
@media (max-width: 30rem) { main { padding: 1.75rem 1.5rem; } }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'self'"
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete response, which sends itself."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send it; to HEAD, without the body."""
        headers = (*self.headers, ("content-length", str(len(self.body))))
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await send({"type": "http.response.start", "status": self.status, "headers": encoded})
        body = b"" if scope["method"] == "HEAD" else self.body
        await send({"type": "http.response.body", "body": body})


@dataclass(frozen=True, slots=True)
class TokenForm:
    """Where a page's form sends a token, and where its sender wants to go then.

    `with_password`: it asks for a name and a password instead.
    """

    action: str
    target: str
    with_password: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """Something a client should know: what happened and what to do, for people and programs.

    A problem is an ASGI application that answers with itself, and so can be what an exception
    handler returns; a WebSocket is closed, with 4000 and the status as its code. Each line of a
    hint is a paragraph of the page, and what stands in backquotes a command.
    """

    status: int
    code: str
    message: str
    hint: str
    headers: tuple[tuple[str, str], ...] = ()
    reload: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with a page or with JSON, whichever the client asked for."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 4000 + self.status})
            return
        await self.reply(as_page=accepts_html(scope))(scope, receive, send)

    def reply(self, *, as_page: bool, form: TokenForm | None = None) -> Reply:
        """Return the response, as a page or as JSON."""
        shared = (("cache-control", "no-store"), ("referrer-policy", "no-referrer"), *self.headers)
        if as_page:
            body = self._body(form)
            return page(self.message, body, shared, status=self.status, reload=self.reload)
        hint = _COMMAND.sub(r"\1", " ".join(self.hint.splitlines()))
        error = {"code": self.code, "message": self.message, "hint": hint}
        kind = ("content-type", "application/json")
        return Reply(self.status, (kind, *shared), json.dumps({"error": error}).encode())

    def _body(self, form: TokenForm | None) -> str:
        hint = _COMMAND.sub(r"<code>\1</code>", html.escape(self.hint))
        lines = "\n".join(f'<p class="hint">{line}</p>' for line in hint.splitlines())
        return f"""<h1>{html.escape(self.message)}</h1>
{lines}{_form(form) if form else ""}
<p class="code">{self.status} · {html.escape(self.code)}</p>"""


_COMMAND = re.compile("`([^`]+)`")


def page(
    title: str,
    body: str,
    headers: tuple[tuple[str, str], ...] = (),
    *,
    status: int = 200,
    reload: int = 0,
) -> Reply:
    """Return a page.

    Args:
        title: its name, as plain text.
        body: what it shows, as HTML.
        headers: beside those that every page has.
        status: that of the answer.
        reload: after how many seconds it is asked for again, if at all.
    """
    again = f'\n<meta http-equiv="refresh" content="{reload}">' if reload else ""
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">{again}
<title>Aboard: {html.escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<p class="name">Aboard</p>
{body}
</main>
</body>
</html>
"""
    kind = ("content-type", "text/html; charset=utf-8")
    policy = ("content-security-policy", _POLICY)
    return Reply(status, (kind, policy, *headers), text.encode())


_ONE_FIELD = """<label>Token
<input name="token" type="password" required autofocus autocomplete="off" spellcheck="false">
</label>"""
_TWO_FIELDS = """<label>Name
<input name="user" required autofocus autocomplete="username" autocapitalize="none"
 spellcheck="false">
</label>
<label>Password
<input name="password" type="password" required autocomplete="current-password">
</label>"""


def _form(form: TokenForm) -> str:
    return f"""
<form method="post" action="{html.escape(form.action)}">
<input name="next" type="hidden" value="{html.escape(form.target)}">
<div class="row">
{_TWO_FIELDS if form.with_password else _ONE_FIELD}
<button type="submit">{"Log in" if form.with_password else "Open"}</button>
</div>
</form>"""


NOT_FOUND = Problem(
    404, "not_found", "There is nothing here.", "Check the address, or start from the board's link."
)
BAD_PATH = Problem(
    400,
    "bad_path",
    "This address cannot be used.",
    "Leave out '..', '\\', '//' at the start, and control characters.",
)
CROSS_ORIGIN = Problem(
    403,
    "cross_origin",
    "Another site's page sent this request.",
    "Do this from a page of this server, or with the token in an Authorization header.",
)
TOO_MANY = Problem(
    429,
    "too_many_attempts",
    "Too many wrong secrets are being tried.",
    "Wait a few seconds, then use the link or the token.",
    (("retry-after", "5"), ("connection", "close")),
)
INTERNAL = Problem(
    500,
    "internal_error",
    "Something went wrong on the server.",
    "Try again. The server's log says what happened.",
)
LOADING = Problem(
    503,
    "loading",
    "The logs are being read.",
    "This page opens by itself as soon as there is something to show.",
    (("retry-after", "2"),),
    reload=2,
)
