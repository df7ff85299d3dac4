"""Ships a directory to a bucket: the training's side, and the process that sends the files.

A `Shipment` gives the training a spool on a local disk to write to, so that training never waits
for the network or fails because of it. A separate process, `python -m
aboard.track.shipping.shipper SPOOL`, runs a `Shipper`, which sends the files (see `upload`). It
outlives the training: even if that is killed, the last byte is sent, and the run is recorded as
killed.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from pathlib import Path

import aboard
from aboard.runs import manifest
from aboard.runs.manifest import BadManifest, Manifest, State
from aboard.runs.units import format_size
from aboard.storage import StorageError, open_storage
from aboard.storage.local import LocalStorage
from aboard.system import Backoff
from aboard.track import environment, notify
from aboard.track.shipping.segments import Ledger
from aboard.track.shipping.spool import Owner, OwnerWatch, Spool, Status, Writer, abandoned_spools
from aboard.track.shipping.upload import Progress, Round, Uploader

INTERVAL = 5.0
FINISH_SECS = 600.0
_MAX_ABANDONED = 3
_QUIET_SECS = 2.0  # a shorter wait at the end is not reported
_REMOVAL_SECS = 5.0  # a shipper that has deleted its spool exits within this time
_MAX_PAUSE = 30.0
_MAX_STARTS = 4
_detached: list[subprocess.Popen[bytes]] = []


class Result(IntEnum):
    """The exit code of a shipper."""

    ARRIVED = 0
    KEPT = 3  # some files could not be sent, and stay in the spool
    SERVED = 4  # another shipper is at work, or the spool does not exist


class Shipment:
    """A directory whose files are sent to a bucket while they are written.

    Only the process that created it can finish it; in a forked child it does nothing. Raises
    `NoSpool` if no spool can be created.
    """

    def __init__(self, target: str, *, interval: float | None = None) -> None:
        if interval is None:
            interval = _seconds("ABOARD_SHIP_SECS", INTERVAL)
        self.spool = Spool.create(target, max(interval, 0.01))
        self.directory = self.spool.files
        owner = self.spool.owner()
        self.target = owner.target if owner else target
        self._pid = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._next_start = 0.0
        self._backoff = Backoff(0.1, _MAX_PAUSE)
        self._reported = ""
        self.arrived: bool | None = None  # before the end
        self._stopping = threading.Event()
        self._finishing = threading.Lock()
        self._supervising = threading.Lock()
        self._supervise()
        thread = threading.Thread(target=self._keep_alive, name="aboard-shipment", daemon=True)
        thread.start()

    def finish(self, timeout: float | None = None) -> bool:
        """Wait until everything has arrived; return whether it has.

        After `timeout` seconds the shipper continues in the background, also with what other
        processes may still write.
        """
        if os.getpid() != self._pid:
            return True
        if timeout is None:
            timeout = _seconds("ABOARD_FINISH_SECS", FINISH_SECS)
        with self._finishing:
            if self.arrived is None:
                self._stopping.set()
                self.spool.mark("finish")
                try:
                    self.arrived = self._wait(timeout)
                finally:
                    self._leave()
            return self.arrived

    def _keep_alive(self) -> None:
        with contextlib.suppress(OSError):  # for example after a crash of this machine
            for spool in itertools.islice(abandoned_spools(), _MAX_ABANDONED):
                _detached.append(start_shipper(spool))
        while not self._stopping.wait(1.0):
            self._supervise()

    def _supervise(self) -> None:
        with self._supervising:
            process = self._process
            if process is not None and process.poll() in (None, Result.ARRIVED, Result.KEPT):
                self._report(self.spool.status(), process)
            else:
                self._start()

    def _start(self) -> None:
        now = time.monotonic()
        if now < self._next_start:
            return
        if now - self._next_start > _MAX_PAUSE:
            self._starts = 0  # the last one ran long enough
            self._backoff.reset()
        self._next_start = now + self._backoff.grow()
        self._starts += 1
        try:
            self._process = start_shipper(self.spool)
        except OSError as error:
            self._report_problem(f"the process that sends logs cannot start: {error.strerror}.")
            return
        if self._starts > _MAX_STARTS:
            problem = f"the process that sends logs keeps exiting; see {self.spool.log}."
            self._report_problem(problem)

    def _report(self, status: Status, process: subprocess.Popen[bytes]) -> None:
        if status.pid != process.pid:
            return  # an earlier shipper's status
        if status.problem:
            self._report_problem(status.problem, refused=status.refused)
        elif self._reported:
            self._reported = ""
            notify(f"{self.target} is reachable again; logs are being sent.")

    def _report_problem(self, problem: str, *, refused: bool = False) -> None:
        if problem != self._reported:
            self._reported = problem
            rest = f"Logs are kept in {self.spool.directory} until they can be sent"
            if refused:
                rest = "All other files are sent"
            notify(f"{problem} {rest}; training continues.")

    def _wait(self, timeout: float) -> bool:
        started = time.monotonic()
        announced = False
        try:
            while not self._has_arrived():
                elapsed = time.monotonic() - started
                status = self.spool.status()
                if not self.spool.directory.exists() and self._arrived_with_spool():
                    return True
                if elapsed > timeout or status.kept or not self.spool.directory.exists():
                    notify(self._why_not_arrived(status, elapsed))
                    return False
                if status.writer:
                    notify(
                        f"process {status.writer} may still write to {self.target};"
                        " sending continues in the background."
                    )
                    return False
                self._supervise()
                if elapsed > _QUIET_SECS and status.left and not announced:
                    announced = True
                    notify(
                        f"sending the last {format_size(status.left)} to {self.target};"
                        " Ctrl-C continues in the background."
                    )
                time.sleep(0.02 if elapsed < 1 else 0.1)
        except KeyboardInterrupt:
            notify(f"sending from {self.spool.directory} continues in the background.")
            return False
        return True

    def _has_arrived(self) -> bool:
        done = self._process is not None and self._process.poll() == Result.ARRIVED
        return done or self.spool.is_marked("done")

    def _arrived_with_spool(self) -> bool:
        """Return whether the shipper removed the spool at its end."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_REMOVAL_SECS)
        return self._has_arrived()

    def _why_not_arrived(self, status: Status, seconds: float) -> str:
        where = self.spool.directory
        if not where.exists():
            return f"{where} was deleted before everything in it was sent to {self.target}."
        if status.kept and status.refused:
            rest = "All other files were sent. Then run 'aboard ship' to send this one."
            return f"{status.problem} {rest}"
        left = (
            f"{self.target}: after {seconds:.0f} s, {format_size(status.left)} are still not sent."
        )
        rest = "'aboard ship' sends them" if status.kept else "sending continues in the background"
        return f"{status.problem or left} The logs are kept in {where}; {rest}."

    def _leave(self) -> None:
        if self.arrived:
            self.spool.remove()
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1)
        else:
            self.spool.mark("alone")
        if self._process is not None:
            _detached.append(self._process)


@atexit.register
def _detach() -> None:
    """Leave shippers running, without Python's warning about unawaited processes."""
    for process in _detached:
        if process.poll() is None:
            process.returncode = 0


def start_shipper(spool: Spool) -> subprocess.Popen[bytes]:
    # Without the log directory: a process with that variable counts as a writer of the spool.
    variables = {name: one for name, one in os.environ.items() if name != environment.LOGDIR}
    # Only the training may know the path of this package.
    paths = [variables.get("PYTHONPATH", ""), str(Path(aboard.__file__).parents[1])]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    descriptor = os.open(spool.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            # -P, so that modules in the working directory are not imported.
            [sys.executable, "-P", "-m", "aboard.track.shipping.shipper", str(spool.directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=descriptor,
            env=variables,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name)
    if not text:
        return default
    with contextlib.suppress(ValueError):
        if (number := float(text)) >= 0:
            return number
    notify(f"{name}={text} is not a number of seconds; using {default:g}.")
    return default


# The process that serves a spool.

_TICK = 0.1
_MAX_DELAY = 60.0
_MAX_DELAY_AT_END = 5.0
_ORPHAN_SECS = 24 * 3600.0  # how long a shipper without an owner tries to reach its bucket
_LOCK_TRIES = 20
_MAX_MISMATCHES = 5  # how often the bucket may lack files that were sent
# How long after the owner's exit, and after the last write, `finish` waits for a process that has a
# file of the spool open; for a process whose environment only names the spool; and when the latter
# is ignored.
_WRITER_SECS, _LINGER_SECS, _IDLE_SECS = 10.0, 2.0, 24 * 3600.0


def delay_after(failures: int, interval: float, longest: float, chance: float) -> float:
    """Return the delay after consecutive failures; `chance` is between 0 and 1."""
    if not failures:
        return interval
    delay = max(interval, 0.1) * 2.0 ** min(failures - 1, 30)
    return min(delay, longest) * (0.5 + chance / 2)


class Shipper:
    """Serves one spool until its owner has exited and everything has arrived."""

    def __init__(
        self,
        spool: Spool,
        owner: Owner,
        uploader: Uploader,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spool = spool
        self._owner = owner
        self._uploader = uploader
        self._clock = clock
        self._watch = OwnerWatch(owner, spool.lifeline)
        self._watched = not self._watch.is_gone()
        self._hurry = False
        self._failures = 0
        self._mismatches = 0
        self._status: Status | None = None
        self._last_sent = clock()
        self._ended: float | None = None  # when the owner's exit was noticed
        self._writer: Writer | None = None

    def hurry(self, *_signal: object) -> None:
        """Start the next round at once: after SIGTERM there is little time."""
        self._hurry = True

    def serve(self) -> Result:
        self._report(replace(self._spool.status(), pid=os.getpid(), kept=False, writer=0))
        while True:
            ending = self._is_ending()
            if ending and not self._spool.is_marked("finish"):
                mark_killed(self._spool, watched=self._watched)
            self._hurry = False
            result = self._round(last=ending)
            self._record(result)
            if ending and (result.complete or self._should_give_up()):
                return self._conclude(result)
            self._wait(ending=ending)

    def _is_ending(self) -> bool:
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
        return self._clock() - max(self._ended or 0.0, self._last_sent)

    def _round(self, *, last: bool) -> Round:
        try:
            result = self._uploader.round(last=last)
            if not last or not result.complete or self._uploader.verify():
                return result
        except StorageError as error:
            return Round(left=1, problem=error)
        except Exception as error:  # noqa: BLE001 - if this process exits, nothing sends the rest
            log(traceback.format_exc())
            problem = f"internal error: {type(error).__name__}: {error}"
            hint = f"See {self._spool.log}."
            return Round(left=1, problem=StorageError(self._owner.target, problem, hint))
        self._mismatches += 1
        repeated = self._mismatches >= _MAX_MISMATCHES
        return Round(left=1, problem=_mismatch(self._owner.target) if repeated else None)

    def _record(self, result: Round) -> None:
        self._failures = self._failures + 1 if result.problem else 0
        if result.sent:
            self._last_sent = self._clock()
        problem = str(result.problem) if result.problem else result.refused
        if problem and (self._status is None or problem != self._status.problem):
            log(problem)
        refused = result.problem is None and bool(result.refused)
        writer = self._lingering_writer(result)
        self._report(Status(os.getpid(), result.left, problem, refused=refused, writer=writer))

    def _lingering_writer(self, result: Round) -> int:
        """Return the process that has been the only reason to wait for a while."""
        if self._writer is None or result.problem or result.busy:
            return 0
        patience = _WRITER_SECS if self._writer.writes else _LINGER_SECS
        return self._writer.pid if self._quiet_secs() > patience else 0

    def _report(self, status: Status) -> None:
        if status != self._status:
            self._status = status
            self._spool.report(status)

    def _should_give_up(self) -> bool:
        if self._mismatches >= _MAX_MISMATCHES and self._failures:
            return True
        return self._watch.is_gone() and self._clock() - self._last_sent > _ORPHAN_SECS

    def _conclude(self, result: Round) -> Result:
        if not result.complete or result.refused:
            problem = str(result.problem or result.refused)
            refused = result.complete
            self._report(Status(os.getpid(), result.left, problem, kept=True, refused=refused))
            return Result.KEPT
        if self._watch.is_gone() or self._spool.is_marked("alone"):
            self._spool.remove()
        else:
            self._spool.mark("done")
        return Result.ARRIVED

    def _wait(self, *, ending: bool) -> None:
        finished, gone = self._spool.is_marked("finish"), self._watch.is_gone()
        awaited = ending or (finished and not self._spool.is_marked("alone"))
        longest = _MAX_DELAY_AT_END if awaited else _MAX_DELAY
        interval = min(_TICK, self._owner.interval) if awaited else self._owner.interval
        chance = random.random()  # noqa: S311 - so that many do not come back at once
        until = self._clock() + delay_after(self._failures, interval, longest, chance)
        while (left := until - self._clock()) > 0 and not self._hurry:
            self._watch.wait(min(left, _TICK))
            ended = self._spool.is_marked("finish") != finished or self._watch.is_gone() != gone
            if not ending and ended:
                return


def mark_killed(spool: Spool, *, watched: bool) -> None:
    """Record that the run was killed, if it is running according to `run.json`.

    A `watched` owner exited just now; for any other, the last write counts.
    """

    def end(record: Manifest) -> None:
        if record.state is State.RUNNING:
            at = max(record.heartbeat, time.time() if watched else newest_write(spool.files))
            reason = "the process exited without notice: SIGKILL, out of memory or os._exit"
            record.end(State.KILLED, reason=reason, at=at)

    files = LocalStorage(str(spool.files))
    try:
        if manifest.read(files).state is State.RUNNING:
            manifest.update(files, end)
    except (StorageError, BadManifest) as error:
        if (spool.files / manifest.FILE_NAME).exists():
            log(str(error))


def newest_write(directory: Path) -> float:
    newest = 0.0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            newest = max(newest, path.lstat().st_mtime)
    return newest


def log(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        sys.stderr.flush()


def serve(spool: Spool) -> Result:
    """Serve a spool, unless another process does."""
    for _ in range(_LOCK_TRIES):
        with spool.lock() as ours:
            owner = spool.owner()
            if ours and owner is not None:
                uploader = Uploader(spool.files, Ledger(spool.ledger), open_storage(owner.target))
                shipper = Shipper(spool, owner, uploader)
                signal.signal(signal.SIGTERM, shipper.hurry)
                return shipper.serve()
        if owner is None:
            break
        time.sleep(_TICK)  # another process may just check whether it is served
    return Result.SERVED


def send_abandoned(spool: Spool, owner: Owner, progress: Progress) -> Round:
    """Send a locked spool whose owner is gone, without retries; remove it at the end."""
    if not spool.is_marked("finish"):
        mark_killed(spool, watched=False)
    storage = open_storage(owner.target)
    uploader = Uploader(spool.files, Ledger(spool.ledger), storage, progress=progress)
    for _ in range(_MAX_MISMATCHES):
        while not (result := uploader.round(last=True)).complete and result.problem is None:
            time.sleep(_TICK)  # a large file is being sent
        if result.problem is not None:
            return result
        if uploader.verify():
            if not result.refused:
                spool.remove()
            return result
    return Round(left=1, problem=_mismatch(owner.target))


def _mismatch(target: str) -> StorageError:
    problem = "files that were sent are missing or have changed"
    hint = "Check whether something else deletes or replaces them."
    return StorageError(target, problem, hint)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    result = serve(Spool(Path(sys.argv[1])))
    sys.stderr.flush()
    os._exit(result)  # a hanging request in a thread must not keep the process alive


if __name__ == "__main__":
    main()
