"""Parts that are timed inside their own process, without the start of the process.

    python bench/inside.py refresh TREE
    python bench/inside.py accumulate FILE
    python bench/inside.py grow TREE RUNS TAGS STEPS STYLE ADDED TIMES
    python bench/inside.py query TREE RUN TAG TIMES
    python bench/inside.py windows TREE RUN TAG STEPS TIMES
    python bench/inside.py boards TREE COUNT

Each prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def timed(times: int, action: Callable[[], object]) -> list[float]:
    """Return the seconds of each of `times` calls."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return seconds


def refresh(tree: str) -> dict[str, Any]:
    """Read a tree into the index in ABOARD_CACHE."""
    from aboard.index import Index, Source

    with Index() as index:
        source = Source.parse(tree)
        [seconds] = timed(1, lambda: index.refresh(source))
        return {"seconds": seconds, "events": sum(run.events for run in index.runs(source))}


def accumulate(path: str) -> dict[str, Any]:
    """Read one event file with the loader behind `tensorboard --load_fast=false`, every point."""
    sys.modules["tensorboard.compat.notf"] = sys  # do not import TensorFlow if it is installed
    from tensorboard.backend.event_processing import plugin_event_accumulator as stock

    accumulator = stock.EventAccumulator(path, size_guidance={stock.TENSORS: 0})
    [seconds] = timed(1, accumulator.Reload)
    points = sum(len(accumulator.Tensors(tag)) for tag in accumulator.Tags()["tensors"])
    return {"seconds": seconds, "points": points}


def grow(tree: str, *arguments: str) -> dict[str, Any]:
    """Append steps to the last run of a tree, several times; time each refresh."""
    import trees

    from aboard.index import Index, Source

    runs, tags, steps, style, added, times = arguments
    shape = trees.Tree(
        int(runs), int(tags), int(steps), "simple" if style == "simple" else "tensor"
    )
    place = Path(tree)
    path = trees.file_of(place, shape.runs - 1)
    before = path.stat().st_size
    seconds, idle, points = [], [], 0
    try:
        with Index() as index:
            source = Source.parse(tree)
            index.refresh(source)
            at = shape.steps
            for _ in range(int(times)):
                with path.open("ab") as file:
                    file.writelines(trees.records(shape, shape.runs - 1, at, at + int(added)))
                at += int(added)
                started = time.perf_counter()
                points += index.refresh(source).points
                seconds.append(time.perf_counter() - started)
                idle += timed(1, lambda: index.refresh(source))
    finally:
        with path.open("rb+") as file:
            file.truncate(before)
    return {"seconds": seconds, "idle": idle, "points": points}


def query(tree: str, run: str, tag: str, times: str) -> dict[str, Any]:
    """Query an index that is up to date, each query several times."""
    import aboard

    with aboard.open(tree) as logs:
        count = int(times)
        return {
            "points": len(logs.series(run, tag).steps),
            "series": len(logs.tags),
            "whole": timed(count, lambda: logs.series(run, tag)),
            "sampled": timed(count, lambda: logs.series(run, tag, samples=1000)),
            "last": timed(count, lambda: [one.last_value for one in logs.tags]),
        }


def windows(tree: str, run: str, tag: str, steps: str, times: str) -> dict[str, Any]:
    """Read windows of a long series, each several times."""
    import aboard

    with aboard.open(tree) as logs:
        one, index, count, end = logs.tag(run, tag), logs.index, int(times), int(steps)
        found = {
            "the summary": timed(count, lambda: index.summaries([one])),
            "1,000 of all points": timed(count, lambda: index.series(one, samples=1000)),
        }
        for part in (2, 5, 10, 20, 100, 1000):
            start, stop = end // 3, end // 3 + end // part
            found[f"1,000 of {stop - start:,} points"] = timed(
                count,
                lambda start=start, stop=stop: index.series(
                    one, samples=1000, start=start, stop=stop
                ),
            )
        found["all points, whole"] = timed(min(count, 3), lambda: index.series(one))
        return {"windows": found}


def boards(tree: str, count: str) -> dict[str, Any]:
    """Serve several boards of a tree in this process; request the tags and a curve of each."""
    import asyncio

    import httpx
    import trees

    from aboard.index import Index
    from aboard.index.library import Library, Member
    from aboard.tensorboard.app import make_app
    from aboard.tensorboard.board import Board
    from aboard.tensorboard.provider import Boards

    with Index() as index:
        member = Member.parse(tree)
        index.refresh(member.source)
        served = Boards(Library(index))
        app = make_app(served)
        requests = json.dumps([{"plugin": "scalars", "tag": trees.tag_name(0)}])

        async def visit() -> None:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://aboard") as client:
                for number in range(int(count)):
                    served.add(Board(f"board{number}", f"Board {number}", (member,)))
                    root = f"/b/board{number}/data/plugin/timeseries"
                    (await client.get(f"{root}/tags")).raise_for_status()
                    body = {"requests": requests}
                    (await client.post(f"{root}/timeSeries", data=body)).raise_for_status()

        [seconds] = timed(1, lambda: asyncio.run(visit()))
        return {"seconds": seconds}


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    chosen = {
        "refresh": refresh,
        "accumulate": accumulate,
        "grow": grow,
        "query": query,
        "windows": windows,
        "boards": boards,
    }[name]
    print(json.dumps(chosen(*arguments)))
