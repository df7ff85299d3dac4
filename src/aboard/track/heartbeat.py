"""The record of a run in progress, and the heartbeat that renews it in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from aboard.runs import manifest
from aboard.runs.manifest import BadManifest, Manifest, plain_values
from aboard.storage import Storage, StorageError
from aboard.track.console import notify

_LAST_BEAT_SECS = 5.0


class RunRecord:
    """The `run.json` of a run in progress; every change also brings it up to date with `catch_up`.

    If it cannot be written, a notice says so once, and the next heartbeat tries again. `clock_lag`
    is how many seconds this host's clock is behind those of earlier attempts, at least.
    """

    def __init__(
        self,
        storage: Storage,
        catch_up: Callable[[Manifest], None],
        attempt: int | None = None,
        *,
        clock_lag: float = 0.0,
    ) -> None:
        self._storage = storage
        self._catch_up = catch_up
        self._attempt = attempt
        self._clock_lag = clock_lag
        self._failed = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start_heartbeat(self, seconds: float) -> None:
        self._thread = threading.Thread(
            target=self._beat, args=(seconds,), name="aboard-heartbeat", daemon=True
        )
        self._thread.start()

    def stop_heartbeat(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_LAST_BEAT_SECS)

    def now(self) -> float:
        """Return the time by a clock that is not behind those of earlier attempts."""
        return time.time() + self._clock_lag

    def hparams(self) -> dict[str, Any] | None:
        try:
            return plain_values(manifest.read(self._storage).hparams)
        except (StorageError, BadManifest):
            return None

    def change(self, change: Callable[[Manifest], None] | None = None) -> None:
        def update(record: Manifest) -> None:
            self._catch_up(record)
            if change is not None:
                change(record)

        try:
            manifest.update(self._storage, update)
        except Exception as error:  # noqa: BLE001 - a training outranks its record
            if not self._failed:
                expected = isinstance(error, (StorageError, BadManifest))
                problem = str(error) if expected else f"{type(error).__name__}: {error}"
                notify(
                    f"the record of the run cannot be written; the training continues. {problem}"
                )
            self._failed = True
        else:
            self._failed = False

    def _beat(self, seconds: float) -> None:
        while not self._stopped.wait(seconds):
            self.change(self._set_heartbeat)

    def _set_heartbeat(self, record: Manifest) -> None:
        if not self._stopped.is_set():  # else this heartbeat is late, and the run has ended
            record.beat(self.now(), self._attempt)
