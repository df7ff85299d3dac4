"""Which process of many this is, as each launcher tells it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aboard
from aboard.track.environment import LAUNCHERS, Rank, check_rank, find_rank
from tests.engines import environments
from tests.engines.forkserver import fork
from tests.track.training import ended, environment, points

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def tensorflow(kind: str, index: int, cluster: dict[str, list[str]] = CLUSTER) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def vertex(kind: str, index: int) -> dict[str, str]:
    cluster = {"workerpool0": ["a:1"], "workerpool1": ["b:1", "c:1"]}
    spec = {"cluster": cluster, "environment": "cloud", "task": {"type": kind, "index": index}}
    return {"CLUSTER_SPEC": json.dumps(spec)}


@pytest.mark.parametrize(
    ("variables", "launcher", "number", "size"),
    [
        ({}, "", 0, 1),
        ({"RANK": "3", "WORLD_SIZE": "8"}, "torchrun", 3, 8),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, "Horovod", 1, 2),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI", 2, 4),
        ({"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_SIZE": "4"}, "MVAPICH", 2, 4),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, "MPICH", 2, 4),
        ({"JSM_NAMESPACE_RANK": "5", "JSM_NAMESPACE_SIZE": "6"}, "LSF", 5, 6),
        ({"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2"}, "JAX", 1, 2),
        ({"SUBMITIT_LOCAL_GLOBALID": "1", "SUBMITIT_LOCAL_NTASKS": "2"}, "submitit", 1, 2),
        ({"SLURM_PROCID": "7", "SLURM_NTASKS": "16"}, "Slurm", 7, 16),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "Lightning", 1, 2),
        (tensorflow("chief", 0), "TF_CONFIG", 0, 4),
        (tensorflow("worker", 0), "TF_CONFIG", 1, 4),
        (tensorflow("worker", 1), "TF_CONFIG", 2, 4),
        (tensorflow("ps", 0), "TF_CONFIG", 3, 4),
        (tensorflow("worker", 0, {"worker": ["a:1", "b:1"]}), "TF_CONFIG", 0, 2),
        (tensorflow("evaluator", 0), "TF_CONFIG", 3, 4),
        (vertex("workerpool0", 0), "CLUSTER_SPEC", 0, 3),
        (vertex("workerpool1", 1), "CLUSTER_SPEC", 2, 3),
        (vertex("workerpool1", 0) | tensorflow("worker", 0), "TF_CONFIG", 1, 4),
    ],
)
def test_every_launcher_is_known(
    variables: dict[str, str], launcher: str, number: int, size: int
) -> None:
    assert find_rank(variables)[:3] == (number, size, launcher)


def test_whoever_is_nearest_to_the_script_counts() -> None:
    variables: dict[str, str] = {}
    for place, launcher in enumerate(reversed(LAUNCHERS)):
        variables |= {launcher.rank: str(place), launcher.size: "99"}
        assert find_rank(variables)[:3] == (place, 99, launcher.name)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "1"},
        {"RANK": "one", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "²", "WORLD_SIZE": "9"},
        {"LOCAL_RANK": "1"},
        {"TF_CONFIG": "{"},
        {"TF_CONFIG": "[]"},
        {"TF_CONFIG": '{"cluster": {}, "task": {"type": "worker"}}'},
    ],
)
def test_what_makes_no_sense_is_not_believed(variables: dict[str, str]) -> None:
    assert find_rank(variables) == Rank(0, 1)


def test_the_nodes_of_lightning_beyond_the_first_are_not_rank_0() -> None:
    shared = {"WORLD_SIZE": "8", "MASTER_PORT": "1"}
    for node in range(1, 4):
        for local in range(2):
            told = shared | {"NODE_RANK": str(node), "LOCAL_RANK": str(local)}
            assert find_rank(told).number > 0


@pytest.mark.parametrize("size", [{"LOCAL_WORLD_SIZE": "2"}, {"GROUP_WORLD_SIZE": "3"}, {}])
def test_the_ranks_of_lightning_are_right_or_said_to_be_guessed(size: dict[str, str]) -> None:
    shared = {"WORLD_SIZE": "6", "MASTER_PORT": "1", **size}
    places = [(node, local) for node in range(3) for local in range(2)]
    for number, (node, local) in enumerate(places):
        found = find_rank(shared | {"NODE_RANK": str(node), "LOCAL_RANK": str(local)})
        assert found.guessed is (not size and node > 0)
        assert found.guessed or found.number == number


def test_a_launch_is_told_from_another() -> None:
    first = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    other_rank = first | {"RANK": "1"}
    restarted = first | {"TORCHELASTIC_RESTART_COUNT": "1"}
    elsewhere = first | {"MASTER_PORT": "29501"}
    launches = [find_rank(one).launch for one in (first, other_rank, restarted, elsewhere)]
    assert launches[0] == launches[1] != ""
    assert len(set(launches)) == 3
    assert find_rank({"RANK": "0", "WORLD_SIZE": "2"}).launch == ""
    assert find_rank(tensorflow("chief", 0)).launch == find_rank(tensorflow("ps", 0)).launch != ""


@pytest.mark.parametrize(
    ("given", "number"),
    [(0, 0), (3, 3), ("0", 0), ("12", 12), (-1, 0), ("-1", 0), (np.int64(2), 2)],
)
def test_a_rank_that_is_given(given: Any, number: int) -> None:
    assert check_rank(given) == number


@pytest.mark.parametrize("given", ["first", "", 1.5, [0]])
def test_a_rank_that_is_none(given: Any) -> None:
    with pytest.raises(ValueError, match="not a whole number, 0 for the process that logs"):
        check_rank(given)


SPAWN = """
import sys
import aboard
import torch.distributed as dist
import torch.multiprocessing

def work(rank, meet):
    dist.init_process_group('gloo', init_method=meet, rank=rank, world_size=2)
    run = aboard.init('x', 'b', '.')
    run.log_metrics({'loss': rank})
    dist.barrier()
    dist.destroy_process_group()
    run.finish()
    assert (run.active, run.rank) == (rank == 0, rank)

torch.multiprocessing.start_processes(work, (sys.argv[1],), nprocs=2, start_method='fork')
"""


@pytest.mark.parametrize("slurm", [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}])
def test_processes_that_a_script_spawns_know_their_ranks(
    tmp_path: Path, slurm: dict[str, str]
) -> None:
    meet = f"file://{tmp_path}/meet"
    variables = environment(**slurm)
    done = ended(fork(SPAWN, meet, cwd=tmp_path, env=variables, preload=("torch.distributed",)))
    assert done.code == 0, done.err
    assert points(tmp_path, "x/b", "loss") == [(0, 0.0)]
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["b"]


def group(number: int, size: int) -> SimpleNamespace:
    told = {"get_rank": lambda: number, "get_world_size": lambda: size}
    return SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, **told)


def test_a_group_of_one_does_not_overrule_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setitem(sys.modules, "torch.distributed", group(0, 1))
    assert find_rank()[:3] == (3, 8, "torchrun")
    monkeypatch.setitem(sys.modules, "torch.distributed", group(1, 2))
    assert find_rank()[:3] == (1, 2, "torch.distributed")


def test_a_group_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    state = SimpleNamespace(process_id=0, num_processes=None, client=None, coordinator_address=None)
    module = SimpleNamespace(global_state=state)
    monkeypatch.setitem(sys.modules, "jax._src.distributed", module)
    alone = find_rank()
    vars(state).update(
        process_id=2, num_processes=4, client=object(), coordinator_address="host:1234"
    )
    assert (alone.number, find_rank()) == (0, Rank(2, 4, "JAX", "JAX-host:1234"))
    del state.num_processes
    assert find_rank().number == 2


_JOIN = """
import sys, jax
from aboard.track.environment import find_rank
address, number = sys.argv[1], int(sys.argv[2])
jax.distributed.initialize(address, 2, number)
print(*find_rank()[:4])
jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_a_real_group_of_jax() -> None:
    python = environments.python("jax")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    source = str(Path(aboard.__file__).parents[1])
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": source, "JAX_PLATFORMS": "cpu"}
    ranks = [
        subprocess.Popen(
            [python, "-c", _JOIN, address, str(number)],
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert said == [f"{number} 2 JAX JAX-{address}\n" for number in range(2)]
