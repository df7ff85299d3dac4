"""Files on a disk, on a network file system or in a bucket, through one interface.

`open_storage` opens one. Cloud libraries are imported when a cloud's URI is opened.
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
