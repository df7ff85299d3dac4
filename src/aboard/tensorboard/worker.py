"""The worker process, in which TensorBoard's plugins compute, so that slow calls can be killed.

A hub starts one fork server, which imports TensorBoard once and then forks workers on request. A
worker answers one call at a time over its own socket: it receives pickled calls and sends frames,
which the hub parses and never unpickles. `workers` is the hub's side.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import gzip
import io
import json
import logging
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from aboard.events.messages import keep_tensorflow_out
from aboard.index import Index
from aboard.index.library import Library, Root
from aboard.storage.local import confine
from aboard.storage.settings import set_profile
from aboard.tensorboard.board import Board, Listing
from aboard.tensorboard.provider import (
    BoardDataProvider,
    BoardRequest,
    Boards,
    Signer,
    current_request,
)
from aboard.tensorboard.routes import (
    FAILURES,
    TIME_SERIES,
    HotRoutes,
    json_headers,
    read_requests,
    reason_of,
    status_of,
)

# What a worker may allocate. RLIMIT_DATA counts private memory; RLIMIT_AS would also count mapped
# files and libraries, and RLIMIT_RSS is not enforced.
MEMORY_BYTES = 1 << 30
_RETIRE_BYTES = MEMORY_BYTES // 2  # a worker that has grown to this size exits after its call
_IDLE_SECONDS = 600  # then a fork server without workers exits
_NICE = 5  # above the hub's
_LONGEST_LOG = 4000  # characters; messages may contain parts of requests

# Orders to the fork server: a command and the worker's number. FORK comes with a socket.
ORDER = struct.Struct("!cQ")
FORK, KILL, SLOW_DOWN = b"F", b"K", b"S"

# Frames of a worker: kind and length. READY is sent once, LOG at any time.
FRAME = struct.Struct("!cI")
READY, START, BODY, END, LOG = b"R", b"S", b"B", b"E", b"L"
LARGEST_FRAME = 256 << 10
LENGTH = struct.Struct("!Q")  # before each call


class IndexFile(NamedTuple):
    """The file of the index, and a value that changes when the file is replaced."""

    path: str
    mark: tuple[int, ...]


class Setup(NamedTuple):
    """What a worker must know to answer like the hub's process."""

    index_file: IndexFile
    roots: tuple[Root, ...]
    any_path: bool
    confinement: tuple[str, ...]
    profiles: Mapping[str, Mapping[str, str]]
    environment: Mapping[str, str]
    samples: Mapping[str, int]
    secret: bytes


class Work(NamedTuple):
    """A request to a board; without a scope it is for one of our own routes, with `body` as input.

    `compressed` is whether the client accepts gzip.
    """

    path: str  # below the board
    scope: Mapping[str, Any] | None
    body: bytes
    compressed: bool


class Call(NamedTuple):
    """Work for a worker; it has the setup and the board only if the worker lacks them."""

    setup: Setup | None
    board_id: str
    board: bytes | None  # pickled
    is_new: bool  # discard the state of an earlier board with this id
    dropped: tuple[str, ...]  # boards that the worker should forget
    work: Work


class _Response(NamedTuple):
    status: int
    headers: Iterable[tuple[str, str]]
    body: Iterable[bytes]


# The fork server.


def main(descriptor: int) -> None:
    """Serve the orders from a socket until its other end is closed."""
    # A terminal sends SIGINT to the process group; the hub decides when to exit.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    _import_all()
    gc.collect()
    gc.freeze()  # so that garbage collection in workers does not write to shared pages
    _ForkServer(control).serve()


def _import_all() -> None:
    """Import what workers need, so that they share its memory."""
    import aboard.storage.object  # noqa: F401

    nowhere = Boards(Library(Index(Path(os.devnull), read_only=True)))
    _tensorboard(nowhere, BoardDataProvider(nowhere), {})


class _ForkServer:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pids: dict[int, int] = {}  # of workers by number; only this process reaps them
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        polling = select.poll()
        polling.register(self._control, select.POLLIN)
        polling.register(self._woken, select.POLLIN)
        while True:
            ready = [place for place, _ in polling.poll(_IDLE_SECONDS * 1000)]
            if self._woken.fileno() in ready:
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
            self._reap()
            is_done = self._control.fileno() in ready and not self._execute_order()
            if is_done or not (ready or self._pids):
                break
        signal.set_wakeup_fd(-1)  # workers exit after the socket was closed
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)

    def _execute_order(self) -> bool:
        """Execute one order; return whether there may be more."""
        try:
            order, descriptors, _, _ = socket.recv_fds(self._control, ORDER.size, 1)
        except OSError:
            return False
        if len(order) < ORDER.size:
            return False
        kind, number = ORDER.unpack(order)
        if kind == FORK and descriptors:
            self._fork(number, descriptors[0])
        elif number in self._pids:
            if kind == KILL:
                os.kill(self._pids[number], signal.SIGKILL)
            elif kind == SLOW_DOWN:
                with suppress(OSError):
                    usual = os.getpriority(os.PRIO_PROCESS, 0)
                    os.setpriority(os.PRIO_PROCESS, self._pids[number], usual + _NICE)
        return True

    def _fork(self, number: int, descriptor: int) -> None:
        above = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            pid = -1  # the hub notices that the socket is closed
        if pid == 0:
            self._run_worker(descriptor, above)
        os.close(descriptor)
        if pid > 0:
            self._pids[number] = pid

    def _run_worker(self, descriptor: int, above: int) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (self._control, self._woken, self._wake):
                one.close()
            _exit_with_parent(above)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            work(socket.socket(fileno=descriptor))
            code = 0
        except (BrokenPipeError, ConnectionResetError):
            code = 0  # the hub has exited, or no longer needs this worker
        except BaseException:  # noqa: BLE001 - must not return into the loop of the fork server
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while self._pids:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._pids.clear()
                return
            if pid == 0:
                return
            self._pids = {number: one for number, one in self._pids.items() if one != pid}


def _exit_with_parent(above: int) -> None:
    """Make the kernel kill this process when its parent exits, on Linux."""
    with suppress(AttributeError, OSError):
        death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(death_signal, signal.SIGKILL)
    if os.getppid() != above:
        os._exit(1)


# The worker.


def work(connection: socket.socket) -> None:
    """Answer the calls from a socket until its other end is closed."""
    frames = _Frames(connection)
    logging.getLogger().handlers[:] = [_ForwardLog(frames)]
    frames.send(READY, json.dumps({"pid": os.getpid()}).encode())
    plugins: Plugins | None = None
    with connection.makefile("rb") as calls:
        while head := calls.read(LENGTH.size):
            call: Call = pickle.loads(calls.read(LENGTH.unpack(head)[0]))  # noqa: S301 - the hub's
            end: dict[str, Any] = {}
            try:
                if call.setup is not None:
                    plugins = Plugins(call.setup)
                if plugins is None:
                    raise RuntimeError("a call arrived before the setup")  # noqa: TRY301
                response = plugins.answer(call)
                head_frame = {"status": response.status, "headers": list(response.headers)}
                frames.send(START, json.dumps(head_frame).encode())
                try:
                    for part in response.body:
                        frames.send_all(BODY, part)
                finally:
                    if close := getattr(response.body, "close", None):
                        close()
                end["complete"] = plugins.is_complete
            except MemoryError:
                end["error"] = "memory"
            except ConnectionError:
                raise  # the hub no longer waits for the response
            except Exception as error:  # a plugin may raise anything
                end["error"] = f"{type(error).__name__}: {error}"
                logging.getLogger(__name__).exception("TensorBoard failed at %s", call.work.path)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            end["retire"] = grown > _RETIRE_BYTES or "error" in end
            frames.send(END, json.dumps(end).encode())


class _Frames:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, kind: bytes, content: bytes = b"") -> None:
        with self._lock:
            self._connection.sendall(FRAME.pack(kind, len(content)) + content)

    def send_all(self, kind: bytes, content: bytes) -> None:
        for start in range(0, len(content), LARGEST_FRAME):
            self.send(kind, content[start : start + LARGEST_FRAME])


class _ForwardLog(logging.Handler):
    """Forwards log records to the hub."""

    def __init__(self, frames: _Frames) -> None:
        super().__init__(logging.WARNING)
        self._frames = frames

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)[:_LONGEST_LOG]
        document = {"name": record.name, "level": record.levelno, "message": text}
        with suppress(OSError):
            self._frames.send(LOG, json.dumps(document).encode())


class Plugins:
    """The boards of a hub as a worker sees them, and TensorBoard's application over them."""

    def __init__(self, setup: Setup) -> None:
        os.environ.clear()
        os.environ.update(setup.environment)
        confine(setup.confinement)
        for uri, variables in setup.profiles.items():
            set_profile(uri, variables)
        index = Index(Path(setup.index_file.path), read_only=True)
        self._boards = Boards(Library(index, setup.roots, any_path=setup.any_path))
        provider = BoardDataProvider(self._boards, Signer(setup.secret))
        hot = HotRoutes(self._boards, provider, setup.samples)
        self._tensorboard = _tensorboard(self._boards, provider, setup.samples)
        self._ours = hot.described
        self._time_series = hot.time_series

    def answer(self, call: Call) -> _Response:
        for board_id in call.dropped:
            self._boards.remove(board_id)
        listing = self._boards.get(call.board_id)
        if call.board is not None:
            board: Board = pickle.loads(call.board)  # noqa: S301 - from the hub
            if listing is None or call.is_new:
                self._boards.add(board)
            else:
                listing.show(board)
        listing = self._boards.get(call.board_id)
        if listing is None:
            raise RuntimeError("a call arrived before its board")
        current_request.set(BoardRequest(call.board_id))
        work = call.work
        if work.scope is not None:
            return self._run_application(work)
        body = b"".join(self._own(work, listing))
        if work.compressed:
            body = gzip.compress(body, compresslevel=1, mtime=0)
        return _Response(200, json_headers(compressed=work.compressed), [body])

    @property
    def is_complete(self) -> bool:
        """Whether the last response is complete: all values could be read."""
        request = current_request.get()
        return request is not None and not request.is_incomplete

    def _own(self, work: Work, listing: Listing) -> Iterator[bytes]:
        if work.path == TIME_SERIES:
            yield from self._time_series(listing, read_requests(work.body.decode()))
        else:
            yield from self._ours[work.path](listing)

    def _run_application(self, work: Work) -> _Response:
        from a2wsgi.wsgi import build_environ

        body: Any = io.BytesIO(work.body)
        scope: Any = work.scope
        environ: dict[str, Any] = {**build_environ(scope, body)}
        environ |= {"CONTENT_LENGTH": str(len(work.body)), "wsgi.errors": sys.stderr}
        started: list[tuple[int, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], _: object = None) -> None:
            started[:] = [(int(status.partition(" ")[0]), headers)]

        parts = self._tensorboard(environ, start_response)
        first = next(iter_parts := iter(parts), b"")  # WSGI may call start_response only now
        status, headers = started[0]
        return _Response(status, headers, _Parts(first, iter_parts, parts))


class _Parts:
    """The body of a WSGI application whose first part was already read."""

    def __init__(self, first: bytes, rest: Iterator[bytes], whole: Any) -> None:
        self._first = first
        self._rest = rest
        self.close = getattr(whole, "close", lambda: None)

    def __iter__(self) -> Iterator[bytes]:
        yield self._first
        yield from self._rest


def _tensorboard(boards: Boards, provider: BoardDataProvider, samples: Mapping[str, int]) -> Any:
    keep_tensorflow_out()
    from tensorboard.backend import application

    from aboard.tensorboard.plugins import BoardsProjector, Loader, static_plugins

    flags = argparse.Namespace(
        logdir="", logdir_spec="", path_prefix="", samples_per_plugin=dict(samples), window_title=""
    )
    plugins = [*static_plugins(), Loader(lambda: BoardsProjector(boards))]
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    tensorboard = application.TensorBoardWSGIApp(flags, plugins, provider)

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        try:
            return tensorboard(environ, start_response)
        except FAILURES as error:
            status = status_of(error)
            headers = [("Content-Type", "text/plain; charset=utf-8")]
            start_response(f"{status.value} {status.phrase}", headers)
            return [f"{reason_of(error, environ['PATH_INFO'])}\n".encode()]

    return app
