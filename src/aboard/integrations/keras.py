"""A Keras callback: Keras 3 on any backend, and the Keras 2 that TensorFlow up to 2.15 brings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from aboard.integrations import RunOfTraining, needing
from aboard.track.arrays import to_number

with needing("keras", "keras"):
    from keras.callbacks import Callback

if TYPE_CHECKING:
    from aboard.track.run import Run

_VALIDATION = "val_"


class AboardCallback(Callback):
    """Log what a Keras model reports while it is fitted and evaluated.

    Each epoch's metrics and learning rate go to the stage `train`, those of the validation to
    `validation`, and those of `evaluate` to `test`; the step is the epoch, from 0. The settings
    of the optimizer become hyperparameters, and the model's layers the run's graph.

    Args:
        run: where to log; the open run, or a new one, unless given.
        batches: log each so many batches as well, under `batch/`; never if 0. Keras reports the
            mean of the epoch so far, not of the batch alone.
        histograms: log the weights each so many epochs; never if 0.
        graph: log the model's layers as a graph.
        options: for `aboard.init`, if a run has to be made.
    """

    def __init__(
        self,
        run: Run | None = None,
        *,
        batches: int = 0,
        histograms: int = 0,
        graph: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self._run = RunOfTraining(run, **options)
        self._every_batch = batches
        self._every_histogram = histograms
        self._graph = graph
        self._training = False
        self._epoch = 0
        self._batches = 0

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        """Open the run and note how the model is trained."""
        run = self._run.begin()
        self._training = True
        self._batches = 0
        run.log_hparams(_settings(self.model, self.params))
        if self._graph:
            # A model written as Python code need not have a configuration.
            with contextlib.suppress(NotImplementedError, TypeError, ValueError):
                run.log_graph(self.model, stage="train")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Log every so many batches."""
        self._batches += 1
        if self._every_batch and self._batches % self._every_batch == 0:
            metrics = {f"batch/{name}": value for name, value in _numbers(logs).items()}
            self._run.open().log_metrics(metrics, step=self._batches, stage="train")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the epoch, its validation, and the weights when they are due."""
        self._epoch = epoch
        run = self._run.open()
        numbers = _numbers(logs)
        trained = {
            name: value for name, value in numbers.items() if not name.startswith(_VALIDATION)
        }
        validated = {
            name.removeprefix(_VALIDATION): value
            for name, value in numbers.items()
            if name.startswith(_VALIDATION)
        }
        run.log_metrics({**_learning_rate(self.model), **trained}, step=epoch, stage="train")
        if validated:
            run.log_metrics(validated, step=epoch, stage="validation")
        if self._every_histogram and (epoch + 1) % self._every_histogram == 0:
            for name, weight in _weights(self.model):
                run.log_histogram(name, weight, step=epoch, stage="train")

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Finish the run if it was opened here."""
        self._training = False
        self._run.finish()

    def on_test_end(self, logs: Any = None) -> None:
        """Log an evaluation; one within a training comes with its epoch."""
        if self._training:
            return
        self._run.open().log_metrics(_numbers(logs), step=self._epoch, stage="test")
        self._run.finish()


def _numbers(logs: Any) -> dict[str, float]:
    """Return the metrics that are single numbers."""
    numbers = {}
    for name, value in (logs or {}).items():
        try:
            numbers[name] = to_number(value)
        except (TypeError, ValueError):  # a metric that reports a matrix, for one
            continue
    return numbers


def _learning_rate(model: Any) -> dict[str, float]:
    rate = getattr(getattr(model, "optimizer", None), "learning_rate", None)
    if callable(rate):  # a schedule, in the old optimizers of Keras 2
        rate = rate(model.optimizer.iterations)
    return _numbers({} if rate is None else {"learning_rate": rate})


def _settings(model: Any, params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a training is told beforehand: epochs, steps, and the optimizer's settings."""
    told = {name: (params or {}).get(name) for name in ("epochs", "steps")}
    settings: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    if (optimizer := getattr(model, "optimizer", None)) is not None:
        chosen = {key: value for key, value in optimizer.get_config().items() if value is not None}
        settings["optimizer"] = {**chosen, "name": type(optimizer).__name__}
    return settings


def _weights(model: Any) -> Iterator[tuple[str, Any]]:
    for weight in model.weights:
        yield getattr(weight, "path", weight.name).removesuffix(":0"), weight
