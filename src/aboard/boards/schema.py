"""The tables of everything the hub must remember, and the steps that led to them.

A migration is text that both SQLite and PostgreSQL understand, and is never changed once it has
been released: a later one changes what it made. Opening a database is left to `database`.
"""

from __future__ import annotations

import sqlalchemy as sa

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
)

metadata = sa.MetaData()


def _text(name: str, **options: bool) -> sa.Column[str]:
    return sa.Column(name, sa.Text, **{"nullable": False, **options})  # type: ignore[arg-type]


def _time(name: str, *, nullable: bool = True) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=nullable)


def _whole(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


# Which migrations were made.
migration = sa.Table("migration", metadata, sa.Column("number", sa.Integer, primary_key=True))

board = sa.Table(
    "board",
    metadata,
    _text("id", primary_key=True),
    *map(_text, ("name", "owner", "state")),
    sa.Column("live", sa.Integer, nullable=False),  # 1 until it has ended
    _text("reason"),
    _time("changed", nullable=False),
    _time("created", nullable=False),
    *map(_time, ("started", "ended")),
    _text("selectors"),  # JSON, as are sources and the handle
    _text("sources"),
    _text("selection"),  # the key of selection.py
    *map(_text, ("template", "title", "engine", "runs_on")),
    _whole("memory"),
    _time("timeout", nullable=False),
    _time("idle_timeout", nullable=False),
    *map(_time, ("expires", "last_request")),
    _text("handle", nullable=True),
    _text("visibility"),
    *map(_whole, ("version", "attempt")),
    _text("outcome"),
)

change = sa.Table(
    "change",
    metadata,
    _text("board", primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True),
    _whole("attempt"),
    *map(_text, ("state", "reason")),
    _time("at", nullable=False),
)

creation = sa.Table(
    "creation",
    metadata,
    _text("owner", primary_key=True),
    _text("idempotency_key", primary_key=True),
    *map(_text, ("body", "board")),
    _time("at", nullable=False),
)

account = sa.Table(
    "account",
    metadata,
    _text("name", primary_key=True),
    _text("role"),
    _text("password", nullable=True),  # argon2's own format
    _time("created", nullable=False),
    _time("removed"),
)

token = sa.Table(
    "token",
    metadata,
    _text("id", primary_key=True),
    *map(_text, ("account", "name", "prefix", "digest")),
    _time("created", nullable=False),
    *map(_time, ("expires", "revoked", "last_used")),
)

visit = sa.Table(
    "visit",
    metadata,
    _text("id", primary_key=True),
    *map(_text, ("account", "digest")),
    _time("created", nullable=False),
    _time("expires", nullable=False),
)

share = sa.Table(
    "share",
    metadata,
    _text("id", primary_key=True),
    *map(_text, ("board", "made_by", "digest")),
    _time("created", nullable=False),
    *map(_time, ("expires", "revoked")),
)

one_time_key = sa.Table(
    "one_time_key",
    metadata,
    _text("digest", primary_key=True),
    _text("account"),
    *(_time(name, nullable=False) for name in ("created", "expires")),
    _time("used"),
)
