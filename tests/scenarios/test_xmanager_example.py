"""XManager's example, done with Aboard: a sweep on local Docker, its board an auxiliary unit."""

import gc
import json
from pathlib import Path

import httpx
import pytest

import aboard
from aboard.sdk.personal import stop_personal
from tests.engines.rigs import toml_table
from tests.waiting import until

TRAINING = """
import pathlib, sys, time
import aboard
root, lr = pathlib.Path(sys.argv[1]), float(sys.argv[2])
with aboard.init() as run:
    step = 0
    while not (root / "enough").exists():
        run.log_metrics({"loss": lr / (1 + step)}, step=step)
        step += 1
        time.sleep(0.1)
"""
pytestmark = [
    pytest.mark.engine("docker"),
    # docker-py leaves the socket of a refused connection to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def root(docker_rig, docker_engine, tmp_path, monkeypatch):
    """Give a root, with settings that name the daemon; the user's hub ends with the test."""
    for name in ("ABOARD_HUB", "ABOARD_HUB_TOKEN", "ABOARD_ROOT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "aboard.toml").write_text(toml_table(docker_rig))
    monkeypatch.setenv("ABOARD_CONFIG", str(tmp_path / "aboard.toml"))
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path / "state"))
    root = tmp_path / "runs"
    root.mkdir()
    monkeypatch.chdir(tmp_path)
    try:
        yield root
    finally:
        (root / "enough").touch()
        stop_personal()
        docker_engine.clear()
        gc.collect()


def test_an_experiment_completes_although_its_board_is_killed(root, docker_engine):
    with aboard.experiment("cifar10", on="docker", root=root, parallel=2) as experiment:
        for lr in (0.1, 0.01):
            words = ["python3", "-c", TRAINING, str(root), "{lr}"]
            experiment.add(words, hparams={"lr": lr})
        board = experiment.add_board(on="docker", timeout="1h")
        with httpx.Client(follow_redirects=True, timeout=180) as client:
            page = until(lambda: opened(client, board))
            until(lambda: len(shown(client, page)) == 2)
        killed = docker_engine.docker("ps", "--filter", "label=aboard=board", "--quiet").split()
        docker_engine.docker("kill", *killed)
        until(lambda: board.refresh().state in ("failed", "lost", "stopped"))
        (root / "enough").touch()
    assert experiment.state == "completed"
    (job,) = experiment.jobs
    assert [(one.state, one.exit_code) for one in job.members] == [("completed", 0)] * 2
    records = [json.loads(path.read_text()) for path in Path(root, "cifar10").glob("*/run.json")]
    assert sorted(one["hparams"]["lr"] for one in records) == [0.01, 0.1]
    assert {one["job"] for one in records} == {job.id}


def opened(client, board):
    """Return the address of a board once it serves."""
    if board.refresh().state != "running":
        assert board.state in ("pending", "starting"), board.reason
        return ""
    page = client.get(board.link())
    assert page.status_code == 200, page.text
    return str(page.url)


def shown(client, page):
    """Return the runs on a board that have a loss."""
    tags = client.get(f"{page}data/plugin/scalars/tags").json()
    return [run for run, found in tags.items() if "loss" in found]
