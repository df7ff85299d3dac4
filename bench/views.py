"""What a board costs to open, to ask, and to have: our viewer beside TensorBoard."""

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
from cases import MIB, Action, Figures, Result, Sizes, Target, _figures, alternate
from client import Site
from measure import Measured, _family, _high_water, until
from trees import Tree

TOKEN = "a-token-for-measuring-only"
READ = "aboard: read "
"""What `aboard view` says on standard error once it has read all there is."""


def opening(sizes: Sizes, cache: Path) -> Result:
    """From the command to the first curve of all runs."""
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
    port = peers._free_port()

    def ready(process: subprocess.Popen[str]) -> None:
        _wait_for(process, READ)
        _check_curve(tree, _aboard_site(port).curve(trees.tag_name(0)))

    return until(_view_command(place, port), _view_environment(index), ready)


def _view_command(place: Path, port: int) -> list[str]:
    return [*peers.ABOARD, "view", str(place), "--no-browser", f"--port={port}"]


def _view_environment(index: Path) -> dict[str, str]:
    return peers.environment(index) | {"ABOARD_TOKEN": TOKEN}


def _aboard_site(port: int) -> Site:
    return Site(port, "/b/view/", {"Authorization": f"Bearer {TOKEN}"})


def _tensorboard(tree: Tree, place: Path) -> Measured:
    port = peers._free_port()

    def ready(process: subprocess.Popen[str]) -> None:
        _wait_for(process, peers.LOADED)
        _check_curve(tree, Site(port, "/").curve(trees.tag_name(0)))

    return until(_tensorboard_command(place, port), peers.environment(), ready)


def _tensorboard_command(place: Path, port: int) -> list[str]:
    command = [*peers.TENSORBOARD, "--logdir", str(place), "--load_fast=true", f"--port={port}"]
    return [*command, "--host=127.0.0.1", "--extra_data_server_flags=-v"]


def _wait_for(process: subprocess.Popen[str], line_with: str) -> None:
    said = []
    for line in process.stderr or ():
        if line_with in line:
            return
        said.append(line)
    raise peers.Unread(f"it ended before it had loaded anything: {''.join(said)[-500:]}")


def _check_curve(tree: Tree, curve: dict[str, list[object]]) -> None:
    peers._check("the curve", len(curve), tree.runs)


@contextmanager
def _running(command: list[str], environment: dict[str, str], said: str) -> Iterator[int]:
    """Run a server that has loaded its tree; give its process id."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_for(process, said)
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
    """One curve of every run, 1,000 points each, from servers that have loaded everything."""
    return _asked(sizes.cold, sizes, cache, ["curve"], Target("curves", 6, 0))


def crowd(sizes: Sizes, cache: Path) -> Result:
    """Thousands of runs on one board: what the page asks for when it opens."""
    return _asked(sizes.crowd, sizes, cache, ["runs", "tags", "curve"], None)


def tagged(sizes: Sizes, cache: Path) -> Result:
    """Very many tags: in one run, and in many runs the same."""
    found: dict[str, Figures] = {}
    for tree in sizes.tagged:
        result = _asked(tree, sizes, cache, ["runs", "tags", "curve"], None)
        size = f"{tree.runs:,} x {tree.tags:,}"
        found |= {f"{size}: {name}": figures for name, figures in result.contenders.items()}
    return Result("asking for runs x tags", found)


def _asked(
    tree: Tree, sizes: Sizes, cache: Path, questions: list[str], target: Target | None
) -> Result:
    place = trees.make(tree, cache)
    trees.warm(place)
    ours, theirs = peers._free_port(), peers._free_port()
    sites = {"aboard": _aboard_site(ours)}
    with (
        peers.new_index(cache) as index,
        _running(_view_command(place, ours), _view_environment(index), READ),
    ):
        if peers.has_data_server():
            sites["tensorboard over rustboard"] = Site(theirs, "/")
            server = _running(
                _tensorboard_command(place, theirs), peers.environment(), peers.LOADED
            )
        else:
            server = _nothing()
        with server:
            found = _ask_in_turns(sites, questions, sizes.inner_times)
    targets = []
    names = list(sites)
    if target and len(names) == 2:
        ratio = found[f"curve: {names[1]}"].best / found[f"curve: {names[0]}"].best
        targets = [Target("curves, times as fast as tensorboard over rustboard", 6, ratio)]
    return Result(f"asking for {tree}", found, targets=targets)


@contextmanager
def _nothing() -> Iterator[int]:
    yield 0


def _ask_in_turns(sites: dict[str, Site], questions: list[str], times: int) -> dict[str, Figures]:
    tag = trees.tag_name(0)
    taken: dict[str, list[float]] = {}
    for _ in range(times):
        for question in questions:
            for name, site in sites.items():
                started = time.perf_counter()
                site.ask(question, tag)
                seconds = time.perf_counter() - started
                taken.setdefault(f"{question}: {name}", []).append(seconds)
    return {name: _figures(seconds, 0.0) for name, seconds in taken.items()}


def boards(sizes: Sizes, cache: Path) -> Result:
    """A hundred boards in one process, against a process for each."""
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
    """Many clients at once on a tree that grows: errors, delays, and memory over time."""
    tree = sizes.base
    place = trees.make(tree, cache)
    port = peers._free_port()
    path = trees.file_of(place, 0)
    before = path.stat().st_size
    delays: list[float] = []
    errors: list[str] = []
    memory: list[float] = []
    stop = threading.Event()

    def visit() -> None:
        site = _aboard_site(port)
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
        _running(_view_command(place, port), _view_environment(index), READ) as pid,
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
                memory.append(sum(map(_resident, _family(pid))) / MIB)
                time.sleep(min(0.5, sizes.load_seconds / 4))
        finally:
            stop.set()
            for visitor in visitors:
                visitor.join()
            peak = sum(map(_high_water, _family(pid))) / MIB
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
    """From writing to the answer that holds it: another point of a run, and another run."""
    found: dict[str, Figures] = {}
    for tree in sizes.live:
        found |= _live(tree, trees.make(tree, cache), sizes.inner_times, cache)
    slowest = max(one.median for one in found.values())
    targets = [
        Target("seconds until new data is there, half of the times", 1, slowest, at_least=False)
    ]
    return Result("new data, from the disk to the answer", found, targets=targets)


def _live(tree: Tree, place: Path, times: int, cache: Path) -> dict[str, Figures]:
    path, tag, port = trees.file_of(place, 0), trees.tag_name(0), peers._free_port()
    before, added = path.stat().st_size, place / "added"
    points: list[float] = []
    runs: list[float] = []
    with (
        peers.new_index(cache) as index,
        _running(_view_command(place, port), _view_environment(index), READ) as pid,
    ):
        site = _aboard_site(port)
        try:
            for step in range(tree.steps, tree.steps + times):
                with path.open("ab") as file:
                    file.writelines(trees.records(tree, 0, step, step + 1))
                points.append(_seconds_until(site, tag, path.parent.name, step))
                new = added / f"run_{step}" / path.name
                new.parent.mkdir(parents=True)
                new.write_bytes(b"".join(trees.records(tree, step, step, step + 1)))
                runs.append(_seconds_until(site, tag, f"added/{new.parent.name}", step))
            peak = sum(map(_high_water, _family(pid))) / MIB
        finally:
            shutil.rmtree(added, ignore_errors=True)
            with path.open("rb+") as file:
                file.truncate(before)
    named = {"a point": points, "a run": runs}
    return {f"{tree.runs:,} runs: {one}": _figures(taken, peak) for one, taken in named.items()}


def _seconds_until(site: Site, tag: str, run: str, step: int) -> float:
    started = time.perf_counter()
    while site.last_step(tag, run) != step:
        if time.perf_counter() - started > 60:
            raise peers.Unread(f"step {step} of {run} did not come")
        time.sleep(0.01)
    taken = time.perf_counter() - started
    time.sleep(0.3 + step % 7 / 10)  # at no fixed distance from a look
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
