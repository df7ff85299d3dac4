"""One line to whoever watches the training's terminal or log."""

from __future__ import annotations

import contextlib
import sys

_said: set[str] = set()


def say(text: str) -> None:
    """Print a line to stderr; a closed one is no reason to stop a training."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"aboard: {text}\n")
        sys.stderr.flush()


def say_once(text: str) -> None:
    """Print a line that this process has not printed before."""
    if text not in _said:
        _said.add(text)
        say(text)


def say_problem(problem: object) -> None:
    """Print what a writer could not do."""
    say(f"{problem}")


def say_recovered(dropped: int) -> None:
    """Print that a writer writes again, and what that came too late for."""
    lost = f"; {dropped} record{'s were' if dropped != 1 else ' was'} lost meanwhile" * bool(
        dropped
    )
    say(f"event files are written again{lost}.")
