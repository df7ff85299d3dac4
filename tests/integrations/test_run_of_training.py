"""Which run an integration logs to, and when that run ends."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

import aboard
from aboard.integrations import RunOfTraining


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ABOARD_ROOT", str(tmp_path))
    return tmp_path


def states(root: Path, run: str) -> list[str]:
    """Return how the attempts at a run ended."""
    record = json.loads((root / "default" / run / "run.json").read_text())
    return [attempt["state"] for attempt in record["attempts"]]


def test_the_run_that_is_open_is_used_and_left_open(root):
    with aboard.init(name="mine") as mine:
        training = RunOfTraining()
        assert training.begin() is mine
        training.finish("failed")
        assert states(root, "mine") == ["running"]
    assert states(root, "mine") == ["completed"]


def test_the_run_that_is_given_comes_before_the_one_that_is_open(root):
    with aboard.init(name="given") as given, aboard.init(name="open"):
        assert RunOfTraining(given).open() is given


def test_what_comes_after_a_training_is_added_to_its_run(root):
    training = RunOfTraining()
    training.begin().log_metrics({"loss": 1.0}, step=5)
    training.finish("completed")
    assert aboard.current_run() is None
    training.open().log_metrics({"accuracy": 0.5}, step=5)
    training.finish("completed")
    assert states(root, "run1") == ["completed", "completed"]
    with aboard.open(root / "default" / "run1") as logs:
        assert {tag.name for tag in logs.select()} == {"loss", "accuracy"}


def test_a_finished_run_still_tells_where_it_is(root):
    training = RunOfTraining()
    name = training.where().name
    training.finish("completed")
    assert training.where().name == name
    assert aboard.current_run() is None
    assert states(root, "run1") == ["completed"]
    with aboard.init(name="mine") as mine:
        assert training.where() is mine


def test_another_training_is_another_run(root):
    training = RunOfTraining()
    for name in ("run1", "run2"):
        assert training.begin().name == name
        training.finish()


def test_another_training_of_a_named_run_goes_on_with_it(root):
    training = RunOfTraining(name="long")
    for _ in range(2):
        assert training.begin().name == "long"
        training.finish()
    assert states(root, "long") == ["completed", "completed"]


def test_a_run_that_the_environment_names_is_found_again(root, monkeypatch):
    monkeypatch.setenv("ABOARD_RUN", "default/told")
    training = RunOfTraining()
    for _ in range(2):
        assert training.open().name == "told"
        training.finish()
    assert states(root, "told") == ["completed", "completed"]


def last_ending(root: Path, run: str) -> tuple[str, str]:
    record = json.loads((root / run / "run.json").read_text())
    return record["state"], record["reason"]


ABANDONED = ("failed", "abandoned: another training began")


def test_no_training_logs_to_the_run_of_one_that_never_ended(root):
    RunOfTraining(experiment="e").begin()
    later = RunOfTraining(experiment="other", name="b")
    run = later.begin()
    assert (run.experiment, run.name) == ("other", "b")
    assert last_ending(root, "e/run1") == ABANDONED
    later.finish()
    assert last_ending(root, "other/b") == ("completed", "")
    assert aboard.current_run() is None


def test_a_training_that_begins_again_without_an_end_is_another_run(root):
    training = RunOfTraining()
    assert [training.begin().name for _ in range(2)] == ["run1", "run2"]
    assert states(root, "run1") == ["failed"]
    training.finish()
    named = RunOfTraining(name="long")
    assert [named.begin().name for _ in range(2)] == ["long", "long"]
    named.finish()
    assert states(root, "long") == ["failed", "completed"]


def test_what_is_logged_outside_of_a_training_is_not_logged_to_the_run_of_another(root):
    training, evaluation = RunOfTraining(), RunOfTraining()
    first = training.begin()
    assert evaluation.open().name == "run2"
    evaluation.finish()
    assert training.open() is first
    training.finish()
    assert states(root, "run1") == states(root, "run2") == ["completed"]


def test_a_part_of_a_training_logs_to_its_run(root):
    training = RunOfTraining()
    run = training.begin()
    part = RunOfTraining(part="watch train")
    assert part.begin() is run
    part.finish("failed")
    assert states(root, "run1") == ["running"]
    training.finish()
    assert states(root, "run1") == ["completed"]


def test_the_same_part_again_is_another_training(root):
    first = RunOfTraining(part="watch train")
    run = first.begin()
    assert run is RunOfTraining(part="watch eval").begin()
    run.log_metrics({"loss": 1.0})
    second = RunOfTraining(part="watch train")
    assert second.begin().name == "run2"
    assert states(root, "run1") == ["failed"]
    second.finish()


def test_parts_of_a_kind_that_are_set_up_together_share_a_run(root):
    generator, discriminator = (RunOfTraining(part="watch train") for _ in range(2))
    run = generator.begin()
    assert discriminator.begin() is run
    generator.finish()
    assert states(root, "run1") == ["completed"]


def test_a_part_goes_on_with_its_run_if_that_came_to_an_end(root):
    part = RunOfTraining(part="estimator train")
    for _ in range(2):
        assert part.begin().name == "run1"
        part.finish()
    assert states(root, "run1") == ["completed", "completed"]


def test_the_run_that_a_user_opened_comes_before_that_of_an_earlier_training(root):
    RunOfTraining().begin()
    with aboard.init(name="mine") as mine:
        assert RunOfTraining().begin() is mine
    last = RunOfTraining()
    assert last.begin().name == "run2"
    assert states(root, "run1") == ["failed"]
    last.finish()


@pytest.mark.parametrize("joined", [False, True])
def test_trainings_in_a_directory_that_the_environment_names(tmp_path, monkeypatch, joined):
    monkeypatch.setenv("ABOARD_LOGDIR", str(tmp_path / "tb"))
    if joined:
        (tmp_path / "tb").mkdir()
        monkeypatch.setenv("ABOARD_ATTEMPT", "1")
    training = RunOfTraining()
    for logdir in (tmp_path / "tb", tmp_path / "tb" / "run2"):
        assert training.begin().logdir == str(logdir)
        training.finish()
        evaluation = training.open()
        assert evaluation.logdir == str(logdir)
        evaluation.log_metrics({"loss": 1.0})
        training.finish()


def test_what_follows_a_training_takes_nothing_back(root):
    training = RunOfTraining()
    for step in range(4):
        training.open().log_metrics({"loss": 1.0, "accuracy": 0.5}, step=step)
        if step == 3:
            training.finish()
    training.open().log_metrics({"accuracy": 0.75}, step=3)
    training.finish()
    directory = str(root / "default" / "run1")
    stock = EventAccumulator(directory, size_guidance={"tensors": 0}).Reload()
    assert [one.step for one in stock.Tensors("loss")] == [0, 1, 2, 3]
