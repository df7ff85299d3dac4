"""Tensorpack, on a real TensorFlow: its monitors, with ours among them."""

import pytest

from tests.integrations.trainings import Trainings, f32

pytestmark = pytest.mark.slow
RUN = "tensorpack/run1"


def by_step(trainings: Trainings, name: str) -> dict[int, float]:
    """Return what another monitor saw beside ours."""
    return {step: f32(value) for tag, step, value in trainings.told() if tag == name}


def test_a_monitor_logs_scalars_and_images(trainings, estimator_python):
    trainings.run("tensorpack_fit", "fits", python=estimator_python)
    assert trainings.points("train", "epoch_squared", RUN) == {5: 1, 10: 4, 15: 9}
    assert trainings.points("train", "cost", RUN) == by_step(trainings, "cost")
    assert list(by_step(trainings, "cost")) == [5, 10, 15]
    assert "noise" in trainings.tags(RUN)["train"]
    assert trainings.record(RUN)["state"] == "completed"


def test_a_training_that_fails_is_a_failed_run(trainings, estimator_python):
    trainings.run("tensorpack_fit", "fails", python=estimator_python, exit_code=1)
    record = trainings.record(RUN)
    assert (record["state"], record["reason"]) == ("failed", "RuntimeError: no such epoch")
