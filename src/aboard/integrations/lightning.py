"""A logger for Lightning, under both of its names: `lightning.pytorch` and `pytorch_lightning`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aboard.integrations import RunOfTraining, needing
from aboard.storage import is_remote
from aboard.track.ending import ending_of

# Each of the two packages takes only loggers of its own; what the user imported is used.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning.loggers import Logger
    from pytorch_lightning.utilities import rank_zero_only
else:
    with needing("lightning", "lightning"):
        from lightning.pytorch.loggers import Logger
        from lightning.pytorch.utilities import rank_zero_only

if TYPE_CHECKING:
    from aboard.runs.values import HParams
    from aboard.track.run import Run


class AboardLogger(Logger):
    """Log what a LightningModule logs, with its hyperparameters.

    Metrics keep the names that `self.log` gave them. Checkpoints go to the run's directory,
    unless that is in a bucket. Of several processes, the first one logs.

    Args:
        experiment: as for `aboard.init`, and `name` and `root` too.
        run: where to log; the open run, or a new one, unless given.
        prefix: put in front of the names of metrics.
        options: for `aboard.init`, if a run has to be made.
    """

    def __init__(
        self,
        experiment: str | None = None,
        name: str | None = None,
        root: str | None = None,
        *,
        run: Run | None = None,
        prefix: str = "",
        **options: Any,
    ) -> None:
        super().__init__()
        self._run = RunOfTraining(run, experiment=experiment, name=name, root=root, **options)
        self._prefix = prefix

    @property
    def experiment(self) -> Run:
        """The run; silent on every process but the first."""
        return self._run.open(rank=_rank())

    @property
    def _where(self) -> Run:
        """The run, be it finished: Lightning and its users ask for its name after a training."""
        return self._run.where(rank=_rank())

    @property
    def name(self) -> str:
        """The experiment's name: Lightning's name for what runs belong to."""
        return self._where.experiment

    @property
    def version(self) -> str:
        """The run's name."""
        return self._where.name

    @property
    def save_dir(self) -> str | None:
        """The root that the run is below, and its checkpoints; none if that is a bucket."""
        root = self._where.root
        return root if root and not is_remote(root) else None

    @property
    def log_dir(self) -> str:
        """A local directory for writers of your own."""
        return self._where.logdir

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers at a step."""
        named = {f"{self._prefix}{name}": value for name, value in metrics.items()}
        self.experiment.log_metrics(named, step=step)

    def log_hyperparams(self, params: HParams, *_: Any, **__: Any) -> None:
        """Note hyperparameters."""
        self.experiment.log_hparams(params)

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Log the model's graph, traced with an input: the `example_input_array` unless given."""
        inputs = model.example_input_array if input_array is None else input_array
        if inputs is not None:
            self.experiment.log_graph(model, inputs)

    def save(self) -> None:
        """Do nothing: Lightning asks for it at every step, and the run is written anyway."""

    def finalize(self, status: str) -> None:
        """Finish the run if it was opened here."""
        error = sys.exc_info()[1]  # Lightning comes here while it handles one, if any
        if status == "success":
            self._run.finish("completed")
        elif error is not None:
            self._run.finish(*ending_of(error))
        else:
            self._run.finish("failed")


def _rank() -> int:
    """Return which process this is; Lightning starts some itself, and tells them in its own way."""
    return getattr(rank_zero_only, "rank", None) or 0
