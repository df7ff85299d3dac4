"""What every storage promises, asked of each of them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aboard.storage import (
    AlreadyExists,
    BadUri,
    Changed,
    Entry,
    NoSuchPath,
    Storage,
    StorageError,
    Unreadable,
    Unsupported,
    canonical,
    is_remote,
    join,
    open_storage,
    split,
)


@pytest.fixture
def storage(root: str) -> Storage:
    return open_storage(root)


def names(storage: Storage, prefix: str = "", containing: str = "") -> list[str]:
    return sorted(entry.name for entry in storage.list(prefix, containing=containing))


def test_the_uri_is_canonical(root: str, storage: Storage) -> None:
    assert storage.uri == canonical(root) == canonical(root + "/")


def test_what_was_written_is_read(storage: Storage) -> None:
    storage.write("run1/events", b"first")
    assert storage.read("run1/events") == b"first"
    storage.write("run1/events", b"the second, longer")
    assert storage.read("run1/events") == b"the second, longer"
    storage.write("run1/events", b"")
    assert storage.read("run1/events") == b""


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, None, b"0123456789"),
        (4, None, b"456789"),
        (0, 4, b"0123"),
        (3, 7, b"3456"),
        (7, 100, b"789"),
        (10, 20, b""),
        (10, None, b""),
        (50, 60, b""),
        (50, None, b""),
        (5, 5, b""),
    ],
)
def test_a_range_is_short_where_the_file_ends(
    storage: Storage, start: int, end: int | None, expected: bytes
) -> None:
    storage.write("file", b"0123456789")
    assert storage.read("file", start, end) == expected


def test_a_range_that_cannot_be_is_refused(storage: Storage) -> None:
    storage.write("file", b"0123456789")
    for start, end in ((-3, None), (-3, 4), (-3, -1), (5, 2)):
        with pytest.raises(ValueError, match=f"invalid range: {start} to {end}"):
            storage.read("file", start, end)
    with pytest.raises(ValueError, match="invalid range: -1 to"):
        storage.readinto("file", -1, memoryview(bytearray(4)))


def test_an_empty_file_has_empty_ranges(storage: Storage) -> None:
    storage.write("file", b"")
    assert storage.read("file", 0, 10) == b""
    assert storage.readinto("file", 0, memoryview(bytearray(4))) == 0


def test_readinto_fills_what_it_can(storage: Storage) -> None:
    storage.write("file", b"0123456789")
    buffer = bytearray(b"........")
    assert storage.readinto("file", 7, memoryview(buffer)) == 3
    assert buffer == b"789....."
    assert storage.readinto("file", 1, memoryview(buffer)) == 8
    assert buffer == b"12345678"
    assert storage.readinto("file", 10, memoryview(buffer)) == 0


def test_a_large_file_survives(storage: Storage) -> None:
    content = bytes(range(256)) * 24_000
    storage.write("large", content)
    assert storage.read("large") == content
    assert storage.read("large", 5_000_000, 5_000_004) == content[5_000_000:5_000_004]


@pytest.mark.parametrize("size", [0, 5, 11_000_000])
def test_a_file_is_uploaded_whole(storage: Storage, tmp_path: Path, size: int) -> None:
    local = tmp_path / "local"
    local.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    storage.write("run1/model", b"the old one")
    storage.upload("run1/model", local)
    assert storage.read("run1/model") == local.read_bytes()
    assert names(storage) == ["run1/model"]


def test_a_local_file_that_cannot_be_read_is_named(storage: Storage, tmp_path: Path) -> None:
    storage.write("run1/model", b"the old one")
    with pytest.raises(Unreadable, match=r"absent: the file cannot be read: no such file"):
        storage.upload("run1/model", tmp_path / "absent")
    assert storage.read("run1/model") == b"the old one"


def test_missing_files_are_not_found(storage: Storage) -> None:
    storage.write("there", b"x")
    for ask in (
        lambda: storage.read("run1/absent"),
        lambda: storage.read("run1/absent", 3, 3),
        lambda: storage.readinto("run1/absent", 0, memoryview(bytearray(1))),
        lambda: storage.delete("run1/absent"),
    ):
        with pytest.raises(NoSuchPath) as caught:
            ask()
        assert caught.value.uri == join(storage.uri, "run1/absent")


def test_a_deleted_file_is_gone(storage: Storage) -> None:
    storage.write("a", b"1")
    storage.write("b", b"2")
    storage.delete("a")
    assert names(storage) == ["b"]
    with pytest.raises(NoSuchPath):
        storage.delete("a")


def test_create_new_refuses_a_taken_name(storage: Storage, ignores_conditions: bool) -> None:
    if ignores_conditions:
        pytest.skip("this server creates whether the name is taken or not")
    storage.create_new("run1/run.json", b"mine")
    with pytest.raises(AlreadyExists, match=r"run1/run\.json: this already exists\. Choose"):
        storage.create_new("run1/run.json", b"yours")
    assert storage.read("run1/run.json") == b"mine"
    storage.delete("run1/run.json")
    storage.create_new("run1/run.json", b"yours")


def test_of_many_who_create_one_wins(storage: Storage, ignores_conditions: bool) -> None:
    if ignores_conditions:
        pytest.skip("this server creates whether the name is taken or not")

    def claim(number: int) -> bytes | None:
        content = f"job {number} ".encode() * 1000
        try:
            storage.create_new("run1/run.json", content)
        except AlreadyExists:
            return None
        return content

    with ThreadPoolExecutor(8) as pool:
        won = [content for content in pool.map(claim, range(16)) if content]
    assert won == [storage.read("run1/run.json")]
    assert names(storage) == ["run1/run.json"]


def test_only_the_expected_version_is_replaced(
    root: str, storage: Storage, ignores_conditions: bool
) -> None:
    storage.write("tail", b"one")
    if ignores_conditions:
        assert not storage.has_conditions("tail", b"one")
        assert storage.read("tail") == b"one"
        return
    if not is_remote(root) or root.startswith("oss:"):
        assert not storage.has_conditions("tail", b"one")
        with pytest.raises(Unsupported, match="conditional writes"):
            storage.replace("tail", b"two", "x")
        return
    first = storage.version("tail")
    assert storage.has_conditions("tail", b"one")
    assert storage.version("tail") == first
    second = storage.replace("tail", b"one two", first)
    assert second == storage.version("tail") != first
    for data in (b"one", b"one two three"):
        with pytest.raises(Changed, match="the file has changed"):
            storage.replace("tail", data, first)
    assert storage.read("tail") == b"one two"
    storage.replace("tail", b"one two three", second)
    assert storage.read("tail") == b"one two three"
    storage.delete("tail")
    with pytest.raises(Changed):
        storage.replace("tail", b"one", second)
    with pytest.raises(NoSuchPath):
        storage.version("tail")


def test_list_gives_names_sizes_and_versions(storage: Storage) -> None:
    storage.write("run1/train/events.1", b"12345")
    storage.write("run1/run.json", b"{}")
    storage.write("top", b"")
    found = {entry.name: entry for entry in storage.list()}
    assert {name: entry.size for name, entry in found.items()} == {
        "run1/train/events.1": 5,
        "run1/run.json": 2,
        "top": 0,
    }
    assert all(isinstance(entry, Entry) and entry.version for entry in found.values())


def test_a_version_changes_with_the_content(storage: Storage) -> None:
    def version() -> str:
        return next(storage.list("file")).version

    storage.write("file", b"one")
    first = version()
    assert version() == first
    storage.write("file", b"two")
    assert version() != first
    assert version() == next(storage.list()).version


def test_a_prefix_is_a_directory(storage: Storage) -> None:
    for name in ("run1/a", "run1/sub/b", "run10/c", "run1.txt", "other/run1/d"):
        storage.write(name, b"x")
    assert names(storage, "run1") == names(storage, "run1/") == ["run1/a", "run1/sub/b"]
    assert names(storage, "run1/sub") == ["run1/sub/b"]
    assert names(storage, "run") == []
    assert names(storage, "absent") == []
    assert names(storage, "run1/a/b") == []


def test_a_prefix_can_be_one_file(storage: Storage) -> None:
    storage.write("run1/events.1", b"123")
    storage.write("run1/events.10", b"4")
    [entry] = storage.list("run1/events.1")
    assert (entry.name, entry.size) == ("run1/events.1", 3)
    assert names(storage, "run1/events.1", containing="other") == []


def test_containing_looks_at_the_last_part_only(storage: Storage) -> None:
    for name in ("tfevents/notes", "run/out.tfevents.1", "run/sub/out.tfevents.2", "run/model"):
        storage.write(name, b"x")
    assert names(storage, containing="tfevents") == ["run/out.tfevents.1", "run/sub/out.tfevents.2"]


def test_many_files_are_all_listed(storage: Storage) -> None:
    expected = [f"run{number % 3}/file{number:03}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: storage.write(name, b"x"), expected))
    assert names(storage) == sorted(expected)
    assert len(names(storage, "run1")) == 13


def test_a_root_that_does_not_exist_is_not_found(storage: Storage) -> None:
    problems: list[StorageError] = []
    for prefix in ("", "run1"):
        with pytest.raises(NoSuchPath):
            list(storage.list(prefix, on_error=problems.append))
    assert problems == []


def test_a_root_that_is_a_file_says_so(root: str, storage: Storage) -> None:
    parent, name = split(root)
    open_storage(parent).write(name, b"x")
    with pytest.raises(NoSuchPath, match="this is a file, not a directory"):
        list(storage.list())


@pytest.mark.parametrize(
    "name",
    ["run 1/a+b=c&d", "100%/50%25", "naïve/学習/été", "a#b?c", "~x/*[1]{2}", "a'b\"c,d;e:f@"],
)
def test_unusual_names_are_names(storage: Storage, name: str) -> None:
    storage.write(name, b"content")
    assert storage.read(name) == b"content"
    assert names(storage) == [name]
    assert names(storage, name.partition("/")[0]) == [name]
    storage.delete(name)


@pytest.mark.parametrize("name", ["../up", "a/../../up", "/etc/passwd", "a//b", "", ".", "a/./b"])
def test_names_that_are_no_names_are_refused(storage: Storage, name: str) -> None:
    storage.write("there", b"x")
    for ask in (
        lambda: storage.read(name),
        lambda: storage.write(name, b""),
        lambda: storage.create_new(name, b""),
        lambda: storage.upload(name, Path(__file__)),
        lambda: storage.delete(name),
    ):
        with pytest.raises(BadUri):
            ask()


def test_a_prefix_cannot_lead_out(storage: Storage) -> None:
    storage.write("there", b"x")
    with pytest.raises(BadUri, match="leads out of its root"):
        list(storage.list("../other"))


def test_two_openings_are_one_storage(root: str, storage: Storage) -> None:
    storage.write("run1/events", b"x")
    assert open_storage(join(root, "run1")).read("events") == b"x"
    assert is_remote(root) == ("://" in root)


def test_what_belongs_to_jobs_is_listed_only_within_their_directory(storage: Storage) -> None:
    storage.write("run1/events", b"x")
    storage.write(".jobs/abc/job.json", b"{}")
    storage.write("run1/.jobs/abc/1/events", b"x")
    storage.write("run1/more.jobs/events", b"x")
    assert names(storage) == ["run1/events", "run1/more.jobs/events"]
    assert names(storage, "run1") == ["run1/events", "run1/more.jobs/events"]
    assert names(storage, ".jobs") == [".jobs/abc/job.json"]
    assert names(storage, "run1/.jobs") == ["run1/.jobs/abc/1/events"]
    assert names(open_storage(join(storage.uri, ".jobs"))) == ["abc/job.json"]
    assert storage.read(".jobs/abc/job.json") == b"{}"
