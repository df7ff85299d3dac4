"""Where the index lives: the user's cache directory, unless that is on a network.

SQLite's write-ahead log needs shared memory between processes, which network
file systems do not give; there the index goes to node-local space instead. The
index is a cache, so any place will do that is fast, private and local.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "fuse.beegfs",
        "fuse.blobfuse2",
        "fuse.ceph",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
        "virtiofs",
        "weka",
        "wekafs",
    }
)


class Place(NamedTuple):
    """A directory for the index, and why it is not the usual one if it is not."""

    directory: Path
    reason: str = ""


def index_place() -> Place:
    """Choose the directory: ABOARD_CACHE, else the user's cache, else node-local space."""
    chosen = os.environ.get("ABOARD_CACHE")
    wanted = Path(chosen).expanduser() if chosen else _user_cache()
    kind = file_system_of(wanted)
    if kind not in NETWORK_FILE_SYSTEMS:
        return Place(wanted)
    local = Path(tempfile.gettempdir()) / f"aboard-{os.getuid()}"
    return Place(local, f"{wanted} is on a network file system ({kind})")


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "aboard"


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system that holds `path`, or "" where that is unknown.

    Args:
        path: may not exist yet; then the nearest directory above it counts.
        mounts: the text of /proc/self/mountinfo, read from there by default.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text()
        except OSError:
            return ""
    resolved = path.absolute()
    while not resolved.exists() and resolved != resolved.parent:
        resolved = resolved.parent
    resolved = resolved.resolve()
    best, kind = -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        parts, tail = left.split(), right.split()
        if len(parts) < 5 or not tail:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), parts[4]))
        if resolved.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), tail[0]
    return kind


def make_private(directory: Path) -> None:
    """Create a directory that only its user can enter.

    Raises:
        PermissionError: it exists and belongs to someone else, as may be in a shared /tmp.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise PermissionError(f"{directory} can be written to by other users")
