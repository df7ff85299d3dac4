"""Which hub is meant: the one in the environment, the one logged in to, or the user's own.

The user's own hub is found through `hub.json` in the state directory, and started from here if
there is none. A lock that ends with its process tells whether it lives.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from aboard.sdk.errors import AuthError, HubError, Unreachable
from aboard.storage.place import make_private, write_private

_FILE, _LOCK_FILE, _LOG_FILE = "hub.json", "hub.lock", "hub.log"
_LOGIN_FILE, _LAST_FILE = "login.json", "last-hub.json"
_TO_START_SECONDS = 60.0
_TO_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.05


class KnownHub(NamedTuple):
    """A hub, and what opens it."""

    url: str
    """Its address, without a slash at the end."""
    token: str
    how: str
    """How it is known: given, environment, login or personal."""
    pid: int | None = None
    """The process of a personal one."""

    def shut_out(self, refusal: HubError) -> AuthError:
        """Return the error for a token that opens nothing, with what to do."""
        message = f"{self.url} needs a token, and there is none."
        if self.token:
            message = f"{self.url} does not take your token: it is wrong, too old, or revoked."
        hint = f"Log in{' again' if self.token else ''}: aboard login {self.url}"
        if self.how == "personal":
            hint = "Let it start anew, with another token: aboard hub stop, then aboard start."
        elif os.environ.get("ABOARD_HUB_TOKEN") == self.token:
            hint = f"Set ABOARD_HUB_TOKEN to a good one, or unset it. {hint}"
        return AuthError(message, hint, code=refusal.code, status=refusal.status)

    def unreachable(self, error: Exception) -> Unreachable:
        """Return the error for an address where nothing answers, with what to do."""
        cause = getattr(error, "reason", error)
        said = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        instead = {
            "environment": "unset ABOARD_HUB to use a hub of your own",
            "login": "use a hub of your own again: aboard login --forget",
        }.get(self.how, "check the address")
        hint = f"Start it with 'aboard serve' on its machine, ask whoever runs it, or {instead}."
        if self.how == "personal":
            hint = "Let it start anew: aboard hub stop, then aboard start."
        if isinstance(cause, ssl.SSLCertVerificationError):
            said = f"its certificate is not trusted: {cause.verify_message}"
            hint = "Name the file with the certificate of its authority in SSL_CERT_FILE."
        return Unreachable(f"{self.url}: {said}.".replace("..", "."), hint, code="unreachable")

    def __repr__(self) -> str:
        return f"KnownHub(url={self.url!r}, how={self.how!r}, pid={self.pid})"  # no secret


def state_directory() -> Path:
    """Return where a user's own hub keeps what it must not forget."""
    if chosen := os.environ.get("ABOARD_STATE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME", "")
    home = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
    return home / "aboard"


def find_hub(url: str | None = None, token: str | None = None) -> KnownHub | None:
    """Return the hub that is meant, None if there is none.

    Args:
        url: its address; unless told, that in `ABOARD_HUB`, of the login, or of the user's own.
        token: its token; unless told, that in `ABOARD_HUB_TOKEN`, or of the login there.
    """
    how = "given" if url else "environment"
    url = url or os.environ.get("ABOARD_HUB")
    token = token or os.environ.get("ABOARD_HUB_TOKEN")
    login = read_login()
    if url:
        known = [one for one in (login, find_personal()) if one and one.url == url.rstrip("/")]
        return KnownHub(url.rstrip("/"), token or (known[0].token if known else ""), how)
    return login or find_personal()


def read_login() -> KnownHub | None:
    """Return the hub that the user has logged in to, if any."""
    document = _read_json(state_directory() / _LOGIN_FILE)
    try:
        return KnownHub(document["url"], document["token"], "login")
    except (TypeError, KeyError):
        return None


def write_login(url: str, token: str) -> Path:
    """Remember a hub and its token in a file that only its user can read."""
    return _write_json(_LOGIN_FILE, {"url": url.rstrip("/"), "token": token})


def forget_login() -> bool:
    """Forget the hub that the user has logged in to; say whether there was one."""
    place = state_directory() / _LOGIN_FILE
    known = place.exists()
    place.unlink(missing_ok=True)
    return known


def find_personal() -> KnownHub | None:
    """Return the user's own hub, if it runs."""
    directory = state_directory()
    document = _read_json(directory / _FILE)
    # Without the file the lock is left alone: to look at it is to hold it for a moment, in which
    # a hub that starts could not take it.
    if document is None or not _is_locked(directory / _LOCK_FILE):
        return None
    try:
        token = Path(document["token_file"]).read_text().strip()
        return KnownHub(document["url"], token, "personal", document["pid"])
    except (TypeError, KeyError, OSError):
        return None


def start_personal(roots: Sequence[str] = ()) -> KnownHub:
    """Start the user's own hub in the background, and return it once it answers.

    It looks for runs where it did before too, and listens on the port that it had, if that is
    free, so that boards of its earlier lives come back as they were.

    Args:
        roots: where runs are; `ABOARD_ROOT` or `./runs` unless told.

    Raises:
        Unreachable: it did not start; the text says why.
    """
    from aboard.runs.catalog import find_roots

    directory = state_directory()
    make_private(directory)
    _forget_killed(directory)
    last = _read_json(directory / _LAST_FILE) or {}
    searched = list(dict.fromkeys([*last.get("roots", ()), *find_roots(roots)]))
    command = [sys.executable, "-P", "-m", "aboard", "serve", "--personal"]
    for root in searched:
        command += ["--root", root]
    port = last.get("port")
    try:
        same = ["--port", str(port)] if port and _is_free(port) else []
        known = _run([*command, *same], directory)
    except Unreachable:
        if not port or _is_free(port):
            raise
        known = _run(command, directory)  # somebody took the port in this moment
    _write_json(_LAST_FILE, {"roots": searched, "port": urlsplit(known.url).port})
    return known


def last_roots() -> list[str] | None:
    """Return where the user's own hub looked for runs last; None if there never was one."""
    last = _read_json(state_directory() / _LAST_FILE)
    return None if last is None else list(last.get("roots", ()))


def _run(command: Sequence[str], directory: Path) -> KnownHub:
    log = directory / _LOG_FILE
    with suppress(FileNotFoundError):
        log.replace(log.with_name(f"{_LOG_FILE}.old"))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with os.fdopen(os.open(log, flags, 0o600), "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C here is not meant for it
        )
    threading.Thread(target=process.wait, daemon=True).start()
    deadline = time.monotonic() + _TO_START_SECONDS
    while time.monotonic() < deadline:
        ended = process.returncode is not None
        known = find_personal()
        if known is not None:
            if known.pid != process.pid:  # another start was first
                process.terminate()
            return known
        if ended and not _is_locked(directory / _LOCK_FILE):  # nor is another one starting
            break
        time.sleep(_POLL_SECONDS)
    raise Unreachable(f"your hub did not start: {_last_line(log)}", f"Its log is {log}.")


def stop_personal() -> KnownHub | None:
    """End the user's own hub and wait for its end; return what it was, None if none runs.

    Raises:
        HubError: it does not end.
    """
    known = find_personal()
    if known is None or known.pid is None:
        return None
    os.kill(known.pid, signal.SIGTERM)
    deadline = time.monotonic() + _TO_STOP_SECONDS
    while _is_locked(state_directory() / _LOCK_FILE):
        if time.monotonic() > deadline:
            raise HubError(f"your hub, process {known.pid}, does not end.", "Kill it, or wait.")
        time.sleep(_POLL_SECONDS)
    return known


def _forget_killed(directory: Path) -> None:
    """Take away what a hub left that was killed, before another one takes the lock."""
    place = directory / _FILE
    if place.exists():
        with _locked(directory / _LOCK_FILE) as is_mine:
            if is_mine:
                place.unlink(missing_ok=True)


def _is_locked(path: Path) -> bool:
    with _locked(path) as is_mine:
        return not is_mine


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold the lock of a hub, if none has it; a hub that never was has none."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def _write_json(name: str, document: Any) -> Path:
    """Put a document into a file of the state directory, in one step."""
    place = state_directory() / name
    make_private(place.parent)
    write_private(place, json.dumps(document))
    return place


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _last_line(log: Path) -> str:
    with suppress(OSError):
        lines = log.read_text(errors="replace").split("\n")
        written = [line for line in lines if line.strip()]
        if written:
            return written[-1].removeprefix("aboard: ")
    return "it said nothing."
