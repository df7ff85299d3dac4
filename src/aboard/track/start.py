"""`aboard.init`: choose the place of a run, claim or resume it, and open it for logging."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aboard.runs import catalog, manifest
from aboard.runs.catalog import BadName, check_name, directory_of
from aboard.runs.manifest import (
    HEARTBEAT_SECS,
    BadManifest,
    Manifest,
    State,
    Tags,
    plain_values,
)
from aboard.storage import (
    NoSuchPath,
    Storage,
    StorageError,
    Unreachable,
    is_remote,
    open_storage,
    split,
)
from aboard.track import environment as env
from aboard.track import notify, notify_once
from aboard.track.arrays import to_whole
from aboard.track.environment import (
    Launch,
    NoLaunch,
    Rank,
    RunPlace,
    announce_name,
    check_rank,
    derived_name,
    find_launch,
    find_place,
    find_rank,
    unreachable_notice,
    wait_for_name,
)
from aboard.track.redaction import (
    command_to_record,
    hparams_to_record,
    tags_to_record,
    without_secrets,
)
from aboard.track.run import LastSteps, Run, SilentRun, Stages

if TYPE_CHECKING:
    from aboard.runs.manifest import HParams

_opened: set[str] = set()  # the URIs of the runs that this process has opened
_agreements: Counter[tuple[object, ...]] = Counter()  # between the ranks of a launch on a run


def init(
    experiment: str | None = None,
    name: str | None = None,
    root: str | os.PathLike[str] | None = None,
    *,
    hparams: HParams | None = None,
    tags: Tags | None = None,
    workspace: str | None = None,
    job: str | None = None,
    ranks: Literal["first", "all"] = "first",
    rank: int | str | None = None,
    resume: bool | None = None,
    purge_step: int | None = None,
    flush_secs: float = 1.0,
) -> Run:
    """Open a run for logging; use it in a `with` block, or call its `finish`.

    Args:
        experiment: the experiment of the run; `default` by default.
        name: the run's name; the next of `run1`, `run2`, … by default.
        root: a path or URI. By default the root in the environment (`ABOARD_ROOT`,
            `ABOARD_LOGDIR`, or the variable of another platform), or else `./runs`.
        hparams: hyperparameters, as for `Run.log_hparams`.
        tags: a name, several, or names with values.
        workspace: a text for the run's record.
        job: the job of the run; by default `ABOARD_JOB`, or the sweep or job of Slurm, Hydra, Ray
            and other launchers.
        ranks: which of the processes launched together log: the `first`, or `all`, each in its
            own directory, `rank-0`, `rank-1`, …
        rank: the rank of this process; detected under torchrun, Slurm, MPI and others. A negative
            number means that there are no other processes.
        resume: True continues the run of that name if it exists. None does so if the
            environment shows that the same job was restarted. False never does.
        purge_step: after a resumption, the step from which on TensorBoard drops the points of
            earlier attempts; by default the first step logged, separately in each stage.
            `aboard view` does not need it.
        flush_secs: how many seconds a record may stay in memory.

    Raises:
        RunExists: the name is taken, and `resume` is not set.
        BadName: the experiment or the run has an invalid name.
        StorageError: the root cannot be written to.
        TypeError: an argument has another type; the message names it.
        ValueError: `ranks`, `rank`, `purge_step` or `flush_secs` has an invalid value.
    """
    _check_types(experiment, name, root, workspace, job, resume, flush_secs)
    return begin(
        find_place(root, experiment, name),
        command_to_record(),
        hparams=hparams,
        tags=tags,
        workspace=workspace,
        job=job,
        ranks=ranks,
        rank=rank,
        resume=resume,
        purge_step=purge_step,
        flush_secs=flush_secs,
    )


def _check_types(
    experiment: object,
    name: object,
    root: object,
    workspace: object,
    job: object,
    resume: object,
    flush_secs: object,
) -> None:
    texts = {"experiment": experiment, "name": name}
    numbered = {"workspace": workspace, "job": job}  # a number is a text as well
    for what, value in (texts | numbered).items():
        is_text = isinstance(value, str) or (what in numbered and isinstance(value, Integral))
        if value is not None and not is_text:
            raise TypeError(f"{what} is {value!r:.60}, not a string")
    if root is not None and not isinstance(root, str | os.PathLike):
        raise TypeError(f"root is {root!r:.60}, not a path or URI")
    if resume is not None and not isinstance(resume, bool):
        raise TypeError(f"resume is {resume!r:.60}, not True, False or None")
    if not isinstance(flush_secs, Real):
        raise TypeError(f"flush_secs is {flush_secs!r:.60}, not a number of seconds")
    if not float(flush_secs) >= 0:  # nor is NaN
        raise ValueError(f"flush_secs must be at least 0, not {flush_secs}")


def resume(run: Run, **options: Any) -> Run:
    """Open another attempt at a run that this process finished."""
    place = run.place._replace(name=run.name, requested=(None, None))
    return begin(place, command_to_record(), resume=True, rewinds=False, **options)


def begin(
    place: RunPlace,
    command: list[str],
    *,
    hparams: HParams | None = None,
    tags: Tags | None = None,
    workspace: str | None = None,
    job: str | None = None,
    ranks: Literal["first", "all"] = "first",
    rank: int | str | None = None,
    resume: bool | None = None,
    purge_step: int | None = None,
    flush_secs: float = 1.0,
    rewinds: bool = True,
) -> Run:
    """Open a run of a command at a place, with options of `init` and `Stages`."""
    if ranks not in ("first", "all"):
        raise ValueError(f"ranks must be 'first' or 'all', not {ranks!r}")
    if purge_step is not None:
        purge_step = to_whole(purge_step, "purge_step")
    found = find_rank()
    if rank is not None:
        found = found._replace(number=check_rank(rank), guessed=False)
    every_rank = ranks == "all" or (place.joined and env.every_rank_logs())
    if every_rank and found.guessed:
        raise NoLaunch(
            f"{found.launcher} does not set the ranks of the processes of this node, so "
            "ranks='all' would mix them up. Pass rank=, or set LOCAL_WORLD_SIZE."
        )
    if found.number != 0 and not every_rank:
        return SilentRun(found.number)
    rank_directory = f"rank-{found.number}"
    # `aboard run` on each rank already gives each a directory.
    is_in_rank_directory = place.joined and split(place.directory or "")[1] == rank_directory
    place = _inside_earlier(place, resume)
    leads = not place.joined and (found.number == 0 or is_in_rank_directory)
    launch = find_launch()
    kept = hparams_to_record({**launch.hparams, **plain_values({} if hparams is None else hparams)})
    shown_tags = tags_to_record(tags)

    def describe(name: str) -> Manifest:
        now = time.time()
        record = Manifest(
            name,
            place.experiment,
            workspace=without_secrets(str(workspace or "")),
            hparams=kept,
            tags=shown_tags,
            command=command,
            user=env.user_name(),
            git_commit=env.git_commit(),
            restart_key=env.restart_key(command) or launch.restart_key,
            created=now,
        )
        host = env.host_name()
        record.begin(
            at=now,
            host=host,
            pid=os.getpid(),
            job=without_secrets(str(job or os.environ.get(env.JOB) or launch.job)),
            engine_job=_engine_job(launch),
        )
        return record

    if place.fallback and found.number == 0:
        notify_once(f"logs go to {place.root}, because neither root= nor ABOARD_ROOT is set.")
    run = _Opening(place, found, resume, describe).open(
        leads=leads,
        subdirectory=rank_directory if every_rank and not is_in_rank_directory else "",
        has_record=leads or (found.number == 0 and not is_in_rank_directory),
        rewinds=rewinds,
        flush_secs=flush_secs,
        purge_step=purge_step,
    )
    if found.number == 0 or leads:
        _notify_unused_name(run)
        if kept:
            run.log_hparams(kept)
        if tags and place.joined:
            run.tag(tags)
    return run


def _engine_job(launch: Launch) -> str:
    return without_secrets(env.job_id() or launch.member)


def _inside_earlier(place: RunPlace, resume: bool | None) -> RunPlace:
    """Place another run inside the one that the environment names, if that is open."""
    if not place.expected or place.uri_of(place.name or "") not in _opened:
        return place
    experiment, name = place.requested
    if resume and name in (None, place.name):
        return place
    where = place.final_uri_of(place.name or "")
    notify_once(
        f"the environment names one run, {where}, which this process has already opened; "
        "further runs get directories inside it."
    )
    return RunPlace(place.root, experiment or place.experiment, name, inside=place)


def _notify_unused_name(run: Run) -> None:
    experiment, name = run.place.requested
    requested = f"{experiment or run.experiment}/{name or run.name}"
    actual = f"{run.experiment}/{run.name}"
    if requested != actual:
        notify_once(f"this run is {actual}, {_set_by(run)}, not {requested}.{_to_rename(run)}")


def _set_by(run: Run) -> str:
    return f"as `aboard run` set in {env.RUN}" if run.place.joined else "as set by the environment"


def _to_rename(run: Run) -> str:
    if not run.place.joined or env.JOB in os.environ:  # the job named it
        return ""
    experiment, name = run.place.requested
    options = []
    if experiment not in (None, run.experiment):
        options += ["--experiment", experiment]
    if name not in (None, run.name):
        options += ["--name", name]
    return f" To change this: aboard run {shlex.join(options)}"


@dataclass
class _Opening:
    _place: RunPlace
    _rank: Rank
    _resume: bool | None
    _describe: Callable[[str], Manifest]
    _resumed: bool = False
    _clock_lag: float = 0.0  # seconds by which this clock is behind those of earlier attempts
    _must_agree: bool = False  # other ranks log to the run too, and wait for rank 0 to name it

    def open(
        self,
        *,
        leads: bool,
        subdirectory: str,
        has_record: bool,
        rewinds: bool,
        flush_secs: float,
        purge_step: int | None,
    ) -> Run:
        self._must_agree = bool(subdirectory) and self._ranks_could_differ()
        if self._must_agree:
            self._rank = self._numbered_launch()
        record = self._claim() if leads else None
        place = self._place
        name = record.name if record is not None else self._name_from_rank_0()
        if record is not None and self._must_agree:
            storage, folder = place.folder
            announce_name(open_storage(storage), folder, self._rank, name)
        uri, final_uri = place.uri_of(name), place.final_uri_of(name)
        _opened.add(uri)
        shipment = None
        if is_remote(uri):
            from aboard.track.shipping.shipper import Shipment

            try:
                shipment = Shipment(uri)
            except StorageError as error:
                _record_failure(record, uri, error)
                raise
        directory = open_storage(str(shipment.directory) if shipment else uri)
        if record is not None and shipment is not None:
            directory.write(manifest.FILE_NAME, record.to_json())
        elif record is None and has_record:  # `aboard run` writes it
            with contextlib.suppress(StorageError, BadManifest):
                record = manifest.read(directory)
                self._resumed = len(record.attempts) > 1
        last_steps = None
        if not leads or self._resumed:  # files may be in the bucket, or not sent yet
            storages = [open_storage(one) for one in sorted({uri, final_uri})]
            last_steps = LastSteps(storages, subdirectory)
        return Run(
            place=place,
            name=name,
            uri=final_uri,
            directory=directory,
            rank=self._rank.number,
            subdirectory=subdirectory,
            attempt=record.attempts[-1].number if record is not None and leads else None,
            has_record=has_record,
            known_hparams=plain_values(record.hparams) if record is not None else None,
            clock_lag=self._clock_lag,
            stages=Stages(
                Path(directory.uri, subdirectory),
                last_steps=last_steps,
                # If several processes write, steps of another process are not repetitions.
                rewinds=rewinds and (self._resumed or not has_record),
                flush_secs=flush_secs,
                purge_step=purge_step,
                after=_last_second_before(record) if record is not None else 0,
            ),
            shipment=shipment,
        )

    # Ranks that log to the same run.

    def _ranks_could_differ(self) -> bool:
        place = self._place
        if place.joined or self._rank.size == 1:
            return False
        is_certain = place.directory is not None and self._resume is not False
        return place.name is None or bool(self._rank.launch and not is_certain)

    def _numbered_launch(self) -> Rank:
        """Return the rank with a distinct launch for each agreement."""
        rank = self._rank
        key = (rank.launch, rank.number, *self._place.folder)
        _agreements[key] += 1
        times = f"-{_agreements[key]}" if rank.launch and _agreements[key] > 1 else ""
        return rank._replace(launch=rank.launch + times)

    def _name_from_rank_0(self) -> str:
        place = self._place
        if place.name is not None and not self._must_agree:
            return place.name
        storage, folder = place.folder
        return wait_for_name(open_storage(storage), folder, self._rank)

    # Claim a new run, or resume one.

    def _claim(self) -> Manifest:
        try:
            if self._place.directory is not None:
                return self._at_fixed_directory(self._place.directory)
            return self._resume_or_claim()
        except Unreachable as error:
            if not is_remote(self._place.root):
                raise
            if self._place.directory is not None:
                name = self._place.name or ""
            else:
                shared = self._must_agree and derived_name(self._rank)
                name = shared or catalog.unclaimed_name(self._place.name)
            notify(unreachable_notice(error, name))
            self._place = self._place._replace(requested=(None, None))
            return self._describe(name)

    def _resume_or_claim(self) -> Manifest:
        place = self._place
        uri, folder = place.folder
        storage = open_storage(uri)
        key = self._describe("").restart_key
        is_restarted = env.may_continue(key) and self._resume is not False
        if place.name is None:
            earlier = _restarted_run(storage, folder, key) if is_restarted else None
            if earlier is not None and self._is_same_job(storage, folder, earlier, key):
                return self._begin_again(storage, directory_of(folder, earlier))
            first = 1 if place.inside is None else 2  # the run around it is the first
            record = catalog.claim_next(storage, folder, self._describe, first)
            if key:
                with contextlib.suppress(StorageError):  # needed only after a restart
                    storage.write(_restart_file(folder, key), record.name.encode())
            return record
        continues = self._resume or (place.expected and self._resume is None)
        if continues or (is_restarted and self._is_same_job(storage, folder, place.name, key)):
            with contextlib.suppress(NoSuchPath):
                return self._begin_again(storage, directory_of(folder, place.name))
        return catalog.claim(storage, folder, place.name, self._describe)

    def _is_same_job(self, storage: Storage, folder: str, name: str, key: str) -> bool:
        """Return whether this process, before a restart, began a run."""
        if self._place.uri_of(name) in _opened:
            return False
        with contextlib.suppress(BadManifest, NoSuchPath):
            record = manifest.read(storage, directory_of(folder, name))
            return record.restart_key == key and record.state is not State.COMPLETED
        return False

    def _at_fixed_directory(self, uri: str) -> Manifest:
        storage = open_storage(uri)
        record = self._describe(self._place.name or "")
        if not catalog.create_record(storage, "", record):
            if self._resume is False:
                raise catalog.RunExists(
                    f"a run exists at {uri}, and resume is False. Choose another directory."
                )
            record = self._begin_again(storage, "")
            experiment = record.experiment or self._place.experiment
            self._place = self._place._replace(experiment=experiment, name=record.name)
        return record

    def _begin_again(self, storage: Storage, directory: str) -> Manifest:
        new = self._describe("")
        attempt = new.attempts[0]

        def begin(record: Manifest) -> None:
            if record.state_at(attempt.started) is State.RUNNING:
                notify(f"{record.name} still seems to run on {record.host}; it is resumed here.")
            record.hparams.update(new.hparams)
            record.tags.update(new.tags)
            record.command, record.git_commit = new.command, new.git_commit
            record.user = new.user or record.user
            record.workspace = new.workspace or record.workspace
            record.restart_key = new.restart_key or record.restart_key
            engine_job = _engine_job(find_launch())
            record.begin(
                at=attempt.started,
                host=attempt.host,
                pid=attempt.pid,
                job=new.job if new.job != engine_job else "",
                engine_job=engine_job,
            )

        record = manifest.update(storage, begin, directory)
        self._clock_lag = record.attempts[-1].started - attempt.started
        self._resumed = True
        return record


def _last_second_before(record: Manifest) -> int:
    """Return the last second in which an earlier attempt may have created an event file.

    This matters if this clock is behind those of earlier attempts, and their files have not reached
    the bucket yet.
    """
    times = [max(one.started, one.ended or 0.0) for one in record.attempts[:-1]]
    last = max(times, default=0.0)
    return int(last + HEARTBEAT_SECS) if last > time.time() else 0


def _restarted_run(storage: Storage, folder: str, key: str) -> str | None:
    with contextlib.suppress(NoSuchPath, BadName, UnicodeDecodeError):
        return check_name(storage.read(_restart_file(folder, key)).decode(), "run")
    return None


def _restart_file(folder: str, key: str) -> str:
    return directory_of(folder, f".restart-{env.digest(key)[:16]}")


def _record_failure(record: Manifest | None, uri: str, error: StorageError) -> None:
    """End a claimed run that cannot begin, so that it does not seem to run."""
    if record is not None:
        record.end(State.FAILED, reason=without_secrets(str(error)))
        with contextlib.suppress(StorageError):
            open_storage(uri).write(manifest.FILE_NAME, record.to_json())
