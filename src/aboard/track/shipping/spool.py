"""A spool: a directory on a local disk whose files are sent to a bucket.

A spool contains `files/`, with the same names as in the target, and the shared state of its owner
(the training process) and the shipper, which survives if either is killed. `upload` sends the
files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from aboard import system
from aboard.storage import StorageError, canonical
from aboard.system import cache_place, make_private
from aboard.track import environment, notify
from aboard.track.shipping.segments import Ledger, replace_json

Presence = Literal["alive", "gone", "unknown"]
Mark = Literal["finish", "alone", "done"]
"""No more is written; the owner does not wait for the end; everything arrived."""
_DELETED = ".gone-"  # prefix of the name of a spool while it is deleted


class NoSpool(StorageError):
    """No directory on this machine can hold a spool."""


class Writer(NamedTuple):
    pid: int
    writes: bool  # has a file open there; if not, its environment names the spool


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that writes into a spool.

    A pid and a start time identify it only on one machine and in one namespace. Across namespaces,
    such as those of containers, the owner's lock on the spool's `lifeline` shows whether it is
    alive.
    """

    target: str = ""
    pid: int = 0
    start: int = 0
    boot: str = ""
    namespace: int = 0
    host: str = ""
    created: float = 0.0
    interval: float = 5.0

    def is_visible(self) -> bool:
        here = bool(self.boot) or self.host == socket.gethostname()
        return here and self.boot == _boot() and self.namespace == system.pid_namespace()

    def presence(self, lifeline: Path) -> Presence:
        """Return whether the owner is running; "unknown" if it is not visible from here."""
        if self.is_visible():
            return "alive" if self.start == system.start_ticks(self.pid) else "gone"
        held = _is_held(lifeline)
        if held:
            return "alive"
        if self.boot and self.boot == _boot():
            return "unknown" if held is None else "gone"
        return "gone" if self.host == socket.gethostname() else "unknown"


@dataclass(frozen=True, slots=True)
class Status:
    pid: int = 0
    left: int = 0  # bytes that have not arrived
    problem: str = ""  # why nothing arrives, and what to do
    kept: bool = False  # the shipper gave up and left the files in the spool
    refused: bool = False  # the problem is a file that can never arrive; all others do
    writer: int = 0  # a process that the shipper waits for, although it has not written for a while


class Spool:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = directory / "files"
        self.ledger = directory / "ledger.json"
        self.log = directory / "shipper.log"
        self.lifeline = directory / "lifeline"
        self._held: int | None = None

    @classmethod
    def create(cls, target: str, interval: float) -> Spool:
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(4)}"
        owner = Owner(
            target=canonical(target),
            pid=os.getpid(),
            start=system.start_ticks(os.getpid()),
            boot=_boot(),
            namespace=system.pid_namespace(),
            host=socket.gethostname(),
            created=time.time(),
            interval=interval,
        )
        try:
            return cls._make(spool_root() / name, owner)
        except OSError as error:
            why = _reason(error)
        try:
            spool = cls._make(_fallback_root() / name, owner)
        except OSError as error:
            raise NoSpool(
                str(spool_root()),
                f"logs for a bucket cannot be kept here ({why}), nor in the temporary directory"
                f" ({_reason(error)})",
                "Set ABOARD_SPOOL to a directory on a local disk that you can write to.",
            ) from error
        notify(
            f"{spool_root()}: logs cannot be kept here ({why}); they are kept in"
            f" {spool.directory.parent}. Set ABOARD_SPOOL to choose another directory."
        )
        return spool

    @classmethod
    def _make(cls, directory: Path, owner: Owner) -> Spool:
        spool = cls(directory)
        make_private(directory.parent)
        try:
            directory.mkdir(mode=0o700)
            spool.files.mkdir()
            Ledger.create(spool.ledger)
            spool._held = _hold(spool.lifeline)
            # Last: this makes the directory a spool.
            (directory / "owner.json").write_text(json.dumps(asdict(owner)))
        except OSError:
            spool.remove()
            raise
        return spool

    def owner(self) -> Owner | None:
        """Return the owner; None if the directory is not a spool."""
        known = _read_fields(Owner, self.directory / "owner.json")
        return Owner(**known) if known.get("target") else None

    def status(self) -> Status:
        return Status(**_read_fields(Status, self.directory / "status.json"))

    def report(self, status: Status) -> None:
        """Store the shipper's status; a full disk does not stop the shipper."""
        replace_json(self.directory / "status.json", asdict(status))

    def is_damaged(self) -> bool:
        return self.owner() is None and any(one.is_file() for one in self.files.rglob("*"))

    def mark(self, what: Mark) -> None:
        """Set a mark: an empty file, which fits even on a full disk."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.directory / what, os.O_WRONLY | os.O_CREAT, 0o600))

    def is_marked(self, what: Mark) -> bool:
        return (self.directory / what).exists()

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Try to become the only sender of this spool's files; yield whether that succeeded."""
        with contextlib.ExitStack() as stack:
            ours = False
            with contextlib.suppress(OSError):
                descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
                stack.callback(os.close, descriptor)
                ours = system.try_lock(descriptor) and (self.directory / "owner.json").exists()
            yield ours

    def is_served(self) -> bool:
        with self.lock() as free:
            return not free

    def writer(self, *, besides: int = 0) -> Writer | None:
        """Return another process that writes to the spool or, failing that, one that may."""
        may: Writer | None = None
        with contextlib.suppress(OSError):
            for pid in system.process_ids():
                if pid in (besides, os.getpid()):
                    continue
                if system.writes_below(pid, str(self.files)):
                    return Writer(pid, writes=True)
                logdir = system.start_variable(pid, environment.LOGDIR) if may is None else None
                if logdir == os.fsencode(self.files) and system.start_ticks(pid):
                    may = Writer(pid, writes=False)
        return may

    def remove(self) -> None:
        # Rename it first, so that a process that checks it creates no file in it.
        gone = self.directory.with_name(f"{_DELETED}{self.directory.name}")
        with contextlib.suppress(OSError):
            self.directory.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        if self._held is not None:
            os.close(self._held)
            self._held = None


def spool_root() -> Path:
    """Return the directory of spools: ABOARD_SPOOL, or one in the user's cache."""
    chosen = os.environ.get("ABOARD_SPOOL")
    return Path(chosen).expanduser().absolute() if chosen else cache_place().directory / "spool"


def _fallback_root() -> Path:
    return Path(tempfile.gettempdir()) / f"aboard-spool-{os.getuid()}"


def spool_roots() -> list[Path]:
    roots = [spool_root()]
    with contextlib.suppress(OSError):
        fallback = _fallback_root()
        if fallback.stat().st_uid == os.getuid():
            roots.append(fallback)
    return roots


def all_spools(*, damaged: bool = False) -> list[Spool]:
    """Return the spools of this machine, oldest first; or those with files but no known target."""
    found: list[Path] = []
    for root in spool_roots():
        with contextlib.suppress(OSError):
            found += (one for one in root.iterdir() if not one.name.startswith(_DELETED))
    spools = map(Spool, sorted(found, key=lambda one: one.name))
    return [one for one in spools if (one.is_damaged() if damaged else one.owner() is not None)]


def abandoned_spools() -> Iterator[Spool]:
    """Yield the spools without owner and shipper; clean up what is partly deleted."""
    for root in spool_roots():
        for gone in root.glob(f"{_DELETED}*"):
            shutil.rmtree(gone, ignore_errors=True)
    for spool in all_spools():
        owner = spool.owner()
        if owner and owner.presence(spool.lifeline) == "gone" and not spool.is_served():
            yield spool


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{text[:1].lower()}{text[1:]}"


class OwnerWatch:
    """Notices at once when a spool's owner exits, if the system supports that."""

    def __init__(self, owner: Owner, lifeline: Path) -> None:
        self._owner = owner
        self._lifeline = lifeline
        self._end: select.poll | None = None
        if owner.is_visible() and self._is_alive() and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                descriptor = os.pidfd_open(owner.pid)
                if self._is_alive():
                    self._end = select.poll()
                    self._end.register(descriptor, select.POLLIN)
                else:  # another process has the pid
                    os.close(descriptor)

    def _is_alive(self) -> bool:
        return self._owner.presence(self._lifeline) == "alive"

    def is_gone(self) -> bool:
        return bool(self._end.poll(0)) if self._end is not None else not self._is_alive()

    def wait(self, seconds: float) -> None:
        """Wait, at most until the process exits; if it has exited, just wait."""
        if self._end is None or self.is_gone():
            time.sleep(seconds)
        else:
            self._end.poll(seconds * 1000)


def _hold(lifeline: Path) -> int | None:
    """Lock a file until this process exits; return None if locks are not supported.

    A forked child does not inherit this kind of lock, and closing any descriptor of the file
    releases it: the owner never opens it again.
    """
    descriptor = os.open(lifeline, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        lifeline.unlink()
        return None
    return descriptor


def _is_held(lifeline: Path) -> bool | None:
    """Return whether the process that locked a file is alive; None if the file is missing."""
    try:
        descriptor = os.open(lifeline, os.O_RDONLY)
    except OSError:
        return None
    try:
        # A shared lock, so that two checking processes do not mistake each other for the owner.
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    else:
        return False
    finally:
        os.close(descriptor)


def _boot() -> str:
    try:
        return system.boot_id()
    except OSError:
        return ""


def _read_fields(kind: type[Owner | Status], path: Path) -> dict[str, Any]:
    """Read the valid fields; another version may have written more or fewer."""
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        document = json.loads(path.read_bytes())
        for field in fields(kind):
            value, convert = document.get(field.name), cast("Any", type(field.default))
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                if value is not None:
                    known[field.name] = convert(value)
    return known
