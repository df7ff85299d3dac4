"""Boards as pods of a Kubernetes cluster.

Each start is one pod that never restarts, and a Secret that the pod owns, with the board's
environment and certificate, which are in no other object. Labels identify the hub, board and start
of a pod, and an annotation has the handle, so that a hub that lost everything finds it.

A hub in the cluster uses the address of a pod. A hub outside uses a port-forward through the API
server; TLS with the pinned certificate is end-to-end.

Kubernetes keeps an ended pod until `poll` has saved its exit code, reason and log in the board's
directory and deletes the pod. Stopping a board deletes its pod; its log is saved while it stops.
"""

from __future__ import annotations

import base64
import json
import math
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from aboard.executors.base import (
    ADDRESS,
    CERTIFICATE,
    ENVIRONMENT,
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
from aboard.executors.kubernetes.api import (
    FORBIDDEN,
    ApiError,
    KubernetesApi,
    KubernetesApis,
)
from aboard.executors.kubernetes.pod import (
    ATTEMPT,
    BOARD,
    CONTAINER,
    HANDLE,
    HUB,
    KubernetesSettings,
    age,
    check_reads,
    container_state,
    disruption,
    ending,
    is_creating,
    is_ready,
    make_pod,
    message_of,
    quantity,
    why_waiting,
)
from aboard.executors.start import Start, read_json, why
from aboard.system import write_private
from aboard.web.tokens import TokenError, write_token_file

_Json = dict[str, Any]
_PATH = "/b/view/"  # of `aboard view`
_LOG_FROM = "log_from.json"  # the offset of the log of a start here, if it differs from the handle
_OURS = frozenset({"TMPDIR", "ABOARD_CACHE", "HOME", "PATH"})  # set by the pod
_DISRUPTIONS = frozenset({"Preempted", "Evicted", "TaintManagerEviction", "NodeShutdown"})
_RECREATE_SECONDS = 30.0
_SETTLE_SECONDS = 2.0  # for the kubelet to report how a container ended
_UNCONFIRMED_SECONDS = 10.0  # for a node to confirm that a pod has ended
_EVENTS_AFTER = 3.0
_FOLLOW_SECONDS = 0.5
_GIB = 1 << 30
NEEDED = (
    ("create", "pods"),
    ("get", "pods"),
    ("list", "pods"),
    ("delete", "pods"),
    ("get", "pods/log"),
    ("create", "secrets"),
    ("get", "secrets"),
    ("delete", "secrets"),
)
"""Permissions that the hub needs in the namespace of boards."""
NEEDED_BY_JOBS = (
    ("create", "jobs.batch"),
    ("list", "jobs.batch"),
    ("patch", "jobs.batch"),
    ("deletecollection", "jobs.batch"),
    ("list", "pods"),
    ("delete", "pods"),
    ("get", "pods/log"),
    ("create", "secrets"),
    ("get", "secrets"),
    ("patch", "secrets"),
    ("delete", "secrets"),
)
"""Permissions that a user needs to submit jobs."""


class KubernetesExecutor(Executor):
    """Runs boards as pods of a cluster."""

    name = "kubernetes"
    unit = ("pod", "pod")
    stop_command = "kubectl delete pod {pod} -n {namespace}"
    Settings = KubernetesSettings

    def open(self) -> None:
        self._apis = KubernetesApis(self.settings)
        # Pods that are being deleted while their containers run: since when, and why.
        self._ending: dict[str, tuple[float, str]] = {}

    # The contract.

    def start(self, spec: Spec) -> Handle:
        settings: KubernetesSettings = self.settings(spec.profile)
        place = ""
        try:
            pod_spec = settings.template()
            check_reads(spec, settings, pod_spec)
            api = self._apis.of(spec.profile)
            namespace = settings.namespace or api.namespace
            inside = replace(
                spec,
                environment={k: v for k, v in spec.environment.items() if k not in _OURS},
            )
            number = secrets.token_hex(4)
            prepared, _ = Start.prepare(inside, number, tls=True)
            place = str(Start(prepared).place)
            handle = {
                **prepared,
                "profile": spec.profile,
                "namespace": namespace,
                "pod": spec.name,
                "port": settings.port,
                "memory": spec.memory,
            }
            pod = make_pod(inside, settings, handle, hub=self.hub, grace=self.grace)
            kept = self._create(api, pod, handle)
        except (ApiError, ImportError, OSError, ValueError, TokenError) as error:
            if place:
                shutil.rmtree(place, ignore_errors=True)
            raise ExecutorError(_not_started(spec, settings, error)) from error
        if kept["start"] != number:
            shutil.rmtree(place, ignore_errors=True)
        return kept

    def poll(self, handles: Mapping[str, Handle]) -> dict[str, Status]:
        found: dict[str, Status] = {}
        places: dict[tuple[str, str], dict[str, Handle]] = {}
        for key, handle in handles.items():
            try:
                ended_status = Start(handle).ended_status()
                if ended_status is not None:
                    found[key] = ended_status
                    continue
                place = (str(handle["profile"]), str(handle["namespace"]))
                _ = handle["pod"], handle["port"]
            except (ExecutorError, KeyError, OSError, ValueError) as error:
                found[key] = Status(CommandState.UNKNOWN, reason=why(error))
                continue
            places.setdefault(place, {})[key] = handle
        # Profiles often share a cluster: one query for all of them.
        queries: dict[tuple[int, str], dict[str, Handle]] = {}
        for (profile, namespace), group in places.items():
            try:
                api = self._apis.of(profile)
            except (ExecutorError, ApiError) as error:
                found |= dict.fromkeys(group, Status(CommandState.UNKNOWN, reason=str(error)))
                continue
            queries.setdefault((id(api), namespace), {}).update(group)
        for (_, namespace), group in queries.items():
            first = next(iter(group.values()))
            found |= self._poll(self._apis.of(str(first["profile"])), namespace, group)
        return found

    def stop(self, handle: Handle, *, now: bool = False) -> None:
        start = Start(handle)
        if start.ended_status() is not None:
            return
        api, path = self._api_of(handle), _pod_path(handle)
        try:
            self._restore(api, handle)
            start.request_stop(0.0 if now else time.monotonic() + self.grace)
            if now:
                self._save_log(api, handle)
            # With a grace period of 0 the pod would be gone before its processes.
            api.delete(path, grace=1 if now else math.ceil(self.grace))
        except ApiError as error:
            raise ExecutorError(
                f"pod {handle['pod']} cannot be stopped: {error}. "
                f"Stop it with: {self.how_to_stop(handle)}"
            ) from error
        except OSError as error:
            raise ExecutorError(
                f"{start.place}: the stop cannot be recorded: {why(error)}. "
                "Check the hub's directory."
            ) from error

    def logs(
        self, handle: Handle, *, tail: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        start = _start_of(handle)
        if start.ended_status() is not None:
            yield from start.read_log(tail=tail)
            return
        api = self._api_of(handle)
        try:
            yield from self._logs(api, handle, start, tail, follow=follow)
        except ApiError as error:
            raise ExecutorError(
                f"the log of pod {handle['pod']} cannot be read: {error}. Try again."
            ) from error

    def address(self, handle: Handle) -> Address | None:
        start = Start(handle)
        try:
            found = None if start.ended_status() is not None else start.address()
            if found is None or not self._is_forwarded(str(handle["profile"])):
                return found
            api = self._api_of(handle)
            port = api.forward(handle["namespace"], handle["pod"], int(handle["port"]))
        except (OSError, TokenError, ApiError, KeyError) as error:
            raise ExecutorError(
                f"the address of pod {handle.get('pod')} cannot be read: {why(error)}. "
                "Stop the board and start it again."
            ) from error
        return replace(found, host="127.0.0.1", port=port)

    def find_address(self, handle: Handle) -> None:
        """Fetch the token from the Secret, and the address from the pod."""
        if self.address(handle) is not None:
            return
        try:
            api = self._api_of(handle)
            pod = api.find(_pod_path(handle))
            if pod is not None and self._restore(api, handle):
                self._store_address(handle, pod)
        except (ApiError, ImportError, KeyError, OSError, ValueError) as error:
            raise ExecutorError(
                f"the address of pod {handle.get('pod')} cannot be found: {why(error)}. "
                "Check: aboard engines"
            ) from error

    def found(self) -> list[Found]:
        seen: dict[str, Found] = {}
        namespaces: set[tuple[int, str]] = set()
        for profile, settings in self.profiles.items():
            try:
                api = self._apis.of(profile)
                namespace = settings.namespace or api.namespace
                if (id(api), namespace) in namespaces:
                    continue
                namespaces.add((id(api), namespace))
                pods = self._list(api, namespace)
            except ApiError as error:
                raise ExecutorError(
                    f"the pods of this hub cannot be listed: {error}. Check: aboard engines"
                ) from error
            for name, pod in pods.items():
                if pod["metadata"].get("deletionTimestamp") is None:
                    with suppress(KeyError, ValueError):
                        labels = pod["metadata"]["labels"]
                        handle = json.loads(pod["metadata"]["annotations"][HANDLE])
                        seen[name] = Found(labels[BOARD], int(labels[ATTEMPT]), handle)
        return list(seen.values())

    def probe(self, profile: str = "") -> EngineReport:
        try:
            api = self._apis.of(profile)
            version = str(api.get("/version")["gitVersion"])
        except (ApiError, ExecutorError, KeyError, ImportError) as error:
            what, _, hint = str(error).partition(". ")
            hint = hint or "Set kubeconfig and context in [executors.kubernetes]."
            hint = f"{hint} Check: kubectl version"
            return EngineReport(False, problem=f"{what.rstrip('.')}.", hint=hint)
        namespace = self.settings(profile).namespace or api.namespace
        resources = {"namespace": namespace, **_resources(api)}
        try:
            forward = [("get", "pods/portforward")] if self._is_forwarded(profile) else []
            lacking = _lacking(api, namespace, [*NEEDED, *forward])
            jobs = _lacking(api, namespace, [one for one in NEEDED_BY_JOBS if one not in NEEDED])
        except ApiError as error:
            lacking, jobs = [str(error)], []
        if jobs:
            resources["jobs"] = f"this user may not {', '.join(jobs)}"
        if lacking:
            return EngineReport(
                True,
                version,
                resources,
                problem=f"this user may not {', '.join(lacking)} in namespace {namespace}",
                hint="Grant the Role in deploy/kubernetes/base/rbac.yaml.",
            )
        return EngineReport(True, version, resources)

    def close(self) -> None:
        self._apis.close()

    # Connections.

    def _api_of(self, handle: Handle) -> KubernetesApi:
        try:
            return self._apis.of(str(handle["profile"]))
        except KeyError as error:
            raise ExecutorError(
                f"not the handle of a pod: {error!r}. Start the board again."
            ) from error

    def _is_forwarded(self, profile: str) -> bool:
        reach = self.settings(profile).reach
        return reach == "forward" or (reach == "auto" and not self._apis.of(profile).in_cluster)

    def _list(self, api: KubernetesApi, namespace: str) -> dict[str, _Json]:
        path = f"/api/v1/namespaces/{namespace}/pods"
        listed = api.get(path, labelSelector=f"{HUB}={self.hub}")
        return {pod["metadata"]["name"]: pod for pod in listed["items"]}

    # Starting.

    def _create(self, api: KubernetesApi, pod: _Json, handle: Handle) -> Handle:
        """Create the pod and its Secret, or adopt those of an interrupted start."""
        path = _pod_path(handle)
        deadline = time.monotonic() + _RECREATE_SECONDS
        while True:
            created = api.create(f"/api/v1/namespaces/{handle['namespace']}/pods", pod)
            if created is not None:
                secret = _make_secret(handle, created)
                if api.create(_secrets_path(handle), secret) is None:  # of an earlier pod
                    api.delete(_secret_path(handle))
                    api.post(_secrets_path(handle), secret)
                return handle
            before = api.find(path)
            if before is None:
                continue
            adopted = self._adopt(api, before)
            if adopted is not None:
                return adopted
            # It is being deleted with its Secret; or it has no Secret, so it never began. A node
            # that waits for a Secret confirms the end of its pod minutes later.
            is_going = before["metadata"].get("deletionTimestamp") is not None
            api.delete(path, grace=None if is_going else 0)
            api.delete(_secret_path(handle))
            if time.monotonic() > deadline:
                raise ApiError(f"pod {handle['pod']} of an earlier start is not deleted")
            time.sleep(_FOLLOW_SECONDS)

    def _adopt(self, api: KubernetesApi, pod: _Json) -> Handle | None:
        """Return the handle of a pod that an interrupted start created, if it can run."""
        metadata = pod["metadata"]
        if metadata.get("labels", {}).get(HUB) != self.hub:
            raise ApiError(f"pod {metadata['name']} exists, but does not belong to this hub")
        if metadata.get("deletionTimestamp") is not None:
            return None
        handle: Handle = json.loads(metadata["annotations"][HANDLE])
        if (Start(handle).place / ENVIRONMENT).exists():
            api.create(_secrets_path(handle), _make_secret(handle, pod))
            return handle
        return handle if self._restore(api, handle) else None

    def _restore(self, api: KubernetesApi, handle: Handle) -> bool:
        """Create the files of a start that another hub made, from its Secret if it exists."""
        start = Start(handle)
        place = start.place
        if (place / "token").exists():
            return True
        secret = api.find(_secret_path(handle))
        if secret is None:
            return False
        environment = base64.b64decode(secret["data"][ENVIRONMENT])
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _note_log_from(start)
        write_token_file(place / "token", json.loads(environment)["ABOARD_TOKEN"])
        return True

    # Polling.

    def _poll(
        self, api: KubernetesApi, namespace: str, handles: Mapping[str, Handle]
    ) -> dict[str, Status]:
        try:
            pods = self._list(api, namespace)
            events = self._events(api, namespace, [pods.get(h["pod"]) for h in handles.values()])
        except (ApiError, ImportError) as error:
            return dict.fromkeys(handles, Status(CommandState.UNKNOWN, reason=str(error)))
        found = {}
        for key, handle in handles.items():
            name = handle["pod"]
            try:
                found[key] = self._status(api, handle, pods.get(name), events.get(name, ""))
            except (ExecutorError, ApiError, OSError, ValueError, LookupError) as error:
                found[key] = Status(CommandState.UNKNOWN, reason=why(error))
        return found

    def _events(
        self, api: KubernetesApi, namespace: str, pods: list[_Json | None]
    ) -> dict[str, str]:
        """Return the last warning about each pod that waits without showing a reason."""
        waiting = [
            pod for pod in pods if pod is not None and is_creating(pod) and age(pod) > _EVENTS_AFTER
        ]
        if not waiting:
            return {}
        selector = "involvedObject.kind=Pod,type=Warning"
        if len(waiting) == 1:
            selector += f",involvedObject.name={waiting[0]['metadata']['name']}"
        return last_events(api, namespace, selector)

    def _status(self, api: KubernetesApi, handle: Handle, pod: _Json | None, event: str) -> Status:
        stopped = Start(handle).deadline() is not None
        if pod is None:
            reason = "it was stopped" if stopped else self._why_gone(api, handle)
            return self._conclude(api, handle, None, reason)
        self._restore(api, handle)
        start = _start_of(handle)
        if "terminated" in container_state(pod) or self._has_failed(pod):
            self._save_log(api, handle)
            code, reason = ending(pod, start, handle.get("memory"))
            api.delete(_pod_path(handle), grace=0)  # its container has ended
            return self._conclude(api, handle, code, reason or self._why_gone(api, handle))
        if pod["metadata"].get("deletionTimestamp") is not None:
            grace = pod["metadata"].get("deletionGracePeriodSeconds") or 0
            if self._seconds_ending(pod) > grace + _UNCONFIRMED_SECONDS:
                node = pod["spec"].get("nodeName")
                silent = f"node {node} does not answer: {self._why_gone(api, handle)}"
                api.delete(_pod_path(handle), grace=0)
                return self._conclude(api, handle, None, "it was stopped" if stopped else silent)
            # It is being deleted, perhaps by another client: save its log. A ready pod becomes
            # not ready if its node is away, and then reading its log would take long.
            if is_ready(pod) or start.state() is CommandState.STARTING:
                self._save_log(api, handle)
        if start.state() is CommandState.RUNNING or self._store_address(handle, pod):
            return Status(CommandState.RUNNING)
        return Status(CommandState.STARTING, reason=why_waiting(pod) or event)

    @staticmethod
    def _store_address(handle: Handle, pod: _Json) -> bool:
        """Save the address of a pod; return whether it is known."""
        ip = pod.get("status", {}).get("podIP")
        if not ip or not is_ready(pod):
            return False
        host = f"[{ip}]" if ":" in ip else ip
        address = {"address": f"https://{host}:{handle['port']}{_PATH}"}
        write_private(Start(handle).place / ADDRESS, json.dumps(address) + "\n")
        return True

    def _has_failed(self, pod: _Json) -> bool:
        """Return whether a pod has failed permanently without a known exit code.

        The kubelet reports the failure first, and the end of the container later.
        """
        if pod.get("status", {}).get("phase") not in {"Failed", "Succeeded"}:
            return False
        if "running" not in container_state(pod):
            return True
        return self._seconds_ending(pod) > self.grace + _SETTLE_SECONDS

    def _seconds_ending(self, pod: _Json) -> float:
        """Return how long ago this hub first saw a pod ending; other clocks may differ."""
        now = time.monotonic()
        first, _ = self._ending.setdefault(pod["metadata"]["name"], (now, disruption(pod)))
        return now - first

    def _why_gone(self, api: KubernetesApi, handle: Handle) -> str:
        """Return why a pod disappeared that this hub did not delete."""
        name = handle["pod"]
        _, words = self._ending.get(name, (0.0, ""))
        if not words:
            selector = f"involvedObject.kind=Pod,involvedObject.name={name}"
            events = last_events(api, handle["namespace"], selector, _DISRUPTIONS)
            words = events.get(name, "")
        return f"its pod {name} was deleted: {words}" if words else f"its pod {name} was deleted"

    def _conclude(
        self, api: KubernetesApi, handle: Handle, code: int | None, reason: str
    ) -> Status:
        """Record the end of a start, after nothing of it is left on the cluster."""
        api.delete(_secret_path(handle))
        api.end_forward(handle["namespace"], handle["pod"], int(handle["port"]))
        self._ending.pop(handle["pod"], None)
        return Start(handle).end(code, reason)

    # Logs.

    def _save_log(self, api: KubernetesApi, handle: Handle) -> None:
        """Save the log of a start after those of earlier ones; never shorten it."""
        start = _start_of(handle)
        if not start.place.is_dir():
            return
        try:
            text = b"".join(api.log(handle["namespace"], handle["pod"], CONTAINER))
        except ApiError as error:
            if error.status:  # its node no longer has it, or is gone
                return
            raise
        stored = _head(start.log, None)
        if not text.startswith(stored[start.log_from :]):
            return
        if len(stored) < start.log_from:  # a user deleted it
            start.log_from = _note_log_from(start)
        with start.log.open("ab") as file:
            file.truncate(start.log_from)
            file.write(text)

    def _logs(
        self, api: KubernetesApi, handle: Handle, start: Start, tail: int | None, *, follow: bool
    ) -> Iterator[bytes]:
        # The saved log: earlier starts, and the part of this one that was saved from the pod.
        sent = 0
        earlier = _head(start.log, start.log_from)
        if tail is None:
            yield earlier
        else:
            text = b"".join(api.log(handle["namespace"], handle["pod"], CONTAINER))
            lines = (earlier + text).splitlines(keepends=True)
            yield b"".join(lines[-tail:]) if tail else b""
            sent = len(text)
        if tail is not None and not follow:
            return
        while True:
            skipped = sent
            for piece in api.log(handle["namespace"], handle["pod"], CONTAINER, follow=follow):
                news = piece[skipped:]
                skipped = max(0, skipped - len(piece))
                sent += len(news)
                yield news
            if not follow or not self._is_running(api, handle):
                break
            yield b""
            time.sleep(_FOLLOW_SECONDS)
        stored = _head(start.log, None)[start.log_from :]
        if len(stored) > sent:  # it ended in between
            yield stored[sent:]

    def _is_running(self, api: KubernetesApi, handle: Handle) -> bool:
        pod = api.find(_pod_path(handle))
        if pod is None or "terminated" in container_state(pod):
            return False
        return pod.get("status", {}).get("phase") not in {"Failed", "Succeeded"}


def last_events(
    api: KubernetesApi, namespace: str, selector: str, reasons: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Return the message of the last event of each object; none without permission."""
    try:
        items = api.get(f"/api/v1/namespaces/{namespace}/events", fieldSelector=selector)["items"]
    except ApiError as error:
        if error.status == FORBIDDEN:
            return {}
        raise
    items.sort(key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or "")
    return {
        one["involvedObject"]["name"]: message_of(one)
        for one in items
        if not reasons or one.get("reason") in reasons
    }


def _start_of(handle: Handle) -> Start:
    """Return a start; its `log_from` is an offset in the log here, not in another hub's."""
    start = Start(handle)
    noted = read_json(start.place / _LOG_FROM)
    if noted is not None:
        start.log_from = int(noted)
    return start


def _note_log_from(start: Start) -> int:
    """Record that the log of a start begins where the log here ends."""
    size = start.log.stat().st_size if start.log.exists() else 0
    write_private(start.place / _LOG_FROM, json.dumps(size))
    return size


def _pod_path(handle: Handle) -> str:
    return f"/api/v1/namespaces/{handle['namespace']}/pods/{handle['pod']}"


def _secrets_path(handle: Handle) -> str:
    return f"/api/v1/namespaces/{handle['namespace']}/secrets"


def _secret_path(handle: Handle) -> str:
    return f"{_secrets_path(handle)}/{handle['pod']}"


def _make_secret(handle: Handle, pod: _Json) -> _Json:
    """Return the Secret of a pod; Kubernetes deletes it with the pod."""
    place, metadata = Start(handle).place, pod["metadata"]
    files = (ENVIRONMENT, CERTIFICATE)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": metadata["name"],
            "labels": metadata["labels"],
            "ownerReferences": [owner],
        },
        "data": {name: base64.b64encode((place / name).read_bytes()).decode() for name in files},
    }


def _not_started(spec: Spec, settings: KubernetesSettings, error: Exception) -> str:
    problem = why(error).rstrip(".")
    if isinstance(error, OSError):
        name = error.filename or spec.directory
        problem = f"{name}: {problem}"
    match getattr(error, "status", None):
        case None if isinstance(error, ValueError):
            return f"board {spec.board} cannot be started: {problem}."
        case None:
            what = "Check aboard.toml and the hub's directory."
        case 0 | 401:
            what = "Check: aboard engines"
        case _:
            namespace = settings.namespace or "the context's namespace"
            what = f"Check the settings [executors.kubernetes], and {namespace}."
    return f"board {spec.board} cannot be started: {problem}. {what}"


def _head(path: Path, size: int | None) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read() if size is None else file.read(size)
    except FileNotFoundError:
        return b""


# Probing.


def _lacking(api: KubernetesApi, namespace: str, needed: Iterable[tuple[str, str]]) -> list[str]:
    """Return the needed permissions that this user lacks."""
    lacking = []
    for verb, name in needed:
        resource, _, part = name.partition("/")
        resource, _, group = resource.partition(".")
        attributes = {"verb": verb, "group": group, "resource": resource, "subresource": part}
        attributes["namespace"] = namespace
        review = api.post(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            },
        )
        if not review["status"].get("allowed"):
            lacking.append(f"{verb} {name}")
    return lacking


def _resources(api: KubernetesApi) -> dict[str, str]:
    """Return the nodes and their resources, as far as this user may see them."""
    try:
        nodes = api.get("/api/v1/nodes")["items"]
    except ApiError:
        return {}
    ready = [node for node in nodes if is_ready(node) and not node["spec"].get("unschedulable")]
    found = {"nodes": f"{len(ready)} of {len(nodes)} ready"}
    amounts = [node["status"].get("allocatable", {}) for node in ready]
    cpus = sum(quantity(one.get("cpu", "0")) for one in amounts)
    memory = sum(quantity(one.get("memory", "0")) for one in amounts)
    try:
        active = "status.phase!=Succeeded,status.phase!=Failed"
        pods = api.get("/api/v1/pods", fieldSelector=active)["items"]
    except ApiError:
        return {**found, "cpus": f"{cpus:g}", "memory": f"{memory / _GIB:.1f} GiB"}
    requests = [
        container.get("resources", {}).get("requests", {})
        for pod in pods
        if pod["spec"].get("nodeName")
        for container in pod["spec"]["containers"]
    ]
    free_cpus = cpus - sum(quantity(one.get("cpu", "0")) for one in requests)
    free_memory = memory - sum(quantity(one.get("memory", "0")) for one in requests)
    return {
        **found,
        "cpus": f"{free_cpus:g} of {cpus:g} free",
        "memory": f"{free_memory / _GIB:.1f} of {memory / _GIB:.1f} GiB free",
    }
