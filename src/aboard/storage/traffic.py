"""Counts of the requests to each bucket, and of the bytes they transferred.

One thread-safe count per process; the index persists the numbers. Requests that the object store
library retries count once, and listings as one request per thousand names.
"""

import threading
from collections import defaultdict
from typing import Literal, NamedTuple

from aboard.storage.uri import canonical

Kind = Literal["list", "read", "write", "delete"]  # `list` counts pages; `read` includes HEAD

_PART = 5 << 20


class Traffic(NamedTuple):
    """Requests and bytes: received for reads, sent for writes."""

    requests: int = 0
    bytes: int = 0


Counts = dict[tuple[str, Kind], Traffic]  # by bucket, as `bucket_of` writes it

_lock = threading.Lock()
_total: defaultdict[tuple[str, Kind], Traffic] = defaultdict(Traffic)
_untaken: defaultdict[tuple[str, Kind], Traffic] = defaultdict(Traffic)


def bucket_of(uri: str) -> str:
    """Return the bucket that a remote URI names: `s3://logs` for `s3://logs/a/b`."""
    return "/".join(canonical(uri).split("/")[:3])


def count(bucket: str, kind: Kind, requests: int = 1, size: int = 0) -> None:
    with _lock:
        for counts in (_total, _untaken):
            before = counts[bucket, kind]
            counts[bucket, kind] = Traffic(before.requests + requests, before.bytes + size)


def upload_requests(size: int) -> int:
    return 1 if size <= _PART else 2 + -(-size // _PART)


def snapshot() -> Counts:
    with _lock:
        return dict(_total)


def take() -> Counts:
    with _lock:
        taken = dict(_untaken)
        _untaken.clear()
        return taken


def give_back(counts: Counts) -> None:
    """Undo a `take` whose counts could not be saved."""
    with _lock:
        for key, one in counts.items():
            before = _untaken[key]
            _untaken[key] = Traffic(before.requests + one.requests, before.bytes + one.bytes)
