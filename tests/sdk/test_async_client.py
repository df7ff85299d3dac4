"""`AsyncClient`: its methods, and logs that are not read to their end."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from aboard import AsyncClient, Client


def test_it_has_the_methods_of_a_client():
    def names(kind):
        return {name for name in vars(kind) if not name.startswith("_")}

    assert names(AsyncClient) - {"client"} == names(Client) - {"url"}


class Hub:
    """A hub with a log of two lines, the second of which comes when a test wants it.

    It holds on to the log, as whatever debugs or traces does: nothing is closed by being dropped.
    """

    def __init__(self):
        self.is_awaited, self.goes_on = threading.Event(), threading.Event()
        self.is_closed = threading.Event()

    def logs(self, board, *, tail=None, follow=False):
        self.log = self._lines()
        return self.log

    def _lines(self):
        try:
            yield b"first"
            self.is_awaited.set()
            self.goes_on.wait(180)
            yield b"second"
        finally:
            self.is_closed.set()


@pytest.fixture
def hub():
    return Hub()


def test_whoever_stops_early_leaves_no_connection_open(hub):
    async def read():
        pieces = AsyncClient(hub).logs("board", follow=True)
        async with aclosing(pieces):
            assert await anext(pieces) == b"first"
        return hub.is_closed.is_set()

    assert asyncio.run(read())


def test_whoever_gives_up_waiting_leaves_none_open_after_the_next_line(hub):
    async def read():
        async with aclosing(AsyncClient(hub).logs("board", follow=True)) as pieces:
            return [piece async for piece in pieces]

    async def give_up():
        reading = asyncio.create_task(read())
        assert await asyncio.to_thread(hub.is_awaited.wait, 60)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not hub.is_closed.is_set()
        hub.goes_on.set()
        assert await asyncio.to_thread(hub.is_closed.wait, 60)

    asyncio.run(give_up())
