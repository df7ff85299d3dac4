"""The application that serves all boards of a process at `/b/<board>/`, with one set of assets.

Hot routes are answered here; TensorBoard's own application answers the rest in worker processes. A
header names the board of a request; the same header of a client is overwritten.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import mimetypes
import os
import re
import secrets
import struct
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aboard.tensorboard.board import Listing
from aboard.tensorboard.follower import Follower
from aboard.tensorboard.provider import BoardDataProvider, Boards
from aboard.tensorboard.routes import (
    TIME_SERIES,
    BadRequest,
    HotRoutes,
    ResponseCache,
    TooLarge,
    is_for_scalars,
    json_headers,
    read_requests,
)
from aboard.tensorboard.worker import Work
from aboard.tensorboard.workers import Answer, Failed, Refusal, Ticket, WorkerPool
from aboard.web.gate import VISITOR, server_ends
from aboard.web.pages import ENDING, INTERNAL, NOT_FOUND
from aboard.web.request import split_key

T = TypeVar("T")
_EXPERIMENT_HEADER = b"tensorboard-experiment-id"
_ENCODING = b"accept-encoding"

Header = tuple[bytes, bytes]

STATUS = "data/status"  # the version of the board, and the problems of its sources
_PROCESS = secrets.token_hex(4)  # in ETags, because each process counts versions from 0


def make_frame(board_app: ASGIApp, assets: Assets) -> ASGIApp:
    """Mount the boards, and the fonts, which pages request at the root."""

    async def font(request: Request) -> Response:
        return await serve_asset(assets.get("font-roboto/" + request.path_params["name"]), request)

    return Starlette(
        routes=[
            Route("/font-roboto/{name}", font),
            Route("/b/{board}", _add_slash),
            Mount("/b/{board}", board_app),
        ],
        exception_handlers=problem_pages(),
    )


def problem_pages() -> dict[Any, Any]:
    return {404: lambda *_: NOT_FOUND, 500: lambda *_: INTERNAL}


async def _add_slash(request: Request) -> Response:
    query, _ = split_key(request.url.query)
    address = f"{request.path_params['board']}/"
    return RedirectResponse(f"{address}?{query}" if query else address, status_code=308)


def inner_path(scope: Scope) -> str:
    """Return the path below the board, without the experiment that the frontend inserts."""
    path: str = scope["path"][len(scope.get("root_path", "")) :].lstrip("/")
    if path.startswith("experiment/"):
        path = path.partition("/")[2].partition("/")[2]
    return path


def tensorboard_scope(scope: Scope, board: str, path: str) -> Scope:
    headers = _without(_EXPERIMENT_HEADER, scope["headers"])
    root = scope.get("root_path", "")
    return {
        **scope,
        "path": f"{root}/{path}",
        "raw_path": f"{root}/{path}".encode(),
        "headers": [*headers, (_EXPERIMENT_HEADER, board.encode())],
    }


def _without(name: bytes, headers: Iterable[Header]) -> list[Header]:
    """Remove a header, also if it is written with `_`, which WSGI treats the same."""
    return [one for one in headers if one[0].lower().replace(b"_", b"-") != name]


def status_body(
    version: int, runs: int, problems: Sequence[str], missing_fields: Sequence[str] | None = ()
) -> bytes:
    status = {"version": f"{_PROCESS}-{version}", "runs": runs, "problems": problems}
    return orjson.dumps(status | {"missing_fields": missing_fields})


def takes_gzip(request: Request) -> bool:
    for choice in request.headers.get("accept-encoding", "").split(","):
        name, _, weight = choice.partition(";")
        if name.strip().lower() == "gzip":
            return not re.fullmatch(r"\s*q=0(\.0*)?\s*", weight)
    return False


INDEX = "index.html"
_OURS = "aboard.js"
_FIRST_SCRIPT = b"<script src="
_YEAR = 31_536_000


class Asset(NamedTuple):
    body: bytes  # gzip
    etag: str
    media_type: str


class Assets:
    """The files of TensorBoard's frontend, members of a zip archive, read on first request."""

    def __init__(self, archive: Path | None = None) -> None:
        self._archive = archive if archive is not None else _tensorboard_archive()
        with zipfile.ZipFile(self._archive) as members:
            self._members = {
                info.filename: info for info in members.infolist() if not info.is_dir()
            }
        self._held: dict[str, Asset] = {}
        self._lock = threading.Lock()

        script = Path(__file__).with_name("page.js").read_bytes()
        checksum = f'W/"{zlib.crc32(script):08x}"'
        self._held[_OURS] = Asset(gzip.compress(script, mtime=0), checksum, "text/javascript")

    def __contains__(self, path: str) -> bool:
        return path in self._members or path == _OURS

    def get(self, path: str) -> Asset | None:
        info = self._members.get(path)
        if info is None:
            return self._held.get(path)
        with self._lock:
            if path not in self._held:
                body = self._gzipped(info)
                media_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
                # Weak, because it is the same for compressed and plain content.
                self._held[path] = Asset(body, f'W/"{info.CRC:08x}"', media_type)
            return self._held[path]

    def _gzipped(self, info: zipfile.ZipInfo) -> bytes:
        """Return a member as gzip, which only frames the compressed bytes differently."""
        if info.compress_type != zipfile.ZIP_DEFLATED:
            return gzip.compress(self.read(info.filename), mtime=0)
        with self._archive.open("rb") as archive:
            archive.seek(info.header_offset + 26)
            name_length, extra_length = struct.unpack("<HH", archive.read(4))
            archive.seek(name_length + extra_length, os.SEEK_CUR)
            deflated = archive.read(info.compress_size)
        header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
        return header + deflated + struct.pack("<II", info.CRC, info.file_size)

    def read(self, path: str) -> bytes:
        with zipfile.ZipFile(self._archive) as members:
            return members.read(path)

    def _page(self) -> bytes:
        ours = b'<script src="' + _OURS.encode() + b'"></script>'
        return self.read(INDEX).replace(_FIRST_SCRIPT, ours + _FIRST_SCRIPT, 1)

    def index_archive(self) -> io.BytesIO:
        """Return an archive with only the page, for TensorBoard to serve with its own headers.

        TensorBoard compresses the full archive at startup, which takes most of a second.
        """
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as members:
            members.writestr(INDEX, self._page())
        archive.seek(0)
        return archive


def _tensorboard_archive() -> Path:
    from importlib.util import find_spec

    spec = find_spec("tensorboard")
    if spec is None or spec.origin is None:
        raise RuntimeError("TensorBoard is not installed: pip install tensorboard")
    return Path(spec.origin).parent / "webfiles.zip"


async def serve_asset(asset: Asset | None, request: Request) -> Response:
    if asset is None:
        return Response("Not found", 404)
    # The content of a name with a hash never changes; other files are revalidated.
    lasting = "_file_hash" in request.query_params
    headers = {
        "etag": asset.etag,
        "cache-control": f"private, max-age={_YEAR}, immutable" if lasting else "private, no-cache",
        "vary": "accept-encoding",
    }
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if takes_gzip(request):
        headers["content-encoding"] = "gzip"
        return Response(asset.body, media_type=asset.media_type, headers=headers)
    body = await run_in_threadpool(gzip.decompress, asset.body)
    return Response(body, media_type=asset.media_type, headers=headers)


_GZIP_FROM = 1000  # bytes from which a response is worth compressing
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP = 16 + zlib.MAX_WBITS
_SLICE_SECONDS = 0.05  # of computing, then other requests have a turn
_FIRST_SLICES = 4  # at a time; each competes with the event loop for the interpreter
_LATER_SLICES = 2
_THREADS = 40  # for boards alone: others may be held by a storage that hangs
_GRACE_SECONDS = 0.5  # for a call whose client has left
_FILE_BYTES = 256 << 10
_MOST_FORM_BYTES = 16 << 20
_FORM_PIECE = 64 << 10
_MOST_FIELDS = 100_000
# Slow conversions that depend only on the request and the board's data: descriptions of tags, which
# are Markdown, and tables of hyperparameters.
_KEPT = re.compile(r"data/plugin/(?:(?:text|text_v2|hparams)/.+|audio/audio|[\w-]+/tags)")


def sample_limits(samples: Mapping[str, int] | None) -> dict[str, int]:
    """Return the limit of points per series for each plugin; 0 in `samples` means no limit."""
    return {plugin: limit or sys.maxsize for plugin, limit in (samples or {}).items()}


def make_app(
    boards: Boards,
    *,
    samples: Mapping[str, int] | None = None,
    follower: Follower | None = None,
    closing: ExitStack | None = None,
) -> ASGIApp:
    """Return the application that serves boards; they may be added and removed while it runs.

    `samples` limits points per series by plugin; 0 means all. `closing` stops the workers.
    """
    assets = Assets()
    points = sample_limits(samples)
    pool = WorkerPool(boards, points)
    if closing is not None:
        closing.callback(pool.close)
    hot = HotRoutes(boards, BoardDataProvider(boards), points)
    return make_frame(_BoardApp(boards, hot, pool, assets, follower), assets)


class _BoardApp:
    def __init__(
        self,
        boards: Boards,
        hot: HotRoutes,
        pool: WorkerPool,
        assets: Assets,
        follower: Follower | None,
    ) -> None:
        self._boards = boards
        self._pool = pool
        self._assets = assets
        self._follower = follower
        self._hot = hot
        self._responses = ResponseCache()
        self._converted = ResponseCache()  # responses of workers
        self._first = asyncio.Semaphore(_FIRST_SLICES)
        self._later = asyncio.Semaphore(_LATER_SLICES)
        self._threads = CapacityLimiter(_THREADS)
        self._page: Response | None = None
        self._get: dict[str, Callable[[Listing], Iterator[bytes]]] = {
            "data/environment": partial(_in_one_part, hot.environment),
            "data/runs": partial(_in_one_part, hot.runs),
            STATUS: partial(_in_one_part, self._status),
        }
        described = hot.described.items()
        self._get |= {path: partial(self._unless_described, parts) for path, parts in described}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        listing = self._boards.get(scope["path_params"]["board"])
        if listing is None or scope["type"] != "http":
            await NOT_FOUND(scope, receive, send)
            return
        path = inner_path(scope)
        request = Request(scope, receive)
        with suppress(ClientDisconnect):
            response = await self._respond(listing, path, request)
            if response is not None:
                await response(scope, receive, send)

    async def _respond(self, listing: Listing, path: str, request: Request) -> ASGIApp | None:
        """Return the response; None if the client has disconnected."""
        if path in ("", INDEX) or path in self._assets:
            return await self._file(listing, path, request)
        if request.method not in self._methods(path, request):
            headers = {"allow": ", ".join(self._methods(path, request))}
            return Response(status_code=405, headers=headers)
        try:
            with self._pool.hold(_visitor(request.scope)) as hold:
                query = await self._query(path, request, hold)
                version = None
                if path.startswith("data/"):
                    version = await self._in_thread(self._update, listing)
                if query.answer is not None:
                    key = (version, takes_gzip(request), query.key) if query.key else None
                    response = await self._answer(listing, query, key, request)
                    if response is not None:
                        return response
                return await self._compute(listing, version, path, query, request, hold)
        except BadRequest as error:
            text = f"Invalid argument: {error}"
            return Response(text, error.status.value, media_type="text/plain")
        except Refusal as refusal:
            return refusal.problem

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread; no other part of the server takes these."""
        return await to_thread.run_sync(function, *arguments, limiter=self._threads)

    def _update(self, listing: Listing) -> int:
        """Update a listing, which may wait, before the request takes a slice of computing."""
        if self._follower:
            self._follower.requested(listing.board.id)
        return listing.version()

    async def _file(self, listing: Listing, path: str, request: Request) -> Response:
        if path not in ("", INDEX):
            return await serve_asset(self._assets.get(path), request)
        await self._in_thread(self._update, listing)
        self._pool.warm_up()  # the page will request its plugins
        return await self._in_thread(self._index_page)

    def _index_page(self) -> Response:
        """Return the page as TensorBoard serves it; it is the same for every board."""
        if self._page is None:
            from tensorboard.plugins.base_plugin import TBContext
            from tensorboard.plugins.core.core_plugin import CorePlugin
            from werkzeug.test import Client

            core = CorePlugin(TBContext(assets_zip_provider=self._assets.index_archive))
            found = Client(core.get_resource_apps()[f"/{INDEX}"]).get("/")
            headers = dict(found.headers.items())
            self._page = Response(found.data, found.status_code, headers)
        return self._page

    def _methods(self, path: str, request: Request) -> tuple[str, ...]:
        if path in self._get:
            return ("GET", "HEAD")
        return ("GET", "HEAD", "POST") if path == TIME_SERIES else (request.method,)

    async def _query(self, path: str, request: Request, hold: Hold) -> _Query:
        if path in self._get:
            return _Query(self._get[path], (path,) if path != STATUS else (), for_us=True)
        if path == TIME_SERIES:
            is_form = request.method == "POST"
            fields = await self._form(request, hold) if is_form else request.query_params
            text = fields.get("requests")
            text = text if isinstance(text, str) else None
            requests = read_requests(text)
            body = (text or "").encode()
            if not all(map(is_for_scalars, requests)):
                return _Query(None, (), for_us=True, body=body)
            answer = partial(self._hot.time_series, requests=requests)
            return _Query(answer, (path, requests), for_us=True, body=body)
        if path == "data/plugin/scalars/scalars_multirun" and request.method == "POST":
            form = await self._form(request, hold)
            tags = [str(tag) for tag in form.getlist("tag")]
            runs = [str(run) for run in form.getlist("runs")]
            answer = partial(self._hot.multirun, tags=tags, runs=runs)
            return _Query(answer, (path, tags, runs), for_us=True)
        return _Query(None, ())

    def _unless_described(
        self, parts: Callable[[Listing], Iterator[bytes]], listing: Listing
    ) -> Iterator[bytes]:
        if self._hot.has_descriptions(listing):
            raise _NeedsWorker  # to convert the descriptions
        yield from parts(listing)

    async def _answer(
        self, listing: Listing, query: _Query, key: Hashable, request: Request
    ) -> Response | None:
        """Answer in this process; None if a worker must. `key` is for the response cache."""
        if key is not None and (kept := self._responses.get(key)) is not None:
            return _json_response(kept)
        try:
            async with self._first:
                answering = await self._in_thread(
                    _Answering, self._responses, key, listing, query, takes_gzip(request)
                )
        except _NeedsWorker:
            return None
        if answering.is_done:
            return _json_response(answering.content)

        async def parts() -> AsyncIterator[bytes]:
            yield answering.content
            while not answering.is_done:
                async with self._later:
                    part = await self._in_thread(answering.proceed)
                yield part

        headers = dict(json_headers(compressed=answering.is_compressed))
        return StreamingResponse(parts(), headers=headers)

    def _status(self, listing: Listing) -> bytes:
        counted = listing.count_runs()
        if self._follower is None:
            return status_body(*counted, (), listing.missing_fields())
        followed = self._follower.status(listing.board.id)
        return status_body(*counted, followed.conditions, followed.missing_fields)

    # Workers.

    async def _compute(
        self,
        listing: Listing,
        version: int | None,
        path: str,
        query: _Query,
        request: Request,
        hold: Hold,
    ) -> ASGIApp | None:
        board = listing.board
        compressed = takes_gzip(request)
        scope = None
        if not query.for_us:
            scope = _plain(tensorboard_scope(request.scope, board.id, path), compressed=compressed)
        body = query.body if query.for_us else await _read_body(request, hold)
        digest = _digest(board.id, path, compressed, request, body)
        cache_key = None
        if query.for_us or _KEPT.fullmatch(path):
            cache_key = (version, digest)
            if (kept := self._converted.get(cache_key)) is not None:
                return _unpacked(kept)
        work = Work(path, scope, body, compressed)
        ticket = Ticket(board.id, _visitor(request.scope))
        try:
            answering = self._pool.answer(ticket, listing, digest, work)
            answer = await _unless_disconnected(ticket, request, answering)
        except Failed:
            return INTERNAL
        if answer is None:
            return None
        if cache_key is not None and answer.status == 200 and answer.is_complete:
            content = _packed(answer, self._converted.largest)
            if content is not None:
                self._converted.put(cache_key, content)
        return _FileResponse(answer)

    async def _form(self, request: Request, hold: Hold) -> FormData:
        body = await _read_body(request, hold, _MOST_FORM_BYTES)
        if len(body) <= _FORM_PIECE:
            return _parse_form(request.scope, body)
        async with self._later:
            return await self._in_thread(_parse_form, request.scope, body)


Hold = Callable[[int], None]  # see `WorkerPool.hold`


async def _read_body(request: Request, hold: Hold, most: int | None = None) -> bytes:
    size, parts = 0, []
    async for part in request.stream():
        hold(len(part))
        size += len(part)
        parts.append(part)
        if most is not None and size > most:
            raise TooLarge(f"the form is larger than {most >> 20} MB. Request less data")
    return b"".join(parts)


def _digest(board: str, path: str, compressed: bool, request: Request, body: bytes) -> bytes:
    kind = request.headers.get("content-type")
    query = request.scope["query_string"]
    parts = (board, path, compressed, request.method, query, kind)
    digest = hashlib.blake2b(repr(parts).encode())
    digest.update(body)
    return digest.digest()


class _NeedsWorker(Exception):
    """The response must be computed by a worker."""


class _Query:
    """A request to a board, and the cache key of its response; empty if it cannot be cached.

    Without an `answer`, a worker computes it, with `for_us` by one of our own routes, from the
    body.
    """

    def __init__(
        self,
        answer: Callable[[Listing], Iterator[bytes]] | None,
        parts: tuple[object, ...],
        *,
        for_us: bool = False,
        body: bytes = b"",
    ) -> None:
        self.answer = answer
        self.key = hashlib.blake2b(repr(parts).encode()).digest() if parts else b""
        self.for_us = for_us
        self.body = body


def _json_response(body: bytes) -> Response:
    is_compressed = body.startswith(_GZIP_MAGIC)  # JSON never begins with it
    return Response(body, headers=dict(json_headers(compressed=is_compressed)))


def _in_one_part(respond: Callable[[Listing], bytes], listing: Listing) -> Iterator[bytes]:
    yield respond(listing)


class _Answering:
    """A response that is computed slice by slice; `content` is the first. Its methods block."""

    def __init__(
        self,
        cache: ResponseCache,
        key: Hashable,
        listing: Listing,
        query: _Query,
        compressed: bool,
    ) -> None:
        self._cache = cache
        self._key = key
        self.is_done = True
        # An equal request may have been answered while this one waited for its turn.
        kept = cache.get(key) if key is not None else None
        if kept is not None:
            self.content = kept
            return
        answer = query.answer
        self._parts = answer(listing) if answer is not None else iter(())
        first, self.is_done = self._take()
        self.is_compressed = compressed and (not self.is_done or len(first) >= _GZIP_FROM)
        self._gzip = zlib.compressobj(1, wbits=_GZIP)
        self._kept: list[bytes] | None = [] if key is not None else None
        self._size = 0
        self.content = self._sent(first)

    def proceed(self) -> bytes:
        part, self.is_done = self._take()
        return self._sent(part)

    def _take(self) -> tuple[bytes, bool]:
        parts = []
        until = time.monotonic() + _SLICE_SECONDS
        for part in self._parts:
            parts.append(part)
            if time.monotonic() >= until:
                return b"".join(parts), False
        return b"".join(parts), True

    def _sent(self, part: bytes) -> bytes:
        if self.is_compressed:
            part = self._gzip.compress(part) + (self._gzip.flush() if self.is_done else b"")
        if self._kept is not None:
            self._kept.append(part)
            self._size += len(part)
            if self._size > self._cache.largest:
                self._kept = None
            elif self.is_done:
                self._cache.put(self._key, b"".join(self._kept))
        return part


async def _unless_disconnected(
    ticket: Ticket, request: Request, answering: Coroutine[Any, Any, Answer]
) -> Answer | None:
    """Return an answer; cancel the work if the client disconnects or the server shuts down.

    A running call gets half a second to finish, which costs less than a new worker.
    """
    task = asyncio.ensure_future(answering)
    leaving = asyncio.ensure_future(_disconnected(request))
    ending = asyncio.ensure_future(server_ends(request.scope))
    try:
        await asyncio.wait({task, leaving, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and not ending.done() and ticket.is_running:
            await asyncio.wait({task}, timeout=_GRACE_SECONDS)
        if task.done():
            return await task
        if ending.done():
            raise Refusal(ENDING)
        return None
    finally:
        for one in (task, leaving, ending):
            one.cancel()
        await asyncio.wait({task, leaving, ending})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _FileResponse:
    """Sends the response of a worker from its file, as fast as the client reads."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._answer.body as file:
            headers = _lowered(self._answer.headers)
            response = StreamingResponse(_pieces(file), self._answer.status)
            response.raw_headers = headers
            await response(scope, receive, send)


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := file.read(_FILE_BYTES):
        yield piece


def _lowered(headers: Sequence[tuple[str, str]]) -> list[Header]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


_HEAD = struct.Struct("!I")


def _packed(answer: Answer, largest: int) -> bytes | None:
    """Return an answer as bytes if it is small enough for the cache."""
    if answer.size > largest:
        return None
    head = orjson.dumps(answer.headers)
    content = _HEAD.pack(len(head)) + head + answer.body.read()
    answer.body.seek(0)
    return content


def _unpacked(content: bytes) -> Response:
    (length,) = _HEAD.unpack_from(content)
    start = _HEAD.size + length
    response = Response(content[start:])
    response.raw_headers = _lowered(orjson.loads(content[_HEAD.size : start]))
    return response


def _plain(scope: Scope, *, compressed: bool) -> dict[str, Any]:
    """Return the parts of a scope that a WSGI application gets.

    TensorBoard parses `Accept-Encoding` differently from `takes_gzip`, which the cache uses, so the
    header is replaced.
    """
    names = ("method", "scheme", "path", "root_path", "query_string", "http_version", "server")
    found = {name: scope[name] for name in names if name in scope}
    headers = _without(_ENCODING, scope["headers"])
    if compressed:
        headers.append((_ENCODING, b"gzip"))
    return {**found, "client": scope.get("client"), "headers": headers}


def _visitor(scope: Scope) -> str:
    """Return the name of the user or link of a request; empty if there are no accounts."""
    return str(getattr(scope.get(VISITOR), "name", ""))


def _parse_form(scope: Scope, body: bytes) -> FormData:
    """Parse a form; one that names every run of a large board may take seconds."""
    kind = Headers(scope=scope).get("content-type", "").partition(";")[0]
    if kind.strip().lower() == "application/x-www-form-urlencoded":
        return FormData(list(_fields(body)))
    messages = iter(
        {"type": "http.request", "body": body[start : start + _FORM_PIECE], "more_body": True}
        for start in range(0, len(body), _FORM_PIECE)
    )

    async def receive() -> Message:
        return next(messages, {"type": "http.request", "body": b"", "more_body": False})

    async def parse() -> FormData:
        request = Request(scope, receive)
        return await request.form(
            max_files=0, max_fields=_MOST_FIELDS, max_part_size=_MOST_FORM_BYTES
        )

    parsing = parse()
    try:
        parsing.send(None)  # it never waits, because the body is complete
    except StopIteration as end:
        form: FormData = end.value
        return form
    raise RuntimeError("parsing a form had to wait")


def _fields(body: bytes) -> Iterator[tuple[str, str]]:
    if body.count(b"&") >= _MOST_FIELDS:
        raise TooLarge(f"the form has more than {_MOST_FIELDS:,} fields. Request less data")
    for field in body.split(b"&"):
        if field:
            name, _, value = field.partition(b"=")
            yield _unquoted(name), _unquoted(value)


def _unquoted(text: bytes) -> str:
    """Decode piece by piece, because the library needs 80 times the memory of its input."""
    parts, start = [], 0
    while start < len(text):
        end = start + _FORM_PIECE
        if (cut := text.rfind(b"%", end - 2, end)) > start:  # do not split an escape
            end = cut
        parts.append(unquote_to_bytes(text[start:end].replace(b"+", b" ")))
        start = end
    return b"".join(parts).decode("utf-8", "replace")
