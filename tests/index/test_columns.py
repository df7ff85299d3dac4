"""Columns in the index: they hold what the rows of runs do, whatever happened to these."""

import json
from dataclasses import replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aboard.index import Index, catalog
from aboard.index.columns import CHUNK, fold, fold_chunk
from aboard.index.library import Library
from aboard.runs.catalog import KnownRun, natural
from aboard.runs.columns import answer
from aboard.runs.question import Question
from tests.runs.tables import column_of, values_of

ROOTS = ("/data/one", "/data/one/inner", "/data/two")
NOW = 1_800_000_000.0
QUESTIONS = [
    Question.parse(where, sort=sort, limit=limit, group_by=group)
    for where, sort, limit, group in (
        (None, [], None, []),
        ("hparams.lr < 0.5", ["-hparams.lr"], None, []),
        ("hparams.lr != 1", ["hparams.lr", "-metrics.loss"], 3, []),
        ('state in ("lost", "running")', ["-duration"], 2, []),
        ('state == none or "a" in tags', ["name"], None, []),
        ('tags.a == true or hparams.opt ~ "a*"', ["created", "run"], None, []),
        ("metrics.loss > 1 or exit_code == 3", ["-metrics.loss"], None, []),
        (None, [], None, ["hparams.opt"]),
        ('experiment == "e1" and duration > 10', [], None, ["state", "hparams.lr"]),
        ("hparams.lr == 9007199254740993 or hparams.opt", ["hparams.opt"], None, []),
    )
]
PAGED = [one for one in QUESTIONS if not one.group_by and not one.is_timed]
numbers = st.sampled_from([0.1, 0.5, 1, 2, 3.5, 2**53 + 1, float("nan"), float("inf"), -1])
hparams = st.fixed_dictionaries(
    {},
    optional={
        "lr": numbers | st.sampled_from(["auto", True, None]),
        "opt": st.sampled_from(["adam", "sgd", "a\0b", [1, "x"], 3]),
    },
)
tags = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([True, "x", 3]), max_size=2)
metrics = st.fixed_dictionaries({}, optional={"loss": numbers | st.sampled_from(["nan", "odd"])})
runs = st.builds(
    KnownRun,
    root=st.sampled_from(ROOTS),
    directory=st.sampled_from(["", "a", "a/b", "inner", "inner/a", "r10", "r9"]),
    experiment=st.sampled_from(["", "e1", "e2"]),
    name=st.sampled_from(["run1", "run9", "run10"]),
    recorded_state=st.sampled_from(["", "running", "completed", "failed"]),
    job=st.sampled_from(["", "7"]),
    exit_code=st.none() | st.just(3),
    created=st.sampled_from([0.0, 5.0, NOW]),
    started=st.sampled_from([0.0, NOW - 50]),
    ended=st.none() | st.just(NOW - 5),
    heartbeat=st.sampled_from([0.0, NOW - 400, NOW - 1, NOW + 500]),
    heartbeat_secs=st.sampled_from([1.0, 30.0]),
    hparams_json=hparams.map(json.dumps),
    tags_json=tags.map(json.dumps),
    metrics_json=metrics.map(json.dumps),
    attempt_jobs_json=st.sampled_from(["[]", '["8", "9"]']),
    seen=st.sampled_from([0.0, NOW - 2]),
)


class Plain:
    """Runs in a table whose columns are made of each run in turn."""

    def __init__(self, runs, now):
        self.runs = runs
        self.now = now
        self.rows = np.arange(len(runs))

    def __len__(self):
        return len(self.runs)

    def column(self, field):
        return column_of([self.value(field, run) for run in self.runs])

    def value(self, field, run):
        plain = {
            "run": run.label,
            "uri": run.uri,
            "state": (state := run.state_at(self.now)) and state.value,
            "duration": run.seconds_at(self.now),
        }
        name = f"{field.group}.{field.name}" if field.group else field.name
        return plain[name] if name in plain else values_of(run).get(name)


def expected_runs(known, roots):
    """Return the runs below roots in natural order, each place once, as of the first root."""
    found = {}
    for root in roots:
        for run in known.values():
            if run.root == root:
                found.setdefault(run.uri, run)
    by_place = sorted(found.values(), key=lambda run: (run.root, run.directory))
    return sorted(by_place, key=lambda run: natural(run.label))


class Catalog(RuleBasedStateMachine):
    """Runs come, change, go and grow old in one process, while another one asks."""

    roots = st.lists(st.sampled_from(ROOTS), unique=True, min_size=1)

    @initialize(roots=roots)
    def open(self, roots):
        self.index = Index(self.path)
        self.reader = Index(self.path)
        self.now = NOW
        self.known = {}
        self.ended = None  # a page: its question, mark and last run
        # So that a few runs are in two chunks.
        sql = "INSERT INTO sqlite_sequence VALUES ('run', ?)"
        self.index._do(lambda connection: connection.execute(sql, (CHUNK - 3,)))
        self.library = Library(self.reader, roots, clock=lambda: self.now)

    def store(self, root, stored, gone=()):
        rows = [("v", run) for run in stored]
        self.index._do(lambda connection: catalog.store_runs(connection, root, rows, gone))

    @rule(some=st.lists(runs, min_size=1, max_size=4))
    def put(self, some):
        for run in some:
            self.store(run.root, [run])
            self.known[run.root, run.directory] = run

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def delete(self, data):
        key = data.draw(st.sampled_from(sorted(self.known)))
        del self.known[key]
        self.index.forget_run(*key)

    @rule(seconds=st.sampled_from([1, 60, 1000]))
    def wait(self, seconds):
        self.now += seconds

    @rule(chunk=st.integers(0, 2))
    def fold(self, chunk):
        self.index._do(lambda connection: fold_chunk(connection, chunk))

    @rule()
    def fold_all(self):
        self.index._do(lambda connection: fold(connection, 0))

    @rule(question=st.sampled_from(PAGED), limit=st.integers(1, 3))
    def read_a_page(self, question, limit):
        page = self.library.page(question, self.library.runs(), limit=limit, check=False)
        if page.mark is not None:
            self.ended = question, page.mark, page.runs[-1]

    @rule()
    def ask_in_a_new_process(self):
        self.reader.close()
        self.reader = Index(self.path)
        self.library = Library(self.reader, self.library.uris, clock=lambda: self.now)

    @invariant()
    def columns_answer_what_the_rows_do(self):
        if not hasattr(self, "library"):
            return
        plain = Plain(expected_runs(self.known, self.library.uris), self.now)
        assert list(self.library.runs()) == plain.runs
        for question in QUESTIONS:
            expected = answer(question, plain)
            found = self.library.answer(question, self.library.runs(), check=False)
            assert found.total == expected.total
            assert list(found.runs) == [plain.runs[row] for row in expected.rows]
            groups = [[plain.runs[row] for row in one.rows] for one in expected.groups]
            assert [list(one.runs) for one in found.groups] == groups
        lost = {run.uri for run in plain.runs if run.state_at(self.now) == "lost"}
        assert {run.uri for run in self.reader.runs_of(sorted(self.library.lost(self.now)))} == lost

    @invariant()
    def each_run_is_on_one_page(self):
        if not hasattr(self, "library"):
            return
        plain = Plain(expected_runs(self.known, self.library.uris), self.now)
        for question in PAGED:
            found, start = [], 0
            while start is not None:
                page = self.library.page(question, self.library.runs(), start, limit=2, check=False)
                found += page.runs
                start = page.mark
            expected = answer(replace(question, limit=None), plain).rows
            assert found == [plain.runs[row] for row in expected]

    @invariant()
    def the_next_page_goes_on_behind_the_last_run(self):
        if getattr(self, "ended", None) is None:
            return
        question, mark, last = self.ended
        shown = expected_runs(self.known, self.library.uris)
        # The run as it was, behind what it is now.
        by_place = sorted([*shown, last], key=lambda run: (natural(run.label), *run[:2]))
        plain = Plain(by_place, self.now)
        marked = max(at for at, run in enumerate(by_place) if run is last)
        with_it = Question(where=None, sort=question.sort)
        order = answer(with_it, plain).rows.tolist()
        chosen = set(answer(replace(question, limit=None), plain).rows.tolist())
        behind = [row for row in order[order.index(marked) + 1 :] if row in chosen]
        page = self.library.page(question, self.library.runs(), mark, limit=100, check=False)
        assert list(page.runs) == [by_place[row] for row in behind]

    @invariant()
    def values_are_counted(self):
        if not hasattr(self, "library"):
            return
        runs = expected_runs(self.known, self.library.uris)
        names = [name for run in runs for name in values_of(run)]
        for _ in range(2):
            found = self.library.recorded_fields(self.library.runs())
            assert found == {one: names.count(one) for one in names if "." in one}

    def teardown(self):
        if hasattr(self, "index"):
            self.index.close()
            self.reader.close()


def test_columns_are_what_the_rows_are_after_anything(tmp_path_factory):
    class InDirectory(Catalog):
        def __init__(self):
            super().__init__()
            self.path = tmp_path_factory.mktemp("index") / "index.db"

    run_state_machine_as_test(
        InDirectory, settings=settings(max_examples=25, stateful_step_count=12, deadline=None)
    )
