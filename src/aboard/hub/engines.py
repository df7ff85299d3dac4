"""The engines of a hub: which there are, whether they answer, and what is left of a trial on one.

A trial is a board that writes a few points of its own and shows them, so that an engine can be
tried without a source that it can reach; `aboard doctor --engine` starts one.
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

from aboard.boards.errors import NoSuchName
from aboard.boards.model import BoardRecord
from aboard.executors import (
    Address,
    EngineReport,
    Executor,
    ExecutorError,
    places,
    split_place,
    unknown_place,
)
from aboard.executors.base import PYTHON
from aboard.web.server import pinning_context

TRIAL = "tag:aboard-doctor"
"""The first selector of a trial; the others are local roots that it tries to read."""
TRIAL_SECONDS = 1800.0  # after which the engine ends it, whatever happens here
_PROBE_SECONDS = 10.0
_CONNECT_SECONDS = 10.0


class ProbedEngine(NamedTuple):
    """A place for boards, with the report of its engine; none if it was not requested."""

    name: str
    report: EngineReport | None


@dataclass(frozen=True, slots=True)
class TrialReport:
    """What the hub sees of a trial.

    `accepted` is whether the engine has taken it. `address` is where the hub reaches it,
    `fingerprint` that of the certificate made for it, and `presented` that of the one it presents.
    `status` is the answer to a request without a token. `left` names what is on the engine and in
    the hub's directory.
    """

    accepted: bool = False
    address: str = ""
    fingerprint: str = ""
    presented: str = ""
    status: int | None = None
    problem: str = ""
    left: tuple[str, ...] = ()


class Engines:
    """Probes engines in threads of their own, one probe of each at a time."""

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
        """Return what each engine reports, or that it did not answer in time."""
        probes = {name: self._probe(name) for name in self.names}
        wait(probes.values(), self._seconds)
        return [ProbedEngine(name, self._result(probe)) for name, probe in probes.items()]

    def _probe(self, name: str) -> Future[EngineReport]:
        """Start a probe, unless an earlier one goes on: an engine that hangs holds one thread."""
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
            problem = f"it cannot be queried: {error!r}."
            probe.set_result(EngineReport(answers=False, problem=problem, hint="Report this."))

    def _result(self, probe: Future[EngineReport]) -> EngineReport:
        if probe.done():
            return probe.result()
        problem = f"it did not answer within {self._seconds:g} s."
        return EngineReport(
            answers=False, problem=problem, hint="Check its service and the network."
        )


def trial_command(roots: Sequence[str]) -> tuple[str, ...]:
    return (PYTHON, "-P", "-m", "aboard.cli.trial", *roots)


def is_trial(record: BoardRecord) -> bool:
    return record.selectors[:1] == (TRIAL,)


def examine_address(address: Address) -> TrialReport:
    """Connect to a board as a stranger would: which certificate it has, and what it answers."""
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
