"""The cost of the hub's proxy: requests to a board directly and through the proxy.

    python bench/proxying.py PORT BOARD_PORT

The case runs this command, which proxies the board at BOARD_PORT as a hub does.
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
from cases import Figures, Result, Sizes, Target, figures_of
from client import Site
from views import (
    READ,
    TOKEN,
    aboard_site,
    ask_in_turns,
    running_server,
    view_command,
    view_environment,
)

BOARD = "abcdefghijkm"
AT_ONCE = 16
_START_SECONDS = 3.0  # in which a board starts its first worker, beside the requests


def proxied(sizes: Sizes, cache: Path) -> Result:
    """Send the same requests to one board directly and through the proxy."""
    tree = sizes.base
    place = trees.make(tree, cache)
    direct, through = peers.free_port(), peers.free_port()
    with (
        peers.new_index(cache) as index,
        running_server(view_command(place, direct), view_environment(index), READ),
        _proxy(through, direct),
    ):
        sites = {"direct": aboard_site(direct), "proxy": Site(through, f"/b/{BOARD}/")}
        for site in sites.values():
            peers.check("the curve", len(site.curve(trees.tag_name(0))), tree.runs)
        time.sleep(_START_SECONDS)
        found = ask_in_turns(sites, ["runs", "page", "curve"], sizes.inner_times)
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
        notes=[f"The proxy adds {added * 1000:.2f} ms to a single request."],
    )


@contextmanager
def _proxy(port: int, board_port: int) -> Iterator[None]:
    command = [sys.executable, __file__, str(port), str(board_port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=peers.environment())
    try:
        if process.stdout is None or not process.stdout.readline():
            raise peers.MeasurementError("the proxy did not start")
        yield
    finally:
        process.terminate()
        process.wait()


def _crowds(addresses: dict[str, str], sizes: Sizes) -> dict[str, Figures]:
    """Load each address in turn, with many requests in flight."""
    requests = 100 * sizes.inner_times
    taken: dict[str, list[float]] = {}
    for _ in range(sizes.times):
        for name, address in addresses.items():
            seconds = asyncio.run(_crowd(f"{address}data/runs", requests))
            taken.setdefault(name, []).append(seconds / requests)
    return {
        f"{AT_ONCE} at once: {name}": _noted(figures_of(seconds, 0.0))
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

    from aboard.executors.base import Address
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
