"""The contenders: Aboard's commands, and other readers of log trees.

Each is a function of a tree that returns its time and memory, and raises `MeasurementError` if it
did not read all of the tree.
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

from measure import Measured, run_command, run_server
from trees import Tree, file_of

ABOARD = [str(Path(sys.executable).with_name("aboard"))]
TENSORBOARD = [str(Path(sys.executable).with_name("tensorboard"))]
INSIDE = [sys.executable, str(Path(__file__).with_name("inside.py"))]
LOADED = "Finished load cycle"
"""Part of the line that the data server logs after it has read everything."""


class MeasurementError(RuntimeError):
    """A contender did not start, or did not read all of a tree."""


@contextmanager
def new_index(cache: Path) -> Iterator[Path]:
    """Make a temporary directory for an index, on the same disk as the trees."""
    cache.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="index-", dir=cache))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def environment(index: Path | None = None, *, pure: bool = False) -> dict[str, str]:
    """Return the environment of a contender; bytecode is cached, as in an installation."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("ABOARD_")}
    own.pop("PYTHONDONTWRITEBYTECODE", None)
    if index:
        own["ABOARD_CACHE"] = str(index)
    if pure:
        own["ABOARD_PURE_PYTHON"] = "1"
    return own


def aboard_index(tree: Tree, place: Path, index: Path) -> Measured:
    """Run `aboard index`."""
    measured = run_command([*ABOARD, "index", str(place), "--json"], environment(index))
    [source] = json.loads(measured.output)["sources"]
    check("aboard index", source["points"], tree.points)
    return measured


def aboard_ls(tree: Tree, place: Path, index: Path) -> Measured:
    """Run `aboard ls`."""
    measured = run_command([*ABOARD, "ls", str(place), "--json"], environment(index))
    [source] = json.loads(measured.output)["sources"]
    check("aboard ls", len(source["runs"]), tree.runs)
    return measured


def aboard_open(tree: Tree, place: Path, index: Path) -> Measured:
    """Open a tree in Python and count its runs, including the start of Python."""
    script = "import sys, aboard; print(len(aboard.open(sys.argv[1]).runs))"
    measured = run_command([sys.executable, "-c", script, str(place)], environment(index))
    check("aboard.open", int(measured.output), tree.runs)
    return measured


def inside(name: str, *arguments: object, index: Path | None = None, pure: bool = False) -> dict:
    """Run a part of inside.py; return its output, with peak memory and CPU time."""
    measured = run_command([*INSIDE, name, *map(str, arguments)], environment(index, pure=pure))
    return {**json.loads(measured.output), "peak": measured.peak, "cpu": measured.cpu}


def aboard_refresh(tree: Tree, place: Path, index: Path, *, pure: bool = False) -> Measured:
    """Refresh an index, without the start of the process."""
    output = inside("refresh", place, index=index, pure=pure)
    check("refresh", output["events"], tree.points + tree.runs)
    return Measured(output["seconds"], output["peak"], output["cpu"])


def stock_loader(tree: Tree, place: Path) -> Measured:
    """Load a tree of one run with TensorBoard's Python loader, without the start of the process."""
    output = inside("accumulate", file_of(place, 0))
    check("TensorBoard's Python loader", output["points"], tree.points)
    return Measured(output["seconds"], output["peak"], output["cpu"])


def has_data_server() -> bool:
    """Return whether TensorBoard's data server is available on this machine."""
    import tensorboard_data_server

    return tensorboard_data_server.server_binary() is not None


def data_server(tree: Tree, place: Path, *, checksum: bool = False) -> Measured:
    """Run TensorBoard's data server alone until it has loaded everything."""
    import tensorboard_data_server

    with tempfile.TemporaryDirectory() as scratch:
        port_file = Path(scratch) / "port"
        options = ["--port", "0", "--port-file", str(port_file), "--die-after-stdin", "-v"]
        command = [tensorboard_data_server.server_binary(), "--logdir", str(place), *options]
        command += ["--checksum"] if checksum else []

        def ready_and_correct(process: subprocess.Popen[str]) -> None:
            wait_for_line(process)
            _check_data_server(tree, int(port_file.read_text()))

        # The check takes time and memory, so it has a run that is not measured.
        if (tree, checksum) not in _CHECKED:
            run_server(command, environment(), ready_and_correct)
            _CHECKED.add((tree, checksum))
        return run_server(command, environment(), wait_for_line)


_CHECKED: set[tuple[Tree, bool]] = set()


def tensorboard(tree: Tree, place: Path) -> Measured:
    """Run `tensorboard --load_fast=true` until it has loaded a tree and serves its tags."""
    port = free_port()

    def ready(process: subprocess.Popen[str]) -> None:
        wait_for_line(process)
        found = json.loads(_get(port, "/data/plugin/scalars/tags"))
        check("tensorboard", sum(map(len, found.values())), tree.runs * tree.tags)

    return run_server(tensorboard_command(place, port), environment(), ready)


def tensorboard_command(place: Path, port: int) -> list[str]:
    """Return the command that serves a tree with TensorBoard and its data server."""
    command = [*TENSORBOARD, "--logdir", str(place), "--load_fast=true", f"--port={port}"]
    return [*command, "--host=127.0.0.1", "--extra_data_server_flags=-v"]


def wait_for_line(process: subprocess.Popen[str], text: str = LOADED) -> None:
    """Read standard error up to a line with `text`."""
    lines = []
    for line in process.stderr or ():
        if text in line:
            return
        lines.append(line)
    raise MeasurementError(f"the server exited before it had loaded: {''.join(lines)[-500:]}")


def _check_data_server(tree: Tree, port: int) -> None:
    """Request every run and tag, and compare the last steps."""
    import grpc
    from tensorboard.data.proto import data_provider_pb2, data_provider_pb2_grpc

    request = data_provider_pb2.ListScalarsRequest(experiment_id="")
    request.plugin_filter.plugin_name = "scalars"
    unlimited = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"localhost:{port}", unlimited) as channel:
        stub = data_provider_pb2_grpc.TensorBoardDataProviderStub(channel)
        runs = stub.ListScalars(request).runs
    last_steps = [tag.metadata.max_step for run in runs for tag in run.tags]
    check("data server", len(last_steps), tree.runs * tree.tags)
    check("data server", set(last_steps), {tree.steps - 1})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _get(port: int, path: str) -> bytes:
    """Fetch a page, and wait up to a minute for the server to listen."""
    for _ in range(6000):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        except ConnectionRefusedError:
            time.sleep(0.01)
        finally:
            connection.close()
    raise MeasurementError(f"nothing listens on port {port}")


def check(what: str, found: object, expected: object) -> None:
    """Raise `MeasurementError` if a contender did not return what was written."""
    if found != expected:
        raise MeasurementError(f"{what}: {found} instead of {expected}")
