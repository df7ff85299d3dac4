"""The hub's log: one JSON document per line, without queries, links and other secrets."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any, TextIO

from aboard.hub.auth import SHARE_MARK, TOKEN_MARK
from aboard.runs.manifest import format_time

_requests = logging.getLogger("aboard.hub.requests")
_SECRET = re.compile(f"({TOKEN_MARK}|{SHARE_MARK})[A-Za-z0-9_-]+")
_FIELDS = ("method", "path", "status", "ms", "user", "client")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "at": format_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        document |= {name: vars(record)[name] for name in _FIELDS if name in vars(record)}
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


def configure_log(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    writing = logging.StreamHandler(stream or sys.stderr)
    writing.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [writing]
    root.setLevel(logging.WARNING)
    logging.getLogger("aboard").setLevel(level)


def without_secrets(path: str) -> str:
    return "/s/…" if path.startswith("/s/") else _SECRET.sub(r"\1…", path)[:500]


def note_request(
    method: str, path: str, status: int, seconds: float, user: str, client: str, *, minor: bool
) -> None:
    level = logging.DEBUG if minor and status < 400 else logging.INFO
    if _requests.isEnabledFor(level):
        shown = without_secrets(path)
        values = (method, shown, status, round(seconds * 1000, 1), user, client)
        extra = dict(zip(_FIELDS, values, strict=True))
        _requests.log(level, "%s %s %d", method, shown, status, extra=extra)
