"""`aboard.init`: decide where a run goes, claim or resume it, and open it for logging."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from functools import partial
from typing import Literal

from aboard.runs import layout, manifest
from aboard.runs.layout import directory_of
from aboard.runs.manifest import BadManifest, Manifest, State, Tags, plain_tags, plain_values
from aboard.storage import (
    AlreadyExists,
    NotFound,
    Storage,
    StorageError,
    Unreachable,
    is_remote,
    join,
    open_storage,
    split,
)
from aboard.track import about, env, launch
from aboard.track.place import Place, find_place
from aboard.track.rank import Rank, find_rank
from aboard.track.run import Run, SilentRun
from aboard.track.say import say
from aboard.track.steps import LastSteps

_said: set[str] = set()


def init(
    experiment: str | None = None,
    name: str | None = None,
    root: str | os.PathLike[str] | None = None,
    *,
    hparams: Mapping[str, object] | None = None,
    tags: Tags | None = None,
    workspace: str | None = None,
    job: str | None = None,
    ranks: Literal["first", "all"] = "first",
    rank: int | None = None,
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
        rank: which of them this is; found by itself under torchrun, Slurm, MPI and others.
        resume: True goes on with the run of that name if there is one. None does so where the
            environment says that this is the same job, started again. False never does.
        purge_step: after a resumption, the step from which on TensorBoard shall forget what
            the earlier attempt logged. Not needed by `aboard view`, which sees it by itself.
        flush_secs: what is logged reaches its file within that time.

    Raises:
        RunExists: the name is taken, and `resume` does not say what to do.
        BadName: the experiment or run cannot be called that.
        StorageError: the root cannot be written to.
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


def begin(
    place: Place,
    command: list[str],
    *,
    hparams: Mapping[str, object] | None = None,
    tags: Tags | None = None,
    workspace: str | None = None,
    job: str | None = None,
    ranks: Literal["first", "all"] = "first",
    rank: int | None = None,
    resume: bool | None = None,
    purge_step: int | None = None,
    flush_secs: float = 1.0,
) -> Run:
    """Open a run of a command at a place; the rest is as for `init`."""
    if ranks not in ("first", "all"):
        raise ValueError(f"ranks is 'first' or 'all', not {ranks!r}")
    found = find_rank()
    if rank is not None:
        found = found._replace(number=rank, guessed=False)
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
    start = _Start(
        place,
        found,
        resume,
        partial(
            _describe,
            command=command,
            experiment=place.experiment,
            workspace=workspace or "",
            job=job or env.job_of(),
            hparams=plain_values(hparams or {}),
            tags=plain_tags(tags),
        ),
    )
    if place.fallback and found.number == 0:
        _say_once(f"logs go to {place.root}, since neither root= nor ABOARD_ROOT says where.")
    run = start.open(
        subdirectory=own_name if every_rank and not own_directory else "",
        has_record=found.number == 0 and not own_directory,
        flush_secs=flush_secs,
        purge_step=purge_step,
    )
    if hparams and found.number == 0:
        run.log_hparams(hparams)
    if tags and place.joined and found.number == 0:
        run.tag(tags)
    return run


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
        """Whether other ranks log to the run too, and cannot know its name by themselves."""

    def open(
        self, *, subdirectory: str, has_record: bool, flush_secs: float, purge_step: int | None
    ) -> Run:
        place = self._place
        self._is_one_of_many = bool(subdirectory) and place.name is None and self._rank.size > 1
        record: Manifest | None = None
        if place.joined or self._rank.number != 0:
            name = place.name or self._announced_name()
        else:
            record = self._claimed()
            name = record.name
            if self._is_one_of_many:
                launch.announce(open_storage(place.root), place.experiment, self._rank, name)
        uri = place.uri_of(name)
        whole_uri = join(place.root, directory_of(place.experiment, name)) if place.joined else uri
        shipment = None
        if is_remote(uri):
            from aboard.track.shipment import Shipment

            shipment = Shipment(uri)
        directory = open_storage(str(shipment.directory) if shipment else uri)
        if record is not None and shipment is not None:
            directory.write(manifest.FILE_NAME, record.to_json())
        run = Run(
            name=name,
            experiment=place.experiment,
            root=place.root,
            uri=whole_uri,
            directory=directory,
            rank=self._rank.number,
            subdirectory=subdirectory,
            attempt=record.attempts[-1].number if record is not None else None,
            has_record=has_record,
            hparams=self._known_hparams(record, directory) if has_record else None,
            last_steps=self._last_steps({uri, whole_uri}, subdirectory),
            shipment=shipment,
            flush_secs=flush_secs,
            purge_step=purge_step,
        )
        run.joined = place.joined
        return run

    def _known_hparams(self, record: Manifest | None, directory: Storage) -> dict[str, object]:
        """Return what is recorded already, by an earlier attempt or by `aboard run`."""
        if record is None:
            with contextlib.suppress(StorageError, BadManifest):
                record = manifest.read(directory)
        return plain_values(record.hparams) if record is not None else {}

    def _last_steps(self, uris: set[str], subdirectory: str) -> LastSteps | None:
        """Look up where the run left off, in a bucket and in what is on its way there."""
        if not self._resumed and not self._place.joined:
            return None
        return LastSteps([open_storage(uri) for uri in sorted(uris)], subdirectory)

    def _claimed(self) -> Manifest:
        try:
            return self._resume_or_claim()
        except Unreachable as error:
            if not is_remote(self._place.root):
                raise
            shared = self._is_one_of_many and launch.unclaimed_name(self._rank)
            name = shared or layout.unclaimed_name(self._place.name)
            say(f"{error} The run is called {name}, and its logs are sent when that changes.")
            self._place = self._place._replace(directory=None)
            return self._describe(name)

    def _resume_or_claim(self) -> Manifest:
        place = self._place
        if place.directory is not None:
            return self._at_fixed_directory(place.directory)
        storage = open_storage(place.root)
        if place.name is None:
            earlier = _earlier_attempt(storage, place.experiment, self._describe("").restart_key)
            if earlier is not None and self._resume is not False:
                return self._another_attempt(storage, earlier)
            return layout.claim_next(storage, place.experiment, self._describe)
        if self._resume or (place.expected and self._resume is None):
            with contextlib.suppress(NotFound):
                return self._another_attempt(storage, place.name)
        return layout.claim(storage, place.experiment, place.name, self._describe)

    def _at_fixed_directory(self, uri: str) -> Manifest:
        """Begin or resume the run in the directory that the environment names."""
        storage = open_storage(uri)
        record = self._describe(self._place.name or "")
        try:
            storage.create_new(manifest.FILE_NAME, record.to_json())
        except AlreadyExists:
            if self._resume is False:
                problem = f"there is a run at {uri} already, and resume is False"
                raise layout.RunExists(f"{problem}. Choose another directory.") from None
            return self._begin_again(storage, "")
        return record

    def _another_attempt(self, storage: Storage, name: str) -> Manifest:
        return self._begin_again(storage, directory_of(self._place.experiment, name))

    def _begin_again(self, storage: Storage, directory: str) -> Manifest:
        new = self._describe("")
        attempt = new.attempts[0]

        def begin(record: Manifest) -> None:
            if record.state_at(attempt.started) is State.RUNNING:
                say(f"{record.name} seems to be running still on {record.host}; going on with it.")
            record.hparams.update(new.hparams)
            record.tags.update(new.tags)
            record.command = new.command
            record.restart_key = new.restart_key or record.restart_key
            record.begin(at=attempt.started, host=attempt.host, pid=attempt.pid, job=attempt.job)

        record = manifest.update(storage, begin, directory)
        self._resumed = True
        return record

    def _announced_name(self) -> str:
        return launch.wait_for_name(
            open_storage(self._place.root), self._place.experiment, self._rank
        )


def _earlier_attempt(storage: Storage, experiment: str, key: str) -> str | None:
    """Return the run that this job began before its scheduler started it again."""
    if not key or not env.was_restarted():
        return None
    found: Manifest | None = None
    for entry in storage.list(experiment, containing=manifest.FILE_NAME):
        directory = entry.name.rpartition("/")[0]
        with contextlib.suppress(BadManifest, NotFound):
            record = manifest.read(storage, directory)
            if record.restart_key != key or record.state is State.COMPLETED:
                continue
            if found is None or record.heartbeat > found.heartbeat:
                found = record
    return found.name if found is not None else None


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        say(text)
