"""Generate docs/pictures/spike.png: the same run in TensorBoard and in Aboard, in a real browser.

    .venv/bin/python tools/pictures.py

A run of 200,000 steps has one step at which the loss explodes. TensorBoard keeps 1,000 points
chosen at random; Aboard keeps them all and draws the extremes. Needs Chromium and matplotlib.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import aboard

STEPS, EXPLODES = 200_000, 131_313
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "spike.png"
CAPTION, GAP = 48, 24
BROWSER = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")


def write_run(directory: Path) -> None:
    steps = np.arange(STEPS)
    noise = np.random.default_rng(7).normal(0, 0.02, STEPS)
    losses = 0.25 + 1.4 * np.exp(-steps / 30_000) + noise
    losses[EXPLODES] = 3.2
    with aboard.EventWriter(directory / "resnet50") as writer:
        for step, loss in enumerate(losses):
            writer.scalar("loss", float(loss), step, wall_time=1_700_000_000 + step * 0.1)


@contextmanager
def running(*command: object, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        list(map(str, command)),
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def stock(logs: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = (sys.executable, "-m", "tensorboard.main", "--logdir", logs, "--port", port)
    url = f"http://127.0.0.1:{port}/"
    with running(*command):
        while True:
            try:
                if json.load(urllib.request.urlopen(f"{url}data/runs")):
                    break
            except OSError:
                pass
            time.sleep(0.2)
        time.sleep(10)  # its loader still reads after it has listed the run
        yield url


@contextmanager
def ours(logs: Path, cache: Path) -> Iterator[str]:
    command = (sys.executable, "-m", "aboard", "view", logs, "--no-browser", "--port", 0, "--json")
    with running(*command, ABOARD_CACHE=str(cache)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield json.loads(line)["url"]


def card(page: Any, url: str) -> Image.Image:
    """Return the picture of the card that draws the loss."""
    page.goto(url)
    drawn = page.locator("scalar-card").first
    drawn.locator("tr, .data-row, tb-data-table-content-row").first.wait_for()
    page.wait_for_timeout(3_000)  # the card is animated
    picture = Image.open(io.BytesIO(drawn.screenshot()))
    return picture.crop((0, 0, picture.width, picture.height - 70))  # cut the empty space


def compose(cards: dict[str, Image.Image]) -> Image.Image:
    import matplotlib as mpl

    font = ImageFont.truetype(
        str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), 19
    )
    width, height = map(max, zip(*(one.size for one in cards.values()), strict=True))
    whole = Image.new("RGB", ((width + GAP) * len(cards) + GAP, height + CAPTION + GAP), "#f5f6f7")
    draw = ImageDraw.Draw(whole)
    for number, (caption, picture) in enumerate(cards.items()):
        left = GAP + number * (width + GAP)
        draw.text((left, 16), caption, fill="#202124", font=font)
        whole.paste(picture, (left, CAPTION))
    return whole


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        logs = Path(place) / "logs"
        write_run(logs)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(BROWSER)
        )
        viewport = {"width": 1420, "height": 900}
        cards = {}
        with stock(logs) as url:
            page = browser.new_context(viewport=viewport, device_scale_factor=1.25).new_page()
            cards["TensorBoard: 1,000 points, chosen at random"] = card(page, url)
        with ours(logs, Path(place) / "cache") as url:
            page = browser.new_context(viewport=viewport, device_scale_factor=1.25).new_page()
            cards["Aboard: every point kept, every spike drawn"] = card(page, url)
        browser.close()
        compose(cards).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
