"""When two boards are of the same selection: the key by which the second request finds the first.

The order of selectors says nothing, and neither does naming one twice. What else would make the
page differ is part of the key: the template, the engine, and where the board runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable


def selection_key(
    selectors: Iterable[str], *, template: str = "", engine: str = "fast", on: str = "instant"
) -> str:
    """Return the key of a selection; the owner is not part of it."""
    chosen = sorted({selector.strip() for selector in selectors})
    return digest([chosen, template, engine, on])


def digest(value: object) -> str:
    """Return a digest of plain values, the same wherever they are equal."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
