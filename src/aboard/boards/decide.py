"""What becomes of a board next: a pure function of what is remembered, seen, and the time.

Nothing here starts or stops anything; `lifecycle` does, and asks here.
"""

from __future__ import annotations

from dataclasses import dataclass

from aboard.boards.model import INSTANT, BoardRecord, State, Transition
from aboard.executors import base


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How patient the hub is, in seconds.

    Attributes:
        poll: between two looks at what runs.
        poll_soon: likewise while a board starts or stops.
        grace: for a board that is asked to end; then it is made to, if its executor has not.
        start_timeout: for a started board to tell its address; 0 for ever.
        quiet: for a running board that does not answer, until it is said that it does not.
        silence: likewise, until it is ended; 0 for ever.
    """

    poll: float = 2.0
    poll_soon: float = 0.25
    grace: float = 30.0
    start_timeout: float = 300.0
    quiet: float = 10.0
    silence: float = 60.0

    @property
    def patience(self) -> float:
        """How long to look for what a killed hub may have started."""
        return self.start_timeout or 300.0


def decide(
    record: BoardRecord,
    status: base.Status | None,
    now: float,
    settings: Settings,
    *,
    silent: float = 0.0,
) -> Transition | None:
    """Return the change of state that is due, if one is.

    Args:
        record: the board.
        status: what its executor says; None if that no longer knows it. Of no meaning for an
            instant board, and for one that has not been handed to an executor.
        now: the time.
        settings: how patient to be.
        silent: for how long it has not answered though it should.
    """
    if record.on == INSTANT:
        return _instant(record, now)
    if record.state is State.PENDING:
        return Transition(State.STARTING)
    if not record.is_live or (status is not None and status.state is base.State.UNKNOWN):
        return None
    match record.state:
        case State.STARTING:
            return _starting(record, status, now, settings)
        case State.RUNNING:
            return _running(record, status, now, settings.silence, silent)
        case _:
            return _stopping(record, status)


def _instant(record: BoardRecord, now: float) -> Transition | None:
    match record.state:
        case State.PENDING:
            return Transition(State.RUNNING)
        case State.RUNNING:
            over = _time_is_up(record, now)
            return Transition(State.STOPPED, over) if over else None
        case State.STOPPING:
            return Transition(record.outcome, record.reason)
        case _:
            return None


def _starting(
    record: BoardRecord, status: base.Status | None, now: float, settings: Settings
) -> Transition | None:
    if status is None:
        return _lost(record)
    match status.state:
        case base.State.RUNNING:
            return Transition(State.RUNNING)
        case base.State.ENDED:
            return Transition(State.FAILED, why_ended(status))
    if settings.start_timeout and now - record.changed >= settings.start_timeout:
        waited = span(settings.start_timeout)
        reason = f"it did not answer within {waited} of its start"
        return Transition(State.STOPPING, reason, outcome=State.FAILED)
    return None


def _running(
    record: BoardRecord, status: base.Status | None, now: float, silence: float, silent: float
) -> Transition | None:
    if status is None:
        return _lost(record)
    if status.state is base.State.ENDED:
        match status.exit_code:
            case 0:
                return Transition(State.STOPPED, status.reason or "it ended by itself")
            case None:  # nobody saw it end, as when its machine was switched off
                return Transition(State.LOST, why_ended(status))
        return Transition(State.FAILED, why_ended(status))
    if silence and silent >= silence:
        reason = f"it did not answer for {span(silence)}"
        return Transition(State.STOPPING, reason, outcome=State.FAILED)
    over = _time_is_up(record, now)
    return Transition(State.STOPPING, over) if over else None


def _stopping(record: BoardRecord, status: base.Status | None) -> Transition | None:
    if status is None or status.state is base.State.ENDED:
        return Transition(record.outcome, record.reason)
    return None


def _lost(record: BoardRecord) -> Transition:
    return Transition(State.LOST, f"{record.on} no longer knows it")


def _time_is_up(record: BoardRecord, now: float) -> str:
    """Say why a running board must end, or nothing."""
    if record.expires is not None and now >= record.expires:
        ran = record.expires - (record.started or record.created)
        return f"its time is up: it ran for {span(ran)}"
    used = max(record.last_request or 0.0, record.started or record.created)
    if record.idle_timeout and now - used >= record.idle_timeout:
        return f"nobody used it for {span(record.idle_timeout)}"
    return ""


def why_ended(status: base.Status) -> str:
    """Say why a command ended."""
    if status.reason:
        return status.reason
    match status.exit_code:
        case None:
            return "it ended, and nobody saw how"
        case code if code < 0:
            return f"it was ended by signal {-code}"
        case code:
            return f"it ended with exit code {code}"


def span(seconds: float) -> str:
    """Write a duration the way it is given: 90 seconds are '90s', an hour is '1h'."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"
