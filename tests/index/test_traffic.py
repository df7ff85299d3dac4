"""Requests to buckets, kept in the index hour by hour."""

import sqlite3

import pytest

from aboard.events import encode
from aboard.events.records import frame
from aboard.index import Index, store
from aboard.index.logs import Logs
from aboard.index.schema import open_memory
from aboard.storage import NoSuchPath, open_storage
from aboard.storage import traffic as counting
from aboard.storage.base import Traffic

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
