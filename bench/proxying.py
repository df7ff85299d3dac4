"""What the way through the hub costs: a board asked directly, and asked through the proxy.

    python bench/proxying.py PORT BOARD_PORT

serves the board of one port at another, as a hub does, and is what the case runs beside a board.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path

import peers
import trees
from cases import Figures, Result, Sizes, Target, _figures
from client import Site
from views import (
    READ,
    TOKEN,
    _aboard_site,
    _ask_in_turns,
    _running,
    _view_command,
    _view_environment,
)

BOARD = "abcdefghijkm"
AT_ONCE = 16


def proxied(sizes: Sizes, cache: Path) -> Result:
    """The same questions to one board, with and without the proxy between."""
    tree = sizes.base
    place = trees.make(tree, cache)
    direct, through = peers._free_port(), peers._free_port()
    with (
        peers.new_index(cache) as index,
        _running(_view_command(place, direct), _view_environment(index), READ),
        _proxy(through, direct),
    ):
        sites = {"direct": _aboard_site(direct), "proxy": Site(through, f"/b/{BOARD}/")}
        for site in sites.values():
            peers._check("the curve", len(site.curve(trees.tag_name(0))), tree.runs)
        found = _ask_in_turns(sites, ["runs", "page", "curve"], sizes.inner_times)
        found |= _crowds(
            {
                "direct": f"http://127.0.0.1:{direct}/b/view/",
                "proxy": f"http://127.0.0.1:{through}/b/{BOARD}/",
            },
            sizes,
        )
    added = found["page: proxy"].best - found["page: direct"].best
    rates = {name: found[f"{AT_ONCE} at once: {name}"] for name in sites}
    share = rates["direct"].best / rates["proxy"].best
    return Result(
        f"a board of {tree} through the proxy",
        found,
        targets=[Target("requests per second through the proxy, of those without", 0.3, share)],
        notes=[f"The proxy adds {added * 1000:.2f} ms to a request that comes alone."],
    )


@contextmanager
def _proxy(port: int, board_port: int) -> Iterator[None]:
    command = [sys.executable, __file__, str(port), str(board_port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=peers.environment())
    try:
        if process.stdout is None or not process.stdout.readline():
            raise peers.Unread("the proxy did not start")
        yield
    finally:
        process.terminate()
        process.wait()


def _crowds(addresses: dict[str, str], sizes: Sizes) -> dict[str, Figures]:
    """Ask each address in turns, with many requests under way at any time."""
    requests = 100 * sizes.inner_times
    taken: dict[str, list[float]] = {}
    for _ in range(sizes.times):
        for name, address in addresses.items():
            seconds = asyncio.run(_crowd(f"{address}data/runs", requests))
            taken.setdefault(name, []).append(seconds / requests)
    return {
        f"{AT_ONCE} at once: {name}": _noted(_figures(seconds, 0.0))
        for name, seconds in taken.items()
    }


def _noted(figures: Figures) -> Figures:
    figures.note = f"{1 / figures.best:,.0f} requests per second"
    return figures


async def _crowd(url: str, requests: int) -> float:
    import aiohttp

    left = iter(range(requests))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def visit() -> None:
            for _ in left:
                async with session.get(url) as answer:
                    await answer.read()
                    if answer.status != 200:
                        raise RuntimeError(f"{url}: {answer.status}")

        started = time.perf_counter()
        await asyncio.gather(*(visit() for _ in range(AT_ONCE)))
        return time.perf_counter() - started


def serve_proxy(port: int, board_port: int) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from aboard.executors import Address
    from aboard.hub.proxy import Proxy
    from aboard.web import listen, serve

    address = Address("127.0.0.1", board_port, "/b/view/", TOKEN)
    proxy = Proxy(lambda _: address)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with aclosing(proxy):
            yield

    app = Starlette(routes=[Mount("/b/{board}", proxy)], lifespan=lifespan)
    serve(app, listen("127.0.0.1", port), on_ready=lambda: print("ready", flush=True))


CASES = {"proxy": proxied}


if __name__ == "__main__":
    serve_proxy(int(sys.argv[1]), int(sys.argv[2]))
