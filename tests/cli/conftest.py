"""What the command line's tests share: a small log tree, and the command as users run it."""

import fcntl
import json
import os
import signal
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from aboard import EventWriter
from aboard.events import encode
from tests import summaries
from tests.engines.command import Result, fork_command, forked_hubs, run_command
from tests.engines.real_hub import log_run, own_hub

_SERVERS = {"view", "demo", "serve"}


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Give the environment of the command: own directories, and a known clock and width."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ABOARD_")}
    places = {"ABOARD_CACHE": str(tmp_path / "cache"), "ABOARD_STATE": str(tmp_path / "state")}
    return kept | places | {"COLUMNS": "100", "TZ": "UTC"}


@pytest.fixture
def aboard(variables: dict[str, str], tmp_path: Path) -> Callable[..., Result]:
    """Run the command in a directory of its own; `process` runs it in a process of its own.

    Commands that serve until a signal comes have one in any case, a fork.
    """

    def run(
        *arguments: object,
        process: bool = False,
        stdin: str = "",
        cwd: Path = tmp_path,
        **env: str,
    ) -> Result:
        forked = bool(arguments and arguments[0] in _SERVERS)
        options = {"stdin": stdin, "process": process, "forked": forked}
        return run_command(arguments, env=variables | env, cwd=cwd, **options)

    return run


@pytest.fixture
def viewing(variables, tmp_path):
    """Run a command that serves; give its process, its first line and a client that may enter."""

    @contextmanager
    def viewing(*arguments, **changed):
        errors = tmp_path / "errors"
        words = list(map(str, arguments))
        process = fork_command(words, env=variables | changed, cwd=tmp_path, stderr=str(errors))
        try:
            line = process.stdout.readline()
            assert line, errors.read_text()
            yield process, line
        finally:
            process.terminate()
            try:
                process.wait(timeout=180)
            finally:
                process.end()

    return viewing


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Write two runs: one with scalars alone, one with a value of other kinds too."""
    root = tmp_path / "logs"
    with EventWriter(root / "a" / "train") as writer:
        for step in range(10):
            writer.scalar("loss", 1 / (step + 1), step, wall_time=1_700_000_000 + step)
        writer.scalar("exact", 0.1, 3, dtype="float64", wall_time=1_700_000_000.25)
    with EventWriter(root / "b") as writer:
        for step, value in enumerate([1.5, np.nan, np.inf, -np.inf]):
            writer.scalar("loss", value, step, wall_time=1_700_000_100 + step)
        writer.add([encode.text("notes", "hello")], 0)
        writer.add([summaries.images("picture", [np.zeros((4, 4))])], 0)
    return root


@pytest.fixture
def damage() -> Callable[[Path], Path]:
    """Overwrite a few bytes in the middle of a run's only event file."""

    def overwrite(directory: Path) -> Path:
        (path,) = directory.glob("*tfevents*")
        content = bytearray(path.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 8] = b"\xff" * 8
        path.write_bytes(content)
        return path

    return overwrite


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Log runs of two experiments."""
    root = tmp_path_factory.mktemp("runs")
    log_run(root, "cifar10/run1", [1.0, 0.5])
    log_run(root, "cifar10/run2", [2.0, 1.5])
    log_run(root, "cifar10/run3", [5.0])
    log_run(root, "mnist/run1", [3.0])
    return root


@pytest.fixture(scope="module")
def state(tmp_path_factory, root):
    """Run a hub of the user's own over the runs; give the directory of its state."""
    with own_hub(tmp_path_factory.mktemp("own-hub"), root) as directory:
        yield directory


@pytest.fixture
def hub(variables, state):
    """Let the command use the hub; give its token."""
    variables["ABOARD_STATE"] = str(state)
    return (state / "hub-token").read_text().strip()


@pytest.fixture
def no_hub(variables, tmp_path):
    """Let the command have no hub; end the one that it starts."""
    state = tmp_path / "state"
    variables["ABOARD_STATE"] = str(state)
    with forked_hubs():
        yield state
    end_hub(state)


def end_hub(state: Path, how: signal.Signals = signal.SIGTERM) -> None:
    """End the hub of a directory, if one runs, and wait for its end."""
    if (state / "hub.json").exists():
        with suppress(ProcessLookupError):
            os.kill(json.loads((state / "hub.json").read_text())["pid"], how)
    if (state / "hub.lock").exists():
        with (state / "hub.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # it is held to the end of the process
