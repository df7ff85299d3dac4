"""The batch scripts of deploy/slurm on a real Slurm of two nodes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.ports import free_port
from tests.waiting import until

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
# As on LUMI's page: the process of rank 0 makes the writer.
TRAIN = """
import argparse, os
import torch
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
lr = parser.parse_args().lr
dist.init_process_group("gloo")
rank = dist.get_rank()
writer = SummaryWriter("runs") if rank == 0 else None
for epoch in range(3):
    loss = torch.tensor(float(rank + epoch))
    dist.all_reduce(loss)
    if rank == 0:
        writer.add_scalar("training loss", loss.item(), epoch)
if rank == 0:
    writer.close()
print(f"rank {rank} of {dist.get_world_size()} on {os.environ['SLURMD_NODENAME']}")
dist.destroy_process_group()
"""
LOGS = """
import argparse, os
import aboard

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
with aboard.init() as run:
    run.log_metrics({"loss": parser.parse_args().lr}, step=0)
"""


def submit(cluster, work, script, *options, train=TRAIN):
    """Run a script of ours to its end with the resources of the test's cluster."""
    (work / "train.py").write_text(train)
    binaries = Path(sys.executable).parent
    variables = {
        **os.environ,
        **cluster.variables,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "ABOARD_ROOT": str(work / "root"),
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    small = ["--partition=both", "--cpus-per-task=1", "--gpus-per-node=0", "--mem=1500M"]
    line = ["sbatch", "--parsable", "--output=slurm-%a.out", *small, *options, SCRIPTS / script]
    done = subprocess.run(line, env=variables, cwd=work, capture_output=True, text=True, check=True)
    job = done.stdout.strip()
    listed = ("squeue", "--noheader", f"--jobs={job}")
    until(lambda: not cluster.ask(*listed).stdout, lambda: cluster.ask(*listed).stdout)
    return job, "".join(path.read_text() for path in sorted(work.glob("slurm-*.out")))


def runs(work):
    return [json.loads(path.read_bytes()) for path in sorted((work / "root").glob("*/*/run.json"))]


def test_one_line_of_each_script_is_ours():
    for script in SCRIPTS.glob("*.sh"):
        lines = [line.strip() for line in script.read_text().splitlines()]
        ours = [line for line in lines if "aboard" in line and not line.startswith("#")]
        assert len(ours) == 1, script
        assert ours[0].startswith("aboard run --experiment ")
        assert ours[0].endswith(" -- \\")


@pytest.mark.engine("slurm")
@pytest.mark.parametrize("script", ["torchrun.sh", "srun.sh"])
def test_one_rank_of_two_nodes_logs(slurm_cluster, tmp_path, script):
    options = ["--ntasks-per-node=1"]
    job, said = submit(slurm_cluster, tmp_path, script, *options)
    (run,) = runs(tmp_path)
    assert (run["state"], run["experiment"]) == ("completed", "vit"), said
    assert run["attempts"][0]["job"] == job
    place = tmp_path / "root" / "vit" / run["name"]
    (_,) = place.rglob("events.out.tfevents.*")
    assert "rank 0 of 2 on node1" in said
    assert "rank 1 of 2 on node2" in said
    assert "rank 0 of 2" in (place / "output.log").read_text()


@pytest.mark.engine("slurm")
def test_an_array_is_a_sweep(slurm_cluster, tmp_path):
    job, said = submit(slurm_cluster, tmp_path, "sweep.sh", train=LOGS)
    found = runs(tmp_path)
    assert {run["state"] for run in found} == {"completed"}, said
    assert sorted(run["hparams"]["lr"] for run in found) == [0.003, 0.01, 0.03, 0.1]
    assert {run["attempts"][0]["job"] for run in found} == {f"{job}_{n}" for n in (1, 2, 3, 4)}
