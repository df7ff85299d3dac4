"""Event files that grow while they are shipped, and readers of what arrived."""

import logging
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from aboard.events import encode
from aboard.events.records import frame
from aboard.index import Index
from aboard.index.logs import Logs
from aboard.storage import Changed, Entry, Storage, Unsupported
from aboard.storage.local import LocalStorage
from aboard.track.shipping.segments import Ledger, head_of
from aboard.track.shipping.upload import Round, Uploader
from tests.framing import unframed

EVENTS = "train/events.out.tfevents.1.host"
VERSION = frame(encode.file_version(1.0, "test"))


def scalar_record(step: int, tag: str = "loss") -> bytes:
    return frame(encode.event(float(step), step, [encode.scalar(tag, step * 0.5)]))


def append(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(content)


class CountingStorage(Storage):
    """A directory that counts what it is sent, and fails when it is told to."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.inner = LocalStorage(str(directory))
        self.uri = self.inner.uri
        self.directory = directory
        self.sent: Counter[str] = Counter()
        self.writes: list[tuple[str, int]] = []
        self.conditional = True
        self.noted: Callable[[], None] = lambda: None
        """Called after each write."""
        self.fails: Callable[[str], Exception | None] = lambda name: None

    def list(self, prefix="", *, containing="", on_error=None) -> Iterator[Entry]:
        self._fail("")
        return self.inner.list(prefix, containing=containing, on_error=on_error)

    def read(self, name, start=0, end=None) -> bytes:
        return self.inner.read(name, start, end)

    def write(self, name: str, data: bytes) -> None:
        self._fail(name)
        self.inner.write(name, data)
        self._note(name, data)

    def create_new(self, name: str, data: bytes) -> None:
        self._fail(name)
        self.inner.create_new(name, data)
        self._note(name, data)

    def version(self, name: str) -> str:
        return f"{zlib.crc32(self.inner.read(name)):x}"

    def replace(self, name: str, data: bytes, version: str) -> str:
        self._fail(name)
        if not self.conditional:
            raise Unsupported(name, "no conditions", "")
        if version != self.version(name):
            raise Changed(name, "changed", "")
        self.inner.write(name, data)
        self._note(name, data)
        return self.version(name)

    def has_conditions(self, name: str, data: bytes) -> bool:
        return self.conditional

    def delete(self, name: str) -> None:
        self.inner.delete(name)

    def _note(self, name: str, data: bytes) -> None:
        self.sent[name] += len(data)
        self.writes.append((name, len(data)))
        self.noted()

    @property
    def total(self) -> int:
        return sum(self.sent.values())

    def _fail(self, name: str) -> None:
        if error := self.fails(name):
            raise error


class Spooled:
    """A spool without processes: its files, where they go, and who sends them."""

    def __init__(self, place: Path) -> None:
        self.files = place / "files"
        self.files.mkdir()
        self.target = CountingStorage(place / "target")
        self.path = place / "ledger.json"
        Ledger.create(self.path)
        self.restart()

    def restart(self) -> None:
        """Go on as another process would after a crash."""
        self.uploader = Uploader(self.files, Ledger(self.path), self.target)

    def write(self, name: str, content: bytes) -> None:
        append(self.files / name, content)

    def round(self, *, last: bool = False) -> Round:
        return self.uploader.round(last=last)

    def arrived(self, name: str = EVENTS) -> bytes:
        return joined(self.target.directory, name)

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self.target.inner.list())


def joined(directory: Path, name: str) -> bytes:
    """Return the content of a file of which segments arrived."""
    paths = sorted(directory.glob(f"{name}*"))
    content = paths[0].read_bytes()
    head = head_of(content)
    for path in paths[1:]:
        segment = path.read_bytes()
        assert segment.startswith(head)
        content += segment[len(head) :]
    return content


def steps_in(content: bytes) -> list[int]:
    """Return the steps of a whole event file, in the order in which they were written."""
    from aboard.events.messages import load_protos

    events = [load_protos().event_pb2.Event.FromString(data) for _, data in unframed(content)]
    return [event.step for event in events if event.HasField("summary")]


class StockReader:
    """TensorBoard's own loader, which stays open and looks again, as a board does."""

    def __init__(self, directory: Path) -> None:
        from aboard.events.messages import keep_tensorflow_out

        keep_tensorflow_out()
        from tensorboard.backend.event_processing import plugin_event_accumulator

        logging.getLogger("tensorboard").setLevel(logging.ERROR)
        self._accumulator = plugin_event_accumulator.EventAccumulator(
            str(directory), size_guidance={"tensors": 0}, tensor_size_guidance={"scalars": 0}
        )

    def steps(self, tag: str = "loss") -> list[int]:
        self._accumulator.Reload()
        if tag not in self._accumulator.Tags()["tensors"]:
            return []
        return [event.step for event in self._accumulator.Tensors(tag)]


def indexed_steps(source: str, index: Index, tag: str = "loss") -> list[int]:
    """Return the steps that our index reads, of the only run."""
    logs = Logs(source, index=index)
    assert not logs.damage
    assert not logs.report.problems
    runs = [run.name for run in logs.runs]
    if not runs or not any(one.name == tag for one in logs.tags):
        return []
    return np.asarray(logs.series(runs[0], tag).steps).tolist()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def spools() -> list[Path]:
    return sorted(Path(os.environ["ABOARD_SPOOL"]).glob("*/owner.json"))
