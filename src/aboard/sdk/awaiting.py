"""The hub's REST API to be awaited: what `client` asks, asked in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Concatenate, ParamSpec, TypeVar

from aboard.sdk.board import Board
from aboard.sdk.client import Client

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _in_thread(
    method: Callable[Concatenate[Client, Arguments], Result],
) -> Callable[Concatenate[AsyncClient, Arguments], Awaitable[Result]]:
    async def ask(
        self: AsyncClient, /, *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        return await asyncio.to_thread(method, self.client, *arguments, **options)

    ask.__doc__ = method.__doc__
    return ask


class AsyncClient:
    """A hub, asked without blocking the event loop; its methods are those of `Client`.

    Args:
        client: the hub; as `Client()` finds it unless told.
    """

    def __init__(self, client: Client | None = None) -> None:
        self._client = client

    @property
    def client(self) -> Client:
        """The client behind it."""
        if self._client is None:
            self._client = Client()
        return self._client

    me = _in_thread(Client.me)
    create = _in_thread(Client.create)
    get = _in_thread(Client.get)
    list = _in_thread(Client.list)
    wait = _in_thread(Client.wait)
    stop = _in_thread(Client.stop)
    restart = _in_thread(Client.restart)
    delete = _in_thread(Client.delete)
    change = _in_thread(Client.change)
    select = _in_thread(Client.select)
    history = _in_thread(Client.history)
    link = _in_thread(Client.link)
    share = _in_thread(Client.share)
    shares = _in_thread(Client.shares)
    unshare = _in_thread(Client.unshare)
    runs = _in_thread(Client.runs)
    roots = _in_thread(Client.roots)
    users = _in_thread(Client.users)
    add_user = _in_thread(Client.add_user)
    set_role = _in_thread(Client.set_role)
    set_password = _in_thread(Client.set_password)
    remove_user = _in_thread(Client.remove_user)
    tokens = _in_thread(Client.tokens)
    create_token = _in_thread(Client.create_token)
    revoke_token = _in_thread(Client.revoke_token)

    async def logs(
        self, board: str | Board, *, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[bytes]:
        """Yield what an isolated board wrote, in pieces; with `follow`, as it goes on to write."""
        pieces = self.client.logs(board, tail=tail, follow=follow)
        gone = threading.Event()

        def ahead() -> bytes | None:
            piece = next(pieces, None)
            if gone.is_set():
                pieces.close()
            return piece

        try:
            while (piece := await asyncio.to_thread(ahead)) is not None:
                yield piece
        finally:
            gone.set()
            with suppress(ValueError):  # a thread still waits for the next piece, and closes it
                pieces.close()
