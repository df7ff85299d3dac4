"""Compares reading, queries and logging with TensorBoard's backends and writers.

    python bench/run.py [--quick] [--only CASE]... [--engine NAME]... [--json FILE] [--times N]
                        [--minutes N]

Prints a Markdown table per case: seconds, CPU time, peak memory, and how many times as long as
ours each contender takes. All contenders read from a warm page cache and take turns. Ratios and
targets use the `best` time, since other load only adds time. CPU is the CPU time of all processes
and threads. The load average printed after each case includes the benchmark itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
from importlib.metadata import version
from pathlib import Path

import cases
import catalogs
import engines
import hubs
import pages
import proxying
import shipping
import tracking
import views
from cases import FULL, QUICK, Figures, Result

CASES = cases.CASES | views.CASES | tracking.CASES | shipping.CASES | proxying.CASES | hubs.CASES
CASES |= engines.CASES | catalogs.CASES | pages.CASES


def default_cache() -> Path:
    """Return the directory that keeps trees between runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "aboard-dev" / "bench"


def versions() -> dict[str, str]:
    """Return the versions that figures depend on."""
    packages = ("aboard", "tensorboard", "tensorboard-data-server", "numpy", "protobuf")
    found = {package: version(package) for package in packages}
    return {
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **found,
    }


def seconds(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f} s"
    return f"{value:.2f} s" if value >= 0.1 else f"{value * 1000:.2f} ms"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return an aligned Markdown table."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = [[heads[i].ljust(widths[i]) for i in range(len(heads))]]
    lines.append(["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    lines += [
        [row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in range(1, len(heads)))]
        for row in rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def row(name: str, figures: Figures, ours: Figures | None) -> list[str]:
    ratio = f"{figures.best / ours.best:.2f}" if ours else ""
    peak = f"{figures.peak_mib:,.0f} MiB" if figures.peak_mib else ""
    cpu = seconds(figures.cpu) if figures.cpu else ""
    times = [seconds(figures.best), seconds(figures.median)]
    return [name, *times, ratio, cpu, peak, figures.note]


def text(result: Result, *, judged: bool) -> str:
    """Return a case as Markdown; with its targets if `judged`."""
    ours = result.contenders.get(result.ours)
    heads = ["", "best", "median", "times ours", "CPU", "peak memory", "note"]
    rows = [row(name, figures, ours) for name, figures in result.contenders.items()]
    used = [i for i in range(len(heads)) if i == 0 or any(one[i] for one in rows)]
    parts = [
        f"## {result.title}",
        table([heads[i] for i in used], [[one[i] for i in used] for one in rows]),
        *result.notes,
    ]
    if result.targets and judged:
        lines = [
            f"- {'met' if one.met else 'MISSED'}: {one.name} {one.measured:.2f}"
            f" (wanted: {'at least' if one.at_least else 'at most'} {one.wanted:g})"
            for one in result.targets
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny trees, measured once: a smoke test"
    )
    parser.add_argument(
        "--only", action="append", choices=CASES, help="run this case; can be repeated"
    )
    parser.add_argument("--times", type=int, help="measurements per contender")
    parser.add_argument(
        "--minutes", type=float, help="minutes that a page of the console stays open"
    )
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument(
        "--cache", type=Path, default=default_cache(), help="directory that keeps trees"
    )
    parser.add_argument(
        "--engine",
        action="append",
        choices=FULL.engines,
        help="in the case `engines`, measure this one; can be repeated",
    )
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    if options.times:
        sizes = sizes._replace(times=options.times)
    if options.minutes:
        sizes = sizes._replace(live_minutes=options.minutes)
    if options.engine:
        sizes = sizes._replace(engines=tuple(options.engine))
    results = {}
    print(", ".join(f"{name} {value}" for name, value in versions().items()), flush=True)
    for name in options.only or CASES:
        print(f"{name} ...", file=sys.stderr)
        results[name] = CASES[name](sizes, options.cache)
        print(f"\n{text(results[name], judged=not options.quick)}", flush=True)
        print(f"\nLoad of the machine over the last minutes: {os.getloadavg()[1]:.1f}", flush=True)
    if options.json:
        document = {
            "versions": versions(),
            "quick": options.quick,
            "cases": {name: result.as_json() for name, result in results.items()},
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
