"""Fixtures that tests of several packages share: engines, object storage servers and buckets."""

import base64
import hashlib
import hmac
import importlib.util
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from threading import Thread
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

from aboard.hub import auth
from aboard.index import Index
from tests.engines import chromium, docker, fake_oss, kubernetes, object_servers, postgres, slurm
from tests.engines.fake_gcs import FakeGcs
from tests.engines.fake_oss import FakeOss
from tests.engines.fake_vertex import FakeVertex
from tests.engines.ports import free_port, free_ports
from tests.engines.requirements import cannot_set_up, must_run
from tests.engines.rigs import Rig
from tests.waiting import until
from tools import azurite as azurite_tool
from tools import cache

pytest_plugins = ["tests.report"]

settings.register_profile("aboard", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("aboard")  # a busy machine is not a failure

# Background jobs of a shell and nohup ignore these signals; child processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

BUCKET = "training-logs"
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_LONGEST = {
    "test_bench.py",
    "test_compat.py",
    "test_faults.py",
    "test_hub_kills.py",
    "test_kills.py",
    "test_sick_boards.py",
}
_MARK_OF_A_FILE = re.compile(r"^pytestmark = \[?pytest\.mark\.(engine|slow)\b", re.MULTILINE)
_AMBIENT = dict(os.environ)
_numbers = itertools.count()
_CLOUD_VARIABLES = ("AWS_", "GOOGLE_", "CLOUDSDK_", "STORAGE_", "AZURE_", "OSS_", "ALIBABA_")
Server = TypeVar("Server", FakeGcs, FakeOss, FakeVertex)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engines", default="", help="run only the `engine` tests of these engines")


def pytest_configure(config: pytest.Config) -> None:
    # Pytest 9.1 loses the fixtures of a package whose files are named around a file above it:
    # pytest-dev/pytest#14964
    config.args.sort(key=lambda one: one.partition("::")[0])


def pytest_sessionstart(session: pytest.Session) -> None:
    """If all tests must run, exit before the first test and name what is missing."""
    if not must_run() or hasattr(session.config, "workerinput"):
        return
    expression = session.config.option.markexpr
    if not expression:  # selected tests, which fail and name what they need
        return
    missing = [postgres.missing(), _missing_azurite(), chromium.missing()]
    if "engine" in expression.replace("not engine", ""):
        chosen = session.config.option.engines.split()
        engines = {"docker": docker, "slurm": slurm, "kubernetes": kubernetes}
        missing += [one.missing() for name, one in engines.items() if not chosen or name in chosen]
    if any(missing):
        pytest.exit("\n".join(["cannot run all tests:", *filter(None, missing)]), returncode=1)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files without a selected test: importing them costs every worker seconds."""
    if collection_path.suffix != ".py":
        return None
    expression, mark = config.option.markexpr, _MARK_OF_A_FILE.search(collection_path.read_text())
    if not (expression and mark):
        return None
    return True if f"not {mark[1]}" in expression or mark[1] not in expression else None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the longest tests first, so that all workers finish at about the same time.

    The tests of an engine, `@pytest.mark.engine(NAME)`, run in one worker and share the engine.
    """
    items.sort(key=lambda item: item.path.name not in _LONGEST)
    for item in items:
        if name := _engine_of(item):
            item.add_marker(pytest.mark.xdist_group(f"engine-{name}"))
    if chosen := config.option.engines.split():
        items[:] = [item for item in items if _engine_of(item) in chosen]


def _engine_of(item: pytest.Item) -> str:
    mark = item.get_closest_marker("engine")
    return str(mark.args[0]) if mark else ""


_RIGS = [
    "process",
    pytest.param("docker", marks=pytest.mark.engine("docker")),
    pytest.param("kubernetes", marks=pytest.mark.engine("kubernetes")),
    pytest.param("slurm", marks=pytest.mark.engine("slurm")),
]


@pytest.fixture(scope="session", params=_RIGS)
def rig(request: pytest.FixtureRequest) -> Rig:
    """Return an engine for executors; each engine is started when a test first needs it."""
    found: Rig = request.getfixturevalue(f"{request.param}_rig")
    return found


@pytest.fixture
def place(rig: Rig, tmp_path: Path) -> Path:
    """Return a directory that the commands of the engine see too."""
    if rig.place is None:
        return tmp_path
    place = rig.place / tmp_path.name
    place.mkdir(exist_ok=True)
    return place


@pytest.fixture(scope="session")
def process_rig() -> Rig:
    return Rig("process")


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[docker.Docker]:
    """Run a Docker daemon with an image of this checkout."""
    if missing := docker.missing():
        cannot_set_up(missing)
    with docker.dockerd() as engine:
        yield engine


@pytest.fixture(scope="session")
def docker_rig(docker_engine: docker.Docker) -> Rig:
    return Rig("docker", {"host": docker_engine.host, "image": docker_engine.image})


@pytest.fixture(scope="session")
def cluster() -> Iterator[kubernetes.Cluster]:
    """Run a Kubernetes of one node, whose Docker has an image of this checkout."""
    if missing := kubernetes.missing():
        cannot_set_up(missing)
    with kubernetes.kubernetes() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[slurm.Cluster]:
    if missing := slurm.missing():
        cannot_set_up(missing)
    with slurm.slurm() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kubernetes_rig(cluster: kubernetes.Cluster) -> Rig:
    settings = {"kubeconfig": str(cluster.kubeconfig), "image": cluster.engine.image}
    return Rig("kubernetes", {**settings, "namespace": cluster.make_namespace("boards")})


@pytest.fixture(scope="session")
def slurm_rig(slurm_cluster: slurm.Cluster) -> Rig:
    return Rig("slurm", {"configuration": str(slurm_cluster.configuration)})


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Callable[[int], Iterator[int]]:
    """Number the rounds of a loop of kills, faults or random cases, in a test marked `soak`.

    `rounds(4)` yields 0 to 3 in `make test`. In `make soak` it continues until this test's share of
    SOAK_MINUTES is over. The number is the seed of the round.
    """
    soaking = [item for item in request.session.items if item.get_closest_marker("soak")]
    assert request.node in soaking, "mark the test with pytest.mark.soak"
    minutes = float(os.environ.get("SOAK_MINUTES", "0"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    deadline = time.monotonic() + minutes * 60 * workers / len(soaking)

    def numbered(few: int) -> Iterator[int]:
        for number in itertools.count():
            if number >= few and time.monotonic() >= deadline:
                return
            yield number

    return numbered


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return a function that counts kills and points; the sums are printed after the tests."""
    totals = [0, 0, 0]
    request.node.user_properties.append(("tally", totals))

    def add(*, kills: int, acknowledged: int, lost: int) -> None:
        for place, number in enumerate((kills, acknowledged, lost)):
            totals[place] += number

    return add


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Hide the developer's credentials, home directory and proxies from a test."""
    for name in os.environ:
        if name.startswith(_CLOUD_VARIABLES) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return monkeypatch


@pytest.fixture
def home(environment: pytest.MonkeyPatch) -> Path:
    return Path(os.environ["HOME"])


@pytest.fixture
def s3_bucket(s3_server: str, environment: pytest.MonkeyPatch) -> str:
    return _bucket_at(s3_server, environment)


def _bucket_at(server: str, environment: pytest.MonkeyPatch) -> str:
    environment.setenv("AWS_ENDPOINT_URL", server)
    environment.setenv("AWS_ACCESS_KEY_ID", "testing")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    return f"s3://{BUCKET}"


@pytest.fixture
def rclone_bucket(rclone_server: str, environment: pytest.MonkeyPatch) -> str:
    return _bucket_at(rclone_server, environment)


@pytest.fixture
def seaweedfs_bucket(seaweedfs_server: str, environment: pytest.MonkeyPatch) -> str:
    return _bucket_at(seaweedfs_server, environment)


@pytest.fixture
def gcs_bucket(gcs_server: FakeGcs, environment: pytest.MonkeyPatch) -> str:
    environment.setenv("STORAGE_EMULATOR_HOST", gcs_server.url)
    return f"gs://{BUCKET}"


@pytest.fixture
def azure_bucket(azurite: str, environment: pytest.MonkeyPatch) -> str:
    connection = f"AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY};BlobEndpoint={azurite}"
    environment.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
    return f"az://{BUCKET}"


@pytest.fixture
def oss_bucket(oss_server: FakeOss, environment: pytest.MonkeyPatch) -> str:
    environment.setenv("HTTP_PROXY", oss_server.url)
    environment.setenv("OSS_ENDPOINT", f"http://{fake_oss.ENDPOINT}")
    environment.setenv("OSS_ACCESS_KEY_ID", "testing")
    environment.setenv("OSS_ACCESS_KEY_SECRET", "testing")
    return f"oss://{BUCKET}"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Run moto, an S3 server, and yield its address."""
    if importlib.util.find_spec("moto") is None:
        cannot_set_up("needs the package moto[server]")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port):
        url = f"http://127.0.0.1:{port}"
        _create_bucket(url)
        yield url


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run rclone's S3 server, and yield its address."""
    directory = tmp_path_factory.mktemp("rclone")
    (directory / BUCKET).mkdir()
    port = free_port()
    with running(object_servers.rclone(directory, port), port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run SeaweedFS, and yield the address of its S3 server."""
    directory = tmp_path_factory.mktemp("seaweedfs")
    ports = free_ports(8)
    command = object_servers.seaweedfs(directory, ports)
    with running(command, ports[0], end=signal.SIGKILL):  # SIGTERM takes 25 seconds
        url = f"http://127.0.0.1:{ports[0]}"
        until(lambda: _create_bucket(url))  # it listens before it has a master
        yield url
    for port in ports:
        for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            left.unlink()


def _create_bucket(url: str) -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT")).close()
    except urllib.error.HTTPError as error:
        if error.code < 500:
            raise
        return False
    return True


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[FakeGcs]:
    with serving(FakeGcs(BUCKET)) as server:
        yield server


@pytest.fixture(scope="session")
def vertex_server() -> Iterator[FakeVertex]:
    with serving(FakeVertex(blobs=f"{BUCKET}/vertex-blobs")) as server:
        yield server


@pytest.fixture
def vertex(
    vertex_server: FakeVertex, environment: pytest.MonkeyPatch, tmp_path: Path
) -> FakeVertex:
    """Return an empty Vertex, with its credentials in the environment."""
    vertex_server.clear()
    key = str(vertex_server.write_key(tmp_path))
    environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", key)
    return vertex_server


@pytest.fixture(scope="session")
def oss_server(s3_server: str) -> Iterator[FakeOss]:
    with serving(FakeOss(s3_server)) as server:
        yield server


def _missing_azurite() -> str:
    if cache.find(azurite_tool.NAME) is not None:
        return ""
    return f"needs `make azurite`: {cache.last_failure(azurite_tool.NAME) or 'not installed'}"


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    """Run Azurite, Microsoft's Azure emulator, and yield the address of its account."""
    if missing := _missing_azurite():
        cannot_set_up(missing)
    program = azurite_tool.program(cache.CACHE / azurite_tool.NAME)
    port = free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    quiet = ["--skipApiVersionCheck", "--silent", "--disableTelemetry"]
    with running([str(program), *options, *quiet], port):
        url = f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"
        _create_container(url, BUCKET)
        yield url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Cluster]:
    """Run a PostgreSQL cluster."""
    if missing := postgres.missing():
        cannot_set_up(missing)
    with postgres.running() as server:
        yield server


@pytest.fixture(scope="session")
def _postgres_database(postgres_server: postgres.Cluster) -> str:
    return postgres_server.create("aboard")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty database, for each kind that a hub supports."""
    if request.param == "sqlite":
        return str(tmp_path / "hub" / "hub.db")
    address: str = request.getfixturevalue("_postgres_database")
    postgres.empty(address)
    return address


def _create_container(url: str, name: str) -> None:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    signed = "\n".join(f"{key}:{value}" for key, value in headers.items())
    resource = f"/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + f"{signed}\n{resource}"
    digest = hmac.new(base64.b64decode(AZURITE_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {AZURITE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    address = f"{url}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(address, method="PUT", headers=headers)).close()


@pytest.fixture
def shared_directory() -> Iterator[Path]:
    """Give a directory that another user can reach; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 64 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small tmpfs (run as root)")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Reserve a port without listening on it: connections are refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        yield int(taken.getsockname()[1])


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Listen on a port, accept connections, and never respond."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@contextmanager
def running(
    command: list[str], port: int, *, end: signal.Signals = signal.SIGTERM
) -> Iterator[None]:
    """Run a server and wait until it listens; fail with its output if it exits before."""
    environment = {
        name: value for name, value in _AMBIENT.items() if not name.upper().endswith("_PROXY")
    }
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            until(lambda: process.poll() is not None or _listens(port))
            if process.poll() is not None:
                log.seek(0)
                pytest.fail(f"{command[0]} exited at once: {log.read().decode()}")
            yield
        finally:
            process.send_signal(end)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Replace pytest's fixture, which lists the directories of all tests to number the next."""
    return _directory(tmp_path_factory, re.sub(r"\W", "_", request.node.name)[:30])


def _directory(factory: pytest.TempPathFactory, name: str) -> Path:
    made = factory.getbasetemp() / f"{name}_{next(_numbers)}"  # with _, "a1" + 2 is not "a" + 12
    made.mkdir(mode=0o700)
    return made


@pytest.fixture(autouse=True)
def _private_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give every test an empty cache, and no hub of its own, instead of the developer's."""
    monkeypatch.setenv("ABOARD_CACHE", str(_directory(tmp_path_factory, "cache")))
    monkeypatch.setenv("ABOARD_STATE", str(_directory(tmp_path_factory, "state")))


@pytest.fixture(autouse=True)
def _quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash passwords as weakly as possible: a strong hash takes a tenth of a second."""
    monkeypatch.setattr(auth, "STRENGTH", {"time_cost": 1, "memory_cost": 8, "parallelism": 1})


@pytest.fixture
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index(_directory(tmp_path_factory, "index") / "index.db") as opened:
        yield opened
