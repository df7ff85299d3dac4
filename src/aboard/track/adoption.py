"""Copy event files that a program writes elsewhere into its run, as they grow.

Linux shows which files a process has open. Files that are opened and closed between two polls are
searched for in the working directory and the directories that the command names. The names of files
show which ones another program wrote: several trainings may run in one directory, here and on other
machines. The program's own files are not changed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import threading
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Literal

from aboard import system
from aboard.events.files import EVENT_FILE, MADE_BY, adopted_name
from aboard.runs.manifest import FILE_NAME
from aboard.track import environment, notify
from aboard.track.environment import find_rank

_POLL_SECS = 0.25
_POLLS_PER_COPY = 4
_SEARCH_SHARE = 0.01  # of the time, for searching
_LONGEST_PAUSE = 5.0  # seconds between two quick searches
_MAX_SEARCH_SECS = 0.2  # a slower search is repeated as rarely as its cost demands
_MAX_ENTRIES = 200_000
_MAX_NODES = 100_000
_BLOCK = 1 << 20
# Names of directories that are ignored: `logs/train` is the stage `train`.
_CONTAINER = re.compile(
    r"(?i:logs?|runs|tb|tb_logs|tensorboard|tensorboard_logs|lightning_logs|version_\d+)"
    r"|[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_.*"
)
_SKIPPED = {".git", "node_modules", "__pycache__", "site-packages"}
_NODE_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "LSB_HOSTS")
_NODE_FILES = ("PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE", "COBALT_NODEFILE")
_NODE_LIST_PART = re.compile(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)*")
_LAUNCHERS = {  # programs that start others in a container, or on another machine
    *("docker", "podman", "nerdctl", "singularity", "apptainer", "enroot", "shifter", "ch-run"),
    *("udocker", "lxc", "kubectl", "oc", "sky", "dstack", "ray", "horovodrun", "deepspeed"),
    *("srun", "salloc", "sbatch", "qsub", "qrsh", "bsub", "jsrun", "lrun", "aprun", "flux"),
    *("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "prterun"),
    *("ssh", "pdsh", "dsh", "clush", "parallel", "dask-ssh"),
}
_WRAPPERS = {"sudo", "env", "nice", "nohup", "time", "exec", "stdbuf", "setsid"}

# A process of the program, another one of this machine, or one of another machine.
Writer = Literal["program", "other", "remote"]


class Adoption:
    """Copies what the processes of a program, started at `since`, write into its run."""

    def __init__(
        self,
        into: Path,
        working_directory: Path,
        since: float,
        command: Sequence[str] = (),
        *,
        ranks: str = "first",
    ) -> None:
        self._into = into.resolve()
        self._working_directory = working_directory.resolve()
        self._places = directories_in(command, self._working_directory)
        self._since = since
        self._every_rank = ranks == "all"  # each has its own directory
        self._processes = _ProcessTree(str(into), ranks=self._every_rank)
        self._program = _program_of(command)
        self._nodes = job_nodes(os.environ)
        self._copies: dict[Path, _Copy] = {}
        self._homes: dict[tuple[Path, Path], Path] = {}
        self._writers: dict[Path, dict[str, None]] = {}
        self._skipped: dict[Path, None] = {}
        self._failed = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, pid: int) -> None:
        self._thread = threading.Thread(
            target=self._follow, args=(pid,), name="aboard-adopt", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Copy the rest, including files that no process was seen writing."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._search()
        self._copy()
        self._report_skipped()

    def _follow(self, pid: int) -> None:
        polls = 0
        search_due = 0.0
        self._processes.poll(pid)
        while not self._stopped.wait(_POLL_SECS):
            alive = self._processes.poll(pid)
            polls += 1
            known = len(self._copies)
            if (started := time.monotonic()) >= search_due:
                self._search()
                done = time.monotonic()
                search_due = done + pause_after(done - started)
            # Until a new file is copied, it looks like another run.
            if polls % _POLLS_PER_COPY == 0 or len(self._copies) > known:
                for process in alive:
                    for path in _open_event_files(process):
                        self._adopt(path, process)
                self._copy()

    def _search(self) -> None:
        remote = self._processes.starts_remote or starts_remote([self._program])
        for place in self._places:
            for path in _written_below(place, self._since):
                writer = writer_of(path.name, self._processes.seen, self._since)
                if writer == "remote" and (remote or _names_host(path.name, self._nodes)):
                    writer = "program"
                if writer == "program":
                    self._adopt(path)
                elif writer == "remote":
                    self._skipped[path] = None

    def _report_skipped(self) -> None:
        left = [path for path in self._skipped if path not in self._copies]
        left = [path for path in left if not self._belongs_to_a_run(path)]
        if left:
            others = f" and {len(left) - 1} more" if len(left) > 1 else ""
            notify(
                f"{left[0]}{others}: not copied into the run, because another machine wrote it,"
                f" by its name. Files written to {environment.LOGDIR} are always in the run."
            )

    def _adopt(self, path: Path, process: int | None = None) -> None:
        """Start to copy a file, unless it already belongs to a run."""
        if path in self._copies:
            return
        process = process or _process_in(path.name)
        if self._belongs_to_a_run(path):
            if self._every_rank and process and path.is_relative_to(self._into):
                self._check_writer(path.parent, process)
            return
        rank = self._processes.ranks.get(process or 0)
        own = self._into if rank is None else self._into / f"rank-{rank}"
        home = self._home(path.parent, self._into if own.name == self._into.name else own)
        if self._every_rank and process:
            self._check_writer(home, process)
        self._copies[path] = _Copy(path, home / adopted_name(path.name))

    def _check_writer(self, directory: Path, process: int) -> None:
        rank = self._processes.ranks.get(process)
        writers = self._writers.setdefault(directory, {})
        known = len(writers)
        writers[f"process {process}" if rank is None else f"rank {rank}"] = None
        if known == 1 and len(writers) == 2:
            notify(
                f"{' and '.join(writers)} both write event files to {directory}, which mixes them"
                f" up. Log to ${environment.LOGDIR}/rank-N, or use aboard.init."
            )

    def _copy(self) -> None:
        for copy in self._copies.values():
            try:
                copy.update()
            except OSError as error:
                if not self._failed:
                    problem = error.strerror or error
                    notify(f"{copy.source} cannot be copied into the run: {problem}.")
                self._failed = True

    def _belongs_to_a_run(self, path: Path) -> bool:
        """Return whether a file is in this run, or in another one that has a record."""
        return path.is_relative_to(self._into) or any(
            (above / FILE_NAME).exists() for above in path.parents
        )

    def _home(self, directory: Path, base: Path) -> Path:
        """Choose a directory below a base in the run, a different one for each directory."""
        if (directory, base) not in self._homes:
            try:
                relative: PurePath = directory.relative_to(self._working_directory)
            except ValueError:
                relative = PurePath(directory.name)
            candidates = itertools.chain(
                (base / shortened(relative), base / relative),
                (base / f"{relative}-{number}" for number in itertools.count(2)),
            )
            taken = set(self._homes.values())
            self._homes[directory, base] = next(home for home in candidates if home not in taken)
        return self._homes[directory, base]


class _Copy:
    def __init__(self, source: Path, target: Path) -> None:
        self.source = source
        self._target = target
        self._copied = 0

    def update(self) -> None:
        try:
            size = self.source.stat().st_size
        except FileNotFoundError:
            return  # the program removed it; the copy stays
        if size <= self._copied:
            return
        self._target.parent.mkdir(parents=True, exist_ok=True)
        with self.source.open("rb") as source, self._target.open("ab") as target:
            if target.tell() != self._copied:  # an earlier write was incomplete
                target.truncate(self._copied)
            source.seek(self._copied)
            while block := source.read(_BLOCK):
                target.write(block)
                self._copied += len(block)


class _ProcessTree:
    """The processes of a run: a program's descendants, and those whose environment names the run.

    Slurm and others do not start processes as descendants of the program.
    """

    def __init__(self, logdir: str, *, ranks: bool) -> None:
        self.seen: set[int] = set()  # in any poll
        self.starts_remote = False
        self._logdir = os.fsencode(logdir)
        self._polls: dict[int, int] = {}
        self._finds_ranks = ranks
        self.ranks: dict[int, int] = {}

    def poll(self, pid: int) -> set[int]:
        """Return the running processes; the program itself may have exited."""
        alive: set[int] = set()
        pending = [pid, *self._with_logdir()]
        while pending:
            one = pending.pop()
            if one in alive or (one != pid and _logdir_of(one) not in (None, self._logdir)):
                continue  # part of another run, inside this one
            alive.add(one)
            pending += system.children(one)
        if not self.starts_remote:
            self.starts_remote = starts_remote(map(system.program_name, alive))
        for one in alive - self.ranks.keys() if self._finds_ranks else ():
            rank = find_rank(system.start_environment(one))
            if rank.size > 1:
                self.ranks[one] = rank.number
        self.seen |= alive
        return alive

    def _with_logdir(self) -> Iterator[int]:
        with contextlib.suppress(OSError):
            self._polls = {pid: self._polls.get(pid, 0) for pid in system.process_ids()}
        for pid, polls in self._polls.items():
            # A poll may hit a process between fork and exec; three polls are enough.
            if polls >= 3:
                continue
            if _logdir_of(pid) == self._logdir:
                yield pid
            else:
                self._polls[pid] += 1


def _logdir_of(pid: int) -> bytes | None:
    return system.start_variable(pid, environment.LOGDIR)


def _open_event_files(pid: int) -> Iterator[Path]:
    for _, name in system.open_files(pid):
        path = Path(name)
        with contextlib.suppress(OSError):
            if EVENT_FILE in path.name and path.is_file():
                yield path


def _written_below(directory: Path, since: float) -> Iterator[Path]:
    """Yield event files below a directory that changed after a time, up to a limit."""
    pending = [str(directory)]
    seen = 0
    while pending and seen < _MAX_ENTRIES:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                seen += 1
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _SKIPPED:
                            pending.append(entry.path)
                    elif EVENT_FILE in entry.name and entry.stat().st_mtime >= since:
                        yield Path(entry.path)


def directories_in(command: Sequence[str], working_directory: Path) -> list[Path]:
    """Return the working directory, and the directories outside it that a command names."""
    places = {working_directory: None}
    for argument in command[1:]:
        value = argument.rpartition("=")[2]
        if "/" not in value or "://" in value or "\0" in value:
            continue
        with contextlib.suppress(OSError, RuntimeError):
            place = (working_directory / Path(value).expanduser()).resolve()
            around = working_directory.is_relative_to(place)  # too large to search
            if not around and not place.is_relative_to(working_directory):
                places[place] = None
    return list(places)


def has_foreign_logs(directory: Path) -> bool:
    own = f".{os.getpid()}."
    return any(own not in path.name for path in directory.rglob(f"*{EVENT_FILE}*"))


def writer_of(name: str, processes: Container[int], since: float) -> Writer:
    """Return who wrote an event file, from the time, host and process in its name."""
    found = MADE_BY.search(name)
    if found is None:
        return "program"
    if int(found["second"]) < int(since):
        return "other"
    if not _names_host(name, {socket.gethostname()}):
        return "remote"
    process = _process_in(name)
    return "program" if process is None or process in processes else "other"


def _process_in(name: str) -> int | None:
    """Return the process id in an event file's name, if it also has this machine's name."""
    found = MADE_BY.search(name)
    host = f"{socket.gethostname()}."
    if found is None or not found["rest"].startswith(host):
        return None
    process = found["rest"].removeprefix(host).partition(".")[0]
    return int(process) if process.isdecimal() else None


def _names_host(name: str, hosts: Iterable[str]) -> bool:
    found = MADE_BY.search(name)
    rest = found["rest"] if found else ""
    return any(host and (rest == host or rest.startswith(f"{host}.")) for host in hosts)


def shortened(directory: PurePath) -> PurePath:
    """Remove everything up to the last directory with an ignored name."""
    parts = directory.parts
    for place in range(len(parts), 0, -1):
        if _CONTAINER.fullmatch(parts[place - 1]):
            return PurePath(*parts[place:])
    return directory


def pause_after(cost: float) -> float:
    """Return the seconds between a search that took `cost` seconds and the next one."""
    pause = cost / _SEARCH_SHARE
    return pause if cost >= _MAX_SEARCH_SECS else min(pause, _LONGEST_PAUSE)


def starts_remote(programs: Iterable[str]) -> bool:
    return any(PurePath(program).name in _LAUNCHERS for program in programs)


def _program_of(command: Sequence[str]) -> str:
    """Return the program of a command, without `sudo`, `env` and the like before it."""
    for word in command:
        if PurePath(word).name not in _WRAPPERS and not word.startswith("-") and "=" not in word:
            return word
    return ""


def job_nodes(variables: Mapping[str, str]) -> set[str]:
    """Return the machines of this job, by the scheduler, with short and long names."""
    nodes: set[str] = set()
    for variable in _NODE_LISTS:
        for part in variables.get(variable, "").split():
            nodes.update(expand_nodes(part))
    for variable in _NODE_FILES:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path := variables.get(variable):
                lines = Path(path).read_text().splitlines()
                nodes.update(words[0] for line in lines if (words := line.split()))
    return nodes | {node.partition(".")[0] for node in nodes}


def expand_nodes(listed: str) -> Iterator[str]:
    """Yield the names in a list in Slurm's notation: `node[01-03,07],login`."""
    parts = filter(None, _NODE_LIST_PART.findall(listed))
    yield from itertools.islice(itertools.chain.from_iterable(map(_names, parts)), _MAX_NODES)


def _names(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield before
        return
    numbers, _, after = rest.partition("]")
    for item in numbers.split(","):
        first, _, last = item.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            for number in range(int(first), int(last or first) + 1):
                for end in _names(after):
                    yield f"{before}{number:0{len(first)}}{end}"
