"""The Trainer of Hugging Face: with our callback, by name, and with TensorBoard's own."""

import pytest

from tests.integrations.trainings import Trainings, f32

pytestmark = pytest.mark.engine("frameworks")


def expected(history: list[dict[str, float]], name: str) -> dict[int, float]:
    """Return what the Trainer says it logged under a name, by step."""
    return {entry["step"]: f32(entry[name]) for entry in history if name in entry}


def assert_all_is_there(trainings: Trainings, run: str) -> None:
    history = trainings.told()
    for name in ("loss", "learning_rate", "grad_norm", "train_runtime"):
        assert trainings.points("train", name, run) == expected(history, name), name
    for name in ("loss", "runtime"):
        assert trainings.points("eval", name, run) == expected(history, f"eval_{name}"), name
    assert len(expected(history, "loss")) == 6
    assert len(expected(history, "eval_loss")) == 2


def test_a_callback_logs_all_that_the_trainer_logs(trainings):
    trainings.run("trainer", "evaluates", "callback")
    run = "bert/tiny"
    assert_all_is_there(trainings, run)
    tested = expected(trainings.told(), "test_loss")
    assert trainings.points("test", "loss", run) == tested
    assert len(tested) == 1
    assert {"args", "model_config"} <= trainings.tags(run)[""]
    record = trainings.record(run)
    assert record["state"] == "completed"
    assert record["hparams"]["learning_rate"] == 0.01
    assert record["hparams"]["num_train_epochs"] == 2
    assert [attempt["state"] for attempt in record["attempts"]] == ["completed", "completed"]


def test_the_name_aboard_is_known_once_the_module_is_imported(trainings):
    trainings.run("trainer", "fits", "aboard")
    assert_all_is_there(trainings, "default/run1")
    assert trainings.record()["state"] == "completed"


def test_a_training_that_fails_is_a_failed_run(trainings):
    trainings.run("trainer", "fails", "aboard", exit_code=1)
    record = trainings.record()
    assert (record["state"], record["exit_code"]) == ("failed", 1)
    assert record["reason"] == "RuntimeError: no such sentence"


def test_a_training_after_one_that_failed_is_another_run(trainings):
    trainings.run("trainer", "tries again", "aboard")
    record = trainings.record("default/run1")
    assert (record["state"], record["reason"]) == ("failed", "abandoned: another training began")
    assert_all_is_there(trainings, "default/run2")
    assert trainings.record("default/run2")["state"] == "completed"


@pytest.mark.parametrize(
    "reporter", ["tensorboard", pytest.param("callback", marks=pytest.mark.slow)]
)
def test_a_training_below_aboard_run_lands_in_its_run(trainings, reporter):
    trainings.run("trainer", "evaluates", reporter, under_aboard=True)
    history = trainings.told()
    stage, prefix = ("", "train/") if reporter == "tensorboard" else ("train", "")
    assert trainings.points(stage, f"{prefix}loss") == expected(history, "loss")
    stage, prefix = ("", "eval/") if reporter == "tensorboard" else ("eval", "")
    assert trainings.points(stage, f"{prefix}loss") == expected(history, "eval_loss")
    assert not list(trainings.directory.glob("output/**/*tfevents*"))
    record = trainings.record()
    assert (record["state"], len(record["attempts"])) == ("completed", 1)
    assert [path.name for path in trainings.root.glob("*/[!.]*")] == ["run1"]


@pytest.mark.slow
def test_two_processes_log_once(request, trainings):
    trainings.launch(request, "torchrun", "trainer", "fits", "aboard")
    history = trainings.told()
    assert trainings.points("train", "loss") == expected(history, "loss")
    assert [path.name for path in trainings.root.glob("*/[!.]*")] == ["run1"]
