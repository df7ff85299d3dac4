"""Polling for a condition, with a timeout that only a failure reaches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
_SECONDS = 180.0


def until(condition: Callable[[], T | None], failure: str | Callable[[], object] = "") -> T:
    """Poll a condition until its result is true, with growing pauses; return the result.

    `failure` is the message of a timeout, or a function that returns it.
    """
    pauses = _pauses(failure)
    while not (found := condition()):
        time.sleep(next(pauses))
    return found


async def until_async(
    condition: Callable[[], T | None], failure: str | Callable[[], object] = ""
) -> T:
    """Poll like `until` without blocking the event loop."""
    pauses = _pauses(failure)
    while not (found := condition()):
        await asyncio.sleep(next(pauses))
    return found


def _pauses(failure: str | Callable[[], object]) -> Iterator[float]:
    deadline, pause = time.monotonic() + _SECONDS, 0.01
    while time.monotonic() < deadline:
        yield pause
        pause = min(pause * 1.3, 0.3)
    state = failure() if callable(failure) else failure
    raise AssertionError(state or f"the condition was not met in {_SECONDS:g} s")
