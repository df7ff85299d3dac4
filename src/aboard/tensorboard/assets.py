"""TensorBoard's frontend files, shared by all boards of a process.

They are members of a zip archive, read on first request.
"""

from __future__ import annotations

import gzip
import io
import mimetypes
import os
import struct
import threading
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

INDEX = "index.html"
_OURS = "aboard.js"
_FIRST_SCRIPT = b"<script src="


class Asset(NamedTuple):
    body: bytes  # gzip
    etag: str
    media_type: str


class Assets:
    def __init__(self, archive: Path | None = None) -> None:
        self._archive = archive if archive is not None else _tensorboard_archive()
        with zipfile.ZipFile(self._archive) as members:
            self._members = {
                info.filename: info for info in members.infolist() if not info.is_dir()
            }
        self._held: dict[str, Asset] = {}
        self._lock = threading.Lock()

        script = Path(__file__).with_name("page.js").read_bytes()
        checksum = f'W/"{zlib.crc32(script):08x}"'
        self._held[_OURS] = Asset(gzip.compress(script, mtime=0), checksum, "text/javascript")

    def __contains__(self, path: str) -> bool:
        return path in self._members or path == _OURS

    def get(self, path: str) -> Asset | None:
        info = self._members.get(path)
        if info is None:
            return self._held.get(path)
        with self._lock:
            if path not in self._held:
                body = self._gzipped(info)
                media_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
                # Weak, because it is the same for compressed and plain content.
                self._held[path] = Asset(body, f'W/"{info.CRC:08x}"', media_type)
            return self._held[path]

    def _gzipped(self, info: zipfile.ZipInfo) -> bytes:
        """Return a member as gzip, which only frames the compressed bytes differently."""
        if info.compress_type != zipfile.ZIP_DEFLATED:
            return gzip.compress(self.read(info.filename), mtime=0)
        with self._archive.open("rb") as archive:
            archive.seek(info.header_offset + 26)
            name_length, extra_length = struct.unpack("<HH", archive.read(4))
            archive.seek(name_length + extra_length, os.SEEK_CUR)
            deflated = archive.read(info.compress_size)
        header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
        return header + deflated + struct.pack("<II", info.CRC, info.file_size)

    def read(self, path: str) -> bytes:
        with zipfile.ZipFile(self._archive) as members:
            return members.read(path)

    def _page(self) -> bytes:
        ours = b'<script src="' + _OURS.encode() + b'"></script>'
        return self.read(INDEX).replace(_FIRST_SCRIPT, ours + _FIRST_SCRIPT, 1)

    def index_archive(self) -> io.BytesIO:
        """Return an archive with only the page, for TensorBoard to serve with its own headers.

        TensorBoard compresses the full archive at startup, which takes most of a second.
        """
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as members:
            members.writestr(INDEX, self._page())
        archive.seek(0)
        return archive


def _tensorboard_archive() -> Path:
    from importlib.util import find_spec

    spec = find_spec("tensorboard")
    if spec is None or spec.origin is None:
        raise RuntimeError("TensorBoard is not installed: pip install tensorboard")
    return Path(spec.origin).parent / "webfiles.zip"
