"""A real Slurm of one node in a directory of its own: its keys, its state, its ports.

Nothing of the machine's own configuration is read or changed, and no user is needed but the one
who runs the tests, so that a cluster may already run here.
"""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "srun", "sbatch", "sinfo", "scontrol")
INSTALL = "apt-get install slurm-wlm munge"
CPUS = 4
_SBIN = "/usr/sbin:/usr/local/sbin:/sbin"
_SECONDS = 60


class SlurmDidNotStartError(RuntimeError):
    """A daemon that ended, or never answered; the message ends with what it logged."""


def missing() -> list[str]:
    """Name the programs that are not installed."""
    return [program for program in PROGRAMS if _which(program) is None]


@contextmanager
def slurm() -> Iterator[dict[str, str]]:
    """Run a cluster, and give the environment in which `srun` and `sbatch` find it."""
    # Below /tmp: the path of a socket has room for about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as name, ExitStack() as daemons:
        home = Path(name)
        home.chmod(0o711)  # munged refuses a socket that not everyone can reach
        socket_file = home / "munge.socket"
        configuration = _configure(home, socket_file)
        environment = {**os.environ, "SLURM_CONF": str(configuration)}

        def start(command: list[str | Path], ready: Callable[[], bool]) -> None:
            daemons.enter_context(_daemon(command, environment, home, ready))

        key = home / "munge.key"
        subprocess.run([_which("mungekey"), "--create", "--keyfile", key], check=True)
        files = {"key-file": key, "socket": socket_file, "pid-file": home / "munged.pid"}
        files |= {"seed-file": home / "munge.seed", "log-file": home / "munged.log"}
        options = [f"--{option}={path}" for option, path in files.items()]
        start([_which("munged"), "--foreground", *options], socket_file.exists)
        start(
            [_which("slurmctld"), "-D"],
            lambda: _ask(["scontrol", "ping"], environment).returncode == 0,
        )
        start([_which("slurmd"), "-D", "-N", "node1"], lambda: _node_is_idle(environment))
        yield {"SLURM_CONF": str(configuration)}


def _configure(home: Path, munge: Path) -> Path:
    for folder in ("state", "spool"):
        (home / folder).mkdir()
    host = socket.gethostname()
    path = home / "slurm.conf"
    path.write_text(f"""\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={_free_port()}
SlurmdPort={_free_port()}
SlurmUser={getpass.getuser()}
SlurmdUser={getpass.getuser()}
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=2
MinJobAge=300
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs={CPUS} RealMemory=1000
PartitionName=main Nodes=node1 Default=YES MaxTime=INFINITE State=UP
""")
    return path


@contextmanager
def _daemon(
    command: list[str | Path], environment: Mapping[str, str], home: Path, ready: Callable[[], bool]
) -> Iterator[None]:
    name = Path(command[0]).name
    output = home / f"{name}.out"
    with (
        output.open("wb") as sink,
        subprocess.Popen(command, env=environment, stdout=sink, stderr=sink) as process,
    ):
        try:
            deadline = time.monotonic() + _SECONDS
            while not ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    said = [output, home / f"{name}.log"]
                    log = "".join(path.read_text() for path in said if path.exists())
                    raise SlurmDidNotStartError(f"{name} did not start: {log}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()


def _node_is_idle(environment: Mapping[str, str]) -> bool:
    return _ask(["sinfo", "--noheader", "--format=%T"], environment).stdout.strip() == "idle"


def _ask(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SBIN}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
