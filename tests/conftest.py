"""What tests of several packages share: a server for each cloud's protocol, and its buckets."""

import base64
import hashlib
import hmac
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from threading import Thread
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

from aboard.index import Index
from engines import fake_oss, postgres
from engines.absence import cannot_set_up
from engines.fake_gcs import FakeGcs
from engines.fake_oss import FakeOss

settings.register_profile("aboard", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("aboard")  # a busy machine is no failure

# What runs in the background of a shell ignores it, and all that the tests start would too.
signal.signal(signal.SIGINT, signal.default_int_handler)

BUCKET = "training-logs"
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_LONGEST = {"test_hub_kills.py", "test_ship_kills.py", "test_kills.py", "test_shipping_faults.py"}
_ENGINE_DIRECTORIES = {
    *("boards", "browser", "cli", "executors", "hub", "integrations", "scenarios", "sdk", "track")
}
"""Tests in which whole programs, ours among them, meet at moments of their own choosing."""
_ENGINES = {
    "s3_server",
    "oss_server",
    "azurite",
    "azure",
    "postgres_server",
    "slurm",
    "browser",
    "state",
}
"""Fixtures that start a program of others, or a hub; and the parameters that choose them."""
_AMBIENT = dict(os.environ)
_CACHE = Path(_AMBIENT.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_AZURITE = _CACHE / "aboard-dev" / "azurite"
_CLOUD_VARIABLES = ("AWS_", "GOOGLE_", "CLOUDSDK_", "STORAGE_", "AZURE_", "OSS_", "ALIBABA_")
Server = TypeVar("Server", FakeGcs, FakeOss)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that nobody waits for it at the end.

    A test of real programs is tried once more if it fails, and that is told: on a busy machine one
    of them misses a deadline now and then. A defect fails twice. No other test may be lucky.
    """
    items.sort(key=lambda item: item.path.name not in _LONGEST)
    for item in items:
        if _uses_an_engine(item):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=5))


def _uses_an_engine(item: pytest.Item) -> bool:
    directory = item.path.relative_to(Path(__file__).parent).parts[0]
    parameters = getattr(item, "callspec", None)
    chosen = (
        {one for one in parameters.params.values() if isinstance(one, str)} if parameters else set()
    )
    return (
        directory in _ENGINE_DIRECTORIES
        or not _ENGINES.isdisjoint(getattr(item, "fixturenames", ()))
        or not _ENGINES.isdisjoint({f"{one}_server" for one in chosen} | chosen)
    )


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Hide the developer's own credentials, home directory and proxies from a test."""
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
    environment.setenv("AWS_ENDPOINT_URL", s3_server)
    environment.setenv("AWS_ACCESS_KEY_ID", "testing")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    return f"s3://{BUCKET}"


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
    """Run moto, an S3 server, and give its address."""
    if importlib.util.find_spec("moto") is None:
        cannot_set_up("needs the package moto[server]")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port):
        url = f"http://127.0.0.1:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT")).close()
        yield url


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[FakeGcs]:
    with serving(FakeGcs(BUCKET)) as server:
        yield server


@pytest.fixture(scope="session")
def oss_server(s3_server: str) -> Iterator[FakeOss]:
    with serving(FakeOss(s3_server)) as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    """Run Azurite, Microsoft's Azure emulator, and give the address of its account."""
    program = _AZURITE / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        if shutil.which("npm") is None:
            cannot_set_up("needs npm (Debian: apt-get install npm) to install azurite")
        install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", _AZURITE, "azurite"]
        if subprocess.run(install, capture_output=True, env=_AMBIENT, check=False).returncode:
            cannot_set_up(f"azurite is missing: npm install --prefix {_AZURITE} azurite failed")
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
    if postgres.programs() is None:
        cannot_set_up(f"needs PostgreSQL (Debian: {postgres.INSTALL})")
    with postgres.running() as server:
        yield server


@pytest.fixture(scope="session")
def _postgres_database(postgres_server: postgres.Cluster) -> str:
    return postgres_server.create("aboard")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the address of an empty database of each kind that a hub can have."""
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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def closed_port() -> int:
    return free_port()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Listen on a port, accept connections, and never say a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    """Run a server until it is no longer needed; fail with its output if it never listens."""
    environment = {
        name: value for name, value in _AMBIENT.items() if not name.upper().endswith("_PROXY")
    }
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            wait_until(lambda: process.poll() is not None or _listens(port))
            if process.poll() is not None:
                log.seek(0)
                pytest.fail(f"{command[0]} ended at once: {log.read().decode()}")
            yield
        finally:
            process.terminate()


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("the server did not start in time")
        time.sleep(0.05)


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


@pytest.fixture(autouse=True)
def _private_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep every test off the developer's own index."""
    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index(tmp_path_factory.mktemp("index") / "index.db") as opened:
        yield opened
