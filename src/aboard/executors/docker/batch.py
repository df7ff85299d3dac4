"""The tasks of a job as containers of a Docker daemon on this machine.

A container has the user, permissions and mounts of a board (see `daemon`), and can also write to
the working directory and to the directory of its run. Its `/dev/shm` is as large as its memory
limit, or half of the machine's memory: workers of data loaders share batches there. Paths are those
of this machine, and nothing is copied. A container is removed after its end is recorded.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aboard.executors.base import Batch, ExecutorError, Handle, TaskState, TaskStatus
from aboard.executors.docker.daemon import (
    DIRECTORY,
    INHERITED,
    LABEL,
    SECONDS,
    Daemons,
    DockerSettings,
    build_hint,
    confine,
    exit_code_of,
    explained,
    find_daemon,
    image_of,
    is_name_taken,
    kill,
    mounts,
    pull,
    remove,
)
from aboard.executors.queue import Device, Ended, Queue, QueueBatches, Runner, Unit
from aboard.executors.start import describe_exit
from aboard.runs.units import format_memory
from aboard.system import cache_place

_SILENT = "Docker does not answer"
_POLL_SECONDS = 0.5
_NOT_STARTED = 127
_NO_MODULE = re.compile(rb"No module named '?aboard\b")


class DockerBatches(QueueBatches):
    """Runs batches as containers."""

    name = "docker"
    Settings = DockerSettings
    shares_files = False

    def open(self) -> None:
        self._daemons = Daemons()

    def close(self) -> None:
        self._daemons.close()

    def check(self, batch: Batch) -> Mapping[str, Any]:
        settings: DockerSettings = self.settings(batch.profile)
        order = self._order_of(batch, settings)
        host, context = find_daemon(settings)
        with explained(f"{host}: {_SILENT}"):
            from docker.errors import ImageNotFound

            client = self._daemons.client(host, context)
            _mounts(settings, order)
            pull(client, settings, order["image"])
            try:
                client.api.inspect_image(order["image"])
            except ImageNotFound as error:
                hint = "Check: docker images" if batch.image else build_hint(settings)
                raise ExecutorError(f"Docker has no image {order['image']}. {hint}") from error
        return {**order, "host": host, "context": context}

    @staticmethod
    def _order_of(batch: Batch, settings: DockerSettings) -> dict[str, Any]:
        if not batch.workdir.is_dir() and not batch.image:
            raise ExecutorError(f"{batch.workdir}: working directory not found. Create it.")
        reads = [*batch.reads, *(batch.credential_files if settings.credentials else ())]
        return {
            "image": batch.image or image_of(settings),
            "settings": {**asdict(settings), "environment": {}},
            "sees_workdir": batch.workdir.is_dir(),
            "workdir": str(batch.workdir),
            "reads": [str(path) for path in reads],
            "writes": [str(path) for path in batch.writes],
            "home": str(Path.home()) if settings.credentials and batch.credential_files else "",
            "spool": os.environ.get("ABOARD_SPOOL") or str(cache_place().directory / "spool"),
        }

    def variables(self, batch: Batch) -> Mapping[str, str]:
        settings: DockerSettings = self.settings(batch.profile)
        ours = {name: value for name, value in os.environ.items() if name.upper() in INHERITED}
        return {**ours, **settings.environment}

    def preview(self, batch: Batch) -> str:
        self.find_devices_for(batch.resources)
        settings: DockerSettings = self.settings(batch.profile)
        order = self._order_of(batch, settings)
        order |= {"name": batch.name, "command": batch.command}
        queue = Queue(batch.directory.absolute())
        lines = []
        for number in batch.numbers:
            words = ["docker", "run", "--name", f"{batch.name}-{number}"]
            words += ["--user", settings.user or f"{os.getuid()}:{os.getgid()}"]
            with explained("the mounts cannot be listed"):
                for one in _mounts(settings, order, queue, number):
                    mode = ",readonly" if one["ReadOnly"] else ""
                    words += ["--mount", f"type=bind,src={one['Source']},dst={one['Target']}{mode}"]
            words += ["--network", settings.network] if settings.network else []
            words += ["--read-only"] if settings.read_only else []
            words += ["--tmpfs", f"/tmp:size={settings.tmpfs},mode=1777"]  # noqa: S108 - of the container
            resources = batch.resources
            words += ["--memory", str(resources.memory)] if resources.memory else []
            words += ["--cpus", f"{resources.cpus:g}"] if resources.cpus else []
            words += ["--gpus", str(resources.gpus)] if resources.gpus else []
            words += ["--workdir", order["workdir"]] if order["sees_workdir"] else []
            program, *arguments = _words(settings, order, queue, number)
            words += ["--entrypoint", program, order["image"], *arguments]
            lines.append(shlex.join(words))
        return "\n".join(lines)

    @staticmethod
    def status_of(queue: Queue, number: int, unit: Unit, problem: str | None) -> TaskStatus:  # noqa: ARG004
        if problem and _SILENT in problem:
            return TaskStatus(TaskState.UNKNOWN, reason=problem, unit=unit)
        return TaskStatus(TaskState.RUNNING, unit=unit)

    def release(self, handle: Handle) -> None:
        super().release(handle)
        order = Queue(Path(handle["directory"])).order()
        if order is not None:
            with explained(f"{order['host']}: {_SILENT}"):
                client = self._daemons.client(order["host"], order["context"])
                for name in _listed(client, handle["directory"]):
                    remove(client, name)


class Containers(Runner):
    def __init__(self, queue: Queue, order: Mapping[str, Any]) -> None:
        super().__init__(queue, order)
        self.settings = DockerSettings(**order["settings"])
        self._daemons = Daemons()
        self._ended: dict[int, Ended] = {}

    @property
    def _client(self) -> Any:
        return self._daemons.client(self.order["host"], self.order["context"])

    def prepare(self, number: int, devices: Sequence[Device]) -> Unit:
        from docker.errors import APIError, NotFound

        name = f"{self.order['name']}-{number}"
        self.queue.file(number, "tmp").mkdir(mode=0o700, exist_ok=True)
        self.queue.log(number).touch(mode=0o600)
        Path(self.order["spool"]).mkdir(mode=0o700, parents=True, exist_ok=True)
        with explained(f"{self.order['host']}: {_SILENT}"):
            options = self._options(number, devices)
            deadline = time.monotonic() + SECONDS
            while True:
                try:
                    self._client.api.create_container(name=name, **options)
                except APIError as error:
                    if not is_name_taken(error):
                        reason = f"container {name} cannot be created: {error.explanation}"
                        raise ExecutorError(reason) from error
                else:
                    return name
                with suppress(NotFound):  # its name is reserved before it exists
                    self._remove_unused(name)
                if time.monotonic() > deadline:
                    raise ExecutorError(f"container {name} cannot be removed. Check: docker ps -a")
                time.sleep(0.1)

    def _remove_unused(self, name: str) -> None:
        """Remove the container that a killed supervisor created and did not start."""
        found = self._client.api.inspect_container(name)
        labels = found["Config"]["Labels"] or {}
        if labels.get(DIRECTORY) != str(self.queue.directory):
            raise ExecutorError(
                f"container {name} belongs to another job. Remove it: docker rm -f {name}"
            )
        remove(self._client, name)

    def _options(self, number: int, devices: Sequence[Device]) -> dict[str, Any]:
        from docker.types import DeviceRequest

        order, settings = self.order, self.settings
        info = self._daemons.info(order["host"], order["context"])
        user, confinement = confine(settings, info)
        temporary = str(self.queue.file(number, "tmp"))
        cpus, memory = self.resources.cpus, self.resources.memory
        requests = [DeviceRequest(device_ids=[one.name for one in devices], capabilities=[["gpu"]])]
        host_config = self._client.api.create_host_config(
            mounts=_mounts(settings, order, self.queue, number),
            network_mode=settings.network or None,
            mem_limit=memory,
            memswap_limit=memory,
            nano_cpus=round(cpus * 1e9) if cpus else None,
            shm_size=memory or int(info["MemTotal"]) // 2,
            read_only=settings.read_only,
            tmpfs={"/tmp": f"size={settings.tmpfs},mode=1777"},  # noqa: S108 - of the container
            device_requests=requests if devices else None,
            **confinement,
        )
        program, *arguments = _words(settings, order, self.queue, number)
        return {
            "image": order["image"],
            "entrypoint": [program],
            "command": arguments,
            "user": user,
            "working_dir": order["workdir"] if order["sees_workdir"] else None,
            "environment": {
                "HOME": order["home"] or temporary,
                "TMPDIR": temporary,
                "XDG_CACHE_HOME": f"{temporary}/cache",
                "ABOARD_CACHE": f"{temporary}/cache/aboard",
                "ABOARD_SPOOL": order["spool"],
                "PYTHONUNBUFFERED": "1",
            },
            "labels": {
                **settings.labels,
                LABEL: "task",
                f"{LABEL}.job": order["handle"]["job"],
                f"{LABEL}.attempt": str(order["handle"]["attempt"]),
                f"{LABEL}.number": str(number),
                DIRECTORY: str(self.queue.directory),
            },
            "host_config": host_config,
            "use_config_proxy": False,  # `docker inspect` would show it
        }

    def begin(self, number: int, unit: Unit) -> None:
        """Start a container. If the daemon does not answer, `ended` finds it not started."""
        from docker.errors import APIError

        with suppress(ExecutorError), explained(f"{self.order['host']}: {_SILENT}"):
            try:
                self._client.api.start(unit)
            except APIError as error:
                reason = str(error.explanation)
                if "executable file not found" in reason or "no such file" in reason:
                    reason = self._lacks_aboard()
                self._ended[number] = Ended(_NOT_STARTED, f"it could not be started: {reason}")

    def discard(self, number: int, unit: Unit) -> None:
        self.forget(number, unit)

    def ended(self, units: Mapping[int, Unit]) -> dict[int, Ended]:
        with explained(f"{self.order['host']}: {_SILENT}"):
            listed = _listed(self._client, str(self.queue.directory))
            for number, name in units.items():
                if number in self._ended:
                    continue
                state = listed.get(name)
                if state is None:
                    self._ended[number] = Ended(None, "its container was removed, not by Aboard")
                elif state == "created":  # by a supervisor that was killed before the start
                    self.begin(number, name)
                elif state in {"exited", "dead"}:
                    self._ended[number] = self._end(number, name)
            for name in listed.keys() - set(units.values()):
                remove(self._client, name)
        return {number: end for number, end in self._ended.items() if number in units}

    def _end(self, number: int, name: str) -> Ended:
        state = self._client.api.inspect_container(name)["State"]
        before = self._client.api.logs(name, tail=20)  # output from before the log file was opened
        if before:
            with suppress(OSError), self.queue.log(number).open("ab") as log:
                log.write(before)
        code, memory = exit_code_of(state), self.resources.memory
        if state.get("OOMKilled") and memory:
            return Ended(code, f"used more than its {format_memory(memory)} of memory")
        if _NO_MODULE.search(before):
            return Ended(code, self._lacks_aboard())
        if state.get("Error"):
            return Ended(code, str(state["Error"]))
        return Ended(code, describe_exit(code) if code < 0 else "")

    def _lacks_aboard(self) -> str:
        image, python = self.order["image"], self.settings.python
        return (
            f"image {image} has no Aboard for {python}. "
            f"Add it: aboard image build --base {image} --tag NAME"
        )

    def signal(self, unit: Unit, number: signal.Signals) -> None:
        with explained(f"{self.order['host']}: {_SILENT}"):
            kill(self._client, unit, number)

    def forget(self, number: int, unit: Unit) -> None:
        self._ended.pop(number, None)
        shutil.rmtree(self.queue.file(number, "tmp"), ignore_errors=True)
        with explained(f"{self.order['host']}: {_SILENT}"):
            remove(self._client, unit)

    def wait(self, units: Mapping[int, Unit], seconds: float) -> None:  # noqa: ARG002
        time.sleep(max(seconds, _POLL_SECONDS))

    def close(self) -> None:
        self._daemons.close()


def _listed(client: Any, directory: str) -> dict[str, str]:
    """Return the states of a batch's containers by their names."""
    filters = {"label": [f"{LABEL}=task", f"{DIRECTORY}={directory}"]}
    found = client.api.containers(all=True, filters=filters)
    return {one["Names"][0].lstrip("/"): one["State"] for one in found if one.get("Names")}


def _words(
    settings: DockerSettings, order: Mapping[str, Any], queue: Queue, number: int
) -> list[str]:
    """Return the command of a container: `entry`, then the task."""
    entry = [settings.python, "-P", "-m", "aboard.executors.entry", str(queue.directory)]
    task = [*order["command"], str(queue.payload), str(number)]
    return [*entry, "--log", str(queue.log(number)), "--", *task]


def _mounts(
    settings: DockerSettings,
    order: Mapping[str, Any],
    queue: Queue | None = None,
    number: int = 0,
) -> list[Any]:
    workdir = [order["workdir"]] if order["sees_workdir"] else []
    own: dict[Path, bool] = {}
    if queue is not None:
        read = dict.fromkeys((queue.payload, queue.environment), True)
        written = dict.fromkeys((queue.log(number), queue.file(number, "tmp")), False)
        own = {Path(order["spool"]): False, **read, **written}
    return mounts(
        settings,
        reads=map(Path, order["reads"]),
        writes=map(Path, [*workdir, *order["writes"]]),
        own=own,
    )
