"""Who somebody is: passwords, sessions, tokens and links, over each kind of database."""

import asyncio
import re
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from argon2 import PasswordHasher

from aboard.boards import schema
from aboard.boards.accounts import Role
from aboard.boards.errors import BadValue, Conflict, DatabaseUnavailable, NameTaken, NotFound
from aboard.boards.model import BoardRecord, State, Transition
from aboard.boards.registry import Registry
from aboard.boards.wanted import Wanted
from aboard.hub.auth import (
    Auth,
    AuthError,
    Lifetimes,
    TooManyAttempts,
)
from aboard.hub.permissions import Action, Forbidden, may
from aboard.web.brake import Brake

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

        brake = Brake(clock=self.clock, sleep=sleep)
        options = {"clock": self.clock, "brake": brake, "hasher": QUICK, **options}
        return Auth(self.registry, **options)

    def board(self, owner: str) -> BoardRecord:
        return self.registry.create(Wanted(owner=owner, selectors=("a",))).board

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
        with pytest.raises(BadValue, match="cannot be a user's name"):
            hub.auth.add_user(name, Role.MEMBER)
        with pytest.raises(NotFound, match="there is no user"):
            hub.auth.user(name)

    @pytest.mark.parametrize("password", ["", "short", "x" * 1025, "nul\0nul\0"])
    def test_a_password_has_a_length(self, hub, password):
        with pytest.raises(BadValue, match="Use 8 to 1024 characters"):
            hub.auth.add_user("eve", Role.MEMBER, password)
        with pytest.raises(BadValue):
            hub.auth.set_password("bob", password)

    def test_a_name_is_given_once(self, hub):
        with pytest.raises(NameTaken, match="there is a user 'bob'"):
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
            with pytest.raises(Conflict, match="nobody would be left who may manage this hub"):
                change()
        hub.auth.set_role("bob", Role.ADMIN)
        hub.auth.remove_user("ann")
        assert [user.name for user in hub.auth.users()] == ["bob"]

    def test_whoever_is_removed_is_out_at_once(self, hub):
        bob, board = hub.auth.user("bob"), hub.board("bob")
        token = hub.auth.create_token(bob).secret
        session = hub.auth.log_in("bob", PASSWORD).secret
        link = hub.auth.share(bob, board).secret
        assert hub.auth.guest(link)
        hub.auth.remove_user("bob")
        assert hub.auth.token(token) is None
        assert hub.auth.session(session) is None
        assert hub.auth.guest(link) is None
        with pytest.raises(AuthError):
            hub.auth.log_in("bob", PASSWORD)
        for change in (
            lambda: hub.auth.remove_user("bob"),
            lambda: hub.auth.set_role("bob", Role.ADMIN),
            lambda: hub.auth.set_password("bob", PASSWORD),
            lambda: hub.auth.create_token(bob),
            lambda: hub.auth.open_session(bob),
        ):
            with pytest.raises(NotFound, match="there is no user 'bob'"):
                change()
        assert hub.registry.get(board.id).owner == "bob"

    def test_whoever_comes_back_starts_with_nothing_but_his_boards(self, hub):
        token = hub.auth.create_token(hub.auth.user("bob")).secret
        hub.auth.remove_user("bob")
        hub.auth.add_user("bob", Role.VIEWER, "another password")
        assert hub.auth.token(token) is None
        with pytest.raises(AuthError):
            hub.auth.log_in("bob", PASSWORD)
        assert hub.auth.log_in("bob", "another password").session.account == "bob"


class TestPersonal:
    def test_there_is_one_user_who_needs_no_password(self, hub):
        me = hub.auth.personal("Jane Doe")
        assert (me.name, me.role, me.password) == ("jane-doe", Role.ADMIN, None)
        assert hub.auth.personal("Jane Doe") == me
        assert hub.auth.personal("...").name == "me"
        secret = hub.auth.create_token(me).secret
        assert hub.auth.token(secret)[1] == me

    @pytest.mark.parametrize("password", ["", PASSWORD, "None"])
    def test_nobody_logs_in_without_a_password(self, hub, password):
        hub.auth.personal("me")
        with pytest.raises(AuthError):
            hub.auth.log_in("me", password)


class TestSessions:
    def test_the_right_password_opens_one(self, hub):
        opened = hub.auth.log_in("bob", PASSWORD)
        session, user = hub.auth.session(opened.secret)
        assert (session, user.name) == (opened.session, "bob")
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
    def test_anything_else_is_told_the_same(self, hub, name, password):
        with pytest.raises(AuthError, match=r"^the name or the password is wrong\. Try again"):
            hub.auth.log_in(name, password)

    def test_it_ends_after_its_time(self, hub):
        opened = hub.auth.log_in("bob", PASSWORD)
        hub.now += 14 * 86400 - 1
        assert hub.auth.session(opened.secret)
        hub.now += 1
        assert hub.auth.session(opened.secret) is None
        hub.auth.log_in("bob", PASSWORD)
        assert len(hub.registry.accounts.sessions("bob")) == 1

    def test_it_ends_when_one_logs_out(self, hub):
        one, two = hub.auth.log_in("bob", PASSWORD), hub.auth.log_in("bob", PASSWORD)
        hub.auth.log_out(one.secret)
        assert hub.auth.session(one.secret) is None
        assert hub.auth.session(two.secret)

    def test_all_end_when_the_password_changes(self, hub):
        mine = [hub.auth.log_in("bob", PASSWORD).secret for _ in range(3)]
        hers = hub.auth.log_in("ann", PASSWORD).secret
        hub.auth.set_password("bob", "a new password")
        assert [hub.auth.session(secret) for secret in mine] == [None] * 3
        assert hub.auth.session(hers)
        with pytest.raises(AuthError):
            hub.auth.log_in("bob", PASSWORD)
        assert hub.auth.log_in("bob", "a new password")

    def test_an_old_form_of_a_password_is_renewed(self, hub):
        before = hub.auth.user("bob").password
        stronger = hub.another(hasher=PasswordHasher(time_cost=2, memory_cost=16, parallelism=1))
        session = hub.auth.log_in("bob", PASSWORD).secret
        stronger.log_in("bob", PASSWORD)
        assert hub.auth.user("bob").password != before
        assert stronger.session(session)
        stronger.log_in("bob", PASSWORD)


class TestBrake:
    def test_wrong_passwords_take_longer_and_longer(self, hub):
        async def guess() -> None:
            for _ in range(4):
                with pytest.raises(AuthError):
                    await hub.auth.enter("bob", "wrong password")

        asyncio.run(guess())
        assert hub.slept == pytest.approx([0.1, 0.2, 0.4, 0.8])
        assert asyncio.run(hub.auth.enter("bob", PASSWORD)).session.account == "bob"
        assert len(hub.slept) == 4

    def test_too_many_at_once_are_turned_away(self, hub):
        auth = hub.another(brake=Brake(waiting=0))
        with pytest.raises(TooManyAttempts, match="Wait a minute"):
            asyncio.run(auth.enter("bob", "wrong password"))

    def test_only_so_many_are_looked_at_in_a_second(self, hub):
        brake = Brake(clock=hub.clock, first=0.0, turns=2, per_second=1.0, patience=0.0)
        auth = hub.another(brake=brake)
        for expected in (AuthError, AuthError, TooManyAttempts):
            with pytest.raises(AuthError) as caught:
                asyncio.run(auth.enter("bob", "wrong password"))
            assert type(caught.value) is expected
        with pytest.raises(TooManyAttempts):
            asyncio.run(auth.enter("bob", PASSWORD))
        hub.now += 1.0
        for _ in range(3):
            assert asyncio.run(auth.enter("bob", PASSWORD)).session.account == "bob"


class TestTokens:
    def test_one_acts_for_its_user(self, hub):
        issued = hub.auth.create_token(hub.auth.user("bob"), "my laptop")
        assert re.fullmatch(r"aboard_[a-z0-9]{12}_[\w-]{43}", issued.secret)
        assert issued.secret.startswith(issued.token.prefix)
        token, user = hub.auth.token(issued.secret)
        assert (token.name, user.name) == ("my laptop", "bob")
        assert issued.secret.removeprefix(issued.token.prefix) not in hub.everything_kept()
        assert issued.token.digest not in repr(issued.token)
        for wrong in (issued.secret[:-1], issued.token.prefix, issued.token.digest, "", "\ud800"):
            assert hub.auth.token(wrong) is None

    def test_its_last_use_is_noted_now_and_then(self, hub):
        secret = hub.auth.create_token(hub.auth.user("bob")).secret
        for passed in (0, 59, 1):
            hub.now += passed
            assert hub.auth.token(secret)
        (token,) = hub.auth.tokens(hub.auth.user("bob"))
        assert token.last_used == hub.now
        hub.now += 59
        assert hub.auth.token(secret)
        assert hub.auth.tokens(hub.auth.user("bob"))[0].last_used == hub.now - 59

    def test_what_was_noted_is_not_kept_for_ever(self, hub):
        bob = hub.auth.user("bob")
        for _ in range(5):
            assert hub.auth.token(hub.auth.create_token(bob).secret)
            hub.now += 31
        assert len(hub.auth._noted) == 2

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
        assert [token.id for token in hub.auth.tokens(bob)] == [his.token.id, other.token.id]
        with pytest.raises(NotFound, match="there is no token"):
            hub.auth.revoke_token(bob, mine.token.id)
        hub.auth.revoke_token(bob, his.token.prefix)
        assert hub.auth.token(his.secret) is None
        revoked = hub.auth.tokens(bob)[0].revoked
        hub.now += 5
        hub.auth.revoke_token(ann, his.token.id)
        assert hub.auth.tokens(bob)[0].revoked == revoked
        hub.auth.revoke_token(ann, other.token.id)
        assert hub.auth.token(other.secret) is None
        assert hub.auth.token(mine.secret)

    def test_a_new_password_keeps_programs_going(self, hub):
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
        hub.auth.revoke_share(bob, board, long.share.id)
        assert hub.auth.guest(long.secret) is None
        assert [share.id for share in hub.auth.shares(bob, board)] == [
            short.share.id,
            long.share.id,
        ]

    def test_it_lasts_no_longer_than_links_may(self, hub):
        auth = hub.another(lifetimes=Lifetimes(longest_share=1000))
        bob, board = hub.auth.user("bob"), hub.board("bob")
        assert auth.share(bob, board).share.expires == hub.now + 1000
        with pytest.raises(BadValue, match="a link lasts 1000 seconds at most"):
            auth.share(bob, board, lasts=1001)

    def test_only_whoever_may_share_a_board_has_to_do_with_its_links(self, hub):
        bob, hers = hub.auth.user("bob"), hub.board("ann")
        link = hub.auth.share(hub.auth.user("ann"), hers)
        for use in (
            lambda board: hub.auth.share(bob, board),
            lambda board: hub.auth.shares(bob, board),
            lambda board: hub.auth.revoke_share(bob, board, link.share.id),
        ):
            with pytest.raises(NotFound):
                use(hub.registry.get(hers.id))
        teams = hub.registry.update(hers, visibility="team")
        with pytest.raises(Forbidden):
            hub.auth.share(bob, teams)
        with pytest.raises(NotFound, match="there is no link"):
            hub.auth.revoke_share(bob, hub.board("bob"), link.share.id)

    def test_it_goes_with_its_board(self, hub):
        bob, board = hub.auth.user("bob"), hub.board("bob")
        link = hub.auth.share(bob, board)
        hub.registry.delete(hub.registry.transition(board, Transition(State.STOPPED)))
        assert hub.auth.guest(link.secret) is None
        with pytest.raises(NotFound):
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

    def test_whoever_was_known_a_moment_ago_still_is(self, hub, gone):
        bob, board = hub.auth.user("bob"), hub.board("bob")
        token = hub.auth.create_token(bob).secret
        session = hub.auth.log_in("bob", PASSWORD).secret
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
            with pytest.raises(DatabaseUnavailable, match="who you are is kept there"):
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
        hub.auth.revoke_token(bob, revoked.token.id)
        gone()
        hub.now += 10
        assert hub.auth.token(short.secret) is None
        with pytest.raises(DatabaseUnavailable):
            hub.auth.token(revoked.secret)
