"""Hyperparameters as a run keeps them: plain values under names, and none that looks secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aboard.runs.values import plain_values
from aboard.track.about import HIDDEN, looks_secret, without_secrets
from aboard.track.say import say_once

if TYPE_CHECKING:
    from aboard.runs.values import HParams


def to_keep(hparams: HParams | None) -> dict[str, Any]:
    """Return hyperparameters as they may be recorded; what is hidden is said once.

    Raises:
        TypeError: they are none.
    """
    plain = {} if hparams is None else plain_values(hparams)
    kept = {name: _shown(name, value) for name, value in plain.items()}
    if hidden := [name for name, value in plain.items() if kept[name] != value]:
        say_once(f"hyperparameters that look secret are kept as {HIDDEN}: {', '.join(hidden)}.")
    return kept


def _shown(name: str, value: Any) -> Any:
    if looks_secret(name):
        return value if value in (None, True, False, "") else HIDDEN
    return without_secrets(value) if isinstance(value, str) else value
