"""A board whose source cannot be read reports it everywhere, and recovers by itself."""

import json
import logging
import sqlite3

import pytest

from aboard import EventWriter
from aboard.events import encode
from aboard.sdk.client import Client
from tests.hub.hubs import create, log_run, points, served
from tests.waiting import until

CONDITION = "source cannot be read"


@pytest.fixture
def bucket(s3_server, environment):
    """The variables of a server of buckets, of which `s3://nosuchbucket` is not one."""
    environment.setenv("AWS_ENDPOINT_URL", s3_server)
    environment.setenv("AWS_ACCESS_KEY_ID", "testing")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "testing")


def test_a_bucket_that_does_not_exist(tmp_path, bucket, caplog):
    caplog.set_level(logging.INFO, "aboard.tensorboard.follower")
    with served(tmp_path, personal=True) as hub, hub.client("max") as client:
        board = create(client, "s3://nosuchbucket/x")
        assert (board["state"], board["condition"], board["runs"]) == ("running", CONDITION, 0)
        (problem,) = board["problems"]
        assert problem.startswith("s3://nosuchbucket")
        path = f"/api/v1/boards/{board['id']}"
        assert client.get(path).json()["problems"] == [problem]
        (listed,) = client.get("/api/v1/boards").json()["boards"]
        assert (listed["condition"], listed["problems"]) == (CONDITION, [problem])
        assert client.get(f"/b/{board['id']}/data/status").json()["problems"] == [problem]
        found = Client(hub.url, token=hub.tokens["max"], start=False).get(board["id"])
        assert (found.condition, list(found.problems)) == (CONDITION, [problem])
    assert caplog.messages == [problem]


@pytest.mark.parametrize("column", ["question_sort", "group_by"])
def test_a_board_that_can_no_longer_be_parsed_hides_no_other(tmp_path, column):
    logs = tmp_path / "logs"
    log_run(logs, "run1", [1.0])
    with served(tmp_path, [logs]) as hub, hub.client("max") as client:
        bad, good = (create(client, logs, name=name, new=True)["id"] for name in ("bad", "good"))
    with sqlite3.connect(hub.hub.config.directory / "hub.db") as database:
        database.execute(f"UPDATE board SET {column} = '[\"nosuch\"]' WHERE id = ?", (bad,))
    with served(tmp_path, [logs]) as hub, hub.client("max") as client:
        found = {one["id"]: one for one in client.get("/api/v1/boards").json()["boards"]}
        assert found[good]["problems"] == []
        (problem,) = client.get(f"/api/v1/boards/{bad}").json()["problems"]
        assert "unknown field 'nosuch'" in problem
        assert found[bad]["problems"] == [problem]
        assert client.post(f"/api/v1/boards/{bad}/stop").json()["state"] == "stopped"


def test_a_restarted_hub_queries_the_bucket_before_it_describes_runs(tmp_path, bucket):
    with served(tmp_path, personal=True) as hub, hub.client("max") as client:
        board = create(client, "s3://nosuchbucket/x")
    with served(tmp_path, personal=True) as hub, hub.client("max") as client:
        found = client.get(f"/api/v1/boards/{board['id']}").json()
    assert (found["condition"], found["problems"]) == (CONDITION, board["problems"])


def test_a_restarted_hub_lists_the_indexed_runs_of_a_path(tmp_path):
    logs, unread = tmp_path / "somewhere", tmp_path / "unread"
    for name in ("run1", "run2", "run3"):
        log_run(logs, name, [1.0])
    unread.mkdir()
    with served(tmp_path, personal=True) as hub, hub.client("max") as client:
        board = create(client, logs)["id"]
        until(lambda: client.get(f"/api/v1/boards/{board}").json()["runs"] == 3)
        create(client, unread)
    log_run(unread, "run1", [1.0])
    log_run(unread, "run2", [1.0])
    with served(tmp_path, personal=True) as hub, hub.client("max") as client:

        def listed():
            boards = client.get("/api/v1/boards").json()["boards"]
            return [(one["runs"], one["condition"]) for one in boards]

        assert listed() == [(None, ""), (3, "")]
        until(lambda: listed() == [(2, ""), (3, "")])


def test_a_restarted_hub_does_not_count_a_bucket_before_it_responds(tmp_path, bucket):
    with served(tmp_path, personal=True) as hub, hub.client("max") as client:
        board = create(client, "s3://nosuchbucket/x")
    with served(tmp_path, personal=True) as hub, hub.client("max") as client:
        (listed,) = client.get("/api/v1/boards").json()["boards"]
        assert listed["runs"] is None or listed["problems"]
        until(lambda: client.get("/api/v1/boards").json()["boards"][0]["problems"])
        (listed,) = client.get("/api/v1/boards").json()["boards"]
    assert (listed["condition"], listed["problems"]) == (CONDITION, board["problems"])


def test_a_list_reports_the_problem_of_the_root_of_a_path(tmp_path):
    root = tmp_path / "logs"
    log_run(root, "cifar10/run1", [1.0])
    with served(tmp_path, [root]) as hub, hub.client("max") as client:
        create(client, root / "cifar10")
    root.rename(tmp_path / "away")
    with served(tmp_path, [root]) as hub, hub.client("max") as client:
        hub.hub.library.refresh(str(root))
        (listed,) = client.get("/api/v1/boards").json()["boards"]
    assert listed["condition"] == CONDITION
    assert listed["problems"][0].startswith(str(root))


def test_a_directory_that_disappears_and_returns(tmp_path, caplog):
    caplog.set_level(logging.INFO, "aboard.tensorboard.follower")
    logs = tmp_path / "somewhere"
    log_run(logs, "run1", [1.0])
    with served(tmp_path, personal=True) as hub, hub.client("max") as client:
        board = create(client, logs)["id"]
        until(lambda: points(client, board) == {"run1": [(0, 1.0)]})
        path = f"/api/v1/boards/{board}"
        assert client.get(path).json()["condition"] == ""
        logs.rename(tmp_path / "away")
        found = until(lambda: (now := client.get(path).json())["problems"] and now)
        assert found["condition"] == CONDITION
        (tmp_path / "away").rename(logs)
        until(lambda: client.get(path).json()["condition"] == "")
        assert points(client, board) == {"run1": [(0, 1.0)]}
    until(lambda: len(caplog.records) == 2)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert caplog.messages == [found["problems"][0], f"{logs} can be read again"]


def test_an_isolated_board_reports_it_too(tmp_path):
    logs = tmp_path / "somewhere"
    log_run(logs, "run1", [1.0])
    with served(tmp_path, personal=True) as hub, hub.client("max") as client:
        board = create(client, logs, on="process")["id"]
        path = f"/api/v1/boards/{board}"
        until(lambda: client.get(path).json()["runs"] == 1)
        logs.rename(tmp_path / "away")
        until(lambda: client.get(path).json()["condition"] == CONDITION)
        client.post(f"{path}/stop", json={"now": True})
        until(lambda: client.get(path).json()["state"] == "stopped")


def test_a_run_with_stages_and_hyperparameters_is_one_run(tmp_path):
    root = tmp_path / "logs"
    run = log_run(root, "cifar10/run1", [], hparams={"lr": 0.1})
    for file in run.glob("*tfevents*"):
        file.unlink()
    with EventWriter(run) as writer:
        writer.add([encode.hparams_start({"lr": 0.1})], 0)
    for stage in ("train", "eval", "a stage"):
        with EventWriter(run / stage) as writer:
            writer.scalar("loss", 1.0, 0)
    with served(tmp_path, [root]) as hub, hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        path = f"/api/v1/boards/{board}"
        until(lambda: len(points(client, board)) == 3)
        assert client.get(path).json()["runs"] == 1
        runs = client.get(f"/b/{board}/data/runs").json()
        assert sorted(runs) == [f"cifar10/run1/{one}" for one in ("a stage", "eval", "train")]
        statuses = ["STATUS_UNKNOWN", "STATUS_RUNNING"]
        sought = {"colParams": [{"hparam": "lr"}], "allowedStatuses": statuses, "sliceSize": 10}
        query = {"request": json.dumps(sought)}
        groups = client.get(f"/b/{board}/data/plugin/hparams/session_groups", params=query).json()
        (session,) = groups["sessionGroups"][0]["sessions"]
        assert session["name"] == "cifar10/run1"


def test_a_board_tells_what_no_run_has_until_one_has_it(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    message = (
        "no run has a metric 'acc'. The metrics are eval/acc. It is shown as '-' until a run has"
        " it."
    )
    with served(tmp_path, personal=True) as hub, hub.client("max") as client:

        def described(board):
            return client.get(f"/api/v1/boards/{board['id']}").json()

        def missing(board):  # nothing while its runs are read
            return described(board)["missing_fields"]

        board = create(client, logs, template="{run} {metrics.acc}")
        until(lambda: missing(board) == [])
        assert described(board)["condition"] == "waiting for data"
        with EventWriter(logs / "run1") as writer:
            writer.scalar("eval/acc", 0.5, 0)
        until(lambda: missing(board) == [message])
        found = described(board)
        assert (found["condition"], found["problems"], found["runs"]) == ("", [], 1)
        (listed,) = client.get("/api/v1/boards").json()["boards"]
        assert listed["missing_fields"] == [message]
        status = client.get(f"/b/{board['id']}/data/status").json()
        assert (status["missing_fields"], status["problems"]) == ([message], [])
        with EventWriter(logs / "run2" / "eval") as writer:  # a stage
            writer.scalar("acc", 0.5, 0)
        until(lambda: missing(board) == [])
        grouped = create(client, logs, name="grouped", group_by=["hparams.lr"])
        (text,) = until(lambda: missing(grouped))
        assert text.startswith("no run has a hyperparameter 'lr'.")


def test_a_board_tells_what_is_wrong_with_its_query_until_it_matches(tmp_path):
    root = tmp_path / "runs"
    log_run(root, "cifar10/run1", [0.5], hparams={"lr": 0.1}, tags={"baseline": True})
    with served(tmp_path, [root]) as hub, hub.client("max") as client:

        def missing(**query):  # nothing while its runs are read
            path = f"/api/v1/boards/{create(client, 'cifar10', **query)['id']}"
            return until(lambda: client.get(path).json()["missing_fields"])

        later = " The board shows such runs as soon as there are any."
        lr = "no run has a hyperparameter 'lrr'. Did you mean 'lr'?"
        assert missing(where="hparams.lrr < 1") == [lr + later]
        (text,) = missing(sort=["-metrics.lossy.max"])
        assert text.startswith("no run has a metric 'lossy'. Did you mean 'loss'?")
        assert missing(where="'baselin' in tags") == [
            "No run has a tag 'baselin'. Did you mean 'baseline'?"
        ]
        assert missing(where='hparams.lr == "0.1"') == [
            "hparams.lr is a number in all runs, not a string. Write it without quotes."
        ]
        both = missing(where="hparams.lrr < 1", template="{run} {hparams.lrr}")
        assert both == [lr + later]  # it shows no run that the template could miss
        (board,) = client.get("/api/v1/boards", params={"limit": 1}).json()["boards"]
        assert board["missing_fields"] == both
        log_run(root, "cifar10/run2", [0.5], hparams={"lrr": 0.1})
        path = f"/api/v1/boards/{board['id']}"
        until(lambda: client.get(path).json()["runs"] == 1)
        until(lambda: client.get(path).json()["missing_fields"] == [])
