"""The tables of the index, and how connections to it are opened.

The file has the version of its schema in its name and inside. An index that is older, newer or
damaged is replaced: all its content can be read again from the event files.
"""

from __future__ import annotations

import os
import re
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from aboard.system import file_lock, make_private

VERSION = 7
FILE_NAME = f"index-{VERSION}.db"
_APPLICATION = 0x41424F41
_BUSY_SECONDS = 60.0

SCALARS, RECORDS = 0, 1  # the two forms of a segment

CHUNK_BITS = 24  # a chunk's id is its segment's id shifted by this, plus its place in it

_TABLES = """
-- An event file, and how far it has been read.
CREATE TABLE file (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    directory TEXT NOT NULL,
    name TEXT NOT NULL,
    size INTEGER NOT NULL,          -- when it was last read to its end
    version TEXT NOT NULL,          -- likewise; empty while a first reading is under way
    offset INTEGER NOT NULL,        -- everything before this is in the index
    tail INTEGER NOT NULL,          -- checksum of the bytes just before the offset
    head INTEGER NOT NULL,          -- digest of all records before it; see Scanner.digest
    damage_start INTEGER NOT NULL,  -- where the damage began that reaches the offset, or -1
    events INTEGER NOT NULL,
    first_wall REAL,                -- of its first event
    attempt INTEGER NOT NULL,       -- at its run; 0 where the order of the names tells enough
    UNIQUE (directory, name)
);

-- Counts what happens to files, from a number that no other index begins with.
CREATE TABLE stamp (count INTEGER NOT NULL);
INSERT INTO stamp VALUES (random() / 2);
CREATE TRIGGER file_added AFTER INSERT ON file BEGIN UPDATE stamp SET count = count + 1; END;
CREATE TRIGGER file_changed AFTER UPDATE ON file BEGIN UPDATE stamp SET count = count + 1; END;
CREATE TRIGGER file_removed AFTER DELETE ON file BEGIN UPDATE stamp SET count = count + 1; END;

-- The values of one tag in one file: scalars (form 0) or pointers to records (form 1).
CREATE TABLE segment (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: whoever holds one may read late
    file INTEGER NOT NULL REFERENCES file (id),
    tag TEXT NOT NULL,
    form INTEGER NOT NULL,
    origin INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    metadata BLOB,
    count INTEGER NOT NULL,
    min_step INTEGER NOT NULL,
    max_step INTEGER NOT NULL,
    increasing INTEGER NOT NULL,    -- whether every step is greater than the one before
    last_step INTEGER NOT NULL,
    max_wall REAL NOT NULL,
    last_wall,                      -- null for a NaN; in a REAL column -0.0 would become 0.0
    last_value,                     -- likewise
    rows INTEGER NOT NULL,          -- the largest first dimension of its tensors
    -- Of scalars that no restart in the file made void: how many, and what they add up to. All
    -- null for records, and where a restart in the middle left some; see series.py.
    kept INTEGER,
    first_wall,                     -- null for a NaN, too; and so on
    low,
    low_step INTEGER,
    high,
    high_step INTEGER,
    total,
    nans INTEGER,
    infinities INTEGER,
    UNIQUE (file, tag, form)
);

-- Ids begin with numbers that no other index begins with, too: whoever holds an id of an index
-- that was replaced finds nothing, and not what is another's.
INSERT INTO sqlite_sequence VALUES ('file', abs(random() % 0x4000000000));
INSERT INTO sqlite_sequence VALUES ('segment', abs(random() % 0x4000000000));

-- Up to 4,096 values of a segment as array blobs; see series.py. What is small comes first: it is
-- read without the rest.
CREATE TABLE chunk (
    id INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,
    sketch BLOB NOT NULL,           -- empty for few values, and for records; see events/scanner.py
    steps BLOB NOT NULL,
    walls BLOB NOT NULL,
    payload BLOB NOT NULL
);

-- Bytes in which no good record was found.
CREATE TABLE damage (
    file INTEGER NOT NULL REFERENCES file (id),
    offset INTEGER NOT NULL,
    length INTEGER NOT NULL,
    PRIMARY KEY (file, offset)
) WITHOUT ROWID;

-- A run below a root, as its record says; see catalog.py.
CREATE TABLE run (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- its row in columns; never used again
    root TEXT NOT NULL,
    directory TEXT NOT NULL,
    version TEXT,                   -- of its run.json; none for a directory without one
    experiment TEXT NOT NULL,
    name TEXT NOT NULL,
    recorded_state TEXT NOT NULL,   -- empty where nothing is recorded
    workspace TEXT NOT NULL,
    job TEXT NOT NULL,
    host TEXT NOT NULL,
    user TEXT NOT NULL,
    git_commit TEXT NOT NULL,
    reason TEXT NOT NULL,
    exit_code INTEGER,
    created REAL NOT NULL,
    started REAL NOT NULL,
    ended REAL,
    heartbeat REAL NOT NULL,
    heartbeat_secs REAL NOT NULL,
    hparams_json TEXT NOT NULL,
    tags_json TEXT NOT NULL,
    metrics_json TEXT NOT NULL,
    attempt_jobs_json TEXT NOT NULL,
    problem TEXT NOT NULL,          -- why its record cannot be understood
    seen REAL NOT NULL,             -- when a heartbeat came in, by the clock of this machine
    linked INTEGER NOT NULL,        -- whether a link below its root leads to it
    added INTEGER NOT NULL,         -- the number of the change that added it
    changed INTEGER NOT NULL,       -- and of the last one that made it what it is
    UNIQUE (root, directory)
);
CREATE INDEX run_changed ON run (id >> 14, changed);
CREATE INDEX run_label ON run (experiment, name);

-- A run that was known, and the number of the change that removed it.
CREATE TABLE gone (
    id INTEGER PRIMARY KEY,
    root TEXT NOT NULL,
    directory TEXT NOT NULL,
    changed INTEGER NOT NULL
);
CREATE INDEX gone_changed ON gone (id >> 14, changed);

-- The number of the last change to runs, and which index it counts in.
CREATE TABLE catalog (epoch INTEGER NOT NULL, change INTEGER NOT NULL);
INSERT INTO catalog VALUES (random(), 0);

-- 16,384 rows of a column over all runs, and the roots of these; see columns.py. The order of all
-- runs is one of chunk -1.
CREATE TABLE run_column (
    name TEXT NOT NULL,
    chunk INTEGER NOT NULL,
    roots TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (name, chunk)
);
CREATE INDEX run_column_roots ON run_column (name, roots);

-- Which rows of a chunk have a value in a column, a bit for each: few enough to hold them all.
CREATE TABLE run_presence (
    name TEXT NOT NULL,
    chunk INTEGER NOT NULL,
    bits BLOB NOT NULL,
    PRIMARY KEY (name, chunk)
) WITHOUT ROWID;

-- The change up to which the columns of a chunk hold what its runs do.
CREATE TABLE fold (
    chunk INTEGER PRIMARY KEY,
    built INTEGER NOT NULL
);

-- A root whose runs are known, and the last change to them.
CREATE TABLE root (
    uri TEXT PRIMARY KEY,
    changes INTEGER NOT NULL
) WITHOUT ROWID;

-- What a directory below a root on a disk held; see storage/folders.py.
CREATE TABLE folder (
    root TEXT NOT NULL,
    directory TEXT NOT NULL,
    mark TEXT NOT NULL,
    files TEXT NOT NULL,            -- those that can make a run
    below TEXT NOT NULL,
    PRIMARY KEY (root, directory)
) WITHOUT ROWID;

-- Requests to a bucket by hour since 1970 and kind; see traffic.py.
CREATE TABLE traffic (
    bucket TEXT NOT NULL,
    hour INTEGER NOT NULL,
    kind TEXT NOT NULL,
    requests INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (bucket, hour, kind)
) WITHOUT ROWID;
"""

# Derived from the text of the schema, so that every change to it, even of a comment, counts.
_MARKS = {"application_id": _APPLICATION, "user_version": zlib.crc32(_TABLES.encode()) >> 1}
_CREATE = "".join(f"PRAGMA {name} = {mark};" for name, mark in _MARKS.items()) + _TABLES

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_UNWRITABLE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
}


class Connection(sqlite3.Connection):
    """A connection to an index; it remembers what the store last knew of growing files.

    A connection does, since the next one may be to an index that has replaced this one.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.growing_files: dict[int, Any] = {}


def is_damage(error: sqlite3.Error) -> bool:
    return _code(error) in _DAMAGED


def is_full(error: BaseException) -> bool:
    """Return whether an error means that the file of the index cannot be written."""
    return _code(error) in _UNWRITABLE


def has_no_room(error: BaseException) -> bool:
    return _code(error) == sqlite3.SQLITE_FULL


def _code(error: BaseException) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def open_memory() -> Connection:
    connection = Connection(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(_CREATE)
    return connection


def open_file(path: Path) -> Connection:
    """Open the index at `path`; create or replace it if needed."""
    make_private(path.parent)
    with file_lock(path.with_suffix(".lock")):
        if path.exists():
            try:
                connection = _connect(path)
                if _is_ours(connection):
                    return connection
                connection.close()
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
            remove(path)
        return _create(path)


def reopen(path: Path) -> tuple[Connection, bool]:
    """Open another connection; return it, and whether a new index had to be created."""
    if path.exists():
        connection = _connect(path)
        if _is_ours(connection):
            return connection, False
        connection.close()
    return open_file(path), True


def open_to_read(path: Path) -> Connection:
    """Open an existing index for queries only."""
    if not path.exists():
        raise sqlite3.OperationalError(f"index {path} not found")
    connection = _connect(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def remove(path: Path) -> None:
    """Delete an index; processes that have it open keep their copy."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def size(path: Path) -> int:
    total = 0
    for suffix in ("", "-wal"):
        with suppress(FileNotFoundError):
            total += Path(f"{path}{suffix}").stat().st_size
    return total


def discard_damaged(path: Path) -> None:
    """Delete a damaged index, unless another process has already replaced it."""
    with file_lock(path.with_suffix(".lock")):
        try:
            connection = _connect(path)
            try:
                sound = _is_ours(connection) and connection.execute(
                    "PRAGMA quick_check(1)"
                ).fetchone() == ("ok",)
            finally:
                connection.close()
        except sqlite3.DatabaseError:
            sound = False
        if not sound:
            remove(path)


def _connect(path: Path) -> Connection:
    connection = Connection(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA synchronous = NORMAL")
    # Pages of 16 KiB: a log of 32 MB, which stays in the page cache and is used again.
    connection.execute("PRAGMA wal_autocheckpoint = 2000")
    return _with_small_cache(connection)


def _with_small_cache(connection: Connection) -> Connection:
    connection.execute("PRAGMA cache_size = -2048")
    return connection


def _is_ours(connection: sqlite3.Connection) -> bool:
    marks = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _MARKS]
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    return marks == list(_MARKS.values()) and tables >= _TABLE_NAMES


_TABLE_NAMES = set(re.findall(r"CREATE TABLE (\w+)", _TABLES))


def _is_an_index(path: Path) -> bool:
    """Return whether a file is an index of any version, without opening it as a database."""
    try:
        with path.open("rb") as file:
            start = file.read(72)
    except OSError:
        return False
    return start.startswith(b"SQLite format 3\0") and start[68:] == _APPLICATION.to_bytes(4, "big")


def _create(path: Path) -> Connection:
    for older in path.parent.glob("index-*.db"):
        number = re.fullmatch(r"index-(\d+)\.db", older.name)
        if number and int(number[1]) < VERSION and _is_an_index(older):
            remove(older)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = _connect(path)
    connection.execute("PRAGMA page_size = 16384")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(f"BEGIN IMMEDIATE;{_CREATE}COMMIT;")
    return _with_small_cache(connection)  # a new page size undoes it


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


_ROWS_AT_ONCE = 32


def insert_rows(
    connection: sqlite3.Connection, into: str, rows: Sequence[Sequence[object]], behind: str = ""
) -> int:
    """Insert rows, many with each statement; return how many were inserted.

    Each statement releases the GIL, which is slow to get back while other threads work.
    """
    if not rows:
        return 0
    marks = f"({', '.join('?' * len(rows[0]))})"
    whole = len(rows) - len(rows) % _ROWS_AT_ONCE
    count = 0
    if whole:
        together = (
            list(chain.from_iterable(rows[start : start + _ROWS_AT_ONCE]))
            for start in range(0, whole, _ROWS_AT_ONCE)
        )
        many = ", ".join([marks] * _ROWS_AT_ONCE)
        count = connection.executemany(f"{into} VALUES {many} {behind}", together).rowcount
    if whole < len(rows):
        count += connection.executemany(f"{into} VALUES {marks} {behind}", rows[whole:]).rowcount
    return count


def next_change(connection: sqlite3.Connection) -> int:
    """Return the number for the change to the catalog that this transaction makes."""
    row = connection.execute("UPDATE catalog SET change = change + 1 RETURNING change").fetchone()
    return int(row[0])
