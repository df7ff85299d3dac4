"""Shipping over a simulated network, killed at every line: what was acknowledged stays readable."""

import gc
import inspect
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import CodeType

import pytest

from aboard.runs.manifest import ENDED, FILE_NAME, Manifest, State, newer
from aboard.storage import StorageError
from aboard.track.shipping import segments, shipper, upload
from aboard.track.shipping.segments import Ledger
from aboard.track.shipping.shipper import send_abandoned
from aboard.track.shipping.spool import Spool
from aboard.track.shipping.upload import Uploader
from tests.engines.line_killer import tracer
from tests.track.shipping.network import KINDS, Bucket, Kind
from tests.track.shipping.shipments import (
    VERSION,
    append,
    scalar_record,
    steps_in,
)

EVENTS = "train/events.out.tfevents.1.host"
_SHIPPING = {upload.__file__, segments.__file__, shipper.__file__}
_SCHEDULES = {"conditional": 25, "create-only": 25, "deaf": 15, "refusing": 15, "write-only": 15}


class Killed(BaseException):
    """The process ends at this line."""


def _is_shipping(code: CodeType) -> bool:
    # Python swallows an exception in a generator that it closes by itself.
    return code.co_filename in _SHIPPING and not code.co_flags & inspect.CO_GENERATOR


class SameThread:
    """Runs what is submitted at once, so that a seed tells what happens and kills reach it."""

    def __init__(self, _: int) -> None:
        pass

    def submit(self, work: Callable[..., None], *arguments: object) -> Future[None]:
        done: Future[None] = Future()
        try:
            done.set_result(work(*arguments))
        except (StorageError, OSError) as error:
            done.set_exception(error)
        return done


class Life:
    """One training and its shippers, each of which may be killed; and what they acknowledged."""

    def __init__(self, kind: Kind, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(f"{kind}-{seed}")
        self.bucket = Bucket(kind, self.chance)
        self.kills = 0
        self.steps = 0
        self._torn = b""
        monkeypatch.setattr(shipper, "open_storage", lambda _: self.bucket)
        self.spool = Spool.create(self.bucket.uri, 5)
        self._record = Manifest("run1", "sim")
        self._record.begin(at=1e9, host="host", pid=1)
        self._beat()
        self._log(VERSION)

    # The training.

    def train(self) -> None:
        self._complete()
        for _ in range(self.chance.choice([0, 1, 1, 3, 12])):
            self._log(scalar_record(self.steps))
            self.steps += 1
        if self.chance.random() < 0.3:  # a write is under way
            record = scalar_record(self.steps)
            cut = self.chance.randrange(1, len(record))
            self._log(record[:cut])
            self._torn = record[cut:]
        if self.chance.random() < 0.3:
            append(self.spool.files / "output.log", b"step %d\n" % self.steps)
        if self.chance.random() < 0.3:
            self._beat()
        if self.chance.random() < 0.3:
            self._write("latest.txt", b"step %d" % self.steps)
        if self.chance.random() < 0.3:
            self._write("model.bin", b"step %d " % self.steps * 1000)

    def end_training(self) -> State:
        """End it, or kill it, perhaps in the middle of a write."""
        if self.chance.random() < 0.5:
            self.kills += 1
            return State.KILLED
        self._complete()
        self._record.end(State.COMPLETED, 0, at=self._record.heartbeat + 1)
        self._write_record()
        self.spool.mark("finish")
        return State.COMPLETED

    def _log(self, content: bytes) -> None:
        append(self.spool.files / EVENTS, content)

    def _complete(self) -> None:
        """End the write that is under way."""
        if self._torn:
            self._log(self._torn)
            self.steps += 1
            self._torn = b""

    def _beat(self) -> None:
        self._record.beat(self._record.heartbeat + 30)
        self._write_record()

    def _write_record(self) -> None:
        self._write(FILE_NAME, self._record.to_json())

    def _write(self, name: str, content: bytes) -> None:
        temporary = self.spool.files / ".aboard-tmp-1"
        temporary.write_bytes(content)
        temporary.replace(self.spool.files / name)

    # Its shippers.

    def ship(self, rounds: int) -> None:
        """Send for some rounds, or until the shipper is killed."""
        ledger = Ledger(self.spool.ledger)
        uploader = Uploader(self.spool.files, ledger, self.bucket)

        def serve() -> None:
            for _ in range(rounds):
                uploader.round(last=False)
                self.train()

        self._mortal(serve)

    def finish(self) -> None:
        """Let one shipper after the other send the rest, until one has acknowledged it."""
        owner = self.spool.owner()
        assert owner
        for tries in range(100):
            self.bucket.is_calm = tries > 20

            def send() -> bool:
                try:
                    return send_abandoned(self.spool, owner, lambda _: None).complete
                except StorageError:
                    return False

            if self._mortal(send) or not self.spool.directory.exists():
                assert not self.spool.directory.exists()
                return
        pytest.fail("it does not arrive")

    def _mortal(self, serve: Callable[[], object]) -> object:
        left = [self.chance.choice([self.chance.randrange(1, 2000), 10**9])]

        def die() -> None:
            left[0] = 10**9  # what is cleaned up on the way out must not die again
            raise Killed

        before = sys.gettrace()
        sys.settrace(tracer(left, _is_shipping, die))
        try:
            return serve()
        except Killed:
            self.kills += 1
            return None
        finally:
            sys.settrace(before)

    # What is there.

    def read(self) -> list[int]:
        """Read as TensorBoard does: every event file, in the order of the names."""
        held = self.bucket.objects
        found: list[int] = []
        for name in sorted(name for name in held if "tfevents" in name):
            content = held[name][1]
            found += steps_in(_without_torn(content))
        if self.bucket.kind == "write-only" and 0 in found:  # see `output`
            found = found[len(found) - 1 - found[::-1].index(0) :]
        return found

    def written(self) -> dict[str, bytes]:
        paths = [self.spool.files / name for name in ("output.log", "latest.txt", "model.bin")]
        return {one.name: one.read_bytes() if one.exists() else b"" for one in paths}

    def state(self) -> State:
        held = self.bucket.objects
        found = Manifest.from_json(held[FILE_NAME][1])
        if ends := [name for name in held if name.startswith(ENDED)]:
            found = newer(found, Manifest.from_json(held[max(ends)][1]))
        return found.state

    def output(self) -> bytes:
        held = self.bucket.objects
        names = [one for one in sorted(held) if one.startswith("output.log")]
        if self.bucket.kind == "write-only":
            # Where a first segment exists already, nothing tells whose it is: all is sent again.
            last = max((one.partition(".s0")[0] for one in names), default="")
            names = [one for one in names if one.partition(".s0")[0] == last]
        return b"".join(held[one][1] for one in names)


def _without_torn(content: bytes) -> bytes:
    """Leave out a record at the end that is not whole."""
    at = 0
    while at + 12 <= len(content):
        end = at + 16 + int.from_bytes(content[at : at + 8], "little")
        if end > len(content):
            break
        at = end
    return content[:at]


@pytest.fixture
def spool_in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        monkeypatch.setenv("ABOARD_SPOOL", place)
        yield


@pytest.fixture
def tiny_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MIN_SIZE", 400)
    monkeypatch.setattr(shipper, "_TICK", 0.0)
    monkeypatch.setattr(upload, "pause_before", lambda _: 0.0)
    monkeypatch.setattr(upload, "LARGE", 5000)
    monkeypatch.setattr(upload, "ThreadPoolExecutor", SameThread)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # who is killed closes none
@pytest.mark.usefixtures("spool_in_memory", "tiny_segments")
@pytest.mark.parametrize("kind", KINDS)
def test_no_order_of_writes_and_kills_loses_what_was_acknowledged(
    kind: Kind,
    rounds: Callable[[int], Iterator[int]],
    tally: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in rounds(_SCHEDULES[kind]):
        life = Life(kind, seed, monkeypatch)
        for _ in range(life.chance.randrange(1, 6)):
            life.ship(life.chance.randrange(1, 8))
        state = life.end_training()
        written = life.written()
        life.finish()
        expected = list(range(life.steps))
        while True:
            read = life.read()
            lost = len(set(expected).difference(read))
            if lost or read != expected or not life.bucket.late:
                break
            life.bucket.carry_out_late()
        tally(kills=life.kills, acknowledged=life.steps, lost=lost)
        assert read == expected, f"seed {seed}"
        assert life.output() == written["output.log"], f"seed {seed}"
        assert life.state() is state, f"seed {seed}"
        if kind == "conditional":
            for name in ("latest.txt", "model.bin"):
                _, found = life.bucket.objects.get(name, (0, b""))
                assert found == written[name], f"seed {seed}"
    gc.collect()  # so that these files are not found in another test
