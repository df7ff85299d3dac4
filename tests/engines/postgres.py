"""A real PostgreSQL in its own directory, which can be stopped and started again.

It listens on a free port of the loopback interface. PostgreSQL refuses to run as root; for root it
runs as an unprivileged user of its package or of the system.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engines.ports import free_port

INSTALL = "apt-get install postgresql"
_USERS = ("postgres", "nobody")
_FAST = ("fsync=off", "full_page_writes=off")


def programs() -> Path | None:
    """Return the directory with the programs of the newest server; None without a server."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3])
    )
    if found:
        return found[-1].parent
    known = shutil.which("postgres")
    return Path(known).resolve().parent if known else None


def missing() -> str:
    """Return what is not installed; empty if nothing is missing."""
    return "" if programs() else f"needs PostgreSQL (Debian: {INSTALL})"


class Cluster:
    """A server with its databases."""

    def __init__(self, home: Path, bin_directory: Path, user: str) -> None:
        self._home = home
        self._bin = bin_directory
        self._user = user
        self._port = free_port()
        self._run(
            "initdb", "-D", home / "data", "-U", "aboard", "-A", "trust", "--no-sync", "-E", "UTF8"
        )

    def url(self, name: str = "postgres") -> str:
        return f"postgresql://aboard@127.0.0.1:{self._port}/{name}"

    def create(self, name: str) -> str:
        """Create a database and return its address."""
        self._run("createdb", "-h", "127.0.0.1", "-p", self._port, "-U", "aboard", name)
        return self.url(name)

    def start(self) -> None:
        options = [f"-c {option}" for option in _FAST]
        options += [f"-p {self._port}", "-c listen_addresses=127.0.0.1", "-c max_connections=200"]
        options += ["-c unix_socket_directories="]
        self._control("start", "-w", "-t", 60, "-l", self._home / "log", "-o", " ".join(options))

    def stop(self) -> None:
        """Stop the server without waiting for clients to disconnect."""
        self._control("stop", "-m", "immediate", "-w", "-t", 60)

    def ensure_running(self) -> None:
        """Start the server if it does not run."""
        if not (self._home / "data" / "postmaster.pid").exists():
            self.start()

    def _control(self, *arguments: object) -> None:
        self._run("pg_ctl", "-D", self._home / "data", *arguments)

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._bin / program), *map(str, arguments)]
        other = self._user if os.geteuid() == 0 else None
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(self._home)}
        # Not a pipe: the server inherits it and would keep it open.
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                command,
                cwd=self._home,
                env=environment,
                user=other,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                check=False,
            )
            said.seek(0)
            if done.returncode:
                log = self._home / "log"
                more = log.read_text() if log.exists() else ""
                raise RuntimeError(f"{program} failed: {said.read().decode()}{more}")


@contextmanager
def running() -> Iterator[Cluster]:
    """Run a cluster.

    Raises:
        FileNotFoundError: PostgreSQL is not installed.
    """
    bin_directory = programs()
    if bin_directory is None:
        raise FileNotFoundError(f"PostgreSQL is not installed ({INSTALL})")
    user = next(name for name in (*_USERS, "root") if _exists(name))
    with tempfile.TemporaryDirectory(prefix="postgres-", dir="/tmp") as name:
        home = Path(name)
        if os.geteuid() == 0:
            shutil.chown(home, user)
        cluster = Cluster(home, bin_directory, user)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()


def empty(url: str) -> None:
    """Drop every table of a database, even while clients are connected."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
