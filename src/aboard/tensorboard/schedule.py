"""When to poll a directory or a bucket for new data."""

from __future__ import annotations

from dataclasses import dataclass

from aboard.storage import is_remote

LOCAL_SECONDS = 0.4
ROOT_SECONDS = 1.0
LONGEST_LOCAL_SECONDS = 5.0
REMOTE_SECONDS = 5.0  # between two polls of a bucket in which something changes
LONGEST_SECONDS = 60.0
UNWATCHED_SECONDS = 60.0  # after this long without a request, nothing is polled for a board
CPU_SHARE = 0.1  # of one core, that polling all feeds in use may take


@dataclass(slots=True)
class Schedule:
    """How long to wait before the next poll. It has no clock of its own."""

    shortest: float  # seconds to wait after a change
    longest: float  # seconds to wait at most, however slow a poll is
    grows: bool = True  # wait longer and longer while nothing changes
    wait: float = 0.0
    floor: float = 0.0  # seconds to wait in any case, so that polling does not fill the time
    share: float = CPU_SHARE

    def after(self, *, changed: bool, cost: float) -> float:
        """Return the seconds to wait after a poll that took `cost` seconds of a core.

        The cost of a poll that found something says little about the next one and does not count.
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
