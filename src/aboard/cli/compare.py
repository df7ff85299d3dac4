"""`aboard compare`: two runs, or two groups of runs, side by side.

A group may be one run. The value of a metric in a group is the mean over its runs; Welch's test
decides whether two means differ by more than chance.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from aboard.cli.completion import Completer, metrics_like, selectors_like
from aboard.cli.console import (
    FAILURE,
    JsonOption,
    WrongUsage,
    examples,
    json_number,
    notify,
    print_json,
    table,
)
from aboard.cli.runs import written
from aboard.cli.sources import RootOption, check_each, matches, read_runs, select_runs
from aboard.runs import RunsError, nearest
from aboard.runs.naming import AT, GROUPS, RUN_FIELDS
from aboard.runs.question import (
    BadQuestion,
    Field,
    Place,
    Question,
    UnknownField,
    parse_field,
)
from aboard.runs.units import counted

if TYPE_CHECKING:
    from aboard.index.library import Library
    from aboard.runs.catalog import KnownRun

EPILOG = examples(
    "`aboard compare cifar10/run1 cifar10/run2` - what differs between two runs",
    "`aboard compare tag:baseline job:2300 --metric 'eval/*'` - two groups, with a test",
    "`aboard compare tag:baseline cifar10/run9 --fail-if 'metrics[\"eval/acc\"].max < -0.5%'` -"
    " for continuous integration",
)
_STATISTICS = ("last", "min", "max")
_NOTHING = "-"

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


def _side(name: str) -> Any:
    return typer.Argument(
        metavar=name,
        help="A run or a group of runs: selectors, separated by commas.",
        show_default=False,
    )


def compare(
    a: Annotated[str, _side("A"), Completer(selectors_like)],
    b: Annotated[str, _side("B"), Completer(selectors_like)],
    root: RootOption = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC",
            help="Only metrics that match, such as 'eval/*', or one of last, min, max, mean, first"
            " and count of one: eval/acc.max; may be repeated.",
        ),
        Completer(metrics_like),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Exit with code 1 if B differs from A by less, or by more, than an amount:"
            " 'metrics[\"eval/acc\"].max < -0.5%'; may be repeated.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare two runs or two groups of runs: hyperparameters and metrics that differ."""
    from aboard.index import Index
    from aboard.index.library import Library

    _conditions(fail_if or (), None)  # report invalid ones before anything is read
    with Index() as index:
        sides = [select_runs(index, [text], root or ()) for text in (a, b)]
        runs = list({run.uri: run for side in sides for run in side.runs}.values())
        library = Library(index, {uri: None for side in sides for uri in side.roots})
        problems = [one for side in sides for one in side.problems] + read_runs(library, runs)
        names = library.names("metrics", runs)
        fields = _fields(metric or (), names)
        conditions = _conditions(fail_if or (), names)
        for one in conditions:
            _check(f"--fail-if '{one.text}'", one.field, names)
        compared = list(dict.fromkeys([*fields, *(one.field for one in conditions)]))
        groups = [_values(library, side.runs, compared) for side in sides]
        # Again: event files may have more hyperparameters than records.
        hparams = differing(*([run.hparams for run in side.runs[:]] for side in sides))
    rows = {row.field: row for row in metric_rows(compared, *groups)}
    failed = [one for one in conditions if one.holds(rows[one.field])]
    shown = [rows[one] for one in fields if rows[one].a.count or rows[one].b.count]
    if json:
        print_json(
            {
                "a": {"selector": a, "runs": [run.label for run in sides[0].runs]},
                "b": {"selector": b, "runs": [run.label for run in sides[1].runs]},
                "hparams": [{"name": row.name, "a": row.a, "b": row.b} for row in hparams],
                "metrics": [_document(row) for row in shown],
                "failed": [one.text for one in failed],
            }
        )
    else:
        _print(a, b, [len(side.runs) for side in sides], hparams, shown)
    for one in failed:
        notify(f"{one.text}: {_why(rows[one.field], one)}")
    if failed or problems:
        raise typer.Exit(FAILURE)


def _conditions(texts: Sequence[str], names: Sequence[str] | None) -> list[Condition]:
    """Parse conditions; bare names are left out until the metrics of the runs are known."""
    found = []
    for text in texts:
        try:
            found.append(Condition.parse(text))
        except UnknownField as error:
            if names is None:
                continue
            suggesting = error.suggest({"metrics": names})
            if suggesting is error:
                _check(f"--fail-if '{text}'", parse_field(f"metrics.{error.name}"), names)
            raise WrongUsage(f"--fail-if '{text}': {suggesting}") from None
        except RunsError as error:
            raise WrongUsage(f"--fail-if '{text}': {error}") from None
    return found


def _check(option: str, field: Field, names: Sequence[str]) -> None:
    try:
        Question(group_by=(field,)).check_names({"metrics": names})
    except BadQuestion as error:
        raise WrongUsage(f"{option}: {error}") from None


def _statistic(field: Field) -> str:
    return f"{AT}({field.step})" if field.statistic == AT else field.statistic


def _fields(patterns: Sequence[str], names: Sequence[str]) -> list[Field]:
    """Return the fields to compare: statistics of all metrics, or those that match patterns."""
    if not patterns:
        return [Field(name, "metrics", one) for name in names for one in _STATISTICS]
    found = []
    for text in patterns:
        if text not in names and not any(matches(name, [text]) for name in names):
            try:
                field = parse_field(text if text.startswith("metrics[") else f"metrics.{text}")
            except RunsError as error:
                raise WrongUsage(f"--metric '{text}': {error}") from None
            if field.name in names:
                found.append(field)
                continue
            if field.name.rpartition(".")[0] in names:  # an unknown statistic
                _check(f"--metric '{text}'", field, names)
        check_each("metric", [text], names)
        chosen = (
            [text] if text in names else sorted(name for name in names if matches(name, [text]))
        )
        found += [Field(name, "metrics", one) for name in chosen for one in _STATISTICS]
    return list(dict.fromkeys(found))


def _values(
    library: Library, runs: Sequence[KnownRun], fields: Sequence[Field]
) -> dict[Field, list[float]]:
    found = {}
    for one in fields:
        values = library.values(one, runs)
        found[one] = [float(value) for value in values if isinstance(value, (int, float))]
    return found


def _document(row: MetricRow) -> dict[str, Any]:
    return {
        "metric": row.field.name,
        "statistic": row.field.statistic,
        "step": row.field.step if row.field.statistic == AT else None,
        **{
            side: {
                "mean": json_number(sample.mean) if sample.count else None,
                "std": json_number(sample.std),
                "count": sample.count,
            }
            for side, sample in (("a", row.a), ("b", row.b))
        },
        "difference": json_number(row.difference),
        "percent": json_number(row.percent),
        "p": json_number(row.p),
    }


def _print(
    a: str,
    b: str,
    counts: Sequence[int],
    hparams: Sequence[Any],
    rows: Sequence[MetricRow],
) -> None:
    typer.echo(f"A  {a}: {counted(counts[0], 'run')}")
    typer.echo(f"B  {b}: {counted(counts[1], 'run')}")
    if hparams:
        cells = [[row.name, *(_listed(side) for side in (row.a, row.b))] for row in hparams]
        typer.echo("\n" + table(["HPARAM", "A", "B"], cells, left=3))
    else:
        typer.echo("\nTheir hyperparameters do not differ.")
    if not rows:
        typer.echo("\nThey have no metrics.")
        return
    is_tested = any(row.p is not None for row in rows)
    heads = ["METRIC", "", "A", "B", "B - A", "%", *(["P"] if is_tested else [])]
    cells = []
    for row in rows:
        cell = [row.field.name, _statistic(row.field), _sample(row.a), _sample(row.b)]
        cell += [_signed(row.difference), _percent(row.percent)]
        cells.append([*cell, *([_p_text(row.p)] if is_tested else [])])
    typer.echo("\n" + table(heads, cells, left=2))


def _listed(values: Sequence[Any]) -> str:
    shown = ", ".join(written(value) for value in values[:5])
    return f"{shown}, …" if len(values) > 5 else shown or _NOTHING


def _sample(sample: Sample) -> str:
    if not sample.count:
        return _NOTHING
    if sample.std is None:
        return written(sample.mean)
    return f"{written(sample.mean)} ± {sample.std:.2g} ({sample.count})"


def _signed(number: float | None, digits: int = 6) -> str:
    return _NOTHING if number is None else f"{number:+.{digits}g}"


def _percent(number: float | None) -> str:
    if number is not None and 100 <= abs(number) < 1e6:
        return f"{number:+,.0f}"
    return _signed(number, digits=3)


def _p_text(p: float | None) -> str:
    return _NOTHING if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def _why(row: MetricRow, condition: Condition) -> str:
    if row.difference is None:
        return f"{'A' if not row.a.count else 'B'} has no value for it."
    change = f"{_percent(row.percent)}%" if condition.relative else f"{row.difference:+.6g}"
    return f"it changed from {row.a.mean:.6g} to {row.b.mean:.6g} ({change})."


# What differs, and the conditions on it.


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
        return welch(self.a.values, self.b.values)


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
        found = _metric(parts[1], text)
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


def _metric(text: str, condition: str) -> Field:
    """Parse the metric of a condition; for a bare name, suggest how to write it."""
    word = text.strip()
    group = re.split(r"[.\[]", word, maxsplit=1)[0]
    if group == "metrics":
        return parse_field(word)
    hint, at = _EXAMPLE, Place(0, len(text.rstrip()))
    message = f"{word!r} is not a metric."
    if group != word and nearest(group, ["metrics"]):
        hint = "Did you mean 'metrics'?"
    elif group not in GROUPS and word not in RUN_FIELDS:
        try:
            hint = f"Write {parse_field(f'metrics.{word}')} {condition[len(text) :].strip()}"
        except BadQuestion:
            pass
        else:
            raise UnknownField(message, hint, name=word, text=condition, at=at)
    raise BadQuestion(message, hint, text=condition, at=at)


# Welch's test.


_TINY = 1e-300
_MOST_TERMS = 10_000


def welch(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the p-value of Welch's t-test, which allows different variances.

    It is the probability of a difference at least this large if the means are equal: without any
    variance, 1 or 0. Both groups need at least two values; None if it cannot be computed.
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
        return 0.0 if difference else 1.0
    t = difference / math.sqrt(error)
    freedom = 1 / sum(
        (part / error) ** 2 / (len(group) - 1)
        for part, group in zip(errors, (one, other), strict=True)
    )
    return t_tails(t, freedom)


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
