"""What a user waits for in a real browser: the console's first paint, curve and new points.

The peer is stock TensorBoard over the same runs. Pages are opened in Chromium, with nothing cached;
where there is no browser, the case says so. A time is measured by the page itself, from its
navigation on.
"""

from __future__ import annotations

import shutil
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

import peers
import personal
import views
from cases import MIB, Figures, Result, Sizes, Target
from personal import Hub

from aboard import EventWriter

_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--enable-precise-memory-info")
_PATIENCE = 120_000
_MANY = 50_000  # runs, which are looked at once
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


def look(sizes: Sizes, cache: Path) -> Result:
    """First paint and first curve of the console over many runs, beside stock TensorBoard."""
    found: dict[str, Figures] = {}
    notes, targets = ["The memory is the heap of the page."], []
    with _chromium() as browser:
        if browser is None:
            return Result("the console in a browser", {}, notes=["There is no Chromium here."])
        for count in sizes.looked_at:
            root = personal.recorded(count, cache)
            ours = partial(_console, browser, root, cache)
            theirs = partial(_tensorboard, browser, root)
            for name, action in {"console": ours, "tensorboard": theirs}.items():
                try:
                    looks = [action() for _ in range(sizes.times if count < _MANY else 1)]
                except _TooSlow as error:
                    notes.append(f"{name}, {count:,} runs: {error}")
                    continue
                heap = max(one[_HEAP] for one in looks)
                for what in (_PAINTED, _FIRST):
                    taken = _figures([one[what] for one in looks], heap)
                    found[f"{count:,} runs: {name}, {what}"] = taken
            both = [
                found.get(f"{count:,} runs: {name}, {_FIRST}")
                for name in ("console", "tensorboard")
            ]
            if both[0] and both[1]:
                ratio = both[1].best / both[0].best
                targets.append(Target(f"{count:,} runs, first curve, times as fast", 1, ratio))
    return Result("the console in a browser", found, targets=targets, notes=notes)


def live(sizes: Sizes, cache: Path) -> Result:
    """From a point on the disk to the page that shows it, and the page's heap as points arrive."""
    with _chromium() as browser:
        if browser is None:
            return Result("new points in the console", {}, notes=["There is no Chromium here."])
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
    page.wait_for_function(shown, arg=1, timeout=_PATIENCE)
    taken = []
    for step in range(1, sizes.live_points + 1):
        time.sleep(0.25 + step % 7 / 10)  # not in step with any poll
        writer.scalar("loss", 1 / (step + 1), step)
        writer.flush()
        began = time.perf_counter()
        page.wait_for_function(shown, arg=step + 1, timeout=_PATIENCE, polling=10)
        taken.append(time.perf_counter() - began)
    before = page.evaluate(_READ_HEAP) / MIB
    end, step = time.monotonic() + sizes.live_minutes * 60, sizes.live_points
    while time.monotonic() < end:
        step += 1
        writer.scalar("loss", 1 / step, step)
        time.sleep(0.05)
    writer.flush()
    page.wait_for_function(shown, arg=min(step + 1, 500), timeout=_PATIENCE)
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


class _TooSlow(Exception):  # noqa: N818 - named by what is wrong
    pass


def _console(browser: Any, root: Path, cache: Path) -> dict[str, float]:
    with peers.new_index(cache) as home, personal.running(home, root=root) as hub:
        _wait_for_runs(hub)
        return _looked(browser, _link(hub, "/runs?column=run&column=~metrics.train/loss_0"))


def _tensorboard(browser: Any, root: Path) -> dict[str, float]:
    port = peers._free_port()
    process = subprocess.Popen(
        views._tensorboard_command(root, port),
        env=peers.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        views._wait_for(process, peers.LOADED)
        _wait_until_open(port)
        return _looked(browser, f"http://127.0.0.1:{port}/")
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


def _looked(browser: Any, link: str) -> dict[str, float]:
    from playwright.sync_api import TimeoutError as Late

    with _page(browser) as page:
        try:
            page.goto(link, timeout=_PATIENCE)
            drawn = page.wait_for_function(_CURVE, timeout=_PATIENCE, polling=20).json_value()
        except Late:
            raise _TooSlow(f"no curve in {_PATIENCE // 1000} s") from None
        paint = page.evaluate(_PAINT) / 1000
        return {_PAINTED: paint, _FIRST: drawn / 1000, _HEAP: page.evaluate(_READ_HEAP) / MIB}


def _link(hub: Hub, path: str) -> str:
    key = hub.ask("POST", "/link")["url"].partition("key=")[2]
    return f"{hub.address}{path}{'&' if '?' in path else '?'}key={key}"


@contextmanager
def _chromium() -> Iterator[Any]:
    """Run a browser; None where there is none, or no Playwright."""
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


CASES = {"console": look, "console-live": live}
