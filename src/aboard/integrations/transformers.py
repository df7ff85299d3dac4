"""A callback for the Trainer of Hugging Face Transformers, and the name `aboard` in `report_to`.

Transformers looks for reporters in a table of its own and in no other place, so that
`report_to="aboard"` works once this module was imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aboard.integrations import RunOfTraining, needing

with needing("transformers", "transformers"):
    from transformers import TrainerCallback
    from transformers.integrations import integration_utils

if TYPE_CHECKING:
    from aboard.track.run import Run

_STAGES = ("eval", "test")


class AboardCallback(TrainerCallback):
    """Log what a Trainer logs, with its arguments as hyperparameters.

    Metrics of the training go to the stage `train`, `eval_…` to `eval` and `test_…` to `test`;
    the step is the Trainer's global one. Of several processes, the first one logs.

    Args:
        run: where to log; the open run, or a new one, unless given.
        options: for `aboard.init`, if a run has to be made.
    """

    def __init__(self, run: Run | None = None, **options: Any) -> None:
        super().__init__()
        self._run = RunOfTraining(run, **options)
        self._training = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Open the run and note the arguments and the model."""
        self._training = True
        run = self._run.begin(rank=args.process_index)
        if not run.active:
            return
        run.log_hparams({**_arguments(args), **(state.trial_params or {})})
        run.log_text("args", f"```json\n{args.to_json_string()}\n```", step=0)
        config = getattr(kwargs.get("model"), "config", None)
        if config is not None:
            run.log_text("model_config", f"```json\n{_as_json(config)}\n```", step=0)

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,  # noqa: ARG002 - the Trainer's signature
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Log numbers; after the training too, as an evaluation does."""
        run = self._run.open(rank=args.process_index)
        for stage, metrics in _by_stage(logs or {}).items():
            run.log_metrics(metrics, step=state.global_step, stage=stage)
        if not self._training:
            self._run.finish()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Finish the run if it was opened here."""
        self._training = False
        self._run.finish()


integration_utils.INTEGRATION_TO_CALLBACK["aboard"] = AboardCallback


def _by_stage(logs: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Sort metrics by their prefixes; the epoch goes where the others go."""
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


def _arguments(args: Any) -> dict[str, Any]:
    """Return the arguments that were set to something; secrets come masked already."""
    return {
        name: value for name, value in args.to_dict().items() if value not in (None, "", [], {})
    }


def _as_json(config: Any) -> str:
    if hasattr(config, "to_json_string"):
        return str(config.to_json_string())
    return json.dumps(config, indent=2, default=str)
