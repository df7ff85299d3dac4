"""A personal hub to measure, in a process and with directories of its own, and what to show on it.

What is measured with it is left to `hubs`.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import peers
import trees
from client import Site, _content
from measure import _family, _high_water, _processor_time
from trees import Tree

from aboard.runs.manifest import Manifest, State

SMALL = Tree(1, 1, 5)
_STOP_SECONDS = 60
_MOST_LINKS = 50_000  # to one file; ext4 has 65,000
_API = "/api/v1"


class Memory(NamedTuple):
    """What processes take, in bytes."""

    peak: int
    """The sum of the most that each had at any time; pages that several share count for each."""
    fair: int
    """Now, with every shared page split among those that share it."""


class Hub:
    """A hub that runs."""

    def __init__(self, process: subprocess.Popen[str], home: Path, variables: dict[str, str]):
        self.process = process
        self.home = home
        self.environment = variables
        said = process.stdout.readline() if process.stdout else ""
        if not said:
            raise peers.Unread(f"the hub did not start: {(home / 'hub.log').read_text()[-500:]}")
        self.address: str = json.loads(said)["address"]
        self.port = urlsplit(self.address).port or 0
        token = (home / "state" / "hub-token").read_text().strip()
        self.headers = {"Authorization": f"Bearer {token}"}

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Ask the API over a connection of its own, as commands do; return what it says."""
        content = self.send(method, path, body)
        return json.loads(content) if content else None

    def send(self, method: str, path: str, body: object = None) -> bytes:
        """Ask the API; return the answer as it came."""
        sent = None if body is None else json.dumps(body)
        headers = {**self.headers, "Content-Type": "application/json"}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            connection.request(method, _API + path, sent, headers)
            answer = connection.getresponse()
            content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]!r}")
        return content

    def pages(self, what: str) -> Iterator[dict[str, Any]]:
        """Yield everything of a kind, `runs` or `boards`, a thousand at a time as the SDK does."""
        cursor = None
        while True:
            query = {"limit": 1000} | ({"cursor": cursor} if cursor else {})
            page = self.ask("GET", f"/{what}?{urlencode(query)}")
            yield from page[what]
            cursor = page["next"]
            if cursor is None:
                return

    def create(self, selector: str | Path, **fields: str) -> str:
        """Start a board, an instant one unless another place is given, and return its id."""
        meant = str(selector.absolute() if isinstance(selector, Path) else selector)
        return str(self.ask("POST", "/boards", {"selectors": [meant], "new": True, **fields})["id"])

    def delete(self, board: str) -> None:
        """Stop a board, and delete it once it has ended."""
        deadline = time.monotonic() + _STOP_SECONDS
        self.ask("POST", f"/boards/{board}/stop", {"now": True})
        while self.ask("GET", f"/boards/{board}")["ended"] is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"board {board} does not end")
            time.sleep(0.1)
        self.ask("DELETE", f"/boards/{board}")

    def site(self, board: str) -> Site:
        """Return a visitor of a board."""
        return Site(self.port, f"/b/{board}/", self.headers)

    def memory(self) -> Memory:
        """Return what all its processes take."""
        return memory_of(self.process.pid)

    def cpu(self) -> float:
        """Return the processor time of all its processes so far."""
        return sum(map(_processor_time, _family(self.process.pid)))

    def close(self) -> None:
        """End it, and do not return before it is gone."""
        self.process.terminate()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.wait()
            if self.process.stdout:
                self.process.stdout.close()


@contextmanager
def running(
    home: Path,
    *,
    index: Path | None = None,
    root: Path | None = None,
    settings: Path | None = None,
) -> Iterator[Hub]:
    """Run a hub with a new state below `home`, and an index there unless another one is given."""
    home = home.absolute()  # for that is where it runs, so that no ./runs is taken for a root
    variables = peers.environment((index or home / "cache").absolute())
    variables["ABOARD_STATE"] = str(home / "state")
    if settings:
        variables["ABOARD_CONFIG"] = str(settings.absolute())
    command = [*peers.ABOARD, "serve", "--personal", "--json", "--port", "0"]
    command += ["--root", str(root.absolute())] if root else []
    with (home / "hub.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=home,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        hub = Hub(process, home, variables)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    try:
        yield hub
    finally:
        hub.close()


def wait_for_curve(tree: Tree, site: Site) -> float:
    """Ask for a curve until it is whole; return the moment at which that answer had come."""
    for _ in range(1000):
        answer = site.ask("curve", trees.tag_name(0))
        came = time.perf_counter()
        if is_whole(tree, answer):
            return came
    raise peers.Unread(f"the curve never had {tree.runs} runs of {tree.steps} steps")


def is_whole(tree: Tree, answer: bytes) -> bool:
    """Say whether a curve is there for every run, up to the last step."""
    curve = json.loads(_content(answer))[0]["runToSeries"].values()
    return len(curve) == tree.runs and {one[-1]["step"] for one in curve} == {tree.steps - 1}


def memory_of(pid: int) -> Memory:
    """Return what a process and all below it take."""
    family = list(_family(pid))
    return Memory(sum(map(_high_water, family)), sum(map(_fair_share, family)))


def _fair_share(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    _, found, after = rollup.partition("\nPss:")
    return int(after.split(None, 1)[0]) * 1024 if found else 0


@contextmanager
def copies(tree: Tree, count: int, cache: Path) -> Iterator[list[Path]]:
    """Lend so many directories with the same tree; their files are links and take no space."""
    place = trees.make(tree, cache)
    trees.warm(place)
    with peers.new_index(cache) as home:
        made = [home / f"logs_{number:03}" for number in range(count)]
        for copy in made:
            for run in range(tree.runs):
                path = trees.file_of(copy, run)
                path.parent.mkdir(parents=True)
                path.hardlink_to(trees.file_of(place, run))
        yield made


def recorded(count: int, cache: Path) -> Path:
    """Return a root with so many finished runs, each with its record; made if it is not there."""
    place = cache / "roots" / f"{count}-{trees.VERSION}"
    if place.is_dir():
        return place
    print(f"  writing {count:,} runs", file=sys.stderr)
    events = trees.file_of(trees.make(SMALL, cache), 0)
    unfinished = place.with_name(f"{place.name}.{os.getpid()}")
    for number in range(count):
        label = recorded_label(number)
        directory = unfinished / label
        directory.mkdir(parents=True)
        experiment, _, name = label.partition("/")
        began = trees.START + number
        record = Manifest(
            name,
            experiment=experiment,
            hparams={"lr": 0.1 / (number + 1), "layers": number % 7, "optimizer": "adam"},
            tags={"baseline": number % 10 == 0},
            metrics={"train/loss": 1 / (number + 1), "eval/accuracy": 1 - 1 / (number + 2)},
            host="somewhere",
            user="somebody",
            created=began,
            started=began,
            ended=began + 60,
            heartbeat=began + 60,
            state=State.COMPLETED,
            exit_code=0,
        )
        (directory / "run.json").write_bytes(record.to_json())
        if number % _MOST_LINKS == 0:
            events = shutil.copy(events, directory / events.name)
        else:
            (directory / events.name).hardlink_to(events)
    unfinished.rename(place)
    return place


def recorded_label(number: int) -> str:
    """Return the experiment and name of a recorded run, a hundred runs to an experiment."""
    return f"experiment{number // 100}/run{number % 100 + 1}"
