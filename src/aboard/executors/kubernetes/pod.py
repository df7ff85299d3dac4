"""The pods of boards and tasks: settings, documents, and how the status of a pod is read.

Functions take and return documents and texts; nothing here contacts a cluster.
"""

from __future__ import annotations

import json
import math
import signal
import tomllib
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from aboard import __version__
from aboard.executors.base import ADDRESS, PAYLOAD, PYTHON, Batch, EngineSettings, Handle, Spec
from aboard.executors.start import Start
from aboard.runs.units import format_memory
from aboard.system import requires

with requires("pydantic"):
    from pydantic import ConfigDict, Field, model_validator
    from pydantic.dataclasses import dataclass

_Json = dict[str, Any]
_FORBID = ConfigDict(extra="forbid")
HUB, BOARD, ATTEMPT = "aboard/hub", "aboard/board", "aboard/attempt"
HANDLE = "aboard/handle"
CONTAINER, TASK = "board", "task"
SECRETS, _TEMPORARY = "/run/aboard", "/tmp"  # noqa: S108 - a volume of the pod
_NODE_LOST_SECONDS = 15
_SIGNALS = 128  # plus the signal is the exit code of a killed container


@dataclass(frozen=True, kw_only=True, config=_FORBID)
class Volume:
    """A volume of the pods, mounted at `path`: read-only, except where tasks write."""

    path: Annotated[str, Field(description="Where it is mounted: the path of the sources.")]
    claim: Annotated[str, Field(description="Name of a PersistentVolumeClaim.")] = ""
    host_path: Annotated[str, Field(description="Directory of the node.")] = ""
    nfs: Annotated[str, Field(description="NFS export, as `server:/export`.")] = ""
    sub_path: Annotated[str, Field(description="Directory within the volume.")] = ""

    @model_validator(mode="after")
    def _check(self) -> Volume:
        if not self.path.startswith("/"):
            raise ValueError(f"path {self.path!r} is not absolute.")
        if sum(map(bool, (self.claim, self.host_path, self.nfs))) != 1:
            raise ValueError("a volume has one of: claim, host_path, nfs.")
        if self.nfs and ":/" not in self.nfs:
            raise ValueError(f"nfs {self.nfs!r} does not have the form server:/export.")
        return self

    def source(self, *, writable: bool) -> _Json:
        read_only = {} if writable else {"readOnly": True}
        if self.claim:
            return {"persistentVolumeClaim": {"claimName": self.claim, **read_only}}
        if self.host_path:
            return {"hostPath": {"path": self.host_path}}
        server, _, path = self.nfs.partition(":")
        return {"nfs": {"server": server, "path": path, **read_only}}

    def mount(self, *, writable: bool) -> _Json:
        mount: _Json = {"mountPath": self.path}
        if not writable:
            mount["readOnly"] = True
        return mount | ({"subPath": self.sub_path} if self.sub_path else {})


@dataclass(frozen=True, kw_only=True, config=_FORBID)
class KubernetesSettings(EngineSettings):
    """`[executors.kubernetes]`."""

    kubeconfig: Annotated[
        Path | None,
        Field(description="Kubeconfig file; by default KUBECONFIG, or the pod's own."),
    ] = None
    context: Annotated[
        str, Field(description="Context of the kubeconfig; by default the current one.")
    ] = ""
    namespace: Annotated[
        str, Field(description="Namespace of boards; by default that of the context.")
    ] = ""
    image: Annotated[str, Field(description="Image of boards; `aboard:VERSION` by default.")] = (
        f"aboard:{__version__}"
    )
    image_pull_policy: Annotated[
        Literal["", "Always", "IfNotPresent", "Never"],
        Field(description="When nodes pull the image; by default as Kubernetes does for its tag."),
    ] = ""
    image_pull_secrets: Annotated[
        tuple[str, ...], Field(description="Names of Secrets for the image's registry.")
    ] = ()
    python: Annotated[str, Field(description="Interpreter in the image.")] = "python3"
    port: Annotated[int, Field(ge=1024, le=65535, description="Port of boards.")] = 6006
    reach: Annotated[
        Literal["auto", "pod", "forward"],
        Field(
            description="How the hub reaches boards: at the address of the `pod`, or through the"
            " API server (`forward`); `auto`: at the address if the hub is in the cluster."
        ),
    ] = "auto"
    service_account: Annotated[
        str, Field(description="Service account of boards, for workload identity.")
    ] = ""
    service_account_token: Annotated[
        bool, Field(description="Whether boards get the token of their service account.")
    ] = False
    user: Annotated[int, Field(ge=1, description="User id of boards, never root.")] = 65532
    group: Annotated[int, Field(ge=0, description="Group id of boards.")] = 65532
    groups: Annotated[
        tuple[int, ...], Field(description="Additional groups, for example to read a volume.")
    ] = ()
    cpu_request: Annotated[
        str, Field(description="CPUs that a board without `--cpus` requests.")
    ] = "100m"
    memory_request: Annotated[
        str, Field(description="Memory that a board without `--memory` requests.")
    ] = "256Mi"
    cpu_limit: Annotated[str, Field(description="CPU limit of a board without `--cpus`.")] = ""
    memory_limit: Annotated[
        str, Field(description="Memory limit of a board without `--memory`.")
    ] = ""
    temporary_limit: Annotated[
        str, Field(description="Disk limit of a board's index and temporary files, as `10Gi`.")
    ] = ""
    gpu_resource: Annotated[
        str, Field(description="Resource that a task with `--gpus` requests.")
    ] = "nvidia.com/gpu"
    node_selector: Annotated[
        Mapping[str, str], Field(description="Labels of the nodes that boards run on.")
    ] = Field(default_factory=dict)
    tolerations: Annotated[
        tuple[_Json, ...], Field(description="Taints of nodes that boards tolerate.")
    ] = ()
    priority_class: Annotated[str, Field(description="Name of a PriorityClass.")] = ""
    labels: Annotated[Mapping[str, str], Field(description="Additional labels of pods.")] = Field(
        default_factory=dict
    )
    annotations: Annotated[
        Mapping[str, str], Field(description="Additional annotations of pods.")
    ] = Field(default_factory=dict)
    volumes: Annotated[
        tuple[Volume, ...],
        Field(description="Volumes with local sources; read-only, except where tasks write."),
    ] = ()
    pod_template: Annotated[
        Path | _Json | None,
        Field(description="Template of pods: a YAML or TOML file, or a table."),
    ] = None

    def template(self, container: str = CONTAINER) -> _Json:
        """Read the pod template for boards or tasks, without the container of the other."""
        path = self.pod_template
        if not isinstance(path, Path):
            found = path or {}
        elif path.suffix == ".toml":
            found = tomllib.loads(path.read_text())
        else:
            with requires("yaml", install="'aboard[kubernetes]'"):
                import yaml

                found = yaml.safe_load(path.read_text()) or {}
            if not isinstance(found, dict):
                raise ValueError("not a pod")  # noqa: TRY004
        spec = found.get("spec") or {}
        if "containers" not in spec:
            return found
        others = {CONTAINER, TASK} - {container}
        kept = [one for one in spec["containers"] or [] if one.get("name") not in others]
        return {**found, "spec": {**spec, "containers": kept}}


def make_pod(
    spec: Spec, settings: KubernetesSettings, handle: Handle, *, hub: str, grace: float
) -> _Json:
    """Return the pod of a start: defaults, then the template, then what is required."""
    resources = _resources(settings, spec.memory, spec.cpus)
    defaults = _defaults(settings, CONTAINER, settings.image, resources)
    defaults["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = True
    command = [settings.python, "-P", "-m", "aboard.executors.entry", SECRETS]
    variables = spec.listening("0.0.0.0", settings.port)  # noqa: S104 - all of the pod
    necessary: _Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": spec.name,
            "labels": make_labels(spec, hub),
            "annotations": {HANDLE: json.dumps(handle)},
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil(grace),
            **({"activeDeadlineSeconds": math.ceil(spec.timeout)} if spec.timeout else {}),
            "containers": [
                {
                    "name": CONTAINER,
                    "command": [*command, "--address", f"{_TEMPORARY}/{ADDRESS}", "--"],
                    "args": _literal(spec.command),
                    "env": _variables(variables),
                    "ports": [{"name": "https", "containerPort": settings.port}],
                    "readinessProbe": {
                        "tcpSocket": {"port": settings.port},
                        "periodSeconds": 1,
                        "failureThreshold": 10,
                    },
                    "volumeMounts": _OWN_MOUNTS,
                }
            ],
            "volumes": _own_volumes(settings, spec.name),
        },
    }
    pod: _Json = merge(merge(defaults, settings.template()), necessary)
    return pod


def make_task_pod(
    batch: Batch, settings: KubernetesSettings, words: Iterable[str], secret: str
) -> _Json:
    """Return the template of a task's pod; `words` is its command line."""
    requested = batch.resources
    resources = _resources(settings, requested.memory, requested.cpus)
    if requested.gpus:
        for amounts in resources.values():
            amounts[settings.gpu_resource] = str(requested.gpus)
    own = {_volume_of(path, settings.volumes) for path in (*batch.writes, batch.workdir)}
    image = batch.image or settings.image
    defaults = _defaults(settings, TASK, image, resources, writable={one for one in own if one})
    # The default size of shared memory is too small for data loaders.
    shared = {"name": "shared-memory", "mountPath": "/dev/shm"}  # noqa: S108
    defaults["spec"]["containers"][0]["volumeMounts"].append(shared)
    defaults["spec"]["volumes"].append({"name": shared["name"], "emptyDir": {"medium": "Memory"}})
    container: _Json = {
        "name": TASK,
        "command": _literal(words),
        "env": _variables({}),
        "volumeMounts": _OWN_MOUNTS,
    }
    if _is_mounted(batch.workdir, settings, settings.template(TASK), TASK):
        container["workingDir"] = str(batch.workdir)
    necessary: _Json = {
        "spec": {
            "restartPolicy": "Never",
            **({"activeDeadlineSeconds": math.ceil(requested.time)} if requested.time else {}),
            "containers": [container],
            "volumes": _own_volumes(settings, secret),
        }
    }
    pod: _Json = merge(merge(defaults, settings.template(TASK)), necessary)
    return pod


def task_words(batch: Batch, settings: KubernetesSettings, payload: str = PAYLOAD) -> list[str]:
    """Return the command of a task in its pod, without its number."""
    first, *others = batch.command
    return [settings.python if first == PYTHON else first, *others, f"{SECRETS}/{payload}"]


def _resources(settings: KubernetesSettings, memory: int | None, cpus: float | None) -> _Json:
    resources: _Json = {
        "requests": {"cpu": settings.cpu_request, "memory": settings.memory_request},
        "limits": {"cpu": settings.cpu_limit, "memory": settings.memory_limit},
    }
    if memory is not None:
        resources["requests"]["memory"] = resources["limits"]["memory"] = str(memory)
    if cpus is not None:
        resources["requests"]["cpu"] = resources["limits"]["cpu"] = f"{cpus:g}"
    return {
        kind: {name: value for name, value in amounts.items() if value}
        for kind, amounts in resources.items()
    }


def _defaults(
    settings: KubernetesSettings,
    container: str,
    image: str,
    resources: _Json,
    writable: Collection[Volume] = (),
) -> _Json:
    """Return the pod from the settings, which the template may change."""
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _NODE_LOST_SECONDS}
    volumes = [(f"volume-{n}", one, one in writable) for n, one in enumerate(settings.volumes)]
    return {
        "metadata": {"labels": dict(settings.labels), "annotations": dict(settings.annotations)},
        "spec": {
            "containers": [
                {
                    "name": container,
                    "image": image,
                    "imagePullPolicy": settings.image_pull_policy,
                    "resources": resources,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": name, **one.mount(writable=writes)}
                        for name, one, writes in volumes
                    ],
                }
            ],
            "volumes": [
                {"name": name, **one.source(writable=writes)} for name, one, writes in volumes
            ],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": settings.user,
                "runAsGroup": settings.group,
                "supplementalGroups": list(settings.groups),
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "automountServiceAccountToken": settings.service_account_token,
            "enableServiceLinks": False,
            "nodeSelector": dict(settings.node_selector),
            "tolerations": [
                *settings.tolerations,
                {"key": "node.kubernetes.io/not-ready", **lost},
                {"key": "node.kubernetes.io/unreachable", **lost},
            ],
            "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets],
            "serviceAccountName": settings.service_account or None,
            "priorityClassName": settings.priority_class or None,
        },
    }


_OWN_MOUNTS: list[_Json] = [
    {"name": "secrets", "mountPath": SECRETS, "readOnly": True},
    {"name": "temporary", "mountPath": _TEMPORARY},
]


def _own_volumes(settings: KubernetesSettings, secret: str) -> list[_Json]:
    temporary: _Json = {"sizeLimit": settings.temporary_limit} if settings.temporary_limit else {}
    return [
        # Other users of the node cannot open the directory that contains them.
        {"name": "secrets", "secret": {"secretName": secret, "defaultMode": 0o444}},
        {"name": "temporary", "emptyDir": temporary},
    ]


def _variables(more: Mapping[str, str]) -> list[_Json]:
    variables = {
        **more,
        "TMPDIR": _TEMPORARY,
        "ABOARD_CACHE": f"{_TEMPORARY}/aboard-cache",
        "HOME": _TEMPORARY,
    }
    return [{"name": name, "value": value} for name, value in variables.items()]


def merge(base: Any, changes: Any) -> Any:
    """Merge documents: tables by key, lists of named tables by name; append other lists."""
    if isinstance(base, dict) and isinstance(changes, dict):
        merged = {name: merge(base.get(name), value) for name, value in changes.items()}
        return {**base, **merged}
    if isinstance(base, list) and isinstance(changes, list):
        key = next((one for one in ("mountPath", "name") if _all_have(one, base, changes)), "")
        if not key:
            return [*base, *(one for one in changes if one not in base)]
        found = {one[key]: one for one in base}
        for one in changes:
            found[one[key]] = merge(found[one[key]], one) if one[key] in found else one
        return list(found.values())
    return changes


def _all_have(key: str, *lists: list[Any]) -> bool:
    return all(isinstance(one, dict) and key in one for each in lists for one in each)


def _literal(words: Iterable[str]) -> list[str]:
    """Escape words so that Kubernetes does not expand `$(NAME)`."""
    return [word.replace("$", "$$") if "$(" in word else word for word in words]


def make_labels(spec: Spec, hub: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "aboard-board",
        "app.kubernetes.io/managed-by": "aboard",
        HUB: hub,
        BOARD: spec.board,
        ATTEMPT: str(spec.attempt),
    }


# Status.


def container_state(pod: _Json) -> _Json:
    """Return the state of our container: `waiting`, `running` or `terminated`."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    found: _Json = next((one["state"] for one in statuses if one["name"] in {CONTAINER, TASK}), {})
    return {kind: state for kind, state in found.items() if state is not None}


def condition(one: _Json, kind: str, status: str = "True") -> _Json:
    """Return a condition of a pod, a node or a Job, if it has this status."""
    conditions = one.get("status", {}).get("conditions") or []
    found = [each for each in conditions if each["type"] == kind and each["status"] == status]
    return found[0] if found else {}


def is_ready(pod: _Json) -> bool:
    return bool(condition(pod, "Ready"))


def has_begun(pod: _Json) -> bool:
    return bool(container_state(pod).keys() & {"running", "terminated"})


def is_creating(pod: _Json) -> bool:
    scheduled = bool(condition(pod, "PodScheduled"))
    waiting = container_state(pod).get("waiting")
    silent = waiting is None or waiting.get("reason") == "ContainerCreating"
    return scheduled and silent and not has_begun(pod)


def age(pod: _Json) -> float:
    created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    return (datetime.now(UTC) - created).total_seconds()


def why_waiting(pod: _Json) -> str:
    """Return why a pod is not running yet, in the words of Kubernetes."""
    if refused := condition(pod, "PodScheduled", "False"):
        return message_of(refused)
    waiting = container_state(pod).get("waiting")
    if waiting and waiting.get("reason") not in {None, "ContainerCreating", "PodInitializing"}:
        return message_of(waiting)
    return ""


def message_of(one: _Json) -> str:
    """Return reason and message of a condition, a state or an event."""
    reason, message = one.get("reason", ""), one.get("message", "")
    return ": ".join(" ".join(one.split()) for one in (reason, message) if one)


def disruption(pod: _Json) -> str:
    """Return why Kubernetes ends a pod, for example an eviction or a preemption."""
    return message_of(condition(pod, "DisruptionTarget"))


def ending(pod: _Json, start: Start, memory: int | None) -> tuple[int | None, str]:
    """Return exit code and reason of the ended pod of a board; nothing if deleted."""
    code, reason = engine_ending(pod, memory)
    if start.deadline() is not None:
        reason = "it was stopped"
    elif not reason and pod["metadata"].get("deletionTimestamp") is None:
        reason = start.end_reason(code)
    return code, reason


def engine_ending(pod: _Json, memory: int | None = None) -> tuple[int | None, str]:
    """Return the exit code of a pod, and why Kubernetes ended it, if it did."""
    status = pod.get("status", {})
    terminated = container_state(pod).get("terminated", {})
    code: int | None = terminated.get("exitCode")
    if code is not None and _SIGNALS < code < 2 * _SIGNALS:
        code = _SIGNALS - code
    if status.get("reason"):  # Evicted, DeadlineExceeded, or rejected by a node
        return -signal.SIGKILL if code is None else code, message_of(status)
    if terminated.get("reason") == "OOMKilled":
        limit = f"its limit of {format_memory(memory)}" if memory else "the pod's limit"
        return -signal.SIGKILL, f"OOMKilled: it used more memory than {limit}"
    if terminated.get("reason") in {"ContainerCannotRun", "StartError"}:
        return code, message_of(terminated)
    return code, disruption(pod)


def check_reads(spec: Spec, settings: KubernetesSettings, template: _Json) -> None:
    for path in spec.reads:
        if not _is_mounted(path, settings, template, CONTAINER):
            raise ValueError(_not_mounted(path))


def check_paths(batch: Batch, settings: KubernetesSettings) -> None:
    """Check that tasks find the paths of a batch; the image may have the workdir."""
    template = settings.template(TASK)
    needed = [*batch.writes, *batch.reads, *(() if batch.image else (batch.workdir,))]
    for path in needed:
        if not _is_mounted(path, settings, template, TASK):
            raise ValueError(_not_mounted(path))


def _is_mounted(path: Path, settings: KubernetesSettings, template: _Json, container: str) -> bool:
    mounted = [one.path for one in settings.volumes]
    for one in template.get("spec", {}).get("containers") or []:
        if one.get("name") == container:
            mounted += [mount["mountPath"] for mount in one.get("volumeMounts") or []]
    return any(PurePosixPath(path).is_relative_to(place) for place in mounted)


def _not_mounted(path: Path) -> str:
    return (
        f"{path} is not in a volume of the pod. Add the claim or export with it to "
        "[[executors.kubernetes.volumes]] in aboard.toml, with its path"
    )


def _volume_of(path: Path, volumes: Iterable[Volume]) -> Volume | None:
    """Return the volume that contains a path, if any."""
    holding = [one for one in volumes if PurePosixPath(path).is_relative_to(one.path)]
    return max(holding, key=lambda one: len(one.path), default=None)


_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18} | {
    f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)
}


def quantity(text: str) -> float:
    """Parse a Kubernetes quantity: `250m` is 0.25, `2Gi` is 2 * 1024**3."""
    for unit in sorted(_UNITS, key=len, reverse=True):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * _UNITS[unit]
    return float(text or 0)
