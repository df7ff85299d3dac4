"""The image of boards in containers, built from the running installation.

Aboard and its dependencies are copied as they are installed here, with nothing downloaded, onto a
base image with the same version of Python.
"""

from __future__ import annotations

import io
import json
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import aboard
from aboard.executors.base import ExecutorError

PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
BASE = f"python:{PYTHON_VERSION}-slim"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STEPS = re.compile(r"Step \d+/\d+ :|--->")  # lines of the engine, not output of commands
_DIRECTORY = Path(aboard.__file__).parent


def default_tag() -> str:
    return f"aboard:{aboard.__version__}"


class Built(NamedTuple):
    id: str
    size: int  # bytes


def build_image(
    client: Any,
    *,
    tag: str,
    base: str = BASE,
    add: Iterable[str] = (),
    progress: Callable[[str], object] = lambda _: None,
) -> Built:
    """Build the image with a client of Docker.

    `add` are requirements of installed packages, such as `aboard[postgres]` or a plugin of
    TensorBoard. `progress` receives the output of the engine.

    Raises:
        ExecutorError: it could not be built.
    """
    from docker.errors import APIError, DockerException

    if platform.system() != "Linux":
        raise ExecutorError(
            "the image contains the packages installed here, which run only on Linux in a "
            "container. Build it on Linux."
        )
    with tempfile.TemporaryFile() as context:
        write_context(context, add)
        context.seek(0)
        output: list[str] = []
        try:
            for line in client.api.build(
                fileobj=context,
                custom_context=True,
                tag=tag,
                rm=True,
                forcerm=True,
                decode=True,
                buildargs={"BASE": base, "PYTHON": PYTHON_VERSION},
                labels={"org.opencontainers.image.version": aboard.__version__},
            ):
                if error := line.get("error"):
                    words = " ".join([*output[-3:], str(error)]).strip().rstrip(".")
                    raise ExecutorError(
                        f"{tag}: the image cannot be built on {base}: {words}. "
                        "Choose another base with --base."
                    )
                stream = _COLOURS.sub("", line.get("stream", ""))
                for text in filter(None, map(str.strip, stream.splitlines())):
                    output = [] if _STEPS.match(text) else [*output, text]
                    progress(text)
            found = client.api.inspect_image(tag)
            return Built(str(found["Id"]), int(found["Size"]))
        except (APIError, DockerException) as error:
            words = getattr(error, "explanation", None) or error
            raise ExecutorError(
                f"{tag}: the image cannot be built: {words}. Check: docker info"
            ) from error


def write_context(file: IO[bytes], add: Iterable[str] = ()) -> None:
    """Write the build context: the Dockerfile and the packages."""
    with tarfile.open(fileobj=file, mode="w") as tar:
        dockerfile = (files("aboard.executors.docker") / "Dockerfile").read_bytes()
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(dockerfile)
        tar.addfile(member, io.BytesIO(dockerfile))
        for name, path in _package_files(add):
            tar.add(path, f"packages/{name}", recursive=False, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Make a file readable for all users of the container, whoever owns it here."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def _package_files(add: Iterable[str]) -> Iterator[tuple[str, Path]]:
    for one in _closure(["aboard", *add]):
        for name in one.files or ():
            path = Path(str(name.locate()))
            if _belongs(name) and path.is_file():
                yield str(name), path
    if _is_editable(distribution("aboard")):
        for path in sorted(_DIRECTORY.rglob("*")):
            if path.is_file():
                yield f"aboard/{path.relative_to(_DIRECTORY)}", path


def _belongs(name: PurePosixPath) -> bool:
    """Return whether an installed file belongs in the image: no scripts, no local paths."""
    return name.parts[0] != ".." and name.suffix != ".pth" and name.name != "direct_url.json"


def _is_editable(aboard: Distribution) -> bool:
    url = aboard.read_text("direct_url.json")
    return bool(url and json.loads(url).get("dir_info", {}).get("editable"))


def _closure(names: Iterable[str]) -> list[Distribution]:
    """Return the installed distributions of some requirements, with their dependencies."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    left: list[tuple[str, str]] = []

    def add(text: str, extra: str, of: str) -> None:
        try:
            wanted = Requirement(text)
        except InvalidRequirement as error:
            raise ExecutorError(f"{text!r} is not the name of a package: {error}.") from error
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            return
        name = canonicalize_name(wanted.name)
        if name not in found:
            try:
                found[name] = distribution(name)
            except PackageNotFoundError as error:
                raise ExecutorError(
                    f"{of} needs {wanted.name}, which is not installed. "
                    f"Install it here first: pip install '{text.partition(';')[0].strip()}'"
                ) from error
        known = map(canonicalize_name, found[name].metadata.get_all("Provides-Extra") or ())
        if unknown := sorted(set(map(canonicalize_name, wanted.extras)).difference(known)):
            raise ExecutorError(f"{name} has no extra {unknown[0]!r} in this installation.")
        left.extend((name, one) for one in ("", *sorted(wanted.extras)))

    for name in names:
        add(name, "", "the image")
    while left:
        name, extra = place = left.pop()
        if place in seen:
            continue
        seen.add(place)
        for text in found[name].requires or ():
            if not extra or "extra" in text:
                add(text, extra, name)
    return list(found.values())
