"""The cost of shipping: bytes sent per byte written, for several kinds of writers.

Uses no network: the storage only counts bytes. After the writes of each interval, one round sends
them. The seconds are the sum over all rounds.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cases import Figures, Result, Sizes, Target

from aboard.events import encode
from aboard.events.records import frame
from aboard.storage import Entry, Storage
from aboard.track.shipping.segments import Ledger
from aboard.track.shipping.upload import Uploader

NAME = "events.out.tfevents.1.bench"
MOST_INTERVALS = 720
"""One hour of intervals of five seconds."""


class Counter(Storage):
    """A storage that counts bytes and keeps nothing."""

    uri = "counter"

    def __init__(self) -> None:
        self.sent = 0
        self.objects: set[str] = set()

    def list(self, *_: object, **__: object) -> Iterator[Entry]:
        return iter(())

    def read(self, *_: object) -> bytes:
        return b""

    def write(self, name: str, data: bytes) -> None:
        self.sent += len(data)
        self.objects.add(name)

    def create_new(self, name: str, data: bytes) -> None:
        self.write(name, data)

    def delete(self, name: str) -> None:
        self.objects.discard(name)


def writers(intervals: int) -> dict[str, Sequence[int]]:
    """Return the bytes that each writer writes in each interval."""
    burst = max(1, intervals // 10)
    return {
        "one scalar per interval": [60] * intervals,
        "2 kB per interval": [2_000] * intervals,
        "50 kB per interval": [50_000] * intervals,
        "1 MB per interval": [1_000_000] * (intervals // 4),
        "bursts of 20 MB": ([20_000_000] + [0] * burst) * 4,
    }


def shipping(sizes: Sizes, cache: Path) -> Result:
    """Bytes sent per byte written."""
    found: dict[str, Figures] = {}
    targets: list[Target] = []
    cache.mkdir(parents=True, exist_ok=True)
    for name, amounts in writers(min(sizes.cold.steps, MOST_INTERVALS)).items():
        with tempfile.TemporaryDirectory(dir=cache) as place:
            found[name], share = _ship(Path(place), amounts)
        title = f"{name}, bytes sent beyond the open segments, per byte written"
        targets.append(Target(title, 1.2, share, at_least=False))
    return Result("shipping", found, targets=targets)


def _ship(place: Path, amounts: Sequence[int]) -> tuple[Figures, float]:
    files, counter = place / "files", Counter()
    files.mkdir()
    Ledger.create(place / "ledger.json")
    entries = Ledger(place / "ledger.json")
    sending = Uploader(files, entries, counter)
    record = frame(encode.event(1.0, 1, [encode.scalar("loss", 1.0)]))
    opened = 0
    seconds: list[float] = []
    with (files / NAME).open("wb", buffering=0) as file:
        file.write(frame(encode.file_version(1.0, "bench")))
        for amount in amounts:
            file.write(record * (amount // len(record)))
            started = time.perf_counter()
            sending.round(last=False)
            seconds.append(time.perf_counter() - started)
            opened += entries.growing[NAME].sent - entries.growing[NAME].start
    sending.round(last=True)
    written = (files / NAME).stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = Figures(sum(seconds), sum(seconds), peak, every=seconds)
    figures.note = (
        f"{counter.sent / written:.2f} bytes sent per byte written ({written / 1e6:,.2f} MB in"
        f" {len(amounts)} intervals, {len(counter.objects)} objects)"
    )
    return figures, max(0, counter.sent - opened) / written


CASES: dict[str, Callable[[Sizes, Path], Result]] = {"shipping": shipping}
