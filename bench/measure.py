"""How long a command takes, and how much memory all its processes take at their peak.

Time is wall time, from just before the process is started to the moment it has ended or
is found ready. Memory is the sum of the high-water marks of resident memory (VmHWM) of
the processes alive, looked up every 10 ms: exact for one process, and for several at
most too high, where they do not peak together. (What wait4 reports would not do: it
starts from the size of the process that forks.) Processor time, of all processes and
threads, is looked up with it: where a machine is busy it says more than wall time.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

INTERVAL = 0.01
TICKS = os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    """One run of a command."""

    seconds: float
    peak: int
    """In bytes."""
    cpu: float
    """Seconds of processor time, the start of the process included."""
    output: str = ""


Ready = Callable[[subprocess.Popen[str]], object]


def to_end(command: Sequence[str], environment: Mapping[str, str]) -> Measured:
    """Run a command to its end; what it prints is the output."""
    started = time.perf_counter()
    with _start(command, environment, stdout=subprocess.PIPE) as process, _Watch(process) as watch:
        output = process.stdout.read() if process.stdout else ""
        code = process.wait()
        seconds = time.perf_counter() - started
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}")
    return Measured(seconds, watch.peak, watch.cpu, output)


def until(command: Sequence[str], environment: Mapping[str, str], ready: Ready) -> Measured:
    """Run a server until `ready`, which is given the process, returns; then stop it."""
    started = time.perf_counter()
    process = _start(command, environment, stderr=subprocess.PIPE, stdin=subprocess.PIPE)
    with process, _Watch(process) as watch:
        try:
            ready(process)
            seconds = time.perf_counter() - started
            watch.look()
        finally:
            process.terminate()
            if process.stdin:
                process.stdin.close()
            if process.stderr:
                process.stderr.read()
    return Measured(seconds, watch.peak, watch.cpu)


def _start(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    stderr: int | IO[str] | None = None,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=environment, stdin=stdin, stdout=stdout, stderr=stderr, text=True
    )


class _Watch:
    """Looks at a process and all below it until told to stop."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.peak = 0
        self.cpu = 0.0
        self._root = process.pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def look(self) -> None:
        """Look once."""
        family = list(_family(self._root))
        self.peak = max(self.peak, sum(map(_high_water, family)))
        self.cpu = max(self.cpu, sum(map(_processor_time, family)))

    def _keep_looking(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.look()


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                yield from _family(int(child))
    except OSError:  # it has ended meanwhile
        return


def _processor_time(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def _high_water(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    _, found, after = status.partition("VmHWM:")
    return int(after.split(None, 1)[0]) * 1024 if found else 0
