"""The pool of worker processes for TensorBoard's plugins, with deadlines and fair shares.

A pattern in a request or an odd text can keep a plugin busy for hours, and a thread cannot be
killed. So each call runs in a process of `worker`, which is killed and replaced when the call
exceeds its deadline or its client disconnects. A call that was too slow is refused for a while. A
board gets at most half of the workers, a visitor all but one, and a visitor whose call to a board
was too slow gets one for this board. Waiting calls take turns. Workers start on demand and exit
when idle.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import json
import logging
import math
import os
import pickle
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from aboard.index import Index
from aboard.storage.local import confinement
from aboard.storage.settings import profiles
from aboard.system import find_process, own_directory
from aboard.tensorboard.board import Board, Listing
from aboard.tensorboard.provider import Boards
from aboard.tensorboard.worker import (
    BODY,
    END,
    FORK,
    FRAME,
    KILL,
    LARGEST_FRAME,
    LENGTH,
    LOG,
    MEMORY_BYTES,
    ORDER,
    READY,
    SLOW_DOWN,
    START,
    Call,
    IndexFile,
    Setup,
    Work,
)
from aboard.web.gate import MAX_BOARD_BODY_BYTES
from aboard.web.pages import Problem

DEADLINE = 15.0  # seconds of CPU time for a call
_WALL = 4  # times the deadline of wall time, if the machine or the storage is busy
_CHECK_SECONDS = 0.5
_SLOW_AFTER = 1.0  # then a call gets a lower priority
_END_SECONDS = 0.5
_START_SECONDS = 60.0  # the machine may be busy
_QUEUE_SECONDS = 30.0
_REFUSE_SECONDS = 60.0  # for a call that was too slow
_IDLE_SECONDS = 60.0
_MOST_REFUSED = 1024
_MOST_WAITING = 512
_MOST_WAITING_OF_ONE = 64
_MOST_HELD_BYTES = 128 << 20  # of request bodies in memory
_MOST_HELD_BYTES_OF_ONE = MAX_BOARD_BODY_BYTES  # per visitor
_BOARDS_OF_WORKER = 8
_IN_MEMORY_BYTES = 1 << 20  # of a response; a longer one is in a temporary file
_MOST_RESPONSE_BYTES = 1 << 30
_READ_BYTES = 256 << 10
_PROGRAM = "from aboard.tensorboard.worker import main; main({})"

_log = logging.getLogger(__name__)


def worker_count() -> int:
    return max(4, min(os.cpu_count() or 1, 8))


class Refusal(Exception):
    """A call that is refused, with the response to its client."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def _busy(reason: str) -> Refusal:
    return Refusal(Problem(503, "busy", reason, "Try again in 5 seconds.", _retry_after(5)))


def _too_slow(board: str, path: str, deadline: float, seconds: float) -> Refusal:
    return Refusal(
        Problem(
            504,
            "too_slow",
            f"TensorBoard needs more than {deadline:g} seconds of CPU time, or"
            f" {_WALL * deadline:g} seconds in total, for {path[:200]} of board {board}.",
            "It was stopped, and the same request is refused for a minute. Request less data, or"
            " remove the text or pattern that takes so long. `aboard view --engine stock` shows the"
            " same data without a time limit.",
            _retry_after(seconds),
        )
    )


def _ended(board: str, path: str, reason: str, seconds: float) -> Refusal:
    return Refusal(
        Problem(
            503,
            "worker_ended",
            f"TensorBoard could not answer {path[:200]} of board {board}: {reason}.",
            "Request less data, or use `aboard view --engine stock`.",
            _retry_after(seconds),
        )
    )


def _retry_after(seconds: float) -> tuple[tuple[str, str], ...]:
    return (("retry-after", str(max(1, round(seconds)))),)


class Failed(Exception):
    """A plugin raised an unexpected error; the log has the traceback."""


@dataclass
class Answer:
    """The response of a worker; `body` can be read once."""

    status: int
    headers: list[tuple[str, str]]
    body: IO[bytes] = field(repr=False)
    size: int = 0
    is_complete: bool = True  # all values could be read


@dataclass(eq=False)
class Ticket:
    """A call's place in the queue."""

    board: str
    visitor: str
    is_running: bool = False

    @property
    def lane(self) -> tuple[str, str]:
        return self.board, self.visitor


class Turns:
    """Admits at most `most` calls at a time, and no more than the share of a board or visitor."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._running: Counter[tuple[str, str]] = Counter()  # by lane
        self._total = 0
        self._lanes: OrderedDict[tuple[str, str], deque[tuple[Ticket, asyncio.Future[None]]]]
        self._lanes = OrderedDict()
        self._waiting = 0
        self._slow: dict[tuple[str, str], float] = {}  # until when lanes get only one worker

    @asynccontextmanager
    async def turn(self, ticket: Ticket) -> AsyncIterator[None]:
        await self._wait(ticket)
        ticket.is_running = True
        try:
            yield
        finally:
            self._end(ticket)

    def was_slow(self, ticket: Ticket) -> None:
        """Limit the visitor of a slow call to one worker for its board, for a while."""
        now = self._clock()
        self._slow = {lane: until for lane, until in self._slow.items() if until > now}
        self._slow[ticket.lane] = now + _REFUSE_SECONDS

    def _has_room(self, lane: tuple[str, str]) -> bool:
        board, visitor = lane
        if self._slow.get(lane, 0.0) > self._clock() and self._running[lane]:
            return False
        of_board = sum(count for one, count in self._running.items() if one[0] == board)
        of_visitor = sum(count for one, count in self._running.items() if one[1] == visitor)
        most_of_visitor = max(1, self._most - 1) if visitor else self._most
        return of_board < max(1, self._most // 2) and of_visitor < most_of_visitor

    def _end(self, ticket: Ticket) -> None:
        self._total -= 1
        self._running[ticket.lane] -= 1
        self._running = +self._running
        self._admit()

    async def _wait(self, ticket: Ticket) -> None:
        lane = ticket.lane
        queue = self._lanes.get(lane, deque())
        if self._waiting >= _MOST_WAITING or len(queue) >= _MOST_WAITING_OF_ONE:
            raise _busy("Too many requests for TensorBoard's plugins are waiting.")
        self._lanes[lane] = queue
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append((ticket, turn))
        self._waiting += 1
        self._admit()
        try:
            async with asyncio.timeout(_QUEUE_SECONDS):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # admitted and cancelled at the same time
                self._end(ticket)
            else:
                with suppress(ValueError):
                    queue.remove((ticket, turn))
                    self._waiting -= 1
                if not queue and self._lanes.get(lane) is queue:  # a new queue may have replaced it
                    del self._lanes[lane]
            if isinstance(error, TimeoutError):
                raise _busy(
                    f"All workers that board {ticket.board} may use were busy for"
                    f" {_QUEUE_SECONDS:g} seconds."
                ) from None
            raise

    def _admit(self) -> None:
        """Admit waiting calls, one from each lane in turn."""
        lanes = deque(self._lanes)
        while lanes and self._total < self._most:
            lane = lanes.popleft()
            queue = self._lanes[lane]
            while queue and queue[0][1].done():
                queue.popleft()
                self._waiting -= 1
            if queue and self._has_room(lane):
                _, turn = queue.popleft()
                self._waiting -= 1
                self._total += 1
                self._running[lane] += 1
                turn.set_result(None)
                self._lanes.move_to_end(lane)
                lanes.append(lane)
            if not queue:
                self._lanes.pop(lane, None)
                with suppress(ValueError):
                    lanes.remove(lane)


class ForkServer:
    """The process that forks workers, one for all pools of a process; started on demand.

    `program` is its Python code, with `{}` for the descriptor of its socket.
    """

    def __init__(self, program: str = _PROGRAM) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._numbers = itertools.count(1)

    def start(self) -> None:
        with self._lock:
            self._running()

    def fork(self) -> tuple[int, socket.socket]:
        """Order a worker; return its number and its socket, on which it sends READY.

        If it cannot be started, the other end of the socket is closed.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs, self._lock:
            number = next(self._numbers)
            for _ in range(2):
                try:
                    socket.send_fds(self._running(), [ORDER.pack(FORK, number)], [theirs.fileno()])
                    break
                except OSError:
                    self._stop()
        return number, ours

    def kill(self, number: int) -> None:
        self._order(KILL, number)

    def slow_down(self, number: int) -> None:
        self._order(SLOW_DOWN, number)

    def close(self) -> None:
        """Stop the process and all workers."""
        with self._lock:
            self._stop()

    def _order(self, order: bytes, number: int) -> None:
        with self._lock, suppress(OSError):
            if self._control is not None:
                self._control.send(ORDER.pack(order, number))

    def _running(self) -> socket.socket:
        if self._control is not None and self._process is not None:
            if self._process.poll() is None:
                return self._control
            self._stop()
        control, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        # One thread only, because a fork copies no others.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with theirs, ExitStack() as undoing:
            undoing.enter_context(control)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", self._program.format(descriptor)],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
            )
            undoing.pop_all()
        self._control = control
        return control

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(_END_SECONDS)  # it kills its workers and exits
            except subprocess.TimeoutExpired:
                self._process.kill()  # it is still importing
                self._process.wait()
        self._process = self._control = None


_fork_server = ForkServer()
atexit.register(_fork_server.close)


class _Gone(Exception):
    """A worker has exited or violated the protocol."""


class _Worker:
    """A worker process, used by one call at a time."""

    def __init__(self) -> None:
        self._number, self._socket = _fork_server.fork()
        self._pid = 0
        self._buffer = bytearray()
        self._setup: Setup | None = None
        self.boards: OrderedDict[str, tuple[Listing, Board]] = OrderedDict()  # that it has
        self.calls = 0
        self.idle_since = 0.0
        self.is_slow = False
        self.must_retire = False

    def kill(self) -> None:
        self._socket.close()
        _fork_server.kill(self._number)

    def slow_down(self) -> None:
        self.is_slow = True
        _fork_server.slow_down(self._number)

    async def ready(self) -> None:
        kind, content = await self._frame()
        pid = _document(content).get("pid") if kind == READY else None
        if not isinstance(pid, int):
            raise _Gone
        self._pid = pid

    def computed(self) -> float:
        """Return the seconds of CPU time that it has used; infinite if unknown."""
        try:
            process = find_process(self._pid)
        except OSError:
            return math.inf
        return math.inf if process is None else process.computed

    async def call(
        self,
        setup: Setup,
        listing: Listing,
        work: Work,
    ) -> Answer:
        self.calls += 1
        is_new_setup = self._setup != setup
        if is_new_setup:
            self.boards.clear()
            self._setup = setup
        board = listing.board
        held = self.boards.get(board.id, (None, None))
        has_board = held[1] is board and held[0] is listing
        pickled = None if has_board else await asyncio.to_thread(lambda: board.pickled)
        self.boards[board.id] = listing, board
        self.boards.move_to_end(board.id)
        dropped = []
        while len(self.boards) > _BOARDS_OF_WORKER:
            dropped.append(self.boards.popitem(last=False)[0])
        call = Call(
            setup if is_new_setup else None,
            board.id,
            pickled,
            held[0] is not listing,
            tuple(dropped),
            work,
        )
        content = pickle.dumps(call, pickle.HIGHEST_PROTOCOL)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._socket, LENGTH.pack(len(content)))
            await loop.sock_sendall(self._socket, content)
        except OSError:
            raise _Gone from None
        return await self._answer()

    async def _answer(self) -> Answer:
        answer: Answer | None = None
        with ExitStack() as undoing:
            body = undoing.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES))
            while True:
                kind, content = await self._frame()
                if kind == BODY and answer is not None:
                    answer.size += len(content)
                    if answer.size > _MOST_RESPONSE_BYTES:
                        raise _LargeResponse
                    body.write(content)
                elif kind == START and answer is None:
                    answer = _started(content, body)
                elif kind == END:
                    break
                else:
                    raise _Gone
            end = _document(content)
            self.must_retire = bool(end.get("retire"))
            if end.get("error") == "memory":
                raise _NoMemory
            if "error" in end or answer is None:
                raise Failed(str(end.get("error")))
            answer.is_complete = bool(end.get("complete"))
            body.seek(0)
            undoing.pop_all()
            return answer

    async def _frame(self) -> tuple[bytes, bytes]:
        """Return the next frame that is not a log record."""
        while True:
            kind, length = FRAME.unpack(await self._read(FRAME.size))
            if length > LARGEST_FRAME:
                raise _Gone
            content = await self._read(length)
            if kind != LOG:
                return kind, content
            record = _document(content)
            logger = logging.getLogger(str(record.get("name")))
            level = record.get("level")
            logger.log(level if isinstance(level, int) else logging.WARNING, "%s",
                       record.get("message"))  # fmt: skip

    async def _read(self, count: int) -> bytes:
        loop = asyncio.get_running_loop()
        while len(self._buffer) < count:
            try:
                more = await loop.sock_recv(self._socket, _READ_BYTES)
            except OSError:
                more = b""
            if not more:
                raise _Gone
            self._buffer += more
        content = bytes(self._buffer[:count])
        del self._buffer[:count]
        return content


async def _end_when_due(worker: _Worker, deadline: float, limit: asyncio.Timeout) -> None:
    """Expire a limit when a worker has used up its CPU time."""
    before = worker.computed()
    await asyncio.sleep(deadline)
    # The kernel counts in ticks and misses some.
    while worker.computed() - before < deadline - _CHECK_SECONDS:
        await asyncio.sleep(_CHECK_SECONDS)
    limit.reschedule(asyncio.get_running_loop().time())


class _NoMemory(Exception):
    pass


class _LargeResponse(Exception):
    pass


def _document(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError:
        raise _Gone from None
    if not isinstance(document, dict):
        raise _Gone
    return document


def _started(content: bytes, body: IO[bytes]) -> Answer:
    head = _document(content)
    try:
        headers = [(str(name), str(value)) for name, value in head["headers"]]
        return Answer(int(head["status"]), headers, body)
    except (LookupError, TypeError, ValueError):
        raise _Gone from None


class WorkerPool:
    """The workers of an application, used in one event loop.

    Tests pass a shorter `deadline`.
    """

    def __init__(
        self,
        boards: Boards,
        samples: Mapping[str, int],
        *,
        workers: int | None = None,
        deadline: float = DEADLINE,
    ) -> None:
        self._boards = boards
        self._samples = dict(samples)
        self._secret = secrets.token_bytes(32)
        self._environment = dict(os.environ)
        self._index_file = _SharedIndex(boards.index)
        self._deadline = deadline
        self._turns = Turns(workers or worker_count())
        self._idle: list[_Worker] = []  # most recently used last
        self._busy: set[_Worker] = set()
        # By digest: until when, and the response.
        self._refused: OrderedDict[bytes, tuple[float, Callable[[float], Refusal]]] = OrderedDict()
        self._held: Counter[str] = Counter()  # bytes of bodies, by visitor
        self._reaping: asyncio.TimerHandle | None = None
        self._is_closed = False

    def warm_up(self) -> None:
        """Start the fork server, which imports TensorBoard, because a call will follow soon."""
        with suppress(OSError):  # the call will report it
            _fork_server.start()

    @property
    def size(self) -> int:
        return len(self._idle) + len(self._busy)

    def close(self) -> None:
        """Kill the workers."""
        self._is_closed = True
        if self._reaping is not None:
            self._reaping.cancel()
        for worker in (*self._idle, *self._busy):
            worker.kill()
        self._idle.clear()
        self._busy.clear()
        self._index_file.close()

    @contextmanager
    def hold(self, visitor: str) -> Iterator[Callable[[int], None]]:
        """Count the bytes of a request's body until the context exits.

        Yield a function that adds bytes, and raises `Refusal` if there are too many.
        """
        most = _MOST_HELD_BYTES_OF_ONE if visitor else _MOST_HELD_BYTES
        held = 0

        def add(count: int) -> None:
            nonlocal held
            total = self._held.total() + count
            if total > _MOST_HELD_BYTES or self._held[visitor] + count > most:
                raise _busy("Too much data of requests is waiting for TensorBoard's plugins.")
            self._held[visitor] += count
            held += count

        try:
            yield add
        finally:
            self._held[visitor] -= held
            self._held = +self._held

    async def answer(
        self,
        ticket: Ticket,
        listing: Listing,
        digest: bytes,
        work: Work,
    ) -> Answer:
        """Answer a call in a worker.

        Raises:
            Refusal: too many calls are waiting, or this one needs too much time or memory.
            Failed: the plugin raised an error.
        """
        board, path = listing.board.id, work.path
        self._check(digest)
        async with self._turns.turn(ticket):
            self._check(digest)  # an equal call may have been too slow meanwhile
            in_memory = self._boards.index.path is None
            setup = await asyncio.to_thread(self._setup) if in_memory else self._setup()
            try:
                while True:
                    worker = await self._take(board)
                    is_fresh = worker.calls == 0
                    try:
                        return await self._run(worker, setup, listing, work)
                    except _Gone:
                        if is_fresh:
                            raise
                        # It may have exited while idle, so another worker gets the call.
            except TimeoutError:
                _log.warning("%s of board %s took more than %g s and was stopped",
                             path, board, self._deadline)  # fmt: skip
                refusal = partial(_too_slow, board, path, self._deadline)
                raise self._refuse(digest, ticket, refusal) from None
            except _NoMemory:
                limit = f"it needs more than {MEMORY_BYTES >> 20} MB of memory"
                raise self._refuse(digest, ticket, partial(_ended, board, path, limit)) from None
            except _LargeResponse:
                limit = f"the response is larger than {_MOST_RESPONSE_BYTES >> 20} MB"
                raise self._refuse(digest, ticket, partial(_ended, board, path, limit)) from None
            except _Gone:
                reason = "its process exited"
                raise self._refuse(digest, ticket, partial(_ended, board, path, reason)) from None
            except OSError as error:  # no space for a file, process or socket
                reason = (error.strerror or str(error)).lower()
                raise _busy(
                    f"No worker can answer {path[:200]} of board {board}: {reason}."
                ) from error

    async def _run(
        self,
        worker: _Worker,
        setup: Setup,
        listing: Listing,
        work: Work,
    ) -> Answer:
        loop = asyncio.get_running_loop()
        slowing = loop.call_later(_SLOW_AFTER, worker.slow_down)
        self._busy.add(worker)
        answer = None
        limit = asyncio.timeout(_WALL * self._deadline)
        looking = asyncio.ensure_future(_end_when_due(worker, self._deadline, limit))
        try:
            async with limit:
                answer = await worker.call(setup, listing, work)
            return answer
        finally:
            slowing.cancel()
            looking.cancel()
            self._busy.discard(worker)
            if answer is None or worker.is_slow or worker.must_retire or self._is_closed:
                worker.kill()
            else:
                worker.idle_since = loop.time()
                self._idle.append(worker)
                self._reap_later()

    async def _take(self, board_id: str) -> _Worker:
        """Return an idle worker, preferably one that has the board, or a new one."""
        if self._idle:
            known = [worker for worker in self._idle if board_id in worker.boards]
            worker = (known or self._idle)[-1]
            self._idle.remove(worker)
            return worker
        worker = _Worker()
        self._busy.add(worker)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await worker.ready()
        except BaseException as error:
            worker.kill()
            if isinstance(error, (TimeoutError, _Gone)):
                raise _busy("No worker for TensorBoard's plugins can be started.") from None
            raise
        finally:
            self._busy.discard(worker)
        return worker

    def _reap_later(self) -> None:
        if self._reaping is None:
            loop = asyncio.get_running_loop()
            self._reaping = loop.call_later(_IDLE_SECONDS, self._reap)

    def _reap(self) -> None:
        """Kill workers that have been idle for long."""
        self._reaping = None
        oldest = asyncio.get_running_loop().time() - _IDLE_SECONDS
        for worker in [one for one in self._idle if one.idle_since <= oldest]:
            self._idle.remove(worker)
            worker.kill()
        if self._idle:
            self._reap_later()

    def _setup(self) -> Setup:
        library = self._boards.library
        return Setup(
            self._index_file.locate(),
            library.roots,
            library.any_path,
            confinement(),
            profiles(),
            self._environment,
            self._samples,
            self._secret,
        )

    def _check(self, digest: bytes) -> None:
        """Raise the refusal of a call that was stopped within the last minute."""
        if digest not in self._refused:
            return
        until, refusal = self._refused[digest]
        left = until - time.monotonic()
        if left > 0:
            raise refusal(left)
        del self._refused[digest]

    def _refuse(
        self, digest: bytes, ticket: Ticket, refusal: Callable[[float], Refusal]
    ) -> Refusal:
        """Refuse a call for a while; return the refusal."""
        self._turns.was_slow(ticket)
        self._refused[digest] = time.monotonic() + _REFUSE_SECONDS, refusal
        while len(self._refused) > _MOST_REFUSED:
            self._refused.popitem(last=False)
        return refusal(_REFUSE_SECONDS)


class _SharedIndex:
    """The file in which workers find the index; an index in memory is copied to a file."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._closing = ExitStack()
        self._directory: Path | None = None
        self._changes = -1

    def locate(self) -> IndexFile:
        path = self._index.path
        if path is not None:
            with suppress(FileNotFoundError):  # the worker reports it
                status = path.stat()
                return IndexFile(str(path), (status.st_dev, status.st_ino))
            return IndexFile(str(path), ())
        with self._lock:
            if self._directory is None:
                self._directory = self._closing.enter_context(own_directory("aboard-index"))
            before = self._directory / f"{self._changes}.db"
            changes, content = self._index.copy_memory(self._changes)
            if changes != self._changes:
                (self._directory / f"{changes}.db").write_bytes(content)
                before.unlink(missing_ok=True)
                self._changes = changes
            return IndexFile(str(self._directory / f"{changes}.db"), (changes,))

    def close(self) -> None:
        self._closing.close()
