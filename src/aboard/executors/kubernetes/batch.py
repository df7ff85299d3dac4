"""The tasks of a job as Jobs of a Kubernetes cluster.

From Kubernetes 1.29 on, a submission is one indexed Job: a failed task does not affect the others
(`backoffLimitPerIndex`), at most `parallelism` run at a time, and a pod that is preempted, evicted
or lost with its node is replaced (`podFailurePolicy`). Before that, an indexed Job ends with the
first failed task. There each task is a separate Job, and `tasks` creates the next one if Kubernetes
counts the loss of a pod as a failure of the task.

The payload is in a Secret, and in no other object. The Secret is created first, and owned by the
Jobs when all of them exist: it is deleted with the last of them. A Secret without owners belongs to
an interrupted submission. Finished Jobs delete themselves after a week.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from aboard.executors.base import (
    PAYLOAD,
    Batch,
    BatchExecutor,
    ExecutorError,
    Handle,
    TaskState,
    TaskStatus,
    format_ranges,
    parse_ranges,
)
from aboard.executors.kubernetes.api import MISSING, ApiError, KubernetesApi, KubernetesApis
from aboard.executors.kubernetes.boards import last_events
from aboard.executors.kubernetes.pod import (
    ATTEMPT,
    HANDLE,
    SECRETS,
    TASK,
    KubernetesSettings,
    age,
    check_paths,
    condition,
    container_state,
    disruption,
    engine_ending,
    has_begun,
    is_creating,
    make_task_pod,
    message_of,
    task_words,
    why_waiting,
)
from aboard.executors.start import why
from aboard.system import requires

_Json = dict[str, Any]
_KIND = "app.kubernetes.io/name=aboard-task"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_AT_ONCE = 8
_FEW = 20
_EVENTS_AFTER = 3.0


class KubernetesBatches(BatchExecutor):
    """Runs tasks as pods of Jobs."""

    name = "kubernetes"
    Settings = KubernetesSettings
    shares_files = False

    def open(self) -> None:
        self._apis = KubernetesApis(self.settings)

    def close(self) -> None:
        self._apis.close()

    # The contract.

    def submit(self, batch: Batch) -> Handle:
        settings = self.settings(batch.profile)
        try:
            _check(batch, settings)
            api = self._apis.of(batch.profile)
            namespace = settings.namespace or api.namespace
            version = _version(api)
            handle = make_handle(batch, api.server, namespace, indexed=version >= INDEXED)
            if not handle["indexed"]:
                _check_jobs(batch, version)
            jobs = make_jobs(batch, settings, handle, version)
            is_new = api.create(_path(handle, "secrets"), make_secret(batch, handle)) is not None
            if not is_new:
                handle, is_complete = _adopt(api, batch, handle)
                if is_complete:
                    return handle
                jobs = make_jobs(batch, settings, handle, version)
        except (ApiError, ImportError, OSError, ValueError) as error:
            raise ExecutorError(_refusal(batch, settings, error)) from error
        try:
            _create_jobs(api, handle, jobs)
        except ApiError as error:
            text = _refusal(batch, settings, error)
            # Tasks of an earlier submission may be running: no answer is not a rejection.
            if is_new or error.status:
                try:
                    _remove(api, handle)
                except ApiError:
                    text += f" Then remove what is left: {_kubectl(handle)}"
            raise ExecutorError(text) from error
        return handle

    def preview(self, batch: Batch) -> str:
        settings = self.settings(batch.profile)
        try:
            _check(batch, settings)
            handle = make_handle(batch, "", settings.namespace, indexed=True)
            secret = make_secret(batch, handle)
            jobs = make_jobs(batch, settings, handle, INDEXED)
            with requires("yaml", install="'aboard[kubernetes]'"):
                import yaml
        except (ImportError, OSError, ValueError) as error:
            raise ExecutorError(_refusal(batch, settings, error)) from error
        secret["data"] = {
            name: f"({len(base64.b64decode(text))} bytes)" for name, text in secret["data"].items()
        }
        del secret["metadata"]["annotations"][HANDLE]
        older = f"# Before Kubernetes {_version_text(INDEXED)}, each task is a separate Job.\n"
        return older + str(yaml.safe_dump_all([secret, *jobs], sort_keys=False))

    def tasks(self, handles: Mapping[str, Handle]) -> dict[str, dict[int, TaskStatus]]:
        found: dict[str, dict[int, TaskStatus]] = {}
        queries: dict[tuple[int, str], tuple[KubernetesApi, dict[str, Handle]]] = {}
        for key, handle in handles.items():
            try:
                api = self._api_of(handle)
            except (ApiError, ExecutorError, ImportError) as error:
                found[key] = _unknown(handle, error)
                continue
            _, group = queries.setdefault((id(api), str(handle["namespace"])), (api, {}))
            group[key] = handle
        for api, group in queries.values():
            try:
                found |= _query(api, group)
            except (ApiError, ImportError) as error:
                found |= {key: _unknown(handle, error) for key, handle in group.items()}
        return found

    def cancel(
        self, handle: Handle, numbers: Collection[int] | None = None, *, now: bool = False
    ) -> None:
        try:
            api = self._api_of(handle)
            tasks = {
                number: task
                for number, task in _find(api, [handle])[handle["name"]].items()
                if read_status(task, {}).state is not TaskState.ENDED
            }
            chosen = {n: task for n, task in tasks.items() if numbers is None or n in numbers}
            if handle["indexed"] and len(chosen) < len(tasks):
                _cancel_indexes(api, handle, chosen)
            else:
                _end_jobs(api, handle, chosen)
                if not now:
                    return
            # With a grace period of 0 the pod would be gone before its processes.
            pods = [_name_of(pod) for task in chosen.values() for pod in task.pods]
            grace = 1 if now else None
            _all(lambda name: api.delete(_path(handle, "pods", name), grace=grace), pods)
        except ApiError as error:
            raise ExecutorError(
                f"the tasks of {handle['name']} cannot be cancelled: {error}. "
                f"Cancel all with: {_kubectl(handle)}"
            ) from error

    def logs(self, handle: Handle, number: int, *, tail: int | None = None) -> Iterator[bytes]:
        api = self._api_of(handle)
        try:
            task = _find(api, [handle])[handle["name"]].get(number, _Task(None, []))
            begun = [_name_of(one) for one in task.pods if has_begun(one)]
            if not begun:
                return
            pieces = api.log(str(handle["namespace"]), begun[-1], TASK)
            if tail is None:
                yield from pieces
            else:
                lines = b"".join(pieces).splitlines(keepends=True)
                yield b"".join(lines[-tail:]) if tail else b""
        except ApiError as error:
            raise ExecutorError(
                f"the log of task {number} of {handle['name']} cannot be read: {error}. Try again."
            ) from error

    def release(self, handle: Handle) -> None:
        try:
            _remove(self._api_of(handle), handle)
        except ApiError as error:
            raise ExecutorError(
                f"{handle['name']} cannot be removed: {error}. Remove it with: {_kubectl(handle)}"
            ) from error

    # Connections.

    def _api_of(self, handle: Handle) -> KubernetesApi:
        """Return the API server of a submission; raise an error if the kubeconfig has another."""
        try:
            api = self._apis.of(str(handle["profile"]))
            server, name, namespace, _ = (
                handle[key] for key in ("server", "name", "namespace", "indexed")
            )
            parse_ranges(handle["numbers"])
            int(handle["memory"] or 0)
            are_names = _NAME.fullmatch(name) and _NAME.fullmatch(namespace)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ExecutorError(f"not the handle of a Job: {error!r:.200}.") from error
        if not are_names:
            raise ExecutorError(f"{name!r:.80} in {namespace!r:.80} is not a valid name of a Job.")
        if api.server != server:
            raise ExecutorError(
                f"{name} is on {server}, but the settings use {api.server}. "
                "Set kubeconfig and context in [executors.kubernetes]."
            )
        return api


# Submitting.


def _adopt(api: KubernetesApi, batch: Batch, handle: Handle) -> tuple[Handle, bool]:
    """Return the handle of an earlier submission of this name, and whether it is complete."""
    secret = api.get(_path(handle, "secrets", handle["name"]))
    noted = _notes_of(secret)
    if noted.get(_DIRECTORY) != str(batch.directory):
        of = noted.get(_DIRECTORY) or "another program"
        raise ValueError(
            f"{handle['name']} exists in namespace {handle['namespace']} and belongs to {of}. "
            "Choose another name for the job"
        )
    return json.loads(noted[HANDLE]), bool(secret["metadata"].get("ownerReferences"))


def _create_jobs(api: KubernetesApi, handle: Handle, jobs: list[_Json]) -> None:
    """Create the missing Jobs, and make them own the Secret."""
    _all(lambda job: api.create(_path(handle, "jobs"), job), jobs)
    owners = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": _name_of(job),
            "uid": job["metadata"]["uid"],
        }
        for job in _list(api, "jobs", [handle])
    ]
    secret = _path(handle, "secrets", handle["name"])
    if api.patch(secret, {"metadata": {"ownerReferences": owners}}) is None:
        raise ApiError(f"the Secret {handle['name']} was deleted", MISSING)


def _remove(api: KubernetesApi, handle: Handle) -> None:
    api.delete(_path(handle, "jobs"), labelSelector=f"{_BATCH}={handle['name']}")
    api.delete(_path(handle, "secrets", handle["name"]))


def _version(api: KubernetesApi) -> _Version:
    found = api.get("/version")
    try:
        major, minor = (int(re.sub(r"\D", "", found[name])) for name in ("major", "minor"))
    except (KeyError, ValueError) as error:
        raise ApiError(f"{api.server} does not report its version") from error
    return major, minor


def _refusal(batch: Batch, settings: KubernetesSettings, error: Exception) -> str:
    problem = why(error).rstrip(".")
    if isinstance(error, OSError):
        problem = f"{error.filename or 'a file'}: {problem}"
    match getattr(error, "status", None):
        case None:
            hint = ""
        case 0 | 401:
            hint = " Check: aboard engines"
        case 403 if "quota" not in problem:
            hint = " Grant the Role in deploy/kubernetes/base/rbac.yaml."
        case _:
            namespace = settings.namespace or "the context's namespace"
            hint = f" Check the settings [executors.kubernetes], and {namespace}."
    return f"job {batch.job} cannot be submitted: {problem}.{hint}"


# Cancelling.


def _end_jobs(api: KubernetesApi, handle: Handle, chosen: Mapping[int, _Task]) -> None:
    """Make Jobs exceed their deadline: their pods are deleted, and the Jobs keep their status."""
    cancelled: dict[str, set[int]] = {}
    for number, task in chosen.items():
        if task.job is not None:
            before = _cancelled_numbers(task.job)
            cancelled.setdefault(_name_of(task.job), before).add(number)

    def end(name: str) -> None:
        noted = {"annotations": {_CANCELLED: format_ranges(sorted(cancelled[name]))}}
        spec = {"activeDeadlineSeconds": 1, "parallelism": 0}
        api.patch(_path(handle, "jobs", name), {"metadata": noted, "spec": spec})

    _all(end, cancelled)


def _cancel_indexes(api: KubernetesApi, handle: Handle, chosen: Mapping[int, _Task]) -> None:
    """Keep tasks of an indexed Job from starting; the caller stops those that run."""
    for task in list(chosen.values())[:1]:
        cancelled = sorted(chosen.keys() | _cancelled_numbers(task.job))
        data = _numbers_file(parse_ranges(handle["numbers"]), cancelled)
        secret = {"data": {_NUMBERS: base64.b64encode(data).decode()}}
        api.patch(_path(handle, "secrets", handle["name"]), secret)
        noted = {"metadata": {"annotations": {_CANCELLED: format_ranges(cancelled)}}}
        api.patch(_path(handle, "jobs", handle["name"]), noted)


# Requests.


def _query(api: KubernetesApi, handles: Mapping[str, Handle]) -> dict[str, dict[int, TaskStatus]]:
    """Return the status of all tasks of a namespace; restart those that the cluster lost."""
    tasks = _find(api, list(handles.values()))
    first = next(iter(handles.values()))
    every = [task for found in tasks.values() for task in found.values()]
    events: dict[str, str] = {}
    if any(map(_is_silent, every)):
        events = last_events(api, str(first["namespace"]), "type=Warning")
    return {
        key: {
            number: _restarted(api, handle, task, read_status(task, events, handle.get("memory")))
            for number, task in tasks[handle["name"]].items()
        }
        for key, handle in handles.items()
    }


def _find(api: KubernetesApi, handles: list[Handle]) -> dict[str, dict[int, _Task]]:
    """Return the tasks of submissions in a namespace, by the name of the submission."""
    # List pods after Jobs: if a Job has ended in the list, so have its pods.
    jobs = _by_batch(_list(api, "jobs", handles))
    pods = _by_batch(_list(api, "pods", handles))
    return {
        name: find_tasks(handle, jobs.get(name, []), pods.get(name, []))
        for handle in handles
        for name in [str(handle["name"])]
    }


def _list(api: KubernetesApi, kind: str, handles: list[Handle]) -> list[_Json]:
    """Return the objects of some submissions; if they are many, those of all."""
    names = sorted({str(handle["name"]) for handle in handles})
    selector = f"{_BATCH} in ({','.join(names)})" if len(names) <= _FEW else _KIND
    items: list[_Json] = api.get(_path(handles[0], kind), labelSelector=selector)["items"]
    return items


def _by_batch(items: Iterable[_Json]) -> dict[str, list[_Json]]:
    found: dict[str, list[_Json]] = {}
    for one in items:
        found.setdefault(one["metadata"]["labels"].get(_BATCH, ""), []).append(one)
    return found


def _is_silent(task: _Task) -> bool:
    """Return whether a task waits, and neither its Job nor its pod shows a reason."""
    if task.job is None or task.end:
        return False
    waits = is_creating(task.pod) if task.pod is not None else True
    return waits and age(task.pod or task.job) > _EVENTS_AFTER


def _restarted(api: KubernetesApi, handle: Handle, task: _Task, status: TaskStatus) -> TaskStatus:
    """Create the next Job of a task whose pod was lost, if Kubernetes counts a failure."""
    if task.job is None or not must_restart(task):
        return status
    try:
        api.create(_path(handle, "jobs"), next_job(task.job))
    except ApiError as error:
        words = f"{status.reason}; it cannot be restarted: {error}"
        return TaskStatus(TaskState.WAITING, reason=words, unit=status.unit)
    return status


def _path(handle: Handle, kind: str, name: str = "") -> str:
    group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
    return f"{group}/namespaces/{handle['namespace']}/{kind}{f'/{name}' if name else ''}"


def _all(verb: Callable[[Any], object], objects: Iterable[Any]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(verb, objects):
            pass


def _kubectl(handle: Handle) -> str:
    place = f"-n {handle['namespace']} -l {_BATCH}={handle['name']}"
    return f"kubectl delete jobs,secrets {place}"


def _unknown(handle: Handle, error: Exception) -> dict[int, TaskStatus]:
    status = TaskStatus(TaskState.UNKNOWN, reason=why(error))
    numbers: list[int] = []
    with suppress(ValueError):
        numbers = parse_ranges(str(handle.get("numbers", "")))
    return dict.fromkeys(numbers, status)


_Version = tuple[int, int]
INDEXED: _Version = (1, 29)
"""From this version on, a submission is one Job."""
_FAILURE_POLICY: _Version = (1, 26)
_JOB, _BATCH, _NUMBER, _RESTARTS = "aboard/job", "aboard/batch", "aboard/number", "aboard/restarts"
_CANCELLED = "aboard/cancelled"  # the numbers of tasks
_DIRECTORY = "aboard/directory"
_NUMBERS = "numbers.json"
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


# Documents. From here on, functions take and return values; nothing contacts a cluster.


def make_jobs(
    batch: Batch, settings: KubernetesSettings, handle: Handle, version: _Version
) -> list[_Json]:
    """Return the Jobs of a submission for a version of Kubernetes."""
    name, labels = handle["name"], _labels(batch, handle["name"])
    words = task_words(batch, settings, _payload(batch)[0])
    if handle["indexed"]:
        first = [settings.python, "-P", "-m", "aboard.executors.entry"]
        words = [*first, "--numbers", f"{SECRETS}/{_NUMBERS}", "--", *words]
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
        _make_job(f"{name}-{number}", {**labels, _NUMBER: str(number)}, spec, pod, [str(number)])
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
    labels = {**old, _RESTARTS: str(int(old.get(_RESTARTS, 0)) + 1)}
    base = _name_of(job).removesuffix(f"-r{old.get(_RESTARTS)}")
    template = job["spec"]["template"]
    kept = {
        name: value
        for name, value in template["metadata"]["labels"].items()
        if not name.endswith(("controller-uid", "job-name"))
    }
    spec = {name: value for name, value in job["spec"].items() if name != "selector"}
    spec["template"] = {**template, "metadata": {**template["metadata"], "labels": kept}}
    metadata = {"name": f"{base}-r{labels[_RESTARTS]}", "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def make_secret(batch: Batch, handle: Handle) -> _Json:
    name, payload = _payload(batch)
    data = {name: payload}
    if handle["indexed"]:
        data[_NUMBERS] = _numbers_file(batch.numbers, ())
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": handle["name"],
            "labels": _labels(batch, handle["name"]),
            "annotations": {HANDLE: json.dumps(handle), _DIRECTORY: str(batch.directory)},
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


def _numbers_file(numbers: Iterable[int], cancelled: Iterable[int]) -> bytes:
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
        _BATCH: name,
        ATTEMPT: str(batch.attempt),
    }
    return labels | ({_JOB: batch.job} if _LABEL.fullmatch(batch.job) else {})


def _object_name(name: str) -> str:
    """Return a name that Kubernetes allows, distinct for each name that it does not."""
    if re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= _LONGEST_NAME:
        return name
    allowed = re.sub(r"[^a-z0-9]+", "-", name.lower())[: _LONGEST_NAME - 9].strip("-")
    return f"{allowed}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


# Checks.


def _check(batch: Batch, settings: KubernetesSettings) -> None:
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


def _check_jobs(batch: Batch, version: _Version) -> None:
    """Check that a batch needs no feature of indexed Jobs."""
    count = len(batch.numbers)
    needed = f"needs Kubernetes {_version_text(INDEXED)}; this is {_version_text(version)}"
    if batch.parallel is not None and batch.parallel < count:
        raise ValueError(
            f"a limit of {batch.parallel} tasks at a time {needed}. "
            "Omit the limit; a ResourceQuota can limit what runs"
        )
    if count > _MOST_JOBS:
        raise ValueError(f"a job of more than {_MOST_JOBS} tasks {needed}. Submit several jobs")


def _version_text(version: _Version) -> str:
    return ".".join(map(str, version))


# Status.


class _Task(NamedTuple):
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


def find_tasks(handle: Handle, jobs: list[_Json], pods: list[_Json]) -> dict[int, _Task]:
    """Return the tasks of a submission by their numbers, from its Jobs and pods."""
    numbers = parse_ranges(handle["numbers"])
    pods = sorted(pods, key=lambda one: str(one["metadata"]["creationTimestamp"]))
    held: dict[int | str, list[_Json]] = {}
    if handle["indexed"]:
        job = jobs[0] if jobs else None
        for pod in pods:
            held.setdefault(int(_notes_of(pod).get(_INDEX, -1)), []).append(pod)
        ends = _ends_of_indexes(job, len(numbers))
        cancelled = _cancelled_numbers(job)
        return {
            number: _Task(job, held.get(index, []), ends[index], number in cancelled, True)
            for index, number in enumerate(numbers)
        }
    last: dict[int, _Json] = {}
    for job in sorted(jobs, key=lambda one: int(one["metadata"]["labels"].get(_RESTARTS, 0))):
        last[_number_of(job)] = job
    for pod in pods:
        # A pod whose Job was deleted is identified by its number.
        is_orphan = _number_of(pod) not in last
        key = _number_of(pod) if is_orphan else pod["metadata"]["labels"].get("job-name", "")
        held.setdefault(key, []).append(pod)
    return {
        number: _Task(
            job := last.get(number),
            held.get(number if job is None else _name_of(job), []),
            _end(job),
            job is not None and _CANCELLED in _notes_of(job),
        )
        for number in numbers
    }


def read_status(task: _Task, events: Mapping[str, str], memory: int | None = None) -> TaskStatus:
    """Return the status of a task; `events` are the last warnings about Jobs and pods."""
    job, pod = task.job, task.pod
    named = pod or job
    unit = _name_of(named) if named is not None else ""
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


def must_restart(task: _Task) -> bool:
    """Return whether a Job failed because its pod was lost, and it is time for the next."""
    job, pod = task.job, task.pod
    if job is None or pod is None or task.is_indexed or task.is_cancelled:
        return False
    failed = condition(job, "Failed")
    if failed.get("reason") != "BackoffLimitExceeded" or not _has_ended(pod, job):
        return False
    restarts = int(job["metadata"]["labels"].get(_RESTARTS, 0))
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


def _cancelled_numbers(job: _Json | None) -> set[int]:
    return set() if job is None else set(parse_ranges(_notes_of(job).get(_CANCELLED, "")))


def _number_of(one: _Json) -> int:
    return int(one["metadata"]["labels"].get(_NUMBER, -1))


def _notes_of(one: _Json) -> _Json:
    found: _Json = one["metadata"].get("annotations") or {}
    return found


def _name_of(one: _Json) -> str:
    return str(one["metadata"]["name"])


def _since(condition: _Json) -> float:
    """Return the seconds since a condition became true."""
    began = datetime.fromisoformat(condition["lastTransitionTime"])
    return (datetime.now(UTC) - began).total_seconds()
