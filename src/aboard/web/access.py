"""Who may come in: a token, one-time keys, and the sessions they open.

Pure bookkeeping, without HTTP: `gate` asks it, and whoever starts a listener mints keys with it.
Keys and sessions are kept as digests only, in memory, and end with the process.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from threading import Lock

from aboard.web.tokens import check_token, is_guessable, new_token

HOUR, DAY = 3600.0, 86400.0


class Redeemed(Enum):
    """What became of a one-time key."""

    OPENED = "opened"
    USED = "used"
    EXPIRED = "expired"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class _Key:
    expires: float
    used: bool = False


class Access:
    """The secrets of one listener.

    Args:
        token: opens again and again, for programs and for pasting; made up when not given.
        clock: seconds that only grow.
        key_lifetime: seconds in which a one-time key can be used.
        session_lifetime: seconds a session lasts.
        most: how many keys, and how many sessions, are remembered; the oldest go first.

    Attributes:
        is_guessable: whether the token could be one that somebody thought of.
    """

    def __init__(
        self,
        token: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        key_lifetime: float = 24 * HOUR,
        session_lifetime: float = 30 * DAY,
        most: int = 500,
    ) -> None:
        self.token = new_token() if token is None else check_token(token)
        self.key_lifetime = key_lifetime
        self.session_lifetime = session_lifetime
        self.is_guessable = is_guessable(self.token)
        self._token = _digest(self.token)
        self._clock = clock
        self._most = most
        self._keys: dict[bytes, _Key] = {}
        self._sessions: dict[bytes, float] = {}
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<Access: {len(self._keys)} keys, {len(self._sessions)} sessions>"

    def mint_key(self) -> str:
        """Make a key that opens one session, once."""
        key = secrets.token_urlsafe(32)
        with self._lock:
            self._keys[_digest(key)] = _Key(self._clock() + self.key_lifetime)
            _forget_oldest(self._keys, self._most)
        return key

    def redeem(self, key: str) -> Redeemed:
        """Use up a one-time key; only the first answer can be `OPENED`."""
        with self._lock:
            found = _find(key, self._keys)
            if found is None:
                return Redeemed.UNKNOWN
            record = self._keys[found]
            if record.used:
                return Redeemed.USED
            if self._clock() >= record.expires:
                return Redeemed.EXPIRED
            record.used = True
            return Redeemed.OPENED

    def is_token(self, text: str) -> bool:
        """Say whether the text is the token."""
        return hmac.compare_digest(_digest(text), self._token)

    def open_session(self) -> str:
        """Begin a session; the answer is its secret, which is not kept here."""
        session = secrets.token_urlsafe(32)
        with self._lock:
            now = self._clock()
            for digest in [old for old, ends in self._sessions.items() if ends <= now]:
                del self._sessions[digest]
            self._sessions[_digest(session)] = now + self.session_lifetime
            _forget_oldest(self._sessions, self._most)
        return session

    def is_session(self, text: str) -> bool:
        """Say whether the text is the secret of a session that has not ended."""
        with self._lock:
            found = _find(text, self._sessions)
            return found is not None and self._clock() < self._sessions[found]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def _find(text: str, digests: Iterable[bytes]) -> bytes | None:
    """Return the digest of `text` from among `digests`, comparing with each in constant time."""
    wanted = _digest(text)
    found = None
    for digest in digests:
        if hmac.compare_digest(digest, wanted):
            found = digest
    return found


def _forget_oldest(records: dict[bytes, _Key] | dict[bytes, float], most: int) -> None:
    while len(records) > most:
        del records[next(iter(records))]
