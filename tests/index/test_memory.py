"""A sick run costs time, and no more memory than others do."""

import struct
import subprocess
import sys
import time

import pytest

from aboard.events import encode
from aboard.events.records import crc32c, frame, mask
from aboard.index import Source, reader, store
from aboard.index.sources import Reading
from aboard.storage.base import open_storage
from aboard.storage.local import LocalStorage

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="memory is read from /proc"
)
SIZE = 64 << 20
GROWTH = """
import sys
from pathlib import Path
from aboard.index import Index, Source

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

with Index(Path(sys.argv[1])) as index:
    index.refresh(Source(sys.argv[2]))
    before = peak()
    source = Source(sys.argv[3])
    report = index.refresh(source)
    damaged = [(one.offset, one.length) for one in index.damages(source)]
    print((peak() - before) // 1024, report.points, damaged)
"""


def event(step, tag="loss"):
    return frame(encode.event(float(step), step, [encode.scalar(tag, step / 2)]))


def read(tmp_path, usual, sick):
    """Read both in another process; return by how many MB the second made it grow, and the rest."""
    command = [sys.executable, "-c", GROWTH, tmp_path / "index.db", usual, sick]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    growth, points, damage = output.split(maxsplit=2)
    return int(growth), int(points), damage.strip()


@pytest.fixture
def usual(tmp_path):
    path = tmp_path / "usual" / "events.out.tfevents.1"
    path.parent.mkdir()
    path.write_bytes(event(1) * 1000)
    return path.parent


def test_a_record_of_many_megabytes_that_is_damaged(tmp_path, usual):
    length = struct.pack("<Q", SIZE)
    header = length + struct.pack("<I", mask(crc32c(length)))

    sick = tmp_path / "sick"
    sick.mkdir()
    with (sick / "events.out.tfevents.1").open("wb") as file:
        file.write(event(1) + header)
        file.seek(SIZE + 4, 1)
        file.write(event(2))
    growth, points, damage = read(tmp_path, usual, sick)
    assert (points, damage) == (2, f"[({len(event(1))}, {SIZE + 16})]")
    assert growth < 40


def test_a_run_of_thousands_of_files(tmp_path, usual):
    sick = tmp_path / "sick"
    sick.mkdir()
    for number in range(5000):
        (sick / f"events.out.tfevents.{number}").write_bytes(event(number))
    growth, points, _ = read(tmp_path, usual, sick)
    assert points == 5000
    assert growth < 30  # of 100,000 files, less than 300 then


@pytest.mark.slow
def test_large_objects_of_a_bucket(tmp_path, usual, s3_bucket):
    bucket = f"{s3_bucket}/large"
    storage = open_storage(bucket)
    records = event(1) * ((32 << 20) // len(event(1)))
    for number in range(4):
        storage.write(f"run{number}/events.out.tfevents.1", records)
    growth, points, _ = read(tmp_path, usual, bucket)
    assert points == 4 * (len(records) // len(event(1)))
    assert growth < 60


@pytest.fixture
def many_tags(tmp_path):
    """Write 500 tags with three values each, which come in turns."""
    path = tmp_path / "logs" / "events.out.tfevents.1"
    path.parent.mkdir()
    tags = [f"tag{number}" for number in range(500)]
    path.write_bytes(b"".join(event(step, tag) for step in range(3) for tag in tags))
    return path


def test_a_file_of_many_tags_is_stored_in_small_batches_with_few_segments_at_hand(
    many_tags, index, monkeypatch
):
    monkeypatch.setattr(reader, "BLOCK", 1000)
    monkeypatch.setattr(reader, "FEW_VALUES", 50)
    monkeypatch.setattr(reader, "SMALL_BYTES", 0)
    monkeypatch.setattr(store, "_MOST_OPEN", 100)
    largest, at_hand = 0, 0
    put = store.Store.put

    def noted(self, batches):
        nonlocal largest, at_hand
        put(self, batches)
        largest = max([largest, *(batch.values for batch in batches)])
        at_hand = max([at_hand, *(len(one.segments) for one in self._open.values())])

    monkeypatch.setattr(store.Store, "put", noted)
    source = Source(str(many_tags.parent))
    index.refresh(source)
    assert largest < 100
    assert at_hand <= 100
    with many_tags.open("ab") as file:
        file.writelines(event(3, f"tag{number}") for number in range(400, 600))
    index.refresh(source)
    tags = index.tags(source)
    assert len(tags) == 600
    for tag in tags:
        number = int(tag.name[3:])
        steps = [0, 1, 2] * (number < 500) + [3] * (number >= 400)
        assert index.series(tag).steps.tolist() == steps
        assert (tag.points, tag.last_step, tag.in_order) == (len(steps), steps[-1], True)


def test_few_batches_wait_to_be_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_WAITING_VALUES", 1000)
    monkeypatch.setattr(reader, "_INLINE_BYTES", 0)
    monkeypatch.setattr(reader, "SMALL_BYTES", 0)
    for number in range(60):
        (tmp_path / f"events.out.tfevents.{number}").write_bytes(event(1))
    read = set()
    real = reader.read_file

    def noted(reading, *rest):
        read.add(reading.name)
        return real(reading, *rest)

    monkeypatch.setattr(reader, "read_file", noted)
    storage = LocalStorage(str(tmp_path))
    readings = [
        Reading(storage, entry, storage.uri, entry.name, None, fresh=True)
        for entry in storage.list()
    ]
    with reader.reading(readings) as parts:
        stored = 0
        for found in parts:
            stored += len(found)
            time.sleep(0.01)  # in which the readers would read them all
            assert len(read) - stored < 20
    assert len(read) == 60
