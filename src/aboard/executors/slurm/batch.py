"""Batches as jobs of a Slurm cluster: one array for a sweep, a plain job for a single task.

The directory of a batch must lie on a file system that the compute nodes share. In it:

    payload.json     the input of the tasks
    environment.sh   the submitter's variables, which the script reads; Slurm itself stores only
                     those that boards get too, and no credentials
    handle.json      the handle; an array has no `job` until Slurm has accepted it
    log-NUMBER       the output of a task, and Slurm's messages about it
    tasks/           a file for each start of a task, NUMBER.JOB.RESTARTS; at its end the script
                     appends .EXITCODE, and .time after Slurm's warning before the time limit

The files in `tasks` are empty: one listing shows how thousands of tasks ended, also after Slurm has
forgotten them. An array has at most MaxArraySize tasks. A larger batch has several arrays, and the
number of a task is its index plus the `offset` of its array.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from aboard import system
from aboard.executors.base import (
    PAYLOAD,
    PYTHON,
    Batch,
    BatchExecutor,
    ExecutorError,
    Handle,
    TaskState,
    TaskStatus,
    bounded,
    format_ranges,
)
from aboard.executors.slurm.cluster import (
    ENDED,
    OF_NODE,
    OF_SLURM,
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
from aboard.executors.start import read_json, read_log, why
from aboard.system import write_private

_ENVIRONMENT, _RECORD, _TASKS = "environment.sh", "handle.json", "tasks"
_OUTPUT_TAIL = 2000  # bytes at the end of a log in which Slurm may explain why it ended the task
_TASK = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.(\d+))?(\.time)?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?(?::(\d+))?")
_PARTITION = re.compile(r"-p|--partition\b")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION = re.compile(r"BASH_FUNC_([\w-]+)%%")  # such as `module`
# Variables that the user did not choose: of the shell, the node, its devices, a launcher.
_OF_PLACE = re.compile(
    r"_|PWD|OLDPWD|SHLVL|HOST|HOSTNAME|BASHOPTS|SHELLOPTS|E?UID|PPID"
    r"|(CUDA|ROCR|HIP)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK"
    r"|PMI_.*|PMIX_.*|OMPI_.*"
)


class SlurmBatches(BatchExecutor):
    """Runs tasks as jobs of the submitter."""

    name = "slurm"
    Settings = SlurmSettings

    def submit(self, batch: Batch) -> Handle:
        settings = self._checked(batch)
        place = _place_of(batch, settings)
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            with system.file_lock(place / "lock") as lock:  # one submission at a time
                return self._submit(batch, settings, place, lock)
        except OSError as error:
            raise ExecutorError(
                f"{place}: job {batch.job} cannot be submitted: {why(error)}. "
                "Check that you may write there."
            ) from error

    def preview(self, batch: Batch) -> str:
        settings = self._checked(batch)
        place = _place_of(batch, settings)
        (array, *_) = _arrays(batch.numbers, max(batch.numbers))
        options = _options(batch, settings, place, array)
        return f"{shlex.join(['sbatch', *options])}\n\n{_script(batch, settings, place, array)}"

    def tasks(self, handles: Mapping[str, Handle]) -> dict[str, dict[int, TaskStatus]]:
        found: dict[str, dict[int, TaskStatus]] = {}
        by_cluster: dict[Cluster, dict[str, _Submitted]] = {}
        for key, handle in handles.items():
            submitted = None
            try:
                submitted = _Submitted(handle)
                cluster = Cluster.of(self.settings(submitted.profile))
                by_cluster.setdefault(cluster, {})[key] = submitted
            except ExecutorError as error:
                unknown = TaskStatus(TaskState.UNKNOWN, reason=str(error))
                found[key] = dict.fromkeys(submitted.numbers() if submitted else (), unknown)
        for cluster, batches in by_cluster.items():
            try:
                found |= _query(cluster, batches)
            except (ExecutorError, OSError) as error:
                unknown = TaskStatus(TaskState.UNKNOWN, reason=why(error))
                found |= {
                    key: dict.fromkeys(one.numbers(), unknown) for key, one in batches.items()
                }
        return found

    def cancel(
        self, handle: Handle, numbers: Collection[int] | None = None, *, now: bool = False
    ) -> None:
        submitted = _Submitted(handle)
        cluster = Cluster.of(self.settings(submitted.profile))
        chosen = set(submitted.numbers() if numbers is None else numbers)
        # The script of a running job stops its task, because srun would kill its ranks without
        # the grace period, which Slurm gives to all other processes. A signal to a script that
        # Slurm has not started yet is lost.
        begun = set()
        if now or submitted.has_ranks:
            begun = chosen & {number for _, number in _records(submitted.place)}
        if targets := submitted.targets(chosen - begun):
            cluster.cancel(*targets)
        if targets := submitted.targets(begun):
            cluster.cancel("--state=PENDING", *targets)  # requeued
            number = "USR2" if now else "TERM"
            cluster.cancel("--state=RUNNING", "--batch", f"--signal={number}", *targets)

    def logs(self, handle: Handle, number: int, *, tail: int | None = None) -> Iterator[bytes]:
        submitted = _Submitted(handle)
        yield from read_log(submitted.log(submitted.array_of(number), number), tail=tail)

    def release(self, handle: Handle) -> None:
        """Remove all but the logs and the payload."""
        submitted = _Submitted(handle)
        try:
            name = f"aboard-{handle.get('job')}-{handle.get('attempt')}"
            if submitted.place != submitted.directory:
                if submitted.place.name != _place_name(name, submitted.directory):
                    raise ExecutorError(f"{submitted.place} is not a directory of {name}.")
                submitted.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                for log in submitted.place.glob("log-*"):
                    shutil.move(log, submitted.directory / log.name)
                shutil.rmtree(submitted.place)
                return
            for name in (_ENVIRONMENT, _RECORD, "lock"):  # a retry needs the payload
                (submitted.place / name).unlink(missing_ok=True)
            shutil.rmtree(submitted.place / _TASKS, ignore_errors=True)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ExecutorError(
                f"{submitted.place}: cannot be removed: {why(error)}. Remove it by hand."
            ) from error

    def _checked(self, batch: Batch) -> SlurmSettings:
        settings: SlurmSettings = self.settings(batch.profile)
        if batch.image:
            raise ExecutorError(
                "Slurm runs jobs directly on its nodes, not in an image. Omit the image, or begin "
                "the command with your site's container runtime."
            )
        return settings

    def _submit(self, batch: Batch, settings: SlurmSettings, place: Path, lock: int) -> Handle:
        cluster = Cluster.of(settings)
        handle: Handle | None = read_json(place / _RECORD)
        if handle is not None and not all("job" in array for array in handle["arrays"]):
            # A process was killed while it submitted. If Slurm does not answer, nothing changes.
            _find_jobs(cluster, handle, batch)
        try:
            if handle is None:
                handle = self._prepare(batch, cluster, place)
            for before, array in zip([None, *handle["arrays"]], handle["arrays"], strict=False):
                if "job" not in array:
                    options = _options(batch, settings, place, array, before)
                    script = _script(batch, settings, place, array)
                    array["job"] = cluster.submit(options, script, lock)
                    write_private(place / _RECORD, json.dumps(handle))
        except (ExecutorError, OSError):
            # If Slurm accepts an array after all, its tasks find no payload and exit.
            shutil.rmtree(place, ignore_errors=True)
            accepted = [one["job"] for one in (handle or {}).get("arrays", ()) if "job" in one]
            if accepted:
                with suppress(ExecutorError):
                    cluster.cancel(*accepted)
            raise
        return handle

    def _prepare(self, batch: Batch, cluster: Cluster, place: Path) -> Handle:
        _check_nodes(batch, self.settings(batch.profile), cluster)
        largest = 1
        if len(batch.numbers) > 1:
            largest = cluster.largest_array()
            if not largest:
                raise ExecutorError(
                    "this Slurm has no job arrays: MaxArraySize is 0 in its configuration. "
                    "Submit one task at a time."
                )
        (place / _TASKS).mkdir(mode=0o700, exist_ok=True)
        write_private(place / PAYLOAD, batch.payload)
        write_private(place / _ENVIRONMENT, _environment(os.environ))
        handle: Handle = {
            "job": batch.job,
            "attempt": batch.attempt,
            "profile": batch.profile,
            "user": os.getuid(),
            "place": str(place),
            "directory": str(batch.directory.absolute()),
            "memory": batch.resources.memory,
            "ranks": _has_ranks(batch),
            "arrays": _arrays(batch.numbers, largest),
        }
        write_private(place / _RECORD, json.dumps(handle))
        return handle


def _check_nodes(batch: Batch, settings: SlurmSettings, cluster: Cluster) -> None:
    """Reject more nodes than exist: Slurm would accept the job and never start it."""
    nodes = batch.resources.nodes
    if nodes == 1 or any(_PARTITION.match(option) for option in settings.options):
        return
    counts = cluster.node_counts()
    known = {name: counts[name] for name in settings.partition.split(",") if name in counts}
    if not known or nodes <= max(known.values()):
        return
    largest = max(known, key=lambda name: known[name])
    shown = f"partition {largest!r}" if largest else "the default partition"
    raise ExecutorError(
        f"each member requests {nodes} nodes, but {shown} of Slurm has {known[largest]}. "
        "Request fewer nodes, or set another partition in [executors.slurm]."
    )


class _Task(NamedTuple):
    """The script's record of the last start of a task."""

    restarts: int
    exit_code: int | None = None
    timed_out: bool = False


@dataclass(frozen=True)
class _Array:
    """An array; or a plain job without indices, whose number is the offset."""

    job: str
    offset: int
    indices: str

    def numbers(self) -> Iterator[int]:
        return (self.offset + index for index in expand(self.indices or "0"))

    def unit(self, number: int) -> str:
        return f"{self.job}_{number - self.offset}" if self.indices else self.job


class _Submitted:
    """A batch that Slurm has accepted."""

    def __init__(self, handle: Handle) -> None:
        try:
            self.profile = str(handle["profile"])
            self.user = int(handle["user"])
            self.place = Path(handle["place"])
            self.directory = Path(handle["directory"])
            self.memory: int | None = handle["memory"]
            self.has_ranks = bool(handle["ranks"])
            self.arrays = [
                _Array(str(int(one["job"])), int(one["offset"]), str(one["indices"]))
                for one in handle["arrays"]
            ]
            bounded([number for one in self.arrays for number in one.numbers()])
        except (KeyError, TypeError, ValueError) as error:
            raise ExecutorError(
                f"not the handle of a Slurm job: {error!r}. Submit the job again."
            ) from error

    def numbers(self) -> Iterator[int]:
        return (number for array in self.arrays for number in array.numbers())

    def targets(self, numbers: Collection[int]) -> list[str]:
        """Return the arguments of scancel."""
        found = []
        for array in self.arrays:
            ours = set(array.numbers())
            chosen = ours & set(numbers)
            if chosen == ours:
                found.append(array.job)
            elif chosen:
                indices = format_ranges(sorted(one - array.offset for one in chosen))
                found.append(f"{array.job}_[{indices}]")
        return found

    def array_of(self, number: int) -> _Array:
        for array in self.arrays:
            if number in set(array.numbers()):
                return array
        raise ExecutorError(f"this job has no task {number}.")

    def log(self, array: _Array, number: int) -> Path:
        name = _log_name(array.offset, number - array.offset if array.indices else None)
        released = not os.access(self.place, os.F_OK)
        return (self.directory if released else self.place) / name

    def conclude(self, array: _Array, number: int, job: Job, task: _Task | None) -> TaskStatus:
        """Return how a task ended that Slurm, or its accounting, knows."""
        noted = None if task is None else task.exit_code
        code = job.exit_code()
        # After a cancellation, Slurm often reports only the signal, not how the task ended.
        if code is None or (noted is not None and job.state == "CANCELLED"):
            code = noted
        return TaskStatus(
            TaskState.ENDED, code, self._reason(array, number, job, task), array.unit(number)
        )

    def _reason(self, array: _Array, number: int, job: Job, task: _Task | None) -> str:
        if job.state == "COMPLETED":
            return ""
        if task is not None and task.timed_out and job.state in {"FAILED", "TIMEOUT"}:
            return f"{TIME_IS_UP}: {job.limit}"
        output = b""
        try:
            with system.open_regular(self.log(array, number)) as file:
                file.seek(max(file.seek(0, os.SEEK_END) - _OUTPUT_TAIL, 0))
                output = file.read()
        except FileNotFoundError:
            if task is None and job.state == "FAILED":
                return job.why_not_begun(self.place)
        except OSError:  # of another user
            pass
        if job.state == "FAILED" and job.exit_code() != -signal.SIGKILL:
            return ""
        return why_out_of_memory(job.state, output, self.memory) or job.end_reason()

    def forgotten(self, array: _Array, number: int, task: _Task | None) -> TaskStatus:
        """Return how a task ended that Slurm no longer lists."""
        unit = array.unit(number)
        if task is not None and task.exit_code is not None:
            reason = TIME_IS_UP if task.timed_out else ""
            return TaskStatus(TaskState.ENDED, task.exit_code, reason, unit)
        if self.user != os.getuid():
            reason = f"Slurm does not list job {unit} of another user"
            return TaskStatus(TaskState.UNKNOWN, reason=reason, unit=unit)
        never = ", which never began" if task is None else ""
        reason = f"Slurm has no record of its job {unit}{never}"
        return TaskStatus(TaskState.ENDED, reason=reason, unit=unit)


def _query(cluster: Cluster, batches: Mapping[str, _Submitted]) -> dict[str, dict[int, TaskStatus]]:
    listed = _by_index(cluster.jobs({one.user for one in batches.values()}).values())
    records = {key: _records(one.place) for key, one in batches.items()}
    gone = {
        array.job
        for key, one in batches.items()
        for array in one.arrays
        for number in array.numbers()
        if (array.job, number - array.offset) not in listed
        and records[key].get((array.job, number), _Task(0)).exit_code is None
    }
    accounted = _by_index(cluster.accounts(sorted(gone))) if gone else {}
    found: dict[str, dict[int, TaskStatus]] = {}
    for key, one in batches.items():
        found[key] = statuses = {}
        for array in one.arrays:
            for number in array.numbers():
                index = array.job, number - array.offset
                job, task = listed.get(index), records[key].get((array.job, number))
                if job is not None and WAITING.fullmatch(job.state):
                    status = TaskStatus(
                        TaskState.WAITING, reason=job.why_waiting(), unit=array.unit(number)
                    )
                elif job is not None and not ENDED.fullmatch(job.state):
                    reason = "" if job.state == "RUNNING" else job.state
                    status = TaskStatus(TaskState.RUNNING, reason=reason, unit=array.unit(number))
                elif job is not None:
                    status = one.conclude(array, number, job, task)
                elif index in accounted and (task is None or task.exit_code is None):
                    status = one.conclude(array, number, accounted[index], task)
                else:
                    status = one.forgotten(array, number, task)
                statuses[number] = status
    return found


def _records(place: Path) -> dict[tuple[str, int], _Task]:
    """Return the records of the scripts, by job and task number."""
    found: dict[tuple[str, int], _Task] = {}
    try:
        with os.scandir(place / _TASKS) as files:
            names = [file.name for file in files]
    except (FileNotFoundError, PermissionError):  # released, or of another user
        return found
    for matched in filter(None, map(_TASK.fullmatch, names)):
        number, job, restarts, code, timed_out = matched.groups()
        task = _Task(int(restarts), exit_code_of(code), timed_out is not None)
        key = job, int(number)
        if key not in found or found[key].restarts <= task.restarts:
            found[key] = task
    return found


def _by_index(jobs: Iterable[Job]) -> dict[tuple[str, int], Job]:
    """Return the jobs by array and index; the index is 0 for a plain job."""
    found = {}
    for job in jobs:
        for index in expand(job.indices or "0"):
            found[job.array or job.id, index] = job
    return found


def _arrays(numbers: Collection[int], largest: int) -> list[Handle]:
    """Spread tasks over arrays with indices from 1 to `largest`."""
    if len(numbers) == 1:
        return [{"offset": min(numbers), "indices": ""}]
    indices: dict[int, list[int]] = {}
    for number in sorted(numbers):
        offset = (number - 1) // largest * largest
        indices.setdefault(offset, []).append(number - offset)
    return [{"offset": offset, "indices": format_ranges(each)} for offset, each in indices.items()]


def _options(
    batch: Batch,
    settings: SlurmSettings,
    place: Path,
    array: Handle,
    before: Handle | None = None,
) -> list[str]:
    resources = batch.resources
    more = [f"--nodes={resources.nodes}", f"--ntasks-per-node={resources.tasks_per_node}"]
    if resources.gpus:
        more.append(f"--gres={settings.gpu}:{resources.gpus * resources.tasks_per_node}")
    if array["indices"]:
        most = f"%{batch.parallel}" if batch.parallel else ""
        more.append(f"--array={array['indices']}{most}")
    if batch.parallel and before is not None:
        more.append(f"--dependency=afterany:{before['job']}")
    return job_options(
        settings,
        *more,
        name=batch.name,
        comment=_comment(batch, place, array),
        output=place / _log_name(array["offset"], "%a" if array["indices"] else None),
        workdir=batch.workdir,
        time=resources.time,
        memory=resources.memory,
        cpus=resources.cpus or (settings.cpus if settings.cpus > 1 else None),
    )


def _log_name(offset: int, index: int | str | None) -> str:
    if index is None:
        return f"log-{offset}"
    return f"log-{offset}-{index}" if offset else f"log-{index}"


def _comment(batch: Batch, place: Path, array: Handle) -> str:
    """Return a comment to find the array by; another root may have a job with this name."""
    digest = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    return f"aboard-job:{batch.job}:{batch.attempt}:{array['offset']}:{digest}"


def _script(batch: Batch, settings: SlurmSettings, place: Path, array: Handle) -> str:
    first, *others = batch.command
    python = settings.python or sys.executable
    resources = batch.resources
    launch = []
    if _has_ranks(batch):
        # Since 22.05 srun does not inherit it from sbatch.
        cpus = math.ceil(resources.cpus or settings.cpus)
        srun = str(settings.programs / "srun") if settings.programs else "srun"
        launch = [srun, "--export=ALL", "--kill-on-bad-exit=1", f"--cpus-per-task={cpus}"]
    payload = str(place / PAYLOAD)
    values = {
        "place": str(place),
        "payload": payload,
        "environment": str(place / _ENVIRONMENT),
        "workdir": str(batch.workdir),
        "python": python,
        "offset": str(array["offset"]),
    }
    arrays = {
        "launch": launch,
        "command": [python if first == PYTHON else first, *others, payload],
    }
    lines = [
        "#!/bin/bash -l" if settings.setup else "#!/bin/bash",
        f"# Job {batch.job} of Aboard, submission {batch.attempt}",
        *(f"aboard_{name}={shlex.quote(value)}" for name, value in values.items()),
        *(f"aboard_{name}=({shlex.join(words)})" for name, words in arrays.items()),
        *("aboard_setup() {", ":", *settings.setup, "}"),
        *script_lines("batch.sh"),
    ]
    return "\n".join(lines)


def _has_ranks(batch: Batch) -> bool:
    return batch.resources.nodes * batch.resources.tasks_per_node > 1


def _environment(variables: Mapping[str, str]) -> bytes:
    """Return shell code that sets the variables and functions of the submitter."""
    lines = []
    for name, value in variables.items():
        if function := _FUNCTION.fullmatch(name):
            lines += [f"{function[1]} {value}", f"export -f {function[1]}"]
        elif _NAME.fullmatch(name) and not (
            name in OF_NODE or OF_SLURM.match(name) or _OF_PLACE.fullmatch(name)
        ):
            lines.append(f"export {name}={shlex.quote(value)}")
    return os.fsencode("".join(f"{line}\n" for line in lines))


def _place_of(batch: Batch, settings: SlurmSettings) -> Path:
    """Return a directory that the nodes share: beside the runs, or from the settings."""
    directory = batch.directory.absolute()
    if settings.directory is None or any(directory.is_relative_to(one) for one in batch.writes):
        return directory
    return settings.directory / _place_name(batch.name, directory)


def _place_name(name: str, directory: Path) -> str:
    return f"{name}-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}"


def _find_jobs(cluster: Cluster, handle: Handle, batch: Batch) -> None:
    """Record the jobs of arrays that Slurm accepted before the submitter was killed."""
    place = Path(handle["place"])
    by_comment = {job.comment: job.array or job.id for job in cluster.jobs().values()}
    lacking = [array for array in handle["arrays"] if "job" not in array]
    for array in lacking:
        if job := by_comment.get(_comment(batch, place, array)):
            array["job"] = job
    # Slurm may have forgotten an array whose tasks have all ended.
    begun = {number: job for job, number in _records(place)}
    for array in lacking:
        offset, indices = array["offset"], array["indices"]
        numbers = {offset + index for index in expand(indices or "0")}
        if "job" not in array and (found := numbers & begun.keys()):
            array["job"] = begun[min(found)]
    write_private(place / _RECORD, json.dumps(handle))


def expand(indices: str) -> Iterator[int]:
    """Yield the numbers of a range in Slurm's notation: `1-3,7`, `[5-200%8]`, `0-10:2`."""
    for part in indices.strip("[]").partition("%")[0].split(","):
        if matched := _RANGE.fullmatch(part):
            first, last, step = matched.groups()
            yield from bounded(range(int(first), int(last or first) + 1, int(step or 1)))
