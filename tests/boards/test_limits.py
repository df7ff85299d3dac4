"""What a user may have: how many boards, how large, for how long."""

import pytest

from aboard.boards.errors import BoardLimitExceeded
from aboard.boards.limits import Limits, check_ceilings, check_extension, check_room, fill
from aboard.boards.model import BoardRecord, BoardState


def board(number: int, **values) -> BoardRecord:
    common = {"id": f"board{number}", "name": f"otter{number}", "owner": "ann", "on": "process"}
    common |= {"created": float(number), "changed": 0.0, "state": BoardState.RUNNING}
    return BoardRecord(**{**common, **values})


def test_the_last_place_can_be_taken_and_no_other():
    check_room("ann", "process", [board(n) for n in range(4)], Limits())
    with pytest.raises(BoardLimitExceeded) as refused:
        check_room("ann", "process", [board(n) for n in (3, 1, 2, 5, 4)], Limits())
    assert [one.id for one in refused.value.boards] == [f"board{n}" for n in range(1, 6)]
    assert "ann may have 5 isolated boards and has 5: board1 (otter1, running);" in str(
        refused.value
    )
    assert refused.value.hint == "Stop the oldest with: aboard stop board1"


def test_instant_boards_are_counted_apart():
    instants = [board(n, on="instant") for n in range(100)]
    check_room("ann", "instant", instants, Limits())
    check_room("ann", "process", instants, Limits())
    with pytest.raises(BoardLimitExceeded, match="100 instant boards"):
        check_room("ann", "instant", instants, Limits(instant=100))
    with pytest.raises(BoardLimitExceeded, match="has 0: none"):
        check_room("ann", "process", instants, Limits(isolated=0))
    check_room("ann", "process", [board(n) for n in range(100)], Limits(isolated=None))


def test_a_board_without_limits_of_its_own_gets_the_ceilings():
    limits = Limits(memory=1 << 30, cpus=1.5, timeout=3600, idle_timeout=600)
    assert fill({"on": "process"}, limits) == {
        "on": "process",
        "memory": 1 << 30,
        "cpus": 1.5,
        "timeout": 3600,
        "idle_timeout": 600,
    }
    chosen = {"on": "process", "memory": 5, "cpus": 1.0, "timeout": 7.0, "idle_timeout": 0.0}
    assert fill(chosen, limits) == chosen


def test_ceilings_are_for_processes_only():
    limits = Limits(memory=5, cpus=5, timeout=5, idle_timeout=5)
    assert fill({}, limits) == {}
    check_ceilings(board(1, on="instant"), limits)


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
            board(1, **{"memory": 1024, "cpus": 0.5, "timeout": 60.0, **values}),
            Limits(memory=1024, cpus=2, timeout=60),
        )


def test_extending_stops_at_the_ceiling():
    running = board(1, started=100.0, expires=160.0)
    check_extension(running, 3700.0, Limits(timeout=3600))
    with pytest.raises(BoardLimitExceeded, match="may run for 1h in total"):
        check_extension(running, 3701.0, Limits(timeout=3600))
    check_extension(running, 1e9, Limits())
