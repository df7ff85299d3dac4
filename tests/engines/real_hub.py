"""Real hubs as processes, with runs to show, and the values that their boards serve."""

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
from tests.waiting import until

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


def losses(board: str, token: str, *, runs: int = 1) -> dict[str, list[float]]:
    """Return the values that a board serves, by run, once they no longer change.

    A slow board pauses between its runs: wait for at least `runs` of them.
    """

    def now() -> dict[str, list[float]]:
        shown = json.loads(get(f"{board}data/runs", token))
        return {run: _series(board, token, run) for run in shown}

    def settled() -> dict[str, list[float]] | None:
        try:
            before = now()
            time.sleep(0.7)  # enough for an unexpected run to appear
            return before if len(before) >= runs and now() == before else None
        except urllib.error.HTTPError:  # a run without points yet
            return None

    return until(settled, lambda: f"{board} does not settle: {now()}")


def _series(board: str, token: str, run: str) -> list[float]:
    query = urlencode({"run": run, "tag": "loss"})
    points = json.loads(get(f"{board}data/plugin/scalars/scalars?{query}", token))
    return [value for _, _, value in points]


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener like a browser without cookies and proxy."""
    cookies = urllib.request.HTTPCookieProcessor()
    return urllib.request.build_opener(cookies, urllib.request.ProxyHandler({}))


@contextmanager
def own_hub(directory: Path, root: Path) -> Iterator[Path]:
    """Run a personal hub in the background; yield its state directory."""
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

    def address() -> str | None:
        runs = process.poll() is None
        found = re.search(r'^{.*"address":"([^"]+)".*}$', log.read_text(), re.M)
        assert found or runs, log.read_text()
        return found[1] if found else None

    try:
        yield TeamHub(until(address, log.read_text), directory)
    finally:
        process.terminate()
        process.wait(180)
