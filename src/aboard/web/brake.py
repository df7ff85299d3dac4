"""Slow answers for those who try secrets that are wrong.

One brake serves a whole listener, because on a shared machine every visitor has the same address.
It is applied after a secret proved wrong, so whoever holds a right one never waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class Brake:
    """A delay that doubles with each failure and shrinks again with time.

    Args:
        clock: seconds that only grow.
        sleep: waits for a number of seconds.
        first: the delay after one failure.
        longest: no delay is longer.
        calm: seconds after which one failure is forgotten.
        waiting: how many may wait at once; those beyond are turned away at once.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        first: float = 0.1,
        longest: float = 2.0,
        calm: float = 5.0,
        waiting: int = 64,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._first = first
        self._longest = longest
        self._calm = calm
        self._most_waiting = waiting
        self._waiting = 0
        self._failures = 0.0
        self._counted_at = clock()

    def failed(self) -> float:
        """Count a failure, and return how long to wait before saying so."""
        now = self._clock()
        forgotten = (now - self._counted_at) / self._calm
        self._counted_at = now
        # Beyond ten nothing gets slower, and a long attack is forgotten as fast as a short one.
        self._failures = min(max(self._failures - forgotten, 0.0) + 1, 10.0)
        return min(float(self._first * 2 ** (self._failures - 1)), self._longest)

    async def hold(self) -> bool:
        """Wait for a failure's delay; False, without a wait, when too many wait already."""
        delay = self.failed()
        if self._waiting >= self._most_waiting:
            return False
        self._waiting += 1
        try:
            await self._sleep(delay)
        finally:
            self._waiting -= 1
        return True
