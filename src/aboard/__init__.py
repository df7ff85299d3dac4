"""Every training run, on one board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from aboard.events.writer import EventWriter
    from aboard.index.logs import Logs
    from aboard.index.query import UnknownName
    from aboard.jobs.experiment import Job, experiment, submit
    from aboard.sdk import (
        AuthError,
        BoardFailed,
        BoardLimitExceeded,
        HubError,
        NotFound,
        NotReady,
    )
    from aboard.sdk.async_client import AsyncClient
    from aboard.sdk.board import Board
    from aboard.sdk.client import Client
    from aboard.storage.base import StorageError
    from aboard.track.run import Run, current_run
    from aboard.track.start import init
    from aboard.track.summary import SummaryWriter

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "AuthError",
    "Board",
    "BoardFailed",
    "BoardLimitExceeded",
    "Client",
    "EventWriter",
    "HubError",
    "Job",
    "Logs",
    "NotFound",
    "NotReady",
    "Run",
    "StorageError",
    "SummaryWriter",
    "UnknownName",
    "current_run",
    "engines",
    "experiment",
    "init",
    "open",
    "submit",
]

_LAZY = {
    "AsyncClient": "aboard.sdk.async_client",
    "AuthError": "aboard.sdk",
    "Board": "aboard.sdk.board",
    "BoardFailed": "aboard.sdk",
    "BoardLimitExceeded": "aboard.sdk",
    "Client": "aboard.sdk.client",
    "EventWriter": "aboard.events.writer",
    "HubError": "aboard.sdk",
    "Job": "aboard.jobs.experiment",
    "Logs": "aboard.index.logs",
    "NotFound": "aboard.sdk",
    "NotReady": "aboard.sdk",
    "Run": "aboard.track.run",
    "StorageError": "aboard.storage.base",
    "SummaryWriter": "aboard.track.summary",
    "UnknownName": "aboard.index.query",
    "current_run": "aboard.track.run",
    "experiment": "aboard.jobs.experiment",
    "init": "aboard.track.start",
    "submit": "aboard.jobs.experiment",
}


def open(source: str | Path, **options: Any) -> Logs:  # noqa: A001 - aboard.open reads well
    """Open the event files below a path or URI; see `aboard.Logs` for the options."""
    from aboard.index.logs import Logs

    return Logs(source, **options)


def engines() -> list[dict[str, Any]]:
    """Return the engines of the hub on which boards can run; see `Client.engines`."""
    from aboard.sdk.client import Client

    return Client().engines()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'aboard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
