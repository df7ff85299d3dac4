"""Bringing the index up to date with a source: plan, read in parallel, store.

The calling thread stores what workers read. Where there is nothing to read,
nothing is imported that could, so that looking costs a listing and a query.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aboard.index.plan import Plan, Source, make_plan
from aboard.storage.base import StorageError

if TYPE_CHECKING:
    from aboard.index.reading import Batch

_ATTEMPTS = 5


@dataclass(slots=True)
class Report:
    """What a refresh did."""

    files_read: int = 0
    files_unchanged: int = 0
    files_gone: int = 0
    bytes_total: int = 0
    bytes_read: int = 0
    events: int = 0
    points: int = 0
    records: int = 0
    seconds: float = 0.0
    problems: list[StorageError] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        """Count a batch that was stored."""
        self.files_read += batch.last
        self.bytes_read += batch.scanned
        self.events += batch.taken.events
        self.points += sum(part.size for part in batch.taken.points)
        self.records += sum(part.size for part in batch.taken.pointers if part.series >= 0)


Progress = Callable[[Report], None]


def refresh(
    connection: sqlite3.Connection,
    source: Source,
    *,
    anew: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Read what is new in a source and store it.

    Args:
        connection: the index; only this thread may write through it meanwhile.
        source: what to read.
        anew: read everything again.
        progress: is called, in this thread, whenever something was stored.

    Raises:
        StorageError: the source itself cannot be listed.
    """
    report = Report()
    started = time.monotonic()
    for _ in range(_ATTEMPTS):
        plan = make_plan(connection, source, anew=anew)
        report.files_unchanged = plan.unchanged
        report.problems = list(plan.problems)
        report.bytes_total += sum(one.entry.size - one.start for one in plan.readings)
        if not plan.readings and not plan.gone:
            break
        # Another process may be reading the same files: then see what is left to do.
        if not _read_and_store(connection, plan, report, progress):
            break
        anew = False
    report.seconds = time.monotonic() - started
    return report


def _read_and_store(
    connection: sqlite3.Connection, plan: Plan, report: Report, progress: Progress | None
) -> bool:
    """Do what is planned; tell whether another process got in the way."""
    from aboard.index.reading import Batch
    from aboard.index.store import Store
    from aboard.index.workers import reading

    store = Store(connection)
    with reading(plan.readings) as parts:
        if plan.gone:
            store.forget(plan.gone)
            report.files_gone += len(plan.gone)
        for found in parts:
            report.problems += [item for item in found if isinstance(item, StorageError)]
            ready = [item for item in found if isinstance(item, Batch)]
            store.put(ready)
            for batch in ready:
                report.add(batch)
            if progress:
                progress(report)
    return bool(store.outrun)
