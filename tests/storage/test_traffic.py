"""Requests and bytes per bucket, counted as they are made."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from aboard.storage import NoSuchPath, bucket_of, open_storage, traffic
from aboard.storage.base import Traffic


@pytest.fixture(params=["memory", "s3"])
def bucket(request, tmp_path):
    """Give a place in a bucket, and the bucket whose counts it adds to."""
    if request.param == "memory":
        return f"memory://{tmp_path.name}/logs"
    return request.getfixturevalue("s3_bucket") + f"/{tmp_path.name}"


@pytest.fixture
def counted(bucket):
    """Give what has been counted since the test began."""
    before = traffic.snapshot()

    def since():
        found = {}
        for (where, kind), now in traffic.snapshot().items():
            if where == bucket_of(bucket):
                then = before.get((where, kind), Traffic())
                found[kind] = (now.requests - then.requests, now.bytes - then.bytes)
        return {kind: numbers for kind, numbers in found.items() if any(numbers)}

    return since


def test_every_verb_is_counted(bucket, counted):
    storage = open_storage(bucket)
    storage.write("a", b"12345")
    storage.create_new("b", b"123")
    assert counted() == {"write": (2, 8)}
    assert storage.read("a", 1) == b"2345"
    assert storage.readinto("a", 0, memoryview(bytearray(3))) == 3
    assert storage.read("a", 5) == b""
    assert counted()["read"] == (3, 7)
    storage.delete("b")
    assert counted() == {"write": (2, 8), "read": (4, 7), "delete": (1, 0)}
    assert [entry.name for entry in storage.list()] == ["a"]
    assert counted()["list"] == (1, 0)


def test_what_fails_is_a_request_too(bucket, counted):
    with pytest.raises(NoSuchPath):
        open_storage(bucket).read("nothing")
    with pytest.raises(NoSuchPath):
        list(open_storage(bucket).list())
    assert counted() == {"read": (2, 0), "list": (1, 0)}


def test_a_listing_counts_its_pages(tmp_path):
    bucket = f"memory://{tmp_path.name}"
    storage = open_storage(bucket)
    for number in range(2100):
        storage.write(f"{number:04}", b"")
    traffic.take()
    assert len(list(storage.list())) == 2100
    assert traffic.take() == {(bucket, "list"): Traffic(3, 0)}


def test_taking_leaves_nothing_and_can_be_undone():
    traffic.take()
    traffic.count("s3://b", "read", 2, 10)
    taken = traffic.take()
    assert taken == {("s3://b", "read"): Traffic(2, 10)}
    assert traffic.take() == {}
    traffic.count("s3://b", "read", 1, 5)
    traffic.give_back(taken)
    assert traffic.take() == {("s3://b", "read"): Traffic(3, 15)}
    assert traffic.snapshot()["s3://b", "read"].requests >= 3


def test_threads_lose_no_count():
    def work(_):
        for _ in range(1000):
            traffic.count("s3://many", "list", 1, 2)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert traffic.snapshot()["s3://many", "list"] == Traffic(8000, 16000)


@pytest.mark.parametrize(
    ("size", "requests"), [(0, 1), (5 << 20, 1), ((5 << 20) + 1, 4), (12 << 20, 5)]
)
def test_a_large_object_is_sent_in_parts(tmp_path, size, requests):
    bucket = f"memory://{tmp_path.name}"
    traffic.take()
    open_storage(bucket).write("a", bytes(size))
    assert traffic.take() == {(bucket, "write"): Traffic(requests, size)}


@pytest.mark.parametrize("uri", ["s3://logs", "s3://logs/", "s3://logs/a/b"])
def test_bucket_of_a_uri(uri):
    assert bucket_of(uri) == "s3://logs"
