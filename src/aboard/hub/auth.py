"""Authentication: users and passwords, API tokens, sessions, and links to one board.

Secrets are created here, shown once, and stored as digests. `Auth.visitor` caches its results for a
second, because a page sends dozens of requests at once, and longer while the database is down.
Permissions are left to `permissions`, HTTP to `access`.

Passwords are hashed in separate threads, so that password guessing does not slow other requests. A
hash takes a core for a fifth of a second, and 64 MiB. There are fewer threads than cores, at a low
priority, with a bounded queue. Each address and account has a bounded share of the queue, and the
first password of one source comes before the second of another. Hashing releases the interpreter
lock.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import hmac
import ipaddress
import itertools
import os
import re
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from aboard.boards.accounts import Key, Role, Session, Share, Token, User, is_good
from aboard.boards.model import (
    BadValue,
    BoardRecord,
    BoardsError,
    DatabaseUnavailable,
    NameTaken,
    NoSuchName,
    check_number,
    check_text,
    is_plain,
    new_id,
)
from aboard.boards.registry import Registry
from aboard.hub import query
from aboard.hub.permissions import Action, Guest, may, require
from aboard.web.gate import BadKey, Credential, Throttle

if TYPE_CHECKING:
    from argon2 import PasswordHasher

DAY = 86400.0
KEY_SECONDS = DAY
# Prefixes by which scanners for leaked secrets recognize ours.
TOKEN_MARK, SHARE_MARK = "aboard_", "share_"
BOARDS_MARK = "boards_"
"""The prefix of keys and sessions that are valid only at the boards' own origin."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
_LAST_USED_SECONDS = 60.0
_MAX_REMEMBERED = 10_000
_RECENT_SECONDS = 1.0
_OUTAGE_SECONDS = 900.0
# Wrong passwords per address and per account; a hash takes a fifth of a second.
_TURNS, _TURNS_PER_SECOND = 10, 2.0
# The second recommended option of RFC 9106, for little memory, on one core.
STRENGTH: dict[str, Any] = {"time_cost": 3, "memory_cost": 64 << 10, "parallelism": 1}
SHORTEST_PASSWORD, LONGEST_PASSWORD = 8, 1024
MAX_QUEUED = 64
MAX_SHARE = 8  # of the queue, for one source: an address or an account
_LOW_PRIORITY = 10  # nice value: on a busy machine the thread still gets the interpreter lock
_MAX_SOURCES = 10_000
_IPV6_PREFIX = 64  # a client can use every address of such a network

Result = TypeVar("Result")
Secret = TypeVar("Secret", Token, Session, Share)


class AuthError(BoardsError):
    """A secret that is wrong, expired or revoked."""

    code = "not_authenticated"


class TooManyAttempts(BoardsError):
    """A password that was not compared because of too many attempts."""

    code = "too_many_attempts"

    def __init__(self) -> None:
        super().__init__("too many wrong passwords.", "Wait a minute, then try again.")


class Issued(NamedTuple, Generic[Secret]):
    """A new token, session or link, and its secret, which is not stored."""

    secret: str
    record: Secret


@dataclass(frozen=True, slots=True)
class HubVisitor:
    """A user, or a guest with a link to one board; `session` is the session's secret."""

    who: User | Guest
    credential: Credential
    session: str = ""

    @property
    def name(self) -> str:
        return self.who.name if isinstance(self.who, User) else f"share {self.who.share.id}"


class Auth:
    """The users of a hub and their secrets; `clock` returns seconds since 1970."""

    def __init__(
        self,
        registry: Registry,
        *,
        session_seconds: float = 14 * DAY,
        clock: Callable[[], float] = time.time,
        throttle: Throttle | None = None,
        hasher: PasswordHasher | None = None,
    ) -> None:
        self.throttle = throttle or Throttle(turns=_TURNS, per_second=_TURNS_PER_SECOND)
        self._accounts = registry.accounts
        self._session_seconds = session_seconds
        self._clock = clock
        self._passwords = Passwords(hasher)
        self._turns = Turns(self.throttle)
        self._link: tuple[str, User] | None = None
        self._lock = threading.Lock()  # guards the four below
        self._recorded_uses: dict[str, float] = {}
        self._remembered: OrderedDict[str, tuple[Token | Session | Share, User, float]] = (
            OrderedDict()
        )
        self._recent: dict[tuple[Credential, str], tuple[float, HubVisitor | None]] = {}
        self._changes = 0

    def close(self) -> None:
        self._passwords.close()

    @property
    def changes(self) -> int:
        """Counts changes in this process that may take permissions from a visitor."""
        return self._changes

    # Visitors.

    def recent_visitor(
        self, credential: Credential, secrets_: Iterable[str]
    ) -> tuple[bool, HubVisitor | None]:
        """Return whether `visitor` saw the same secrets within a second, and its result."""
        now = time.monotonic()
        for secret in secrets_:
            known = self._recent.get((credential, _digest(secret)))
            if known is None or now - known[0] > _RECENT_SECONDS:
                return False, None
            if known[1] is not None:
                return True, known[1]
        return True, None

    def visitor(self, credential: Credential, secrets_: Iterable[str]) -> HubVisitor | None:
        """Return the visitor with one of these secrets.

        Raise `DatabaseUnavailable` if the database does not answer and the secret was not used
        recently.
        """
        for secret in secrets_:
            with self._lock:
                changes = self._changes
            found = self._visitor(credential, secret)
            with self._lock:
                if len(self._recent) >= _MAX_REMEMBERED:
                    self._recent.clear()
                if changes == self._changes:
                    self._recent[credential, _digest(secret)] = (time.monotonic(), found)
            if found is not None:
                return found
        return None

    def _visitor(self, credential: Credential, secret: str) -> HubVisitor | None:
        match credential:
            case Credential.TOKEN:
                token = self.token(secret)
                return HubVisitor(token[1], credential) if token else None
            case Credential.SESSION:
                session = self.session(secret)
                return HubVisitor(session[1], credential, secret) if session else None
            case Credential.LINK:
                guest = self.guest(secret)
                return HubVisitor(guest, credential) if guest else None

    # Users.

    def personal(self, name: str) -> User:
        """Return the one user of a personal hub: an admin without a password."""
        cleaned = re.sub(r"[^a-z0-9._-]", "-", name.lower()).strip("._-")[:64].strip("._-")
        name = cleaned or "me"
        with suppress(NoSuchName):
            return self._accounts.user(name)
        with suppress(NameTaken):  # another hub starts at the same time
            return self._accounts.add_user(name, Role.ADMIN)
        return self._accounts.user(name)

    def add_user(self, name: str, role: Role, password: str | None = None) -> User:
        """Add a user; without a password, the user can log in only with a token."""
        if not _NAME.fullmatch(name):
            raise BadValue(
                f"{name[:80]!r} is not a valid user name.",
                "Use up to 64 lowercase letters, digits, '.', '_' and '-', with a letter or digit "
                "first and last.",
            )
        hashed = None if password is None else self._hash(name, password)
        user = self._accounts.add_user(name, role, hashed)
        self._forget(name)
        return user

    def user(self, name: str) -> User:
        return self._accounts.user(name)

    def users(self) -> Sequence[User]:
        return self._accounts.users()

    def set_role(self, name: str, role: Role) -> None:
        """Change a user's role; raise `Conflict` if no admin would be left."""
        self._accounts.set_role(name, role)
        self._forget(name)

    def set_password(self, name: str, password: str) -> None:
        """Change a user's password and end all of the user's sessions."""
        self._accounts.set_password(name, self._hash(name, password))
        self._forget(name)

    def remove_user(self, name: str) -> None:
        """Remove a user with all tokens, sessions and links; the user's boards are kept.

        Raise `Conflict` if no admin would be left.
        """
        self._accounts.remove_user(name)
        self._forget(name)

    # Passwords and sessions.

    async def enter(self, name: str, password: str, address: str = "") -> Issued[Session]:
        """Open a session with a password; the response to a wrong one is delayed.

        Raise `TooManyAttempts` if there are too many from this address or for this user.
        """
        sources = sources_of(address, name)
        release = await self._turns.take(sources)
        try:
            user = await query(self._find, name)
        except BaseException:
            release()
            raise
        stored = user.password if user is not None else None
        try:
            verified = self._passwords.verify(stored, password, sources)
        except TooManyAttempts:
            await self.throttle.hold()  # so that it is not sent again at once
            raise
        is_right = await asyncio.wrap_future(verified)  # takes as long for an unknown user
        if user is None or not is_right:
            if not await self.throttle.hold():
                raise TooManyAttempts
            raise AuthError("wrong user name or password.", "Try again, or ask an admin.")
        release()
        if user.password is not None and self._passwords.is_outdated(user.password):
            with suppress(TooManyAttempts):  # the next login renews it
                hashed = await asyncio.wrap_future(self._passwords.hash(password, sources))
                renew = self._accounts.renew_password
                await query(renew, user.name, user.password, hashed)
        return await query(self.open_session, user)

    def _find(self, name: str) -> User | None:
        try:
            return self._accounts.user(name)
        except NoSuchName:
            return None

    def _hash(self, name: str, password: str) -> str:
        return self._passwords.hash(password, sources_of("", name)).result()

    def open_session(self, user: User) -> Issued[Session]:
        opened = self.new_session(user.name)
        self._accounts.forget_expired()
        self._accounts.add(opened.record)
        return opened

    def new_session(self, account: str = "", *, boards: bool = False) -> Issued[Session]:
        """Return a new session for the caller to store; one for `boards` opens only boards."""
        mark = BOARDS_MARK if boards else ""
        secret, now = f"{mark}{secrets.token_urlsafe(32)}", self._clock()
        ends = now + self._session_seconds
        return Issued(secret, Session(new_id(), account, _digest(secret), now, ends))

    def session(self, secret: str) -> tuple[Session, User] | None:
        found = self._opened_by(Session, secret)
        return found if found and self._clock() < found[0].expires else None

    def log_out(self, secret: str) -> None:
        self._end_session(_digest(secret))

    def sessions(self, user: User) -> Sequence[Session]:
        """Return the sessions that a user may end: the user's own, or all of them for an admin."""
        account = None if may(user, Action.MANAGE_USERS) else user.name
        now = self._clock()
        return [one for one in self._accounts.sessions(account) if now < one.expires]

    def is_secret_of(self, session: Session, secret: str) -> bool:
        return bool(secret) and hmac.compare_digest(session.digest, _digest(secret))

    def end_session(self, user: User, session: str) -> None:
        """End a session by its id, if the user may."""
        for known in self.sessions(user):
            if known.id == session:
                self._end_session(known.digest)
                return
        raise NoSuchName(f"session {session[:80]!r} not found.", "It may have ended already.")

    def _end_session(self, digest: str) -> None:
        self._accounts.end_session(digest)
        self._forget_secret(digest)

    # Tokens.

    def create_token(
        self, user: User, name: str = "", *, lasts: float | None = None
    ) -> Issued[Token]:
        """Create a token that expires after `lasts` seconds; None means never."""
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
        found = self._opened_by(Token, secret)
        now = self._clock()
        if found is None or not is_good(found[0], now):
            return None
        identity = found[0].id
        recorded = max(found[0].last_used or 0.0, self._recorded_uses.get(identity, 0.0))
        if now - recorded >= _LAST_USED_SECONDS:
            self._record_use(identity, now)  # before the write: the next request must not wait
            with suppress(DatabaseUnavailable):
                self._accounts.note_use(found[0], now)
        return found

    def _record_use(self, identity: str, now: float) -> None:
        with self._lock:
            self._recorded_uses.pop(identity, None)
            self._recorded_uses[identity] = now
            while now - next(iter(self._recorded_uses.values())) >= _LAST_USED_SECONDS:
                del self._recorded_uses[next(iter(self._recorded_uses))]

    def tokens(self, user: User) -> Sequence[Token]:
        """Return the tokens that a user may manage: the user's own, or all of them for an admin."""
        return self._accounts.tokens(None if may(user, Action.MANAGE_USERS) else user.name)

    def revoke_token(self, user: User, token: str) -> None:
        """Revoke a token by its id or prefix, if the user may."""
        for known in self.tokens(user):
            if token in {known.id, known.prefix}:
                self._accounts.revoke(Token, known.id)
                self._forget_secret(known.digest)
                return
        raise NoSuchName(f"token {token[:80]!r} not found.", "List them: aboard token list")

    # Links to one board.

    def share(self, user: User, board: BoardRecord, *, lasts: float | None = None) -> Issued[Share]:
        """Create a link that shows one board, and nothing else, without a login."""
        require(user, Action.SHARE, board)
        secret, now = f"{SHARE_MARK}{secrets.token_urlsafe(32)}", self._clock()
        share = Share(new_id(), board.id, user.name, _digest(secret), now, _end(now, lasts))
        self._accounts.add(share)
        return Issued(secret, share)

    def guest(self, secret: str) -> Guest | None:
        found = self._opened_by(Share, secret)
        return Guest(*found) if found and is_good(found[0], self._clock()) else None

    def shares(self, user: User, board: BoardRecord) -> Sequence[Share]:
        require(user, Action.SHARE, board)
        return self._accounts.shares(board.id)

    def revoke_share(self, user: User, board: BoardRecord, share: str) -> None:
        for known in self.shares(user, board):
            if known.id == share:
                self._accounts.revoke(Share, share)
                self._forget_secret(known.digest)
                return
        raise NoSuchName(f"link {share[:80]!r} not found.", "List them: aboard share BOARD --list")

    # One-time keys.

    def mint_key(self, user: User, *, boards: bool = False) -> tuple[str, float]:
        """Create a one-time key that opens a session; return it and its expiry.

        With `boards`, the session is valid only at the boards' origin.
        """
        mark = BOARDS_MARK if boards else ""
        key, now = f"{mark}{secrets.token_urlsafe(32)}", self._clock()
        record = Key(_digest(key), user.name, now, now + KEY_SECONDS)
        self._accounts.forget_expired()
        self._accounts.add(record)
        return key, record.expires

    def lasting_key(self, user: User) -> str:
        """Return a key that opens sessions of a user until this process exits.

        It is for a hub that stops with the command that printed its link.
        """
        key = secrets.token_urlsafe(32)
        self._link = (_digest(key), user)
        return key

    @property
    def has_lasting_key(self) -> bool:
        return self._link is not None

    def redeem(self, key: str, session: Session | None = None) -> BadKey | None:
        """Use up a key and store a session for its user; return None on success."""
        if self._link is not None and hmac.compare_digest(self._link[0], _digest(key)):
            if session is not None:
                self._accounts.forget_expired()
                self._accounts.add(replace(session, account=self._link[1].name))
            return None
        known = self._accounts.use_key(_digest(key), session)
        if known is None:
            return BadKey.UNKNOWN
        if known.used is not None:
            return BadKey.USED
        return BadKey.EXPIRED if self._clock() >= known.expires else None

    # Lookups.

    def _opened_by(self, kind: type[Secret], secret: str) -> tuple[Secret, User] | None:
        digest, now = _digest(secret), self._clock()
        try:
            found = self._accounts.opened_by(kind, digest)
        except DatabaseUnavailable:
            return self._recently_known(kind, digest, now)
        is_right = found is not None and hmac.compare_digest(found[0].digest, digest)
        with self._lock:
            self._remembered.pop(digest, None)
            if found is None or not is_right:
                return None
            self._remembered[digest] = (found[0], found[1], now)
            if len(self._remembered) > _MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        return found

    def _recently_known(
        self, kind: type[Secret], digest: str, now: float
    ) -> tuple[Secret, User] | None:
        with self._lock:
            known = self._remembered.get(digest)
        if known is None or now - known[2] > _OUTAGE_SECONDS:
            raise DatabaseUnavailable(
                "the database does not answer, so users cannot be identified.",
                "Try again when it is back.",
            )
        return (known[0], known[1]) if isinstance(known[0], kind) else None

    def _forget_secret(self, digest: str) -> None:
        with self._lock:
            self._remembered.pop(digest, None)
            self._recent.clear()
            self._changes += 1

    def _forget(self, name: str) -> None:
        with self._lock:
            self._recent.clear()
            self._changes += 1
            for digest, (_, user, _) in list(self._remembered.items()):
                if user.name == name:
                    del self._remembered[digest]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _end(now: float, lasts: float | None) -> float | None:
    if lasts is None:
        return None
    if not lasts:
        raise BadValue("lasts must be greater than 0.", "Give a longer time.")
    return now + check_number(lasts, "lasts")


# Passwords.


class _Job(NamedTuple):
    share: int  # jobs of its source before it: the first of a source precedes others' second
    number: int
    future: Future[Any]
    work: Callable[[], Any]


class Passwords:
    """The hashing threads of a hub. `sources` are the address and the account of a password."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        if hasher is None:
            from argon2 import PasswordHasher

            hasher = PasswordHasher(**STRENGTH)
        self._hasher = hasher
        self._threads = ThreadPoolExecutor(
            lane_width(), "aboard-passwords", initializer=_lower_priority
        )
        self._lock = threading.Lock()  # guards the three below
        self._shares: Counter[str] = Counter()
        self._queued = 0
        self._waiting: list[_Job] = []  # a heap
        self._numbers = itertools.count()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            left = list(self._waiting)
        for job in left:
            job.future.cancel()

    def verify(self, stored: str | None, password: str, sources: Iterable[str]) -> Future[bool]:
        """Compare a password; without a stored hash, it is False after the same time."""
        return self._submit(lambda: self._verify(stored, password), sources)

    def hash(self, password: str, sources: Iterable[str]) -> Future[str]:
        """Hash a new password, or raise `BadValue`."""
        if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD or not is_plain(password):
            raise BadValue(
                "invalid password.",
                f"Use {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters.",
            )
        return self._submit(lambda: self._hasher.hash(password), sources)

    def is_outdated(self, stored: str) -> bool:
        return self._hasher.check_needs_rehash(stored)

    def _submit(self, work: Callable[[], Result], sources: Iterable[str]) -> Future[Result]:
        named = set(sources)
        future: Future[Result] = Future()
        with self._lock:
            share = max((self._shares[one] for one in named), default=0)
            if self._queued >= MAX_QUEUED or share >= MAX_SHARE:
                raise TooManyAttempts
            self._queued += 1
            self._shares.update(named)
            heapq.heappush(self._waiting, _Job(share, next(self._numbers), future, work))

        def leave(_: Future[Result]) -> None:
            with self._lock:
                self._queued -= 1
                self._shares -= Counter(named)

        future.add_done_callback(leave)
        self._threads.submit(self._work)
        return future

    def _work(self) -> None:
        with self._lock:
            job = heapq.heappop(self._waiting)
        if not job.future.set_running_or_notify_cancel():
            return
        try:
            job.future.set_result(job.work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            job.future.set_exception(error)

    def _verify(self, stored: str | None, password: str) -> bool:
        from argon2.exceptions import InvalidHashError, VerificationError

        dummy = self._dummy  # always, because the first access is slow
        if len(password) > LONGEST_PASSWORD or not is_plain(password):
            return False
        try:
            return self._hasher.verify(stored or dummy, password) and stored is not None
        except (VerificationError, InvalidHashError):
            return False

    @cached_property
    def _dummy(self) -> str:
        return self._hasher.hash(secrets.token_urlsafe(16))


class Turns:
    """Limits attempts per address and per account, like `Throttle.acquire`.

    Each source has its own turns, so that an attacker uses up only those of its address and of the
    account under attack. Only the most recent sources are remembered.
    """

    def __init__(self, throttle: Throttle) -> None:
        self._like = throttle
        self._throttles: OrderedDict[str, Throttle] = OrderedDict()

    async def take(self, sources: Iterable[str]) -> Callable[[], None]:
        """Wait for a turn of every source; return a function that gives the turns back."""
        taken: list[Throttle] = []

        def release() -> None:
            for one in taken:
                one.release()

        for source in sources:
            throttle = self._throttles.pop(source, None) or replace(self._like)
            self._throttles[source] = throttle
            if len(self._throttles) > _MAX_SOURCES:
                self._throttles.popitem(last=False)
            if not await throttle.acquire():
                release()
                raise TooManyAttempts
            taken.append(throttle)
        return release


def sources_of(address: str, account: str) -> list[str]:
    """Return the sources of a login: its network and its account."""
    with suppress(ValueError):
        known = ipaddress.ip_address(address.partition("%")[0])
        if known.version == 6:
            address = str(ipaddress.ip_network((known, _IPV6_PREFIX), strict=False))
    return [f"from {address}", f"as {account[:100]}"]


def lane_width() -> int:
    """Return how many hashes are computed at once: fewer than the cores, and at most two."""
    return max(1, min(2, (os.cpu_count() or 1) - 1))


def _lower_priority() -> None:
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
