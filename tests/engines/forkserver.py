"""Runs Python scripts in processes forked from one that has already imported Aboard.

A new interpreter needs a second for imports on a busy machine, ten with a framework; a fork needs
milliseconds. The script is the main program of the fork: uncaught exceptions, `atexit`, signals and
the exit code work as in any process. Tests of imports need a new interpreter.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO

_REQUEST_BYTES = 1 << 20
RUN_PATH = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], {}, '__main__')"
_TRACKING = (
    "obstore",
    "aboard.track.start",
    "aboard.track.summary",
    "aboard.track.shipping.shipper",
)


class Forked:
    """A process with the part of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, out: IO[str], err: IO[str], status: int) -> None:
        self.pid = pid
        self.stdout = out
        self.stderr = err
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked script", timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both streams until the process closes them, then wait until it exits."""
        deadline = None if timeout is None else time.monotonic() + timeout
        read: dict[IO[str], str] = {}
        streams = [self.stdout, self.stderr]
        readers = [
            threading.Thread(target=lambda one=one: read.update({one: one.read()}), daemon=True)
            for one in streams
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(deadline - time.monotonic(), 0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("a forked script", timeout or 0)
        self.wait(None if deadline is None else max(deadline - time.monotonic(), 0))
        for stream in streams:
            stream.close()
        return read[self.stdout], read[self.stderr]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill the process if it still runs, and close its streams; can be called again."""
        self.kill()
        self.wait()
        self.stdout.close()
        self.stderr.close()

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            exited = select.poll()
            exited.register(self._status, select.POLLIN)
            if exited.poll(None if timeout is None else timeout * 1000):
                self.returncode = int(os.read(self._status, 64))
                os.close(self._status)
        return self.returncode


def fork(
    script: str,
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str],
    preload: tuple[str, ...] = (),
    python: str = sys.executable,
) -> Forked:
    """Run a script in a process forked from one that has also imported `preload`.

    The imports saw the environment of the first script with the same `preload` and `python`.
    Warnings are errors unless `preload` is given.
    """
    pipes = [os.pipe() for _ in range(3)]
    server = _server(python, preload, _Environment(env))
    streams = [writing for _, writing in pipes]
    pid = _ask(server, [script, arguments, os.fspath(cwd), dict(env)], streams)
    (out, _), (err, _), (status, _) = pipes
    return Forked(pid, os.fdopen(out, encoding="utf-8"), os.fdopen(err, encoding="utf-8"), status)


def program(
    *, env: Mapping[str, str], preload: tuple[str, ...] = (), python: str = sys.executable
) -> list[str]:
    """Return a command that runs a Python file in a fork, like `python FILE ARGUMENTS`.

    It is for code that starts a process itself. Signals to that process do not reach the fork.
    """
    _server(python, preload, _Environment(env))
    return [sys.executable, "-S", __file__, "ask", _address(python, preload)]


class _Environment(dict[str, str]):
    """Variables that are not part of the cache key of `_server`: all are equal."""

    def __hash__(self) -> int:  # type: ignore[override]
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Environment)


def _address(python: str, preload: tuple[str, ...]) -> str:
    """Return the name of the socket of a server, the same in all workers of a test run."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    wanted = zlib.crc32("\n".join((python, *preload)).encode())
    return f"aboard-tests-{run}-{wanted:08x}"


@cache
def _server(python: str, preload: tuple[str, ...], env: _Environment) -> socket.socket:
    """Connect to the process to fork from; start it if no other worker of this test run has.

    It exits when its last connection is closed.
    """
    address = _address(python, preload)
    while True:
        with suppress(ConnectionRefusedError):
            return _connect(address)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(f"\0{address}")
        except OSError:  # another worker is starting it
            listener.close()
            time.sleep(0.01)
            continue
        listener.listen(64)
        warnings = [] if preload else ["-W", "error"]
        number = str(listener.fileno())
        command = [python, *warnings, __file__, "serve", number, *_TRACKING, *preload]
        listener.set_inheritable(True)
        connection = _connect(address)
        os.posix_spawn(python, command, env, setsid=True)
        listener.close()
        return connection


def _connect(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(f"\0{address}")
    except OSError:
        connection.close()
        raise
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
    return connection


_asking = threading.Lock()


def _ask(server: socket.socket, request: list[object], streams: list[int]) -> int:
    """Request a fork with these streams, which are closed here; return its process id."""
    with _asking:
        socket.send_fds(server, [json.dumps(request).encode()], streams)
        for stream in streams:
            os.close(stream)
        return int(server.recv(64))


def _serve(listener: socket.socket) -> tuple[str, list[str]] | None:
    """Fork for each request; return the script and its arguments in the child."""
    statuses: dict[int, int] = {}
    connections: list[socket.socket] = []
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([listener, woken, *connections], [], [])
        if woken in readable:
            os.read(woken, 4096)
            _reap(statuses)
        if listener in readable:
            connections.append(listener.accept()[0])
        for connection in [one for one in connections if one in readable]:
            request, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
            if not request:
                connections.remove(connection)
                connection.close()
                if not connections:
                    return None
                continue
            out, err, status = streams
            pid = os.fork()
            if pid:
                os.close(out)
                os.close(err)
                statuses[pid] = status
                connection.send(str(pid).encode())
                continue
            script, arguments, cwd, env = json.loads(request)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(out, 1)
            os.dup2(err, 2)
            sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
            sys.stderr = os.fdopen(
                2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
            )
            for descriptor in {out, err, status, woken, wake, *statuses.values()}:
                os.close(descriptor)
            for one in (listener, *connections):
                one.close()
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(env)
            time.tzset()
            return script, arguments


def _reap(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with os.fdopen(statuses.pop(pid), "w") as report:
            report.write(str(os.waitstatus_to_exitcode(status)))


def _run(address: str, arguments: list[str]) -> int:
    """Run a Python file in a fork on behalf of this process; return its exit code."""
    ended, status = os.pipe()
    request = [RUN_PATH, arguments, str(Path.cwd()), dict(os.environ)]
    _ask(_connect(address), request, [os.dup(1), os.dup(2), status])
    with os.fdopen(ended) as report:
        return int(report.read())


if __name__ == "__main__":
    _role, _place, *_words = sys.argv[1:]
    if _role == "ask":
        _code = _run(_place, _words)
        sys.exit(_code if _code >= 0 else 128 - _code)
    sys.path[0] = ""
    for _name in _words:
        with suppress(ImportError):
            import_module(_name)
    _work = _serve(socket.socket(fileno=int(_place)))
    if _work is not None:
        sys.argv = ["-c", *_work[1]]
        exec(compile(_work[0], "<string>", "exec"), {"__name__": "__main__"})
