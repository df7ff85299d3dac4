import os
import re
from pathlib import Path

import pytest

from aboard.web.tokens import (
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
