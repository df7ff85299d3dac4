"""Embeddings for the projector: tab-separated files where PyTorch's writer puts them.

The file that lists them may have entries of other programs, which are kept.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from aboard.events.encode import png
from aboard.storage.base import NoSuchPath, StorageError
from aboard.storage.local import LocalStorage
from aboard.track.console import notify
from aboard.track.media.arrays import Array, Table, table_of, to_numpy
from aboard.track.media.images import Levels, grid, in_color

CONFIG_FILE = "projector_config.pbtxt"
_ENTRY = re.compile(rb"embeddings \{\n(?: .*\n)*\}\n")
_config = threading.Lock()


def matrix_of(vectors: Any) -> Array:
    matrix = to_numpy(vectors)
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"expected a matrix, one vector a row, got the shape {matrix.shape}")
    return matrix


def labels_of(given: Any) -> Table:
    if not hasattr(given, "columns") and not isinstance(given, dict):
        labels = given.tolist() if hasattr(given, "tolist") else list(given)
        if not any(isinstance(label, dict | list | tuple) for label in labels):
            return Table([], [[label] for label in labels])
        given = labels
    return table_of(given)


def write_embedding(
    directory: str | PathLike[str],
    tag: str,
    step: int,
    matrix: Array,
    metadata: Table | None = None,
    images: Sequence[Levels] | None = None,
) -> None:
    storage = LocalStorage(str(Path(directory).absolute()))
    place = f"{step:05}/{_escaped(tag)}"
    files = {"tensors.tsv": _lines(map(str, row) for row in matrix.tolist())}
    if metadata is not None:
        _check_count("labels", len(metadata.rows), len(matrix))
        header = [metadata.columns] if len(metadata.columns) > 1 else []
        files["metadata.tsv"] = _lines(map(_one_line, row) for row in (*header, *metadata.rows))
    size = None
    if images is not None:
        _check_count("images", len(images), len(matrix))
        size = images[0].shape[1], images[0].shape[0]
        files["sprite.png"] = png(_sprite(images))
    entry = _entry(f"{tag}:{step:05}", place, metadata is not None, size)
    try:
        for name, content in files.items():
            storage.write(f"{place}/{name}", content)
        with _config:
            try:
                before = storage.read(CONFIG_FILE)
            except NoSuchPath:
                before = b""
            storage.write(CONFIG_FILE, _with_entry(before, entry))
    except StorageError as error:
        notify(f"the embedding {tag!r} was not written: {error}")


def _check_count(what: str, count: int, vectors: int) -> None:
    if count != vectors:
        raise ValueError(f"expected {what} for {vectors} vectors, got {count}")


def _escaped(tag: str) -> str:
    escaped = tag.replace("%", "%25").replace("/", "%2f").replace("\\", "%5c")
    return escaped if escaped.strip(".") else escaped.replace(".", "%2e") or "%"


def _lines(rows: Iterable[Iterable[str]]) -> bytes:
    return "".join(["\t".join(row) + "\n" for row in rows]).encode()


def _one_line(cell: Any) -> str:
    text = str(cell)
    return text if text.isprintable() else " ".join(re.split(r"[\t\r\n]", text))


def _sprite(images: Sequence[Levels]) -> Levels:
    sheet = grid(np.stack([in_color(one) for one in images]), int(np.ceil(len(images) ** 0.5)))
    height, width, channels = sheet.shape
    square = np.zeros((max(height, width), width, channels), np.uint8)
    square[:height] = sheet
    return square


def _entry(name: str, place: str, has_metadata: bool, image_size: tuple[int, int] | None) -> bytes:
    lines = [f"  tensor_name: {_quoted(name)}"]
    if has_metadata:
        lines.append(f"  metadata_path: {_quoted(f'{place}/metadata.tsv')}")
    if image_size is not None:
        lines += ["  sprite {", f"    image_path: {_quoted(f'{place}/sprite.png')}"]
        lines += [f"    single_image_dim: {size}" for size in image_size] + ["  }"]
    lines.append(f"  tensor_path: {_quoted(f'{place}/tensors.tsv')}")
    return "\n".join(["embeddings {", *lines, "}\n"]).encode()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _with_entry(config: bytes, entry: bytes) -> bytes:
    name = entry.split(b"\n", 2)[1]
    kept = _ENTRY.sub(lambda one: b"" if name in one[0].split(b"\n") else one[0], config)
    return kept + (b"\n" if kept and not kept.endswith(b"\n") else b"") + entry
