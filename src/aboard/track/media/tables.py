"""Tables in any form to rows and columns, and to Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

MOST_ROWS = 1000  # browsers scroll badly through more
MOST_COLUMNS = 100


class Table(NamedTuple):
    columns: list[str]
    rows: list[list[Any]]


def table_of(given: Any, columns: Sequence[str] | None = None) -> Table:
    if hasattr(given, "columns") and hasattr(given, "__getitem__"):
        given = {str(name): list(given[name]) for name in given.columns}
    if isinstance(given, Mapping):
        return _from_columns(given)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"expected rows, columns or a data frame, got a {type(given).__name__}")
    rows = given.tolist() if hasattr(given, "tolist") else list(given)
    if rows and all(isinstance(row, Mapping) for row in rows):
        names = list(columns or dict.fromkeys(name for row in rows for name in row))
        return Table([*map(str, names)], [[row.get(name, "") for name in names] for row in rows])
    if not all(isinstance(row, Sequence | np.ndarray) and not _is_text(row) for row in rows):
        raise TypeError("expected every row to be a sequence, or every row to be a mapping")
    rows = [list(row) for row in rows]
    names = list(columns or range(len(rows[0]) if rows else 0))
    for place, row in enumerate(rows):
        if len(row) != len(names):
            raise ValueError(f"row {place} has {len(row)} cells for {len(names)} columns")
    return Table([*map(str, names)], rows)


def texts_of(given: Any) -> Any:
    if np.asarray(given, dtype=object if isinstance(given, bytes) else None).dtype.kind not in "UT":
        raise TypeError(f"expected a text, or sequences of texts, got a {type(given).__name__}")
    return given


def markdown(table: Table) -> str:
    """Return a table in Markdown; a line below a large one says how much is not shown."""
    shown = slice(MOST_COLUMNS)
    lines = [table.columns[shown], ["---"] * len(table.columns[shown])]
    lines += [row[shown] for row in table.rows[:MOST_ROWS]]
    text = "\n".join([f"| {' | '.join(map(_cell, line))} |" for line in lines])
    missing = [
        f"{count - most} more {what}"
        for count, most, what in (
            (len(table.rows), MOST_ROWS, "rows"),
            (len(table.columns), MOST_COLUMNS, "columns"),
        )
        if count > most
    ]
    return f"{text}\n\n*Not shown: {' and '.join(missing)}.*" if missing else text


def _from_columns(given: Mapping[Any, Any]) -> Table:
    cells = {
        str(name): column.tolist() if hasattr(column, "tolist") else list(column)
        for name, column in given.items()
    }
    lengths = {name: len(column) for name, column in cells.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"expected columns of one length, got {lengths}")
    return Table([*cells], [list(row) for row in zip(*cells.values(), strict=True)])


def _cell(content: Any) -> str:
    if isinstance(content, float | np.floating):
        return f"{content:.6g}"
    text = "" if content is None else str(content)
    return "<br>".join(text.replace("\\", "\\\\").replace("|", "\\|").splitlines())


def _is_text(row: Any) -> bool:
    return isinstance(row, str | bytes)
