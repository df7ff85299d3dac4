"""Event files of attempts on several hosts, whose clocks differ."""

import pytest

from aboard.events import encode
from aboard.events.records import frame
from aboard.index.catalog import attempt_of
from aboard.index.logs import Logs
from aboard.index.sources import Source
from aboard.runs.manifest import Manifest
from aboard.storage import open_storage


def event_file(second: int, rest: str) -> str:
    return f"events.out.tfevents.{second}.{rest}"


def points(steps: range) -> bytes:
    return b"".join(
        frame(encode.event(float(step), step, [encode.scalar("loss", step)])) for step in steps
    )


@pytest.fixture
def record() -> Manifest:
    made = Manifest("run1", "x")
    for number, (host, at) in enumerate([("one", 2e9), ("two", 1.9e9), ("one", 2.1e9)], 1):
        made.begin(at=at, host=host, pid=number)
    return made


@pytest.mark.parametrize(
    ("second", "rest", "attempt"),
    [
        (2_000_000_001, "one.1.0", 1),
        (2_000_000_001, "one.77.0.v2", 1),  # of a process that the first one started
        (2_100_000_001, "one.77.0.v2", 3),
        (1_900_000_001, "two", 2),
        (1_900_000_001, "two.2.0000.s000001", 2),
        (2_000_000_050, "three.5.0", 2),  # only the time can tell; the second has that of the first
        (1_000_000_000, "three.5.0", 1),
    ],
)
def test_host_and_process_tell_the_attempt(record, second, rest, attempt):
    assert attempt_of(event_file(second, rest), record.attempts) == attempt


@pytest.mark.parametrize("kind", ["directory", "bucket"])
@pytest.mark.parametrize("below", ["", "/train"])
def test_the_record_has_the_order_of_attempts(tmp_path, request, index, record, kind, below):
    """A program that names its files itself continues on a host whose clock is behind."""
    root = str(tmp_path / "runs")
    if kind == "bucket":
        root = f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}"
    storage = open_storage(root)
    record.attempts.pop()
    storage.write("x/run1/run.json", record.to_json())
    source = Source.parse(root)
    storage.write(f"x/run1{below}/{event_file(1_900_000_005, 'two.9.0')}", points(range(10, 20)))
    index.refresh(source)
    before = index.marks([source])
    storage.write(f"x/run1{below}/{event_file(2_000_000_005, 'one.9.0')}", points(range(10)))
    index.refresh(source)
    assert index.marks([source]) != before
    found = Logs(root, index=index).series(f"x/run1{below}", "loss")
    assert found.steps.tolist() == list(range(20))
