"""Questions to an isolated board: does it answer, and how many runs does it show?"""

from __future__ import annotations

import http.client
import json

from aboard.executors.base import Address

_SECONDS = 5.0
_LARGEST = 64 << 20


def answers(address: Address) -> bool:
    """Say whether a board answers at all."""
    return _ask(address, "data/environment") is not None


def runs_of(address: Address) -> int | None:
    """Return how many runs a board shows; None if it does not say."""
    body = _ask(address, "data/runs")
    try:
        runs = json.loads(body) if body is not None else None
    except ValueError:
        return None
    return len(runs) if isinstance(runs, list) else None


def _ask(address: Address, path: str) -> bytes | None:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_SECONDS)
    headers = {"authorization": f"Bearer {address.token}"}
    try:
        connection.request("GET", f"{address.path}{path}", headers=headers)
        return connection.getresponse().read(_LARGEST)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
