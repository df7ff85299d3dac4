"""Two groups of runs side by side: hyperparameters and metrics that differ.

A group may be one run. What a metric is in a group is the mean of its runs. Reading the values is
left to the caller.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from aboard.index.derived import welch
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
        """How much more it is in the second group; None if a group does not have it."""
        return self.b.mean - self.a.mean if self.a.count and self.b.count else None

    @property
    def percent(self) -> float | None:
        """The difference in percent of the first group's."""
        if self.difference is None:
            return None
        if self.a.mean:
            return 100 * self.difference / abs(self.a.mean)
        return self.difference if not self.difference else math.copysign(math.inf, self.difference)

    @cached_property
    def p(self) -> float | None:
        """Welch's test: how likely such a difference is by chance; None for single runs."""
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
    """Return the hyperparameters whose values are not the same in both groups."""
    names = dict.fromkeys(name for hparams in (*a, *b) for name in hparams)
    rows = [HparamRow(name, _distinct(name, a), _distinct(name, b)) for name in names]
    return [row for row in rows if set(map(repr, row.a)) != set(map(repr, row.b))]


def _distinct(name: str, group: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    values = {repr(one[name]): one[name] for one in group if name in one}
    return tuple(values.values())


@dataclass(frozen=True)
class Condition:
    """What must not be: a difference beyond an amount, in percent of the first group's or not."""

    text: str
    field: Field
    sign: str
    amount: float
    relative: bool

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse `metrics["eval/acc"].max < -0.5%`.

        Raises:
            BadQuestion: it is something else.
        """
        parts = _CONDITION.fullmatch(text)
        if parts is None:
            raise BadQuestion("a condition has one of the signs <, <=, >, >=.", _EXAMPLE, text=text)
        found = parse_field(parts[1])
        if found.group != "metrics":
            raise BadQuestion(
                f"{str(found)!r} is not a metric.", _EXAMPLE, text=text, at=Place(0, len(parts[1]))
            )
        amount = _AMOUNT.fullmatch(parts[3])
        if amount is None:
            raise BadQuestion(
                "after the sign comes a number, or one with %.",
                _EXAMPLE,
                text=text,
                at=Place(parts.start(3), max(parts.end(3), parts.start(3) + 1)),
            )
        return cls(text.strip(), found, parts[2], float(amount[1]), bool(amount[2]))

    def holds(self, row: MetricRow) -> bool:
        """Return whether a difference is beyond the amount; one that is not a number is."""
        change = row.percent if self.relative else row.difference
        return change is None or math.isnan(change) or _SIGNS[self.sign](change, self.amount)
