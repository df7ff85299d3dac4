"""PyTorch: what `watch` gathers, and who of several processes logs."""

import json
from pathlib import Path

import pytest
import torch

import aboard
from aboard.integrations.torch import watch
from tests.integrations.trainings import f32

pytestmark = pytest.mark.engine("frameworks")


def series(directory: Path, tag: str, stage: str = "train") -> dict[int, float]:
    with aboard.open(directory) as logs:
        found = logs.series(stage, tag)
    return dict(zip(found.steps.tolist(), found.values.tolist(), strict=True))


class Training:
    """A linear regression, one batch at a time."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.criterion = torch.nn.MSELoss()
        self.losses: list[float] = []
        self.norms: list[float] = []

    def loss(self, size: int = 8) -> torch.Tensor:
        batch = torch.randn(size, 4)
        loss = self.criterion(self.model(batch), batch.sum(1, keepdim=True))
        self.losses.append(loss.item())
        return loss

    def step(self, *losses: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        for loss in losses or [self.loss()]:
            loss.backward()
        gradients = [one.grad.flatten() for one in self.model.parameters()]
        self.norms.append(torch.cat(gradients).norm().item())
        self.optimizer.step()


@pytest.fixture
def training() -> Training:
    return Training()


@pytest.fixture
def run(tmp_path):
    with aboard.init("torch", "one", tmp_path) as opened:
        yield opened


@pytest.fixture
def logs(run) -> Path:
    return Path(run.logdir)


def test_one_line_logs_every_batch(training, run, logs):
    with watch(training.model, training.optimizer, training.criterion):
        for _ in range(5):
            training.step()
    run.flush()
    losses, norms = ([f32(one) for one in seen] for seen in (training.losses, training.norms))
    assert series(logs, "loss") == dict(enumerate(losses, 1))
    assert series(logs, "gradient_norm") == pytest.approx(dict(enumerate(norms, 1)))
    assert series(logs, "learning_rate") == dict.fromkeys(range(1, 6), f32(0.1))
    assert min(series(logs, "samples_per_second").values()) > 0


def test_a_point_of_several_steps_holds_their_mean(training, run, logs):
    with watch(training.model, training.optimizer, training.criterion, every=3):
        for _ in range(7):
            training.step()
    run.flush()
    means = {3: sum(training.losses[:3]) / 3, 6: sum(training.losses[3:6]) / 3}
    assert series(logs, "loss") == pytest.approx(means)


def test_batches_whose_gradients_add_up_are_one_step(training, run, logs):
    with watch(training.model, training.optimizer, training.criterion):
        training.step(training.loss(), training.loss())
    run.flush()
    assert series(logs, "loss") == pytest.approx({1: sum(training.losses) / 2})


def test_evaluation_does_not_count(training, run, logs):
    with watch(training.model, training.optimizer, training.criterion):
        training.step()
        with torch.no_grad():
            training.loss()
        training.step()
    run.flush()
    trained = [training.losses[0], training.losses[2]]
    assert series(logs, "loss") == {1: f32(trained[0]), 2: f32(trained[1])}


def test_nothing_is_left_behind_when_it_is_closed(training, run, logs):
    watched = watch(training.model, training.optimizer, training.criterion)
    training.step()
    watched.close()
    training.step()
    run.flush()
    assert list(series(logs, "loss")) == [1]
    assert not training.model._forward_hooks
    assert not training.criterion._forward_hooks
    assert not training.optimizer._optimizer_step_pre_hooks
    assert not training.optimizer._optimizer_step_post_hooks


def test_a_resumed_training_goes_on_counting(training, run, logs):
    with watch(training.model, training.optimizer, training.criterion, step=100):
        training.step()
    run.flush()
    assert list(series(logs, "loss")) == [101]


def test_every_group_of_parameters_has_its_learning_rate(training, run, logs):
    groups = [
        {"params": [training.model.weight], "lr": 0.5, "name": "weights"},
        {"params": [training.model.bias], "lr": 0.25},
    ]
    training.optimizer = torch.optim.SGD(groups)
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, gamma=0.5)
    with watch(training.model, training.optimizer, training.criterion):
        for _ in range(2):
            training.step()
            scheduler.step()
    run.flush()
    assert series(logs, "learning_rate/weights") == {1: 0.5, 2: 0.25}
    assert series(logs, "learning_rate/1") == {1: 0.25, 2: 0.125}


class ReturnsLoss(torch.nn.Module):
    """A model as those of Transformers are: it computes the loss itself."""

    def __init__(self, wrap) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.wrap = wrap

    def forward(self, *, features: dict[str, torch.Tensor]) -> object:
        loss = self.layer(features["x"]).square().mean()
        return self.wrap(loss)


class Output:
    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


@pytest.mark.parametrize(
    "wrap",
    [lambda loss: loss, lambda loss: {"loss": loss}, lambda loss: (loss, None), Output],
    ids=["alone", "mapping", "tuple", "attribute"],
)
def test_a_model_that_returns_its_loss_needs_no_criterion(run, logs, wrap):
    model = ReturnsLoss(wrap)
    optimizer = torch.optim.Adam(model.parameters())
    seen = []
    original, model.wrap = model.wrap, lambda loss: seen.append(loss) or wrap(loss)
    assert original is wrap
    with watch(model, optimizer):
        for _ in range(2):
            model(features={"x": torch.randn(3, 4)})
            seen[-1].backward()
            optimizer.step()
    run.flush()
    assert series(logs, "loss") == {at: f32(loss.item()) for at, loss in enumerate(seen, 1)}
    assert min(series(logs, "samples_per_second").values()) > 0


def test_the_loss_can_be_handed_over(training, run, logs, capsys):
    with watch(training.model, training.optimizer) as watched:
        batch = torch.randn(8, 4)
        squares = (training.model(batch) - 1).square()
        watched.loss(squares).mean().backward()
        training.optimizer.step()
    run.flush()
    assert series(logs, "loss") == pytest.approx({1: squares.mean().item()})
    assert "watch saw no loss" not in capsys.readouterr().err


def test_a_loss_that_is_not_seen_is_told_once(training, run, logs, capsys):
    with watch(training.model, training.optimizer):
        for _ in range(3):
            training.model(torch.randn(8, 4)).mean().backward()
            training.optimizer.step()
    assert capsys.readouterr().err.count("watch saw no loss. Pass it the loss module") == 1
    run.flush()
    assert list(series(logs, "learning_rate")) == [1, 2, 3]


def test_small_floats_and_sparse_gradients_are_numbers_too(run, logs):
    model = torch.nn.EmbeddingBag(10, 4, sparse=True, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.5))
    with watch(model, optimizer) as watched:
        watched.loss(model(torch.tensor([[1, 2], [1, 1]])).sum()).backward()
        optimizer.step()
    run.flush()
    assert set(series(logs, "loss")) == {1}
    assert series(logs, "learning_rate") == {1: 0.5}
    assert series(logs, "gradient_norm")[1] > 0


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_that_were_scaled_up_are_measured_as_they_are_applied(training, run, logs, fused):
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(training.model, training.optimizer, training.criterion):
        loss = training.loss()
        gradients = torch.autograd.grad(loss, training.model.parameters(), retain_graph=True)
        scaler.scale(loss).backward()
        scaler.step(training.optimizer)
    run.flush()
    norm = torch.cat([one.flatten() for one in gradients]).norm().item()
    assert series(logs, "gradient_norm") == pytest.approx({1: norm})
    assert series(logs, "loss") == {1: f32(training.losses[0])}


def test_a_run_of_its_own_is_finished_with_how_it_went(training, tmp_path, monkeypatch):
    monkeypatch.setenv("ABOARD_ROOT", str(tmp_path))

    def fail() -> None:
        with watch(training.model, training.optimizer, training.criterion):
            training.step()
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError):
        fail()
    assert aboard.current_run() is None
    record = json.loads((tmp_path / "default/run1/run.json").read_text())
    assert (record["state"], record["reason"]) == ("failed", "RuntimeError: out of luck")
    assert list(series(tmp_path / "default/run1", "loss")) == [1]


def test_a_watch_that_was_never_closed_is_another_training(tmp_path, monkeypatch):
    monkeypatch.setenv("ABOARD_ROOT", str(tmp_path))
    told = {"experiment": "lines", "hparams": {"lr": 0.1}}
    for _ in range(2):
        later = Training()
        watched = watch(later.model, later.optimizer, later.criterion, **told)
        later.step()
    watched.close()
    for run, state in (("run1", "failed"), ("run2", "completed")):
        record = json.loads((tmp_path / "lines" / run / "run.json").read_text())
        assert (record["state"], record["hparams"]) == (state, {"lr": 0.1})
        assert series(tmp_path / "lines" / run, "loss").keys() == {1}


def test_numbers_on_a_device_are_fetched_together(training, run, logs, monkeypatch):
    monkeypatch.setattr("aboard.integrations.torch._is_far", lambda tensor: True)
    monkeypatch.setattr("aboard.integrations.torch._FETCH_SECS", 3600.0)
    watched = watch(training.model, training.optimizer, training.criterion)
    for _ in range(5):
        training.step()
    run.flush()
    assert not list(logs.glob("train/*tfevents*"))
    watched.close()
    run.flush()
    assert series(logs, "loss") == {at: f32(loss) for at, loss in enumerate(training.losses, 1)}


def test_a_run_finished_too_early_is_told_once_and_the_training_goes_on(training, run, capsys):
    watch(training.model, training.optimizer, training.criterion)
    training.step()
    run.finish()
    training.step()
    training.step()
    told = capsys.readouterr().err
    assert told.count("step 2 was not logged: ") == 1
    assert told.endswith("Close the watch before the run.\n")
    assert told.count("\n") == 1


def test_a_process_whose_run_is_silent_logs_nothing(training, tmp_path, monkeypatch):
    monkeypatch.setenv("ABOARD_ROOT", str(tmp_path))
    with (
        aboard.init(rank=1) as run,
        watch(training.model, training.optimizer, training.criterion),
    ):
        assert aboard.current_run() is run
        training.step()
    assert aboard.current_run() is None
    assert list(tmp_path.iterdir()) == []


def test_what_goes_wrong_in_a_hook_is_told_once_and_the_training_goes_on(
    training, run, capsys, monkeypatch
):
    def fail(optimizer):
        raise KeyError("no such\ngroup")

    monkeypatch.setattr("aboard.integrations.torch._learning_rates", fail)
    seen = []
    watched = watch(training.model, training.optimizer, training.criterion)
    training.optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    training.optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    for _ in range(3):
        training.step()
    assert seen == ["before", "after"] * 3
    assert not training.model._forward_hooks
    assert len(training.optimizer._optimizer_step_pre_hooks) == 1
    watched.close()
    told = "the training is no longer watched. KeyError: 'no such\\ngroup'"
    assert capsys.readouterr().err == f"aboard: {told}\n"


def test_a_device_without_long_floats_logs_short_ones(training, run, logs, monkeypatch):
    def refuse(tensor):
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    monkeypatch.setattr(torch.Tensor, "double", refuse)
    with watch(training.model, training.optimizer, training.criterion):
        training.step()
    run.flush()
    assert series(logs, "loss") == {1: f32(training.losses[0])}


def test_every_0_is_refused(training, run):
    with pytest.raises(ValueError, match="every must be at least 1, not 0"):
        watch(training.model, training.optimizer, every=0)


# Two processes.


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_two_processes_log_once_or_each_in_its_own_place(request, trainings, launcher):
    trainings.launch(request, launcher, "ddp", "20")
    first, second = trainings.told("first-0.json"), trainings.told("first-1.json")
    assert (first["active"], second["active"]) == (True, False)
    expected = {step: f32(loss) for step, loss in enumerate(first["losses"], 1)}
    assert trainings.points("train", "loss", "first/run1") == expected
    assert trainings.points("", "rank", "first/run1") == dict.fromkeys(range(20), 0.0)
    files = {one for one in trainings.event_files() if one.startswith("first/")}
    assert files == {"first/run1", "first/run1/train"}
    record = trainings.record("first/run1")
    assert (record["state"], record["hparams"]) == ("completed", {"lr": 0.1})

    for rank in (0, 1):
        seen = trainings.told(f"all-{rank}.json")["losses"]
        expected = {step: f32(loss) for step, loss in enumerate(seen, 1)}
        assert trainings.points(f"rank-{rank}/train", "loss", "all/run1") == expected
        assert set(trainings.points(f"rank-{rank}", "rank", "all/run1").values()) == {float(rank)}
    assert [path.name for path in (trainings.root / "all").glob("run*")] == ["run1"]
    assert trainings.record("all/run1")["state"] == "completed"


def test_a_script_of_another_platform_runs_unchanged(trainings):
    trainings.run("summary_writer", under_aboard=True)
    expected = {step: f32(1 / (step + 1)) for step in range(10)}
    assert trainings.points("", "train/loss") == expected
    assert "train/image" in trainings.tags()[""]
    record = trainings.record()
    assert (record["state"], record["exit_code"]) == ("completed", 0)
