"""Who sends a request: a user with a token or a session, or somebody with a link to one board.

Looking somebody up asks the database, so the answer is kept for a moment: a page asks for dozens
of things at once. One-time keys, which open a session, outlive the process: a link that was
printed opens after a restart too.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from aboard.boards.accounts import Accounts, Key, Session, User
from aboard.hub.auth import Auth
from aboard.hub.permissions import Guest
from aboard.web.access import Redeemed

KEY_SECONDS = 86400.0
_KEPT_SECONDS = 1.0
_MOST_KEPT = 10_000


class Held(Enum):
    """The secret that a request came with."""

    TOKEN = "token"  # noqa: S105 - the kind of a secret, not one
    SESSION = "session"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody whose secret is right.

    Attributes:
        who: the user, or the guest.
        held: what he came with.
        session: the secret of his session, for ending it.
    """

    who: User | Guest
    held: Held
    session: str = ""

    @property
    def name(self) -> str:
        """Who it is, for logs."""
        return self.who.name if isinstance(self.who, User) else f"share {self.who.share.id}"


class Visitors:
    """Finds out who somebody is.

    Args:
        auth: knows users and their secrets.
        clock: seconds that only grow.
    """

    def __init__(self, auth: Auth, clock: Callable[[], float] = time.monotonic) -> None:
        self._auth = auth
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[tuple[Held, bytes], tuple[float, Visitor | None]] = {}
        self._changes = 0

    def forget(self) -> None:
        """Ask anew for everybody, because a right was taken or given."""
        with self._lock:
            self._kept.clear()
            self._changes += 1

    def kept(self, held: Held, secrets_: Iterable[str]) -> tuple[bool, Visitor | None]:
        """Return whether the answer is known without asking, and the answer."""
        now = self._clock()
        for secret in secrets_:
            known = self._kept.get((held, _digest(secret)))
            if known is None or now - known[0] > _KEPT_SECONDS:
                return False, None
            if known[1] is not None:
                return True, known[1]
        return True, None

    def find(self, held: Held, secrets_: Iterable[str]) -> Visitor | None:
        """Return who has one of some secrets; may take a while.

        Raises:
            DatabaseUnavailable: it cannot be found out at the moment.
        """
        for secret in secrets_:
            changes = self._changes
            found = self._ask(held, secret)
            with self._lock:
                if len(self._kept) >= _MOST_KEPT:
                    self._kept.clear()
                if changes == self._changes:
                    self._kept[held, _digest(secret)] = (self._clock(), found)
            if found is not None:
                return found
        return None

    def _ask(self, held: Held, secret: str) -> Visitor | None:
        match held:
            case Held.TOKEN:
                token = self._auth.token(secret)
                return Visitor(token[1], held) if token else None
            case Held.SESSION:
                session = self._auth.session(secret)
                return Visitor(session[1], held, secret) if session else None
            case Held.SHARE:
                guest = self._auth.guest(secret)
                return Visitor(guest, held) if guest else None


class Keys:
    """Keys that open one session of a user, once.

    Args:
        accounts: remembers them, as digests.
        clock: seconds since 1970.
    """

    def __init__(self, accounts: Accounts, clock: Callable[[], float] = time.time) -> None:
        self._accounts = accounts
        self._clock = clock

    def mint(self, user: User) -> tuple[str, float]:
        """Make a key for a user; return it and when it expires.

        Raises:
            DatabaseUnavailable: it cannot be remembered at the moment.
        """
        key, now = secrets.token_urlsafe(32), self._clock()
        known = Key(_digest(key).hex(), user.name, now, now + KEY_SECONDS)
        self._accounts.forget_expired()
        self._accounts.add(known)
        return key, known.expires

    def redeem(self, key: str, session: Session | None = None) -> Redeemed:
        """Use up a key, and begin a session of whoever it is for, or neither.

        Raises:
            DatabaseUnavailable: it cannot be found out at the moment.
        """
        known = self._accounts.use_key(_digest(key).hex(), session)
        if known is None:
            return Redeemed.UNKNOWN
        if known.used is not None:
            return Redeemed.USED
        return Redeemed.EXPIRED if self._clock() >= known.expires else Redeemed.OPENED


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
