"""A whole hub over PostgreSQL, and any hub whose database is gone for a while."""

import json
import os
import sqlite3
import subprocess
import sys
import uuid
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest
from hubs import PASSWORD, create, points, until
from lives import Commands, board_processes, kill_boards

MNIST = {"mnist/run1": [(0, 3.0)]}


@contextmanager
def hub(state, root, *options):
    """Run a hub until it is no longer needed, and stop its boards with it."""
    with Commands() as commands:
        life = commands.start(state, root, options=options)
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
    until(lambda: described(client, board)["runs"] >= 1)
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


def test_boards_live_and_outlive_their_hub_over_postgres(tmp_path, root, postgres):
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


def test_a_hub_whose_server_is_away_serves_what_it_knows(tmp_path, root, server, postgres):
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


def test_a_hub_whose_file_others_keep_locked_serves_what_it_knows(tmp_path, root):
    with hub(tmp_path / "state", root) as client:
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
    with Commands() as commands:
        lives = [commands.start(tmp_path / name, root, options=options) for name in "ab"]
        try:
            assert [life.is_up() for life in lives] == [True, True]
            with lives[0].client() as one, lives[1].client() as other:
                board = create(one, "cifar10")["id"]
                until(lambda: other.get(f"/b/{board}/data/runs").status_code == 200)
                assert points(other, board) == points(one, board)
                assert create(other, "cifar10")["id"] == board
                isolated = [running(one, "mnist"), running(other, "cifar10/run1")]
                assert len(board_processes(os.environ["ABOARD_CACHE"])) == 2
                assert points(one, isolated[0]) == points(other, isolated[0]) == MNIST
                lives[0].kill()
                assert points(other, isolated[0]) == MNIST
                stop_all(other)
        finally:
            for life in lives:
                life.kill()


def test_two_hubs_of_a_team_that_start_at_once_have_the_same_administrator(
    tmp_path, root, postgres
):
    (tmp_path / "aboard.toml").write_text(f'roots = ["{root}"]\ndatabase = "{postgres}"\n')
    command = [sys.executable, "-m", "aboard", "serve", "--config", str(tmp_path / "aboard.toml")]
    command += ["--port", "0", "--admin", "anna", "--json", "--directory"]
    with ExitStack() as closing:
        hubs = []
        for name in "ab":
            hubs.append(
                subprocess.Popen(
                    [*command, str(tmp_path / name)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            closing.enter_context(hubs[-1])
            closing.callback(hubs[-1].kill)
        for one in hubs:
            one.stdin.write(f"{PASSWORD}\n")
            one.stdin.close()
        lines = [one.stdout.readline() for one in hubs]
        for line in lines:
            login = {"user": "anna", "password": PASSWORD}
            address = json.loads(line)["address"]
            answer = httpx.post(f"{address}/api/v1/login", json=login, timeout=60)
            assert answer.json()["role"] == "admin"
