import hmac
from concurrent.futures import ThreadPoolExecutor

import pytest

from aboard.web.access import Access, Redeemed
from aboard.web.errors import TokenError

TOKEN = "a-token-that-nobody-guesses"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_made_up_when_none_is_given() -> None:
    first, second = Access(), Access()
    assert len(first.token) >= 43
    assert first.token != second.token
    assert first.is_token(first.token)
    assert not first.is_token(second.token)


@pytest.mark.parametrize("wrong", ["", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\ud800", "é"])
def test_only_the_token_is_the_token(wrong: str) -> None:
    access = Access(TOKEN)
    assert access.is_token(TOKEN)
    assert not access.is_token(wrong)
    assert not access.is_session(wrong)
    assert access.redeem(wrong) is Redeemed.UNKNOWN


@pytest.mark.parametrize(
    "weak", ["", "short", "fifteen-letters", "with some spaces in it", "ä" * 20]
)
def test_a_token_that_could_be_guessed_or_not_be_sent_is_refused(weak: str) -> None:
    with pytest.raises(TokenError, match=r"a token is 16 to 512 letters.*openssl rand -hex 32"):
        Access(weak)


def test_a_key_opens_once() -> None:
    access = Access()
    key, other = access.mint_key(), access.mint_key()
    assert access.redeem(key) is Redeemed.OPENED
    assert access.redeem(key) is Redeemed.USED
    assert access.redeem(other) is Redeemed.OPENED


def test_a_key_opens_once_also_when_many_try_at_the_same_time() -> None:
    access = Access()
    key = access.mint_key()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(access.redeem, [key] * 64))
    assert answers.count(Redeemed.OPENED) == 1


def test_a_key_expires() -> None:
    clock = Clock()
    access = Access(clock=clock, key_lifetime=60)
    early, late = access.mint_key(), access.mint_key()
    clock.now += 59
    assert access.redeem(early) is Redeemed.OPENED
    clock.now += 1
    assert access.redeem(late) is Redeemed.EXPIRED


def test_a_session_ends() -> None:
    clock = Clock()
    access = Access(clock=clock, session_lifetime=60)
    session = access.open_session()
    clock.now += 59
    assert access.is_session(session)
    clock.now += 1
    assert not access.is_session(session)


def test_the_kinds_of_secrets_do_not_stand_for_each_other() -> None:
    access = Access()
    key, session = access.mint_key(), access.open_session()
    assert not access.is_token(key)
    assert not access.is_token(session)
    assert not access.is_session(key)
    assert not access.is_session(access.token)
    assert access.redeem(session) is Redeemed.UNKNOWN


def test_the_oldest_keys_and_sessions_are_forgotten_first() -> None:
    access = Access(most=3)
    keys = [access.mint_key() for _ in range(4)]
    sessions = [access.open_session() for _ in range(4)]
    assert [access.redeem(key) is Redeemed.OPENED for key in keys] == [False, True, True, True]
    assert [access.is_session(session) for session in sessions] == [False, True, True, True]


def test_sessions_that_ended_make_room_first() -> None:
    clock = Clock()
    access = Access(clock=clock, session_lifetime=60, most=2)
    access.open_session()
    clock.now += 30
    kept = access.open_session()
    clock.now += 40
    access.open_session()
    assert access.is_session(kept)


def test_keys_and_sessions_are_not_kept_in_the_clear() -> None:
    access = Access(TOKEN)
    key, session = access.mint_key(), access.open_session()
    remembered = repr(vars(access))
    assert key not in remembered
    assert session not in remembered
    assert TOKEN not in repr(access)


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(TOKEN)
    key, session = access.mint_key(), access.open_session()
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def watch(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", watch)
    assert access.is_token(TOKEN)
    assert access.is_session(session)
    assert access.redeem(key) is Redeemed.OPENED
    assert not access.is_token("x")
    assert compared == [(32, 32)] * 4
