"""The change stream as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from fastapi import Header, Query, Response
from fastapi.responses import StreamingResponse

from aboard.boards.model import NoSuchName
from aboard.hub import read
from aboard.hub.api import TheHub, TheUser, api_router
from aboard.hub.events import MOST_FOLLOWED, Events, Kind, Listener
from aboard.hub.service import Hub
from aboard.web.gate import server_ends
from aboard.web.request import CONNECTION

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

router = api_router("events")
_LONGEST_SECONDS = 300.0  # then the client reconnects and authenticates again
_HEARTBEAT_SECONDS = 15.0
_READY_SECONDS = 30.0  # for the first scan, also if the client does not wait for events
_SLOW_SECONDS = 30.0  # then a client that reads nothing is dropped


class EventStream(Response):
    """Sends events until the client leaves, the time is over, or permissions change."""

    media_type = "text/event-stream"

    def __init__(self, events: Events, listener: Listener, seconds: float) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._listener = listener
        self._ends = time.monotonic() + seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = [
            asyncio.create_task(self._when_left(receive)),
            asyncio.create_task(self._when_ending(scope)),
        ]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_all(send, leaving)
        except TimeoutError:  # abort, or the rest would stay in memory for a client that is gone
            connection = scope.get(CONNECTION)
            if connection is not None:
                connection.abort()
        finally:
            self._events.leave(self._listener)
            for task in leaving:
                task.cancel()

    async def _send_all(self, send: Send, leaving: Sequence[asyncio.Task[None]]) -> None:
        events, listener = self._events, self._listener
        text, has_greeted = b"retry: 2000\n\n", False
        while events.is_current(listener):
            listener.wake.clear()
            left = self._ends - time.monotonic()
            if not has_greeted and events.is_ready(listener):
                text += b"" if listener.reset else events.hello(listener)
                has_greeted = True
            if has_greeted:
                text += events.take(listener)
            if text:
                await self._send(send, text)
            is_over = left <= 0 and (has_greeted or left < -_READY_SECONDS)
            if is_over or any(task.done() for task in leaving):
                break
            try:
                async with asyncio.timeout(min(max(left, 0.1), _HEARTBEAT_SECONDS)):
                    await listener.wake.wait()
                text = b""
            except TimeoutError:
                text = b": heartbeat\n\n" if left > 0 else b""
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, text: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(_SLOW_SECONDS):
            await send({"type": "http.response.body", "body": text, "more_body": more})

    async def _when_left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._listener.wake.set()

    async def _when_ending(self, scope: Scope) -> None:
        await server_ends(scope)
        self._listener.wake.set()


def _find_runs(hub: Hub, ids: Sequence[str]) -> dict[str, str]:
    """Return the URIs of runs by their ids, without those that are gone unless all are."""
    found: dict[str, str] = {}
    problem: NoSuchName | None = None
    for one in ids:
        try:
            run = hub.runs.get(one)
        except NoSuchName as error:
            problem = error
        else:
            found[run.id] = run.uri
    if problem is not None and not found:
        raise problem
    return found


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "The events, as they happen."}
    },
)
async def listen(
    hub: TheHub,
    user: TheUser,
    kind: Annotated[list[Kind], Query(description="Only these; all by default.")] = [],  # noqa: B006
    follow: Annotated[
        list[str],
        Query(
            description="Ids of runs: read their new points, and send `points` only for these.",
            max_length=MOST_FOLLOWED,
        ),
    ] = [],  # noqa: B006
    seconds: Annotated[
        float, Query(description="End the stream after this time.", ge=0, le=300)
    ] = _LONGEST_SECONDS,
    last_event_id: Annotated[
        str | None, Header(description="Continue after this event.", max_length=100)
    ] = None,
) -> EventStream:
    """Send changes of runs, boards and jobs, and the runs that have new points."""
    followed = await read(_find_runs, hub, follow)
    listener = hub.events.listen(user, frozenset(kind or Kind), followed, last_event_id)
    return EventStream(hub.events, listener, seconds)
