"""A table of runs without an index."""

import numpy as np

from aboard.index.catalog import _parts
from aboard.runs.catalog import KnownRun
from aboard.runs.columns import EXACT, Numbers, Words


def values_of(run):
    """Return what columns hold of a run."""
    fields = {name: [held] for name, held in zip(KnownRun._fields, run, strict=True)}
    return {name: held[0] for name, (_, held) in _parts([0], fields, [False]).items()}


def column_of(values):
    """Make a column of the values of each row; None where one is missing."""
    kinds = {type(one) for one in values}
    is_whole = float not in kinds
    if kinds <= {int, float, type(None)} and all(
        abs(one) <= EXACT for one in values if type(one) is int
    ):
        missing = np.array([one is None for one in values], np.bool_)
        array = np.array([0.0 if one is None else one for one in values], np.float64)
        return Numbers(array, missing if missing.any() else None, is_whole)
    places = {}
    codes = [
        -1 if one is None else places.setdefault((type(one), one), len(places)) for one in values
    ]
    return Words(np.array(codes, np.int32), [one for _, one in places])


class RunsInMemory:
    """Runs in the rows of a table, in the order in which they are given."""

    def __init__(self, runs, now):
        self.runs = runs
        self.now = now
        self.rows = np.arange(len(runs))
        self._values = [values_of(run) for run in runs]
        self._columns = {}
        self._named = {}
        for row, run in enumerate(runs):
            self._named.setdefault((run.name, run.experiment), []).append(row)

    def __len__(self):
        return len(self.runs)

    def column(self, field):
        if field not in self._columns:
            self._columns[field] = self._make_column(field)
        return self._columns[field]

    def _make_column(self, field):
        if field.name == "run" and not field.group:
            return column_of([run.label for run in self.runs])
        if field.name == "state" and not field.group:
            states = [run.state_at(self.now) for run in self.runs]
            return column_of([state and state.value for state in states])
        name = f"{field.group}.{field.name}" if field.group else field.name
        return column_of([values.get(name) for values in self._values])

    def named(self, name, experiments):
        found = [row for one in experiments for row in self._named.get((name, one), ())]
        return np.array(found, np.int64)

    def identified(self, identity):
        found = [row for row, run in enumerate(self.runs) if run.id == identity]
        return np.array(found, np.int64)

    def names(self, group):
        return sorted({name for run in self.runs for name in getattr(run, group)})
