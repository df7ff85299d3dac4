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
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from aboard.executors.base import (
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
from aboard.executors.kubernetes.boards import last_events, log_after
from aboard.executors.kubernetes.job import (
    BATCH,
    CANCELLED,
    DIRECTORY,
    INDEXED,
    NUMBERS,
    Task,
    Version,
    cancelled_numbers,
    check,
    check_jobs,
    find_tasks,
    make_handle,
    make_jobs,
    make_secret,
    must_restart,
    name_of,
    next_job,
    notes_of,
    numbers_file,
    read_status,
    version_text,
)
from aboard.executors.kubernetes.pod import (
    HANDLE,
    TASK,
    KubernetesSettings,
    age,
    has_begun,
    is_creating,
)
from aboard.executors.start import why
from aboard.system import requires

_Json = dict[str, Any]
_KIND = "app.kubernetes.io/name=aboard-task"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_AT_ONCE = 8
_FEW = 20
_FOLLOW_SECONDS = 0.5
_EVENTS_AFTER = 3.0


class KubernetesBatches(BatchExecutor):
    """Runs tasks as pods of Jobs."""

    name = "kubernetes"
    Settings = KubernetesSettings
    shares_files = False

    def open(self) -> None:
        self._apis = KubernetesApis()

    def close(self) -> None:
        self._apis.close()

    # The contract.

    def submit(self, batch: Batch) -> Handle:
        settings = self.settings(batch.profile)
        try:
            check(batch, settings)
            api = self._api(batch.profile)
            namespace = settings.namespace or api.namespace
            version = _version(api)
            handle = make_handle(batch, api.server, namespace, indexed=version >= INDEXED)
            if not handle["indexed"]:
                check_jobs(batch, version)
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
            check(batch, settings)
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
        older = f"# Before Kubernetes {version_text(INDEXED)}, each task is a separate Job.\n"
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
            pods = [name_of(pod) for task in chosen.values() for pod in task.pods]
            grace = 1 if now else None
            _all(lambda name: api.delete(_path(handle, "pods", name), grace=grace), pods)
        except ApiError as error:
            raise ExecutorError(
                f"the tasks of {handle['name']} cannot be cancelled: {error}. "
                f"Cancel all with: {_kubectl(handle)}"
            ) from error

    def logs(
        self, handle: Handle, number: int, *, tail: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        api = self._api_of(handle)
        namespace = str(handle["namespace"])
        pod, sent = "", 0
        try:
            while True:
                task = _find(api, [handle])[handle["name"]].get(number, Task(None, []))
                ended = read_status(task, {}).state is TaskState.ENDED
                newest = [name_of(one) for one in task.pods if has_begun(one)][-1:]
                if newest and newest != [pod]:  # the first one, or a replacement
                    (pod,), sent = newest, 0
                    if tail is not None:
                        text = b"".join(api.log(namespace, pod, TASK))
                        lines = text.splitlines(keepends=True)
                        yield b"".join(lines[-tail:]) if tail else b""
                        tail, sent = None, len(text)
                if pod:
                    live = follow and not ended
                    for piece in log_after(api, namespace, pod, sent, TASK, follow=live):
                        sent += len(piece)
                        yield piece
                if ended or not follow:
                    return
                yield b""
                time.sleep(_FOLLOW_SECONDS)
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

    def _api(self, profile: str) -> KubernetesApi:
        settings: KubernetesSettings = self.settings(profile)
        return self._apis.of(settings.kubeconfig, settings.context)

    def _api_of(self, handle: Handle) -> KubernetesApi:
        """Return the API server of a submission; raise an error if the kubeconfig has another."""
        try:
            api = self._api(str(handle["profile"]))
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
    noted = notes_of(secret)
    if noted.get(DIRECTORY) != str(batch.directory):
        of = noted.get(DIRECTORY) or "another program"
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
            "name": name_of(job),
            "uid": job["metadata"]["uid"],
        }
        for job in _list(api, "jobs", [handle])
    ]
    secret = _path(handle, "secrets", handle["name"])
    if api.patch(secret, {"metadata": {"ownerReferences": owners}}) is None:
        raise ApiError(f"the Secret {handle['name']} was deleted", MISSING)


def _remove(api: KubernetesApi, handle: Handle) -> None:
    api.delete(_path(handle, "jobs"), labelSelector=f"{BATCH}={handle['name']}")
    api.delete(_path(handle, "secrets", handle["name"]))


def _version(api: KubernetesApi) -> Version:
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


def _end_jobs(api: KubernetesApi, handle: Handle, chosen: Mapping[int, Task]) -> None:
    """Make Jobs exceed their deadline: their pods are deleted, and the Jobs keep their status."""
    cancelled: dict[str, set[int]] = {}
    for number, task in chosen.items():
        if task.job is not None:
            before = cancelled_numbers(task.job)
            cancelled.setdefault(name_of(task.job), before).add(number)

    def end(name: str) -> None:
        noted = {"annotations": {CANCELLED: format_ranges(sorted(cancelled[name]))}}
        spec = {"activeDeadlineSeconds": 1, "parallelism": 0}
        api.patch(_path(handle, "jobs", name), {"metadata": noted, "spec": spec})

    _all(end, cancelled)


def _cancel_indexes(api: KubernetesApi, handle: Handle, chosen: Mapping[int, Task]) -> None:
    """Keep tasks of an indexed Job from starting; the caller stops those that run."""
    for task in list(chosen.values())[:1]:
        cancelled = sorted(chosen.keys() | cancelled_numbers(task.job))
        data = numbers_file(parse_ranges(handle["numbers"]), cancelled)
        secret = {"data": {NUMBERS: base64.b64encode(data).decode()}}
        api.patch(_path(handle, "secrets", handle["name"]), secret)
        noted = {"metadata": {"annotations": {CANCELLED: format_ranges(cancelled)}}}
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


def _find(api: KubernetesApi, handles: list[Handle]) -> dict[str, dict[int, Task]]:
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
    selector = f"{BATCH} in ({','.join(names)})" if len(names) <= _FEW else _KIND
    items: list[_Json] = api.get(_path(handles[0], kind), labelSelector=selector)["items"]
    return items


def _by_batch(items: Iterable[_Json]) -> dict[str, list[_Json]]:
    found: dict[str, list[_Json]] = {}
    for one in items:
        found.setdefault(one["metadata"]["labels"].get(BATCH, ""), []).append(one)
    return found


def _is_silent(task: Task) -> bool:
    """Return whether a task waits, and neither its Job nor its pod shows a reason."""
    if task.job is None or task.end:
        return False
    waits = is_creating(task.pod) if task.pod is not None else True
    return waits and age(task.pod or task.job) > _EVENTS_AFTER


def _restarted(api: KubernetesApi, handle: Handle, task: Task, status: TaskStatus) -> TaskStatus:
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
    place = f"-n {handle['namespace']} -l {BATCH}={handle['name']}"
    return f"kubectl delete jobs,secrets {place}"


def _unknown(handle: Handle, error: Exception) -> dict[int, TaskStatus]:
    status = TaskStatus(TaskState.UNKNOWN, reason=why(error))
    numbers: list[int] = []
    with suppress(ValueError):
        numbers = parse_ranges(str(handle.get("numbers", "")))
    return dict.fromkeys(numbers, status)
