"""The first process of a board or a task on an engine: reads secrets, then runs the command.

    python -P -m aboard.executors.entry DIRECTORY [--address FILE] [--log FILE] -- COMMAND...
    python -P -m aboard.executors.entry --numbers FILE -- COMMAND...

So no secret is in a command line, in the output of `docker inspect` or `scontrol show job`, or in
the specification of a pod. Standard output goes to the address file, because the line with the
board's address contains the key of its link; standard error is appended to the log. Without an
address file, as for the tasks of jobs, both are appended.

A task in an indexed Job of Kubernetes, which counts its pods from 0, has no such directory: it
finds its number in a file, and adds it to the command. The file lists the numbers of the tasks in
that order, and those that were cancelled before they began, when there was no pod to delete.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from aboard.executors.base import CERTIFICATE, ENVIRONMENT, PYTHON

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # as a shell reports them
_CANCELLED = 143  # as after SIGTERM


def main() -> None:
    at = sys.argv.index("--")
    parser = argparse.ArgumentParser(prog="aboard.executors.entry")
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--address", type=Path)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--numbers", type=Path)
    given = parser.parse_args(sys.argv[1:at])
    command = sys.argv[at + 1 :]
    if given.directory is not None:
        _prepare(given)
    if given.numbers is not None:
        command.append(str(_number(given.numbers)))
    _become(*command)


def _prepare(given: argparse.Namespace) -> None:
    """Set the environment and the output of the command."""
    secrets = given.directory / ENVIRONMENT
    try:
        os.environ.update(json.loads(secrets.read_bytes()))
        if given.address is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(given.address, flags, 0o600), sys.stdout.fileno())
        if given.log is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            os.dup2(os.open(given.log, flags, 0o600), sys.stderr.fileno())
            if given.address is None:
                os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    except (OSError, ValueError) as error:
        sys.exit(f"aboard: {secrets}: the board's environment cannot be used: {error}.")
    certificate = given.directory / CERTIFICATE
    if certificate.exists():
        os.environ["ABOARD_CERTIFICATE"] = str(certificate)


def _number(file: Path) -> int:
    """Return the number of this task; exit if it was cancelled."""
    document = json.loads(file.read_bytes())
    number: int = document["numbers"][int(os.environ["JOB_COMPLETION_INDEX"])]
    if number in document["cancelled"]:
        print(f"aboard: task {number} was cancelled before it began.", file=sys.stderr)  # noqa: T201
        sys.exit(_CANCELLED)
    return number


def _become(program: str, *arguments: str) -> None:
    program = sys.executable if program == PYTHON else program
    try:
        os.execvp(program, [program, *arguments])  # noqa: S606
    except OSError as error:
        print(f"aboard: {program}: {error.strerror}.", file=sys.stderr)  # noqa: T201
        found = not isinstance(error, FileNotFoundError)
        sys.exit(_NOT_EXECUTABLE if found else _NOT_FOUND)


if __name__ == "__main__":
    main()
