"""Authentication: passwords, sessions, tokens and links, over each kind of database."""

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from argon2 import PasswordHasher

from aboard.boards import accounts
from aboard.boards import database as schema
from aboard.boards.accounts import Role, Session
from aboard.boards.model import (
    BadValue,
    BoardRecord,
    BoardState,
    Conflict,
    DatabaseUnavailable,
    NameTaken,
    NoSuchName,
    Transition,
)
from aboard.boards.registry import Registry
from aboard.hub import auth
from aboard.hub.auth import (
    KEY_SECONDS,
    MAX_QUEUED,
    MAX_SHARE,
    Auth,
    AuthError,
    Issued,
    Passwords,
    TooManyAttempts,
    lane_width,
    sources_of,
)
from aboard.hub.permissions import Action, Forbidden, may
from aboard.web.gate import BadKey, Throttle
from tests.hub.hubs import PASSWORD as USERS_PASSWORD
from tests.hub.hubs import served
from tests.waiting import until

QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
PASSWORD = "correct horse"


class Hub:
    """A hub with a clock that tests set."""

    def __init__(self, address: str) -> None:
        self.now = 1_000_000.0
        self.slept: list[float] = []
        self.registry = Registry(address, clock=self.clock)
        self.auth = self.another()

    def clock(self) -> float:
        return self.now

    def another(self, **options) -> Auth:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        throttle = Throttle(clock=self.clock, sleep=sleep)
        options = {"clock": self.clock, "throttle": throttle, "hasher": QUICK, **options}
        return Auth(self.registry, **options)

    def log_in(self, name: str, password: str, auth: Auth | None = None) -> Issued[Session]:
        return asyncio.run((auth or self.auth).enter(name, password))

    def board(self, owner: str) -> BoardRecord:
        return self.registry.create(BoardRecord(owner=owner, selectors=("a",))).board

    def everything_kept(self) -> str:
        """Return all that a thief of the database gets to read."""
        with self.registry._database.read() as connection:
            tables = schema.metadata.tables.values()
            return repr([connection.execute(sa.select(table)).all() for table in tables])


@pytest.fixture
def hub(database) -> Iterator[Hub]:
    opened = Hub(database)
    opened.auth.add_user("ann", Role.ADMIN, PASSWORD)
    opened.auth.add_user("bob", Role.MEMBER, PASSWORD)
    yield opened
    opened.registry.close()


class TestUsers:
    def test_they_are_listed_by_name_without_their_password(self, hub):
        assert [(user.name, user.role) for user in hub.auth.users()] == [
            ("ann", "admin"),
            ("bob", "member"),
        ]
        assert "argon2" not in repr(hub.auth.users())
        assert PASSWORD not in hub.everything_kept()

    @pytest.mark.parametrize("name", ["", "Ann", "a b", "a/b", "-a", "x" * 65, "a\0", "ä", "a\n"])
    def test_a_name_is_of_small_letters(self, hub, name):
        with pytest.raises(BadValue, match="is not a valid user name"):
            hub.auth.add_user(name, Role.MEMBER)
        with pytest.raises(NoSuchName, match="not found"):
            hub.auth.user(name)

    @pytest.mark.parametrize("password", ["", "short", "x" * 1025, "nul\0nul\0"])
    def test_a_password_has_a_length(self, hub, password):
        with pytest.raises(BadValue, match="Use 8 to 1024 characters"):
            hub.auth.add_user("eve", Role.MEMBER, password)
        with pytest.raises(BadValue):
            hub.auth.set_password("bob", password)

    def test_a_name_is_given_once(self, hub):
        with pytest.raises(NameTaken, match="user 'bob' already exists"):
            hub.auth.add_user("bob", Role.VIEWER)

    def test_a_role_counts_from_the_next_request_on(self, hub):
        secret = hub.auth.create_token(hub.auth.user("bob")).secret
        hub.auth.set_role("bob", Role.VIEWER)
        assert hub.auth.token(secret)[1].role is Role.VIEWER

    def test_the_last_administrator_stays(self, hub):
        for change in (
            lambda: hub.auth.remove_user("ann"),
            lambda: hub.auth.set_role("ann", Role.MEMBER),
        ):
            with pytest.raises(Conflict, match="the hub would have no administrator left"):
                change()
        hub.auth.set_role("bob", Role.ADMIN)
        hub.auth.remove_user("ann")
        assert [user.name for user in hub.auth.users()] == ["bob"]

    def test_a_removed_user_loses_access_at_once(self, hub):
        bob, board = hub.auth.user("bob"), hub.board("bob")
        token = hub.auth.create_token(bob).secret
        session = hub.log_in("bob", PASSWORD).secret
        link = hub.auth.share(bob, board).secret
        assert hub.auth.guest(link)
        hub.auth.remove_user("bob")
        assert hub.auth.token(token) is None
        assert hub.auth.session(session) is None
        assert hub.auth.guest(link) is None
        with pytest.raises(AuthError):
            hub.log_in("bob", PASSWORD)
        for change in (
            lambda: hub.auth.remove_user("bob"),
            lambda: hub.auth.set_role("bob", Role.ADMIN),
            lambda: hub.auth.set_password("bob", PASSWORD),
            lambda: hub.auth.create_token(bob),
            lambda: hub.auth.open_session(bob),
        ):
            with pytest.raises(NoSuchName, match="user 'bob' not found"):
                change()
        assert hub.registry.get(board.id).owner == "bob"

    def test_a_user_who_is_added_again_keeps_only_the_boards(self, hub):
        token = hub.auth.create_token(hub.auth.user("bob")).secret
        hub.auth.remove_user("bob")
        hub.auth.add_user("bob", Role.VIEWER, "another password")
        assert hub.auth.token(token) is None
        with pytest.raises(AuthError):
            hub.log_in("bob", PASSWORD)
        assert hub.log_in("bob", "another password").record.account == "bob"


class TestPersonal:
    def test_the_personal_user_needs_no_password(self, hub):
        me = hub.auth.personal("Jane Doe")
        assert (me.name, me.role, me.password) == ("jane-doe", Role.ADMIN, None)
        assert hub.auth.personal("Jane Doe") == me
        assert hub.auth.personal("...").name == "me"
        secret = hub.auth.create_token(me).secret
        assert hub.auth.token(secret)[1] == me

    @pytest.mark.parametrize("password", ["", PASSWORD, "None"])
    def test_login_needs_a_password(self, hub, password):
        hub.auth.personal("me")
        with pytest.raises(AuthError):
            hub.log_in("me", password)


class TestSessions:
    def test_the_right_password_opens_one(self, hub):
        opened = hub.log_in("bob", PASSWORD)
        session, user = hub.auth.session(opened.secret)
        assert (session, user.name) == (opened.record, "bob")
        assert opened.secret not in hub.everything_kept()
        assert hub.auth.session(opened.secret + "x") is None
        assert hub.auth.token(opened.secret) is None
        assert hub.auth.guest(opened.secret) is None

    @pytest.mark.parametrize(
        ("name", "password"),
        [
            ("bob", "wrong password"),
            ("bob", ""),
            ("bob", PASSWORD + "\0"),
            ("bob", "\ud800" * 9),
            ("bob", "x" * 2000),
            ("nobody", PASSWORD),
            ("", PASSWORD),
            ("b\0b", PASSWORD),
        ],
    )
    def test_all_failed_logins_get_the_same_error(self, hub, name, password):
        with pytest.raises(AuthError, match=r"^wrong user name or password\. Try again"):
            hub.log_in(name, password)

    def test_it_ends_after_its_time(self, hub):
        opened = hub.log_in("bob", PASSWORD)
        hub.now += 14 * 86400 - 1
        assert hub.auth.session(opened.secret)
        hub.now += 1
        assert hub.auth.session(opened.secret) is None
        hub.log_in("bob", PASSWORD)
        assert len(hub.registry.accounts.sessions("bob")) == 1

    def test_it_ends_when_one_logs_out(self, hub):
        one, two = hub.log_in("bob", PASSWORD), hub.log_in("bob", PASSWORD)
        hub.auth.log_out(one.secret)
        assert hub.auth.session(one.secret) is None
        assert hub.auth.session(two.secret)

    def test_all_end_when_the_password_changes(self, hub):
        mine = [hub.log_in("bob", PASSWORD).secret for _ in range(3)]
        hers = hub.log_in("ann", PASSWORD).secret
        hub.auth.set_password("bob", "a new password")
        assert [hub.auth.session(secret) for secret in mine] == [None] * 3
        assert hub.auth.session(hers)
        with pytest.raises(AuthError):
            hub.log_in("bob", PASSWORD)
        assert hub.log_in("bob", "a new password")

    def test_an_old_form_of_a_password_is_renewed(self, hub):
        before = hub.auth.user("bob").password
        stronger = hub.another(hasher=PasswordHasher(time_cost=2, memory_cost=16, parallelism=1))
        session = hub.log_in("bob", PASSWORD).secret
        hub.log_in("bob", PASSWORD, stronger)
        assert hub.auth.user("bob").password != before
        assert stronger.session(session)
        hub.log_in("bob", PASSWORD, stronger)


class TestThrottle:
    def test_wrong_passwords_take_longer_and_longer(self, hub):
        async def guess() -> None:
            for _ in range(4):
                with pytest.raises(AuthError):
                    await hub.auth.enter("bob", "wrong password")

        asyncio.run(guess())
        assert hub.slept == pytest.approx([0.1, 0.2, 0.4, 0.8])
        assert asyncio.run(hub.auth.enter("bob", PASSWORD)).record.account == "bob"
        assert len(hub.slept) == 4

    def test_too_many_attempts_at_once_are_refused(self, hub):
        auth = hub.another(throttle=Throttle(max_waiting=0))
        with pytest.raises(TooManyAttempts, match="Wait a minute"):
            asyncio.run(auth.enter("bob", "wrong password"))

    def test_checked_attempts_per_second_are_limited(self, hub):
        throttle = Throttle(clock=hub.clock, first=0.0, turns=2, per_second=1.0, max_wait=0.0)
        auth = hub.another(throttle=throttle)
        for expected in (AuthError, AuthError, TooManyAttempts):
            with pytest.raises(expected):
                asyncio.run(auth.enter("bob", "wrong password"))
        with pytest.raises(TooManyAttempts):
            asyncio.run(auth.enter("bob", PASSWORD))
        hub.now += 1.0
        for _ in range(3):
            assert asyncio.run(auth.enter("bob", PASSWORD)).record.account == "bob"

    def test_each_address_and_each_account_has_its_own_limit(self, hub):
        throttle = Throttle(clock=hub.clock, first=0.0, turns=2, per_second=1.0, max_wait=0.0)
        auth = hub.another(throttle=throttle)

        def enter(name: str, password: str, address: str) -> str:
            return asyncio.run(auth.enter(name, password, address)).record.account

        for name in ("bob", "nobody"):
            with pytest.raises(AuthError):
                enter(name, "wrong password", "2001:db8::1")
        for address in ("2001:db8::1", "2001:db8::2:1"):  # of one network
            with pytest.raises(TooManyAttempts):
                enter("ann", PASSWORD, address)
        assert enter("ann", PASSWORD, "2001:db8:1::1") == "ann"
        assert enter("bob", PASSWORD, "10.0.0.1") == "bob"
        with pytest.raises(AuthError):
            enter("bob", "wrong password", "10.0.0.1")
        with pytest.raises(TooManyAttempts):  # the account has had its turns
            enter("bob", PASSWORD, "10.0.0.2")


class TestTokens:
    def test_one_acts_for_its_user(self, hub):
        issued = hub.auth.create_token(hub.auth.user("bob"), "my laptop")
        assert re.fullmatch(r"aboard_[a-z0-9]{12}_[\w-]{43}", issued.secret)
        assert issued.secret.startswith(issued.record.prefix)
        token, user = hub.auth.token(issued.secret)
        assert (token.name, user.name) == ("my laptop", "bob")
        assert issued.secret.removeprefix(issued.record.prefix) not in hub.everything_kept()
        assert issued.record.digest not in repr(issued.record)
        for wrong in (issued.secret[:-1], issued.record.prefix, issued.record.digest, "", "\ud800"):
            assert hub.auth.token(wrong) is None

    def test_the_last_use_is_recorded_occasionally(self, hub):
        secret = hub.auth.create_token(hub.auth.user("bob")).secret
        for passed in (0, 59, 1):
            hub.now += passed
            assert hub.auth.token(secret)
        (token,) = hub.auth.tokens(hub.auth.user("bob"))
        assert token.last_used == hub.now
        hub.now += 59
        assert hub.auth.token(secret)
        assert hub.auth.tokens(hub.auth.user("bob"))[0].last_used == hub.now - 59

    def test_recorded_uses_are_not_kept_forever(self, hub):
        bob = hub.auth.user("bob")
        for _ in range(5):
            assert hub.auth.token(hub.auth.create_token(bob).secret)
            hub.now += 31
        assert len(hub.auth._recorded_uses) == 2

    def test_it_ends_after_its_time(self, hub):
        secret = hub.auth.create_token(hub.auth.user("bob"), lasts=100).secret
        hub.now += 99
        assert hub.auth.token(secret)
        hub.now += 1
        assert hub.auth.token(secret) is None
        for wrong in (0, -1, float("nan"), float("inf")):
            with pytest.raises(BadValue):
                hub.auth.create_token(hub.auth.user("bob"), lasts=wrong)

    def test_it_is_revoked_by_its_user_or_an_administrator(self, hub):
        ann, bob = hub.auth.user("ann"), hub.auth.user("bob")
        mine, bobs, other = (hub.auth.create_token(user) for user in (ann, bob, bob))
        assert len(hub.auth.tokens(ann)) == 3
        assert [token.id for token in hub.auth.tokens(bob)] == [bobs.record.id, other.record.id]
        with pytest.raises(NoSuchName, match="not found"):
            hub.auth.revoke_token(bob, mine.record.id)
        hub.auth.revoke_token(bob, bobs.record.prefix)
        assert hub.auth.token(bobs.secret) is None
        revoked = hub.auth.tokens(bob)[0].revoked
        hub.now += 5
        hub.auth.revoke_token(ann, bobs.record.id)
        assert hub.auth.tokens(bob)[0].revoked == revoked
        hub.auth.revoke_token(ann, other.record.id)
        assert hub.auth.token(other.secret) is None
        assert hub.auth.token(mine.secret)

    def test_tokens_stay_valid_after_a_new_password(self, hub):
        secret = hub.auth.create_token(hub.auth.user("bob")).secret
        hub.auth.set_password("bob", "a new password")
        assert hub.auth.token(secret)


class TestLinks:
    def test_one_shows_its_board_and_nothing_else(self, hub):
        bob, board = hub.auth.user("bob"), hub.board("bob")
        shared = hub.auth.share(bob, board)
        guest = hub.auth.guest(shared.secret)
        assert may(guest, Action.SEE, board)
        assert not may(guest, Action.STOP, board)
        assert not may(guest, Action.SEE, hub.board("ann"))
        assert shared.secret not in hub.everything_kept()
        assert hub.auth.guest(shared.secret + "x") is None
        assert hub.auth.token(shared.secret) is None
        assert hub.auth.session(shared.secret) is None

    def test_it_ends_after_its_time_or_when_revoked(self, hub):
        bob, board = hub.auth.user("bob"), hub.board("bob")
        short, long = (hub.auth.share(bob, board, lasts=lasts) for lasts in (100, None))
        hub.now += 100
        assert hub.auth.guest(short.secret) is None
        assert hub.auth.guest(long.secret)
        hub.auth.revoke_share(bob, board, long.record.id)
        assert hub.auth.guest(long.secret) is None
        assert [share.id for share in hub.auth.shares(bob, board)] == [
            short.record.id,
            long.record.id,
        ]

    def test_only_users_who_may_share_a_board_manage_its_links(self, hub):
        bob, hers = hub.auth.user("bob"), hub.board("ann")
        link = hub.auth.share(hub.auth.user("ann"), hers)
        for use in (
            lambda board: hub.auth.share(bob, board),
            lambda board: hub.auth.shares(bob, board),
            lambda board: hub.auth.revoke_share(bob, board, link.record.id),
        ):
            with pytest.raises(NoSuchName):
                use(hub.registry.get(hers.id))
        teams = hub.registry.update(hers, visibility="team")
        with pytest.raises(Forbidden):
            hub.auth.share(bob, teams)
        with pytest.raises(NoSuchName, match="not found"):
            hub.auth.revoke_share(bob, hub.board("bob"), link.record.id)

    def test_it_is_deleted_with_its_board(self, hub):
        bob, board = hub.auth.user("bob"), hub.board("bob")
        link = hub.auth.share(bob, board)
        hub.registry.delete(hub.registry.transition(board, Transition(BoardState.STOPPED)))
        assert hub.auth.guest(link.secret) is None
        with pytest.raises(NoSuchName):
            hub.auth.share(bob, board)


class TestWithoutDatabase:
    @pytest.fixture
    def gone(self, hub, monkeypatch):
        def fail(*_, **__):
            raise DatabaseUnavailable("the database does not answer.")

        def leave() -> None:
            for name in ("opened_by", "note_use"):
                monkeypatch.setattr(hub.registry.accounts, name, fail)

        return leave

    def test_a_recently_authenticated_user_stays_authenticated(self, hub, gone):
        bob, board = hub.auth.user("bob"), hub.board("bob")
        token = hub.auth.create_token(bob).secret
        session = hub.log_in("bob", PASSWORD).secret
        link = hub.auth.share(bob, board).secret
        unused = hub.auth.create_token(bob).secret
        asks = [(hub.auth.token, token), (hub.auth.session, session), (hub.auth.guest, link)]
        for ask, secret in asks:
            assert ask(secret)
        gone()
        hub.now += 900
        for ask, secret in asks:
            assert ask(secret)
        assert hub.auth.token(session) is None
        for secret in (unused, "wrong"):
            with pytest.raises(DatabaseUnavailable, match="users cannot be identified"):
                hub.auth.token(secret)
        hub.now += 1
        for ask, secret in asks:
            with pytest.raises(DatabaseUnavailable):
                ask(secret)

    def test_what_was_over_stays_so(self, hub, gone):
        bob = hub.auth.user("bob")
        short, revoked = hub.auth.create_token(bob, lasts=10), hub.auth.create_token(bob)
        for one in (short, revoked):
            assert hub.auth.token(one.secret)
        hub.auth.revoke_token(bob, revoked.record.id)
        gone()
        hub.now += 10
        assert hub.auth.token(short.secret) is None
        with pytest.raises(DatabaseUnavailable):
            hub.auth.token(revoked.secret)


# One-time keys: their number, and their state after an error.


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


# Password hashing is bounded, and does not delay clients with a token.


OUTSIDE_OF_TESTS = auth.STRENGTH


class Stuck:
    """A hasher that does not get on until it may."""

    def __init__(self, hasher=QUICK):
        self.go_on = threading.Event()
        self.at_once = self.most_at_once = 0
        self.priorities = set()
        self.hash = hasher.hash
        self.check_needs_rehash = hasher.check_needs_rehash
        self._verify = hasher.verify

    def verify(self, stored, password):
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        self.priorities.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        assert self.go_on.wait(180)
        self.at_once -= 1
        return self._verify(stored, password)


@pytest.fixture
def stuck():
    hasher = Stuck()
    yield hasher
    hasher.go_on.set()


@pytest.fixture
def lane(stuck):
    lane = Passwords(stuck)
    yield lane
    stuck.go_on.set()
    lane.close()


def test_fewer_hashes_than_cores_are_computed_at_once_and_at_a_low_priority(lane, stuck):
    stored = QUICK.hash(USERS_PASSWORD)
    waiting = [lane.verify(stored, USERS_PASSWORD, [f"from {one}"]) for one in range(8)]
    until(lambda: stuck.at_once)
    stuck.go_on.set()
    assert [one.result(60) for one in waiting] == [True] * 8
    assert stuck.most_at_once <= max(1, min(2, os.cpu_count() - 1))
    assert min(stuck.priorities) > os.getpriority(os.PRIO_PROCESS, 0)


def test_the_queue_and_each_sources_share_of_it_are_bounded(lane, stuck):
    queued = [
        lane.verify(None, USERS_PASSWORD, sources_of("10.0.0.1", f"user{one}"))
        for one in range(MAX_SHARE)
    ]
    with pytest.raises(TooManyAttempts, match="Wait a minute"):
        lane.verify(None, USERS_PASSWORD, sources_of("10.0.0.1", "another"))
    for one in range(MAX_SHARE):
        queued.append(lane.verify(None, USERS_PASSWORD, sources_of(f"10.0.1.{one}", "bob")))
    with pytest.raises(TooManyAttempts):
        lane.hash(USERS_PASSWORD, sources_of("10.0.0.2", "bob"))
    for one in range(MAX_QUEUED - len(queued)):
        queued.append(lane.verify(None, USERS_PASSWORD, [f"as {one}"]))
    with pytest.raises(TooManyAttempts):
        lane.verify(None, USERS_PASSWORD, ["from elsewhere"])
    assert queued[-1].cancel()  # a client that leaves makes room
    queued[-1] = lane.verify(None, USERS_PASSWORD, ["from elsewhere"])
    stuck.go_on.set()
    assert [one.result(60) for one in queued] == [False] * MAX_QUEUED
    assert not lane._shares
    assert lane.verify(
        QUICK.hash(USERS_PASSWORD), USERS_PASSWORD, sources_of("10.0.0.1", "bob")
    ).result(60)


def test_the_first_of_one_source_comes_before_the_second_of_another(lane, stuck):
    ended = []

    def send(address, name):
        future = lane.verify(None, USERS_PASSWORD, sources_of(address, name))
        future.add_done_callback(lambda _: ended.append(name))
        return future

    busy = [send(f"10.0.1.{one}", f"busy{one}") for one in range(lane_width())]
    until(lambda: stuck.at_once == len(busy))
    sent = [send("10.0.0.1", f"guess{one}") for one in range(4)] + [send("10.0.0.2", "bob")]
    stuck.go_on.set()
    for one in busy + sent:
        assert one.result(60) is False
    until(lambda: len(ended) == len(busy) + len(sent))
    assert ended.index("bob") < ended.index("guess3")
    assert lane_width() > 1 or ended == ["busy0", "guess0", "bob", "guess1", "guess2", "guess3"]


def test_closing_releases_all_waiting_requests(lane, stuck):
    first, *others = [lane.verify(None, USERS_PASSWORD, [f"as {one}"]) for one in range(5)]
    until(lambda: stuck.at_once == lane_width())
    lane.close()
    stuck.go_on.set()
    assert first.result(60) is False
    assert others[-1].cancelled()


def test_a_password_is_hashed_even_for_users_without_one(lane, stuck):
    stuck.go_on.set()
    assert lane.verify(None, USERS_PASSWORD, ()).result(60) is False
    assert stuck.most_at_once == 1


def test_the_sources_of_a_login():
    assert sources_of("10.0.0.1", "bob") == ["from 10.0.0.1", "as bob"]
    one, other = sources_of("fe80::1%eth0", "bob"), sources_of("fe80::2", "bob")
    assert one == other == ["from fe80::/64", "as bob"]
    assert sources_of("unknown", "x" * 1000) == ["from unknown", f"as {'x' * 100}"]


def test_only_the_last_sources_are_remembered(monkeypatch):
    monkeypatch.setattr(auth, "_MAX_SOURCES", 3)
    turns = auth.Turns(auth.Throttle())
    for number in range(9):
        with pytest.raises(StopIteration):
            turns.take([f"from {number}"]).send(None)
    assert list(turns._throttles) == ["from 6", "from 7", "from 8"]


def test_password_guessing_does_not_delay_clients_with_tokens(tmp_path, root, stuck):
    """While every password waits for the lane, tokens, cookies and links are checked as always."""
    with served(tmp_path, [root]) as hub, ThreadPoolExecutor(40) as guessers:
        hub.hub.auth._passwords = Passwords(stuck)
        hub.hub.auth.throttle.first = 0.0
        hub.hub.auth.throttle.turns = 1000
        key = hub.hub.auth.mint_key(hub.hub.auth.user("max"))[0]
        with hub.client() as client, hub.client("max") as holder:

            def guess(number):
                form = {"user": f"user{number}", "password": "wrong-password"}
                return client.post("/api/v1/login", json=form)

            guesses = [guessers.submit(guess, number) for number in range(40)]
            refused = until(lambda: [one for one in guesses if one.done()])
            assert {one.result().status_code for one in refused} == {429}
            assert {one.result().headers["retry-after"] for one in refused} == {"5"}
            until(lambda: len([one for one in guesses if one.done()]) == 40 - MAX_SHARE)
            for _ in range(3):
                hub.hub.auth._recent.clear()
                assert holder.get("/api/v1/me").json()["user"] == "max"
            assert holder.get("/healthz").status_code == 200
            assert client.get(f"/?key={key}").status_code == 303
            assert hub.hub.auth._passwords._queued == MAX_SHARE
            stuck.go_on.set()
            statuses = [one.result(60).status_code for one in guesses]
    assert sorted(statuses) == [401] * MAX_SHARE + [429] * (40 - MAX_SHARE)


def test_a_user_who_sets_many_passwords_does_not_delay_others(tmp_path, root):
    stuck = Stuck(SimpleNamespace(hash=None, check_needs_rehash=None, verify=None))
    stuck.hash = lambda password: stuck.go_on.wait(180) and QUICK.hash(password)
    with served(tmp_path, [root]) as hub, ThreadPoolExecutor(50) as busy:
        hub.hub.auth._passwords = Passwords(stuck)
        with hub.client("max") as client, hub.client("mia") as other:
            change = "/api/v1/users/max/password"
            sent = [
                busy.submit(client.put, change, json={"password": USERS_PASSWORD})
                for _ in range(50)
            ]
            until(lambda: hub.hub.auth._passwords._queued)
            assert other.get("/api/v1/me").json()["user"] == "mia"
            assert not any(one.done() for one in sent)
            stuck.go_on.set()
            statuses = {one.result(60).status_code for one in sent}
    assert statuses == {204}


def test_hashes_have_the_recommended_strength(monkeypatch):
    monkeypatch.setattr(auth, "STRENGTH", OUTSIDE_OF_TESTS)
    lane = Passwords()
    stored = lane.hash(USERS_PASSWORD, ["here"]).result()
    assert stored.startswith("$argon2id$v=19$m=65536,t=3,p=1$")
    assert lane.verify(stored, USERS_PASSWORD, ["here"]).result()
    lane.close()
