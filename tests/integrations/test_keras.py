"""Keras 3 on PyTorch, and the Keras 2 of TensorFlow 2.15: our callback, and TensorBoard's own."""

import pytest

from tests.integrations.trainings import Trainings, f32

pytestmark = pytest.mark.engine("frameworks")

EPOCHS = 4


def fit(request, trainings: Trainings, version: str, logger: str, **options: bool) -> None:
    if version == "2":
        options["python"] = request.getfixturevalue("estimator_python")
    trainings.run("keras_fit", logger, **options)


def by_epoch(values: list[float]) -> dict[int, float]:
    return {epoch: f32(value) for epoch, value in enumerate(values)}


@pytest.mark.parametrize("version", ["3", "2"])
def test_a_callback_logs_epochs_batches_weights_and_settings(request, trainings, version):
    fit(request, trainings, version, "callback")
    told, run = trainings.told(), "keras/run1"
    for name in ("loss", "mae"):
        assert trainings.points("train", name, run) == by_epoch(told[name]), name
        assert trainings.points("validation", name, run) == by_epoch(told[f"val_{name}"]), name
        assert trainings.points("test", name, run) == {EPOCHS - 1: f32(told["test"][name])}
    assert trainings.points("train", "learning_rate", run) == by_epoch([0.05] * EPOCHS)
    # 48 samples in batches of 16: three in an epoch, and every second is logged.
    batches = trainings.points("train", "batch/loss", run)
    assert list(batches) == [2, 4, 6, 8, 10, 12]
    assert batches[6] == f32(told["loss"][1])
    tags = trainings.tags(run)["train"]
    assert "keras" in tags
    assert len([tag for tag in tags if tag.endswith("kernel")]) == 2
    record = trainings.record(run)
    assert record["state"] == "completed"
    assert record["hparams"]["optimizer.name"] == "Adam"
    assert record["hparams"]["optimizer.learning_rate"] == pytest.approx(0.05)
    assert record["hparams"]["epochs"] == EPOCHS


@pytest.mark.parametrize(
    "logger",
    ["tensorboard", pytest.param("tensorboard-elsewhere", marks=pytest.mark.slow)],
)
def test_tensorboards_own_callback_lands_in_the_run(request, trainings, logger):
    elsewhere = logger == "tensorboard-elsewhere"
    fit(request, trainings, "2", logger, under_aboard=True, adopted=elsewhere)
    told = trainings.told()
    assert trainings.points("train", "epoch_loss") == by_epoch(told["loss"])
    assert trainings.points("validation", "epoch_loss") == by_epoch(told["val_loss"])
    assert trainings.record()["state"] == "completed"


def test_the_callback_joins_the_run_of_aboard_run(request, trainings):
    fit(request, trainings, "3", "callback", under_aboard=True)
    told = trainings.told()
    assert trainings.points("train", "loss") == by_epoch(told["loss"])
    record = trainings.record()
    assert (record["state"], len(record["attempts"])) == ("completed", 1)
    assert record["hparams"]["optimizer.name"] == "Adam"


def test_tensors_of_tensorflow_are_taken_as_they_are(trainings, estimator_python):
    trainings.run("tensorflow_arrays", python=estimator_python)
    assert trainings.points("", "loss", "tensors/run1") == {3: 0.25}
    assert trainings.points("", "accuracy", "tensors/run1") == {3: 0.5}
    assert {"picture", "weights"} <= trainings.tags("tensors/run1")[""]
