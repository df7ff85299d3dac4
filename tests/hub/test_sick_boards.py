"""Isolated boards that die, use too much memory, hang or never respond, and their messages."""

import json
import os
import signal
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from aboard.boards.lifecycle import Settings
from aboard.hub import proxy
from aboard.hub.service import Hub
from tests.hub import hubs
from tests.hub.hubs import create, personal_hub, points
from tests.waiting import until

# Boards are real, but for what their title says they suffer from.
SICKNESS = """
import json, os, pathlib, socket, sys, threading, time

def grow(symptom):
    while not symptom.exists():
        time.sleep(0.05)
    kept = []
    while True:
        kept.append(b"x" * (32 << 20))
        time.sleep(0.01)

if "view" in sys.orig_argv:
    title = sys.orig_argv[sys.orig_argv.index("--title") + 1]
    if title == "never tells":
        print("looking for something that is not there", file=sys.stderr, flush=True)
        time.sleep(3600)
    if title == "never answers":
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        print(json.dumps({"address": f"http://127.0.0.1:{port}/b/"}), flush=True)
        time.sleep(3600)
    if title == "grows":
        symptom = pathlib.Path(__file__).with_name("grow")
        threading.Thread(target=grow, args=(symptom,), daemon=True).start()
"""
QUICK = Settings(
    poll=0.2, poll_soon=0.1, grace=1, start_timeout=60, unhealthy=1.0, unhealthy_timeout=600
)


@pytest.fixture
def sickness(tmp_path, monkeypatch):
    """Let boards fall sick; give the directory in which their symptoms appear."""
    place = tmp_path / "sickness"
    place.mkdir()
    (place / "sitecustomize.py").write_text(SICKNESS)
    paths = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return place


@pytest.fixture
def hub_with(tmp_path, root, monkeypatch, sickness):
    """Serve a hub that is less patient than others."""

    @contextmanager
    def serve(**patience):
        monkeypatch.setattr(hubs, "Hub", partial(Hub, settings=replace(QUICK, **patience)))
        monkeypatch.setattr(proxy, "_PROBE_SECONDS", 0.5)
        with hubs.served(tmp_path, [root]) as served, served.client("max") as client:
            try:
                yield client
            finally:
                for board in client.get("/api/v1/boards").json()["boards"]:
                    client.post(f"/api/v1/boards/{board['id']}/stop", json={"now": True})
                until(lambda: not client.get("/api/v1/boards").json()["boards"])

    return serve


def described(client, board):
    return client.get(f"/api/v1/boards/{board}").json()


def pid_of(directory, board):
    return json.loads((directory / "boards" / board / "process.json").read_text())["pid"]


def running_board(client, directory, **wish):
    """Make an isolated board that shows its run; give its id and that of its process."""
    board = create(client, "mnist", on="process", **wish)["id"]
    until(lambda: described(client, board)["runs"] == 1)
    return board, pid_of(directory, board)


def lives(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def assert_told(client, board, state, *words):
    """Check that every response says how a board ended, why, and what to do."""
    until(lambda: described(client, board)["state"] == state)
    everywhere = client.get("/api/v1/boards", params={"all": True}).json()["boards"]
    history = client.get(f"/api/v1/boards/{board}/history").json()["events"]
    listed = next(one for one in everywhere if one["id"] == board)
    for told in (described(client, board), listed, history[-1]):
        assert told["state"] == state
        for word in words:
            assert word in told["reason"]
    page = client.get(f"/b/{board}/", headers={"accept": "text/html"})
    assert page.status_code == 503
    for word in (f"This board has {state}.", f"aboard restart {board}", *words):
        assert word in page.text


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "was killed"), (signal.SIGSTOP, "did not answer for 3s")],
    ids=["killed", "hangs"],
)
def test_a_killed_or_hanging_board_is_reported_everywhere_and_restarted(
    hub_with, tmp_path, number, reason
):
    with hub_with(unhealthy_timeout=3) as client:
        board, pid = running_board(client, tmp_path / "hub")
        os.kill(pid, number)
        assert_told(client, board, "failed", reason)
        assert not lives(pid)
        client.post(f"/api/v1/boards/{board}/restart")
        until(lambda: described(client, board)["runs"] == 1)
        assert points(client, board)["mnist/run1"] == [(0, 3.0)]


def test_a_board_that_exceeds_its_memory_is_stopped(hub_with, tmp_path, sickness):
    with hub_with() as client:
        wish = {"title": "grows", "memory": "512MiB"}
        board, pid = running_board(client, tmp_path / "hub", **wish)
        (sickness / "grow").touch()
        assert_told(client, board, "failed", "of 512.0 MiB memory")
        assert not lives(pid)


def test_a_board_whose_memory_is_too_small_to_start_is_stopped(hub_with):
    with hub_with() as client:
        board = create(client, "mnist", on="process", memory="16MiB")["id"]
        assert_told(client, board, "failed", "of 16.0 MiB memory")


def test_a_board_that_never_reports_its_address_fails(hub_with, tmp_path):
    with hub_with(start_timeout=2) as client:
        board = create(client, "mnist", on="process", title="never tells")["id"]
        until(lambda: described(client, board)["state"] == "starting")
        page = client.get(f"/b/{board}/", headers={"accept": "text/html"})
        assert (page.status_code, "This board is starting." in page.text) == (503, True)
        until((tmp_path / "hub" / "boards" / board / "process.json").exists)
        pid = pid_of(tmp_path / "hub", board)
        assert_told(client, board, "failed", "did not answer within 2s of its start")
        assert not lives(pid)
        log = client.get(f"/api/v1/boards/{board}/logs").text
        assert "looking for something that is not there" in log


def test_a_board_that_never_responds_fails(hub_with, tmp_path):
    with hub_with(unhealthy_timeout=3) as client:
        board = create(client, "mnist", on="process", title="never answers")["id"]
        until(lambda: described(client, board)["condition"] == "not answering")
        pid = pid_of(tmp_path / "hub", board)
        assert_told(client, board, "failed", "did not answer for 3s")
        assert not lives(pid)


def test_a_hanging_board_is_reported_and_recovers_when_it_responds_again(hub_with, tmp_path):
    with hub_with() as client:
        board, pid = running_board(client, tmp_path / "hub")
        os.kill(pid, signal.SIGSTOP)
        until(lambda: described(client, board)["condition"] == "not answering")
        (listed,) = client.get("/api/v1/boards").json()["boards"]
        assert (listed["state"], listed["condition"]) == ("running", "not answering")
        page = client.get(f"/b/{board}/", headers={"accept": "text/html"})
        assert (page.status_code, page.headers["retry-after"]) == (503, "5")
        assert "This board does not answer." in page.text
        assert f"aboard restart {board}" in page.text
        os.kill(pid, signal.SIGCONT)
        until(lambda: described(client, board)["condition"] == "")
        assert points(client, board)["mnist/run1"] == [(0, 3.0)]
        states = client.get(f"/api/v1/boards/{board}/history").json()["events"]
        assert [one["state"] for one in states] == ["pending", "starting", "running"]


def test_a_real_hub_notices_a_board_that_hangs(tmp_path, root):
    with personal_hub(tmp_path, root) as hub, hub.client() as client:
        board, pid = running_board(client, hub.state)
        os.kill(pid, signal.SIGSTOP)
        until(lambda: described(client, board)["condition"] == "not answering")
        os.kill(pid, signal.SIGCONT)
        until(lambda: described(client, board)["condition"] == "")
        assert points(client, board)["mnist/run1"] == [(0, 3.0)]
        client.post(f"/api/v1/boards/{board}/stop", json={"now": True})
        until(lambda: described(client, board)["state"] == "stopped")
