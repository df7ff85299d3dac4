"""Finished answers, kept for whoever asks the same before anything changed.

A page asks for its curves again and again, and so does everybody who looks at the same board;
most of the work is in writing the numbers as JSON and in compressing them. What is kept has a
bound, and what was asked for longest ago goes first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

MOST_BYTES = 16 << 20
_LARGEST_SHARE = 4
_ROOM_OF_ONE = 512
"""What an answer takes beside its body, in bytes."""


class Answers:
    """Bodies of answers, by what was asked.

    Args:
        most_bytes: how much is kept in all; one answer takes a quarter of it at most.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._size = 0
        self._bodies: OrderedDict[Hashable, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> bytes | None:
        """Return an answer that is kept."""
        with self._lock:
            body = self._bodies.get(key)
            if body is not None:
                self._bodies.move_to_end(key)
            return body

    def keep(self, key: Hashable, body: bytes) -> None:
        """Keep an answer, in place of those that were asked for longest ago."""
        if _room(body) > self._most // _LARGEST_SHARE:
            return
        with self._lock:
            before = self._bodies.pop(key, None)
            self._size += _room(body) - (0 if before is None else _room(before))
            self._bodies[key] = body
            while self._size > self._most:
                self._size -= _room(self._bodies.popitem(last=False)[1])


def _room(body: bytes) -> int:
    return len(body) + _ROOM_OF_ONE
