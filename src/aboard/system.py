"""This machine: processes, mounts, locks, private and temporary files, installed packages.

The only reader of `/proc`. A process is identified by its id together with its start time, which no
later process with the same id has. Without `/proc`, only the existence of a process is known:
`find_process`, `process_ids`, `processes_by_group`, `path_of_descriptor` and `boot_id` raise
`OSError`. `Backoff` is here because every package can import this one.
"""

# ruff: noqa: PTH110, PTH115, PTH116, PTH123, PTH208
# Strings instead of Path objects: some functions run for every process of the machine.

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path  # imports urllib, which opening a directory does not need

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_DEAD = (b"Z", b"X", b"x")
_EXEC_SECONDS = 0.05  # how long `exec` may take
_RESET_SIGNALS = ("SIGPIPE", "SIGXFSZ", "SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP")

_NETWORK_FILE_SYSTEMS = (
    "9p afs beegfs ceph cifs coda glusterfs gpfs lustre ncpfs nfs nfs4 orangefs panfs pvfs2 smb3 "
    "smbfs virtiofs weka wekafs"
)
# FUSE file systems on local disks; all others count as network file systems.
_LOCAL_IN_USER_SPACE = (
    "fuse.bindfs fuse.cryfs fuse.encfs fuse.exfat fuse.ext2 fuse.fuse-overlayfs fuse.gocryptfs "
    "fuse.lxcfs fuse.mergerfs fuse.ntfs fuse.ntfs-3g fuse.portal fuse.securefs fuse.squashfuse "
    "fuse.unionfs fuse.veracrypt fuse.zfs"
)


class Process(NamedTuple):
    pid: int
    parent: int
    group: int
    started: int  # in clock ticks since the machine started
    resident: int  # bytes, shared pages included
    computed: float  # seconds of processor time
    is_alive: bool  # false for a zombie


def find_process(pid: int) -> Process | None:
    try:
        text = _read(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may contain anything.
    fields = text.rpartition(b")")[2].split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        started=int(fields[19]),
        resident=int(fields[21]) * _PAGE,
        computed=(int(fields[11]) + int(fields[12])) / _TICKS,
        is_alive=fields[0] not in _DEAD,
    )


def process_ids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def processes_by_group() -> dict[int, list[Process]]:
    found: dict[int, list[Process]] = {}
    for pid in process_ids():
        if (process := find_process(pid)) is not None:
            found.setdefault(process.group, []).append(process)
    return found


def families(groups: Collection[int]) -> dict[int, list[Process]]:
    """Return the processes of each group, with descendants that have left the group."""
    by_group = processes_by_group()
    by_parent: dict[int, list[Process]] = {}
    for members in by_group.values():
        for process in members:
            by_parent.setdefault(process.parent, []).append(process)
    found = {}
    for group in groups:
        family = {process.pid: process for process in by_group.get(group, ())}
        left = list(family)
        while left:
            for child in by_parent.get(left.pop(), ()):
                if child.pid not in family:
                    family[child.pid] = child
                    left.append(child.pid)
        found[group] = list(family.values())
    return found


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since the machine started.

    0 if the process is not running. Without `/proc`, 1 if it is running.
    """
    try:
        process = find_process(pid)
    except OSError:
        return 0
    if process is not None:
        return process.started if process.is_alive else 0
    return 0 if os.path.exists("/proc/self/stat") else _exists(pid)


def _exists(pid: int) -> int:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return 0
    except OSError:
        pass
    return 1


def process_identity() -> str:
    """Return an identity of this process that is unique across machines; see `has_ended`."""
    pid = os.getpid()
    try:
        known = (boot_id(), os.readlink("/proc/self/ns/pid"), str(pid), str(start_ticks(pid)))
    except OSError:
        known = ("", "", str(pid), os.urandom(8).hex())
    return "/".join((os.uname().nodename, *known))


def has_ended(identity: str) -> bool:
    """Return whether a process is known to have exited; False for one on another machine."""
    _, boot, namespace, pid, started = identity.split("/")
    try:
        here = (boot_id(), os.readlink("/proc/self/ns/pid"))
        process = find_process(int(pid))
    except OSError:
        return False
    alive = process is not None and process.is_alive and process.started == int(started)
    return here == (boot, namespace) and not alive


def seconds_since_boot() -> float:
    """Return a monotonic time, which includes suspend where the system can count it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def own_start_time() -> float | None:
    ticks = start_ticks(os.getpid())
    try:
        up = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError):
        return None
    return time.time() - up + ticks / _TICKS if ticks > 1 else None


def proportional_memory(processes: Iterable[Process]) -> int:
    """Return the bytes of memory of several processes, counting each shared page once.

    This is far slower than reading the resident size of each.
    """
    total = 0
    for process in processes:
        size = process.resident
        with contextlib.suppress(OSError, IndexError, ValueError):
            size = _number(f"/proc/{process.pid}/smaps_rollup", "Pss") * 1024
        total += size
    return total


def command_line(pid: int) -> list[str]:
    """Return the arguments a process was started with; empty if they cannot be read."""
    try:
        text = _read(f"/proc/{pid}/cmdline")
    except OSError:
        return []
    return os.fsdecode(text).split("\0")[:-1]


def program_name(pid: int) -> str:
    """Return the name of a process's program, cut to 15 characters; "" if it cannot be read."""
    try:
        return _read(f"/proc/{pid}/comm").decode().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def spawn(
    words: list[str],
    environment: Mapping[str, str],
    *,
    stdin: int,
    stdout: str,
    stderr: str | None = None,
    kept: Iterable[int] = (),
) -> int:
    """Start a program in its own session, and return its process id.

    It reads from the descriptor `stdin` and appends its output to files; standard error goes to
    the file of standard output by default. It inherits the descriptors in `kept`. Signals that
    this process blocks or ignores have their default action there.
    """
    import signal

    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_OPEN, 1, stdout, append, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2)
        if stderr is None
        else (os.POSIX_SPAWN_OPEN, 2, stderr, append, 0o600),
    ]
    # Duplicated onto itself, a descriptor stays open.
    actions += [(os.POSIX_SPAWN_DUP2, one, one) for one in kept]
    return os.posix_spawn(
        words[0],
        words,
        environment,
        file_actions=actions,
        setsid=True,
        setsigmask=(),
        setsigdef=[getattr(signal, name) for name in _RESET_SIGNALS],
    )


def start_variable(pid: int, name: str) -> bytes | None:
    """Return the value an environment variable had when a process started; None if unset."""
    mark = os.fsencode(f"{name}=")
    with contextlib.suppress(OSError):
        for variable in _read(f"/proc/{pid}/environ").split(b"\0"):
            if variable.startswith(mark):
                return variable.removeprefix(mark)
    return None


def start_environment(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty if it cannot be read."""
    try:
        text = _read(f"/proc/{pid}/environ")
    except OSError:
        return {}
    pairs = (one.partition("=") for one in os.fsdecode(text).split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def marked_processes(name: str) -> Iterator[tuple[int, str]]:
    """Yield each process of this user started with an environment variable, and its value.

    Their descendants inherit it, and are included.
    """
    for pid in process_ids():
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
                continue
            _await_environment(pid)
            if (value := start_variable(pid, name)) is not None:
                yield pid, os.fsdecode(value)


def _await_environment(pid: int) -> None:
    """Wait a moment for a process that is in `exec`: its environment is empty until then."""
    patience = time.monotonic() + _EXEC_SECONDS
    while not _read(f"/proc/{pid}/environ") and time.monotonic() < patience:
        os.readlink(f"/proc/{pid}/exe")  # fails for kernel threads and exited processes
        time.sleep(0.001)


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found.extend(map(int, _read(f"/proc/{pid}/task/{task}/children").split()))
    return found


def open_files(pid: int) -> Iterator[tuple[int, str]]:
    """Yield descriptor and path of each open file; for pipes and deleted files no real path."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield int(name), os.readlink(f"/proc/{pid}/fd/{name}")


def writes_below(pid: int, directory: str) -> bool:
    return any(
        path.startswith(f"{directory}/") and _is_writable(pid, descriptor)
        for descriptor, path in open_files(pid)
    )


def _is_writable(pid: int, descriptor: int) -> bool:
    with contextlib.suppress(OSError, IndexError, ValueError):
        flags = _number(f"/proc/{pid}/fdinfo/{descriptor}", "flags", base=8)
        return flags & os.O_ACCMODE != os.O_RDONLY
    return False


def has_pending_signal(pid: int, number: int) -> bool | None:
    """Return whether a signal that a process blocks is pending; None if unknown."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        pending = _number(f"/proc/{pid}/status", "ShdPnd", base=16)
        return bool(pending >> (number - 1) & 1)
    return None


def path_of_descriptor(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def pid_namespace() -> int:
    """Return the inode of this process's PID namespace, or 0 if unknown."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """Return the file system of `path`, or of its nearest existing parent; "" if it is unknown."""
    try:
        if mounts is None:
            mounts = os.fsdecode(_read("/proc/self/mountinfo"))
        nearest = path.absolute()
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        resolved = nearest.resolve()
    except OSError:  # no /proc, a dead mount, or no permission
        return ""
    best, kind = -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        parts, tail = left.split(), right.split()
        if len(parts) < 5 or not tail:
            continue
        point = type(path)(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), parts[4]))
        if resolved.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), tail[0]
    return kind


def is_fuse(path: Path, mounts: str | None = None) -> bool:
    # Most mounted buckets add a name (`fuse.gcsfuse`); Mountpoint for S3 is just `fuse`.
    kind = file_system_of(path, mounts)
    return kind == "fuse" or kind.startswith("fuse.")


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; raise `OSError` for a pipe, which could block forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


def signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; return False if another process holds the lock.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[int]:
    """Hold the lock of a file; wait while another process holds it.

    Yields the descriptor: a child that inherits it holds the lock too, until it exits.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


class Backoff:
    """A delay that grows from `first` to `longest`, each time by `factor`; 0 before the first."""

    def __init__(self, first: float, longest: float, factor: float = 2.0) -> None:
        self._first, self._longest, self._factor = first, longest, factor
        self.delay = 0.0

    def grow(self) -> float:
        """Return the next delay."""
        self.delay = min(max(self._factor * self.delay, self._first), self._longest)
        return self.delay

    def reset(self) -> None:
        self.delay = 0.0


def _number(path: str, field: str, base: int = 10) -> int:
    """Read a field other than the first; raise `IndexError` if it is missing."""
    return int(_read(path).partition(f"\n{field}:".encode())[2].split()[0], base)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def compiled(name: str) -> Any:
    """Import a C core; None if it was not compiled, or ABOARD_PURE_PYTHON is set."""
    if os.environ.get("ABOARD_PURE_PYTHON"):
        return None
    try:
        return sys.modules.get(name) or import_module(name)
    except ImportError:
        return None


def require(*packages: str, install: str = "aboard") -> None:
    """Raise `ImportError` if one of the packages is missing; none is imported.

    Tracking needs only numpy, and obstore for buckets; an image for training may have no more.
    """
    from importlib.util import find_spec

    missing = [one for one in packages if one not in sys.modules and find_spec(one) is None]
    if missing:
        raise ImportError(explain(*missing, install=install), name=missing[0])


@contextlib.contextmanager
def requires(*packages: str, install: str = "aboard") -> Iterator[None]:
    """Raise the error of `require` if an import in the block needs a missing package."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in packages:
            raise
        raise ImportError(explain(missing, install=install), name=missing) from None


def explain(*packages: str, install: str = "aboard") -> str:
    are = "is" if len(packages) == 1 else "are"
    return f"this needs {', '.join(packages)}, which {are} not installed: pip install {install}"


class CachePlace(NamedTuple):
    directory: Path
    reason: str = ""


def cache_place() -> CachePlace:
    """Choose the cache directory: ABOARD_CACHE, the user's cache, or a node-local directory.

    The index needs shared memory between processes and the spool needs locks, which some network
    file systems lack.
    """
    from pathlib import Path

    if chosen := os.environ.get("ABOARD_CACHE"):
        usual = Path(chosen).expanduser()
    else:
        base = os.environ.get("XDG_CACHE_HOME")
        home = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
        usual = home / "aboard"
    kind = file_system_of(usual)
    if not is_network(kind):
        return CachePlace(usual)
    import tempfile

    local = Path(tempfile.gettempdir()) / f"aboard-{os.getuid()}"
    return CachePlace(local, f"{usual} is on a network file system ({kind})")


def is_network(kind: str) -> bool:
    if kind == "fuse" or kind.startswith("fuse."):
        return kind not in _LOCAL_IN_USER_SPACE.split()
    return kind in _NETWORK_FILE_SYSTEMS.split()


class NotPrivate(PermissionError):
    """Other users can write to a directory; `remedy` is empty if only another one helps."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.remedy = remedy


def make_private(directory: Path) -> None:
    """Create a private directory; raise `NotPrivate` if others own it or can write to it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.getuid():
        raise NotPrivate(f"{directory} belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o022:
        from shlex import quote

        remedy = f"Run 'chmod go-w {quote(str(directory))}'"
        raise NotPrivate(f"{directory} can be written to by other users", remedy)


def write_private(path: Path, content: str | bytes) -> None:
    """Replace a file atomically; only its owner can read it."""
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


# Temporary files and directories that are removed with their process. A killed process cannot
# remove them, so the next one does: each process locks its own, and the lock is released when the
# process exits. Names contain a digest of user and machine, because locks may not work across
# machines.

_LOCK_NAME = "lock"


@contextlib.contextmanager
def own_directory(name: str) -> Iterator[Path]:
    """Create a temporary directory and remove it when the context exits."""
    import shutil
    import tempfile
    from pathlib import Path

    above = Path(tempfile.gettempdir())
    prefix = f"{name}-{machine_digest()}-"
    _remove_abandoned(above, f"{prefix}*")
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
    try:
        with _locked_as(directory / f"new-{_LOCK_NAME}", directory / _LOCK_NAME):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def own_file(above: Path, name: str, suffix: str, text: str) -> Iterator[Path]:
    """Write a file that only its owner can read; remove it when the context exits."""
    import tempfile
    from pathlib import Path

    prefix = f"{name}-{machine_digest()}-"
    _remove_abandoned(above, f"{prefix}*{suffix}")
    descriptor, made = tempfile.mkstemp(prefix=f".{prefix}", dir=above)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    path = Path(made)
    shown = path.with_name(f"{path.name[1:]}{suffix}")
    try:
        with _locked_as(path, shown):
            yield shown
    finally:
        path.unlink(missing_ok=True)
        shown.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked_as(new: Path, path: Path) -> Iterator[None]:
    """Lock a file before renaming it to the name that other processes look for."""
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock_if_possible(descriptor)  # may fail: where locks do not work, nothing is removed
        new.rename(path)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(above: Path, pattern: str) -> None:
    """Remove files and directories of this user whose process has exited."""
    import shutil

    for path in above.glob(pattern):
        try:
            status = path.lstat()
            is_directory = stat.S_ISDIR(status.st_mode)
            if status.st_uid != os.geteuid() or not (is_directory or stat.S_ISREG(status.st_mode)):
                continue
            lock = path / _LOCK_NAME if is_directory else path
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if not _lock_if_possible(descriptor):
                continue
            if is_directory:
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def _lock_if_possible(descriptor: int) -> bool:
    try:
        return try_lock(descriptor)
    except OSError:
        return False


def machine_digest() -> str:
    """Return a short digest of this machine and its user, which reveals neither."""
    import socket

    return _digest(f"{socket.gethostname()} {os.getuid()}")


@cache  # every request needs it
def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:8]
