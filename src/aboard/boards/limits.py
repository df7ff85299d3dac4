"""Limits on the boards of one user: how many, and how much memory, time and CPU each may use.

These functions are pure. The registry calls them while it holds the owner's lock, so that two
requests cannot both take the last place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aboard.boards.errors import BoardLimitExceeded
from aboard.boards.model import INSTANT, BoardRecord

_Units = tuple[tuple[int, str], ...]
_SIZES: _Units = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_NUMBERS: _Units = ((1, ""),)
_TIMES: _Units = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of each user; None means any number of boards, 0 no ceiling."""

    isolated: int | None = 5
    instant: int | None = None
    memory: int = 0
    cpus: float = 0.0
    timeout: float = 0.0
    idle_timeout: float = 0.0  # the default of an isolated board

    def most(self, on: str) -> int | None:
        return self.instant if on == INSTANT else self.isolated


def fill(values: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return the fields of a new board, with defaults from the limits."""
    isolated = values.get("on", INSTANT) != INSTANT
    ceilings = {"memory": limits.memory, "cpus": limits.cpus, "timeout": limits.timeout}
    defaults = {**ceilings, "idle_timeout": limits.idle_timeout}
    return {**(defaults if isolated else {}), **values}


def check_ceilings(board: BoardRecord, limits: Limits) -> None:
    if board.is_isolated:
        _check_ceiling(board.memory, limits.memory, "memory", _SIZES)
        _check_ceiling(board.cpus, limits.cpus, "cpus", _NUMBERS)
        check_timeout(board, limits)


def check_timeout(board: BoardRecord, limits: Limits) -> None:
    if board.is_isolated:
        _check_ceiling(board.timeout, limits.timeout, "timeout", _TIMES)


def check_room(owner: str, on: str, live: Sequence[BoardRecord], limits: Limits) -> None:
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
        else "Ask an administrator for a higher limit."
    )
    raise BoardLimitExceeded(
        f"{owner} may have {most} {kind} boards and has {len(counted)}: {have}.", hint, counted
    )


def check_extension(record: BoardRecord, expires: float, limits: Limits) -> None:
    if not record.is_isolated or not limits.timeout or record.started is None:
        return
    if expires - record.started > limits.timeout:
        raise BoardLimitExceeded(
            f"board {record.id} ({record.name}) may run for"
            f" {_amount(limits.timeout, _TIMES)} in total.",
            f"Restart it before it stops: aboard restart {record.id}",
            [record],
        )


def _check_ceiling(value: float, ceiling: float, what: str, units: _Units) -> None:
    if not ceiling or 0 < value <= ceiling:
        return
    given, most = _amount(value, units) if value else "no limit", _amount(ceiling, units)
    raise BoardLimitExceeded(
        f"{what}: {given} is more than the limit of {most} per board.",
        f"Request at most {most}.",
    )


def _amount(value: float, units: _Units) -> str:
    """Format an amount as requests write it: `1.5GiB`, `9h`."""
    for size, unit in units:
        if value >= size and round(value / size, 1) * size == value:
            return f"{value / size:.15g}{unit}"
    return f"{value:.15g}{units[-1][1]}"
