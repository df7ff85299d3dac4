"""A callback for the Trainer of Hugging Face Transformers.

Importing this module also makes `report_to="aboard"` work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aboard.integrations import RunOfTraining
from aboard.system import requires

with requires("transformers", install="transformers"):
    from transformers import TrainerCallback
    from transformers.integrations import integration_utils

if TYPE_CHECKING:
    from aboard.track.run import Run

_STAGES = ("eval", "test")


class AboardCallback(TrainerCallback):
    """Log what a Trainer logs, with its arguments as hyperparameters.

    Metrics of the training go to the stage `train`, `eval_…` to `eval` and `test_…` to `test`,
    at the Trainer's global step. Of several processes, only the first one logs.

    Args:
        run: where to log; by default the open run, or a new one.
        options: for `aboard.init`, if a run has to be opened.
    """

    def __init__(self, run: Run | None = None, **options: Any) -> None:
        super().__init__()
        self._run = RunOfTraining(run, **options)
        self._training = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._training = True
        run = self._run.begin(rank=args.process_index)
        if not run.active:
            return
        # Only arguments that are set; Transformers masks secrets already.
        unset: tuple[Any, ...] = (None, "", [], {})
        hparams = {name: value for name, value in args.to_dict().items() if value not in unset}
        run.log_hparams({**hparams, **(state.trial_params or {})})
        run.log_text("args", f"```json\n{args.to_json_string()}\n```", step=0)
        config = getattr(kwargs.get("model"), "config", None)
        if config is not None:
            known = hasattr(config, "to_json_string")
            text = config.to_json_string() if known else json.dumps(config, indent=2, default=str)
            run.log_text("model_config", f"```json\n{text}\n```", step=0)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Log numbers, also of an evaluation after the training."""
        run = self._run.open(rank=args.process_index)
        for stage, metrics in _by_stage(logs or {}).items():
            run.log_metrics(metrics, step=state.global_step, stage=stage)
        if not self._training:
            self._run.finish()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._training = False
        self._run.finish()


# Not documented: checked with Transformers 5.22; tests/integrations/test_transformers.py uses it.
integration_utils.INTEGRATION_TO_CALLBACK["aboard"] = AboardCallback


def _by_stage(logs: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    # Prefixes name the stages; the epoch goes to each of them.
    stages: dict[str, dict[str, float]] = {}
    for name, value in logs.items():
        if not isinstance(value, int | float) or name == "epoch":
            continue
        prefix, _, rest = name.partition("_")
        stage, tag = (prefix, rest) if rest and prefix in _STAGES else ("train", name)
        stages.setdefault(stage, {})[tag] = value
    if "epoch" in logs:
        for metrics in stages.values():
            metrics["epoch"] = logs["epoch"]
    return stages
