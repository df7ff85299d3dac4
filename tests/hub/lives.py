"""Hubs that tests kill, and the processes of boards that they leave behind."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx

from tests.engines.command import fork_command
from tests.hub.hubs import QUICK
from tests.waiting import until

_REPOSITORY = Path(__file__).parents[2]
_OURS = ("/aboard/boards/", "/aboard/executors/", "/aboard/hub/service.py")


class Life:
    """One process of a hub, from its start to its kill."""

    def __init__(self, state, process):
        self.state = state
        self.address = ""
        self._process = process

    def is_up(self):
        """Wait until it serves requests or has died; return whether it serves."""

        def settled():
            lives = self.lives()
            line = _printed(self.state).read_text()
            if line.endswith("\n"):
                self.address = json.loads(line)["address"]
            return self.address or not lives

        until(settled, self.log)
        return bool(self.address)

    def log(self):
        """Return the log of all hubs with this state directory."""
        return _log(self.state).read_text()

    def client(self):
        token = (self.state / "hub-token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.address, headers=headers, **QUICK)

    def lives(self, seconds=0.0):
        """Return whether it still runs after waiting `seconds` for it to exit."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is None

    def count(self):
        """Start the count of lines after which it kills itself."""
        self._process.send_signal(signal.SIGUSR1)

    def kill(self):
        """Kill it if it still runs."""
        self._process.kill()
        self._process.wait()


def start(state, root, options=()):
    """Start a hub with the command that users run."""
    _printed(state).write_bytes(b"")
    with _printed(state).open("ab") as printed, _log(state).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "aboard", *_words(root, options)],
            env=_environment(state),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=log,
        )
    return Life(state, process)


def dies_after(lines, functions=()):
    """Return the `first` of a hub that kills itself after a number of lines that manage boards.

    Args:
        lines: the number of lines; if negative, counting starts at `Life.count`.
        functions: if given, lines count only in functions with these names.
    """
    return f"""
from tests.engines.line_killer import die_after
die_after({lines}, {_OURS}, {functions})
"""


def fork(state, root, options=(), first=""):
    """Fork a hub that runs the same command, to save the time of its imports.

    It runs `first`, Python code, before the command.
    """
    _printed(state).write_bytes(b"")
    process = fork_command(
        _words(root, options),
        env=_environment(state),
        cwd=_REPOSITORY,
        stdout=str(_printed(state)),
        stderr=str(_log(state)),
        first=first,
    )
    return Life(state, process)


def _words(root, options):
    where = ["--host", "127.0.0.1", "--port", "0", "--root", str(root)]
    return ["serve", "--personal", "--json", *where, *options]


def _environment(state):
    return {**os.environ, "ABOARD_STATE": str(state)}


def _printed(state):
    return Path(f"{state}-printed")


def _log(state):
    return Path(f"{state}-log")


def board_processes(cache):
    """Return the ids of the process groups that were started for boards of a hub."""
    marker = f"ABOARD_CACHE={cache}".encode()
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().split(b"\0")
            if b"view" in command and marker in (place / "environ").read_bytes().split(b"\0"):
                found.add(os.getpgid(int(place.name)))
        except (
            FileNotFoundError,
            ProcessLookupError,
            PermissionError,
        ):  # exited, or of another user
            continue
    return found


def kill_boards(cache):
    """Kill all processes that were started for boards."""
    for group in board_processes(cache):
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
