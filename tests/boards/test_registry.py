"""What the hub remembers of boards, the same over SQLite and PostgreSQL."""

import pytest

from aboard.boards.model import (
    Ambiguous,
    BadValue,
    BoardLimitExceeded,
    BoardRecord,
    BoardState,
    Conflict,
    Engine,
    IdempotencyMismatch,
    IllegalTransition,
    Limits,
    NameTaken,
    NoSuchName,
    Transition,
    Visibility,
)
from aboard.boards.registry import Registry


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
    with pytest.raises(NameTaken, match="ann has a live board named 'otter'"):
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
        ({"selectors": tuple(map(str, range(10_001)))}, "are more than 10000"),
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
        with pytest.raises(Ambiguous, match="'rarely-cute' matches several boards") as several:
            registry.find("rarely-cute")
        assert {board.name for board in several.value.matches} == {
            "rarely-cute-otter",
            "rarely-cute-owl",
        }

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
    # It does not get in the way of whoever changes the board, and is not undone by him.
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
