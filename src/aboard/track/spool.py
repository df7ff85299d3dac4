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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from aboard.storage import StorageError, canonical
from aboard.storage.place import cache_place, make_private
from aboard.track import ledger
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
    and within one namespace.
    """

    target: str
    pid: int
    start: int
    boot: str
    namespace: int
    host: str
    created: float
    interval: float

    def presence(self) -> Presence:
        """Say whether the owner still runs; unknown, if it would run where we cannot look."""
        if self.host != socket.gethostname():
            return "unknown"
        if self.boot != _boot():
            return "gone"
        if self.namespace != _namespace():
            return "unknown"
        return "alive" if self.start == start_of(self.pid) else "gone"


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


class Spool:
    """One spool; `create` makes one, and a path of an existing one opens it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = directory / "files"
        self.ledger = directory / "ledger.json"
        self.log = directory / "shipper.log"

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
            # Last, because a directory without it is no spool.
            (directory / "owner.json").write_text(json.dumps(asdict(owner)))
        except OSError:
            spool.remove()
            raise
        return spool

    def owner(self) -> Owner | None:
        """Return who owns the spool; None, if this is no spool, or one no longer."""
        fields = _read(self.directory / "owner.json")
        try:
            return Owner(**fields)
        except TypeError:
            return None

    def status(self) -> Status:
        """Return what a shipper last said."""
        try:
            return Status(**_read(self.directory / "status.json"))
        except TypeError:
            return Status()

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

    def has_writers(self, *, besides: int = 0) -> bool:
        """Say whether another process, not that one, has a file in it open for writing."""
        others = (one for one in _other_processes() if one.name != str(besides))
        return any(_writes_below(process, f"{self.files}/") for process in others)

    def remove(self) -> None:
        """Delete the spool."""
        # Under another name, lest somebody who just looks at it leaves a file in it.
        gone = self.directory.with_name(f"{_GONE}{self.directory.name}")
        with contextlib.suppress(OSError):
            self.directory.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


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
    found: list[Path] = []
    for root in spool_roots():
        with contextlib.suppress(OSError):
            found += (one for one in root.iterdir() if not one.name.startswith(_GONE))
    spools = map(Spool, sorted(found, key=lambda one: one.name))
    return [spool for spool in spools if spool.owner() is not None]


def left_behind() -> Iterator[Spool]:
    """Yield the spools whose owner is gone and which nobody serves; sweep up what is deleted."""
    for root in spool_roots():
        for gone in root.glob(f"{_GONE}*"):
            shutil.rmtree(gone, ignore_errors=True)
    for spool in all_spools():
        owner = spool.owner()
        if owner and owner.presence() == "gone" and not spool.is_served():
            yield spool


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{text[:1].lower()}{text[1:]}"


def start_of(pid: int) -> int:
    """Return when a process started, in ticks since the machine did; 0 if it runs no longer."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0 if Path("/proc/self/stat").exists() else _signalled(pid)
    # The name in parentheses may hold anything.
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def _signalled(pid: int) -> int:
    """Say whether a process exists, where there is no /proc to ask for more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return 0
    except OSError:
        pass
    return 1


class Watch:
    """Notices at once when a process ends, where the system can tell."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._end: select.poll | None = None
        if owner.presence() == "alive" and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._open(os.pidfd_open(owner.pid))

    def _open(self, descriptor: int) -> None:
        if self._owner.presence() != "alive":
            os.close(descriptor)  # of another process, which took the pid before we could look
            return
        self._end = select.poll()
        self._end.register(descriptor, select.POLLIN)

    def is_gone(self) -> bool:
        """Say whether the process has ended."""
        if self._end is not None:
            return bool(self._end.poll(0))
        return self._owner.presence() != "alive"

    def wait(self, seconds: float) -> None:
        """Wait, but no longer than the process runs; one that is gone is not waited for."""
        if self._end is None or self.is_gone():
            time.sleep(seconds)
        else:
            self._end.poll(seconds * 1000)


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


def _other_processes() -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                yield entry


def _writes_below(process: Path, directory: str) -> bool:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return False
    for one in descriptors:
        with contextlib.suppress(OSError, ValueError):
            if os.readlink(one).startswith(directory) and _is_writable(process, one.name):  # noqa: PTH115
                return True
    return False


def _is_writable(process: Path, descriptor: str) -> bool:
    for line in (process / "fdinfo" / descriptor).read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
