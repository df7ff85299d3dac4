"""The writing half of a refresh: small chunks joined, and what is forgotten."""

from __future__ import annotations

import shutil
import sqlite3
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.events import encode
from aboard.events.fallback import ValueColumns, pack
from aboard.events.records import frame
from aboard.events.scanner import CHUNK_VALUES, Chunk
from aboard.events.writer import EventWriter
from aboard.index import Index, Source, store
from aboard.index.logs import Logs
from aboard.index.schema import insert_rows, open_memory
from aboard.index.series import unpack
from aboard.index.store import merge, to_merge
from aboard.runs.manifest import Manifest
from aboard.storage import NoSuchPath, open_storage
from aboard.storage import traffic as counting
from aboard.storage.base import Traffic


def points(steps, *, wide=False) -> list[Chunk]:
    """Chunks as the scanner makes them; values and times tell one point from another."""
    steps = np.array(steps, np.int64)
    numbers = np.arange(len(steps)) + steps % 97 / 3
    return packed(steps, numbers + 1, numbers, {0} if wide else ())


def pointers(steps) -> list[Chunk]:
    payload = np.arange(3 * len(steps)).reshape(-1, 3)
    return packed(np.array(steps, np.int64), np.zeros(len(steps)), payload)


def packed(steps, walls, payload, wide=()) -> list[Chunk]:
    places = np.arange(len(steps))
    [part] = pack(ValueColumns(places, 0 * places, steps, walls, payload), wide)
    return part.chunks


def read(chunks, form=0):
    columns = [unpack(*chunk[:4], form=form) for chunk in chunks]
    return [
        np.concatenate([getattr(one, name) for one in columns]).tolist()
        for name in ("steps", "walls", "payload")
    ]


rises = st.builds(
    lambda first, stride, count: [first + stride * i for i in range(count)],
    st.integers(0, 30),
    st.integers(0, 3),
    st.integers(1, 12),
)
uneven = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9)


@given(st.lists(st.tuples(rises | uneven, st.booleans()), min_size=1, max_size=6))
def test_merging_loses_nothing(parts):
    chunks = [chunk for steps, wide in parts for chunk in points(steps, wide=wide)]
    merged = merge(chunks)
    assert len(merged) == 1
    assert read(merged) == read(chunks)


@given(st.lists(rises | uneven, min_size=1, max_size=6))
def test_pointers_are_merged_as_well(parts):
    chunks = [chunk for steps in parts for chunk in pointers(steps)]
    [merged] = merge(chunks)
    assert read([merged], form=1) == read(chunks, form=1)


@pytest.mark.parametrize(
    ("parts", "even"),
    [
        ([[0], [1], [2]], (0, 1)),
        ([[0], [10, 20], [30]], (0, 10)),
        ([[3, 4], [5, 6, 7, 8], [9]], (3, 1)),
        ([[5, 5, 5], [5], [5, 5]], (5, 0)),
        ([range(0, 40, 4), range(40, 80, 4)], (0, 4)),
        ([[0], [1]], None),
        ([[2], [1], [0]], None),
        ([[0, 1, 2], [4, 5, 6]], None),
        ([[0, 1, 2], [3, 5, 7]], None),
        ([[0, 1, 3], [4, 5, 6]], None),
    ],
)
def test_steps_that_go_on_evenly_take_no_room(parts, even):
    [merged] = merge([chunk for steps in parts for chunk in points(list(steps))])
    plain = [step for steps in parts for step in steps]
    assert merged.steps == struct.pack(f"{len(even or plain)}q", *(even or plain))
    assert merged.size == len(plain)


def test_chunks_are_filled_but_never_cut():
    sizes = [1000, 2000, 1096, 1, 4096, 4000, 97]
    merged = merge([chunk for size in sizes for chunk in points(range(size))])
    assert [chunk.size for chunk in merged] == [4096, 1, 4096, 4000, 97]


def blank(size: int) -> list[Chunk]:
    """Return the chunks of an addition, whose values are not read."""
    counts = [min(CHUNK_VALUES, size - at) for at in range(0, size, CHUNK_VALUES)]
    return [Chunk(n, bytes(8 * n), bytes(8 * n), bytes(4 * n)) for n in counts]


@given(st.lists(st.integers(1, 300) | st.integers(1, 9000), min_size=1, max_size=200))
def test_chunks_stay_few_and_points_are_rarely_rewritten(additions):
    chunks: list[Chunk] = []
    rewritten = 0
    for size in additions:
        new = blank(size)
        merged = to_merge([one.size for one in chunks], [one.size for one in new])
        kept = len(chunks) - merged
        written = merge([*chunks[kept:], *new])
        chunks[kept:] = written
        rewritten += sum(one.size for one in written)
    assert sum(one.size for one in chunks) == sum(additions)
    assert max(one.size for one in chunks) <= CHUNK_VALUES
    assert len(chunks) <= 3 * sum(additions) // CHUNK_VALUES + 14
    assert rewritten <= 8 * sum(additions)


@pytest.fixture
def trees(tmp_path):
    """Write two trees, and one whose name begins with another's."""
    for name in ("old", "older", "new"):
        for run in ("a", "b"):
            with EventWriter(tmp_path / name / run) as writer:
                for step in range(3000):
                    writer.scalar("loss", step * 0.37, step, wall_time=step**0.5)
                writer.add([encode.text("note", "hello")], 0)
    return tmp_path


def test_a_source_that_is_gone_is_forgotten_and_others_stay(trees, index):
    for name in ("old", "older", "new"):
        Logs(trees / name, index=index)
    shutil.rmtree(trees / "old")
    source = Source.parse(str(trees / "old"))
    assert index.forget(source) == (2, 2, 6002, 0)
    assert index.runs(source) == []
    assert not index.forget(source)
    for name in ("older", "new"):
        logs = Logs(trees / name, index=index, refresh=False)
        assert len(logs.series("b", "loss").steps) == 3000


def test_what_is_there_still_is_read_again(trees, index):
    logs = Logs(trees / "old", index=index)
    tag = logs.tag("a", "loss")
    index.forget(logs.source)
    assert logs.refresh().files_read == 2
    assert len(index.series(tag).steps) == 3000


def test_the_file_shrinks(trees):
    path = trees / "cache" / "index.db"
    with Index(path) as index:
        for name in ("old", "older", "new"):
            Logs(trees / name, index=index)
    with Index(path) as index:
        before = index.stored_bytes
        for name in ("old", "older"):
            index.forget(Source.parse(str(trees / name)))
        index.compact()
        assert index.problems == []
        assert index.stored_bytes < 0.8 * before
        assert index.stored_bytes == path.stat().st_size
        logs = Logs(trees / "new", index=index)
        assert logs.report.files_unchanged == 2
        assert len(logs.series("b", "loss").steps) == 3000


def test_one_event_file_is_forgotten(trees, index):
    logs = Logs(trees / "old", index=index)
    (file,) = (trees / "old" / "a").iterdir()
    assert index.forget(Source.parse(str(file)))[:2] == (1, 1)
    assert [run.name for run in logs.runs] == ["b"]


def test_records_of_runs_are_forgotten_too(trees, index):
    root = str(trees)
    storage = open_storage(root)
    for run in ("old/a", "older/a"):
        storage.write(f"{run}/run.json", Manifest(name="a", experiment=run[:-2]).to_json())
    index.refresh_catalog(root)
    changes = index.catalog_changes(root)
    assert len(index.columns.order()) == 6
    forgotten = index.forget(Source.parse(str(trees / "old")))
    assert forgotten == (0, 0, 0, 2)
    assert {run.directory for run in index.known_runs([root])} == {
        *("older/a", "older/b", "new/a", "new/b")
    }
    assert index.catalog_changes(root) > changes
    assert len(index.columns.order()) == 4
    index.refresh_catalog(root)
    assert len(index.known_runs([root])) == len(index.columns.order()) == 6


def test_a_file_that_cannot_shrink_is_a_problem_and_no_more(trees, index, monkeypatch):
    import sqlite3

    from aboard.index import store

    def full(_connection):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store, "compact", full)
    logs = Logs(trees / "old", index=index)
    index.compact()
    assert str(index.problems[0]) == (
        f"the index {index.path} could not be compacted (database or disk is full)."
        " Compacting needs as much free space as the index; free some, or try again."
    )
    assert [run.name for run in logs.runs] == ["a", "b"]


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 100])
def test_rows_that_are_inserted_together_are_counted_and_the_known_ones_kept(count):
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE thing (id INTEGER PRIMARY KEY, name TEXT)")
    connection.execute("INSERT INTO thing VALUES (20, 'known')")
    rows = [(number, f"new {number}") for number in range(count)]
    inserted = insert_rows(connection, "INSERT OR IGNORE INTO thing", rows)
    expected = dict(rows) | {20: "known"}
    assert inserted == len(expected) - 1
    assert dict(connection.execute("SELECT id, name FROM thing")) == expected


def test_every_column_of_the_table_is_stored():
    stored = [row[1] for row in open_memory().execute("PRAGMA table_info(segment)")]
    assert sorted(store._COLUMNS) == sorted(stored)


# Requests to buckets, kept in the index hour by hour.


HOUR = 3600


def record(step):
    return frame(encode.event(float(step), step, [encode.scalar("loss", step / 2)]))


@pytest.fixture(params=["memory", "s3"])
def bucket(request, tmp_path):
    counting.take()
    if request.param == "memory":
        return f"memory://{tmp_path.name}/logs"
    return request.getfixturevalue("s3_bucket") + f"/{tmp_path.name}"


def requests(index, uri):
    return {(one.kind, one.requests, one.bytes) for one in index.traffic(uri)}


def test_a_refresh_keeps_what_it_cost(bucket, index):
    storage = open_storage(bucket)
    storage.write("a/events.out.tfevents.1", record(1))
    storage.write("b/events.out.tfevents.1", record(1))
    size = 2 * len(record(1))
    logs = Logs(bucket, index=index)
    assert requests(index, bucket) == {("write", 2, size), ("list", 1, 0), ("read", 2, size)}
    logs.refresh()
    assert ("list", 2, 0) in requests(index, bucket)
    with Index(index.path) as other:
        assert requests(other, bucket) == requests(index, bucket)


def test_a_failed_refresh_has_its_cost_too(bucket, index):
    with pytest.raises(NoSuchPath):
        Logs(bucket, index=index)
    assert requests(index, bucket) == {("list", 1, 0), ("read", 1, 0)}


def test_a_local_tree_costs_nothing(write, logs, index):
    write(loss=[(1, 1.0)])
    logs()
    assert index.traffic("s3://any") == []


def test_hours_add_up_and_old_ones_are_forgotten():
    connection = open_memory()
    once = {("s3://b", "list"): Traffic(2, 0), ("s3://c", "read"): Traffic(1, 9)}
    for now in (0, 5 * HOUR, 5 * HOUR + 60, 28 * HOUR):
        store.save_traffic(connection, once, now)
    assert store.read_traffic(connection, "s3://b", now=28 * HOUR) == [
        (5, "list", 4, 0),
        (28, "list", 2, 0),
    ]
    assert len(store.read_traffic(connection, "s3://b", hours=100, now=28 * HOUR)) == 3
    store.save_traffic(connection, once, 100 * 24 * HOUR)
    assert len(store.read_traffic(connection, "s3://c", hours=10_000, now=100 * 24 * HOUR)) == 1


def test_what_cannot_be_kept_waits():
    counting.take()
    counting.count("s3://b", "read", 3, 30)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    store.save_untaken_traffic(connection)
    connection.close()
    connection = open_memory()
    store.save_untaken_traffic(connection)
    assert [one[1:] for one in store.read_traffic(connection, "s3://b")] == [("read", 3, 30)]
