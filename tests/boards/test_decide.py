"""What becomes of a board next, for every state and everything an executor may say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.boards.decide import Settings, decide, span
from aboard.boards.model import ENDED, LEGAL, BoardRecord, State, Transition
from aboard.executors.base import State as Seen
from aboard.executors.base import Status

NOW = 10_000.0
SETTINGS = Settings(start_timeout=300, silence=60)
STARTING, RUNNING = Status(Seen.STARTING), Status(Seen.RUNNING)
UNKNOWN = Status(Seen.UNKNOWN, reason="the network is down")
GONE = None
FINE = Status(Seen.ENDED, 0)
KILLED = Status(Seen.ENDED, -9)
BROKEN = Status(Seen.ENDED, 1, "exit code 1: no such directory")
UNSEEN = Status(Seen.ENDED, None, "the machine was restarted")
EVERY = [STARTING, RUNNING, UNKNOWN, GONE, FINE, KILLED, BROKEN, UNSEEN]


def board(state: State, **values) -> BoardRecord:
    common = {"id": "abc", "name": "otter", "owner": "ann", "created": NOW - 100}
    common |= {"on": "process", "changed": NOW - 50, "started": NOW - 50, "handle": {"pid": 1}}
    return BoardRecord(**{**common, "state": state, **values})


@pytest.mark.parametrize(
    ("state", "status", "due"),
    [
        (State.PENDING, GONE, Transition(State.STARTING)),
        (State.STARTING, STARTING, None),
        (State.STARTING, RUNNING, Transition(State.RUNNING)),
        (State.STARTING, BROKEN, Transition(State.FAILED, "exit code 1: no such directory")),
        (State.STARTING, FINE, Transition(State.FAILED, "it ended with exit code 0")),
        (State.STARTING, KILLED, Transition(State.FAILED, "it was ended by signal 9")),
        (State.STARTING, GONE, Transition(State.LOST, "process no longer knows it")),
        (State.RUNNING, RUNNING, None),
        (State.RUNNING, STARTING, None),
        (State.RUNNING, FINE, Transition(State.STOPPED, "it ended by itself")),
        (State.RUNNING, KILLED, Transition(State.FAILED, "it was ended by signal 9")),
        (State.RUNNING, BROKEN, Transition(State.FAILED, "exit code 1: no such directory")),
        (State.RUNNING, UNSEEN, Transition(State.LOST, "the machine was restarted")),
        (State.RUNNING, GONE, Transition(State.LOST, "process no longer knows it")),
        (State.STOPPING, RUNNING, None),
        (State.STOPPING, STARTING, None),
    ],
)
def test_what_an_executor_says_leads_on(state, status, due):
    assert decide(board(state), status, NOW, SETTINGS) == due


@pytest.mark.parametrize("status", [GONE, FINE, KILLED, BROKEN, UNSEEN])
@pytest.mark.parametrize("outcome", [State.STOPPED, State.FAILED, State.PENDING])
def test_a_stopping_board_ends_as_it_was_meant_to(status, outcome):
    stopping = board(State.STOPPING, reason="stopped by ann", outcome=outcome)
    assert decide(stopping, status, NOW, SETTINGS) == Transition(outcome, "stopped by ann")


@pytest.mark.parametrize("state", sorted(set(State) - {State.PENDING}))
def test_unknown_changes_nothing_however_late_it_is(state):
    late = board(state, expires=NOW - 1, idle_timeout=1.0)
    assert decide(late, UNKNOWN, NOW + 1e6, SETTINGS, silent=1e6) is None


@pytest.mark.parametrize("state", sorted(ENDED))
@pytest.mark.parametrize("status", EVERY)
@pytest.mark.parametrize("on", ["process", "instant"])
def test_what_has_ended_stays_so(state, status, on):
    assert decide(board(state, on=on), status, NOW + 1e9, SETTINGS, silent=1e9) is None


def test_a_board_that_never_answers_is_stopped_and_failed():
    waiting = board(State.STARTING, changed=NOW - 299)
    assert decide(waiting, STARTING, NOW, SETTINGS) is None
    due = decide(waiting, STARTING, NOW + 1, SETTINGS)
    assert due == Transition(
        State.STOPPING, "it did not answer within 5m of its start", State.FAILED
    )
    assert decide(waiting, STARTING, NOW + 1e9, Settings(start_timeout=0)) is None


def test_a_board_that_fell_silent_is_stopped_and_failed():
    running = board(State.RUNNING)
    assert decide(running, RUNNING, NOW, SETTINGS, silent=59) is None
    due = decide(running, RUNNING, NOW, SETTINGS, silent=60)
    assert due == Transition(State.STOPPING, "it did not answer for 1m", State.FAILED)
    assert decide(running, RUNNING, NOW, Settings(silence=0), silent=1e9) is None


@pytest.mark.parametrize(("on", "ends"), [("process", State.STOPPING), ("instant", State.STOPPED)])
class TestTime:
    def test_a_board_ends_when_its_time_is_up(self, on, ends):
        limited = board(State.RUNNING, on=on, started=NOW, expires=NOW + 3600)
        assert decide(limited, RUNNING, NOW + 3599, SETTINGS) is None
        due = decide(limited, RUNNING, NOW + 3600, SETTINGS)
        assert due == Transition(ends, "its time is up: it ran for 1h")

    def test_idle_time_counts_from_the_last_request(self, on, ends):
        used = board(State.RUNNING, on=on, started=NOW, idle_timeout=600.0, last_request=NOW + 1000)
        assert decide(used, RUNNING, NOW + 1599, SETTINGS) is None
        assert decide(used, RUNNING, NOW + 1600, SETTINGS) == Transition(
            ends, "nobody used it for 10m"
        )

    def test_idle_time_counts_from_the_start_where_nobody_came(self, on, ends):
        # A request of an earlier start says nothing.
        unused = board(State.RUNNING, on=on, started=NOW, idle_timeout=600.0, last_request=NOW - 9)
        assert decide(unused, RUNNING, NOW + 599, SETTINGS) is None
        assert decide(unused, RUNNING, NOW + 600, SETTINGS).state is ends

    def test_no_limit_means_for_ever(self, on, ends):
        assert decide(board(State.RUNNING, on=on), RUNNING, NOW + 1e9, SETTINGS) is None

    def test_a_clock_set_back_ends_nothing(self, on, ends):
        limited = board(
            State.RUNNING, on=on, started=NOW, expires=NOW + 10, idle_timeout=10, last_request=NOW
        )
        assert decide(limited, RUNNING, NOW - 1e6, SETTINGS) is None


def test_an_instant_board_runs_at_once():
    assert decide(board(State.PENDING, on="instant"), None, NOW, SETTINGS) == Transition(
        State.RUNNING
    )


@given(
    st.sampled_from(State),
    st.sampled_from(EVERY),
    st.sampled_from(["process", "instant"]),
    st.floats(0, 1e9),
    st.floats(0, 1e6),
    st.booleans(),
)
def test_every_decision_is_legal(state, status, on, later, idle, expires):
    if on == "instant" and state in (State.STARTING, State.STOPPING):
        return
    record = board(state, on=on, idle_timeout=idle, expires=NOW + 5 if expires else None)
    due = decide(record, status, NOW + later, SETTINGS, silent=later)
    assert due is None or due.state in LEGAL[state]


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "90s"), (60, "1m"), (5400, "90m"), (86400, "1d"), (0.5, "0.5s")]
)
def test_durations_are_written_as_they_are_given(seconds, text):
    assert span(seconds) == text
