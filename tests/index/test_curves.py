"""Derived curves equal what a plain loop and numpy say; so do those of groups, as they change."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.events.writer import EventWriter
from aboard.index import Source, UnknownName
from aboard.index import curves as module
from aboard.index.curves import (
    Axis,
    common_steps,
    compute,
    interpolate,
    mean_times,
    over,
    over_metric,
    smooth,
    smooth_window,
    statistics,
)
from aboard.index.series import Series
from aboard.index.tags import Tag, TagGroup
from aboard.runs.naming import Band, Line

numbers = st.floats(-1e9, 1e9, width=32)
any_values = st.lists(numbers | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=300)


def series_of(steps, values, start=0.0):
    steps = np.array(steps, np.int64)
    return Series(steps, start + steps * 2.0, np.array(values, np.float64))


def as_the_page_smooths(values, weight):
    """TensorBoard's own loop, in Python."""
    if values and all(value == values[0] for value in values):
        return values
    last, count, smoothed = 0.0, 0, []
    for value in values:
        if not math.isfinite(value):
            smoothed.append(value)
            continue
        last = last * weight + (1 - weight) * value
        count += 1
        smoothed.append(last / (1 - weight**count))
    return smoothed


def close(found, expected, values):
    size = max([abs(value) for value in values if math.isfinite(value)], default=1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * size)


@given(values=any_values, weight=st.floats(0.001, 0.9999))
def test_smoothing_is_that_of_the_page(values, weight):
    close(smooth(np.array(values), weight), as_the_page_smooths(values, weight), values)


def test_a_long_curve_is_smoothed_over_all_of_its_points():
    values = np.random.default_rng(1).normal(size=100_001)
    close(smooth(values, 0.999), as_the_page_smooths(values.tolist(), 0.999), values)


def test_what_smoothing_leaves_alone():
    constant = np.full(1000, 0.1)
    assert (smooth(constant, 0.9) == 0.1).all()
    assert (smooth_window(constant, 5) == 0.1).all()
    values = np.array([1.0, 5.0, 2.0])
    assert (smooth(values, 0.0) == values).all()
    assert (smooth_window(values, 1) == values).all()
    assert len(smooth(np.empty(0), 0.5)) == len(smooth_window(np.empty(0), 5)) == 0
    with pytest.raises(ValueError, match=r"weight must be .* not 1\.5"):
        smooth(values, 1.5)
    with pytest.raises(ValueError, match="width must be at least 1, not 0"):
        smooth_window(values, 0)


@given(values=any_values, width=st.integers(1, 400))
def test_a_window_is_the_mean_of_the_finite_values_around_each_point(values, width):
    expected = []
    for place, value in enumerate(values):
        around = values[max(0, place - width // 2) : place + width // 2 + 1]
        around = [one for one in around if math.isfinite(one)]
        expected.append(np.mean(around) if math.isfinite(value) else value)
    close(smooth_window(np.array(values), width), expected, values)


def test_a_small_window_keeps_its_digits_beside_very_large_values():
    values = np.array([1e18, 1e18, 1e18, 1.0, 2.0, 3.0, 4.0])
    assert smooth_window(values, 3)[-3:].tolist() == [2.0, 3.0, 3.5]


def test_axes():
    series = series_of([1, 2, 4], [10.0, 20.0, 40.0], start=1000.0)
    assert over(series, Axis.STEP).x.tolist() == [1.0, 2.0, 4.0]
    assert over(series, Axis.WALL).x.tolist() == [1002.0, 1004.0, 1008.0]
    assert over(series, Axis.RELATIVE).x.tolist() == [0.0, 2.0, 6.0]
    assert over(series_of([], []), Axis.RELATIVE).x.tolist() == []
    part = over(series, Axis.STEP).within(2, None)
    assert (part.x.tolist(), part.y.tolist()) == ([2.0, 4.0], [20.0, 40.0])
    assert over(series, Axis.STEP).within(2, 3).y.tolist() == [20.0]


def test_a_curve_over_another_metric_has_the_points_at_which_that_has_a_value():
    loss = series_of([0, 1, 2, 3, 4, 9], [9.0, 8.0, 7.0, 6.0, 5.0, 0.0])
    samples = series_of([1, 3, 4], [100.0, 300.0, math.nan])
    curve = over_metric(loss, samples)
    assert curve.x.tolist() == [100.0, 200.0, 300.0]
    assert curve.y.tolist() == [8.0, 7.0, 6.0]
    assert len(over_metric(loss, series_of([], [])).x) == 0


members = st.lists(
    st.dictionaries(st.integers(0, 60), numbers, max_size=30).map(
        lambda points: series_of(sorted(points), [points[step] for step in sorted(points)])
    ),
    min_size=1,
    max_size=6,
)


@given(members=members)
def test_the_statistics_of_a_group_are_those_of_numpy(members):
    steps = common_steps([one.steps for one in members], most=1000)
    assert steps.tolist() == sorted({step for one in members for step in one.steps.tolist()})
    found = statistics(np.stack([interpolate(one, steps) for one in members]))
    for place, step in enumerate(steps.tolist()):
        values = [
            np.interp(step, one.steps, one.values)
            for one in members
            if len(one.steps) and one.steps[0] <= step <= one.steps[-1]
        ]
        assert found.count[place] == len(values)
        many = len(values) > 1
        expected = {
            "mean": np.mean(values),
            "std": np.std(values, ddof=1) if many else math.nan,
            "sem": np.std(values, ddof=1) / math.sqrt(len(values)) if many else math.nan,
            "min": min(values),
            "max": max(values),
            "median": np.median(values),
            "low": np.quantile(values, 0.25),
            "high": np.quantile(values, 0.75),
        }
        for name, value in expected.items():
            close(getattr(found, name)[place], value, values)


def test_a_value_that_is_not_a_number_does_not_count():
    found = statistics(np.array([[1.0, math.nan, math.inf], [3.0, 5.0, math.nan]]))
    assert found.count.tolist() == [2, 1, 0]
    assert found.mean.tolist()[:2] == [2.0, 5.0]
    assert math.isnan(found.mean[2])
    assert math.isnan(found.median[2])
    assert math.isnan(found.std[1])


def test_members_with_too_many_steps_share_some_of_them():
    steps = common_steps([np.arange(0, 1000), np.arange(5, 2000, 7)], most=10)
    assert len(steps) == 10
    assert (steps[0], steps[-1]) == (0, 1993)


def test_the_times_of_a_group_count_from_its_first_start():
    early = Series(np.array([0, 10]), np.array([100.0, 110.0]), np.zeros(2))
    late = Series(np.array([0, 10]), np.array([500.0, 530.0]), np.zeros(2))
    steps = np.array([0, 5, 10])
    assert mean_times([early, late], steps).tolist() == [100.0, 110.0, 120.0]
    assert mean_times([], steps).tolist() == [0.0, 0.0, 0.0]


def write(directory, values, steps=None):
    with EventWriter(directory) as writer:
        for step, value in zip(steps or range(len(values)), values, strict=True):
            writer.scalar("loss", value, step, wall_time=100.0 + step, dtype="float64")


def tags(index, *directories):
    for one in directories:
        index.refresh(Source(str(one)))
    return [index.find_tag(Source(str(one)), ".", "loss") for one in directories]


def delete(index, directory):
    for path in directory.iterdir():
        path.unlink()
    index.refresh(Source(str(directory)))


def line(index, members, line=Line.MIDDLE, band=Band.STD):
    series = index.series(Tag.of_group(TagGroup(tuple(members), band, line)))
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def test_lines_of_each_band(tmp_path, index):
    for number in range(4):
        write(tmp_path / str(number), [float(number), 2.0 * number])
    members = tags(index, *(tmp_path / str(number) for number in range(4)))
    values = [0.0, 1.0, 2.0, 3.0]
    std = np.std(values, ddof=1)
    expected = {
        Band.STD: (1.5, 1.5 + std, 1.5 - std),
        Band.SEM: (1.5, 1.5 + std / 2, 1.5 - std / 2),
        Band.MINMAX: (1.5, 3.0, 0.0),
        Band.QUARTILES: (1.5, *np.quantile(values, [0.75, 0.25])),
    }
    for band, numbers in expected.items():
        for one, number in zip((Line.MIDDLE, Line.UPPER, Line.LOWER), numbers, strict=True):
            found = line(index, members, one, band)
            assert found == {0: pytest.approx(number), 1: pytest.approx(2 * number)}
    assert line(index, members, Line.COUNT) == {0: 4, 1: 4}


def test_steps_that_differ_are_interpolated_and_members_counted(tmp_path, index):
    write(tmp_path / "a", [0.0, 4.0, 8.0], [0, 2, 4])
    write(tmp_path / "b", [1.0, 3.0], [1, 3])
    members = tags(index, tmp_path / "a", tmp_path / "b")
    assert line(index, members) == {0: 0.0, 1: 1.5, 2: 3.0, 3: 4.5, 4: 8.0}
    assert line(index, members, Line.COUNT) == {0: 1, 1: 2, 2: 2, 3: 2, 4: 1}
    # One member alone has no deviation.
    assert list(line(index, members, Line.UPPER)) == [1, 2, 3]


def test_new_points_and_deleted_members(tmp_path, index):
    write(tmp_path / "a", [1.0])
    write(tmp_path / "b", [3.0])
    before = tags(index, tmp_path / "a", tmp_path / "b")
    assert line(index, before) == {0: 2.0}
    write(tmp_path / "b", [5.0], [1])
    assert line(index, tags(index, tmp_path / "a", tmp_path / "b")) == {0: 2.0, 1: 5.0}
    delete(index, tmp_path / "a")
    assert line(index, before) == {0: 3.0}
    delete(index, tmp_path / "b")
    with pytest.raises(UnknownName):
        line(index, before)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), min_size=1, max_size=5))
def test_long_curves_are_computed_in_blocks_and_thinned(members):
    series = [
        Series(np.arange(len(one)), np.arange(len(one)) * 1.0, np.array(one)) for one in members
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_BLOCK_VALUES", 7)
        patched.setattr(module, "KEPT_POINTS", 20)
        found = compute(series)
    longest = max(map(len, members))
    assert len(found.steps) == min(longest, 20)
    for place, step in enumerate(found.steps.tolist()):
        values = [one[step] for one in members if step < len(one)]
        assert found.statistics.count[place] == len(values)
        assert found.statistics.mean[place] == pytest.approx(np.mean(values), abs=1e-6)
    if len(members) == 1:
        assert found.statistics.max.max() == max(members[0])


def test_members_with_very_many_points_are_sampled(tmp_path, index, monkeypatch):
    monkeypatch.setattr(module, "MOST_POINTS", 20)
    for name, spike in (("a", 70), ("b", 30)):
        values = np.zeros(100)
        values[spike] = 8.0
        write(tmp_path / name, values.tolist())
    members = tags(index, tmp_path / "a", tmp_path / "b")
    found = line(index, members, Line.UPPER, Band.MINMAX)
    assert len(found) <= 20
    assert {found[30], found[70]} == {8.0}
