"""XManager's example on a faked Vertex: a sweep as CustomJobs, its board an auxiliary unit."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import aboard
from aboard.sdk.personal import stop_personal
from tests.engines.fake_vertex import LOCATION, PROJECT, FakeVertex
from tests.executors.vertex.test_engine import run_on_vertex
from tests.waiting import until

TRAINING = """
import pathlib, sys, time
import aboard
enough, lr = pathlib.Path(sys.argv[1]), float(sys.argv[2])
with aboard.init() as run:
    run.log_metrics({"loss": lr}, step=0)
    while not enough.exists():
        time.sleep(0.1)
    run.log_metrics({"loss": 0.0}, step=1)
"""
pytestmark = pytest.mark.engine("vertex")


@pytest.fixture
def enough(
    vertex: FakeVertex, gcs_bucket: str, environment: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Path]:
    """Let a machine start each CustomJob; give the file that ends the trainings."""
    for name in ("ABOARD_HUB", "ABOARD_HUB_TOKEN", "ABOARD_ROOT"):
        environment.delenv(name, raising=False)
    (tmp_path / "aboard.toml").write_text(
        f'[executors.vertex]\nproject = "{PROJECT}"\nlocation = "{LOCATION}"\nimage = "train:1"\n'
        f'endpoint = "{vertex.url}"\noutput = "{gcs_bucket}/example"\ntensorboard = "team"\n'
    )
    environment.setenv("ABOARD_CONFIG", str(tmp_path / "aboard.toml"))
    environment.setenv("ABOARD_STATE", str(tmp_path / "state"))
    environment.chdir(tmp_path)
    over = threading.Event()
    machines: dict[str, threading.Thread] = {}

    def start_jobs() -> None:
        while not over.wait(0.1):
            for name in list(vertex.jobs):
                if name not in machines:
                    machine = threading.Thread(target=run_on_vertex, args=(vertex, name, tmp_path))
                    machines[name] = machine
                    machine.start()

    scheduler = threading.Thread(target=start_jobs)
    scheduler.start()
    try:
        yield tmp_path / "enough"
    finally:
        (tmp_path / "enough").touch()
        over.set()
        scheduler.join()
        for machine in machines.values():
            machine.join()
        stop_personal()


def test_an_experiment_completes_although_its_board_is_killed(
    vertex: FakeVertex, gcs_bucket: str, enough: Path, tmp_path: Path
) -> None:
    root = f"{gcs_bucket}/example-runs"
    with aboard.experiment("cifar10", on="vertex", root=root, name="example") as experiment:
        for lr in (0.5, 0.25):
            words = [sys.executable, "-c", TRAINING, str(enough), "{lr}"]
            experiment.add(words, hparams={"lr": lr})
        board = experiment.add_board(on="vertex", timeout="1h")
        assert board is not None
        until(lambda: sum(map(len, vertex.points().values())) == 2)
        assert sorted(value for ((_, value),) in vertex.points().values()) == [0.25, 0.5]
        (upload,) = (tmp_path / "state").rglob("process.json")
        os.kill(json.loads(upload.read_text())["pid"], signal.SIGKILL)
        until(lambda: board.refresh().state in ("failed", "lost"))
        enough.touch()
    assert experiment.state == "completed"
    board.restart()
    until(lambda: sum(map(len, vertex.points().values())) == 4)
    found = sorted(sorted(points) for points in vertex.points().values())
    assert found == [[(0, 0.25), (1, 0.0)], [(0, 0.5), (1, 0.0)]]
    board.delete()
    assert len(vertex.tensorboards) == 1
