"""A monitor for Tensorpack: what its trainer reports goes to a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from aboard.integrations import RunOfTraining, needing
from aboard.track.ending import ending_of

with needing("tensorpack", "tensorpack"):
    from tensorpack.callbacks import MonitorBase

if TYPE_CHECKING:
    from aboard.track.run import Run


class AboardMonitor(MonitorBase):
    """Log the scalars and images of a Tensorpack trainer at its global step.

    Args:
        run: where to log; the open run, or a new one, unless given.
        stage: the stage of the run to log to.
        options: for `aboard.init`, if a run has to be made.
    """

    def __init__(self, run: Run | None = None, *, stage: str = "train", **options: Any) -> None:
        super().__init__()
        self._of_training = RunOfTraining(run, **options)
        self._stage = stage

    def _setup_graph(self) -> None:
        self._run = self._of_training.begin()

    def process_scalar(self, name: str, val: float) -> None:
        """Log a number."""
        self._run.log_metrics({name: val}, step=self.global_step, stage=self._stage)

    def process_image(self, name: str, val: Any) -> None:
        """Log a batch of images, with levels from 0 to 255."""
        levels = val.clip(0, 255).astype("uint8")
        where = {"step": self.global_step, "stage": self._stage}
        self._run.log_images(name, levels, dataformats="NHWC", **where)

    def _after_train(self) -> None:
        # Tensorpack comes here on its way out of an exception too.
        self._of_training.finish(*ending_of(sys.exc_info()[1]))
