"""`AsyncClient`: the requests of a `Client`, each in a thread, for event loops."""

from __future__ import annotations

import threading
from asyncio import to_thread
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from aboard.sdk.client import Client, Document

if TYPE_CHECKING:
    from aboard.sdk.board import Board

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _in_thread(
    method: Callable[Concatenate[Client, Arguments], Result],
) -> Callable[Concatenate[AsyncClient, Arguments], Awaitable[Result]]:
    async def call(
        self: AsyncClient, /, *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        return await to_thread(method, self.client, *arguments, **options)

    call.__doc__ = method.__doc__
    return call


class AsyncClient:
    """A hub, used without blocking the event loop; its methods are those of `Client`.

    Args:
        client: the hub; by default that of `Client()`.
    """

    def __init__(self, client: Client | None = None) -> None:
        self._client = client

    @property
    def client(self) -> Client:
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
    fetch = _in_thread(Client.fetch)
    console_link = _in_thread(Client.console_link)
    link = _in_thread(Client.link)
    share = _in_thread(Client.share)
    shares = _in_thread(Client.shares)
    unshare = _in_thread(Client.unshare)
    engines = _in_thread(Client.engines)
    try_engine = _in_thread(Client.try_engine)
    trial = _in_thread(Client.trial)
    jobs = _in_thread(Client.jobs)
    job = _in_thread(Client.job)
    job_members = _in_thread(Client.job_members)
    submit = _in_thread(Client.submit)
    stop_job = _in_thread(Client.stop_job)
    retry_job = _in_thread(Client.retry_job)
    delete_job = _in_thread(Client.delete_job)
    wait_job = _in_thread(Client.wait_job)
    runs = _in_thread(Client.runs)
    count_runs = _in_thread(Client.count_runs)
    group_runs = _in_thread(Client.group_runs)
    run = _in_thread(Client.run)
    run_metrics = _in_thread(Client.run_metrics)
    run_files = _in_thread(Client.run_files)
    run_boards = _in_thread(Client.run_boards)
    run_media = _in_thread(Client.run_media)
    run_blob = _in_thread(Client.run_blob)
    logged = _in_thread(Client.logged)
    change_run = _in_thread(Client.change_run)
    delete_run = _in_thread(Client.delete_run)
    examine_run = _in_thread(Client.examine_run)
    series = _in_thread(Client.series)
    facet = _in_thread(Client.facet)
    fields = _in_thread(Client.fields)
    roots = _in_thread(Client.roots)
    add_root = _in_thread(Client.add_root)
    views = _in_thread(Client.views)
    save_view = _in_thread(Client.save_view)
    delete_view = _in_thread(Client.delete_view)
    users = _in_thread(Client.users)
    add_user = _in_thread(Client.add_user)
    set_role = _in_thread(Client.set_role)
    set_password = _in_thread(Client.set_password)
    remove_user = _in_thread(Client.remove_user)
    limits = _in_thread(Client.limits)
    sessions = _in_thread(Client.sessions)
    end_session = _in_thread(Client.end_session)
    tokens = _in_thread(Client.tokens)
    create_token = _in_thread(Client.create_token)
    revoke_token = _in_thread(Client.revoke_token)

    def logs(
        self, board: str | Board, *, tail: int | None = None, follow: bool = False
    ) -> AsyncGenerator[bytes]:
        """Yield the log of an isolated board in chunks; with `follow`, as it grows."""
        return _in_threads(self.client.logs(board, tail=tail, follow=follow))

    def job_logs(
        self,
        job: str,
        member: int | None = None,
        *,
        tail: int | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[bytes]:
        """Yield the log of a member in chunks; with `follow`, until it ends."""
        return _in_threads(self.client.job_logs(job, member, tail=tail, follow=follow))

    def run_file(self, run: str | Document, name: str) -> AsyncGenerator[bytes]:
        """Yield a file of a run, as `run_files` names it, in chunks."""
        return _in_threads(self.client.run_file(run, name))

    def run_log(
        self,
        run: str | Document,
        *,
        tail: int | None = None,
        offset: int | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[bytes]:
        """Yield the recorded output of a run in chunks; with `follow`, until it ends."""
        return _in_threads(self.client.run_log(run, tail=tail, offset=offset, follow=follow))

    async def events(
        self,
        kinds: Sequence[str] = (),
        *,
        follow: Iterable[str | Document] = (),
        last: str | None = None,
    ) -> AsyncGenerator[Document]:
        """Yield the events of the hub until the caller stops iterating."""
        signs = (event or {} for event in self.client._events(kinds, follow, last))
        async with aclosing(_in_threads(signs)) as events:
            async for event in events:
                if event:
                    yield event


async def _in_threads(chunks: Generator[Result]) -> AsyncGenerator[Result]:
    closed = threading.Event()

    def next_chunk() -> Result | None:
        chunk = next(chunks, None)
        if closed.is_set():
            chunks.close()
        return chunk

    try:
        while (chunk := await to_thread(next_chunk)) is not None:
            yield chunk
    finally:
        closed.set()
        with suppress(ValueError):  # a thread still waits for the next chunk and will close it
            chunks.close()
