"""Hashing of passwords in separate threads, so that password guessing does not slow other requests.

A hash takes a core for a fifth of a second, and 64 MiB. There are fewer threads than cores, at a
low priority, with a bounded queue. Each address and account has a bounded share of the queue, and
the first password of one source comes before the second of another. Hashing releases the
interpreter lock. Sessions are left to `auth`.
"""

from __future__ import annotations

import heapq
import ipaddress
import itertools
import os
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aboard.boards.errors import BadValue, BoardsError
from aboard.boards.model import is_plain
from aboard.web.gate import Throttle

if TYPE_CHECKING:
    from argon2 import PasswordHasher

# The second recommended option of RFC 9106, for little memory, on one core.
STRENGTH: dict[str, Any] = {"time_cost": 3, "memory_cost": 64 << 10, "parallelism": 1}
SHORTEST_PASSWORD, LONGEST_PASSWORD = 8, 1024
MAX_QUEUED = 64
MAX_SHARE = 8  # of the queue, for one source: an address or an account
_LOW_PRIORITY = 10  # nice value: on a busy machine the thread still gets the interpreter lock
_MAX_SOURCES = 10_000
_IPV6_PREFIX = 64  # a client can use every address of such a network

Result = TypeVar("Result")


class TooManyAttempts(BoardsError):  # noqa: N818 - named by what is wrong
    """A password that was not compared because of too many attempts."""

    code = "too_many_attempts"

    def __init__(self) -> None:
        super().__init__("too many wrong passwords.", "Wait a minute, then try again.")


class _Job(NamedTuple):
    share: int  # jobs of its source before it: the first of a source precedes others' second
    number: int
    future: Future[Any]
    work: Callable[[], Any]


class Passwords:
    """The hashing threads of a hub. `sources` are the address and the account of a password."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        if hasher is None:
            from argon2 import PasswordHasher

            hasher = PasswordHasher(**STRENGTH)
        self._hasher = hasher
        self._threads = ThreadPoolExecutor(
            lane_width(), "aboard-passwords", initializer=_lower_priority
        )
        self._lock = threading.Lock()  # guards the three below
        self._shares: Counter[str] = Counter()
        self._queued = 0
        self._waiting: list[_Job] = []  # a heap
        self._numbers = itertools.count()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            left = list(self._waiting)
        for job in left:
            job.future.cancel()

    def verify(self, stored: str | None, password: str, sources: Iterable[str]) -> Future[bool]:
        """Compare a password; without a stored hash, it is False after the same time."""
        return self._submit(lambda: self._verify(stored, password), sources)

    def hash(self, password: str, sources: Iterable[str]) -> Future[str]:
        """Hash a new password, or raise `BadValue`."""
        if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD or not is_plain(password):
            raise BadValue(
                "invalid password.",
                f"Use {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters.",
            )
        return self._submit(lambda: self._hasher.hash(password), sources)

    def is_outdated(self, stored: str) -> bool:
        return self._hasher.check_needs_rehash(stored)

    def _submit(self, work: Callable[[], Result], sources: Iterable[str]) -> Future[Result]:
        named = set(sources)
        future: Future[Result] = Future()
        with self._lock:
            share = max((self._shares[one] for one in named), default=0)
            if self._queued >= MAX_QUEUED or share >= MAX_SHARE:
                raise TooManyAttempts
            self._queued += 1
            self._shares.update(named)
            heapq.heappush(self._waiting, _Job(share, next(self._numbers), future, work))

        def leave(_: Future[Result]) -> None:
            with self._lock:
                self._queued -= 1
                self._shares -= Counter(named)

        future.add_done_callback(leave)
        self._threads.submit(self._work)
        return future

    def _work(self) -> None:
        with self._lock:
            job = heapq.heappop(self._waiting)
        if not job.future.set_running_or_notify_cancel():
            return
        try:
            job.future.set_result(job.work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            job.future.set_exception(error)

    def _verify(self, stored: str | None, password: str) -> bool:
        from argon2.exceptions import InvalidHashError, VerificationError

        dummy = self._dummy  # always, because the first access is slow
        if len(password) > LONGEST_PASSWORD or not is_plain(password):
            return False
        try:
            return self._hasher.verify(stored or dummy, password) and stored is not None
        except (VerificationError, InvalidHashError):
            return False

    @cached_property
    def _dummy(self) -> str:
        return self._hasher.hash(secrets.token_urlsafe(16))


class Turns:
    """Limits attempts per address and per account, like `Throttle.turn`.

    Each source has its own turns, so that an attacker uses up only those of its address and of the
    account under attack. Only the most recent sources are remembered.
    """

    def __init__(self, throttle: Throttle) -> None:
        self._like = throttle
        self._throttles: OrderedDict[str, Throttle] = OrderedDict()

    async def take(self, sources: Iterable[str]) -> Callable[[], None]:
        """Wait for a turn of every source; return a function that gives the turns back."""
        taken: list[Throttle] = []

        def give_back() -> None:
            for one in taken:
                one.give_back()

        for source in sources:
            throttle = self._throttles.pop(source, None) or replace(self._like)
            self._throttles[source] = throttle
            if len(self._throttles) > _MAX_SOURCES:
                self._throttles.popitem(last=False)
            if not await throttle.turn():
                give_back()
                raise TooManyAttempts
            taken.append(throttle)
        return give_back


def sources_of(address: str, account: str) -> list[str]:
    """Return the sources of a login: its network and its account."""
    with suppress(ValueError):
        known = ipaddress.ip_address(address.partition("%")[0])
        if known.version == 6:
            address = str(ipaddress.ip_network((known, _IPV6_PREFIX), strict=False))
    return [f"from {address}", f"as {account[:100]}"]


def lane_width() -> int:
    """Return how many hashes are computed at once: fewer than the cores, and at most two."""
    return max(1, min(2, (os.cpu_count() or 1) - 1))


def _lower_priority() -> None:
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
