"""Down-sampling, restarts, and records read from the event files that hold them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.events import encode
from aboard.events.writer import EventWriter
from aboard.index import Source
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
