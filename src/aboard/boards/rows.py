"""Boards as rows of their table, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from aboard.boards.model import BoardRecord, Engine, State, Visibility
from aboard.boards.selection import selection_key
from aboard.boards.wanted import Wanted

_FIELDS = tuple(field.name for field in fields(BoardRecord))
_JSON = ("selectors", "sources", "handle")
_ENUMS: dict[str, Callable[[str], Any]] = {
    "state": State,
    "engine": Engine,
    "visibility": Visibility,
    "outcome": State,
}


def to_row(board: BoardRecord) -> dict[str, Any]:
    """Return a board's row."""
    row: dict[str, Any] = {name: getattr(board, name) for name in _FIELDS}
    row["runs_on"] = row.pop("on")
    row |= {name: None if row[name] is None else json.dumps(row[name]) for name in _JSON}
    row |= {name: str(row[name]) for name in _ENUMS}
    return {**row, "selection": key_of(board), "live": int(board.is_live)}


def from_row(row: sa.Row[Any]) -> BoardRecord:
    """Return the board of a row; it may have more columns."""
    values = dict(row._mapping)
    values["on"] = values["runs_on"]
    values |= {name: None if values[name] is None else json.loads(values[name]) for name in _JSON}
    values |= {name: tuple(values[name]) for name in ("selectors", "sources")}
    values |= {name: kind(values[name]) for name, kind in _ENUMS.items()}
    return BoardRecord(**{name: values[name] for name in _FIELDS})


def key_of(board: BoardRecord | Wanted) -> str:
    """Return the key of a board's selection."""
    return selection_key(board.selectors, template=board.template, engine=board.engine, on=board.on)
