"""A board as an auxiliary unit of an XManager experiment, like that of `contrib.tensorboard`.

The board is `aboard view` in a container of the image from `aboard image build`. It has a timeout,
because XManager waits for auxiliary units, even after the experiment has completed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from aboard.storage import is_remote
from aboard.system import requires

with requires("xmanager", "attr", install="xmanager"):
    import attr
    from xmanager import xm, xm_flags, xm_local
    from xmanager.docker import docker_adapter
    from xmanager.xm_local import executables

DAY = 24 * 60 * 60
_HOME = "/root"  # in containers: XManager mounts ~/.config/gcloud below it
_GOOGLE = {
    "GOOGLE_APPLICATION_CREDENTIALS": (
        f"{_HOME}/.config/gcloud/application_default_credentials.json"
    )
}
_ANYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - what users write for all interfaces


def add_board(
    experiment: xm.Experiment,
    log_dir: str,
    port: int = 6006,
    timeout_secs: int = DAY,
    executor: xm.Executor | None = None,
    *,
    image: str | None = None,
    env_vars: Mapping[str, str] | None = None,
    name: str = "board",
) -> str | None:
    """Add a board of a log directory to an experiment, and print its link.

    Args:
        experiment: an experiment of `xm_local`.
        log_dir: the logs as the container sees them: a path, or the URI of a bucket. A path of
            this machine that is not in a volume is mounted, and created if it is missing.
        port: the port of the board in its container.
        timeout_secs: after how many seconds the board stops; 0 for never.
        executor: `xm_local.Local`, by default, or `xm_local.Kubernetes`. If the options for Docker
            do not publish the port, it is published on the loopback interface.
        image: an image with Aboard; by default that of `aboard image build`.
        env_vars: additional variables, such as credentials of a bucket.
        name: the name of the job.

    Returns:
        The link, with its secret; None on Kubernetes, where it is in the log of the pod.

    Raises:
        ValueError: `timeout_secs` is negative, or the published port is unknown.
        RuntimeError: Docker does not have the image, or is not used through its API.
        TypeError: the executor cannot run boards.
    """
    import aboard

    if timeout_secs < 0:
        raise ValueError(f"timeout_secs is {timeout_secs}: give seconds, or 0 for no limit")
    executor = xm_local.Local() if executor is None else executor
    image = image or f"aboard:{aboard.__version__}"
    variables = dict(env_vars or {})
    if isinstance(executor, xm_local.Kubernetes):
        executable = executables.GoogleContainerRegistryImage(name, image)
        # Port forwarding reaches the loopback interface of the pod; nothing else does.
        words = _command(log_dir, "localhost", port, timeout_secs)
        job = f"{experiment.experiment_id}-auxiliary-{name}"
        link, where = None, f"kubectl port-forward job/{job} {port}; kubectl logs job/{job}"
    elif isinstance(executor, xm_local.Local):
        if xm_flags.SUBPROCESS_DOCKER.value:
            raise RuntimeError(
                "with --xm_subprocess_docker_impl the secret of the board would be in the list of"
                " processes: omit it"
            )
        executable = executables.LoadedContainerImage(name, _image_id(image))
        executor, inside, address = _published(executor, log_dir, port)
        words = _command(log_dir, "0.0.0.0", inside, timeout_secs)  # noqa: S104 - of the container
        key = secrets.token_urlsafe(32)
        variables = {
            **(_GOOGLE if log_dir.startswith("gs://") else {}),
            **variables,
            "ABOARD_TOKEN": secrets.token_urlsafe(32),
            "ABOARD_KEY": key,
        }
        link = where = f"http://{address}/?key={key}"
    else:
        raise TypeError(
            f"a board cannot run on {type(executor).__name__}. Use xm_local.Local or"
            " xm_local.Kubernetes."
        )
    args = xm.SequentialArgs.from_collection(words)
    unit = xm.Job(executable, executor, name=name, args=args, env_vars=variables)
    experiment.add(xm.AuxiliaryUnitJob(unit, termination_delay_secs=0))
    print(f"{name}: {where}", flush=True)  # noqa: T201 - as XManager prints
    return link


def _command(log_dir: str, host: str, port: int, timeout_secs: int) -> list[str]:
    words = ["view", log_dir, "--host", host, "--port", str(port), "--no-browser"]
    return [*words, "--timeout", f"{timeout_secs}s"] if timeout_secs else words


def _image_id(image: str) -> str:
    """Return the id of an image; XManager would look up its name in a registry."""
    from docker.errors import ImageNotFound

    try:
        return str(docker_adapter.instance().get_client().images.get(image).id)
    except ImageNotFound:
        raise RuntimeError(
            f"Docker has no image {image}. Build it (aboard image build), or name one with image="
        ) from None


def _published(
    executor: xm_local.Local, log_dir: str, port: int
) -> tuple[xm_local.Local, int, str]:
    """Return the executor for the board, its port inside, and its address outside."""
    options = executor.docker_options or xm_local.DockerOptions()
    volumes, ports = dict(options.volumes or {}), dict(options.ports or {})
    inside = next((key for key in ports if _number(key) == port), None)
    if inside is None:  # XManager's page publishes {6006: port}
        inside = next((key for key, outside in ports.items() if _host_port(outside) == port), None)
    if inside is None:
        inside = f"{port}/tcp"
        ports[inside] = ("127.0.0.1", port)
    outside = ports[inside]
    number = _host_port(outside)
    if number is None:
        raise ValueError(
            f"docker_options.ports[{inside!r}] is {outside!r}: give a port of this machine,"
            " because the board needs a known address"
        )
    host = outside[0] if isinstance(outside, tuple) else ""
    if not is_remote(log_dir):
        _mount(log_dir, volumes)
    options = attr.evolve(options, ports=ports, volumes=volumes)
    address = f"{'localhost' if host in _ANYWHERE else host}:{number}"
    return attr.evolve(executor, docker_options=options), _number(inside), address


def _number(inside: int | str) -> int:
    return int(str(inside).partition("/")[0])


def _host_port(outside: Any) -> int | None:
    if isinstance(outside, tuple):
        outside = outside[1] if len(outside) > 1 else None
    elif isinstance(outside, list):
        outside = outside[0]
    return int(outside) if outside is not None else None


def _mount(log_dir: str, volumes: dict[str, str]) -> None:
    """Create and mount the log directory: the board starts before the logs exist."""
    place = PurePosixPath(log_dir)
    for source, target in volumes.items():
        if place.is_relative_to(target):
            here = Path(source) / place.relative_to(target)
            break
    else:
        here = Path(log_dir)
        if not here.is_absolute():
            raise ValueError(f"{log_dir!r} is not an absolute path in a container")
        volumes[log_dir] = log_dir
    here.mkdir(parents=True, exist_ok=True)
