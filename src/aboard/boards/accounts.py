"""The users that a hub stores, with their tokens, sessions, shared links and one-time keys.

Secrets arrive as digests, passwords as argon2 hashes. The hub's `auth` makes and compares them;
`permissions` says what a role may do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from aboard.boards.database import Database, from_row, table, to_row
from aboard.boards.errors import Conflict, NameTaken, NoSuchName
from aboard.boards.model import is_plain
from aboard.system import requires

with requires("sqlalchemy"):
    import sqlalchemy as sa


class Role(StrEnum):
    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class User:
    name: str
    role: Role
    created: float
    password: str | None = field(default=None, repr=False)
    removed: float | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a program, without its secret."""

    id: str
    account: str
    name: str
    prefix: str
    digest: str = field(repr=False)
    created: float
    expires: float | None = None
    revoked: float | None = None
    last_used: float | None = None

    def is_good(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True, slots=True)
class Session:
    """A login of a browser, without its secret."""

    id: str
    account: str
    digest: str = field(repr=False)
    created: float
    expires: float


@dataclass(frozen=True, slots=True)
class Share:
    """A link that shows one board without a login, without its secret."""

    id: str
    board: str
    made_by: str
    digest: str = field(repr=False)
    created: float
    expires: float | None = None
    revoked: float | None = None

    def is_good(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True, slots=True)
class Key:
    """A key that opens one session of a user, once, without its secret."""

    digest: str = field(repr=False)
    account: str
    created: float
    expires: float
    used: float | None = None


Secret = TypeVar("Secret", Token, Session, Share)
Kind = TypeVar("Kind", User, Token, Session, Share, Key)
_account = table("account", User, ("name",))
_token = table("token", Token, ("id",))
_session = table("visit", Session, ("id",))
_share = table("share", Share, ("id",))
_key = table("one_time_key", Key, ("digest",))
_board = sa.table("board", sa.column("id"))
_view = sa.table("saved_view", sa.column("owner"), sa.column("visibility"))
_TABLES = {User: _account, Token: _token, Session: _session, Share: _share, Key: _key}
_ADMINISTRATORS = "(administrators)"  # the lock of what might remove the last one
_KEY_KEPT = 7 * 86400.0  # seconds for which an expired key is known as such
_MOST_KEYS = 500  # of one user


class Accounts:
    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def add_user(self, name: str, role: Role, password: str | None = None) -> User:
        """Add a user, or bring back a removed one with the boards of that name."""
        user = User(name, Role(role), self._clock(), password)
        with self._database.write(owner=name) as connection:
            before = _one(connection, User, _account.c.name == name)
            if before is None:
                connection.execute(sa.insert(_account).values(to_row(user)))
            elif before.removed is not None:
                connection.execute(
                    sa.update(_account).where(_account.c.name == name).values(to_row(user))
                )
            else:
                raise NameTaken(f"there is a user {name!r}.", "Choose another name.")
        return user

    def user(self, name: str) -> User:
        if is_plain(name):
            with self._database.read() as connection:
                found = _one(connection, User, *_present(name))
            if found is not None:
                return found
        raise _no_user(name)

    def users(self) -> Sequence[User]:
        with self._database.read() as connection:
            return _all(connection, User, _account.c.removed.is_(None), order=_account.c.name)

    def set_role(self, name: str, role: Role) -> None:
        with self._database.write(owner=_ADMINISTRATORS) as connection:
            _change(connection, name, role=str(Role(role)))
            _check_administrators(connection)

    def set_password(self, name: str, password: str) -> None:
        """Set a password, which ends all sessions and one-time keys of the user."""
        with self._database.write() as connection:
            _change(connection, name, password=password)
            for column in (_session.c.account, _key.c.account):
                connection.execute(sa.delete(column.table).where(column == name))

    def renew_password(self, name: str, before: str, after: str) -> None:
        """Replace the hash of a password, if it is still the one the caller saw."""
        with self._database.write() as connection:
            same = (*_present(name), _account.c.password == before)
            connection.execute(sa.update(_account).where(*same).values(password=after))

    def remove_user(self, name: str) -> None:
        """Remove a user with all tokens, sessions, links and private views; the boards stay."""
        with self._database.write(owner=_ADMINISTRATORS) as connection:
            _change(connection, name, removed=self._clock(), password=None)
            _check_administrators(connection)
            columns = (_token.c.account, _session.c.account, _share.c.made_by, _key.c.account)
            for column in columns:
                connection.execute(sa.delete(column.table).where(column == name))
            private = (_view.c.owner == name, _view.c.visibility == "private")
            connection.execute(sa.delete(_view).where(*private))

    def add(self, secret: Token | Session | Share | Key) -> None:
        """Store a token, a session, a link or a key; a user's oldest keys are deleted."""
        with self._database.write() as connection:
            name = secret.made_by if isinstance(secret, Share) else secret.account
            if _one(connection, User, *_present(name)) is None:
                raise _no_user(name)
            if isinstance(secret, Share):
                known = sa.select(_board.c.id).where(_board.c.id == secret.board)
                if connection.scalar(known) is None:
                    raise NoSuchName(f"there is no board {secret.board!r}.")
            connection.execute(sa.insert(_TABLES[type(secret)]).values(to_row(secret)))
            if isinstance(secret, Key):
                _forget_oldest_keys(connection, secret.account)

    def opened_by(self, kind: type[Secret], digest: str) -> tuple[Secret, User] | None:
        """Return the token, session or link of a digest and its user, if both exist."""
        with self._database.read() as connection:
            found = _one(connection, kind, _TABLES[kind].c.digest == digest)
            if found is None:
                return None
            name = found.made_by if isinstance(found, Share) else found.account
            user = _one(connection, User, *_present(name))
        return None if user is None else (found, user)

    def tokens(self, account: str | None = None) -> Sequence[Token]:
        mine = [] if account is None else [_token.c.account == account]
        with self._database.read() as connection:
            return _all(connection, Token, *mine, order=_token.c.created)

    def sessions(self, account: str | None = None) -> Sequence[Session]:
        mine = [] if account is None else [_session.c.account == account]
        with self._database.read() as connection:
            return _all(connection, Session, *mine, order=_session.c.created)

    def shares(self, board: str) -> Sequence[Share]:
        with self._database.read() as connection:
            return _all(connection, Share, _share.c.board == board, order=_share.c.created)

    def revoke(self, kind: type[Token] | type[Share], identity: str) -> None:
        """Revoke a token or a link; it stays listed."""
        table = _TABLES[kind]
        this = table.c.id == identity
        again = sa.func.coalesce(table.c.revoked, self._clock())
        with self._database.write() as connection:
            done = connection.execute(sa.update(table).where(this).values(revoked=again))
        if not done.rowcount:
            raise NoSuchName(f"there is no {kind.__name__.lower()} {identity[:80]!r}.")

    def end_session(self, digest: str) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(_session).where(_session.c.digest == digest))

    def note_use(self, token: Token, at: float) -> None:
        with self._database.write() as connection:
            this = _token.c.id == token.id
            connection.execute(sa.update(_token).where(this).values(last_used=at))

    def use_key(self, digest: str, session: Session | None = None) -> Key | None:
        """Use up a key; return it as it was before, None if it is not known.

        Of several requests with the same key, one gets it unused. The session of the key's user is
        stored in the same transaction.
        """
        now, this = self._clock(), _key.c.digest == digest
        with self._database.read() as connection:
            found = _one(connection, Key, this)
        if found is None or found.used is not None or found.expires <= now:
            return found
        with self._database.write() as connection:
            unused = (this, _key.c.used.is_(None))
            done = connection.execute(sa.update(_key).where(*unused).values(used=now))
            if done.rowcount and session is not None:
                opened = replace(session, account=found.account)
                connection.execute(sa.insert(_session).values(to_row(opened)))
        return found if done.rowcount else replace(found, used=now)

    def forget_expired(self) -> None:
        now = self._clock()
        with self._database.write() as connection:
            connection.execute(sa.delete(_session).where(_session.c.expires <= now))
            connection.execute(sa.delete(_key).where(_key.c.expires <= now - _KEY_KEPT))


def _present(name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return (_account.c.name == name, _account.c.removed.is_(None))


def _change(connection: sa.Connection, name: str, **values: object) -> None:
    if not is_plain(name):
        raise _no_user(name)
    done = connection.execute(sa.update(_account).where(*_present(name)).values(values))
    if not done.rowcount:
        raise _no_user(name)


def _check_administrators(connection: sa.Connection) -> None:
    left = (_account.c.role == str(Role.ADMIN), _account.c.removed.is_(None))
    if not connection.scalar(sa.select(sa.func.count()).select_from(_account).where(*left)):
        raise Conflict(
            "the hub would be left without an administrator.", "Make another user admin first."
        )


def _forget_oldest_keys(connection: sa.Connection, account: str) -> None:
    """Delete the keys above the limit: used ones first, then the oldest."""
    mine = _key.c.account == account
    order = (_key.c.used.is_not(None), _key.c.created.desc(), _key.c.digest)
    kept = sa.select(_key.c.digest).where(mine).order_by(*order).limit(_MOST_KEYS)
    connection.execute(sa.delete(_key).where(mine, _key.c.digest.not_in(kept)))


def _one(
    connection: sa.Connection, kind: type[Kind], *conditions: sa.ColumnElement[bool]
) -> Kind | None:
    return next(iter(_all(connection, kind, *conditions)), None)


def _all(
    connection: sa.Connection,
    kind: type[Kind],
    *conditions: sa.ColumnElement[bool],
    order: sa.Column[Any] | None = None,
) -> list[Kind]:
    query = sa.select(_TABLES[kind]).where(*conditions).order_by(order)
    return [from_row(kind, row) for row in connection.execute(query)]


def _no_user(name: str) -> NoSuchName:
    return NoSuchName(f"there is no user {name[:80]!r}.", "See who there is: aboard user list")
