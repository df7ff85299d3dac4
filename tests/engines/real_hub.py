"""Real hubs as processes, with runs to show, and what their boards serve over HTTP."""

import contextlib
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pytest

from aboard import EventWriter
from aboard.runs.manifest import Manifest
from aboard.sdk.personal import start_personal, stop_personal
from tests.engines.command import fork_command, forked_hubs

USER, PASSWORD = "ada", "correct horse battery"


class TeamHub(NamedTuple):
    url: str
    directory: Path


def log_run(root: Path, label: str, values: list[float]) -> None:
    """Write a run with a record and one series."""
    experiment, _, name = label.partition("/")
    with EventWriter(root / label) as writer:
        for step, value in enumerate(values):
            writer.scalar("loss", value, step)
    (root / label / "run.json").write_bytes(Manifest(name, experiment).to_json())


def get(url: str, token: str = "") -> bytes:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with _opener().open(urllib.request.Request(url, headers=headers), timeout=180) as answer:
        return answer.read()


def losses(
    board: str, token: str, seconds: float = 60.0, *, runs: int = 1
) -> dict[str, list[float]]:
    """Return the numbers that a board serves, by run, once they no longer change.

    A slow board pauses between its runs: `runs` is how many there are at least.
    """
    deadline = time.monotonic() + seconds
    before = None
    while True:
        with contextlib.suppress(urllib.error.HTTPError):  # a run whose points are still to come
            shown = json.loads(get(f"{board}data/runs", token))
            found = {run: _series(board, token, run) for run in shown}
            if len(found) >= runs and found == before:
                return found
            before = found
        assert time.monotonic() < deadline, f"{board} does not settle: {before}"
        time.sleep(0.7)


def _series(board: str, token: str, run: str) -> list[float]:
    query = urlencode({"run": run, "tag": "loss"})
    points = json.loads(get(f"{board}data/plugin/scalars/scalars?{query}", token))
    return [value for _, _, value in points]


def _opener() -> urllib.request.OpenerDirector:
    """Open as a browser does that has no cookies yet, and no proxy."""
    cookies = urllib.request.HTTPCookieProcessor()
    return urllib.request.build_opener(cookies, urllib.request.ProxyHandler({}))


@contextmanager
def own_hub(directory: Path, root: Path) -> Iterator[Path]:
    """Run a user's own hub in the background; give the directory of its state."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABOARD_STATE", str(directory))
        patch.setenv("ABOARD_CACHE", str(directory / "cache"))
        with forked_hubs():
            start_personal([str(root)])
    try:
        yield directory
    finally:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ABOARD_STATE", str(directory))
            stop_personal()


@contextmanager
def team_hub(directory: Path, settings: str) -> Iterator[TeamHub]:
    """Run a team's hub, with one administrator."""
    directory.mkdir()
    config = directory / "aboard.toml"
    config.write_text(f'port = 0\ndirectory = "{directory / "hub"}"\n{settings}')
    words = ["serve", "--config", str(config), "--admin", USER, "--json"]
    env = {**os.environ, "ABOARD_CACHE": str(directory / "cache")}
    log = directory / "log"
    log.touch()
    process = fork_command(
        words, env=env, cwd=directory, stdin=f"{PASSWORD}\n", stdout=str(log), stderr=str(log)
    )
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r'^{.*"address":"([^"]+)".*}$', log.read_text(), re.M)):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield TeamHub(found[1], directory)
    finally:
        process.terminate()
        process.wait(180)
