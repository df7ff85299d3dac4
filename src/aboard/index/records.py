"""Reading records from the event files that hold them, one by one or many at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from aboard.events.records import OVERHEAD, unframe
from aboard.index.series import Pointer
from aboard.index.tags import Tag
from aboard.storage.base import Storage, StorageError
from aboard.storage.uri import is_remote, open_storage, split

if TYPE_CHECKING:
    from aboard.events.decode import Value

_REMOTE_READERS = 16

Unreadable = Callable[[Pointer, Exception], None]


def read_records(
    tag: Tag, pointers: Sequence[Pointer], *, on_error: Unreadable | None = None
) -> Iterator[Value]:
    """Read the value of each record of a tag, in their order; from a bucket, several at a time.

    Of several values in one record the last counts, as it does for scalars. `on_error` is called
    for each record that is gone or changed, and the others are read; without it, the first one
    raises.
    """

    def read(pointer: Pointer) -> list[Value]:
        try:
            return _values(tag, _read(pointer))
        except (StorageError, ValueError) as error:
            if on_error is None:
                raise
            on_error(pointer, error)
            return []

    if len(pointers) > 1 and is_remote(pointers[0].uri):
        yield from _some_ahead(read, pointers)
    else:
        for pointer in pointers:
            yield from read(pointer)


def _some_ahead(
    read: Callable[[Pointer], list[Value]], pointers: Sequence[Pointer]
) -> Iterator[Value]:
    """Read in threads, at most as many records ahead of the caller as there are threads."""
    todo = iter(pointers)
    readers = ThreadPoolExecutor(min(_REMOTE_READERS, len(pointers)))
    try:
        waiting: deque[Future[list[Value]]] = deque(
            readers.submit(read, one) for one in islice(todo, _REMOTE_READERS)
        )
        while waiting:
            values = waiting.popleft().result()
            waiting.extend(readers.submit(read, one) for one in islice(todo, 1))
            yield from values
    finally:
        readers.shutdown(wait=False, cancel_futures=True)


def _read(pointer: Pointer) -> bytes:
    directory, name = split(pointer.uri)
    end = pointer.offset + pointer.length + OVERHEAD
    return unframe(_storage(directory).read(name, pointer.offset, end))


@lru_cache(maxsize=64)
def _storage(uri: str) -> Storage:
    return open_storage(uri)


def _values(tag: Tag, data: bytes) -> list[Value]:
    from aboard.events.decode import decode

    metadata = {} if tag.metadata is None else {tag.name: tag.metadata}
    return [value for value in decode(data, metadata) if value.tag == tag.name][-1:]
