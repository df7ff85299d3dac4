"""The contenders: this project's commands, and what else reads a log tree.

Each is a function of a tree that returns what it took, and raises if not everything
was read. The index is always a new one unless a directory is given.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from measure import Measured, to_end, until
from trees import Tree, file_of

ABOARD = [str(Path(sys.executable).with_name("aboard"))]
TENSORBOARD = [str(Path(sys.executable).with_name("tensorboard"))]
INSIDE = [sys.executable, str(Path(__file__).with_name("inside.py"))]
LOADED = "Finished load cycle"
"""What the data server logs once it has read all there is."""


class Unread(RuntimeError):  # noqa: N818 - named by what is wrong
    """A contender did not read all of a tree."""


@contextmanager
def new_index(cache: Path) -> Iterator[Path]:
    """Lend a directory for an index, on the disk where the trees are."""
    cache.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="index-", dir=cache))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def environment(index: Path | None = None, *, pure: bool = False) -> dict[str, str]:
    """Return the environment of a contender; modules are compiled once, as an installation is."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("ABOARD_")}
    own.pop("PYTHONDONTWRITEBYTECODE", None)
    if index:
        own["ABOARD_CACHE"] = str(index)
    if pure:
        own["ABOARD_PURE_PYTHON"] = "1"
    return own


def aboard_index(tree: Tree, place: Path, index: Path) -> Measured:
    """Run `aboard index` from start to end."""
    measured = to_end([*ABOARD, "index", str(place), "--json"], environment(index))
    [source] = json.loads(measured.output)["sources"]
    _check("aboard index", source["points"], tree.points)
    return measured


def aboard_ls(tree: Tree, place: Path, index: Path) -> Measured:
    """Run `aboard ls` from start to end."""
    measured = to_end([*ABOARD, "ls", str(place), "--json"], environment(index))
    [source] = json.loads(measured.output)["sources"]
    _check("aboard ls", len(source["runs"]), tree.runs)
    return measured


def aboard_open(tree: Tree, place: Path, index: Path) -> Measured:
    """Open a tree in Python and count its runs, the start of Python included."""
    script = "import sys, aboard; print(len(aboard.open(sys.argv[1]).runs))"
    measured = to_end([sys.executable, "-c", script, str(place)], environment(index))
    _check("aboard.open", int(measured.output), tree.runs)
    return measured


def inside(name: str, *arguments: object, index: Path | None = None, pure: bool = False) -> dict:
    """Run a part of inside.py; return what it says, and what it took."""
    measured = to_end([*INSIDE, name, *map(str, arguments)], environment(index, pure=pure))
    return {**json.loads(measured.output), "peak": measured.peak, "cpu": measured.cpu}


def aboard_refresh(tree: Tree, place: Path, index: Path, *, pure: bool = False) -> Measured:
    """Bring a new index up to date, not counting the start of the process."""
    said = inside("refresh", place, index=index, pure=pure)
    _check("refresh", said["events"], tree.points + tree.runs)
    return Measured(said["seconds"], said["peak"], said["cpu"])


def stock_loader(tree: Tree, place: Path) -> Measured:
    """Load a tree of one run with TensorBoard's Python loader, its start not counted."""
    said = inside("accumulate", file_of(place, 0))
    _check("TensorBoard's Python loader", said["points"], tree.points)
    return Measured(said["seconds"], said["peak"], said["cpu"])


def has_data_server() -> bool:
    """Say whether TensorBoard's data server exists for this machine."""
    import tensorboard_data_server

    return tensorboard_data_server.server_binary() is not None


def data_server(tree: Tree, place: Path, *, checksum: bool = False) -> Measured:
    """Run TensorBoard's data server alone, until it has loaded everything once."""
    import tensorboard_data_server

    with tempfile.TemporaryDirectory() as scratch:
        port_file = Path(scratch) / "port"
        options = ["--port", "0", "--port-file", str(port_file), "--die-after-stdin", "-v"]
        command = [tensorboard_data_server.server_binary(), "--logdir", str(place), *options]
        command += ["--checksum"] if checksum else []

        def ready_and_right(process: subprocess.Popen[str]) -> None:
            _wait_until_loaded(process)
            _check_data_server(tree, int(port_file.read_text()))

        if (tree, checksum) not in _CHECKED:  # to ask takes time and memory: not when it counts
            until(command, environment(), ready_and_right)
            _CHECKED.add((tree, checksum))
        return until(command, environment(), _wait_until_loaded)


_CHECKED: set[tuple[Tree, bool]] = set()


def tensorboard(tree: Tree, place: Path) -> Measured:
    """Run `tensorboard --load_fast=true` until it serves the tags of a tree that is all loaded."""
    port = _free_port()
    command = [*TENSORBOARD, "--logdir", str(place), "--load_fast=true", f"--port={port}"]
    command += ["--host=127.0.0.1", "--extra_data_server_flags=-v"]

    def ready(process: subprocess.Popen[str]) -> None:
        _wait_until_loaded(process)
        found = json.loads(_get(port, "/data/plugin/scalars/tags"))
        _check("tensorboard", sum(map(len, found.values())), tree.runs * tree.tags)

    return until(command, environment(), ready)


def _wait_until_loaded(process: subprocess.Popen[str]) -> None:
    said = []
    for line in process.stderr or ():
        if LOADED in line:
            return
        said.append(line)
    raise Unread(f"it ended before it had loaded anything: {''.join(said)[-500:]}")


def _check_data_server(tree: Tree, port: int) -> None:
    """Ask for every run and tag, and compare the last steps."""
    import grpc
    from tensorboard.data.proto import data_provider_pb2, data_provider_pb2_grpc

    request = data_provider_pb2.ListScalarsRequest(experiment_id="")
    request.plugin_filter.plugin_name = "scalars"
    unlimited = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"localhost:{port}", unlimited) as channel:
        stub = data_provider_pb2_grpc.TensorBoardDataProviderStub(channel)
        runs = stub.ListScalars(request).runs
    last_steps = [tag.metadata.max_step for run in runs for tag in run.tags]
    _check("data server", len(last_steps), tree.runs * tree.tags)
    _check("data server", set(last_steps), {tree.steps - 1})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _get(port: int, path: str) -> bytes:
    """Fetch a page of a server that may still be about to listen."""
    for _ in range(6000):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        except ConnectionRefusedError:
            time.sleep(0.01)
        finally:
            connection.close()
    raise Unread(f"nothing listens on port {port}")


def _check(who: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Unread(f"{who} found {found} where {wanted} was written")
