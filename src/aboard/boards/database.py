"""A SQLite file or a PostgreSQL database, opened, migrated, and spoken to in transactions.

Callers see typed errors only: `DatabaseUnavailable` for what may pass, `BadDatabase` for what
will not. A connection that died is replaced by itself. What the tables mean is left to others.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import exc, pool

from aboard.boards import schema
from aboard.boards.errors import BadDatabase, DatabaseUnavailable
from aboard.storage.place import make_private

BUSY_SECONDS = 15.0
_MIGRATION_LOCK, _OWNER_LOCK = 0x41424F41, 0x41424F42
_PASSING = (exc.OperationalError, exc.InterfaceError, sqlite3.OperationalError)
_BAD_SQLITE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}


class Database:
    """A database, migrated to the tables of `schema`.

    Args:
        address: a path or `sqlite:///path`, or `postgresql://user:password@host/name`.
        busy_seconds: how long to wait for a connection, and for a lock that others hold.

    Raises:
        DatabaseUnavailable: it cannot be reached.
        BadDatabase: it is of a newer version, or not ours.
    """

    def __init__(
        self, address: str | os.PathLike[str], *, busy_seconds: float = BUSY_SECONDS
    ) -> None:
        url = _url(address)
        plain = url.set(drivername=url.get_backend_name())
        self.name = plain.render_as_string(hide_password=True)
        """The address without its password."""
        self.is_sqlite = url.get_backend_name() == "sqlite"
        with self._translated():
            if self.is_sqlite:
                path = Path(url.database or "").expanduser().absolute()
                with _alone(path):
                    self._engine = _sqlite(path, busy_seconds)
                    self._migrate()
            else:
                self._engine = _postgres(url, busy_seconds)
                self._migrate()

    def close(self) -> None:
        """Close every connection that is not in use."""
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Lend a connection for reading."""
        reading = self._engine.execution_options(reads=True)
        with self._translated(), reading.begin() as connection:
            yield connection

    @contextmanager
    def write(self, *, owner: str | None = None) -> Iterator[sa.Connection]:
        """Lend a connection for one transaction.

        Args:
            owner: nobody else who names the same owner writes meanwhile.
        """
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
        schema.migration.create(connection, checkfirst=True)
        made = connection.scalar(sa.select(sa.func.max(schema.migration.c.number))) or 0
        known = len(schema.MIGRATIONS)
        if made > known:
            raise BadDatabase(
                f"{self.name} was used by a newer version of aboard "
                f"(its tables are number {made}, this version knows {known}).",
                "Upgrade aboard, or use another database.",
            )
        for number in range(made + 1, known + 1):
            for statement in schema.MIGRATIONS[number - 1]:
                connection.exec_driver_sql(statement)
            connection.execute(sa.insert(schema.migration).values(number=number))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (exc.DBAPIError, sqlite3.Error) as error:
            cause = error.orig if isinstance(error, exc.DBAPIError) else error
            if getattr(cause, "sqlite_errorcode", 0) & 0xFF in _BAD_SQLITE:
                raise BadDatabase(
                    f"{self.name} is not a sound database: {cause}.",
                    "Restore it from a backup, or use another.",
                ) from error
            if isinstance(error, _PASSING) or getattr(error, "connection_invalidated", False):
                raise self._unavailable(cause) from error
            raise
        except exc.TimeoutError as error:
            raise self._unavailable("all connections are in use") from error
        except OSError as error:
            raise self._unavailable(error.strerror or error) from error

    def _unavailable(self, cause: object) -> DatabaseUnavailable:
        said = (str(cause).splitlines() or [""])[0].rstrip(" .?")
        return DatabaseUnavailable(
            f"the database {self.name} does not answer: {said}.", "Try again when it is back."
        )


def _url(address: str | os.PathLike[str]) -> sa.URL:
    text = os.fspath(address)
    if "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        url = sa.make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        raise BadDatabase("the address of the database cannot be read.", _ADDRESSES) from error
    if url.drivername in {"postgresql", "postgres", "postgresql+psycopg"}:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername == "sqlite" and url.database not in {None, "", ":memory:"}:
        return url
    raise BadDatabase(f"{url.drivername!r} is no database that can be used.", _ADDRESSES)


_ADDRESSES = "Use a path, or postgresql://user:password@host/name"


def _sqlite(path: Path, busy_seconds: float) -> sa.Engine:
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    # Never created by connecting: a file that was moved away would come back empty.
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
        first.execute("PRAGMA journal_mode = WAL")  # stays with the file
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
        """Leave a file that was moved or replaced: what is written to it would be lost."""
        try:
            same = path.stat().st_ino == record.info["file"]
        except FileNotFoundError:
            same = False
        if not same:
            raise exc.DisconnectionError

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A write that begins as a read can fail half-way, when another has written in between.
        reads = connection.get_execution_options().get("reads")
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def _postgres(url: sa.URL, busy_seconds: float) -> sa.Engine:
    try:
        import psycopg  # noqa: F401 - SQLAlchemy's own message does not say what to install
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
        "prepare_threshold": None,  # poolers between us and the server may not know them
    }
    return sa.create_engine(
        url,
        connect_args={name: value for name, value in arguments.items() if name not in url.query},
        pool_pre_ping=True,
        pool_size=8,
        max_overflow=24,
        pool_timeout=busy_seconds,
    )


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from creating or migrating the same file meanwhile."""
    make_private(path.parent)
    lock = path.with_name(f"{path.name}.lock")
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
