"""Where a run goes, and what it learns from launchers and its process.

The real launchers start runs in tests/integrations/test_launchers.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aboard
from aboard.runs.catalog import BadName
from aboard.storage import BadUri
from aboard.track import environment as env
from aboard.track.environment import (
    LAUNCHERS,
    Launch,
    Rank,
    check_rank,
    find_launch,
    find_place,
    find_rank,
    git_commit,
    host_name,
    user_name,
)
from tests.engines import environments
from tests.engines.forkserver import fork
from tests.track.training import ended, environment, points


def test_every_name_for_the_log_directory_is_set() -> None:
    variables = env.variables_for("s3://b/runs", "cifar10", "run3", "/spool/x")
    assert variables.pop("ABOARD_ROOT") == "s3://b/runs"
    assert variables.pop("ABOARD_RUN") == "cifar10/run3"
    assert variables == dict.fromkeys(
        [
            "ABOARD_LOGDIR",
            "PAI_OUTPUT_TENSORBOARD",
            "AIP_TENSORBOARD_LOG_DIR",
            "XT_OUTPUT_MNT",
            "TENSORBOARD_LOGGING_DIR",
        ],
        "/spool/x",
    )
    for name in variables:
        if name != "TENSORBOARD_LOGGING_DIR":
            assert env.logdir_from_environment({name: "/there"}) == "/there"


def test_a_silent_rank_is_told_only_where_to_log() -> None:
    variables = env.variables_for("", "", "", "/tmp/x")
    assert variables["ABOARD_LOGDIR"] == "/tmp/x"
    assert not {"ABOARD_ROOT", "ABOARD_RUN"} & set(variables)


def test_our_own_name_comes_first() -> None:
    both = {"PAI_OUTPUT_TENSORBOARD": "/theirs", "ABOARD_LOGDIR": "/ours"}
    assert env.logdir_from_environment(both) == "/ours"
    assert env.logdir_from_environment({"ABOARD_LOGDIR": "", "XT_OUTPUT_MNT": ""}) is None


@pytest.mark.parametrize(
    ("value", "named"),
    [("cifar10/run3", ("cifar10", "run3")), ("run3", ("", "run3")), ("", None), ("a/", None)],
)
def test_the_named_run(value: str, named: tuple[str, str] | None) -> None:
    assert env.named_run({"ABOARD_RUN": value}) == named


def test_the_job_of_each_scheduler() -> None:
    assert env.job_id({}) == ""
    assert env.job_id({"SLURM_JOB_ID": "17"}) == "17"
    array = {"SLURM_JOB_ID": "19", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "2"}
    assert env.job_id(array) == "17_2"
    for name in ("LSB_JOBID", "PBS_JOBID", "CLOUD_ML_JOB_ID", "SUBMITIT_LOCAL_JOB_ID"):
        assert env.job_id({name: "x"}) == "x"


def test_a_restart() -> None:
    assert not env.was_restarted({})
    assert not env.was_restarted({"TORCHELASTIC_RESTART_COUNT": "0"})
    assert env.was_restarted({"TORCHELASTIC_RESTART_COUNT": "1"})
    assert env.was_restarted({"SLURM_RESTART_COUNT": "2"})


def test_submitit_restarts_its_own_process_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    submitit = {"SUBMITIT_LOCAL_JOB_ID": str(os.getppid())}
    assert env.restart_key(["train.py"], submitit) == ""
    monkeypatch.setitem(sys.modules, "submitit", ModuleType("submitit"))
    key = env.restart_key(["train.py"], submitit)
    assert key
    assert env.may_continue(key)
    assert env.restart_key(["other.py"], submitit) != key
    assert not env.may_continue("")


def test_what_is_the_same_after_a_restart() -> None:
    slurm = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}
    key = env.restart_key(["train.py"], slurm)
    assert key
    assert env.restart_key(["train.py"], slurm | {"SLURM_RESTART_COUNT": "1"}) == key
    assert env.restart_key(["other.py"], slurm) != key
    assert env.restart_key(["train.py"], slurm | {"SLURM_JOB_ID": "18"}) != key
    assert env.restart_key(["train.py"], {"TORCHELASTIC_RUN_ID": "x"})
    assert env.restart_key(["train.py"], {}) == ""


LOGDIRS = ["ABOARD_LOGDIR", "PAI_OUTPUT_TENSORBOARD", "AIP_TENSORBOARD_LOG_DIR", "XT_OUTPUT_MNT"]


def test_nobody_says_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = find_place(None, None, None, {})
    assert (place.root, place.experiment, place.name) == (f"{tmp_path}/runs", "default", None)
    assert place.fallback
    assert place.uri_of("run1") == f"{tmp_path}/runs/default/run1"


def test_the_caller_comes_before_the_environment() -> None:
    variables = {"ABOARD_ROOT": "/theirs", "ABOARD_RUN": "cifar10/run3", "ABOARD_LOGDIR": "/logs"}
    place = find_place("/mine", "mnist", "a", variables)
    assert (place.root, place.experiment, place.name) == ("/mine", "mnist", "a")
    assert (place.directory, place.expected, place.fallback) == (None, False, False)


def test_the_environment_names_root_and_run() -> None:
    variables = {"ABOARD_ROOT": "s3://bucket/runs", "ABOARD_RUN": "cifar10/run3"}
    place = find_place(None, None, None, variables)
    assert place.uri_of(place.name or "") == "s3://bucket/runs/cifar10/run3"
    assert place.expected
    other = find_place(None, "mnist", None, variables)
    assert (other.experiment, other.name, other.expected) == ("mnist", None, False)


@pytest.mark.parametrize("variable", LOGDIRS)
def test_a_platform_fixes_the_directory(variable: str) -> None:
    place = find_place(None, None, None, {variable: "/mnt/job-17/tb/"})
    assert (place.directory, place.name, place.root) == ("/mnt/job-17/tb", "tb", "/mnt/job-17")
    assert place.expected
    assert not place.joined
    assert place.uri_of("whatever") == "/mnt/job-17/tb"


def test_a_root_of_ours_outranks_the_directory_of_another_platform() -> None:
    variables = {"ABOARD_ROOT": "/ours", "AIP_TENSORBOARD_LOG_DIR": "gs://theirs/logs"}
    assert find_place(None, None, None, variables).root == "/ours"
    assert find_place(None, None, None, variables).directory is None


def test_below_aboard_run_the_run_has_its_name_already() -> None:
    variables = {"ABOARD_ROOT": "s3://b", "ABOARD_RUN": "x/run1", "ABOARD_LOGDIR": "/spool/1"}
    place = find_place(None, "mnist", "mine", variables | {"ABOARD_ATTEMPT": "1"})
    assert (place.experiment, place.name, place.directory) == ("x", "run1", "/spool/1")
    assert place.joined
    assert find_place("s3://b/", None, None, variables | {"ABOARD_ATTEMPT": "1"}).joined
    assert place.final_uri_of("run1") == "s3://b/x/run1"
    elsewhere = find_place(None, None, None, variables | {"ABOARD_ATTEMPT": "s3://b/tb"})
    assert elsewhere.final_uri_of("run1") == "s3://b/tb"
    apart = find_place("/mine", None, None, variables | {"ABOARD_ATTEMPT": "1"})
    assert (apart.root, apart.experiment, apart.name) == ("/mine", "default", None)
    assert not apart.joined


@pytest.mark.parametrize(
    ("arguments", "variables", "problem"),
    [
        ((None, "a/b", None), {}, "the name of the experiment, 'a/b', contains the character '/'"),
        ((None, None, ".."), {}, "the name of the run, '..', begins with a dot"),
        ((None, None, None), {"ABOARD_RUN": "a/.."}, "the name of the run in ABOARD_RUN, '..'"),
        ((None, None, None), {"ABOARD_RUN": "../a/b"}, "the experiment in ABOARD_RUN, '../a'"),
    ],
)
def test_names_are_checked(
    arguments: tuple[None, str | None, str | None], variables: dict[str, str], problem: str
) -> None:
    with pytest.raises(BadName, match=problem.replace("..", r"\.\.")):
        find_place(*arguments, variables)


def test_a_root_that_is_no_uri() -> None:
    with pytest.raises(BadUri):
        find_place("ftp://host/x", None, None, {})


@pytest.fixture
def hydra():
    """Return a function that makes the configuration of a process of Hydra."""
    from hydra import compose, initialize
    from hydra.core.config_store import ConfigStore
    from hydra.core.hydra_config import HydraConfig

    ConfigStore.instance().store(name="launchers", node={"lr": 1.0, "name": "", "depth": 3})

    def configure(*overrides):
        with initialize(version_base=None):
            config = compose("launchers", overrides=list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(config)

    yield configure
    HydraConfig.instance().cfg = None


def test_no_launcher():
    assert find_launch() == Launch()


def test_overrides_are_hyperparameters(hydra):
    hydra("lr=0.1", "name='a b'", "~depth", "+new.depth=4", "++flag=true")
    expected = {"lr": 0.1, "name": "a b", "new.depth": 4, "flag": True}
    assert find_launch() == Launch(hparams=expected)


def test_a_member_of_a_sweep(hydra):
    sweep = ["hydra.mode=MULTIRUN", "hydra.job.num=4", "hydra.job.id=4"]
    hydra(*sweep, "hydra.sweep.dir=multirun/2030-01-31/12-00-00")
    assert find_launch() == Launch("2030-01-31_12-00-00", "2030-01-31_12-00-00_4")
    hydra(*sweep, "hydra.sweep.dir=lr")
    assert find_launch() == Launch("lr", "lr_4")


def test_values_of_hydra_and_a_job_of_ray(hydra, monkeypatch):
    hydra("lr=0.1")
    monkeypatch.setitem(sys.modules, "ray", ray := ModuleType("ray"))
    ray.is_initialized = lambda: True
    context = SimpleNamespace(
        get_job_id=lambda: "01000000", get_session_name=lambda: "session_2030-01-31_12-00-00_1_2"
    )
    ray.get_runtime_context = lambda: context
    job = "2030-01-31_12-00-00_1_2_01000000"
    assert find_launch() == Launch(job, "01000000", {"lr": 0.1})


def test_a_launcher_that_changed_does_not_stop_the_training(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", changed := ModuleType("ray"))
    changed.is_initialized = lambda: True
    assert find_launch() == Launch()
    said = "the job of this run is unknown. ray: AttributeError: module 'ray' has no attribute"
    assert said in capsys.readouterr().err


def git(directory: Path, *arguments: str) -> str:
    options = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(directory), *options, *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def test_the_commit_is_what_git_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, side = tmp_path / "repository", tmp_path / "side"
    (repository / "src").mkdir(parents=True)
    monkeypatch.chdir(repository / "src")
    assert git_commit() == ""
    git(repository, "init")
    assert git_commit() == ""
    git(repository, "commit", "--allow-empty", "-m", "one")
    head = git(repository, "rev-parse", "HEAD")
    assert git_commit() == head
    git(repository, "worktree", "add", "-b", "side", str(side))
    git(side, "commit", "--allow-empty", "-m", "two")
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(side)
        assert git_commit() == git(side, "rev-parse", "HEAD") != head
    git(repository, "pack-refs", "--all")
    assert git_commit() == head
    git(repository, "checkout", "--detach")
    assert git_commit() == head
    (repository / ".git" / "HEAD").write_bytes(b"\xff\xfe")
    assert git_commit() == ""


def test_who_and_where() -> None:
    assert user_name()
    assert host_name()


# Ranks, as each launcher provides them.


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
