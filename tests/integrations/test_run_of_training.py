"""Which run an integration logs to, and when that run ends."""

import json
from pathlib import Path

import pytest

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
