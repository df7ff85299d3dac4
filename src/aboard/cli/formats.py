"""Series out, as CSV, JSON or Parquet: one after another, a block of rows at a time.

Numbers are written so that reading them gives the same 64 bits again. What text formats have no
number for is written as `NaN`, `Infinity` and `-Infinity`, in JSON as strings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from aboard.cli.errors import Failure

if TYPE_CHECKING:
    import pyarrow as pa

    from aboard.index import Series

COLUMNS = ("run", "tag", "step", "wall_time", "value")
_BLOCK_ROWS = 1 << 14
_ROW_GROUP_ROWS = 1 << 19


class Format(ABC):
    """A file in the making: `write` every series, then `finish`."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    @abstractmethod
    def write(self, run: str, tag: str, series: Series) -> None:
        """Append the points of a series."""

    @abstractmethod
    def finish(self) -> None:
        """Write what has to come last."""


class Csv(Format):
    """Comma-separated values with a header."""

    def __init__(self, out: BinaryIO) -> None:
        super().__init__(out)
        out.write(",".join(COLUMNS).encode() + b"\n")

    def write(self, run: str, tag: str, series: Series) -> None:
        """Append a line per point."""
        start = f"{_csv_field(run)},{_csv_field(tag)},".encode()
        comma, end = repeat(b","), repeat(b"\n")
        for steps, walls, values in _blocks(series, b"%s"):
            rows = zip(repeat(start), steps, comma, walls, comma, values, end)
            self._out.write(b"".join(map(b"".join, rows)))

    def finish(self) -> None:
        """Nothing comes last."""


class Json(Format):
    """An array of objects, one on each line."""

    def __init__(self, out: BinaryIO) -> None:
        super().__init__(out)
        self._before = b"[\n"

    def write(self, run: str, tag: str, series: Series) -> None:
        """Append an object per point."""
        start = b'{"run":%s,"tag":%s,"step":' % (orjson.dumps(run), orjson.dumps(tag))
        wall_time, value, end = repeat(b',"wall_time":'), repeat(b',"value":'), repeat(b"}")
        for steps, walls, values in _blocks(series, b'"%s"'):
            rows = zip(repeat(start), steps, wall_time, walls, value, values, end)
            self._out.write(self._before + b",\n".join(map(b"".join, rows)))
            self._before = b",\n"

    def finish(self) -> None:
        """Close the array."""
        self._out.write(b"[]\n" if self._before == b"[\n" else b"\n]\n")


class Parquet(Format):
    """Row groups of half a million points, whatever the length of a series."""

    def __init__(self, out: BinaryIO) -> None:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError:
            raise Failure(
                'Parquet needs pyarrow, which is not installed: pip install "aboard[parquet]".'
            ) from None
        super().__init__(out)
        kinds = (pa.string(), pa.string(), pa.int64(), pa.float64(), pa.float64())
        self._schema = pa.schema(list(zip(COLUMNS, kinds, strict=True)))
        self._sink = pa.PythonFile(_Counted(out), mode="w")
        self._writer = parquet.ParquetWriter(self._sink, self._schema, compression="zstd")
        self._held: list[pa.Table] = []
        self._rows = 0

    def write(self, run: str, tag: str, series: Series) -> None:
        """Append the points, and write a row group whenever there are enough."""
        import pyarrow as pa

        for start in range(0, len(series.steps), _ROW_GROUP_ROWS):
            part = [column[start : start + _ROW_GROUP_ROWS] for column in series]
            rows = len(part[0])
            names = [pa.repeat(pa.scalar(name), rows) for name in (run, tag)]
            self._held.append(pa.Table.from_arrays([*names, *part], schema=self._schema))
            self._rows += rows
            if self._rows >= _ROW_GROUP_ROWS:
                self._write_group()

    def finish(self) -> None:
        """Write the rows that are left, and the footer."""
        self._write_group()
        self._writer.close()
        self._sink.close()

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._held:
            self._writer.write_table(pa.concat_tables(self._held), row_group_size=self._rows)
        self._held, self._rows = [], 0


class _Counted:
    """A stream that knows its position, as Parquet must, and a pipe does not."""

    closed = False

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._written = 0

    def write(self, content: bytes) -> int:
        self._out.write(content)
        self._written += len(content)
        return len(content)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:
        self.closed = True


FORMATS: dict[str, type[Format]] = {"csv": Csv, "json": Json, "parquet": Parquet}


def _blocks(series: Series, word: bytes) -> Iterator[tuple[list[bytes], ...]]:
    for start in range(0, len(series.steps), _BLOCK_ROWS):
        yield tuple(_numbers(column[start : start + _BLOCK_ROWS], word) for column in series)


def _numbers(column: npt.NDArray[Any], word: bytes) -> list[bytes]:
    """Write numbers in their shortest exact form; what is not finite as a word."""
    dumped = orjson.dumps(np.ascontiguousarray(column), option=orjson.OPT_SERIALIZE_NUMPY)
    texts = dumped[1:-1].split(b",")
    for place in np.flatnonzero(~np.isfinite(column)).tolist():
        number = column[place]
        name = b"NaN" if np.isnan(number) else b"Infinity" if number > 0 else b"-Infinity"
        texts[place] = word % name
    return texts


def _csv_field(text: str) -> str:
    if any(mark in text for mark in ',"\r\n') or text != text.strip() or not text:
        return '"' + text.replace('"', '""') + '"'
    return text
