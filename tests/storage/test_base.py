"""What users type, and the storage it means."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.storage import (
    BadUri,
    NoSuchPath,
    UnknownScheme,
    bucket_of,
    canonical,
    is_remote,
    join,
    open_storage,
    split,
    traffic,
)
from aboard.storage.base import SCHEMES, Traffic

KNOWN = "Supported: plain paths and file://, s3://, gs://, az://, oss://."

part = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12
).filter(lambda text: text not in {".", ".."})
path = st.lists(part, max_size=5).map("/".join)
bucket_names = st.from_regex(r"[a-z0-9][a-z0-9.-]{2,20}", fullmatch=True)
scheme = st.sampled_from([name for name in SCHEMES if not name.startswith("abfs")])
remote_uri = st.builds(
    lambda scheme, bucket, path: f"{scheme}://{bucket}/{path}", scheme, bucket_names, path
)
uri = st.one_of(remote_uri, path.map(lambda path: f"/{path}"))


@given(uri)
def test_canonical_form_is_stable(uri: str) -> None:
    once = canonical(uri)
    assert canonical(once) == once
    assert once == "/" or not once.endswith("/")
    assert is_remote(uri) == is_remote(once)


@given(uri, st.lists(part, min_size=1, max_size=4))
def test_what_is_joined_splits_again(uri: str, names: list[str]) -> None:
    root = canonical(uri)
    joined = join(root, "/".join(names))
    assert canonical(joined) == joined
    parent = joined
    for name in reversed(names):
        parent, last = split(parent)
        assert last == name
    assert parent == root


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("s3://bucket", "s3://bucket"),
        ("S3://Bucket/Logs/", "s3://Bucket/Logs"),
        ("s3://bucket//a///b/", "s3://bucket/a/b"),
        ("gs://bucket/50%25 off?#", "gs://bucket/50%25 off?#"),
        ("memory://x/", "memory://x"),
        ("/logs/", "/logs"),
        ("//logs/./a/../b//", "/logs/b"),
        ("/", "/"),
        ("file:///logs/run%201", "/logs/run 1"),
        ("file://localhost/logs", "/logs"),
        ("file:/logs?x#y", "/logs?x#y"),
        ("FILE:///", "/"),
        (
            "abfss://box@account.dfs.core.windows.net/logs",
            "abfss://box@account.dfs.core.windows.net/logs",
        ),
    ],
)
def test_canonical(typed: str, meant: str) -> None:
    assert canonical(typed) == meant


def test_paths_are_completed(home: Path, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.chdir(tmp_path)
    assert canonical("logs") == canonical("./logs/") == f"{tmp_path}/logs"
    assert canonical("~/logs") == f"{home}/logs"
    assert canonical("~") == str(home)
    assert canonical("run:1") == f"{tmp_path}/run:1"


def test_symbolic_links_are_kept(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert canonical(f"{tmp_path}/link") == f"{tmp_path}/link"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            "gcs://bucket/logs",
            f"'gcs://' is not supported. Did you mean gs://bucket/logs? {KNOWN}",
        ),
        ("s3a://b/x", "Did you mean s3://b/x?"),
        ("azz://b/x", "Did you mean az://b/x?"),
        (
            "hdfs://node/logs",
            f"hdfs://node/logs: 'hdfs://' is not supported. {KNOWN}",
        ),
    ],
)
def test_unknown_schemes_list_the_known(typed: str, message: str) -> None:
    for function in (canonical, is_remote, split):
        with pytest.raises(UnknownScheme) as caught:
            function(typed)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("s3:/bucket/x", "s3:/bucket/x: '://' is missing. Did you mean s3://bucket/x?"),
        ("gcs:bucket", "gcs:bucket: '://' is missing. Did you mean gs://bucket?"),
        ("s3://", "s3://: the bucket is missing. Write s3://bucket/path."),
        ("s3:///logs", "s3:///logs: the bucket is missing. Write s3://bucket/path."),
        ("s3://my bucket/x", "'my bucket' is not a valid bucket name. Bucket names "),
        ("s3://bucket/../x", "'.' and '..' have no meaning in a bucket. Write the path out."),
        ("file://logs/x", "a file URI names a path on this machine, not 'logs'. Write file:///"),
        ("abfss://box/x", "the container or the account is missing. Write abfss://container@acc"),
        ("", "'': not a path or URI. Give a directory or a bucket."),
        ("/logs\0", r"'/logs\x00': not a path or URI."),
    ],
)
def test_bad_uris_say_what_was_meant(typed: str, message: str) -> None:
    with pytest.raises(BadUri) as caught:
        canonical(typed)
    assert message in str(caught.value)


def test_split_names_the_file_in_its_directory() -> None:
    assert split("/logs/run1/events.1") == ("/logs/run1", "events.1")
    assert split("s3://bucket/events.1") == ("s3://bucket", "events.1")
    assert split("s3://bucket") == ("s3://bucket", "")


# Requests and bytes per bucket, counted as they are made.


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
