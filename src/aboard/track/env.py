"""What the environment says about where logs go, and what we say there to the jobs we start.

Other platforms have names of their own for a job's log directory. They are honoured where we find
them, and set beside ours, so that a script written for one of them runs unchanged.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Mapping

ROOT = "ABOARD_ROOT"
RUN = "ABOARD_RUN"
LOGDIR = "ABOARD_LOGDIR"
ATTEMPT = "ABOARD_ATTEMPT"
"""Set by `aboard run`, which records the attempt, for the processes below it: the run's URI."""
RANKS = "ABOARD_RANKS"
"""`all` where `aboard run` was told that each rank logs, in a directory of its own."""
FOREIGN_LOGDIRS = ("PAI_OUTPUT_TENSORBOARD", "AIP_TENSORBOARD_LOG_DIR", "XT_OUTPUT_MNT")
_DEFAULTS_OF_LIBRARIES = ("TENSORBOARD_LOGGING_DIR",)
"""Where a library looks by itself: the Hugging Face Trainer."""
_RESTART_COUNTS = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
_JOBS = ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "CLOUD_ML_JOB_ID")


def logdir_from_environment(environment: Mapping[str, str] | None = None) -> str | None:
    """Return the log directory that the platform chose for this job, if it did."""
    variables = os.environ if environment is None else environment
    return next(
        (variables[name] for name in (LOGDIR, *FOREIGN_LOGDIRS) if variables.get(name)), None
    )


def default_logdir(comment: str = "") -> str:
    """Return the log directory that PyTorch's writer makes up where nobody says any."""
    return f"runs/{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}{comment}"


def variables_for(root: str, experiment: str, name: str, logdir: str) -> dict[str, str]:
    """Return the variables that tell a job where its run is, or on a silent rank where to log."""
    logdirs = dict.fromkeys((LOGDIR, *FOREIGN_LOGDIRS, *_DEFAULTS_OF_LIBRARIES), logdir)
    return {ROOT: root, RUN: f"{experiment}/{name}", **logdirs} if name else logdirs


def named_run(environment: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """Return experiment and name of the run that the environment names, if it does."""
    variables = os.environ if environment is None else environment
    experiment, _, name = variables.get(RUN, "").rpartition("/")
    return (experiment, name) if name else None


def every_rank_logs(environment: Mapping[str, str] | None = None) -> bool:
    """Say whether `aboard run` was told that each rank logs."""
    variables = os.environ if environment is None else environment
    return variables.get(RANKS) == "all"


def job_of(environment: Mapping[str, str] | None = None) -> str:
    """Return the scheduler's name for this job, or nothing."""
    variables = os.environ if environment is None else environment
    array = variables.get("SLURM_ARRAY_JOB_ID"), variables.get("SLURM_ARRAY_TASK_ID")
    if all(array):
        return f"{array[0]}_{array[1]}"
    return next((variables[name] for name in _JOBS if variables.get(name)), "")


def was_restarted(environment: Mapping[str, str] | None = None) -> bool:
    """Say whether a scheduler starts this job again, after a preemption or a failure."""
    variables = os.environ if environment is None else environment
    return any(variables.get(name, "0") not in ("", "0") for name in _RESTART_COUNTS)


def restart_key(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Return what this process and the one it replaces after a restart have in common.

    A Slurm job keeps its number when it is requeued, and its steps are counted anew. The
    workers that torchrun starts again have the same parent.
    """
    variables = os.environ if environment is None else environment
    script = hashlib.sha256("\0".join(command).encode(errors="replace")).hexdigest()[:12]
    if job := variables.get("SLURM_JOB_ID"):
        return f"slurm-{job}-{variables.get('SLURM_STEP_ID', '')}-{script}"
    if "TORCHELASTIC_RUN_ID" in variables:
        return f"torchelastic-{socket.gethostname()}-{os.getppid()}-{script}"
    return ""
