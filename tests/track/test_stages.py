"""The stages of an attempt: what it takes back of earlier ones, in TensorBoard's own eyes."""

from pathlib import Path

import pytest
from reading import read_stock

from aboard import EventWriter
from aboard.events import encode
from aboard.storage.local import LocalStorage
from aboard.track import stages as stages_module
from aboard.track.stages import Stages
from aboard.track.steps import LastSteps


@pytest.fixture
def stages(tmp_path: Path) -> Stages:
    """Give the stages of a second attempt, after one that logged two metrics at steps 0 to 9."""
    with EventWriter(tmp_path / "train") as writer:
        for step in range(10):
            writer.scalars({"loss": 1.0, "accuracy": 1.0}, step)
    return second(tmp_path)


def second(directory: Path, **options: bool) -> Stages:
    return Stages(directory, last_steps=LastSteps([LocalStorage(str(directory))]), **options)


def steps(stages: Stages, tag: str) -> list[int]:
    for writer in stages.all():
        writer.close()
    return [point.step for point in read_stock(stages.directory)["train", tag].points]


def test_a_metric_that_was_there_takes_its_stage_back(stages: Stages) -> None:
    stages.log({"loss": 2.0, "accuracy": 2.0}, 6, "train")
    stages.writers["train"].scalars({"loss": 3.0, "accuracy": 3.0}, 7)
    assert steps(stages, "loss") == steps(stages, "accuracy") == list(range(8))


def test_a_metric_that_goes_on_takes_nothing_back(stages: Stages) -> None:
    stages.log({"loss": 2.0}, 10, "train")
    assert steps(stages, "loss") == list(range(11))
    assert steps(stages, "accuracy") == list(range(10))


def test_a_metric_that_is_new_takes_nothing_back(stages: Stages) -> None:
    for step in (3, 6):
        stages.log({"test": 2.0}, step, "train")
    assert "train" not in stages.writers
    assert steps(stages, "test") == [3, 6]
    assert steps(stages, "loss") == list(range(10))


def test_a_metric_that_counts_epochs_takes_no_batches_back(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "train") as writer:
        for step in range(10):
            writer.scalar("loss", 1.0, step)
            writer.scalar("accuracy of an epoch", 1.0, step // 2)
    stages = second(tmp_path)
    stages.log({"accuracy of an epoch": 2.0}, 4, "train")
    stages.log({"loss": 2.0}, 10, "train")
    assert steps(stages, "loss") == list(range(11))


def test_what_was_logged_before_a_stage_is_taken_back_stays(stages: Stages) -> None:
    stages.add([encode.text("note", "resumed")], 9, "train")
    stages.log({"test": 2.0}, 8, "train")
    stages.log({"loss": 2.0}, 6, "train")
    assert steps(stages, "note") == [9]
    assert steps(stages, "test") == [8]
    assert steps(stages, "loss") == list(range(7))


def test_not_more_is_remembered_than_needs_be(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages_module, "_LONGEST_WAIT", 3)
    for step in range(4):
        assert "train" not in stages.writers
        stages.log({"test": 2.0}, step, "train")
    assert "train" in stages.writers
    monkeypatch.setattr(stages_module, "_LARGEST_WAIT", 100)
    stages.add([encode.text("note", "x" * 101)], 1, "eval")
    assert "eval" in stages.writers


def test_what_only_adds_takes_nothing_back(stages: Stages) -> None:
    adding = second(stages.directory, rewinds=False)
    adding.log({"loss": 2.0}, 9, "train")
    assert steps(adding, "loss") == [*range(10), 9]
    assert steps(adding, "accuracy") == list(range(10))
