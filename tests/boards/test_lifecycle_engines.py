"""Boards on engines: what they wait for, engines that do not answer, and what is left on them."""

from dataclasses import replace

import pytest

from aboard.boards.model import BadValue, BoardRecord, BoardState, Limits, Transition
from tests.boards.fake_executor import PretendExecutor
from tests.boards.scripted_hub import SETTINGS, Hub


@pytest.fixture
def executor(tmp_path) -> PretendExecutor:
    return PretendExecutor(tmp_path / "boards", "slurm", ("long",))


@pytest.fixture
def hub(registry, executor, clock) -> Hub:
    return Hub(registry, executor, clock, limits=lambda _: Limits(isolated=None))


class TestProfiles:
    def test_a_profile_reaches_the_engine_with_the_start(self, hub):
        board = hub.make(on="slurm:long")
        hub.lifecycle.tick()
        (spec,) = hub.executor.specs
        assert (spec.board, spec.profile, spec.attempt) == (board.id, "long", 1)

    @pytest.mark.parametrize("on", ["slurm:", "moon"])
    def test_what_the_hub_does_not_have_is_refused(self, hub, on):
        hint = "Use one of: instant, slurm, slurm:long."
        with pytest.raises(BadValue, match=f"cannot run on '{on}' here. {hint}"):
            hub.make(on=on)

    @pytest.mark.parametrize("profile", ["short", "long:er"])
    def test_a_profile_that_is_missing_is_said_beside_those_of_its_engine(self, hub, profile):
        said = f"^slurm has no profile '{profile}' here. Use one of: slurm, slurm:long.$"
        with pytest.raises(BadValue, match=said):
            hub.make(on=f"slurm:{profile}")

    def test_an_ended_board_does_not_restart_on_what_is_gone(self, registry, executor, clock, hub):
        board = hub.running(on="slurm:long")
        executor.dies(board.id, 1)
        assert hub.tick(board).state is BoardState.FAILED
        executor.profiles = {"": None}
        with pytest.raises(BadValue, match="slurm has no profile 'long' here"):
            hub.lifecycle.restart(board.id)

    def test_one_query_is_for_the_boards_of_all_profiles(self, hub):
        boards = [hub.make("a", on="slurm"), hub.make("b", on="slurm:long")]
        hub.lifecycle.tick()
        hub.executor.polls.clear()
        hub.lifecycle.tick()
        assert hub.executor.polls == [{board.id for board in boards}]


class TestWaiting:
    def test_the_engines_reason_is_stored_while_it_lasts(self, hub, registry):
        board = hub.make(on="slurm")
        hub.lifecycle.tick()
        for reason in ("Priority", "Resources"):
            hub.executor.waits(board.id, reason)
            waiting = hub.tick(board)
            assert (waiting.state, waiting.reason) == (BoardState.STARTING, reason)
            assert hub.lifecycle.known(board.id).reason == reason
            assert hub.tick(board).version == waiting.version
        hub.executor.is_ready(board.id)
        running = hub.tick(board)
        assert (running.state, running.reason) == (BoardState.RUNNING, "")
        assert hub.states(board) == ["pending", "starting", "running"]

    def test_the_time_for_its_start_counts_after_the_queue(self, hub, clock):
        board = hub.make(on="slurm")
        hub.lifecycle.tick()
        hub.executor.waits(board.id, "Resources")
        for _ in range(3):
            hub.lifecycle.tick()
            clock.pass_by(86400)
        hub.executor.waits(board.id, "")
        board = hub.tick(board)
        assert (board.state, board.reason) == (BoardState.STARTING, "")
        clock.pass_by(299)
        assert hub.tick(board).state is BoardState.STARTING
        clock.pass_by(1)
        assert hub.tick(board).state is BoardState.STOPPING

    def test_a_reason_that_no_database_can_store_is_stored_without_that(self, hub):
        board = hub.make(on="slurm")
        hub.lifecycle.tick()
        hub.executor.waits(board.id, "no \0 room" + "!" * 9000)
        waiting = hub.tick(board)
        assert waiting.reason.startswith("no  room!!")
        assert len(waiting.reason) == 4096
        assert hub.tick(board).version == waiting.version

    def test_a_start_of_a_killed_hub_that_cannot_be_found_yet_says_why(self, hub, registry):
        board = registry.transition(hub.make(on="slurm"), Transition(BoardState.STARTING))
        hub.executor.refuses = "slurm does not answer: connection refused"
        waiting = hub.tick(board, 2)
        assert (waiting.state, waiting.reason) == (
            BoardState.STARTING,
            "slurm does not answer: connection refused",
        )

    def test_a_stopping_board_keeps_its_reason(self, hub):
        board = hub.running(on="slurm")
        hub.executor.is_stubborn = True
        hub.lifecycle.stop(board.id, reason="stopped by ann")
        hub.executor.waits(board.id, "Resources")
        assert hub.tick(board, 2).reason == "stopped by ann"


def test_a_board_that_its_engine_moves_starts_again_and_gets_its_whole_time(hub, clock):
    board = hub.running(on="slurm", timeout=100.0)
    clock.pass_by(90)
    hub.executor.waits(board.id, "BeginTime")
    moved = hub.tick(board)
    assert (moved.state, moved.reason, moved.attempt) == (BoardState.STARTING, "BeginTime", 1)
    assert (moved.started, moved.expires, moved.handle) == (None, None, board.handle)
    clock.pass_by(500)
    assert hub.tick(board).state is BoardState.STARTING
    hub.executor.is_ready(board.id)
    back = hub.tick(board)
    assert (back.state, back.expires) == (BoardState.RUNNING, clock.now + 100)
    assert hub.states(board) == ["pending", "starting", "running", "starting", "running"]


class TestSilentEngine:
    def test_states_stay_and_the_reason_says_it_until_it_answers(self, hub, clock):
        starting = hub.make("a", on="slurm")
        running = hub.running("b", on="slurm")
        hub.executor.is_deaf = True
        said = "slurm does not answer: no such socket"
        for board, state in ((starting, BoardState.STARTING), (running, BoardState.RUNNING)):
            found = hub.tick(board)
            assert (found.state, found.reason) == (state, said)
        hub.executor.is_deaf = False
        clock.pass_by(2)
        assert hub.tick(running).reason == ""
        assert hub.tick(starting).reason == ""
        assert hub.states(running) == ["pending", "starting", "running"]

    def test_a_board_that_is_stopped_says_so_and_is_stopped_when_it_answers(self, hub, clock):
        board = hub.running(on="slurm")
        hub.executor.is_deaf = True
        hub.lifecycle.stop(board.id, reason="stopped by ann")
        said = "stopped by ann; not yet: slurm does not answer: no such socket"
        said += "; it stops when slurm answers"
        for seconds in (1, 100, 10_000):
            waiting = hub.tick(board)
            assert (waiting.state, waiting.reason) == (BoardState.STOPPING, said)
            clock.pass_by(seconds)
        hub.executor.is_deaf = False
        stopped = hub.tick(board, 2)
        assert (stopped.state, stopped.reason) == (BoardState.STOPPED, "stopped by ann")
        assert hub.executor.alive(board.id) == 0

    def test_a_stop_does_not_wait_for_the_next_query_and_answers_what_is_known(self, hub, clock):
        board = hub.running(on="slurm")
        hub.executor.is_deaf = True
        for _ in range(60):  # then it is queried every 30 s
            clock.pass_by(1)
            hub.lifecycle.tick()
        stopping = hub.lifecycle.stop(board.id, reason="stopped by ann")
        assert stopping.reason.startswith("stopped by ann; not yet: slurm does not answer: no such")
        hub.executor.is_deaf = False
        clock.pass_by(0.1)
        assert hub.lifecycle.stop(board.id).state is BoardState.STOPPING
        assert hub.tick(board, 2).state is BoardState.STOPPED

    def test_a_board_that_stops_can_be_given_up_and_what_is_left_is_named(self, hub):
        board = hub.running(on="slurm")
        hub.executor.is_deaf = True
        assert hub.lifecycle.abandon(board.id).state is BoardState.RUNNING
        hub.lifecycle.stop(board.id, reason="stopped by ann")
        stopping = hub.tick(board)
        assert hub.lifecycle.leftover(stopping) == (
            "process 1 may still run on slurm. Stop it with: end 1"
        )
        given_up = hub.lifecycle.abandon(board.id)
        assert (given_up.state, given_up.reason) == (BoardState.STOPPED, stopping.reason)
        hub.executor.is_deaf = False
        assert hub.tick(board).state is BoardState.STOPPED

    def test_what_is_left_is_stopped_when_its_engine_answers_again(self, hub, clock):
        board = hub.running(on="slurm")
        hub.executor.is_deaf = hub.executor.is_stubborn = True
        hub.lifecycle.stop(board.id, reason="stopped by ann")
        hub.tick(board)
        hub.registry.delete(hub.lifecycle.abandon(board.id))
        hub.executor.is_deaf = False
        clock.pass_by(SETTINGS.orphans)
        hub.lifecycle.tick()
        assert hub.executor.stops == [(board.id, False), (board.id, True)]

    def test_what_is_left_on_an_engine_that_the_hub_no_longer_has_is_named(self, hub):
        board = hub.running(on="slurm")
        without = Hub(hub.registry, hub.executor, hub.clock, executors={})
        record = replace(board, handle={"job": "17"}, state=BoardState.STOPPING)
        assert without.lifecycle.leftover(record) == (
            "job 17 may still run on slurm. Stop it with: scancel 17"
        )
        unsure = without.lifecycle.leftover(replace(record, handle=None))
        assert unsure == f"aboard-{board.id}-1 may still run on slurm."

    def test_it_is_queried_less_and_less_often_and_at_once_when_it_is_back(self, hub, clock):
        hub.running(on="slurm")
        hub.executor.is_deaf = True
        hub.executor.polls.clear()
        asked = []
        for second in range(120):
            before = len(hub.executor.polls)
            hub.lifecycle.tick()
            if len(hub.executor.polls) > before:
                asked.append(second)
            clock.pass_by(1)
        assert asked == [0, 2, 6, 14, 30, 60, 90]
        hub.executor.is_deaf = False
        hub.executor.polls.clear()
        for _ in range(5):
            hub.lifecycle.tick()
            clock.pass_by(1)
        assert len(hub.executor.polls) == 5

    def test_a_clock_that_is_set_back_does_not_prolong_the_pause(self, hub, clock):
        board = hub.running(on="slurm")
        hub.executor.is_deaf = True
        hub.tick(board)
        hub.executor.is_deaf = False
        clock.pass_by(-86400)
        assert hub.tick(board).reason == ""

    def test_another_engine_is_not_affected(self, registry, executor, clock, tmp_path):
        docker = PretendExecutor(tmp_path / "docker", "docker")
        executors = {"slurm": executor, "docker": docker}
        hub = Hub(registry, executor, clock, executors=executors)
        hub.running("a", on="slurm")
        executor.is_deaf = True
        hub.lifecycle._specify = docker.specify
        board = hub.make("b", on="docker")
        hub.tick(board, 3)
        docker.is_ready(board.id)
        assert hub.tick(board).state is BoardState.RUNNING

    def test_new_boards_are_started_meanwhile_or_say_why_not(self, hub, clock):
        hub.running("a", on="slurm")
        hub.executor.is_deaf = True
        hub.tick(hub.make("b", on="slurm"), 3)
        hub.executor.refuses = "slurm does not answer: connection refused"
        failed = hub.tick(hub.make("c", on="slurm"))
        assert (failed.state, failed.reason) == (
            BoardState.FAILED,
            "slurm does not answer: connection refused",
        )


def test_many_boards_cost_as_many_queries_as_one(hub, clock):
    def queries(seconds: int) -> int:
        hub.executor.polls.clear()
        for _ in range(seconds):
            hub.lifecycle.tick()
            clock.pass_by(1)
        return len(hub.executor.polls)

    hub.running("first", on="slurm")
    one = queries(5)
    for number in range(49):
        hub.make(str(number), on="slurm")
    hub.lifecycle.tick()
    assert queries(5) == one == 5
    assert all(len(asked) == 50 for asked in hub.executor.polls)
    assert hub.executor.searches <= 1


class TestOrphans:
    def test_what_no_live_board_has_is_stopped_and_polled_until_it_is_gone(self, hub, clock):
        kept = hub.running("kept", on="slurm")
        gone = hub.running("gone", on="slurm")
        ended = hub.registry.transition(gone, Transition(BoardState.LOST, "seen wrongly"))
        hub.registry.delete(ended)
        hub.executor.stop = lambda handle, *, now: hub.executor.stops.append((handle, now))
        later = Hub(hub.registry, hub.executor, clock)
        later.lifecycle.tick()
        orphan = {"board": gone.id, "process": "1"}
        assert hub.executor.stops == [(orphan, True)]
        assert hub.executor.polls[-1] == {kept.id, f"{gone.id}-1"}
        later.lifecycle.tick()
        assert len(hub.executor.polls[-1]) == 2
        hub.executor.dies(gone.id, -9)
        later.lifecycle.tick()
        later.lifecycle.tick()
        assert hub.executor.polls[-1] == {kept.id}
        assert len(hub.executor.stops) == 1
        assert hub.executor.alive(kept.id) == 1

    def test_it_is_searched_for_at_the_start_and_every_minute(self, hub, clock):
        hub.running(on="slurm")
        hub.lifecycle.tick()
        assert hub.executor.searches == 1
        for searches in (2, 3, 4):
            clock.pass_by(60)
            hub.lifecycle.tick()
            hub.lifecycle.tick()
            assert hub.executor.searches == searches
        later = Hub(hub.registry, hub.executor, clock)
        later.lifecycle.tick()
        assert hub.executor.searches == 5

    def test_an_engine_that_no_board_ever_used_is_not_searched(self, hub, clock):
        hub.make(on="instant")
        for _ in range(3):
            hub.lifecycle.tick()
            clock.pass_by(60)
        assert hub.executor.searches == 0

    def test_a_second_process_of_the_same_start_is_one(self, hub, clock):
        board = hub.running(on="slurm")
        stray = hub.executor.root / board.id
        (stray / "alive-7").write_text("running")
        (stray / "attempt-7").write_text("1")
        clock.pass_by(60)
        assert hub.tick(board, 2).state is BoardState.RUNNING
        assert not (stray / "alive-7").exists()
        assert (stray / "alive-1").exists()

    def test_an_earlier_start_of_a_live_board_is_one(self, hub, clock):
        board = hub.running(on="slurm")
        stray = hub.executor.root / board.id
        (stray / "alive-7").write_text("running")
        (stray / "attempt-7").write_text("0")
        clock.pass_by(60)
        hub.tick(board, 2)
        assert not (stray / "alive-7").exists()
        assert hub.executor.alive(board.id) == 1

    def test_a_board_that_is_being_started_is_none(self, hub, clock):
        board = hub.make(on="slurm")
        starting = hub.registry.transition(board, Transition(BoardState.STARTING))
        hub.executor.start(hub.executor.specify(starting))
        hub.executor.refuses = "not yet"
        hub.tick(board)
        assert hub.executor.stops == []

    def test_an_engine_that_does_not_answer_is_searched_later(self, hub, clock):
        board = hub.running(on="slurm")
        ended = hub.registry.transition(board, Transition(BoardState.LOST))
        hub.executor.is_deaf = True
        clock.pass_by(60)
        hub.lifecycle.tick()
        assert hub.executor.alive(ended.id) == 1
        hub.executor.is_deaf = False
        clock.pass_by(60)
        hub.lifecycle.tick()
        assert hub.executor.alive(ended.id) == 0


def test_a_stop_now_reaches_the_hub_that_acts(hub, registry, clock):
    board = hub.running(on="slurm")
    hub.executor.is_stubborn = True
    other = Hub(registry, hub.executor, clock, owner="other")
    other.lifecycle.stop(board.id, now=True)
    assert hub.tick(board, 2).state is BoardState.STOPPED
    assert hub.executor.stops == [(board.id, True)]


def test_a_stop_now_is_for_one_start(hub):
    board = hub.running(on="slurm")
    hub.lifecycle.stop(board.id, now=True)
    hub.tick(board, 2)
    again: BoardRecord = hub.lifecycle.restart(board.id)
    assert again.urgent == 0
