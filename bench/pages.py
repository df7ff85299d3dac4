"""The console in a real browser: the time to its first paint, curve, rows and new points.

The peers are stock TensorBoard over the same runs, and MLflow's pages for the table. Pages are
opened in Chromium with an empty cache; without Chromium a case has only a note. The page itself
measures the time, from its navigation.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import catalogs
import peers
import personal
import trees
from cases import MIB, Figures, Result, Sizes, Target
from personal import Hub

from aboard import EventWriter

_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--enable-precise-memory-info")
_TIMEOUT = 120_000
_MANY = 50_000  # with as many runs, pages are measured once, and peers not at all
_JUMPS = 30  # to rows of the table
_FRAMES = 240  # of a scroll, three rows each
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_READ_HEAP = "(globalThis.gc?.(), performance.memory.usedJSHeapSize)"
_PAINTED, _FIRST, _HEAP = "first paint", "first curve", "heap"
# Both pages draw a curve as the path of an SVG; TensorBoard in the shadow root of a component.
_CURVE = """
() => {
  const curves = document.querySelectorAll('svg.spark path, line-chart svg path');
  return [...curves].some((one) => (one.getAttribute('d') ?? '').length > 8) && performance.now();
}
"""
_ROWS = """
() => {
  const rows = document.querySelectorAll('.table tbody tr td a, .ag-row a');
  return rows.length >= 10 && performance.now();
}
"""
# Milliseconds until the row at each place exists, and between the frames of a steady scroll.
_SCROLL = """
async ([places, frames]) => {
  const box = document.querySelector('.table');
  const height = document.querySelector('tr[aria-rowindex="2"]').offsetHeight;
  const frame = () => new Promise(requestAnimationFrame);
  const jumps = [];
  for (const place of places) {
    const began = performance.now();
    box.scrollTop = place * height;
    while (!document.querySelector(`tr[aria-rowindex="${place + 2}"] td a`)) await frame();
    jumps.push(performance.now() - began);
  }
  const steps = [];
  let before = await frame();
  for (let at = 0; at < frames; at += 1) {
    box.scrollTop -= 3 * height;
    const now = await frame();
    steps.push(now - before);
    before = now;
  }
  return [jumps, steps];
}
"""
# Milliseconds from a zoom to the frame in which the chart has the points of the window.
_ZOOM = """
async ([from, to]) => {
  const figure = document.querySelector('figure.chart');
  const plot = figure.querySelector('.plot').getBoundingClientRect();
  const at = (share) => plot.left + 52 + (plot.width - 62) * share;
  const top = plot.top + plot.height / 2;
  const send = (type, share) => figure.querySelector('.plot').dispatchEvent(
    new PointerEvent(type, {bubbles: true, clientX: at(share), clientY: top, pointerId: 1}));
  const frame = () => new Promise(requestAnimationFrame);
  const set = HTMLElement.prototype.setPointerCapture;
  HTMLElement.prototype.setPointerCapture = () => {};
  send('pointerdown', from);
  send('pointermove', to);
  HTMLElement.prototype.setPointerCapture = set;
  const requests = performance.getEntriesByType('resource').length;
  const whole = figure.dataset.range;
  const began = performance.now();
  send('pointerup', to);
  while (figure.dataset.range === whole || figure.classList.contains('waits')) await frame();
  const taken = performance.now() - began;
  const asked = performance.getEntriesByType('resource').slice(requests);
  const hub = asked.filter((one) => one.name.includes('/series')).map((one) => one.duration);
  return [taken, Math.max(...hub)];
}
"""


def look(sizes: Sizes, cache: Path) -> Result:
    """Time the first paint and curve of the console over many runs, and of stock TensorBoard."""
    found: dict[str, Figures] = {}
    notes, targets = ["The memory is the heap of the page."], []
    with _chromium() as browser:
        if browser is None:
            return Result(
                "the console in a browser", {}, notes=["Not measured: Chromium is not installed."]
            )
        for count in sizes.console_runs:
            root = personal.recorded(count, cache)
            ours = partial(_console, browser, root, cache)
            theirs = partial(_tensorboard, browser, root)
            actions = {"console": ours} | ({"tensorboard": theirs} if count < _MANY else {})
            if count >= _MANY:
                notes.append(f"TensorBoard was not measured with {count:,} runs.")
            for name, action in actions.items():
                try:
                    looks = [action() for _ in range(sizes.times if count < _MANY else 1)]
                except _SlowPageError as error:
                    notes.append(f"{name}, {count:,} runs: {error}")
                    continue
                found |= _page_figures(f"{count:,} runs: {name}", looks, _FIRST)
            both = [
                found.get(f"{count:,} runs: {name}, {_FIRST}")
                for name in ("console", "tensorboard")
            ]
            if both[0] and both[1]:
                ratio = both[1].best / both[0].best
                targets.append(Target(f"{count:,} runs, first curve, times as fast", 1, ratio))
    return Result("the console in a browser", found, targets=targets, notes=notes)


def table(sizes: Sizes, cache: Path) -> Result:
    """Time the table of very many runs: first rows, jumps and scrolling; and MLflow's pages."""
    found: dict[str, Figures] = {}
    notes = ["The memory is the heap of the page."]
    with _chromium() as browser:
        if browser is None:
            return Result(
                "the table of runs", {}, notes=["Not measured: Chromium is not installed."]
            )
        for count in sizes.console_runs:
            found |= _measure_table(browser, count, sizes, cache)
        compared = max((one for one in sizes.console_runs if one < _MANY), default=0)
        python = catalogs.mlflow_python() if compared else None
        if python is None:
            notes.append("MLflow was not measured.")
        else:
            notes.append("MLflow's page loads 100 runs and more on request.")
            found |= _mlflow_page(browser, python, compared, sizes, cache)
    return Result("the table of runs", found, notes=notes)


def _measure_table(browser: Any, count: int, sizes: Sizes, cache: Path) -> dict[str, Figures]:
    places = [count * at // _JUMPS for at in range(1, _JUMPS)]
    looks: list[dict[str, float]] = []
    jumps: list[float] = []
    steps: list[float] = []
    index = catalogs.catalog(count, cache)
    with (
        peers.new_index(cache) as home,
        personal.running(home, index=index, root=Path(catalogs.ROOT)) as hub,
    ):
        _wait_for_runs(hub)
        for _ in range(sizes.times):
            with _page(browser) as page:
                looks.append(_open(page, _link(hub, "/runs"), _ROWS))
                jumped, stepped = page.evaluate(_SCROLL, [places, _FRAMES])
                jumps += [one / 1000 for one in jumped]
                steps += [one / 1000 for one in stepped]
                heap = page.evaluate(_READ_HEAP) / MIB
    name = f"{count:,} runs: console"
    made = _page_figures(name, looks, "first rows")
    made |= {f"{name}, a jump": _figures(jumps, heap), f"{name}, a frame": _figures(steps, heap)}
    for one in (made[f"{name}, a jump"], made[f"{name}, a frame"]):
        ordered = sorted(one.every)
        one.note = f"99 % {ordered[int(len(ordered) * 0.99)] * 1000:.0f} ms"
    return made


def _mlflow_page(
    browser: Any, python: str, count: int, sizes: Sizes, cache: Path
) -> dict[str, Figures]:
    with peers.new_index(cache) as place:
        catalogs.mlflow_store(python, count, place, 0)
        port = peers.free_port()
        command = [python, "-m", "mlflow", "server", "--workers", "1", "--port", str(port)]
        command += ["--backend-store-uri", f"sqlite:///{place.absolute()}/mlflow.db"]
        process = subprocess.Popen(
            command,
            cwd=place,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # its child processes are stopped as a group
        )
        try:
            _wait_until_open(port)
            looks = []
            for _ in range(sizes.times):
                with _page(browser) as page:
                    link = f"http://127.0.0.1:{port}/#/experiments/1/runs"
                    looks.append(_open(page, link, _ROWS))
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    return _page_figures(f"{count:,} runs: mlflow", looks, "first rows")


def _page_figures(name: str, looks: list[dict[str, float]], what: str) -> dict[str, Figures]:
    heap = max(one[_HEAP] for one in looks)
    return {
        f"{name}, {_PAINTED}": _figures([one[_PAINTED] for one in looks], heap),
        f"{name}, {what}": _figures([one[_FIRST] for one in looks], heap),
    }


def zoom(sizes: Sizes, cache: Path) -> Result:
    """Time a zoom into a very long curve, from the end of the drag until its points are drawn."""
    place = trees.make(sizes.longest, cache)
    taken, hubs = [], []
    with _chromium() as browser:
        if browser is None:
            return Result(
                "zoom of a long curve", {}, notes=["Not measured: Chromium is not installed."]
            )
        with peers.new_index(cache) as home, personal.running(home, root=place) as hub:
            _wait_for_runs(hub)
            run = hub.ask("GET", "/runs")["runs"][0]["id"]
            asked = {"selectors": [f"id:{run}"], "tags": [trees.tag_name(0)]}
            while hub.ask("POST", "/series", asked)["unread"]:
                time.sleep(0.2)
            with _page(browser) as page:
                for at in range(sizes.inner_times):
                    page.goto(_link(hub, f"/compare?run={run}"))
                    drawn = "() => Number(document.querySelector('figure.chart')?.dataset.points)"
                    page.wait_for_function(f"{drawn} > 100", timeout=_TIMEOUT)
                    page.wait_for_load_state("networkidle")
                    begin = 0.05 + at * 0.8 / sizes.inner_times
                    whole, waited = page.evaluate(_ZOOM, [begin, begin + 0.1])
                    taken.append(whole / 1000)
                    hubs.append(waited / 1000)
                heap = page.evaluate(_READ_HEAP) / MIB
    found = {"a zoom": _figures(taken, heap), "of that, the request": _figures(hubs, 0)}
    within = [Target("seconds of a zoom", 0.1, found["a zoom"].median, at_least=False)]
    title = f"zoom of a curve of {sizes.longest.steps:,} points"
    return Result(title, found, targets=within)


def live(sizes: Sizes, cache: Path) -> Result:
    """Time a point from the disk to the page, and measure the page's heap as points arrive."""
    with _chromium() as browser:
        if browser is None:
            return Result(
                "new points in the console", {}, notes=["Not measured: Chromium is not installed."]
            )
        with peers.new_index(cache) as home:
            root = home / "runs"
            with EventWriter(root / "live" / "run1", flush_secs=0.1) as writer:
                writer.scalar("loss", 1.0, 0)
                writer.flush()
                with personal.running(home, root=root) as hub, _page(browser) as page:
                    return _live(sizes, hub, page, writer)


def _live(sizes: Sizes, hub: Hub, page: Any, writer: EventWriter) -> Result:
    _wait_for_runs(hub)
    run = hub.ask("GET", "/runs")["runs"][0]["id"]
    page.goto(_link(hub, f"/runs/{run}"))
    shown = "(points) => Number(document.querySelector('figure.chart')?.dataset.points) >= points"
    page.wait_for_function(shown, arg=1, timeout=_TIMEOUT)
    taken = []
    for step in range(1, sizes.live_points + 1):
        time.sleep(0.25 + step % 7 / 10)  # not in step with polling
        writer.scalar("loss", 1 / (step + 1), step)
        writer.flush()
        began = time.perf_counter()
        page.wait_for_function(shown, arg=step + 1, timeout=_TIMEOUT, polling=10)
        taken.append(time.perf_counter() - began)
    before = page.evaluate(_READ_HEAP) / MIB
    end, step = time.monotonic() + sizes.live_minutes * 60, sizes.live_points
    while time.monotonic() < end:
        step += 1
        writer.scalar("loss", 1 / step, step)
        time.sleep(0.05)
    writer.flush()
    page.wait_for_function(shown, arg=min(step + 1, 500), timeout=_TIMEOUT)
    after = page.evaluate(_READ_HEAP) / MIB
    ordered = sorted(taken)
    late = {"90 %": ordered[int(len(ordered) * 0.9)], "worst": ordered[-1]}
    figures = _figures(taken, after)
    figures.note = ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in late.items())
    heap = (
        f"The page's heap: {before:.1f} MiB, and {after:.1f} MiB after {sizes.live_minutes:g}"
        f" minutes in which {step - sizes.live_points:,} points arrived."
    )
    within = [Target("90 % of new points, seconds", 1, late["90 %"], at_least=False)]
    return Result("new points in the console", {"a point": figures}, targets=within, notes=[heap])


def _figures(taken: list[float], heap: float) -> Figures:
    """Return figures with the heap of the page as their memory."""
    return Figures(min(taken), statistics.median(taken), heap, every=taken)


class _SlowPageError(Exception):
    pass


def _console(browser: Any, root: Path, cache: Path) -> dict[str, float]:
    with peers.new_index(cache) as home, personal.running(home, root=root) as hub:
        _wait_for_runs(hub)
        return _time_to_curve(browser, _link(hub, "/runs?column=run&column=~metrics.train/loss_0"))


def _tensorboard(browser: Any, root: Path) -> dict[str, float]:
    port = peers.free_port()
    process = subprocess.Popen(
        peers.tensorboard_command(root, port),
        env=peers.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        peers.wait_for_line(process, peers.LOADED)
        _wait_until_open(port)
        return _time_to_curve(browser, f"http://127.0.0.1:{port}/")
    finally:
        process.terminate()
        process.communicate()


def _wait_for_runs(hub: Hub) -> None:
    while hub.ask("GET", "/runs?count=true")["total"] == 0:
        time.sleep(0.05)


def _wait_until_open(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return


def _time_to_curve(browser: Any, link: str) -> dict[str, float]:
    with _page(browser) as page:
        return _open(page, link, _CURVE)


def _open(page: Any, link: str, shown: str) -> dict[str, float]:
    """Open a page; return the times of its first paint and of `shown`, and its heap then."""
    from playwright.sync_api import TimeoutError as PageTimeout

    try:
        page.goto(link, timeout=_TIMEOUT)
        drawn = page.wait_for_function(shown, timeout=_TIMEOUT, polling=20).json_value()
    except PageTimeout:
        raise _SlowPageError(f"not shown in {_TIMEOUT // 1000} s") from None
    paint = page.evaluate(_PAINT) / 1000
    return {_PAINTED: paint, _FIRST: drawn / 1000, _HEAP: page.evaluate(_READ_HEAP) / MIB}


def _link(hub: Hub, path: str) -> str:
    key = hub.ask("POST", "/link")["url"].partition("key=")[2]
    return f"{hub.address}{path}{'&' if '?' in path else '?'}key={key}"


@contextmanager
def _chromium() -> Iterator[Any]:
    """Run a browser; None if Chromium or Playwright is not installed."""
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        print("  needs playwright and chromium", file=sys.stderr)
        yield None
        return
    with sync_playwright() as playwright:
        flags = [*_ARGUMENTS, "--js-flags=--expose-gc"]
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


@contextmanager
def _page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    try:
        yield context.new_page()
    finally:
        context.close()


CASES = {
    "console": look,
    "console-table": table,
    "console-zoom": zoom,
    "console-live": live,
}
