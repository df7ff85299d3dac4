"""What kind of file system holds a path, as the kernel's table of mounts tells it."""

from __future__ import annotations

import re
from pathlib import Path


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
    try:
        resolved = path.absolute()
        while not resolved.exists() and resolved != resolved.parent:
            resolved = resolved.parent
        resolved = resolved.resolve()
    except OSError:  # a mount that is dead, or not for us to look into
        return ""
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


def is_fuse(path: Path, mounts: str | None = None) -> bool:
    """Tell whether `path` is on a file system in user space, as mounted buckets are.

    Most say which (`fuse.gcsfuse`, `fuse.s3fs`), some do not: Mountpoint for S3 is just `fuse`.
    """
    kind = file_system_of(path, mounts)
    return kind == "fuse" or kind.startswith("fuse.")
