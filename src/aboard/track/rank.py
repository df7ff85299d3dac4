"""Which of many processes this is, told by whatever launched them.

One table from launcher to environment variables; nothing of any framework is imported. A group
that the process has joined by itself, with PyTorch or JAX, is asked first. A process whose launcher
left no trace is alone, and rank 0.
"""

from __future__ import annotations

import json
import operator
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple


class Rank(NamedTuple):
    """A process among `size` that were launched together."""

    number: int
    size: int
    launcher: str = ""
    launch: str = ""
    """What the processes of this launch share and no other has, or nothing."""
    guessed: bool = False
    """Whether another process may think that it has the same number."""


class _Launcher(NamedTuple):
    name: str
    rank: str
    size: str
    launch: tuple[str, ...] = ()
    """Variables that together tell this launch from another; the first must be set."""


# Whoever is nearest to the script comes first: torchrun may run inside mpirun inside Slurm.
LAUNCHERS = (
    _Launcher(
        "torchrun",
        "RANK",
        "WORLD_SIZE",
        ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ),
    _Launcher("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE", ("HOROVOD_GLOO_RENDEZVOUS_PORT",)),
    _Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    _Launcher("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", ("MPIRUN_ID",)),
    _Launcher("MPICH", "PMI_RANK", "PMI_SIZE", ("PMI_ID", "PMI_PORT", "HYDI_CONTROL_FD")),
    _Launcher("LSF", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", ("LSB_JOBID", "JSM_JOB_ID")),
    _Launcher("JAX", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", ("JAX_COORDINATOR_ADDRESS",)),
    _Launcher(
        "Slurm",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    ),
)
_LEADERS = ("chief", "master")
_WRITING_TASKS = (*_LEADERS, "worker")


def find_rank(environment: Mapping[str, str] | None = None) -> Rank:
    """Return the rank in the group that this process joined, or that the environment tells.

    Args:
        environment: what alone is asked, if it is given. Where nothing is told, it is 0 of 1.
    """
    if environment is not None:
        return _told(environment)
    told = _told(os.environ)
    joined = _torch_group(os.environ) or _jax_group()
    # Processes that were spawned inherit the variables of their parent, which was alone. A group
    # of one says nothing: libraries make one for themselves.
    if joined is None or joined.size == 1 or joined[:2] == told[:2]:
        return told
    return joined


def given_rank(rank: Any) -> int:
    """Return the rank that a caller gives; a negative one means that there are no others.

    Raises:
        ValueError: it is no whole number.
    """
    try:
        number = int(rank) if isinstance(rank, str) else operator.index(rank)
    except (TypeError, ValueError):
        problem = "a whole number, 0 for the process that logs"
        raise ValueError(f"rank is {rank!r:.60}, not {problem}") from None
    return max(number, 0)


def _told(variables: Mapping[str, str]) -> Rank:
    for launcher in LAUNCHERS:
        number = _number(variables.get(launcher.rank))
        size = _number(variables.get(launcher.size))
        if number is not None and size is not None and number < size:
            return Rank(number, size, launcher.name, _launch(launcher, variables))
    return (
        _lightning_rank(variables) or _tensorflow_rank(variables.get("TF_CONFIG", "")) or Rank(0, 1)
    )


def _torch_group(variables: Mapping[str, str]) -> Rank | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    address = LAUNCHERS[0]._replace(name="torch.distributed")
    number, size = distributed.get_rank(), distributed.get_world_size()
    return Rank(number, size, address.name, _launch(address, variables))


def _jax_group() -> Rank | None:
    """Read what `jax.distributed.initialize` noted; asking JAX itself would start its devices."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if state is None or getattr(state, "client", None) is None:
        return None
    number = state.process_id
    size = getattr(state, "num_processes", None) or number + 1  # old versions forget it
    coordinator = getattr(state, "coordinator_address", None)
    return Rank(number, size, "JAX", f"JAX-{coordinator}" if coordinator else "")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _launch(launcher: _Launcher, variables: Mapping[str, str]) -> str:
    told = [variables.get(name, "") for name in launcher.launch]
    return "-".join([launcher.name, *told]) if told and told[0] else ""


def _lightning_rank(variables: Mapping[str, str]) -> Rank | None:
    """Read what Lightning tells the processes it starts itself, of which the script is the first.

    How many there are on a node it does not tell; unless others do, the ranks of the nodes
    beyond the first are guessed.
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


def _tensorflow_rank(config: str) -> Rank | None:
    """Read TF_CONFIG: the chief comes first, then workers, then everyone else."""
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
    before = sum(sizes.get(name, 0) for name in order[: order.index(kind)])
    size = max(sum(sizes.values()), before + place + 1)
    return Rank(
        before + place, size, "TF_CONFIG", f"TF_CONFIG-{json.dumps(cluster, sort_keys=True)}"
    )
