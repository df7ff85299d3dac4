import hmac
import os
import re
from pathlib import Path

import pytest

from aboard.web.tokens import (
    TokenAccess,
    TokenError,
    check_token,
    is_guessable,
    new_token,
    read_token_file,
    write_token_file,
)

TOKEN = "a-token-that-nobody-guesses"


def test_what_is_written_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_token_file(tmp_path / "token", TOKEN)
    finally:
        os.umask(before)
    assert read_token_file(tmp_path / "token") == TOKEN
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_an_open_file_is_replaced_by_a_closed_one(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    path.chmod(0o644)
    write_token_file(path, token := new_token())
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token_file(path) == token


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(mode)
    with pytest.raises(TokenError) as caught:
        read_token_file(path)
    assert str(caught.value) == (
        f"{path}: other users can use this token file (mode {mode:o}). "
        f"Restrict it with: chmod 600 {path}"
    )


@pytest.mark.parametrize("content", ["", "\n", "  \n\n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(TokenError, match=r"the token file is empty\. Fill it with: openssl"):
        read_token_file(path)


@pytest.mark.parametrize(
    "weak", ["a" * 30, "ab" * 16, "secret-" * 4, "passwordpassword", "aaaaaaaaaaaabcdd"]
)
def test_a_token_that_repeats_itself_is_refused(weak: str) -> None:
    with pytest.raises(TokenError, match=r"^the token repeats .* openssl rand -hex 32"):
        check_token(weak)


@pytest.mark.parametrize(
    ("token", "guessable"),
    [
        ("correct-horse-battery", True),
        ("0123456789abcdef", True),
        ("f4c1" + "0123456789abcdef" * 3, False),
        pytest.param(new_token(), False, id="new"),
    ],
)
def test_what_somebody_may_have_thought_of_is_known(token: str, guessable: bool) -> None:
    assert is_guessable(token) is guessable


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("brief", "is too short: it has 5 of at least 16 characters"),
        ("two words in one token", "has a character that is not allowed"),
        ("x" * 600, "is too long: it may have at most 512 characters"),
        ("é" * 20, "has a character that is not allowed"),
    ],
)
def test_a_file_with_something_else_is_refused(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(TokenError, match=f"^{path}: the token {why}") as caught:
        read_token_file(path)
    assert content not in str(caught.value)


def test_space_around_the_token_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"  {TOKEN}\r\n")
    path.chmod(0o600)
    assert read_token_file(path) == TOKEN


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none" / "token"
    wanted = re.escape(f"{path}: no such file or directory. Check the path of the token file.")
    with pytest.raises(TokenError, match=wanted):
        read_token_file(path)
    with pytest.raises(TokenError, match=wanted):
        write_token_file(path, TOKEN)


def test_a_directory_or_a_pipe_is_no_token_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "directory").mkdir(mode=0o700)
    for name in ("pipe", "directory"):
        with pytest.raises(TokenError, match="not a regular file"):
            read_token_file(tmp_path / name)


def test_a_bad_token_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(TokenError):
        write_token_file(tmp_path / "token", "short")
    assert not any(tmp_path.iterdir())


# The access of `aboard view`.


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
