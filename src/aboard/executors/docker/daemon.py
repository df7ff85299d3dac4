"""A Docker daemon, or Podman, which has the same API: connections, settings, mounts, images.

Boards and the tasks of jobs share it. It uses docker-py, which is synchronous, because executors
are called in threads; aiodocker would need its own event loop.

The image of boards is built from the running installation. Aboard and its dependencies are copied
as they are installed here, with nothing downloaded, onto a base image with the same version of
Python.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import signal
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, Literal, NamedTuple

import aboard
from aboard.executors.base import EngineSettings, ExecutorError
from aboard.executors.start import read_json
from aboard.storage.settings import CLOUDS
from aboard.system import explain, requires

with requires("pydantic"):
    from pydantic import AfterValidator, ConfigDict, Field
    from pydantic.dataclasses import dataclass

CLOUD_VARIABLES = tuple(start for cloud in CLOUDS.values() for start in cloud.variables)
INHERITED = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "TZ"})
LABEL = "aboard"
DIRECTORY = f"{LABEL}.directory"
CHECK = "Check: docker info"
SECONDS = 30.0  # for a response of the daemon
_EXTRA = "'aboard[docker]'"
_SOCKET = Path("/var/run/docker.sock")
_BUILD_SECONDS = 600.0  # for the next line of a build
_LOG_FILE = {"type": "json-file", "config": {"max-size": "1m", "max-file": "2"}}
_OF_THE_IMAGE = frozenset(
    map(Path, ("/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/sbin", "/sys"))
) | {Path("/usr"), Path("/opt/aboard"), Path("/usr/local"), Path("/usr/lib"), Path("/usr/bin")}

Text = Annotated[str, Field(strict=True)]


def default_tag() -> str:
    return f"aboard:{aboard.__version__}"


def _check_volume(text: str) -> str:
    _parse_volume(text)
    return text


def _parse_volume(text: str) -> tuple[str, str, bool]:
    """Return source, target, and whether it is read-only."""
    source, *others = text.split(":")
    mode = others.pop() if others and others[-1] in {"ro", "rw"} else "ro"
    source = os.path.expanduser(source)  # noqa: PTH111 - may be the name of a volume
    target = others[0] if others else source
    if len(others) > 1 or not source or not target.startswith("/"):
        raise ValueError(f"{text!r} is not HERE:THERE, such as /data/plugins:/plugins.")
    return source, target, mode == "ro"


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class DockerSettings(EngineSettings):
    host: Annotated[
        Text, Field(description="Address of the daemon; by default that of `docker`.")
    ] = ""
    context: Annotated[Text, Field(description="Context of `docker` to take the address from.")] = (
        ""
    )
    image: Annotated[Text, Field(description="Image of boards; `aboard:VERSION` by default.")] = (
        default_tag()
    )
    pull: Annotated[
        Literal["never", "missing", "always"],
        Field(description="Whether to pull the image before a start."),
    ] = "never"
    python: Annotated[Text, Field(description="Interpreter in the image.")] = "python3"
    publish: Annotated[
        Text,
        Field(
            description="Address of this machine on which a board's port is published; empty if"
            " the hub is on the board's network."
        ),
    ] = "127.0.0.1"
    network: Annotated[Text, Field(description="Network of boards; by default that of Docker.")] = (
        ""
    )
    user: Annotated[
        Text, Field(description="User and group of boards, as `1000:1000`; the hub's by default.")
    ] = ""
    volumes: Annotated[
        tuple[Annotated[Text, AfterValidator(_check_volume)], ...],
        Field(description="Additional directories, as `HERE:THERE`; read-only without `:rw`."),
    ] = ()
    environment: Annotated[
        dict[str, Text],
        Field(description="Additional variables; `docker inspect` does not show them."),
    ] = Field(default_factory=dict)
    credentials: Annotated[
        bool,
        Field(strict=True, description="Whether boards get the cloud credentials they need."),
    ] = True
    labels: Annotated[dict[str, Text], Field(description="Additional labels of containers.")] = (
        Field(default_factory=dict)
    )
    read_only: Annotated[
        bool, Field(strict=True, description="Whether the image's file system is read-only.")
    ] = True
    tmpfs: Annotated[Text, Field(description="Size of `/tmp`, which is in memory.")] = "64m"
    pids: Annotated[
        int, Field(strict=True, ge=1, description="Maximum processes and threads of a board.")
    ] = 1024


class Daemons:
    """Connections to daemons, made when first needed."""

    def __init__(self) -> None:
        self._connecting = threading.Lock()
        self._clients: dict[tuple[str, str], Any] = {}
        self._infos: dict[tuple[str, str], Mapping[str, Any]] = {}

    def client(self, host: str, context: str) -> Any:
        with self._connecting:
            if (known := self._clients.get((host, context))) is not None:
                return known
            made = self._clients[host, context] = _open(host, context, SECONDS)
            return made

    def info(self, host: str, context: str) -> Mapping[str, Any]:
        client = self.client(host, context)
        with self._connecting:
            if (host, context) not in self._infos:
                self._infos[host, context] = client.api.info()
            return self._infos[host, context]

    def close(self) -> None:
        with self._connecting:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()


@contextmanager
def explained(what: str, todo: str = CHECK) -> Iterator[None]:
    """Raise `ExecutorError` if the daemon answers with an error, or not at all."""
    try:
        yield
    except ExecutorError:
        raise
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "docker":
            raise
        raise ExecutorError(f"{what}: {explain('docker', install=_EXTRA)}") from None
    except Exception as error:
        from docker.errors import DockerException
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        if not isinstance(error, (DockerException, RequestException, HTTPError)):
            raise
        raise ExecutorError(f"{what}: {_words(error)}. {todo}") from error


def _words(error: BaseException) -> str:
    """Return Docker's message, or that of the operating system's error below the others."""
    if explanation := getattr(error, "explanation", None):
        return " ".join(str(explanation).split()).rstrip(".")
    below: BaseException | None = error
    while below is not None:
        for one in (below, *below.args, *(part for arg in below.args for part in _args(arg))):
            if isinstance(one, OSError) and one.strerror:
                return one.strerror.lower()
        below = below.__cause__ or below.__context__
    return " ".join(str(error).split()).rstrip(".")


def _args(value: object) -> tuple[object, ...]:
    return value.args if isinstance(value, BaseException) else ()


@contextmanager
def connect(host: str = "") -> Iterator[Any]:
    """Open a client, with the timeout of a build, for the daemon that a hub would use."""
    address, context = find_daemon(DockerSettings(host=host))
    with explained(f"{address}: Docker does not answer"):
        client = _open(address, context, _BUILD_SECONDS)
    try:
        yield client
    finally:
        client.close()


def find_daemon(settings: DockerSettings) -> tuple[str, str]:
    """Return the address of a daemon, and the context that has its certificates, if any."""
    if settings.host:
        return settings.host, ""
    chosen = settings.context
    if not chosen and (host := os.environ.get("DOCKER_HOST")):
        return host, ""
    name = chosen or _current_context()
    if name != "default":
        endpoint = _endpoint(name)
        if endpoint is None:
            raise ExecutorError(f"Docker has no context {name!r}. See: docker context ls")
        return str(endpoint["Host"]), name
    rootless = Path(os.environ.get("XDG_RUNTIME_DIR", "/nowhere")) / "docker.sock"
    local = _SOCKET if _SOCKET.exists() or not rootless.exists() else rootless
    return f"unix://{local}", ""


# docker-py finds no context before Docker has written config.json.


def _configuration() -> Path:
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")


def _current_context() -> str:
    stored = read_json(_configuration() / "config.json") or {}
    return os.environ.get("DOCKER_CONTEXT") or stored.get("currentContext") or "default"


def _context_directory(kind: str, name: str) -> Path:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return _configuration() / "contexts" / kind / digest


def _endpoint(context: str) -> Mapping[str, Any] | None:
    stored = read_json(_context_directory("meta", context) / "meta.json") or {}
    found: Mapping[str, Any] | None = stored.get("Endpoints", {}).get("docker")
    return found


def _open(host: str, context: str, seconds: float) -> Any:
    import docker

    return docker.DockerClient(
        base_url=host, tls=_tls(host, context), timeout=seconds, version="auto"
    )


def _tls(host: str, context: str) -> Any:
    """Return the certificates for a daemon: from its context, or from the usual variables."""
    from docker.tls import TLSConfig
    from docker.utils import kwargs_from_env
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):  # type: ignore[misc]
        """Verifies the daemon with its certificates: requests prefers REQUESTS_CA_BUNDLE.

        See psf/requests#3829.
        """

        def __init__(self, client: Any) -> None:
            self._client = client
            super().__init__()

        def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
            options["verify"] = self._client.verify or False
            return super().send(request, *arguments, **options)

    class Certificates(TLSConfig):  # type: ignore[misc]
        def configure_client(self, client: Any) -> None:
            super().configure_client(client)
            client.mount("https://", Adapter(client))

    if not context:
        found = kwargs_from_env().get("tls") if host.startswith(("tcp:", "https:")) else None
        return found is not None and Certificates(found.cert, found.ca_cert, found.verify)
    place = _context_directory("tls", context) / "docker"
    if not place.is_dir():
        return False
    files = {path.stem: str(path) for path in place.iterdir()}  # ca.pem, cert.pem, key.pem
    pair = (files["cert"], files["key"]) if {"cert", "key"} <= files.keys() else None
    verifies = not (_endpoint(context) or {}).get("SkipTLSVerify", False)
    return Certificates(pair, files.get("ca"), verifies)


def image_of(settings: DockerSettings) -> str:
    return settings.image or default_tag()


def build_hint(settings: DockerSettings) -> str:
    tag = f" --tag {settings.image}" if image_of(settings) != default_tag() else ""
    return f"Build it: aboard image build{tag}"


def pull(client: Any, settings: DockerSettings, image: str) -> None:
    from docker.errors import ImageNotFound

    if settings.pull == "never":
        return
    if settings.pull == "missing":
        with suppress(ImageNotFound):
            client.api.inspect_image(image)
            return
    repository, _, tag = image.rpartition(":")
    if not repository or "/" in tag:
        repository, tag = image, "latest"
    for line in client.api.pull(repository, tag=tag, stream=True, decode=True):
        if problem := line.get("error"):
            raise ExecutorError(f"image {image} cannot be fetched: {problem}.")


def confine(settings: DockerSettings, info: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the user of a container, and options that remove all other privileges."""
    security = [str(one) for one in info.get("SecurityOptions") or ()]
    is_rootless = any(one.startswith("name=rootless") for one in security)
    selinux = any(one.startswith("name=selinux") for one in security)
    # A rootless daemon maps its root to its own user, which is ours.
    user = settings.user or ("0:0" if is_rootless else f"{os.getuid()}:{os.getgid()}")
    ours = not settings.user and not is_rootless
    return user, {
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges", *(["label=disable"] if selinux else [])],
        "group_add": [str(group) for group in os.getgroups()] if ours else None,
        "restart_policy": {"Name": "no"},
        "log_config": _LOG_FILE,
    }


def mounts(
    settings: DockerSettings,
    *,
    reads: Iterable[Path] = (),
    writes: Iterable[Path] = (),
    own: Mapping[Path, bool],
) -> list[Any]:
    """Return the mounts of a container, at the same paths as on this machine.

    A path below a directory that is mounted with at least the same permissions is not mounted
    again. `own` maps the files of a start to whether they are read-only. Of two mounts for one
    path, the last counts.
    """
    from docker.types import Mount

    writable, shown = list(dict.fromkeys(writes)), list(dict.fromkeys(reads))
    found: dict[str, tuple[str, bool]] = {}
    for path in (*writable, *shown):
        if path in _OF_THE_IMAGE:
            raise ExecutorError(
                f"{path} cannot be mounted into a container: it would hide the image's own. "
                "Choose a directory below it."
            )
    for path in shown:
        if path.exists() and not any(other in path.parents for other in shown):
            found[str(path)] = str(path), True
    for path in writable:
        if path.exists() and not any(other in path.parents for other in writable):
            found[str(path)] = str(path), False
    for volume in settings.volumes:
        source, target, is_read_only = _parse_volume(volume)
        found[target] = source, is_read_only
    found |= {str(path): (str(path), is_read_only) for path, is_read_only in own.items()}
    return [
        Mount(target, source, type="bind" if "/" in source else "volume", read_only=is_read_only)
        for target, (source, is_read_only) in found.items()
    ]


def exit_code_of(state: Mapping[str, Any]) -> int:
    code = int(state["ExitCode"])
    return 128 - code if 128 < code <= 128 + signal.SIGRTMAX else code


def is_name_taken(error: Any) -> bool:
    """Return whether the name of a container is taken; Podman answers with status 500."""
    return error.status_code == 409 or "already in use" in str(error.explanation)


def kill(client: Any, container: str, number: signal.Signals) -> None:
    from docker.errors import APIError

    try:
        client.api.kill(container, number.name)
    except APIError as error:
        if error.status_code not in {404, 409}:  # gone, or not running
            raise


def remove(client: Any, container: str) -> None:
    from docker.errors import APIError

    try:
        client.api.remove_container(container, v=True, force=True)
    except APIError as error:
        if error.status_code not in {404, 409}:  # gone, or being removed
            raise


_PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
BASE = f"python:{_PYTHON_VERSION}-slim"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STEPS = re.compile(r"Step \d+/\d+ :|--->")  # lines of the engine, not output of commands
_PACKAGE = Path(aboard.__file__).parent


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
        _write_context(context, add)
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
                buildargs={"BASE": base, "PYTHON": _PYTHON_VERSION},
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


def _write_context(file: IO[bytes], add: Iterable[str] = ()) -> None:
    """Write the build context: the Dockerfile and the packages."""
    with tarfile.open(fileobj=file, mode="w") as tar:
        dockerfile = (files("aboard.executors.docker") / "Dockerfile").read_bytes()
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(dockerfile)
        tar.addfile(member, io.BytesIO(dockerfile))
        for name, path in _package_files(add):
            tar.add(path, f"packages/{name}", recursive=False, filter=_readable)


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Make a file readable for all users of the container."""
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
        for path in sorted(_PACKAGE.rglob("*")):
            if path.is_file():
                yield f"aboard/{path.relative_to(_PACKAGE)}", path


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
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise ExecutorError(f"{text!r} is not the name of a package: {error}.") from error
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            return
        name = canonicalize_name(requirement.name)
        if name not in found:
            try:
                found[name] = distribution(name)
            except PackageNotFoundError as error:
                raise ExecutorError(
                    f"{of} needs {requirement.name}, which is not installed. "
                    f"Install it here first: pip install '{text.partition(';')[0].strip()}'"
                ) from error
        known = map(canonicalize_name, found[name].metadata.get_all("Provides-Extra") or ())
        if unknown := sorted(set(map(canonicalize_name, requirement.extras)).difference(known)):
            raise ExecutorError(f"{name} has no extra {unknown[0]!r} in this installation.")
        left.extend((name, one) for one in ("", *sorted(requirement.extras)))

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
