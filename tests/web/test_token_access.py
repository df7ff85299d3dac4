import hmac

import pytest

from aboard.web.tokens import TokenAccess, TokenError

TOKEN = "a-token-that-nobody-guesses"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_made_up_when_none_is_given() -> None:
    first, second = TokenAccess(), TokenAccess()
    assert len(first.token) >= 43
    assert first.token != second.token
    assert first.is_token(first.token)
    assert not first.is_token(second.token)


@pytest.mark.parametrize("wrong", ["", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\ud800", "é"])
def test_only_the_token_is_the_token(wrong: str) -> None:
    access = TokenAccess(TOKEN)
    assert access.is_token(TOKEN)
    assert not access.is_token(wrong)
    assert not access.is_session(wrong)
    assert not access.is_key(wrong)


@pytest.mark.parametrize(
    ("weak", "why"),
    [
        ("", "too short: it has 0 of"),
        ("short", "too short"),
        ("fifteen-letters", "too short: it has 15 of at least 16 characters"),
        ("with some spaces in it", "not allowed"),
        ("ä" * 20, "not allowed"),
    ],
)
def test_a_token_that_could_be_guessed_or_not_be_sent_is_refused(weak: str, why: str) -> None:
    with pytest.raises(TokenError, match=rf"^the token .*{why}.*openssl rand -hex 32"):
        TokenAccess(weak)


def test_a_session_ends() -> None:
    clock = Clock()
    access = TokenAccess(clock=clock, session_seconds=60)
    session = access.open_session().secret
    clock.now += 59
    assert access.is_session(session)
    clock.now += 1
    assert not access.is_session(session)


def test_the_kinds_of_secrets_do_not_stand_for_each_other() -> None:
    access = TokenAccess()
    key, session = access.key, access.open_session().secret
    assert not access.is_token(key)
    assert not access.is_token(session)
    assert not access.is_session(key)
    assert not access.is_session(access.token)
    assert not access.is_key(session)
    assert not access.is_key(access.token)


def test_the_least_recently_used_sessions_are_forgotten_first() -> None:
    access = TokenAccess(max_sessions=3)
    sessions = [access.open_session().secret for _ in range(3)]
    assert access.is_session(sessions[0])
    sessions.append(access.open_session().secret)
    assert [access.is_session(session) for session in sessions] == [True, False, True, True]


def test_sessions_that_ended_make_room_first() -> None:
    clock = Clock()
    access = TokenAccess(clock=clock, session_seconds=60, max_sessions=2)
    access.open_session()
    clock.now += 30
    kept = access.open_session().secret
    clock.now += 40
    access.open_session()
    assert access.is_session(kept)


def test_sessions_are_not_kept_in_the_clear() -> None:
    access = TokenAccess(TOKEN)
    session = access.open_session().secret
    assert session not in repr(vars(access))
    assert TOKEN not in repr(access)
    assert access.key not in repr(access)


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    access = TokenAccess(TOKEN)
    key, session = access.key, access.open_session().secret
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def watch(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", watch)
    assert access.is_token(TOKEN)
    assert access.is_session(session)
    assert access.is_key(key)
    assert not access.is_token("x")
    assert compared == [(32, 32)] * 4
