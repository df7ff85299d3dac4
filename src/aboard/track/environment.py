"""The environment of a run: its directory, job, launcher, rank, user, host and commit.

Arguments take precedence over variables. Besides Aboard's variables, those of other platforms for
the log directory are read, and set for jobs that Aboard starts: a script written for such a
platform runs unchanged.
"""

from __future__ import annotations

import getpass
import json
import operator
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from aboard.runs.catalog import DEFAULT_EXPERIMENT, check_name, directory_of
from aboard.storage import (
    NoSuchPath,
    Storage,
    StorageError,
    canonical,
    is_remote,
    join,
    split,
)
from aboard.system import own_start_time, start_ticks
from aboard.track import notify, notify_once

ROOT = "ABOARD_ROOT"
RUN = "ABOARD_RUN"
LOGDIR = "ABOARD_LOGDIR"
JOB = "ABOARD_JOB"
ATTEMPT = "ABOARD_ATTEMPT"  # the URI of the run, if `aboard run` records the attempt
RANKS = "ABOARD_RANKS"  # `all` under `aboard run --ranks all`
FOREIGN_LOGDIRS = ("PAI_OUTPUT_TENSORBOARD", "AIP_TENSORBOARD_LOG_DIR", "XT_OUTPUT_MNT")
_LIBRARY_LOGDIRS = ("TENSORBOARD_LOGGING_DIR",)  # read by the Hugging Face Trainer
_RESTART_COUNTS = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
_SUBMITIT_JOB = "SUBMITIT_LOCAL_JOB_ID"
_JOB_IDS = ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "CLOUD_ML_JOB_ID", _SUBMITIT_JOB)
_UNCOUNTED = ("submitit-", "ray-")  # restart keys of launchers that do not count restarts
DEFAULT_ROOT = "runs"
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_QUOTES = ("'", '"')


def logdir_from_environment(variables: Mapping[str, str] = os.environ) -> str | None:
    return next(
        (variables[name] for name in (LOGDIR, *FOREIGN_LOGDIRS) if variables.get(name)), None
    )


def default_logdir(comment: str = "") -> str:
    """Return the log directory that PyTorch's writer uses by default."""
    return f"runs/{time.strftime('%b%d_%H-%M-%S')}_{host_name()}{comment}"


def variables_for(root: str, experiment: str, name: str, logdir: str) -> dict[str, str]:
    """Return the variables that point a job to its run; without a name, only to a directory."""
    logdirs = dict.fromkeys((LOGDIR, *FOREIGN_LOGDIRS, *_LIBRARY_LOGDIRS), logdir)
    return {ROOT: root, RUN: f"{experiment}/{name}", **logdirs} if name else logdirs


def named_run(variables: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    experiment, _, name = variables.get(RUN, "").rpartition("/")
    return (experiment, name) if name else None


def every_rank_logs() -> bool:
    return os.environ.get(RANKS) == "all"


def job_id(variables: Mapping[str, str] = os.environ) -> str:
    """Return the engine's id of the job of this process."""
    array = variables.get("SLURM_ARRAY_JOB_ID"), variables.get("SLURM_ARRAY_TASK_ID")
    if all(array):
        return f"{array[0]}_{array[1]}"
    return next((variables[name] for name in _JOB_IDS if variables.get(name)), "")


def was_restarted(variables: Mapping[str, str] = os.environ) -> bool:
    return any(variables.get(name, "0") not in ("", "0") for name in _RESTART_COUNTS)


def may_continue(key: str) -> bool:
    """Return whether a process with this restart key may have had a predecessor."""
    return key.startswith(_UNCOUNTED) or (bool(key) and was_restarted())


def restart_key(command: list[str], variables: Mapping[str, str] = os.environ) -> str:
    """Return a key that stays the same when this process is restarted, or "".

    A Slurm job keeps its id when it is requeued, and the ids of its steps start from 0 again.
    Workers that torchrun restarts have the same parent process. The id of a job of submitit's local
    executor is that of the process that restarts it.
    """

    def script() -> str:
        return digest("\0".join(command))[:12]

    if job := variables.get("SLURM_JOB_ID"):
        return f"slurm-{job}-{variables.get('SLURM_STEP_ID', '')}-{script()}"
    if "TORCHELASTIC_RUN_ID" in variables:
        return f"torchelastic-{host_name()}-{os.getppid()}-{script()}"
    # Other programs of the job may be separate runs.
    if (job := variables.get(_SUBMITIT_JOB, "")).isdecimal() and "submitit" in sys.modules:
        return f"submitit-{host_name()}-{job}-{start_ticks(int(job))}-{script()}"
    return ""


class RunPlace(NamedTuple):
    root: str
    experiment: str
    name: str | None  # None for the next free name in the experiment
    directory: str | None = None  # the run's directory, if the environment names it
    joined: bool = False  # `aboard run` keeps the record of the run; this process only logs
    expected: bool = False  # the environment names the run: if it exists, this is another attempt
    fallback: bool = False  # neither the caller nor the environment gave a root
    requested: tuple[str | None, str | None] = (None, None)  # experiment and name, even if unused
    recorded_at: str | None = None  # the URI of the joined run, from `aboard run`
    inside: RunPlace | None = None  # the run whose directory contains this one

    @property
    def folder(self) -> tuple[str, str]:
        """The storage, and the directory in it that contains the run."""
        if self.inside is None:
            return self.root, self.experiment
        return split(self.inside.uri_of(self.inside.name or ""))

    def uri_of(self, name: str) -> str:
        storage, folder = self.folder
        return self.directory or join(storage, directory_of(folder, name))

    def final_uri_of(self, name: str) -> str:
        """Return the final URI: `aboard run` may send what it records to a bucket."""
        if self.inside is not None:
            return join(self.inside.final_uri_of(self.inside.name or ""), name)
        if self.joined:
            return self.recorded_at or join(self.root, directory_of(self.experiment, name))
        return self.uri_of(name)


def find_place(
    root: str | os.PathLike[str] | None,
    experiment: str | None,
    name: str | None,
    environment: Mapping[str, str] = os.environ,
) -> RunPlace:
    requested = experiment, name
    if experiment is not None:
        check_name(experiment, "experiment")
    if name is not None:
        check_name(name, "run")
    env_experiment, env_name = named_run(environment) or (None, None)
    joined = bool(environment.get(ATTEMPT) and environment.get(LOGDIR))
    if joined and root is not None:
        if canonical(os.fspath(root)) == environment.get(ROOT):
            root = None  # the run that `aboard run` records is already there
        else:
            env_experiment = env_name = None  # a separate run
    if root is None and (logdir := _job_logdir(environment)):
        if joined:  # the run already has its name
            experiment, name = env_experiment or experiment, env_name or name
        else:
            experiment, name = experiment or env_experiment, name or env_name
        directory = canonical(logdir)
        parent, last = split(directory)
        recorded_at = environment.get(ATTEMPT, "") if joined else ""
        return RunPlace(
            environment.get(ROOT) or parent,
            experiment or DEFAULT_EXPERIMENT,
            name or last or "run",
            directory,
            joined=joined,
            expected=True,
            requested=requested,
            recorded_at=recorded_at if "/" in recorded_at else None,
        )
    chosen = os.fspath(root) if root is not None else environment.get(ROOT)
    expected = experiment is None and name is None and env_name is not None
    if expected:
        experiment, name = env_experiment, env_name
        check_name(env_name or "", f"run in {RUN}")
        check_name(experiment or DEFAULT_EXPERIMENT, f"experiment in {RUN}")
    return RunPlace(
        canonical(chosen or DEFAULT_ROOT),
        experiment or DEFAULT_EXPERIMENT,
        name,
        expected=expected,
        fallback=not chosen,
    )


def _job_logdir(variables: Mapping[str, str]) -> str | None:
    # ABOARD_ROOT takes precedence over the log directories of other platforms.
    if variables.get(ROOT) and not variables.get(LOGDIR):
        return None
    return logdir_from_environment(variables)


# Launchers written in Python: Hydra and Ray keep their state in modules that all their processes
# have loaded, so nothing is imported here. Not all of it is public, and another version may keep it
# elsewhere; tests check this with the real packages.


class Launch(NamedTuple):
    """A process of a launcher; unknown fields are empty.

    All processes of a sweep share its `job`; `member` is the id of this one. `restart_key` is
    unique to this process and stays the same if the launcher restarts it.
    """

    job: str = ""
    member: str = ""
    hparams: Mapping[str, Any] = {}
    restart_key: str = ""


def find_launch() -> Launch:
    found = []
    for find in (_hydra, _ray_tune, _ray):
        try:
            launch = find()
        except Exception as error:  # noqa: BLE001 - the training outranks its record
            what = f"{type(error).__name__}: {error}".rstrip(".")
            notify_once(f"the job of this run is unknown. {find.__name__.strip('_')}: {what}.")
            continue
        if launch is not None:
            found.append(launch)
    # Hydra also knows the values of a process that Ray started.
    hparams: Mapping[str, Any] = next((one.hparams for one in found if one.hparams), {})
    return next((one for one in found if one.job), Launch())._replace(hparams=hparams)


def _hydra() -> Launch | None:
    config = getattr(sys.modules.get("hydra.core.hydra_config"), "HydraConfig", None)
    if config is None or not config.initialized():
        return None
    hydra = config.get()
    hparams = dict(filter(None, map(_override, hydra.overrides.task)))
    if getattr(hydra.mode, "name", "") != "MULTIRUN":
        return Launch(hparams=hparams)
    # By default the date and time of the sweep: multirun/2030-01-31/12-00-00.
    job = "_".join(PurePath(hydra.sweep.dir).parts[-2:]).strip("/")
    return Launch(job, f"{job}_{hydra.job.num}", hparams)


def _override(text: str) -> tuple[str, Any] | None:
    """Return the name and the value of an override such as `+optimizer.lr=0.1`."""
    from aboard.track.program import parse_hparam

    name, equals, value = text.lstrip("+").partition("=")
    if not equals or name.startswith("~"):
        return None
    if len(value) > 1 and value[0] == value[-1] and value[0] in _QUOTES:
        return name, value[1:-1]
    return name, parse_hparam(value)


def _ray_tune() -> Launch | None:
    # Private: checked with Ray 2.60. tests/integrations/test_launchers.py tunes with it.
    get_session: Callable[[], Any] = getattr(
        sys.modules.get("ray.train._internal.session"), "get_session", lambda: None
    )
    trial = getattr(get_session(), "trial_info", None)
    if trial is None:
        return None
    job, member = str(trial.experiment_name or ""), str(trial.id)
    return Launch(job, member, restart_key=f"ray-{job}-{member}")


def _ray() -> Launch | None:
    ray = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", lambda: False)():
        return None
    context = ray.get_runtime_context()
    job = context.get_job_id()
    # Every cluster counts its jobs from 1; the name of its session has its start time.
    session = getattr(context, "get_session_name", lambda: "")().removeprefix("session_")
    return Launch(f"{session}_{job}" if session else job, job)


# The rank of this process among those launched together. It comes from one table of launchers and
# their variables; no framework is imported. A process group that the script joined with PyTorch or
# JAX takes precedence.


class Rank(NamedTuple):
    number: int
    size: int
    launcher: str = ""
    launch: str = ""  # identifies this launch; shared by all its processes
    guessed: bool = False  # another process may assume the same number


class _Launcher(NamedTuple):
    """The variables of a launcher; those of `launch` identify one launch, the first must be set."""

    name: str
    rank: str
    size: str
    launch: tuple[str, ...] = ()


_TORCH_LAUNCH = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
_OPEN_MPI_LAUNCH = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
_SUBMITIT_LAUNCH = ("SUBMITIT_LOCAL_JOB_ID",)
_SLURM_LAUNCH = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
# The innermost launcher comes first: torchrun may run inside mpirun inside Slurm.
LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", _TORCH_LAUNCH),
    _Launcher("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE", ("HOROVOD_GLOO_RENDEZVOUS_PORT",)),
    _Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", _OPEN_MPI_LAUNCH),
    _Launcher("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", ("MPIRUN_ID",)),
    _Launcher("MPICH", "PMI_RANK", "PMI_SIZE", ("PMI_ID", "PMI_PORT", "HYDI_CONTROL_FD")),
    _Launcher("LSF", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", ("LSB_JOBID", "JSM_JOB_ID")),
    _Launcher("JAX", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", ("JAX_COORDINATOR_ADDRESS",)),
    _Launcher("submitit", "SUBMITIT_LOCAL_GLOBALID", "SUBMITIT_LOCAL_NTASKS", _SUBMITIT_LAUNCH),
    _Launcher("Slurm", "SLURM_PROCID", "SLURM_NTASKS", _SLURM_LAUNCH),
)
_CLUSTERS = ("TF_CONFIG", "CLUSTER_SPEC")
_WRITING_TASKS = ("chief", "master", "worker")


def find_rank(variables: Mapping[str, str] | None = None) -> Rank:
    if variables is not None:
        return _environment_rank(variables)
    launched = _environment_rank(os.environ)
    joined = _torch_group(os.environ) or _jax_group()
    # Spawned processes inherit the variables of their parent, which was alone. A group of one
    # means nothing: libraries create such groups for themselves.
    if joined is None or joined.size == 1 or joined[:2] == launched[:2]:
        return launched
    return joined


def check_rank(rank: Any) -> int:
    """Validate a rank from the caller; a negative one means that there are no others."""
    try:
        number = int(rank) if isinstance(rank, str) else operator.index(rank)
    except (TypeError, ValueError):
        problem = "a whole number, 0 for the process that logs"
        raise ValueError(f"rank is {rank!r:.60}, not {problem}") from None
    return max(number, 0)


def _environment_rank(variables: Mapping[str, str]) -> Rank:
    for launcher in LAUNCHERS:
        number = _number(variables.get(launcher.rank))
        size = _number(variables.get(launcher.size))
        if number is not None and size is not None and number < size:
            return Rank(number, size, launcher.name, _launch_id(launcher, variables))
    clusters = (_cluster_rank(name, variables.get(name, "")) for name in _CLUSTERS)
    return _lightning_rank(variables) or next(filter(None, clusters), Rank(0, 1))


def _torch_group(variables: Mapping[str, str]) -> Rank | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    address = LAUNCHERS[0]._replace(name="torch.distributed")
    number, size = distributed.get_rank(), distributed.get_world_size()
    return Rank(number, size, address.name, _launch_id(address, variables))


def _jax_group() -> Rank | None:
    # jax.process_index() would initialize the devices. The state that jax.distributed.initialize
    # keeps is private: checked with JAX 0.10. tests/track/test_environment.py joins a group of it.
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if state is None or getattr(state, "client", None) is None:
        return None
    number = state.process_id
    size = getattr(state, "num_processes", None) or number + 1  # missing in old versions
    coordinator = getattr(state, "coordinator_address", None)
    return Rank(number, size, "JAX", f"JAX-{coordinator}" if coordinator else "")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _launch_id(launcher: _Launcher, variables: Mapping[str, str]) -> str:
    values = [variables.get(name, "") for name in launcher.launch]
    return "-".join([launcher.name, *values]) if values and values[0] else ""


def _lightning_rank(variables: Mapping[str, str]) -> Rank | None:
    """Read the variables of processes that Lightning starts itself; the script is the first.

    Lightning sets no number of processes per node, so the ranks of later nodes may be a guess.
    """
    local, size = _number(variables.get("LOCAL_RANK")), _number(variables.get("WORLD_SIZE"))
    if local is None or size is None or local >= size or not variables.get("MASTER_PORT"):
        return None
    node = _number(variables.get("NODE_RANK")) or 0
    each = _number(variables.get("LOCAL_WORLD_SIZE"))
    if each is None and (nodes := _number(variables.get("GROUP_WORLD_SIZE"))):
        each = size // nodes
    guessed = node > 0 and not each
    number = min(local + node * (each or max(1, size // (node + 1))), size - 1)
    launch = _Launcher("Lightning", "", "", ("MASTER_ADDR", "MASTER_PORT"))
    return Rank(number, size, launch.name, _launch_id(launch, variables), guessed)


def _cluster_rank(variable: str, config: str) -> Rank | None:
    """Read TF_CONFIG: the chief comes first, then the workers, then all other tasks.

    CLUSTER_SPEC of Vertex has the same form, with the names workerpool0, workerpool1 and so on.
    """
    try:
        document = json.loads(config)
        cluster, task = document["cluster"], document["task"]
        kind, place = str(task["type"]), int(task["index"])
        sizes = {name: len(hosts) for name, hosts in cluster.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    order = sorted(
        {*sizes, kind},
        key=lambda name: (_WRITING_TASKS.index(name) if name in _WRITING_TASKS else 9, name),
    )
    number = sum(sizes.get(name, 0) for name in order[: order.index(kind)]) + place
    size = max(sum(sizes.values()), number + 1)
    return Rank(number, size, variable, f"{variable}-{json.dumps(cluster, sort_keys=True)}")


# Agreement of the ranks of a launch on a run. Rank 0 writes the name that it claimed to a small
# file in the experiment's directory, named after the launch, and the other ranks wait for that
# file. A file older than the process that reads it belongs to an earlier launch. If the storage is
# unreachable, all ranks derive the same name.

_WAIT_SECS = 120.0
_POLL_SECS = 0.2
_HEAD_START_SECS = 60.0  # how long rank 0 may name its run before ranks on other nodes start
_HEAD_START_ON_A_HOST_SECS = 5.0
_imported = time.time()


class NoLaunch(ValueError):
    """The launch, or the rank of a process in it, cannot be identified."""


def announce_name(storage: Storage, experiment: str, rank: Rank, name: str) -> None:
    """Publish the name of the run to the other ranks; print a notice if a bucket is down."""
    file = _launch_file(experiment, rank)
    announcement = {"run": name, "at": time.time(), "host": host_name()}
    try:
        storage.write(file, json.dumps(announcement).encode())
    except StorageError as error:
        if not is_remote(storage.uri):
            raise
        if name != (theirs := derived_name(rank)):
            notify(f"rank 0 logs to {name}, the other ranks to {theirs}. {error}")


def derived_name(rank: Rank) -> str:
    """Return the name that every rank of this launch derives without the storage."""
    return f"{time.strftime('run-%Y%m%d', time.gmtime())}-{_launch_digest(rank)}"


def wait_for_name(
    storage: Storage, experiment: str, rank: Rank, seconds: float = _WAIT_SECS
) -> str:
    """Return the run that rank 0 announced, or a derived name if the bucket stays unreachable."""
    file = _launch_file(experiment, rank)
    deadline = time.monotonic() + seconds
    started = own_start_time() or _imported
    while True:
        problem: StorageError | None = None
        try:
            found = json.loads(storage.read(file))
            here = found["host"] == host_name()
            head_start = _HEAD_START_ON_A_HOST_SECS if here else _HEAD_START_SECS
            if float(found["at"]) >= started - head_start:
                return str(found["run"])
        except NoSuchPath:
            pass
        except StorageError as error:
            if not is_remote(storage.uri):
                raise
            problem = error
        except (ValueError, KeyError, TypeError):  # incomplete
            pass
        if time.monotonic() > deadline:
            if problem is not None:
                name = derived_name(rank)
                notify(unreachable_notice(problem, name))
                return name
            raise TimeoutError(
                f"rank {rank.number} waited {seconds:.0f} s for rank 0 to name its run in "
                f"{storage.uri}/{experiment}. Call aboard.init in rank 0 too, with the same root "
                "and ranks='all'."
            )
        time.sleep(_POLL_SECS)


def unreachable_notice(problem: StorageError, name: str) -> str:
    return f"{problem} The run is named {name}; its logs are sent when the bucket is reachable."


def _launch_file(experiment: str, rank: Rank) -> str:
    return f"{experiment}/.launch-{_launch_digest(rank)}.json"


def _launch_digest(rank: Rank) -> str:
    if not rank.launch:
        raise NoLaunch(
            "ranks='all' needs a run name that every rank knows, because the launcher does not "
            "identify this launch. Pass name=, or set ABOARD_RUN."
        )
    return digest(rank.launch)[:16]


def digest(text: str) -> str:
    import hashlib  # loads OpenSSL

    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


# The process itself.


def user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container whose user has no entry
        return ""


def host_name() -> str:
    return os.uname().nodename  # as `socket.gethostname` returns it; the import of `socket` is slow


def git_commit() -> str:
    """Return the commit checked out around the current directory, or "", without running git."""
    try:
        start = Path.cwd()
        for parent in (start, *start.parents):
            if (parent / ".git").exists():
                return _commit_of(parent / ".git")
    except (OSError, UnicodeDecodeError):
        pass
    return ""


def _commit_of(git: Path) -> str:
    if git.is_file():  # a worktree, or a submodule
        git = git.parent / git.read_text().removeprefix("gitdir:").strip()
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head if _COMMIT.fullmatch(head) else ""
    reference = head.removeprefix("ref:").strip()
    common = git / "commondir"
    shared = git / common.read_text().strip() if common.exists() else git
    for place in (git, shared):
        if (place / reference).is_file():
            return (place / reference).read_text().strip()
    packed = shared / "packed-refs"
    for line in packed.read_text().splitlines() if packed.is_file() else []:
        commit, _, name = line.partition(" ")
        if name == reference:
            return commit
    return ""
