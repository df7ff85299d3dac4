"""The process that carries a spool to its bucket: `python -m aboard.track.shipper SPOOL`.

It lives beside the training process and outlives it: whatever ends that one, the last byte is
sent, and a run that was killed is said to be. It never gives up while its owner lives. What is sent
is left to `sending`, and starting it to `shipment`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from pathlib import Path

from aboard.runs import manifest
from aboard.runs.manifest import BadManifest, Manifest, State
from aboard.storage import StorageError, open_storage
from aboard.storage.local import LocalStorage
from aboard.track.ledger import Ledger
from aboard.track.processes import Writer
from aboard.track.sending import Progress, Round, Sending
from aboard.track.spool import Owner, Spool, Status, Watch

_TICK = 0.1
"""How often it is looked whether the owner has finished."""
_LONGEST_DELAY = 60.0
_LONGEST_DELAY_AT_END = 5.0
_ORPHAN_PATIENCE = 24 * 3600.0
"""How long an owner's absence and a bucket's are borne together."""
_LOCK_TRIES = 20
_VERIFICATIONS = 5
"""How often what arrived may turn out not to be there."""
_QUIET_SECS = 10.0
"""How long after the owner's end, and after the last word, a process that has a file open is waited
for by whoever waits for the end."""
_LINGER_SECS = 2.0
"""The same for one that has none open, but was told to log there."""
_IDLE_SECS = 24 * 3600.0
"""Who opens no file for so long never will."""


class Result(IntEnum):
    """How the process ends."""

    ARRIVED = 0
    KEPT = 3
    """Something could not be sent, and stays in the spool."""
    SERVED = 4
    """Another shipper is at work, or there is no such spool."""


def delay_after(failures: int, interval: float, longest: float, chance: float) -> float:
    """Return how long to wait after so many failures in a row; `chance` is between 0 and 1."""
    if not failures:
        return interval
    wanted = max(interval, 0.1) * 2.0 ** min(failures - 1, 30)
    return min(wanted, longest) * (0.5 + chance / 2)


class Shipper:
    """Serves one spool until its owner has ended and everything has arrived."""

    def __init__(
        self,
        spool: Spool,
        owner: Owner,
        sending: Sending,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spool = spool
        self._owner = owner
        self._sending = sending
        self._clock = clock
        self._watch = Watch(owner, spool.lifeline)
        self._watched = not self._watch.is_gone()
        self._hurry = False
        self._failures = 0
        self._mismatches = 0
        self._told: Status | None = None
        self._moved = clock()
        self._ended: float | None = None
        """When the owner's end was noticed."""
        self._writer: Writer | None = None

    def hurry(self) -> None:
        """Send all there is at once: whoever sent SIGTERM will not wait long."""
        self._hurry = True

    def serve(self) -> Result:
        """Send, round by round, to the end."""
        self._tell(replace(self._spool.status(), pid=os.getpid(), kept=False, writer=0))
        while True:
            ending = self._is_ending()
            if ending and not self._spool.is_marked("finish"):
                mark_killed(self._spool, watched=self._watched)
            self._hurry = False
            outcome = self._round(last=ending)
            self._note(outcome)
            if ending and (outcome.complete or self._gives_up()):
                return self._conclude(outcome)
            self._wait(ending=ending)

    def _is_ending(self) -> bool:
        """Say whether no more will be written."""
        finished = self._spool.is_marked("finish")
        if not finished and not self._watch.is_gone():
            return False
        if self._ended is None:
            self._ended = self._clock()
        self._writer = self._spool.writer(besides=self._owner.pid if finished else 0)
        if self._writer is None:
            return True
        return not self._writer.writes and self._quiet_secs() > _IDLE_SECS

    def _quiet_secs(self) -> float:
        """Return for how long nothing was written since the owner's end."""
        return self._clock() - max(self._ended or 0.0, self._moved)

    def _round(self, *, last: bool) -> Round:
        try:
            outcome = self._sending.round(last=last)
            return self._verify(outcome) if last and outcome.complete else outcome
        except Exception as error:  # noqa: BLE001 - if we end, nobody sends the rest
            log(traceback.format_exc())
            problem = f"internal error: {type(error).__name__}: {error}"
            hint = f"See {self._spool.log}."
            return Round(left=1, problem=StorageError(self._owner.target, problem, hint))

    def _verify(self, outcome: Round) -> Round:
        try:
            right = self._sending.verify()
        except StorageError as error:
            return Round(left=1, problem=error)
        if right:
            return outcome
        self._mismatches += 1
        if self._mismatches < _VERIFICATIONS:
            return Round(left=1)
        return Round(left=1, problem=_not_as_sent(self._owner.target))

    def _note(self, outcome: Round) -> None:
        self._failures = self._failures + 1 if outcome.problem else 0
        if outcome.sent:
            self._moved = self._clock()
        problem = str(outcome.problem) if outcome.problem else outcome.refused
        if problem and (self._told is None or problem != self._told.problem):
            log(problem)
        refused = outcome.problem is None and bool(outcome.refused)
        status = Status(os.getpid(), outcome.left, problem, refused=refused)
        self._tell(replace(status, writer=self._patient_writer(outcome)))

    def _patient_writer(self, outcome: Round) -> int:
        """Return the process that alone keeps us from ending, once that has lasted a while."""
        if self._writer is None or outcome.problem or outcome.busy:
            return 0
        patience = _QUIET_SECS if self._writer.writes else _LINGER_SECS
        return self._writer.pid if self._quiet_secs() > patience else 0

    def _tell(self, status: Status) -> None:
        if status != self._told:
            self._told = status
            self._spool.tell(status)

    def _gives_up(self) -> bool:
        if self._mismatches >= _VERIFICATIONS and self._failures:
            return True
        orphaned = self._watch.is_gone()
        return orphaned and self._clock() - self._moved > _ORPHAN_PATIENCE

    def _conclude(self, outcome: Round) -> Result:
        if not outcome.complete or outcome.refused:
            problem = str(outcome.problem or outcome.refused)
            refused = outcome.complete
            self._tell(Status(os.getpid(), outcome.left, problem, kept=True, refused=refused))
            return Result.KEPT
        if self._watch.is_gone() or self._spool.is_marked("alone"):
            self._spool.remove()
        else:
            self._spool.mark("done")
        return Result.ARRIVED

    def _wait(self, *, ending: bool) -> None:
        """Wait for the next round, but no longer once everything changes."""
        finished, gone = self._spool.is_marked("finish"), self._watch.is_gone()
        awaited = ending or (finished and not self._spool.is_marked("alone"))
        longest = _LONGEST_DELAY_AT_END if awaited else _LONGEST_DELAY
        interval = min(_TICK, self._owner.interval) if awaited else self._owner.interval
        chance = random.random()  # noqa: S311 - so that many do not come back at once
        delay = delay_after(self._failures, interval, longest, chance)
        until = self._clock() + delay
        while (left := until - self._clock()) > 0 and not self._hurry:
            self._watch.wait(min(left, _TICK))
            ended = self._spool.is_marked("finish") != finished or self._watch.is_gone() != gone
            if not ending and ended:
                return


def mark_killed(spool: Spool, *, watched: bool) -> None:
    """Say in `run.json` that the run was killed, if it still says that it is running.

    Args:
        spool: whose owner is gone.
        watched: it went just now; else it went when it last wrote something.
    """

    def end(record: Manifest) -> None:
        if record.state is State.RUNNING:
            at = time.time() if watched else max(record.heartbeat, newest_write(spool.files))
            reason = "the process ended without a word: SIGKILL, out of memory or os._exit"
            record.end(State.KILLED, reason=reason, at=at)

    try:
        record = manifest.read(LocalStorage(str(spool.files)))
        if record.state is State.RUNNING:
            manifest.update(LocalStorage(str(spool.files)), end)
    except (StorageError, BadManifest) as error:
        if (spool.files / manifest.FILE_NAME).exists():
            log(str(error))


def newest_write(directory: Path) -> float:
    """Return when a file below a directory was last written to."""
    newest = 0.0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            newest = max(newest, path.lstat().st_mtime)
    return newest


def log(text: str) -> None:
    """Write a line to the log, which is what standard error is."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        sys.stderr.flush()


def serve(spool: Spool) -> Result:
    """Serve a spool, unless another process does."""
    for _ in range(_LOCK_TRIES):
        with spool.lock() as ours:
            owner = spool.owner()
            if ours and owner is not None:
                return _shipper(spool, owner).serve()
        if owner is None:
            break
        time.sleep(_TICK)  # somebody may only be looking whether it is served
    return Result.SERVED


def _shipper(spool: Spool, owner: Owner) -> Shipper:
    sending = Sending(spool.files, Ledger(spool.ledger), open_storage(owner.target))
    shipper = Shipper(spool, owner, sending)
    signal.signal(signal.SIGTERM, lambda *_: shipper.hurry())
    return shipper


def send_left_behind(spool: Spool, owner: Owner, progress: Progress) -> Round:
    """Send all of a spool whose owner is gone, without trying again; remove it when all arrived.

    The caller holds the spool's lock.
    """
    if not spool.is_marked("finish"):
        mark_killed(spool, watched=False)
    ledger = Ledger(spool.ledger)
    sending = Sending(spool.files, ledger, open_storage(owner.target), progress=progress)
    for _ in range(_VERIFICATIONS):
        while not (outcome := sending.round(last=True)).complete and outcome.problem is None:
            time.sleep(_TICK)  # a large file is on its way
        if outcome.problem is not None:
            return outcome
        if sending.verify():
            if not outcome.refused:
                spool.remove()
            return outcome
    return Round(left=1, problem=_not_as_sent(owner.target))


def _not_as_sent(target: str) -> StorageError:
    problem = "files that were sent are not there, or not as they were sent"
    hint = "Check whether something else deletes or replaces them."
    return StorageError(target, problem, hint)


def main() -> None:
    """Serve the spool that the command line names."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    result = serve(Spool(Path(sys.argv[1])))
    sys.stderr.flush()
    os._exit(result)  # a request that hangs in a thread must not keep us


if __name__ == "__main__":
    main()
