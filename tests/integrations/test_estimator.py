"""TF Estimator, on a real TensorFlow 2.15: into the run's directory, and with our hook."""

import json

import pytest

from tests.integrations.trainings import f32

pytestmark = pytest.mark.slow
STEPS = 20
WORKER = {
    "cluster": {"chief": ["localhost:1"], "worker": ["localhost:2"]},
    "task": {"type": "worker", "index": 0},
}


def by_step(losses: list[float]) -> dict[int, float]:
    assert len(losses) == STEPS
    return {step: f32(loss) for step, loss in enumerate(losses, 1)}


def test_an_estimator_writes_into_the_run(trainings, estimator_python):
    trainings.run("estimator_fit", "model-dir", python=estimator_python)
    told, run = trainings.told(), "estimator/run1"
    assert trainings.points("", "loss", run) == by_step(told["losses"])
    assert list(trainings.points("", "global_step/sec", run)) == [6, 11, 16]
    assert trainings.points("eval", "loss", run) == {STEPS: f32(told["evaluated"])}
    assert trainings.record(run)["state"] == "completed"


def test_a_hook_logs_to_a_run_of_its_own(trainings, estimator_python):
    trainings.run("estimator_fit", "hook", python=estimator_python)
    losses, run = by_step(trainings.told()["losses"]), "estimator/run1"
    assert trainings.points("train", "loss", run) == losses
    assert trainings.points("train", "squares", run) == losses
    assert list(trainings.points("train", "steps_per_second", run)) == list(losses)[1:]
    assert trainings.record(run)["state"] == "completed"
    failed = trainings.record("estimator/failed")
    assert (failed["state"], failed["reason"]) == ("failed", "abandoned: another training began")


def test_an_estimator_below_aboard_run_lands_in_its_run(trainings, estimator_python):
    trainings.run("estimator_fit", "model-dir", python=estimator_python, under_aboard=True)
    told = trainings.told()
    (run,) = trainings.root.glob("*/*")
    assert trainings.points("", "loss", str(run)) == by_step(told["losses"])
    assert trainings.record(str(run))["state"] == "completed"


def test_all_processes_of_a_training_share_the_directory_that_is_told(trainings, estimator_python):
    told = {"TF_CONFIG": json.dumps(WORKER), "ABOARD_LOGDIR": str(trainings.root / "shared")}
    trainings.run("estimator_dir", python=estimator_python, **told)
    assert trainings.told() == told["ABOARD_LOGDIR"]


def test_a_process_that_is_not_told_the_directory_says_so(trainings, estimator_python):
    told = {"TF_CONFIG": json.dumps(WORKER)}
    said = trainings.run("estimator_dir", python=estimator_python, exit_code=1, **told)
    expected = "set ABOARD_LOGDIR to the same directory for all of them"
    assert said.strip().endswith(
        f"process 1 does not know the directory of the first one: {expected}"
    )
