"""The REST API over HTTP: boards, their selections, and errors."""

import asyncio
import json
import os
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from aboard.executors.base import CommandState, ExecutorError, Status
from aboard.hub.api import Busy, Shares
from aboard.hub.api.runs import RunList
from aboard.hub.config import BoardDefaults
from aboard.sdk import client as sdk
from tests.hub.hubs import QUICK, create, log_run, points, served
from tests.waiting import until


def test_a_board_of_an_experiment_serves_the_points_of_its_runs(hub):
    with hub.client("max") as client:
        board = create(client, "cifar10")
        assert (board["state"], board["owner"], board["url"]) == (
            "running",
            "max",
            f"/b/{board['id']}/",
        )
        expected = {"cifar10/run1": [(0, 1.0), (1, 0.5)], "cifar10/run2": [(0, 2.0), (1, 1.5)]}
        # A first request waits a second or two for the first reading, not for a busy machine.
        until(lambda: points(client, board["id"]) == expected)
        described = client.get(f"/api/v1/boards/{board['name']}").json()
        assert (described["runs"], described["condition"]) == (2, "")


def test_runs_that_start_later_join_and_new_points_are_served(hub, root):
    with hub.client("max") as client:
        board = create(client, "cifar10")
        assert len(points(client, board["id"])) == 2
        log_run(root, "cifar10/run3", [9.0])
        until(lambda: points(client, board["id"]).get("cifar10/run3") == [(0, 9.0)])
        log_run(root, "cifar10/run3", [9.0, 8.0])
        until(lambda: len(points(client, board["id"])["cifar10/run3"]) >= 2)


@pytest.mark.parametrize("on", ["instant", "process"])
def test_a_board_of_a_job_exists_before_its_runs(hub, root, on):
    wish = {"selectors": ["job:sweep"], "on": on}
    with hub.client("max") as client:
        refused = client.post("/api/v1/boards", json=wish)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "nothing_matches")
        (root / ".jobs/sweep").mkdir(parents=True)
        (root / ".jobs/sweep/job.json").write_text("{}")
        board = create(client, "job:sweep", on=on)["id"]

        def described():
            return client.get(f"/api/v1/boards/{board}").json()

        try:
            until(lambda: described()["condition"] == "waiting for data")
            log_run(root, "cifar10/sweep-1", [4.0], job="sweep")
            until(lambda: described()["runs"] == 1)
            assert points(client, board) == {"cifar10/sweep-1": [(0, 4.0)]}
            (listed,) = client.get("/api/v1/boards").json()["boards"]
            assert (listed["condition"], listed["runs"]) == ("", 1)
        finally:  # a process would outlive its hub
            client.post(f"/api/v1/boards/{board}/stop", json={"now": True})
            until(lambda: described()["state"] == "stopped")


def test_a_template_takes_its_fields_from_records(hub):
    with hub.client("max") as client:
        board = create(client, "cifar10", template="{workspace}_{run}_lr={hparams.lr}")
        assert set(points(client, board["id"])) == {"ws1_run1_lr=0.1", "ws1_run2_lr=0.01"}


def test_the_template_of_the_settings_is_the_default(tmp_path, root):
    defaults = BoardDefaults(template="{run} of {experiment}")
    with served(tmp_path, [root], boards=defaults) as hub, hub.client("max") as client:
        assert set(points(client, create(client, "mnist")["id"])) == {"run1 of mnist"}
        board = create(client, "mnist", template="{run}")
        assert set(points(client, board["id"])) == {"run1"}


def test_a_board_of_a_path_has_the_run_names_of_tensorboard(hub, root):
    with hub.client("max") as client:
        board = create(client, root / "mnist")
        assert points(client, board["id"]) == {"run1": [(0, 3.0)]}


def test_the_same_selection_is_the_same_board_unless_a_new_one_is_wanted(hub):
    wish = {"selectors": ["cifar10"]}
    with hub.client("max") as client:
        first = client.post("/api/v1/boards", json=wish)
        second = client.post("/api/v1/boards", json=wish)
        third = client.post("/api/v1/boards", json={**wish, "new": True})
    assert [first.status_code, second.status_code, third.status_code] == [201, 200, 201]
    assert first.json()["id"] == second.json()["id"] != third.json()["id"]


def test_a_repeated_key_creates_no_second_board(hub):
    wish, key = {"selectors": ["cifar10"], "new": True}, {"idempotency-key": "k"}
    with hub.client("max") as client:
        first = client.post("/api/v1/boards", json=wish, headers=key)
        again = client.post("/api/v1/boards", json=wish, headers=key)
        other = client.post("/api/v1/boards", json={"selectors": ["mnist"]}, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_mismatch")


def test_selectors_are_added_and_removed_while_a_board_is_open(hub):
    with hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        change = f"/api/v1/boards/{board}/selection"
        assert client.post(change, json={"add": ["mnist"]}).json()["selectors"] == [
            "cifar10",
            "mnist",
        ]
        until(lambda: set(points(client, board)) >= {"mnist/run1"})
        client.post(change, json={"remove": ["cifar10"]})
        assert points(client, board) == {"mnist/run1": [(0, 3.0)]}
        wrong = client.post(change, json={"remove": ["svhn"]})
        assert wrong.status_code == 404
        empty = client.post(change, json={"remove": ["mnist"]})
        assert (empty.status_code, empty.json()["error"]["code"]) == (422, "bad_value")


def test_a_run_is_left_out_of_an_experiment_that_is_shown_and_comes_back(hub):
    with hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        change = f"/api/v1/boards/{board}/selection"
        fewer = client.post(change, json={"remove": ["cifar10/run1"]}).json()
        assert fewer["selectors"] == ["cifar10", "not:cifar10/run1"]
        until(lambda: set(points(client, board)) == {"cifar10/run2"})
        wrong = client.post(change, json={"remove": ["mnist/run1"]})
        assert "no selector of this board selects 'mnist/run1'" in wrong.json()["error"]["message"]
        back = client.post(change, json={"add": ["cifar10/run1"]}).json()
        assert back["selectors"] == ["cifar10", "cifar10/run1"]
        until(lambda: set(points(client, board)) == {"cifar10/run1", "cifar10/run2"})
        empty = client.post(change, json={"remove": ["cifar10", "cifar10/run1"]})
        assert (empty.status_code, empty.json()["error"]["code"]) == (422, "bad_value")


@pytest.mark.parametrize("engine", ["fast", "stock"])
def test_an_isolated_board_restarts_when_its_selection_changes(hub, engine):
    with hub.client("max") as client:
        board = create(client, "mnist", on="process", engine=engine)["id"]
        address = f"/api/v1/boards/{board}"
        until(lambda: client.get(address).json()["runs"] == 1)
        client.post(f"{address}/selection", json={"add": ["cifar10/run2"]})
        until(lambda: client.get(address).json()["runs"] == 2)
        assert len(points(client, board)) == 2
        events = client.get(f"{address}/history").json()["events"]
        assert "its selection changed" in [event["reason"] for event in events]
        client.post(f"{address}/stop", json={"now": True})
        until(lambda: client.get(address).json()["state"] == "stopped")


def test_an_isolated_board_that_was_stopped_stays_so_when_its_selection_changes(hub):
    with hub.client("max") as client:
        board = create(client, "mnist", on="process")["id"]
        address = f"/api/v1/boards/{board}"
        until(lambda: client.get(address).json()["state"] == "running")
        assert re.fullmatch(r"process \d+", client.get(address).json()["unit"])
        before = len(client.get(f"{address}/history").json()["events"])
        client.post(f"{address}/selection", json={"add": ["mnist"]})
        assert len(client.get(f"{address}/history").json()["events"]) == before
        client.post(f"{address}/stop")
        client.post(f"{address}/selection", json={"add": ["cifar10/run2"]})
        until(lambda: client.get(address).json()["state"] == "stopped")


def test_a_board_whose_engine_is_gone_is_deleted_by_force(hub, monkeypatch):
    def stop(handle, *, now=False):
        raise ExecutorError("no such socket.")

    def poll(handles):
        return dict.fromkeys(handles, Status(CommandState.UNKNOWN, reason="no such socket"))

    monkeypatch.setattr(sdk, "_KILL_SECONDS", 0.5)
    with hub.client("max") as client:
        board = create(client, "mnist", on="process")["id"]
        address = f"/api/v1/boards/{board}"
        until(lambda: client.get(address).json()["state"] == "running")
        executor = hub.hub.executors["process"]
        monkeypatch.setattr(executor, "stop", stop)
        monkeypatch.setattr(executor, "poll", poll)
        early = client.delete(address, params={"force": True})
        assert (early.status_code, early.json()["error"]["code"]) == (409, "conflict")
        unit = client.get(address).json()["unit"]
        owner = sdk.Client(hub.url, hub.tokens["max"])
        left = owner.delete(board, force=True)
        host, pid = os.uname().nodename, int(unit.removeprefix("process "))
        assert left == f"{unit} may still run on process. Stop it on {host} with: kill {pid}"
        assert client.get(address).status_code == 404
    os.kill(pid, signal.SIGTERM)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def test_a_request_for_an_existing_board_updates_its_options(hub):
    with hub.client("max") as client:
        first = create(client, "cifar10")
        again = create(client, "cifar10", visibility="team", timeout="1h", idle_timeout="30m")
        assert again["id"] == first["id"]
        assert (again["visibility"], again["timeout"]) == ("team", 3600)
        assert again["idle_timeout"] == 1800
        assert create(client, "cifar10")["visibility"] == "team"


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"on": "instant", "engine": "stock"}, "the stock engine needs its own process"),
        ({"on": "instant", "memory": "1GiB"}, "an instant board is part of the hub"),
        ({"memory": "1GiB"}, "an instant board is part of the hub"),
    ],
)
def test_conflicting_options_are_refused(hub, wish, text):
    with hub.client("max") as client:
        answer = client.post("/api/v1/boards", json={"selectors": ["cifar10"], **wish})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_value")
    assert text in answer.json()["error"]["message"]


def test_a_stopped_board_is_reported_and_starts_again_at_its_address(hub):
    with hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        assert client.post(f"/api/v1/boards/{board}/stop").json()["state"] == "stopped"
        gone = client.get(f"/b/{board}/")
        assert (gone.status_code, gone.json()["error"]["code"]) == (503, "board_stopped")
        assert "Stopped by max." in gone.json()["error"]["hint"]
        assert client.get("/api/v1/boards").json()["boards"] == []
        assert len(client.get("/api/v1/boards", params={"all": True}).json()["boards"]) == 1
        assert client.post(f"/api/v1/boards/{board}/restart").json()["state"] == "running"
        assert len(points(client, board)) == 2
        events = client.get(f"/api/v1/boards/{board}/history").json()["events"]
        states = [event["state"] for event in events]
        assert states == ["pending", "running", "stopped", "pending", "running"]
        assert client.delete(f"/api/v1/boards/{board}").status_code == 204
        assert client.get(f"/api/v1/boards/{board}").status_code == 404
        assert client.get(f"/b/{board}/").status_code == 404


def test_times_are_changed_and_extended(hub):
    with hub.client("max") as client:
        board = create(client, "cifar10", timeout="1h", name="mine", title="Mine")["id"]
        changed = client.patch(
            f"/api/v1/boards/{board}",
            json={"name": "ours", "visibility": "team", "idle_timeout": "90m", "extend": 60},
        ).json()
        assert (changed["name"], changed["visibility"]) == ("ours", "team")
        assert (changed["timeout"], changed["idle_timeout"]) == (3600.0, 5400.0)
        assert changed["expires"] > changed["started"]
        endless = client.patch(f"/api/v1/boards/{board}", json={"timeout": 0}).json()
        assert endless["expires"] is None
        assert client.get(f"/b/{board}/data/environment").json()["window_title"] == "Mine"


def test_boards_are_listed_in_pages_and_filtered(hub):
    with hub.client("max") as client:
        made = [create(client, "cifar10", new=True)["id"] for _ in range(5)]
        first = client.get("/api/v1/boards", params={"limit": 3}).json()
        rest = client.get("/api/v1/boards", params={"limit": 3, "cursor": first["next"]}).json()
        assert [one["id"] for one in first["boards"] + rest["boards"]] == made[::-1]
        assert rest["next"] is None
        client.post(f"/api/v1/boards/{made[0]}/stop")
        ended = client.get("/api/v1/boards", params={"state": "stopped"}).json()["boards"]
        assert [one["id"] for one in ended] == made[:1]
        assert client.get("/api/v1/boards", params={"cursor": "x"}).status_code == 422


def test_runs_and_roots_are_listed(hub, root):
    with hub.client("vera") as client:
        until(lambda: client.get("/api/v1/runs").json()["runs"])
        runs = client.get("/api/v1/runs", params={"selector": "hparam:lr<0.1"}).json()["runs"]
        assert [(run["experiment"], run["name"]) for run in runs] == [("cifar10", "run2")]
        assert runs[0]["hparams"] == {"lr": 0.01}
        page = client.get("/api/v1/runs", params={"limit": 2}).json()
        rest = client.get("/api/v1/runs", params={"limit": 2, "cursor": page["next"]}).json()
        names = [f"{run['experiment']}/{run['name']}" for run in page["runs"] + rest["runs"]]
        assert names == ["cifar10/run1", "cifar10/run2", "mnist/run1"]
        roots = client.get("/api/v1/roots").json()["roots"]
        assert [(one["uri"], one["runs"], one["problem"]) for one in roots] == [(str(root), 3, "")]


def test_a_path_without_runs_lists_no_run(hub, root):
    (root / "empty").mkdir()
    with hub.client("vera") as client:
        for path in (root / "empty", root / "nothing"):
            answer = client.get("/api/v1/runs", params={"selector": str(path)})
            nothing = {"runs": [], "total": 0, "unread": 0, "next": None}
            assert (answer.status_code, answer.json()) == (200, nothing)


def test_a_root_is_added_while_the_hub_runs(hub, tmp_path):
    log_run(tmp_path / "other" / "logs", "late/run1", [9.0])
    added = str(tmp_path / "other" / "logs")
    with hub.client("anna") as client:
        before = create(client, "mnist")
        answer = client.post("/api/v1/roots", json={"uri": added})
        assert (answer.status_code, answer.json()["runs"]) == (201, 1)
        assert client.post("/api/v1/roots", json={"uri": f"{added}/"}).status_code == 200
        roots = client.get("/api/v1/roots").json()["roots"]
        assert [one["name"] for one in roots] == ["logs", "other/logs"]
        assert points(client, create(client, "late")["id"]) == {"late/run1": [(0, 9.0)]}
        assert points(client, create(client, added)["id"]) == {"late/run1": [(0, 9.0)]}
        assert points(client, before["id"]) == {"mnist/run1": [(0, 3.0)]}
        refused = client.post("/api/v1/roots", json={"uri": "logs"})
        assert refused.json()["error"]["code"] == "bad_value"
        assert "a relative path" in refused.json()["error"]["message"]
    with hub.client("max") as client:
        assert client.post("/api/v1/roots", json={"uri": "/"}).status_code == 403


def test_hyperparameters_of_a_run_are_listed_as_recorded(hub, root):
    given = {
        "large": 2**70,
        "small": 5e-324,
        "text": '\U0001f600 "NaN"',
        "many": [1, {"a": None}],
    }
    log_run(root, "odd/run1", [1.0], hparams=given, tags={"é": True})

    with hub.client("max") as client:
        listed = client.get("/api/v1/runs", params={"selector": "odd"})
    (run,) = RunList.model_validate_json(listed.content).runs
    assert (run.hparams, run.tags, run.metrics) == (given, {"é": True}, {})


@pytest.mark.parametrize(
    ("selector", "status", "code", "text"),
    [
        ("cifar11", 422, "nothing_matches", "The nearest is 'cifar10'"),
        ("cifar10/run7-run3", 422, "bad_selector", "ends before it begins"),
        ("./logs", 422, "bad_selector", "does not know your working directory"),
        ("/etc", 403, "outside_roots", "not below a root"),
        ("s3://elsewhere/logs", 403, "outside_roots", "not below a root"),
        ("ftp://host/logs", 422, "bad_selector", "is not supported"),
        ("{root}/nothing", 422, "nothing_matches", "no such directory"),
        ("{root}/../secrets", 403, "outside_roots", "not below a root"),
        ("{root}/way-out", 403, "outside_roots", "not below a root"),
    ],
)
def test_selections_that_cannot_be_shown_are_refused_with_a_remedy(
    hub, root, tmp_path, selector, status, code, text
):
    (tmp_path / "secrets").mkdir()
    (root / "way-out").symlink_to(tmp_path / "secrets")
    with hub.client("max") as client:
        wish = {"selectors": [selector.replace("{root}", str(root))]}
        answer = client.post("/api/v1/boards", json=wish)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert text in answer.json()["error"]["message"]


def test_links_that_leave_a_root_show_nothing(hub, root, tmp_path):
    log_run(tmp_path / "secrets", "run9", [42.0])
    (root / "mnist" / "linked").symlink_to(tmp_path / "secrets" / "run9")
    hidden = next((tmp_path / "secrets" / "run9").iterdir())
    (root / "mnist" / "run2").mkdir()
    (root / "mnist" / "run2" / hidden.name).symlink_to(hidden)
    log_run(root, "mnist/run3", [5.0])
    with hub.client("max") as client:
        board = create(client, "mnist", root / "mnist")["id"]
        until(lambda: any("run3" in run for run in points(client, board)))
        assert [(0, 42.0)] not in points(client, board).values()


def test_invalid_requests_have_the_same_form_of_error(hub):
    with hub.client("max") as client:
        answers = [
            client.get("/api/v1/nothing"),
            client.put("/api/v1/me"),
            client.post("/api/v1/boards", json={"selectors": []}),
            client.post("/api/v1/boards", json={"selectors": ["x"], "selector": 1}),
            client.post("/api/v1/boards", content=b"{", headers={"content-type": "text/plain"}),
            client.post("/api/v1/boards", json={"selectors": ["cifar10"], "timeout": "soon"}),
            client.post("/api/v1/boards", json={"selectors": ["cifar10"], "template": "{no}"}),
            client.post("/api/v1/boards", json={"selectors": ["x" * 2_000_000]}),
            client.get("/api/v1/boards/none"),
            client.get("/nothing"),
        ]
    statuses = [answer.status_code for answer in answers]
    assert statuses == [404, 405, 422, 422, 422, 422, 422, 413, 404, 404]
    for answer in answers:
        assert set(answer.json()["error"]) == {"code", "message", "hint"}


def test_the_error_of_a_limit_lists_the_boards_that_count(tmp_path, root):
    from aboard.boards.model import Limits

    with (
        served(tmp_path, [root], limits=Limits(instant=1)) as hub,
        hub.client("max") as client,
    ):
        board = create(client, "cifar10")["id"]
        refused = client.post("/api/v1/boards", json={"selectors": ["mnist"]})
        assert refused.status_code == 403
        assert refused.json()["error"] == {
            "code": "limit_exceeded",
            "message": refused.json()["error"]["message"],
            "hint": f"Stop the oldest with: aboard stop {board}",
            "boards": [board],
        }


def test_tokens_are_made_used_and_revoked(hub):
    with hub.client("vera") as client:
        made = client.post("/api/v1/tokens", json={"name": "ci", "lasts": "1h"}).json()
        bearer = {"authorization": f"Bearer {made['token']}"}
        assert httpx.get(f"{hub.url}/api/v1/me", headers=bearer, **QUICK).json()["user"] == "vera"
        listed = client.get("/api/v1/tokens").json()["tokens"]
        assert [(one["name"], one["token"]) for one in listed][-1] == ("ci", None)
        assert client.delete(f"/api/v1/tokens/{made['id']}").status_code == 204
        refused = httpx.get(f"{hub.url}/api/v1/me", headers=bearer, **QUICK)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "wrong_secret")


def test_users_are_added_and_removed(hub):
    with hub.client("anna") as client:
        wish = {"name": "otto", "role": "member", "password": "a-long-password"}
        assert client.post("/api/v1/users", json=wish).status_code == 201
        login = {"user": "otto", "password": "a-long-password"}
        with hub.client(headers={"x-aboard-csrf": "1"}) as otto:
            assert otto.post("/api/v1/login", json=login).json()["role"] == "member"
            assert otto.get("/api/v1/me").json()["user"] == "otto"
            mine = "/api/v1/users/otto/password"
            assert otto.put(mine, json={"password": "another-password"}).status_code == 204
            assert otto.get("/api/v1/me").status_code == 401
            assert otto.post("/api/v1/login", json=login).status_code == 401
            login["password"] = "another-password"
            assert otto.post("/api/v1/login", json=login).status_code == 200
            assert client.delete("/api/v1/users/otto").status_code == 204
            assert otto.get("/api/v1/me").status_code == 401
        names = [user["name"] for user in client.get("/api/v1/users").json()["users"]]
        assert names == ["anna", "max", "mia", "vera"]
        assert client.delete("/api/v1/users/anna").status_code == 409


def test_the_sources_of_a_board_are_those_it_shows_now(hub, root):
    with hub.client("max") as client:
        board = create(client, "mnist")
        assert [one.rpartition("/")[2] for one in board["sources"]] == ["run1"]
        log_run(root, "mnist/run2", [1.0])

        def sources():
            points(client, board["id"])
            found = client.get(f"/api/v1/boards/{board['id']}").json()["sources"]
            return [one.rpartition("/")[2] for one in found]

        until(lambda: sources() == ["run1", "run2"])


def test_requests_of_one_user_do_not_take_every_thread(tmp_path, monkeypatch):
    """Sixty of them wait for something slow; another user and the boards are answered."""
    log_run(tmp_path / "logs", "cifar10/run1", [1.0])
    with served(tmp_path, [tmp_path / "logs"]) as hub:
        with hub.client("anna") as client:
            board = create(client, "cifar10")["id"]
        go_on, running, most = threading.Event(), [], []
        really_find = hub.hub.library.find

        def find(selectors, **options):
            running.append(1)
            most.append(len(running))
            go_on.wait(180)
            running.pop()
            return really_find(selectors, **options)

        def look():
            with hub.client("max") as client:
                return client.get("/api/v1/runs?selector=cifar10").status_code

        monkeypatch.setattr(hub.hub.library, "find", find)
        with ThreadPoolExecutor(60) as senders, hub.client("anna") as client:
            sent = [senders.submit(look) for _ in range(60)]
            try:
                until(lambda: running)
                for path in ("/healthz", "/api/v1/boards", f"/b/{board}/data/runs"):
                    assert client.get(path, timeout=180).status_code == 200
            finally:
                go_on.set()
            assert [one.result() for one in sent] == [200] * 60
        assert max(most) == 1  # one selection of a user at a time


def test_a_waiting_request_is_dropped_when_its_client_has_left(tmp_path, monkeypatch):
    log_run(tmp_path / "logs", "cifar10/run1", [1.0])
    made = []

    class Watched(Shares):
        def __init__(self, *most, **options):
            super().__init__(*most, **options)
            made.append(self)

    def send(client, method, path, body=""):
        connection = socket.create_connection((client.base_url.host, client.base_url.port))
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        secret = f"Authorization: {client.headers['authorization']}"
        sent = f"{head}{secret}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        connection.sendall(sent.encode())
        return connection

    monkeypatch.setattr("aboard.hub.app.Shares", Watched)
    with served(tmp_path, [tmp_path / "logs"]) as hub, hub.client("max") as client:
        go_on, found = threading.Event(), []
        really_find = hub.hub.library.find

        def find(selectors, **options):
            found.extend(one.text for one in selectors)
            go_on.wait(60)
            return really_find(selectors, **options)

        monkeypatch.setattr(hub.hub.library, "find", find)
        with ThreadPoolExecutor(1) as sender:
            first = sender.submit(client.get, "/api/v1/runs?selector=cifar10")
            until(lambda: found)
            body = json.dumps({"selectors": ["gone"], "tags": ["loss"]})
            large = json.dumps({"selectors": ["gone"] * 5000, "tags": ["loss"]})
            left = [
                send(client, "GET", "/api/v1/runs?selector=gone"),
                send(client, "POST", "/api/v1/series", body),
                send(client, "POST", "/api/v1/boards", large),
            ]
            until(lambda: [one._used["max"][1] for one in made[:2]] == [3, 4])
            for connection in left:
                connection.close()
            with hub.client("mia") as other:
                assert other.get("/api/v1/me").status_code == 200  # so it has seen them leave
            go_on.set()
            assert first.result().status_code == 200
        assert client.get("/api/v1/runs?selector=cifar10").status_code == 200
        assert client.get("/api/v1/boards").json()["boards"] == []
        assert found == ["cifar10", "cifar10"]


def test_followed_logs_leave_threads_for_other_requests(hub, monkeypatch):
    at_once = 60  # more than there are threads for requests
    goes_on = threading.Event()
    waiting = []

    def logs(*_, **__):
        yield b"first\n"
        waiting.append(True)  # for news, as an executor does
        goes_on.wait(180)
        yield b""
        yield b"last\n"

    def follow(client):
        with client.stream("GET", f"/api/v1/boards/{board}/logs?follow=true") as answer:
            pieces = answer.iter_text()
            followed.append(next(pieces))
            return "".join(pieces)

    monkeypatch.setattr(hub.hub, "logs", logs)
    followed = []
    with hub.client("max") as client, ThreadPoolExecutor(at_once) as pool:
        board = create(client, "cifar10")["id"]
        try:
            found = [pool.submit(follow, client) for _ in range(at_once)]
            until(lambda: len(followed) == at_once, 60)
            assert len(waiting) <= 4
            with hub.client("mia") as other:
                assert other.get("/api/v1/me").status_code == 200
        finally:
            goes_on.set()
        assert [one.result() for one in found] == ["last\n"] * at_once


def test_a_large_body_is_read_like_a_small_one(hub):
    with hub.client("max") as client:

        def ask(body):
            headers = {"content-type": "application/json"}
            return client.post("/api/v1/series", content=body, headers=headers)

        for size in (1, 3000):
            body = json.dumps({"selectors": ["cifar10"] * size, "tags": ["loss"]})
            assert len(ask(body).json()["series"]) == 2
            cut = ask(body[:-1])
            assert (cut.status_code, cut.json()["error"]["message"]) == (
                422,
                "the request is not JSON.",
            )
            odd = ask(json.dumps({"selectors": ["cifar10"] * size, "tags": [[]] * size}))
            assert (odd.status_code, odd.json()["error"]["code"]) == (422, "invalid")


def test_all_users_together_have_a_share():
    async def visit():
        shares, running, most = Shares(most=2, together=3), [], []

        async def compute(who):
            async with shares.of(who):
                running.append(who)
                most.append((len(running), running.count(who)))
                await asyncio.sleep(0)
                running.remove(who)

        await asyncio.gather(*(compute(who) for who in ["anna"] * 5 + ["max"] * 5))
        assert tuple(map(max, zip(*most, strict=True))) == (3, 2)

    asyncio.run(visit())


def test_the_waiting_requests_of_one_user_are_bounded():
    async def visit():
        shares, go_on = Shares(most=1, most_waiting=2), asyncio.Event()

        async def wait(who):
            async with shares.of(who):
                await go_on.wait()

        waiting = [asyncio.create_task(wait("max")) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await wait("max")
        go_on.set()
        await wait("anna")
        await asyncio.gather(*waiting)
        await wait("max")

    asyncio.run(visit())


# Errors of invalid requests, as a client receives them.


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"on": "mars"}, "boards cannot run on 'mars' here."),
        ({"cpus": -1}, "cpus cannot be -1.0."),
        ({"timeout": -1}, "timeout should be greater than or equal to 0."),
        ({"timeout": "never"}, "'never' is not a duration."),
        ({"memory": "lots"}, "'lots' is not a size."),
        ({"memory": "2"}, "memory: 2 bytes is too little for a board."),
        ({"colour": "red"}, "unknown field colour."),
        ({"selectors": ["a", 7]}, "selectors.1 should be a valid string."),
        ({"selectors": None}, "selectors should be a valid list."),
    ],
)
def test_an_invalid_field_is_named_and_explained(hub, wish, said):
    with hub.client("max") as client:
        answer = client.post("/api/v1/boards", json={"selectors": ["cifar10"]} | wish)
    assert answer.status_code == 422
    assert answer.json()["error"]["message"] == said


def test_missing_fields_and_invalid_json_are_reported(hub):
    with hub.client("max") as client:
        missing = client.post("/api/v1/boards", json={})
        headers = {"content-type": "application/json"}
        broken = client.post("/api/v1/boards", content="{", headers=headers)
        nothing = client.post("/api/v1/boards")
    assert missing.json()["error"]["message"] == "selectors is missing."
    assert broken.json()["error"]["message"] == "the request is not JSON."
    assert nothing.json()["error"]["message"] == "the request is missing."
