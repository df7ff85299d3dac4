"""Error pages, and the same errors in JSON for programs.

A page has no script and loads no other file, and its policy allows neither. It reveals nothing
behind the gate, because clients without a secret can read it.
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
  --accent: #2457c5; --on-accent: #fff; --ground: #f3f5f8; }
@media (prefers-color-scheme: dark) { :root { --paper: #1b2028; --ink: #e9edf3; --soft: #a7b1c2;
  --line: #6d7789; --accent: #83abff; --on-accent: #10151d; --ground: #12161c; } }
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
pre { margin: 1rem 0 0; padding: .75rem; border-radius: .25rem; background: var(--ground);
  font: .8rem/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
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
    """A complete response, as an ASGI application."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        headers = (*self.headers, ("content-length", str(len(self.body))))
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await send({"type": "http.response.start", "status": self.status, "headers": encoded})
        body = b"" if scope["method"] == "HEAD" else self.body
        await send({"type": "http.response.body", "body": body})


@dataclass(frozen=True, slots=True)
class LoginForm:
    """A login form: where it is sent, and the page after the login."""

    action: str
    target: str
    with_password: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """An error: what is wrong and what to do, as a page for browsers and as JSON for programs.

    A problem is an ASGI application, so an exception handler can return it. It closes a WebSocket
    with 4000 plus the status. Each line of the hint is a paragraph of the page, and text in
    backquotes is a command. The lines of `log` are shown verbatim, only on the page.
    """

    status: int
    code: str
    message: str
    hint: str
    headers: tuple[tuple[str, str], ...] = ()
    reload: int = 0
    log: tuple[str, ...] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 4000 + self.status})
            return
        await self.reply(as_page=accepts_html(scope))(scope, receive, send)

    def reply(self, *, as_page: bool, form: LoginForm | None = None) -> Reply:
        default = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
        shared = tuple({**default, **dict(self.headers)}.items())
        if as_page:
            body = self._body(form)
            return page(self.message, body, shared, status=self.status, reload=self.reload)
        hint = _COMMAND.sub(r"\1", " ".join(self.hint.splitlines()))
        error = {"code": self.code, "message": self.message, "hint": hint}
        kind = ("content-type", "application/json")
        return Reply(self.status, (kind, *shared), json.dumps({"error": error}).encode())

    def _body(self, form: LoginForm | None) -> str:
        hint = _COMMAND.sub(r"<code>\1</code>", html.escape(self.hint))
        lines = "\n".join(f'<p class="hint">{line}</p>' for line in hint.splitlines())
        log = f"\n<pre>{html.escape(chr(10).join(self.log))}</pre>" if self.log else ""
        return f"""<h1>{html.escape(self.message)}</h1>
{lines}{log}{_form(form) if form else ""}
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
    """Return an HTML page; the browser reloads it after `reload` seconds, if not 0."""
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


_ONE_FIELD = """<label>Link or token
<input name="token" type="password" required autofocus autocomplete="off" spellcheck="false">
</label>"""
_TWO_FIELDS = """<label>Name
<input name="user" required autofocus autocomplete="username" autocapitalize="none"
 spellcheck="false">
</label>
<label>Password
<input name="password" type="password" required autocomplete="current-password">
</label>"""


def _form(form: LoginForm) -> str:
    return f"""
<form method="post" action="{html.escape(form.action)}">
<input name="next" type="hidden" value="{html.escape(form.target)}">
<div class="row">
{_TWO_FIELDS if form.with_password else _ONE_FIELD}
<button type="submit">{"Log in" if form.with_password else "Open"}</button>
</div>
</form>"""


NOT_FOUND = Problem(
    404, "not_found", "Page not found.", "Check the address, or open the board's link again."
)
BAD_PATH = Problem(
    400,
    "bad_path",
    "Invalid address.",
    "Leave out '..', '\\', '//' at the start, and control characters.",
)
CROSS_ORIGIN = Problem(
    403,
    "cross_origin",
    "Another site sent this request.",
    "Send it from a page of this server, or with a token in the Authorization header.",
)
TOO_MANY = Problem(
    429,
    "too_many_attempts",
    "Too many wrong tokens or passwords.",
    "Wait a few seconds, then try again.",
    (("retry-after", "5"), ("connection", "close")),
)
TOO_LARGE = Problem(413, "too_large", "This request is too large.", "Send less.")
INTERNAL = Problem(
    500,
    "internal_error",
    "Something went wrong on the server.",
    "Try again. The server's log has the details.",
)
ENDING = Problem(
    503,
    "ending",
    "The server is shutting down.",
    "Try again when it is running again.",
    (("retry-after", "5"), ("connection", "close")),
)
