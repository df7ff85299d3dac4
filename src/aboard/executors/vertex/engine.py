"""Boards and the tasks of jobs on Vertex AI.

A board is an experiment of a managed TensorBoard: a process on the hub's machine uploads the
selected runs to Vertex while it runs, and redirects requests to the experiment: see `upload`.

Each task of a batch is one CustomJob, identified by its labels. Tasks share no files with this
machine: the payload, which may contain secrets, is an object below the output directory, where the
service account of the job reads it; the CustomJob contains only its URI.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from aboard.executors.base import (
    PAYLOAD,
    Batch,
    BatchExecutor,
    EngineReport,
    EngineSettings,
    ExecutorError,
    Handle,
    Resources,
    Spec,
    TaskState,
    TaskStatus,
    here,
)
from aboard.executors.process import ProcessExecutor
from aboard.executors.vertex.api import Location, Vertex, VertexError, slug
from aboard.executors.vertex.upload import UPLOAD, Destination
from aboard.storage import NoSuchPath, StorageError, join, open_storage
from aboard.system import requires

with requires("pydantic"):
    from pydantic import AfterValidator, ConfigDict, Field
    from pydantic.dataclasses import dataclass

Text = Annotated[str, Field(strict=True)]


def _bucket_uri(value: str) -> str:
    if value and not value.startswith("gs://"):
        raise ValueError(f"{value!r} is not a directory in a bucket, such as gs://bucket/vertex.")
    return value.rstrip("/")


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class VertexSettings(EngineSettings):
    project: Annotated[Text, Field(description="Project of Google Cloud: its id or number.")] = ""
    location: Annotated[Text, Field(description="Region of Google Cloud.")] = "us-central1"
    tensorboard: Annotated[
        Text,
        Field(description="Display name of the managed TensorBoard; created if it does not exist."),
    ] = "aboard"
    output: Annotated[
        Text,
        AfterValidator(_bucket_uri),
        Field(
            description="Directory of the payloads of jobs, such as `gs://bucket/vertex`, and of"
            " their base output directories if their runs are not on `gs://`. Only jobs need it."
        ),
    ] = ""
    image: Annotated[
        Text, Field(description="Image of jobs, with Aboard installed; `--image` takes precedence.")
    ] = ""
    python: Annotated[Text, Field(description="Interpreter in the image.")] = "python3"
    service_account: Annotated[
        Text,
        Field(
            description="Service account of jobs; Vertex uploads to a TensorBoard only with one."
        ),
    ] = ""
    machine_type: Annotated[
        Text,
        Field(
            description="Machine type of jobs; by default the smallest `n1` with the"
            " requested CPUs and memory."
        ),
    ] = ""
    accelerator_type: Annotated[
        Text, Field(description="Type of the GPUs of jobs, such as `NVIDIA_TESLA_T4`.")
    ] = ""
    endpoint: Annotated[
        Text,
        Field(
            description="Address of a private endpoint; `https://LOCATION-aiplatform.googleapis.com`"
            " by default."
        ),
    ] = ""

    @property
    def place(self) -> Location:
        if not self.project:
            raise ExecutorError(
                "Vertex needs a project. Set project in [executors.vertex] of aboard.toml."
            )
        return Location(self.project, self.location, self.endpoint)


class VertexExecutor(ProcessExecutor):
    """Uploads boards to a managed TensorBoard, each with a process on the hub's machine."""

    name = "vertex"
    Settings = VertexSettings
    needs_settings = True
    unit = ("experiment", "experiment")

    def start(self, spec: Spec) -> Handle:
        from aboard.storage.settings import credentials

        settings: VertexSettings = self.profiles[spec.profile]
        experiment = f"aboard-{slug(spec.board)}"
        destination = Destination(
            settings.place, settings.tensorboard, experiment, str(spec.directory)
        )
        environment = {
            **credentials(os.environ, ["gs://any"]),
            **spec.environment,
            UPLOAD: destination.to_json(),
        }
        started = super().start(replace(spec, environment=environment))
        return {**started, "experiment": experiment}

    def probe(self, profile: str = "") -> EngineReport:
        settings: VertexSettings = self.profiles[profile]
        vertex = Vertex(settings.place, patience=5.0)
        try:
            board = vertex.tensorboard(settings.tensorboard, create=False)
        except ExecutorError as error:
            return EngineReport(answers=False, problem=str(error))
        finally:
            vertex.close()
        state = str(board.get("name", "")).rpartition("/")[2] or "created by the first board"
        return EngineReport(True, "v1", {f"TensorBoard {settings.tensorboard!r}": state})


_JOB, _ATTEMPT, _TASK, _SUBMISSION = (
    f"aboard-{word}" for word in ("job", "attempt", "task", "submission")
)
_QUERIED_AT_ONCE = 20  # submissions named in one query
_SIZES = (4, 8, 16, 32, 64, 96)
_MACHINES = {"n1-standard": 3.75, "n1-highmem": 6.5}  # GiB per processor
_EXIT_CODE = re.compile(r"non-zero status of (\d+)")
_WAITING = {
    "JOB_STATE_QUEUED": "queued",
    "JOB_STATE_PENDING": "Vertex is preparing its machines",
    "JOB_STATE_PAUSED": "paused",
}
_RUNNING = frozenset({"JOB_STATE_RUNNING", "JOB_STATE_UPDATING", "JOB_STATE_CANCELLING"})
_ENDED = {
    "JOB_STATE_CANCELLED": "cancelled",
    "JOB_STATE_EXPIRED": "it reached its time limit",
    "JOB_STATE_PARTIALLY_SUCCEEDED": "only a part of it succeeded",
}
_GIB = 1 << 30


class VertexBatches(BatchExecutor):
    """Runs each task as a CustomJob; Vertex starts all that its quotas allow."""

    name = "vertex"
    Settings = VertexSettings
    shares_files = False
    log_directory = "logs"

    def open(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[Location, Vertex] = {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _client(self, place: Location) -> Vertex:
        with self._lock:
            return self._clients.setdefault(place, Vertex(place))

    def submit(self, batch: Batch) -> Handle:
        settings: VertexSettings = self.settings(batch.profile)
        vertex = self._client(settings.place)
        jobs = custom_jobs(batch, settings)
        handle: Handle = {
            "project": settings.project,
            "location": settings.location,
            "endpoint": settings.endpoint,
            "submission": _submission(batch),
            "output": _output(batch, settings),
        }
        created = {task: name for task, (name, *_) in self._found(vertex, [handle]).items()}
        try:
            board = ""
            if _has_tensorboard(batch, settings):
                board = vertex.tensorboard(settings.tensorboard)["name"]
            open_storage(handle["output"]).write(PAYLOAD, batch.payload)
            for number, job in jobs.items():
                key = (handle["submission"], number)
                if key not in created:
                    job["jobSpec"] |= {"tensorboard": board} if board else {}
                    created[key] = vertex.post(f"{vertex.place.parent}/customJobs", job)["name"]
        except (ExecutorError, StorageError) as error:
            self._undo(vertex, handle, created.values())
            raise ExecutorError(str(error)) from error
        handle["jobs"] = {str(number): name for (_, number), name in created.items()}
        return handle

    def _undo(self, vertex: Vertex, handle: Handle, created: Collection[str]) -> None:
        """Cancel what was created, even by a call that reported an error."""
        names = set(created)
        with suppress(ExecutorError):
            names |= {name for name, *_ in self._found(vertex, [handle]).values()}
        for name in names:
            with suppress(ExecutorError):
                vertex.post(f"{name}:cancel", {})
        with suppress(ExecutorError):
            self.release(handle)

    def preview(self, batch: Batch) -> str:
        settings: VertexSettings = self.settings(batch.profile)
        parts = []
        for job in custom_jobs(batch, settings).values():
            if _has_tensorboard(batch, settings):
                job["jobSpec"]["tensorboard"] = (
                    f"{settings.place.parent}/tensorboards/[{settings.tensorboard}]"
                )
            parts.append(json.dumps(job, indent=2, ensure_ascii=False))
        url = f"POST {settings.place.url}/v1/{settings.place.parent}/customJobs"
        return "\n".join(f"{url}\n{part}\n" for part in parts)

    def tasks(self, handles: Mapping[str, Handle]) -> dict[str, dict[int, TaskStatus]]:
        found: dict[str, dict[int, TaskStatus]] = {}
        places: dict[Location, list[tuple[str, Handle]]] = {}
        for key, handle in handles.items():
            try:
                places.setdefault(self._place(handle), []).append((key, handle))
            except ExecutorError as error:
                unknown = TaskStatus(TaskState.UNKNOWN, reason=str(error))
                found[key] = dict.fromkeys(_numbers(handle), unknown)
        for place, ours in places.items():
            try:
                jobs = self._found(self._client(place), [handle for _, handle in ours])
            except ExecutorError as error:
                unknown = TaskStatus(TaskState.UNKNOWN, reason=str(error))
                found |= {key: dict.fromkeys(_numbers(one), unknown) for key, one in ours}
                continue
            for key, handle in ours:
                submission = str(handle.get("submission"))
                found[key] = {
                    number: _status(jobs.get((submission, number))) for number in _numbers(handle)
                }
        return found

    def cancel(
        self,
        handle: Handle,
        numbers: Collection[int] | None = None,
        *,
        now: bool = False,  # noqa: ARG002 - Vertex has one way to end a job
    ) -> None:
        vertex = self._client(self._place(handle))
        jobs = self._found(vertex, [handle])
        chosen = set(_numbers(handle) if numbers is None else numbers)
        for (_, number), job in jobs.items():
            if number in chosen and _status(job).state is not TaskState.ENDED:
                try:
                    vertex.post(f"{job[0]}:cancel", {})
                except VertexError as error:
                    if error.status not in {400, 404, 409}:  # already ended
                        raise

    def logs(
        self,
        handle: Handle,
        number: int,
        *,
        tail: int | None = None,  # noqa: ARG002 - the log is not here
    ) -> Iterator[bytes]:
        """Yield the address of the log, which is in Cloud Logging."""
        job = handle["jobs"].get(str(number), "").rpartition("/")[2]
        query = f"resource.labels.job_id%3D%22{job}%22"
        project = handle["project"]
        yield (
            "The log of this task is in Cloud Logging: "
            f"https://console.cloud.google.com/logs/query;query={query}?project={project}\n"
        ).encode()

    def release(self, handle: Handle) -> None:
        """Delete the payload. The CustomJobs stay: they are the project's history."""
        try:
            open_storage(handle["output"]).delete(PAYLOAD)
        except NoSuchPath:
            pass
        except StorageError as error:
            raise ExecutorError(str(error)) from error

    def _place(self, handle: Handle) -> Location:
        """Return the location of a handle; tokens are only sent to locations of the settings."""
        named = [handle.get(key) for key in ("project", "location", "endpoint")]
        for settings in self.profiles.values():
            if [settings.project, settings.location, settings.endpoint] == named:
                place: Location = settings.place
                return place
        raise ExecutorError(
            f"project {named[0]!r:.80} in {named[1]!r:.40} is not in the settings."
            " Add it to [executors.vertex] of aboard.toml."
        )

    def _found(
        self, vertex: Vertex, handles: Sequence[Handle]
    ) -> dict[tuple[str, int], tuple[str, str, str]]:
        """Return name, state and error of each job, by submission and number."""
        jobs: dict[tuple[str, int], tuple[str, str, str]] = {}
        for start in range(0, len(handles), _QUERIED_AT_ONCE):
            some = handles[start : start + _QUERIED_AT_ONCE]
            names = [re.sub(r"\W", "", str(one.get("submission"))) for one in some]
            query = " OR ".join(f'labels.{_SUBMISSION}="{name}"' for name in names)
            listed = vertex.list(
                f"{vertex.place.parent}/customJobs",
                "customJobs",
                filter=query,
                readMask="name,labels,state,error,createTime",
            )
            for job in sorted(listed, key=lambda one: str(one.get("createTime", ""))):
                with suppress(KeyError, ValueError):
                    labels = job["labels"]
                    key = (labels[_SUBMISSION], int(labels[_TASK]))
                    error = str(job.get("error", {}).get("message", ""))
                    jobs.setdefault(key, (job["name"], job.get("state", ""), error))
        return jobs


def custom_jobs(batch: Batch, settings: VertexSettings) -> dict[int, dict[str, Any]]:
    """Return the CustomJob of each task."""
    image = batch.image or settings.image
    if not image:
        raise ExecutorError(
            "a job on Vertex needs an image. Name one, or set image in [executors.vertex]."
        )
    if not settings.output:
        raise ExecutorError(
            "jobs on Vertex need a directory in a bucket. Set output in [executors.vertex], such as"
            " gs://bucket/vertex."
        )
    if batch.writes:
        raise ExecutorError(
            f"a job on Vertex cannot write to {batch.writes[0]}. Use a root in a bucket,"
            " such as gs://bucket/runs."
        )
    if batch.parallel is not None:
        raise ExecutorError(
            "Vertex starts all tasks of a job that its quotas allow. Omit the number of parallel"
            " tasks."
        )
    output = _output(batch, settings)
    pools = _pools(batch.resources, settings)
    return {
        number: {
            "displayName": f"{batch.name}-{number}"[:128],
            "labels": _labels(batch, number),
            "jobSpec": {
                "workerPoolSpecs": [
                    pool
                    | {
                        "containerSpec": {
                            "imageUri": image,
                            "command": [settings.python, *batch.command[1:]],
                            "args": [join(output, PAYLOAD), str(number)],
                        }
                    }
                    for pool in pools
                ],
                "baseOutputDirectory": {
                    "outputUriPrefix": batch.outputs.get(number, f"{output}/{number}")
                },
                **_scheduling(batch.resources),
                **(
                    {"serviceAccount": settings.service_account} if settings.service_account else {}
                ),
            },
        }
        for number in batch.numbers
    }


def _has_tensorboard(batch: Batch, settings: VertexSettings) -> bool:
    """Return whether Vertex itself can upload the logs of tasks to the managed TensorBoard.

    It uploads the log directory below the base output directory, which tasks find in
    AIP_TENSORBOARD_LOG_DIR, and only for jobs with a service account.
    """
    return bool(settings.tensorboard and settings.service_account and batch.outputs)


def _pools(resources: Resources, settings: VertexSettings) -> list[dict[str, Any]]:
    if resources.tasks_per_node > 1:
        raise ExecutorError(
            "Vertex starts one process per node. Start the others with torchrun in the command."
        )
    machine: dict[str, Any] = {"machineType": settings.machine_type or machine_for(resources)}
    if resources.gpus:
        if not settings.accelerator_type:
            raise ExecutorError(
                "GPUs need accelerator_type in [executors.vertex], such as NVIDIA_TESLA_T4."
            )
        machine |= {
            "acceleratorType": settings.accelerator_type,
            "acceleratorCount": resources.gpus,
        }
    counts = [1, resources.nodes - 1] if resources.nodes > 1 else [1]
    return [{"machineSpec": machine, "replicaCount": str(count)} for count in counts]


def machine_for(resources: Resources) -> str:
    """Return the smallest machine type with these processors and this memory."""
    cpus, memory = resources.cpus or 1, (resources.memory or 0) / _GIB
    for size in _SIZES:
        for family, per_cpu in _MACHINES.items():
            if size >= cpus and size * per_cpu >= memory:
                return f"{family}-{size}"
    raise ExecutorError(
        f"no machine type of the n1 family has {cpus:g} processors and {memory:g} GiB of memory."
        " Set machine_type in [executors.vertex]."
    )


def _scheduling(resources: Resources) -> dict[str, Any]:
    if resources.time is None:
        return {}
    return {"scheduling": {"timeout": f"{max(1, round(resources.time))}s"}}


def _labels(batch: Batch, number: int) -> dict[str, str]:
    return {
        _JOB: slug(batch.job),
        _ATTEMPT: str(batch.attempt),
        _TASK: str(number),
        _SUBMISSION: _submission(batch),
    }


def _submission(batch: Batch) -> str:
    """Return the label of a submission, unique in a project that many users share."""
    text = f"{here()['host']}:{batch.directory}:{batch.job}:{batch.attempt}"
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _output(batch: Batch, settings: VertexSettings) -> str:
    return f"{settings.output}/{batch.name}-{_submission(batch)[:8]}"


def _numbers(handle: Handle) -> list[int]:
    try:
        return [int(number) for number in handle["jobs"]]
    except (KeyError, TypeError, ValueError):  # not one of ours
        return []


def _status(job: tuple[str, str, str] | None) -> TaskStatus:
    if job is None:
        return TaskStatus(TaskState.ENDED, reason="Vertex has no record of it")
    name, state, error = job
    code: int | None = None
    where, reason = TaskState.WAITING, _WAITING.get(state, "submitted")
    if state in _RUNNING:
        where, reason = TaskState.RUNNING, ""
    elif state == "JOB_STATE_SUCCEEDED":
        where, code, reason = TaskState.ENDED, 0, ""
    elif state == "JOB_STATE_FAILED":
        found = _EXIT_CODE.search(error)
        code = int(found[1]) if found else None
        where, reason = TaskState.ENDED, "" if found else error or "it failed"
    elif state in _ENDED:
        where, reason = TaskState.ENDED, error or _ENDED[state]
    return TaskStatus(where, code, reason, name.rpartition("/")[2])
