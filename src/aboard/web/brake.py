"""Slow answers for those who try secrets that are wrong, and turns for those who try many.

One brake serves a whole listener, because on a shared machine every visitor has the same address.
`hold` is applied after a secret proved wrong, so whoever holds a right one does not wait for it.
`turn` comes before a secret is looked at that could be guessed: wrong ones use up turns, of which
there are only so many in a second, and right ones do not.
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
        turns: how many secrets may prove wrong before others wait for their turn.
        per_second: how many turns there are in a second from then on.
        patience: the longest that anybody waits for a turn, in seconds.
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
        turns: int = 20,
        per_second: float = 5.0,
        patience: float = 30.0,
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
        self._turns = turns
        self._per_second = per_second
        self._patience = patience
        self._taken = 0.0
        self._taken_at = clock()

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

    async def turn(self) -> bool:
        """Wait for the turn to have a secret looked at, first come, first served.

        False, without a wait, when too many wait already. Whoever proves right gives his turn
        back with `right`.
        """
        now = self._clock()
        self._taken = max(self._taken - (now - self._taken_at) * self._per_second, 0.0)
        self._taken_at = now
        delay = (self._taken + 1 - self._turns) / self._per_second
        if delay > self._patience:
            return False
        self._taken += 1
        if delay > 0:
            await self._sleep(delay)
        return True

    def right(self) -> None:
        """Give back a turn that a right secret took."""
        self._taken -= 1
