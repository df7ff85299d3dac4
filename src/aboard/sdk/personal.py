"""Finding the hub to use, logging in to it, and the personal hub: its files, lock, start and roots.

A user has one personal hub, on loopback. In the state directory, `hub.json` has its address and the
name of its token file, `hub.lock` is locked while its process runs, and `last-hub.json` has its
roots and ports for the next start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from aboard.sdk import AuthError, HubError, Unreachable
from aboard.system import NotPrivate, file_lock, make_private, try_lock, write_private

if TYPE_CHECKING:
    from aboard.sdk.board import Selectors
    from aboard.sdk.client import Client

HUB_FILE, TOKEN_FILE = "hub.json", "hub-token"
_LOCK_FILE, _START_FILE, _LOG_FILE = "hub.lock", "hub.start.lock", "hub.log"
_LOGIN_FILE, _LAST_FILE = "login.json", "last-hub.json"
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.05


class KnownHub(NamedTuple):
    """A hub and its token, which may be empty.

    `how` is where it is known from: given, environment, login or personal. Only a personal hub has
    a `pid`, and a separate port for boards.
    """

    url: str
    token: str
    how: str
    pid: int | None = None
    boards_port: int | None = None

    def auth_error(self, refusal: HubError) -> AuthError:
        message = f"{self.url} needs a token, and you have none."
        if self.token:
            message = f"{self.url} does not accept your token: it is wrong, expired or revoked."
        hint = f"Log in{' again' if self.token else ''}: aboard login {self.url}"
        if self.how == "personal":
            hint = "Restart it with a new token: aboard hub stop, then aboard start."
        elif os.environ.get("ABOARD_HUB_TOKEN") == self.token:
            hint = f"Set ABOARD_HUB_TOKEN to a valid token, or unset it. {hint}"
        return AuthError(message, hint, code=refusal.code, status=refusal.status)

    def unreachable(self, error: Exception) -> Unreachable:
        cause = getattr(error, "reason", error)
        problem = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        import ssl

        instead = {
            "environment": "unset ABOARD_HUB to use your own hub",
            "login": "use your own hub again: aboard login --forget",
        }.get(self.how, "check the address")
        hint = f"Start it with 'aboard serve' on its machine, ask its administrator, or {instead}."
        if self.how == "personal":
            hint = "Restart it: aboard hub stop, then aboard start."
        if isinstance(cause, ssl.SSLCertVerificationError):
            problem = f"its certificate is not trusted: {cause.verify_message}"
            hint = "Set SSL_CERT_FILE to the file with the certificate of its authority."
        return Unreachable(f"{self.url}: {problem}.".replace("..", "."), hint, code="unreachable")

    def __repr__(self) -> str:
        return f"KnownHub(url={self.url!r}, how={self.how!r}, pid={self.pid})"  # no secret


class LastHub(NamedTuple):
    """The roots and ports of the last personal hub, for the next one."""

    roots: tuple[str, ...] = ()
    port: int | None = None
    boards_port: int | None = None


def state_directory() -> Path:
    if chosen := os.environ.get("ABOARD_STATE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME", "")
    home = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
    return home / "aboard"


def find_hub(url: str | None = None, token: str | None = None) -> KnownHub | None:
    """Return the hub to use: given, from `ABOARD_HUB`, from the login, or the personal hub."""
    how = "given" if url else "environment"
    url = url or os.environ.get("ABOARD_HUB")
    token = token or os.environ.get("ABOARD_HUB_TOKEN")
    login = read_login()
    if url:
        url = url.rstrip("/")
        known = [one for one in (login, find_personal()) if one and one.url == url]
        first = known[0] if known else KnownHub(url, "", how)
        return KnownHub(url, token or first.token, how, boards_port=first.boards_port)
    return login or find_personal()


def require_hub(
    url: str | None = None,
    token: str | None = None,
    *,
    start: bool = True,
    first: bool = True,
    roots: Sequence[str] | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> KnownHub:
    """Return the hub that `find_hub` finds; if there is none, start the personal hub.

    Args:
        url: its address.
        token: its token.
        start: whether to start the personal hub.
        first: whether to start it even if the user has never had one.
        roots: its roots, besides those of the last one; `ABOARD_ROOT` or `./runs` by default.
        notify: called with messages for the user.

    Raises:
        Unreachable: there is no hub, or it does not start.
    """
    known = find_hub(url, token)
    if known is None and start and (first or last_hub() is not None):
        if roots is None:
            from aboard.runs.catalog import find_roots

            roots = find_roots(())
        known = start_personal(roots, notify=notify)
    if known is None:
        raise Unreachable(
            "no hub is running, and none is configured.",
            "Start a board, which starts your own hub: aboard start SELECTOR",
            code="no_hub",
        )
    return known


def open_hub_for(
    selectors: Selectors,
    *,
    roots: Sequence[str] = (),
    notify: Callable[[str], None] = lambda _: None,
) -> Client:
    """Return a hub that can resolve selectors; start your own hub if needed, and add `roots` to it.

    Only names of runs need a root. `roots` are by default `ABOARD_ROOT` or `./runs`; those given
    must exist. A team's hub must already have them. `notify` is called with messages for the user.
    """
    from aboard.runs.catalog import find_roots
    from aboard.sdk.board import as_selectors
    from aboard.sdk.client import Client

    searched = find_roots(roots)
    known = find_hub()
    if roots and (known is None or known.how == "personal"):  # a team's may be on another machine
        for place in searched:
            if "://" not in place and not Path(place).is_dir():
                raise HubError(f"{place}: no such directory.", "Check the path.", code="not_found")
    require_hub(roots=searched, notify=notify)
    client = Client(start=False)
    is_personal = client.hub.how == "personal"
    by_name = any("://" not in one and not one.startswith("/") for one in as_selectors(selectors))
    if not roots and not (is_personal and by_name):
        return client
    present = {root["uri"] for root in client.roots()}
    if missing := [root for root in searched if root not in present]:
        if not is_personal:
            raise HubError(
                f"{missing[0]} is not a root of {client.url}.",
                f"Its roots are {', '.join(sorted(present)) or 'none'}.",
                code="outside_roots",
            )
        for root in missing:
            client.add_root(Path(root) if "://" not in root else root)
        notify(f"added to the roots of your hub: {', '.join(missing)}.")
    return client


# The login to a team's hub.


def log_in(url: str, user: str, password: str, *, name: str = "", lasts: str = "90d") -> str:
    """Create a token with a user's name and password, and return its secret."""
    from aboard.sdk.client import Client

    client = Client(url, token="")
    client.hub = client.hub._replace(token="")
    with client._request("POST", "/login", {"user": user, "password": password}) as response:
        cookie = (response.headers["set-cookie"] or "").partition(";")[0]
    parts = urlsplit(client.url)
    # Requests with a session need the headers of a browser, because the hub checks their origin.
    origin = f"{parts.scheme}://{parts.netloc}"
    headers = {"cookie": cookie, "origin": origin, "x-aboard-csrf": "1"}
    body = {"name": name, "lasts": lasts}
    made = client._document("POST", "/tokens", body, headers=headers)
    with client._request("POST", "/logout", headers=headers):
        return str(made["token"])


def read_login() -> KnownHub | None:
    document = _read_json(state_directory() / _LOGIN_FILE)
    try:
        return KnownHub(document["url"], document["token"], "login")
    except (TypeError, KeyError):
        return None


def write_login(url: str, token: str) -> Path:
    return _write_json(state_directory() / _LOGIN_FILE, {"url": url.rstrip("/"), "token": token})


def forget_login() -> bool:
    """Forget the login; return whether there was one."""
    path = state_directory() / _LOGIN_FILE
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed


# The personal hub, from other processes.


def find_personal() -> KnownHub | None:
    directory = state_directory()
    document = _read_json(directory / HUB_FILE)
    # Do not test the lock without the file: the test holds it for a moment, and a hub that starts
    # at that moment could not take it.
    if document is None or not _is_locked(directory):
        return None
    try:
        token = Path(document["token_file"]).read_text().strip()
        port = document.get("boards_port")
        return KnownHub(document["url"], token, "personal", document["pid"], port)
    except (TypeError, KeyError, OSError):
        return None


def start_personal(
    roots: Sequence[str] = (), *, notify: Callable[[str], None] = lambda _: None
) -> KnownHub:
    """Start the personal hub in the background and return it when it answers.

    It keeps the roots and, if they are free, the ports of the last one, so that boards and their
    addresses stay the same. `notify` is called with messages for the user. Raise `Unreachable` with
    the reason if the hub does not start.
    """
    directory = state_directory()
    try:
        make_private(directory)
    except NotPrivate as error:
        hint = f"{error.remedy}." if error.remedy else "Set ABOARD_STATE to another directory."
        raise Unreachable(f"your hub did not start: {error}.", hint) from None
    with file_lock(
        directory / _START_FILE
    ):  # if several processes start it at once, the others find the hub of the first
        return find_personal() or _start(directory, roots, notify)


def _start(directory: Path, roots: Sequence[str], notify: Callable[[str], None]) -> KnownHub:
    _remove_stale(directory)
    earlier = last_hub()
    last = earlier or LastHub()
    command = [sys.executable, "-P", "-m", "aboard", "serve", "--personal"]
    for root in dict.fromkeys([*last.roots, *roots]):
        command += ["--root", root]
    if last.port is None or not _is_free(last.port):
        known = _run(command, directory)
    else:
        try:
            known = _run([*command, "--port", str(last.port)], directory)
        except Unreachable:
            if _is_free(last.port):
                raise
            known = _run(command, directory)  # another program has just taken the port
    if last.port not in {None, urlsplit(known.url).port}:
        notify(f"port {last.port} is taken, so your hub is at {known.url} now.")
    elif last.boards_port not in {None, known.boards_port}:
        boards = f"http://localhost:{known.boards_port}"
        notify(f"port {last.boards_port} is taken, so boards are at {boards} now.")
    if earlier is not None:
        notify(f"started your hub again ({known.url}). Stop it with: aboard hub stop")
    else:
        notify(
            f"started your own hub ({known.url}); its token is in {directory / TOKEN_FILE}."
            " Stop it with: aboard hub stop"
        )
    return known


def stop_personal() -> KnownHub | None:
    """Stop the personal hub and wait until it exits; return it, or None if none is running."""
    known = find_personal()
    if known is None or known.pid is None:
        return None
    os.kill(known.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while _is_locked(state_directory()):
        if time.monotonic() > deadline:
            raise HubError(f"your hub, process {known.pid}, does not exit.", "Kill it, or wait.")
        time.sleep(_POLL_SECONDS)
    return known


def last_hub(directory: Path | None = None) -> LastHub | None:
    """Return the roots and ports of the last personal hub; None if there was none."""
    last = _read_json((directory or state_directory()) / _LAST_FILE)
    if not isinstance(last, dict):
        return None
    return LastHub(tuple(last.get("roots", ())), last.get("port"), last.get("boards_port"))


# The personal hub, in its own process.


@contextmanager
def personal_lock(directory: Path) -> Iterator[None]:
    """Hold the lock of the personal hub; raise `HubError` if another one is running."""
    make_private(directory)
    descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(descriptor):
            known = _read_json(directory / HUB_FILE)
            is_known = isinstance(known, dict) and "url" in known
            where = f" at {known['url']}, process {known.get('pid')}" if is_known else ""
            raise HubError(
                f"your hub is already running{where}.", "Use it, or stop it with: aboard hub stop"
            )
        try:
            yield
        finally:
            with suppress(OSError):
                (directory / HUB_FILE).unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def announce_personal(directory: Path, url: str, boards_port: int | None = None) -> None:
    """Write `hub.json`, so that other programs of the user find the hub of this process."""
    hub = {
        "url": url,
        "boards_port": boards_port,
        "pid": os.getpid(),
        "started": time.time(),
        "token_file": str(directory / TOKEN_FILE),
    }
    _write_json(directory / HUB_FILE, hub)


def remember_personal(
    directory: Path,
    roots: Sequence[str],
    port: int | None = None,
    boards_port: int | None = None,
) -> None:
    """Store roots and ports for the next hub; a port that is not given does not change."""
    last = last_hub(directory) or LastHub()
    ports = {"port": port or last.port, "boards_port": boards_port or last.boards_port}
    _write_json(directory / _LAST_FILE, {"roots": list(roots), **ports})


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
            start_new_session=True,  # Ctrl-C in this terminal must not stop it
        )
    threading.Thread(target=process.wait, daemon=True).start()
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        ended = process.returncode is not None
        known = find_personal()
        if known is not None:
            if known.pid != process.pid:  # another process started it first
                process.terminate()
            return known
        if ended and not _is_locked(directory):  # and no other one is starting
            break
        time.sleep(_POLL_SECONDS)
    raise Unreachable(f"your hub did not start: {_last_line(log)}", f"Its log is {log}.")


def _remove_stale(directory: Path) -> None:
    """Remove the `hub.json` of a killed hub before another one takes the lock."""
    path = directory / HUB_FILE
    if path.exists():
        with _try_lock(directory) as is_mine:
            if is_mine:
                path.unlink(missing_ok=True)


def _is_locked(directory: Path) -> bool:
    with _try_lock(directory) as is_mine:
        return not is_mine


@contextmanager
def _try_lock(directory: Path) -> Iterator[bool]:
    """Hold the lock if it is free; yield whether it was. Without a lock file, it is free."""
    try:
        descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield True
        return
    try:
        is_mine = False
        with suppress(OSError):
            is_mine = try_lock(descriptor)
        yield is_mine
    finally:
        os.close(descriptor)


def _is_free(port: int) -> bool:
    import errno
    import socket

    # The hub listens on both addresses of localhost; a machine may have only the first.
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.create_server((host, port), family=family):
                pass
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                return False
    return True


def _write_json(path: Path, document: Any) -> Path:
    make_private(path.parent)
    write_private(path, json.dumps(document))
    return path


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
    return "its log is empty."
