"""The trainer's side of a bucket: a directory to write to, from which everything arrives.

Files are written to a spool on a local disk and carried from there by a process of their own (see
`shipper`), so that training never waits for a network and never fails with it. Here that process
is started, kept alive and, at the end, waited for.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import aboard
from aboard.track import env
from aboard.track.say import say
from aboard.track.spool import Spool, Status, left_behind

INTERVAL = 5.0
FINISH_SECS = 600.0
_LEFTOVERS = 3
_QUIET_SECS = 2.0
"""An end that takes no longer than this is not worth a line."""
_LAST_DEED_SECS = 5.0
"""How long a shipper that deletes its spool is given to end."""
_KEPT = 3
"""The shipper's exit code when something stays in the spool."""
_LONGEST_PAUSE = 30.0
_TOO_MANY_STARTS = 4
_left_to_themselves: list[subprocess.Popen[bytes]] = []


class Shipment:
    """A directory whose files are carried to a bucket while they are written.

    Only the process that made it can finish it; in a forked child it does nothing.

    Args:
        target: the URI below which the files arrive under their names.
        interval: how many seconds pass between two looks; by default ABOARD_SHIP_SECS, else 5.

    Raises:
        NoSpool: there is no place for it on this machine.
    """

    def __init__(self, target: str, *, interval: float | None = None) -> None:
        if interval is None:
            interval = _seconds("ABOARD_SHIP_SECS", os.environ.get("ABOARD_SHIP_SECS"), INTERVAL)
        self.spool = Spool.create(target, max(interval, 0.01))
        owner = self.spool.owner()
        self.target = owner.target if owner else target
        self._pid = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._next_start = 0.0
        self._said = ""
        self._arrived: bool | None = None
        self._stopping = threading.Event()
        self._finishing = threading.Lock()
        self._tending = threading.Lock()
        self._tend()
        self._keeper = threading.Thread(target=self._keep, name="aboard-shipment", daemon=True)
        self._keeper.start()

    @property
    def directory(self) -> Path:
        """Where to write."""
        return self.spool.files

    @property
    def arrived(self) -> bool | None:
        """Whether everything arrived; None before the end."""
        return self._arrived

    def finish(self, timeout: float | None = None) -> bool:
        """Wait until everything that was written has arrived; say whether it has.

        What has not arrived by then is left to the shipper, which goes on by itself; so is what
        other processes may still write.

        Args:
            timeout: how many seconds to wait; by default ABOARD_FINISH_SECS, else 600.
        """
        if os.getpid() != self._pid:
            return True
        if timeout is None:
            chosen = os.environ.get("ABOARD_FINISH_SECS")
            timeout = _seconds("ABOARD_FINISH_SECS", chosen, FINISH_SECS)
        with self._finishing:
            if self._arrived is None:
                self._stopping.set()
                self.spool.mark("finish")
                try:
                    self._arrived = self._wait(timeout)
                finally:
                    self._leave()
            return self._arrived

    def close(self) -> None:
        """Finish, whatever comes of it."""
        self.finish()

    # The process.

    def _keep(self) -> None:
        """Restart a shipper that died, and say what it cannot say itself."""
        self._take_up_leftovers()
        while not self._stopping.wait(1.0):
            self._tend()

    def _tend(self) -> None:
        """Look after the shipper once."""
        with self._tending:
            process = self._process
            if process is not None and process.poll() in (None, 0, _KEPT):
                self._report(self.spool.status(), process)
            else:
                self._start()

    def _start(self) -> None:
        now = time.monotonic()
        if now < self._next_start:
            return
        if now - self._next_start > _LONGEST_PAUSE:
            self._starts = 0  # the last one has lived long enough
        self._next_start = now + min(0.1 * 2.0 ** min(self._starts, 20), _LONGEST_PAUSE)
        self._starts += 1
        try:
            self._process = start_shipper(self.spool)
        except OSError as error:
            self._complain(f"the process that sends logs cannot be started: {error.strerror}.")
            return
        if self._starts > _TOO_MANY_STARTS:
            log = self.spool.log
            self._complain(f"the process that sends logs ends again and again; {log} says why.")

    def _report(self, status: Status, process: subprocess.Popen[bytes]) -> None:
        if status.pid != process.pid:
            return  # what another said is not news
        if status.problem:
            self._complain(status.problem, refused=status.refused)
        elif self._said:
            self._said = ""
            say(f"{self.target} is reached again; logs are being sent.")

    def _complain(self, problem: str, *, refused: bool = False) -> None:
        """Say what is wrong, once."""
        if problem != self._said:
            self._said = problem
            kept = f"Logs are kept in {self.spool.directory} until they can be sent"
            say(f"{problem} {'All others are sent' if refused else kept}; training goes on.")

    def _take_up_leftovers(self) -> None:
        """Send what others left on this machine, after a crash of it for instance."""
        with contextlib.suppress(OSError):
            for spool in itertools.islice(left_behind(), _LEFTOVERS):
                _left_to_themselves.append(start_shipper(spool))

    # The end.

    def _wait(self, timeout: float) -> bool:
        started = time.monotonic()
        told = False
        try:
            while not self._has_arrived():
                elapsed = time.monotonic() - started
                status = self.spool.status()
                if not self.spool.directory.exists() and self._arrived_with_its_spool():
                    return True
                if elapsed > timeout or status.kept or not self.spool.directory.exists():
                    say(self._not_arrived(status, elapsed))
                    return False
                if status.writer:
                    say(
                        f"process {status.writer} may still write to {self.target};"
                        " sending goes on in the background."
                    )
                    return False
                self._tend()
                if elapsed > _QUIET_SECS and status.left and not told:
                    told = True
                    say(
                        f"sending the last {_size(status.left)} to {self.target};"
                        " Ctrl-C leaves that to a process in the background."
                    )
                time.sleep(0.02 if elapsed < 1 else 0.1)
        except KeyboardInterrupt:
            say(f"a process in the background goes on sending from {self.spool.directory}.")
            return False
        return True

    def _has_arrived(self) -> bool:
        done = self._process is not None and self._process.poll() == 0
        return done or self.spool.is_marked("done")

    def _arrived_with_its_spool(self) -> bool:
        """Ask the shipper, now that the spool is gone, whether that was its last deed."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_DEED_SECS)
        return self._has_arrived()

    def _not_arrived(self, status: Status, seconds: float) -> str:
        where = self.spool.directory
        if not where.exists():
            return f"{where} was deleted before everything in it was sent to {self.target}."
        if status.kept and status.refused:
            return f"{status.problem} All others arrived; 'aboard ship' then sends this one."
        why = status.problem or f"after {seconds:.0f} s {_size(status.left)} are not sent."
        again = "'aboard ship' sends them" if status.kept else "sending goes on in the background"
        return f"{self.target}: {why} The logs are kept in {where}; {again}."

    def _leave(self) -> None:
        """Leave the spool to the shipper, or remove it where there is nothing left to send."""
        if self._arrived:
            self.spool.remove()
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1)
        else:
            self.spool.mark("alone")
        if self._process is not None:
            _left_to_themselves.append(self._process)


@atexit.register
def _let_go() -> None:
    """Leave running what runs, without the warning that is due for a forgotten process."""
    for process in _left_to_themselves:
        if process.poll() is None:
            process.returncode = 0


def start_shipper(spool: Spool) -> subprocess.Popen[bytes]:
    """Start a process that serves a spool, and outlives this one.

    Raises:
        OSError: no process can be started.
    """
    # It writes nowhere, though it may be started by a process that was told to.
    variables = {name: one for name, one in os.environ.items() if name != env.LOGDIR}
    # The trainer may have found us by a path that only it knows of.
    paths = [variables.get("PYTHONPATH", ""), str(Path(aboard.__file__).parents[1])]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    descriptor = os.open(spool.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            # -P, lest a module of the training's own directory takes the place of another.
            [sys.executable, "-P", "-m", "aboard.track.shipper", str(spool.directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=descriptor,
            env=variables,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


def _seconds(name: str, text: str | None, default: float) -> float:
    """Read a number of seconds; what is none is said and not used."""
    if not text:
        return default
    with contextlib.suppress(ValueError):
        number = float(text)
        if number >= 0 and not math.isnan(number):
            return number
    say(f"{name}={text} is no number of seconds; {default:g} is used.")
    return default


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
