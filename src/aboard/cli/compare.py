"""`aboard compare`: two runs, or two groups of runs, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aboard.cli.completion import selectors_like
from aboard.cli.console import (
    FAILURE,
    JsonOption,
    WrongUsage,
    counted,
    examples,
    json_number,
    notify,
    print_json,
    table,
)
from aboard.cli.runs import written
from aboard.cli.sources import RootOption, check_each, matches, read_runs, select_runs
from aboard.runs import RunsError

if TYPE_CHECKING:
    from aboard.index.comparison import Condition, MetricRow, Sample
    from aboard.index.library import Library
    from aboard.runs.catalog import KnownRun
    from aboard.runs.question import Field

EPILOG = examples(
    "`aboard compare cifar10/run1 cifar10/run2` - what differs between two runs",
    "`aboard compare tag:baseline job:2300 --metric 'eval/*'` - two groups, with a test",
    "`aboard compare tag:baseline cifar10/run9 --fail-if 'metrics[\"eval/acc\"].max < -0.5%'` -"
    " for continuous integration",
)
_STATISTICS = ("last", "min", "max")
_NOTHING = "-"

Side = Annotated[
    str,
    typer.Argument(
        help="A run or a group of runs: selectors, separated by commas.",
        show_default=False,
        autocompletion=selectors_like,
    ),
]


def compare(
    a: Side,
    b: Side,
    root: RootOption = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC",
            help="Only metrics that match, such as 'eval/*', or one of last, min, max, mean, first"
            " and count of one: eval/acc.max; may be repeated.",
        ),
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
    from aboard.index.comparison import differing, metric_rows
    from aboard.index.library import Library

    conditions = [_condition(one) for one in fail_if or ()]
    with Index() as index:
        sides = [select_runs(index, [text], root or ()) for text in (a, b)]
        runs = list({run.uri: run for side in sides for run in side.runs}.values())
        library = Library(index, {uri: None for side in sides for uri in side.roots})
        problems = [one for side in sides for one in side.problems] + read_runs(library, runs)
        names = library.names("metrics", runs)
        fields = _fields(metric or (), names)
        for one in conditions:
            if one.field.name not in names:
                near = get_close_matches(one.field.name, names, n=1)
                guess = f" Did you mean {near[0]!r}?" if near else ""
                problem = f"no run has a metric {one.field.name!r}."
                raise WrongUsage(f"--fail-if '{one.text}': {problem}{guess}")
        wanted = list(dict.fromkeys([*fields, *(one.field for one in conditions)]))
        groups = [_values(library, side.runs, wanted) for side in sides]
    rows = {row.field: row for row in metric_rows(wanted, *groups)}
    hparams = differing(*([run.hparams for run in side.runs] for side in sides))
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


def _condition(text: str) -> Condition:
    from aboard.index.comparison import Condition

    try:
        return Condition.parse(text)
    except RunsError as error:
        raise WrongUsage(f"--fail-if '{text}': {error}") from None


def _fields(patterns: Sequence[str], names: Sequence[str]) -> list[Field]:
    """Return the fields to compare: statistics of all metrics, or those that match patterns."""
    from aboard.runs.question import Field, parse_field

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
        cell = [row.field.name, row.field.statistic, _sample(row.a), _sample(row.b)]
        cell += [_signed(row.difference), _percent(row.percent)]
        cells.append([*cell, *([_chance(row.p)] if is_tested else [])])
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


def _chance(p: float | None) -> str:
    return _NOTHING if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def _why(row: MetricRow, condition: Condition) -> str:
    if row.difference is None:
        return f"{'A' if not row.a.count else 'B'} has no value of it."
    change = f"{_percent(row.percent)}%" if condition.relative else f"{row.difference:+.6g}"
    return f"it changed from {row.a.mean:.6g} to {row.b.mean:.6g} ({change})."
