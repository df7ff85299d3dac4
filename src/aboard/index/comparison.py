"""Two groups of runs side by side: hyperparameters and metrics that differ.

A group may be one run. The value of a metric in a group is the mean over its runs; Welch's test
tells whether two means differ by more than chance. The caller reads the values.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from aboard.runs.question import BadQuestion, Field, Place, parse_field

Values = Mapping[Field, Sequence[float]]  # of the runs of a group that have the metric

_CONDITION = re.compile(r"(.*[^<>=])(<=|>=|<|>)([^<>=]*)", re.DOTALL)
_AMOUNT = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(%?)\s*")
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TINY = 1e-300
_MOST_TERMS = 10_000
_EXAMPLE = 'Example: metrics["eval/acc"].max < -0.5%'


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of a metric in a group, one for each run that has it."""

    values: tuple[float, ...]

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values) if self.values else math.nan

    @property
    def std(self) -> float | None:
        """The standard deviation of a sample; None for fewer than two runs."""
        if len(self.values) < 2:
            return None
        mean = self.mean
        squares = sum((value - mean) * (value - mean) for value in self.values)
        return math.sqrt(squares / (len(self.values) - 1))


@dataclass(frozen=True)
class MetricRow:
    """A statistic of a metric in both groups."""

    field: Field
    a: Sample
    b: Sample

    @property
    def difference(self) -> float | None:
        """The mean of the second group minus that of the first; None if a group has no values."""
        return self.b.mean - self.a.mean if self.a.count and self.b.count else None

    @property
    def percent(self) -> float | None:
        """The difference in percent of the first group's mean."""
        if self.difference is None:
            return None
        if self.a.mean:
            return 100 * self.difference / abs(self.a.mean)
        return self.difference if not self.difference else math.copysign(math.inf, self.difference)

    @cached_property
    def p(self) -> float | None:
        """The p-value of Welch's test; None for single runs and for values that are not finite."""
        values = (*self.a.values, *self.b.values)
        if not all(map(math.isfinite, values)):
            return None
        test = welch(self.a.values, self.b.values)
        return None if test is None else test.p


class HparamRow(NamedTuple):
    """A hyperparameter and its distinct values in both groups."""

    name: str
    a: tuple[Any, ...]
    b: tuple[Any, ...]


def metric_rows(fields: Sequence[Field], a: Values, b: Values) -> list[MetricRow]:
    return [MetricRow(one, Sample(tuple(a[one])), Sample(tuple(b[one]))) for one in fields]


def differing(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> list[HparamRow]:
    """Return the hyperparameters whose values differ between the groups."""
    names = dict.fromkeys(name for hparams in (*a, *b) for name in hparams)
    rows = [HparamRow(name, _distinct(name, a), _distinct(name, b)) for name in names]
    return [row for row in rows if set(map(repr, row.a)) != set(map(repr, row.b))]


def _distinct(name: str, group: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    values = {repr(one[name]): one[name] for one in group if name in one}
    return tuple(values.values())


@dataclass(frozen=True)
class Condition:
    """A limit on a difference; a relative one is in percent of the first group's mean."""

    text: str
    field: Field
    sign: str
    amount: float
    relative: bool

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse `metrics["eval/acc"].max < -0.5%`.

        Raises:
            BadQuestion: the text is not a condition.
        """
        parts = _CONDITION.fullmatch(text)
        if parts is None:
            raise BadQuestion("a condition needs one of <, <=, >, >=.", _EXAMPLE, text=text)
        found = parse_field(parts[1])
        if found.group != "metrics":
            raise BadQuestion(
                f"{str(found)!r} is not a metric.", _EXAMPLE, text=text, at=Place(0, len(parts[1]))
            )
        amount = _AMOUNT.fullmatch(parts[3])
        if amount is None:
            raise BadQuestion(
                "expected a number or a percentage after the sign.",
                _EXAMPLE,
                text=text,
                at=Place(parts.start(3), max(parts.end(3), parts.start(3) + 1)),
            )
        return cls(text.strip(), found, parts[2], float(amount[1]), bool(amount[2]))

    def holds(self, row: MetricRow) -> bool:
        """Return whether the condition is true of a difference; it is if there is none, or NaN."""
        change = row.percent if self.relative else row.difference
        return change is None or math.isnan(change) or _SIGNS[self.sign](change, self.amount)


# Welch's test.


class Welch(NamedTuple):
    """Welch's t-test for equal means of two groups, whose variances may differ."""

    t: float
    freedom: float
    p: float  # probability of a difference at least this large if the means are equal


def welch(one: Sequence[float], other: Sequence[float]) -> Welch | None:
    """Test the second group against the first; None if the test cannot be computed.

    Both need at least two values. Without variance in both groups, p is 1 for equal means, else 0.
    """
    if min(len(one), len(other)) < 2:
        return None
    means = [sum(group) / len(group) for group in (one, other)]
    errors = [
        sum((value - mean) * (value - mean) for value in group) / (len(group) - 1) / len(group)
        for group, mean in zip((one, other), means, strict=True)
    ]
    difference, error = means[1] - means[0], sum(errors)
    if not math.isfinite(error):
        return None
    if not error:
        if not difference:
            return Welch(0.0, len(one) + len(other) - 2.0, 1.0)
        return Welch(math.copysign(math.inf, difference), len(one) + len(other) - 2.0, 0.0)
    t = difference / math.sqrt(error)
    freedom = 1 / sum(
        (part / error) ** 2 / (len(group) - 1)
        for part, group in zip(errors, (one, other), strict=True)
    )
    return Welch(t, freedom, t_tails(t, freedom))


def t_tails(t: float, freedom: float) -> float:
    """Return the probability that a t-distributed number is at least as far from zero as `t`."""
    if math.isinf(t):
        return 0.0
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):  # where the fraction converges quickly
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, 1 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction by Lentz's method."""
    upper, lower = 1.0, _away_from_zero(1 - (a + b) * x / (a + 1))
    value = lower = 1 / lower
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            lower = 1 / _away_from_zero(1 + term * lower)
            upper = _away_from_zero(1 + term / upper)
            change = upper * lower
            value *= change
        if abs(change - 1) < 1e-15:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
