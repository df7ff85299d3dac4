"""Runs and tags chosen by shell patterns, and what is said of one that matches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from aboard.cli.errors import Failure, say

RunOption = Annotated[
    list[str] | None,
    typer.Option("--run", metavar="GLOB", help="Only runs of this name; may be repeated."),
]
TagOption = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="GLOB", help="Only tags of this name; may be repeated."),
]


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Say whether a name matches one of the patterns; without any, all do."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def check_each(option: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    """Refuse patterns, given as `--option`, that match none of the names."""
    distinct = list(dict.fromkeys(names))
    fail_for(
        [
            f"no {option} matches --{option} '{pattern}'{_near(pattern, distinct)}"
            for pattern in patterns
            if not any(fnmatchcase(name, pattern) for name in distinct)
        ]
    )


def fail_for(problems: Sequence[str]) -> None:
    """Raise a failure if there are problems, and say each of them."""
    for problem in problems[:-1]:
        say(problem)
    if problems:
        raise Failure(problems[-1])


def _near(pattern: str, names: Sequence[str]) -> str:
    near = get_close_matches(pattern, names, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    shown = ", ".join(f"'{name}'" for name in names[:5])
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return f"; there are {shown}{more}." if names else "; there are none."
