"""Batch metrics of a PyTorch training, collected by hooks: the training loop stays unchanged.

No step waits for the GPU: numbers stay on the device and are fetched about once a second.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Self

from aboard.integrations import RunOfTraining
from aboard.system import requires
from aboard.track import notify
from aboard.track.exit_status import status_of

with requires("torch", install="torch"):
    import torch

if TYPE_CHECKING:
    from aboard.track.run import Run

_Arguments = ParamSpec("_Arguments")
_FETCH_SECS = 1.0
_LOSS_MISSING = (
    "watch saw no loss. Pass it the loss module, watch(model, optimizer, criterion), "
    "or the loss of each batch with .loss(loss)."
)


def watch(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    criterion: torch.nn.Module | None = None,
    *,
    run: Run | None = None,
    every: int = 1,
    stage: str = "train",
    step: int = 0,
    **options: Any,
) -> Watch:
    """Log loss, learning rates, gradient norm and samples per second of a training.

    The loss is the result of `criterion`, or the `loss` in the model's result, or the model's
    result if that is a single number. Batches without gradients, as in an evaluation, do not count.

    Args:
        model: the module that is called with each batch; its first tensor is the batch.
        optimizer: each of its steps is a step of the run.
        criterion: the module that computes the loss, if there is one.
        run: where to log; by default the open run, or a new one.
        every: log every n-th step. The loss is the mean of n steps.
        stage: the stage to log to.
        step: the number of steps already done, for a resumed training.
        options: for `aboard.init`, if a run has to be opened.

    Returns:
        The watch. Use it in a `with` block, or call `close`; otherwise it ends with the process.

    Raises:
        ValueError: `every` is less than 1.
    """
    if every < 1:
        raise ValueError(f"every must be at least 1, not {every}")
    training_run = RunOfTraining(run, part=f"watch {stage}", **options)
    return Watch(model, optimizer, criterion, training_run, every, stage, step)


class _Point(NamedTuple):
    step: int
    numbers: dict[str, float]
    tensors: dict[str, torch.Tensor]


def _harmless(
    hook: Callable[Concatenate[Watch, _Arguments], None],
) -> Callable[Concatenate[Watch, _Arguments], None]:
    """Keep the errors of a hook out of the training."""

    @wraps(hook)
    def guarded(watch: Watch, /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> None:
        if watch._gave_up:
            return
        try:
            hook(watch, *arguments, **named)
        except Exception as error:  # noqa: BLE001 - the training outranks its watch
            watch._give_up(f"the training is no longer watched. {type(error).__name__}: {error}")

    return guarded


class Watch:
    """Hooks on a model, its optimizer and its criterion; made by `watch`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        criterion: torch.nn.Module | None,
        run: RunOfTraining,
        every: int,
        stage: str,
        step: int,
    ) -> None:
        self.step = step  # of the optimizer
        self._training_run = run
        self._run = run.begin()
        self._every = every
        self._stage = stage
        self._samples = 0
        self._loss: torch.Tensor | None = None
        self._losses = 0
        self._notified = False
        self._since = time.perf_counter()
        self._before: _Point | None = None
        self._points: list[_Point] = []
        self._fetched = time.monotonic()
        self._hooks: list[Any] = []
        self._gave_up = False
        self._finds_loss = criterion is None
        if not self._run.active:
            return
        self._hooks = [
            model.register_forward_hook(self._after_forward, with_kwargs=True),
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        if criterion is not None:
            self._hooks.append(criterion.register_forward_hook(self._after_criterion))
        # Exit functions run in reverse order: this one runs before the run's, which finishes it.
        atexit.register(self._fetch)

    def loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Record the loss of a batch that no module computes, and return it."""
        if self._hooks and loss.requires_grad:
            self._take_loss(loss)
        return loss

    @_harmless
    def _take_loss(self, loss: torch.Tensor) -> None:
        value = loss.detach()
        value = value if value.ndim == 0 else value.mean()
        self._loss = value if self._loss is None else self._loss + value
        self._losses += 1

    def close(self) -> None:
        """Remove the hooks, log what they collected, and finish the run if `watch` opened it."""
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self._remove_hooks()
        atexit.unregister(self._fetch)
        self._fetch()
        self._training_run.finish(*status_of(error))

    def _give_up(self, why: str) -> None:
        # A hook of an optimizer must not remove itself; the next batch removes all hooks.
        self._gave_up = True
        self._points = []
        notify(" ".join(why.split()))

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._end(error)

    def _after_forward(
        self, module: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        if self._gave_up:
            self._remove_hooks()
        else:
            self._take_batch(module, [*inputs, *named.values()], output)

    @_harmless
    def _take_batch(self, module: torch.nn.Module, inputs: list[Any], output: Any) -> None:
        if not torch.is_grad_enabled() or not module.training:
            return
        self._samples += _batch_size(inputs)
        if self._finds_loss and (loss := _loss_in(output)) is not None:
            self.loss(loss)

    @_harmless
    def _after_criterion(self, _module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        loss = output if isinstance(output, torch.Tensor) else _loss_in(output)
        if loss is not None:
            self.loss(loss)

    @_harmless
    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if (self.step + 1) % self._every:
            return
        point = _Point(self.step + 1, {}, {})
        for name, rate in _learning_rates(optimizer).items():
            _add(point, name, rate)
        norm = _gradient_norm(optimizer)
        if norm is not None:
            _add(point, "gradient_norm", norm)
        self._before = point

    @_harmless
    def _after_step(self, *_: Any) -> None:
        self.step += 1
        point, self._before = self._before, None
        if point is None:
            return
        now = time.perf_counter()
        if self._samples:
            point.numbers["samples_per_second"] = self._samples / max(now - self._since, 1e-9)
        if self._loss is not None:
            _add(point, "loss", self._loss / self._losses)
        elif not self._notified:
            self._notified = True
            notify(_LOSS_MISSING)
        self._samples, self._since, self._loss, self._losses = 0, now, None, 0
        self._points.append(point)
        waits = any(_is_far(tensor) for tensor in point.tensors.values())
        if not waits or time.monotonic() - self._fetched >= _FETCH_SECS:
            self._fetch()

    @_harmless
    def _fetch(self) -> None:
        # One transfer from each device for all points.
        points, self._points = self._points, []
        self._fetched = time.monotonic()
        tensors = [tensor for point in points for tensor in point.tensors.values()]
        values = iter(_values(tensors))
        for point in points:
            fetched = {name: next(values) for name in point.tensors}
            metrics = {**fetched, **point.numbers}
            try:
                self._run.log_metrics(metrics, step=point.step, stage=self._stage)
            except ValueError as error:  # the run was finished
                problem = f"step {point.step} was not logged: {error}"
                self._give_up(f"{problem}. Close the watch before the run.")
                return


def _add(point: _Point, name: str, value: float | torch.Tensor) -> None:
    if isinstance(value, torch.Tensor):
        point.tensors[name] = _precise(value.detach()).reshape(())
    else:
        point.numbers[name] = float(value)


def _precise(tensor: torch.Tensor) -> torch.Tensor:
    try:
        return tensor.double()
    except (TypeError, RuntimeError):  # Apple's GPUs have no doubles
        return tensor.float()


def _is_far(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type != "cpu")


def _values(tensors: list[torch.Tensor]) -> list[float]:
    devices: dict[torch.device, list[int]] = {}
    for place, tensor in enumerate(tensors):
        devices.setdefault(tensor.device, []).append(place)
    found: dict[int, float] = {}
    for places in devices.values():
        together = torch.stack([tensors[place] for place in places])
        found.update(zip(places, together.tolist(), strict=True))
    return [found[place] for place in range(len(tensors))]


def _batch_size(inputs: list[Any]) -> int:
    for value in inputs:
        if isinstance(value, torch.Tensor):
            return int(value.shape[0]) if value.ndim else 1
        if isinstance(value, Mapping):
            value = list(value.values())  # noqa: PLW2901
        if isinstance(value, list | tuple) and (size := _batch_size(list(value))):
            return size
    return 0


def _loss_in(output: Any) -> torch.Tensor | None:
    if isinstance(output, Mapping):
        output = output.get("loss")
    elif isinstance(getattr(output, "loss", None), torch.Tensor):
        output = output.loss
    elif isinstance(output, tuple) and output:
        output = output[0]
    is_loss = isinstance(output, torch.Tensor) and output.requires_grad
    return output if is_loss and output.numel() == 1 else None


def _learning_rates(optimizer: torch.optim.Optimizer) -> dict[str, float | torch.Tensor]:
    groups = optimizer.param_groups
    if len(groups) == 1:
        return {"learning_rate": groups[0]["lr"]} if "lr" in groups[0] else {}
    return {
        f"learning_rate/{group.get('name', number)}": group["lr"]
        for number, group in enumerate(groups)
        if "lr" in group
    }


def _gradient_norm(optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
    """Return the norm of all gradients as they are applied, or None if they are sharded."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    gradients = [one.grad.detach() for one in parameters if one.grad is not None]
    if not gradients or any(hasattr(one, "full_tensor") for one in gradients):
        return None  # this would need all ranks, and only one may log
    dense = [one.coalesce().values() if one.is_sparse else one for one in gradients]
    norm = torch.nn.utils.get_total_norm(dense)
    # A fused optimizer divides by it. Not documented: checked with PyTorch 2.13 by
    # tests/integrations/test_torch.py.
    scale = getattr(optimizer, "grad_scale", None)
    return norm if scale is None else norm / scale.to(norm.device)
