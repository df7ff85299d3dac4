"""The jobs below a hub's roots.

Each engine has one thread that calls it, and requests wait in the event loop, so an engine that
hangs makes only its own jobs unknown. Status requests that arrive while it is busy share the next
query; the queue of other calls is bounded. Records and states of jobs are left to `jobs`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from aboard.boards.model import BadValue, Busy, NoSuchName
from aboard.executors import Profiles, split_place
from aboard.executors.base import ExecutorError
from aboard.hub import read
from aboard.hub.permissions import Forbidden
from aboard.index.library import Library
from aboard.jobs import JobError, NoSuchJob
from aboard.jobs.model import MEMBER_ENDED, Ending, JobRecord, JobStatus, MemberState
from aboard.jobs.service import JobRequest, Jobs
from aboard.jobs.store import MemberLog, RunLog
from aboard.runs.units import format_time
from aboard.storage import BadUri, StorageError, canonical

_QUERY_SECONDS = 10.0
_CHANGE_SECONDS = 60.0  # to submit, stop and retry
_FOLLOW_SECONDS = 0.5
_MOST_WAITING = 256  # calls to one engine

Result = TypeVar("Result")
Turn = Callable[[], AbstractAsyncContextManager[None]]
Key = tuple[str, str]
Statuses = dict[Key, JobStatus]


class JobFilter(NamedTuple):
    """Which jobs to list; an empty field selects all."""

    states: Collection[str] = ()
    experiment: str = ""
    user: str = ""


class HubJobs:
    """The jobs below the roots of a library.

    `engines` are those that the hub offers. `submits` is whether the hub may submit and stop jobs
    as its own user. `strict` is passed to `Jobs`.
    """

    def __init__(
        self,
        library: Library,
        engines: Mapping[str, Profiles],
        *,
        submits: bool,
        strict: bool = True,
        seconds: float = _QUERY_SECONDS,
    ) -> None:
        self._library = library
        self._engines = engines
        self._submits = submits
        self._strict = strict
        self._seconds = seconds
        self._lock = threading.Lock()
        self._queues: dict[str, _Queue] = {}
        self._opened: dict[tuple[str, ...], Jobs] = {}

    def close(self) -> None:
        """Release what engines hold for the hub; jobs keep running."""
        with self._lock:
            opened, self._opened = list(self._opened.values()), {}
        for jobs in opened:
            jobs.close()

    # Reading.

    async def page(
        self, chosen: JobFilter, root: str | None, *, start: int, limit: int
    ) -> tuple[list[JobStatus], int | None]:
        """Return jobs, newest first, and the position of the next page."""
        jobs = self._jobs(root)
        records = [
            one
            for one in await read(_records, jobs)
            if chosen.experiment in ("", one.experiment) and chosen.user in ("", one.user)
        ]
        if chosen.states:
            found = await self._statuses(jobs, records)
            found = [one for one in found if one.state in chosen.states]
            page, count = found[start : start + limit], len(found)
        else:
            page, count = await self._statuses(jobs, records[start : start + limit]), len(records)
        end = start + limit
        return page, end if end < count else None

    async def get(self, job: str, root: str | None = None) -> JobStatus:
        """Return a job by its id or a prefix of it."""
        jobs = self._jobs(root)
        found = await self._statuses(jobs, [await read(jobs.find, job)])
        if not found:
            raise NoSuchName(f"job {job[:80]!r} not found.", "List them with: aboard jobs")
        return found[0]

    async def log(self, job: str, member: int | None, root: str | None, turn: Turn) -> HubLog:
        """Return the log of a member; `member` may be None if the job has only one.

        Each piece is read in a `turn` of the user.
        """
        jobs = self._jobs(root)
        status = await self.get(job, root)
        count = len(status.record.members)
        if member is None and count > 1:
            raise BadValue(f"job {status.id} has {count} members.", "Give one: member=1")
        number = status.member(member or 1).number

        def has_ended() -> bool:
            try:
                return jobs.get(status.id).member(number).state in MEMBER_ENDED
            except NoSuchJob:  # it was deleted
                return True

        log = jobs.member_log(status.record, number)
        return HubLog(log, has_ended, self._queue(status.record.engine), self._seconds, turn)

    # Changing.

    async def submit(self, request: JobRequest, root: str | None) -> JobStatus:
        """Submit a job to one of the hub's engines, as the hub's user."""
        self._check_submits()
        engine = split_place(request.on)[0]
        if engine not in self._engines:
            known = ", ".join(self._engines)
            message = f"this hub does not submit jobs to {request.on[:80]!r}."
            raise BadValue(message, f"Known: {known}.")
        jobs = self._jobs(root)
        return await self._change(engine, lambda: jobs.submit(request))

    async def stop(self, job: str, root: str | None, *, now: bool) -> JobStatus:
        self._check_submits()
        jobs = self._jobs(root)
        record = await read(jobs.find, job)
        return await self._change(record.engine, lambda: jobs.stop(record.id, now=now))

    async def retry(self, job: str, root: str | None, members: Sequence[int]) -> JobStatus:
        self._check_submits()
        jobs = self._jobs(root)
        record = await read(jobs.find, job)
        return await self._change(record.engine, lambda: jobs.retry(record.id, members or None))

    async def delete(self, job: str, root: str | None, *, force: bool) -> None:
        self._check_submits()
        jobs = self._jobs(root)
        record = await read(jobs.find, job)
        await self._change(record.engine, lambda: jobs.delete(record.id, force=force))

    def _check_submits(self) -> None:
        if not self._submits:
            raise Forbidden(
                "this hub may not submit, stop or delete jobs.",
                "Submit with: aboard submit. An administrator can allow it: submit = true in [jobs]"
                " of the hub's settings.",
            )

    # Roots and engines.

    def _jobs(self, root: str | None = None) -> Jobs:
        roots = self._library.uris
        if root is not None:
            try:
                uri = canonical(root)
            except BadUri as error:
                raise BadValue(str(error)) from error
            if uri not in roots:
                known = ", ".join(roots) or "none"
                raise BadValue(f"{root[:200]!r} is not a root of this hub.", f"Known: {known}.")
            roots = [uri]
        key = tuple(roots)
        with self._lock:
            if key not in self._opened:
                self._opened[key] = Jobs(roots, self._engines, strict=self._strict)
            return self._opened[key]

    async def _statuses(self, jobs: Jobs, records: Sequence[JobRecord]) -> list[JobStatus]:
        """Return the status of jobs; it is unknown if their engine does not answer in time."""
        found = {_key(one): JobStatus(one) for one in records if not _is_open(one)}
        engines: dict[str, list[JobRecord]] = {}
        for record in filter(_is_open, records):
            engines.setdefault(record.engine, []).append(record)
        answers = {
            engine: self._queue(engine).put_statuses(jobs, batch)
            for engine, batch in engines.items()
        }
        for engine, answer in answers.items():
            try:
                found |= await answer.wait()
            except (ExecutorError, JobError, StorageError, Busy) as error:
                found |= {_key(one): _unknown(one, str(error)) for one in engines[engine]}
        return [found[key] for key in map(_key, records) if key in found]

    async def _change(self, engine: str, call: Callable[[], JobStatus]) -> JobStatus:
        return await self._queue(engine).put(call, _CHANGE_SECONDS).wait()

    def _queue(self, engine: str) -> _Queue:
        with self._lock:
            return self._queues.setdefault(engine, _Queue(engine, self._seconds))


class HubLog:
    """The log of one member, read in its engine's thread."""

    def __init__(
        self,
        log: MemberLog,
        has_ended: Callable[[], bool],
        queue: _Queue,
        seconds: float,
        turn: Turn,
    ) -> None:
        self._log = log
        self._has_ended = has_ended
        self._queue = queue
        self._seconds = seconds
        self._turn = turn

    async def read(self, tail: int | None = None) -> AsyncIterator[bytes]:
        """Return the log in pieces; the first is read at once."""
        pieces = self._log.read(tail=tail, to_end=True)

        async def all_from(piece: bytes) -> AsyncIterator[bytes]:
            while piece:
                yield piece
                piece = await self._call(partial(next, pieces, b""))

        return all_from(await self._call(partial(next, pieces, b"")))

    def follow(self, tail: int | None = None) -> AsyncIterator[bytes]:
        return follow(self._log, self._has_ended, self._call, tail)

    async def _call(self, call: Callable[[], Result]) -> Result:
        async with self._turn():
            return await self._queue.put(call, self._seconds).wait()


async def follow(
    log: RunLog,
    has_ended: Callable[[], bool],
    call: Callable[[Callable[[], Any]], Awaitable[Any]],
    tail: int | None,
    pause: float = _FOLLOW_SECONDS,
) -> AsyncIterator[bytes]:
    """Yield a log, and what is added to it until the run has ended; `call` makes blocking calls."""
    is_over = False
    while not is_over:
        with suppress(ExecutorError, StorageError, JobError, Busy):  # it may answer later
            ended = await call(has_ended)
            pieces = log.read(tail=tail, to_end=ended)  # after the check, to miss nothing
            while piece := await call(partial(next, pieces, b"")):
                yield piece
            tail, is_over = None, ended
        if not is_over:
            await asyncio.sleep(pause)


class _Queue:
    """Makes calls to an engine one after another, in a thread that exits when there are none."""

    def __init__(self, engine: str, patience: float) -> None:
        self._engine = engine
        self._patience = patience
        self._began: float | None = None  # start of the current call
        self._lock = threading.RLock()
        self._waiting: deque[tuple[Callable[[], Any], _Answer[Any]]] = deque()
        self._is_working = False
        self._next: dict[Jobs, tuple[dict[Key, JobRecord], _Answer[Statuses]]] = {}

    def put(self, call: Callable[[], Result], seconds: float) -> _Answer[Result]:
        """Queue a call; it fails at once if the engine is already overdue."""
        answer: _Answer[Result] = _Answer(self._engine, seconds)
        with self._lock:
            if self._began is not None and time.monotonic() - self._began > self._patience:
                answer.future.set_exception(answer.overdue())
            elif len(self._waiting) >= _MOST_WAITING:
                message = f"{len(self._waiting)} requests are waiting for {self._engine}."
                answer.future.set_exception(Busy(message, "Try again in 5 seconds."))
            else:
                if not self._is_working:
                    name = f"jobs-{self._engine}"
                    threading.Thread(target=self._work, name=name, daemon=True).start()
                self._is_working = True
                self._waiting.append((call, answer))
        return answer

    def put_statuses(self, jobs: Jobs, records: Sequence[JobRecord]) -> _Answer[Statuses]:
        """Queue a status query, shared with all requests that arrive before it begins."""
        with self._lock:
            batch, answer = self._next.get(jobs, ({}, None))
            if answer is None or answer.future.done() or not answer.left:
                batch = {}

                def call() -> Statuses:
                    with self._lock:
                        self._next.pop(jobs, None)
                    return {_key(one.record): one for one in jobs.statuses(list(batch.values()))}

                answer = self.put(call, self._patience)
                self._next[jobs] = batch, answer
            batch.update({_key(one): one for one in records})
            return answer

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_working = False
                    return
                call, answer = self._waiting.popleft()
                self._began = time.monotonic()
            if not answer.left:  # its request has timed out
                answer.future.set_exception(answer.overdue())
            else:
                try:
                    answer.future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                    answer.future.set_exception(error)
            with self._lock:
                self._began = None


class _Answer(Generic[Result]):
    def __init__(self, engine: str, seconds: float) -> None:
        self.future: Future[Result] = Future()
        self._engine = engine
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def overdue(self) -> ExecutorError:
        return ExecutorError(
            f"{self._engine} did not answer within {self._seconds:g} s. Check its service and the"
            " network, and check the job before you try again."
        )

    async def wait(self) -> Result:
        """Return the result; raise `ExecutorError` on timeout."""
        waiting = asyncio.wrap_future(self.future)
        # Not cancelled on timeout: other requests may wait for the same future.
        done, _ = await asyncio.wait([waiting], timeout=self.left)
        if not done:
            raise self.overdue()
        return waiting.result()


def job_document(status: JobStatus) -> dict[str, Any]:
    """Return a job as a document of the API."""
    return status.document() | {"created": format_time(status.record.created) or ""}


def _records(jobs: Jobs) -> list[JobRecord]:
    """Return the records below all roots that can be listed, newest first."""
    found: list[JobRecord] = []
    for store in jobs.stores:
        with suppress(StorageError):  # the list of roots reports the problem
            found += store.records()
    return sorted(found, key=lambda one: (-one.created, one.id))


def _key(record: JobRecord) -> Key:
    return record.root, record.id


def _is_open(record: JobRecord) -> bool:
    return len(record.settled) < len(record.members)


def _unknown(record: JobRecord, reason: str) -> JobStatus:
    unknown = Ending(MemberState.UNKNOWN, reason=reason)
    return JobStatus(record, {one: unknown for one in record.numbers if not record.ending(one)})
