"""What a run is, apart from its events: its record, its place, its name, and how it is selected."""

from __future__ import annotations

from typing import ClassVar


class RunsError(ValueError):
    """Selectors or templates that cannot be used; `code` is for programs, the rest for people."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()
