"""Runs the `aboard` command by its real entry point, in this process or in another.

Another process takes half a second or more. It is for tests of signals, pipes, tracebacks at exit
and the process list.
"""

import io
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, NamedTuple, NoReturn

import orjson
import pytest

import aboard.cli
from aboard.sdk import personal
from tests.engines.forkserver import Forked, fork

SECONDS = 180.0
_HUB_MODULES = (
    "aboard.cli.hub",
    "aboard.hub.app",
    "aboard.tensorboard.plugins",
    "argon2",
    "sqlalchemy.dialects.sqlite",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
_SCRIPT = """
import os, sys, tempfile
source = tempfile.TemporaryFile()
source.write(sys.argv[1].encode())
source.seek(0)
os.dup2(source.fileno(), 0)
sys.stdin = open(0, closefd=False)
for number, file in enumerate(sys.argv[2:4], 1):
    if file:
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
os.setsid()
sys.argv = ["aboard", *sys.argv[4:]]
from aboard.cli import main
main()
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return orjson.loads(self.out)


class _Exit(BaseException):
    """The command has exited with this code."""


def run_command(
    arguments: Sequence[object],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdin: str = "",
    process: bool = False,
    forked: bool = False,
) -> Result:
    """Run the command with an environment, a directory and standard input.

    Args:
        arguments: what follows `aboard`.
        env: the whole environment.
        cwd: the directory to run it in.
        stdin: what it reads from standard input.
        process: run it in a new process with a new interpreter.
        forked: run it in a process forked from one that has imported a hub's modules. Always so in
            a thread: the environment and the working directory belong to the process.
    """
    words = [str(one) for one in arguments]
    if process:
        done = subprocess.run(
            [sys.executable, "-m", "aboard", *words],
            env=env,
            cwd=cwd,
            input=stdin.encode(),
            capture_output=True,
            check=False,
            timeout=SECONDS,
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())
    if forked or threading.current_thread() is not threading.main_thread():
        fork = fork_command(words, env=env, cwd=cwd, stdin=stdin)
        try:
            out, err = fork.communicate(SECONDS)
            return Result(fork.wait(), out, err)
        finally:
            fork.end()
    with ExitStack() as files:
        source, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        source.write(stdin.encode())
        source.seek(0)
        with _place(env, cwd), _handlers(), _streams(source, out, err):
            code = _main(words)
        return Result(code, *(_text(file) for file in (out, err)))


def fork_command(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdin: str = "",
    stdout: str = "",
    stderr: str = "",
    first: str = "",
) -> Forked:
    """Run the command in a process that is forked from one with a hub's modules.

    Args:
        words: what follows `aboard`.
        env: the whole environment.
        cwd: the directory to run it in.
        stdin: what it reads from standard input.
        stdout: a file for what it prints, in place of a pipe.
        stderr: a file for its errors and its log, in place of a pipe.
        first: Python that the process runs before the command.
    """
    script = first + _SCRIPT
    process = fork(script, stdin, stdout, stderr, *words, cwd=cwd, env=env, preload=_HUB_MODULES)
    if stdout:
        process.stdout.close()
    if stderr:
        process.stderr.close()
    return process


@contextmanager
def forked_hubs() -> Iterator[None]:
    """Fork the hubs that this process starts for a user, to save the time of their imports."""

    def popen(command: Sequence[str], *, stdout: BinaryIO, **_: object) -> Forked:
        log = str(Path(f"/proc/self/fd/{stdout.fileno()}").readlink())
        words = command[command.index("aboard") + 1 :]
        return fork_command(words, env=os.environ, cwd=Path.cwd(), stdout=log, stderr=log)

    with pytest.MonkeyPatch.context() as patch:
        quick = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL)
        patch.setattr(personal, "subprocess", quick)
        yield


def _main(words: list[str]) -> int:
    def leave(code: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        raise _Exit(code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["aboard", *words])
        patch.setattr(aboard.cli, "_leave", leave)
        try:
            aboard.cli.main()
        except _Exit as end:
            return int(end.args[0])
        except SystemExit as end:
            return int(end.code or 0)
        except Exception:  # noqa: BLE001 - as Python does at the end of a process
            traceback.print_exc()
            return 1


@contextmanager
def _place(env: Mapping[str, str], cwd: Path) -> Iterator[None]:
    """Replace the environment and the working directory."""
    kept, before = dict(os.environ), Path.cwd()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    time.tzset()
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(kept)
        time.tzset()


@contextmanager
def _handlers() -> Iterator[None]:
    """Restore handlers of signals, warnings and logs that a command sets for its process."""
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    root = logging.getLogger()
    handlers = list(root.handlers)
    levels = {logger: logger.level for logger in (root, logging.getLogger("aboard"))}
    try:
        with warnings.catch_warnings():
            yield
    finally:
        for number, handler in signals.items():
            signal.signal(number, handler)
        root.handlers[:] = handlers
        for logger, level in levels.items():
            logger.setLevel(level)


@contextmanager
def _streams(source: BinaryIO, out: BinaryIO, err: BinaryIO) -> Iterator[None]:
    """Replace the standard streams, also for child processes."""
    kept = [os.dup(number) for number in range(3)]
    streams = sys.stdin, sys.stdout, sys.stderr
    for number, file in enumerate((source, out, err)):
        os.dup2(file.fileno(), number)
    sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False))
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(
        os.fdopen(2, "wb", closefd=False), encoding="utf-8", line_buffering=True
    )
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()
