"""The hub's log: one JSON document per line, with what happened and no secret.

Addresses are logged without their queries, and links without what makes them open.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any, TextIO

from aboard.hub.amounts import timestamp
from aboard.hub.auth import SHARE_MARK, TOKEN_MARK

_requests = logging.getLogger("aboard.hub.requests")
_SECRET = re.compile(f"({TOKEN_MARK}|{SHARE_MARK})[A-Za-z0-9_-]+")
_FIELDS = ("method", "path", "status", "ms", "user", "client")


class JsonLines(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        document: dict[str, Any] = {
            "at": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        document |= {name: vars(record)[name] for name in _FIELDS if name in vars(record)}
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


def keep_journal(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Write what this process logs as lines of JSON, to standard error by default."""
    writing = logging.StreamHandler(stream or sys.stderr)
    writing.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [writing]
    root.setLevel(logging.WARNING)
    logging.getLogger("aboard").setLevel(level)


def without_secrets(path: str) -> str:
    """Return a path as it may be logged, wherever in it somebody has pasted a token or a link."""
    return "/s/…" if path.startswith("/s/") else _SECRET.sub(r"\1…", path)[:500]


def note_request(
    method: str, path: str, status: int, seconds: float, user: str, client: str, *, minor: bool
) -> None:
    """Log a request; minor ones only when everything is wanted."""
    level = logging.DEBUG if minor and status < 400 else logging.INFO
    if _requests.isEnabledFor(level):
        shown = without_secrets(path)
        extra = {
            "method": method,
            "path": shown,
            "status": status,
            "ms": round(seconds * 1000, 1),
            "user": user,
            "client": client,
        }
        _requests.log(level, "%s %s %d", method, shown, status, extra=extra)
