"""The hub's database: migrations, tables, rows and transactions on SQLite or PostgreSQL.

A table's columns derive from the dataclass of its rows. A migration is SQL that both databases
accept; a released one never changes. Callers see only typed errors: `DatabaseUnavailable` if a
retry may succeed, `BadDatabase` if not.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields
from enum import StrEnum
from operator import itemgetter
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import quote

from aboard.boards.model import BadDatabase, DatabaseUnavailable, new_id
from aboard.system import file_lock, make_private, requires

with requires("sqlalchemy"):
    import sqlalchemy as sa
    from sqlalchemy import exc, pool

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE board (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            owner TEXT NOT NULL,
            state TEXT NOT NULL,
            live INTEGER NOT NULL,
            reason TEXT NOT NULL,
            changed DOUBLE PRECISION NOT NULL,
            created DOUBLE PRECISION NOT NULL,
            started DOUBLE PRECISION,
            ended DOUBLE PRECISION,
            selectors TEXT NOT NULL,
            sources TEXT NOT NULL,
            selection TEXT NOT NULL,
            template TEXT NOT NULL,
            title TEXT NOT NULL,
            engine TEXT NOT NULL,
            runs_on TEXT NOT NULL,
            memory BIGINT NOT NULL,
            timeout DOUBLE PRECISION NOT NULL,
            idle_timeout DOUBLE PRECISION NOT NULL,
            expires DOUBLE PRECISION,
            last_request DOUBLE PRECISION,
            handle TEXT,
            visibility TEXT NOT NULL,
            version BIGINT NOT NULL,
            attempt BIGINT NOT NULL,
            outcome TEXT NOT NULL
        )
        """,
        "CREATE UNIQUE INDEX board_name ON board (owner, name) WHERE live = 1",
        "CREATE INDEX board_live ON board (owner, selection) WHERE live = 1",
        "CREATE INDEX board_created ON board (created, id)",
        """
        CREATE TABLE change (
            board TEXT NOT NULL REFERENCES board (id) ON DELETE CASCADE,
            version BIGINT NOT NULL,
            attempt BIGINT NOT NULL,
            state TEXT NOT NULL,
            reason TEXT NOT NULL,
            at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (board, version)
        )
        """,
        """
        CREATE TABLE creation (
            owner TEXT NOT NULL,
            idempotency_key TEXT NOT NULL,
            body TEXT NOT NULL,
            board TEXT NOT NULL REFERENCES board (id) ON DELETE CASCADE,
            at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (owner, idempotency_key)
        )
        """,
        "CREATE INDEX creation_board ON creation (board)",
        """
        CREATE TABLE account (
            name TEXT PRIMARY KEY,
            role TEXT NOT NULL,
            password TEXT,
            created DOUBLE PRECISION NOT NULL,
            removed DOUBLE PRECISION
        )
        """,
        """
        CREATE TABLE token (
            id TEXT PRIMARY KEY,
            account TEXT NOT NULL REFERENCES account (name) ON DELETE CASCADE,
            name TEXT NOT NULL,
            prefix TEXT NOT NULL,
            digest TEXT NOT NULL UNIQUE,
            created DOUBLE PRECISION NOT NULL,
            expires DOUBLE PRECISION,
            revoked DOUBLE PRECISION,
            last_used DOUBLE PRECISION
        )
        """,
        "CREATE INDEX token_account ON token (account)",
        """
        CREATE TABLE visit (
            id TEXT PRIMARY KEY,
            account TEXT NOT NULL REFERENCES account (name) ON DELETE CASCADE,
            digest TEXT NOT NULL UNIQUE,
            created DOUBLE PRECISION NOT NULL,
            expires DOUBLE PRECISION NOT NULL
        )
        """,
        "CREATE INDEX visit_account ON visit (account)",
        """
        CREATE TABLE share (
            id TEXT PRIMARY KEY,
            board TEXT NOT NULL REFERENCES board (id) ON DELETE CASCADE,
            made_by TEXT NOT NULL REFERENCES account (name) ON DELETE CASCADE,
            digest TEXT NOT NULL UNIQUE,
            created DOUBLE PRECISION NOT NULL,
            expires DOUBLE PRECISION,
            revoked DOUBLE PRECISION
        )
        """,
        "CREATE INDEX share_board ON share (board)",
        "CREATE INDEX share_made_by ON share (made_by)",
    ),
    (
        """
        CREATE TABLE one_time_key (
            digest TEXT PRIMARY KEY,
            account TEXT NOT NULL REFERENCES account (name) ON DELETE CASCADE,
            created DOUBLE PRECISION NOT NULL,
            expires DOUBLE PRECISION NOT NULL,
            used DOUBLE PRECISION
        )
        """,
        "CREATE INDEX one_time_key_account ON one_time_key (account)",
    ),
    (
        "ALTER TABLE board ADD COLUMN cpus DOUBLE PRECISION NOT NULL DEFAULT 0",
        "ALTER TABLE board ADD COLUMN urgent BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE board ADD COLUMN lease_owner TEXT",
        "ALTER TABLE board ADD COLUMN lease_ends DOUBLE PRECISION NOT NULL DEFAULT 0",
        "ALTER TABLE board ADD COLUMN exit_code BIGINT",
        "CREATE TABLE hub (id TEXT PRIMARY KEY)",
    ),
    (
        "ALTER TABLE board ADD COLUMN question_where TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE board ADD COLUMN question_sort TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE board ADD COLUMN question_limit BIGINT NOT NULL DEFAULT 0",
    ),
    (
        "ALTER TABLE board ADD COLUMN group_by TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE board ADD COLUMN band TEXT NOT NULL DEFAULT 'std'",
        "ALTER TABLE board ADD COLUMN show TEXT NOT NULL DEFAULT 'groups'",
    ),
    (
        """
        CREATE TABLE saved_view (
            owner TEXT NOT NULL REFERENCES account (name) ON DELETE CASCADE,
            name TEXT NOT NULL,
            query TEXT NOT NULL,
            visibility TEXT NOT NULL,
            changed DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (owner, name)
        )
        """,
    ),
)

metadata = sa.MetaData()
_TYPES: dict[Any, type[sa.types.TypeEngine[Any]]] = {float: sa.Double, int: sa.BigInteger}
Row = TypeVar("Row")


class _Column(NamedTuple):
    field: str
    column: str
    kind: Any
    nullable: bool
    dump: Callable[[Any], Any] | None
    load: Callable[[Any], Any] | None


_COLUMNS: dict[type, Sequence[_Column]] = {}


def _columns(kind: type) -> Sequence[_Column]:
    if kind not in _COLUMNS:
        _COLUMNS[kind] = list(_derive_columns(kind))
    return _COLUMNS[kind]


def _derive_columns(kind: Any) -> Iterator[_Column]:
    hints = get_type_hints(kind)
    for one in fields(kind):
        about = one.metadata.get("about")
        if about is not None and not about.stored:
            continue
        hint = hints[one.name]
        nullable = NoneType in get_args(hint)
        plain = get_args(hint)[0] if nullable else hint
        dump, load = _codec(get_origin(plain) or plain)
        column = (about and about.column) or one.name
        yield _Column(one.name, column, plain, nullable, dump, load)


def _codec(kind: type) -> tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None]:
    if issubclass(kind, StrEnum):
        known = {str(one): one for one in kind}  # faster than the enum, which raises for the others
        return str, lambda text: known.get(text) or kind(text)
    if kind is tuple:
        return json.dumps, lambda text: () if text == "[]" else tuple(json.loads(text))
    return (json.dumps, json.loads) if kind is dict else (None, None)


def table(name: str, kind: type, keys: tuple[str, ...], *more: sa.Column[Any]) -> sa.Table:
    """Declare the table of a dataclass; tuples and dictionaries are stored as JSON."""
    columns: list[sa.Column[Any]] = [
        sa.Column(
            one.column,
            _TYPES.get(one.kind, sa.Text),
            nullable=one.nullable,
            primary_key=one.column in keys,
        )
        for one in _columns(kind)
    ]
    return sa.Table(name, metadata, *columns, *more)


def to_row(thing: object) -> dict[str, Any]:
    row = {}
    for name, column, _, _, dump, _ in _columns(type(thing)):
        value = getattr(thing, name)
        row[column] = value if value is None or dump is None else dump(value)
    return row


def from_row(kind: type[Row], row: sa.Row[Any]) -> Row:
    """Return the dataclass of a row, which may have more columns."""
    return from_rows(kind, [row])[0]


def from_rows(kind: type[Row], rows: Sequence[sa.Row[Any]]) -> list[Row]:
    """Return the dataclasses of rows with equal columns."""
    if not rows:
        return []
    places = {name: place for place, name in enumerate(rows[0]._fields)}
    columns = _columns(kind)
    names = [one.field for one in columns]
    pick = itemgetter(*(places[one.column] for one in columns))
    loads = [(one.field, one.load) for one in columns if one.load is not None]
    found = []
    for row in rows:
        values = dict(zip(names, pick(row), strict=True))
        for name, load in loads:
            if (value := values[name]) is not None:
                values[name] = load(value)
        found.append(kind(**values))
    return found


migration = sa.Table("migration", metadata, sa.Column("number", sa.Integer, primary_key=True))
_hub = sa.Table("hub", metadata, sa.Column("id", sa.Text, primary_key=True))

BUSY_SECONDS = 15.0
_MIGRATION_LOCK, _OWNER_LOCK = 0x41424F41, 0x41424F42
_PASSING = (exc.OperationalError, exc.InterfaceError, sqlite3.OperationalError)
_BAD_SQLITE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}


class Database:
    """A database with all migrations applied.

    `address` is a path, `sqlite:///path`, or `postgresql://user:password@host/name`. A caller
    waits up to `busy_seconds` for a connection or a lock. `id` is created with the tables; all
    hubs of a database share it.
    """

    id: str

    def __init__(
        self, address: str | os.PathLike[str], *, busy_seconds: float = BUSY_SECONDS
    ) -> None:
        url = _url(address)
        plain = url.set(drivername=url.get_backend_name())
        self.name = plain.render_as_string(hide_password=True)
        self.is_sqlite = url.get_backend_name() == "sqlite"
        with self._translated():
            if self.is_sqlite:
                path = Path(url.database or "").expanduser().absolute()
                make_private(path.parent)
                with file_lock(path.with_name(f"{path.name}.lock")):
                    self._engine = _sqlite(path, busy_seconds)
                    self._migrate()
            else:
                self._engine = _postgres(url, busy_seconds)
                self._migrate()

    def close(self) -> None:
        self._engine.dispose()

    @property
    def now(self) -> sa.ColumnElement[float]:
        """The database's clock in seconds since 1970, the same for all hubs."""
        if self.is_sqlite:
            return (sa.func.julianday("now", type_=sa.Double) - 2440587.5) * 86400.0
        return sa.cast(sa.extract("epoch", sa.func.now()), sa.Double)

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        reading = self._engine.execution_options(reads=True)
        with self._translated(), reading.begin() as connection:
            yield connection

    @contextmanager
    def write(self, *, owner: str | None = None) -> Iterator[sa.Connection]:
        """Open a transaction; with `owner`, it excludes others of the same owner."""
        with self._translated(), self._engine.begin() as connection:
            if owner is not None and not self.is_sqlite:  # SQLite has one writer anyway
                lock = sa.func.pg_advisory_xact_lock(_OWNER_LOCK, sa.func.hashtext(owner))
                connection.execute(sa.select(lock))
            yield connection

    def _migrate(self) -> None:
        try:
            with self._engine.begin() as connection:
                self._make_tables(connection)
        except BaseException:
            self.close()
            raise

    def _make_tables(self, connection: sa.Connection) -> None:
        if not self.is_sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        migration.create(connection, checkfirst=True)
        made = connection.scalar(sa.select(sa.func.max(migration.c.number))) or 0
        known = len(MIGRATIONS)
        if made > known:
            raise BadDatabase(
                f"{self.name} was used by a newer version of aboard "
                f"(schema version {made}, this version supports {known}).",
                "Upgrade aboard, or use another database.",
            )
        for number in range(made + 1, known + 1):
            for statement in MIGRATIONS[number - 1]:
                connection.exec_driver_sql(statement)
            connection.execute(sa.insert(migration).values(number=number))
        known_id = connection.scalar(sa.select(_hub.c.id))
        if known_id is None:
            known_id = new_id()
            connection.execute(sa.insert(_hub).values(id=known_id))
        self.id = known_id

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (exc.DBAPIError, sqlite3.Error) as error:
            cause = error.orig if isinstance(error, exc.DBAPIError) else error
            if getattr(cause, "sqlite_errorcode", 0) & 0xFF in _BAD_SQLITE:
                raise BadDatabase(
                    f"{self.name} is damaged or not a database: {cause}.",
                    "Restore it from a backup, or use another database.",
                ) from error
            if isinstance(error, _PASSING) or getattr(error, "connection_invalidated", False):
                raise self._unavailable(cause) from error
            raise
        except exc.TimeoutError as error:
            raise self._unavailable("all connections are in use") from error
        except OSError as error:
            raise self._unavailable(error.strerror or error) from error

    def _unavailable(self, cause: object) -> DatabaseUnavailable:
        reason = (str(cause).splitlines() or [""])[0].rstrip(" .?")
        return DatabaseUnavailable(
            f"the database {self.name} does not answer: {reason}.", "Try again when it is back."
        )


def _url(address: str | os.PathLike[str]) -> sa.URL:
    text = os.fspath(address)
    if "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        url = sa.make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        raise BadDatabase("the database address is invalid.", _ADDRESSES) from error
    if url.drivername in {"postgresql", "postgres", "postgresql+psycopg"}:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername == "sqlite" and url.database not in {None, "", ":memory:"}:
        return url
    raise BadDatabase(f"{url.drivername!r} is not a supported database.", _ADDRESSES)


_ADDRESSES = "Use a path, or postgresql://user:password@host/name"


def _sqlite(path: Path, busy_seconds: float) -> sa.Engine:
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    # Connecting never creates the file: one that was moved away would come back empty.
    uri = f"file:{quote(str(path))}?mode=rw"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    with closing(connect()) as first:
        first.execute("PRAGMA journal_mode = WAL")  # stored in the file
    engine = sa.create_engine(
        "sqlite://",
        creator=connect,
        poolclass=pool.QueuePool,
        pool_size=8,
        max_overflow=24,
        pool_timeout=busy_seconds,
    )

    @sa.event.listens_for(engine, "connect")
    def note(_: Any, record: pool.ConnectionPoolEntry) -> None:
        record.info["file"] = path.stat().st_ino

    @sa.event.listens_for(engine, "checkout")
    def check(_: Any, record: pool.ConnectionPoolEntry, __: Any) -> None:
        """Disconnect from a file that was moved or replaced: writes to it would be lost."""
        try:
            same = path.stat().st_ino == record.info["file"]
        except FileNotFoundError:
            same = False
        if not same:
            raise exc.DisconnectionError

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A transaction that reads before it writes fails if another one writes in between.
        reads = connection.get_execution_options().get("reads")
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def _postgres(url: sa.URL, busy_seconds: float) -> sa.Engine:
    try:
        import psycopg  # noqa: F401 - SQLAlchemy's message does not say what to install
    except ImportError as error:
        raise BadDatabase(
            "PostgreSQL needs the package psycopg.",
            'Install it with: pip install "aboard[postgres]"',
        ) from error
    milliseconds = max(1, int(busy_seconds * 1000))
    arguments: dict[str, Any] = {
        "connect_timeout": max(2, int(busy_seconds)),
        "tcp_user_timeout": milliseconds,
        "application_name": "aboard",
        "client_encoding": "utf8",
        "options": f"-c lock_timeout={milliseconds} -c timezone=UTC",
        "prepare_threshold": None,  # connection poolers may not support prepared statements
    }
    return sa.create_engine(
        url,
        connect_args={name: value for name, value in arguments.items() if name not in url.query},
        pool_pre_ping=True,
        pool_size=8,
        max_overflow=24,
        pool_timeout=busy_seconds,
    )
