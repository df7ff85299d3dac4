"""TF Estimator: a model directory inside the run, or a hook that logs to a run elsewhere.

TensorFlow had Estimators up to 2.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aboard.integrations import RunOfTraining, needing, opened_by_the_user
from aboard.track import env
from aboard.track.start import init

with needing("tensorflow", "'tensorflow<2.16'"):
    import tensorflow as tf

if not hasattr(tf, "estimator"):
    raise ImportError(
        f"TensorFlow {tf.__version__} has no Estimators: pip install 'tensorflow<2.16'"
    )

if TYPE_CHECKING:
    from aboard.track.run import Run


def run_config(run: Run | None = None, **options: Any) -> tf.estimator.RunConfig:
    """Return a configuration with which an Estimator writes into a run.

    Its own summaries, those of `evaluate` and its checkpoints go there, with no hook.

    Args:
        run: where to write; the open run, or a new one, unless given. It is not finished here.
        options: for `tf.estimator.RunConfig`.

    Raises:
        ValueError: this is one of several processes, and not told which directory they share.
    """
    return tf.estimator.RunConfig(
        model_dir=_model_dir(run or opened_by_the_user() or init()), **options
    )


def _model_dir(run: Run) -> str:
    """Return the directory of a run; all processes of a training read checkpoints there."""
    shared = run.logdir if run.active else env.logdir_from_environment()
    if shared is None:
        raise ValueError(
            f"process {run.rank} does not know the run of the first one: "
            f"set {env.LOGDIR} to the same directory for all of them"
        )
    return shared


class AboardHook(tf.estimator.SessionRunHook):
    """Log the loss and the steps per second of an Estimator's training.

    Args:
        run: where to log; the open run, or a new one, unless given.
        every: log the first step, and then each so many.
        tensors: what to log beside the loss: names of tags, and tensors or their names.
        stage: the stage of the run to log to.
        options: for `aboard.init`, if a run has to be made.
    """

    def __init__(
        self,
        run: Run | None = None,
        *,
        every: int = 100,
        tensors: Mapping[str, Any] | None = None,
        stage: str = "train",
        **options: Any,
    ) -> None:
        self._of_training = RunOfTraining(run, part=f"estimator {stage}", **options)
        self._timer = tf.estimator.SecondOrStepTimer(every_steps=every)
        self._tensors = dict(tensors or {})
        self._stage = stage

    def begin(self) -> None:
        """Find the loss in the graph: the Estimator puts it last among the losses."""
        self._run = self._of_training.begin()
        self._timer.reset()
        graph = tf.compat.v1.get_default_graph()
        losses = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)
        found = {"loss": losses[-1]} if losses else {}
        named = {
            tag: graph.as_graph_element(tensor, allow_operation=False)
            for tag, tensor in self._tensors.items()
        }
        self._metrics = {**found, **named}
        self._global_step = tf.compat.v1.train.get_global_step(graph)
        if self._global_step is None:
            raise RuntimeError("there is no global step to log at: make one with the model")

    def before_run(self, run_context: Any) -> Any:  # noqa: ARG002 - TensorFlow's signature
        """Ask for the metrics, which the step computes anyway."""
        return tf.estimator.SessionRunArgs({"step": self._global_step, **self._metrics})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Log the metrics when they are due."""
        metrics = dict(run_values.results)
        # The step that came along may or may not count the step that was just made.
        if not self._timer.should_trigger_for_step(metrics.pop("step") + 1):
            return
        step = int(run_context.session.run(self._global_step))
        if not self._timer.should_trigger_for_step(step):
            return
        seconds, steps = self._timer.update_last_triggered_step(step)
        if seconds:
            metrics["steps_per_second"] = steps / seconds
        self._run.log_metrics(metrics, step=step, stage=self._stage)

    def end(self, session: Any) -> None:  # noqa: ARG002
        """Finish the run if it was opened here."""
        self._of_training.finish()
