"""The states of a board: no path leaves the graph, and what has ended stays so until a restart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.boards.errors import IllegalTransition
from aboard.boards.model import (
    ENDED,
    LEGAL,
    LIVE,
    BoardRecord,
    State,
    Transition,
    apply,
    extended,
)


def board(**values) -> BoardRecord:
    common = {"id": "abc", "name": "otter", "owner": "ann", "created": 5.0, "changed": 5.0}
    return BoardRecord(**{**common, "selectors": ("a",), **values})


def test_every_state_is_live_or_ended_and_has_its_rules():
    assert LIVE | ENDED == set(State) == LEGAL.keys()
    assert not LIVE & ENDED
    assert all(LEGAL[state] == {State.PENDING} for state in ENDED)


@given(
    st.lists(st.tuples(st.sampled_from(State), st.floats(0, 100)), max_size=30),
    st.sampled_from([0.0, 60.0]),
)
def test_no_path_leaves_the_graph(steps, timeout):
    record, now = board(timeout=timeout), 5.0
    for state, passed in steps:
        now += passed
        before = record
        if state in LEGAL[record.state]:
            record = apply(record, Transition(state, "because", outcome=State.FAILED), now)
            assert (record.state, record.changed, record.reason) == (state, now, "because")
            assert record.version == before.version + 1
        else:
            with pytest.raises(IllegalTransition, match=f"is {record.state} and cannot become"):
                apply(record, Transition(state), now)
            continue
        assert (record.id, record.name, record.owner, record.created) == ("abc", "otter", "ann", 5)
        assert (record.ended is not None) == (record.state in ENDED)
        assert record.attempt == before.attempt + (state is State.PENDING)
        if before.state in ENDED:
            assert record.state is State.PENDING
        if state is State.RUNNING:
            assert record.started == now
            assert record.expires == (now + timeout if timeout else None)
        if record.state is not State.STOPPING:
            assert record.outcome is State.STOPPED


def test_a_restart_forgets_the_last_start():
    record = board(timeout=60.0, on="process")
    for state in (State.STARTING, State.RUNNING, State.LOST):
        record = apply(record, Transition(state), 10.0)
    assert (record.started, record.ended, record.expires) == (10.0, 10.0, None)
    again = apply(record, Transition(State.PENDING, "once more"), 20.0)
    assert (again.attempt, again.started, again.ended, again.handle) == (2, None, None, None)


def test_extending_counts_from_the_end_or_from_now():
    running = apply(board(timeout=60.0), Transition(State.RUNNING), 100.0)
    assert extended(running, 30, 110.0).expires == 190.0
    assert extended(running, 30, 500.0).expires == 530.0
    forever = apply(board(), Transition(State.RUNNING), 100.0)
    assert extended(forever, 30, 110.0) is forever
