"""Operations on jobs: submit, list, follow, stop, retry, delete and wait for them.

They work on the records below some roots and on the engines, without a hub. One query per engine
returns the states of all members that have not ended; final states are written to the records.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple, Self

from aboard import system
from aboard.executors import (
    BATCHES,
    IDENTITIES,
    Profiles,
    batch_executor,
    read_engines,
    split_place,
    unknown,
)
from aboard.executors.base import (
    PYTHON,
    Batch,
    BatchExecutor,
    ExecutorError,
    Handle,
    Resources,
    TaskState,
    TaskStatus,
)
from aboard.jobs import BadJob, JobError, JobExists, JobTimeout, NoSuchJob
from aboard.jobs.member import JOB, NUMBER, RESERVED, check_placeholders, expand, fill
from aboard.jobs.model import (
    MEMBER_ENDED,
    UNSUCCESSFUL,
    Ending,
    JobRecord,
    JobState,
    JobStatus,
    MemberState,
    Submission,
    check_id,
    make_payload,
    new_id,
    standing_of,
)
from aboard.jobs.store import JobStore, MemberLog
from aboard.runs import manifest
from aboard.runs.catalog import DEFAULT_EXPERIMENT, BadName, check_name, directory_of
from aboard.runs.manifest import BadManifest, Manifest
from aboard.storage import (
    NoSuchPath,
    StorageError,
    Unreachable,
    canonical,
    is_remote,
    join,
    open_storage,
)
from aboard.system import Backoff, write_private

TASK = (PYTHON, "-P", "-m", "aboard.jobs.member")
"""The command of a task; the path of the payload and its number follow."""

_ONE, _MANY = f"{{{JOB}}}", f"{{{JOB}}}-{{{NUMBER}}}"
_TRIES = 5  # to find a free id
_AT_ONCE = 16
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.1, 5.0
_FOLLOW_SECONDS = 0.5
_LOG_TAIL = 20
_LEFT_OPEN = ("cpus", "memory", "time")  # the engine's default, unless given

OnError = Callable[[Exception], None]
Statuses = list[JobStatus]
Ids = list[str]

_unnoted: set[tuple[str, str, float]] = set()
"""Submissions of this process that an engine accepted but that could not be recorded."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What to submit.

    The members are the product of `sweep`, each `repeat` times, or `members`. They share `hparams`.
    `function`, a result of `pickled`, replaces the command.
    """

    command: Sequence[str] = ()
    function: str = field(default="", repr=False)
    path: Sequence[str] = ()
    experiment: str = DEFAULT_EXPERIMENT
    on: str = "process"
    name: str | None = None
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    repeat: int = 1
    members: Sequence[Mapping[str, Any]] | None = None
    hparams: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    resources: Resources = field(default_factory=Resources)
    image: str = ""
    parallel: int | None = None
    workdir: Path | None = None


class Planned(NamedTuple):
    """A job that can be submitted: its record, and the payload of its tasks."""

    record: JobRecord
    payload: bytes

    @property
    def batch(self) -> Batch:
        return _batch(self.record, self.record.submissions[-1], self.payload)


class Jobs:
    """The jobs below some roots; new jobs are submitted to the first.

    `engines` has the engines and their settings; by default all, with the user's `aboard.toml`.
    Members on other engines are unknown until their runs have completed. `on_error` receives errors
    that do not stop an operation. If `strict`, as in a team's hub, user names in records are not
    trusted.
    """

    def __init__(
        self,
        roots: Iterable[str],
        engines: Mapping[str, Profiles] | None = None,
        *,
        on_error: OnError = lambda _: None,
        strict: bool = False,
    ) -> None:
        self.stores = [JobStore(root) for root in dict.fromkeys(map(canonical, roots))]
        self._engines = engines
        self._strict = strict
        self._lock = threading.Lock()
        self._executors: dict[str, BatchExecutor] = {}
        self._on_error = on_error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the executors; jobs continue."""
        with self._lock:
            executors = list(self._executors.values())
            self._executors.clear()
        for executor in executors:
            executor.close()

    # Submit.

    def submit(self, request: JobRequest) -> JobStatus:
        """Submit a job, without waiting until its members begin.

        Raises:
            BadJob: the request is invalid, or the name is taken.
            ExecutorError: the engine rejected it.
            StorageError: the root cannot be written to.

        In each case, nothing is left behind. Any other `JobError` means that the engine accepted
        the job, but then the root could not be written to: the job stays.
        """
        store = self._submitting_store()
        had_root = is_remote(store.root) or Path(store.root).exists()
        planned = self._claimed(store, request)
        try:
            write_kept(store, planned.record, planned.payload)
            return JobStatus(self._submit_batch(store, planned.record, planned.batch))
        except KeyboardInterrupt:
            with suppress(StorageError, JobError):  # the next query completes the submission
                store.update(planned.record.id, _mark_interrupted)
            job = planned.record.id
            self._on_error(
                JobError(f"job {job} may be submitted; stop it with: aboard jobs stop {job}")
            )
            raise
        except (ExecutorError, StorageError, OSError) as error:
            store.delete(planned.record)
            if not had_root:
                with suppress(OSError):
                    Path(store.root).rmdir()
            if isinstance(error, OSError) and not isinstance(error, StorageError):
                raise _cannot_write(store.submission_file(planned.record.id), error) from error
            raise

    def preview(self, request: JobRequest) -> tuple[JobStatus, str]:
        """Return the job, and what would be submitted to its engine."""
        store = self._submitting_store()
        planned = self._plan(store, request, check_id(request.name) if request.name else new_id())
        return JobStatus(planned.record), self._executor(planned.record).preview(planned.batch)

    def _submitting_store(self) -> JobStore:
        if not self.stores:
            raise BadJob("no root for the job's runs. Give one, or set ABOARD_ROOT.")
        return self.stores[0]

    def _claimed(self, store: JobStore, request: JobRequest) -> Planned:
        """Plan a job and create its record, which claims its id."""
        name = check_id(request.name) if request.name else None
        for left in reversed(range(_TRIES)):
            planned = self._plan(store, request, name or new_id())
            if name:
                self._check_no_runs(store, planned.record)
            try:
                store.create(planned.record)
            except BadJob:
                if name or not left:
                    raise
                continue
            return self._placed(store, planned)
        raise AssertionError

    def _check_no_runs(self, store: JobStore, record: JobRecord) -> None:
        """Raise `JobExists` if runs have these names: the members would continue them."""
        with suppress(NoSuchJob):
            store.read(record.id)
            return  # the job itself exists: a better message
        most = _AT_ONCE if is_remote(record.root) else len(record.members)
        if runs := self._runs(record, record.numbers[:most]):
            number = min(runs)
            raise JobExists(
                f"{record.root} already has a run {record.run_label(number)!r}. Choose another name"
                " for the job."
            )
        if label := self._run_of_before(record):
            raise JobExists(
                f"{record.root} has a run {label!r} of an earlier job {record.id!r}, which"
                f" {record.selector} would select too. Choose another name for the job."
            )

    def _run_of_before(self, record: JobRecord) -> str:
        """Return a run of a deleted job with this id; in a bucket this costs two requests."""
        storage = open_storage(record.root)
        if is_remote(record.root):
            names = [record.id, f"{record.id}-1"]
            labels = [directory_of(record.experiment, name) for name in names]
        else:
            found = Path(record.root).glob(f"*/{escape(record.id)}*/{manifest.FILE_NAME}")
            labels = [str(one.parent.relative_to(record.root)) for one in found]
        for label in labels:
            with suppress(StorageError, BadManifest):
                run = manifest.read(storage, label)
                if run.job == record.id:
                    return label
        return ""

    def _placed(self, store: JobStore, planned: Planned) -> Planned:
        """Record the directory of the engine's files, which the store knows now."""
        directory = str(store.directory(planned.record.id, 1).absolute())
        if directory == planned.record.submissions[0].directory:
            return planned

        def note(record: JobRecord) -> None:
            record.submissions[0].directory = directory

        return Planned(store.update(planned.record.id, note), planned.payload)

    def _plan(self, store: JobStore, request: JobRequest, job: str) -> Planned:
        from aboard.track.environment import host_name, user_name
        from aboard.track.redaction import without_secret_arguments, without_secret_values

        executor = self._executor_of(request.on)
        try:
            executor.settings(split_place(request.on)[1])
        except ExecutorError as error:
            raise BadJob(str(error)) from error
        members = _members(request)
        _check(request, members, executor)
        with_names = bool(request.sweep) or request.repeat > 1 or len(members) > 1
        record = JobRecord(
            id=job,
            root=store.root,
            experiment=_checked_experiment(request.experiment),
            run=_MANY if with_names or request.members is not None else _ONE,
            command=without_secret_arguments(request.command),
            on=request.on,
            members=[without_secret_values(one) for one in members],
            environment=without_secret_values(request.environment),
            tags=without_secret_values(request.tags),
            resources=_given_resources(request.resources),
            image=request.image,
            parallel=request.parallel,
            workdir=str(Path(request.workdir or Path.cwd()).absolute()),
            user=user_name(),
            host=host_name(),
            created=time.time(),
            logs=executor.log_directory if _is_own_cloud(executor.name, store.root) else "",
        )
        submission = self._submission(store, record, list(record.numbers))
        record.submissions.append(submission)
        payload = make_payload(
            record,
            command=request.command,
            function=request.function,
            path=request.path,
            members=members,
            environment=request.environment,
            tags=request.tags,
        )
        return Planned(record, payload)

    def _submission(self, store: JobStore, record: JobRecord, numbers: list[int]) -> Submission:
        attempt = len(record.submissions) + 1
        return Submission(
            attempt=attempt,
            numbers=numbers,
            at=time.time(),
            by=system.process_identity(),
            directory=str(store.directory(record.id, attempt).absolute()),
        )

    def _submit_batch(self, store: JobStore, record: JobRecord, batch: Batch) -> JobRecord:
        """Submit to the engine, and record the handle.

        If that cannot be recorded, the record stays, so that the members can be found: the next
        query completes the submission.
        """
        batch.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = self._executor(record).submit(batch)

        def note(changed: JobRecord) -> None:
            for one in changed.submissions:
                if one.attempt == batch.attempt:
                    one.handle = handle

        try:
            return store.update(record.id, note)
        except (StorageError, OSError) as error:
            (submission,) = (one for one in record.submissions if one.attempt == batch.attempt)
            _unnoted.add(_key(record, submission))
            with suppress(StorageError, JobError, OSError):
                store.update(record.id, _mark_interrupted)
            raise JobError(
                f"{error} Job {record.id} was submitted anyway; stop it with: aboard jobs stop"
                f" {record.id}"
            ) from error

    # Query.

    def list(self) -> Statuses:
        """Return all jobs, the newest first; one query per engine."""
        found: list[JobRecord] = []
        for store in self.stores:
            try:
                found += store.records(self._on_error)
            except StorageError as error:
                self._on_error(error)
        return self.statuses(sorted(found, key=lambda one: -one.created))

    def get(self, job: str) -> JobStatus:
        """Return a job by its id, or a unique prefix of it."""
        record = self.find(job)
        found = self.statuses([record])
        if not found:
            raise NoSuchJob(f"job {record.id} was never submitted.")
        return found[0]

    def find(self, job: str) -> JobRecord:
        """Return the record of a job by its id, or a unique prefix of it; queries no engine."""
        job = job.removeprefix("job:")
        for store in self.stores:
            with suppress(NoSuchJob, NoSuchPath):
                if job and "/" not in job:
                    return store.read(job)
        known = [(one, store) for store in self.stores for one in self._ids(store)]
        near = [(one, store) for one, store in known if job and one.startswith(job)]
        if len(near) == 1:
            return near[0][1].read(near[0][0])
        if near:
            some = ", ".join(sorted(one for one, _ in near)[:8])
            raise NoSuchJob(f"{job!r} is the beginning of several ids: {some}. Write more of it.")
        where = ", ".join(store.root for store in self.stores) or "any known root"
        raise NoSuchJob(
            f"job {job!r} not found below {where}. List jobs with: aboard jobs, or name another"
            " --root. Select runs of another launcher's job with job:ID."
        )

    def _ids(self, store: JobStore) -> Ids:
        try:
            return store.ids()
        except StorageError as error:
            self._on_error(error)
            return []

    def statuses(self, records: Sequence[JobRecord]) -> Statuses:
        """Return the states of jobs, and record how their members ended.

        A record whose submission was interrupted before it reached the engine is removed.
        """
        kept = [one for one in map(self._recovered, records) if one is not None]
        tasks = self._tasks(kept)
        return [
            self._status(record, known) if (known := tasks.get(at)) else JobStatus(record)
            for at, record in enumerate(kept)
        ]

    def _tasks(self, records: Sequence[JobRecord]) -> dict[int, dict[int, TaskStatus]]:
        """Query each engine once for all members that have not ended; keys are positions."""
        handles: dict[str, dict[str, Handle]] = {}
        queries: dict[str, tuple[int, list[int]]] = {}
        found: dict[int, dict[int, TaskStatus]] = {}
        for at, record in enumerate(records):
            if len(record.settled) >= len(record.members):
                continue
            for submission in record.submissions:
                numbers = record.unsettled(submission)
                if not numbers:
                    continue
                if submission.handle is None:
                    status = TaskStatus(TaskState.WAITING, reason=_being_submitted(submission))
                    found.setdefault(at, {}).update(dict.fromkeys(numbers, status))
                    continue
                key = f"{at}/{submission.attempt}"
                handles.setdefault(record.engine, {})[key] = submission.handle
                queries[key] = at, numbers

        def ask(engine: str) -> dict[str, dict[int, TaskStatus]]:
            try:
                return self._executor_of(engine).tasks(handles[engine])
            except (JobError, ExecutorError, ImportError) as error:
                # An error of this installation or machine, not of the job.
                unknown = TaskStatus(TaskState.UNKNOWN, reason=str(error))
                return {key: dict.fromkeys(queries[key][1], unknown) for key in handles[engine]}

        if len(handles) > 1:
            with ThreadPoolExecutor(len(handles)) as pool:
                answers = list(pool.map(ask, handles))
        else:
            answers = [ask(engine) for engine in handles]
        missing = TaskStatus(TaskState.UNKNOWN, reason="the engine did not report it")
        for answer in answers:
            for key, of_batch in answer.items():
                at, numbers = queries[key]
                tasks = found.setdefault(at, {})
                tasks.update({number: of_batch.get(number, missing) for number in numbers})
        return found

    def _status(self, record: JobRecord, tasks: Mapping[int, TaskStatus]) -> JobStatus:
        """Combine the engine's status of members with the records of their runs."""
        latest = record.latest()
        quiet = (TaskState.WAITING, TaskState.RUNNING)
        looked = [number for number, task in tasks.items() if task.state not in quiet]
        runs = self._runs(record, looked)
        now = time.time()
        shipped = is_remote(record.root)
        standing: dict[int, Ending] = {}
        settled: dict[int, Ending] = {}
        for number, task in tasks.items():
            submission = latest[number]
            run = runs.get(number)
            if not submission.has_begun(number, run):
                run = None
            ending, final = standing_of(
                task, run, now, stopped=record.stopped is not None, shipped=shipped
            )
            if final and run is None and ending.state is MemberState.FAILED and not task.reason:
                words = self._last_output(record, submission, number)
                ending = ending._replace(reason=f"{ending.reason}: {words}".removesuffix(": "))
            (settled if final else standing)[number] = ending
        if settled:
            record = self._settled(record, settled)
        units = {number: task.unit for number, task in tasks.items() if task.unit}
        return JobStatus(record, standing, units)

    def _runs(self, record: JobRecord, numbers: Sequence[int]) -> dict[int, Manifest]:
        storage = open_storage(record.root)

        def read(number: int) -> Manifest | None:
            try:
                return manifest.read(storage, record.run_directory(number))
            except (StorageError, BadManifest) as error:
                if not isinstance(error, NoSuchPath):
                    self._on_error(error)
                return None

        if is_remote(record.root) and len(numbers) > 1:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                found = list(pool.map(read, numbers))
        else:
            found = [read(number) for number in numbers]
        return {number: run for number, run in zip(numbers, found, strict=True) if run is not None}

    def _last_output(self, record: JobRecord, submission: Submission, number: int) -> str:
        """Return the last output of a task that ended before its run began."""
        if not self._is_mine(record):
            return ""
        from aboard.executors.start import last_lines  # a slow import

        try:
            pieces = self._executor(record).logs(submission.handle or {}, number, tail=_LOG_TAIL)
            return last_lines(b"".join(pieces).decode(errors="replace"))
        except (JobError, ExecutorError, ImportError):
            return ""

    def _settled(self, record: JobRecord, endings: Mapping[int, Ending]) -> JobRecord:
        """Record how members ended, and release what the engine keeps for them."""
        store = self._store(record)
        submissions = {number: one.attempt for number, one in record.latest().items()}

        def change(changed: JobRecord) -> None:
            latest = changed.latest()
            for number, ending in endings.items():
                if latest[number].attempt == submissions[number]:  # else it was resubmitted
                    changed.settle(number, ending)

        if not self._is_mine(record):
            change(record)
            return record
        try:
            record = store.update(record.id, change)
        except (StorageError, JobError) as error:  # without write access, a user can still read
            self._on_error(error)
            change(record)
            return record
        done = [
            one
            for one in record.submissions
            if self._is_from_here(record)
            if one.handle is not None and not one.released and not record.unsettled(one)
        ]
        return self._released(store, record, done) if done else record

    def _released(
        self, store: JobStore, record: JobRecord, done: Sequence[Submission]
    ) -> JobRecord:
        attempts: list[int] = []
        for one in done:
            try:
                self._executor(record).release(one.handle or {})
                attempts.append(one.attempt)
            except (ExecutorError, JobError, ImportError) as error:
                self._on_error(error)

        def note(changed: JobRecord) -> None:
            for one in changed.submissions:
                one.released = one.released or one.attempt in attempts

        endings = [found[0] for found in record.settled.values()]
        if endings.count(MemberState.COMPLETED) == len(record.members):
            with suppress(OSError):
                store.submission_file(record.id).unlink()
        with suppress(StorageError, JobError):
            return store.update(record.id, note)
        return record

    # Change.

    def stop(self, job: str, *, now: bool = False) -> JobStatus:
        """Stop all members, including pending ones, without waiting until they have ended."""
        status = self.get(job)
        if status.has_ended:
            return status
        self._check_mine(status.record)
        record = self._store(status.record).update(status.id, _mark_stopped)
        for submission in record.submissions:
            numbers = record.unsettled(submission)
            if not numbers:
                continue
            if submission.handle is None:
                raise JobError(f"job {record.id} {_being_submitted(submission)}. Try again.")
            every = len(numbers) == len(submission.numbers)
            self._executor(record).cancel(submission.handle, None if every else numbers, now=now)
        return self.get(record.id)

    def retry(self, job: str, numbers: Iterable[int] | None = None) -> JobStatus:
        """Resubmit members that failed, were killed or are lost; their runs continue."""
        status = self.get(job)
        record, store = status.record, self._store(status.record)
        chosen = [status.member(number) for number in numbers or record.numbers]
        failed = [one.number for one in chosen if one.state in UNSUCCESSFUL]
        others = [one for one in chosen if one.state not in UNSUCCESSFUL]
        if not failed or (numbers is not None and others):
            what = (
                f"member {others[0].number} is {others[0].state}" if numbers else "no member failed"
            )
            raise BadJob(f"job {record.id}: {what}, so there is nothing to retry.")
        self._check_mine(record)
        runs = self._runs(record, failed)
        submission = self._submission(store, record, failed)
        submission.before = {str(number): len(run.attempts) for number, run in runs.items()}
        batch = _batch(record, submission, read_kept(store, record))
        previous = {str(number): record.settled.get(str(number)) for number in failed}

        def add(changed: JobRecord) -> None:
            if len(changed.submissions) != submission.attempt - 1:
                raise JobError(f"job {record.id} was just retried. Check it first.")
            changed.submissions.append(submission)
            changed.stopped = None
            for number in previous:
                changed.settled.pop(number, None)

        def undo(changed: JobRecord) -> None:
            changed.submissions = [
                one for one in changed.submissions if one.attempt != submission.attempt
            ]
            changed.settled.update({key: one for key, one in previous.items() if one})
            changed.stopped = record.stopped

        record = store.update(record.id, add)
        try:
            return JobStatus(self._submit_batch(store, record, batch))
        except (ExecutorError, StorageError, OSError):
            store.update(record.id, undo)
            shutil.rmtree(batch.directory, ignore_errors=True)
            raise

    def delete(self, job: str, *, force: bool = False) -> JobStatus:
        """Remove the record of an ended job, and the engine's files; its runs stay.

        `force` also removes a job whose state is unknown; members that still run continue.
        """
        status = self.get(job)
        record, store = status.record, self._store(status.record)
        if not (status.has_ended or (force and status.state is JobState.UNKNOWN)):
            unknown = status.state is JobState.UNKNOWN
            advice = "Use force to delete it" if unknown else "Stop it first, or wait until it ends"
            raise BadJob(f"job {record.id} is {status.state}. {advice}.")
        self._check_mine(record)
        left = [one for one in record.submissions if one.handle is not None and not one.released]
        if left and status.has_ended and self._is_from_here(record):
            record = self._released(store, record, left)
        store.delete(record)
        return status

    def _recovered(self, record: JobRecord) -> JobRecord | None:
        """Complete an interrupted submission; return None if it had not reached the engine."""
        if all(one.handle is not None for one in record.submissions):
            return record
        for submission in record.submissions if self._is_mine(record) else ():
            is_unnoted = _key(record, submission) in _unnoted
            if submission.handle is not None or not (is_unnoted or _was_interrupted(submission.by)):
                continue
            store = self._store(record)
            try:
                payload = read_kept(store, record)
            except JobError as error:
                if submission.attempt == 1 and submission.by and not is_unnoted:
                    # It was not sent to the engine yet.
                    store.delete(record)
                    return None
                self._on_error(error)  # another machine may have submitted it
                continue
            try:
                record = self._submit_batch(store, record, _batch(record, submission, payload))
            except (JobError, ExecutorError, ImportError, OSError, StorageError) as error:
                self._on_error(error)
        return record

    # Wait.

    def wait(
        self,
        job: str,
        *,
        timeout: float | None = None,
        on_change: Callable[[JobStatus], None] = lambda _: None,
    ) -> JobStatus:
        """Wait until a job has ended; raise `JobTimeout` if it takes longer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = Backoff(_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS, 1.5)
        record = self.find(job)
        before = None
        while True:
            found = self.statuses([record])
            if not found:
                raise NoSuchJob(f"job {record.id} was never submitted.")
            status = found[0]
            if before is None or status.counts != before:
                on_change(status)
                before = status.counts
                pause.reset()
            if status.has_ended:
                return status
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise JobTimeout(
                    f"job {record.id} is {status.state} after {timeout:g} s and continues. Check it"
                    f" with: aboard jobs show {record.id}"
                )
            time.sleep(pause.grow() if left is None else min(pause.grow(), left))
            with suppress(Unreachable):  # it may answer the next time
                record = self._store(record).read(record.id)

    # Logs.

    def logs(
        self,
        job: str,
        numbers: Iterable[int] | None = None,
        *,
        tail: int | None = None,
        follow: bool = False,
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the output of members, with their numbers, in complete lines except for the last.

        The output is that of their runs, or the engine's log if a run has not begun. `follow`
        continues until they have ended.
        """
        status = self.get(job)
        chosen = list(status.record.numbers if numbers is None else numbers)
        members = [status.member(number) for number in chosen]
        tails = {one.number: self.member_log(status.record, one.number) for one in members}
        pause = Backoff(_FIRST_POLL_SECONDS, _FOLLOW_SECONDS, 1.5)
        while True:
            open_ones = [one for one in members if one.state not in MEMBER_ENDED]
            news = False
            for number, log in tails.items():
                has_ended = number not in {one.number for one in open_ones}
                for piece in log.read(tail=tail, to_end=has_ended or not follow):
                    news = True
                    yield number, piece
            tail = None
            if not follow or not open_ones:
                return
            if news:
                pause.reset()
            time.sleep(pause.grow())
            status = self.get(status.id)
            tails = {one.number: tails[one.number] for one in open_ones}
            members = [status.member(one.number) for one in open_ones]

    def member_log(self, record: JobRecord, number: int) -> MemberLog:
        return MemberLog(record, number, self._engine_log)

    def _engine_log(self, record: JobRecord, number: int) -> Iterable[bytes]:
        submission = record.latest().get(number)
        if submission is None or submission.handle is None or not self._is_mine(record):
            return ()
        return self._executor(record).logs(submission.handle, number)

    # Engines.

    def _executor(self, record: JobRecord) -> BatchExecutor:
        return self._executor_of(record.engine)

    def _executor_of(self, place: str) -> BatchExecutor:
        engine, _ = split_place(place)
        if engine not in BATCHES:
            raise BadJob(unknown("engine", engine, BATCHES))
        with self._lock:  # else two threads could create one each, and one would never be closed
            if engine not in self._executors:
                if self._engines is not None and engine not in self._engines:
                    raise BadJob(f"jobs on {engine} cannot be managed from here.")
                profiles = read_engines() if self._engines is None else self._engines
                self._executors[engine] = batch_executor(engine)(profiles.get(engine))
            return self._executors[engine]

    def _is_mine(self, record: JobRecord) -> bool:
        """Return whether the record is trusted, so that engine commands may use its values."""
        from aboard.track.environment import user_name

        if self._is_from_here(record):
            return True
        return is_remote(record.root) and not self._strict and record.user == user_name()

    def _is_from_here(self, record: JobRecord) -> bool:
        """Return whether this user submitted a job, and its record has the expected paths."""
        store = self._store(record)
        if not store.is_own(record.id):
            return False
        if not is_remote(record.root):
            return True
        return all(
            {one.directory, (one.handle or {}).get("directory", one.directory)}
            == {str(store.directory(record.id, one.attempt).absolute())}
            for one in record.submissions
        )

    def _check_mine(self, record: JobRecord) -> None:
        if not self._is_mine(record):
            raise JobError(
                f"job {record.id} is not yours. Only {record.user}, its submitter, can change it."
            )

    def _store(self, record: JobRecord) -> JobStore:
        return next(one for one in self.stores if one.root == record.root)


# Members.


def _members(request: JobRequest) -> list[dict[str, Any]]:
    _check_amount("repeat", request.repeat)
    try:
        shared = manifest.plain_values(request.hparams)
        if request.members is not None:
            members = [shared | manifest.plain_values(one) for one in request.members]
        else:
            swept = {str(name): _listed(name, one) for name, one in request.sweep.items()}
            members = expand(swept, repeat=request.repeat, hparams=shared)
    except TypeError as error:
        raise BadJob(str(error)) from error
    if not members:
        raise BadJob("the job has no members.")
    return members


def _listed(name: str, values: Any) -> list[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise BadJob(f"the sweep of {name!r} is {values!r:.40}. Write a list of values.")
    return [manifest.plain_values({"value": one}).get("value", one) for one in values]


def _check(request: JobRequest, members: Sequence[Mapping[str, Any]], executor: Any) -> None:
    """Raise `BadJob` for errors that can be detected without the engine."""
    if not request.command and not request.function:
        raise BadJob("the command is missing.")
    if request.function and not executor.shares_files:
        raise BadJob(
            f"a function needs an engine that sees the files of this machine, which {request.on}"
            " does not. Submit a command."
        )
    common = set(members[0]).intersection(*members[1:])
    known = [name for name in members[0] if name in common] + list(RESERVED)
    check_placeholders(request.command, known, "the command")
    for name, value in request.environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise BadJob(f"{name!r} is not a valid name of an environment variable.")
        check_placeholders([value], known, f"the variable {name}")
    for one in fields(request.resources):
        _check_amount(one.name, getattr(request.resources, one.name))
    if request.parallel is not None:
        _check_amount("parallel", request.parallel)
    workdir = Path(request.workdir or Path.cwd())
    if executor.shares_files and not workdir.is_dir():
        raise BadJob(f"{workdir}: working directory not found.")
    if executor.name == "process" and request.command:
        _check_program(request, members[0], workdir)


def _check_amount(name: str, amount: Any) -> None:
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    if amount is None and name in _LEFT_OPEN:
        return
    if not is_number or not math.isfinite(amount):
        raise BadJob(f"{name} is {amount!r:.40}. Use a number.")
    if name not in _LEFT_OPEN and amount != int(amount):
        raise BadJob(f"{name} is {amount:g}. Use a whole number.")
    if amount < 0 or (amount == 0 and name != "gpus"):
        raise BadJob(f"{name} is {amount:g}. Use a number above 0.")


def _check_program(request: JobRequest, member: Mapping[str, Any], workdir: Path) -> None:
    from aboard.track.program import CannotStart, check_program

    program = fill(request.command[0], {NUMBER: 1, **member})
    if "/" in program:
        program = str(workdir / program)
    try:
        check_program([program])
    except CannotStart as error:
        raise BadJob(str(error)) from error


def _checked_experiment(name: str) -> str:
    try:
        return check_name(name, "experiment")
    except BadName as error:
        raise BadJob(str(error)) from error


# Batches.


def _batch(record: JobRecord, submission: Submission, payload: bytes) -> Batch:
    return Batch(
        job=record.id,
        numbers=tuple(submission.numbers),
        command=TASK,
        payload=_with_credentials(payload, record),
        directory=Path(submission.directory),
        workdir=Path(record.workdir),
        attempt=submission.attempt,
        profile=record.profile,
        resources=record.needs,
        image=record.image,
        parallel=record.parallel,
        writes=() if is_remote(record.root) else (Path(record.root),),
        credential_files=_credential_files(record.root),
        outputs={
            number: join(record.root, record.run_label(number))
            for number in (submission.numbers if record.logs else ())
        },
    )


def write_kept(store: JobStore, record: JobRecord, payload: bytes) -> None:
    """Save the payload of a job for a retry; the record has no secrets."""
    path = store.submission_file(record.id)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, payload.decode())


def read_kept(store: JobStore, record: JobRecord) -> bytes:
    try:
        if store.is_own(record.id):
            return store.submission_file(record.id).read_bytes()
    except OSError:
        pass
    raise JobError(
        f"job {record.id} can be retried only on {record.host}, by {record.user}: its command"
        " and environment are private files there."
    )


def _given_resources(resources: Resources) -> dict[str, Any]:
    usual = asdict(Resources())
    return {name: value for name, value in asdict(resources).items() if value != usual[name]}


def _with_credentials(payload: bytes, record: JobRecord) -> bytes:
    """Add this process's credentials for the root, unless tasks have their own."""
    if not is_remote(record.root) or _is_own_cloud(record.engine, record.root):
        return payload
    from aboard.storage.settings import credentials

    own = credentials(os.environ, [record.root])
    document = json.loads(payload)
    document["environment"] = {**own, **document["environment"]}
    return json.dumps(document).encode()


def _is_own_cloud(engine: str, root: str) -> bool:
    return root.startswith(f"{IDENTITIES.get(engine, '')}://")


def _credential_files(root: str) -> tuple[Path, ...]:
    if not is_remote(root):
        return ()
    from aboard.storage.settings import credential_files

    return credential_files(os.environ, [root])


def _cannot_write(directory: Path, error: OSError) -> JobError:
    problem = (error.strerror or str(error)).lower()
    return JobError(f"{directory}: the files of the job cannot be written: {problem}.")


def _mark_stopped(record: JobRecord) -> None:
    record.stopped = time.time()


def _mark_interrupted(record: JobRecord) -> None:
    record.submissions[-1].by = ""


def _key(record: JobRecord, submission: Submission) -> tuple[str, str, float]:
    return record.root, record.id, submission.at


def _being_submitted(submission: Submission) -> str:
    return f"is being submitted on {submission.by.partition('/')[0]}"


def _was_interrupted(by: str) -> bool:
    """Return whether the submitting process is known to have exited, or its machine rebooted."""
    host, _, rest = by.partition("/")
    if host != os.uname().nodename:
        return not by
    return not rest.startswith(system.boot_id()) or system.has_ended(by)
