"""Authentication: passwords, sessions, tokens and links, over each kind of database."""

import asyncio
import re
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from argon2 import PasswordHasher

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
from aboard.hub.auth import Auth, AuthError, Issued, TooManyAttempts
from aboard.hub.permissions import Action, Forbidden, may
from aboard.web.gate import Throttle

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
        throttle = Throttle(clock=hub.clock, first=0.0, turns=2, per_second=1.0, patience=0.0)
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
        throttle = Throttle(clock=hub.clock, first=0.0, turns=2, per_second=1.0, patience=0.0)
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
        mine, his, other = (hub.auth.create_token(user) for user in (ann, bob, bob))
        assert len(hub.auth.tokens(ann)) == 3
        assert [token.id for token in hub.auth.tokens(bob)] == [his.record.id, other.record.id]
        with pytest.raises(NoSuchName, match="not found"):
            hub.auth.revoke_token(bob, mine.record.id)
        hub.auth.revoke_token(bob, his.record.prefix)
        assert hub.auth.token(his.secret) is None
        revoked = hub.auth.tokens(bob)[0].revoked
        hub.now += 5
        hub.auth.revoke_token(ann, his.record.id)
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
