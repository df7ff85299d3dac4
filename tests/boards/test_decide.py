"""What becomes of a board next, for every state and everything an executor may say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.boards.lifecycle import Settings, decide, span
from aboard.boards.model import ENDED, LEGAL, BoardRecord, BoardState, Transition
from aboard.executors.base import CommandState as Seen
from aboard.executors.base import Status

NOW = 10_000.0
SETTINGS = Settings(start_timeout=300, unhealthy_timeout=60)
STARTING, RUNNING = Status(Seen.STARTING), Status(Seen.RUNNING)
UNKNOWN = Status(Seen.UNKNOWN, reason="the network is down")
GONE = None
FINE = Status(Seen.ENDED, 0)
KILLED = Status(Seen.ENDED, -9)
BROKEN = Status(Seen.ENDED, 1, "exit code 1: no such directory")
UNSEEN = Status(Seen.ENDED, None, "the machine was restarted")
EVERY = [STARTING, RUNNING, UNKNOWN, GONE, FINE, KILLED, BROKEN, UNSEEN]


def board(state: BoardState, **values) -> BoardRecord:
    common = {"id": "abc", "name": "otter", "owner": "ann", "created": NOW - 100}
    common |= {"on": "process", "changed": NOW - 50, "started": NOW - 50, "handle": {"pid": 1}}
    return BoardRecord(**{**common, "state": state, **values})


@pytest.mark.parametrize(
    ("state", "status", "due"),
    [
        (BoardState.PENDING, GONE, Transition(BoardState.STARTING)),
        (BoardState.STARTING, STARTING, None),
        (BoardState.STARTING, RUNNING, Transition(BoardState.RUNNING)),
        (
            BoardState.STARTING,
            BROKEN,
            Transition(BoardState.FAILED, "exit code 1: no such directory"),
        ),
        (BoardState.STARTING, FINE, Transition(BoardState.FAILED, "it exited with code 0")),
        (BoardState.STARTING, KILLED, Transition(BoardState.FAILED, "it was killed by signal 9")),
        (BoardState.STARTING, GONE, Transition(BoardState.LOST, "process no longer knows it")),
        (BoardState.RUNNING, RUNNING, None),
        (
            BoardState.RUNNING,
            STARTING,
            Transition(BoardState.STARTING, "its engine starts it again"),
        ),
        (
            BoardState.RUNNING,
            Status(Seen.STARTING, reason="Priority"),
            Transition(BoardState.STARTING, "Priority"),
        ),
        (BoardState.RUNNING, FINE, Transition(BoardState.STOPPED, "it exited by itself")),
        (BoardState.RUNNING, KILLED, Transition(BoardState.FAILED, "it was killed by signal 9")),
        (
            BoardState.RUNNING,
            BROKEN,
            Transition(BoardState.FAILED, "exit code 1: no such directory"),
        ),
        (BoardState.RUNNING, UNSEEN, Transition(BoardState.LOST, "the machine was restarted")),
        (BoardState.RUNNING, GONE, Transition(BoardState.LOST, "process no longer knows it")),
        (BoardState.STOPPING, RUNNING, None),
        (BoardState.STOPPING, STARTING, None),
    ],
)
def test_what_an_executor_says_leads_on(state, status, due):
    assert decide(board(state), status, NOW, SETTINGS) == due


@pytest.mark.parametrize("status", [GONE, FINE, KILLED, BROKEN, UNSEEN])
@pytest.mark.parametrize("outcome", [BoardState.STOPPED, BoardState.FAILED, BoardState.PENDING])
def test_a_stopping_board_ends_as_it_was_meant_to(status, outcome):
    stopping = board(BoardState.STOPPING, reason="stopped by ann", outcome=outcome)
    assert decide(stopping, status, NOW, SETTINGS) == Transition(outcome, "stopped by ann")


@pytest.mark.parametrize("state", sorted(set(BoardState) - {BoardState.PENDING}))
def test_unknown_changes_nothing_however_late_it_is(state):
    late = board(state, expires=NOW - 1, idle_timeout=1.0)
    assert decide(late, UNKNOWN, NOW + 1e6, SETTINGS, silent=1e6) is None


@pytest.mark.parametrize("state", sorted(ENDED))
@pytest.mark.parametrize("status", EVERY)
@pytest.mark.parametrize("on", ["process", "instant"])
def test_what_has_ended_stays_so(state, status, on):
    assert decide(board(state, on=on), status, NOW + 1e9, SETTINGS, silent=1e9) is None


def test_a_board_that_never_answers_is_stopped_and_failed():
    waiting = board(BoardState.STARTING, changed=NOW - 299)
    assert decide(waiting, STARTING, NOW, SETTINGS) is None
    due = decide(waiting, STARTING, NOW + 1, SETTINGS)
    assert due == Transition(
        BoardState.STOPPING, "it did not answer within 5m of its start", BoardState.FAILED
    )
    assert decide(waiting, STARTING, NOW + 1e9, Settings(start_timeout=0)) is None


def test_a_board_that_waits_for_its_engine_has_all_the_time():
    queued = board(BoardState.STARTING, changed=NOW - 1e6)
    assert decide(queued, Status(Seen.STARTING, reason="Resources"), NOW, SETTINGS) is None
    # The engine has just begun to start it, and that is stored next.
    begun = board(BoardState.STARTING, changed=NOW - 1e6, reason="Resources")
    assert decide(begun, STARTING, NOW, SETTINGS) is None


def test_a_board_that_fell_silent_is_stopped_and_failed():
    running = board(BoardState.RUNNING)
    assert decide(running, RUNNING, NOW, SETTINGS, silent=59) is None
    due = decide(running, RUNNING, NOW, SETTINGS, silent=60)
    assert due == Transition(BoardState.STOPPING, "it did not answer for 1m", BoardState.FAILED)
    due = decide(running, RUNNING, NOW, SETTINGS, silent=60, why="timed out")
    assert due.reason == "it did not answer for 1m: timed out"
    assert decide(running, RUNNING, NOW, Settings(unhealthy_timeout=0), silent=1e9) is None


@pytest.mark.parametrize(
    ("on", "ends"), [("process", BoardState.STOPPING), ("instant", BoardState.STOPPED)]
)
class TestTime:
    def test_a_board_ends_when_its_time_is_up(self, on, ends):
        limited = board(BoardState.RUNNING, on=on, started=NOW, expires=NOW + 3600)
        assert decide(limited, RUNNING, NOW + 3599, SETTINGS) is None
        due = decide(limited, RUNNING, NOW + 3600, SETTINGS)
        assert due == Transition(ends, "its time is up: it ran for 1h")

    def test_idle_time_counts_from_the_last_request(self, on, ends):
        used = board(
            BoardState.RUNNING, on=on, started=NOW, idle_timeout=600.0, last_request=NOW + 1000
        )
        assert decide(used, RUNNING, NOW + 1599, SETTINGS) is None
        assert decide(used, RUNNING, NOW + 1600, SETTINGS) == Transition(
            ends, "it was not used for 10m"
        )

    def test_idle_time_counts_from_the_start_where_nobody_came(self, on, ends):
        # A request of an earlier start says nothing.
        unused = board(
            BoardState.RUNNING, on=on, started=NOW, idle_timeout=600.0, last_request=NOW - 9
        )
        assert decide(unused, RUNNING, NOW + 599, SETTINGS) is None
        assert decide(unused, RUNNING, NOW + 600, SETTINGS).state is ends

    def test_no_limit_means_for_ever(self, on, ends):
        assert decide(board(BoardState.RUNNING, on=on), RUNNING, NOW + 1e9, SETTINGS) is None

    def test_a_clock_set_back_ends_nothing(self, on, ends):
        limited = board(
            BoardState.RUNNING,
            on=on,
            started=NOW,
            expires=NOW + 10,
            idle_timeout=10,
            last_request=NOW,
        )
        assert decide(limited, RUNNING, NOW - 1e6, SETTINGS) is None


def test_an_instant_board_runs_at_once():
    assert decide(board(BoardState.PENDING, on="instant"), None, NOW, SETTINGS) == Transition(
        BoardState.RUNNING
    )


@given(
    st.sampled_from(BoardState),
    st.sampled_from(EVERY),
    st.sampled_from(["process", "instant"]),
    st.floats(0, 1e9),
    st.floats(0, 1e6),
    st.booleans(),
)
def test_every_decision_is_legal(state, status, on, later, idle, expires):
    if on == "instant" and state in (BoardState.STARTING, BoardState.STOPPING):
        return
    record = board(state, on=on, idle_timeout=idle, expires=NOW + 5 if expires else None)
    due = decide(record, status, NOW + later, SETTINGS, silent=later)
    assert due is None or due.state in LEGAL[state]


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "90s"), (60, "1m"), (5400, "90m"), (86400, "1d"), (0.5, "0.5s")]
)
def test_durations_are_written_as_they_are_given(seconds, text):
    assert span(seconds) == text
