"""Trainings on a Slurm cluster: submitted from a login node, shown while they run.

What LUMI's users know as `sbatch` and `SummaryWriter("runs")`, and XT's as
`xt view tensorboard run310, job2300`, typed here as `aboard`.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.rigs import Rig, toml_table
from tests.engines.slurm import CPUS, Cluster
from tests.scenarios.person import Person
from tests.waiting import until

pytestmark = pytest.mark.engine("slurm")

LUMI = """
import torch
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter

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
dist.destroy_process_group()
"""
RANKS = (
    "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR"
    " MASTER_PORT=$PORT exec python lumi.py"
)
TRAIN = """
import os, sys, time
from pathlib import Path
import aboard

lr = float(sys.argv[1])
with aboard.init() as run:
    run.log_metrics({"loss": lr}, step=0)
    run.flush()
    Path(f"began-{lr}").write_text(os.environ.get("SLURM_RESTART_COUNT", "0"))
    while len(sys.argv) > 2 and not Path(sys.argv[2]).exists():
        time.sleep(0.1)
    run.log_metrics({"loss": lr / 2}, step=1)
"""


@pytest.fixture(scope="module")
def user(slurm_rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A user at a login node, with a profile for both nodes."""
    home = tmp_path_factory.mktemp("lumi")
    person = Person(home, {"OMP_NUM_THREADS": "1", "PORT": str(20000 + os.getpid() % 10000)})
    settings = home / ".config" / "aboard" / "aboard.toml"
    settings.parent.mkdir(parents=True)
    profiles = {name: f'partition = "{name}"' for name in ("both", "warned", "nope")}
    tables = "".join(
        f"[executors.slurm.profiles.{name}]\n{line}\n" for name, line in profiles.items()
    )
    settings.write_text(f"{toml_table(slurm_rig)}{tables}")
    person.writes("train.py", TRAIN)
    person.writes("lumi.py", LUMI)
    yield person
    for job in person.does("aboard jobs --json").json["jobs"]:
        person.types(f"aboard jobs stop {job['id']} --now")
    person.leaves()


def record(user: Person, run: str) -> Any:
    return json.loads((user.place / "runs" / run / "run.json").read_bytes())


def members(user: Person, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = user.does(f"aboard jobs show {job} --json").json["members"]
    return found


def states(user: Person, job: str) -> list[str]:
    return [member["state"] for member in members(user, job)]


def test_one_rank_of_two_nodes_logs(user: Person) -> None:
    line = "aboard submit --on slurm:both --nodes 2 --experiment vit --name vit --wait"
    done = user.does(f"{line} -- bash -c '{RANKS}'")
    assert states(user, "vit") == ["completed"], done
    run = record(user, "vit/vit")
    assert run["job"] == "vit"
    board = user.starts("job:vit")
    user.gets(board.url, {"vit/vit": [(0, 1.0), (1, 3.0), (2, 5.0)]}, tag="training loss")


def test_a_board_of_runs_that_go_on_and_runs_that_have_ended(user: Person) -> None:
    user.does("aboard run --experiment digits --name lastweek -- python train.py 8")
    submit = "aboard submit --on slurm --experiment digits"
    user.does(f"{submit} --name old --sweep lr=1,2 --wait -- python train.py {{lr}}")
    live = user.does(f"{submit} --name live --json -- python train.py 4 go").json
    assert live["id"] == "live"
    board = user.starts("job:old job:live digits/lastweek")
    ended = {
        "digits/lastweek": [(0, 8.0), (1, 4.0)],
        "digits/old-1": [(0, 1.0), (1, 0.5)],
        "digits/old-2": [(0, 2.0), (1, 1.0)],
    }
    user.gets(board.url, {**ended, "digits/live": [(0, 4.0)]})
    assert states(user, "live") == ["running"]
    user.writes("go", "")
    user.gets(board.url, {**ended, "digits/live": [(0, 4.0), (1, 2.0)]})
    user.does("aboard jobs wait live")
    assert states(user, "live") == ["completed"]


def test_a_preempted_member_continues_its_run(user: Person, slurm_cluster: Cluster) -> None:
    line = f"aboard submit --on slurm:warned --cpus {CPUS} --name again"
    user.does(f"{line} -- python train.py 0.5 finish")
    began = user.place / "began-0.5"
    until(began.exists)
    urgent = ["sbatch", "--partition=urgent", f"--cpus-per-task={CPUS}", "--output=/dev/null"]
    assert slurm_cluster.succeeds(*urgent, "--wrap=sleep 2")
    (member,) = members(user, "again")
    until(lambda: states(user, "again") == ["pending"])
    assert members(user, "again")[0]["reason"].startswith("requeued by Slurm: ")
    until(lambda: began.read_text() == "1")
    user.writes("finish", "")
    user.does("aboard jobs wait again")
    run = record(user, "default/again")
    assert run["state"] == "completed"
    assert [attempt["job"] for attempt in run["attempts"]] == [member["unit"]] * 2


def test_stop_reaches_those_that_run_and_those_that_wait(user: Person) -> None:
    line = "aboard submit --on slurm --name many --parallel 1 --sweep lr=7,8,9 --time 1h"
    user.does(f"{line} -- python train.py {{lr}} never")
    until((user.place / "began-7.0").exists)
    until(lambda: members(user, "many")[1]["reason"] == "JobArrayTaskLimit")
    user.does("aboard jobs stop many")
    assert user.types("aboard jobs wait many").code != 0
    assert user.does("aboard jobs show many --json").json["state"] == "stopped"
    assert record(user, "default/many-1")["state"] == "killed"
    assert not (user.place / "runs" / "default" / "many-2").exists()
    user.does("aboard jobs retry many")
    until(lambda: states(user, "many")[0] == "running")


def test_a_sweep_of_200_members_goes_on_without_hub_and_slurmctld(
    user: Person, slurm_cluster: Cluster
) -> None:
    line = "aboard submit --on slurm:both --name swept --sweep seed=1..200 --board"
    user.does(f"{line} -- sh -c 'echo {{seed}} >>swept'")
    swept = user.place / "swept"
    until(lambda: swept.exists() and len(swept.read_text().split()) > 40)
    os.kill(json.loads((user.state / "hub.json").read_text())["pid"], signal.SIGKILL)
    slurm_cluster.stop_controller()
    assert user.does("aboard jobs show swept --json").json["state"] == "unknown"
    slurm_cluster.start_controller()
    done = user.does("aboard jobs wait swept")
    assert done.out == "swept: completed (200 completed)\n"
    assert Counter(map(int, swept.read_text().split())) == Counter(range(1, 201))


def test_what_slurm_refuses_leaves_nothing(user: Person) -> None:
    done = user.types("aboard submit --on slurm:nope --name refused -- true")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "invalid partition specified: nope" in done.err
    assert not (user.place / "runs" / ".jobs" / "refused").exists()
    shown = user.does("aboard submit --on slurm:both --dry-run --sweep lr=1,2 -- true {lr}").out
    assert "sbatch --parsable" in shown
    assert "--array=1-2" in shown
