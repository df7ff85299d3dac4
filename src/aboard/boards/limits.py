"""How many boards a user may have, and how large and long-lived; what is over it, and the way out.

Pure rules. That two requests at once cannot both take the last place is seen to by the registry,
which asks these rules while it holds the owner's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aboard.boards.errors import BoardLimitExceeded
from aboard.boards.model import INSTANT, BoardRecord
from aboard.boards.wanted import Wanted

_Units = tuple[tuple[int, str], ...]
_SIZES: _Units = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_TIMES: _Units = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one user may have.

    Attributes:
        isolated: live boards with a process of their own; None for any number.
        instant: live boards that the hub serves itself; None for any number.
        memory: the most bytes for one isolated board; 0 for no ceiling.
        timeout: the longest that one isolated board may run; 0 for no ceiling.
        idle_timeout: the idle time-out of an isolated board for which none was given; 0 for none.
    """

    isolated: int | None = 5
    instant: int | None = None
    memory: int = 0
    timeout: float = 0.0
    idle_timeout: float = 0.0

    def most(self, on: str) -> int | None:
        """Return how many boards there may be of the kind that runs there."""
        return self.instant if on == INSTANT else self.isolated


def settle(wanted: Wanted, limits: Limits) -> Wanted:
    """Fill in what was not said, and refuse what is above a ceiling.

    Raises:
        BoardLimitExceeded: more memory or time is wanted than there may be.
    """
    isolated = wanted.on != INSTANT
    memory = _within(wanted.memory, limits.memory if isolated else 0, "memory", _SIZES)
    timeout = _within(wanted.timeout, limits.timeout if isolated else 0, "timeout", _TIMES)
    idle = wanted.idle_timeout
    if idle is None:
        idle = limits.idle_timeout if isolated else 0.0
    return replace(wanted, memory=int(memory), timeout=timeout, idle_timeout=idle)


def check_room(owner: str, on: str, live: Sequence[BoardRecord], limits: Limits) -> None:
    """Let one more board in.

    Args:
        owner: whose board it will be.
        on: where it will run.
        live: the owner's boards that have not ended.
        limits: what the owner may have.

    Raises:
        BoardLimitExceeded: the owner has as many as he may have.
    """
    isolated = on != INSTANT
    most = limits.most(on)
    if most is None:
        return
    counted = sorted(
        (board for board in live if board.is_isolated == isolated), key=lambda board: board.created
    )
    if len(counted) < most:
        return
    kind = "isolated" if isolated else "instant"
    have = "; ".join(f"{board.id} ({board.name}, {board.state})" for board in counted) or "none"
    hint = (
        f"Stop the oldest with: aboard stop {counted[0].id}"
        if counted
        else "Ask an administrator for more."
    )
    raise BoardLimitExceeded(
        f"{owner} may have {most} {kind} boards and has {len(counted)}: {have}.", hint, counted
    )


def check_extension(record: BoardRecord, expires: float, limits: Limits) -> None:
    """Let a board run until a later time.

    Raises:
        BoardLimitExceeded: it would run longer than a board may.
    """
    if not record.is_isolated or not limits.timeout or record.started is None:
        return
    if expires - record.started > limits.timeout:
        raise BoardLimitExceeded(
            f"board {record.id} ({record.name}) may run for"
            f" {_amount(limits.timeout, _TIMES)} in all.",
            f"Start it anew before it ends: aboard restart {record.id}",
            [record],
        )


def _within(value: float | None, ceiling: float, what: str, units: _Units) -> float:
    if not ceiling:
        return value or 0
    if value is None:
        return ceiling
    if 0 < value <= ceiling:
        return value
    asked, most = _amount(value, units) if value else "no limit", _amount(ceiling, units)
    raise BoardLimitExceeded(
        f"{what}: {asked} is more than the {most} that one board may have.",
        f"Ask for at most {most}.",
    )


def _amount(value: float, units: _Units) -> str:
    """Write an amount as it may be asked for: `1.5GiB`, `9h`."""
    for size, unit in units:
        if value >= size and round(value / size, 1) * size == value:
            return f"{value / size:.15g}{unit}"
    return f"{value:.15g}{units[-1][1]}"
