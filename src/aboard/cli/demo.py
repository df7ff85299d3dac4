"""`aboard demo`: train a small network at four learning rates, and watch it on a separate hub.

The training is real. A network learns to separate two spirals, at four rates of which one is too
high; each is a run with the stages `train` and `eval` and every common kind of value. The hub shows
the console and a board of the runs, and stops with the command.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import typer

from aboard.cli.console import (
    AddressOption,
    BrowserOption,
    Failure,
    PortOption,
    WrongUsage,
    examples,
    is_debugging,
    line_for,
)
from aboard.cli.hub import addresses_of, open_boards_port, owner_of, print_forwarding
from aboard.runs.manifest import State
from aboard.storage import canonical, join
from aboard.track.environment import RunPlace
from aboard.track.redaction import command_to_record
from aboard.track.run import Run
from aboard.track.start import begin

if TYPE_CHECKING:
    import socket

    from aboard.hub.service import Hub

EPILOG = examples(
    "`aboard demo` - train for three minutes; the console stays until you press Ctrl-C",
    "`aboard demo --seconds 20 --no-browser` - stop by itself, for a script",
    "`aboard demo /tmp/demo` - with logs in another directory",
)

_USUAL_SECONDS = 180.0
_MOST_SECONDS = 7 * 86400.0
_EXPERIMENT = "spirals"


def demo(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY", help="Directory of the logs; if it is in use, a number is added."
        ),
    ] = Path("demo-logs"),
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Train this long, then stop. By default the training takes three minutes and the"
            " console stays.",
            min=0,
        ),
    ] = None,
    browser: BrowserOption = True,
    port: PortOption = None,
    json: AddressOption = False,
) -> None:
    """Train a small network at four learning rates, and watch it live."""
    from aboard.boards.model import Limits
    from aboard.hub.app import make_app
    from aboard.hub.config import Config
    from aboard.hub.service import Hub
    from aboard.index.library import Root
    from aboard.web import ending_in_order, listen, serve

    if seconds is not None and not seconds <= _MOST_SECONDS:
        raise WrongUsage(f"--seconds: {seconds} is not between 0 and {_MOST_SECONDS}.")
    with ExitStack() as closing:
        closing.enter_context(ending_in_order())
        sockets = [closing.enter_context(one) for one in listen("localhost", port)]
        logs = _new_directory(directory)
        if not json:
            typer.echo(f"Training four small networks; their logs are in {logs}")
        state = closing.enter_context(tempfile.TemporaryDirectory(prefix="aboard-demo-"))
        settings = Config(
            directory=Path(state),
            roots=(Root(canonical(str(logs))),),
            limits=Limits(isolated=0),  # such a board would outlive the hub
        )
        boards = [closing.enter_context(one) for one in open_boards_port(settings, sockets)]
        training = _Training(logs, seconds)

        hub = Hub(settings, personal=True)
        key = hub.auth.lasting_key(owner_of(hub))

        def ready() -> None:
            _announce(hub, logs, sockets, boards, key, browser=browser, json=json)
            training.is_shown.set()

        training.start()
        try:
            app = make_app(hub, addresses_of(settings, sockets, boards))
            caught = serve(app, [*sockets, *boards], on_ready=ready)
            if caught is signal.SIGINT and sys.stderr.isatty():
                typer.echo(err=True)  # after the terminal's ^C
        finally:
            training.end()
            if not json:
                with suppress(OSError):  # the terminal was closed
                    typer.echo(f"The logs are in {logs}. See them again with: aboard view {logs}")
    if training.error is not None:
        if is_debugging():
            raise training.error
        raise Failure(f"the training failed: {line_for(training.error)}")
    if caught is signal.SIGINT:
        raise typer.Exit(130)


def _announce(
    hub: Hub,
    logs: Path,
    sockets: Sequence[socket.socket],
    boards: Sequence[socket.socket],
    key: str,
    *,
    browser: bool,
    json: bool,
) -> None:
    """Start the board, and print a link to the console and one to the board."""
    from aboard.web import urls

    owner, address = owner_of(hub), urls(sockets, "localhost")[0]
    board = hub.create(owner, {"selectors": [canonical(str(logs))], "name": "demo"}).board
    at_board = f"{address}/b/{board.id}/"
    to_console, to_board = (f"{place}?key={key}" for place in (f"{address}/", at_board))
    if json:
        import orjson

        document = {"url": to_board, "address": at_board, "console": to_console, "pid": os.getpid()}
        typer.echo(orjson.dumps(document))
        return
    typer.echo(f"The console: {to_console}")
    typer.echo(f"A board:     {to_board}")
    print_forwarding(*(one[0].getsockname()[1] for one in (sockets, boards) if one))
    if sys.stdout.isatty():
        typer.echo("Press Ctrl-C to stop.")
    if browser:
        from aboard.cli.view import open_in_browser

        open_in_browser(to_console)


def _new_directory(directory: Path) -> Path:
    """Create a directory for this demo: the given one, or the next free one."""
    if directory.name in ("", ".."):
        directory = directory.resolve()
        if not directory.name:
            raise WrongUsage(f"{directory}: the logs need a directory of their own. Name one.")
    for number in count(1):
        logs = directory if number == 1 else directory.with_name(f"{directory.name}-{number}")
        if logs.is_dir() and not any(logs.iterdir()):
            return logs
        if not logs.exists():
            break
    logs.mkdir(parents=True)
    return logs


class _Training(threading.Thread):
    """Trains in the background. Stops the process after `seconds`, if given, or on failure."""

    def __init__(self, logs: Path, seconds: float | None) -> None:
        super().__init__(name="aboard-demo", daemon=True)
        self.error: Exception | None = None
        self._logs = logs
        self._seconds = seconds
        self._stop_early = threading.Event()
        # No signal before that: the process could not report why it stops.
        self.is_shown = threading.Event()

    def run(self) -> None:
        seconds = self._seconds
        try:
            train_all(self._logs, _USUAL_SECONDS if seconds is None else seconds, self._stop_early)
        except Exception as error:  # noqa: BLE001 - reported when the hub has ended
            self.error = error
        if self._stop_early.is_set():
            return
        if self.error is not None or seconds is not None:
            self.is_shown.wait()
            if self.error is None and seconds is not None:
                time.sleep(min(1.0, seconds))  # so that the last points are shown
            os.kill(os.getpid(), signal.SIGTERM)

    def end(self) -> None:
        self._stop_early.set()
        self.is_shown.set()
        self.join()


# The training.

Array = npt.NDArray[np.float64]
RATES = (0.01, 0.1, 1.0, 30.0)
STEPS = 3000
_HIDDEN = 32
_BATCH = 64
_EVAL_EVERY = 50
_PICTURE_EVERY = 250


class Batch(NamedTuple):
    """Points of the plane, and the spiral (0 or 1) that each belongs to."""

    points: Array
    labels: Array


class Network:
    """Two inputs, a hidden layer of tanh units, one output: the logit of the second spiral."""

    def __init__(self, random: np.random.Generator) -> None:
        self.hidden = random.normal(0, 1.5, (2, _HIDDEN))
        self.offset = random.normal(0, 0.5, _HIDDEN)
        self.output = random.normal(0, _HIDDEN**-0.5, _HIDDEN)

    def logits(self, points: Array) -> Array:
        return np.tanh(points @ self.hidden + self.offset) @ self.output

    def learn(self, batch: Batch, rate: float) -> float:
        """Take one step down the gradient; return the loss before it."""
        inner = np.tanh(batch.points @ self.hidden + self.offset)
        logits = inner @ self.output
        slope = (_sigmoid(logits) - batch.labels) / len(logits)
        back = np.outer(slope, self.output) * (1 - inner**2)
        self.output -= rate * (slope @ inner)
        self.hidden -= rate * (batch.points.T @ back)
        self.offset -= rate * back.sum(0)
        return _loss(logits, batch.labels)


class Learner:
    """A network at one learning rate, and its run."""

    def __init__(self, root: str, rate: float, seen: Batch, unseen: Batch) -> None:
        self._random = np.random.default_rng(11)
        self._network = Network(self._random)
        self._rate = rate
        self._seen = seen
        self._unseen = unseen
        name = f"lr={rate:g}"
        # Like `aboard.init`, but independent of the environment.
        self.run: Run = begin(
            RunPlace(root, _EXPERIMENT, name, directory=join(root, name)),
            command_to_record(),
            hparams={"learning_rate": rate, "hidden": _HIDDEN, "optimizer": "sgd"},
            rank=-1,
            resume=False,
            flush_secs=0.5,
        )
        notes = f"Two spirals, **{_HIDDEN}** hidden units, rate `{rate:g}`."
        self.run.log_text("notes", notes, step=0)

    def step(self, step: int) -> None:
        picked = self._random.integers(0, len(self._seen.labels), _BATCH)
        batch = Batch(self._seen.points[picked], self._seen.labels[picked])
        loss = self._network.learn(batch, self._rate)
        self.run.log_metrics({"loss": loss}, step=step, stage="train")
        if step % _EVAL_EVERY == 0:
            self._evaluate(step)
        if step % _PICTURE_EVERY == 0:
            self._picture(step)

    def _evaluate(self, step: int) -> None:
        logits = self._network.logits(self._unseen.points)
        right = float(((logits > 0) == self._unseen.labels).mean())
        numbers = {"loss": _loss(logits, self._unseen.labels), "accuracy": right}
        self.run.log_metrics(numbers, step=step, stage="eval")
        self.run.log_histogram("weights/hidden", self._network.hidden, step=step, stage="train")

    def _picture(self, step: int) -> None:
        self.run.log_image("decision", _picture(self._network), step=step, stage="eval")
        sure = _sigmoid(self._network.logits(self._unseen.points))
        labels = self._unseen.labels
        self.run.log_pr_curve("spiral", labels, sure, thresholds=51, step=step, stage="eval")


def train_all(directory: Path, seconds: float, stop: threading.Event) -> None:
    """Train at all rates in parallel for `seconds`; 0 is as fast as possible."""
    random = np.random.default_rng(7)
    seen, unseen = _spirals(random, 2000), _spirals(random, 500)
    root = canonical(str(directory))
    with ExitStack() as runs:
        learners = [Learner(root, rate, seen, unseen) for rate in RATES]
        for learner in learners:
            runs.enter_context(learner.run)
        started = time.monotonic()
        for step in range(STEPS + 1):
            for learner in learners:
                learner.step(step)
            if stop.wait(max(0.0, started + seconds * step / STEPS - time.monotonic())):
                for learner in learners:
                    learner.run.finish(State.KILLED, reason="the demo was stopped")
                break


def _spirals(random: np.random.Generator, count: int) -> Batch:
    labels = random.integers(0, 2, count).astype(np.float64)
    turn = random.uniform(0.25, 1.25, count)
    angle = turn * 2 * np.pi + labels * np.pi
    points = 2 * turn[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return Batch(points + random.normal(0, 0.1, points.shape), labels)


def _sigmoid(logits: Array) -> Array:
    return 0.5 * (1 + np.tanh(logits / 2))


def _loss(logits: Array, labels: Array) -> float:
    return float((np.logaddexp(0, logits) - labels * logits).mean())


def _picture(network: Network) -> Array:
    """Draw the plane: the brighter a pixel, the more likely the second spiral."""
    edge = np.linspace(-2.8, 2.8, 64)
    across, down = np.meshgrid(edge, edge[::-1])
    logits = network.logits(np.stack([across.ravel(), down.ravel()], axis=1))
    return _sigmoid(logits).reshape(across.shape)
