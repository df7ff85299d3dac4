"""What differs between two groups of runs, and the conditions that make it a failure."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.index.comparison import Condition, MetricRow, Sample, differing
from aboard.runs.question import BadQuestion, Field, parse_field

ACC = Field("eval/acc", "metrics", "max")


def row(a, b):
    return MetricRow(ACC, Sample(tuple(a)), Sample(tuple(b)))


numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8)


@given(a=numbers, b=numbers)
def test_means_deviations_and_differences_are_those_of_numpy(a, b):
    found = row(a, b)
    assert found.a.mean == pytest.approx(np.mean(a), abs=1e-6)
    assert found.difference == pytest.approx(np.mean(b) - np.mean(a), abs=1e-6)
    if len(a) > 1:
        assert found.a.std == pytest.approx(np.std(a, ddof=1), abs=1e-3)
    else:
        assert found.a.std is None
    assert (found.p is None) == (min(len(a), len(b)) < 2)


def test_percent_of_the_first():
    assert row([2.0], [1.0]).percent == -50
    assert row([-2.0], [-1.0]).percent == 50
    assert row([0.0], [0.0]).percent == 0
    assert row([0.0], [-1.0]).percent == -math.inf
    assert row([], [1.0]).percent is None
    assert row([1.0, math.nan], [1.0, 2.0]).p is None


def test_hyperparameters_that_differ():
    a = [{"lr": 0.1, "depth": 18, "seed": 1}, {"lr": 0.1, "depth": 18, "seed": 2}]
    b = [{"lr": 0.01, "depth": 18, "seed": 2}, {"lr": 0.01, "depth": 18, "seed": 1, "new": [1]}]
    assert differing(a, b) == [("lr", (0.1,), (0.01,)), ("new", (), ([1],))]


@pytest.mark.parametrize(
    ("text", "a", "b", "holds"),
    [
        ('metrics["eval/acc"].max < -0.5%', 1.0, 0.99, True),
        ('metrics["eval/acc"].max < -0.5%', 1.0, 0.996, False),
        ("metrics.eval/acc.max<-.5 %", 1.0, 0.99, True),
        ("metrics.loss >= 1e-1", 1.0, 1.1, True),
        ("metrics.loss > 0.2", 1.0, 1.1, False),
        ("metrics.loss <= -1", 0.0, -1.0, True),
        ("metrics.loss > 10%", 0.0, 1.0, True),
        ("metrics.loss > 10%", 1.0, math.nan, True),  # it diverged
    ],
)
def test_conditions(text, a, b, holds):
    condition = Condition.parse(text)
    assert condition.holds(row([a], [b])) is holds
    assert condition.holds(row([a], []))  # nothing shows that all is well


def test_the_field_of_a_condition():
    assert Condition.parse('metrics["a<b"].last > 3').field == parse_field('metrics["a<b"]')
    assert Condition.parse("metrics.eval/acc.max < 1").field == ACC


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metrics.loss", "one of the signs"),
        ("metrics.loss == 1", "one of the signs"),
        ("hparams.lr < 1", "'hparams.lr' is not a metric"),
        ("metrics.loss < fast", "comes a number"),
        ("metrics.loss < ", "comes a number"),
        ("mertics.loss < 1", "Did you mean 'metrics'"),
    ],
)
def test_what_is_not_a_condition(text, message):
    with pytest.raises(BadQuestion, match=message):
        Condition.parse(text)
