"""Waiting for a condition, with a limit that only a failure reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float = 120.0) -> T:
    """Return what a condition returns once that is true; what is slow is queried rarely."""
    deadline, pause = time.monotonic() + seconds, 0.02
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)
        pause = min(pause * 1.3, 0.3)
    return found
