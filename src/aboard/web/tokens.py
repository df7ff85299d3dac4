"""Tokens, the long-lived secrets of a listener, and the files that hold them.

A token is at least 16 visible characters and no mere repetition, so that it cannot be guessed, and
its file is readable by its owner only. How a token opens a listener is left to `access`.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import stat
from pathlib import Path

from aboard.storage.place import write_private
from aboard.web.errors import TokenError

SHORTEST, LONGEST = 16, 512
FEWEST = 6
"""How many different characters a token has at least."""
SURE_BITS = 128
_TOKEN = re.compile(rf"[!-~]{{{SHORTEST},{LONGEST}}}")
_REPEATED = re.compile(r"(.+?)\1+")
_HOW_TO_MAKE = "Make one with: openssl rand -hex 32"


def new_token() -> str:
    """Make up a token."""
    return secrets.token_urlsafe(32)


def check_token(token: str, where: str = "the token") -> str:
    """Return the token, or refuse one that could be guessed or not be sent.

    Raises:
        TokenError: it is too short, too long, not of visible ASCII characters, or repeats itself.
    """
    if not _TOKEN.fullmatch(token):
        raise TokenError(
            f"{where}: a token is {SHORTEST} to {LONGEST} letters, digits and signs without"
            f" spaces. {_HOW_TO_MAKE}"
        )
    if len(set(token)) < FEWEST or _REPEATED.fullmatch(token):
        raise TokenError(
            f"{where}: this token repeats the same few characters, so it could be guessed."
            f" {_HOW_TO_MAKE}"
        )
    return token


def is_guessable(token: str) -> bool:
    """Say whether a token could be one that somebody thought of.

    It is not if as many characters, of as many kinds, make 128 bits at random: what we make up
    and what `openssl rand -hex 32` prints is far beyond that.
    """
    return len(token) * math.log2(max(len(set(token)), 1)) < SURE_BITS


def read_token_file(path: str | os.PathLike[str]) -> str:
    """Return the token in a file that only its owner can read.

    Raises:
        TokenError: others can read the file, or there is no usable token in it.
    """
    path = Path(path)
    try:
        # Without O_NONBLOCK a named pipe would block us for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        _check_owner_only(path, os.fstat(descriptor))
        text = os.read(descriptor, LONGEST + 3).decode("latin-1").strip()
    finally:
        os.close(descriptor)
    if not text:
        raise TokenError(f"{path}: the token file is empty. Fill it with: openssl rand -hex 32")
    return check_token(text, str(path))


def write_token_file(path: str | os.PathLike[str], token: str) -> None:
    """Put a token into a file that only its owner can read, in one step.

    Raises:
        TokenError: the token must not be used, or the file cannot be written.
    """
    check_token(token)
    path = Path(path)
    try:
        write_private(path, f"{token}\n")
    except OSError as error:
        raise _unusable(path, error) from error


def _check_owner_only(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise TokenError(f"{path}: this is not a regular file. Name a file with a token in it.")
    if status.st_uid not in {os.geteuid(), 0}:
        raise TokenError(f"{path}: this file belongs to another user. Use one of your own.")
    if status.st_mode & 0o077:
        raise TokenError(
            f"{path}: other users can use this token file "
            f"(mode {stat.S_IMODE(status.st_mode):03o}). Close it with: chmod 600 {path}"
        )


def _unusable(path: Path, error: OSError) -> TokenError:
    reason = (error.strerror or str(error)).lower()
    return TokenError(f"{path}: {reason}. Check the path of the token file.")
