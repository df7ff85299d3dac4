"""Down-sampling, restarts, and records read from the event files that hold them."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aboard.events import encode
from aboard.events.records import frame
from aboard.events.writer import EventWriter
from aboard.index import Index, Source, UnknownName
from aboard.index import series as series_module
from aboard.index.logs import Logs
from aboard.index.series import Series, downsample, read_records, sample_together, survivors

series = st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=300)


@given(values=series, limit=st.integers(1, 120))
def test_as_many_points_as_allowed_in_order_with_both_ends(values, limit):
    places = downsample(np.array(values), limit)
    assert len(places) == min(len(values), limit)
    assert (np.diff(places) > 0).all()
    assert places[-1] == len(values) - 1
    if limit > 1:
        assert places[0] == 0


@given(values=series, limit=st.integers(5, 120))
def test_extremes_and_missing_values_survive(values, limit):
    array = np.array(values)
    kept = array[downsample(array, limit)]
    assert np.isnan(kept).any() == np.isnan(array).any()
    numbers = array[~np.isnan(array)]
    if len(numbers):
        assert numbers.min() in kept
        assert numbers.max() in kept


def test_a_spike_in_a_million_points_shows():
    values = np.sin(np.arange(1_000_000) / 1e4)
    values[123_456], values[777_777] = 50.0, -50.0
    kept = downsample(values, 1000)
    assert len(kept) == 1000
    assert {123_456, 777_777} <= set(kept.tolist())


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        (np.arange(2500.0), 1000),
        (np.arange(5.0), 4),
        (np.where(np.arange(100) % 3, np.arange(100.0), math.nan), 99),
        (np.zeros(1001), 1000),
    ],
)
def test_the_limit_is_used_up(values, limit):
    assert len(downsample(values, limit)) == limit


@given(
    length=st.integers(500, 3000),
    spikes=st.dictionaries(st.integers(0, 499), st.floats(-1e6, 1e6), max_size=3),
    start=st.integers(1, 400),
    gap=st.integers(1, 90),
    odd=st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_spikes_and_the_edges_of_a_gap_show(length, spikes, start, gap, odd):
    values = np.sin(np.arange(length) / 50)
    values[start : start + gap] = odd
    for place, height in spikes.items():
        values[place] = height
    kept = set(downsample(values, 300).tolist())
    finite = np.isfinite(values)
    changes = np.flatnonzero(finite[1:] != finite[:-1])
    assert {*changes.tolist(), *(changes + 1).tolist()} <= kept
    assert {values[finite].min(), values[finite].max()} <= set(values[list(kept)])


def test_a_spike_shows_beside_an_infinity():
    values = np.zeros(10_000)
    values[5000:5004] = 7.0, math.inf, -7.0, -math.inf
    assert {5000, 5001, 5002, 5003} <= set(downsample(values, 100).tolist())


# Series that are drawn together.


def band(steps, *rows):
    return [Series(np.array(steps), np.array(steps, float), np.array(row)) for row in rows]


@given(seed=st.integers(0, 1000), count=st.integers(1, 300), limit=st.integers(1, 120))
def test_series_that_are_drawn_together_keep_the_same_steps(seed, count, limit):
    rows = np.random.default_rng(seed).normal(size=(3, count))
    whole = band(range(count), *rows)
    sampled = sample_together(whole, limit)
    assert [len(one.steps) for one in sampled] == [min(count, limit)] * 3
    for one, row in zip(sampled, rows, strict=True):
        assert (one.steps == sampled[0].steps).all()
        assert (one.values == row[one.steps]).all()
        if limit >= 8:
            assert {row.min(), row.max()} <= set(one.values)


def test_the_step_that_is_being_written_waits():
    long, short = np.arange(3000.0), np.arange(2999.0)
    (value,), (lower,) = band(range(3000), long), band(range(2999), short)
    sampled = sample_together([value, lower], 1000)
    assert (sampled[0].steps == sampled[1].steps).all()
    assert sampled[0].steps[-1] == 2998


def test_series_of_other_steps_are_sampled_alone():
    (value,), (lower,) = band(range(3000), np.arange(3000.0)), band(range(500), np.arange(500.0))
    sampled = sample_together([value, lower], 1000)
    assert [len(one.steps) for one in sampled] == [1000, 500]
    assert sampled[0].steps[-1] == 2999
    (shifted,) = band(range(1, 3001), np.arange(3000.0))
    assert sample_together([value, shifted], 1000)[1].steps[-1] == 3000


def test_a_short_series_is_kept_whole():
    assert downsample(np.arange(10.0), 10).tolist() == list(range(10))


def test_a_series_of_nan_alone():
    places = downsample(np.full(100, math.nan), 20)
    assert places[0] == 0
    assert places[-1] == 99


def test_no_points_at_all_is_refused():
    with pytest.raises(ValueError, match="down to 0 points"):
        downsample(np.zeros(3), 0)


@given(st.lists(st.integers(0, 12), max_size=30))
def test_survivors_are_those_that_dropping_one_by_one_leaves(steps):
    kept: list[int] = []
    for place, step in enumerate(steps):
        while kept and steps[kept[-1]] >= step:
            kept.pop()
        kept.append(place)
    mask = survivors(np.array(steps, np.int64))
    found = list(range(len(steps))) if mask is None else np.flatnonzero(mask).tolist()
    assert found == kept


@pytest.fixture
def notes(index, tmp_path):
    """Write three texts; give their file, their tag and their pointers."""
    with EventWriter(tmp_path) as writer:
        for step in range(3):
            writer.add([encode.text("note", f"text {step}")], step)
    source = Source(str(tmp_path))
    index.refresh(source)
    (tag,) = index.tags(source)
    return next(tmp_path.iterdir()), tag, index.pointers(tag)


def test_records_come_in_their_order(notes):
    _, tag, pointers = notes
    assert [value.tag for value in read_records(tag, pointers)] == ["note"] * 3


def test_a_record_that_changed_is_reported_and_the_others_are_read(notes):
    path, tag, pointers = notes
    content = bytearray(path.read_bytes())
    content[pointers[1].offset + 14] ^= 0xFF
    path.write_bytes(content)
    failed = []
    values = list(read_records(tag, pointers, on_error=lambda one, _: failed.append(one)))
    assert (len(values), failed) == (2, [pointers[1]])
    with pytest.raises(ValueError, match="checksum"):
        list(read_records(tag, pointers))


def test_a_file_that_is_gone_is_reported_for_every_record(notes):
    path, tag, pointers = notes
    path.unlink()
    failed = []
    assert not list(read_records(tag, pointers, on_error=lambda one, _: failed.append(one)))
    assert failed == list(pointers)


def test_an_event_that_holds_a_tag_twice_gives_one_value_the_last(index, tmp_path):
    with EventWriter(tmp_path) as writer:
        for step in range(2):
            twice = [encode.text("note", f"{which} at {step}") for which in ("first", "last")]
            writer.add([*twice, encode.scalar("loss", 1.0), encode.scalar("loss", 2.0)], step)
    source = Source(str(tmp_path))
    index.refresh(source)
    loss, note = index.tags(source)
    assert loss.last_value == 2.0
    assert index.series(loss).values.tolist() == [2.0, 2.0]
    texts = [value.tensor.item() for value in read_records(note, index.pointers(note))]
    assert texts == [b"last at 0", b"last at 1"]


# Summaries and windows agree with the points in the files, also after the files changed.


class Point(NamedTuple):
    step: int
    wall: float
    value: float


class Addition(NamedTuple):
    """Points whose steps rise evenly, or all over the place, with values of a kind."""

    size: int
    start: int
    stride: int
    seed: int
    odd: bool

    def points(self) -> list[Point]:
        random = np.random.default_rng(self.seed)
        steps = self.start + self.stride * np.arange(self.size)
        if self.stride == 0:
            steps = random.integers(self.start, self.start + 2 * self.size, self.size)
        values = random.normal(size=self.size).astype(np.float32).astype(np.float64)
        if self.odd:
            places = random.random(self.size) < 0.3
            kinds = random.choice([math.nan, math.inf, -math.inf], self.size)
            values = np.where(places, kinds, values)
        walls = 1000.0 + random.integers(0, 100, self.size)
        columns = (steps.tolist(), walls.tolist(), values.tolist())
        return [Point(*one) for one in zip(*columns, strict=True)]


def encoded(points: list[Point], *, wide: bool) -> bytes:
    scalar = (lambda tag, number: encode.scalar_tensor(tag, number, "float64")) if wide else None
    make = scalar or encode.scalar
    return b"".join(
        frame(encode.event(one.wall, one.step, [make("loss", one.value)])) for one in points
    )


class Tree:
    """A run with some event files, and the points that were written to each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "run").mkdir(parents=True)
        self.files: dict[int, list[Point]] = {}

    def path(self, number: int) -> Path:
        return self.root / "run" / f"events.out.tfevents.{number}.host"

    def append(self, number: int, addition: Addition, wide: bool) -> None:
        points = addition.points()
        with self.path(number).open("ab") as file:
            file.write(encoded(points, wide=wide))
        self.files.setdefault(number, []).extend(points)

    def replace(self, number: int, addition: Addition, wide: bool) -> None:
        self.delete(number)
        self.append(number, addition, wide)

    def delete(self, number: int) -> None:
        self.path(number).unlink(missing_ok=True)
        self.files.pop(number, None)

    @property
    def series(self) -> list[Point]:
        """The points that restarts leave."""
        kept: list[Point] = []
        for _, points in sorted(self.files.items()):
            for point in points:
                while kept and kept[-1].step >= point.step:
                    kept.pop()
                kept.append(point)
        return kept


additions = st.builds(
    Addition,
    st.integers(1, 12) | st.integers(60, 200),
    st.integers(0, 400),
    st.integers(0, 3),
    st.integers(0, 2**32),
    st.booleans(),
)
operations = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "replace", "delete"]),
        st.integers(1, 4),
        additions,
        st.booleans(),
    ),
    min_size=1,
    max_size=10,
)


def carry_out(tree: Tree, operation: str, number: int, addition: Addition, wide: bool) -> None:
    match operation:
        case "append":
            tree.append(number, addition, wide)
        case "replace":
            tree.replace(number, addition, wide)
        case "delete":
            tree.delete(number)


@settings(max_examples=60)
@given(operations=operations, window=st.tuples(st.integers(0, 500), st.integers(0, 500)))
def test_whatever_happens_to_the_files(operations, window):
    with (
        TemporaryDirectory() as directory,
        Index(Path(directory) / "index.db") as index,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(series_module, "_READ_WHOLE", 0)  # so that few points are as many
        tree = Tree(Path(directory) / "logs")
        source = Source.parse(str(tree.root))
        for operation in operations:
            carry_out(tree, *operation)
            index.refresh(source)
            assert_agree(index, source, tree.series, window)


def assert_agree(index: Index, source: Source, points: list[Point], window) -> None:
    tag = index.find_tag(source, "run", "loss")
    if tag is None:
        assert not points
        return
    assert_summary(index.summaries([tag])[0], points)
    for start, stop in (window, (window[0], None), (None, window[1])):
        inside = [
            one
            for one in points
            if (start is None or one.step >= start) and (stop is None or one.step <= stop)
        ]
        assert_same(index.series(tag, start=start, stop=stop), inside)
        for samples in (7, 20):
            sampled = index.series(tag, samples=samples, start=start, stop=stop)
            assert_shows(sampled, inside, samples)
    assert_shows(index.series(tag, samples=9), points, 9)


def assert_summary(summary, points: list[Point]) -> None:
    values = np.array([one.value for one in points])
    finite = values[np.isfinite(values)]
    assert summary.count == len(points)
    assert (summary.first_step, summary.last_step) == (points[0].step, points[-1].step)
    assert (summary.first_wall, summary.last_wall) == (points[0].wall, points[-1].wall)
    assert_equal(summary.last, points[-1].value)
    assert summary.nans == np.isnan(values).sum()
    assert summary.infinities == np.isinf(values).sum()
    if not len(finite):
        assert all(math.isnan(one) for one in (summary.min, summary.max, summary.mean))
        assert summary.min_step is None
        assert summary.max_step is None
        return
    assert (summary.min, summary.max) == (finite.min(), finite.max())
    steps = np.array([one.step for one in points])
    assert summary.min_step == steps[values == finite.min()][0]
    assert summary.max_step == steps[values == finite.max()][0]
    assert math.isclose(summary.mean, finite.mean(), rel_tol=1e-9, abs_tol=1e-9)


def assert_same(found: Series, points: list[Point]) -> None:
    assert_equal(found.steps, [one.step for one in points])
    assert_equal(found.wall_times, [one.wall for one in points])
    assert_equal(found.values, [one.value for one in points])


def assert_shows(found: Series, points: list[Point], samples: int) -> None:
    """What a person would see: both ends, the extremes, that values are missing."""
    assert len(found.steps) == min(samples, len(points))
    if not points:
        return
    by_step = {one.step: one for one in points}
    assert_same(found, [by_step[step] for step in found.steps.tolist()])
    assert (found.steps[0], found.steps[-1]) == (points[0].step, points[-1].step)
    values = np.array([one.value for one in points])
    for kind in (np.isnan, np.isposinf, np.isneginf):
        assert kind(found.values).any() == kind(values).any()
    finite, shown = (some[np.isfinite(some)] for some in (values, found.values))
    if len(finite):
        assert (shown.min(), shown.max()) == (finite.min(), finite.max())


def assert_equal(found, expected) -> None:
    np.testing.assert_array_equal(np.asarray(found, float), np.asarray(expected, float))


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "logs")


def add(tree, *additions, number=1, wide=False):
    for addition in additions:
        tree.append(number, Addition(*addition), wide)


def check(index, tree):
    source = Source.parse(str(tree.root))
    index.refresh(source)
    steps = [one.step for one in tree.series]
    window = (steps[len(steps) // 3], steps[2 * len(steps) // 3])
    assert_agree(index, source, tree.series, window)


@pytest.mark.parametrize("wide", [False, True])
def test_a_series_of_several_chunks_that_grows(index, tree, wide, monkeypatch):
    monkeypatch.setattr(series_module, "_READ_WHOLE", 5000)
    for number in range(6):
        add(tree, (3000, 3000 * number, 1, number, number == 4), wide=wide)
        check(index, tree)


def test_restarts_in_the_middle_of_long_files(index, tree, monkeypatch):
    monkeypatch.setattr(series_module, "_READ_WHOLE", 5000)
    add(tree, (9000, 0, 1, 1, False))
    check(index, tree)
    add(tree, (6000, 5000, 1, 2, True), number=2)
    check(index, tree)
    add(tree, (5000, 7000, 1, 3, False), number=2)  # the same process goes back
    check(index, tree)
    add(tree, (100, 50, 1, 4, False), number=3)
    check(index, tree)
    tree.delete(3)
    check(index, tree)
    add(tree, (10, 0, 1, 5, False), number=3)  # from the start
    check(index, tree)


def test_a_window_reads_only_the_chunks_that_it_needs(index, tree):
    add(tree, (40_000, 0, 1, 1, False))
    source = Source.parse(str(tree.root))
    index.refresh(source)
    tag = index.find_tag(source, "run", "loss")
    # Chunks that are not needed can be anything.
    connection = sqlite3.connect(index.path)
    (first,) = connection.execute("SELECT min(id) FROM chunk").fetchone()
    with connection:
        connection.execute("UPDATE chunk SET walls = x'00' WHERE id != ?", (first + 2,))
    connection.close()
    found = index.series(tag, start=9000, stop=9100)
    assert_same(found, tree.series[9000:9101])
    assert index.summaries([tag])[0].count == 40_000


def test_every_series_logged_without_steps_has_one_point(index, tree):
    tree.files[1] = [Point(0, 1.0, 0.25 * i) for i in range(5000)]
    tree.path(1).write_bytes(encoded(tree.files[1], wide=False))
    check(index, tree)
    assert len(tree.series) == 1


def test_steps_at_the_ends_of_their_range(index, tree):
    steps = [-(2**63), -1, 0, 2**63 - 1, 2**63 - 1]
    for number, step in enumerate(steps):
        tree.files[number] = [Point(step, 1.0, float(number))]
        tree.path(number).write_bytes(encoded(tree.files[number], wide=False))
    source = Source.parse(str(tree.root))
    index.refresh(source)
    tag = index.find_tag(source, "run", "loss")
    assert index.series(tag, start=-(2**70), stop=2**70).steps.tolist() == steps[:4]
    assert index.series(tag, start=-(2**70), stop=2**70).values[-1] == 4.0
    assert index.summaries([tag])[0].count == 4


def test_it_is_asked_for_by_name(index, tree):
    add(tree, (5, 0, 1, 1, False))
    tree.path(2).write_bytes(frame(encode.event(1.0, 0, [encode.text("note", "text")])))
    logs = Logs(tree.root, index=index)
    assert_summary(logs.summary("run", "loss"), tree.series)
    assert_same(logs.series("run", "loss", start=1, stop=3), tree.series[1:4])
    with pytest.raises(UnknownName, match="is not a scalar but a tensor of plugin 'text'"):
        logs.summary("run", "note")
    with pytest.raises(UnknownName, match="did you mean 'loss'"):
        logs.summary("run", "los")


def test_a_tag_that_is_gone_or_not_a_scalar_has_none(index, tree):
    add(tree, (5, 0, 1, 1, False))
    note = frame(encode.event(1.0, 0, [encode.text("note", "text")]))
    tree.path(2).write_bytes(note)
    source = Source.parse(str(tree.root))
    index.refresh(source)
    tags = [index.find_tag(source, "run", name) for name in ("loss", "note")]
    assert index.summaries(tags)[1] is None
    tree.delete(1)
    index.refresh(source)
    assert index.summaries(tags) == [None, None]
    assert index.summaries([]) == []
