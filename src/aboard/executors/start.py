"""One start of a board's command, and its files on the hub's machine.

Below the directory of a board:

    log                what its commands wrote to standard error, of all its starts
    start-<id>/        one start: `address` (standard output), `token`, `stopping`, `end.json`;
                       on an engine also `environment.json` and `certificate.pem`, for `entry`

They outlive the command, so that its end, the reason and its log are known after the engine has
forgotten it.
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
_TAIL_BLOCK = 1 << 20  # of a bucket each is a request
_LONGEST_REASON = 600
_LAST_LINES = 5


class Start:
    """A start as its handle describes it."""

    def __init__(self, handle: Handle) -> None:
        try:
            self.board = str(handle["board"])
            self.place = Path(handle["directory"]) / f"start-{handle['start']}"
            self.log_from = int(handle["log_from"])
            self.fingerprint = str(handle.get("fingerprint", ""))
        except (KeyError, TypeError, ValueError) as error:
            raise ExecutorError(
                f"this is not the handle of a board: {error!r}. Start the board again."
            ) from error

    @staticmethod
    def prepare(spec: Spec, number: str, *, tls: bool) -> tuple[Handle, str]:
        """Make the files of a start; return what its handle begins with, and its token.

        With `tls`, the certificate is made, and `entry` finds its environment in a file.
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
        """Delete what only the command needs, once it has ended."""
        for name in (CERTIFICATE, ENVIRONMENT):
            (self.place / name).unlink(missing_ok=True)

    # Its address.

    def reported_address(self) -> str | None:
        """Return the address on its standard output; others may have written there too."""
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

    # Its end.

    def ask_to_end(self, deadline: float) -> None:
        """Note until when it may end by itself; that never becomes later."""
        before = self.deadline()
        if before is None or deadline < before:
            write_private(self.place / "stopping", json.dumps(deadline))

    def deadline(self) -> float | None:
        """Return when the time of grace ends, if a stop was sent: see `time.monotonic`."""
        deadline = read_json(self.place / "stopping")
        return None if deadline is None else float(deadline)

    def verdict(self) -> Status | None:
        end = read_json(self.place / "end.json")
        return None if end is None else Status(CommandState.ENDED, end["exit_code"], end["reason"])

    def end(self, code: int | None, reason: str) -> Status:
        if self.place.is_dir():
            end = {"exit_code": code, "reason": reason}
            write_private(self.place / "end.json", json.dumps(end))
            self.forget_secrets()
        return Status(CommandState.ENDED, code, reason)

    def why_ended(self, code: int | None, unknown: str = "it ended unobserved") -> str:
        """Return why it has ended, by its exit code and its log."""
        if self.deadline() is not None:
            return "it was stopped"
        how = unknown if code is None else how_ended(code)
        if self.reported_address() is None:
            how += " before it could be reached"
        # Of a killed process that had reported its address, earlier output is not the reason.
        is_silent = code in {0, -signal.SIGKILL} and self.reported_address() is not None
        words = "" if is_silent else self.last_words()
        return f"{how}: {words}" if words else how

    # Its log.

    def last_words(self) -> str:
        return last_words(self.log, self.log_from)

    def read_log(
        self, *, tail: int | None, follow: bool, lives: Callable[[], bool]
    ) -> Iterator[bytes]:
        return read_log(self.log, tail=tail, follow=follow, lives=lives)


def read_log(
    path: Path, *, tail: int | None, follow: bool, lives: Callable[[], bool]
) -> Iterator[bytes]:
    """Yield a log file, with `follow` for as long as the command lives."""
    try:
        with system.open_regular(path) as file:
            if tail is not None:

                def read(first: int, last: int) -> bytes:
                    file.seek(first)
                    return file.read(last - first)

                file.seek(start_of_tail(read, 0, file.seek(0, os.SEEK_END), tail))
            while True:
                goes_on = follow and lives()
                while block := file.read(_BLOCK):
                    yield block
                if not goes_on:
                    return
                time.sleep(_FOLLOW_SECONDS)
                yield b""
    except FileNotFoundError:
        return
    except OSError as error:
        raise ExecutorError(
            f"{path}: the log cannot be read: {why(error)}. Check its directory."
        ) from error


def last_words(log: Path, log_from: int = 0) -> str:
    """Return the last lines of a log as one, of those that follow an offset."""
    try:
        with system.open_regular(log) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(log_from, size - 8 * _LONGEST_REASON))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return last_lines(text)


def how_ended(code: int) -> str:
    if code == -signal.SIGKILL:
        return "it was killed, by a user or because the machine ran out of memory"
    if code < 0:
        return f"it was ended by {signal_name(-code)}"
    return f"it ended with exit code {code}"


def last_lines(text: str) -> str:
    """Return the last lines of a log as one, for a reason."""
    lines = ["".join(filter(str.isprintable, line)).strip() for line in text.splitlines()]
    said = " | ".join([line for line in lines if line][-_LAST_LINES:])
    return said if len(said) <= _LONGEST_REASON else f"…{said[-_LONGEST_REASON:]}"


def amount(size: int, scale: int) -> str:
    if scale >= 1 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    return f"{size / (1 << 20):.1f} MiB"


def read_json(path: Path) -> Any:
    try:
        with system.open_regular(path) as file:
            return json.loads(file.read())
    except (FileNotFoundError, ValueError):  # missing, or cut off by a power failure
        return None


def why(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error)


Read = Callable[[int, int], bytes]  # from a position to another


def start_of_tail(read: Read, begin: int, end: int, tail: int) -> int:
    """Return where the last lines of a log begin, of which `begin` to `end` is read in blocks."""
    if tail <= 0:
        return end
    left, last = tail, end
    while last > begin:
        first = max(begin, last - _TAIL_BLOCK)
        block = read(first, last)
        if last == end:
            block = block.removesuffix(b"\n")  # it ends the last line
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            left -= 1
            if not left:
                return first + at + 1
        last = first
    return begin
