"""The cost of logging in a training loop: our writer and those of PyTorch and tensorboardX.

    python bench/tracking.py WRITER ACTION COUNT

The cases run this command in a process for each writer; it prints one line of JSON. All writers log
the same numbers to files on the disk. Time is that of the calls in the loop; CPU is that of the
process from the first call until all is written and closed, including background threads. To
measure another writer, add it to `WRITERS`; another action, to `ACTIONS`.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

VALUES = 20
PAUSE = 0.001
BURST = 10
"""Calls between two pauses."""


class Writer(NamedTuple):
    """Functions that log one number, log the numbers of a step, and finish."""

    one: Callable[[str, float, int], object]
    many: Callable[[dict[str, float], int], object]
    close: Callable[[], object]


def aboard(place: str) -> Writer:
    from aboard import EventWriter

    writer = EventWriter(place)
    return Writer(writer.scalar, writer.scalars, writer.close)


def aboard_run(place: str) -> Writer:
    from aboard import init

    run = init("bench", root=place)

    def one(tag: str, number: float, step: int) -> None:
        run.log_metrics({tag: number}, step=step)

    def many(numbers: dict[str, float], step: int) -> None:
        run.log_metrics(numbers, step=step)

    return Writer(one, many, run.finish)


def pytorch(place: str) -> Writer:
    from torch.utils.tensorboard import SummaryWriter

    return _summary_writer(SummaryWriter(place))


def tensorboardx(place: str) -> Writer:
    from tensorboardX import SummaryWriter

    return _summary_writer(SummaryWriter(place))


def _summary_writer(writer: Any) -> Writer:
    def many(numbers: dict[str, float], step: int) -> None:
        for tag, number in numbers.items():
            writer.add_scalar(tag, number, step)

    return Writer(writer.add_scalar, many, writer.close)


WRITERS: dict[str, Callable[[str], Writer]] = {
    "aboard": aboard,
    "aboard, log_metrics": aboard_run,
    "torch.utils.tensorboard": pytorch,
    "tensorboardX": tensorboardx,
}


OURS = ("aboard", "aboard, log_metrics")


# The actions, timed inside a process.


def scalars(writer: Writer, count: int) -> Iterator[float]:
    """Log numbers one after the other without a pause."""
    started = time.perf_counter()
    for step in range(count):
        writer.one("train/loss", 0.5, step)
    yield time.perf_counter() - started


def paused(writer: Writer, count: int) -> Iterator[float]:
    """Log a few numbers at a time, with pauses in which a background thread can write them."""
    for first in range(0, count, BURST):
        started = time.perf_counter()
        for step in range(first, first + BURST):
            writer.one("train/loss", 0.5, step)
        yield time.perf_counter() - started
        time.sleep(PAUSE)


def steps(writer: Writer, count: int) -> Iterator[float]:
    """Log all numbers of a step in one call."""
    numbers = {f"train/metric{number}": number / 7 for number in range(VALUES)}
    started = time.perf_counter()
    for step in range(count // VALUES):
        writer.many(numbers, step)
    yield time.perf_counter() - started


ACTIONS: dict[str, Callable[[Writer, int], Iterator[float]]] = {
    "scalars": scalars,
    "paused": paused,
    "steps": steps,
}


def inside(name: str, action: str, count: int) -> dict[str, float]:
    """Time an action of a writer in this process; `import` is timed with PyTorch imported.

    PyTorch leaves so many objects that a garbage collection takes 0.1 s, and it can happen in any
    call. So these objects are excluded from it.
    """
    import torch  # noqa: F401 - as in a training process

    gc.collect()
    gc.freeze()

    with tempfile.TemporaryDirectory() as place:
        started, cpu = time.perf_counter(), time.process_time()
        writer = WRITERS[name](place)
        seconds = time.perf_counter() - started
        if action != "import":
            cpu = time.process_time()
            seconds = sum(ACTIONS[action](writer, count))
        writer.close()
        return {"seconds": seconds, "cpu": time.process_time() - cpu}


# The cases, which start these processes.

if __name__ != "__main__":
    from cases import Action, Result, Sizes, Target, alternate
    from measure import Measured, run_command


def _case(title: str, action: str, wanted: float = 5) -> Callable[[Sizes, Path], Result]:
    def measured(name: str, count: int) -> Measured:
        command = [sys.executable, __file__, name, action, str(count)]
        whole = run_command(command, dict(os.environ))
        return whole._replace(**json.loads(whole.output))

    def case(sizes: Sizes, _: Path) -> Result:
        actions: dict[str, Action] = {
            name: lambda name=name: measured(name, sizes.logged) for name in WRITERS
        }
        found = alternate(actions, sizes.times)
        targets = [
            Target(f"{ours}: {what} than {name}", wanted, value(found[name]) / value(found[ours]))
            for ours in OURS
            for name in WRITERS
            if name not in OURS
            for what, value in (
                ("times less time in the loop", lambda figures: figures.best),
                ("times less CPU", lambda figures: figures.cpu),
            )
        ]
        return Result(title.format(count=sizes.logged), found, OURS[0], targets)

    return case


class Empty:
    """Its method is the cheapest possible call."""

    def nothing(self) -> None:
        pass


def silent(sizes: Sizes, _: Path) -> Result:
    """Compare a call on a rank that does not log with a call of an empty method."""
    from aboard.track.run import SilentRun

    numbers = {f"train/metric{number}": number / 7 for number in range(VALUES)}
    empty, run = Empty(), SilentRun(1)

    def call_empty() -> None:
        for _ in range(sizes.logged):
            empty.nothing()

    def call_silent() -> None:
        for _ in range(sizes.logged):
            run.log_metrics(numbers, step=1, stage="train")

    def timed(calls: Callable[[], None]) -> Measured:
        started, cpu = time.perf_counter(), time.process_time()
        calls()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        return Measured(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, cpu)

    least, ours = "an empty method", "log_metrics of a silent rank"
    found = alternate(
        {least: lambda: timed(call_empty), ours: lambda: timed(call_silent)}, sizes.times
    )
    wanted = 1e-6 * sizes.logged / found[least].best
    title = f"empty calls that a silent one takes; {wanted:.0f} of them take 1 us"
    target = Target(title, wanted, found[ours].best / found[least].best, at_least=False)
    return Result(
        f"{sizes.logged:,} calls on a rank that does not log", found, least, targets=[target]
    )


CASES: dict[str, Callable[[Sizes, Path], Result]] = {
    "log-silent": silent,
    "log-scalars": _case("{count:,} scalars, one after the other", "scalars"),
    "log-paused": _case(f"{{count:,}} scalars, a pause after every {BURST}", "paused"),
    "log-steps": _case(f"{{count:,}} scalars, {VALUES} of a step at once", "steps"),
    "log-import": _case("import and the first file, beside PyTorch", "import", 1),
}


if __name__ == "__main__":
    print(json.dumps(inside(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
