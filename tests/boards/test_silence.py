"""Boards that run and do not answer: what is said of them, and when they are ended."""

import threading

import pytest
from keeping import Hub

from aboard.boards.errors import DatabaseUnavailable
from aboard.boards.limits import Limits
from aboard.boards.model import State
from aboard.executors.base import Address


class Probe:
    """Asks boards, which answer as tests say, after some time."""

    def __init__(self, clock):
        self.answers = True
        self.seconds = 0.0
        self._clock = clock

    def __call__(self, address: Address) -> bool:
        self._clock.pass_by(self.seconds)
        return self.answers


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
        assert hub.tick(board).state is State.RUNNING
    probe.answers = False
    for seconds, silent in ((0, False), (9, False), (1, True), (49, True), (1, True)):
        board = keep_asking(hub, board, seconds) if seconds else hub.tick(board)
        assert (board.state, hub.lifecycle.is_silent(board)) == (State.RUNNING, silent)
    assert hub.tick(board).state is State.STOPPING
    board = hub.tick(board, 2)
    assert (board.state, board.reason) == (State.FAILED, "it did not answer for 1m")


def test_questions_that_take_their_time_count_with_it(hub, probe):
    probe.answers, probe.seconds = False, 5
    board = hub.tick(hub.running())
    assert not hub.lifecycle.is_silent(board)
    assert hub.lifecycle.is_silent(hub.tick(board))
    assert hub.tick(board, 10).state is State.RUNNING
    assert hub.tick(board).state is State.STOPPING


def test_a_board_that_answers_again_goes_on(hub, probe):
    probe.answers = False
    board = hub.tick(hub.running())
    assert hub.lifecycle.is_silent(keep_asking(hub, board, 59))
    probe.answers = True
    assert not hub.lifecycle.is_silent(hub.tick(board))
    probe.answers = False
    assert keep_asking(hub, board, 59).state is State.RUNNING


def test_a_machine_that_slept_between_two_questions_ends_no_board(hub, probe, clock):
    probe.answers = False
    board = keep_asking(hub, hub.running(), 50)
    clock.pass_by(3600)
    board = hub.tick(board, 2)
    assert (board.state, hub.lifecycle.is_silent(board)) == (State.RUNNING, False)
    assert keep_asking(hub, board, 59).state is State.RUNNING
    assert keep_asking(hub, board, 2).state is State.STOPPING


def test_a_machine_that_slept_during_a_question_ends_no_board(hub, probe):
    board = hub.running()
    probe.answers, probe.seconds = False, 3600
    hub.tick(board)
    probe.seconds = 0
    assert keep_asking(hub, board, 49).state is State.RUNNING


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
    assert hub.tick(board, 2).state is State.RUNNING


@pytest.mark.parametrize("seconds", [-86400, 86400])
def test_a_clock_that_is_set_ends_no_board(hub, probe, clock, seconds):
    probe.answers = False
    board = hub.tick(hub.running())
    clock.pass_by(seconds)
    assert keep_asking(hub, board, 59).state is State.RUNNING
    assert keep_asking(hub, board, 3).state is State.STOPPING


def test_silence_ends_with_a_restart(hub, probe, executor):
    probe.answers = False
    board = keep_asking(hub, hub.running(), 50)
    hub.lifecycle.restart(board.id)
    hub.tick(board, 4)
    executor.is_ready(board.id)
    board = hub.tick(board)
    assert (board.state, board.attempt) == (State.RUNNING, 2)
    assert not hub.lifecycle.is_silent(board)
    assert keep_asking(hub, board, 50).state is State.RUNNING


def test_boards_that_hang_keep_no_other_waiting(registry, executor, clock, wait_for):
    released, asked = threading.Event(), threading.Semaphore(0)

    def probe(address: Address) -> bool:
        asked.release()
        return released.wait(60)

    limits = Limits(isolated=None)
    hub = Hub(registry, executor, clock, workers=2, limits=lambda _: limits, probe=probe)
    hanging = [hub.make(str(number)) for number in range(3)]
    hub.lifecycle.start()
    try:
        for board in hanging:
            wait_for(lambda board=board: registry.get(board.id).handle is not None)
            executor.is_ready(board.id)
        assert all(asked.acquire(timeout=60) for _ in range(2))
        other = hub.make("other")
        wait_for(lambda: registry.get(other.id).handle is not None)
        hub.lifecycle.stop(hanging[0].id)
        wait_for(lambda: registry.get(hanging[0].id).state is State.STOPPED)
        assert not released.is_set()
    finally:
        released.set()
        hub.lifecycle.close()
