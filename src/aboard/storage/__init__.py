"""A place with files, whatever is behind it: a disk, a network file system, or a bucket.

`open_storage` opens one. Nothing of a cloud is imported until a cloud's URI is opened.
"""

from aboard.storage.base import (
    AlreadyExists,
    BadUri,
    Changed,
    Entry,
    NoCredentials,
    NoSuchBucket,
    NoSuchPath,
    PermissionDenied,
    Storage,
    StorageError,
    StorageFull,
    UnknownScheme,
    Unreachable,
    Unreadable,
    Unsupported,
)
from aboard.storage.uri import canonical, is_below, is_remote, join, open_storage, split

__all__ = [
    "AlreadyExists",
    "BadUri",
    "Changed",
    "Entry",
    "NoCredentials",
    "NoSuchBucket",
    "NoSuchPath",
    "PermissionDenied",
    "Storage",
    "StorageError",
    "StorageFull",
    "UnknownScheme",
    "Unreachable",
    "Unreadable",
    "Unsupported",
    "canonical",
    "is_below",
    "is_remote",
    "join",
    "open_storage",
    "split",
]
