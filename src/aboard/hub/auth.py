"""Who somebody is: users and their passwords, tokens for programs, sessions, links to one board.

Secrets are made here, shown once, and kept as digests. While the database is gone, whoever was
known a moment ago still is. What a user may do is left to `permissions`, HTTP to others.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aboard.boards.accounts import Role, Session, Share, Token, User
from aboard.boards.errors import BadValue, BoardsError, DatabaseUnavailable, NameTaken, NotFound
from aboard.boards.model import BoardRecord
from aboard.boards.names import new_id
from aboard.boards.registry import Registry
from aboard.boards.wanted import check_number, check_text, is_plain
from aboard.hub.permissions import Action, Guest, may, require
from aboard.web.brake import Brake

if TYPE_CHECKING:
    from argon2 import PasswordHasher

DAY = 86400.0
# So that those who look for leaked secrets recognise ours.
TOKEN_MARK, SHARE_MARK = "aboard_", "share_"
SHORTEST_PASSWORD, LONGEST_PASSWORD = 8, 1024
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
_USE_NOTED = 60.0
_MOST_REMEMBERED = 10_000
_AT_ONCE = 4  # each needs 64 MiB and a core

Secret = TypeVar("Secret", Token, Session, Share)


class AuthError(BoardsError):
    """A secret that opens nothing: wrong, over, or revoked."""

    code = "not_authenticated"


class TooManyAttempts(AuthError):  # noqa: N818 - named by what is wrong
    """A password that was not looked at, because too many wrong ones came."""

    code = "too_many_attempts"


class Opened(NamedTuple):
    """A new session, and its secret, which is kept nowhere."""

    secret: str
    session: Session


class Issued(NamedTuple):
    """A new token, and its secret, which is kept nowhere."""

    secret: str
    token: Token


class Shared(NamedTuple):
    """A new link, and its secret, which is kept nowhere."""

    secret: str
    share: Share


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long things last, in seconds.

    Attributes:
        session: from logging in.
        longest_share: no link shows a board for longer; 0 for any time.
        without_database: whoever was known so long ago is known while the database is gone.
    """

    session: float = 14 * DAY
    longest_share: float = 0.0
    without_database: float = 900.0


class Auth:
    """The users of a hub, and what they prove themselves with.

    Args:
        registry: remembers them.
        lifetimes: how long things last.
        clock: seconds since 1970.
        brake: slows down whoever tries passwords.
        hasher: makes and checks what is kept of passwords.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        lifetimes: Lifetimes | None = None,
        clock: Callable[[], float] = time.time,
        brake: Brake | None = None,
        hasher: PasswordHasher | None = None,
    ) -> None:
        if hasher is None:
            from argon2 import PasswordHasher

            hasher = PasswordHasher()
        self._accounts = registry.accounts
        self._lifetimes = lifetimes or Lifetimes()
        self._clock = clock
        self._brake = brake or Brake()
        self._hasher = hasher
        self._checking = BoundedSemaphore(_AT_ONCE)
        self._lock = Lock()
        self._noted: dict[str, float] = {}
        self._remembered: OrderedDict[str, tuple[Token | Session | Share, User, float]] = (
            OrderedDict()
        )

    # Users.

    def personal(self, name: str) -> User:
        """Return the one user of a personal hub, who needs no password and may do everything."""
        cleaned = re.sub(r"[^a-z0-9._-]", "-", name.lower()).strip("._-")[:64].strip("._-")
        name = cleaned or "me"
        with suppress(NotFound):
            return self._accounts.user(name)
        with suppress(NameTaken):  # by another hub that starts at the same time
            return self._accounts.add_user(name, Role.ADMIN)
        return self._accounts.user(name)

    def add_user(self, name: str, role: Role, password: str | None = None) -> User:
        """Let somebody in; without a password only with tokens.

        Raises:
            BadValue: the name or the password cannot be used.
            NameTaken: there is a user of that name.
        """
        if not _NAME.fullmatch(name):
            raise BadValue(
                f"{name[:80]!r} cannot be a user's name.",
                "Use up to 64 small letters, digits, '.', '_' and '-', with a letter or digit "
                "first and last.",
            )
        return self._accounts.add_user(
            name, role, None if password is None else self._hash(password)
        )

    def user(self, name: str) -> User:
        """Return a user.

        Raises:
            NotFound: there is none of that name.
        """
        return self._accounts.user(name)

    def users(self) -> Sequence[User]:
        """Return every user, by name."""
        return self._accounts.users()

    def set_role(self, name: str, role: Role) -> None:
        """Give a user another role; it counts from the next request on.

        Raises:
            NotFound: there is no such user.
            Conflict: nobody would be left who may manage the hub.
        """
        self._accounts.set_role(name, role)
        self._forget(name)

    def set_password(self, name: str, password: str) -> None:
        """Give a user another password, and end all sessions he has.

        Raises:
            BadValue: the password cannot be used.
            NotFound: there is no such user.
        """
        self._accounts.set_password(name, self._hash(password))
        self._forget(name)

    def remove_user(self, name: str) -> None:
        """Shut a user out, with his tokens, sessions and links; his boards stay.

        Raises:
            NotFound: there is no such user.
            Conflict: nobody would be left who may manage the hub.
        """
        self._accounts.remove_user(name)
        self._forget(name)

    # Passwords and sessions.

    async def enter(self, name: str, password: str) -> Opened:
        """Open a session for somebody with the right password; a wrong one takes its time.

        Raises:
            AuthError: the name or the password is wrong.
            TooManyAttempts: too many wrong ones came already.
        """
        if not await self._brake.turn():
            raise _too_many()
        try:
            opened = await asyncio.to_thread(self.log_in, name, password)
        except TooManyAttempts:
            self._brake.right()  # it was not looked at
            raise
        except AuthError:
            if not await self._brake.hold():
                raise _too_many() from None
            raise
        self._brake.right()
        return opened

    def log_in(self, name: str, password: str) -> Opened:
        """Open a session for somebody with the right password, without a brake.

        Raises:
            AuthError: the name or the password is wrong.
            TooManyAttempts: too many are being looked at.
        """
        user = self._with_password(name, password)
        return self.open_session(user)

    def open_session(self, user: User) -> Opened:
        """Open a session for somebody who has proved who he is."""
        opened = self.new_session(user.name)
        self._accounts.forget_expired()
        self._accounts.add(opened.session)
        return opened

    def new_session(self, account: str = "") -> Opened:
        """Make up a session that opens nothing until it is remembered."""
        secret, now = secrets.token_urlsafe(32), self._clock()
        ends = now + self._lifetimes.session
        return Opened(secret, Session(new_id(), account, _digest(secret), now, ends))

    def session(self, secret: str) -> tuple[Session, User] | None:
        """Return the session of a secret, and whose it is, if it has not ended."""
        found = self._opened_by(Session, secret)
        return found if found and self._clock() < found[0].expires else None

    def log_out(self, secret: str) -> None:
        """End a session."""
        self._accounts.end_session(_digest(secret))
        self._forget_secret(_digest(secret))

    def _with_password(self, name: str, password: str) -> User:
        nobodys = self._nobodys  # asked for in any case, since the first time is slow
        try:
            user = self._accounts.user(name)
        except NotFound:
            user = None
        kept = user.password if user is not None else None
        # Whoever is not there takes as long as whoever is.
        right = self._is_right(kept or nobodys, password)
        if user is None or kept is None or not right:
            raise AuthError("the name or the password is wrong.", "Try again, or ask an admin.")
        if self._hasher.check_needs_rehash(kept):
            self._accounts.renew_password(name, kept, self._hasher.hash(password))
        return user

    @cached_property
    def _nobodys(self) -> str:
        """What is kept of a password that nobody has; most hubs start without needing it."""
        return self._hasher.hash(secrets.token_urlsafe(16))

    def _is_right(self, kept: str, password: str) -> bool:
        from argon2.exceptions import InvalidHashError, VerificationError

        if len(password) > LONGEST_PASSWORD or not is_plain(password):
            return False
        if not self._checking.acquire(timeout=10):
            raise _too_many()
        try:
            return self._hasher.verify(kept, password)
        except (VerificationError, InvalidHashError):
            return False
        finally:
            self._checking.release()

    def _hash(self, password: str) -> str:
        if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD or not is_plain(password):
            raise BadValue(
                "this cannot be a password.",
                f"Use {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters.",
            )
        return self._hasher.hash(password)

    # Tokens.

    def create_token(self, user: User, name: str = "", *, lasts: float | None = None) -> Issued:
        """Make a token with which programs act for a user.

        Args:
            user: for whom.
            name: what it is for.
            lasts: seconds until it opens nothing; None for ever.

        Raises:
            BadValue: the name or the time cannot be used.
            NotFound: the user is gone.
        """
        identity, now = new_id(), self._clock()
        secret = f"{TOKEN_MARK}{identity}_{secrets.token_urlsafe(32)}"
        token = Token(
            id=identity,
            account=user.name,
            name=check_text(name, "the token's name"),
            prefix=f"{TOKEN_MARK}{identity}",
            digest=_digest(secret),
            created=now,
            expires=_end(now, lasts),
        )
        self._accounts.add(token)
        return Issued(secret, token)

    def token(self, secret: str) -> tuple[Token, User] | None:
        """Return the token of a secret, and whose it is, if it still opens."""
        found = self._opened_by(Token, secret)
        now = self._clock()
        if found is None or not found[0].is_good(now):
            return None
        identity = found[0].id
        if now - max(found[0].last_used or 0.0, self._noted.get(identity, 0.0)) >= _USE_NOTED:
            self._note(identity, now)  # in any case: who comes next waits for no lock
            with suppress(DatabaseUnavailable):
                self._accounts.note_use(found[0], now)
        return found

    def _note(self, identity: str, now: float) -> None:
        """Keep when a token's use was noted, for as long as that matters."""
        with self._lock:
            self._noted.pop(identity, None)
            self._noted[identity] = now
            while now - next(iter(self._noted.values())) >= _USE_NOTED:
                del self._noted[next(iter(self._noted))]

    def tokens(self, user: User) -> Sequence[Token]:
        """Return the tokens that somebody may manage: his own, or everybody's."""
        return self._accounts.tokens(None if may(user, Action.MANAGE_USERS) else user.name)

    def revoke_token(self, user: User, token: str) -> None:
        """Let a token open nothing from now on.

        Args:
            user: who wants that.
            token: its id, or what is shown of it.

        Raises:
            NotFound: it is not one that he may manage.
        """
        for known in self.tokens(user):
            if token in {known.id, known.prefix}:
                self._accounts.revoke(Token, known.id)
                self._forget_secret(known.digest)
                return
        raise NotFound(f"there is no token {token[:80]!r}.", "See which: aboard token list")

    # Links to one board.

    def share(self, user: User, board: BoardRecord, *, lasts: float | None = None) -> Shared:
        """Make a link that shows a board, and nothing else, to whoever has it.

        Args:
            user: who gives it away.
            board: which board.
            lasts: seconds until it shows nothing; None for as long as links may.

        Raises:
            NotFound: he may not see the board.
            Forbidden: he may not share it.
            BadValue: it would last too long.
        """
        require(user, Action.SHARE, board)
        longest = self._lifetimes.longest_share
        lasts = (longest or None) if lasts is None else lasts
        if longest and lasts is not None and lasts > longest:
            raise BadValue(f"a link lasts {longest:g} seconds at most.", "Ask for less.")
        secret, now = f"{SHARE_MARK}{secrets.token_urlsafe(32)}", self._clock()
        share = Share(new_id(), board.id, user.name, _digest(secret), now, _end(now, lasts))
        self._accounts.add(share)
        return Shared(secret, share)

    def guest(self, secret: str) -> Guest | None:
        """Return who comes with a link, if it still shows a board; see `may` for what he may."""
        found = self._opened_by(Share, secret)
        return Guest(*found) if found and found[0].is_good(self._clock()) else None

    def shares(self, user: User, board: BoardRecord) -> Sequence[Share]:
        """Return a board's links.

        Raises:
            NotFound: the user may not see the board.
            Forbidden: he may not share it.
        """
        require(user, Action.SHARE, board)
        return self._accounts.shares(board.id)

    def revoke_share(self, user: User, board: BoardRecord, share: str) -> None:
        """Let a link show nothing from now on.

        Raises:
            NotFound: it is not one of the board's, or the user may not see the board.
            Forbidden: he may not share it.
        """
        for known in self.shares(user, board):
            if known.id == share:
                self._accounts.revoke(Share, share)
                self._forget_secret(known.digest)
                return
        raise NotFound(f"there is no link {share[:80]!r}.", "See which: aboard share BOARD --list")

    # What is known of a secret.

    def _opened_by(self, kind: type[Secret], secret: str) -> tuple[Secret, User] | None:
        digest, now = _digest(secret), self._clock()
        try:
            found = self._accounts.opened_by(kind, digest)
        except DatabaseUnavailable:
            return self._known_before(kind, digest, now)
        is_right = found is not None and hmac.compare_digest(found[0].digest, digest)
        with self._lock:
            self._remembered.pop(digest, None)
            if found is None or not is_right:
                return None
            self._remembered[digest] = (found[0], found[1], now)
            if len(self._remembered) > _MOST_REMEMBERED:
                self._remembered.popitem(last=False)
        return found

    def _known_before(
        self, kind: type[Secret], digest: str, now: float
    ) -> tuple[Secret, User] | None:
        with self._lock:
            known = self._remembered.get(digest)
        if known is None or now - known[2] > self._lifetimes.without_database:
            raise DatabaseUnavailable(
                "the database does not answer, and who you are is kept there.",
                "Try again when it is back.",
            )
        return (known[0], known[1]) if isinstance(known[0], kind) else None

    def _forget_secret(self, digest: str) -> None:
        with self._lock:
            self._remembered.pop(digest, None)

    def _forget(self, name: str) -> None:
        with self._lock:
            for digest, (_, user, _) in list(self._remembered.items()):
                if user.name == name:
                    del self._remembered[digest]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _end(now: float, lasts: float | None) -> float | None:
    if lasts is None:
        return None
    if not lasts:
        raise BadValue("it would be over at once.", "Give a time above 0.")
    return now + check_number(lasts, "the time it lasts")


def _too_many() -> TooManyAttempts:
    return TooManyAttempts("too many wrong passwords came.", "Wait a minute, and try again.")
