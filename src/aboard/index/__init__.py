"""The cache of everything ever read from event files; see `Index`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aboard.index.index import Index, IndexProblem
    from aboard.index.plan import Source
    from aboard.index.query import Damage, Run, Tag, UnknownName
    from aboard.index.refresh import Report
    from aboard.index.series import Pointer, Series

__all__ = [
    "Damage",
    "Index",
    "IndexProblem",
    "Pointer",
    "Report",
    "Run",
    "Series",
    "Source",
    "Tag",
    "UnknownName",
]

_HOMES = {
    "Index": "index",
    "IndexProblem": "index",
    "Source": "plan",
    "Report": "refresh",
    **dict.fromkeys(("Damage", "Run", "Tag", "UnknownName"), "query"),
    **dict.fromkeys(("Pointer", "Series"), "series"),
}


def __getattr__(name: str) -> Any:
    """Import what is asked for; most of it needs numpy, which takes a tenth of a second."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"aboard.index.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'aboard.index' has no attribute {name!r}")
