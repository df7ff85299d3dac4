"""A directory on a local disk from which files are carried to a bucket, and who has to do with it.

A spool holds `files/`, whose names are the names below the target, and beside it what the owner
(the training process) and the shipper tell each other. That the two find each other again after
either was killed is settled here; what is sent, and how, is left to `sending`.
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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from aboard.storage import StorageError, canonical
from aboard.storage.place import cache_place, make_private
from aboard.track import ledger
from aboard.track.processes import Writer, start_of, writer_below
from aboard.track.say import say

Presence = Literal["alive", "gone", "unknown"]
_GONE = ".gone-"
"""What the name of a spool begins with while it is being deleted."""


class NoSpool(StorageError):  # noqa: N818 - named by what is wrong
    """There is no place on this machine for logs on their way to a bucket."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that writes into a spool.

    A pid alone does not name a process for long, so the time at which it started goes with it, in
    the clock that begins when the machine does; and a pid means something only on one machine
    and within one namespace. Across the namespaces of a machine, as containers have them, the
    owner is known to live by the lock that it holds on the spool's lifeline.
    """

    target: str
    pid: int = 0
    start: int = 0
    boot: str = ""
    namespace: int = 0
    host: str = ""
    created: float = 0.0
    interval: float = 5.0

    def is_in_sight(self) -> bool:
        """Say whether its pid means something here."""
        here = bool(self.boot) or self.host == socket.gethostname()
        return here and self.boot == _boot() and self.namespace == _namespace()

    def presence(self, lifeline: Path) -> Presence:
        """Say whether the owner still runs; unknown, if it would run where we cannot look."""
        if self.is_in_sight():
            return "alive" if self.start == start_of(self.pid) else "gone"
        held = _is_held(lifeline)
        if held:
            return "alive"
        if self.boot and self.boot == _boot():
            return "unknown" if held is None else "gone"
        return "gone" if self.host == socket.gethostname() else "unknown"


@dataclass(frozen=True, slots=True)
class Status:
    """What a shipper last said of its work."""

    pid: int = 0
    left: int = 0
    """Bytes that have not arrived."""
    problem: str = ""
    """Why nothing arrives at the moment, and what to do about it."""
    kept: bool = False
    """Whether the shipper gave up, and left the files in the spool."""
    refused: bool = False
    """Whether the problem is with a file that can never arrive, and all others do."""
    writer: int = 0
    """A process that keeps the shipper from ending, and has written nothing for a while."""


class Spool:
    """One spool; `create` makes one, and a path of an existing one opens it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = directory / "files"
        self.ledger = directory / "ledger.json"
        self.log = directory / "shipper.log"
        self.lifeline = directory / "lifeline"
        self._held: int | None = None

    @classmethod
    def create(cls, target: str, interval: float) -> Spool:
        """Make a spool for files that shall go to `target`, owned by this process.

        Raises:
            NoSpool: neither where spools belong nor in the temporary directory can one be made.
        """
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(4)}"
        owner = Owner(
            target=canonical(target),
            pid=os.getpid(),
            start=start_of(os.getpid()),
            boot=_boot(),
            namespace=_namespace(),
            host=socket.gethostname(),
            created=time.time(),
            interval=interval,
        )
        try:
            return cls._make(spool_root() / name, owner)
        except OSError as error:
            why = _reason(error)
        try:
            spool = cls._make(_reserve_root() / name, owner)
        except OSError as error:
            problem = f"logs on their way to a bucket cannot be kept here ({why})"
            problem += f", nor in the temporary directory ({_reason(error)})"
            hint = "Set ABOARD_SPOOL to a directory on a local disk that you can write to."
            raise NoSpool(str(spool_root()), problem, hint) from error
        instead = f"they are kept in {spool.directory.parent}. Set ABOARD_SPOOL to choose another"
        say(f"{spool_root()}: logs cannot be kept here ({why}); {instead}.")
        return spool

    @classmethod
    def _make(cls, directory: Path, owner: Owner) -> Spool:
        spool = cls(directory)
        make_private(directory.parent)
        try:
            directory.mkdir(mode=0o700)
            spool.files.mkdir()
            ledger.create(spool.ledger)
            spool._held = _hold(spool.lifeline)
            # Last, because a directory without it is no spool.
            (directory / "owner.json").write_text(json.dumps(asdict(owner)))
        except OSError:
            spool.remove()
            raise
        return spool

    def owner(self) -> Owner | None:
        """Return who owns the spool; None, if this is no spool, or one no longer."""
        known = _known(Owner, _read(self.directory / "owner.json"))
        return Owner(**known) if known.get("target") else None

    def status(self) -> Status:
        """Return what a shipper last said."""
        return Status(**_known(Status, _read(self.directory / "status.json")))

    def is_damaged(self) -> bool:
        """Say whether there are files in it that nobody knows where to send."""
        return self.owner() is None and any(one.is_file() for one in self.files.rglob("*"))

    def tell(self, status: Status) -> None:
        """Say how the work goes; a full disk is no reason to stop it."""
        ledger.replace(self.directory / "status.json", asdict(status))

    # Marks are empty files, which even a full disk can hold.

    def mark(self, what: Literal["finish", "alone", "done"]) -> None:
        """Mark that no more is written, that nobody waits for the end, or that all arrived."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.directory / what, os.O_WRONLY | os.O_CREAT, 0o600))

    def is_marked(self, what: Literal["finish", "alone", "done"]) -> bool:
        """Say whether a mark was made."""
        return (self.directory / what).exists()

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Try to become the one who sends this spool's files; say whether that succeeded."""
        try:
            descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            yield False
            return
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield (self.directory / "owner.json").exists()
        finally:
            os.close(descriptor)

    def is_served(self) -> bool:
        """Say whether a shipper is at work on it."""
        with self.lock() as free:
            return not free

    def writer(self, *, besides: int = 0) -> Writer | None:
        """Return another process, not that one, that writes to it or was told to."""
        return writer_below(self.files, besides=besides)

    def remove(self) -> None:
        """Delete the spool."""
        # Under another name, lest somebody who just looks at it leaves a file in it.
        gone = self.directory.with_name(f"{_GONE}{self.directory.name}")
        with contextlib.suppress(OSError):
            self.directory.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        if self._held is not None:
            os.close(self._held)
            self._held = None


def spool_root() -> Path:
    """Return where spools are: ABOARD_SPOOL, else in the user's cache."""
    chosen = os.environ.get("ABOARD_SPOOL")
    return Path(chosen).expanduser().absolute() if chosen else cache_place().directory / "spool"


def _reserve_root() -> Path:
    """Return where spools are that cannot be where they belong.

    Raises:
        OSError: there is no temporary directory.
    """
    return Path(tempfile.gettempdir()) / f"aboard-spool-{os.getuid()}"


def spool_roots() -> list[Path]:
    """Return all directories in which this user has spools."""
    roots = [spool_root()]
    with contextlib.suppress(OSError):
        reserve = _reserve_root()
        if reserve.stat().st_uid == os.getuid():
            roots.append(reserve)
    return roots


def all_spools() -> list[Spool]:
    """Return the spools of this machine, oldest first."""
    return [spool for spool in _directories() if spool.owner() is not None]


def damaged_spools() -> list[Spool]:
    """Return the spools with files in them that nobody knows where to send."""
    return [spool for spool in _directories() if spool.is_damaged()]


def _directories() -> list[Spool]:
    found: list[Path] = []
    for root in spool_roots():
        with contextlib.suppress(OSError):
            found += (one for one in root.iterdir() if not one.name.startswith(_GONE))
    return [Spool(one) for one in sorted(found, key=lambda one: one.name)]


def left_behind() -> Iterator[Spool]:
    """Yield the spools whose owner is gone and which nobody serves; sweep up what is deleted."""
    for root in spool_roots():
        for gone in root.glob(f"{_GONE}*"):
            shutil.rmtree(gone, ignore_errors=True)
    for spool in all_spools():
        owner = spool.owner()
        if owner and owner.presence(spool.lifeline) == "gone" and not spool.is_served():
            yield spool


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{text[:1].lower()}{text[1:]}"


class Watch:
    """Notices at once when a spool's owner ends, where the system can tell."""

    def __init__(self, owner: Owner, lifeline: Path) -> None:
        self._owner = owner
        self._lifeline = lifeline
        self._end: select.poll | None = None
        if owner.is_in_sight() and self._is_alive() and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._open(os.pidfd_open(owner.pid))

    def _open(self, descriptor: int) -> None:
        if not self._is_alive():
            os.close(descriptor)  # of another process, which took the pid before we could look
            return
        self._end = select.poll()
        self._end.register(descriptor, select.POLLIN)

    def _is_alive(self) -> bool:
        return self._owner.presence(self._lifeline) == "alive"

    def is_gone(self) -> bool:
        """Say whether the process has ended."""
        return bool(self._end.poll(0)) if self._end is not None else not self._is_alive()

    def wait(self, seconds: float) -> None:
        """Wait, but no longer than the process runs; one that is gone is not waited for."""
        if self._end is None or self.is_gone():
            time.sleep(seconds)
        else:
            self._end.poll(seconds * 1000)


def _hold(lifeline: Path) -> int | None:
    """Lock a file for as long as this process lives; go without where there are no locks.

    The lock is one of those that a forked child has no part in, and that go when any descriptor of
    the file is closed: the owner never opens it again.
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
    """Say whether the process lives that locked a file; None, if there is no such file."""
    try:
        descriptor = os.open(lifeline, os.O_RDONLY)
    except OSError:
        return None
    try:
        # A shared lock, lest two who look take each other for the owner.
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
    return _text("/proc/sys/kernel/random/boot_id")


def _namespace() -> int:
    with contextlib.suppress(OSError):
        return Path("/proc/self/ns/pid").stat().st_ino
    return 0


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _known(kind: type[Owner | Status], document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that this version knows; of one that makes no sense, the default is used.

    Another version may have written more of them, or fewer.
    """
    known = {}
    for field in fields(kind):
        value = document.get(field.name)
        convert = _CONVERSIONS[str(field.type)]
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if value is not None:
                known[field.name] = convert(value)
    return known


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
}
