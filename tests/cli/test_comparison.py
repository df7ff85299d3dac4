"""What differs between two groups of runs, and the conditions that make it a failure."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.cli.compare import (
    Condition,
    MetricRow,
    Sample,
    differing,
    incomplete_beta,
    t_tails,
    welch,
)
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
        ("metrics.loss", "needs one of"),
        ("metrics.loss == 1", "needs one of"),
        ("hparams.lr < 1", "'hparams.lr' is not a metric"),
        ("metrics.loss < fast", "expected a number"),
        ("metrics.loss < ", "expected a number"),
        ("mertics.loss < 1", "Did you mean 'metrics'"),
        ("eval/acc.max < -0.5%", r'metric. Write metrics\["eval/acc"\].max < -0.5%$'),
        ("loss<1", "'loss' is not a metric. Write metrics.loss <1"),
        ("eval acc > 1", r'Write metrics\["eval acc"\] > 1'),
        ("state > 1", "'state' is not a metric. Example:"),
    ],
)
def test_what_is_not_a_condition(text, message):
    with pytest.raises(BadQuestion, match=message):
        Condition.parse(text)


@pytest.mark.parametrize(
    ("t", "freedom", "p"),  # from tables of the t-distribution, and its closed forms
    [
        (12.706204736, 1, 0.05),
        (4.302652730, 2, 0.05),
        (2.228138852, 10, 0.05),
        (3.169272673, 10, 0.01),
        (2.009575234, 49, 0.05),
        (1.979930405, 120, 0.05),
        (0.0, 5, 1.0),
        (math.inf, 5, 0.0),
        (1.0, 1, 0.5),
        (1e9, 1, 2 / math.pi * 1e-9),
    ],
)
def test_the_tails_of_the_t_distribution(t, freedom, p):
    assert t_tails(t, freedom) == pytest.approx(p, rel=1e-7)
    assert t_tails(-t, freedom) == pytest.approx(p, rel=1e-7)


@given(
    a=st.floats(0.1, 200), b=st.floats(0.1, 200), x=st.integers(0, 64).map(lambda part: part / 64)
)
def test_the_incomplete_beta_function_is_symmetric(a, b, x):
    assert incomplete_beta(a, b, x) == pytest.approx(1 - incomplete_beta(b, a, 1 - x), abs=1e-9)


def test_welch():
    # Unequal sizes and variances; the figures are in every description of the test.
    one = [17.2, 20.9, 22.6, 18.1, 21.7, 21.4, 23.5, 24.2, 14.7, 21.8]
    other = [
        21.5, 22.8, 21.0, 23.0, 21.6, 23.6, 22.5, 20.7, 23.4, 21.8,
        20.7, 21.7, 21.5, 22.5, 23.6, 21.5, 22.5, 23.5, 21.5, 21.8,
    ]  # fmt: skip
    found = welch(one, other)
    assert found.t == pytest.approx(1.5654, abs=1e-4)
    assert found.freedom == pytest.approx(9.9047, abs=1e-4)
    assert found.p == pytest.approx(0.14884, abs=1e-5)
    assert welch([1.0], [2.0, 3.0]) is None
    assert welch([1e300, -1e300], [1.0, 2.0]) is None
    assert welch([0.0, 0.0], [0.0, 1e-110]).p == pytest.approx(0.5)
    assert welch([1.0, 1.0], [1.0, 1.0]).p == 1.0
    assert welch([1.0, 1.0], [2.0, 2.0]).p == 0.0
