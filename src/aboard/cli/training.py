"""The training behind `aboard demo`: a small network learns to tell two spirals apart.

It is real, so that the curves look like curves: four learning rates, of which one is too high,
each with a `train` and an `eval` run and every common kind of value.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aboard.events.writer import EventWriter

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
        """Return the network's answer for every point."""
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
    """A network at one learning rate, and the runs it writes."""

    def __init__(self, directory: Path, rate: float, seen: Batch, unseen: Batch) -> None:
        self._random = np.random.default_rng(11)
        self._network = Network(self._random)
        self._rate = rate
        self._seen = seen
        self._unseen = unseen
        self._train = EventWriter(directory / "train", flush_secs=0.5)
        self._eval = EventWriter(directory / "eval", flush_secs=0.5)
        with EventWriter(directory) as session:
            session.hparams({"learning_rate": rate, "hidden": _HIDDEN, "optimizer": "sgd"})
            session.text("notes", f"Two spirals, **{_HIDDEN}** hidden units, rate `{rate:g}`.", 0)

    def step(self, step: int) -> None:
        """Learn from one batch; look at unseen points now and then."""
        picked = self._random.integers(0, len(self._seen.labels), _BATCH)
        batch = Batch(self._seen.points[picked], self._seen.labels[picked])
        self._train.scalar("loss", self._network.learn(batch, self._rate), step)
        if step % _EVAL_EVERY == 0:
            self._evaluate(step)
        if step % _PICTURE_EVERY == 0:
            self._picture(step)

    def _evaluate(self, step: int) -> None:
        logits = self._network.logits(self._unseen.points)
        right = float(((logits > 0) == self._unseen.labels).mean())
        numbers = {"loss": _loss(logits, self._unseen.labels), "accuracy": right}
        self._eval.scalars(numbers, step)
        self._train.histogram("weights/hidden", self._network.hidden, step)

    def _picture(self, step: int) -> None:
        self._eval.images("decision", [_picture(self._network)], step)
        logits = self._network.logits(self._unseen.points)
        self._eval.pr_curve("spiral", _pr_curve(_sigmoid(logits), self._unseen.labels), step)

    def close(self) -> None:
        """Finish both runs."""
        self._train.close()
        self._eval.close()


def train_all(directory: Path, seconds: float, stop: threading.Event) -> None:
    """Train at every rate, side by side, with logs below a directory.

    Args:
        directory: where the runs go.
        seconds: how long it takes; 0 for no longer than it must.
        stop: ends it early.
    """
    random = np.random.default_rng(7)
    seen, unseen = _spirals(random, 2000), _spirals(random, 500)
    learners = [Learner(directory / f"lr={rate:g}", rate, seen, unseen) for rate in RATES]
    started = time.monotonic()
    try:
        for step in range(STEPS + 1):
            for learner in learners:
                learner.step(step)
            if stop.wait(max(0.0, started + seconds * step / STEPS - time.monotonic())):
                break
    finally:
        for learner in learners:
            learner.close()


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


def _picture(network: Network, size: int = 64) -> Array:
    """Draw the plane: the brighter a pixel, the surer it is of the second spiral."""
    edge = np.linspace(-2.8, 2.8, size)
    across, down = np.meshgrid(edge, edge[::-1])
    return _sigmoid(network.logits(np.stack([across.ravel(), down.ravel()], axis=1))).reshape(
        size, size
    )


def _pr_curve(sure: Array, labels: Array, thresholds: int = 51) -> Array:
    """Count right and wrong answers at evenly spaced thresholds, as TensorBoard wants them."""
    bars = np.linspace(0, 1, thresholds)[:, None]
    positive = sure >= bars
    right = labels == 1
    true_positives = (positive & right).sum(1)
    false_positives = (positive & ~right).sum(1)
    true_negatives = (~positive & ~right).sum(1)
    false_negatives = (~positive & right).sum(1)
    precision = true_positives / np.maximum(true_positives + false_positives, 1)
    recall = true_positives / np.maximum(true_positives + false_negatives, 1)
    counts = (true_positives, false_positives, true_negatives, false_negatives)
    return np.stack([*counts, precision, recall]).astype(np.float64)
