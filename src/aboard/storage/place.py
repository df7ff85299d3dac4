"""Where Aboard keeps what is its own: the user's cache directory, unless that is on a network.

The index needs shared memory between processes and the spool needs locks, which network file
systems do not give, or not always; there both go to node-local space instead.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import NamedTuple

from aboard.events.mounts import file_system_of

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
    """A directory, and why it is not the usual one if it is not."""

    directory: Path
    reason: str = ""


def cache_place() -> Place:
    """Choose the directory: ABOARD_CACHE, else the user's cache, else node-local space."""
    chosen = os.environ.get("ABOARD_CACHE")
    wanted = Path(chosen).expanduser() if chosen else _user_cache()
    kind = file_system_of(wanted)
    if kind not in NETWORK_FILE_SYSTEMS:
        return Place(wanted)
    import tempfile

    local = Path(tempfile.gettempdir()) / f"aboard-{os.getuid()}"
    return Place(local, f"{wanted} is on a network file system ({kind})")


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "aboard"


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


def write_private(path: Path, text: str) -> None:
    """Write a file that only its user can read, in one step: all of it, or the one before."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
