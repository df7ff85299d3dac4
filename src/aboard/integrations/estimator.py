"""TF Estimator, up to TensorFlow 2.15: a model directory in the run, or a hook that logs to one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aboard.integrations import RunOfTraining, user_run
from aboard.system import requires
from aboard.track.environment import LOGDIR, logdir_from_environment
from aboard.track.start import init

with requires("tensorflow", install="'tensorflow<2.16'"):
    import tensorflow as tf

if not hasattr(tf, "estimator"):
    raise ImportError(
        f"TensorFlow {tf.__version__} has no Estimators: pip install 'tensorflow<2.16'"
    )

if TYPE_CHECKING:
    from aboard.track.run import Run


def run_config(run: Run | None = None, **options: Any) -> tf.estimator.RunConfig:
    """Return a configuration with which an Estimator writes to a run.

    Summaries of training and `evaluate`, and checkpoints, go to the run; no hook is needed.

    Args:
        run: where to write; by default the open run, or a new one. It is not finished.
        options: for `tf.estimator.RunConfig`.

    Raises:
        ValueError: this is not the first of several processes, and the directory that they share
            for checkpoints is not set.
    """
    run = run or user_run() or init()
    shared = run.logdir if run.active else logdir_from_environment()
    if shared is None:
        raise ValueError(
            f"process {run.rank} does not know the directory of the first one: "
            f"set {LOGDIR} to the same directory for all of them"
        )
    return tf.estimator.RunConfig(model_dir=shared, **options)


class AboardHook(tf.estimator.SessionRunHook):
    """Log the loss and the steps per second of an Estimator's training.

    Args:
        run: where to log; by default the open run, or a new one.
        every: log the first step, and then every n-th.
        tensors: additional values to log: tags, and tensors or their names.
        stage: the stage to log to.
        options: for `aboard.init`, if a run has to be opened.
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
        self._training_run = RunOfTraining(run, part=f"estimator {stage}", **options)
        self._timer = tf.estimator.SecondOrStepTimer(every_steps=every)
        self._tensors = dict(tensors or {})
        self._stage = stage

    def begin(self) -> None:
        """Open the run, and find the loss: the last one in the graph's collection of losses."""
        self._run = self._training_run.begin()
        self._timer.reset()
        graph = tf.compat.v1.get_default_graph()
        losses = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)
        self._metrics = {"loss": losses[-1]} if losses else {}
        for tag, tensor in self._tensors.items():
            self._metrics[tag] = graph.as_graph_element(tensor, allow_operation=False)
        self._global_step = tf.compat.v1.train.get_global_step(graph)
        if self._global_step is None:
            raise RuntimeError("the graph has no global step to log at: create one with the model")

    def before_run(self, run_context: Any) -> Any:  # noqa: ARG002 - TensorFlow's signature
        """Request the metrics, which the step computes anyway."""
        return tf.estimator.SessionRunArgs({"step": self._global_step, **self._metrics})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        metrics = dict(run_values.results)
        # The value of the global step may or may not include the step that just ran.
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
        self._training_run.finish()
