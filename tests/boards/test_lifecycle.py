"""The loop that keeps boards going, with a clock that tests set and processes they control."""

import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.boards.lifecycle import Settings, decide
from aboard.boards.model import (
    ENDED,
    LEGAL,
    BadValue,
    BoardLimitExceeded,
    BoardRecord,
    BoardState,
    DatabaseUnavailable,
    IllegalTransition,
    Limits,
    NoSuchName,
    Transition,
)
from aboard.boards.registry import LiveBoards
from aboard.executors.base import CommandState as Seen
from aboard.executors.base import Spec, Status
from tests.boards.fake_executor import PretendExecutor
from tests.boards.scripted_hub import Hub
from tests.waiting import until


def test_an_isolated_board_is_started_watched_and_stopped(hub, clock):
    board = hub.make(timeout=60.0)
    assert board.state is BoardState.PENDING
    board = hub.tick(board)
    assert (board.state, board.handle) == (
        BoardState.STARTING,
        {"board": board.id, "process": "1"},
    )
    assert hub.tick(board).state is BoardState.STARTING
    hub.executor.is_ready(board.id)
    clock.pass_by(5)
    board = hub.tick(board)
    assert (board.state, board.started, board.expires) == (
        BoardState.RUNNING,
        clock.now,
        clock.now + 60,
    )
    assert hub.lifecycle.address(board).port == 6006
    stopping = hub.lifecycle.stop(board.id, reason="stopped by ann")
    assert stopping.state is BoardState.STOPPING
    board = hub.tick(board, 2)
    assert (board.state, board.reason) == (BoardState.STOPPED, "stopped by ann")
    assert hub.executor.stops == [(board.id, False)]
    assert hub.states(board) == ["pending", "starting", "running", "stopping", "stopped"]
    hub.lifecycle.tick()
    assert hub.lifecycle.known(board.id) is None


def test_an_instant_board_runs_at_once_and_needs_no_executor(hub, clock):
    board = hub.make(on="instant")
    assert (board.state, board.started) == (BoardState.RUNNING, clock.now)
    assert hub.lifecycle.known(board.id) == board
    assert hub.lifecycle.address(board) is None
    assert hub.lifecycle.stop(board.id, reason="enough").state is BoardState.STOPPED
    assert hub.lifecycle.known(board.id) is None
    assert hub.executor.polls == []


def test_an_instant_board_of_a_hub_that_was_killed_runs_in_the_end(hub):
    board = hub.registry.create(BoardRecord(owner="ann", selectors=("a",))).board
    assert hub.tick(board).state is BoardState.RUNNING


def test_executors_are_asked_once_for_all_their_boards(hub):
    boards = [hub.make(str(number)) for number in range(4)]
    hub.lifecycle.tick()
    hub.executor.polls.clear()
    hub.lifecycle.tick()
    assert hub.executor.polls == [{board.id for board in boards}]


def test_where_there_is_no_such_executor_a_board_is_refused(hub, registry, executor, clock):
    with pytest.raises(BadValue, match=r"cannot run on 'moon' here. Use one of: instant, process"):
        hub.make(on="moon")
    board = hub.make()
    without = Hub(registry, executor, clock, executors={})
    board = without.tick(board)
    assert (board.state, board.reason) == (BoardState.FAILED, "this hub has no executor 'process'")


def test_a_board_of_an_executor_that_is_switched_off_waits(hub, registry, executor, clock):
    board = hub.running()
    without = Hub(registry, executor, clock, executors={})
    assert without.tick(board) == board


class TestFailing:
    def test_a_start_that_is_refused(self, hub):
        hub.executor.refuses = "there is no room here. Free some."
        board = hub.tick(hub.make())
        assert (board.state, board.reason) == (
            BoardState.FAILED,
            "there is no room here. Free some.",
        )

    def test_a_command_that_cannot_be_made(self, registry, executor, clock):
        def specify(record: BoardRecord) -> Spec:
            raise OSError(28, "No space left on device")

        hub = Hub(registry, executor, clock)
        hub.lifecycle._specify = specify
        board = hub.tick(hub.make())
        assert (board.state, board.reason) == (
            BoardState.FAILED,
            "[Errno 28] No space left on device",
        )

    def test_one_that_dies_before_it_answers(self, hub):
        board = hub.tick(hub.make())
        hub.executor.dies(board.id, 1, "exit code 1: no such directory")
        board = hub.tick(board)
        assert (board.state, board.reason) == (BoardState.FAILED, "exit code 1: no such directory")

    def test_one_that_dies_while_it_runs(self, hub):
        board = hub.running()
        hub.executor.dies(board.id, -9, "used 2.1 GiB of 2.0 GiB memory")
        board = hub.tick(board)
        assert (board.state, board.reason) == (BoardState.FAILED, "used 2.1 GiB of 2.0 GiB memory")

    def test_one_that_nobody_knows_any_more(self, hub):
        board = hub.running()
        hub.executor.vanishes(board.id)
        board = hub.tick(board)
        assert (board.state, board.reason) == (BoardState.LOST, "process has no record of it")

    def test_one_that_never_answers_is_ended_and_failed(self, hub, clock):
        board = hub.tick(hub.make())
        clock.pass_by(300)
        assert hub.tick(board).state is BoardState.STOPPING
        board = hub.tick(board, 2)
        assert (board.state, board.reason) == (
            BoardState.FAILED,
            "it did not answer within 5m of its start",
        )
        assert hub.executor.alive(board.id) == 0

    def test_one_of_which_nobody_can_tell_stays_as_it_is(self, hub, clock):
        board = hub.running(timeout=10.0)
        hub.executor.is_deaf = True
        clock.pass_by(1000)
        unknown = hub.tick(board, 5)
        assert (unknown.state, unknown.expires) == (BoardState.RUNNING, board.expires)
        assert unknown.reason == "process does not answer: no such socket"
        hub.executor.is_deaf = False
        clock.pass_by(30)
        assert hub.tick(board).state is BoardState.STOPPING

    def test_one_that_makes_trouble_does_not_keep_others_waiting(self, hub, clock, caplog):
        first, second = hub.make("a"), hub.make("b")
        real = hub.executor.start

        def start(spec: Spec):
            if spec.board == first.id:
                raise RuntimeError("a mistake in an executor")
            return real(spec)

        hub.executor.start = start
        assert hub.tick(second).state is BoardState.STARTING
        assert "a mistake in an executor" in caplog.text
        hub.executor.start = real
        clock.pass_by(2)
        assert hub.tick(first).handle is not None
        hub.executor.is_ready(first.id)
        assert hub.tick(first).reason == ""

    def test_one_that_makes_trouble_is_tried_a_few_times(self, hub, clock, caplog):
        def start(spec: Spec):
            raise RuntimeError("a mistake in an executor")

        hub.executor.start = start
        board = hub.make()
        states = [(now := hub.tick(board)).state]
        said = "its start failed: RuntimeError: a mistake in an executor"
        assert now.reason == f"{said}; retrying"
        for _ in range(40):
            clock.pass_by(1)
            states.append((now := hub.tick(board)).state)
        assert states.index(BoardState.FAILED) == 2 + 4 + 8 + 16
        assert now.reason == said
        lines = [one.message for one in caplog.records if said in one.message]
        assert lines == [f"board {board.id}, attempt {n} of 5: {said}" for n in range(1, 6)]
        hub.lifecycle.restart(board.id)
        assert hub.tick(board).state is BoardState.STARTING


class TestTime:
    @pytest.mark.parametrize("on", ["process", "instant"])
    def test_the_maximum_run_time_ends_a_board(self, hub, clock, on):
        board = hub.running(timeout=3600.0) if on == "process" else hub.make(on=on, timeout=3600.0)
        clock.pass_by(3599)
        hub.lifecycle.touch(board.id)
        assert hub.tick(board).state is BoardState.RUNNING
        clock.pass_by(1)
        hub.lifecycle.touch(board.id)
        board = hub.tick(board, 3)
        reason = "it reached its time limit of 1h"
        assert (board.state, board.reason) == (BoardState.STOPPED, reason)

    @pytest.mark.parametrize("on", ["process", "instant"])
    def test_an_idle_board_ends_and_a_used_one_does_not(self, hub, clock, on):
        used, idle = (
            hub.running(name, idle_timeout=600.0)
            if on == "process"
            else hub.make(name, on=on, idle_timeout=600.0)
            for name in ("used", "idle")
        )
        for _ in range(6):
            clock.pass_by(100)
            hub.lifecycle.touch(used.id)
            hub.lifecycle.tick()
        hub.lifecycle.tick()
        hub.lifecycle.tick()
        ended = hub.registry.get(idle.id)
        assert (ended.state, ended.reason) == (BoardState.STOPPED, "it was not used for 10m")
        kept = hub.registry.get(used.id)
        assert (kept.state, kept.last_request) == (BoardState.RUNNING, clock.now)

    def test_extending(self, hub, clock):
        board = hub.make(on="instant", timeout=60.0)
        clock.pass_by(50)
        assert hub.lifecycle.extend(board.id, 100).expires == board.expires + 100
        clock.pass_by(109)
        assert hub.tick(board).state is BoardState.RUNNING
        clock.pass_by(1)
        assert hub.tick(board).state is BoardState.STOPPED
        with pytest.raises(IllegalTransition, match="is stopped"):
            hub.lifecycle.extend(board.id, 100)

    def test_extending_restarts_an_isolated_board_with_the_time_that_is_left_and_more(
        self, hub, clock
    ):
        board = hub.running(timeout=60.0)
        clock.pass_by(50)
        extended = hub.lifecycle.extend(board.id, 100)
        assert (extended.state, extended.expires) == (BoardState.STOPPING, board.expires + 100)
        assert extended.reason == "its time limit was extended"
        with pytest.raises(IllegalTransition, match=r"is stopping\. Extend its time limit when it"):
            hub.lifecycle.extend(board.id, 100)
        hub.tick(board, 4)
        hub.executor.is_ready(board.id)
        again = hub.tick(board)
        assert (again.state, again.attempt) == (BoardState.RUNNING, 2)
        assert (again.timeout, again.expires) == (110.0, clock.now + 110)

    @pytest.mark.parametrize(
        ("timeout", "restarts"), [(30.0, False), (60.0, False), (61.0, True), (0.0, True)]
    )
    def test_a_longer_timeout_restarts_an_isolated_board(self, hub, timeout, restarts):
        board = hub.running(timeout=60.0)
        changed = hub.lifecycle.change(board.id, lambda _: {"timeout": timeout})
        assert changed.timeout == timeout
        assert (changed.state is BoardState.STOPPING) is restarts

    def test_extending_is_limited_and_needless_without_an_end(self, registry, executor, clock):
        hub = Hub(registry, executor, clock, limits=lambda _: Limits(timeout=100))
        board = hub.running(timeout=60.0)
        with pytest.raises(BoardLimitExceeded, match="may run for 100s in total"):
            hub.lifecycle.extend(board.id, 41)
        for wrong in (-1, float("nan")):
            with pytest.raises(BadValue):
                hub.lifecycle.extend(board.id, wrong)
        endless = hub.make(on="instant")
        assert hub.lifecycle.extend(endless.id, 5) == endless


class TestStopping:
    def test_what_does_not_end_is_made_to(self, hub, clock):
        board = hub.running()
        hub.executor.is_stubborn = True
        hub.lifecycle.stop(board.id)
        assert hub.tick(board, 3).state is BoardState.STOPPING
        assert hub.executor.stops == [(board.id, False)]
        clock.pass_by(30)
        assert hub.tick(board, 2).state is BoardState.STOPPED
        assert hub.executor.stops[1:] == [(board.id, True)]

    def test_now_means_now(self, hub):
        board = hub.running()
        hub.executor.is_stubborn = True
        hub.lifecycle.stop(board.id)
        hub.lifecycle.tick()
        hub.lifecycle.stop(board.id, now=True)
        assert hub.tick(board, 2).state is BoardState.STOPPED
        assert hub.executor.stops == [(board.id, False), (board.id, True)]

    def test_before_it_started(self, hub):
        board = hub.make()
        assert hub.lifecycle.stop(board.id).state is BoardState.STOPPED
        assert hub.tick(board, 2).state is BoardState.STOPPED
        assert hub.executor.starts(board.id) == 0

    def test_while_it_is_being_started(self, hub):
        board = hub.make()
        real = hub.executor.start

        def start(spec: Spec):
            handle = real(spec)
            hub.lifecycle.stop(board.id, reason="changed my mind")
            return handle

        hub.executor.start = start
        assert hub.tick(board).state is BoardState.STOPPING
        board = hub.tick(board, 2)
        assert (board.state, board.reason) == (BoardState.STOPPED, "changed my mind")
        assert hub.executor.alive(board.id) == 0

    def test_what_has_ended_stays_as_it_is(self, hub):
        board = hub.make(on="instant")
        ended = hub.lifecycle.stop(board.id, reason="first")
        assert hub.lifecycle.stop(board.id, reason="second") == ended
        with pytest.raises(NoSuchName):
            hub.lifecycle.stop("nobody")


class TestRestarting:
    def test_a_running_board_gets_a_new_process_after_the_old_one_ended(self, hub):
        board = hub.running()
        hub.executor.is_stubborn = True
        assert hub.lifecycle.restart(board.id, reason="again").state is BoardState.STOPPING
        assert hub.tick(board, 2).state is BoardState.STOPPING
        assert hub.executor.starts(board.id) == 1
        hub.executor.dies(board.id, 0)
        hub.lifecycle.tick()
        board = hub.tick(board)
        assert (board.state, board.attempt) == (BoardState.STARTING, 2)
        assert (hub.executor.starts(board.id), hub.executor.alive(board.id)) == (2, 1)
        hub.executor.is_ready(board.id)
        assert hub.tick(board).state is BoardState.RUNNING
        assert hub.states(board) == [
            *("pending", "starting", "running", "stopping"),
            *("pending", "starting", "running"),
        ]

    def test_an_ended_board_starts_anew(self, hub, clock):
        board = hub.running(timeout=10.0)
        hub.executor.dies(board.id, 3, "exit code 3")
        assert hub.tick(board).state is BoardState.FAILED
        again = hub.lifecycle.restart(board.id, reason="restarted by ann")
        assert (again.state, again.attempt, again.handle) == (BoardState.PENDING, 2, None)
        assert hub.lifecycle.restart(board.id).version == again.version
        assert hub.tick(board).state is BoardState.STARTING
        reasons = [change.reason for change in hub.registry.history(board.id)]
        assert reasons == ["", "", "", "exit code 3", "restarted by ann", ""]

    def test_an_instant_board_is_back_at_once(self, hub):
        board = hub.make(on="instant")
        again = hub.lifecycle.restart(board.id)
        assert (again.state, again.attempt) == (BoardState.RUNNING, 2)
        assert hub.states(board) == ["pending", "running", "stopping", "pending", "running"]

    def test_an_instant_board_is_back_when_its_hub_was_killed_meanwhile(self, hub):
        board = hub.make(on="instant")
        interrupted = Transition(BoardState.STOPPING, outcome=BoardState.PENDING)
        hub.registry.transition(board, interrupted)
        assert hub.tick(board, 2).state is BoardState.RUNNING

    def test_it_takes_a_place_again(self, registry, executor, clock):
        hub = Hub(registry, executor, clock, limits=lambda _: Limits(isolated=1))
        first = hub.running("a")
        hub.lifecycle.stop(first.id)
        assert hub.tick(first, 2).state is BoardState.STOPPED
        hub.make("b")
        with pytest.raises(BoardLimitExceeded):
            hub.lifecycle.restart(first.id)

    def test_the_last_word_counts(self, hub):
        board = hub.running()
        hub.executor.is_stubborn = True
        hub.lifecycle.restart(board.id)
        hub.lifecycle.stop(board.id)
        hub.executor.dies(board.id, 0)
        assert hub.tick(board).state is BoardState.STOPPED
        board = hub.running("other")
        hub.lifecycle.stop(board.id)
        hub.lifecycle.restart(board.id)
        hub.executor.dies(board.id, 0)
        assert hub.tick(board).state is BoardState.PENDING


class TestAdopting:
    """A hub that was killed, and the next one over the same registry."""

    def test_what_runs_goes_on(self, hub, registry, executor, clock):
        board = hub.running()
        later = Hub(registry, executor, clock)
        assert later.lifecycle.snapshot().problem
        assert later.tick(board, 3) == board
        assert (executor.starts(board.id), executor.alive(board.id)) == (1, 1)

    def test_what_died_meanwhile_is_marked(self, hub, registry, executor, clock):
        board = hub.running()
        executor.dies(board.id, None, "it ended unobserved")
        later = Hub(registry, executor, clock)
        board = later.tick(board)
        assert (board.state, board.reason) == (BoardState.LOST, "it ended unobserved")

    @pytest.mark.parametrize("did_start", [False, True])
    def test_a_start_that_was_not_finished(self, hub, registry, executor, clock, did_start):
        board = hub.make()
        starting = registry.transition(board, Transition(BoardState.STARTING))
        if did_start:
            executor.start(executor.specify(starting))
        later = Hub(registry, executor, clock)
        assert later.tick(board).handle is not None
        assert (executor.starts(board.id), executor.alive(board.id)) == (1, 1)

    @pytest.mark.parametrize("did_start", [False, True])
    def test_a_stop_of_a_start_that_was_not_finished(
        self, hub, registry, executor, clock, did_start
    ):
        board = hub.make()
        starting = registry.transition(board, Transition(BoardState.STARTING))
        if did_start:
            executor.start(executor.specify(starting))
        registry.transition(starting, Transition(BoardState.STOPPING, "enough"))
        later = Hub(registry, executor, clock)
        board = later.tick(board, 3)
        assert (board.state, board.reason) == (BoardState.STOPPED, "enough")
        assert executor.alive(board.id) == 0

    def test_it_is_looked_for_as_long_as_there_is_hope(self, hub, registry, executor, clock):
        board = registry.transition(hub.make(), Transition(BoardState.STARTING))
        executor.start(executor.specify(board))
        executor.refuses = "the network is down"
        later = Hub(registry, executor, clock)
        assert later.tick(board, 3).state is BoardState.STARTING
        executor.refuses = ""
        assert later.tick(board).handle is not None
        lost = registry.transition(hub.make("b"), Transition(BoardState.STARTING))
        executor.refuses = "the network is down"
        clock.pass_by(300)
        lost = later.tick(lost)
        assert (lost.state, lost.reason) == (BoardState.FAILED, "the network is down")

    def test_what_a_deleted_board_started_is_ended(self, hub, registry, executor):
        board = hub.make()
        real = executor.start

        def start(spec: Spec):
            handle = real(spec)
            failed = registry.transition(registry.get(board.id), Transition(BoardState.FAILED))
            registry.delete(failed)
            return handle

        executor.start = start
        hub.lifecycle.tick()
        assert executor.alive(board.id) == 0


class TestWithoutDatabase:
    def test_boards_are_known_and_nothing_is_lost(self, hub, clock, monkeypatch):
        board = hub.running(idle_timeout=100.0)
        hub.lifecycle.tick()
        assert not hub.lifecycle.snapshot().problem

        def gone(*_, **__):
            raise DatabaseUnavailable("the database does not answer.")

        with monkeypatch.context() as patch:
            for name in ("live", "touch", "get", "transition", "create", "update"):
                patch.setattr(hub.registry, name, gone)
            clock.pass_by(90)
            hub.lifecycle.touch(board.id)
            clock.pass_by(5)
            hub.lifecycle.tick()
            seen = hub.lifecycle.snapshot()
            assert seen.problem == "the database does not answer."
            assert seen.at == clock.now - 95
            assert seen.boards[board.id].state is BoardState.RUNNING
            assert hub.lifecycle.known(board.id) == board
            for ask in (hub.lifecycle.stop, hub.lifecycle.restart):
                with pytest.raises(DatabaseUnavailable):
                    ask(board.id)
        clock.pass_by(10)
        assert hub.tick(board).last_request == clock.now - 15
        assert not hub.lifecycle.snapshot().problem

    def test_a_start_whose_handle_could_not_be_kept_is_found_again(self, hub, monkeypatch):
        board = hub.make()

        def gone(*_, **__):
            raise DatabaseUnavailable("the database does not answer.")

        with monkeypatch.context() as patch:
            patch.setattr(hub.registry, "update", gone)
            hub.lifecycle.tick()
        assert hub.registry.get(board.id).handle is None
        assert hub.tick(board).handle is not None
        assert (hub.executor.starts(board.id), hub.executor.alive(board.id)) == (1, 1)


def test_whoever_makes_a_board_finds_it_while_an_older_listing_is_under_way(hub, monkeypatch):
    real, made = hub.registry.live, []

    def live(known):
        listed = real(known)
        made.append(hub.make(on="instant"))
        return listed

    monkeypatch.setattr(hub.registry, "live", live)
    hub.lifecycle.tick()
    assert hub.lifecycle.known(made[0].id) == made[0]
    assert made[0].id in hub.lifecycle.snapshot().boards


def test_threads_take_boards_through_their_life(registry, executor, clock):
    hub = Hub(registry, executor, clock, workers=4, limits=lambda _: Limits(isolated=None))
    slow = threading.Event()
    real = executor.start

    def start(spec: Spec):
        if spec.board == stuck.id:
            slow.wait(180)
        return real(spec)

    executor.start = start
    stuck = hub.make("stuck")
    boards = [hub.make(str(number)) for number in range(6)]
    hub.lifecycle.start()
    try:
        for board in boards:
            until(lambda board=board: registry.get(board.id).handle is not None)
            executor.is_ready(board.id)
        for board in boards:
            until(lambda board=board: registry.get(board.id).state is BoardState.RUNNING)
            hub.lifecycle.stop(board.id)
        for board in boards:
            until(lambda board=board: registry.get(board.id).state is BoardState.STOPPED)
        assert registry.get(stuck.id).handle is None
        slow.set()
    finally:
        slow.set()
        hub.lifecycle.close()
    # Closing waits for what is under way.
    assert registry.get(stuck.id).handle is not None
    assert executor.alive(stuck.id) == 1


def test_an_engine_that_hangs_does_not_delay_other_boards(registry, executor, clock):
    hub = Hub(registry, executor, clock, workers=2, limits=lambda _: Limits(isolated=None))
    go_on, hanging = threading.Event(), []
    real = executor.start

    def start(spec: Spec):
        hanging.append(spec.board)
        go_on.wait(180)
        return real(spec)

    executor.start = start
    for number in range(4):
        hub.make(str(number))
    instant = hub.make(on="instant", timeout=3600.0)
    hub.lifecycle.start()
    try:
        until(lambda: hanging)
        clock.pass_by(3600)
        until(lambda: registry.get(instant.id).state is BoardState.STOPPED)
    finally:
        go_on.set()
        hub.lifecycle.close()


def live(*records: BoardRecord) -> LiveBoards:
    boards = LiveBoards()
    boards.end_read(records, 1.0)
    return boards


RECORD = BoardRecord(id="one", name="otter", owner="ann", on="process", state=BoardState.RUNNING)


class TestLiveBoards:
    def test_a_use_counts_while_and_after_it_is_stored(self):
        boards = live(RECORD)
        boards.touch("one", 50.0)
        storing = boards.unsaved()
        assert boards.last_request(RECORD) == 50.0
        boards.touch("one", 60.0)
        boards.saved(storing)
        assert boards.unsaved() == {"one": 60.0}
        boards.saved(boards.unsaved())
        assert boards.unsaved() == {}
        assert boards.last_request(RECORD) == 60.0

    def test_a_stop_of_a_board_that_a_listing_lacks_is_not_lost(self):
        boards = live()
        boards.begin_read()
        boards.update(RECORD)  # created after the database was read
        boards.stop_sent(RECORD)
        boards.end_read([], 2.0)
        assert boards.was_stop_sent(RECORD)

    def test_a_stop_is_of_one_start(self):
        boards = live(RECORD)
        boards.stop_sent(RECORD)
        again = replace(RECORD, attempt=2)
        assert not boards.was_stop_sent(again)

    def test_what_belongs_to_an_ended_board_is_dropped(self):
        boards = live(RECORD)
        boards.stop_sent(RECORD)
        boards.unanswered(RECORD, 10.0, 15.0, 1.0, "timed out")
        boards.touch("one", 50.0)
        boards.end_read([], 2.0)
        assert not boards.was_stop_sent(RECORD)
        assert boards.time_unanswered(RECORD) == (0.0, "")
        assert boards.last_request(RECORD) is None

    def test_threads_share_it_without_losing_a_stop(self):
        records = [replace(RECORD, id=f"board{number}") for number in range(400)]
        boards, done = live(*records), threading.Event()

        def read() -> None:
            while not done.is_set():
                boards.begin_read()
                boards.end_read(records, 2.0)

        def stop(some: list[BoardRecord]) -> None:
            for record in some:
                boards.stop_sent(record)
                boards.touch(record.id, 5.0)

        reader = threading.Thread(target=read)
        stoppers = [threading.Thread(target=stop, args=(records[n::4],)) for n in range(4)]
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in (reader, *stoppers):
                thread.start()
            for thread in stoppers:
                thread.join()
            done.set()
            reader.join()
        finally:
            sys.setswitchinterval(before)
        assert all(boards.was_stop_sent(one) for one in records)
        assert boards.unsaved() == {one.id: 5.0 for one in records}


def test_a_board_in_use_is_not_idle_while_its_use_is_being_stored(hub, clock):
    board = hub.running(idle_timeout=100.0)
    stale = hub.lifecycle.known(board.id)
    clock.pass_by(90)
    hub.lifecycle.touch(board.id)
    hub.lifecycle.tick()  # stores the use
    clock.pass_by(20)
    # A poll that began before the use was stored still holds the older record.
    hub.lifecycle._poll(hub.lifecycle._places["process"], [stale])
    assert hub.registry.get(board.id).state is BoardState.RUNNING


class TestTwoHubs:
    """Two hubs over one database, each with a directory of its own."""

    @pytest.fixture
    def other(self, registry, clock, tmp_path):
        executor = PretendExecutor(tmp_path / "other")
        return Hub(registry, executor, clock, owner="other")

    def test_of_two_starts_the_first_stays(self, hub, other):
        board = hub.make()
        starting = hub.registry.transition(board, Transition(BoardState.STARTING))
        first = hub.executor.start(hub.executor.specify(starting))
        hub.lifecycle._store_handle(hub.executor, starting, first)
        other.executor.stop(other.executor.start(other.executor.specify(starting)), now=True)
        second = other.executor.start(other.executor.specify(starting))
        assert second != first
        other.lifecycle._store_handle(other.executor, starting, second)
        assert hub.registry.get(board.id).handle == first
        assert (hub.executor.alive(board.id), other.executor.alive(board.id)) == (1, 0)


# The next state of a board, for every state and every status of its executor.


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
        (BoardState.STARTING, GONE, Transition(BoardState.LOST, "process has no record of it")),
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
        (BoardState.RUNNING, GONE, Transition(BoardState.LOST, "process has no record of it")),
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
class TestTimeLimits:
    def test_a_board_ends_when_its_time_is_up(self, on, ends):
        limited = board(BoardState.RUNNING, on=on, started=NOW, expires=NOW + 3600)
        assert decide(limited, RUNNING, NOW + 3599, SETTINGS) is None
        due = decide(limited, RUNNING, NOW + 3600, SETTINGS)
        assert due == Transition(ends, "it reached its time limit of 1h")

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
