"""Every training run, on one board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from aboard.events.writer import EventWriter
    from aboard.index.logs import Logs
    from aboard.track.run import Run, current_run
    from aboard.track.start import init
    from aboard.track.summary import SummaryWriter

__version__ = "0.1.0"
__all__ = ["EventWriter", "Logs", "Run", "SummaryWriter", "current_run", "init", "open"]

_LAZY = {
    "EventWriter": "aboard.events.writer",
    "Logs": "aboard.index.logs",
    "Run": "aboard.track.run",
    "SummaryWriter": "aboard.track.summary",
    "current_run": "aboard.track.run",
    "init": "aboard.track.start",
}


def open(source: str | Path, **options: Any) -> Logs:  # noqa: A001 - aboard.open reads well
    """Open the event files below a path or URI; see `aboard.Logs` for the options."""
    from aboard.index.logs import Logs

    return Logs(source, **options)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'aboard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
