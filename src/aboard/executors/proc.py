"""Processes as Linux shows them in `/proc`: who lives, in which group, with how much memory.

A process is known by its id together with the moment it was started, which no later process of
the same id shares. Nothing here starts or ends any.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_DEAD = ("Z", "X", "x")


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    Attributes:
        pid: its id.
        group: the id of its process group.
        started: when it was started, in ticks since the machine was.
        resident: the bytes of memory it uses, with those it shares.
        lives: whether it is more than an exit code that nobody has fetched.
    """

    pid: int
    group: int
    started: int
    resident: int
    lives: bool


def boot() -> str:
    """Return what identifies the time since the machine was started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def find(pid: int) -> Process | None:
    """Return the process of an id, if there is one."""
    try:
        # Not Path: it is read for every process of the machine.
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything.
    fields = text.rpartition(b")")[2].split()
    return Process(
        pid=pid,
        group=int(fields[2]),
        started=int(fields[19]),
        resident=int(fields[21]) * _PAGE,
        lives=fields[0].decode() not in _DEAD,
    )


def by_group() -> dict[int, list[Process]]:
    """Return all processes of the machine, by their group."""
    found: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal() and (process := find(int(name))) is not None:
            found.setdefault(process.group, []).append(process)
    return found


def proportional(processes: Iterable[Process]) -> int:
    """Return the memory of some processes, each page that they share counted once.

    It takes the kernel far longer to tell than what each has resident.
    """
    total = 0
    for process in processes:
        size = process.resident
        with suppress(OSError, IndexError, ValueError):
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            size = int(rollup.partition("\nPss:")[2].split()[0]) * 1024
        total += size
    return total


def command_of(pid: int) -> list[str]:
    """Return the command line of a process; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return text.decode("utf-8", "surrogateescape").split("\0")[:-1]
