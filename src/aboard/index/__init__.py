"""The index: a cache of everything read from event files; see `Index`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aboard.index.index import Index, Report
    from aboard.index.query import Damage, Run, UnknownName
    from aboard.index.series import Pointer, Series, Summary
    from aboard.index.sources import Source
    from aboard.index.tags import Tag

__all__ = [
    "Damage",
    "Index",
    "Pointer",
    "Report",
    "Run",
    "Series",
    "Source",
    "Summary",
    "Tag",
    "UnknownName",
]

_MODULES = {
    "Source": "sources",
    "Tag": "tags",
    **dict.fromkeys(("Index", "Report"), "index"),
    **dict.fromkeys(("Damage", "Run", "UnknownName"), "query"),
    **dict.fromkeys(("Pointer", "Series", "Summary"), "series"),
}


def __getattr__(name: str) -> Any:
    """Import a name on first use: most modules need numpy, which takes 0.1 seconds to import."""
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"aboard.index.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'aboard.index' has no attribute {name!r}")
