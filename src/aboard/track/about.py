"""What a run's record says of its process: command, host, user and commit, without secrets."""

from __future__ import annotations

import getpass
import re
import socket
import sys
from pathlib import Path

_SECRET_OPTION = re.compile(
    r"(?i)secret|passw|credential|(amz|goog|access)[-_.]?signature|connection[-_.]?string"
    r"|(api|access|account|wandb|private|signing|encryption)[-_.]?key"
    r"|(^|[-_.])(auth|authorization|bearer|sas|pat|(auth|api|access|hf|wandb|bearer|private|sas|"
    r"security|session|refresh)?[-_.]?token)$"
)
_OF_A_VOCABULARY = re.compile(
    r"(?i)(^|[-_.])(pad|eos|bos|unk|sep|cls|mask|class|image|audio|video|start|end|stop|special)"
    r"[-_]?token$"
)
_SECRET_VALUE = re.compile(
    r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"  # user and password in a URL
    r"|(?i:(?<=[?&;]sig=)|(?<=-signature=)|(?<=-credential=)|(?<=-security-token=)"
    r"|(?<=accountkey=)|(?<=sharedaccesskey=)|(?<=sharedaccesssignature=))[^&;\s'\"]+"
    r"|\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA)[\w-]{16,}"
)
_BEARER = re.compile(r"(?i)(.*[^\w-])?bearer:?")
"""What stands before a token, as in the header of a request."""
HIDDEN = "***"
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def command_line(arguments: list[str] | None = None) -> list[str]:
    """Return the command, with the values of options that look secret hidden."""
    return _without_secrets(sys.argv if arguments is None else arguments)


def without_secrets(text: str) -> str:
    """Return a value with what looks like a token, a password or a signature hidden."""
    return _without_secrets([text])[0]


def _without_secrets(arguments: list[str]) -> list[str]:
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        if any(map(str.isspace, argument)):  # a script for a shell
            words = _without_secrets(argument.split())
            changed = words != argument.split()
            shown.append(" ".join(words) if changed else argument)
            hide_next = False
            continue
        name, equals, _ = argument.partition("=")
        secret = looks_secret(name)
        if hide_next and not argument.startswith("-"):
            shown.append(HIDDEN)
        elif secret and equals:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(_SECRET_VALUE.sub(HIDDEN, argument))
        is_option = argument.startswith("-")
        hide_next = (secret and not equals and is_option) or bool(_BEARER.fullmatch(argument))
    return shown


def looks_secret(option: str) -> bool:
    """Say whether an option's name tells of a token, a password or a key."""
    return bool(_SECRET_OPTION.search(option) and not _OF_A_VOCABULARY.search(option))


def user_name() -> str:
    """Return who runs this, or nothing where the system does not know."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container whose user has no entry
        return ""


def host_name() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def git_commit(directory: Path | None = None) -> str:
    """Return the commit that is checked out around a directory, read without running git."""
    try:
        start = (directory or Path.cwd()).resolve()
        for above in (start, *start.parents):
            if (above / ".git").exists():
                return _commit_of(above / ".git")
    except (OSError, UnicodeDecodeError):
        pass
    return ""


def _commit_of(git: Path) -> str:
    if git.is_file():  # a work tree, or a submodule
        git = git.parent / git.read_text().removeprefix("gitdir:").strip()
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head if _COMMIT.fullmatch(head) else ""
    reference = head.removeprefix("ref:").strip()
    common = git / "commondir"
    shared = git / common.read_text().strip() if common.exists() else git
    for place in (git, shared):
        if (place / reference).is_file():
            return (place / reference).read_text().strip()
    packed = shared / "packed-refs"
    for line in packed.read_text().splitlines() if packed.is_file() else []:
        commit, _, name = line.partition(" ")
        if name == reference:
            return commit
    return ""
