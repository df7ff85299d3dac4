"""The users of a hub, with their tokens, sessions, shared links, one-time keys and saved views.

Secrets arrive as digests, passwords as argon2 hashes. `hub.auth` creates and compares them, and
`hub.permissions` defines what each role may do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from aboard.boards.database import Database, from_rows, table, to_row
from aboard.boards.model import (
    LONGEST_NAME,
    BadValue,
    Conflict,
    NameTaken,
    NoSuchName,
    Visibility,
    check_text,
    is_plain,
)
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
    """An API token, without its secret."""

    id: str
    account: str
    name: str
    prefix: str
    digest: str = field(repr=False)
    created: float
    expires: float | None = None
    revoked: float | None = None
    last_used: float | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """A browser session, without its secret."""

    id: str
    account: str
    digest: str = field(repr=False)
    created: float
    expires: float


@dataclass(frozen=True, slots=True)
class Share:
    """A shared link, which shows one board without a login; without its secret."""

    id: str
    board: str
    made_by: str
    digest: str = field(repr=False)
    created: float
    expires: float | None = None
    revoked: float | None = None


def is_good(secret: Token | Share, now: float) -> bool:
    """Return whether a token or link is neither revoked nor expired."""
    return secret.revoked is None and (secret.expires is None or now < secret.expires)


@dataclass(frozen=True, slots=True)
class Key:
    """A one-time key, which opens one session of a user; without its secret."""

    digest: str = field(repr=False)
    account: str
    created: float
    expires: float
    used: float | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A saved table of runs: the query of the page's address."""

    owner: str
    name: str
    query: str
    visibility: Visibility
    changed: float


Secret = TypeVar("Secret", Token, Session, Share)
Kind = TypeVar("Kind", User, Token, Session, Share, Key)
_account = table("account", User, ("name",))
_token = table("token", Token, ("id",))
_session = table("visit", Session, ("id",))
_share = table("share", Share, ("id",))
_key = table("one_time_key", Key, ("digest",))
_board = sa.table("board", sa.column("id"))
_view = table("saved_view", View, ("owner", "name"))
_TABLES = {User: _account, Token: _token, Session: _session, Share: _share, Key: _key}
_ADMINISTRATORS = "(administrators)"  # lock for changes that could remove the last administrator
_KEY_KEPT = 7 * 86400.0  # seconds for which an expired key is remembered
_MOST_KEYS = 500  # per user
LONGEST_QUERY = 16_000  # of a view
MOST_VIEWS = 500  # per user


class Accounts:
    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def add_user(self, name: str, role: Role, password: str | None = None) -> User:
        """Add a user, or restore a removed one, who owns the same boards again."""
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
                raise NameTaken(f"user {name!r} already exists.", "Choose another name.")
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
        """Set a password; this ends all sessions and one-time keys of the user."""
        with self._database.write() as connection:
            _change(connection, name, password=password)
            for column in (_session.c.account, _key.c.account):
                connection.execute(sa.delete(column.table).where(column == name))

    def renew_password(self, name: str, before: str, after: str) -> None:
        """Replace the hash of a password if it is still `before`."""
        with self._database.write() as connection:
            same = (*_present(name), _account.c.password == before)
            connection.execute(sa.update(_account).where(*same).values(password=after))

    def remove_user(self, name: str) -> None:
        """Remove a user with all tokens, sessions, links and private views; boards are kept."""
        with self._database.write(owner=_ADMINISTRATORS) as connection:
            _change(connection, name, removed=self._clock(), password=None)
            _check_administrators(connection)
            columns = (_token.c.account, _session.c.account, _share.c.made_by, _key.c.account)
            for column in columns:
                connection.execute(sa.delete(column.table).where(column == name))
            private = (_view.c.owner == name, _view.c.visibility == "private")
            connection.execute(sa.delete(_view).where(*private))

    def add(self, secret: Token | Session | Share | Key) -> None:
        """Store a token, session, link or key; keys above a user's limit are deleted."""
        with self._database.write() as connection:
            name = secret.made_by if isinstance(secret, Share) else secret.account
            if _one(connection, User, *_present(name)) is None:
                raise _no_user(name)
            if isinstance(secret, Share):
                known = sa.select(_board.c.id).where(_board.c.id == secret.board)
                if connection.scalar(known) is None:
                    raise NoSuchName(f"board {secret.board!r} not found.")
            connection.execute(sa.insert(_TABLES[type(secret)]).values(to_row(secret)))
            if isinstance(secret, Key):
                _forget_oldest_keys(connection, secret.account)

    def opened_by(self, kind: type[Secret], digest: str) -> tuple[Secret, User] | None:
        """Return the token, session or link with a digest, and its user, if both exist."""
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
        """Revoke a token or link; it is still listed."""
        table = _TABLES[kind]
        this = table.c.id == identity
        again = sa.func.coalesce(table.c.revoked, self._clock())
        with self._database.write() as connection:
            done = connection.execute(sa.update(table).where(this).values(revoked=again))
        if not done.rowcount:
            raise NoSuchName(f"{kind.__name__.lower()} {identity[:80]!r} not found.")

    def end_session(self, digest: str) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(_session).where(_session.c.digest == digest))

    def note_use(self, token: Token, at: float) -> None:
        with self._database.write() as connection:
            this = _token.c.id == token.id
            connection.execute(sa.update(_token).where(this).values(last_used=at))

    def use_key(self, digest: str, session: Session | None = None) -> Key | None:
        """Use up a key; return it as it was before, or None if it is unknown.

        If several requests send the same key, only one gets it unused. The session of the key's
        user is stored in the same transaction.
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


class Views:
    """The saved views of all users. Permission to share or delete them is left to the caller."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def seen_by(self, user: str) -> Sequence[View]:
        """Return a user's views and the team's, by name."""
        shown = sa.or_(_view.c.owner == user, _view.c.visibility == str(Visibility.TEAM))
        query = sa.select(_view).where(shown).order_by(_view.c.name, _view.c.owner)
        with self._database.read() as connection:
            return from_rows(View, connection.execute(query).all())

    def save(self, owner: str, name: str, query: str, visibility: Visibility) -> View:
        """Save a view; it replaces one with the same owner and name."""
        name = check_text(name.strip(), "the name of a view", LONGEST_NAME)
        if not name:
            raise BadValue("a view needs a name.")
        check_text(query, "the query of a view", LONGEST_QUERY)
        view = View(owner, name, query, visibility, self._clock())
        mine = _view.c.owner == owner
        with self._database.write(owner=owner) as connection:
            connection.execute(sa.delete(_view).where(mine, _view.c.name == name))
            count = sa.select(sa.func.count()).select_from(_view).where(mine)
            if (connection.scalar(count) or 0) >= MOST_VIEWS:
                raise BadValue(f"a user may have at most {MOST_VIEWS} views.", "Delete some.")
            connection.execute(sa.insert(_view).values(to_row(view)))
        return view

    def delete(self, owner: str, name: str, *, shared_only: bool = False) -> None:
        """Delete a view; with `shared_only`, only if the team sees it."""
        this = [_view.c.owner == owner, _view.c.name == name]
        if shared_only:
            this.append(_view.c.visibility == str(Visibility.TEAM))
        with self._database.write(owner=owner) as connection:
            done = connection.execute(sa.delete(_view).where(*this))
        if not done.rowcount:
            raise no_such_view(name)


def no_such_view(name: str) -> NoSuchName:
    return NoSuchName(f"view {name[:80]!r} not found.", "List them: GET /api/v1/views")


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
            "the hub would have no administrator left.", "Make another user an admin first."
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
    return from_rows(kind, connection.execute(query).all())


def _no_user(name: str) -> NoSuchName:
    return NoSuchName(f"user {name[:80]!r} not found.", "List them: aboard user list")
