"""Columns in the index: they hold what the rows of runs do, whatever happened to these."""

import json
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
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

from aboard.events import encode
from aboard.events.writer import EventWriter
from aboard.index import Index, Source, catalog
from aboard.index.columns import CHUNK, fold, fold_chunk
from aboard.index.library import Library
from aboard.runs.catalog import KnownRun, natural
from aboard.runs.columns import answer
from aboard.runs.manifest import Manifest, State
from aboard.runs.question import BadQuestion, Question, parse_field
from aboard.storage import open_storage
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


def known(root, number):
    return "v", KnownRun(root, f"run{number}", "", f"run{number}")


def removed(index):
    """Return how many removed runs the index remembers."""
    return index._do(lambda one: one.execute("SELECT count(*) FROM gone").fetchone()[0])


def test_removed_runs_are_forgotten_when_no_column_has_them(index, monkeypatch):
    monkeypatch.setattr(catalog, "_UNFOLDED", 8)
    index._do(lambda one: catalog.store_runs(one, "/data", [known("/data", n) for n in range(20)]))
    before = index.last_change()
    for number in range(8):
        index.forget_run("/data", f"run{number}")
    assert removed(index) == 8
    changes = index.changes_since(before, ["/data"])
    assert sorted(changes.gone) == [("/data", f"run{number}") for number in range(8)]
    assert changes.is_complete
    with Index(index.path) as reader:
        assert len(reader.columns.order()) == 12
        index.forget_run("/data", "run8")
        assert removed(index) == 0
        assert not index.changes_since(before, ["/data"]).is_complete
        index.forget_run("/data", "run9")
        later = index.changes_since((before[0], before[1] + 9), ["/data"])
        assert (later.gone, later.is_complete) == ([("/data", "run9")], True)
        for one in (reader, index):
            names = one.columns.cells("name")
            found = [names.get(row) for row in one.columns.order()]
            assert found == [f"run{number}" for number in range(10, 20)]
    before = index.last_change()
    index._do(lambda one: catalog.store_runs(one, "/data", [known("/data", n) for n in range(9)]))
    changes = index.changes_since(before, ["/data"])
    assert (len(changes.new), changes.is_complete) == (9, False)


# Questions over runs: records, and metrics from event files, as they are now.


def add_run(root, label, *, values=(), stages=None, **fields):
    """Write a run with a record, and scalars in its directory and in those of its stages."""
    experiment, _, name = label.rpartition("/")
    record = Manifest(name, experiment, heartbeat=time.time(), **fields)
    open_storage(str(root)).write(f"{label}/run.json", record.to_json())
    log(root, label, {"loss": values} if len(values) else {})
    for stage, tags in (stages or {}).items():
        log(root, f"{label}/{stage}", tags)


def log(root, directory, tags, start=0):
    if not tags:
        return
    (root / directory).mkdir(parents=True, exist_ok=True)
    with EventWriter(str(root / directory)) as writer:
        for tag, values in tags.items():
            for step, value in enumerate(values, start):
                writer.scalar(tag, value, step)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def library(index, root):
    root.mkdir()
    return Library(index, [str(root)])


def ask(library, where=None, *selectors, read=True, **others):
    for uri in library.uris:
        library.refresh(uri)
    if read:
        for run in library.runs():
            library.index.refresh(Source(run.uri))
    return library.answer(Question.parse(where, **others), library.find(library.parse(selectors)))


def labels(*arguments, **options):
    return [run.label for run in ask(*arguments, **options).runs]


def test_records_answer(library, root):
    add_run(root, "cifar/run1", hparams={"lr": 0.1, "opt": "adam"}, tags={"baseline": True})
    add_run(root, "cifar/run2", hparams={"lr": 0.01}, state=State.FAILED, tags={"team": "vision"})
    add_run(root, "mnist/run1", hparams={"lr": "auto", "nested": [1]}, user="ada", created=5.0)
    log(root, "raw/run9", {"loss": [1.0]})
    everything = ["cifar/run1", "cifar/run2", "mnist/run1", "raw/run9"]
    assert labels(library) == everything
    assert labels(library, "hparams.lr < 0.05") == ["cifar/run2"]
    assert labels(library, 'hparams.lr != 0.1 and experiment ~ "*i*"') == [
        "cifar/run2",
        "mnist/run1",
    ]
    assert labels(library, 'hparams.nested == "[1]"') == ["mnist/run1"]
    assert labels(library, 'state in ("failed", "lost")') == ["cifar/run2"]
    assert labels(library, "state == none") == ["raw/run9"]
    assert labels(library, '"baseline" in tags or tags.team == "vision"') == everything[:2]
    assert labels(library, 'user == "ada" and created < "1d ago"') == ["mnist/run1"]
    assert labels(library, None, "cifar", sort=["hparams.lr"]) == ["cifar/run2", "cifar/run1"]
    assert labels(library, None, sort=["-name", "run"], limit=2) == ["raw/run9", "cifar/run2"]


def test_metrics_are_those_of_all_points(library, root):
    add_run(root, "a/run1", values=[3.0, 1.0, 2.0])
    add_run(root, "a/run2", values=[5.0, float("nan"), float("inf")])
    add_run(root, "a/run3", values=[float("nan")], stages={"eval": {"acc": [0.5, 0.9, 0.7]}})
    assert labels(library, "metrics.loss.min < 2") == ["a/run1"]
    assert labels(library, "metrics.loss.max == 5") == ["a/run2"]
    assert labels(library, "metrics.loss == 2") == ["a/run1"]
    assert labels(library, "metrics.loss.nans > 0", sort=["-run"]) == ["a/run3", "a/run2"]
    assert labels(library, "metrics.loss.infinities == 1") == ["a/run2"]
    assert labels(library, "metrics.loss.mean == none") == ["a/run3"]
    assert labels(library, "metrics.loss.min_step == 1") == ["a/run1"]
    assert labels(library, 'metrics["eval/acc"].max > 0.8') == ["a/run3"]
    assert labels(library, "metrics.eval/acc.last_step == 2") == ["a/run3"]
    assert labels(library, "metrics.loss.first > 4") == ["a/run2"]
    assert labels(library, "metrics.loss.at(1) == 1") == ["a/run1"]
    assert labels(library, "metrics.loss.at(9) == none") == ["a/run1", "a/run2", "a/run3"]
    found = ask(library, None, sort=["-metrics.eval/acc.max", "metrics.loss.max"])
    assert [run.label for run in found.runs] == ["a/run3", "a/run1", "a/run2"]
    acc = parse_field('metrics["eval/acc"].max')
    assert library.values(acc, found.runs) == [pytest.approx(0.9), None, None]


def test_at_is_the_value_of_the_last_step_before(library, root):
    add_run(root, "a/run1", hparams={"x": 1})
    log(root, "a/run1", {"loss": [7.0]}, start=10)
    log(root, "a/run1", {"loss": [8.0]}, start=20)
    for where, is_there in (("at(15) == 7", 1), ("at(20) == 8", 1), ("at(9) == none", 1),
                            ("at(21) == none", 1), ("at(10) == 7", 1)):  # fmt: skip
        assert labels(library, f"metrics.loss.{where}") == ["a/run1"] * is_there


def test_a_tag_of_the_run_comes_before_one_of_a_stage(library, root):
    add_run(root, "a/run1", stages={"": {"eval/acc": [1.0]}, "eval": {"acc": [2.0]}})
    add_run(root, "a/run2", stages={"eval": {"acc": [2.0]}})
    assert labels(library, "metrics.eval/acc == 1") == ["a/run1"]
    assert labels(library, "metrics.eval/acc == 2") == ["a/run2"]


def test_a_run_below_another_keeps_its_metrics(library, root):
    add_run(root, "a/outer", hparams={"x": 1})
    add_run(root, "a/outer/inner", values=[1.0])
    assert labels(library, "metrics.loss == 1") == ["a/outer/inner"]
    with pytest.raises(BadQuestion, match="no run has a metric 'inner/loss'"):
        labels(library, "metrics.inner/loss == 1")


def test_the_last_value_is_that_of_the_record_until_event_files_are_read(library, root):
    add_run(root, "a/run1", values=[1.0, 9.0], metrics={"loss": 4.0, "odd": "nan"})
    assert labels(library, "metrics.loss == 4", read=False) == ["a/run1"]
    assert labels(library, "metrics.odd != none and not metrics.odd == 0", read=False) == ["a/run1"]
    assert labels(library, "metrics.loss.max > 0 or run", read=False) == ["a/run1"]
    assert labels(library, "metrics.loss == 9") == ["a/run1"]


def test_the_answer_follows_new_points_and_records(library, root):
    add_run(root, "a/run1", values=[1.0], hparams={"lr": 1})
    add_run(root, "a/run2", values=[2.0], hparams={"lr": 2})
    best = {"sort": ["-metrics.loss.max"], "limit": 1}
    assert labels(library, **best) == ["a/run2"]
    log(root, "a/run1", {"loss": [3.0]}, start=1)
    assert labels(library, **best) == ["a/run1"]
    add_run(root, "a/run3", values=[4.0], hparams={"lr": 3})
    assert labels(library, **best) == ["a/run3"]
    add_run(root, "a/run1", hparams={"lr": 9})
    assert labels(library, "hparams.lr > 2", sort=["-hparams.lr"]) == ["a/run1", "a/run3"]


def test_a_name_that_no_run_has_gets_the_nearest(library, root):
    assert labels(library, "hparams.anything > 1") == []  # there is no run yet
    add_run(root, "a/run1", stages={"eval": {"accuracy": [1.0]}}, hparams={"lr": 1, "depth": 2})
    for where, message in (
        ("hparams.lrr > 0", "no run has a hyperparameter 'lrr'. Did you mean 'lr'?"),
        ("metrics.eval/acuracy > 0", "'eval/acuracy'. Did you mean 'eval/accuracy'?"),
        ("tags.x", "No run has any tag."),
    ):
        with pytest.raises(BadQuestion) as caught:
            ask(library, f"hparams.lr > 0 and {where}")
        assert message in str(caught.value)
        assert caught.value.picture.split("\n")[1].index("^") == len("hparams.lr > 0 and ")
    question = Question.parse("hparams.lrr > 0")
    assert library.answer(question, library.runs(), check=False).runs == []


def test_groups_have_their_runs(library, root):
    for number, lr in enumerate((0.1, 0.01, 0.1, None)):
        add_run(root, f"a/run{number}", values=[number], hparams={"lr": lr} if lr else {"x": 1})
    found = ask(library, group_by=["hparams.lr"], sort=["-metrics.loss"])
    assert [(*one.values, [run.name for run in one.runs]) for one in found.groups] == [
        (None, ["run3"]), (0.1, ["run2", "run0"]), (0.01, ["run1"]),
    ]  # fmt: skip


def log_hparams(root, directory, hparams):
    """Write what the hparams plugin stores, as Keras' callback does in a directory of its own."""
    with EventWriter(str(root / directory)) as writer:
        writer.add([encode.hparams_start(hparams)], 0)


def test_event_files_describe_a_run_without_a_record(library, root):
    add_run(root, "cifar/run1", hparams={"lr": 0.1})
    log(root, "raw/run1", {"loss": [3.0, 1.0]})
    log(root, "raw/run1/eval", {"acc": [0.5], "odd": [float("nan")]})
    log_hparams(root, "raw/run1", {"lr": 0.01, "layers": 3, "opt": "adam", "bias": True})
    library.refresh(str(root))
    question = Question.parse("hparams.lr < 0.05")
    assert [run.label for run in library.to_read(question, library.runs())] == ["raw/run1"]
    assert labels(library, "hparams.lr < 0.05") == ["raw/run1"]
    assert labels(library, 'metrics["eval/acc"] > 0.4 and hparams.layers == 3') == ["raw/run1"]
    assert labels(library, sort=["hparams.lr"]) == ["raw/run1", "cifar/run1"]
    (run,) = ask(library, "hparams.bias == true").runs
    assert run.hparams == {"lr": 0.01, "layers": 3, "opt": "adam", "bias": True}
    assert run.metrics == {"loss": 1.0, "eval/acc": 0.5, "eval/odd": "nan"}
    assert library.recorded_fields(library.runs()) == {
        "hparams.lr": 2, "hparams.layers": 1, "hparams.opt": 1, "hparams.bias": 1,
        "metrics.loss": 1, "metrics.eval/acc": 1, "metrics.eval/odd": 1,
    }  # fmt: skip


def test_the_description_of_a_run_without_a_record_follows_its_event_files(library, root):
    log(root, "raw/run1", {"loss": [3.0, 1.0]})
    (run,) = ask(library).runs
    assert run.metrics == {"loss": 1.0}
    changes = library.index.catalog_changes(str(root))
    log(root, "raw/run1", {"loss": [0.25]}, start=2)
    (run,) = ask(library).runs
    assert run.metrics == {"loss": 0.25}
    assert library.index.catalog_changes(str(root)) == changes  # boards select the same runs
    log(root, "raw/run1/eval", {"acc": [1.0]})
    (run,) = ask(library).runs
    assert run.metrics == {"loss": 0.25, "eval/acc": 1.0}
    assert library.index.catalog_changes(str(root)) > changes
    shutil.rmtree(root / "raw/run1/eval")
    (run,) = ask(library).runs
    assert run.metrics == {"loss": 0.25}
    add_run(root, "raw/run1", hparams={"lr": 1}, metrics={"loss": 7.0})
    (run,) = ask(library).runs
    assert (run.hparams, run.metrics) == ({"lr": 1}, {"loss": 7.0})


def test_a_run_below_one_without_a_record_keeps_what_is_its_own(library, root):
    log(root, "raw/run1", {"loss": [3.0]})
    add_run(root, "raw/run1/inner", values=[5.0])
    assert [run.metrics for run in ask(library).runs if run.name == "run1"] == [{"loss": 3.0}]


def test_event_files_give_hyperparameters_to_a_record_without_any(library, root):
    add_run(root, "a/run1", values=[1.0])
    add_run(root, "a/run2", values=[1.0], hparams={"lr": 0.5})
    log_hparams(root, "a/run1/1795067345.35442", {"lr": 0.05})
    log_hparams(root, "a/run2/1795067345.35442", {"lr": 0.07, "other": 1})
    library.refresh(str(root))
    question = Question.parse("hparams.lr < 0.1")
    read = library.to_read(question, library.runs())
    assert [run.label for run in read] == ["a/run1"]
    assert [run.label for run in library.candidates(library.parse(["a"]), question)] == ["a/run1"]
    assert labels(library, "hparams.lr < 0.1") == ["a/run1"]
    assert [run.hparams for run in ask(library).runs] == [{"lr": 0.05}, {"lr": 0.5}]
    assert not library.to_read(question, library.runs())
    add_run(root, "a/run1")  # a heartbeat
    assert labels(library, "hparams.lr == 0.05", read=False) == ["a/run1"]
    log_hparams(root, "a/run1/1795067346.5", {"lr": 0.06})
    ask(library)
    assert labels(library, "hparams.lr < 0.1") == ["a/run1"]
    assert labels(library, "hparams.lr == 0.06", read=False) == ["a/run1"]
    shutil.rmtree(root / "a/run1/1795067346.5")
    ask(library)
    assert labels(library, "hparams.lr == 0.05", read=False) == ["a/run1"]
    add_run(root, "a/run1", hparams={"lr": 9})
    assert [run.hparams for run in ask(library).runs] == [{"lr": 9}, {"lr": 0.5}]


def test_what_was_read_before_a_run_is_listed_describes_it(library, root):
    add_run(root, "a/run1")
    log(root, "raw/run1", {"loss": [3.0]})
    for run in ("a/run1", "raw/run1"):
        log_hparams(root, run, {"lr": 0.1})
    library.index.refresh(Source(str(root)))
    found = ask(library, read=False).runs
    assert [(run.hparams, run.metrics) for run in found] == [
        ({"lr": 0.1}, {}),
        ({"lr": 0.1}, {"loss": 3.0}),
    ]


def test_a_directory_named_by_a_time_adds_nothing_to_the_name_of_a_metric(library, root):
    first, second = "1795067345.35442", "1795067346.5"
    add_run(root, "a/run1", values=[5.0], stages={first: {"acc": [0.125], "loss": [7.0]}})
    add_run(root, "a/run2", stages={first: {"acc": [0.25]}, second: {"acc": [0.375]}})
    add_run(root, "a/run3", stages={f"rank-1/{first}": {"acc": [0.4375]}, "1795": {"acc": [0.5]}})
    log(root, f"raw/run1/{first}", {"acc": [0.625]})
    ask(library)
    assert labels(library, "metrics.acc < 0.5") == ["a/run1", "a/run2"]
    assert labels(library, "metrics.acc.max == 0.375 or metrics.loss == 5") == ["a/run1", "a/run2"]
    assert labels(library, f'metrics["{first}/acc"] > 0 and metrics.acc == 0.375') == ["a/run2"]
    assert labels(library, 'metrics["rank-1/acc"] == 0.4375 and metrics["1795/acc"] > 0') == [
        "a/run3"
    ]
    assert [run.metrics for run in ask(library, "metrics.acc == 0.625").runs] == [{"acc": 0.625}]
    assert library.names("metrics", library.runs()) == ["1795/acc", "acc", "loss", "rank-1/acc"]
