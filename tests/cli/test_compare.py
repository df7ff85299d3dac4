"""`aboard compare`: what differs between runs and groups, and what it makes of conditions."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard import EventWriter, SummaryWriter
from aboard.cli.compare import (
    Condition,
    MetricRow,
    Sample,
    _percent,
    differing,
    incomplete_beta,
    t_tails,
    welch,
)
from aboard.runs.manifest import Manifest
from aboard.runs.question import BadQuestion, Field, parse_field


def log(root, label, accuracy, *, stage="eval", **fields):
    experiment, _, name = label.rpartition("/")
    directory = root / label
    with EventWriter(directory / stage) as writer:
        for step, value in enumerate(accuracy):
            writer.scalar("acc", value, step, dtype="float64")
    record = Manifest(name, experiment, **fields)
    (directory / "run.json").write_bytes(record.to_json())


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "runs"
    old, new = {"lr": 0.1, "depth": 18}, {"lr": 0.01, "depth": 18}
    log(root, "old/run1", [0.5, 0.9, 0.8], hparams=old, metrics={"speed": 7})
    log(root, "old/run2", [0.5, 0.92, 0.82], hparams=old)
    log(root, "new/run1", [0.5, 0.7, 0.6], hparams=new, metrics={"speed": 8})
    log(root, "new/run2", [0.5, 0.72, 0.62], hparams=new)
    return root


def rows(result):
    return {(row["metric"], row["statistic"]): row for row in json.loads(result.out)["metrics"]}


def test_two_runs(aboard, root):
    result = aboard("compare", "old/run1", "new/run1")
    assert result.code == 0, result.err
    words = [line.split() for line in result.out.splitlines()]
    assert ["A", "old/run1:", "1", "run"] in words
    assert ["lr", "0.1", "0.01"] in words
    assert ["eval/acc", "max", "0.9", "0.7", "-0.2", "-22.2"] in words
    assert ["speed", "last", "7", "8", "+1", "+14.3"] in words
    assert "depth" not in result.out


def test_a_large_change_is_written_in_full():
    shown = {4240.4: "+4,240", -123456.0: "-123,456", 99.96: "+100", 5e9: "+5e+09", None: "-"}
    assert {number: _percent(number) for number in shown} == shown


def test_two_groups_have_a_test(aboard, root):
    found = rows(aboard("compare", "old", "new", "--json"))
    best = found["eval/acc", "max"]
    assert best["a"] == {"mean": 0.91, "std": pytest.approx(0.0141421, rel=1e-5), "count": 2}
    assert best["difference"] == pytest.approx(-0.2)
    assert best["percent"] == pytest.approx(-21.978, abs=1e-3)
    # t² is 200, with 2 degrees of freedom, whose tails have a closed form
    assert best["p"] == pytest.approx(1 - math.sqrt(200 / 202), rel=1e-6)
    assert found["speed", "last"]["p"] is None
    text = aboard("compare", "old", "new").out
    assert "0.91 ± 0.014 (2)" in text
    assert "0.005" in text


def test_chosen_metrics(aboard, root):
    log(root, "old/run1", [1.0], stage="train")
    some = rows(aboard("compare", "old", "new", "--metric", "eval/*", "--json"))
    assert set(some) == {("eval/acc", one) for one in ("last", "min", "max")}
    for text in ("eval/acc.mean", 'metrics["eval/acc"].mean'):
        (one,) = rows(aboard("compare", "old", "new", "--metric", text, "--json")).items()
        assert one[0] == ("eval/acc", "mean")
    at = rows(aboard("compare", "old", "new", "--metric", "eval/acc.at(1)", "--json"))
    assert at["eval/acc", "at"]["a"]["mean"] == pytest.approx(0.91)
    assert at["eval/acc", "at"]["step"] == 1
    assert "at(1)" in aboard("compare", "old", "new", "--metric", "eval/acc.at(1)").out
    wrong = aboard("compare", "old", "new", "--metric", "eval/ac")
    assert wrong.code == 1
    assert "no metric matches --metric 'eval/ac'; did you mean 'eval/acc'?" in wrong.err


def test_directories_without_records(aboard, tmp_path):
    for name, value in (("a", 1.0), ("b", 2.0)):
        with EventWriter(tmp_path / "logs" / name) as writer:
            writer.scalar("loss", value, 0)
    result = aboard("compare", "./logs/a", "./logs/b", "--json")
    assert rows(result)["loss", "last"]["difference"] == 1.0


def test_hyperparameters_from_event_files_are_compared_the_first_time(aboard, tmp_path):
    for name, lr in (("a", 0.1), ("b", 0.2)):
        with SummaryWriter(tmp_path / "logs" / name) as writer:
            writer.add_hparams({"lr": lr}, {"loss": 1.0})
    result = aboard("compare", "./logs/a", "./logs/b", "--json")
    assert json.loads(result.out)["hparams"] == [{"name": "lr", "a": [0.1], "b": [0.2]}]


def test_conditions_decide_the_exit_code(aboard, root):
    worse = 'metrics["eval/acc"].max < -0.5%'
    failed = aboard("compare", "old", "new", "--fail-if", worse)
    assert failed.code == 1
    assert f"{worse}: it changed from 0.91 to 0.71 (-22%)." in failed.err
    assert aboard("compare", "new", "old", "--fail-if", worse).code == 0
    both = ("--fail-if", worse, "--fail-if", "metrics.speed > 0.5")
    found = aboard("compare", "new", "old", *both, "--json")
    assert (found.code, json.loads(found.out)["failed"]) == (0, [])
    found = aboard("compare", "old", "new", *both, "--json")
    assert (found.code, json.loads(found.out)["failed"]) == (1, [worse, "metrics.speed > 0.5"])


def test_a_metric_that_is_missing_does_not_pass(aboard, root):
    log(root, "bare/run1", [0.9], stage="train")
    result = aboard("compare", "old", "bare", "--fail-if", 'metrics["eval/acc"] < 0')
    assert result.code == 1
    assert "B has no value for it." in result.err
    result = aboard("compare", "old", "bare", "--fail-if", 'metrics["eval/ac"] < 0')
    assert result.code == 2
    assert "no run has a metric 'eval/ac'. Did you mean 'eval/acc'?" in result.err


def test_an_unknown_statistic_of_a_metric(aboard, root):
    for option, text in (
        ("--metric", "eval/acc.median"),
        ("--fail-if", "metrics.eval/acc.median<1"),
    ):
        result = aboard("compare", "old", "new", option, text)
        assert result.code == 2
        assert (
            f"{option} '{text}': unknown statistic 'median' of the metric 'eval/acc'." in result.err
        )
        assert "Known: last, min, max, mean, first, count" in result.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eval/acc.max < -0.5%", "'eval/acc.max' is not a metric. Did you mean metrics.eval/acc"),
        ("sped < 3", "'sped' is not a metric. Did you mean metrics.speed?"),
        ("speed.lst < 3", "'speed.lst' is not a metric. Did you mean metrics.speed.last?"),
        ("speed.p99 < 3", "Did you mean metrics.speed? Statistics: last, min, max,"),
        ("nothing < 3", "no run has a metric 'nothing'. The metrics are eval/acc, "),
    ],
)
def test_a_bare_name_in_a_condition_is_suggested_as_a_metric(aboard, root, text, message):
    result = aboard("compare", "old", "new", "--fail-if", text)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_wrong_usage(aboard, root):
    result = aboard("compare", "old", "new", "--fail-if", "metrics.loss")
    assert (result.code, "'metrics.loss': a condition needs one of" in result.err) == (2, True)
    result = aboard("compare", "old", "newer")
    assert (result.code, "'newer' matches no run. The nearest is 'new'." in result.err) == (1, True)
    assert aboard("compare", "old").code == 2


# What differs between two groups of runs, and the conditions that make it a failure.


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
    assert welch(one, other) == pytest.approx(0.14884, abs=1e-5)
    assert welch([1.0], [2.0, 3.0]) is None
    assert welch([1e300, -1e300], [1.0, 2.0]) is None
    assert welch([0.0, 0.0], [0.0, 1e-110]) == pytest.approx(0.5)
    assert welch([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert welch([1.0, 1.0], [2.0, 2.0]) == 0.0
