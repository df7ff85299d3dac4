"""Code in the training process: the run, what it logs, and how that reaches its storage."""

from __future__ import annotations

import contextlib
import sys

_printed: set[str] = set()


def notify(notice: object) -> None:
    # A closed standard error does not stop a training.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"aboard: {notice}\n")
        sys.stderr.flush()


def notify_once(notice: str) -> None:
    if notice not in _printed:
        _printed.add(notice)
        notify(notice)


def notify_recovered(dropped: int) -> None:
    records = f"{dropped} record{'s were' if dropped != 1 else ' was'}"
    lost = f"; {records} lost" if dropped else ""
    notify(f"event files are written again{lost}.")
