"""Users, and what opens the hub for them, as it is remembered: tokens, sessions, links, keys.

Secrets arrive here as digests and passwords as argon2's text. What they are made of, how they
are compared and what a role may do is left to the hub's `auth`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, TypeVar

import sqlalchemy as sa

from aboard.boards import schema
from aboard.boards.database import Database
from aboard.boards.errors import Conflict, NameTaken, NotFound
from aboard.boards.wanted import is_plain


class Role(StrEnum):
    """What a user is on this hub."""

    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may come in."""

    name: str
    role: Role
    created: float
    password: str | None = field(default=None, repr=False)
    removed: float | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A program's secret, without the secret."""

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
        """Say whether it still opens."""
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that somebody logged in with, without its secret."""

    id: str
    account: str
    digest: str = field(repr=False)
    created: float
    expires: float


@dataclass(frozen=True, slots=True)
class Share:
    """A link that shows one board to whoever has it, without its secret."""

    id: str
    board: str
    made_by: str
    digest: str = field(repr=False)
    created: float
    expires: float | None = None
    revoked: float | None = None

    def is_good(self, now: float) -> bool:
        """Say whether it still shows the board."""
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True, slots=True)
class Key:
    """What opens one session of a user, once, without its secret."""

    digest: str = field(repr=False)
    account: str
    created: float
    expires: float
    used: float | None = None


Secret = TypeVar("Secret", Token, Session, Share)
Kind = TypeVar("Kind", User, Token, Session, Share, Key)
_TABLES: dict[type, sa.Table] = {
    User: schema.account,
    Token: schema.token,
    Session: schema.visit,
    Share: schema.share,
    Key: schema.one_time_key,
}
_ADMINISTRATORS = "(administrators)"
"""The lock of whoever might take the last one's role away."""

_account, _token, _visit, _share = schema.account, schema.token, schema.visit, schema.share
_key = schema.one_time_key
_KEY_IS_TOLD = 7 * 86400.0
"""Seconds for which a key that has expired is known as such."""
_MOST_KEYS = 500
"""Keys of one user that are remembered."""


class Accounts:
    """The users of a hub.

    Args:
        database: where they are remembered.
        clock: seconds since 1970.
    """

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def add_user(self, name: str, role: Role, password: str | None = None) -> User:
        """Remember a user, or bring back one who was removed; his boards are his again.

        Raises:
            NameTaken: there is a user of that name.
        """
        user = User(name, Role(role), self._clock(), password)
        with self._database.write(owner=name) as connection:
            before = _one(connection, User, _account.c.name == name)
            if before is None:
                connection.execute(sa.insert(_account).values(_row(user)))
            elif before.removed is not None:
                connection.execute(
                    sa.update(_account).where(_account.c.name == name).values(_row(user))
                )
            else:
                raise NameTaken(f"there is a user {name!r}.", "Choose another name.")
        return user

    def user(self, name: str) -> User:
        """Return a user.

        Raises:
            NotFound: there is none of that name.
        """
        if is_plain(name):
            with self._database.read() as connection:
                found = _one(connection, User, *_present(name))
            if found is not None:
                return found
        raise _no_user(name)

    def users(self) -> Sequence[User]:
        """Return every user, by name."""
        with self._database.read() as connection:
            return _all(connection, User, _account.c.removed.is_(None), order=_account.c.name)

    def set_role(self, name: str, role: Role) -> None:
        """Give a user another role.

        Raises:
            NotFound: there is no such user.
            Conflict: it would leave the hub without an administrator.
        """
        with self._database.write(owner=_ADMINISTRATORS) as connection:
            _change(connection, name, role=str(Role(role)))
            _check_administrators(connection)

    def set_password(self, name: str, password: str) -> None:
        """Give a user another password, which ends all sessions he has, and those to come.

        Raises:
            NotFound: there is no such user.
        """
        with self._database.write() as connection:
            _change(connection, name, password=password)
            for column in (_visit.c.account, _key.c.account):
                connection.execute(sa.delete(column.table).where(column == name))

    def renew_password(self, name: str, before: str, after: str) -> None:
        """Keep the same password in another form, if it is still the one that was seen."""
        with self._database.write() as connection:
            same = (*_present(name), _account.c.password == before)
            connection.execute(sa.update(_account).where(*same).values(password=after))

    def remove_user(self, name: str) -> None:
        """Shut a user out, with his tokens, sessions and links; his boards stay.

        Raises:
            NotFound: there is no such user.
            Conflict: it would leave the hub without an administrator.
        """
        with self._database.write(owner=_ADMINISTRATORS) as connection:
            _change(connection, name, removed=self._clock(), password=None)
            _check_administrators(connection)
            columns = (_token.c.account, _visit.c.account, _share.c.made_by, _key.c.account)
            for column in columns:
                connection.execute(sa.delete(column.table).where(column == name))

    def add(self, secret: Token | Session | Share | Key) -> None:
        """Remember a token, a session, a link or a key; a user's oldest keys are forgotten.

        Raises:
            NotFound: its user or its board is gone.
        """
        with self._database.write() as connection:
            name = secret.made_by if isinstance(secret, Share) else secret.account
            if _one(connection, User, *_present(name)) is None:
                raise _no_user(name)
            if isinstance(secret, Share):
                known = sa.select(schema.board.c.id).where(schema.board.c.id == secret.board)
                if connection.scalar(known) is None:
                    raise NotFound(f"there is no board {secret.board!r}.")
            connection.execute(sa.insert(_TABLES[type(secret)]).values(_row(secret)))
            if isinstance(secret, Key):
                _forget_oldest_keys(connection, secret.account)

    def opened_by(self, kind: type[Secret], digest: str) -> tuple[Secret, User] | None:
        """Return the token, session or link of a digest, and the user behind it, if both exist."""
        with self._database.read() as connection:
            found = _one(connection, kind, _TABLES[kind].c.digest == digest)
            if found is None:
                return None
            name = found.made_by if isinstance(found, Share) else found.account
            user = _one(connection, User, *_present(name))
        return None if user is None else (found, user)

    def tokens(self, account: str | None = None) -> Sequence[Token]:
        """Return a user's tokens, or everybody's, the oldest first."""
        mine = [] if account is None else [_token.c.account == account]
        with self._database.read() as connection:
            return _all(connection, Token, *mine, order=_token.c.created)

    def sessions(self, account: str) -> Sequence[Session]:
        """Return a user's sessions, the oldest first."""
        with self._database.read() as connection:
            return _all(connection, Session, _visit.c.account == account, order=_visit.c.created)

    def shares(self, board: str) -> Sequence[Share]:
        """Return a board's links, the oldest first."""
        with self._database.read() as connection:
            return _all(connection, Share, _share.c.board == board, order=_share.c.created)

    def revoke(self, kind: type[Token] | type[Share], identity: str) -> None:
        """Let a token or a link open nothing from now on; it stays listed.

        Raises:
            NotFound: there is none of that id.
        """
        table = _TABLES[kind]
        this = table.c.id == identity
        again = sa.func.coalesce(table.c.revoked, self._clock())
        with self._database.write() as connection:
            done = connection.execute(sa.update(table).where(this).values(revoked=again))
        if not done.rowcount:
            raise NotFound(f"there is no {kind.__name__.lower()} {identity[:80]!r}.")

    def end_session(self, digest: str) -> None:
        """Forget a session."""
        with self._database.write() as connection:
            connection.execute(sa.delete(_visit).where(_visit.c.digest == digest))

    def note_use(self, token: Token, at: float) -> None:
        """Note when a token was last used."""
        with self._database.write() as connection:
            this = _token.c.id == token.id
            connection.execute(sa.update(_token).where(this).values(last_used=at))

    def use_key(self, digest: str, session: Session | None = None) -> Key | None:
        """Use up a key; return it as it was before, None if it is not known.

        Of several who come with the same key, one gets it unused. With it a session of the key's
        user is remembered, or neither is done.
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
                connection.execute(sa.insert(_visit).values(_row(opened)))
        return found if done.rowcount else replace(found, used=now)

    def forget_expired(self) -> None:
        """Delete the sessions that are over, and keys of which nobody will ask why."""
        now = self._clock()
        with self._database.write() as connection:
            connection.execute(sa.delete(_visit).where(_visit.c.expires <= now))
            connection.execute(sa.delete(_key).where(_key.c.expires <= now - _KEY_IS_TOLD))


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
            "nobody would be left who may manage this hub.", "Make somebody else admin first."
        )


def _forget_oldest_keys(connection: sa.Connection, account: str) -> None:
    """Forget what one user has too many of: first what was used, then what is oldest."""
    mine = _key.c.account == account
    order = (_key.c.used.is_not(None), _key.c.created.desc(), _key.c.digest)
    kept = sa.select(_key.c.digest).where(mine).order_by(*order).limit(_MOST_KEYS)
    connection.execute(sa.delete(_key).where(mine, _key.c.digest.not_in(kept)))


def _one(
    connection: sa.Connection, kind: type[Kind], *wanted: sa.ColumnElement[bool]
) -> Kind | None:
    return next(iter(_all(connection, kind, *wanted)), None)


def _all(
    connection: sa.Connection,
    kind: type[Kind],
    *wanted: sa.ColumnElement[bool],
    order: sa.Column[Any] | None = None,
) -> list[Kind]:
    query = sa.select(_TABLES[kind]).where(*wanted).order_by(order)
    return [_made(kind, dict(row._mapping)) for row in connection.execute(query)]


def _made(kind: type[Kind], values: dict[str, Any]) -> Kind:
    if kind is User:
        values["role"] = Role(values["role"])
    return kind(**values)


def _row(thing: User | Token | Session | Share | Key) -> dict[str, Any]:
    row = {column.name: getattr(thing, column.name) for column in fields(thing)}
    return {name: str(value) if name == "role" else value for name, value in row.items()}


def _no_user(name: str) -> NotFound:
    return NotFound(f"there is no user {name[:80]!r}.", "See who there is: aboard user list")
