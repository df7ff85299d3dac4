"""What a board is, the states it can be in, and which change of state is legal.

Values in, values out: `apply` makes the record that follows from a transition. Deciding which
transition is due is left to `lifecycle`, remembering it to `registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from aboard.boards.errors import IllegalTransition

INSTANT = "instant"
"""Where a board runs that the hub itself serves."""


class State(StrEnum):
    """How a board stands."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"


class Engine(StrEnum):
    """What answers a board's requests for data: our index, or TensorBoard's own backend."""

    FAST = "fast"
    STOCK = "stock"


class Visibility(StrEnum):
    """Who sees a board besides its owner and administrators."""

    PRIVATE = "private"
    TEAM = "team"


LIVE = frozenset({State.PENDING, State.STARTING, State.RUNNING, State.STOPPING})
ENDED = frozenset(State) - LIVE

LEGAL: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        # An instant board runs at once; one may be stopped, or fail to start, before it starts.
        State.PENDING: frozenset({State.STARTING, State.RUNNING, State.STOPPED, State.FAILED}),
        State.STARTING: frozenset({State.RUNNING, State.STOPPING, State.FAILED, State.LOST}),
        # Straight to stopped: an instant board has no process, and a process may end by itself.
        State.RUNNING: frozenset({State.STOPPING, State.STOPPED, State.FAILED, State.LOST}),
        # Failed: stopped because it never answered. Pending: stopped to be started anew.
        State.STOPPING: frozenset({State.STOPPED, State.FAILED, State.PENDING}),
        # A restart is a new start of the same board, with its history kept.
        State.STOPPED: frozenset({State.PENDING}),
        State.FAILED: frozenset({State.PENDING}),
        State.LOST: frozenset({State.PENDING}),
    }
)

OUTCOMES = LEGAL[State.STOPPING]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRecord:
    """A board as it is remembered. Times are seconds since 1970, durations seconds.

    Attributes:
        id: twelve characters, for ever its own.
        name: for people; unique among an owner's live boards.
        owner: the name of the user it belongs to.
        state: how it stands.
        reason: why; empty where there is nothing to say.
        changed: when it got into its state.
        created: when it was asked for.
        started: when it last began to run, of this start.
        ended: when it ended, if it has.
        selectors: what was asked for, as it was given.
        sources: where the logs are, as far as they are known.
        template: how runs are named on it; empty for the usual way.
        title: shown above the page.
        engine: what answers its requests for data.
        on: `instant`, or the executor that runs its process.
        memory: the limit in bytes; 0 for none.
        timeout: the longest it may run; 0 for no limit.
        idle_timeout: how long it may run without a request; 0 for ever.
        expires: when it will be stopped, whoever uses it; None for never.
        last_request: when it was last used, after it began to run.
        handle: what the executor needs to find it again.
        visibility: who sees it.
        version: counts its changes; whoever changes a board says which version he saw.
        attempt: counts its starts.
        outcome: the state that a stopping board goes to.
    """

    id: str
    name: str
    owner: str
    state: State = State.PENDING
    reason: str = ""
    changed: float
    created: float
    started: float | None = None
    ended: float | None = None
    selectors: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    template: str = ""
    title: str = ""
    engine: Engine = Engine.FAST
    on: str = INSTANT
    memory: int = 0
    timeout: float = 0.0
    idle_timeout: float = 0.0
    expires: float | None = None
    last_request: float | None = None
    handle: dict[str, Any] | None = None
    visibility: Visibility = Visibility.PRIVATE
    version: int = 1
    attempt: int = 1
    outcome: State = State.STOPPED

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.state in LIVE

    @property
    def is_isolated(self) -> bool:
        """Whether it has a process of its own."""
        return self.on != INSTANT


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of state that is due.

    Attributes:
        state: the new state.
        reason: why.
        outcome: for a board that is being stopped: how it ends.
    """

    state: State
    reason: str = ""
    outcome: State = State.STOPPED


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of a board's history."""

    board: str
    version: int
    attempt: int
    state: State
    reason: str
    at: float


def apply(record: BoardRecord, transition: Transition, now: float) -> BoardRecord:
    """Return the record as it is after a transition.

    Raises:
        IllegalTransition: a board in this state cannot make it.
    """
    old, new = record.state, transition.state
    if new not in LEGAL[old]:
        raise IllegalTransition(
            f"board {record.id} ({record.name}) is {old} and cannot become {new}.",
            "Look at it with: aboard describe " + record.id,
        )
    after = replace(
        record,
        state=new,
        reason=transition.reason,
        changed=now,
        version=record.version + 1,
        outcome=transition.outcome if new is State.STOPPING else State.STOPPED,
    )
    match new:
        case State.PENDING:
            return replace(
                after,
                attempt=record.attempt + 1,
                started=None,
                ended=None,
                expires=None,
                last_request=None,
                handle=None,
            )
        case State.RUNNING:
            expires = now + record.timeout if record.timeout else None
            return replace(after, started=now, expires=expires)
        case State.STARTING | State.STOPPING:
            return after
        case _:
            return replace(after, ended=now, expires=None)


def extended(record: BoardRecord, seconds: float, now: float) -> BoardRecord:
    """Return a running board with more time to run; one without an end has enough."""
    if record.expires is None:
        return record
    return replace(record, expires=max(record.expires, now) + seconds, version=record.version + 1)
