"""A hub over PostgreSQL, and hubs whose database is unavailable for a while."""

import json
import os
import signal
import sqlite3
import uuid
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.engines.command import fork_command
from tests.hub import lives
from tests.hub.hubs import PASSWORD, QUICK, create, points
from tests.hub.lives import board_processes, kill_boards
from tests.waiting import until

IMPATIENT = """
from functools import partial
from aboard.hub import service
service.Registry = partial(service.Registry, busy_seconds=1)
"""
# Neither knows whether the other one lives: only the lease counts.
ON_OTHER_MACHINES = """
from aboard import system
from aboard.boards.lifecycle import Lifecycle, Settings
from aboard.hub import service
system.has_ended = lambda identity: False
service.Lifecycle = lambda *given, **options: Lifecycle(
    *given, **{**options, "settings": Settings(lease=4.0)}
)
"""
MNIST = {"mnist/run1": [(0, 3.0)]}


@contextmanager
def hub(state, root, *options, first=""):
    """Run a hub until it is no longer needed, and stop its boards with it."""
    life = lives.fork(state, root, options, first)
    try:
        assert life.is_up(), life.log()
        with life.client() as client:
            yield client
    finally:
        life.kill()


def stop_all(client):
    for board in client.get("/api/v1/boards").json()["boards"]:
        client.post(f"/api/v1/boards/{board['id']}/stop", json={"now": True})
    until(lambda: not client.get("/api/v1/boards").json()["boards"])
    assert not board_processes(os.environ["ABOARD_CACHE"])


def described(client, board):
    answer = client.get(f"/api/v1/boards/{board}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def running(client, *selectors, **wish):
    """Make an isolated board, and wait until it shows a run."""
    board = create(client, *selectors, on="process", **wish)["id"]
    until(lambda: described(client, board)["runs"])
    return board


def refused(answer):
    """Say whether the database is named as what is missing, and what to do."""
    error = answer.json()["error"]
    assert error["message"].startswith("the database ")
    assert error["hint"] == "Try again when it is back."
    return (answer.status_code, error["code"]) == (503, "database_unavailable")


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    kill_boards(os.environ["ABOARD_CACHE"])


@pytest.fixture
def server(postgres_server):
    yield postgres_server
    postgres_server.ensure_running()


@pytest.fixture
def postgres(server):
    """Give the address of a fresh database."""
    return server.create(f"hub{uuid.uuid4().hex}")


def test_boards_survive_their_hub_over_postgres(tmp_path, root, postgres):
    options = ("--database", postgres)
    with hub(tmp_path / "state", root, *options) as client:
        instant = create(client, "cifar10", name="mine")["id"]
        isolated = running(client, "mnist")
        assert points(client, isolated) == MNIST
        assert create(client, "cifar10")["id"] == instant
        assert not (tmp_path / "state" / "hub.db").exists()
        client.post(f"/api/v1/boards/{instant}/stop")
        assert described(client, instant)["state"] == "stopped"
    before = board_processes(os.environ["ABOARD_CACHE"])
    with hub(tmp_path / "state", root, *options) as client:
        assert points(client, isolated) == MNIST
        assert board_processes(os.environ["ABOARD_CACHE"]) == before
        client.post(f"/api/v1/boards/{isolated}/restart")
        until(lambda: board_processes(os.environ["ABOARD_CACHE"]).isdisjoint(before))
        until(lambda: described(client, isolated)["runs"] == 1)
        assert points(client, isolated) == MNIST
        client.post(f"/api/v1/boards/{instant}/restart")
        assert points(client, instant)["cifar10/run1"] == [(0, 1.0), (1, 0.5)]
        boards = client.get("/api/v1/boards").json()["boards"]
        assert {board["id"] for board in boards} == {instant, isolated}
        stop_all(client)
        assert client.delete(f"/api/v1/boards/{isolated}").status_code == 204
        boards = client.get("/api/v1/boards", params={"all": True}).json()["boards"]
        assert [board["id"] for board in boards] == [instant]


def test_a_hub_without_its_database_server_serves_known_boards(tmp_path, root, server, postgres):
    with hub(tmp_path / "state", root, "--database", postgres) as client:
        instant, isolated = create(client, "cifar10")["id"], running(client, "mnist")
        numbers = points(client, instant)
        before = board_processes(os.environ["ABOARD_CACHE"])
        server.stop()
        until(lambda: client.get("/readyz").status_code == 503)
        assert client.get("/healthz").status_code == 200
        assert points(client, instant) == numbers
        assert points(client, isolated) == MNIST
        boards = client.get("/api/v1/boards").json()["boards"]
        assert {board["id"]: board["state"] for board in boards} == {
            instant: "running",
            isolated: "running",
        }
        assert described(client, instant)["state"] == "running"
        assert refused(client.post("/api/v1/boards", json={"selectors": ["mnist"]}))
        assert refused(client.patch(f"/api/v1/boards/{instant}", json={"name": "other"}))
        for verb in ("stop", "restart"):
            assert refused(client.post(f"/api/v1/boards/{isolated}/{verb}"))
        assert refused(client.delete(f"/api/v1/boards/{instant}"))
        server.start()
        until(lambda: client.get("/readyz").status_code == 200)
        assert create(client, "mnist")["state"] == "running"
        assert described(client, isolated)["state"] == "running"
        assert board_processes(os.environ["ABOARD_CACHE"]) == before
        stop_all(client)


def test_a_hub_whose_database_file_is_locked_serves_known_boards(tmp_path, root):
    with hub(tmp_path / "state", root, first=IMPATIENT) as client:
        instant, isolated = create(client, "cifar10")["id"], running(client, "mnist")
        numbers = points(client, instant)
        file = tmp_path / "state" / "hub.db"
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert points(client, instant) == numbers
            assert points(client, isolated) == MNIST
            assert len(client.get("/api/v1/boards").json()["boards"]) == 2
            assert refused(client.post("/api/v1/boards", json={"selectors": ["mnist"]}))
            assert described(client, isolated)["state"] == "running"
        assert create(client, "mnist")["state"] == "running"
        stop_all(client)


def test_two_hubs_that_start_at_once_on_a_fresh_server_have_the_same_boards(
    tmp_path, root, postgres
):
    options = ("--database", postgres)
    hubs = [lives.fork(tmp_path / name, root, options) for name in "ab"]
    try:
        assert [life.is_up() for life in hubs] == [True, True]
        with hubs[0].client() as one, hubs[1].client() as other:
            board = create(one, "cifar10")["id"]
            until(lambda: other.get(f"/b/{board}/data/runs").status_code == 200)
            assert points(other, board) == points(one, board)
            assert create(other, "cifar10")["id"] == board
            isolated = [running(one, "mnist"), running(other, "cifar10/run1")]
            assert len(board_processes(os.environ["ABOARD_CACHE"])) == 2
            assert points(one, isolated[0]) == points(other, isolated[0]) == MNIST
            hubs[0].kill()
            assert points(other, isolated[0]) == MNIST
            stop_all(other)
    finally:
        for life in hubs:
            life.kill()


@pytest.mark.parametrize("first", ["", ON_OTHER_MACHINES], ids=["one machine", "two machines"])
def test_a_board_of_a_killed_hub_continues_at_the_other_hub(tmp_path, root, postgres, first):
    options = ("--database", postgres)
    hubs = [lives.fork(tmp_path / name, root, options, first) for name in "ab"]
    try:
        assert [life.is_up() for life in hubs] == [True, True]
        with hubs[0].client() as one, hubs[1].client() as other:
            board, ending = running(one, "mnist"), running(one, "cifar10")
            before = board_processes(os.environ["ABOARD_CACHE"])
            assert len(before) == 2
            hubs[0].kill()
            assert points(other, board) == MNIST
            (group,) = group_of(ending) & before
            os.killpg(group, signal.SIGKILL)
            # Only the hub that holds the lease notices.
            failed = until(lambda: has_ended(other, ending))
            assert failed["state"] in {"failed", "lost"}
            assert points(other, board) == MNIST
            assert board_processes(os.environ["ABOARD_CACHE"]) == before - {group}
            states = [one["state"] for one in history(other, board)]
            assert states == ["pending", "starting", "running"]
            stop_all(other)
    finally:
        for life in hubs:
            life.kill()


def has_ended(client, board):
    found = described(client, board)
    return found if found["ended"] else None


def history(client, board):
    return client.get(f"/api/v1/boards/{board}/history").json()["events"]


def group_of(board):
    """Return the process groups of a board, by the directory for its temporary files."""
    mark = f"/boards/{board}/".encode()
    return {
        group
        for group in board_processes(os.environ["ABOARD_CACHE"])
        if mark in Path(f"/proc/{group}/environ").read_bytes()
    }


def test_two_hubs_of_a_team_that_start_at_once_have_the_same_administrator(
    tmp_path, root, postgres
):
    (tmp_path / "aboard.toml").write_text(f'roots = ["{root}"]\ndatabase = "{postgres}"\n')
    words = ["serve", "--config", str(tmp_path / "aboard.toml"), "--port", "0", "--admin", "anna"]
    words += ["--json", "--directory"]
    with ExitStack() as closing:
        hubs = []
        for name in "ab":
            directory = str(tmp_path / name)
            stdin = f"{PASSWORD}\n"
            hub = fork_command([*words, directory], env=os.environ, cwd=tmp_path, stdin=stdin)
            closing.callback(hub.end)
            hubs.append(hub)
        for hub in hubs:
            login = {"user": "anna", "password": PASSWORD}
            address = json.loads(hub.stdout.readline())["address"]
            answer = httpx.post(f"{address}/api/v1/login", json=login, **QUICK)
            assert answer.json()["role"] == "admin"
