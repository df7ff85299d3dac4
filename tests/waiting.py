"""Waiting for a condition, with a limit that only a failure reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_SECONDS = 180.0


def until(condition: Callable[[], T | None], failure: str | Callable[[], object] = "") -> T:
    """Return what a condition returns once that is true; what is slow is queried rarely.

    `failure` is what the test fails with, or a function that returns the last state.
    """
    deadline, pause = time.monotonic() + _SECONDS, 0.01
    while not (found := condition()):
        if time.monotonic() > deadline:
            state = failure() if callable(failure) else failure
            raise AssertionError(state or "it did not happen in time")
        time.sleep(pause)
        pause = min(pause * 1.3, 0.3)
    return found
