"""The database itself: made once, by whoever comes first; refused if newer; gone and back again."""

import multiprocessing
import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from aboard.boards import database as schema
from aboard.boards.database import Database
from aboard.boards.model import (
    BadDatabase,
    BoardRecord,
    BoardState,
    DatabaseUnavailable,
    Transition,
)
from aboard.boards.registry import Registry
from tests.waiting import until

WANTED = BoardRecord(owner="ann", selectors=("a",))
FORK = multiprocessing.get_context("fork")


def test_the_tables_are_those_the_code_knows(database):
    opened = Database(database)
    with opened.read() as connection:
        found = sa.inspect(connection)
        assert set(found.get_table_names()) == set(schema.metadata.tables)
        for name, table in schema.metadata.tables.items():
            columns = {one["name"]: one["nullable"] for one in found.get_columns(name)}
            keys = set(found.get_pk_constraint(name)["constrained_columns"])
            known = {column.name: column.nullable for column in table.columns}
            assert columns.keys() == known.keys()
            assert keys == {column.name for column in table.primary_key}
            assert all(columns[one] == known[one] for one in columns.keys() - keys)
    opened.close()


def test_a_newer_database_is_refused_and_left_alone(database):
    Database(database).close()
    newer = Database(database)
    with newer.write() as connection:
        connection.execute(sa.insert(schema.migration).values(number=99))
    newer.close()
    said = r"was used by a newer version of aboard \(schema version 99, this version supports"
    with pytest.raises(BadDatabase, match=said):
        Registry(database)


def test_a_migration_that_fails_leaves_nothing_behind(database, monkeypatch):
    good = schema.MIGRATIONS
    broken = (*good, ("CREATE TABLE another (id TEXT)", "CREATE NONSENSE"))
    Registry(database).close()
    monkeypatch.setattr(schema, "MIGRATIONS", broken)
    with pytest.raises((sa.exc.SQLAlchemyError, DatabaseUnavailable)):
        Registry(database)
    monkeypatch.setattr(schema, "MIGRATIONS", (*good, ("CREATE TABLE another (id TEXT)",)))
    opened = Database(database)
    with opened.read() as connection:
        assert "another" in sa.inspect(connection).get_table_names()
    opened.close()


def open_and_make(address: str, start, number: int) -> None:
    start.wait()
    with Registry(address, busy_seconds=60) as registry:
        registry.create(BoardRecord(owner=f"user{number}", selectors=("a",)))


def test_hubs_that_start_at_once_make_the_tables_once(database):
    start = FORK.Event()
    hubs = [FORK.Process(target=open_and_make, args=(database, start, n)) for n in range(6)]
    for hub in hubs:
        hub.start()
    start.set()
    for hub in hubs:
        hub.join(120)
    assert [hub.exitcode for hub in hubs] == [0] * 6
    with Registry(database) as registry:
        assert registry.list().total == 6
        with registry._database.read() as connection:
            made = connection.execute(sa.select(schema.migration.c.number)).scalars().all()
    assert made == list(range(1, len(schema.MIGRATIONS) + 1))


def together(count: int, work) -> list:
    """Do something in several threads at once, and return what came of it."""
    barrier, results = threading.Barrier(count), [None] * count

    def one(number: int) -> None:
        barrier.wait()
        try:
            results[number] = work(number)
        except Exception as error:  # noqa: BLE001 - it is the result
            results[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class TestAtOnce:
    """Two registries of the same database, as two hubs have them, and threads of each."""

    @pytest.fixture
    def hubs(self, database):
        with Registry(database, busy_seconds=60) as one, Registry(database, busy_seconds=60) as two:
            yield [one, two]

    def test_one_wins_a_transition(self, hubs):
        states = [BoardState.RUNNING, BoardState.STOPPED, BoardState.STARTING]
        for _ in range(5):
            board = hubs[0].create(BoardRecord(owner="ann", selectors=("a",)), new=True).board
            results = together(
                9, lambda n, board=board: hubs[n % 2].transition(board, Transition(states[n % 3]))
            )
            winners = [one for one in results if not isinstance(one, Exception)]
            assert len(winners) == 1
            assert {getattr(one, "code", "") for one in results} - {""} == {"conflict"}
            assert hubs[0].get(board.id) == winners[0]
            assert len(hubs[0].history(board.id)) == 2

    def test_one_board_for_one_selection(self, hubs):
        results = together(10, lambda n: hubs[n % 2].create(WANTED))
        assert len({one.board.id for one in results}) == 1
        assert sum(one.is_new for one in results) == 1

    def test_one_board_for_one_key(self, hubs):
        results = together(10, lambda n: hubs[n % 2].create(WANTED, new=True, key="once"))
        assert len({one.board.id for one in results}) == 1
        assert hubs[0].list().total == 1

    def test_the_last_place_is_taken_once(self, hubs):
        wanted = BoardRecord(owner="ann", selectors=("a",), on="process")
        results = together(12, lambda n: hubs[n % 2].create(wanted, new=True))
        refused = [one for one in results if isinstance(one, Exception)]
        assert {one.code for one in refused} == {"limit_exceeded"}
        assert len(refused) == 7
        assert len(hubs[0].live()) == 5

    def test_a_name_is_given_once(self, hubs):
        wanted = BoardRecord(owner="ann", selectors=("a",), name="otter")
        results = together(8, lambda n: hubs[n % 2].create(wanted, new=True))
        assert {one.code for one in results if isinstance(one, Exception)} == {"name_taken"}
        assert hubs[0].list().total == 1


class TestSqlite:
    def test_the_file_is_private_and_where_it_was_asked_for(self, tmp_path):
        path = tmp_path / "state" / "with space?#%" / "hub.db"
        for address in (path, str(path)):
            with Registry(address) as registry:
                registry.create(WANTED)
                assert all(
                    stat.S_IMODE(file.stat().st_mode) == 0o600 for file in path.parent.iterdir()
                )
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with Registry(tmp_path / "state" / "x.db") as registry:
            assert registry.name == f"sqlite:///{tmp_path}/state/x.db"

    def test_what_is_no_database_is_refused_and_kept(self, tmp_path):
        path = tmp_path / "hub.db"
        path.write_bytes(b"these are my notes " * 1000)
        with pytest.raises(BadDatabase, match="is damaged or not a database"):
            Registry(path)
        assert path.read_bytes().startswith(b"these are my notes")

    def test_a_file_that_is_away_is_told_and_found_again(self, tmp_path):
        path = tmp_path / "hub" / "hub.db"
        with Registry(path, busy_seconds=1) as registry:
            board = registry.create(WANTED).board
            path.parent.rename(tmp_path / "away")
            for use in (registry.live, registry.check, lambda: registry.create(WANTED)):
                with pytest.raises(DatabaseUnavailable, match="does not answer"):
                    use()
            (tmp_path / "away").rename(path.parent)
            assert registry.live() == [board]
            registry.transition(board, Transition(BoardState.RUNNING))

    def test_a_file_that_others_keep_locked_is_told(self, tmp_path):
        path = tmp_path / "hub.db"
        with Registry(path, busy_seconds=0.05) as registry:
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(DatabaseUnavailable, match="database is locked"):
                registry.create(WANTED)
            assert registry.live() == []
            other.execute("ROLLBACK")
            other.close()
            assert registry.create(WANTED).is_new

    def test_a_directory_that_others_may_write_to_is_not_used(self, tmp_path):
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        with pytest.raises(DatabaseUnavailable, match="can be written to by other users"):
            Registry(tmp_path / "open" / "hub.db")


class TestPostgres:
    @pytest.fixture
    def server(self, postgres_server):
        yield postgres_server
        postgres_server.ensure_running()

    def test_a_server_that_is_away_is_told_and_found_again(self, server):
        address = server.create(f"away{os.getpid()}")
        with Registry(address, busy_seconds=3) as registry:
            board = registry.create(WANTED).board
            server.stop()
            for use in (registry.live, registry.check, lambda: registry.create(WANTED)):
                with pytest.raises(DatabaseUnavailable, match="does not answer: connection"):
                    use()
            server.start()

            def live():
                try:
                    return registry.live()
                except DatabaseUnavailable:
                    return None

            assert until(live) == [board]
            registry.transition(board, Transition(BoardState.RUNNING))

    def test_a_server_that_is_not_there_is_told_without_the_password(self, closed_port):
        address = f"postgresql://me:hush-hush@127.0.0.1:{closed_port}/x"
        with pytest.raises(DatabaseUnavailable) as told:
            Registry(address)
        assert f"postgresql://me:***@127.0.0.1:{closed_port}/x" in str(told.value)
        assert "hush" not in str(told.value)


@pytest.mark.parametrize("address", ["mysql://x/y", "sqlite://", "://", "x://"])
def test_an_address_that_leads_nowhere_is_refused(address):
    with pytest.raises(BadDatabase, match="Use a path, or postgresql://user:password@host/name"):
        Registry(address)


def test_a_path_with_a_home_in_it_is_understood(home):
    Registry("~/state/hub.db").close()
    assert (Path(home) / "state" / "hub.db").exists()
