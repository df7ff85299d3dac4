"""Hubs that are born quickly, to be killed: forked from a process that has imported all they need.

A forked hub is a process of its own that runs the same command as a started one; only what its
imports would cost is saved. Run as a program, this module is the process that it is forked from.
"""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import httpx

from engines.killing import tracer

_NEEDED = (
    "aboard.cli.serve",
    "aboard.hub.app",
    "aboard.tensorboard.plugins",
    "argon2",
    "sqlalchemy.dialects.sqlite",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
_OURS = ("/aboard/boards/", "/aboard/executors/", "/aboard/hub/service.py")


class Life:
    """One life of a hub, from its start to its death."""

    def __init__(self, state, said, pid, wait):
        self.state = state
        self.address = ""
        self._pid = pid
        self._said = said
        self._ended = threading.Thread(target=wait)
        self._ended.start()

    def is_up(self):
        """Wait until it can be asked; say whether it came to that."""
        while not self.address:
            lives = self.lives()
            line = self._said.read_text()
            if line.endswith("\n"):
                self.address = json.loads(line)["address"]
            elif not lives:
                return False
            time.sleep(0.005)
        return True

    def log(self):
        """Return what it wrote, in all its lives."""
        return Path(f"{self.state}-log").read_text()

    def client(self):
        token = (self.state / "hub-token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=60, trust_env=False)

    def lives(self, seconds=0.0):
        """Say whether it lives, after waiting a while for its death."""
        self._ended.join(seconds)
        return self._ended.is_alive()

    def count(self):
        """Let it begin to count the lines after which it kills itself."""
        os.kill(self._pid, signal.SIGUSR1)

    def kill(self):
        """Kill it, unless it has died by itself."""
        with suppress(ProcessLookupError):
            if self.lives():
                os.kill(self._pid, signal.SIGKILL)
        self._ended.join()


class Commands:
    """Starts hubs with the command that users have."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def start(self, state, root, options=()):
        """Start a hub."""
        wish = _wish(state, root, options)
        with Path(wish["said"]).open("wb") as said, Path(wish["log"]).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "aboard", *wish["arguments"]],
                env=wish["environment"],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=log,
            )
        return Life(state, Path(wish["said"]), process.pid, process.wait)


class Forks:
    """Forks hubs, one at a time."""

    def __enter__(self):
        self._parent = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_):
        self._parent.kill()
        self._parent.communicate()

    def start(self, state, root, lines=0, functions=()):
        """Fork a hub.

        With `lines` it kills itself after so many lines of what looks after boards: of its first
        ones, or with a negative number of those that follow after `Life.count`. With `functions`
        only those of functions with these names count.
        """
        wish = {**_wish(state, root), "lines": lines, "functions": functions}
        Path(wish["said"]).write_bytes(b"")
        self._parent.stdin.write(json.dumps(wish) + "\n")
        self._parent.stdin.flush()
        pid = int(self._parent.stdout.readline())
        return Life(state, Path(wish["said"]), pid, self._parent.stdout.readline)


def _wish(state, root, options=()):
    where = ["--host", "127.0.0.1", "--port", "0", "--root", str(root)]
    return {
        "arguments": ["serve", "--personal", "--json", *where, *options],
        "environment": {**os.environ, "ABOARD_STATE": str(state)},
        "said": f"{state}-said",
        "log": f"{state}-log",
    }


def board_processes(cache):
    """Return the ids of the process groups that were started for boards of a hub."""
    marker = f"ABOARD_CACHE={cache}".encode()
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().split(b"\0")
            if b"view" in command and marker in (place / "environ").read_bytes().split(b"\0"):
                found.add(os.getpgid(int(place.name)))
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # over, or another's
            continue
    return found


def kill_boards(cache):
    """Kill whatever was started for boards."""
    for group in board_processes(cache):
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _be_the_parent():
    for name in _NEEDED:
        import_module(name)
    for line in sys.stdin:
        wish = json.loads(line)
        child = os.fork()
        if child == 0:
            _be_a_hub(wish)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)


def _be_a_hub(wish):
    from aboard.cli import main

    try:
        os.environ.clear()
        os.environ.update(wish["environment"])
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        for number, place in enumerate((os.devnull, wish["said"], wish["log"])):
            os.dup2(os.open(place, append if number else os.O_RDONLY, 0o600), number)
        sys.argv = ["aboard", *wish["arguments"]]
        if wish["lines"]:
            _die_after(wish["lines"], wish["functions"])
        main()
    except BaseException:  # noqa: BLE001 - nothing of the parent may run in the child
        traceback.print_exc()
    finally:
        os._exit(3)


def _die_after(lines, functions):
    left = [lines if lines > 0 else math.inf]

    def begin(number, frame):
        left[0] = -lines

    def is_counted(code):
        ours = any(part in code.co_filename for part in _OURS)
        return ours and (not functions or code.co_name in functions)

    trace = tracer(left, is_counted)
    signal.signal(signal.SIGUSR1, begin)
    threading.settrace(trace)
    sys.settrace(trace)


if __name__ == "__main__":
    _be_the_parent()
