"""A job: its record, its members, and how their states follow from engine and runs.

The record has no secrets: these are in the payload, a private file. It has the final states of
ended members, so that only the others need a query of the engine.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, Self

from aboard.executors import split_place
from aboard.executors.base import Handle, Resources, TaskState, TaskStatus
from aboard.jobs import BadJob, JobError
from aboard.jobs.member import JOB, NUMBER, fill
from aboard.runs.catalog import directory_of, dump_json, parse_quickly
from aboard.runs.manifest import Manifest, State
from aboard.runs.units import format_time

_LETTERS = "abcdefghijkmnpqrstuvwxyz"
_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST_ID = 40
_SIGNALLED = 128
_STOPPED = "it was stopped"


class MemberState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"
    UNKNOWN = "unknown"


class JobState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


UNSUCCESSFUL = (MemberState.FAILED, MemberState.KILLED, MemberState.LOST)
"""The states of members that `retry` submits again."""
MEMBER_ENDED = (MemberState.COMPLETED, *UNSUCCESSFUL)
JOB_ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.STOPPED)


class Ending(NamedTuple):
    """The state of a member; final if it is one of `MEMBER_ENDED` and settled."""

    state: MemberState
    exit_code: int | None = None
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class Submission:
    """Members that were submitted to the engine together.

    The handle is None until the engine has accepted them. `by` identifies the submitting process;
    `directory` is on its host. `before` has the number of attempts of each run before.
    """

    attempt: int
    numbers: list[int]
    at: float
    by: str
    directory: str
    handle: Handle | None = None
    released: bool = False
    before: dict[str, int] = field(default_factory=dict)

    def has_begun(self, number: int, run: Manifest | None) -> bool:
        """Return whether a run has an attempt of this submission."""
        return run is not None and len(run.attempts) > self.before.get(str(number), 0)


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """`job.json`; fields that a newer version wrote are kept in `others`."""

    id: str
    experiment: str
    run: str
    """The names of the runs, such as `{job}-{number}`."""
    command: list[str]
    on: str
    members: list[dict[str, Any]]
    environment: dict[str, str] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    image: str = ""
    parallel: int | None = None
    workdir: str = ""
    user: str = ""
    host: str = ""
    created: float = 0.0
    stopped: float | None = None
    logs: str = ""
    """The engine's log directory below `EXPERIMENT/RUN`, if it has one."""
    submissions: list[Submission] = field(default_factory=list)
    settled: dict[str, list[Any]] = field(default_factory=dict)
    schema: int = 1
    others: dict[str, Any] = field(default_factory=dict)
    root: str = ""
    """The root of this record; not part of the file."""

    @classmethod
    def from_json(cls, text: bytes, root: str) -> Self:
        """Read a record; raise `JobError` if it is damaged."""
        try:
            document = parse_quickly(text)
            if document is None:
                document = json.loads(text)
            known = {one: document[one] for one in _FIELDS if one in document}
            known["submissions"] = [
                Submission(**{name: one[name] for name in _SUBMISSION if name in one})
                for one in document["submissions"]
            ]
            others = {name: value for name, value in document.items() if name not in _FIELDS}
            record = cls(**known, others=others, root=root)
            record._check()
            return record  # noqa: TRY300
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise JobError(
                f"{root}: the record of a job is damaged ({error!r:.100}). Fix or remove it."
            ) from error

    def _check(self) -> None:
        """Validate: any user with write access to the root may have written it."""
        texts = [self.id, self.experiment, self.run, self.on, self.image, self.workdir, self.user]
        texts += [self.logs, self.host, *self.command, *(one.by for one in self.submissions)]
        tables = [self.environment, self.tags, self.resources, self.settled, *self.members]
        tables += [one.before for one in self.submissions]
        tables += [one.handle for one in self.submissions if one.handle is not None]
        numbers = [self.created, self.stopped or 0.0, *(one.attempt for one in self.submissions)]
        numbers += [self.resources.get(name) or 0 for name in _RESOURCES]
        for kind, values in ((str, texts), (dict, tables), ((int, float), numbers)):
            for value in values:
                if not isinstance(value, kind):
                    raise TypeError(f"unexpected {value!r:.40}")
        submitted = {number for one in self.submissions for number in one.numbers}
        if not submitted <= set(self.numbers):
            raise ValueError("submission of unknown members")
        if not self.settled.keys() <= set(map(str, self.numbers)):
            raise ValueError("end of unknown members")
        for state, code, reason in self.settled.values():
            if state not in MEMBER_ENDED or not isinstance(reason, str):
                raise ValueError(f"invalid end of a member: {state!r:.40}, {reason!r:.40}")
            if code is not None and not isinstance(code, int):
                raise TypeError(f"unexpected {code!r:.40}")

    def to_json(self) -> bytes:
        import orjson

        document = {"schema": self.schema}
        document |= {name: getattr(self, name) for name in _FIELDS}
        return dump_json({**document, **self.others}, orjson.OPT_NON_STR_KEYS) + b"\n"

    @property
    def engine(self) -> str:
        return split_place(self.on)[0]

    @property
    def profile(self) -> str:
        return split_place(self.on)[1]

    @property
    def needs(self) -> Resources:
        return Resources(**{k: v for k, v in self.resources.items() if k in _RESOURCES})

    @property
    def numbers(self) -> range:
        return range(1, len(self.members) + 1)

    @property
    def selector(self) -> str:
        return f"job:{self.id}"

    def run_name(self, number: int) -> str:
        return fill(self.run, {JOB: self.id, NUMBER: number})

    def run_label(self, number: int) -> str:
        return directory_of(self.experiment, self.run_name(number))

    def run_directory(self, number: int) -> str:
        label = self.run_label(number)
        return f"{label}/{self.logs}" if self.logs else label

    def unsettled(self, submission: Submission) -> list[int]:
        """Return the members of a submission, without resubmitted ones, that have not ended."""
        later = {
            number
            for one in self.submissions
            if one.attempt > submission.attempt
            for number in one.numbers
        }
        settled = self.settled
        return [
            number
            for number in submission.numbers
            if number not in later and str(number) not in settled
        ]

    def latest(self) -> dict[int, Submission]:
        """Return the last submission of each member."""
        return {number: one for one in self.submissions for number in one.numbers}

    def settle(self, number: int, ending: Ending) -> None:
        self.settled[str(number)] = [ending.state.value, *ending[1:]]  # in the form of JSON

    def ending(self, number: int) -> Ending | None:
        found = self.settled.get(str(number))
        return Ending(MemberState(found[0]), *found[1:]) if found else None


_FIELDS = tuple(one.name for one in fields(JobRecord) if one.name not in ("others", "root"))
_RESOURCES = tuple(one.name for one in fields(Resources))
_SUBMISSION = tuple(one.name for one in fields(Submission))


class Member(NamedTuple):
    """A member of a job; `unit` is the engine's name for its task."""

    number: int
    run: str
    hparams: dict[str, Any]
    state: MemberState
    exit_code: int | None = None
    reason: str = ""
    unit: str = ""

    def document(self) -> dict[str, Any]:
        return {**self._asdict(), "state": self.state.value}


class JobStatus:
    """A job and the states of its members; `problem` says why they are unknown."""

    def __init__(
        self,
        record: JobRecord,
        standing: Mapping[int, Ending] | None = None,
        units: Mapping[int, str] | None = None,
    ) -> None:
        self.record = record
        self._standing = standing or {}
        self._units = units or {}

    @property
    def id(self) -> str:
        return self.record.id

    @cached_property
    def counts(self) -> Counter[str]:
        """The number of members in each state."""
        counts = Counter(found[0] for found in self.record.settled.values())
        counts.update(one.state.value for one in self._standing.values())
        missing = len(self.record.members) - counts.total()
        if missing > 0:
            counts[MemberState.PENDING.value] += missing
        return counts

    @cached_property
    def members(self) -> list[Member]:
        return [self.member(number) for number in self.record.numbers]

    def member(self, number: int) -> Member:
        record = self.record
        if not 1 <= number <= len(record.members):
            raise BadJob(f"job {record.id} has members 1 to {len(record.members)}, not {number}.")
        ending = record.ending(number) or self._standing.get(number)
        return Member(
            number,
            record.run_label(number),
            record.members[number - 1],
            *(ending or Ending(MemberState.PENDING)),
            unit=self._units.get(number, ""),
        )

    @cached_property
    def state(self) -> JobState:
        return job_state(self.counts, stopped=self.record.stopped is not None)

    @property
    def has_ended(self) -> bool:
        return self.state in JOB_ENDED

    @cached_property
    def reason(self) -> str:
        """Why the job waits, failed or is unknown: the reason of its worst member."""
        worst = self.exit_code
        for state, code, reason, *_ in self.record.settled.values() if worst else ():
            if reason and shell_code(MemberState(state), code) == worst:
                return str(reason)
        waits = [MemberState.PENDING] if self.state is JobState.PENDING else []
        for state in (*UNSUCCESSFUL, MemberState.UNKNOWN, *waits):
            if not self.counts[state.value]:
                continue
            for found in (*self.record.settled.values(), *self._standing.values()):
                if found[0] == state and found[2]:
                    return str(found[2])
        return ""

    @property
    def exit_code(self) -> int:
        """The worst exit code of the members that have ended."""
        endings = {(found[0], found[1]) for found in self.record.settled.values()}
        return max((shell_code(MemberState(state), code) for state, code in endings), default=0)

    def document(self, *, members: bool = False) -> dict[str, Any]:
        """Return the document that `--json` and the REST API show."""
        record = self.record
        document: dict[str, Any] = {
            "id": record.id,
            "state": self.state.value,
            "reason": self.reason,
            "experiment": record.experiment,
            "on": record.on,
            "command": record.command,
            "selector": record.selector,
            "root": record.root,
            "user": record.user,
            "host": record.host,
            "created": format_time(record.created),
            "attempts": len(record.submissions),
            "exit_code": self.exit_code if self.has_ended else None,
            "count": len(record.members),
            "states": dict(self.counts),
        }
        if members:
            document |= {
                "resources": record.resources,
                "image": record.image,
                "parallel": record.parallel,
                "workdir": record.workdir,
                "environment": record.environment,
                "tags": record.tags,
                "members": [one.document() for one in self.members],
            }
        return document


def shell_code(state: MemberState, exit_code: int | None) -> int:
    if state not in UNSUCCESSFUL:
        return 0
    code = exit_code or 1
    return code if code > 0 else _SIGNALLED - code


def job_state(counts: Mapping[str, int], *, stopped: bool) -> JobState:
    """Return the state of a job from those of its members."""
    held = {MemberState(name) for name, count in counts.items() if count}
    if MemberState.UNKNOWN in held:
        return JobState.UNKNOWN
    if MemberState.RUNNING in held:
        return JobState.RUNNING
    if MemberState.PENDING in held:
        return JobState.PENDING if held == {MemberState.PENDING} else JobState.RUNNING
    if stopped and MemberState.KILLED in held:
        return JobState.STOPPED
    return JobState.FAILED if held & set(UNSUCCESSFUL) else JobState.COMPLETED


def standing_of(
    task: TaskStatus, run: Manifest | None, now: float, *, stopped: bool, shipped: bool = False
) -> tuple[Ending, bool]:
    """Return the state of a member, and whether it is final, from its task and its run.

    The run's record decides how it ended; the engine decides whether it waits or runs. `run` is
    None if no attempt of this submission has begun. The record of a run that is `shipped` to a
    bucket may arrive there after the task has ended.
    """
    if task.state is TaskState.WAITING:
        return Ending(MemberState.PENDING, reason=task.reason), False
    if task.state is TaskState.RUNNING:
        return Ending(MemberState.RUNNING), False
    if run is not None and run.state is not State.RUNNING:
        completed = run.state is State.COMPLETED
        reason = run.reason if completed else task.reason or run.reason
        # While the engine does not answer, another attempt may follow a failed one.
        is_final = completed or task.state is TaskState.ENDED
        return Ending(MemberState(run.state.value), run.exit_code, reason), is_final
    if task.state is TaskState.UNKNOWN:
        return Ending(MemberState.UNKNOWN, reason=task.reason), False
    is_final = not shipped or run is None or run.state_at(now) is State.LOST
    return _ending_of_task(task, stopped=stopped), is_final


def _ending_of_task(task: TaskStatus, *, stopped: bool) -> Ending:
    """Return the end of a member whose run did not record it."""
    if task.exit_code == 0:
        return Ending(MemberState.COMPLETED, 0)
    if stopped:
        return Ending(MemberState.KILLED, task.exit_code, task.reason or _STOPPED)
    if task.exit_code is None and not task.reason:
        return Ending(MemberState.LOST, reason="the engine does not know how it ended")
    reason = task.reason or f"exit code {task.exit_code}"
    return Ending(MemberState.FAILED, task.exit_code, reason)


# Names.


def new_id() -> str:
    others = _LETTERS + "23456789"
    return secrets.choice(_LETTERS) + "".join(secrets.choice(others) for _ in range(5))


def check_id(name: str) -> str:
    if not _ID.fullmatch(name) or len(name) > _LONGEST_ID:
        raise BadJob(
            f"invalid name of a job: {name!r:.60}. Use up to {_LONGEST_ID} lowercase letters,"
            " digits and '-', beginning with a letter."
        )
    return name


# The input of tasks: the only file with secrets.


def make_payload(
    record: JobRecord,
    *,
    command: Sequence[str],
    members: Sequence[Mapping[str, Any]],
    environment: Mapping[str, str],
    tags: Mapping[str, Any],
    function: str = "",
    path: Sequence[str] = (),
) -> bytes:
    """Return the payload; `function` is a pickle in base64, `path` that of its modules."""
    document = {
        "job": record.id,
        "root": record.root,
        "experiment": record.experiment,
        "run": record.run,
        "logs": record.logs,
        "command": list(command),
        "members": [dict(one) for one in members],
        "environment": dict(environment),
        "tags": dict(tags),
        "workdir": record.workdir,
        "function": function,
        "path": list(path),
    }
    return json.dumps(document).encode()
