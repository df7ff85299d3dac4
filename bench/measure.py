"""Measures the time of a command and the peak memory of all its processes.

Time is wall time, from just before the process starts until it has exited or is ready. Memory is
the sum of the high-water marks of resident memory (VmHWM) of the live processes, sampled every
10 ms: exact for one process, an upper bound for several, which may not peak together. (wait4 does
not work here: its value starts from the size of the process that forks.) CPU time, of all processes
and threads, is sampled too: on a busy machine it is more reliable than wall time.
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
    """Seconds of CPU time, including the start of the process."""
    output: str = ""


Ready = Callable[[subprocess.Popen[str]], object]


def run_command(command: Sequence[str], environment: Mapping[str, str]) -> Measured:
    """Run a command until it exits; the output is its standard output."""
    started = time.perf_counter()
    with _start(command, environment, stdout=subprocess.PIPE) as process, _Watch(process) as watch:
        output = process.stdout.read() if process.stdout else ""
        code = process.wait()
        seconds = time.perf_counter() - started
    if code:
        raise RuntimeError(f"{' '.join(command)} failed with exit code {code}")
    return Measured(seconds, watch.peak, watch.cpu, output)


def run_server(command: Sequence[str], environment: Mapping[str, str], ready: Ready) -> Measured:
    """Run a server until `ready(process)` returns, then stop it."""
    started = time.perf_counter()
    process = _start(command, environment, stderr=subprocess.PIPE, stdin=subprocess.PIPE)
    with process, _Watch(process) as watch:
        try:
            ready(process)
            seconds = time.perf_counter() - started
            watch.sample()
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
    """Samples a process and its descendants in a thread."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.peak = 0
        self.cpu = 0.0
        self._root = process.pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def sample(self) -> None:
        """Update `peak` and `cpu`."""
        pids = list(process_tree(self._root))
        self.peak = max(self.peak, sum(map(peak_memory, pids)))
        self.cpu = max(self.cpu, sum(map(cpu_time, pids)))

    def _sample_until_stopped(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.sample()


def process_tree(pid: int) -> Iterator[int]:
    """Yield a process id and those of all its descendants."""
    yield pid
    try:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                yield from process_tree(int(child))
    except OSError:  # it has exited
        return


def cpu_time(pid: int) -> float:
    """Return the seconds of CPU time of a process; 0 if it has exited."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_memory(pid: int) -> int:
    """Return the high-water mark of resident memory in bytes; 0 if the process has exited."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    _, found, after = status.partition("VmHWM:")
    return int(after.split(None, 1)[0]) * 1024 if found else 0
