"""Event files that a program writes elsewhere, copied into its run as they grow.

Many scripts have a log directory of their own, `logs/` or `runs/Nov16_12-00-00_host`, and do not
ask anyone. What a process has open is known on Linux; what is opened and closed unseen is searched
for, below the working directory and the directories that the command names, unless a file's name
says that somebody else wrote it: several trainings may run in one directory, here and on other
machines. The program's own files are left as they are.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import threading
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Literal

from aboard.runs.manifest import FILE_NAME
from aboard.track import env
from aboard.track.nodes import nodes_of_job, program_of, sends_work_elsewhere
from aboard.track.processes import logdir_of, running
from aboard.track.say import say

_MARK = "tfevents"
_LOOK_SECS = 0.25
_LOOKS_PER_COPY = 4
_LOOKS_PER_SEARCH = 20
_DEAREST_SEARCH_SECS = 0.2
"""A search that takes longer is not repeated before the end."""
_MOST_ENTRIES = 200_000
_BLOCK = 1 << 20
_FILE = re.compile(r"tfevents\.(?P<second>\d{9,11})\.(?P<rest>.*)")
_CONTAINER = re.compile(
    r"(?i:logs?|runs|tb|tb_logs|tensorboard|tensorboard_logs|lightning_logs|version_\d+)"
    r"|[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_.*"
)
"""Directories that say nothing about what is in them: `logs/train` is the stage `train`."""
Origin = Literal["ours", "others", "elsewhere"]
"""A process of the program, another one of this machine, or one of another machine."""
_SKIPPED = {".git", "node_modules", "__pycache__", "site-packages"}


class Adoption:
    """Copies what the processes below a program write into its run."""

    def __init__(
        self, into: Path, working_directory: Path, since: float, command: Sequence[str] = ()
    ) -> None:
        self._into = into.resolve()
        self._working_directory = working_directory.resolve()
        self._places = [self._working_directory, *places_in(command, self._working_directory)]
        self._since = since
        self._family = _Family(str(into))
        self._program = program_of(command)
        self._nodes = nodes_of_job(os.environ)
        self._copies: dict[Path, _Copy] = {}
        self._homes: dict[Path, Path] = {}
        self._left: dict[Path, None] = {}
        self._failed = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, pid: int) -> None:
        """Follow the files that a process and its descendants have open, until stopped."""
        self._thread = threading.Thread(
            target=self._follow, args=(pid,), name="aboard-adopt", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Copy what is left, also of files that nobody was seen writing."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._search()
        self._copy()
        self._say_left()

    def _follow(self, pid: int) -> None:
        polls = 0
        cheap = True
        self._family.look(pid)
        while not self._stopped.wait(_LOOK_SECS):
            alive = self._family.look(pid)
            polls += 1
            if polls % _LOOKS_PER_SEARCH == 0 and cheap:
                started = time.monotonic()
                self._search()
                cheap = time.monotonic() - started < _DEAREST_SEARCH_SECS
            if polls % _LOOKS_PER_COPY == 0:
                self._adopt(_open_event_files(alive))
                self._copy()

    def _search(self) -> None:
        """Adopt what was written where the program's files may be."""
        elsewhere = self._family.sends_elsewhere or sends_work_elsewhere([self._program])
        for place in self._places:
            for path in _written_below(place, self._since):
                whose = writer_of(path.name, self._family.seen, self._since)
                if whose == "elsewhere" and (elsewhere or is_of_host(path.name, self._nodes)):
                    whose = "ours"
                if whose == "ours":
                    self._adopt([path])
                elif whose == "elsewhere":
                    self._left[path] = None

    def _say_left(self) -> None:
        """Say which files were not copied, though they may be what somebody misses."""
        left = [path for path in self._left if path not in self._copies]
        left = [path for path in left if not self._belongs_to_a_run(path)]
        if left:
            others = f" and {len(left) - 1} more" if len(left) > 1 else ""
            say(
                f"{left[0]}{others}: not copied into the run, since the name says that another "
                f"machine wrote it. What the program writes to {env.LOGDIR} is always in the run."
            )

    def _adopt(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if path not in self._copies and not self._belongs_to_a_run(path):
                self._copies[path] = _Copy(path, self._home(path.parent) / path.name)

    def _copy(self) -> None:
        for copy in self._copies.values():
            try:
                copy.catch_up()
            except OSError as error:
                if not self._failed:
                    say(f"{copy.source} cannot be copied into the run: {error.strerror or error}.")
                self._failed = True

    def _belongs_to_a_run(self, path: Path) -> bool:
        """Say whether a file lies in this run, or in another one that has a record."""
        return path.is_relative_to(self._into) or any(
            (above / FILE_NAME).exists() for above in path.parents
        )

    def _home(self, directory: Path) -> Path:
        """Choose a directory in the run; two of the program's never share one."""
        if directory not in self._homes:
            try:
                relative: PurePath = directory.relative_to(self._working_directory)
            except ValueError:
                relative = PurePath(directory.name)
            candidates = itertools.chain(
                (self._into / shortened(relative), self._into / relative),
                (self._into / f"{relative}-{number}" for number in itertools.count(2)),
            )
            taken = set(self._homes.values())
            self._homes[directory] = next(home for home in candidates if home not in taken)
        return self._homes[directory]


def places_in(command: Sequence[str], working_directory: Path) -> list[Path]:
    """Return the directories outside the working directory that a command names."""
    places: dict[Path, None] = {}
    for argument in command[1:]:
        value = argument.rpartition("=")[2]
        if "/" not in value or "://" in value or "\0" in value:
            continue
        with contextlib.suppress(OSError, RuntimeError):
            place = (working_directory / Path(value).expanduser()).resolve()
            around = working_directory.is_relative_to(place)  # to search it all would take long
            if not around and not place.is_relative_to(working_directory):
                places[place] = None
    return list(places)


def has_logs_of_others(directory: Path) -> bool:
    """Say whether a log directory has event files that this process did not write."""
    own = f".{os.getpid()}."
    return any(own not in path.name for path in directory.rglob(f"*{_MARK}*"))


def writer_of(name: str, processes: Container[int], since: float) -> Origin:
    """Say who wrote an event file, going by its name: processes that began then, or others.

    Names tell when a file was made, mostly where, and often by which process.
    """
    found = _FILE.search(name)
    if found is None:
        return "ours"
    if int(found["second"]) < int(since):
        return "others"
    host = socket.gethostname()
    if not is_of_host(name, {host}):
        return "elsewhere"
    process = found["rest"].removeprefix(host).removeprefix(".").partition(".")[0]
    return "ours" if not process.isdecimal() or int(process) in processes else "others"


def is_of_host(name: str, hosts: Iterable[str]) -> bool:
    """Say whether an event file has the name of one of these hosts in its own."""
    found = _FILE.search(name)
    rest = found["rest"] if found else ""
    return any(host and (rest == host or rest.startswith(f"{host}.")) for host in hosts)


def shortened(directory: PurePath) -> PurePath:
    """Leave out everything up to the last directory whose name says nothing."""
    parts = directory.parts
    for place in range(len(parts), 0, -1):
        if _CONTAINER.fullmatch(parts[place - 1]):
            return PurePath(*parts[place:])
    return directory


class _Copy:
    """A copy that follows its source."""

    def __init__(self, source: Path, target: Path) -> None:
        self.source = source
        self._target = target
        self._copied = 0

    def catch_up(self) -> None:
        try:
            size = self.source.stat().st_size
        except FileNotFoundError:
            return  # the program removed it; what was copied stays
        if size <= self._copied:
            return
        self._target.parent.mkdir(parents=True, exist_ok=True)
        with self.source.open("rb") as source, self._target.open("ab") as target:
            if target.tell() != self._copied:  # an earlier write was cut short
                target.truncate(self._copied)
            source.seek(self._copied)
            while block := source.read(_BLOCK):
                target.write(block)
                self._copied += len(block)


class _Family:
    """The processes of a run: a program's descendants, and whoever has its log directory told.

    The latter because Slurm and others start what we ask them to as processes of their own.
    """

    def __init__(self, logdir: str) -> None:
        self.seen: set[int] = set()
        self._logdir = os.fsencode(logdir)
        self._strangers: dict[int, int] = {}
        self.sends_elsewhere = False
        """Whether one of them starts processes in a container, or on another machine."""

    def look(self, pid: int) -> set[int]:
        """Return those that are alive now; a program may have ended already."""
        alive: set[int] = set()
        pending = [pid, *self._told()]
        while pending:
            one = pending.pop()
            if one in alive or (one != pid and logdir_of(one) not in (None, self._logdir)):
                continue  # another run's, inside this one
            alive.add(one)
            with contextlib.suppress(OSError, ValueError):
                for task in Path("/proc", str(one), "task").iterdir():
                    pending.extend(map(int, (task / "children").read_text().split()))
        if not self.sends_elsewhere:
            self.sends_elsewhere = sends_work_elsewhere(filter(None, map(_program_of, alive)))
        self.seen |= alive
        return alive

    def _told(self) -> Iterator[int]:
        self._strangers = {pid: self._strangers.get(pid, 0) for pid in running()}
        for pid in self._strangers:
            # A look may come between a fork and what the child becomes; three are enough.
            if self._strangers[pid] >= 3:
                continue
            if logdir_of(pid) == self._logdir:
                yield pid
            else:
                self._strangers[pid] += 1


def _program_of(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "comm").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _open_event_files(processes: Iterable[int]) -> Iterator[Path]:
    """Yield the event files that processes have open."""
    for process in processes:
        with contextlib.suppress(OSError):
            for descriptor in Path("/proc", str(process), "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = descriptor.readlink()
                    if _MARK in target.name and target.is_file():
                        yield target


def _written_below(directory: Path, since: float) -> Iterator[Path]:
    """Yield the event files below a directory that changed since then; not without end."""
    pending = [str(directory)]
    seen = 0
    while pending and seen < _MOST_ENTRIES:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                seen += 1
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _SKIPPED:
                            pending.append(entry.path)
                    elif _MARK in entry.name and entry.stat().st_mtime >= since:
                        yield Path(entry.path)
