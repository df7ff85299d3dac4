"""The environment of a run: its directory, job, launcher, user, host and commit.

Arguments take precedence over variables. Besides Aboard's variables, those of other platforms for
the log directory are read, and set for jobs that Aboard starts: a script written for such a
platform runs unchanged.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from aboard.runs.layout import DEFAULT_EXPERIMENT, check_name, directory_of
from aboard.storage import canonical, join, split
from aboard.system import start_ticks
from aboard.track import notify_once

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
    """Return the engine's id of the job of this process."""
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
    """Return a key that stays the same when this process is restarted, or "".

    A Slurm job keeps its id when it is requeued, and the ids of its steps start from 0 again.
    Workers that torchrun restarts have the same parent process. The id of a job of submitit's local
    executor is that of the process that restarts it.
    """
    script = hashlib.sha256("\0".join(command).encode(errors="replace")).hexdigest()[:12]
    if job := variables.get("SLURM_JOB_ID"):
        return f"slurm-{job}-{variables.get('SLURM_STEP_ID', '')}-{script}"
    if "TORCHELASTIC_RUN_ID" in variables:
        return f"torchelastic-{socket.gethostname()}-{os.getppid()}-{script}"
    # Other programs of the job may be separate runs.
    if (job := variables.get(_SUBMITIT_JOB, "")).isdecimal() and "submitit" in sys.modules:
        return f"submitit-{socket.gethostname()}-{job}-{start_ticks(int(job))}-{script}"
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


# The process itself.


def user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container whose user has no entry
        return ""


def host_name() -> str:
    return socket.gethostname()


def git_commit(directory: Path | None = None) -> str:
    """Return the commit checked out around a directory, or "", without running git."""
    try:
        start = (directory or Path.cwd()).resolve()
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
