"""The cases that read log trees, and what all cases share: sizes, figures and targets."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import peers
import trees
from measure import Measured
from trees import Tree

MIB = 1 << 20


class Sizes(NamedTuple):
    """The sizes of the trees, and the number of measurements."""

    cold: Tree
    long: Tree
    longest: Tree
    """One series; the case reads windows of it."""
    curves: Tree
    """Runs whose curves are requested at once."""
    many: Tree
    slice: Tree
    base: Tree
    factors: tuple[int, ...]
    wide: Tree
    times: int
    inner_times: int
    crowd: Tree
    tagged: tuple[Tree, ...]
    """Trees with very many tags."""
    boards: int
    visitors: int
    load_seconds: float
    live: tuple[Tree, ...]
    """Trees with one run that grows while a page is open."""
    logged: int
    """Number of values that a training loop logs."""
    started: tuple[Tree, ...]
    hub_boards: int
    stock_boards: int
    """Number of TensorBoard processes that run at the same time."""
    clients: int
    client_boards: int
    """Number of boards that these clients share."""
    listed_runs: int
    """Number of runs in the smallest list; `factors` gives the larger ones. The same for boards."""
    listed_boards: int
    catalogs: tuple[int, ...]
    """Numbers of runs that exist only in the index."""
    query_times: int
    console_runs: tuple[int, ...]
    """Numbers of recorded runs that the console shows."""
    live_points: int
    """Number of points logged one by one while a page is open."""
    live_minutes: float
    """How long a page stays open while points arrive."""
    engines: tuple[str, ...] = ("process", "docker", "slurm", "kubernetes")


FULL = Sizes(
    cold=Tree(100, 20, 5_000),
    long=Tree(1, 10, 100_000),
    longest=Tree(1, 1, 10_000_000),
    curves=Tree(1_000, 1, 10_000),
    many=Tree(10_000, 1, 10),
    slice=Tree(1, 20, 5_000),
    base=Tree(10, 10, 1_000),
    factors=(1, 10, 100),
    wide=Tree(100, 20, 50),
    times=3,
    inner_times=20,
    crowd=Tree(5_000, 5, 10),
    tagged=(Tree(1, 10_000, 10), Tree(1_000, 1_000, 1)),
    boards=100,
    visitors=50,
    load_seconds=60.0,
    live=(Tree(20, 5, 100), Tree(3_000, 1, 10)),
    logged=100_000,
    started=(Tree(10, 10, 1_000), Tree(100, 20, 5_000)),
    hub_boards=200,
    stock_boards=8,
    clients=200,
    client_boards=50,
    listed_runs=100,
    listed_boards=10,
    catalogs=(10_000, 100_000, 1_000_000),
    query_times=200,
    console_runs=(100, 10_000, 100_000),
    live_points=100,
    live_minutes=5.0,
)
QUICK = Sizes(
    cold=Tree(3, 2, 40),
    long=Tree(1, 2, 200),
    longest=Tree(1, 1, 600),
    curves=Tree(5, 1, 50),
    many=Tree(20, 1, 5),
    slice=Tree(1, 2, 100),
    base=Tree(2, 2, 50),
    factors=(1, 2),
    wide=Tree(3, 2, 5),
    times=1,
    inner_times=2,
    crowd=Tree(20, 2, 5),
    tagged=(Tree(1, 30, 5), Tree(3, 10, 1)),
    boards=3,
    visitors=2,
    load_seconds=0.8,
    live=(Tree(2, 2, 5), Tree(5, 1, 5)),
    logged=200,
    started=(Tree(2, 2, 50),),
    hub_boards=3,
    stock_boards=1,
    clients=6,
    client_boards=2,
    listed_runs=20,
    listed_boards=3,
    catalogs=(200, 400),
    query_times=3,
    console_runs=(20,),
    live_points=3,
    live_minutes=0.05,
)


@dataclass
class Figures:
    """Time and memory of one contender."""

    best: float
    median: float
    peak_mib: float = 0.0
    cpu: float = 0.0
    """The lowest CPU time, if it was measured."""
    every: list[float] = field(default_factory=list)
    note: str = ""


@dataclass
class Target:
    """A figure or ratio that must be at least, or at most, a given value."""

    name: str
    wanted: float
    measured: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        """Whether the target was reached."""
        return self.measured >= self.wanted if self.at_least else self.measured <= self.wanted


@dataclass
class Result:
    """The figures of one case."""

    title: str
    contenders: dict[str, Figures]
    ours: str = ""
    """The contender that the others are compared with, if any."""
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return everything as plain values."""
        targets = [{**asdict(one), "met": one.met} for one in self.targets]
        return {**asdict(self), "targets": targets}


Action = Callable[[], Measured]


def alternate(actions: Mapping[str, Action], times: int) -> dict[str, Figures]:
    """Measure each action several times, in turns, so that other load slows all of them equally."""
    found: dict[str, list[Measured]] = {name: [] for name in actions}
    for turn in range(times):
        for name, action in actions.items():
            measured = action()
            found[name].append(measured)
            peak = measured.peak / MIB
            print(
                f"  {turn + 1}: {name}: {measured.seconds:.3f} s, {peak:.0f} MiB", file=sys.stderr
            )
    return {
        name: figures_of(
            [one.seconds for one in measured],
            max(one.peak for one in measured) / MIB,
            min(one.cpu for one in measured),
        )
        for name, measured in found.items()
    }


def figures_of(seconds: list[float], peak_mib: float, cpu: float = 0.0) -> Figures:
    return Figures(min(seconds), statistics.median(seconds), peak_mib, cpu, seconds)


def cold(sizes: Sizes, cache: Path) -> Result:
    """Read a large tree of simple values for the first time, and open it again."""
    return _cold(sizes.cold, sizes, cache)


def tensor(sizes: Sizes, cache: Path) -> Result:
    """Read the same tree as TensorFlow 2 writes it."""
    return _cold(sizes.cold._replace(style="tensor"), sizes, cache)


def long(sizes: Sizes, cache: Path) -> Result:
    """Read one run with long series.

    The data server keeps 1,000 points of each and finishes in half a second, about the time to
    start Python twice. So the targets compare our reading without the start of the process, and
    there is no target for memory.
    """
    result = _cold(sizes.long, sizes, cache)
    if result.targets:
        found = result.contenders
        server, board = found["rustboard"].best, found["tensorboard --load_fast=true"].best
        cold, again = found["aboard, in process"].best, found["aboard, in process, again"].best
        command = found["aboard index"].best
        result.targets = [
            Target("cold in process, times as fast as rustboard", 2.5, server / cold),
            Target("cold, times as fast as tensorboard", 4, board / command),
            Target("again in process, times as fast as rustboard", 20, server / again),
        ]
    return result


def many(sizes: Sizes, cache: Path) -> Result:
    """Read very many small runs; this case has no targets."""
    result = _cold(sizes.many, sizes, cache, stock=False)
    result.targets = []
    return result


def _cold(tree: Tree, sizes: Sizes, cache: Path, *, stock: bool = True) -> Result:
    place = trees.make(tree, cache)
    size = trees.warm(place)
    with peers.new_index(cache) as kept:
        peers.aboard_index(tree, place, kept)

        def fresh(contender: Callable[[Tree, Path, Path], Measured]) -> Measured:
            with peers.new_index(cache) as index:
                return contender(tree, place, index)

        actions: dict[str, Action] = {
            "aboard index": lambda: fresh(peers.aboard_index),
            "aboard, in process": lambda: fresh(peers.aboard_refresh),
            "aboard, in process, again": lambda: peers.aboard_refresh(tree, place, kept),
            "aboard ls, again": lambda: peers.aboard_ls(tree, place, kept),
            "aboard.open, again": lambda: peers.aboard_open(tree, place, kept),
        }
        if peers.has_data_server():
            actions |= {
                "rustboard": lambda: peers.data_server(tree, place),
                "rustboard --checksum": lambda: peers.data_server(tree, place, checksum=True),
                "tensorboard --load_fast=true": lambda: peers.tensorboard(tree, place),
            }
        part = Tree(1, tree.tags, min(tree.steps, sizes.slice.steps), tree.style)
        scale = tree.points / part.points
        if stock:
            actions["TensorBoard's Python loader"] = lambda: _scaled(
                part, trees.make(part, cache), scale
            )
        found = alternate(actions, sizes.times)
    result = Result(f"{tree} ({tree.points:,} points, {size / 1e6:,.0f} MB)", found, "aboard index")
    if stock and scale > 1:
        found[
            "TensorBoard's Python loader"
        ].note = f"time of {part.points:,} points, scaled by {scale:g}"
    if "rustboard" in found:
        result.targets = _cold_targets(found)
    return result


def _scaled(part: Tree, place: Path, scale: float) -> Measured:
    """Measure the slowest contender on a part; all of the tree would take half an hour."""
    measured = peers.stock_loader(part, place)
    return measured._replace(seconds=measured.seconds * scale, cpu=0.0)


def _cold_targets(found: dict[str, Figures]) -> list[Target]:
    ours, again = found["aboard index"], found["aboard ls, again"]
    server, board = found["rustboard"], found["tensorboard --load_fast=true"]
    return [
        Target("cold, times as fast as rustboard", 2.5, server.best / ours.best),
        Target("cold, times as fast as tensorboard", 4, board.best / ours.best),
        Target("peak memory, part of rustboard's", 0.5, ours.peak_mib / server.peak_mib, False),
        Target("again, times as fast as rustboard", 20, server.best / again.best),
    ]


def growth(sizes: Sizes, cache: Path) -> Result:
    """Refresh trees of growing size, with 1,000 new points and with none."""
    found: dict[str, Figures] = {}
    for factor in sizes.factors:
        longer = sizes.base._replace(steps=sizes.base.steps * factor)
        found |= _measure_growth(f"{factor}x longer", longer, sizes, cache)
    for factor in sizes.factors:
        more = sizes.base._replace(runs=sizes.base.runs * factor, steps=sizes.base.steps // 10)
        found |= _measure_growth(f"{factor}x more runs", more, sizes, cache)
    first, *_, last = (found[f"{factor}x longer: {MORE}"] for factor in sizes.factors)
    name = f"refresh of a tree {sizes.factors[-1]} times as long, times as slow"
    targets = [Target(name, 1.5, last.best / first.best, at_least=False)]
    return Result("growth", found, targets=targets)


MORE = "1,000 points more"


def _measure_growth(name: str, shape: Tree, sizes: Sizes, cache: Path) -> dict[str, Figures]:
    """Measure a tree after 1,000 points were added, then without a change."""
    place = trees.make(shape, cache)
    trees.warm(place)
    with peers.new_index(cache) as index:
        added = 1000 // shape.tags
        output = peers.inside("grow", place, *shape, added, sizes.inner_times, index=index)
        peers.aboard_index(shape, place, index)  # the added points were removed again
        listed = alternate({name: lambda: peers.aboard_ls(shape, place, index)}, sizes.times)
    peak = output["peak"] / MIB
    found = {
        f"{name}: {MORE}": figures_of(output["seconds"], peak),
        f"{name}: nothing new": figures_of(output["idle"], peak),
        f"{name}: aboard ls": listed[name],
    }
    for figures in found.values():
        figures.note = f"{shape.runs:,} runs, {shape.points:,} points"
    return found


def fallback(sizes: Sizes, cache: Path) -> Result:
    """Compare the Python core with TensorBoard's Python loader on the same files."""
    actions: dict[str, Action] = {}
    for style in ("simple", "tensor"):
        tree = sizes.slice._replace(style=style)
        place = trees.make(tree, cache)
        trees.warm(place)
        actions[f"aboard in Python, {style}"] = lambda t=tree, p=place: _pure(t, p, cache)
        actions[f"TensorBoard's Python loader, {style}"] = lambda t=tree, p=place: (
            peers.stock_loader(t, p)
        )
    found = alternate(actions, sizes.times)
    targets = [
        Target(
            f"Python core, {style}, times as fast as TensorBoard's",
            10,
            found[f"TensorBoard's Python loader, {style}"].best
            / found[f"aboard in Python, {style}"].best,
        )
        for style in ("simple", "tensor")
    ]
    return Result(f"no C core: {sizes.slice.points:,} points", found, targets=targets)


def _pure(tree: Tree, place: Path, cache: Path) -> Measured:
    with peers.new_index(cache) as index:
        return peers.aboard_refresh(tree, place, index, pure=True)


def query(sizes: Sizes, cache: Path) -> Result:
    """Query an index that is up to date."""
    found: dict[str, Figures] = {}
    for tree, questions in (
        (sizes.long, {"whole": "a series whole", "sampled": "a series as 1,000 points"}),
        (sizes.wide, {"last": "the last value of every series"}),
    ):
        place = trees.make(tree, cache)
        with peers.new_index(cache) as index:
            tag = trees.tag_name(0)
            run = trees.file_of(place, 0).parent.name
            output = peers.inside("query", place, run, tag, sizes.inner_times, index=index)
        for key, title in questions.items():
            found[title] = figures_of(output[key], output["peak"] / MIB)
            found[title].note = (
                f"{output['series']:,} series" if key == "last" else f"{output['points']:,} points"
            )
    return Result("queries", found)


def windows(sizes: Sizes, cache: Path) -> Result:
    """Read windows of a very long series as 1,000 points each, and its summary."""
    place = trees.make(sizes.longest, cache)
    steps = sizes.longest.steps
    found: dict[str, Figures] = {}
    with peers.new_index(cache) as index:
        run = trees.file_of(place, 0).parent.name
        arguments = (run, trees.tag_name(0), steps, sizes.inner_times)
        output = peers.inside("windows", place, *arguments, index=index)
    for title, seconds in output["windows"].items():
        found[title] = figures_of(seconds, output["peak"] / MIB)
    slowest = max(one.best for title, one in found.items() if title.startswith("1,000"))
    target = Target("milliseconds of the slowest window", 50, 1000 * slowest, at_least=False)
    return Result(f"windows of a series of {steps:,} points", found, targets=[target])


CASES: dict[str, Callable[[Sizes, Path], Result]] = {
    "cold": cold,
    "tensor": tensor,
    "long": long,
    "many": many,
    "growth": growth,
    "fallback": fallback,
    "query": query,
    "windows": windows,
}
