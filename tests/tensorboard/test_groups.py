"""Groups on a board: a run for each of their curves, served like any run and live."""

import json

import pytest

from aboard.events.writer import EventWriter
from aboard.runs.manifest import Manifest
from aboard.runs.naming import Grouping
from aboard.tensorboard import board as module


def log(root, run, values, tag="loss", **hparams):
    with EventWriter(root / run) as writer:
        for step, value in enumerate(values):
            writer.scalar(tag, value, step, wall_time=1000.0 + step)
    if hparams:
        above = root / run.partition("/")[0]
        record = Manifest(above.name, "logs", hparams=hparams)
        (above / "run.json").write_bytes(record.to_json())


@pytest.fixture
def logs(tmp_path):
    root = tmp_path / "logs"
    log(root, "one", [1.0, 2.0], lr=0.1)
    log(root, "two", [3.0, 4.0, 5.0], lr=0.1)
    log(root, "three", [7.0], lr=0.01)
    return root


@pytest.fixture
def show(serve, index):
    def show(root, *fields, **options):
        ours = serve(root, grouping=Grouping.parse(fields or ["hparams.lr"], **options))
        ours.boards.library.refresh_records(next(iter(ours.boards)).members[0].source)
        return ours

    return show


def curves(ours, tag="loss"):
    requests = [{"plugin": "scalars", "tag": tag}]
    asked = {"requests": json.dumps(requests)}
    (answer,) = ours.post("data/plugin/timeseries/timeSeries", asked).json
    return {
        run: {point["step"]: point["value"] for point in points}
        for run, points in answer["runToSeries"].items()
    }


def runs(ours):
    return ours.get("data/runs").json


def test_a_group_has_a_run_for_each_of_its_curves(logs, show):
    ours = show(logs)
    assert curves(ours) == {
        "lr=0.1 mean": {0: 2.0, 1: 3.0, 2: 5.0},
        "lr=0.1 +std": {0: pytest.approx(2 + 2**0.5), 1: pytest.approx(3 + 2**0.5)},
        "lr=0.1 -std": {0: pytest.approx(2 - 2**0.5), 1: pytest.approx(3 - 2**0.5)},
        "lr=0.01 mean": {0: 7.0},
    }
    assert sorted(runs(ours)) == ["lr=0.01 mean", "lr=0.1 +std", "lr=0.1 -std", "lr=0.1 mean"]
    assert curves(ours, "members/loss") == {
        "lr=0.1 mean": {0: 2, 1: 2, 2: 1},
        "lr=0.01 mean": {0: 1},
    }
    assert json.loads(ours.get("data/status").body)["runs"] == 3  # a curve is not a run


@pytest.mark.parametrize(
    ("band", "names"),
    [
        ("sem", ["+sem", "-sem", "mean"]),
        ("minmax", ["max", "mean", "min"]),
        ("quartiles", ["median", "q1", "q3"]),
    ],
)
def test_bands(logs, show, band, names):
    ours = show(logs, band=band)
    assert sorted(run for run in runs(ours) if "0.1 " in run) == [f"lr=0.1 {one}" for one in names]


def test_what_is_shown(logs, show):
    plain = {"one", "two", "three"}
    assert set(runs(show(logs, show="runs"))) == plain
    both = set(runs(show(logs, show="both")))
    assert plain < both
    assert both - plain == set(runs(show(logs)))


def test_runs_without_a_value_are_a_group_and_stages_are_apart(logs, show):
    log(logs, "four", [9.0])
    log(logs, "one/eval", [0.5], "acc")
    log(logs, "two/eval", [1.0], "acc")
    ours = show(logs)
    assert curves(ours)["lr=- mean"] == {0: 9.0}
    assert curves(ours, "acc")["lr=0.1/eval mean"] == {0: 0.75}


def test_hyperparameters_of_event_files(tmp_path, show):
    from torch.utils.tensorboard import SummaryWriter

    for number, lr in enumerate([0.5, 0.5, 0.25]):
        with SummaryWriter(str(tmp_path / "logs" / str(number))) as writer:
            writer.add_hparams({"lr": lr}, {"loss": number}, run_name=".")
    assert curves(show(tmp_path / "logs"), "loss")["lr=0.5 mean"] == {0: 0.5}


def test_groups_follow_new_points_and_runs(logs, show):
    ours = show(logs)
    assert curves(ours)["lr=0.01 mean"] == {0: 7.0}
    log(logs, "three", [7.0, 9.0])
    log(logs, "four", [1.0], lr=0.01)
    ours.refresh()
    ours.boards.library.refresh_records(next(iter(ours.boards)).members[0].source)
    assert curves(ours)["lr=0.01 mean"] == {0: 4.0, 1: 9.0}
    assert curves(ours)["lr=0.01 +std"] == {0: pytest.approx(4 + 18**0.5)}


def test_every_route_has_the_groups(logs, show):
    ours = show(logs)
    tags = ours.get("data/plugin/scalars/tags").json
    assert set(tags["lr=0.1 mean"]) == {"loss", "members/loss"}
    found = ours.get("data/plugin/timeseries/tags").json["scalars"]["runTagInfo"]
    assert found["lr=0.1 +std"] == ["loss"]
    rows = ours.get("data/plugin/scalars/scalars", run="lr=0.1 mean", tag="loss").json  # a worker
    assert [row[1:] for row in rows] == [[0, 2.0], [1, 3.0], [2, 5.0]]
    listed = ours.get("data/plugins_listing").json
    assert listed["timeseries"]["enabled"]
    assert ours.get("data/plugin/projector/runs").json == []


def test_very_many_groups(logs, show, monkeypatch):
    monkeypatch.setattr(module, "MOST_GROUPS", 1)
    ours = show(logs)
    assert len(runs(ours)) in {1, 3}
    (problem,) = ours.boards.get("board").problems()
    assert "in 2 groups; the board shows the first 1." in problem
