"""A real Slurm of two nodes, with its own directory, keys, state and ports.

It neither reads nor changes the machine's configuration, and needs only the user who runs the
tests, so another cluster can run on the machine. Both nodes are this machine. With `accounting`,
slurmdbd keeps all jobs in a MariaDB, and slurmctld soon forgets finished ones.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.engines.ports import free_port
from tests.waiting import until

PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "srun", "sbatch", "sinfo", "scontrol")
INSTALL = "apt-get install slurm-wlm munge"
PROGRAMS_OF_ACCOUNTING = (
    "slurmdbd",
    "sacct",
    "mariadbd",
    "mariadb-install-db",
    "my_print_defaults",
)
INSTALL_ACCOUNTING = "apt-get install slurmdbd mariadb-server-core mariadb-client-core"
CPUS = 4
NODES = ("node1", "node2")
_SBIN = "/usr/sbin:/usr/local/sbin:/sbin"
_SECONDS = 60


class SlurmDidNotStartError(RuntimeError):
    """A daemon exited or never responded; the message ends with its log."""


def missing(*, accounting: bool = False) -> str:
    """Return what is not installed; empty if nothing is missing."""
    programs = PROGRAMS + PROGRAMS_OF_ACCOUNTING if accounting else PROGRAMS
    absent = [program for program in programs if _which(program) is None]
    install = f"{INSTALL}; {INSTALL_ACCOUNTING}" if accounting else INSTALL
    return f"needs {', '.join(absent)} (Debian: {install})" if absent else ""


class Cluster:
    """The daemons of a cluster; `variables` let `srun` and `sbatch` find it."""

    def __init__(self, home: Path, *, accounting: bool = False) -> None:
        self.home = home
        self.accounting = accounting
        self.configuration = home / "slurm.conf"
        self.variables = {"SLURM_CONF": str(self.configuration)}
        self._munge = home / "munge.socket"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        _configure(self.home, self._munge, accounting=self.accounting)
        key = self.home / "munge.key"
        subprocess.run([_which("mungekey"), "--create", "--keyfile", key], check=True)
        files = {"key-file": key, "socket": self._munge, "pid-file": self.home / "munged.pid"}
        files |= {"seed-file": self.home / "munge.seed", "log-file": self.home / "munged.log"}
        options = [f"--{option}={path}" for option, path in files.items()]
        self._daemon("munged", ["munged", "--foreground", *options], self._munge.exists)
        if self.accounting:
            self._start_accounting()
        self.start_controller()
        for node in NODES:
            self.start_node(node)

    def _start_accounting(self) -> None:
        data, connection = self.home / "mariadb", self.home / "mariadb.socket"
        install = [_which("mariadb-install-db"), "--no-defaults", f"--datadir={data}"]
        install += ["--auth-root-authentication-method=normal", "--skip-name-resolve"]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        options = [f"--datadir={data}", f"--socket={connection}", "--skip-networking"]
        options += [f"--pid-file={self.home}/mariadb.pid", f"--user={getpass.getuser()}"]
        self._daemon("mariadbd", ["mariadbd", "--no-defaults", *options], connection.exists)
        self.variables["MYSQL_UNIX_PORT"] = str(connection)  # slurmdbd.conf cannot name a socket
        listed = ("sacctmgr", "list", "cluster")
        self._daemon("slurmdbd", ["slurmdbd", "-D"], lambda: self.succeeds(*listed))

    def start_controller(self) -> None:
        self._daemon("slurmctld", ["slurmctld", "-D"], lambda: self.succeeds("scontrol", "ping"))

    def stop_controller(self) -> None:
        """Stop slurmctld as an administrator does, so that it saves its state."""
        process = self._running.pop("slurmctld")
        process.terminate()
        process.wait()

    def start_node(self, node: str) -> None:
        """Start the daemon of a node, and wait until it accepts jobs."""
        ask = ("sinfo", "--noheader", "--format=%T", f"--nodes={node}")
        self._daemon(
            node,
            ["slurmd", "-D", "-N", node],
            lambda: self.ask(*ask).stdout.strip() in {"idle", "mixed", "allocated"},
        )

    def kill(self, daemon: str) -> None:
        """Kill `slurmctld`, or a node with all its jobs, as when its machine fails."""
        process = self._running.pop(daemon)
        process.kill()
        process.wait()
        if daemon in NODES:
            self._kill_jobs(daemon)

    def _kill_jobs(self, node: str) -> None:
        """Kill all processes of jobs at once, so that no script sees its program exit."""
        ours = {f"SLURM_CONF={self.configuration}", f"SLURMD_NODENAME={node}"}
        stopped: set[int] = set()
        while found := self._jobs_of(ours, stopped):
            _signal_all(found, signal.SIGSTOP)
            stopped |= found
        _signal_all(stopped, signal.SIGKILL)

    def _jobs_of(self, ours: set[str], known: set[int]) -> set[int]:
        """Return unknown processes: those of jobs, their parents, and children of known ones."""
        found = set()
        for pid in _processes():
            if ours <= _environment(pid):
                found |= {pid, _parent(pid)}
            elif _parent(pid) in known:  # during exec a process shows no environment
                found.add(pid)
        return found - known - {0, 1}

    def pid(self, daemon: str) -> int:
        return self._running[daemon].pid

    def hang(self, daemon: str, *, hangs: bool = True) -> None:
        self._running[daemon].send_signal(signal.SIGSTOP if hangs else signal.SIGCONT)

    def stop(self) -> None:
        for process in reversed(self._running.values()):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._running.values():
            process.wait()
        for node in NODES:  # a killed controller has forgotten the latest jobs
            self._kill_jobs(node)

    def ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=os.environ | self.variables, capture_output=True, text=True, check=False
        )

    def succeeds(self, *command: str) -> bool:
        return self.ask(*command).returncode == 0

    def _daemon(self, name: str, command: list[str], ready: Callable[[], bool]) -> None:
        output = self.home / f"{name}.out"
        program = _which(command[0])
        environment = os.environ | self.variables
        with output.open("ab") as sink:
            process = subprocess.Popen(
                [str(program), *command[1:]], env=environment, stdout=sink, stderr=sink
            )
        self._running[name] = process

        def failure() -> str:
            logs = [output, self.home / f"{name}.log"]
            text = "".join(path.read_text() for path in logs if path.exists())
            return f"{name} did not start: {text}"

        until(lambda: process.poll() is not None or ready(), failure)
        if process.poll() is not None:
            raise SlurmDidNotStartError(failure())


@contextmanager
def slurm(*, accounting: bool = False) -> Iterator[Cluster]:
    """Run a cluster."""
    # Below /tmp: the path of a socket is limited to about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as name:
        home = Path(name)
        home.chmod(0o711)  # munged requires a socket that all users can reach
        cluster = Cluster(home, accounting=accounting)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def _configure(home: Path, munge: Path, *, accounting: bool) -> None:
    for folder in ("state", *(f"spool-{node}" for node in NODES)):
        (home / folder).mkdir()
    host = socket.gethostname()
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()}"
        f" CPUs={CPUS} RealMemory=8000"
        for node in NODES
    )
    kept = "AccountingStorageType=accounting_storage/none\nMinJobAge=300"
    if accounting:
        kept = _configure_accounting(home, munge)
    (home / "slurm.conf").write_text(f"""\
ClusterName=test
MaxJobCount=20000
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmUser={getpass.getuser()}
SlurmdUser={getpass.getuser()}
AuthType=auth/munge
AuthInfo=socket={munge},cred_expire=5
CredType=cred/munge
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerNode=1000
{kept}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
MpiDefault=none
ReturnToService=2
KillWait=2
SlurmdTimeout=10
MessageTimeout=5
OverTimeLimit=0
PriorityType=priority/basic
SchedulerParameters=sched_min_interval=0,bf_interval=1,defer_batch=no
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
{nodes}
PartitionName=main Nodes=node1 Default=YES MaxTime=INFINITE State=UP
PartitionName=both Nodes=node1,node2 MaxTime=INFINITE State=UP
PartitionName=down Nodes=node1 MaxTime=INFINITE State=DOWN
PartitionName=cancelled Nodes=node1 MaxTime=INFINITE State=UP PreemptMode=CANCEL
PartitionName=warned Nodes=node1 MaxTime=INFINITE State=UP GraceTime=2
PartitionName=urgent Nodes=node1 MaxTime=INFINITE State=UP PreemptMode=OFF PriorityTier=2
""")


def _configure_accounting(home: Path, munge: Path) -> str:
    """Write the configuration of slurmdbd, and return the matching lines of slurm.conf."""
    port = free_port()
    path = home / "slurmdbd.conf"
    path.touch(0o600)
    path.write_text(f"""\
DbdHost={socket.gethostname()}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={getpass.getuser()}
AuthType=auth/munge
AuthInfo=socket={munge}
PidFile={home}/slurmdbd.pid
LogFile={home}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=accounting
""")
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={munge}
MinJobAge=2"""


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _environment(pid: int) -> set[str]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0"))
    except OSError:
        return set()


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SBIN}")


def _signal_all(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
