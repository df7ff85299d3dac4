"""Runs apart from their events: records, layout below a root, names, selectors and questions."""

from __future__ import annotations

from typing import ClassVar


class HintedError(Exception):
    """What is wrong and what to do; `code` is for programs, the rest for people."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class RunsError(HintedError, ValueError):
    """Invalid selectors, questions or templates."""
