"""What a run records about its process; `redaction` hides what looks secret."""

from __future__ import annotations

import getpass
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aboard.runs.manifest import Tags, plain_tags, plain_values
from aboard.track.console import notify_once
from aboard.track.redaction import HIDDEN, without_secret_arguments, without_secret_values

if TYPE_CHECKING:
    from aboard.runs.manifest import HParams

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def command_line(arguments: list[str] | None = None) -> list[str]:
    return without_secret_arguments(sys.argv if arguments is None else arguments)


def hparams_to_record(hparams: HParams | None) -> dict[str, Any]:
    return _to_record({} if hparams is None else plain_values(hparams), "hyperparameters")


def tags_to_record(tags: Tags | None) -> dict[str, Any]:
    return _to_record(plain_tags(tags), "tags")


def _to_record(plain: dict[str, Any], what: str) -> dict[str, Any]:
    kept = without_secret_values(plain)
    changed = zip(kept.items(), plain.items(), strict=False)
    if hidden := [name for (name, value), given in changed if (name, value) != given]:
        notify_once(f"{what} that look secret are recorded as {HIDDEN}: {', '.join(hidden)}.")
    return kept


def user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container whose user has no entry
        return ""


def host_name() -> str:
    return socket.gethostname()


def git_commit(directory: Path | None = None) -> str:
    """Return the commit checked out around a directory, or "", without running git."""
    try:
        start = (directory or Path.cwd()).resolve()
        for parent in (start, *start.parents):
            if (parent / ".git").exists():
                return _commit_of(parent / ".git")
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
