"""Boards as containers of a Docker daemon, or of Podman, which has the same API.

Each start is one container with its own name. It runs as the hub's user on a read-only root file
system, without capabilities, and sees its sources read-only at the same paths as on the hub's
machine. It sees the files of this start in the board's directory, and writes its log and address
there, so that both survive the container. The daemon must see the hub's directories at the same
paths, so it runs on the hub's machine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
    here,
    is_here,
)
from aboard.executors.docker.daemon import (
    CHECK,
    CLOUD_VARIABLES,
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
from aboard.executors.start import Addresses, Start, read_json, why
from aboard.runs.units import format_memory
from aboard.system import write_private
from aboard.web.tokens import TokenError

PORT = 6006  # inside the container
_HANDLE, _PUBLISHED = "handle.json", "published.json"
_FOLLOW_SECONDS = 1.0


class DockerExecutor(Executor):
    """Runs boards as containers."""

    name = "docker"
    unit = ("container", "container")
    stop_command = "docker rm --force {container}"
    Settings = DockerSettings

    def open(self) -> None:
        self._daemons = Daemons()
        self._ending = threading.Lock()  # one thread records how a container ended
        self._addresses = Addresses()

    def close(self) -> None:
        self._daemons.close()

    # The contract.

    def start(self, spec: Spec) -> Handle:
        settings: DockerSettings = self.settings(spec.profile)
        try:
            spec.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (
                system.file_lock(spec.directory / "lock"),  # one start at a time
                explained(f"board {spec.board} cannot be started by Docker"),
            ):
                return self._start(spec, settings)
        except (OSError, TokenError) as error:
            raise ExecutorError(
                f"{spec.directory}: board {spec.board} cannot be started: {why(error)}. "
                "Check that the hub may write there."
            ) from error

    def _start(self, spec: Spec, settings: DockerSettings) -> Handle:
        place = spec.directory / f"start-{spec.attempt}"
        handle = read_json(place / _HANDLE)
        if handle is None:  # so there is no container either
            handle = self._prepare(spec, settings)
        elif Start(handle).ended_status() is not None:
            return dict(handle)
        with explained(f"{handle['host']}: board {spec.board} cannot be started by Docker"):
            client = self._daemons.client(handle["host"], handle["context"])
        pull(client, settings, image_of(settings))
        container, handle = self._create(client, spec, settings, handle)
        # A container that has run is not started again: `poll` reports how it ended.
        if client.api.inspect_container(container)["State"]["Status"] == "created":
            try:
                client.api.start(container)
            except Exception:
                client.api.remove_container(container, v=True, force=True)
                shutil.rmtree(place, ignore_errors=True)
                raise
        return dict(handle)

    def _prepare(self, spec: Spec, settings: DockerSettings) -> Handle:
        place = spec.directory / f"start-{spec.attempt}"
        shutil.rmtree(place, ignore_errors=True)
        host, context = find_daemon(settings)
        private = place / "tmp"
        given = spec.environment
        if not settings.credentials:
            given = {
                one: value for one, value in given.items() if not one.startswith(CLOUD_VARIABLES)
            }
        environment = {
            **{name: value for name, value in os.environ.items() if name.upper() in INHERITED},
            **given,
            **settings.environment,
            "TMPDIR": str(private),
            "ABOARD_CACHE": str(private / "cache"),
        }
        handle, _ = Start.prepare(
            replace(spec, environment=environment), str(spec.attempt), tls=True
        )
        handle |= {
            "host": host,
            "context": context,
            "container": spec.name,
            "publish": settings.publish,
            "network": settings.network,
            "machine": here(),
            "memory": spec.memory,
        }
        private.mkdir(mode=0o700)
        for file in (place / ADDRESS, spec.directory / "log"):
            file.touch(mode=0o600)
        write_private(place / _HANDLE, json.dumps(handle))
        return handle

    def _create(
        self, client: Any, spec: Spec, settings: DockerSettings, handle: Handle
    ) -> tuple[str, Handle]:
        """Create the container of a start, or return the one that a killed hub created."""
        from docker.errors import APIError, ImageNotFound, NotFound

        info = self._daemons.info(handle["host"], handle["context"])
        options = self._options(client, spec, settings, handle, info)
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                created = client.api.create_container(name=spec.name, **options)
                return str(created["Id"]), handle
            except ImageNotFound as error:
                shutil.rmtree(Start(handle).place, ignore_errors=True)
                raise ExecutorError(
                    f"Docker has no image {image_of(settings)}. {build_hint(settings)}"
                ) from error
            except APIError as error:
                if not is_name_taken(error):
                    shutil.rmtree(Start(handle).place, ignore_errors=True)
                    raise
            try:
                if (known := self._adopt(client, spec, settings, handle)) is not None:
                    return spec.name, known
            except NotFound:  # its name is reserved before it exists
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _adopt(
        self, client: Any, spec: Spec, settings: DockerSettings, handle: Handle
    ) -> Handle | None:
        """Return the handle of the container of this start; None if it had to be removed.

        A hub with another directory may have created it. Without those files it is useless.
        """
        labels = client.api.inspect_container(spec.name)["Config"]["Labels"] or {}
        directory = labels.get(DIRECTORY, "")
        ours = {**self._labels(spec, replace(settings, labels={})), DIRECTORY: directory}
        if not ours.items() <= labels.items():
            raise ExecutorError(
                f"container {spec.name} belongs to another hub. Remove it: docker rm -f {spec.name}"
            )
        if directory == handle["directory"]:
            return handle
        known: Handle | None = None
        with suppress(OSError):
            known = read_json(Path(directory) / f"start-{spec.attempt}" / _HANDLE)
        if known is None:
            remove(client, handle["container"])
        else:
            shutil.rmtree(Start(handle).place, ignore_errors=True)
        return known

    def _labels(self, spec: Spec, settings: DockerSettings) -> dict[str, str]:
        return {
            **settings.labels,
            LABEL: "board",
            f"{LABEL}.hub": self.hub,
            f"{LABEL}.board": spec.board,
            f"{LABEL}.attempt": str(spec.attempt),
            DIRECTORY: str(spec.directory.absolute()),
        }

    def _options(
        self,
        client: Any,
        spec: Spec,
        settings: DockerSettings,
        handle: Handle,
        info: Mapping[str, Any],
    ) -> dict[str, Any]:
        place = Start(handle).place
        written = (place / ADDRESS, place / "tmp", place.with_name("log"))
        on_host = settings.network == "host"
        user, confinement = confine(settings, info)
        port = f"{PORT}/tcp"
        publishes = bool(settings.publish) and not on_host
        host_config = client.api.create_host_config(
            mounts=mounts(
                settings,
                reads=[*spec.reads, *(spec.credential_files if settings.credentials else ())],
                own={place: True, **dict.fromkeys(written, False)},
            ),
            port_bindings={port: (settings.publish,)} if publishes else None,
            network_mode=settings.network or None,
            mem_limit=spec.memory,
            memswap_limit=spec.memory,
            nano_cpus=round(spec.cpus * 1e9) if spec.cpus else None,
            pids_limit=settings.pids,
            read_only=settings.read_only,
            tmpfs={"/tmp": f"size={settings.tmpfs},mode=1777"},  # noqa: S108 - of the container
            **confinement,
        )
        listening = spec.listening(*(("127.0.0.1", 0) if on_host else ("0.0.0.0", PORT)))  # noqa: S104 - of the container
        keeps_home = settings.credentials and spec.credential_files
        return {
            "image": image_of(settings),
            "entrypoint": [settings.python, "-P", "-m", "aboard.executors.entry"],
            "command": [
                *(str(place), "--address", str(place / ADDRESS)),
                *("--log", str(place.with_name("log")), "--", *spec.command),
            ],
            "user": user,
            "working_dir": str(place / "tmp"),
            "environment": {
                **listening,
                "HOME": str(Path.home() if keeps_home else place / "tmp"),
                "PYTHONUNBUFFERED": "1",
            },
            "ports": [(PORT, "tcp")] if publishes else None,
            "labels": self._labels(spec, settings),
            "host_config": host_config,
            "use_config_proxy": False,  # `docker inspect` would show it
        }

    def poll(self, handles: Mapping[str, Handle]) -> dict[str, Status]:
        found: dict[str, Status] = {}
        daemons: dict[tuple[str, str], dict[str, Handle]] = {}
        for key, handle in handles.items():
            try:
                Start(handle)
                daemons.setdefault((handle["host"], handle["context"]), {})[key] = handle
            except (KeyError, ExecutorError):
                reason = "not the handle of a container. Start the board again."
                found[key] = Status(CommandState.UNKNOWN, reason=reason)
        for (host, context), of_one_daemon in daemons.items():
            found |= self._poll(host, context, of_one_daemon)
        return found

    def _poll(self, host: str, context: str, handles: Mapping[str, Handle]) -> dict[str, Status]:
        try:
            with explained(f"{host}: Docker does not answer"):
                client = self._daemons.client(host, context)
                listed = {one["Names"][0].lstrip("/"): one for one in self._list(client)}
        except ExecutorError as error:
            unknown = Status(CommandState.UNKNOWN, reason=str(error))
            return {key: Start(handle).ended_status() or unknown for key, handle in handles.items()}
        found = {}
        for key, handle in handles.items():
            try:
                with explained(f"{host}: Docker does not answer"):
                    found[key] = self._status(client, handle, listed.get(handle["container"]))
                if found[key].state is CommandState.ENDED:
                    self._addresses.forget(Start(handle))
                else:
                    self.find_address(handle)
            except (ExecutorError, OSError, ValueError) as error:
                found[key] = Status(CommandState.UNKNOWN, reason=why(error))
        return found

    def _list(self, client: Any) -> list[dict[str, Any]]:
        filters = {"label": [f"{LABEL}=board", f"{LABEL}.hub={self.hub}"]}
        listed: list[dict[str, Any]] = client.api.containers(all=True, filters=filters)
        return [one for one in listed if one.get("Names")]

    def _status(self, client: Any, handle: Handle, container: Mapping[str, Any] | None) -> Status:
        start = Start(handle)
        ended_status = start.ended_status()
        if container is not None and container["Labels"].get(DIRECTORY) != handle["directory"]:
            container = None  # another hub has replaced it
        if ended_status is not None:
            if container is not None:
                remove(client, handle["container"])
            return ended_status
        if container is None:
            return self._end(start, None, "its container was removed, not by Aboard")
        if container["State"] in {"exited", "dead"}:
            return self._note_end(client, handle, start)
        if container["State"] == "created":  # by a hub that was killed before the start
            if start.deadline() is None:
                return Status(CommandState.STARTING, reason="its container was not started yet")
            return self._note_end(client, handle, start)
        return self._status_of_running(client, handle, start, container)

    def _status_of_running(
        self, client: Any, handle: Handle, start: Start, container: Mapping[str, Any]
    ) -> Status:
        deadline = start.deadline()
        if deadline is not None and time.monotonic() >= deadline:
            kill(client, handle["container"], signal.SIGKILL)
        published = _published(container, handle)
        if published != read_json(start.place / _PUBLISHED) and start.place.is_dir():
            write_private(start.place / _PUBLISHED, json.dumps(published))
        if published is None and handle["network"] != "host":
            return Status(CommandState.STARTING)
        return Status(start.state())

    def _note_end(self, client: Any, handle: Handle, start: Start) -> Status:
        """Record how a container ended, with output from before its log file; remove it."""
        from docker.errors import NotFound

        try:
            state = client.api.inspect_container(handle["container"])["State"]
        except NotFound:
            return start.ended_status() or self._end(
                start, None, "its container was removed, not by Aboard"
            )
        with self._ending:
            status = start.ended_status()
            if status is None:
                before = client.api.logs(handle["container"], tail=20)
                if before and start.log.parent.is_dir():
                    with start.log.open("ab") as log:
                        log.write(before)
                code, memory = exit_code_of(state), handle["memory"]
                if state.get("OOMKilled") and memory and start.deadline() is None:
                    reason = f"used more than its {format_memory(memory)} of memory"
                else:
                    reason = start.end_reason(code)
                    if state.get("Error"):
                        reason = f"{reason}: {state['Error']}"
                status = self._end(start, code, reason)
        remove(client, handle["container"])
        return status

    @staticmethod
    def _end(start: Start, code: int | None, reason: str) -> Status:
        if start.deadline() is not None:
            reason = "it was stopped"
        shutil.rmtree(start.place / "tmp", ignore_errors=True)
        return start.end(code, reason)

    def stop(self, handle: Handle, *, now: bool = False) -> None:
        """Send SIGTERM to the container; `poll` kills it after the grace period."""
        start = Start(handle)
        with explained(
            f"container {handle['container']} cannot be stopped",
            f"Stop it with: {self.how_to_stop(handle)}",
        ):
            client = self._daemons.client(handle["host"], handle["context"])
            has_ended = start.ended_status() is not None or not start.place.is_dir()
            if not has_ended:
                start.request_stop(0.0 if now else time.monotonic() + self.grace)
            if not _has_container(client, handle):
                return
            if has_ended:
                remove(client, handle["container"])
            else:
                kill(client, handle["container"], signal.SIGKILL if now else signal.SIGTERM)

    def logs(
        self, handle: Handle, *, tail: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        start = Start(handle)
        polled = 0.0

        def is_running() -> bool:
            nonlocal polled
            if time.monotonic() - polled >= _FOLLOW_SECONDS:
                polled = time.monotonic()
                self.poll({"one": handle})
            return start.ended_status() is None

        return start.read_log(tail=tail, is_running=is_running if follow else None)

    def address(self, handle: Handle) -> Address | None:
        return self._addresses.get(Start(handle), partial(self._read_address, handle))

    def find_address(self, handle: Handle) -> None:
        self._addresses.note(Start(handle), self._read_address(handle))

    def _read_address(self, handle: Handle) -> Address | None:
        start = Start(handle)
        try:
            reported = start.address() if start.ended_status() is None else None
            if reported is None or handle["network"] == "host":
                return reported
            published = read_json(start.place / _PUBLISHED)
        except (OSError, TokenError) as error:
            raise ExecutorError(
                f"the address of board {start.board} cannot be read: {why(error)}. "
                "Stop the board and start it again."
            ) from error
        return replace(reported, host=published[0], port=published[1]) if published else None

    def probe(self, profile: str = "") -> EngineReport:
        settings: DockerSettings = self.settings(profile)
        try:
            host, context = find_daemon(settings)
            with explained(f"{host}: Docker does not answer"):
                from docker.errors import ImageNotFound

                client = self._daemons.client(host, context)
                info = client.api.info()
                resources = {
                    "cpus": str(info["NCPU"]),
                    "memory": format_memory(info["MemTotal"]),
                    "containers": str(info["ContainersRunning"]),
                }
                version = str(info["ServerVersion"])
                try:
                    client.api.inspect_image(image_of(settings))
                except ImageNotFound:
                    problem = f"image {image_of(settings)} not found"
                    return EngineReport(True, version, resources, problem, build_hint(settings))
        except ExecutorError as error:
            return _unanswered(str(error))
        return EngineReport(True, version, resources)

    def found(self) -> list[Found]:
        daemons = {find_daemon(settings) for settings in self.profiles.values()}
        found = []
        for host, context in sorted(daemons):
            with explained(f"{host}: Docker does not answer"):
                client = self._daemons.client(host, context)
                for one in self._list(client):
                    found.append(_found(one, host, context))
        return found

    def reaches(self, handle: Handle) -> bool:
        return is_here(handle.get("machine", {}))


def _unanswered(problem: str) -> EngineReport:
    if "pip install" in problem:
        return EngineReport(False, problem=problem, hint="Install it where the hub runs.")
    what, _, hint = problem.rpartition(". ")
    if "permission denied" in what:
        hint = "Add the hub's user to the group of the socket, or use rootless Docker."
    elif hint == CHECK:
        hint = f"Start Docker, or set host or context in [executors.docker]. {CHECK}"
    return EngineReport(False, problem=f"{what}.", hint=hint)


def _published(container: Mapping[str, Any], handle: Handle) -> list[str | int] | None:
    """Return the host and port at which the hub reaches a container."""
    if not handle["publish"]:
        networks = (container.get("NetworkSettings") or {}).get("Networks") or {}
        addresses = [one["IPAddress"] for one in networks.values() if one.get("IPAddress")]
        return [addresses[0], PORT] if addresses else None
    host = str(handle["publish"])
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared
        host = urlsplit(handle["host"]).hostname or "127.0.0.1"
    for port in container.get("Ports") or ():
        if port.get("PrivatePort") == PORT and port.get("PublicPort"):
            return [host, port["PublicPort"]]
    return None


def _has_container(client: Any, handle: Handle) -> bool:
    """Return whether the container of this start exists, not one that replaced it."""
    from docker.errors import NotFound

    try:
        labels = client.api.inspect_container(handle["container"])["Config"]["Labels"] or {}
    except NotFound:
        return False
    return bool(labels.get(DIRECTORY) == handle["directory"])


def _found(container: Mapping[str, Any], host: str, context: str) -> Found:
    labels = container["Labels"]
    board, attempt = labels[f"{LABEL}.board"], labels[f"{LABEL}.attempt"]
    directory = labels[DIRECTORY]
    handle = read_json(Path(directory) / f"start-{attempt}" / _HANDLE) or {
        "board": board,
        "attempt": int(attempt),
        "directory": directory,
        "start": attempt,
        "log_from": 0,
        "host": host,
        "context": context,
        "container": container["Names"][0].lstrip("/"),
        "publish": "",
        "network": "",
        "machine": here(),
        "memory": None,
    }
    return Found(board, int(attempt), handle)
