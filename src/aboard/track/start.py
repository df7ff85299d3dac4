"""`aboard.init`: decide where a run goes, claim or resume it, and open it for logging."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aboard.runs import layout, manifest
from aboard.runs.layout import directory_of
from aboard.runs.manifest import BadManifest, Manifest, State
from aboard.runs.values import Tags, plain_tags, plain_values
from aboard.storage import (
    NotFound,
    Storage,
    StorageError,
    Unreachable,
    is_remote,
    open_storage,
    split,
)
from aboard.track import about, env, launch, restart
from aboard.track.arrays import to_whole
from aboard.track.hparams import to_keep
from aboard.track.place import Place, find_place
from aboard.track.rank import Rank, find_rank, given_rank
from aboard.track.run import Run, SilentRun
from aboard.track.say import say, say_once
from aboard.track.stages import Stages
from aboard.track.steps import LastSteps

if TYPE_CHECKING:
    from aboard.runs.values import HParams

_opened: set[str] = set()
"""Where the runs lie that this process has opened."""
_agreed: Counter[tuple[object, ...]] = Counter()
"""How often ranks of a launch have agreed on a run."""


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
        experiment: what the run is part of; `default` unless told.
        name: the run's name; the next of `run1`, `run2`, … unless told.
        root: a path or URI. Unless told, what the environment says (`ABOARD_ROOT`,
            `ABOARD_LOGDIR`, or the variable of another platform), or else `./runs`.
        hparams: hyperparameters, as `Run.log_hparams` takes them.
        tags: a name, several, or names with values.
        workspace: noted in the run's record.
        job: the scheduler's name for the job; found by itself under Slurm and others.
        ranks: of many processes launched together the first one logs, or `all` do, each in a
            directory of its own, `rank-0`, `rank-1`, …
        rank: which of them this is; found by itself under torchrun, Slurm, MPI and others. A
            negative one means that there are no others.
        resume: True goes on with the run of that name if there is one. None does so where the
            environment says that this is the same job, started again. False never does.
        purge_step: after a resumption, the step from which on TensorBoard shall forget what
            the earlier attempt logged; unless told, the first step that is logged, in each stage
            by itself. `aboard view` needs neither.
        flush_secs: what is logged reaches its file within that time.

    Raises:
        RunExists: the name is taken, and `resume` does not say what to do.
        BadName: the experiment or run cannot be called that.
        StorageError: the root cannot be written to.
        TypeError: the hyperparameters have no names.
        ValueError: `ranks`, `rank` or `purge_step` is not what it should be.
    """
    return begin(
        find_place(root, experiment, name),
        about.command_line(),
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


def resume(run: Run, **options: Any) -> Run:
    """Open another attempt at a run that this process has finished; options are as for `begin`.

    What it logs is added to what is there: it does nothing again.
    """
    place = run.place._replace(name=run.name, asked=(None, None))
    return begin(place, about.command_line(), resume=True, rewinds=False, **options)


def begin(
    place: Place,
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
    """Open a run of a command at a place; the rest is as for `init` and `Stages`."""
    if ranks not in ("first", "all"):
        raise ValueError(f"ranks is 'first' or 'all', not {ranks!r}")
    if purge_step is not None:
        purge_step = to_whole(purge_step, "purge_step")
    found = find_rank()
    if rank is not None:
        found = found._replace(number=given_rank(rank), guessed=False)
    every_rank = ranks == "all" or (place.joined and env.every_rank_logs())
    if every_rank and found.guessed:
        raise launch.NoLaunch(
            f"{found.launcher} does not tell the processes of this node which ranks they are, "
            "and ranks='all' would mix them up. Give rank=, or set LOCAL_WORLD_SIZE."
        )
    if found.number != 0 and not every_rank:
        return SilentRun(found.number)
    own_name = f"rank-{found.number}"
    own_directory = place.joined and split(place.directory or "")[1] == own_name
    place = _beside_earlier(place, resume)
    leads = not place.joined and (found.number == 0 or own_directory)
    kept = to_keep(hparams)
    start = _Start(
        place,
        found,
        resume,
        partial(
            _describe,
            command=command,
            experiment=place.experiment,
            workspace=str(workspace or ""),
            job=str(job or env.job_of()),
            hparams=kept,
            tags=plain_tags(tags),
        ),
    )
    if place.fallback and found.number == 0:
        say_once(f"logs go to {place.root}, since neither root= nor ABOARD_ROOT says where.")
    run = start.open(
        leads=leads,
        subdirectory=own_name if every_rank and not own_directory else "",
        has_record=leads or (found.number == 0 and not own_directory),
        rewinds=rewinds,
        flush_secs=flush_secs,
        purge_step=purge_step,
    )
    if found.number == 0 or leads:
        _say_what_is_not_used(run)
        if kept:
            run.log_hparams(kept)
        if tags and place.joined:
            run.tag(tags)
    return run


def _beside_earlier(place: Place, resume: bool | None) -> Place:
    """Return the place of another run where this process has begun the one that is named there."""
    if not place.expected or place.uri_of(place.name or "") not in _opened:
        return place
    experiment, name = place.asked
    if resume and name in (None, place.name):
        return place
    where = place.whole_uri_of(place.name or "")
    say_once(
        f"the environment has one run in mind, {where}, which this process has begun already; "
        "others get directories inside it."
    )
    return Place(place.root, experiment or place.experiment, name, inside=place)


def _say_what_is_not_used(run: Run) -> None:
    experiment, name = run.place.asked
    asked = f"{experiment or run.experiment}/{name or run.name}"
    called = f"{run.experiment}/{run.name}"
    if asked != called:
        say_once(f"this run is {called}, as the environment says, and not called {asked}.")


def _describe(
    name: str,
    *,
    command: list[str],
    experiment: str,
    workspace: str,
    job: str,
    hparams: dict[str, object],
    tags: dict[str, object],
) -> Manifest:
    """Make the record of a run that begins now."""
    now = time.time()
    record = Manifest(
        name,
        experiment,
        workspace=workspace,
        hparams=hparams,
        tags=tags,
        command=command,
        user=about.user_name(),
        git_commit=about.git_commit(),
        restart_key=env.restart_key(command),
        created=now,
    )
    record.begin(at=now, host=about.host_name(), pid=os.getpid(), job=job)
    return record


class _Start:
    """One way from a place to an open run."""

    def __init__(
        self, place: Place, rank: Rank, resume: bool | None, describe: layout.Describe
    ) -> None:
        self._place = place
        self._rank = rank
        self._resume = resume
        self._describe = describe
        self._resumed = False
        self._is_one_of_many = False
        """Whether other ranks log to the run too, and wait for the first one's word."""

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
        self._is_one_of_many = bool(subdirectory) and self._must_agree()
        if self._is_one_of_many:
            self._rank = self._at_this_time()
        record = self._claimed() if leads else None
        place = self._place
        name = record.name if record is not None else self._name_of_another()
        if record is not None and self._is_one_of_many:
            storage, folder = place.folder
            launch.announce(open_storage(storage), folder, self._rank, name)
        uri = place.uri_of(name)
        whole_uri = place.whole_uri_of(name)
        _opened.add(uri)
        shipment = None
        if is_remote(uri):
            from aboard.track.shipment import Shipment

            try:
                shipment = Shipment(uri)
            except StorageError as error:
                _end_as_failed(record, uri, error)
                raise
        directory = open_storage(str(shipment.directory) if shipment else uri)
        if record is not None and shipment is not None:
            directory.write(manifest.FILE_NAME, record.to_json())
        elif record is None and has_record:
            record = _recorded(directory)
            self._resumed = record is not None and len(record.attempts) > 1
        return Run(
            place=place,
            name=name,
            uri=whole_uri,
            directory=directory,
            rank=self._rank.number,
            subdirectory=subdirectory,
            attempt=record.attempts[-1].number if record is not None and leads else None,
            has_record=has_record,
            known_hparams=plain_values(record.hparams) if record is not None else None,
            stages=Stages(
                Path(directory.uri, subdirectory),
                last_steps=self._last_steps({uri, whole_uri}, subdirectory, leads=leads),
                # Where several write, what another one has written is not ours to do again.
                rewinds=rewinds and (self._resumed or not has_record),
                flush_secs=flush_secs,
                purge_step=purge_step,
            ),
            shipment=shipment,
        )

    def _must_agree(self) -> bool:
        """Say whether ranks could log to different runs if each went by what it is told."""
        place = self._place
        if place.joined or self._rank.size == 1:
            return False
        is_certain = place.directory is not None and self._resume is not False
        return place.name is None or bool(self._rank.launch and not is_certain)

    def _at_this_time(self) -> Rank:
        """Return the rank in a launch of its own for each time that its processes agree."""
        rank = self._rank
        asked = (rank.launch, rank.number, *self._place.folder)
        _agreed[asked] += 1
        times = f"-{_agreed[asked]}" if rank.launch and _agreed[asked] > 1 else ""
        return rank._replace(launch=rank.launch + times)

    def _name_of_another(self) -> str:
        place = self._place
        if place.name is not None and not self._is_one_of_many:
            return place.name
        storage, folder = place.folder
        return launch.wait_for_name(open_storage(storage), folder, self._rank)

    def _last_steps(self, uris: set[str], subdirectory: str, *, leads: bool) -> LastSteps | None:
        """Look up where the run left off, in a bucket and in what is on its way there."""
        if leads and not self._resumed:
            return None
        return LastSteps([open_storage(uri) for uri in sorted(uris)], subdirectory)

    def _claimed(self) -> Manifest:
        try:
            return self._resume_or_claim()
        except Unreachable as error:
            if not is_remote(self._place.root):
                raise
            if self._place.directory is not None:
                name = self._place.name or ""
            else:
                shared = self._is_one_of_many and launch.unclaimed_name(self._rank)
                name = shared or layout.unclaimed_name(self._place.name)
            say(f"{error} The run is called {name}, and its logs are sent when that changes.")
            self._place = self._place._replace(asked=(None, None))
            return self._describe(name)

    def _resume_or_claim(self) -> Manifest:
        place = self._place
        if place.directory is not None:
            return self._at_fixed_directory(place.directory)
        uri, folder = place.folder
        storage = open_storage(uri)
        key = self._describe("").restart_key
        is_restarted = bool(key) and env.was_restarted() and self._resume is not False
        if place.name is None:
            earlier = restart.recall(storage, folder, key) if is_restarted else None
            if earlier is not None and self._is_same_job(storage, folder, earlier, key):
                return self._begin_again(storage, directory_of(folder, earlier))
            first = 1 if place.inside is None else 2  # the run around it is the first
            record = layout.claim_next(storage, folder, self._describe, first)
            restart.remember(storage, folder, key, record.name)
            return record
        goes_on = self._resume or (place.expected and self._resume is None)
        if goes_on or (is_restarted and self._is_same_job(storage, folder, place.name, key)):
            with contextlib.suppress(NotFound):
                return self._begin_again(storage, directory_of(folder, place.name))
        return layout.claim(storage, folder, place.name, self._describe)

    def _is_same_job(self, storage: Storage, folder: str, name: str, key: str) -> bool:
        """Say whether a run was begun by the process that this one replaces."""
        if self._place.uri_of(name) in _opened:
            return False
        with contextlib.suppress(BadManifest, NotFound):
            record = manifest.read(storage, directory_of(folder, name))
            return record.restart_key == key and record.state is not State.COMPLETED
        return False

    def _at_fixed_directory(self, uri: str) -> Manifest:
        """Begin or resume the run in the directory that the environment names."""
        storage = open_storage(uri)
        record = self._describe(self._place.name or "")
        if not layout.create_record(storage, "", record):
            if self._resume is False:
                problem = f"there is a run at {uri} already, and resume is False"
                raise layout.RunExists(f"{problem}. Choose another directory.")
            record = self._begin_again(storage, "")
            experiment = record.experiment or self._place.experiment
            self._place = self._place._replace(experiment=experiment, name=record.name)
        return record

    def _begin_again(self, storage: Storage, directory: str) -> Manifest:
        new = self._describe("")
        attempt = new.attempts[0]

        def begin(record: Manifest) -> None:
            if record.state_at(attempt.started) is State.RUNNING:
                say(f"{record.name} seems to be running still on {record.host}; going on with it.")
            record.hparams.update(new.hparams)
            record.tags.update(new.tags)
            record.command, record.git_commit = new.command, new.git_commit
            record.user = new.user or record.user
            record.workspace = new.workspace or record.workspace
            record.restart_key = new.restart_key or record.restart_key
            record.begin(at=attempt.started, host=attempt.host, pid=attempt.pid, job=attempt.job)

        record = manifest.update(storage, begin, directory)
        self._resumed = True
        return record


def _end_as_failed(record: Manifest | None, uri: str, error: StorageError) -> None:
    """Note that a run that was claimed could not begin, lest it seems to run for ever."""
    if record is not None:
        record.end(State.FAILED, reason=str(error))
        with contextlib.suppress(StorageError):
            open_storage(uri).write(manifest.FILE_NAME, record.to_json())


def _recorded(directory: Storage) -> Manifest | None:
    """Return the record of a run that `aboard run` keeps."""
    with contextlib.suppress(StorageError, BadManifest):
        return manifest.read(directory)
    return None
