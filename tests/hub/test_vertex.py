"""Boards of a hub on Vertex: their links lead to the managed TensorBoard, and new data follows."""

import os
import signal
from pathlib import Path

import pytest

from aboard.executors.vertex.engine import VertexSettings
from tests.engines.fake_vertex import LOCATION, PROJECT, FakeVertex
from tests.hub.hubs import create, log_run, served
from tests.waiting import until

pytestmark = pytest.mark.engine("vertex")


def expected(**runs: int) -> dict[str, list[tuple[int, float]]]:
    return {
        f"cifar10/{run}": [(step, float(step)) for step in range(count)]
        for run, count in runs.items()
    }


def arrived(vertex: FakeVertex) -> dict[str, list[tuple[int, float]]]:
    """Return all points by the names that runs have on Vertex now."""
    return {run: sorted(points) for run, points in vertex.points().items()}


def test_a_board_is_started_followed_killed_and_stopped(vertex: FakeVertex, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for run in ("a", "b"):
        log_run(root, f"cifar10/{run}", map(float, range(5)), state="running")
    settings = VertexSettings(
        project=PROJECT, location=LOCATION, endpoint=vertex.url, tensorboard="team"
    )
    profiles = {"vertex": {"": settings}}
    with (
        served(tmp_path, [root], executors=profiles) as hub,
        hub.client("max", follow_redirects=False) as client,
    ):
        board = create(client, "cifar10", on="vertex")
        ref = f"/api/v1/boards/{board['id']}"
        until(lambda: client.get(ref).json()["state"] == "running")
        opened = client.get(f"/b/{board['id']}/")
        assert opened.status_code == 307
        assert opened.headers["location"] == (
            "https://us-central1.tensorboard.googleusercontent.com/experiment/projects+demo+locations+"
            f"us-central1+tensorboards+1001+experiments+aboard-{board['id']}"
        )
        assert client.get(ref).json()["unit"] == f"experiment aboard-{board['id']}"
        until(lambda: arrived(vertex) == expected(a=5, b=5))

        log_run(root, "cifar10/c", map(float, range(3)), state="running")
        until(lambda: arrived(vertex) == expected(a=5, b=5, c=3))

        record = hub.hub.registry.get(board["id"])
        os.kill(record.handle["pid"], signal.SIGKILL)
        until(lambda: client.get(ref).json()["state"] == "failed")
        log_run(root, "cifar10/d", map(float, range(4)), state="running")
        assert client.post(f"{ref}/restart").status_code == 200
        until(lambda: client.get(ref).json()["state"] == "running")
        until(lambda: arrived(vertex) == expected(a=5, b=5, c=3, d=4))

        vertex.is_revoked = True
        vertex.expire_tokens()
        log_run(root, "cifar10/e", [0.0], state="running")
        problems = until(lambda: client.get(ref).json()["problems"])
        assert "the Google credentials have expired" in problems[0]
        vertex.is_revoked = False
        until(lambda: "cifar10/e" in arrived(vertex))

        assert client.post(f"{ref}/stop").status_code == 200
        until(lambda: client.get(ref).json()["state"] == "stopped")
        assert len(vertex.tensorboards) == 1
        assert arrived(vertex) == expected(a=5, b=5, c=3, d=4, e=1)
