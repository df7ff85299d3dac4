"""The boards of a hub: their records and history in the database, and the live ones in memory.

A change names the version of the board it is based on. Of two concurrent changes, one raises
`Conflict`, so that no step is taken twice. `LiveBoards` is what the hub's threads share about
boards, and `Leases` are the boards that this hub may act on. Users are left to `accounts`.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from aboard import system
from aboard.boards.accounts import Accounts, Views
from aboard.boards.database import BUSY_SECONDS, Database, from_row, from_rows, table, to_row
from aboard.boards.model import (
    FIELDS,
    LONGEST_TEXT,
    Ambiguous,
    BadValue,
    BoardRecord,
    BoardState,
    Change,
    Conflict,
    IdempotencyMismatch,
    Limits,
    NameTaken,
    NoSuchName,
    Transition,
    Visibility,
    apply,
    check_ceilings,
    check_room,
    check_text,
    checked,
    checked_changes,
    digest,
    is_plain,
    new_id,
    new_name,
    plain,
)
from aboard.system import requires

with requires("sqlalchemy"):
    import sqlalchemy as sa
    from sqlalchemy import exc

KEYS_KEPT = 7 * 86400.0  # seconds
MOST_PER_PAGE = 1000

# In these states, a request for the same selection returns the same board.
_SHAREABLE = (BoardState.PENDING, BoardState.STARTING, BoardState.RUNNING)


@dataclass(frozen=True, slots=True)
class _Creation:
    owner: str
    idempotency_key: str
    body: str
    board: str
    at: float


_board = table(
    "board",
    BoardRecord,
    ("id",),
    sa.Column("live", sa.Integer, nullable=False),  # 0 once it has ended
    sa.Column("selection", sa.Text, nullable=False),
    sa.Column("lease_owner", sa.Text),
    sa.Column("lease_ends", sa.Double, nullable=False),  # by the database's clock
)
_change = table("change", Change, ("board", "version"))
_creation = table("creation", _Creation, ("owner", "idempotency_key"))
_newest_first = (_board.c.created.desc(), _board.c.id.desc())


class Created(NamedTuple):
    board: BoardRecord
    is_new: bool


class Page(NamedTuple):
    """A page of a listing, newest first."""

    boards: list[BoardRecord]
    total: int
    next: str | None  # the `after` of the next page


class Registry:
    """The boards, users and saved views of a hub.

    Every method may raise `DatabaseUnavailable`; see `Database` for the arguments.
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
        self.views = Views(self._database, clock)

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._database.name

    @property
    def hub_id(self) -> str:
        """The id of the database, with which engines label what its hubs start."""
        return self._database.id

    def close(self) -> None:
        self._database.close()

    def check(self) -> None:
        """Raise unless the database answers."""
        with self._database.read() as connection:
            connection.execute(sa.select(sa.literal(1)))

    def create(
        self,
        draft: BoardRecord,
        *,
        new: bool = False,
        key: str | None = None,
        limits: Limits | None = None,
        begin: Transition | None = None,
    ) -> Created:
        """Store a new board, or return the live one with the same selection.

        A draft without a name gets one. With `new`, a board is created even if one with the same
        selection is live. Repeated requests with the same `key` create one board. A new board
        makes the transition `begin` at once.

        Raises:
            BadValue: a field is invalid.
            BoardLimitExceeded: the owner's limit is exceeded.
            IdempotencyMismatch: the key was used for a different board.
            NameTaken: the owner has a live board with that name.
        """
        limits = limits or Limits()
        draft = checked(draft)
        check_ceilings(draft, limits)
        if key is not None:
            check_text(key, "the idempotency key")
        given = {name: getattr(draft, name) for name, one in FIELDS.items() if one.about.create}
        body = digest([given, new])
        with self._database.write(owner=draft.owner) as connection:
            now = self._clock()
            if key is not None and (known := _find_creation(connection, draft.owner, key, body)):
                return Created(known, False)
            found = None if new else _same_selection(connection, draft)
            board = found or self._insert(connection, draft, limits, now, begin)
            if key is not None:
                old = _creation.c.at < now - KEYS_KEPT
                connection.execute(sa.delete(_creation).where(old))
                made = _Creation(draft.owner, key, body, board.id, now)
                connection.execute(sa.insert(_creation).values(to_row(made)))
        return Created(board, found is None)

    def _insert(
        self,
        connection: sa.Connection,
        draft: BoardRecord,
        limits: Limits,
        now: float,
        begin: Transition | None,
    ) -> BoardRecord:
        _check_room(connection, draft.owner, draft.on, limits)
        if draft.name:
            _check_free(connection, draft.owner, draft.name)
        name = draft.name or new_name(_LiveNames(connection, draft.owner))
        board = replace(draft, id=new_id(), name=name, created=now, changed=now)
        after = board if begin is None else apply(board, begin, now)
        # Pass parameters: `values` builds an expression for each, which takes longer than SQLite.
        connection.execute(sa.insert(_board), _row(after))
        _add_changes(connection, board, *([] if after is board else [after]))
        return after

    def get(self, board_id: str) -> BoardRecord:
        if not is_plain(board_id):
            raise no_such_board(board_id)
        with self._database.read() as connection:
            row = connection.execute(sa.select(_board).where(_board.c.id == board_id)).first()
        if row is None:
            raise no_such_board(board_id)
        return from_row(BoardRecord, row)

    def find(self, text: str, *, user: str = "", seen_by: str | None = None) -> BoardRecord:
        """Return a board by its id, its name, or a unique prefix of either.

        A full id or name takes precedence over a prefix, a live board over an ended one, and a
        board of `user` over those of others. Of ended boards with the same name, the last one is
        returned. With `seen_by`, only boards that this user owns or that the team sees count.
        """
        if not text or not is_plain(text):
            raise no_such_board(text)
        begins = [
            sa.func.substr(column, 1, len(text)) == text for column in (_board.c.id, _board.c.name)
        ]
        query = sa.select(_board).where(sa.or_(*begins), *_visible(seen_by))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(*_newest_first)).all()
        return resolve_board(text, from_rows(BoardRecord, rows), user)

    def list(
        self,
        *,
        owner: str | None = None,
        states: Collection[BoardState] = (),
        name: str | None = None,
        seen_by: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page:
        """List boards, newest first, after the cursor `after`; for `seen_by` see `find`."""
        if not 1 <= limit <= MOST_PER_PAGE:
            raise BadValue(f"limit cannot be {limit}.", f"Use 1 to {MOST_PER_PAGE}.")
        if not all(map(is_plain, filter(None, (owner, name)))):
            return Page([], 0, None)
        matching = _visible(seen_by)
        if owner is not None:
            matching.append(_board.c.owner == owner)
        if states:
            matching.append(_board.c.state.in_([str(state) for state in states]))
        if name is not None:
            matching.append(_board.c.name == name)
        query = sa.select(_board).where(*matching).order_by(*_newest_first).limit(limit + 1)
        if after is not None:
            created, board_id = position(after)
            same = sa.and_(_board.c.created == created, _board.c.id < board_id)
            query = query.where(sa.or_(_board.c.created < created, same))
        with self._database.read() as connection:
            total = connection.scalar(
                sa.select(sa.func.count()).select_from(_board).where(*matching)
            )
            boards = from_rows(BoardRecord, connection.execute(query).all())
        more = len(boards) > limit
        boards = boards[:limit]
        return Page(boards, total or 0, cursor(boards[-1]) if more else None)

    def live(self, known: Mapping[str, BoardRecord] | None = None) -> Sequence[BoardRecord]:
        """Return all live boards, oldest first; those that `known` has are not read again."""
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

    def places(self) -> set[str]:
        """Return the places where boards run or ran."""
        with self._database.read() as connection:
            return set(connection.scalars(sa.select(_board.c.runs_on).distinct()))

    def history(self, board_id: str) -> Sequence[Change]:
        if not is_plain(board_id):
            return []
        query = sa.select(_change).where(_change.c.board == board_id)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(_change.c.version)).all()
        return from_rows(Change, rows)

    def transition(
        self,
        record: BoardRecord,
        transition: Transition,
        *,
        limits: Limits | None = None,
        **changes: Any,
    ) -> BoardRecord:
        """Change the state of a board and other fields, except its name.

        `limits` are checked when an ended board restarts.

        Raises:
            IllegalTransition: its state does not allow the transition.
            Conflict: the record is not the latest version.
            NoSuchName: the board was deleted.
            BoardLimitExceeded: the owner's limit is exceeded.
            NameTaken: another live board has its name now.
        """
        reason = plain(transition.reason)[:LONGEST_TEXT]
        after = apply(record, transition._replace(reason=reason), self._clock())
        after = replace(after, **checked_changes(changes))
        revives = after.is_live and not record.is_live
        with self._database.write(owner=record.owner if revives else None) as connection:
            if revives:
                _check_room(connection, record.owner, record.on, limits or Limits())
                _check_free(connection, record.owner, record.name)
            _replace(connection, record, after)
            _add_changes(connection, after)
        return after

    def update(self, record: BoardRecord, **changes: Any) -> BoardRecord:
        """Change fields of a board that are not `About.fixed`.

        Raises:
            BadValue: a field is invalid.
            Conflict: the record is not the latest version.
            NoSuchName: the board was deleted.
            NameTaken: the owner has a live board with that name.
        """
        after = replace(record, **checked_changes(changes), version=record.version + 1)
        with self._database.write(owner=record.owner) as connection:
            if after.is_live and after.name != record.name:
                _check_free(connection, record.owner, after.name)
            _replace(connection, record, after)
        return after

    def explain(self, record: BoardRecord, reason: str, changed: float) -> BoardRecord:
        """Store why a board waits, without a change of state.

        `changed` is when it entered its state, or when its engine last made it wait.
        """
        reason = plain(reason)[:LONGEST_TEXT]
        after = replace(record, reason=reason, changed=changed, version=record.version + 1)
        with self._database.write() as connection:
            _replace(connection, record, after)
        return after

    def claim(
        self,
        boards: Collection[str],
        owner: str,
        seconds: float,
        is_dead: Callable[[str], bool] = lambda _: False,
        *,
        overdue: float = 0.0,
    ) -> set[str]:
        """Take or renew the leases of live boards that no other hub holds; return their ids.

        A lease expires after `seconds` by the database's clock, or when its owner is known to be
        dead. With `overdue`, only boards are taken that no hub has held and that have not changed
        for that many seconds.
        """
        now, held = self._database.now, _board.c.lease_owner
        found: set[str] = set()
        with self._database.write() as connection:
            owners = connection.scalars(sa.select(held).where(_board.c.live == 1).distinct())
            mine = [owner, *(one for one in owners if one and one != owner and is_dead(one))]
            free = sa.or_(held.is_(None), held.in_(mine), _board.c.lease_ends < now)
            if overdue:
                since = now - overdue
                free = sa.and_(_board.c.lease_ends < since, _board.c.changed < since)
            for some in _parts(sorted(boards)):
                among = sa.select(_board.c.id).where(_board.c.id.in_(some), _board.c.live == 1)
                # Skip locked rows: two hubs must not deadlock.
                taken = list(
                    connection.scalars(among.where(free).with_for_update(skip_locked=True))
                )
                connection.execute(
                    sa.update(_board)
                    .where(_board.c.id.in_(taken))
                    .values(lease_owner=owner, lease_ends=now + seconds)
                )
                found.update(taken)
        return found

    def release(self, owner: str) -> None:
        """Release all leases of a hub, so that another one takes over its boards at once."""
        with self._database.write() as connection:
            mine = _board.c.lease_owner == owner
            connection.execute(sa.update(_board).where(mine).values(lease_owner=None))

    def touch(self, requests: Mapping[str, float]) -> None:
        """Store when running boards were last used; this is not a new version."""
        if not requests:
            return
        last = _board.c.last_request
        statement = (
            sa.update(_board)
            .where(_board.c.id == sa.bindparam("board"), _board.c.state == str(BoardState.RUNNING))
            .where(sa.or_(last.is_(None), last < sa.bindparam("at", type_=sa.Double)))
            .values(last_request=sa.bindparam("at", type_=sa.Double))
        )
        # In a fixed order: two hubs must not deadlock.
        values = [{"board": board, "at": at} for board, at in sorted(requests.items())]
        with self._database.write() as connection:
            connection.execute(statement, values)

    def delete(self, record: BoardRecord) -> None:
        """Delete an ended board with its history and its links."""
        if record.is_live:
            hint = f"Stop it first: aboard stop {record.id}"
            if record.state is BoardState.STOPPING:
                hint = f"Try again when it has stopped, or now: aboard delete {record.id} --force"
            raise Conflict(f"board {record.id} ({record.name}) is {record.state}.", hint)
        with self._database.write() as connection:
            done = connection.execute(sa.delete(_board).where(*_same_version(record)))
            if not done.rowcount:
                raise _conflict(connection, record)


def _live(connection: sa.Connection, owner: str | None = None) -> list[BoardRecord]:
    query = sa.select(_board).where(_board.c.live == 1)
    if owner is not None:
        query = query.where(_board.c.owner == owner)
    query = query.order_by(_board.c.created, _board.c.id)
    return from_rows(BoardRecord, connection.execute(query).all())


def _used_at(board: BoardRecord, at: float | None) -> BoardRecord:
    return board if board.last_request == at else replace(board, last_request=at)


def _by_ids(connection: sa.Connection, ids: Sequence[str]) -> list[BoardRecord]:
    queries = (sa.select(_board).where(_board.c.id.in_(part)) for part in _parts(ids))
    rows = [row for query in queries for row in connection.execute(query)]
    return from_rows(BoardRecord, rows)


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + 500] for start in range(0, len(ids), 500))


def _check_room(connection: sa.Connection, owner: str, on: str, limits: Limits) -> None:
    if limits.most(on) is not None:
        check_room(owner, on, _live(connection, owner), limits)


class _LiveNames(Container[str]):
    """The names of an owner's live boards, looked up one by one because there may be many."""

    def __init__(self, connection: sa.Connection, owner: str) -> None:
        self._connection = connection
        self._owner = owner

    def __contains__(self, name: object) -> bool:
        mine = (_board.c.live == 1, _board.c.owner == self._owner, _board.c.name == name)
        return self._connection.execute(sa.select(_board.c.id).where(*mine)).first() is not None


def _check_free(connection: sa.Connection, owner: str, name: str) -> None:
    if name in _LiveNames(connection, owner):
        raise _name_taken(owner, name)


def _find_creation(
    connection: sa.Connection, owner: str, key: str, body: str
) -> BoardRecord | None:
    query = sa.select(_creation.c.body.label("request"), _board).join_from(
        _creation, _board, _creation.c.board == _board.c.id
    )
    mine = (_creation.c.owner == owner, _creation.c.idempotency_key == key)
    row = connection.execute(query.where(*mine)).first()
    if row is None:
        return None
    board = from_row(BoardRecord, row)
    if row.request != body:
        raise IdempotencyMismatch(
            f"the idempotency key {key[:64]!r} was used for a different board, {board.id}.",
            "Use a new key for a new board.",
        )
    return board


def _same_selection(connection: sa.Connection, draft: BoardRecord) -> BoardRecord | None:
    query = sa.select(_board).where(
        _board.c.live == 1,
        _board.c.owner == draft.owner,
        _board.c.selection == draft.selection,
        _board.c.state.in_([str(state) for state in _SHAREABLE]),
    )
    if draft.name:
        query = query.where(_board.c.name == draft.name)
    row = connection.execute(query.order_by(*_newest_first)).first()
    return None if row is None else from_row(BoardRecord, row)


def _replace(connection: sa.Connection, before: BoardRecord, after: BoardRecord) -> None:
    values = _row(after)
    if after.state is not BoardState.PENDING:
        del values["last_request"]  # `touch` stores it; only a restart resets it
    try:
        done = connection.execute(sa.update(_board).where(*_same_version(before)).values(values))
    except exc.IntegrityError as error:
        raise _name_taken(after.owner, after.name) from error
    if not done.rowcount:
        raise _conflict(connection, before)


def _same_version(record: BoardRecord) -> tuple[sa.ColumnElement[bool], ...]:
    return (_board.c.id == record.id, _board.c.version == record.version)


def _conflict(connection: sa.Connection, record: BoardRecord) -> Conflict | NoSuchName:
    state = connection.scalar(sa.select(_board.c.state).where(_board.c.id == record.id))
    if state is None:
        return no_such_board(record.id)
    return Conflict(
        f"board {record.id} ({record.name}) was changed by another request and is now {state}.",
        "Read it again, then repeat the change.",
    )


def _add_changes(connection: sa.Connection, *boards: BoardRecord) -> None:
    entries = [
        Change(one.id, one.version, one.attempt, one.state, one.reason, one.changed)
        for one in boards
    ]
    connection.execute(sa.insert(_change), list(map(to_row, entries)))


def _row(board: BoardRecord) -> dict[str, Any]:
    return {**to_row(board), "selection": board.selection, "live": int(board.is_live)}


def _visible(seen_by: str | None) -> list[sa.ColumnElement[bool]]:
    if seen_by is None:
        return []
    return [sa.or_(_board.c.owner == seen_by, _board.c.visibility == str(Visibility.TEAM))]


def _name_taken(owner: str, name: str) -> NameTaken:
    return NameTaken(
        f"{owner} already has a live board named {name!r}.",
        "Choose another name, or stop that board.",
    )


def resolve_board(text: str, boards: Sequence[BoardRecord], user: str) -> BoardRecord:
    """Return the board that a user means; all `boards` match the prefix, newest first."""
    for board in boards:
        if board.id == text:
            return board
    named = [board for board in boards if board.name == text]
    candidates = named or boards
    for preferred in (
        [board for board in candidates if board.is_live and board.owner == user],
        [board for board in candidates if board.is_live],
        [board for board in candidates if board.owner == user],
        candidates,
    ):
        if not preferred:
            continue
        is_one = len(preferred) == 1 or (
            bool(named) and len({(board.owner, board.is_live) for board in preferred}) == 1
        )
        if is_one:
            return preferred[0]
        raise Ambiguous(text, preferred)
    raise no_such_board(text)


def cursor(board: BoardRecord) -> str:
    text = json.dumps([board.created, board.id])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def position(cursor: str) -> tuple[float, str]:
    """Return the creation time and id of the last board before a cursor."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        created, board_id = json.loads(text)
        if isinstance(created, float) and isinstance(board_id, str) and is_plain(board_id):
            return created, board_id
    except (binascii.Error, TypeError, ValueError):
        pass
    raise BadValue("invalid cursor.", "Use the cursor of a page, or none for the first page.")


def no_such_board(text: str) -> NoSuchName:
    return NoSuchName(f"board {text[:80]!r} not found.", "List them: aboard list --all")


# Live boards in memory, and leases.

_GAP_POLLS, _GAP_SECONDS = 5, 10.0


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """Consecutive failed probes of one start of a board."""

    attempt: int
    seconds: float
    last: float
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    boards: Mapping[str, BoardRecord]
    at: float
    problem: str  # why the boards may be out of date


class LiveBoards:
    """The live boards in memory, which serve requests even while the database is down.

    The only owner of the state that the hub's threads share about boards: the records, when boards
    were last used, failed probes, and the stops that were sent. Every method takes the lock. The
    state of a board is dropped when the board has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boards: dict[str, BoardRecord] = {}
        self._changed: dict[str, BoardRecord] = {}
        self._used: dict[str, float] = {}
        self._unsaved: dict[str, float] = {}
        self._unanswered: dict[str, _Unanswered] = {}
        self._stops_sent: set[tuple[str, int]] = set()
        self._at = 0.0
        self._problem = "the boards have not been read yet."

    def get(self, board_id: str) -> BoardRecord | None:
        with self._lock:
            return self._boards.get(board_id)

    def snapshot(self) -> Snapshot:
        with self._lock:
            return Snapshot(MappingProxyType(dict(self._boards)), self._at, self._problem)

    def update(self, record: BoardRecord) -> None:
        """Store a board; a listing that is being read from the database does not overwrite it."""
        with self._lock:
            self._changed[record.id] = record
            _merge(self._boards, record)

    def begin_read(self) -> Mapping[str, BoardRecord]:
        with self._lock:
            self._changed = {}
            return dict(self._boards)

    def end_read(self, live: Iterable[BoardRecord], now: float) -> None:
        """Store a listing from the database, except for boards that changed since `begin_read`."""
        boards = {record.id: record for record in live}
        with self._lock:
            for record in self._changed.values():
                _merge(boards, record)
            self._boards, self._at, self._problem = boards, now, ""
            for known in (self._used, self._unanswered):
                for gone in known.keys() - boards.keys():
                    del known[gone]
            self._stops_sent = {stop for stop in self._stops_sent if stop[0] in boards}

    def read_failed(self, problem: str) -> None:
        with self._lock:
            self._problem = problem

    def touch(self, board_id: str, now: float) -> None:
        with self._lock:
            self._used[board_id] = self._unsaved[board_id] = now

    def last_request(self, record: BoardRecord) -> float | None:
        with self._lock:
            times = (self._used.get(record.id), record.last_request)
        return max((at for at in times if at is not None), default=None)

    def unsaved(self) -> dict[str, float]:
        with self._lock:
            return dict(self._unsaved)

    def saved(self, used: Mapping[str, float]) -> None:
        with self._lock:
            for board_id, at in used.items():
                if self._unsaved.get(board_id) == at:
                    del self._unsaved[board_id]

    def answered(self, record: BoardRecord) -> None:
        with self._lock:
            self._unanswered.pop(record.id, None)

    def unanswered(
        self, record: BoardRecord, began: float, now: float, poll: float, reason: str
    ) -> None:
        """Record a failed probe and its reason.

        Only observed time counts. After a gap between probes, for example because the database was
        down or the machine slept, counting starts again, and one probe counts at most as long as
        such a gap. So a clock that jumps makes no board unhealthy.
        """
        gap = max(_GAP_POLLS * poll, _GAP_SECONDS)
        seconds = min(max(now - began, 0.0), gap)
        with self._lock:
            before = self._unanswered.get(record.id)
            if before is not None and before.attempt == record.attempt:
                between = began - before.last
                if 0.0 <= between <= gap:
                    seconds += before.seconds + between
            self._unanswered[record.id] = _Unanswered(record.attempt, seconds, now, reason)

    def time_unanswered(self, record: BoardRecord) -> tuple[float, str]:
        """Return for how many seconds a board has not answered, and why."""
        with self._lock:
            known = self._unanswered.get(record.id)
        if known is None or known.attempt != record.attempt:
            return 0.0, ""
        return known.seconds, known.reason

    def stop_sent(self, record: BoardRecord) -> None:
        with self._lock:
            self._stops_sent.add((record.id, record.attempt))

    def was_stop_sent(self, record: BoardRecord) -> bool:
        with self._lock:
            return (record.id, record.attempt) in self._stops_sent


def _merge(boards: dict[str, BoardRecord], record: BoardRecord) -> None:
    known = boards.get(record.id)
    if known is not None and known.version > record.version:
        return
    if record.is_live:
        boards[record.id] = record
    else:
        boards.pop(record.id, None)


class Leases:
    """The isolated boards that this hub may act on.

    If several hubs share a database, one of them acts on each board and renews its lease. When a
    lease expires by the database's clock, another hub takes the board over. A hub that cannot
    renew a lease stops acting a little earlier.
    """

    def __init__(self, registry: Registry, owner: str, seconds: float) -> None:
        self._registry = registry
        self._owner = owner
        self._seconds = seconds
        self._lock = threading.Lock()
        self._held: dict[str, float] = {}  # expiry by `system.seconds_since_boot`

    def renew(self, boards: Collection[str]) -> None:
        """Take or renew the leases of boards that are due, in one statement."""
        now = system.seconds_since_boot()
        with self._lock:
            self._held = {board: ends for board, ends in self._held.items() if board in boards}
            due = [one for one in boards if self._held.get(one, 0.0) - now < self._seconds / 2]
        if not due:
            return
        taken = self._registry.claim(due, self._owner, self._seconds, _is_dead)
        with self._lock:
            # The lease began after `now`; this hub treats it as expired before the others do.
            self._held.update(dict.fromkeys(taken, now + self._seconds * 4 / 5))

    def holds(self, record: BoardRecord) -> bool:
        with self._lock:
            return self._held.get(record.id, 0.0) > system.seconds_since_boot()

    def take_unreached(self, boards: Collection[str], seconds: float) -> Collection[str]:
        """Take the boards that no hub has held for this long."""
        return self._registry.claim(boards, self._owner, self._seconds, overdue=seconds)

    def release(self) -> None:
        with self._lock:
            held, self._held = self._held, {}
        if held:
            self._registry.release(self._owner)


def _is_dead(owner: str) -> bool:
    try:
        return system.has_ended(owner)
    except ValueError:
        return False
