"""Embeddings for the projector: tab-separated files below a run, and the text that names them.

The files lie where PyTorch's writer puts them. The configuration may be somebody else's too: what
is in it stays as it is, save the entry of an embedding that is written anew.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from aboard.events.media import png
from aboard.storage.base import NotFound
from aboard.storage.local import LocalStorage
from aboard.track.arrays import Array, to_numpy
from aboard.track.pictures import Levels, grid
from aboard.track.tables import Table, table_of

CONFIG_FILE = "projector_config.pbtxt"
_ENTRY = re.compile(rb"embeddings \{\n(?: .*\n)*\}\n")
_config = threading.Lock()


def matrix_of(vectors: Any) -> Array:
    """Return the vectors of an embedding, one a row.

    Raises:
        ValueError: they are no matrix.
    """
    matrix = to_numpy(vectors)
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"expected a matrix, one vector a row, got the shape {matrix.shape}")
    return matrix


def labels_of(given: Any) -> Table:
    """Return what is known of each vector: one label, without a name, or a table's columns."""
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
    pictures: Sequence[Levels] | None = None,
) -> None:
    """Write the files of an embedding, then its entry in the configuration.

    Raises:
        StorageError: a file cannot be written.
        ValueError: the labels or pictures are not as many as the vectors.
    """
    storage = LocalStorage(str(Path(directory).absolute()))
    place = f"{step:05}/{_escaped(tag)}"
    files = {"tensors.tsv": _lines(map(str, row) for row in matrix.tolist())}
    if metadata is not None:
        _check_count("labels", len(metadata.rows), len(matrix))
        header = [metadata.columns] if len(metadata.columns) > 1 else []
        files["metadata.tsv"] = _lines(map(_one_line, row) for row in (*header, *metadata.rows))
    size = None
    if pictures is not None:
        _check_count("images", len(pictures), len(matrix))
        size = pictures[0].shape[1], pictures[0].shape[0]
        files["sprite.png"] = png(_sprite(pictures))
    for name, content in files.items():
        storage.write(f"{place}/{name}", content)
    entry = _entry(f"{tag}:{step:05}", place, metadata is not None, size)
    with _config:
        try:
            before = storage.read(CONFIG_FILE)
        except NotFound:
            before = b""
        storage.write(CONFIG_FILE, _with_entry(before, entry))


def _check_count(what: str, count: int, vectors: int) -> None:
    if count != vectors:
        raise ValueError(f"expected {what} for {vectors} vectors, got {count}")


def _escaped(tag: str) -> str:
    """Make one part of a path of a tag."""
    escaped = tag.replace("%", "%25").replace("/", "%2f").replace("\\", "%5c")
    return escaped if escaped.strip(".") else escaped.replace(".", "%2e") or "%"


def _lines(rows: Iterable[Iterable[str]]) -> bytes:
    return "".join(["\t".join(row) + "\n" for row in rows]).encode()


def _one_line(cell: Any) -> str:
    text = str(cell)
    return text if text.isprintable() else " ".join(re.split(r"[\t\r\n]", text))


def _sprite(pictures: Sequence[Levels]) -> Levels:
    """Lay the pictures out in a square, row by row."""
    shades = np.stack([np.repeat(one, 3, axis=2) if one.shape[2] == 1 else one for one in pictures])
    sheet = grid(shades, int(np.ceil(len(pictures) ** 0.5)))
    height, width, channels = sheet.shape
    square = np.zeros((max(height, width), width, channels), np.uint8)
    square[:height] = sheet
    return square


def _entry(
    name: str, place: str, has_metadata: bool, picture_size: tuple[int, int] | None
) -> bytes:
    lines = [f"  tensor_name: {_quoted(name)}"]
    if has_metadata:
        lines.append(f"  metadata_path: {_quoted(f'{place}/metadata.tsv')}")
    if picture_size is not None:
        lines += ["  sprite {", f"    image_path: {_quoted(f'{place}/sprite.png')}"]
        lines += [f"    single_image_dim: {size}" for size in picture_size] + ["  }"]
    lines.append(f"  tensor_path: {_quoted(f'{place}/tensors.tsv')}")
    return "\n".join(["embeddings {", *lines, "}\n"]).encode()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _with_entry(config: bytes, entry: bytes) -> bytes:
    """Add an entry, in place of one of the same name."""
    name = entry.split(b"\n", 2)[1]
    kept = _ENTRY.sub(lambda one: b"" if name in one[0].split(b"\n") else one[0], config)
    return kept + (b"\n" if kept and not kept.endswith(b"\n") else b"") + entry
