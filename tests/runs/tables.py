"""A table of runs without an index."""

import numpy as np

from aboard.index.catalog import values_of
from aboard.runs.columns import column_of


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
