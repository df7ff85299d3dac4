"""A place with files, whatever is behind it: a disk, a network file system, or a bucket.

Callers open one with `open_storage` and then use the same seven verbs everywhere. Nothing here
knows what the files mean, and nothing of a cloud is imported until a cloud's URI is opened.
"""

from aboard.storage.base import (
    AlreadyExists,
    BadUri,
    Entry,
    NoCredentials,
    NoSuchBucket,
    NotFound,
    PermissionDenied,
    Storage,
    StorageError,
    StorageFull,
    UnknownScheme,
    Unreachable,
    Unreadable,
)
from aboard.storage.uri import canonical, is_below, is_remote, join, open_storage, split

__all__ = [
    "AlreadyExists",
    "BadUri",
    "Entry",
    "NoCredentials",
    "NoSuchBucket",
    "NotFound",
    "PermissionDenied",
    "Storage",
    "StorageError",
    "StorageFull",
    "UnknownScheme",
    "Unreachable",
    "Unreadable",
    "canonical",
    "is_below",
    "is_remote",
    "join",
    "open_storage",
    "split",
]
