"""Where a run goes, and which job it belongs to: the arguments first, then the environment.

The variables of other platforms for the log directory of a job are read as well as ours, and set
with ours for the jobs that Aboard starts: a script written for such a platform runs unchanged.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

from aboard.runs.layout import DEFAULT_EXPERIMENT, check_name, directory_of
from aboard.storage import canonical, join, split
from aboard.system import start_ticks

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


def logdir_from_environment(variables: Mapping[str, str] = os.environ) -> str | None:
    return next(
        (variables[name] for name in (LOGDIR, *FOREIGN_LOGDIRS) if variables.get(name)), None
    )


def default_logdir(comment: str = "") -> str:
    """Return the log directory that PyTorch's writer uses by default."""
    return f"runs/{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}{comment}"


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
    """Return the engine's own id of the job that this process is part of."""
    array = variables.get("SLURM_ARRAY_JOB_ID"), variables.get("SLURM_ARRAY_TASK_ID")
    if all(array):
        return f"{array[0]}_{array[1]}"
    return next((variables[name] for name in _JOB_IDS if variables.get(name)), "")


def submitted_job(variables: Mapping[str, str] = os.environ) -> str:
    """Return the id of the job that was submitted with Aboard."""
    return variables.get(JOB, "")


def was_restarted(variables: Mapping[str, str] = os.environ) -> bool:
    return any(variables.get(name, "0") not in ("", "0") for name in _RESTART_COUNTS)


def may_continue(key: str) -> bool:
    """Return whether a process with this restart key may have had a predecessor."""
    return key.startswith(_UNCOUNTED) or (bool(key) and was_restarted())


def restart_key(command: list[str], variables: Mapping[str, str] = os.environ) -> str:
    """Return what this process and its predecessor before a restart have in common, or "".

    A Slurm job keeps its id when it is requeued, and the ids of its steps start from 0 again.
    Workers that torchrun restarts have the same parent process. The id of a job of submitit's local
    executor is that of the process that restarts it.
    """
    script = hashlib.sha256("\0".join(command).encode(errors="replace")).hexdigest()[:12]
    if job := variables.get("SLURM_JOB_ID"):
        return f"slurm-{job}-{variables.get('SLURM_STEP_ID', '')}-{script}"
    if "TORCHELASTIC_RUN_ID" in variables:
        return f"torchelastic-{socket.gethostname()}-{os.getppid()}-{script}"
    # Other programs that the job starts may be meant as further runs.
    if (job := variables.get(_SUBMITIT_JOB, "")).isdecimal() and "submitit" in sys.modules:
        return f"submitit-{socket.gethostname()}-{job}-{start_ticks(int(job))}-{script}"
    return ""


class RunPlace(NamedTuple):
    root: str
    experiment: str
    name: str | None  # None for the next free one of the experiment
    directory: str | None = None  # the run's own, if the environment names it
    joined: bool = False  # `aboard run` keeps the record of the run; this process only logs
    expected: bool = False  # the environment names the run: if it exists, this is another attempt
    fallback: bool = False  # neither the caller nor the environment gave a root
    requested: tuple[str | None, str | None] = (None, None)  # experiment and name, even if not used
    recorded_at: str | None = None  # where the joined run lies according to `aboard run`
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
        """Return where it ends up: `aboard run` may send what it records to a bucket."""
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
            env_experiment = env_name = None  # a run of its own
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
