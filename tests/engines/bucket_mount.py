"""A fake of gcsfuse and similar programs: mounts a directory as if it were a bucket.

    python bucket_mount.py BUCKET MOUNT_POINT {append,refuse-open,refuse-write}

A file is uploaded when it is closed. Appending is refused when the file is opened, like Mountpoint
for S3, or when it is written to, like goofys. While the bucket has an object `full`, it accepts no
other. Needs the library of the Debian package fuse3.
"""

import errno
import os
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

FAMILY = "bucket"
FULL = "full"


class MountError(Exception):
    """The bucket cannot be mounted on this machine."""


@contextmanager
def mounted(bucket: Path, place: Path, kind: str = "append"):
    """Mount a bucket on an empty directory, in a child process, until the end of the block."""
    from tests.waiting import until  # imported here: the child process cannot import `tests`

    if not Path("/dev/fuse").exists():
        raise MountError("there is no /dev/fuse: load the kernel module fuse")
    command = [sys.executable, __file__, str(bucket), str(place), kind]
    environment = os.environ | {"FUSE_LIBRARY_NAME": "fuse3"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: process.poll() is not None or place.is_mount())
            if process.poll() is not None:
                said = process.stderr.read().strip()[-200:]
                raise MountError(f"install mfusepy and fuse3, and be root: {said}")
            yield
        finally:
            process.terminate()  # which unmounts
            process.wait(180)


def serve(bucket: Path, place: str, kind: str) -> None:
    """Serve requests of the kernel until unmounted."""
    from mfusepy import FUSE, Operations

    class Bucket(Operations):
        use_ns = True

        def __init__(self):
            self.staged: dict[str, bytearray] = {}

        def getattr(self, path, fh=None):
            staged = self.staged.get(path)
            status = os.lstat(bucket / path[1:]) if staged is None else None
            return {
                "st_mode": status.st_mode if status else stat.S_IFREG | 0o644,
                "st_size": status.st_size if status else len(staged),
                "st_nlink": 1,
            }

        def readdir(self, path, fh):
            return [".", "..", *[each.name for each in (bucket / path[1:]).iterdir()]]

        def mkdir(self, path, mode):
            (bucket / path[1:]).mkdir()
            return 0

        def unlink(self, path):
            self.staged.pop(path, None)
            (bucket / path[1:]).unlink(missing_ok=True)
            return 0

        def create(self, path, mode, fi=None):
            self.staged[path] = bytearray()
            return 0

        def open(self, path, flags):
            if flags & os.O_ACCMODE != os.O_RDONLY:
                if kind == "refuse-open":
                    raise OSError(errno.EPERM, "objects cannot be appended to")
                self.staged[path] = bytearray((bucket / path[1:]).read_bytes())
            return 0

        def read(self, path, size, offset, fh):
            content = self.staged.get(path)
            if content is None:
                content = (bucket / path[1:]).read_bytes()
            return bytes(content[offset : offset + size])

        def write(self, path, data, offset, fh):
            content = self.staged[path]
            if kind == "refuse-write" and (bucket / path[1:]).exists():
                raise OSError(errno.ENOTSUP, "objects are written from their beginning")
            content[offset : offset + len(data)] = data
            return len(data)

        def truncate(self, path, length, fh=None):
            content = self.staged.setdefault(path, bytearray((bucket / path[1:]).read_bytes()))
            del content[length:]
            return 0

        def flush(self, path, fh):
            if path in self.staged:
                if (bucket / FULL).exists():
                    raise OSError(errno.ENOSPC, "the bucket is full")
                uploading = bucket / ".uploading"
                uploading.write_bytes(self.staged[path])
                uploading.rename(bucket / path[1:])
            return 0

        def release(self, path, fh):
            self.staged.pop(path, None)
            return 0

    FUSE(Bucket(), place, foreground=True, nothreads=True, subtype=FAMILY, attr_timeout=0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
