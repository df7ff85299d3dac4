"""A user's own hub: one per user, on loopback, found by other programs through a small file.

`hub.json` in the user's state directory says where it is and which file holds its token. A lock
that ends with the process keeps a second one from starting, and tells whether the first lives.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from aboard.boards.accounts import User
from aboard.hub.auth import Auth
from aboard.storage.place import make_private, write_private
from aboard.web.errors import TokenError
from aboard.web.tokens import read_token_file, write_token_file

FILE, TOKEN_FILE, LOCK_FILE = "hub.json", "hub-token", "hub.lock"


class AlreadyRunning(Exception):  # noqa: N818 - named by what is wrong
    """The user has a hub already; the text says where."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """What `hub.json` says.

    Attributes:
        url: the address of the hub, without a slash at the end.
        pid: its process.
        started: when it began, in seconds since 1970.
        token_file: the file that holds its token.
    """

    url: str
    pid: int
    started: float
    token_file: str


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Be the user's hub for as long as the context lasts.

    Raises:
        AlreadyRunning: another one is.
    """
    make_private(directory)
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            where = _where(directory)
            raise AlreadyRunning(
                f"your hub runs already{where}. Use it, or stop it with: aboard hub stop"
            ) from None
        try:
            yield
        finally:
            with suppress(OSError):
                (directory / FILE).unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def write_hub_file(directory: Path, hub: HubFile) -> None:
    """Tell other programs of the user where the hub is."""
    write_private(directory / FILE, json.dumps(asdict(hub)))


def the_user(auth: Auth) -> User:
    """Return the one user of a personal hub."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        name = "me"
    return auth.personal(name)


def token_of(auth: Auth, directory: Path) -> str:
    """Return the token of a personal hub: the one in its file, or a new one."""
    place = directory / TOKEN_FILE
    with suppress(TokenError):
        secret = read_token_file(place)
        if auth.token(secret) is not None:
            return secret
    made = auth.create_token(the_user(auth), "personal hub")
    write_token_file(place, made.secret)
    return made.secret


def _where(directory: Path) -> str:
    try:
        known = json.loads((directory / FILE).read_bytes())
        return f" at {known['url']}, process {known['pid']}"
    except (OSError, ValueError, TypeError, KeyError):
        return ""
