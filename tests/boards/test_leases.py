"""Leases: of several hubs over one database, one acts on each isolated board."""

import errno
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import sqlalchemy as sa

from aboard import system
from aboard.boards.model import BoardRecord, BoardState, DatabaseUnavailable, Limits
from aboard.boards.registry import Leases, Registry
from tests.boards.keeping import SETTINGS, Hub
from tests.boards.pretending import PretendExecutor

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
