"""The engines of a hub: probes, and trials.

A trial is a board that writes a few points and shows them, so that an engine can be tested without
a source that it can reach. `aboard doctor --engine` starts one.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from aboard.boards.model import BoardRecord, NoSuchName
from aboard.executors import places, split_place, unknown_place
from aboard.executors.base import PYTHON, Address, EngineReport, Executor, ExecutorError
from aboard.web.server import pinning_context

TRIAL = "tag:aboard-doctor"
"""The first selector of a trial; the others are local roots that it tries to read."""
TRIAL_SECONDS = 1800.0  # then the engine stops it, even without the hub
_SERVE_TRIAL = "from aboard.cli.engines import serve_trial; serve_trial()"
_PROBE_SECONDS = 10.0
_CONNECT_SECONDS = 10.0


class ProbedEngine(NamedTuple):
    """A place for boards and the report of its engine; None if it was not probed."""

    name: str
    report: EngineReport | None


@dataclass(frozen=True, slots=True)
class TrialReport:
    """The hub's view of a trial.

    `accepted` is whether the engine accepted it, `address` where the hub reaches it. `fingerprint`
    is that of the certificate made for it, `presented` that of the certificate it presents.
    `status` is the status of a request without a token. `left` names what remains on the engine and
    in the hub's directory.
    """

    accepted: bool = False
    address: str = ""
    fingerprint: str = ""
    presented: str = ""
    status: int | None = None
    problem: str = ""
    left: tuple[str, ...] = ()


class Engines:
    """Probes engines, each in its own thread and one probe at a time."""

    def __init__(
        self, executors: Mapping[str, Executor], *, seconds: float = _PROBE_SECONDS
    ) -> None:
        self._executors = executors
        self._seconds = seconds
        self._lock = threading.Lock()
        self._probes: dict[str, Future[EngineReport]] = {}

    @property
    def names(self) -> list[str]:
        return places({name: one.profiles for name, one in self._executors.items()})

    def executor(self, name: str) -> Executor:
        if name not in self.names:
            raise NoSuchName(*unknown_place(name, self.names))
        return self._executors[split_place(name)[0]]

    def probe(self) -> list[ProbedEngine]:
        """Return the report of each engine; one that does not answer in time is a problem."""
        probes = {name: self._probe(name) for name in self.names}
        wait(probes.values(), self._seconds)
        return [ProbedEngine(name, self._result(probe)) for name, probe in probes.items()]

    def _probe(self, name: str) -> Future[EngineReport]:
        """Start a probe unless one is running, so that an engine that hangs holds one thread."""
        with self._lock:
            before = self._probes.get(name)
            if before is not None and not before.done():
                return before
            probe: Future[EngineReport] = Future()
            self._probes[name] = probe
        thread = threading.Thread(
            target=self._run, args=(name, probe), name=f"probe-{name}", daemon=True
        )
        thread.start()
        return probe

    def _run(self, name: str, probe: Future[EngineReport]) -> None:
        engine, profile = split_place(name)
        try:
            probe.set_result(self._executors[engine].probe(profile))
        except ExecutorError as error:
            probe.set_result(EngineReport(answers=False, problem=str(error)))
        except Exception as error:  # noqa: BLE001 - one engine must not hide the others
            problem = f"the probe failed: {error!r}."
            probe.set_result(EngineReport(answers=False, problem=problem, hint="Report this."))

    def _result(self, probe: Future[EngineReport]) -> EngineReport:
        if probe.done():
            return probe.result()
        problem = f"it did not answer within {self._seconds:g} s."
        return EngineReport(
            answers=False, problem=problem, hint="Check its service and the network."
        )


def trial_command(roots: Sequence[str]) -> tuple[str, ...]:
    return (PYTHON, "-P", "-c", _SERVE_TRIAL, *roots)


def is_trial(record: BoardRecord) -> bool:
    return record.selectors[:1] == (TRIAL,)


def examine_address(address: Address) -> TrialReport:
    """Connect to a board without a token, and report its certificate and status."""
    where = f"{address.host}:{address.port}"
    connection: http.client.HTTPConnection
    if address.fingerprint:
        connection = http.client.HTTPSConnection(
            address.host, address.port, timeout=_CONNECT_SECONDS, context=pinning_context()
        )
    else:
        connection = http.client.HTTPConnection(
            address.host, address.port, timeout=_CONNECT_SECONDS
        )
    presented = ""
    try:
        connection.connect()
        if isinstance(connection.sock, ssl.SSLSocket):
            presented = sha256(connection.sock.getpeercert(binary_form=True) or b"").hexdigest()
        connection.request("GET", f"{address.path}data/runs")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        problem = str(error) or type(error).__name__
        return TrialReport(True, where, address.fingerprint, presented, problem=problem)
    finally:
        connection.close()
    return TrialReport(True, where, address.fingerprint, presented, status)
