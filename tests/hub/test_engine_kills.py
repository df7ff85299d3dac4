"""A hub killed at random moments: its board on a real engine is neither lost nor duplicated."""

import random
import time

import httpx
import pytest

from aboard.boards.registry import Registry
from tests.engines.rigs import toml_table
from tests.hub import lives
from tests.hub.hubs import create, log_run, points
from tests.waiting import until

KILLS = 10
ENGINES = [
    pytest.param(name, marks=pytest.mark.engine(name)) for name in ("docker", "kubernetes", "slurm")
]


@pytest.mark.parametrize("rig", ENGINES, indirect=True)
def test_a_hub_killed_at_random_moments_keeps_one_board(rig, place, monkeypatch):
    root, state = place / "logs", place / "state"
    log_run(root, "cifar10/run1", [1.0, 0.5])
    config = place / "aboard.toml"
    config.write_text(toml_table(rig.reading(root)))
    monkeypatch.setenv("ABOARD_CONFIG", str(config))
    rng = random.Random(7)
    boards = set()
    for _ in range(KILLS):
        life = lives.fork(state, root)
        try:
            if life.is_up():
                with life.client() as client:
                    boards.add(create(client, root, on=rig.name)["id"])
                time.sleep(rng.uniform(0, 2.5))
        finally:
            life.kill()
    assert len(boards) == 1
    (board,) = boards
    life = lives.fork(state, root)
    try:
        assert life.is_up(), life.log()
        with life.client() as client:
            shown = f"/api/v1/boards/{board}"
            until(lambda: client.get(shown).json()["state"] == "running")
            until(lambda: _points(client, board) == [(0, 1.0), (1, 0.5)])
            with Registry(str(state / "hub.db")) as registry:
                executor = rig.make(hub=registry.hub_id)
            try:
                assert [one.board for one in executor.found()] == [board]
                assert client.post(f"{shown}/stop", json={}).status_code == 200
                until(lambda: client.get(shown).json()["state"] == "stopped")
                assert executor.found() == []
            finally:
                executor.close()
            assert client.delete(shown).status_code == 204
            assert not (state / "boards" / board).exists()
    finally:
        life.kill()


def _points(client: httpx.Client, board: str) -> list[tuple[int, float]] | None:
    try:
        (series,) = points(client, board).values()
    except (AssertionError, ValueError):
        return None
    return series
