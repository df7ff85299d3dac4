"""The stock engine: TensorBoard's own loaders and plugins for one board.

It is for plugins that open files in the log directory, and plugins of other packages. It costs as
much as TensorBoard: each process reads all events and keeps a sample in memory.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from a2wsgi import WSGIMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from aboard.events.files import EVENT_FILE
from aboard.events.messages import keep_tensorflow_out
from aboard.index.library import Library, Member
from aboard.index.reader import TAIL_BYTES
from aboard.index.sources import UNWATCHED_SECONDS
from aboard.storage.base import StorageError, is_remote, open_storage
from aboard.storage.local import admit
from aboard.tensorboard.app import (
    INDEX,
    STATUS,
    Assets,
    inner_path,
    make_frame,
    sample_limits,
    serve_asset,
    status_body,
    tensorboard_scope,
)
from aboard.tensorboard.board import Board
from aboard.tensorboard.logdir import LogTree, MemberDirectory, Mirror, MirrorUpdater, Update
from aboard.tensorboard.plugins import all_plugins, make_flags
from aboard.web.pages import NOT_FOUND

keep_tensorflow_out()

from tensorboard.backend import application  # noqa: E402
from tensorboard.backend.event_processing import (  # noqa: E402
    data_ingester,
    data_provider,
    directory_watcher,
    plugin_event_multiplexer,
)
from tensorboard.data import provider as tb  # noqa: E402

_log = logging.getLogger(__name__)


class Seen(NamedTuple):
    inode: int
    changed: int
    size: int
    tail: int  # a checksum of the bytes before `size`


class RunLoader(plugin_event_multiplexer.EventMultiplexer):  # type: ignore[misc]
    """TensorBoard's own loader, which can be stopped and detects replaced files.

    If a file of a run was replaced or deleted, the run is read again from the start.
    `_accumulators`, `_accumulators_mutex`, `_paths` and an accumulator's `_generator` are private:
    checked with TensorBoard 2.21 by tests/tensorboard/test_private_names.py.
    """

    def __init__(self, samples: Mapping[str, int]) -> None:
        super().__init__(
            size_guidance=data_ingester.DEFAULT_SIZE_GUIDANCE,
            tensor_size_guidance={**data_ingester.DEFAULT_TENSOR_SIZE_GUIDANCE, **samples},
            # A file may grow however old its events are; files that do not grow are not opened.
            event_file_active_filter=lambda _: True,
        )
        self.changes = 0
        self._stopped = threading.Event()
        self._seen: dict[str, dict[str, Seen]] = {}
        self._read: set[str] = set()

    def stop(self) -> None:
        self._stopped.set()

    def load(self, paths: Mapping[str, str], on_run: Callable[[int], None] | None) -> None:
        """Read new data of runs, given by name and directory, and forget all others."""
        with self._accumulators_mutex:
            gone = self._accumulators.keys() - paths.keys()
        for name in gone:
            self._forget(name)
        for count, (name, path) in enumerate(paths.items()):
            if self._stopped.is_set():
                return
            if on_run is not None:
                on_run(count)
            try:
                self._load_run(name, path)
            except directory_watcher.DirectoryDeletedError:
                self._forget(name)
            except Exception as error:  # noqa: BLE001 - one run's events must not stop the others'
                _log.warning("run %r cannot be read completely: %s", name, error)

    def _load_run(self, name: str, path: str) -> None:
        before = self._seen.get(name, {})
        now = {file.name: stat_file(file, before.get(file.name)) for file in _event_files(path)}
        if now == before and name in self._read:
            return
        if None in now.values() or before.keys() - now.keys():
            self._forget(name)
            now = {file.name: stat_file(file, None) for file in _event_files(path)}
        self._read.discard(name)
        self._seen[name] = {file: seen for file, seen in now.items() if seen is not None}
        self.AddRun(path, name)
        accumulator = self.GetAccumulator(name)
        if not isinstance(accumulator._generator, _Stoppable):
            accumulator._generator = _Stoppable(accumulator._generator, self._stopped)
        accumulator.Reload()
        self._read.add(name)
        self.changes += 1

    def _forget(self, name: str) -> None:
        with self._accumulators_mutex:
            self._accumulators.pop(name, None)
            self._paths.pop(name, None)
        self._seen.pop(name, None)
        self._read.discard(name)
        self.changes += 1


def stat_file(file: os.DirEntry[str] | Path, before: Seen | None) -> Seen | None:
    """Return the current state of an event file; None if it was replaced."""
    status = file.stat()
    if before and before[:3] == (status.st_ino, status.st_mtime_ns, status.st_size):
        return before
    if before and (status.st_size < before.size or _tail(file, before.size) != before.tail):
        return None
    tail = _tail(file, status.st_size)
    return Seen(status.st_ino, status.st_mtime_ns, status.st_size, tail)


def _tail(file: os.DirEntry[str] | Path, end: int) -> int:
    start = max(0, end - TAIL_BYTES)
    with Path(file).open("rb") as opened:
        opened.seek(start)
        return zlib.crc32(opened.read(end - start))


def _event_files(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            return [entry for entry in found if EVENT_FILE in entry.name and entry.is_file()]
    except OSError:
        return []


class _Stoppable:
    def __init__(self, inner: Any, stopped: threading.Event) -> None:
        self._inner = inner
        self._stopped = stopped

    def Load(self) -> Iterator[Any]:  # noqa: N802 - TensorBoard's name
        for event in self._inner.Load():
            if self._stopped.is_set():
                return
            yield event


_WSGI_THREADS = 10


class StockState(NamedTuple):
    found: Sequence[tuple[Member, str]]  # all runs, shown or not
    shown: int
    read: int
    seconds: float
    loaded: bool  # all initial data has been read


OnLoad = Callable[[StockState], None]


def make_stock_app(
    board: Board,
    *,
    samples: Mapping[str, int] | None,
    reload_seconds: float = 5.0,
    work_directory: Path,
    library: Library | None = None,
    on_load: OnLoad | None = None,
) -> StockApp:
    """Serve a board with TensorBoard's own loaders and plugins, and begin to read it.

    `samples` limits values per series by plugin; 0 means all. Links and copies are created in a new
    directory in `work_directory`, which `close` removes; buckets need as much space as their
    events. `on_load` is called in a thread of the engine, before a run is read and after a poll.
    """
    work_directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undoing:
        directory = Path(tempfile.mkdtemp(prefix="stock-", dir=work_directory))
        undoing.callback(shutil.rmtree, directory, ignore_errors=True)
        admit(str(directory))
        loading = _Loading(board, samples or {}, reload_seconds, directory, library, on_load)
        undoing.callback(loading.close)
        assets = Assets()
        wsgi = WSGIMiddleware(_tensorboard(board, samples or {}, loading, assets), _WSGI_THREADS)
        undoing.callback(wsgi.executor.shutdown)
        untyped: Any = wsgi
        app = make_frame(_StockBoard(board, untyped, assets, loading), assets)
        return StockApp(app, loading, undoing.pop_all())


class StockApp:
    def __init__(self, app: ASGIApp, loading: _Loading, closing: ExitStack) -> None:
        self.app = app
        self._loading = loading
        self._closing = closing

    @property
    def loaded(self) -> bool:
        return self._loading.loaded.is_set()

    @property
    def problems(self) -> list[StorageError]:
        return self._loading.problems

    def close(self) -> None:
        """Stop reading, wait for the threads, and remove the links and copies."""
        self._closing.close()


class _Loading:
    """Keeps the loader up to date with the board's sources, in its own threads."""

    def __init__(
        self,
        board: Board,
        samples: Mapping[str, int],
        seconds: float,
        directory: Path,
        library: Library | None,
        on_load: OnLoad | None,
    ) -> None:
        self._sources = [member.source for member in board.members]
        self._library = library
        self._on_load = on_load
        self._began = time.monotonic()
        self.loader = RunLoader(samples)
        self.loaded = threading.Event()
        self._seconds = seconds
        self._wake = threading.Event()
        self._done = threading.Event()
        self._requested = time.monotonic()
        self._mirrors: list[MirrorUpdater] = []
        self._updates: dict[int, Update] = {}
        self._reported: set[str] = set()
        places = []
        mirrors: list[Mirror] = []
        for member in dict.fromkeys(board.members):
            source = member.source
            place = source.uri
            if is_remote(source.uri):
                copy = directory / "copies" / str(len(mirrors))
                mirrors.append(Mirror(open_storage(source.uri), copy, only=source.only))
                place = str(copy)
            places.append(MemberDirectory(member, place))
        self.tree = LogTree(board, places, directory / "logs", library)
        self._expected = len(mirrors)
        self._thread = threading.Thread(target=self._run, name="aboard-stock", daemon=True)
        for number, mirror in enumerate(mirrors):
            follower = MirrorUpdater(mirror, seconds, self._on_update(number), self.unwatched)
            self._mirrors.append(follower)
        self._thread.start()

    @property
    def problems(self) -> list[StorageError]:
        found = list(self.tree.problems)
        for update in list(self._updates.values()):
            found += update.problems
        return found

    def requested(self) -> None:
        slept = self.unwatched()
        self._requested = time.monotonic()
        if slept:
            self._wake.set()
            for mirror in self._mirrors:
                mirror.wake()

    def unwatched(self) -> bool:
        return time.monotonic() - self._requested > UNWATCHED_SECONDS

    def close(self) -> None:
        self._done.set()
        self.loader.stop()
        self._wake.set()
        for mirror in self._mirrors:
            mirror.close()
        self._thread.join()

    def _on_update(self, number: int) -> Callable[[Update], None]:
        def note(update: Update) -> None:
            is_first = number not in self._updates
            self._updates[number] = update
            if is_first or update.changed:
                self._wake.set()

        return note

    def _run(self) -> None:
        while not self._done.is_set():
            complete = len(self._updates) == self._expected
            self._refresh_records()
            runs = self.tree.update()
            on_run = None if self.loaded.is_set() else self._notify  # called for each run
            try:
                self.loader.load({name: self.tree.path_of(name) for name in runs}, on_run)
            except Exception:  # noqa: BLE001 - the board must keep updating
                _log.exception("TensorBoard's loader failed")
            if complete and not self._done.is_set():
                self.loaded.set()
            self._report()
            self._notify(len(runs))
            self._wake.wait(self._seconds)
            self._wake.clear()
            while self.unwatched() and not self._done.is_set():
                self._wake.wait(1.0)
                self._wake.clear()

    def _refresh_records(self) -> None:
        if self._library is None:
            return
        for source in self._sources:
            with suppress(StorageError):  # the tree reports it
                self._library.refresh_records(source)

    def _notify(self, read: int) -> None:
        if self._on_load is not None:
            seconds, loaded = time.monotonic() - self._began, self.loaded.is_set()
            tree = self.tree
            self._on_load(StockState(tree.found, len(tree.runs), read, seconds, loaded))

    def _report(self) -> None:
        current = {str(problem) for problem in self.problems}
        for line in sorted(current - self._reported):
            _log.warning("%s", line)
        self._reported = current


class _Provider(data_provider.MultiplexerDataProvider):  # type: ignore[misc]
    """TensorBoard's provider over its loader, with the board's location instead of the links."""

    def __init__(self, board: Board, loader: RunLoader) -> None:
        super().__init__(loader, board.location)
        self._board = board

    def experiment_metadata(self, ctx: object = None, *, experiment_id: str) -> Any:  # noqa: ARG002
        return tb.ExperimentMetadata(
            data_location=self._board.location, experiment_name=self._board.title
        )


def _tensorboard(
    board: Board, samples: Mapping[str, int], loading: _Loading, assets: Assets
) -> Any:
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    loaders = all_plugins(loading.tree.directories)
    flags = make_flags(
        loaders,
        logdir=str(loading.tree.root),
        path_prefix="",
        samples_per_plugin=sample_limits(samples),
        window_title=board.title,
    )
    provider = _Provider(board, loading.loader)
    return application.TensorBoardWSGIApp(
        flags, loaders, provider, assets.index_archive, deprecated_multiplexer=loading.loader
    )


class _StockBoard:
    def __init__(self, board: Board, wsgi: ASGIApp, assets: Assets, loading: _Loading) -> None:
        self._board = board
        self._wsgi = wsgi
        self._assets = assets
        self._loading = loading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        board, loading = self._board, self._loading
        path = inner_path(scope)
        response: ASGIApp
        if scope["path_params"]["board"] != board.id or scope["type"] != "http":
            response = NOT_FOUND
        elif path != INDEX and path in self._assets:
            response = await serve_asset(self._assets.get(path), Request(scope, receive))
        elif path == "data/logdir":  # TensorBoard would return the directory of links
            location = orjson.dumps({"logdir": board.location})
            response = Response(location, media_type="application/json")
        elif path == STATUS:
            loading.requested()
            problems = [str(one) for one in loading.problems]
            body = status_body(loading.loader.changes, len(loading.tree.runs), problems)
            response = Response(body, media_type="application/json")
        else:
            if path.startswith("data/") or path in ("", INDEX):
                loading.requested()
            response, scope = self._wsgi, tensorboard_scope(scope, board.id, path)
        await response(scope, receive, send)
