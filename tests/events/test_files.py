"""Files on a mounted bucket, which shows them when they are closed: as the bucket has them."""

import errno

import pytest

from aboard.events import encode
from aboard.events.messages import load_protos
from aboard.events.writer import EventWriter
from tests.engines.bucket_mount import FULL, MountError, mounted
from tests.framing import unframed
from tests.waiting import until

event_pb2 = load_protos().event_pb2


@pytest.fixture(scope="module")
def buckets(tmp_path_factory):
    """Mount a bucket of each kind; give the bucket and where it is mounted."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        found = {}
        for kind in ("append", "refuse-open", "refuse-write"):
            bucket, place = (tmp_path_factory.mktemp(f"{kind}-{part}") for part in ("b", "m"))
            try:
                stack.enter_context(mounted(bucket, place, kind))
            except MountError as error:
                pytest.skip(str(error))
            found[kind] = bucket, place
        yield found


def files(bucket, run):
    return sorted(path for path in (bucket / run).iterdir())


def events(path):
    return [event_pb2.Event.FromString(data) for _, data in unframed(path.read_bytes())]


def log(writer, step):
    writer.scalar("loss", 1.0, step)
    writer.add([encode.text("notes", f"note {step}")], step)


def steps(paths):
    return [event.step for path in paths for event in events(path) if event.summary.value]


EACH = [step for step in range(4) for _ in range(2)]


def test_a_flush_reaches_the_bucket_and_the_file_goes_on(buckets):
    bucket, place = buckets["append"]
    with EventWriter(place / "run", flush_secs=1000) as writer:
        for step in range(4):
            log(writer, step)
            writer.flush()
            assert steps(files(bucket, "run")) == EACH[: 2 * step + 2]
    (path,) = files(bucket, "run")
    assert path.name == writer.path.name


@pytest.mark.parametrize("kind", ["refuse-open", "refuse-write"])
def test_where_appending_is_refused_each_flush_is_a_file_that_stands_alone(buckets, kind):
    bucket, place = buckets[kind]
    with EventWriter(place / "run", flush_secs=1000) as writer:
        for step in range(4):
            log(writer, step)
            writer.flush()
            assert steps(files(bucket, "run")) == EACH[: 2 * step + 2]
    paths = files(bucket, "run")
    assert len(paths) == 4
    for path in paths:
        version, _, note = events(path)
        assert version.file_version == "brain.Event:2"
        assert note.summary.value[0].metadata.plugin_data.plugin_name == "text"


def test_where_appending_is_refused_the_background_takes_its_time(buckets, monkeypatch):
    _, place = buckets["refuse-open"]
    asked = []
    monkeypatch.setattr(
        "aboard.events.writer._schedule", lambda writer, seconds: asked.append(seconds) or True
    )
    with EventWriter(place / "slow", flush_secs=2, buffer_bytes=100) as writer:
        for step in range(3):
            log(writer, step)
            writer.flush()
    assert asked == [2, 0, 2, 0, 10, 10]


@pytest.mark.parametrize("kind", ["append", "refuse-open", "refuse-write"])
def test_a_bucket_that_takes_nothing_loses_nothing(buckets, kind):
    bucket, place = buckets[kind]
    problems = []
    with EventWriter(place / "kept", flush_secs=1000, on_error=problems.append) as writer:
        for step in range(4):
            if step in (0, 2):
                (bucket / FULL).touch()
            log(writer, step)
            writer.flush()
            if step in (0, 2):
                (bucket / FULL).unlink()
    assert [problem.errno for problem in problems] == [errno.ENOSPC] * 2
    assert steps(files(bucket, "kept")) == EACH


def test_the_background_flushes_to_a_bucket_too(buckets):
    bucket, place = buckets["append"]
    writer = EventWriter(place / "background", flush_secs=0.01)
    assert not files(bucket, "background")
    for step in range(4):
        log(writer, step)
        written = EACH[: 2 * step + 2]
        until(lambda written=written: steps(files(bucket, "background")) == written)
    writer.close()


def test_files_on_a_bucket_are_cut_at_a_size(buckets):
    bucket, place = buckets["append"]
    with EventWriter(place / "cut", flush_secs=1000, max_bytes=500) as writer:
        for step in range(40):
            log(writer, step)
            writer.flush()
    paths = files(bucket, "cut")
    assert len(paths) > 3
    assert all(path.stat().st_size < 800 for path in paths)
    assert steps(paths) == [step for step in range(40) for _ in range(2)]


def test_a_file_that_someone_removed_or_shortened_is_followed_by_another(buckets):
    bucket, place = buckets["append"]
    with EventWriter(place / "removed", flush_secs=1000) as writer:
        for step in range(3):
            log(writer, step)
            writer.flush()
            path = files(bucket, "removed")[-1]
            if step == 0:
                path.unlink()
            elif step == 1:
                path.write_bytes(path.read_bytes()[:60])
    assert steps(files(bucket, "removed")[-1:]) == [2, 2]
    assert len(files(bucket, "removed")) == 2


def test_a_file_is_closed_after_each_flush_only_where_told_or_needed(buckets, tmp_path):
    bucket, place = buckets["append"]
    with EventWriter(place / "open", flush_secs=1000, close_after_flush=False) as writer:
        log(writer, 0)
        writer.flush()
        assert not files(bucket, "open")
    assert steps(files(bucket, "open")) == [0, 0]
    with EventWriter(tmp_path / "closed", flush_secs=1000, close_after_flush=True) as writer:
        for step in range(4):
            log(writer, step)
            writer.flush()
    assert steps(files(tmp_path, "closed")) == EACH
