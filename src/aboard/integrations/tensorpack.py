"""A monitor that logs what a Tensorpack trainer reports."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from aboard.integrations import RunOfTraining
from aboard.system import requires
from aboard.track.exit_status import status_of

with requires("tensorpack", install="tensorpack"):
    from tensorpack.callbacks import MonitorBase

if TYPE_CHECKING:
    from aboard.track.run import Run


class AboardMonitor(MonitorBase):
    """Log the scalars and images of a Tensorpack trainer at its global step.

    Args:
        run: where to log; by default the open run, or a new one.
        stage: the stage to log to.
        options: for `aboard.init`, if a run has to be opened.
    """

    def __init__(self, run: Run | None = None, *, stage: str = "train", **options: Any) -> None:
        super().__init__()
        self._training_run = RunOfTraining(run, **options)
        self._stage = stage

    def _setup_graph(self) -> None:
        self._run = self._training_run.begin()

    def process_scalar(self, name: str, val: float) -> None:
        self._run.log_metrics({name: val}, step=self.global_step, stage=self._stage)

    def process_image(self, name: str, val: Any) -> None:
        levels = val.clip(0, 255).astype("uint8")
        where = {"step": self.global_step, "stage": self._stage}
        self._run.log_images(name, levels, dataformats="NHWC", **where)

    def _after_train(self) -> None:
        # Tensorpack calls this while it handles an exception, too.
        self._training_run.finish(*status_of(sys.exc_info()[1]))
