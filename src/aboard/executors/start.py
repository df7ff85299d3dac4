"""One start of a board's command, and its files on the hub's machine.

The directory of a board contains:

    log                standard error of all its starts
    start-<id>/        one start: `address` (standard output), `token`, `stopping`, `end.json`;
                       on an engine also `environment.json` and `certificate.pem`, for `entry`

The files outlive the command, so that its end, the reason and its log are known after the engine
has forgotten it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aboard import system
from aboard.executors.base import (
    ADDRESS,
    CERTIFICATE,
    ENVIRONMENT,
    Address,
    CommandState,
    ExecutorError,
    Handle,
    Spec,
    Status,
)
from aboard.system import signal_name, write_private

_FOLLOW_SECONDS = 0.2
_BLOCK = 1 << 16
_TAIL_BLOCK = 1 << 20  # in a bucket each is a request
_LONGEST_REASON = 600
_LAST_LINES = 5


class Start:
    """A start, described by its handle."""

    def __init__(self, handle: Handle) -> None:
        try:
            self.board = str(handle["board"])
            self.place = Path(handle["directory"]) / f"start-{handle['start']}"
            self.log_from = int(handle["log_from"])
            self.fingerprint = str(handle.get("fingerprint", ""))
        except (KeyError, TypeError, ValueError) as error:
            raise ExecutorError(
                f"not the handle of a board: {error!r}. Start the board again."
            ) from error

    @staticmethod
    def prepare(spec: Spec, number: str, *, tls: bool) -> tuple[Handle, str]:
        """Create the files of a start; return the first keys of its handle, and its token.

        With `tls`, also create the certificate, and the file with the environment for `entry`.
        """
        from aboard.web.tokens import new_token, write_token_file

        place = spec.directory / f"start-{number}"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        token = new_token()
        write_token_file(place / "token", token)
        log = spec.directory / "log"
        handle: Handle = {
            "board": spec.board,
            "attempt": spec.attempt,
            "directory": str(spec.directory.absolute()),
            "start": number,
            "log_from": log.stat().st_size if log.exists() else 0,
        }
        if tls:
            from aboard.web.server import make_certificate

            pem, handle["fingerprint"] = make_certificate()
            write_private(place / CERTIFICATE, pem)
            environment = {**spec.environment, "ABOARD_TOKEN": token}
            write_private(place / ENVIRONMENT, json.dumps(environment))
        return handle, token

    @property
    def log(self) -> Path:
        return self.place.with_name("log")

    def token(self) -> str:
        from aboard.web.tokens import read_token_file

        return read_token_file(self.place / "token")

    def forget_secrets(self) -> None:
        """Delete what only the command needs, after it has ended."""
        for name in (CERTIFICATE, ENVIRONMENT):
            (self.place / name).unlink(missing_ok=True)

    # The address.

    def reported_address(self) -> str | None:
        """Return the address from standard output, which may have other lines too."""
        try:
            with (self.place / ADDRESS).open("rb") as file:
                lines = file.read(_BLOCK).split(b"\n")
        except FileNotFoundError:
            return None
        for line in lines[:-1]:
            with suppress(ValueError, TypeError, KeyError):
                return str(json.loads(line)["address"])
        return None

    def state(self) -> CommandState:
        return CommandState.STARTING if self.reported_address() is None else CommandState.RUNNING

    def address(self) -> Address | None:
        reported = self.reported_address()
        if reported is None:
            return None
        parts = urlsplit(reported)
        host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
        if parts.port is None or not host or not parts.path.endswith("/"):
            return None
        return Address(host, parts.port, parts.path, self.token(), self.fingerprint)

    # The end.

    def request_stop(self, deadline: float) -> None:
        """Record the end of the grace period; a later call can only shorten it."""
        before = self.deadline()
        if before is None or deadline < before:
            write_private(self.place / "stopping", json.dumps(deadline))

    def deadline(self) -> float | None:
        """Return the end of the grace period as `time.monotonic`, if a stop was requested."""
        deadline = read_json(self.place / "stopping")
        return None if deadline is None else float(deadline)

    def ended_status(self) -> Status | None:
        end = read_json(self.place / "end.json")
        return None if end is None else Status(CommandState.ENDED, end["exit_code"], end["reason"])

    def end(self, code: int | None, reason: str) -> Status:
        if self.place.is_dir():
            end = {"exit_code": code, "reason": reason}
            write_private(self.place / "end.json", json.dumps(end))
            self.forget_secrets()
        return Status(CommandState.ENDED, code, reason)

    def end_reason(self, code: int | None) -> str:
        """Return why the command ended, from its exit code and its log."""
        if self.deadline() is not None:
            return "it was stopped"
        how = "it exited with an unknown exit code" if code is None else describe_exit(code)
        if self.reported_address() is None:
            how += " before it could be reached"
        # The output of a process that was killed while it ran is not the reason.
        skips_output = code in {0, -signal.SIGKILL} and self.reported_address() is not None
        output = "" if skips_output else self.last_output()
        return f"{how}: {output}" if output else how

    # The log.

    def last_output(self) -> str:
        return last_output(self.log, self.log_from)

    def read_log(
        self, *, tail: int | None, is_running: Callable[[], bool] | None = None
    ) -> Iterator[bytes]:
        return read_log(self.log, tail=tail, is_running=is_running)


class Addresses:
    """The addresses of starts as last read, since the file system of their files may hang.

    Threads need no lock: each method is one operation on a dictionary.
    """

    def __init__(self) -> None:
        self._known: dict[Path, Address | None] = {}

    def get(self, start: Start, read: Callable[[], Address | None]) -> Address | None:
        """Return the address of a start; `read` it, without noting it, if it is not known."""
        try:
            return self._known[start.place]
        except KeyError:
            return read()

    def note(self, start: Start, address: Address | None) -> None:
        self._known[start.place] = address

    def forget(self, start: Start) -> None:
        self._known.pop(start.place, None)


def read_log(
    path: Path, *, tail: int | None, is_running: Callable[[], bool] | None = None
) -> Iterator[bytes]:
    """Yield a log file; with `is_running`, until the command is not running."""
    try:
        with system.open_regular(path) as file:
            if tail is not None:

                def read(first: int, last: int) -> bytes:
                    file.seek(first)
                    return file.read(last - first)

                file.seek(start_of_tail(read, 0, file.seek(0, os.SEEK_END), tail))
            while True:
                continues = is_running is not None and is_running()
                while block := file.read(_BLOCK):
                    yield block
                if not continues:
                    return
                time.sleep(_FOLLOW_SECONDS)
                yield b""
    except FileNotFoundError:
        return
    except OSError as error:
        raise ExecutorError(
            f"{path}: the log cannot be read: {why(error)}. Check its directory."
        ) from error


def last_output(log: Path, log_from: int = 0) -> str:
    """Return the last lines of a log after an offset, joined into one."""
    try:
        with system.open_regular(log) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(log_from, size - 8 * _LONGEST_REASON))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return last_lines(text)


def describe_exit(code: int) -> str:
    if code == -signal.SIGKILL:
        return "it was killed, by a user or because the machine ran out of memory"
    if code < 0:
        return f"it was killed by {signal_name(-code)}"
    return f"it exited with code {code}"


def last_lines(text: str) -> str:
    """Return the last lines of a text, joined into one, for a reason."""
    lines = ["".join(filter(str.isprintable, line)).strip() for line in text.splitlines()]
    joined = " | ".join([line for line in lines if line][-_LAST_LINES:])
    return joined if len(joined) <= _LONGEST_REASON else f"…{joined[-_LONGEST_REASON:]}"


def read_json(path: Path) -> Any:
    try:
        with system.open_regular(path) as file:
            return json.loads(file.read())
    except (FileNotFoundError, ValueError):  # missing, or truncated by a power failure
        return None


def why(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error)


Read = Callable[[int, int], bytes]  # of the bytes from one offset to another


def start_of_tail(read: Read, begin: int, end: int, tail: int) -> int:
    """Return the offset of the last lines between `begin` and `end`, reading backwards."""
    if tail <= 0:
        return end
    left, last = tail, end
    while last > begin:
        first = max(begin, last - _TAIL_BLOCK)
        block = read(first, last)
        if last == end:
            block = block.removesuffix(b"\n")  # of the last line
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            left -= 1
            if not left:
                return first + at + 1
        last = first
    return begin
