"""Boards that run and do not answer: what is said of them, and when they are ended."""

import threading

import pytest

from aboard.boards.model import BoardState, DatabaseUnavailable, Limits
from aboard.executors.base import Address
from tests.boards.scripted_hub import Hub
from tests.waiting import until


class Probe:
    """Asks boards, which answer as tests say, after some time."""

    def __init__(self, clock):
        self.answers = True
        self.seconds = 0.0
        self._clock = clock

    def __call__(self, address: Address) -> str:
        self._clock.pass_by(self.seconds)
        return "" if self.answers else "timed out"


@pytest.fixture
def probe(clock) -> Probe:
    return Probe(clock)


@pytest.fixture
def hub(registry, executor, clock, probe) -> Hub:
    return Hub(registry, executor, clock, probe=probe)


def keep_asking(hub, board, seconds):
    """Ask a board now and then."""
    for _ in range(seconds):
        hub.clock.pass_by(1)
        board = hub.tick(board)
    return board


def test_a_board_that_hangs_is_ended_and_failed(hub, probe, clock):
    board = hub.running()
    for _ in range(5):
        clock.pass_by(59)
        assert hub.tick(board).state is BoardState.RUNNING
    probe.answers = False
    for seconds, silent in ((0, False), (9, False), (1, True), (49, True), (1, True)):
        board = keep_asking(hub, board, seconds) if seconds else hub.tick(board)
        assert (board.state, hub.lifecycle.is_unhealthy(board)) == (BoardState.RUNNING, silent)
    assert hub.tick(board).state is BoardState.STOPPING
    board = hub.tick(board, 2)
    assert board.state is BoardState.FAILED
    assert board.reason == "it did not answer for 1m: timed out"


def test_questions_that_take_their_time_count_with_it(hub, probe):
    probe.answers, probe.seconds = False, 5
    board = hub.tick(hub.running())
    assert not hub.lifecycle.is_unhealthy(board)
    assert hub.lifecycle.is_unhealthy(hub.tick(board))
    assert hub.tick(board, 10).state is BoardState.RUNNING
    assert hub.tick(board).state is BoardState.STOPPING


def test_a_board_that_answers_again_goes_on(hub, probe):
    probe.answers = False
    board = hub.tick(hub.running())
    assert hub.lifecycle.is_unhealthy(keep_asking(hub, board, 59))
    probe.answers = True
    assert not hub.lifecycle.is_unhealthy(hub.tick(board))
    probe.answers = False
    assert keep_asking(hub, board, 59).state is BoardState.RUNNING


def test_a_machine_that_slept_between_two_questions_ends_no_board(hub, probe, clock):
    probe.answers = False
    board = keep_asking(hub, hub.running(), 50)
    clock.pass_by(3600)
    board = hub.tick(board, 2)
    assert (board.state, hub.lifecycle.is_unhealthy(board)) == (BoardState.RUNNING, False)
    assert keep_asking(hub, board, 59).state is BoardState.RUNNING
    assert keep_asking(hub, board, 2).state is BoardState.STOPPING


def test_a_machine_that_slept_during_a_question_ends_no_board(hub, probe):
    board = hub.running()
    probe.answers, probe.seconds = False, 3600
    hub.tick(board)
    probe.seconds = 0
    assert keep_asking(hub, board, 49).state is BoardState.RUNNING


def test_a_database_that_was_gone_ends_no_board(hub, probe, clock, monkeypatch):
    def gone(*_, **__):
        raise DatabaseUnavailable("the database does not answer.")

    probe.answers = False
    board = hub.tick(hub.running())
    with monkeypatch.context() as patch:
        patch.setattr(hub.registry, "live", gone)
        for _ in range(60):
            clock.pass_by(1)
            hub.lifecycle.tick()
    assert hub.tick(board, 2).state is BoardState.RUNNING


@pytest.mark.parametrize("seconds", [-86400, 86400])
def test_a_clock_that_is_set_ends_no_board(hub, probe, clock, seconds):
    probe.answers = False
    board = hub.tick(hub.running())
    clock.pass_by(seconds)
    assert keep_asking(hub, board, 59).state is BoardState.RUNNING
    assert keep_asking(hub, board, 3).state is BoardState.STOPPING


def test_silence_ends_with_a_restart(hub, probe, executor):
    probe.answers = False
    board = keep_asking(hub, hub.running(), 50)
    hub.lifecycle.restart(board.id)
    hub.tick(board, 4)
    executor.is_ready(board.id)
    board = hub.tick(board)
    assert (board.state, board.attempt) == (BoardState.RUNNING, 2)
    assert not hub.lifecycle.is_unhealthy(board)
    assert keep_asking(hub, board, 50).state is BoardState.RUNNING


def test_boards_that_hang_keep_no_other_waiting(registry, executor, clock):
    released, asked = threading.Event(), threading.Semaphore(0)

    def probe(address: Address) -> str:
        asked.release()
        return "" if released.wait(180) else "timed out"

    limits = Limits(isolated=None)
    hub = Hub(registry, executor, clock, workers=2, limits=lambda _: limits, probe=probe)
    hanging = [hub.make(str(number)) for number in range(3)]
    hub.lifecycle.start()
    try:
        for board in hanging:
            until(lambda board=board: registry.get(board.id).handle is not None)
            executor.is_ready(board.id)
        assert all(asked.acquire(timeout=180) for _ in range(2))
        other = hub.make("other")
        until(lambda: registry.get(other.id).handle is not None)
        hub.lifecycle.stop(hanging[0].id)
        until(lambda: registry.get(hanging[0].id).state is BoardState.STOPPED)
        assert not released.is_set()
    finally:
        released.set()
        hub.lifecycle.close()
