"""The states of a board, whose paths never leave the graph, its fields, and the limits of users."""

import random
import subprocess
import sys
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.boards import model
from aboard.boards.model import (
    ALPHABET,
    ENDED,
    FIELDS,
    LEGAL,
    LIVE,
    BadValue,
    BoardChanges,
    BoardLimitExceeded,
    BoardOptions,
    BoardRecord,
    BoardState,
    IllegalTransition,
    Limits,
    Transition,
    apply,
    check_ceilings,
    check_extension,
    check_name,
    check_room,
    fill_limits,
    from_document,
    new_id,
    new_name,
    parse_request,
    to_document,
)


def board(**values) -> BoardRecord:
    common = {"id": "abc", "name": "otter", "owner": "ann", "created": 5.0, "changed": 5.0}
    return BoardRecord(**{**common, "selectors": ("a",), **values})


def test_every_state_is_live_or_ended_and_has_its_rules():
    assert LIVE | ENDED == set(BoardState) == LEGAL.keys()
    assert not LIVE & ENDED
    assert all(LEGAL[state] == {BoardState.PENDING} for state in ENDED)


@given(
    st.lists(st.tuples(st.sampled_from(BoardState), st.floats(0, 100)), max_size=30),
    st.sampled_from([0.0, 60.0]),
)
def test_no_path_leaves_the_graph(steps, timeout):
    record, now = board(timeout=timeout), 5.0
    for state, passed in steps:
        now += passed
        before = record
        if state in LEGAL[record.state]:
            record = apply(record, Transition(state, "because", outcome=BoardState.FAILED), now)
            assert (record.state, record.changed, record.reason) == (state, now, "because")
            assert record.version == before.version + 1
        else:
            with pytest.raises(IllegalTransition, match=f"is {record.state} and cannot become"):
                apply(record, Transition(state), now)
            continue
        assert (record.id, record.name, record.owner, record.created) == ("abc", "otter", "ann", 5)
        assert (record.ended is not None) == (record.state in ENDED)
        assert record.attempt == before.attempt + (state is BoardState.PENDING)
        if before.state in ENDED:
            assert record.state is BoardState.PENDING
        if state is BoardState.RUNNING:
            assert record.started == now
            assert record.expires == (now + timeout if timeout else None)
        if record.state is not BoardState.STOPPING:
            assert record.outcome is BoardState.STOPPED


def test_a_restart_forgets_the_last_start():
    record = board(timeout=60.0, on="process")
    for state in (BoardState.STARTING, BoardState.RUNNING, BoardState.LOST):
        record = apply(record, Transition(state), 10.0)
    assert (record.started, record.ended, record.expires) == (10.0, 10.0, None)
    again = apply(record, Transition(BoardState.PENDING, "once more"), 20.0)
    assert (again.attempt, again.started, again.ended, again.handle) == (2, None, None, None)


def test_the_keywords_of_the_sdk_are_the_fields_that_clients_may_set():
    create = {name for name, field in FIELDS.items() if field.about.create}
    change = {name for name, field in FIELDS.items() if field.about.change}
    assert get_type_hints(BoardOptions).keys() == create - {"selectors"}
    assert get_type_hints(BoardChanges).keys() == change
    assert change <= create


def test_a_document_holds_every_public_field():
    record = board(started=12.5, on="process", visibility="team", handle={"pid": 1})
    document = to_document(record)
    assert "handle" not in document
    assert document["created"] == "1970-01-01T00:00:05.000Z"
    assert document["selectors"] == ["a"]
    values = from_document({**document, "state": "hibernating", "of_a_newer_hub": 1})
    assert values.pop("state") == "hibernating"
    assert all(getattr(record, name) == value for name, value in values.items())


def test_a_request_may_write_amounts():
    given = {"timeout": "90m", "idle_timeout": 5, "memory": "2GiB", "name": None}
    assert parse_request(given) == {"timeout": 5400.0, "idle_timeout": 5.0, "memory": 2 << 30}


def test_the_declaration_needs_the_standard_library_alone():
    code = "import aboard.sdk.client, sys; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sqlalchemy", "pydantic", "aboard.hub", "aboard.boards.registry"} & set(
        ended.stdout.split()
    )


# Limits: how many boards a user may have, how large, for how long.


def numbered(number: int, **values) -> BoardRecord:
    common = {"id": f"board{number}", "name": f"otter{number}", "owner": "ann", "on": "process"}
    common |= {"created": float(number), "changed": 0.0, "state": BoardState.RUNNING}
    return BoardRecord(**{**common, **values})


def test_the_last_place_can_be_taken_and_no_other():
    check_room("ann", "process", [numbered(n) for n in range(4)], Limits())
    with pytest.raises(BoardLimitExceeded) as refused:
        check_room("ann", "process", [numbered(n) for n in (3, 1, 2, 5, 4)], Limits())
    assert [one.id for one in refused.value.boards] == [f"board{n}" for n in range(1, 6)]
    assert "ann may have 5 isolated boards and has 5: board1 (otter1, running);" in str(
        refused.value
    )
    assert refused.value.hint == "Stop the oldest with: aboard stop board1"


def test_instant_boards_are_counted_apart():
    instants = [numbered(n, on="instant") for n in range(100)]
    check_room("ann", "instant", instants, Limits())
    check_room("ann", "process", instants, Limits())
    with pytest.raises(BoardLimitExceeded, match="100 instant boards"):
        check_room("ann", "instant", instants, Limits(instant=100))
    with pytest.raises(BoardLimitExceeded, match="has 0: none"):
        check_room("ann", "process", instants, Limits(isolated=0))
    check_room("ann", "process", [numbered(n) for n in range(100)], Limits(isolated=None))


def test_a_board_without_limits_of_its_own_gets_the_ceilings():
    limits = Limits(memory=1 << 30, cpus=1.5, timeout=3600, idle_timeout=600)
    assert fill_limits({"on": "process"}, limits) == {
        "on": "process",
        "memory": 1 << 30,
        "cpus": 1.5,
        "timeout": 3600,
        "idle_timeout": 600,
    }
    chosen = {"on": "process", "memory": 5, "cpus": 1.0, "timeout": 7.0, "idle_timeout": 0.0}
    assert fill_limits(chosen, limits) == chosen


def test_ceilings_are_for_processes_only():
    limits = Limits(memory=5, cpus=5, timeout=5, idle_timeout=5)
    assert fill_limits({}, limits) == {}
    check_ceilings(numbered(1, on="instant"), limits)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"memory": 2048}, "memory: 2KiB is more than the limit of 1KiB"),
        ({"memory": 0}, "memory: no limit is more than"),
        ({"cpus": 2.5}, "cpus: 2.5 is more than the limit of 2 per board. Request at most 2."),
        ({"cpus": 0.0}, "cpus: no limit is more than the limit of 2"),
        ({"timeout": 61.0}, "timeout: 61s is more than the limit of 1m"),
        ({"timeout": 0.0}, "timeout: no limit is more than"),
    ],
)
def test_more_than_the_ceiling_is_refused(values, said):
    with pytest.raises(BoardLimitExceeded, match=said):
        check_ceilings(
            numbered(1, **{"memory": 1024, "cpus": 0.5, "timeout": 60.0, **values}),
            Limits(memory=1024, cpus=2, timeout=60),
        )


def test_extending_stops_at_the_ceiling():
    running = numbered(1, started=100.0, expires=160.0)
    check_extension(running, 3700.0, Limits(timeout=3600))
    with pytest.raises(BoardLimitExceeded, match="may run for 1h in total"):
        check_extension(running, 3701.0, Limits(timeout=3600))
    check_extension(running, 1e9, Limits())


# Ids and names of boards.


def test_ids_have_no_letters_to_mistake():
    ids = {new_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(len(one) == 12 and set(one) <= set(ALPHABET) for one in ids)
    assert not set("lo01") & set(ALPHABET)


def test_names_are_made_up_and_avoid_those_taken(monkeypatch):
    monkeypatch.setattr(model, "_choose", random.Random(3).choice)
    names = {new_name() for _ in range(200)}
    assert all(len(name.split("-")) == 3 and check_name(name) for name in names)
    monkeypatch.setattr(model, "_choose", random.Random(3).choice)
    assert new_name(names) not in names


def test_one_who_has_every_name_gets_numbers():
    class Everything:
        def __contains__(self, name: str) -> bool:
            return len(name.split("-")) == 3

    assert new_name(Everything()).split("-")[3].isdigit()


@pytest.mark.parametrize("name", ["a", "A1", "my_board.v2", "x" * 64, "rarely-cute-otter"])
def test_a_name_that_can_be_typed_is_kept(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "a b", "a/b", "ä", "a\n", "a\0b", "x" * 65, "..", "\ud800"]
)
def test_a_name_that_cannot_be_in_an_address_is_refused(name):
    with pytest.raises(BadValue, match="is not a valid board name"):
        check_name(name)
