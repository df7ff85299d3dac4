"""Boards as jobs of a Slurm cluster: one board, one job.

The hub calls `sbatch`, `squeue` and `scancel`, and `sacct` for jobs that Slurm has forgotten. The
directory of a board must be on a file system that the compute nodes share. Secrets are files in it,
so that neither the script nor the environment that Slurm stores contains them. Besides the files of
`Start`, the directory of a start contains:

    handle.json        the handle, without `job` until Slurm has accepted the job
    running            written by the script: how often the job was requeued before
    ended              the same, the exit code, and the signal that the script forwarded
    slurm.out          Slurm's own messages about the job

The script forwards signals to the board: SIGTERM and Slurm's warning before the time limit
(SIGUSR1) give it the grace period, SIGUSR2 kills it at once. So the temporary directory on the node
is removed however a board ends; if Slurm kills the script too, the next board on the node removes
it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from aboard import system
from aboard.executors.base import (
    ADDRESS,
    Address,
    CommandState,
    EngineReport,
    Executor,
    ExecutorError,
    Found,
    Handle,
    Spec,
    Status,
)
from aboard.executors.slurm.cluster import (
    ENDED,
    OF_NODE,
    PROXY,
    TIME_IS_UP,
    WAITING,
    Cluster,
    Job,
    SlurmSettings,
    exit_code_of,
    job_options,
    script_lines,
    why_out_of_memory,
)
from aboard.executors.start import Addresses, Start, read_json, why
from aboard.system import write_private
from aboard.web.tokens import TokenError

_FOLLOW_SECONDS = 2.0  # between queries while a log is followed
_PATIENCE_SECONDS = 5.0  # after the grace period, for the script to kill the board
_HANDLE, _OUTPUT, _LONGEST_OUTPUT = "handle.json", "slurm.out", 2000


class SlurmExecutor(Executor):
    """Runs boards as jobs of the hub's own user."""

    name = "slurm"
    unit = ("job", "job")
    stop_command = "scancel {job}"
    Settings = SlurmSettings

    def open(self) -> None:
        self._addresses = Addresses()

    def start(self, spec: Spec) -> Handle:
        settings: SlurmSettings = self.settings(spec.profile)
        shared = settings.directory and settings.directory / (self.hub or "hub") / spec.name
        place = replace(spec, directory=shared or spec.directory)
        try:
            for directory in {spec.directory, place.directory}:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with system.file_lock(spec.directory / "lock") as lock:  # one start at a time
                return self._start(spec, place, settings, lock)
        except (OSError, TokenError) as error:
            raise ExecutorError(
                f"{place.directory}: board {spec.board} cannot be started: {why(error)}. "
                "Check that the hub may write there."
            ) from error

    def poll(self, handles: Mapping[str, Handle]) -> dict[str, Status]:
        found: dict[str, Status] = {}
        by_cluster: dict[Cluster, dict[str, _Submitted]] = {}
        for key, handle in handles.items():
            try:
                submitted = _Submitted(handle)
                ended_status = submitted.ended_status()
                if ended_status is not None:
                    found[key] = ended_status
                    submitted.release()
                    self._addresses.forget(submitted)
                    continue
                cluster = Cluster.of(self.settings(submitted.profile))
                _ = submitted.files  # an error there concerns only this job
                by_cluster.setdefault(cluster, {})[key] = submitted
            except (ExecutorError, OSError, ValueError) as error:
                found[key] = Status(CommandState.UNKNOWN, reason=why(error))
        for cluster, submitted_by_key in by_cluster.items():
            found |= self._poll(cluster, submitted_by_key)
        return found

    def stop(self, handle: Handle, *, now: bool = False) -> None:
        """Make the script of the job stop the board; cancel a pending job."""
        submitted = _Submitted(handle)
        if submitted.ended_status() is not None:
            return
        with suppress(OSError):  # its directory may be gone
            submitted.files.request_stop(0.0 if now else time.monotonic() + self.grace)
        cluster = Cluster.of(self.settings(submitted.profile))
        if not (submitted.files.place / "running").exists():
            cluster.cancel(submitted.job)  # a signal to a script that is not running is lost
            return
        # scancel retries a signal to a pending job for more than a minute.
        cluster.cancel("--state=PENDING", submitted.job)
        number = "USR2" if now else "TERM"
        cluster.cancel("--state=RUNNING", "--batch", f"--signal={number}", submitted.job)

    def logs(
        self, handle: Handle, *, tail: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        submitted = _Submitted(handle)
        checked = time.monotonic()

        def is_running() -> bool:
            nonlocal checked
            if submitted.ended_status() is not None or (submitted.files.place / "ended").exists():
                return False
            if time.monotonic() < checked + _FOLLOW_SECONDS:
                return True
            checked = time.monotonic()
            return self.poll({"": handle})[""].state is not CommandState.ENDED

        return submitted.files.read_log(tail=tail, is_running=is_running if follow else None)

    def address(self, handle: Handle) -> Address | None:
        submitted = _Submitted(handle)
        return self._addresses.get(submitted, partial(self._read_address, submitted))

    def find_address(self, handle: Handle) -> None:
        submitted = _Submitted(handle)
        self._addresses.note(submitted, self._read_address(submitted))

    def _read_address(self, submitted: _Submitted) -> Address | None:
        try:
            return None if submitted.ended_status() is not None else submitted.files.address()
        except (OSError, TokenError) as error:
            raise ExecutorError(
                f"the address of job {submitted.job} cannot be read: {why(error)}. "
                "Stop the board and start it again."
            ) from error

    def found(self) -> list[Found]:
        found = []
        clusters: dict[Cluster, str] = {}
        for profile, settings in self.profiles.items():
            clusters.setdefault(Cluster.of(settings), profile)
        for cluster, profile in clusters.items():
            for job in cluster.jobs(workdirs=True).values():
                label = job.label()
                if label is None or label[0] != self.hub or ENDED.fullmatch(job.state):
                    continue
                _, board, attempt = label
                found.append(Found(board, attempt, _handle_of(job, board, attempt, profile)))
        return found

    def probe(self, profile: str = "") -> EngineReport:
        settings: SlurmSettings = self.settings(profile)
        cluster = Cluster.of(settings)
        try:
            version, partitions = cluster.version(), cluster.partitions()
        except ExecutorError as error:
            what, _, hint = str(error).partition(". ")
            return EngineReport(False, problem=f"{what}.", hint=hint)
        resources = {f"partition {name}": about for name, about in partitions.items()}
        missing = {name for name in settings.partition.split(",") if name} - partitions.keys()
        if not missing:
            return EngineReport(True, version, resources)
        table = f"executors.slurm.profiles.{profile}" if profile else "executors.slurm"
        known = ", ".join(sorted(partitions)) or "none"
        return EngineReport(
            True,
            version,
            resources,
            f"partition {min(missing)!r} not found.",
            f"Change partition in [{table}]. Slurm has {known}.",
        )

    def _start(self, spec: Spec, place: Spec, settings: SlurmSettings, lock: int) -> Handle:
        number = str(spec.attempt)
        start = place.directory / f"start-{number}"
        record = start / _HANDLE
        handle: Handle | None = read_json(record)
        cluster = Cluster.of(settings)
        if handle is not None and "job" in handle:
            return handle
        if (submitted := self._find_submitted(cluster, spec, start)) is not None:
            if handle is None or handle["fingerprint"] != submitted["fingerprint"]:
                shutil.rmtree(spec.directory / start.name, ignore_errors=True)
            else:  # a hub was killed during its submission
                write_private(record, json.dumps(submitted))
            return submitted
        if handle is None:
            shutil.rmtree(start, ignore_errors=True)
            given = {name: one for name, one in os.environ.items() if PROXY.fullmatch(name)}
            given |= {name: one for name, one in spec.environment.items() if name not in OF_NODE}
            secret = replace(place, environment=given)
            handle, _ = Start.prepare(secret, number, tls=True)
            handle |= {"profile": spec.profile, "memory": spec.memory}
            if place.directory != spec.directory:
                handle |= {"directory": str(spec.directory), "shared": str(place.directory)}
                (spec.directory / f"start-{number}").mkdir(mode=0o700, exist_ok=True)
            for path in (place.directory / "log", start / _OUTPUT):  # Slurm's umask is another
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            write_private(record, json.dumps(handle))
        options = self._options(spec, settings, start)
        script = self._script(place, settings, start)
        try:
            handle["job"] = cluster.submit(options, script, lock)
        except ExecutorError:
            # If Slurm accepts it after all, the next start or the orphan search cancels it.
            shutil.rmtree(spec.directory / start.name, ignore_errors=True)
            if place.directory != spec.directory:
                shutil.rmtree(place.directory, ignore_errors=True)
            raise
        write_private(record, json.dumps(handle))
        return handle

    def _find_submitted(self, cluster: Cluster, spec: Spec, start: Path) -> Handle | None:
        """Return the handle of this start if a hub has submitted its job, from any directory.

        If Slurm accepts another job for it between this search and `sbatch`, the two do not run at
        the same time: see `_options`. The orphan search cancels the one without a record.

        Raises:
            ExecutorError: a job exists, but its files are not here. It is cancelled first.
        """
        label = (self.hub, spec.board, spec.attempt)
        jobs = [one for one in cluster.jobs(workdirs=True).values() if one.label() == label]
        for job in sorted(jobs, key=lambda one: int(one.id), reverse=True):
            handle = _recorded_handle(job)
            has_ended = bool(ENDED.fullmatch(job.state))
            if handle is not None and (not has_ended or job.workdir == str(start)):
                return handle
            if not has_ended:
                cluster.cancel(job.id)
                raise ExecutorError(
                    f"job {job.id} of board {spec.board} was cancelled, because its files are not "
                    f"in {job.workdir}. The board starts when the job has ended."
                )
        return None

    def _options(self, spec: Spec, settings: SlurmSettings, start: Path) -> list[str]:
        # If two hubs submit this start, `singleton` makes one wait until the other has ended.
        return job_options(
            settings,
            *("--nodes=1", "--ntasks=1", "--gres=none", "--requeue", "--dependency=singleton"),
            name=spec.name,
            comment=f"aboard:{self.hub}:{spec.board}:{spec.attempt}",
            output=start / _OUTPUT,
            workdir=start,
            time=spec.timeout,
            memory=spec.memory,
            cpus=spec.cpus or settings.cpus,
        )

    def _script(self, spec: Spec, settings: SlurmSettings, start: Path) -> str:
        python = settings.python or sys.executable
        entry = [python, "-P", "-m", "aboard.executors.entry", str(start)]
        entry += ["--address", str(start / ADDRESS), "--", *spec.command]
        listening = spec.listening("0.0.0.0", 0)  # noqa: S104 - with a token, and TLS
        values = {
            "place": str(start),
            "log": str(spec.directory / "log"),
            "address": ADDRESS,
            "grace": f"{self.grace:g}",
            "python": python,
            "interface": settings.interface,
        }
        arrays = {
            "reads": [str(path) for path in spec.reads],
            "variables": [f"{name}={value}" for name, value in listening.items()],
            "command": entry,
        }
        lines = [
            "#!/bin/bash -l" if settings.setup else "#!/bin/bash",
            f"# Board {spec.board}, start {spec.attempt}, of the hub {self.hub}",
            *(f"{name}={shlex.quote(value)}" for name, value in values.items()),
            *(f"{name}=({shlex.join(words)})" for name, words in arrays.items()),
            *("setup() {", ":", *settings.setup, "}"),
            *script_lines("boards.sh"),
        ]
        return "\n".join(lines)

    def _poll(
        self, cluster: Cluster, submitted_by_key: Mapping[str, _Submitted]
    ) -> dict[str, Status]:
        try:
            jobs = cluster.jobs()
            gone = [one for one in submitted_by_key.values() if one.job not in jobs]
            accounts = _accounts(cluster, gone)
        except ExecutorError as error:
            return dict.fromkeys(submitted_by_key, Status(CommandState.UNKNOWN, reason=str(error)))
        found = {}
        for key, submitted in submitted_by_key.items():
            job = jobs.get(submitted.job) or accounts.get(submitted.job)
            try:
                if job is None or ENDED.fullmatch(job.state):
                    found[key] = submitted.conclude(job)
                    self._addresses.forget(submitted)
                else:
                    found[key] = self._status(cluster, submitted, job)
            except (ExecutorError, OSError, TokenError, ValueError) as error:
                found[key] = Status(CommandState.UNKNOWN, reason=why(error))
        return found

    def _status(self, cluster: Cluster, submitted: _Submitted, job: Job) -> Status:
        deadline = submitted.files.deadline()
        if deadline is not None and job.state != "COMPLETING":
            waits = WAITING.fullmatch(job.state)
            if waits or time.monotonic() >= deadline + _PATIENCE_SECONDS:
                cluster.cancel(job.id)
        if WAITING.fullmatch(job.state):
            reason = job.why_waiting()
        elif submitted.runs(job):
            address = submitted.files.address()
            self._addresses.note(submitted, address)
            if address is not None:
                return Status(CommandState.RUNNING)
            reason = f"job {job.id} starts on {job.node}"
        else:
            reason = f"job {job.id} was assigned to {job.node}"
        self._addresses.note(submitted, None)
        return Status(CommandState.STARTING, reason=reason)


class _Submitted(Start):
    """A start whose job Slurm accepted."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        try:
            self.job = str(handle["job"])
            self.profile = str(handle["profile"])
            self.memory: int | None = handle["memory"]
        except (KeyError, TypeError) as error:
            raise ExecutorError(
                f"not the handle of a job: {error!r}. Start the board again."
            ) from error
        self._handle = handle

    @cached_property
    def files(self) -> Start:
        """The files of the running board, in the directory that the nodes share."""
        shared = self._handle.get("shared")
        if shared is not None and Path(shared, self.place.name).is_dir():
            return Start({**self._handle, "directory": shared})
        return self

    def runs(self, job: Job) -> bool:
        """Return whether the script has begun since the job was last requeued."""
        return self.restarts() == job.restarts

    def restarts(self) -> int:
        """Return how often the job was requeued before the script began; -1 if it has not."""
        return int((_words(self.files.place / "running") or ["-1"])[0])

    def conclude(self, job: Job | None) -> Status:
        """Record how the job ended; `job` is None if Slurm has forgotten it."""
        code, passed = self._outcome(job)
        reason = "" if self.files.deadline() is not None else self._reason(job, passed)
        reason = reason or self.files.end_reason(code)
        if self.files is not self:
            with (
                suppress(FileNotFoundError),
                self.files.log.open("rb") as source,
                self.log.open("ab") as log,
            ):
                shutil.copyfileobj(source, log)
        status = self.end(code, reason)
        self.release()
        return status

    def release(self) -> None:
        """Remove the files in the directory that the nodes share."""
        if self.files is not self:
            shutil.rmtree(self.files.place.parent, ignore_errors=True)
            self.files = self

    def _outcome(self, job: Job | None) -> tuple[int | None, str]:
        """Return the exit code, and the signal that the script forwarded."""
        count, code, *passed = _words(self.files.place / "ended") or ["", ""]
        if code and (job is None or count == str(job.restarts)):
            number = exit_code_of(code)
            by_time = passed == ["TIME"] and number == -signal.SIGTERM
            return 0 if by_time else number, passed[0] if passed else ""
        return (job.exit_code() if job is not None and self.runs(job) else None), ""

    def _reason(self, job: Job | None, passed: str) -> str:
        """Return why Slurm ended the job; empty if the board exited by itself."""
        state = "" if job is None else job.state
        output = b""
        with suppress(OSError):
            output = (self.files.place / _OUTPUT).read_bytes()[-_LONGEST_OUTPUT:]
        if reason := why_out_of_memory(state, output, self.memory):
            return reason
        if state == "TIMEOUT" or (passed == "TIME" and state != "PREEMPTED"):
            return f"{TIME_IS_UP}: {job.limit}" if job is not None else TIME_IS_UP
        if job is None:
            return ""
        if state == "FAILED" and not self.runs(job):
            return job.why_not_begun(self.files.place.parent)
        return job.end_reason()


def _accounts(cluster: Cluster, gone: Iterable[_Submitted]) -> dict[str, Job]:
    """Return the accounted ends of jobs that neither squeue nor the script reports."""
    silent = {one.job: one for one in gone if not (one.files.place / "ended").exists()}
    found = cluster.accounts(silent) if silent else []
    return {
        job.id: replace(job, restarts=max(silent[job.id].restarts(), 0))
        for job in found
        if job.id in silent
    }


def _recorded_handle(job: Job) -> Handle | None:
    """Return the handle of a job from the files of its start; None if they are not its own."""
    handle: Handle | None = None
    with suppress(OSError):  # on another machine
        handle = read_json(Path(job.workdir) / _HANDLE)
    return None if handle is None or handle.setdefault("job", job.id) != job.id else handle


def _handle_of(job: Job, board: str, attempt: int, profile: str) -> Handle:
    return _recorded_handle(job) or {
        "board": board,
        "attempt": attempt,
        "directory": str(Path(job.workdir).parent),
        "start": f"job-{job.id}",  # the files may be those of another job
        "log_from": 0,
        "profile": profile,
        "memory": None,
        "job": job.id,
    }


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return []
