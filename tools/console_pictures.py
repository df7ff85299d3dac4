"""Generate docs/pictures/console-*.png: every page of the console, light and dark, full and empty.

    .venv/bin/python tools/console_pictures.py [DIRECTORY]

A personal hub shows a sweep logged with Aboard. Needs Chromium and `make console`.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from pictures import BROWSER, PICTURE, running

import aboard

RATES, DEPTHS, SEEDS = (0.1, 0.03, 0.01, 0.003), (2, 4, 8), (0, 1)
STEPS = 400


def train(root: Path, lr: float, depth: int, seed: int) -> None:
    """Log a training that fails if its learning rate is too high for its depth."""
    dice = random.Random(f"{lr} {depth} {seed}")
    hparams = {"lr": lr, "depth": depth, "seed": seed, "optimizer": "adam" if seed else "sgd"}
    fails = lr * depth > 0.5
    best = 0.96 - abs(math.log10(lr) + 1.8) * 0.06 - abs(depth - 4) * 0.01
    with aboard.init("cifar10", root=str(root), hparams=hparams) as run:
        print(f"training at {lr} with {depth} layers")
        for step in range(STEPS if not fails else 150):
            done = 1 - math.exp(-step / 90)
            loss = 2.3 * (1 - 0.92 * done) + dice.gauss(0, 0.04)
            if fails:
                loss += math.exp((step - 110) / 12)
            run.log_metrics({"loss": loss}, step=step, stage="train")
            if step % 10 == 0:
                accuracy = best * done + dice.gauss(0, 0.006)
                run.log_metrics({"accuracy": accuracy, "loss": loss * 1.1}, step=step, stage="eval")
            if step % 200 == 0:
                pixels = np.clip(np.random.default_rng(seed).normal(done, 0.3, (32, 32)), 0, 1)
                run.log_image("filters", pixels, step=step)
        if fails:
            raise FloatingPointError("the loss is not a number")


def write_runs(root: Path) -> None:
    for lr in RATES:
        for depth in DEPTHS:
            for seed in SEEDS:
                try:
                    train(root, lr, depth, seed)
                except FloatingPointError:
                    continue


def settle(page: Any) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(2_500)


def take(browser: Any, place: Path, root: Path | None, folder: Path) -> None:
    """Take pictures of a hub with the runs below `root`, or without runs."""
    found = root or place / "empty"
    found.mkdir(exist_ok=True)
    command = (sys.executable, "-m", "aboard", "serve", "--personal", "--root", found)
    state = str(place / ("full-state" if root else "empty-state"))
    variables = {"ABOARD_STATE": state, "ABOARD_CACHE": f"{state}-cache"}
    with running(*command, "--port", 0, "--json", **variables) as process:
        assert process.stdout is not None
        opened = json.loads(process.stdout.readline())
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.goto(opened["url"])
        settle(page)
        for name, path in (pages(page, opened["address"]) if root else EMPTY).items():
            for theme in ("light", "dark"):
                page.emulate_media(color_scheme=theme)
                page.goto(f"{opened['address']}{path}")
                settle(page)
                page.screenshot(path=folder / f"console-{name}-{theme}.png")
        if root:
            page.emulate_media(color_scheme="light")
            page.set_viewport_size({"width": 390, "height": 800})
            page.goto(f"{opened['address']}/runs")
            settle(page)
            page.screenshot(path=folder / "console-phone.png")
        context.close()


EMPTY = {f"{name}-empty": f"/{name}" for name in ("runs", "boards", "jobs", "compare")}


def pages(page: Any, address: str) -> dict[str, str]:
    """Start a board, and return the path of every page by name."""
    headers = {"x-aboard-csrf": "1", "content-type": "application/json"}
    body = json.dumps({"selectors": ["cifar10"], "name": "cifar10-sweep"})
    script = """async ([url, headers, body]) =>
        (await fetch(url, {method: body ? "POST" : "GET", headers, body})).json()"""
    page.evaluate(script, [f"{address}/api/v1/boards", headers, body])
    listed = page.evaluate(script, [f"{address}/api/v1/runs?selector=cifar10", headers, None])
    ids = [one["id"] for one in listed["runs"]]
    chosen = "&".join(f"run={quote(one)}" for one in ids[:8])
    return {
        "runs": "/runs",
        "run": f"/runs/{quote(ids[3])}",
        "compare": f"/compare?{chosen}",
        "sweep": "/sweep",
        "boards": "/boards",
        "jobs": "/jobs",
        "storage": "/storage",
        "people": "/people",
    }


def main() -> None:
    from playwright.sync_api import sync_playwright

    folder = Path(sys.argv[1]) if sys.argv[1:] else PICTURE.parent
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        place = Path(name)
        write_runs(place / "runs")
        program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=list(BROWSER))
        take(browser, place, place / "runs", folder)
        take(browser, place, None, folder)
        browser.close()


if __name__ == "__main__":
    main()
