"""Everything the hub must remember of its boards: as they are, how they came to be so, whose.

Whoever changes a board says which version of it he saw, so that of two who change it at once one
is told `Conflict` and nothing happens twice. What a user is and may do is left to `accounts`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc

from aboard.boards import schema
from aboard.boards.accounts import Accounts
from aboard.boards.database import BUSY_SECONDS, Database
from aboard.boards.errors import BadValue, Conflict, IdempotencyMismatch, NameTaken, NotFound
from aboard.boards.limits import Limits, check_room, settle
from aboard.boards.lookup import cursor, position, the_one_meant, unknown
from aboard.boards.model import BoardRecord, Change, State, Transition, Visibility, apply
from aboard.boards.names import new_id, new_name
from aboard.boards.rows import from_row, key_of, to_row
from aboard.boards.selection import digest
from aboard.boards.wanted import (
    LONGEST_TEXT,
    Wanted,
    check_text,
    checked,
    checked_changes,
    is_plain,
    plain,
)

KEYS_KEPT = 7 * 86400.0
"""How long a key for creating a board is remembered."""
MOST_PER_PAGE = 1000

_SHAREABLE = (State.PENDING, State.STARTING, State.RUNNING)
"""States in which a board is given to whoever asks for the same selection."""

_board = schema.board
_newest_first = (_board.c.created.desc(), _board.c.id.desc())


class Created(NamedTuple):
    """The answer to a wish for a board."""

    board: BoardRecord
    is_new: bool


class Page(NamedTuple):
    """Some boards of a listing, newest first."""

    boards: list[BoardRecord]
    total: int
    next: str | None
    """Give this as `after` to get those that follow."""


class Registry:
    """The boards and users of a hub.

    Args:
        address: a path or URL; see `Database`.
        clock: seconds since 1970.
        busy_seconds: how long to wait for a database that is busy or gone.

    Raises:
        DatabaseUnavailable: the database cannot be reached; every method may raise it.
        BadDatabase: it is of a newer version, or not ours.
    """

    def __init__(
        self,
        address: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = time.time,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        self._database = Database(address, busy_seconds=busy_seconds)
        self._clock = clock
        self.accounts = Accounts(self._database, clock)

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The database's address, without its password."""
        return self._database.name

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def check(self) -> None:
        """Ask the database for a sign of life."""
        with self._database.read() as connection:
            connection.execute(sa.select(sa.literal(1)))

    def create(
        self,
        wanted: Wanted,
        *,
        new: bool = False,
        key: str | None = None,
        limits: Limits | None = None,
    ) -> Created:
        """Remember a new board, or find the one that is meant.

        Args:
            wanted: what it should be.
            new: make one even where a board of the same selection is live.
            key: names this wish, so that it can be repeated without making a second board.
            limits: what its owner may have.

        Raises:
            BadValue: something wanted cannot be meant.
            BoardLimitExceeded: the owner may not have it.
            IdempotencyMismatch: the key was used for something else.
            NameTaken: the owner has a live board of that name.
        """
        limits = limits or Limits()
        wanted = checked(wanted)
        body = digest([asdict(wanted), new])
        wanted = settle(wanted, limits)
        if key is not None:
            check_text(key, "the idempotency key")
        with self._database.write(owner=wanted.owner) as connection:
            now = self._clock()
            if key is not None and (known := _created_before(connection, wanted.owner, key, body)):
                return Created(known, False)
            found = None if new else _same_selection(connection, wanted)
            board = found or self._insert(connection, wanted, limits, now)
            if key is not None:
                values = {"owner": wanted.owner, "idempotency_key": key, "body": body}
                old = schema.creation.c.at < now - KEYS_KEPT
                connection.execute(sa.delete(schema.creation).where(old))
                connection.execute(
                    sa.insert(schema.creation).values(**values, board=board.id, at=now)
                )
        return Created(board, found is None)

    def _insert(
        self, connection: sa.Connection, wanted: Wanted, limits: Limits, now: float
    ) -> BoardRecord:
        _check_room(connection, wanted.owner, wanted.on, limits)
        name = wanted.name or new_name(_live_names(connection, wanted.owner))
        _check_free(connection, wanted.owner, name)
        settled = {key: value for key, value in asdict(wanted).items() if key != "name"}
        board = BoardRecord(id=new_id(), name=name, created=now, changed=now, **settled)
        connection.execute(sa.insert(_board).values(to_row(board)))
        _note(connection, board)
        return board

    def get(self, board_id: str) -> BoardRecord:
        """Return a board by its whole id.

        Raises:
            NotFound: there is none.
        """
        if not is_plain(board_id):
            raise unknown(board_id)
        with self._database.read() as connection:
            row = connection.execute(sa.select(_board).where(_board.c.id == board_id)).first()
        if row is None:
            raise unknown(board_id)
        return from_row(row)

    def find(self, text: str, *, asker: str = "", seen_by: str | None = None) -> BoardRecord:
        """Return the board that an id, a name, or the unique beginning of one means.

        A whole id or name counts before a beginning, a live board before one that ended, and a
        board of the one who asks before those of others; of ended boards of the same name the
        last one is meant.

        Args:
            text: what was written.
            asker: who asks.
            seen_by: only boards that this user owns or that are shown to the team; None for all.

        Raises:
            NotFound: nothing begins like this.
            Ambiguous: several do.
        """
        if not text or not is_plain(text):
            raise unknown(text)
        begins = [
            sa.func.substr(column, 1, len(text)) == text for column in (_board.c.id, _board.c.name)
        ]
        query = sa.select(_board).where(sa.or_(*begins), *_visible(seen_by))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(*_newest_first)).all()
        return the_one_meant(text, [from_row(row) for row in rows], asker)

    def list(
        self,
        *,
        owner: str | None = None,
        states: Collection[State] = (),
        name: str | None = None,
        text: str | None = None,
        seen_by: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page:
        """List boards, newest first.

        Args:
            owner: only this user's.
            states: only those in one of these states; all if empty.
            name: only those of exactly this name.
            text: only those with this in their id, name, title, selectors or sources.
            seen_by: only boards that this user owns or that are shown to the team; None for all.
            limit: how many at most, up to 1,000.
            after: go on where a page ended.

        Raises:
            BadValue: `after` is not from a page, or `limit` is out of range.
        """
        if not 1 <= limit <= MOST_PER_PAGE:
            raise BadValue(f"limit cannot be {limit}.", f"Use 1 to {MOST_PER_PAGE}.")
        if not all(map(is_plain, filter(None, (owner, name, text)))):
            return Page([], 0, None)
        wanted = _visible(seen_by)
        if owner is not None:
            wanted.append(_board.c.owner == owner)
        if states:
            wanted.append(_board.c.state.in_([str(state) for state in states]))
        if name is not None:
            wanted.append(_board.c.name == name)
        if text:
            wanted.append(_contains(text))
        query = sa.select(_board).where(*wanted).order_by(*_newest_first).limit(limit + 1)
        if after is not None:
            created, board_id = position(after)
            same = sa.and_(_board.c.created == created, _board.c.id < board_id)
            query = query.where(sa.or_(_board.c.created < created, same))
        with self._database.read() as connection:
            total = connection.scalar(sa.select(sa.func.count()).select_from(_board).where(*wanted))
            boards = [from_row(row) for row in connection.execute(query)]
        more = len(boards) > limit
        boards = boards[:limit]
        return Page(boards, total or 0, cursor(boards[-1]) if more else None)

    def live(self, known: Mapping[str, BoardRecord] | None = None) -> Sequence[BoardRecord]:
        """Return every board that has not ended, oldest first.

        Args:
            known: boards by id as they were read before; those are read anew that have changed.
        """
        if not known:
            with self._database.read() as connection:
                return _live(connection)
        marks = sa.select(_board.c.id, _board.c.version, _board.c.last_request)
        with self._database.read() as connection:
            now = connection.execute(marks.where(_board.c.live == 1)).all()
            same = {
                row.id: _used_at(known[row.id], row.last_request)
                for row in now
                if row.id in known and known[row.id].version == row.version
            }
            other = [row.id for row in now if row.id not in same]
            changed = _by_ids(connection, other)
        boards = [*same.values(), *(board for board in changed if board.is_live)]
        return sorted(boards, key=lambda board: (board.created, board.id))

    def history(self, board_id: str) -> Sequence[Change]:
        """Return what a board went through, oldest first."""
        if not is_plain(board_id):
            return []
        query = sa.select(schema.change).where(schema.change.c.board == board_id)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(schema.change.c.version)).all()
        return [Change(**{**row._mapping, "state": State(row.state)}) for row in rows]

    def transition(
        self,
        record: BoardRecord,
        transition: Transition,
        *,
        limits: Limits | None = None,
        **changes: Any,
    ) -> BoardRecord:
        """Bring a board into another state, if it is still as the caller saw it.

        Args:
            record: the board as the caller saw it.
            transition: what happens to it.
            limits: what its owner may have, asked when an ended board starts anew.
            changes: new values of its fields in the same step, except of its name.

        Raises:
            IllegalTransition: a board in its state cannot do that.
            Conflict: it was changed meanwhile.
            NotFound: it was deleted meanwhile.
            BoardLimitExceeded: its owner may not have one more.
            NameTaken: its name was given to another board while it had ended.
        """
        said = plain(transition.reason)[:LONGEST_TEXT]
        after = apply(record, replace(transition, reason=said), self._clock())
        after = replace(after, **checked_changes(changes))
        revives = after.is_live and not record.is_live
        with self._database.write(owner=record.owner if revives else None) as connection:
            if revives:
                _check_room(connection, record.owner, record.on, limits or Limits())
                _check_free(connection, record.owner, record.name)
            _replace(connection, record, after)
            _note(connection, after)
        return after

    def update(self, record: BoardRecord, **changes: Any) -> BoardRecord:
        """Change what a board is, not how it stands, if it is still as the caller saw it.

        Args:
            record: the board as the caller saw it.
            changes: new values of its fields, except those that a transition sets.

        Raises:
            BadValue: a value cannot be meant.
            Conflict: it was changed meanwhile.
            NotFound: it was deleted meanwhile.
            NameTaken: the owner has a live board of that name.
        """
        after = replace(record, **checked_changes(changes), version=record.version + 1)
        with self._database.write(owner=record.owner) as connection:
            if after.is_live and after.name != record.name:
                _check_free(connection, record.owner, after.name)
            _replace(connection, record, after)
        return after

    def touch(self, requests: Mapping[str, float]) -> None:
        """Note when running boards were last used; this does not count as a change.

        Args:
            requests: times by board id.
        """
        if not requests:
            return
        last = _board.c.last_request
        statement = (
            sa.update(_board)
            .where(_board.c.id == sa.bindparam("board"), _board.c.state == str(State.RUNNING))
            .where(sa.or_(last.is_(None), last < sa.bindparam("at", type_=sa.Double)))
            .values(last_request=sa.bindparam("at", type_=sa.Double))
        )
        # In one order, so that two hubs do not wait for each other in a circle.
        values = [{"board": board, "at": at} for board, at in sorted(requests.items())]
        with self._database.write() as connection:
            connection.execute(statement, values)

    def delete(self, record: BoardRecord) -> None:
        """Forget a board that has ended, with its history and its links.

        Raises:
            Conflict: it has not ended, or was changed meanwhile.
            NotFound: it was deleted already.
        """
        if record.is_live:
            raise Conflict(
                f"board {record.id} ({record.name}) is {record.state}.",
                f"Stop it first: aboard stop {record.id}",
            )
        with self._database.write() as connection:
            done = connection.execute(sa.delete(_board).where(*_as_seen(record)))
            if not done.rowcount:
                raise _changed_meanwhile(connection, record)


def _live(connection: sa.Connection, owner: str | None = None) -> list[BoardRecord]:
    query = sa.select(_board).where(_board.c.live == 1)
    if owner is not None:
        query = query.where(_board.c.owner == owner)
    rows = connection.execute(query.order_by(_board.c.created, _board.c.id))
    return [from_row(row) for row in rows]


def _used_at(board: BoardRecord, at: float | None) -> BoardRecord:
    return board if board.last_request == at else replace(board, last_request=at)


def _by_ids(connection: sa.Connection, ids: Sequence[str]) -> list[BoardRecord]:
    some = (ids[start : start + 500] for start in range(0, len(ids), 500))
    queries = (sa.select(_board).where(_board.c.id.in_(part)) for part in some)
    return [from_row(row) for query in queries for row in connection.execute(query)]


def _check_room(connection: sa.Connection, owner: str, on: str, limits: Limits) -> None:
    if limits.most(on) is not None:
        check_room(owner, on, _live(connection, owner), limits)


def _live_names(connection: sa.Connection, owner: str) -> set[str]:
    mine = (_board.c.live == 1, _board.c.owner == owner)
    return set(connection.scalars(sa.select(_board.c.name).where(*mine)))


def _check_free(connection: sa.Connection, owner: str, name: str) -> None:
    if name in _live_names(connection, owner):
        raise _taken(owner, name)


def _created_before(
    connection: sa.Connection, owner: str, key: str, body: str
) -> BoardRecord | None:
    query = sa.select(schema.creation.c.body.label("wish"), _board).join_from(
        schema.creation, _board, schema.creation.c.board == _board.c.id
    )
    mine = (schema.creation.c.owner == owner, schema.creation.c.idempotency_key == key)
    row = connection.execute(query.where(*mine)).first()
    if row is None:
        return None
    board = from_row(row)
    if row.wish != body:
        raise IdempotencyMismatch(
            f"the idempotency key {key[:64]!r} was used for board {board.id}, which is different.",
            "Use a new key for a new board.",
        )
    return board


def _same_selection(connection: sa.Connection, wanted: Wanted) -> BoardRecord | None:
    query = sa.select(_board).where(
        _board.c.live == 1,
        _board.c.owner == wanted.owner,
        _board.c.selection == key_of(wanted),
        _board.c.state.in_([str(state) for state in _SHAREABLE]),
    )
    if wanted.name is not None:
        query = query.where(_board.c.name == wanted.name)
    row = connection.execute(query.order_by(*_newest_first)).first()
    return None if row is None else from_row(row)


def _replace(connection: sa.Connection, before: BoardRecord, after: BoardRecord) -> None:
    values = to_row(after)
    if after.state is not State.PENDING:
        del values["last_request"]  # noted on the side; only a new start forgets it
    try:
        done = connection.execute(sa.update(_board).where(*_as_seen(before)).values(values))
    except exc.IntegrityError as error:
        raise _taken(after.owner, after.name) from error
    if not done.rowcount:
        raise _changed_meanwhile(connection, before)


def _as_seen(record: BoardRecord) -> tuple[sa.ColumnElement[bool], ...]:
    return (_board.c.id == record.id, _board.c.version == record.version)


def _changed_meanwhile(connection: sa.Connection, record: BoardRecord) -> Conflict | NotFound:
    state = connection.scalar(sa.select(_board.c.state).where(_board.c.id == record.id))
    if state is None:
        return unknown(record.id)
    return Conflict(
        f"board {record.id} ({record.name}) was changed meanwhile and is {state} now.",
        "Look at it again, and repeat what is still to be done.",
    )


def _note(connection: sa.Connection, board: BoardRecord) -> None:
    """Add a board's state to its history."""
    connection.execute(
        sa.insert(schema.change).values(
            board=board.id,
            version=board.version,
            attempt=board.attempt,
            state=str(board.state),
            reason=board.reason,
            at=board.changed,
        )
    )


def _visible(seen_by: str | None) -> list[sa.ColumnElement[bool]]:
    if seen_by is None:
        return []
    return [sa.or_(_board.c.owner == seen_by, _board.c.visibility == str(Visibility.TEAM))]


def _contains(text: str) -> sa.ColumnElement[bool]:
    columns = (_board.c.id, _board.c.name, _board.c.title, _board.c.selectors, _board.c.sources)
    lowered = text.lower()
    return sa.or_(*(sa.func.lower(column).contains(lowered, autoescape=True) for column in columns))


def _taken(owner: str, name: str) -> NameTaken:
    return NameTaken(
        f"{owner} has a live board named {name!r}.", "Choose another name, or stop that board."
    )
