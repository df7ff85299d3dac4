"""When to poll a directory or a bucket for new data."""

from __future__ import annotations

from dataclasses import dataclass

from aboard.storage import is_remote

LOCAL_SECONDS = 0.4
ROOT_SECONDS = 1.0
LONGEST_LOCAL_SECONDS = 5.0
REMOTE_SECONDS = 5.0  # between two polls of a bucket that changes
LONGEST_SECONDS = 60.0
UNWATCHED_SECONDS = 60.0  # without a request, then a board is not polled
CPU_SHARE = 0.1  # of one core, for polling all feeds in use


@dataclass(slots=True)
class Schedule:
    """How long to wait before the next poll. It has no clock."""

    shortest: float  # seconds to wait after a change
    longest: float  # the longest wait in seconds, however slow a poll is
    grows: bool = True  # back off while nothing changes
    wait: float = 0.0
    floor: float = 0.0  # the shortest wait in any case, so that polling is not continuous
    share: float = CPU_SHARE

    def after(self, *, changed: bool, cost: float) -> float:
        """Return the seconds to wait after a poll that took `cost` seconds of CPU time.

        The cost of a poll that found changes is ignored, because it does not predict the next one.
        """
        if not changed:
            self.floor = min(cost / self.share, self.longest)
        least = max(self.shortest, self.floor)
        longer = self.grows and not changed and self.wait
        self.wait = min(max(least, self.wait * 1.5 if longer else 0.0), self.longest)
        return self.wait


def schedule_of(uri: str, poll: float | None = None, *, is_root: bool = False) -> Schedule:
    """Return the schedule of a feed; `poll` replaces the shortest wait of a bucket."""
    if not is_remote(uri):
        shortest = ROOT_SECONDS if is_root else LOCAL_SECONDS
        return Schedule(shortest, max(shortest, LONGEST_LOCAL_SECONDS), grows=False)
    shortest = REMOTE_SECONDS if poll is None else poll
    return Schedule(shortest, max(shortest, LONGEST_SECONDS))
