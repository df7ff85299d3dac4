"""Listing again: what did not change is not read, and whatever did change is seen at once."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from aboard.storage import Entry, NoSuchPath, StorageError, local
from aboard.storage.local import Folder, Folders, LocalStorage, scan

ANY_AGE = -(10**18)
"""As if everything had changed long ago."""


@pytest.fixture(autouse=True, params=["", "1"], ids=["C core", "Python"])
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABOARD_PURE_PYTHON", request.param)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_UNSETTLED_NS", ANY_AGE)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collect the names of the directories that are read."""
    names: list[str] = []

    def spying(directory, *wanted):
        names.append(directory.name)
        return scan(directory, *wanted)

    monkeypatch.setattr(local, "scan", spying)
    return names


class Tree:
    """A directory that is listed again and again, with what is remembered in between."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.storage = LocalStorage(str(path))
        self.known: dict[str, Folder] = {}

    def write(self, *names: str) -> None:
        for name in names:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_bytes(b"x")

    def look(self, described=lambda _: True, on_error=None) -> list[Entry]:
        known = dict(self.known)
        again = Folders(self.storage, known, lambda name: "." not in name, described)
        entries = list(again.list(on_error=on_error))
        self.known = {name: one for name, one in self.known.items() if name not in known}
        self.known |= again.found
        return entries

    def names(self) -> list[str]:
        return [entry.name for entry in self.look()]

    def tick(self) -> None:
        """Wait until the clock of files has moved on."""
        probe = self.path.parent / "probe"
        probe.write_bytes(b"")
        before = probe.stat().st_mtime_ns
        while probe.stat().st_mtime_ns == before:
            probe.write_bytes(b"")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "root")
    tree.write("top", "a/one", "a/two", "a/b/three", "a/b/not.wanted", "c/four")
    return tree


def test_what_did_not_change_is_not_read_again(settled, tree, read) -> None:
    first = tree.look()
    assert sorted(read) == ["", "a", "a/b", "c"]
    assert first == [one for one in tree.storage.list() if "." not in one.name]
    read.clear()
    assert tree.look() == first
    assert read == []


def test_only_the_directory_that_changed_is_read_again(settled, tree, read) -> None:
    tree.look()
    tree.tick()
    read.clear()
    tree.write("a/b/new")
    assert tree.names() == ["top", "a/one", "a/two", "a/b/new", "a/b/three", "c/four"]
    assert read == ["a/b"]


def test_files_that_grow_or_are_replaced_in_place_have_another_version(settled, tree, read) -> None:
    before = {entry.name: entry for entry in tree.look()}
    tree.tick()
    (tree.path / "a/one").write_bytes(b"other")
    read.clear()
    after = {entry.name: entry for entry in tree.look()}
    assert read == []
    assert after["a/one"].size == 5
    assert after["a/one"].version != before["a/one"].version
    assert after["a/two"] == before["a/two"]


def test_where_a_name_is_all_that_is_asked_for_it_is_all_there_is(settled, tree) -> None:
    for _ in range(2):
        found = {entry.name: entry for entry in tree.look(described="one".__eq__)}
        assert found["a/one"].size == 1
        assert found["a/one"].version
        assert found["a/two"][1:] == (0, "")


def test_what_changed_a_moment_ago_is_not_trusted(
    tree, read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_UNSETTLED_NS", -ANY_AGE)
    tree.look()
    assert tree.known == {}
    read.clear()
    tree.look()
    assert sorted(read) == ["", "a", "a/b", "c"]


def test_times_that_are_set_back_hide_nothing(settled, tree) -> None:
    tree.look()
    times = (tree.path / "a").stat()
    tree.tick()
    tree.write("a/new")
    os.utime(tree.path / "a", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "a/new" in tree.names()


def test_directories_with_links_are_read_each_time(settled, tree, tmp_path, read) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tree.path / "a/link").symlink_to(tmp_path / "elsewhere")
    (tree.path / "c/dangling").symlink_to(tmp_path / "later")
    tree.look()
    assert sorted(tree.known) == ["", "a/b", "a/link"]
    tree.tick()
    (tmp_path / "elsewhere/five").write_bytes(b"")
    (tmp_path / "later").write_bytes(b"")
    assert {"a/link/five", "c/dangling"} <= set(tree.names())


def test_directories_on_another_file_system_are_read_each_time(
    settled, tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "file_system_of", lambda _: "nfs4")
    tree.look()
    assert tree.known == {}


def test_names_that_are_not_unicode_are_not_remembered(settled, tree) -> None:
    odd = os.fsdecode(os.fsencode(tree.path) + b"/c/caf\xe9")
    try:
        Path(odd).mkdir()
    except OSError:
        pytest.skip("this file system stores only Unicode names")
    (Path(odd) / "file").write_bytes(b"")
    for _ in range(2):
        problems: list[StorageError] = []
        tree.look(on_error=problems.append)
        assert len(problems) == 1
        assert sorted(tree.known) == ["", "a", "a/b"]


def test_directories_that_are_gone_are_forgotten(settled, tree) -> None:
    tree.look()
    tree.tick()
    shutil.rmtree(tree.path / "a")
    assert tree.names() == ["top", "c/four"]
    assert sorted(tree.known) == ["", "c"]
    shutil.rmtree(tree.path)
    with pytest.raises(NoSuchPath):
        tree.look()


def test_a_directory_in_the_place_of_another_is_seen(settled, tree) -> None:
    tree.write("../other/five")
    tree.look()
    shutil.move(tree.path / "a/b", tree.path.parent / "away")
    shutil.move(tree.path.parent / "other", tree.path / "a/b")
    assert "a/b/five" in tree.names()
    assert "a/b/three" not in tree.names()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_and_how_quickly_the_listing_is_right(
    tmp_path, seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_UNSETTLED_NS", 25_000_000)  # more than a tick of any clock
    chance = random.Random(seed)
    tree = Tree(tmp_path / "root")
    tree.write("start")
    remembered = 0
    for _ in range(300):
        place = "/".join(chance.choices("abc", k=chance.randint(1, 3)))
        match chance.randrange(5):
            case 0 | 1:
                tree.write(f"{place}/file{chance.randrange(3)}")
            case 2:
                shutil.rmtree(tree.path / place, ignore_errors=True)
            case 3:
                target = tree.path / "/".join(chance.choices("abc", k=1)) / "moved"
                if (tree.path / place).is_dir() and target.parent.is_dir():
                    shutil.rmtree(target, ignore_errors=True)
                    if not str(target).startswith(f"{tree.path / place}/"):
                        (tree.path / place).rename(target)
            case _:
                tree.tick()
        remembered += len(tree.known)
        assert tree.look() == list(tree.storage.list())
    assert remembered
