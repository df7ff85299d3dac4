"""What launchers written in Python know of this process: its sweep, its member and what it tries.

Schedulers set variables, which `environment` reads. Hydra and Ray keep what they know in modules
that every process of theirs has loaded: none is imported here. Not all of it is public, so nothing
is known where a version keeps it elsewhere; tests check what is read with the real packages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from aboard.track.console import notify_once

_QUOTES = ("'", '"')


class Launch(NamedTuple):
    """One process of a launcher; what is not known is empty.

    All processes of a sweep share its `job`; `member` is the id of this one. A launcher that may
    start the process again gives it the same `restart_key`, and no other process.
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
            notify_once(f"the job of this run is not known. {find.__name__.strip('_')}: {what}.")
            continue
        if launch is not None:
            found.append(launch)
    # Hydra knows the values of a process that Ray started, too.
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
    # By default the date and the time at which the sweep began: multirun/2030-01-31/12-00-00.
    job = "_".join(PurePath(hydra.sweep.dir).parts[-2:]).strip("/")
    return Launch(job, f"{job}_{hydra.job.num}", hparams)


def _override(text: str) -> tuple[str, Any] | None:
    """Return the name and the value of an override such as `+optimizer.lr=0.1`."""
    from aboard.track.recording.program import parse_hparam

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
    # Every cluster counts its jobs from 1; its session has the time at which it was started.
    session = getattr(context, "get_session_name", lambda: "")().removeprefix("session_")
    return Launch(f"{session}_{job}" if session else job, job)
