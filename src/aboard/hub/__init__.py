"""The hub: boards of many users behind one authenticated address.

Its parts share separate threads for calls that may hang. A storage or engine that hangs blocks the
threads that wait for it. Authentication and boards use other threads, so that they are not
affected.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from aboard.system import require

require("aiohttp", "argon2", "fastapi", "orjson", "prometheus_client", "pydantic", "sqlalchemy")

P = ParamSpec("P")
T = TypeVar("T")

_gate = ThreadPoolExecutor(8, "aboard-gate")
_boards = ThreadPoolExecutor(8, "aboard-boards")
_reads = ThreadPoolExecutor(16, "aboard-reads")


async def query(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that uses only the hub's database."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_gate, partial(function, *args, **kwargs))


async def show(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what finds the runs of a board in the index."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_boards, partial(function, *args, **kwargs))


async def read(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that reads from a storage or an engine and may hang."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_reads, partial(function, *args, **kwargs))
