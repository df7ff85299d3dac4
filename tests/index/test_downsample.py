"""Down-sampling keeps what a person would see."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.index.downsample import downsample

series = st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=300)


@given(values=series, limit=st.integers(1, 120))
def test_few_enough_points_in_order_with_both_ends(values, limit):
    places = downsample(np.array(values), limit)
    assert len(places) <= limit
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
    assert len(kept) <= 1000
    assert {123_456, 777_777} <= set(kept.tolist())


def test_a_short_series_is_kept_whole():
    assert downsample(np.arange(10.0), 10).tolist() == list(range(10))


def test_a_series_of_nan_alone():
    places = downsample(np.full(100, math.nan), 20)
    assert places[0] == 0
    assert places[-1] == 99


def test_no_points_at_all_is_refused():
    with pytest.raises(ValueError, match="down to 0 points"):
        downsample(np.zeros(3), 0)
