"""A logger for Lightning, under both of its names: `lightning.pytorch` and `pytorch_lightning`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aboard.integrations import RunOfTraining
from aboard.storage import is_remote
from aboard.system import requires
from aboard.track.exit_status import status_of

# Each of the two packages accepts only its own loggers; the one that is imported is used.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning.loggers import Logger
    from pytorch_lightning.utilities import rank_zero_only
else:
    with requires("lightning", install="lightning"):
        from lightning.pytorch.loggers import Logger
        from lightning.pytorch.utilities import rank_zero_only

if TYPE_CHECKING:
    from aboard.runs.manifest import HParams
    from aboard.track.run import Run


class AboardLogger(Logger):
    """Log what a LightningModule logs, with its hyperparameters.

    Metrics keep the names from `self.log`. Checkpoints go to the run's directory, unless that is
    in a bucket. Of several processes, only the first one logs.

    Args:
        experiment: as for `aboard.init`, and `name` and `root` too.
        run: where to log; by default the open run, or a new one.
        prefix: added in front of the names of metrics.
        options: for `aboard.init`, if a run has to be opened.
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
        """The run, even if finished: Lightning needs its name after a training, too."""
        return self._run.where(rank=_rank())

    @property
    def name(self) -> str:
        """The experiment's name, which Lightning calls the logger's name."""
        return self._where.experiment

    @property
    def version(self) -> str:
        return self._where.name

    @property
    def save_dir(self) -> str | None:
        """The root of the run and its checkpoints; None for a bucket."""
        root = self._where.root
        return root if root and not is_remote(root) else None

    @property
    def log_dir(self) -> str:
        return self._where.logdir

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        named = {f"{self._prefix}{name}": value for name, value in metrics.items()}
        self.experiment.log_metrics(named, step=step)

    def log_hyperparams(self, params: HParams, *_: Any, **__: Any) -> None:
        self.experiment.log_hparams(params)

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Log the model's graph, traced with an input, by default the `example_input_array`."""
        inputs = model.example_input_array if input_array is None else input_array
        if inputs is not None:
            self.experiment.log_graph(model, inputs)

    def save(self) -> None:
        """Do nothing: Lightning calls this at every step, and the run writes by itself."""

    def finalize(self, status: str) -> None:
        error = sys.exc_info()[1]  # Lightning calls this while it handles the error
        if status == "success":
            self._run.finish("completed")
        elif error is not None:
            self._run.finish(*status_of(error))
        else:
            self._run.finish("failed")


def _rank() -> int:
    # Lightning sets the ranks of processes that it starts itself here.
    return getattr(rank_zero_only, "rank", None) or 0
