"""A Keras callback: Keras 3 on any backend, and the Keras 2 of TensorFlow up to 2.15."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aboard.integrations import RunOfTraining
from aboard.system import requires
from aboard.track.arrays import to_number

with requires("keras", install="keras"):
    from keras.callbacks import Callback

if TYPE_CHECKING:
    from aboard.track.run import Run

_VALIDATION = "val_"


class AboardCallback(Callback):
    """Log the metrics of `fit` and `evaluate`.

    Each epoch's metrics and learning rate go to the stage `train`, those of the validation to
    `validation`, and those of `evaluate` to `test`; the step is the epoch, from 0. The settings
    of the optimizer become hyperparameters, and the model's layers the run's graph.

    Args:
        run: where to log; by default the open run, or a new one.
        batches: also log every n-th batch, under `batch/`; 0 for none. Keras reports the mean of
            the epoch so far, not of the batch.
        histograms: log the weights after every n-th epoch; 0 for never.
        graph: log the model's layers as a graph.
        options: for `aboard.init`, if a run has to be opened.
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
        run = self._run.begin()
        self._training = True
        self._batches = 0
        run.log_hparams(_settings(self.model, self.params))
        if self._graph:
            # A model written as Python code need not have a configuration.
            with contextlib.suppress(NotImplementedError, TypeError, ValueError):
                run.log_graph(self.model, stage="train")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._batches += 1
        if self._every_batch and self._batches % self._every_batch == 0:
            metrics = {f"batch/{name}": value for name, value in _numbers(logs).items()}
            self._run.open().log_metrics(metrics, step=self._batches, stage="train")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        run = self._run.open()
        trained = _learning_rate(self.model)
        validated: dict[str, float] = {}
        for name, value in _numbers(logs).items():
            target = validated if name.startswith(_VALIDATION) else trained
            target[name.removeprefix(_VALIDATION)] = value
        run.log_metrics(trained, step=epoch, stage="train")
        if validated:
            run.log_metrics(validated, step=epoch, stage="validation")
        if self._every_histogram and (epoch + 1) % self._every_histogram == 0:
            for weight in self.model.weights:
                name = getattr(weight, "path", weight.name).removesuffix(":0")
                run.log_histogram(name, weight, step=epoch, stage="train")

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self._training = False
        self._run.finish()

    def on_test_end(self, logs: Any = None) -> None:
        """Log an evaluation; one within a training comes with its epoch."""
        if self._training:
            return
        self._run.open().log_metrics(_numbers(logs), step=self._epoch, stage="test")
        self._run.finish()


def _numbers(logs: Any) -> dict[str, float]:
    numbers = {}
    for name, value in (logs or {}).items():
        try:
            numbers[name] = to_number(value)
        except (TypeError, ValueError):  # a matrix, for example
            continue
    return numbers


def _learning_rate(model: Any) -> dict[str, float]:
    rate = getattr(getattr(model, "optimizer", None), "learning_rate", None)
    if callable(rate):  # a schedule, in the old optimizers of Keras 2
        rate = rate(model.optimizer.iterations)
    return _numbers({} if rate is None else {"learning_rate": rate})


def _settings(model: Any, params: Mapping[str, Any] | None) -> dict[str, Any]:
    settings: dict[str, Any] = {name: (params or {}).get(name) for name in ("epochs", "steps")}
    if (optimizer := getattr(model, "optimizer", None)) is not None:
        config = {key: value for key, value in optimizer.get_config().items() if value is not None}
        settings["optimizer"] = {**config, "name": type(optimizer).__name__}
    return {name: value for name, value in settings.items() if value is not None}
