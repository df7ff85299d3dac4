"""A personal hub to measure, with its own process and directories, and runs to show on it.

The cases that use it are in `hubs`, `catalogs`, `engines` and `pages`.
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
from client import Site, decompress
from measure import cpu_time, peak_memory, process_tree
from trees import Tree

from aboard.runs.manifest import Manifest, State

SMALL = Tree(1, 1, 5)
_STOP_SECONDS = 60
_MOST_LINKS = 50_000  # to one file; ext4 has 65,000
_API = "/api/v1"


class Memory(NamedTuple):
    """The memory of a process and its descendants, in bytes."""

    peak: int
    """The sum of the peaks of resident memory; shared pages count for each process."""
    fair: int
    """The current PSS: each shared page is divided among the processes that share it."""


class Hub:
    """A running hub."""

    def __init__(self, process: subprocess.Popen[str], home: Path, variables: dict[str, str]):
        self.process = process
        self.home = home
        self.environment = variables
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise peers.MeasurementError(
                f"the hub did not start: {(home / 'hub.log').read_text()[-500:]}"
            )
        self.address: str = json.loads(line)["address"]
        self.port = urlsplit(self.address).port or 0
        token = (home / "state" / "hub-token").read_text().strip()
        self.headers = {"Authorization": f"Bearer {token}"}

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request over a new connection, as commands do; return the parsed response."""
        content = self.send(method, path, body)
        return json.loads(content) if content else None

    def send(self, method: str, path: str, body: object = None) -> bytes:
        """Send a request over a new connection; return the body of the response."""
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
        """Yield all `runs` or `boards`, in pages of 1,000 as the SDK does."""
        cursor = None
        while True:
            query = {"limit": 1000} | ({"cursor": cursor} if cursor else {})
            page = self.ask("GET", f"/{what}?{urlencode(query)}")
            yield from page[what]
            cursor = page["next"]
            if cursor is None:
                return

    def create(self, selector: str | Path, **fields: str) -> str:
        """Start a board, an instant one unless `on` names an engine, and return its id."""
        text = str(selector.absolute() if isinstance(selector, Path) else selector)
        return str(self.ask("POST", "/boards", {"selectors": [text], "new": True, **fields})["id"])

    def delete(self, board: str) -> None:
        """Stop a board, and delete it after it has stopped."""
        deadline = time.monotonic() + _STOP_SECONDS
        self.ask("POST", f"/boards/{board}/stop", {"now": True})
        while self.ask("GET", f"/boards/{board}")["ended"] is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"board {board} did not stop in {_STOP_SECONDS} s")
            time.sleep(0.1)
        self.ask("DELETE", f"/boards/{board}")

    def site(self, board: str) -> Site:
        """Return a client of a board."""
        return Site(self.port, f"/b/{board}/", self.headers)

    def memory(self) -> Memory:
        """Return the memory of all its processes."""
        return memory_of(self.process.pid)

    def cpu(self) -> float:
        """Return the CPU time of all its processes so far."""
        return sum(map(cpu_time, process_tree(self.process.pid)))

    def close(self) -> None:
        """Stop the hub, and wait until it has exited."""
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
    """Run a hub with new state below `home`, and a new index there unless one is given."""
    home = home.absolute()  # also the working directory, so that ./runs is not used as a root
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
    """Poll until the curve is complete; return the time at which that response arrived."""
    for _ in range(1000):
        answer = site.ask("curve", trees.tag_name(0))
        came = time.perf_counter()
        if is_whole(tree, answer):
            return came
    raise peers.MeasurementError(f"the curve never had {tree.runs} runs of {tree.steps} steps")


def is_whole(tree: Tree, answer: bytes) -> bool:
    """Return whether a response has a curve up to the last step for every run."""
    curve = json.loads(decompress(answer))[0]["runToSeries"].values()
    return len(curve) == tree.runs and {one[-1]["step"] for one in curve} == {tree.steps - 1}


def memory_of(pid: int) -> Memory:
    """Return the memory of a process and its descendants."""
    pids = list(process_tree(pid))
    return Memory(sum(map(peak_memory, pids)), sum(map(_fair_share, pids)))


def _fair_share(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    _, found, after = rollup.partition("\nPss:")
    return int(after.split(None, 1)[0]) * 1024 if found else 0


@contextmanager
def copies(tree: Tree, count: int, cache: Path) -> Iterator[list[Path]]:
    """Make `count` temporary directories with the same tree; the files are hard links."""
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
    """Return a root with `count` finished runs and their records; it is made once and kept."""
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
