"""The Jobs of a submission: their documents, and how their status is read.

Functions take and return documents and states; nothing here contacts a cluster.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from aboard.executors.base import (
    PAYLOAD,
    Batch,
    Handle,
    TaskState,
    TaskStatus,
    format_ranges,
    parse_ranges,
)
from aboard.executors.kubernetes.pod import (
    ATTEMPT,
    HANDLE,
    SECRETS,
    TASK,
    KubernetesSettings,
    check_paths,
    condition,
    container_state,
    disruption,
    engine_ending,
    has_begun,
    make_task_pod,
    message_of,
    task_words,
    why_waiting,
)

_Json = dict[str, Any]
Version = tuple[int, int]
INDEXED: Version = (1, 29)
"""From this version on, a submission is one Job."""
_FAILURE_POLICY: Version = (1, 26)
JOB, BATCH, NUMBER, RESTARTS = "aboard/job", "aboard/batch", "aboard/number", "aboard/restarts"
CANCELLED = "aboard/cancelled"  # the numbers of tasks
DIRECTORY = "aboard/directory"
NUMBERS = "numbers.json"
_INDEX = "batch.kubernetes.io/job-completion-index"
_COMPLETE = "Complete"
_DAYS_KEPT = 7
_MOST_JOBS = 2000  # as many owners as fit into the Secret
_SMALL_PAYLOAD, _LARGEST_PAYLOAD = 64 << 10, 1000 << 10
_LONGEST_NAME = 45  # names of pods have up to 63 characters, with a number
_RESTART_SECONDS, _LONGEST_RESTART = 10.0, 360.0  # as Kubernetes replaces pods
_SETTLE_SECONDS = 2.0  # for a node to report how a container ended
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9.-]+(?::\d+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::\w[\w.-]{0,127})?(?:@[A-Za-z0-9+._-]+:[0-9a-fA-F]{32,})?"
)
# Reasons for which a node ends or rejects a pod through no fault of the pod.
_LOST = frozenset(
    {"NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "NodeAffinity"}
)


# Documents.


def make_jobs(
    batch: Batch, settings: KubernetesSettings, handle: Handle, version: Version
) -> list[_Json]:
    """Return the Jobs of a submission for a version of Kubernetes."""
    name, labels = handle["name"], _labels(batch, handle["name"])
    words = task_words(batch, settings, _payload(batch)[0])
    if handle["indexed"]:
        first = [settings.python, "-P", "-m", "aboard.executors.entry"]
        words = [*first, "--numbers", f"{SECRETS}/{NUMBERS}", "--", *words]
    pod = make_task_pod(batch, settings, words, name)
    spec: _Json = {"ttlSecondsAfterFinished": _DAYS_KEPT * 24 * 3600}
    if version >= _FAILURE_POLICY:
        disrupted = {"type": "DisruptionTarget", "status": "True"}
        ignored = {"action": "Ignore", "onPodConditions": [disrupted]}
        spec["podFailurePolicy"] = {"rules": [ignored]}
    if handle["indexed"]:
        count = len(batch.numbers)
        spec |= {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": min(batch.parallel or count, count),
            "backoffLimitPerIndex": 0,
        }
        return [_make_job(name, labels, spec, pod)]
    spec |= {"completions": 1, "parallelism": 1, "backoffLimit": 0}
    return [
        _make_job(f"{name}-{number}", {**labels, NUMBER: str(number)}, spec, pod, [str(number)])
        for number in batch.numbers
    ]


def _make_job(
    name: str, labels: Mapping[str, str], spec: _Json, pod: _Json, arguments: Iterable[str] = ()
) -> _Json:
    metadata = {**pod["metadata"], "labels": {**pod["metadata"]["labels"], **labels}}
    containers = [
        {**one, "args": list(arguments)} if arguments and one["name"] == TASK else one
        for one in pod["spec"]["containers"]
    ]
    template = {"metadata": metadata, "spec": {**pod["spec"], "containers": containers}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {**spec, "template": template},
    }


def next_job(job: _Json) -> _Json:
    """Return the Job that follows one whose pod was lost. Its name is deterministic."""
    old = job["metadata"]["labels"]
    labels = {**old, RESTARTS: str(int(old.get(RESTARTS, 0)) + 1)}
    base = name_of(job).removesuffix(f"-r{old.get(RESTARTS)}")
    template = job["spec"]["template"]
    kept = {
        name: value
        for name, value in template["metadata"]["labels"].items()
        if not name.endswith(("controller-uid", "job-name"))
    }
    spec = {name: value for name, value in job["spec"].items() if name != "selector"}
    spec["template"] = {**template, "metadata": {**template["metadata"], "labels": kept}}
    metadata = {"name": f"{base}-r{labels[RESTARTS]}", "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def make_secret(batch: Batch, handle: Handle) -> _Json:
    name, payload = _payload(batch)
    data = {name: payload}
    if handle["indexed"]:
        data[NUMBERS] = numbers_file(batch.numbers, ())
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": handle["name"],
            "labels": _labels(batch, handle["name"]),
            "annotations": {HANDLE: json.dumps(handle), DIRECTORY: str(batch.directory)},
        },
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def _payload(batch: Batch) -> tuple[str, bytes]:
    """Return name and content of the payload in the Secret, compressed if it is large."""
    if len(batch.payload) <= _SMALL_PAYLOAD:
        return PAYLOAD, batch.payload
    data = gzip.compress(batch.payload, mtime=0)
    if len(data) > _LARGEST_PAYLOAD:
        raise ValueError(
            f"the payload of its tasks has {len(data)} bytes, but a Secret holds at most "
            f"{_LARGEST_PAYLOAD}. Submit fewer tasks at a time, or shorter values"
        )
    return f"{PAYLOAD}.gz", data


def numbers_file(numbers: Iterable[int], cancelled: Iterable[int]) -> bytes:
    return json.dumps({"numbers": list(numbers), "cancelled": sorted(cancelled)}).encode()


def make_handle(batch: Batch, server: str, namespace: str, *, indexed: bool) -> Handle:
    return {
        "job": batch.job,
        "attempt": batch.attempt,
        "profile": batch.profile,
        "server": server,
        "namespace": namespace,
        "name": _object_name(batch.name),
        "indexed": indexed,
        "numbers": format_ranges(batch.numbers),
        "memory": batch.resources.memory,
    }


def _labels(batch: Batch, name: str) -> dict[str, str]:
    labels = {
        "app.kubernetes.io/name": "aboard-task",
        "app.kubernetes.io/managed-by": "aboard",
        BATCH: name,
        ATTEMPT: str(batch.attempt),
    }
    return labels | ({JOB: batch.job} if _LABEL.fullmatch(batch.job) else {})


def _object_name(name: str) -> str:
    """Return a name that Kubernetes allows, distinct for each name that it does not."""
    if re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= _LONGEST_NAME:
        return name
    allowed = re.sub(r"[^a-z0-9]+", "-", name.lower())[: _LONGEST_NAME - 9].strip("-")
    return f"{allowed}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


# Checks.


def check(batch: Batch, settings: KubernetesSettings) -> None:
    resources = batch.resources
    if resources.nodes > 1 or resources.tasks_per_node > 1:
        raise ValueError(
            "a task on kubernetes is one process; only slurm supports several nodes and tasks per"
            " node. Start the processes of one machine with torchrun in the command"
        )
    image = batch.image or settings.image
    if not _IMAGE.fullmatch(image):
        example = "registry.example.org/name:tag"
        raise ValueError(f"invalid image {image!r}. Use a name such as {example}")
    check_paths(batch, settings)


def check_jobs(batch: Batch, version: Version) -> None:
    """Check that a batch needs no feature of indexed Jobs."""
    count = len(batch.numbers)
    needed = f"needs Kubernetes {version_text(INDEXED)}; this is {version_text(version)}"
    if batch.parallel is not None and batch.parallel < count:
        raise ValueError(
            f"a limit of {batch.parallel} tasks at a time {needed}. "
            "Omit the limit; a ResourceQuota can limit what runs"
        )
    if count > _MOST_JOBS:
        raise ValueError(f"a job of more than {_MOST_JOBS} tasks {needed}. Submit several jobs")


def version_text(version: Version) -> str:
    return ".".join(map(str, version))


# Status.


class Task(NamedTuple):
    """A task on the cluster: its last Job, and the Job's pods, the oldest first."""

    job: _Json | None
    pods: list[_Json]
    end: str = ""
    """Why the task has ended for its Job, `Complete` if it succeeded; empty if it has not."""
    is_cancelled: bool = False
    is_indexed: bool = False

    @property
    def pod(self) -> _Json | None:
        return self.pods[-1] if self.pods else None


def find_tasks(handle: Handle, jobs: list[_Json], pods: list[_Json]) -> dict[int, Task]:
    """Return the tasks of a submission by their numbers, from its Jobs and pods."""
    numbers = parse_ranges(handle["numbers"])
    pods = sorted(pods, key=lambda one: str(one["metadata"]["creationTimestamp"]))
    held: dict[int | str, list[_Json]] = {}
    if handle["indexed"]:
        job = jobs[0] if jobs else None
        for pod in pods:
            held.setdefault(int(notes_of(pod).get(_INDEX, -1)), []).append(pod)
        ends = _ends_of_indexes(job, len(numbers))
        cancelled = cancelled_numbers(job)
        return {
            number: Task(job, held.get(index, []), ends[index], number in cancelled, True)
            for index, number in enumerate(numbers)
        }
    last: dict[int, _Json] = {}
    for job in sorted(jobs, key=lambda one: int(one["metadata"]["labels"].get(RESTARTS, 0))):
        last[number_of(job)] = job
    for pod in pods:
        # A pod whose Job was deleted is identified by its number.
        is_orphan = number_of(pod) not in last
        key = number_of(pod) if is_orphan else pod["metadata"]["labels"].get("job-name", "")
        held.setdefault(key, []).append(pod)
    return {
        number: Task(
            job := last.get(number),
            held.get(number if job is None else name_of(job), []),
            _end(job),
            job is not None and CANCELLED in notes_of(job),
        )
        for number in numbers
    }


def read_status(task: Task, events: Mapping[str, str], memory: int | None = None) -> TaskStatus:
    """Return the status of a task; `events` are the last warnings about Jobs and pods."""
    job, pod = task.job, task.pod
    named = pod or job
    unit = name_of(named) if named is not None else ""
    has_ended = pod is not None and _has_ended(pod, job)
    code, reason = engine_ending(pod, memory) if pod is not None and has_ended else (None, "")
    if pod is not None and has_begun(pod) and not has_ended:
        return TaskStatus(TaskState.RUNNING, unit=unit)
    if job is None:
        reason = reason or "its Job was deleted"
    elif task.end == _COMPLETE:
        code, reason = 0, ""
    elif task.is_cancelled:
        reason = "it was cancelled"
    elif pod is not None and has_ended and _is_lost(pod) and not (task.is_indexed and task.end):
        # Kubernetes replaces it, or the next Job does: see `must_restart`.
        reason = reason or f"its pod {unit} was deleted"
        return TaskStatus(TaskState.WAITING, reason=reason, unit=unit)
    elif not has_ended and not task.end:
        words = why_waiting(pod) if pod is not None else _why_idle(job)
        return TaskStatus(TaskState.WAITING, reason=words or events.get(unit, ""), unit=unit)
    elif not has_ended:
        reason = task.end
    return TaskStatus(TaskState.ENDED, code, reason, unit)


def must_restart(task: Task) -> bool:
    """Return whether a Job failed because its pod was lost, and it is time for the next."""
    job, pod = task.job, task.pod
    if job is None or pod is None or task.is_indexed or task.is_cancelled:
        return False
    failed = condition(job, "Failed")
    if failed.get("reason") != "BackoffLimitExceeded" or not _has_ended(pod, job):
        return False
    restarts = int(job["metadata"]["labels"].get(RESTARTS, 0))
    delay = min(_RESTART_SECONDS * 2 ** (restarts - 1), _LONGEST_RESTART) if restarts else 0.0
    return _is_lost(pod) and _since(failed) >= delay


def _has_ended(pod: _Json, job: _Json | None) -> bool:
    state = container_state(pod)
    is_over = pod.get("status", {}).get("phase") in {"Failed", "Succeeded"}
    if "running" in state:
        # Nodes report the failure first, and the end of the container later, or never.
        failed = condition(job or {}, "Failed")
        patience = pod.get("spec", {}).get("terminationGracePeriodSeconds", 30) + _SETTLE_SECONDS
        return is_over and bool(failed) and _since(failed) > patience
    return is_over or "terminated" in state


def _is_lost(pod: _Json) -> bool:
    """Return whether a pod ended through no fault of its own."""
    status = pod.get("status", {})
    reason, message = str(status.get("reason", "")), str(status.get("message", ""))
    if status.get("phase") == "Succeeded":
        return False
    if disruption(pod) or reason in _LOST or reason.startswith("OutOf"):
        return True
    if reason == "Evicted":  # but not for using more disk than its limit
        return message.startswith("The node was low on resource")
    return not reason and pod["metadata"].get("deletionTimestamp") is not None


def _end(job: _Json | None) -> str:
    if job is None:
        return ""
    return _COMPLETE if condition(job, "Complete") else message_of(condition(job, "Failed"))


def _ends_of_indexes(job: _Json | None, count: int) -> list[str]:
    ends = [_end(job).removeprefix(_COMPLETE)] * count
    status = (job or {}).get("status", {})
    for index in parse_ranges(status.get("failedIndexes") or ""):
        ends[index] = "its pod was deleted"
    for index in parse_ranges(status.get("completedIndexes") or ""):
        ends[index] = _COMPLETE
    return ends


def _why_idle(job: _Json) -> str:
    """Return why a Job has no pod for a task, if its status shows that."""
    if suspended := condition(job, "Suspended"):
        return message_of(suspended)
    limit, active = job["spec"].get("parallelism"), job.get("status", {}).get("active", 0)
    return f"at most {limit} tasks run at a time" if limit and active >= limit else ""


def cancelled_numbers(job: _Json | None) -> set[int]:
    return set() if job is None else set(parse_ranges(notes_of(job).get(CANCELLED, "")))


def number_of(one: _Json) -> int:
    return int(one["metadata"]["labels"].get(NUMBER, -1))


def notes_of(one: _Json) -> _Json:
    found: _Json = one["metadata"].get("annotations") or {}
    return found


def name_of(one: _Json) -> str:
    return str(one["metadata"]["name"])


def _since(condition: _Json) -> float:
    """Return the seconds since a condition became true."""
    began = datetime.fromisoformat(condition["lastTransitionTime"])
    return (datetime.now(UTC) - began).total_seconds()
