"""The rank of this process among those launched together, and how they agree on a run.

The rank comes from one table of launchers and their environment variables; no framework is
imported. A process group that the script joined with PyTorch or JAX takes precedence.

Rank 0 writes the name that it claimed to a small file in the experiment's directory, named after
the launch, and the other ranks wait for that file. A file older than the process that reads it
belongs to an earlier launch. If the storage is unreachable, all ranks derive the same name.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from aboard.storage import NoSuchPath, Storage, StorageError, is_remote
from aboard.system import own_start_time
from aboard.track import notify

_WAIT_SECS = 120.0
_POLL_SECS = 0.2
_HEAD_START_SECS = 60.0  # how long rank 0 may name its run before ranks on other nodes start
_HEAD_START_ON_A_HOST_SECS = 5.0
_imported = time.time()


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
            return Rank(number, size, launcher.name, _launch(launcher, variables))
    clusters = (_cluster_rank(name, variables.get(name, "")) for name in _CLUSTERS)
    return _lightning_rank(variables) or next(filter(None, clusters), Rank(0, 1))


def _torch_group(variables: Mapping[str, str]) -> Rank | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    address = LAUNCHERS[0]._replace(name="torch.distributed")
    number, size = distributed.get_rank(), distributed.get_world_size()
    return Rank(number, size, address.name, _launch(address, variables))


def _jax_group() -> Rank | None:
    # jax.process_index() would initialize the devices. The state that jax.distributed.initialize
    # keeps is private: checked with JAX 0.10. tests/track/test_rank.py joins a group of it.
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if state is None or getattr(state, "client", None) is None:
        return None
    number = state.process_id
    size = getattr(state, "num_processes", None) or number + 1  # missing in old versions
    coordinator = getattr(state, "coordinator_address", None)
    return Rank(number, size, "JAX", f"JAX-{coordinator}" if coordinator else "")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _launch(launcher: _Launcher, variables: Mapping[str, str]) -> str:
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
    return Rank(number, size, launch.name, _launch(launch, variables), guessed)


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


# Agreement of the ranks of a launch on a run.


class NoLaunch(ValueError):  # noqa: N818 - named after the problem
    """The launch, or the rank of a process in it, cannot be identified."""


def announce_name(storage: Storage, experiment: str, rank: Rank, name: str) -> None:
    """Publish the name of the run to the other ranks; print a notice if a bucket is down."""
    file = _launch_file(experiment, rank)
    announcement = {"run": name, "at": time.time(), "host": socket.gethostname()}
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
            here = found["host"] == socket.gethostname()
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
    return f"{problem} The run is named {name}; its logs are sent when the bucket is back."


def _launch_file(experiment: str, rank: Rank) -> str:
    return f"{experiment}/.launch-{_launch_digest(rank)}.json"


def _launch_digest(rank: Rank) -> str:
    if not rank.launch:
        raise NoLaunch(
            "ranks='all' needs a run name that every rank knows, because the launcher does not "
            "identify this launch. Pass name=, or set ABOARD_RUN."
        )
    return hashlib.sha256(rank.launch.encode()).hexdigest()[:16]
