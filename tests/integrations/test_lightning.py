"""Lightning, under both of its names, in one process and in two."""

import pytest

from tests.integrations.trainings import f32

pytestmark = pytest.mark.engine("frameworks")

RUN = "regression/run1"


@pytest.mark.parametrize(
    "package", ["lightning", pytest.param("pytorch_lightning", marks=pytest.mark.slow)]
)
def test_the_logger_keeps_metrics_hyperparameters_and_graph(trainings, package):
    trainings.run("lightning_fit", package, "tests")
    losses = {step: f32(loss) for step, loss in enumerate(trainings.told("told-0.json"))}
    assert trainings.points("", "train/loss", RUN) == losses
    assert trainings.points("", "test/size", RUN) == {10: 4.0}
    tags = trainings.tags(RUN)[""]
    assert "_hparams_/session_start_info" in tags
    assert "__run_graph__" in tags
    record = trainings.record(RUN)
    assert (record["state"], record["hparams"]) == ("completed", {"lr": 0.05})
    assert list((trainings.root / RUN / "checkpoints").glob("*.ckpt"))


def test_a_finished_run_tells_its_names_and_stays_finished(trainings):
    told = trainings.run("lightning_fit", "lightning", "names")
    there = f"{trainings.root} {trainings.root / RUN}"
    assert f"regression run1 {there}" in told.splitlines()
    record = trainings.record(RUN)
    assert (record["state"], len(record["attempts"])) == ("completed", 1)


def test_a_training_that_fails_is_a_failed_run(trainings):
    trainings.run("lightning_fit", "lightning", "fails", exit_code=1)
    assert list(trainings.points("", "train/loss", RUN)) == [0, 1, 2]
    record = trainings.record(RUN)
    assert (record["state"], record["reason"]) == ("failed", "RuntimeError: no such batch")


@pytest.mark.slow
def test_processes_that_lightning_starts_itself_log_once(trainings):
    trainings.run("lightning_fit", "lightning", "two")
    losses = {step: f32(loss) for step, loss in enumerate(trainings.told("told-0.json"))}
    assert trainings.points("", "train/loss", RUN) == losses
    assert len(trainings.told("told-1.json")) == len(losses) == 5
    assert [path.name for path in trainings.root.glob("*/*")] == ["run1"]
    assert trainings.record(RUN)["state"] == "completed"


def test_the_logger_joins_the_run_of_aboard_run(trainings):
    trainings.run("lightning_fit", "lightning", "tests", under_aboard=True)
    losses = {step: f32(loss) for step, loss in enumerate(trainings.told("told-0.json"))}
    (run,) = trainings.root.glob("*/*")
    assert trainings.points("", "train/loss", str(run)) == losses
    assert len(trainings.record(str(run))["attempts"]) == 1
