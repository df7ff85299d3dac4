"""`aboard.open`: event files as runs, tags, and arrays of points.

Opening a `Logs` and `refresh` bring the index up to date. Everything else is answered from the
index, except records, which are read from their files on demand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from aboard.index.index import Index, Progress, Report
from aboard.index.query import Damage, Run, UnknownName
from aboard.index.sources import Source
from aboard.index.tags import Tag
from aboard.runs import nearest

if TYPE_CHECKING:
    import pandas as pd

    from aboard.events.messages import Value
    from aboard.index.series import Series, Summary


class Logs:
    """The runs below a path or URI.

    Args:
        source: a directory, a bucket URI, or one event file.
        index: the index to use; the user's own by default.
        refresh: update the index first. If false, everything is served from the
            index, without a request to storage.
        anew: drop this source from the index, and read all of it again.
        progress: called repeatedly while files are read.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        index: Index | None = None,
        refresh: bool = True,
        anew: bool = False,
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(source, str | os.PathLike):
            raise TypeError(f"source is {source!r:.60}, not a path or URI")
        self.source = Source.parse(str(source))
        self._is_own = index is None
        self.index = Index() if index is None else index
        self.report = Report()
        try:
            if refresh:
                self.refresh(anew=anew, progress=progress)
        except BaseException:
            self.close()
            raise

    def refresh(self, *, anew: bool = False, progress: Progress | None = None) -> Report:
        """Read what is new, or with `anew` everything."""
        self.report = self.index.refresh(self.source, anew=anew, progress=progress)
        return self.report

    def close(self) -> None:
        """Close the index, unless it was given."""
        if self._is_own:
            self.index.close()

    def __repr__(self) -> str:
        return f"<aboard.Logs of {self.source.uri}>"

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def runs(self) -> list[Run]:
        """Every run, by name."""
        return self.index.runs(self.source)

    @property
    def tags(self) -> list[Tag]:
        """Every tag of every run, by run and name."""
        return self.index.tags(self.source)

    @property
    def damage(self) -> list[Damage]:
        """Every span of bytes that could not be read."""
        return self.index.damages(self.source)

    def select(self, run: str = "*", tag: str = "*") -> list[Tag]:
        """Return the tags whose run and name match shell patterns."""
        return [
            one for one in self.tags if fnmatchcase(one.run, run) and fnmatchcase(one.name, tag)
        ]

    def tag(self, run: str, tag: str) -> Tag:
        """Return one tag.

        Raises:
            UnknownName: the run does not exist, or does not have the tag.
        """
        found = self.index.find_tag(self.source, run, tag)
        if found is not None:
            return found
        names = [one.name for one in self.runs]
        if run not in names:
            raise UnknownName(f"no run {run!r} in {self.source.uri}{_hint(run, names)}")
        tags = [one.name for one in self.tags if one.run == run]
        raise UnknownName(f"no tag {tag!r} in run {run!r}{_hint(tag, tags)}")

    def series(
        self,
        run: str,
        tag: str,
        *,
        samples: int | None = None,
        start: int | None = None,
        stop: int | None = None,
    ) -> Series:
        """Return the points of a scalar: steps, wall times and values, as numpy arrays.

        Args:
            run: the run's name; "." is the source's own directory.
            tag: the tag's name.
            samples: at most this many points, spikes kept; every point by default.
            start: the first step; from the beginning by default.
            stop: the last step, which is included; to the end by default.
        """
        found = self._scalar(run, tag)
        return self.index.series(found, samples=samples, start=start, stop=stop)

    def summary(self, run: str, tag: str) -> Summary:
        """Return the summary of a scalar, without reading its points.

        Raises:
            UnknownName: the run has no such scalar.
        """
        (found,) = self.index.summaries([self._scalar(run, tag)])
        if found is None:
            raise UnknownName(f"tag {tag!r} of run {run!r} was deleted")
        return found

    def _scalar(self, run: str, tag: str) -> Tag:
        found = self.tag(run, tag)
        if not found.is_scalar:
            raise UnknownName(
                f"tag {tag!r} of run {run!r} is not a scalar but a"
                f" {found.kind.data_class or 'tensor'} of plugin {found.kind.plugin!r};"
                " use records() to read it"
            )
        return found

    def records(self, run: str, tag: str) -> Iterator[Value]:
        """Read the values of a tag that is not a scalar, one at a time from their files."""
        from aboard.index.series import read_records

        found = self.tag(run, tag)
        if found.is_scalar:
            raise UnknownName(f"tag {tag!r} of run {run!r} is a scalar; use series() to read it")
        return read_records(found, self.index.pointers(found))

    def to_pandas(
        self, run: str = "*", tag: str = "*", *, samples: int | None = None
    ) -> pd.DataFrame:
        """Return scalars as a data frame with columns run, tag, step, wall_time and value."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError('to_pandas needs pandas: pip install "aboard[pandas]"') from error
        frames = []
        for one in self.select(run, tag):
            if one.is_scalar:
                steps, walls, values = self.index.series(one, samples=samples)
                columns = {"step": steps, "wall_time": walls, "value": values}
                frames.append(pd.DataFrame({"run": one.run, "tag": one.name, **columns}))
        if not frames:
            row = {"run": "", "tag": "", "step": 0, "wall_time": 0.0, "value": 0.0}
            return pd.DataFrame([row]).iloc[:0]  # no rows, but columns with their types
        return pd.concat(frames, ignore_index=True)


def _hint(name: str, names: list[str]) -> str:
    if near := nearest(name, names):
        return f"; did you mean {near!r}?"
    return f"; it has {', '.join(map(repr, names[:5]))}" if names else "; it has none"
