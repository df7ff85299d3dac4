"""What the hub remembers of boards, the same over SQLite and PostgreSQL."""

import errno
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import sqlalchemy as sa

from aboard import system
from aboard.boards.model import (
    Ambiguous,
    BadValue,
    BoardLimitExceeded,
    BoardRecord,
    BoardState,
    Conflict,
    DatabaseUnavailable,
    Engine,
    IdempotencyMismatch,
    IllegalTransition,
    Limits,
    NameTaken,
    NoSuchName,
    Transition,
    Visibility,
)
from aboard.boards.registry import Leases, Registry
from tests.boards.fake_executor import PretendExecutor
from tests.boards.scripted_hub import SETTINGS, Hub


def make(registry: Registry, owner: str = "ann", *selectors: str, **values) -> BoardRecord:
    wanted = BoardRecord(owner=owner, selectors=selectors or ("cifar10",), **values)
    return registry.create(wanted, new=True, limits=Limits(isolated=None)).board


def run(registry: Registry, record: BoardRecord, *states: BoardState) -> BoardRecord:
    for state in states:
        record = registry.transition(record, Transition(state, f"now {state}"))
    return record


def test_a_board_comes_back_as_it_was_made(registry, clock):
    wanted = BoardRecord(
        owner="ann",
        selectors=("cifar10/run3-run7", " s3://bucket/äöü 'x' ", "cifar10/run3-run7"),
        sources=("/data/a", "s3://b/c"),
        name="my-board",
        template="{run}",
        title="Ωmega %s :x",
        engine=Engine.STOCK,
        on="process",
        memory=1 << 40,
        timeout=8.5,
        idle_timeout=600,
        visibility=Visibility.TEAM,
    )
    made = registry.create(wanted)
    board = made.board
    assert made.is_new
    assert board == registry.get(board.id) == registry.find("my-board")
    assert board.selectors == ("cifar10/run3-run7", "s3://bucket/äöü 'x'")
    assert (board.memory, board.timeout, board.idle_timeout) == (1 << 40, 8.5, 600.0)
    assert (board.state, board.created, board.changed) == (BoardState.PENDING, clock.now, clock.now)
    assert (board.engine, board.on, board.visibility) == ("stock", "process", "team")
    handle = {"pid": 5, "deep": {"list": [1, None, "\0"]}}
    assert registry.update(board, handle=handle) == registry.get(board.id)
    assert registry.get(board.id).handle == handle


def test_the_same_selection_is_the_same_board(registry):
    first = registry.create(BoardRecord(owner="ann", selectors=("b", "a "))).board
    again = registry.create(BoardRecord(owner="ann", selectors=("a", "b", "a"), title="other"))
    assert again == (first, False)
    others = [
        BoardRecord(owner="bob", selectors=("a", "b")),
        BoardRecord(owner="ann", selectors=("a",)),
        BoardRecord(owner="ann", selectors=("a", "b"), template="{run}"),
        BoardRecord(owner="ann", selectors=("a", "b"), engine=Engine.STOCK),
        BoardRecord(owner="ann", selectors=("a", "b"), on="process"),
        BoardRecord(owner="ann", selectors=("a", "b"), name="another"),
    ]
    made = [registry.create(wanted) for wanted in others]
    assert all(one.is_new for one in made)
    assert registry.create(others[-1]) == (made[-1].board, False)


def test_a_new_board_is_made_when_asked_for_or_when_the_old_one_ends(registry, clock):
    wanted = BoardRecord(owner="ann", selectors=("a",))
    first = registry.create(wanted).board
    clock.pass_by(1)
    second = registry.create(wanted, new=True)
    assert second.is_new
    assert registry.create(wanted).board == second.board
    run(registry, second.board, BoardState.STOPPED)
    assert registry.create(wanted).board == first
    run(registry, first, BoardState.STARTING, BoardState.STOPPING)
    assert registry.create(wanted).is_new


def test_a_board_whose_runs_changed_is_found_by_what_it_shows(registry):
    board = make(registry, "ann", "a")
    registry.update(board, selectors=("a", "b"))
    assert registry.create(BoardRecord(owner="ann", selectors=("b", "a"))).board.id == board.id
    assert registry.create(BoardRecord(owner="ann", selectors=("a",))).is_new


def test_a_repeated_wish_makes_one_board(registry, clock):
    wanted = BoardRecord(owner="ann", selectors=("a",))
    first = registry.create(wanted, new=True, key="k1")
    assert registry.create(wanted, new=True, key="k1") == (first.board, False)
    assert registry.create(wanted, new=True, key="k2").is_new
    assert registry.create(BoardRecord(owner="bob", selectors=("a",)), new=True, key="k1").is_new
    with pytest.raises(
        IdempotencyMismatch, match=f"was used for a different board, {first.board.id}"
    ):
        registry.create(BoardRecord(owner="ann", selectors=("b",)), new=True, key="k1")
    run(registry, first.board, BoardState.STOPPED)
    ended = registry.create(wanted, new=True, key="k1")
    assert (ended.board.id, ended.board.state) == (first.board.id, BoardState.STOPPED)
    clock.pass_by(30 * 86400)
    registry.create(wanted, new=True, key="k3")
    assert registry.create(wanted, new=True, key="k1").is_new


def test_names_are_unique_among_live_boards_of_an_owner(registry):
    first = make(registry, name="otter")
    make(registry, "bob", name="otter")
    with pytest.raises(NameTaken, match="ann already has a live board named 'otter'"):
        make(registry, name="otter")
    ended = run(registry, first, BoardState.STOPPED)
    second = make(registry, name="otter")
    with pytest.raises(NameTaken):
        registry.transition(ended, Transition(BoardState.PENDING))
    with pytest.raises(NameTaken):
        registry.update(make(registry, name="stoat"), name="otter")
    assert registry.update(second, name="weasel").name == "weasel"
    assert registry.transition(ended, Transition(BoardState.PENDING)).name == "otter"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"selectors": ()}, "at least one selector"),
        ({"selectors": (" ",)}, "at least one selector"),
        ({"selectors": ("a\0b",)}, "a selector cannot be stored"),
        ({"selectors": tuple(map(str, range(10_001)))}, "at most 10000 are allowed"),
        ({"title": "\ud800"}, "the title cannot be stored"),
        ({"template": "x" * 5000}, "the template cannot be stored"),
        ({"owner": ""}, "owner is empty"),
        ({"name": "a b"}, "is not a valid board name"),
        ({"memory": -1}, "memory cannot be -1"),
        ({"memory": 1 << 80}, "memory cannot be"),
        ({"timeout": float("nan")}, "timeout cannot be nan"),
        ({"idle_timeout": float("inf")}, "idle_timeout cannot be inf"),
        ({"engine": "steam"}, "engine cannot be 'steam'"),
        ({"visibility": "all"}, "visibility cannot be 'all'"),
    ],
)
def test_what_cannot_be_meant_is_refused(registry, values, said):
    with pytest.raises(BadValue, match=said):
        registry.create(BoardRecord(**{"owner": "ann", "selectors": ("a",), **values}))
    assert registry.list().total == 0


def test_history_keeps_every_state_with_its_reason_and_time(registry, clock):
    board = make(registry, on="process")
    for state in (
        BoardState.STARTING,
        BoardState.RUNNING,
        BoardState.FAILED,
        BoardState.PENDING,
        BoardState.STOPPED,
    ):
        clock.pass_by(10)
        board = run(registry, board, state)
    seen = [(one.state, one.reason, one.attempt) for one in registry.history(board.id)]
    assert seen == [
        ("pending", "", 1),
        ("starting", "now starting", 1),
        ("running", "now running", 1),
        ("failed", "now failed", 1),
        ("pending", "now pending", 2),
        ("stopped", "now stopped", 2),
    ]
    assert [one.at for one in registry.history(board.id)] == [1e6 + 10 * n for n in range(6)]


def test_a_reason_is_kept_whatever_the_log_had_in_it(registry):
    board = make(registry)
    ended = registry.transition(board, Transition(BoardState.FAILED, "a\0b\ud800c" + "x" * 9000))
    assert ended.reason == registry.get(board.id).reason
    assert ended.reason.startswith("abcxx")
    assert len(ended.reason) == 4096


def test_whoever_saw_an_older_version_changes_nothing(registry):
    seen = make(registry, on="process")
    registry.transition(seen, Transition(BoardState.STARTING))
    with pytest.raises(Conflict, match="was changed by another request and is now starting"):
        registry.transition(seen, Transition(BoardState.STOPPED))
    with pytest.raises(Conflict):
        registry.update(seen, title="new")
    with pytest.raises(IllegalTransition, match="is pending and cannot become lost"):
        registry.transition(seen, Transition(BoardState.LOST))
    assert registry.get(seen.id).state is BoardState.STARTING
    assert len(registry.history(seen.id)) == 2


def test_limits_hold_for_new_boards_and_restarts(registry, clock):
    limits, boards = Limits(isolated=2), []
    for selector in ("a", "b"):
        clock.pass_by(1)
        wanted = BoardRecord(owner="ann", selectors=(selector,), on="process")
        boards.append(registry.create(wanted, limits=limits).board)
    with pytest.raises(BoardLimitExceeded) as refused:
        registry.create(BoardRecord(owner="ann", selectors=("x",), on="process"), limits=limits)
    assert [one.id for one in refused.value.boards] == [one.id for one in boards]
    registry.create(BoardRecord(owner="ann", selectors=("x",)), limits=limits)
    registry.create(BoardRecord(owner="bob", selectors=("x",), on="process"), limits=limits)
    ended = run(registry, boards[0], BoardState.STOPPED)
    registry.create(BoardRecord(owner="ann", selectors=("y",), on="process"), limits=limits)
    with pytest.raises(BoardLimitExceeded):
        registry.transition(ended, Transition(BoardState.PENDING), limits=limits)


class TestFinding:
    @pytest.fixture
    def boards(self, registry, clock) -> dict[str, BoardRecord]:
        made = {}
        for owner, name, visibility in [
            ("ann", "rarely-cute-otter", "private"),
            ("ann", "rarely-cute-owl", "team"),
            ("bob", "rarely-tall-owl", "private"),
            ("bob", "mostly-tall-owl", "team"),
        ]:
            clock.pass_by(1)
            made[name] = make(registry, owner, name=name, visibility=Visibility(visibility))
        return made

    def test_by_id_name_and_unique_beginnings(self, registry, boards):
        for name, board in boards.items():
            for text in (board.id, board.id[:11], name, name[:-1]):
                assert registry.find(text) == board

    def test_several_are_an_error_that_names_them(self, registry, boards):
        cute = [boards[name] for name in ("rarely-cute-otter", "rarely-cute-owl")]
        with pytest.raises(Ambiguous, match="'rarely-cute' matches several boards") as several:
            registry.find("rarely-cute")
        assert all(f"{board.id} ({board.name})" in str(several.value) for board in cute)

    @pytest.mark.parametrize("text", ["", "nobody", "otter", "%", "rarely_", "a\0", "\ud800", "RA"])
    def test_nothing_is_an_error(self, registry, boards, text):
        with pytest.raises(NoSuchName, match="not found"):
            registry.find(text)

    def test_ones_own_come_first(self, registry, boards):
        assert registry.find("rarely-t", user="ann").owner == "bob"
        assert registry.find("rarely", user="bob").name == "rarely-tall-owl"

    def test_what_one_may_not_see_is_not_there(self, registry, boards):
        assert registry.find("mostly", seen_by="ann").owner == "bob"
        with pytest.raises(NoSuchName):
            registry.find("rarely-tall-owl", seen_by="ann")
        assert registry.find("rarely", seen_by="bob", user="bob").name == "rarely-tall-owl"
        assert registry.find("rarely-c", seen_by="bob").name == "rarely-cute-owl"

    def test_live_boards_come_before_ended_ones_and_the_last_of_a_name_is_meant(
        self, registry, boards, clock
    ):
        run(registry, boards["rarely-cute-owl"], BoardState.STOPPED)
        assert registry.find("rarely-cute").name == "rarely-cute-otter"
        clock.pass_by(1)
        second = make(registry, name="rarely-cute-owl")
        assert registry.find("rarely-cute-owl") == second
        ended = run(registry, second, BoardState.STOPPED)
        assert registry.find("rarely-cute-owl") == ended

    def test_the_same_name_of_two_others_is_ambiguous(self, registry, boards):
        make(registry, "eve", name="mostly-tall-owl")
        with pytest.raises(Ambiguous):
            registry.find("mostly-tall-owl", user="ann")
        assert registry.find("mostly-tall-owl", user="eve").owner == "eve"


class TestListing:
    @pytest.fixture(autouse=True)
    def boards(self, registry, clock) -> list[BoardRecord]:
        made = []
        for number in range(23):
            clock.pass_by(number % 3)  # some at the same time
            owner = "ann" if number % 2 else "bob"
            board = make(registry, owner, f"exp{number}/run1", title=f"50% of {number}_x")
            made.append(run(registry, board, BoardState.STOPPED) if number % 5 == 0 else board)
        return made

    @pytest.mark.parametrize("limit", [1, 2, 7, 22, 23, 100])
    def test_pages_have_every_board_once_newest_first(self, registry, boards, limit):
        seen, after = [], None
        while True:
            page = registry.list(limit=limit, after=after)
            assert page.total == 23
            assert len(page.boards) <= limit
            seen += page.boards
            after = page.next
            if after is None:
                break
        expected = sorted(boards, key=lambda board: (board.created, board.id), reverse=True)
        assert seen == expected

    def test_a_board_made_meanwhile_does_not_move_the_pages(self, registry, clock):
        first = registry.list(limit=10)
        clock.pass_by(1)
        make(registry)
        rest = registry.list(limit=100, after=first.next)
        assert len(first.boards) + len(rest.boards) == 23

    def test_filters(self, registry, boards):
        assert registry.list(owner="ann").total == 11
        assert registry.list(states=[BoardState.STOPPED]).total == 5
        assert registry.list(states=[BoardState.STOPPED], owner="bob").total == 3
        assert registry.list(states=[BoardState.STOPPED, BoardState.PENDING]).total == 23
        assert registry.list(name=boards[3].name).boards == [boards[3]]
        assert registry.list(seen_by="ann").total == 11
        assert registry.list(name="a\0b") == ([], 0, None)

    @pytest.mark.parametrize("after", ["x", "", "W10", "WzEsMl0", "é", "bnVsbA", "\ud800"])
    def test_an_invalid_cursor_is_refused(self, registry, after):
        with pytest.raises(BadValue, match="invalid cursor"):
            registry.list(after=after)

    @pytest.mark.parametrize("limit", [0, -1, 1001])
    def test_a_page_has_a_size(self, registry, limit):
        with pytest.raises(BadValue, match="Use 1 to 1000"):
            registry.list(limit=limit)

    def test_live_boards_are_read_anew_only_where_they_changed(self, registry, boards):
        live = registry.live()
        assert [board.id for board in live] == sorted(
            (board.id for board in boards if board.is_live),
            key=lambda one: (registry.get(one).created, one),
        )
        known = {board.id: board for board in live}
        running = run(registry, live[0], BoardState.RUNNING)
        registry.touch({running.id: 77.0})
        ended = run(registry, live[1], BoardState.STOPPED)
        made = make(registry)
        again = {board.id: board for board in registry.live(known)}
        assert again == {board.id: board for board in registry.live()}
        assert again[running.id].last_request == 77.0
        assert ended.id not in again
        assert made.id in again


def test_use_is_noted_for_running_boards_and_only_forward(registry):
    running = run(registry, make(registry), BoardState.RUNNING)
    pending = make(registry)
    registry.touch({running.id: 50.0, pending.id: 50.0, "nobody": 50.0})
    registry.touch({running.id: 40.0})
    registry.touch({})
    assert registry.get(running.id).last_request == 50.0
    assert registry.get(pending.id).last_request is None
    # It does not conflict with a change of the board, and a change does not undo it.
    renamed = registry.update(running, title="new")
    assert registry.get(running.id).last_request == 50.0
    run(registry, renamed, BoardState.STOPPED, BoardState.PENDING)
    assert registry.get(running.id).last_request is None


def test_only_what_has_ended_is_deleted(registry):
    board = make(registry)
    with pytest.raises(Conflict, match=f"Stop it first: aboard stop {board.id}"):
        registry.delete(board)
    ended = run(registry, board, BoardState.STOPPED)
    registry.delete(ended)
    for ask in (registry.get, registry.find):
        with pytest.raises(NoSuchName):
            ask(board.id)
    assert registry.history(board.id) == []
    with pytest.raises(NoSuchName):
        registry.delete(ended)


def test_what_a_transition_sets_cannot_be_set_by_hand(registry):
    board = make(registry)
    with pytest.raises(BadValue, match="owner, state cannot be changed"):
        registry.update(board, state=BoardState.RUNNING, owner="eve")
    with pytest.raises(BadValue, match="at least one selector"):
        registry.update(board, selectors=[" "])


def test_a_board_may_begin_as_it_is_made_and_its_history_has_both_states(registry, clock):
    wanted = BoardRecord(owner="ann", selectors=("cifar10",))
    made = registry.create(wanted, begin=Transition(BoardState.RUNNING)).board
    assert (made.state, made.started) == (BoardState.RUNNING, clock())
    assert registry.get(made.id) == made
    states = [change.state for change in registry.history(made.id)]
    assert states == [BoardState.PENDING, BoardState.RUNNING]
    again = registry.create(wanted, begin=Transition(BoardState.RUNNING))
    assert (again.board.id, again.is_new) == (made.id, False)
    assert len(registry.history(made.id)) == 2


# Leases: of several hubs over one database, one acts on each isolated board.


LONG = replace(SETTINGS, lease=600.0)


def board(registry, selector="a") -> str:
    draft = BoardRecord(owner="ann", selectors=(selector,), on="process")
    return registry.create(draft, limits=Limits(isolated=None)).board.id


def end_leases(registry, seconds: float = 1.0) -> None:
    """Let all leases have ended some seconds ago, by the database's clock."""
    with registry._database.write() as connection:
        ended = registry._database.now - seconds
        connection.execute(
            sa.update(sa.table("board", sa.column("lease_ends"))).values(lease_ends=ended)
        )


class TestClaims:
    def test_a_board_has_one_owner_until_the_lease_ends(self, registry):
        one, two = board(registry, "a"), board(registry, "b")
        assert registry.claim([one, two], "first", 60) == {one, two}
        assert registry.claim([one, two], "second", 60) == set()
        end_leases(registry)
        assert registry.claim([one], "second", 60) == {one}
        assert registry.claim([one, two], "first", 60) == {two}

    def test_the_databases_clock_decides(self, registry, clock):
        one = board(registry)
        assert registry.claim([one], "first", 60) == {one}
        clock.pass_by(1e6)  # of this hub's machine
        assert registry.claim([one], "second", 60) == set()

    def test_a_lease_that_was_released_is_free(self, registry):
        one = board(registry)
        registry.claim([one], "first", 60)
        registry.release("second")
        assert registry.claim([one], "second", 60) == set()
        registry.release("first")
        assert registry.claim([one], "second", 60) == {one}

    def test_an_owner_that_is_known_to_be_dead_holds_nothing(self, registry):
        one = board(registry)
        registry.claim([one], "first", 60)
        assert registry.claim([one], "second", 60, lambda owner: owner == "other") == set()
        assert registry.claim([one], "second", 60, lambda owner: owner == "first") == {one}

    def test_a_claim_is_not_a_change(self, registry):
        one = board(registry)
        before = registry.get(one)
        registry.claim([one], "first", 60)
        assert registry.get(one) == before
        assert registry.update(before, title="x").title == "x"
        assert registry.claim([one], "second", 60) == set()

    def test_hubs_that_claim_at_once_share_the_boards(self, registry, database):
        boards = [board(registry, str(number)) for number in range(40)]
        taken: dict[str, set[str]] = {}
        begin = threading.Barrier(4)

        def claim(name: str) -> None:
            with Registry(database) as own:
                begin.wait(180)
                taken[name] = set()
                for _ in range(5):
                    taken[name] |= own.claim(boards, name, 60)

        threads = [threading.Thread(target=claim, args=(str(n),)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(one for some in taken.values() for one in some) == sorted(boards)


class TestLeases:
    def test_what_is_fresh_is_not_claimed_again(self, registry, monkeypatch):
        one, claims = board(registry), []
        real = registry.claim
        monkeypatch.setattr(registry, "claim", lambda *given: claims.append(1) or real(*given))
        leases = Leases(registry, "first", 60)
        for _ in range(5):
            leases.renew([one])
        assert len(claims) == 1
        assert leases.holds(registry.get(one))

    def test_a_hub_that_cannot_renew_stops_acting_before_its_lease_ends(
        self, registry, monkeypatch
    ):
        one = board(registry)
        seconds = iter([100.0, 111.9, 112.1])  # the lease ends at 115
        monkeypatch.setattr(system, "seconds_since_boot", lambda: next(seconds))
        leases = Leases(registry, "first", 15.0)
        leases.renew([one])
        assert leases.holds(registry.get(one))
        assert not leases.holds(registry.get(one))

    def test_a_board_that_another_hub_holds_is_not_held(self, registry):
        one = board(registry)
        Leases(registry, "first", 60).renew([one])
        second = Leases(registry, "second", 60)
        second.renew([one])
        assert not second.holds(registry.get(one))


class TestIdentity:
    def test_a_process_that_lives_has_not_ended(self):
        assert not system.has_ended(system.process_identity())

    def test_a_process_that_has_ended_is_known_on_its_machine_alone(self):
        show = "from aboard import system; print(system.process_identity())"
        done = subprocess.run(
            [sys.executable, "-c", show], capture_output=True, text=True, check=True
        )
        identity = done.stdout.strip()
        assert system.has_ended(identity)
        host, _, namespace, *rest = identity.split("/")
        elsewhere = "/".join((host, "another-boot", namespace, *rest))
        assert not system.has_ended(elsewhere)

    def test_a_process_that_cannot_be_read_is_not_known_to_have_ended(self, monkeypatch):
        identity, read = system.process_identity(), system._read

        def refuse(path):
            if path.endswith("/stat"):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
            return read(path)

        monkeypatch.setattr(system, "_read", refuse)
        assert not system.has_ended(identity)

    def test_another_process_with_the_same_id_is_another(self):
        *rest, pid, _ = system.process_identity().split("/")
        assert pid == str(os.getpid())
        assert system.has_ended("/".join((*rest, pid, "1")))


class TestTwoHubs:
    """Two hubs over one database that reach the same processes."""

    @pytest.fixture
    def first(self, registry, executor, clock) -> Hub:
        return Hub(registry, executor, clock, owner="first", settings=LONG)

    @pytest.fixture
    def second(self, registry, clock, executor) -> Hub:
        same = PretendExecutor(executor.root)
        return Hub(registry, same, clock, owner="second", settings=LONG)

    def test_only_the_owner_starts_polls_and_stops(self, first, second):
        made = first.make()
        first.lifecycle.tick()
        second.lifecycle.tick()
        first.executor.is_ready(made.id)
        assert second.tick(made).state is BoardState.STARTING
        assert first.tick(made).state is BoardState.RUNNING
        second.lifecycle.stop(made.id, reason="stopped at the second")
        assert second.tick(made, 3).state is BoardState.STOPPING
        ended = first.tick(made, 2)
        assert (ended.state, ended.reason) == (BoardState.STOPPED, "stopped at the second")
        assert (second.executor.polls, second.executor.stops, second.executor.specs) == ([], [], [])

    def test_the_other_hub_serves_the_board_too(self, first, second):
        second.executor.knows_addresses = False
        made = first.running()
        assert second.lifecycle.address(made) is None
        second.lifecycle.tick()
        assert second.lifecycle.address(made) == first.lifecycle.address(made)
        assert second.executor.polls == []

    def test_the_other_hub_follows_its_address(self, first, second):
        made = first.running()
        second.lifecycle.tick()
        assert second.lifecycle.address(made).port == first.lifecycle.address(made).port == 6006
        second.executor.found_port = 7007  # its engine has started it again
        second.lifecycle.tick()
        assert second.lifecycle.address(made).port == 7007

    def test_the_other_hub_goes_on_when_the_lease_has_ended(self, first, second):
        made = first.running()
        assert second.tick(made) == made
        assert second.executor.polls == []
        end_leases(first.registry)
        assert second.tick(made) == made
        assert second.executor.polls == [{made.id}]
        assert (second.executor.starts(made.id), second.executor.alive(made.id)) == (1, 1)

    def test_a_start_between_engine_and_note_is_found_by_the_other_hub(
        self, first, second, monkeypatch
    ):
        made = first.make()

        def gone(*_, **__):
            raise DatabaseUnavailable("the database does not answer.")

        with monkeypatch.context() as patch:
            patch.setattr(first.lifecycle, "_store_handle", gone)
            first.lifecycle.tick()
        assert second.tick(made).handle is None
        end_leases(first.registry)
        assert second.tick(made).handle is not None
        assert second.executor.starts(made.id) == 1

    def test_a_hub_that_closes_gives_its_boards_up_at_once(self, first, second):
        made = first.running()
        first.lifecycle.close()
        second.lifecycle.tick()
        assert second.executor.polls == [{made.id}]

    def test_a_hub_does_not_take_what_it_does_not_reach(self, first, second):
        made = first.running()
        second.executor.reached = False
        end_leases(first.registry)
        assert second.tick(made, 2) == made
        assert second.executor.polls == []
        assert not second.lifecycle.reaches(made)

    def test_what_no_hub_has_reached_for_long_is_lost(self, first, second, registry):
        made, stopping = first.running("a"), first.running("b")
        first.lifecycle.stop(stopping.id, reason="stopped by ann")
        second.executor.reached = False
        second.lifecycle._settings = replace(LONG, unreached=600.0)
        assert second.tick(made).state is BoardState.RUNNING
        end_leases(registry, 590)
        assert second.tick(made).state is BoardState.RUNNING
        end_leases(registry, 610)
        lost = second.tick(made, 2)
        assert (lost.state, lost.reason) == (BoardState.LOST, "no hub has reached it for 10m")
        ended = registry.get(stopping.id)
        assert (ended.state, ended.reason) == (BoardState.STOPPED, "stopped by ann")

    def test_instant_boards_need_no_lease(self, first, second):
        made = first.make(on="instant", timeout=10.0)
        second.clock.pass_by(10)
        assert second.tick(made).state is BoardState.STOPPED


def test_all_hubs_of_a_database_have_its_id(database):
    with Registry(database) as one, Registry(database) as two:
        assert one.hub_id == two.hub_id
        assert len(one.hub_id) == 12
