"""The stock engine: TensorBoard's own loaders and plugins for one board.

It is for what the fast engine cannot show: plugins that open files in the log
directory, and those of other packages. It costs what TensorBoard costs: all events
are read anew by each process and kept in memory, sampled.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from a2wsgi import WSGIMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from aboard.events import protos
from aboard.storage.base import StorageError
from aboard.storage.confines import admit
from aboard.storage.uri import is_remote, open_storage
from aboard.tensorboard.assets import INDEX, Assets
from aboard.tensorboard.board import Board, Member
from aboard.tensorboard.frame import (
    VERSION,
    inner_path,
    make_frame,
    serve_asset,
    tensorboard_scope,
    version_word,
)
from aboard.tensorboard.live import UNWATCHED_SECONDS, Rhythm
from aboard.tensorboard.loading import RunLoader
from aboard.tensorboard.mirror import Mirror, MirrorFollower, Update
from aboard.tensorboard.plugins import all_plugins, make_flags
from aboard.tensorboard.selection import Records
from aboard.tensorboard.tree import LogTree, Place
from aboard.web.pages import NOT_FOUND

protos.keep_tensorflow_out()

from tensorboard.backend import application  # noqa: E402
from tensorboard.backend.event_processing import data_provider  # noqa: E402
from tensorboard.data import provider as tb  # noqa: E402

_logger = logging.getLogger(__name__)

_WSGI_THREADS = 10

Asked = Callable[[str], None]


class StockState(NamedTuple):
    """How far a board has been read.

    Attributes:
        found: every run there is, shown or not: its member, and its name.
        shown: how many of them are shown.
        read: how many of those have been read.
        seconds: since the beginning.
        loaded: whether all that there was at first has been read.
    """

    found: Sequence[tuple[Member, str]]
    shown: int
    read: int
    seconds: float
    loaded: bool


Told = Callable[[StockState], None]


def make_stock_app(
    board: Board,
    *,
    samples: Mapping[str, int] | None,
    reload_seconds: float = 5.0,
    work_directory: Path,
    asked: Asked | None = None,
    assets: Assets | None = None,
    records: Records | None = None,
    told: Told | None = None,
) -> StockApp:
    """Serve a board with TensorBoard's own loaders and plugins, and begin to read it.

    Args:
        board: the board.
        samples: values per series by plugin, 0 for all; TensorBoard's own numbers by default.
        reload_seconds: how long to wait between two looks for new data.
        work_directory: where links and copies are made, in a directory of their own that
            is gone after `close`. A board of buckets needs as much space as its events.
        asked: is called with the board's id whenever somebody looks at it.
        assets: the frontend's files.
        records: what the records of the runs say, for a template that asks for it.
        told: is called, in a thread of the reading's, whenever a run is going to be read and
            after every look.
    """
    work_directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undoing:
        directory = Path(tempfile.mkdtemp(prefix="stock-", dir=work_directory))
        undoing.callback(shutil.rmtree, directory, ignore_errors=True)
        admit(str(directory))
        loading = _Loading(board, samples or {}, reload_seconds, directory, records, told)
        undoing.callback(loading.close)
        assets = assets if assets is not None else Assets()
        wsgi = WSGIMiddleware(_tensorboard(board, samples or {}, loading, assets), _WSGI_THREADS)
        undoing.callback(wsgi.executor.shutdown)

        def note(board_id: str) -> None:
            loading.asked()
            if asked is not None:
                asked(board_id)

        untyped: Any = wsgi
        app = make_frame(_StockBoard(board, untyped, assets, note, loading.loader), assets)
        return StockApp(app, loading, undoing.pop_all())


class StockApp:
    """A board that is served by TensorBoard's own backend.

    Attributes:
        app: the application, with the board at `/b/<board>/`.
    """

    def __init__(self, app: ASGIApp, loading: _Loading, closing: ExitStack) -> None:
        self.app = app
        self._loading = loading
        self._closing = closing

    @property
    def loaded(self) -> bool:
        """Whether all that there was at first has been read."""
        return self._loading.loaded.is_set()

    @property
    def problems(self) -> list[StorageError]:
        """What could not be read at the last look."""
        return self._loading.problems

    def close(self) -> None:
        """Stop reading, wait until that has stopped, and remove the links and copies."""
        self._closing.close()


class _Loading:
    """Keeps the loader up to date with the board's places, in threads of its own."""

    def __init__(
        self,
        board: Board,
        samples: Mapping[str, int],
        seconds: float,
        directory: Path,
        records: Records | None,
        told: Told | None,
    ) -> None:
        self._sources = [member.source for member in board.members]
        self._records = records
        self._told = told
        self._began = time.monotonic()
        self.loader = RunLoader(samples)
        self.loaded = threading.Event()
        self._rhythm = Rhythm(seconds, seconds)
        self._wake = threading.Event()
        self._done = threading.Event()
        self._asked = time.monotonic()
        self._mirrors: list[MirrorFollower] = []
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
            places.append(Place(member, place))
        self.tree = LogTree(board, places, directory / "logs", records)
        self._expected = len(mirrors)
        self._thread = threading.Thread(target=self._run, name="aboard-stock", daemon=True)
        for number, mirror in enumerate(mirrors):
            follower = MirrorFollower(mirror, seconds, self._noting(number), self.unwatched)
            self._mirrors.append(follower)
        self._thread.start()

    @property
    def problems(self) -> list[StorageError]:
        found = list(self.tree.problems)
        for update in list(self._updates.values()):
            found += update.problems
        return found

    def asked(self) -> None:
        """Note that somebody looks."""
        slept = self.unwatched()
        self._asked = time.monotonic()
        if slept:
            self._wake.set()
            for mirror in self._mirrors:
                mirror.wake()

    def unwatched(self) -> bool:
        """Say whether nobody has asked for a while."""
        return time.monotonic() - self._asked > UNWATCHED_SECONDS

    def close(self) -> None:
        self._done.set()
        self.loader.stop()
        self._wake.set()
        for mirror in self._mirrors:
            mirror.close()
        self._thread.join()

    def _noting(self, number: int) -> Callable[[Update], None]:
        def note(update: Update) -> None:
            is_first = number not in self._updates
            self._updates[number] = update
            if is_first or update.changed:
                self._wake.set()

        return note

    def _run(self) -> None:
        while not self._done.is_set():
            complete = len(self._updates) == self._expected
            started = time.monotonic()
            self._refresh_records()
            runs = self.tree.update()
            wait = self._rhythm.after(changed=False, cost=time.monotonic() - started)
            tell = _tell_nobody if self.loaded.is_set() else self._tell  # one call for each run
            try:
                self.loader.load({name: self.tree.path_of(name) for name in runs}, tell)
            except Exception:
                _logger.exception("TensorBoard's loader failed")
            if complete and not self._done.is_set():
                self.loaded.set()
            self._report()
            self._tell(len(runs))
            self._wake.wait(wait)
            self._wake.clear()
            while self.unwatched() and not self._done.is_set():
                self._wake.wait(1.0)
                self._wake.clear()

    def _refresh_records(self) -> None:
        if self._records is None:
            return
        for source in self._sources:
            with suppress(StorageError):  # which the tree reports
                self._records.refresh(source)

    def _tell(self, read: int) -> None:
        """Tell whoever wants to know how far the reading is."""
        if self._told is not None:
            seconds, loaded = time.monotonic() - self._began, self.loaded.is_set()
            tree = self.tree
            self._told(StockState(tree.found, len(tree.runs), read, seconds, loaded))

    def _report(self) -> None:
        """Say each problem once, for as long as it lasts."""
        current = {str(problem) for problem in self.problems}
        for line in sorted(current - self._reported):
            _logger.warning("%s", line)
        self._reported = current


class _Provider(data_provider.MultiplexerDataProvider):  # type: ignore[misc]
    """TensorBoard's provider over its loader, which tells of the board and not of the links."""

    def __init__(self, board: Board, loader: RunLoader) -> None:
        super().__init__(loader, board.location)
        self._board = board

    def experiment_metadata(self, ctx: object = None, *, experiment_id: str) -> Any:  # noqa: ARG002
        """Tell where the board's data is."""
        return tb.ExperimentMetadata(
            data_location=self._board.location, experiment_name=self._board.title
        )


def _tensorboard(
    board: Board, samples: Mapping[str, int], loading: _Loading, assets: Assets
) -> Any:
    """Make TensorBoard's own application with all its plugins."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    loaders = all_plugins(loading.tree.directories)
    flags = make_flags(
        loaders,
        logdir=str(loading.tree.root),
        path_prefix="",
        samples_per_plugin={plugin: count or sys.maxsize for plugin, count in samples.items()},
        window_title=board.title,
    )
    provider = _Provider(board, loading.loader)
    return application.TensorBoardWSGIApp(
        flags, loaders, provider, assets.index_archive, deprecated_multiplexer=loading.loader
    )


class _StockBoard:
    """What is at `/b/<board>/…`."""

    def __init__(
        self, board: Board, wsgi: ASGIApp, assets: Assets, asked: Asked, loader: RunLoader
    ) -> None:
        self._board = board
        self._wsgi = wsgi
        self._assets = assets
        self._asked = asked
        self._loader = loader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        board = self._board
        path = inner_path(scope)
        if scope["path_params"]["board"] != board.id or scope["type"] != "http":
            await NOT_FOUND(scope, receive, send)
        elif path != INDEX and path in self._assets:
            request = Request(scope, receive)
            await serve_asset(self._assets.get(path), request)(scope, receive, send)
        elif path == "data/logdir":
            # TensorBoard would name our directory of links.
            location = orjson.dumps({"logdir": board.location})
            answer = Response(location, media_type="application/json")
            await answer(scope, receive, send)
        elif path == VERSION:
            self._asked(board.id)
            word = version_word(self._loader.changes)
            await Response(word, media_type="application/json")(scope, receive, send)
        else:
            if path.startswith("data/") or path in ("", INDEX):
                self._asked(board.id)
            await self._wsgi(tensorboard_scope(scope, board.id, path), receive, send)


def _tell_nobody(count: int) -> None:
    """Take no notice of how many runs are read."""
