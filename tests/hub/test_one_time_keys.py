"""One-time keys: their number, and their state after an error."""

import pytest
import sqlalchemy as sa

from aboard.boards import accounts
from aboard.boards import database as schema
from aboard.boards.accounts import Role, Session
from aboard.boards.registry import Registry
from aboard.hub.auth import KEY_SECONDS, Auth
from aboard.web.gate import BadKey
from tests.hub.hubs import served

NOW = 1_000_000.0


@pytest.fixture
def registry(database):
    with Registry(database, clock=lambda: NOW) as opened:
        yield opened


def count(registry, table):
    with registry._database.read() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(table))


def test_the_keys_of_a_user_are_limited(registry, monkeypatch):
    monkeypatch.setattr(accounts, "_MOST_KEYS", 3)
    ticks = iter(range(100))
    keys = Auth(registry, clock=lambda: NOW + next(ticks) / 10)
    ann = registry.accounts.add_user("ann", Role.MEMBER)
    bob = registry.accounts.add_user("bob", Role.MEMBER)
    of_bob, _ = keys.mint_key(bob)
    first, second = (keys.mint_key(ann)[0] for _ in range(2))
    assert keys.redeem(second) is None
    third, fourth = (keys.mint_key(ann)[0] for _ in range(2))
    assert keys.redeem(second) is BadKey.UNKNOWN  # what was used goes first
    fifth, expires = keys.mint_key(ann)
    assert expires > NOW + KEY_SECONDS
    assert count(registry, schema.metadata.tables["one_time_key"]) == 4
    assert keys.redeem(first) is BadKey.UNKNOWN
    for kept in (third, fourth, fifth, of_bob):
        assert keys.redeem(kept) is None


def test_a_key_starts_one_session_only(registry):
    keys = Auth(registry, clock=lambda: NOW)
    key, _ = keys.mint_key(registry.accounts.add_user("ann", Role.MEMBER))
    for number, told in enumerate((None, BadKey.USED)):
        session = Session(f"id{number}", "", f"digest{number}", NOW, NOW + 60)
        assert keys.redeem(key, session) is told
    (opened,) = registry.accounts.sessions("ann")
    assert opened.id == "id0"


def test_a_lasting_key_starts_sessions_of_its_user_repeatedly(registry):
    keys = Auth(registry, clock=lambda: NOW)
    key = keys.lasting_key(registry.accounts.add_user("ann", Role.MEMBER))
    for number in range(3):
        session = Session(f"id{number}", "", f"digest{number}", NOW, NOW + 60)
        assert keys.redeem(key, session) is None
    assert {one.id for one in registry.accounts.sessions("ann")} == {"id0", "id1", "id2"}
    assert keys.redeem(f"{key}x") is BadKey.UNKNOWN
    assert Auth(registry, clock=lambda: NOW).redeem(key) is BadKey.UNKNOWN


def test_a_link_still_opens_after_a_database_error(tmp_path, root):
    with served(tmp_path, [root]) as hub, hub.client() as browser:
        key, _ = hub.hub.auth.mint_key(hub.hub.auth.user("max"))
        engine = hub.hub.registry._database._engine

        def fail(connection, cursor, statement, *_):
            if statement.startswith("INSERT INTO visit"):
                raise sa.exc.OperationalError(statement, {}, OSError("the disk is gone"))

        sa.event.listen(engine, "before_cursor_execute", fail)
        assert browser.get(f"/?key={key}").status_code == 503
        sa.event.remove(engine, "before_cursor_execute", fail)
        assert browser.get(f"/?key={key}").status_code == 303
        assert browser.get("/api/v1/me").json()["user"] == "max"
