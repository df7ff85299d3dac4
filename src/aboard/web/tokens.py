"""Tokens, token files, and `TokenAccess` for listeners with a single token.

A token has at least 16 visible characters and is not repetitive, so that it cannot be guessed.
Only its owner can read a token file.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from aboard.system import write_private
from aboard.web import pages
from aboard.web.gate import (
    BadKey,
    Credential,
    LoginPage,
    NewSession,
    Refused,
    Throttle,
    Visitor,
    WrongSecret,
)
from aboard.web.request import Request, split_key

SHORTEST, LONGEST = 16, 512
MIN_DISTINCT = 6  # characters
UNGUESSABLE_BITS = 128
DAY = 86400.0
_TOKEN = re.compile(rf"[!-~]{{{SHORTEST},{LONGEST}}}")
_VISIBLE = re.compile(r"[!-~]*")
_REPEATED = re.compile(r"(.+?)\1+")
_HINT = "Create one with: openssl rand -hex 32"


class TokenError(Exception):
    """A token or token file that must not be used."""


def new_token() -> str:
    return secrets.token_urlsafe(32)


def check_token(token: str, where: str = "the token") -> str:
    """Return the token; raise `TokenError` if it is easy to guess or does not fit a header."""
    if not _TOKEN.fullmatch(token):
        raise TokenError(f"{where} {_problem_of(token)}. {_HINT}")
    if len(set(token)) < MIN_DISTINCT or _REPEATED.fullmatch(token):
        raise TokenError(
            f"{where} repeats the same few characters, so it could be guessed. {_HINT}"
        )
    return token


def _problem_of(token: str) -> str:
    """Return which rule a token breaks, without revealing any of it."""
    if not _VISIBLE.fullmatch(token):
        return "has a character that is not allowed: use ASCII letters, digits and signs, no spaces"
    if len(token) < SHORTEST:
        return f"is too short: it has {len(token)} of at least {SHORTEST} characters"
    return f"is too long: it may have at most {LONGEST} characters"


def is_guessable(token: str) -> bool:
    """Return whether a token may have been chosen by a person.

    It is not guessable if random characters of the same number and kinds have 128 bits.
    """
    return len(token) * math.log2(max(len(set(token)), 1)) < UNGUESSABLE_BITS


@dataclass(frozen=True, slots=True)
class TokenVisitor:
    credential: Credential


class TokenAccess:
    """The secrets of a listener without accounts, for a `Gate`.

    They are kept in memory. Sessions are stored as digests; above `max_sessions` the least recently
    used are dropped. `key` is the key of the link, which can be opened any number of times; it is
    given if the caller has already shown the link.
    """

    login = LoginPage(
        path="/_aboard/login",
        message="A link or a token is needed.",
        hint="This is Aboard, which shows training runs. Open the link that `aboard view` printed,"
        " or paste that link or the token here.",
        wrong_link="The link may be incomplete, or Aboard may have restarted since. Copy the link"
        " that `aboard view` printed last, or paste the token.",
    )

    def __init__(
        self,
        token: str | None = None,
        key: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        session_seconds: float = 30 * DAY,
        max_sessions: int = 500,
        throttle: Throttle | None = None,
    ) -> None:
        self.token = new_token() if token is None else check_token(token)
        self.key = new_token() if key is None else check_token(key, "the key of the link")
        self.has_own_key = key is None
        self.is_guessable = is_guessable(self.token)
        self.throttle = throttle or Throttle()
        self._token, self._key = _digest(self.token), _digest(self.key)
        self._clock = clock
        self._session_seconds = session_seconds
        self._max_sessions = max_sessions
        self._sessions: dict[bytes, float] = {}
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<TokenAccess: {len(self._sessions)} sessions>"

    def is_token(self, text: str) -> bool:
        return hmac.compare_digest(_digest(text), self._token)

    def is_key(self, text: str) -> bool:
        return hmac.compare_digest(_digest(text), self._key)

    def is_session(self, text: str) -> bool:
        searched = _digest(text)
        found = None
        with self._lock:
            for digest in self._sessions:
                if hmac.compare_digest(digest, searched):
                    found = digest
            if found is None or self._clock() >= self._sessions[found]:
                return False
            self._sessions[found] = self._sessions.pop(found)  # the most recently used is last
            return True

    def open_session(self) -> NewSession:
        secret = secrets.token_urlsafe(32)
        with self._lock:
            now = self._clock()
            self._sessions = {old: ends for old, ends in self._sessions.items() if ends > now}
            self._sessions[_digest(secret)] = now + self._session_seconds
            while len(self._sessions) > self._max_sessions:
                del self._sessions[next(iter(self._sessions))]
        return NewSession(secret, int(self._session_seconds))

    async def identify(self, request: Request) -> TokenVisitor | None:
        has_session = any(self.is_session(session) for session in request.sessions)
        if request.bearer is not None and await self._check_token(
            request.bearer, in_turn=not has_session
        ):
            return TokenVisitor(Credential.TOKEN)
        return TokenVisitor(Credential.SESSION) if has_session else None

    async def redeem(self, key: str, visitor: Visitor | None) -> NewSession | BadKey:  # noqa: ARG002
        return self.open_session() if self.is_key(key) else BadKey.UNKNOWN

    async def log_in(self, form: Mapping[str, str], client: str = "") -> NewSession:  # noqa: ARG002
        """Open a session for the token or a pasted link."""
        secret = form.get("token", "").strip()
        if self.is_key(pasted_key(secret)) or await self._check_token(secret):
            return self.open_session()
        raise WrongSecret("Invalid token.")

    def is_open(self, path: str) -> bool:  # noqa: ARG002
        return False

    async def _check_token(self, text: str, *, in_turn: bool = True) -> bool:
        # A token that cannot be guessed is compared at once, so that its owner does not wait
        # behind clients that guess.
        in_turn = in_turn and self.is_guessable
        if in_turn and not await self.throttle.acquire():
            raise Refused(pages.TOO_MANY)
        is_token = self.is_token(text)
        if in_turn and is_token:
            self.throttle.release()
        return is_token


def pasted_key(text: str) -> str:
    """Return the key of a pasted link; any other text is returned unchanged."""
    return split_key(text.partition("?")[2].partition("#")[0])[1] or text


def read_token_file(path: str | os.PathLike[str]) -> str:
    """Return the token in a file; raise `TokenError` if others can read it or it is invalid."""
    path = Path(path)
    try:
        # Without O_NONBLOCK, opening a named pipe would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        _check_owner_only(path, os.fstat(descriptor))
        text = os.read(descriptor, LONGEST + 3).decode("latin-1").strip()
    finally:
        os.close(descriptor)
    if not text:
        raise TokenError(f"{path}: the token file is empty. Fill it with: openssl rand -hex 32")
    return check_token(text, f"{path}: the token")


def write_token_file(path: str | os.PathLike[str], token: str) -> None:
    """Write a token to a file that only its owner can read, atomically."""
    check_token(token)
    path = Path(path)
    try:
        write_private(path, f"{token}\n")
    except OSError as error:
        raise _unusable(path, error) from error


def _check_owner_only(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise TokenError(f"{path}: this is not a regular file. Give a file that contains a token.")
    if status.st_uid not in {os.geteuid(), 0}:
        raise TokenError(f"{path}: this file belongs to another user. Use your own file.")
    if status.st_mode & 0o077:
        raise TokenError(
            f"{path}: other users can use this token file "
            f"(mode {stat.S_IMODE(status.st_mode):03o}). Restrict it with: chmod 600 {path}"
        )


def _unusable(path: Path, error: OSError) -> TokenError:
    reason = (error.strerror or str(error)).lower()
    return TokenError(f"{path}: {reason}. Check the path of the token file.")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
