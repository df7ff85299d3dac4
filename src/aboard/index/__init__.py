"""The cache of everything ever read from event files; see `Index`."""

from aboard.index.index import Index, IndexProblem
from aboard.index.plan import Source
from aboard.index.query import Damage, Pointer, Run, Series, Tag
from aboard.index.refresh import Report

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
]
