"""The cost of a board: opening, requests, load and new data, in `aboard view` and TensorBoard."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import peers
import trees
from cases import MIB, Action, Figures, Result, Sizes, Target, alternate, figures_of
from client import Site
from measure import Measured, peak_memory, process_tree, run_server
from trees import Tree

TOKEN = "a-token-for-measuring-only"
READ = "aboard: read "
"""Part of the line that `aboard view` prints after it has read everything."""


def opening(sizes: Sizes, cache: Path) -> Result:
    """Time the command to the first curve of all runs."""
    tree = sizes.cold
    place = trees.make(tree, cache)
    trees.warm(place)
    with peers.new_index(cache) as kept:
        _view(tree, place, kept)

        def cold() -> Measured:
            with peers.new_index(cache) as index:
                return _view(tree, place, index)

        actions: dict[str, Action] = {
            "aboard view": cold,
            "aboard view, again": lambda: _view(tree, place, kept),
        }
        if peers.has_data_server():
            actions["tensorboard --load_fast=true"] = lambda: _tensorboard(tree, place)
        found = alternate(actions, sizes.times)
    return Result(f"the first curve of {tree}", found, "aboard view")


def _view(tree: Tree, place: Path, index: Path) -> Measured:
    port = peers.free_port()

    def ready(process: subprocess.Popen[str]) -> None:
        peers.wait_for_line(process, READ)
        _check_curve(tree, aboard_site(port).curve(trees.tag_name(0)))

    return run_server(view_command(place, port), view_environment(index), ready)


def view_command(place: Path, port: int) -> list[str]:
    return [*peers.ABOARD, "view", str(place), "--no-browser", f"--port={port}"]


def view_environment(index: Path) -> dict[str, str]:
    return peers.environment(index) | {"ABOARD_TOKEN": TOKEN}


def aboard_site(port: int) -> Site:
    return Site(port, "/b/view/", {"Authorization": f"Bearer {TOKEN}"})


def _tensorboard(tree: Tree, place: Path) -> Measured:
    port = peers.free_port()

    def ready(process: subprocess.Popen[str]) -> None:
        peers.wait_for_line(process, peers.LOADED)
        _check_curve(tree, Site(port, "/").curve(trees.tag_name(0)))

    return run_server(peers.tensorboard_command(place, port), peers.environment(), ready)


def _check_curve(tree: Tree, curve: dict[str, list[object]]) -> None:
    peers.check("the curve", len(curve), tree.runs)


@contextmanager
def running_server(command: list[str], environment: dict[str, str], loaded: str) -> Iterator[int]:
    """Run a server, wait for the line that it has loaded its tree, and yield its process id."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        peers.wait_for_line(process, loaded)
        threading.Thread(target=_drain, args=[process], daemon=True).start()
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _drain(process: subprocess.Popen[str]) -> None:
    with suppress(ValueError):
        for _ in process.stderr or ():
            pass


def curves(sizes: Sizes, cache: Path) -> Result:
    """Request one curve of every run, 1,000 points each, from servers that have loaded all."""
    return _measure_requests(sizes.cold, sizes, cache, ["curve"], Target("curves", 6, 0))


def crowd(sizes: Sizes, cache: Path) -> Result:
    """Send the requests of a page that opens, to a board of thousands of runs."""
    return _measure_requests(sizes.crowd, sizes, cache, ["runs", "tags", "curve"], None)


def tagged(sizes: Sizes, cache: Path) -> Result:
    """Request very many tags: in one run, and the same tags in many runs."""
    found: dict[str, Figures] = {}
    for tree in sizes.tagged:
        result = _measure_requests(tree, sizes, cache, ["runs", "tags", "curve"], None)
        size = f"{tree.runs:,} x {tree.tags:,}"
        found |= {f"{size}: {name}": figures for name, figures in result.contenders.items()}
    return Result("asking for runs x tags", found)


def _measure_requests(
    tree: Tree, sizes: Sizes, cache: Path, questions: list[str], target: Target | None
) -> Result:
    place = trees.make(tree, cache)
    trees.warm(place)
    ours, theirs = peers.free_port(), peers.free_port()
    sites = {"aboard": aboard_site(ours)}
    with (
        peers.new_index(cache) as index,
        running_server(view_command(place, ours), view_environment(index), READ),
    ):
        if peers.has_data_server():
            sites["tensorboard over rustboard"] = Site(theirs, "/")
            server = running_server(
                peers.tensorboard_command(place, theirs), peers.environment(), peers.LOADED
            )
        else:
            server = _nothing()
        with server:
            found = ask_in_turns(sites, questions, sizes.inner_times)
    targets = []
    names = list(sites)
    if target and len(names) == 2:
        ratio = found[f"curve: {names[1]}"].best / found[f"curve: {names[0]}"].best
        targets = [Target("curves, times as fast as tensorboard over rustboard", 6, ratio)]
    return Result(f"asking for {tree}", found, targets=targets)


@contextmanager
def _nothing() -> Iterator[int]:
    yield 0


def ask_in_turns(sites: dict[str, Site], questions: list[str], times: int) -> dict[str, Figures]:
    tag = trees.tag_name(0)
    taken: dict[str, list[float]] = {}
    for _ in range(times):
        for question in questions:
            for name, site in sites.items():
                started = time.perf_counter()
                site.ask(question, tag)
                seconds = time.perf_counter() - started
                taken.setdefault(f"{question}: {name}", []).append(seconds)
    return {name: figures_of(seconds, 0.0) for name, seconds in taken.items()}


def boards(sizes: Sizes, cache: Path) -> Result:
    """Compare many boards in one process with a process for each."""
    tree = sizes.base
    place = trees.make(tree, cache)
    with peers.new_index(cache) as index:
        one = peers.inside("boards", place, 1, index=index)
        many = peers.inside("boards", place, sizes.boards, index=index)
    found = {
        "aboard, 1 board": Figures(one["seconds"], one["seconds"], one["peak"] / MIB),
        f"aboard, {sizes.boards} boards": Figures(
            many["seconds"], many["seconds"], many["peak"] / MIB
        ),
    }
    targets = []
    if peers.has_data_server():
        stock = _tensorboard(tree, place)
        peak = stock.peak * sizes.boards / MIB
        name = f"tensorboard, {sizes.boards} processes"
        found[name] = Figures(stock.seconds, stock.seconds, peak, note="memory of one, multiplied")
        less = peak / found[f"aboard, {sizes.boards} boards"].peak_mib
        targets = [Target("memory of many boards, times less than stock's", 30, less)]
    return Result(f"{sizes.boards} boards of {tree}", found, targets=targets)


def load(sizes: Sizes, cache: Path) -> Result:
    """Load a growing tree with many clients: errors, delays, and memory over time."""
    tree = sizes.base
    place = trees.make(tree, cache)
    port = peers.free_port()
    path = trees.file_of(place, 0)
    before = path.stat().st_size
    delays: list[float] = []
    errors: list[str] = []
    memory: list[float] = []
    stop = threading.Event()

    def visit() -> None:
        site = aboard_site(port)
        questions = [site.runs, site.tags, lambda: site.curve(trees.tag_name(1)), site.page]
        place = 0
        while not stop.is_set():
            started = time.perf_counter()
            try:
                questions[place % len(questions)]()
            except (OSError, RuntimeError, json.JSONDecodeError) as error:
                errors.append(repr(error))
            delays.append(time.perf_counter() - started)
            place += 1

    with (
        peers.new_index(cache) as index,
        running_server(view_command(place, port), view_environment(index), READ) as pid,
    ):
        visitors = [threading.Thread(target=visit, daemon=True) for _ in range(sizes.visitors)]
        for visitor in visitors:
            visitor.start()
        at = tree.steps
        ends = time.monotonic() + sizes.load_seconds
        try:
            while time.monotonic() < ends:
                with path.open("ab") as file:
                    file.writelines(trees.records(tree, 0, at, at + 10))
                at += 10
                memory.append(sum(map(_resident, process_tree(pid))) / MIB)
                time.sleep(min(0.5, sizes.load_seconds / 4))
        finally:
            stop.set()
            for visitor in visitors:
                visitor.join()
            peak = sum(map(peak_memory, process_tree(pid))) / MIB
            with path.open("rb+") as file:
                file.truncate(before)
    delays.sort()
    middle = statistics.median(delays)
    note = f"{len(delays):,} requests, {len(errors)} errors, 99 of 100 within "
    note += f"{delays[int(len(delays) * 0.99)]:.2f} s"
    third = max(1, len(memory) // 3)
    early, late = statistics.mean(memory[third : 2 * third]), statistics.mean(memory[-third:])
    return Result(
        f"{sizes.visitors} clients for {sizes.load_seconds:g} s while the tree grows",
        {"a request": Figures(delays[0], middle, peak, note=note)},
        notes=[
            *(errors[:3]),
            f"Memory: {early:.0f} MiB in the second third, {late:.0f} in the last.",
        ],
        targets=[
            Target("errors", 0, len(errors), at_least=False),
            Target(
                "memory at the end, times that in the middle", 1.1, late / early, at_least=False
            ),
        ],
    )


def live(sizes: Sizes, cache: Path) -> Result:
    """Time a write to the response that contains it, for a new point and for a new run."""
    found: dict[str, Figures] = {}
    for tree in sizes.live:
        found |= _live(tree, trees.make(tree, cache), sizes.inner_times, cache)
    slowest = max(one.median for one in found.values())
    targets = [
        Target("seconds until new data is there, half of the times", 1, slowest, at_least=False)
    ]
    return Result("new data, from the disk to the answer", found, targets=targets)


def _live(tree: Tree, place: Path, times: int, cache: Path) -> dict[str, Figures]:
    path, tag, port = trees.file_of(place, 0), trees.tag_name(0), peers.free_port()
    before, added = path.stat().st_size, place / "added"
    points: list[float] = []
    runs: list[float] = []
    with (
        peers.new_index(cache) as index,
        running_server(view_command(place, port), view_environment(index), READ) as pid,
    ):
        site = aboard_site(port)
        try:
            for step in range(tree.steps, tree.steps + times):
                with path.open("ab") as file:
                    file.writelines(trees.records(tree, 0, step, step + 1))
                points.append(_seconds_until(site, tag, path.parent.name, step))
                new = added / f"run_{step}" / path.name
                new.parent.mkdir(parents=True)
                new.write_bytes(b"".join(trees.records(tree, step, step, step + 1)))
                runs.append(_seconds_until(site, tag, f"added/{new.parent.name}", step))
            peak = sum(map(peak_memory, process_tree(pid))) / MIB
        finally:
            shutil.rmtree(added, ignore_errors=True)
            with path.open("rb+") as file:
                file.truncate(before)
    named = {"a point": points, "a run": runs}
    return {f"{tree.runs:,} runs: {one}": figures_of(taken, peak) for one, taken in named.items()}


def _seconds_until(site: Site, tag: str, run: str, step: int) -> float:
    started = time.perf_counter()
    while site.last_step(tag, run) != step:
        if time.perf_counter() - started > 60:
            raise peers.MeasurementError(f"step {step} of {run} did not arrive in 60 s")
        time.sleep(0.01)
    taken = time.perf_counter() - started
    time.sleep(0.3 + step % 7 / 10)  # not in step with polling
    return taken


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


CASES = {
    "opening": opening,
    "curves": curves,
    "crowd": crowd,
    "tagged": tagged,
    "boards": boards,
    "load": load,
    "live": live,
}
