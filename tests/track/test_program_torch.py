"""PyTorch's own SummaryWriter below `aboard run`, with the directory that it chooses by itself."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401 - a test run without PyTorch fails here

from tests.engines.command import run_command
from tests.hub.hubs import create, points, served
from tests.track.training import environment
from tests.waiting import until

pytestmark = pytest.mark.engine("frameworks")

TRAIN = """
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter() as writer:
    for step in range(3):
        writer.add_scalar("loss", step * 0.5, step)
"""
CURVE = [(0, 0.0), (1, 0.5), (2, 1.0)]


def record(cwd: Path, *command: str, options: tuple[str, ...] = ()) -> str:
    """Run a program as a run of the default root, `./runs`; return what was printed."""
    (cwd / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [sys.executable, "-m", "aboard", "run", "-q", *options, "--", *command, "train.py"],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def listed(cwd: Path, *command: str) -> list[str]:
    """Return the runs that a command lists."""
    found = run_command([*command, "--json"], env=environment(), cwd=cwd)
    assert found.code == 0, found.err
    (shown,) = found.json.get("sources", [found.json])
    return [one["run"] for one in shown["runs"]]


def test_a_bare_summary_writer_is_one_run(tmp_path: Path) -> None:
    record(tmp_path, sys.executable)
    runs = tmp_path / "runs"
    (original,) = runs.glob("*_*/*tfevents*")
    (copy,) = runs.glob("default/run1/*tfevents*")
    assert copy.read_bytes() == original.read_bytes()
    assert listed(tmp_path, "ls", "runs") == ["default/run1"]
    assert listed(tmp_path, "runs") == ["default/run1"]
    with served(tmp_path, [runs]) as hub, hub.client("max") as client:
        board = create(client, runs)["id"]
        assert until(lambda: points(client, board)) == {"default/run1": CURVE}
        # The program's own directory is shown where it is selected by itself.
        board = create(client, original.parent)["id"]
        assert list(until(lambda: points(client, board)).values()) == [CURVE]


@pytest.mark.slow
def test_each_rank_below_torchrun_has_a_directory(tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    printed = record(tmp_path, *torchrun, options=("--ranks", "all"))
    assert "mixes them up" not in printed
    assert listed(tmp_path, "ls", "runs") == ["default/run1/rank-0", "default/run1/rank-1"]
    assert listed(tmp_path, "runs") == ["default/run1"]
