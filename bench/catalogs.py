"""Queries over very many runs: a hub over a catalog in the index, compared with MLflow.

Each run has 20 of about 190 hyperparameters (floats, integers, texts) and 20 metrics. The runs have
no files: their root does not exist, so a hub lists what the index holds.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import peers
import personal
from cases import MIB, Figures, Result, Sizes, Target
from personal import Hub

from aboard.index import Index, schema
from aboard.index.catalog import store_runs
from aboard.runs.catalog import KnownRun

ROOT = "/nowhere/aboard-bench"
CHECKOUT = Path(__file__).parents[1]
MLFLOW = Path(__file__).with_name("mlflow_runs.py")
_AT_ONCE = 50_000
_RARE = [f"p{number}" for number in range(185)]
_BEGIN = 1_700_000_000.0

SELECTIVE = {
    "where": 'hparams.lr < 0.0001 and hparams.opt == "adam"',
    "sort": "-metrics.m3",
    "limit": 100,
}
QUERIES: dict[str, tuple[str, dict[str, object]]] = {
    "first page": ("runs", {"limit": 100}),
    "filter, sort, first page": ("runs", SELECTIVE),
    "loose filter, sort, first page": (
        "runs",
        {"where": 'state == "completed"', "sort": "-metrics.m3", "limit": 100},
    ),
    "count": ("runs", {"where": "hparams.batch >= 64", "count": "true"}),
    "rare hyperparameter": ("runs", {"where": "hparams.p7 > 0.5", "limit": 100}),
    "group by": ("runs", {"group_by": "hparams.opt", "columns": "metrics.m1", "limit": 100}),
    "facet": ("runs/facets", {"field": "hparams.lr"}),
    "fields": ("runs/fields", {}),
    "deep page": ("runs", {"sort": "-metrics.m3", "limit": 100, "cursor": 5000}),
    "part of a name": ("runs", {"where": 'name ~ "run12*"', "limit": 100}),
}


def made_runs(count: int, start: int = 0) -> Iterator[KnownRun]:
    """Yield runs; the same arguments give the same runs."""
    for number in range(start, start + count):
        chance = random.Random(number)
        rare = chance.sample(_RARE, 15)
        hparams: dict[str, object] = {
            "lr": 10 ** chance.uniform(-5, -1),
            "batch": chance.choice([16, 32, 64, 128]),
            "opt": chance.choice(["adam", "sgd", "lion"]),
            "seed": number,
            "dropout": round(chance.random(), 2),
        }
        hparams |= {
            name: chance.choice([chance.random(), chance.randrange(100), "text"]) for name in rare
        }
        metrics = {f"m{at}": chance.random() for at in range(20)}
        is_done = chance.random() < 0.9
        began = _BEGIN + number
        yield KnownRun(
            ROOT,
            f"exp{number // 1000}/run{number}",
            f"exp{number // 1000}",
            f"run{number}",
            "completed" if is_done else "failed",
            job=str(number // 10),
            host=f"host{number % 50}",
            user=f"user{number % 20}",
            git_commit=f"{number % 3000:07x}",
            exit_code=0 if is_done else 1,
            created=began,
            started=began,
            ended=began + chance.uniform(10, 1e5),
            heartbeat=began + 10,
            hparams_json=json.dumps(hparams),
            tags_json='{"baseline": true}' if number % 7 == 0 else "{}",
            metrics_json=json.dumps(metrics),
        )


def catalog(count: int, cache: Path) -> Path:
    """Return a directory with an index of `count` runs; it is made once and kept."""
    place = cache / f"catalog-{count}-{schema.VERSION}"
    if not (place / "done").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        place.chmod(0o700)
        with Index(place / schema.FILE_NAME) as index:
            for start in range(0, count, _AT_ONCE):
                rows = [("", run) for run in made_runs(min(_AT_ONCE, count - start), start)]
                index._do(partial(store_runs, root=ROOT, rows=rows))
        (place / "done").touch()
    return place


def many_runs(sizes: Sizes, cache: Path) -> Result:
    """Query a hub with very many runs, and compare how the cost grows."""
    found: dict[str, Figures] = {}
    for count in sizes.catalogs:
        found |= _measure_queries(count, catalog(count, cache), sizes, cache)
    first, most = sizes.catalogs[0], sizes.catalogs[-1]
    growth = []
    for name in QUERIES:
        few, many = (found[f"{count:,} runs: {name}"].median for count in (first, most))
        growth.append(f"{name}: {many / few:.1f}")
    notes = [f"Time ratio for {most / first:g} times as many runs: {', '.join(growth)}."]
    targets = [
        Target(
            f"seconds, {most:,} runs: {name}, 99 of 100",
            0.1,
            _percentile_99(found, most, name),
            False,
        )
        for name in ("filter, sort, first page", "loose filter, sort, first page", "count")
    ]
    targets += [
        Target(
            f"seconds, {most:,} runs: {name}",
            0.2,
            found[f"{most:,} runs: {name}"].median,
            at_least=False,
        )
        for name in ("facet", "fields", "deep page")
    ]
    start = found[f"{most:,} runs: a hub starts and answers"]
    targets += [
        Target(f"seconds until a hub answers, {most:,} runs", 2, start.best, at_least=False),
        Target(f"MiB of a hub, {most:,} runs", 1024, start.peak_mib, at_least=False),
        Target(
            f"seconds, {first:,} runs: first page",
            0.03,
            found[f"{first:,} runs: first page"].median,
            at_least=False,
        ),
    ]
    if first >= 10_000 and (peer := _mlflow(first, sizes, cache)):
        found |= peer
        ours = found[f"{first:,} runs: filter, sort, first page"].best
        theirs = found[f"{first:,} runs: filter, sort, first page: mlflow"].best
        targets.append(Target("a filtered page, times as fast as mlflow", 20, theirs / ours))
    return Result("very many runs", found, targets=targets, notes=notes)


def _percentile_99(found: dict[str, Figures], count: int, name: str) -> float:
    every = sorted(found[f"{count:,} runs: {name}"].every)
    return every[int(len(every) * 0.99)] if every else 0.0


def _measure_queries(count: int, place: Path, sizes: Sizes, cache: Path) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    with peers.new_index(cache) as home:
        began = time.perf_counter()
        with personal.running(home, index=place, root=Path(ROOT)) as hub:
            total = hub.ask("GET", "/runs?limit=1")["total"]
            seconds = time.perf_counter() - began
            peers.check("the runs of a hub", total, count)
            for name, (path, query) in QUERIES.items():
                found[f"{count:,} runs: {name}"] = _time_query(hub, path, query, sizes.query_times)
            peak = hub.memory().peak / MIB
    name = f"{count:,} runs: a hub starts and answers"
    found[name] = Figures(seconds, seconds, peak, every=[seconds])
    return found


def _time_query(hub: Hub, path: str, query: dict[str, object], times: int) -> Figures:
    address = f"/{path}?{urlencode(query)}"
    hub.send("GET", address)  # the first request loads the columns
    taken = []
    before = hub.cpu()
    for _ in range(times):
        began = time.perf_counter()
        hub.send("GET", address)
        taken.append(time.perf_counter() - began)
    cpu, peak = (hub.cpu() - before) / times, hub.memory().peak / MIB
    return Figures(min(taken), sorted(taken)[times // 2], peak, cpu, taken)


def _mlflow(count: int, sizes: Sizes, cache: Path) -> dict[str, Figures]:
    """Query MLflow's store for the same runs; empty if its environment cannot be built."""
    python = mlflow_python()
    if python is None:
        return {}
    with peers.new_index(cache) as place:
        answers = mlflow_store(python, count, place, sizes.times)
    return {
        f"{count:,} runs: {name}: mlflow": Figures(min(taken), sorted(taken)[len(taken) // 2])
        for name, taken in answers.items()
    }


def mlflow_python() -> str | None:
    """Return the interpreter of an environment with MLflow; None if it cannot be built."""
    command = [sys.executable, "-m", "tools.environments", "mlflow"]
    made = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if made.returncode:
        print(f"  mlflow cannot be installed: {made.stderr[-300:]}", file=sys.stderr)
        return None
    return made.stdout.strip()


def mlflow_store(python: str, count: int, place: Path, times: int) -> dict[str, list[float]]:
    """Write the runs to an MLflow store, `place/mlflow.db`; time each query `times` times."""
    listed = place / "runs.jsonl"
    with listed.open("w") as file:
        for run in made_runs(count):
            held = [run.name, run.recorded_state, run.created, run.ended]
            file.write(json.dumps([*held, run.hparams, run.metrics]) + "\n")
    done = subprocess.run(
        [python, str(MLFLOW), str(listed), str(times)], capture_output=True, text=True, check=True
    )
    answers: dict[str, list[float]] = json.loads(done.stdout)
    return answers


CASES = {"many-runs": many_runs}
