"""Threads in which a hub waits, in lanes of their own.

A storage or an engine that hangs holds the threads that wait for it. The gate, which finds out who
sends a request, and the boards have other threads, so that they go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_gate = ThreadPoolExecutor(8, "aboard-gate")
_boards = ThreadPoolExecutor(8, "aboard-boards")
_reads = ThreadPoolExecutor(16, "aboard-reads")


async def query(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what only needs the hub's database: users, sessions, keys, boards."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_gate, partial(function, *args, **kwargs))


async def show(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what finds the runs of a board in the index."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_boards, partial(function, *args, **kwargs))


async def read(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what reads from a storage or an engine, and may hang."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_reads, partial(function, *args, **kwargs))
