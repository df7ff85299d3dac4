"""The time from starting a board to its first curve on each engine, compared with TensorBoard.

The engines are those of the tests and are started for the case. TensorBoard is started by hand, as
a user would: a process, `docker run`, `sbatch`, or a pod with `kubectl port-forward`. The hub runs
already.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import peers
import personal
import trees
from cases import Action, Figures, Result, Sizes, Target, alternate
from client import Site
from measure import Measured
from trees import Tree

sys.path.insert(0, str(Path(__file__).parents[1]))  # the engines of the tests

_SECONDS = 300.0
_PAUSE = 0.02

ByHand = Callable[[int], AbstractContextManager[None]]
"""Runs TensorBoard on the engine, reachable at a port of this machine."""


class Engine(NamedTuple):
    """A running engine: its settings for a hub, and how to run TensorBoard on it by hand."""

    name: str
    settings: str
    by_hand: ByHand


def engines(sizes: Sizes, cache: Path) -> Result:
    """Time `start` to the first complete curve, on each engine that this machine can run."""
    tree = sizes.base
    place = trees.make(tree, cache)
    trees.warm(place)
    found: dict[str, Figures] = {}
    targets, notes = [], []
    for name in sizes.engines:
        if reason := _missing(name):
            notes.append(f"Not measured on {name}: {reason}.")
            continue
        ours, theirs = f"{name}: aboard", f"{name}: tensorboard"
        with _ENGINES[name](place) as engine:
            actions: dict[str, Action] = {
                ours: partial(_start, tree, place, cache, engine),
                theirs: partial(_start_by_hand, tree, engine),
            }
            found |= alternate(actions, sizes.times)
        ratio = found[ours].best / found[theirs].best
        found[ours].note = f"{ratio:.2f} times the time of tensorboard"
        targets.append(Target(f"{name}, times the time of tensorboard", 1.5, ratio, at_least=False))
    title = f"a board of {tree} on an engine, to its first curve"
    return Result(title, found, targets=targets, notes=notes)


def _start(tree: Tree, place: Path, cache: Path, engine: Engine) -> Measured:
    with peers.new_index(cache) as home:
        settings = home / "aboard.toml"
        settings.write_text(engine.settings)
        with personal.running(home, settings=settings) as hub:
            before, began = hub.cpu(), time.perf_counter()
            board = hub.create(place, on=engine.name, memory="1GiB")
            try:
                seconds = _wait_for_curve(tree, hub.site(board)) - began
                measured = Measured(seconds, hub.memory().peak, hub.cpu() - before)
            finally:
                hub.delete(board)
            return measured


def _start_by_hand(tree: Tree, engine: Engine) -> Measured:
    port = peers.free_port()
    began = time.perf_counter()
    with engine.by_hand(port):
        return Measured(_wait_for_curve(tree, Site(port, "/")) - began, 0, 0.0)


def _wait_for_curve(tree: Tree, site: Site) -> float:
    """Poll until the curve is complete; before that, the server may be absent or have no data."""
    deadline = time.monotonic() + _SECONDS
    problem: object = None
    while time.monotonic() < deadline:
        try:
            answer = site.ask("curve", trees.tag_name(0))
            came = time.perf_counter()
            if personal.is_whole(tree, answer):
                return came
        except (RuntimeError, OSError, LookupError, ValueError) as error:
            problem = error
            site.close()
        time.sleep(_PAUSE)
    raise peers.MeasurementError(f"no complete curve after {_SECONDS:g} s: {problem!r}")


def _options(place: Path, port: int, host: str) -> list[str]:
    return ["--logdir", str(place), "--port", str(port), "--host", host]


def _missing(name: str) -> str:
    """Return why an engine cannot run here; empty if it can."""
    if name == "process":
        return ""
    engine = import_module(f"tests.engines.{name}")
    missing = engine.missing()
    if not missing or isinstance(missing, str):
        return missing or ""
    return f"it needs {', '.join(missing)} ({engine.INSTALL})"


def _engine(name: str, place: Path, by_hand: ByHand, **settings: object) -> Engine:
    from tests.engines.rigs import Rig, toml_table

    return Engine(name, toml_table(Rig(name, settings).reading(place)), by_hand)


@contextmanager
def _processes(place: Path) -> Iterator[Engine]:
    @contextmanager
    def by_hand(port: int) -> Iterator[None]:
        command = [*peers.TENSORBOARD, *_options(place, port, "127.0.0.1")]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                process.terminate()

    yield _engine("process", place, by_hand)


@contextmanager
def _docker(place: Path) -> Iterator[Engine]:
    from tests.engines import docker

    with docker.dockerd() as daemon:

        @contextmanager
        def by_hand(port: int) -> Iterator[None]:
            run = ["run", "--detach", "--publish", f"127.0.0.1:{port}:6006"]
            run += ["--volume", f"{place}:{place}:ro", "--entrypoint", "python3", daemon.image]
            run += ["-m", "tensorboard.main", *_options(place, 6006, "0.0.0.0")]
            container = daemon.docker(*run).strip()
            try:
                yield
            finally:
                daemon.docker("rm", "--force", container)

        yield _engine("docker", place, by_hand, host=daemon.host, image=daemon.image)


@contextmanager
def _slurm(place: Path) -> Iterator[Engine]:
    from tests.engines import slurm

    with slurm.slurm() as cluster:

        @contextmanager
        def by_hand(port: int) -> Iterator[None]:
            command = " ".join([*peers.TENSORBOARD, *_options(place, port, "127.0.0.1")])
            done = cluster.ask(
                "sbatch", "--parsable", "--mem=1G", "--output=/dev/null", f"--wrap={command}"
            )
            try:
                yield
            finally:
                cluster.ask("scancel", done.stdout.strip())

        yield _engine("slurm", place, by_hand, configuration=str(cluster.configuration))


@contextmanager
def _kubernetes(place: Path) -> Iterator[Engine]:
    from tests.engines import kubernetes

    with kubernetes.kubernetes() as cluster:

        @contextmanager
        def by_hand(port: int) -> Iterator[None]:
            cluster.kubectl("apply", "-f", "-", stdin=_pod(cluster.engine.image, place))
            kubectl = [cluster.kubectl_program, "--kubeconfig", cluster.kubeconfig]
            ready = ["wait", "--for=condition=Ready", "pod/tensorboard", f"--timeout={_SECONDS}s"]
            forward = ["port-forward", "pod/tensorboard", f"{port}:6006"]
            try:
                cluster.kubectl(*ready)
                with subprocess.Popen([*kubectl, *forward], stdout=subprocess.DEVNULL) as process:
                    try:
                        yield
                    finally:
                        process.terminate()
            finally:
                cluster.kubectl("delete", "pod", "tensorboard", "--grace-period=0", "--force")

        settings = {"kubeconfig": str(cluster.kubeconfig), "image": cluster.engine.image}
        yield _engine("kubernetes", place, by_hand, **settings)


def _pod(image: str, place: Path) -> str:
    command = ["python3", "-m", "tensorboard.main", *_options(place, 6006, "0.0.0.0")]
    mount = {"name": "runs", "mountPath": str(place), "readOnly": True}
    container = {"name": "tensorboard", "image": image, "command": command, "volumeMounts": [mount]}
    volume = {"name": "runs", "hostPath": {"path": str(place)}}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "tensorboard"},
            "spec": {"containers": [container], "volumes": [volume]},
        }
    )


_ENGINES: dict[str, Callable[[Path], AbstractContextManager[Engine]]] = {
    "process": _processes,
    "docker": _docker,
    "slurm": _slurm,
    "kubernetes": _kubernetes,
}
CASES = {"engines": engines}
