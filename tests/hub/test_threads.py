"""A request that hangs does not block others: logins, boards and lists still work."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from aboard.boards.model import NoSuchName
from aboard.hub.runs import HubRuns
from aboard.index.library import Library
from aboard.jobs.store import RunLog
from aboard.runs.manifest import State
from tests.hub.hubs import create, log_run, served
from tests.waiting import until

MANY = 40  # more than any pool of threads has


@pytest.fixture
def hub(tmp_path):
    directory = log_run(tmp_path / "logs", "cifar10/run1", [1.0], state=State.RUNNING)
    (directory / "output.log").write_text("begun\n")
    with served(tmp_path, [tmp_path / "logs"]) as hub:
        yield hub


@pytest.fixture
def go_on():
    """Give an event for which something waits; it comes when the test has ended at the latest."""
    event = threading.Event()
    yield event
    event.set()


def test_hanging_logs_do_not_block_other_requests(hub, go_on, monkeypatch):
    really_read, hanging = RunLog.read, []

    def read(self, **options):
        hanging.append(1)
        go_on.wait(180)
        yield from really_read(self, **options)

    with hub.client("anna") as anna, hub.client("mia") as mia, ExitStack() as closing:
        board = create(anna, "cifar10")["id"]
        (run,) = anna.get("/api/v1/runs").json()["runs"]
        monkeypatch.setattr(RunLog, "read", read)
        senders = closing.enter_context(ThreadPoolExecutor(MANY))
        closing.callback(go_on.set)
        for _ in range(MANY):
            senders.submit(follow, hub, run["id"])
        until(lambda: len(hanging) >= 8)
        assert mia.get("/api/v1/me").json()["user"] == "mia"  # who was not here before
        assert anna.get(f"/b/{board}/data/runs").json() == ["cifar10/run1"]


def test_jobs_of_a_root_that_hangs_keep_nobody_out(hub, go_on, monkeypatch):
    hanging = []

    def find(jobs):
        hanging.append(1)
        go_on.wait(180)
        return []

    monkeypatch.setattr("aboard.hub.jobs._records", find)
    with hub.client("anna") as anna, ExitStack() as closing:
        board = create(anna, "cifar10")["id"]
        senders = closing.enter_context(ThreadPoolExecutor(MANY))
        closing.callback(go_on.set)
        for _ in range(MANY):
            senders.submit(list_jobs, hub)
        until(lambda: len(hanging) >= 8)
        assert len(anna.get("/api/v1/boards").json()["boards"]) == 1
        assert anna.get(f"/b/{board}/data/runs").json() == ["cifar10/run1"]


def list_jobs(hub):
    with hub.client("max") as client:
        client.get("/api/v1/jobs")


def test_streams_that_wait_for_a_root_keep_nobody_out(hub, go_on, monkeypatch):
    hanging = []

    def get(self, identity):
        hanging.append(1)
        go_on.wait(180)
        raise NoSuchName(identity, "")

    with hub.client("anna") as anna, ExitStack() as closing:
        board = create(anna, "cifar10")["id"]
        monkeypatch.setattr(HubRuns, "get", get)
        senders = closing.enter_context(ThreadPoolExecutor(MANY))
        closing.callback(go_on.set)
        for _ in range(MANY):
            senders.submit(listen, hub)
        until(lambda: len(hanging) >= 8)
        assert anna.get(f"/b/{board}/data/runs").json() == ["cifar10/run1"]


def listen(hub):
    with hub.client("max") as client:
        client.get("/api/v1/events?follow=00000000:x")


def follow(hub, run):
    with (
        hub.client("max") as client,
        client.stream("GET", f"/api/v1/runs/{run}/log?follow=true") as answer,
    ):
        next(answer.iter_bytes(), b"")


def test_a_slow_search_for_runs_does_not_block_requests(hub, go_on, monkeypatch):
    looks = []

    def look(self):
        looks.append(1)
        go_on.wait(180)

    monkeypatch.setattr(Library, "refresh_all", look)
    monkeypatch.setattr("aboard.hub.api._SCAN_SECONDS", 180.0)
    wrong = "/api/v1/runs?selector=nothere"
    with ThreadPoolExecutor(3) as senders, hub.client("vera") as client, ExitStack() as closing:
        names = ("anna", "max", "mia")
        clients = [closing.enter_context(hub.client(name)) for name in names]
        answers = [senders.submit(one.get, wrong) for one in clients]
        until(lambda: looks)
        assert len(client.get("/api/v1/runs?selector=cifar10").json()["runs"]) == 1
        go_on.set()
        assert {one.result().status_code for one in answers} == {422}
    assert len(looks) <= 3  # those that come while one is under way share it


def test_a_run_that_has_just_started_is_found(hub, tmp_path):
    with hub.client("max") as client:
        assert client.get("/api/v1/runs?selector=mnist").status_code == 422
        log_run(tmp_path / "logs", "mnist/run1", [1.0])
        assert create(client, "mnist")["sources"] == [str(tmp_path / "logs/mnist/run1")]
        log_run(tmp_path / "logs", "mnist/run2", [1.0])
        body = {"selectors": ["mnist/run2"], "tags": ["loss"]}
        assert client.post("/api/v1/series", json=body).status_code == 200
