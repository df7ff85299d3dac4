"""Reading records from the event files that hold them, one by one or many at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING

from aboard.events.records import OVERHEAD, unframe
from aboard.index.query import Pointer, Tag
from aboard.storage.base import Storage
from aboard.storage.uri import is_remote, open_storage, split

if TYPE_CHECKING:
    from aboard.events.decode import Value

_REMOTE_READERS = 16


def read_records(tag: Tag, pointers: Sequence[Pointer]) -> Iterator[Value]:
    """Read records of a tag, in their order; from a bucket, several at a time."""
    if len(pointers) > 1 and is_remote(pointers[0].uri):
        with ThreadPoolExecutor(min(_REMOTE_READERS, len(pointers))) as readers:
            for data in readers.map(_read, pointers):
                yield from _values(tag, data)
    else:
        for pointer in pointers:
            yield from _values(tag, _read(pointer))


def _read(pointer: Pointer) -> bytes:
    directory, name = split(pointer.uri)
    end = pointer.offset + pointer.length + OVERHEAD
    return unframe(_storage(directory).read(name, pointer.offset, end))


@lru_cache(maxsize=64)
def _storage(uri: str) -> Storage:
    return open_storage(uri)


def _values(tag: Tag, data: bytes) -> Iterator[Value]:
    from aboard.events.decode import decode

    metadata = {} if tag.metadata is None else {tag.name: tag.metadata}
    for value in decode(data, metadata):
        if value.tag == tag.name:
            yield value
