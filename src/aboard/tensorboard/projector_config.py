"""The projector's configuration: which files hold the embeddings of a run.

It is text that somebody else wrote, and names files: what it names is used only
where it lies in the directory of the configuration or below it.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aboard.events import protos

CONFIG_FILE = "projector_config.pbtxt"
ASSETS_DIRECTORY = "plugins/org_tensorflow_tensorboard_projector"
"""Where TensorBoard's writer of plugin assets puts a configuration, below the run."""
_LARGEST_CONFIG = 4 << 20

Config = Any
Stamp = tuple[int, int, int]


class BadConfig(ValueError):  # noqa: N818 - named by what is wrong
    """A configuration that cannot be used."""


def read_config(path: Path) -> Config:
    """Read a configuration; every embedding of it has a name.

    Raises:
        BadConfig: it is not the text of a configuration.
        OSError: it cannot be read.
    """
    protos.keep_tensorflow_out()
    from google.protobuf import text_format  # type: ignore[import-untyped]
    from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

    config = ProjectorConfig()
    with path.open("rb") as file:
        text = file.read(_LARGEST_CONFIG + 1)
    if len(text) > _LARGEST_CONFIG:
        raise BadConfig(f"{path} is too large for a projector's configuration")
    try:
        text_format.Parse(text.decode(), config)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not a projector's configuration: {error}") from error
    for embedding in config.embeddings:
        if not embedding.tensor_name:
            embedding.tensor_name = embedding.tensor_path.rpartition("/")[2]
        embedding.tensor_name = embedding.tensor_name.removesuffix(":0")
    return config


def named_files(config: Config) -> Iterator[str]:
    """Yield the paths that a configuration names, as they are written in it."""
    for embedding in config.embeddings:
        sprite = embedding.sprite.image_path
        paths = (embedding.tensor_path, embedding.metadata_path, embedding.bookmarks_path, sprite)
        yield from filter(None, paths)


def find_config(directory: Path) -> Path | None:
    """Return the configuration of a run's directory, or None if it has none."""
    for path in (directory / ASSETS_DIRECTORY / CONFIG_FILE, directory / CONFIG_FILE):
        if stamp_of(path) is not None:
            return path
    return None


def stamp_of(path: Path) -> Stamp | None:
    """Return what changes when a file does; None if there is no such regular file."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def resolve(path: str, config_path: Path) -> Path:
    """Return the file that a configuration means by a path.

    Raises:
        BadConfig: it is not below the configuration's directory.
    """
    home = config_path.parent.resolve()
    try:
        found = (home / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise BadConfig(f"{path!r} is no path") from error
    if not found.is_relative_to(home):
        raise BadConfig(f"{path!r} leads out of the directory of {config_path}")
    return found


def tsv_shape(path: Path) -> tuple[int, int] | None:
    """Return rows and columns of a tensor in tab-separated text; None for any other file."""
    rows = columns = 0
    with path.open("rb") as file:
        if b"\0" in file.read(4096):
            return None
        file.seek(0)
        for line in file:
            if line.strip(b"\n"):
                columns = columns or line.count(b"\t") + 1
                rows += 1
    return (rows, columns) if rows else None
