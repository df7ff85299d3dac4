"""The heartbeat of a run: its record is renewed in the background for as long as it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from aboard.runs import manifest
from aboard.runs.manifest import BadManifest, Manifest
from aboard.runs.values import plain_values
from aboard.storage import Storage, StorageError
from aboard.track.say import say

_LAST_BEAT_SECS = 5.0


class Record:
    """The `run.json` of a run in progress.

    A record that cannot be written is said once and tried again with the next beat: a training
    goes on without it.
    """

    def __init__(
        self,
        storage: Storage,
        catch_up: Callable[[Manifest], None],
        attempt: int | None = None,
    ) -> None:
        self._storage = storage
        self._catch_up = catch_up
        self._attempt = attempt
        self._failed = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def beat_every(self, seconds: float) -> None:
        """Renew the record at this interval until stopped."""
        self._thread = threading.Thread(
            target=self._beat, args=(seconds,), name="aboard-heartbeat", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Beat no more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_LAST_BEAT_SECS)

    def hparams(self) -> dict[str, Any] | None:
        """Return the hyperparameters that are recorded, or None where that cannot be read."""
        try:
            return plain_values(manifest.read(self._storage).hparams)
        except (StorageError, BadManifest):
            return None

    def change(self, change: Callable[[Manifest], None]) -> None:
        """Change the record, and bring it up to date in the same go."""

        def both(record: Manifest) -> None:
            self._catch_up(record)
            change(record)

        try:
            manifest.update(self._storage, both)
        except Exception as error:  # noqa: BLE001 - a record is not worth a training
            if not self._failed:
                expected = isinstance(error, (StorageError, BadManifest))
                problem = str(error) if expected else f"{type(error).__name__}: {error}"
                say(f"the record of the run cannot be written; the training goes on. {problem}")
            self._failed = True
        else:
            self._failed = False

    def _beat(self, seconds: float) -> None:
        while not self._stopped.wait(seconds):
            self.change(self._beat_once)

    def _beat_once(self, record: Manifest) -> None:
        if not self._stopped.is_set():  # or this beat was held up, and the run has ended
            record.beat(time.time(), self._attempt)
