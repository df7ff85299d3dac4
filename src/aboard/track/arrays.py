"""Conversion of logged values to numpy arrays and tables, from any framework.

No framework is imported: its objects exist only if it is already imported.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MOST_ROWS = 1000  # of a table; browsers are slow with more
MOST_COLUMNS = 100


@contextmanager
def errors_named(kind: str, tag: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise named_error(kind, tag, error) from error


def named_error(kind: str, tag: str, error: Exception) -> Exception:
    error_type = TypeError if isinstance(error, TypeError) else ValueError
    return error_type(f"{kind} {tag!r}: {error}")


def to_numpy(values: Any) -> Array:
    """Return the numbers of anything array-like; types that numpy lacks become float32."""
    if isinstance(values, np.ndarray):
        return _numeric(values, values)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        if values.device.type == "meta":
            raise ValueError(f"{_described(values)} is on the meta device and has no values")
        return _converted(lambda: _from_torch(torch, values), values)
    if isinstance(values, list | tuple):
        return _from_sequence(values)
    if hasattr(values, "__cuda_array_interface__") and hasattr(values, "get"):
        return _numeric(values.get(), values)  # CuPy copies from the GPU only on request
    if callable(getattr(values, "numpy", None)):
        return _numeric(_converted(values.numpy, values), values)
    return _numeric(_converted(lambda: np.asarray(values), values), values)


def to_reals(values: Any) -> Array:
    array = to_numpy(values)
    if array.dtype.kind == "c":
        raise TypeError(f"expected real numbers, got {_described(values)}")
    return array


def to_number(value: Any) -> float:
    if type(value) is float or type(value) is int or isinstance(value, Real) or _is_decimal(value):
        return float(value)
    array = to_reals(value)
    if array.size != 1:
        raise ValueError(f"expected a single number, got the shape {array.shape}")
    return float(array.item())


def to_step(step: Any) -> int:
    """Convert a step as PyTorch's writer does: a number, a string with one, or None for 0."""
    if step is None:
        return 0
    if isinstance(step, str):
        return int(step)
    try:
        return operator.index(step)
    except TypeError:
        return int(to_number(step))


def to_whole(number: Any, what: str) -> int:
    """Return a whole number, given as any kind of number; `what` names it in the error."""
    try:
        value = to_number(number)
        if value == int(value):
            return operator.index(number) if hasattr(number, "__index__") else int(value)
    except (TypeError, ValueError, OverflowError):  # also raised for NaN and infinity
        pass
    raise ValueError(f"{what} is {number!r:.60}, not a whole number")


def _is_decimal(value: Any) -> bool:
    decimal = sys.modules.get("decimal")
    return decimal is not None and isinstance(value, decimal.Decimal)


def _from_torch(torch: Any, tensor: Any) -> Array:
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    if tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    elif tensor.is_floating_point() and tensor.dtype not in (
        torch.float16,
        torch.float32,
        torch.float64,
    ):
        tensor = tensor.float()
    return np.asarray(tensor.numpy())


def _from_sequence(values: list[Any] | tuple[Any, ...]) -> Array:
    if any(hasattr(value, "shape") or isinstance(value, list | tuple) for value in values):
        parts = [to_numpy(value) for value in values]
        shapes = {part.shape for part in parts}
        if len(shapes) > 1:
            raise ValueError(f"expected parts of one shape, got {sorted(shapes)}")
        return np.stack(parts)
    return _numeric(_converted(lambda: np.asarray(values), values), values)


def _converted(convert: Callable[[], Any], values: Any) -> Array:
    try:
        return np.asarray(convert())
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TypeError(f"cannot take numbers from {_described(values)}: {reason}") from error


def _numeric(array: Any, values: Any) -> Array:
    kind = array.dtype.kind
    if kind in "biufc":
        return np.asarray(array)
    if kind == "V" and array.dtype.names is None:  # bfloat16 and other types of ml_dtypes
        return _converted(lambda: array.astype(np.float32), values)
    raise TypeError(f"expected numbers, got {_described(values)}")


def _described(values: Any) -> str:
    kind = type(values)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    shape = getattr(values, "shape", None)
    if shape is None:
        return f"a {name} ({values!s:.40})" if isinstance(values, str) else f"a {name}"
    return f"a {name} of shape {tuple(shape)} and type {getattr(values, 'dtype', 'unknown')}"


# Tables of any form: rows and columns, Markdown.


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
    """Return a table in Markdown; a line below a large table says what is not shown."""
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
