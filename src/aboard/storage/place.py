"""Where Aboard keeps its own files: the user's cache directory, unless that is on a network.

The index needs shared memory between processes and the spool needs locks, which some of these lack.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from aboard.system import file_system_of


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


NETWORK_FILE_SYSTEMS = _set(
    "9p afs beegfs ceph cifs coda glusterfs gpfs lustre ncpfs nfs nfs4 orangefs panfs pvfs2 smb3 "
    "smbfs virtiofs weka wekafs"
)
LOCAL_IN_USER_SPACE = _set(
    "fuse.bindfs fuse.cryfs fuse.encfs fuse.exfat fuse.ext2 fuse.fuse-overlayfs fuse.gocryptfs "
    "fuse.lxcfs fuse.mergerfs fuse.ntfs fuse.ntfs-3g fuse.portal fuse.securefs fuse.squashfuse "
    "fuse.unionfs fuse.veracrypt fuse.zfs"
)
"""In user space and yet on this machine; of the others there are too many to name."""


class Place(NamedTuple):
    directory: Path
    reason: str = ""


def cache_place() -> Place:
    """Choose the directory: ABOARD_CACHE, else the user's cache, else node-local space."""
    chosen = os.environ.get("ABOARD_CACHE")
    usual = Path(chosen).expanduser() if chosen else _user_cache()
    kind = file_system_of(usual)
    if not is_network(kind):
        return Place(usual)
    import tempfile

    local = Path(tempfile.gettempdir()) / f"aboard-{os.getuid()}"
    return Place(local, f"{usual} is on a network file system ({kind})")


def is_network(kind: str) -> bool:
    if kind == "fuse" or kind.startswith("fuse."):
        return kind not in LOCAL_IN_USER_SPACE
    return kind in NETWORK_FILE_SYSTEMS


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "aboard"


class NotPrivate(PermissionError):  # noqa: N818 - named by what is wrong
    """Other users can change a directory; `remedy` is empty where another one is needed."""

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
    """Write a file that only its user can read; readers see all of it, or the one before."""
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
