"""One log directory made of links: what is in it, and what never is."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aboard.events import encode
from aboard.events.records import frame
from aboard.index import Source
from aboard.index.library import Member
from aboard.storage.base import Entry, NoSuchPath, Storage, StorageError, Unreachable, open_storage
from aboard.tensorboard import logdir as logdir_module
from aboard.tensorboard.board import Board
from aboard.tensorboard.logdir import LogTree, MemberDirectory, Mirror, MirrorUpdater
from tests.waiting import until


@pytest.fixture
def make(tmp_path):
    """Make files, and a tree over places, which may have names: `make(files, place, …)`."""

    def make(files, *places, **options):
        for name in files:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        members = [
            Member(Source(place[1].format(tmp_path)), place[0])
            if isinstance(place, tuple)
            else Member.parse(place.format(tmp_path))
            for place in places
        ]
        board = Board("board", "A board", tuple(members), **options)
        found = [MemberDirectory(member, member.source.uri) for member in members]
        return LogTree(board, found, tmp_path / "links")

    return make


def walk(root: Path) -> set[str]:
    """Return the files below a directory as a plugin sees them that follows no links to others."""
    return {
        str(Path(directory, name).relative_to(root))
        for directory, _, names in os.walk(root)
        for name in names
    }


def test_a_board_of_one_directory_needs_no_links(make, tmp_path):
    tree = make(["logs/a/tfevents", "logs/plugins/profile/x"], "{}/logs")
    assert list(tree.update()) == ["a"]
    assert tree.root == tmp_path / "logs"
    assert not (tmp_path / "links").exists()


def test_every_run_has_a_directory_with_what_is_beside_its_events(make):
    tree = make(
        ["logs/tfevents", "logs/note", "logs/a/tfevents", "logs/a/files/f", "logs/b/c/tfevents"],
        "name={}/logs",
    )
    assert tree.update().keys() == {"name", "name/a", "name/b/c"}
    assert walk(tree.root) == {
        "name/tfevents",
        "name/note",
        "name/a/tfevents",
        "name/b/c/tfevents",
    }
    assert (tree.root / "name/a/files/f").read_text() == "logs/a/files/f"


def test_files_of_plugins_are_found_without_following_links(make):
    files = ["logs/a/tfevents", "logs/a/plugins/profile/1/x", "logs/b/plugins/profile/2/y"]
    tree = make(files, "name={}/logs")
    tree.update()
    assert walk(tree.root) == {
        "name/a/tfevents",
        "name/a/plugins/profile/1/x",
        "name/b/plugins/profile/2/y",
    }


def test_nothing_of_a_hidden_run_is_there(make):
    files = ["logs/tfevents", "logs/a/tfevents", "logs/a/plugins/p/x", "logs/a/b/tfevents"]
    tree = make(files, "{}/logs", exclude=("a",))
    assert tree.update().keys() == {".", "a/b"}
    assert walk(tree.root) == {"tfevents", "a/b/tfevents"}


def test_nothing_is_made_in_a_log_directory(make, tmp_path):
    """Names overlap: a plain directory of one member is where another has its runs."""
    files = ["one/x/tfevents", "one/x/sub/f", "two/sub/tfevents", "two/sub/g", "two/sub/h/i"]
    tree = make(files, ("x", "{}/one/x"), ("x/sub", "{}/two/sub"))
    before = {path for place in ("one", "two") for path in (tmp_path / place).rglob("*")}
    assert tree.update().keys() == {"x", "x/sub"}
    assert {"x/tfevents", "x/sub/tfevents", "x/sub/f", "x/sub/g"} <= walk(tree.root)
    after = {path for place in ("one", "two") for path in (tmp_path / place).rglob("*")}
    assert after == before


def test_the_tree_follows_what_comes_and_goes(make, tmp_path):
    tree = make(["logs/a/tfevents", "logs/b/c/tfevents"], "name={}/logs")
    tree.update()
    (tmp_path / "logs/a/more").write_text("")
    (tmp_path / "logs/b/c/tfevents").unlink()
    assert tree.update().keys() == {"name/a"}
    assert walk(tree.root) == {"name/a/tfevents", "name/a/more"}
    (tmp_path / "logs/b/c/tfevents").write_text("")
    assert tree.update().keys() == {"name/a", "name/b/c"}
    assert tree.problems == []


def test_one_event_file_comes_without_its_siblings(make):
    files = ["logs/1.tfevents", "logs/2.tfevents", "logs/note"]
    tree = make(files, "{}/logs/1.tfevents")
    assert tree.update().keys() == {"."}
    assert walk(tree.root) == {"1.tfevents", "note"}


def test_a_link_in_a_circle_ends(make, tmp_path):
    tree = make(["logs/a/tfevents", "logs/a/plugins/f"], "name={}/logs")
    (tmp_path / "logs/a/plugins/up").symlink_to(tmp_path / "logs")
    tree.update()
    assert "name/a/tfevents" in walk(tree.root)


# A copy of a bucket: what is in it, how it grows, and what it refuses.


TORCH = Path(__file__).parent.parent / "fixtures" / "torch"
EVENTS = "a/events.out.tfevents.1"


def events(*steps):
    return b"".join(
        frame(encode.event(float(step), step, [encode.scalar("loss", step / 2)])) for step in steps
    )


def files_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


class Scripted(Storage):
    """Files in memory, whose reads are counted and can be made to fail."""

    uri = "memory://scripted"

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.reads: list[tuple[str, int, int | None]] = []
        self.broken: set[str] = set()

    def list(self, prefix="", *, containing="", on_error=None) -> Iterator[Entry]:
        for name, data in sorted(self.files.items()):
            yield Entry(name, len(data), f"{hash(data):x}")

    def read(self, name, start=0, end=None) -> bytes:
        self.reads.append((name, start, end))
        if name in self.broken and start > 0:
            raise Unreachable(name, "the storage went away")
        return self.files[name][start:end]

    def write(self, name, data):
        raise NotImplementedError

    create_new = write

    def delete(self, name):
        raise NotImplementedError


@pytest.fixture(params=["memory", "s3"])
def bucket(request, tmp_path):
    if request.param == "memory":
        return f"memory://{tmp_path.name}/logs"
    return request.getfixturevalue("s3_bucket") + f"/{tmp_path.name}"


def test_a_bucket_is_copied_and_followed(bucket, tmp_path):
    storage, directory = open_storage(bucket), tmp_path / "copy"
    storage.write(EVENTS, events(1, 2))
    storage.write("a/empty.tfevents", b"")
    storage.write("b/c/events.out.tfevents.1", events(1))
    storage.write("a/model.ckpt", b"large")
    storage.write("a/plugins/profile/1/host.xplane.pb", b"profile")
    mirror = Mirror(storage, directory)
    assert mirror.update().copied == 4
    profile = "a/plugins/profile/1/host.xplane.pb"
    assert files_in(directory) == {EVENTS, "a/empty.tfevents", "b/c/events.out.tfevents.1", profile}
    assert not mirror.update().changed
    storage.write(EVENTS, events(1, 2, 3))
    update = mirror.update()
    assert (update.grown, update.copied, update.bytes_read) == (1, 0, len(events(3)))
    assert (directory / EVENTS).read_bytes() == events(1, 2, 3)
    storage.write(EVENTS, events(7, 8, 9, 10))
    assert mirror.update().copied == 1
    assert (directory / EVENTS).read_bytes() == events(7, 8, 9, 10)
    storage.delete("b/c/events.out.tfevents.1")
    assert mirror.update().removed == 1
    assert not (directory / "b").exists()


def test_a_grown_file_takes_one_listing_and_one_read(tmp_path):
    storage = Scripted({EVENTS: events(*range(100))})
    mirror = Mirror(storage, tmp_path)
    mirror.update()
    storage.files[EVENTS] += events(100)
    storage.reads.clear()
    mirror.update()
    size = len(events(*range(100)))
    assert storage.reads == [(EVENTS, size - 256, size + len(events(100)))]


def test_a_file_of_the_same_size_but_another_version_is_copied_anew(tmp_path):
    storage = Scripted({EVENTS: events(1, 2)})
    mirror = Mirror(storage, tmp_path)
    mirror.update()
    storage.files[EVENTS] = events(3, 4)
    mirror.update()
    assert (tmp_path / EVENTS).read_bytes() == events(3, 4)
    storage.files[EVENTS] = events(5)
    mirror.update()
    assert (tmp_path / EVENTS).read_bytes() == events(5)


def test_a_replaced_file_is_never_seen_half(tmp_path, monkeypatch):
    monkeypatch.setattr(logdir_module, "_BLOCK", 300)
    storage = Scripted({EVENTS: events(*range(50))})
    mirror = Mirror(storage, tmp_path)
    mirror.update()
    storage.files[EVENTS] = events(*range(100, 200))
    storage.broken.add(EVENTS)
    assert [type(problem) for problem in mirror.update().problems] == [Unreachable]
    assert (tmp_path / EVENTS).read_bytes() == events(*range(50))
    storage.broken.clear()
    assert not mirror.update().problems
    assert (tmp_path / EVENTS).read_bytes() == events(*range(100, 200))
    assert files_in(tmp_path) == {EVENTS}


def test_a_copy_that_broke_off_goes_on_from_there(tmp_path, monkeypatch):
    monkeypatch.setattr(logdir_module, "_BLOCK", 300)
    whole = events(*range(50))
    storage = Scripted({EVENTS: whole, "b/events.out.tfevents.1": events(1)})
    storage.broken.add(EVENTS)
    mirror = Mirror(storage, tmp_path)
    update = mirror.update()
    assert [str(problem) for problem in update.problems] == [f"{EVENTS}: the storage went away."]
    assert (tmp_path / EVENTS).read_bytes() == whole[:300]
    assert (tmp_path / "b/events.out.tfevents.1").read_bytes() == events(1)
    storage.broken.clear()
    storage.reads.clear()
    mirror.update()
    assert (tmp_path / EVENTS).read_bytes() == whole
    assert min(start for _, start, _ in storage.reads) == 300 - 256


def test_the_files_that_a_projector_names_are_copied_and_no_others(tmp_path):
    bucket = f"memory://{tmp_path.name}/logs"
    storage = open_storage(bucket)
    for path in (TORCH / "every-kind").rglob("*"):
        if path.is_file():
            storage.write(str(path.relative_to(TORCH)), path.read_bytes())
    storage.write("every-kind/00001/embedding/other.tsv", b"1\t2\n")
    storage.write("secret.tsv", b"1\t2\n")
    config = (TORCH / "every-kind" / "projector_config.pbtxt").read_text()
    hostile = config.replace("00001/embedding/metadata.tsv", "../secret.tsv")
    storage.write("hostile/projector_config.pbtxt", hostile.encode())
    storage.write("broken/projector_config.pbtxt", b"\xff not a configuration")
    Mirror(storage, tmp_path / "copy").update()
    copied = files_in(tmp_path / "copy")
    assert {name for name in copied if name.endswith((".tsv", ".png"))} == {
        "every-kind/00001/embedding/metadata.tsv",
        "every-kind/00001/embedding/sprite.png",
        "every-kind/00001/embedding/tensors.tsv",
    }


@pytest.mark.parametrize(
    "name", ["../tfevents", "a/../../tfevents", "/etc/tfevents", "a//tfevents"]
)
def test_a_name_that_leads_out_is_refused(name, tmp_path):
    storage = Scripted({name: events(1), EVENTS: events(1)})
    update = Mirror(storage, tmp_path / "in" / "copy").update()
    assert ["the name" in str(problem) for problem in update.problems] == [True]
    assert files_in(tmp_path) == {f"in/copy/{EVENTS}"}


def test_a_name_that_is_both_file_and_directory_stops_nothing_else(tmp_path):
    storage = Scripted({"tfevents": events(1), "tfevents/tfevents": events(1), EVENTS: events(2)})
    update = Mirror(storage, tmp_path).update()
    assert len(update.problems) == 1
    assert (tmp_path / EVENTS).read_bytes() == events(2)


def test_nothing_is_removed_after_a_listing_with_problems(tmp_path, monkeypatch):
    storage = Scripted({EVENTS: events(1)})
    mirror = Mirror(storage, tmp_path)
    mirror.update()

    def failing(prefix="", *, containing="", on_error=None):
        on_error(StorageError("a", "no permission"))
        return iter(())

    monkeypatch.setattr(storage, "list", failing)
    assert [str(problem) for problem in mirror.update().problems] == ["a: no permission."]
    assert files_in(tmp_path) == {EVENTS}


def test_a_follower_reports_updates_and_stops(tmp_path):
    storage = Scripted({EVENTS: events(1)})
    updates = []
    before = threading.active_count()
    follower = MirrorUpdater(Mirror(storage, tmp_path), 0.05, updates.append, lambda: False)
    until(lambda: updates)
    storage.files[EVENTS] += events(2)
    until(lambda: (tmp_path / EVENTS).read_bytes() == events(1, 2))
    follower.close()
    assert threading.active_count() == before


def test_a_follower_leaves_the_bucket_alone_while_nobody_looks(tmp_path):
    storage = Scripted({EVENTS: events(1)})
    updates = []
    looks = threading.Event()
    follower = MirrorUpdater(
        Mirror(storage, tmp_path), 0.01, updates.append, lambda: not looks.is_set()
    )
    until(lambda: updates)
    count = len(updates)
    assert not looks.wait(0.3)
    assert len(updates) == count
    looks.set()
    follower.wake()
    until(lambda: len(updates) > count)
    follower.close()


def test_a_bucket_that_does_not_exist_is_a_problem_and_no_end(tmp_path):
    updates = []
    mirror = Mirror(open_storage(f"memory://{tmp_path.name}/nothing"), tmp_path / "copy")
    follower = MirrorUpdater(mirror, 0.05, updates.append, lambda: False)
    until(lambda: len(updates) > 1)
    follower.close()
    assert isinstance(updates[0].problems[0], NoSuchPath)


def test_one_event_file_of_a_bucket_is_copied_alone(tmp_path):
    storage = open_storage(f"memory://{tmp_path.name}/logs")
    storage.write("events.out.tfevents.1", events(1))
    storage.write("events.out.tfevents.2", events(2))
    Mirror(storage, tmp_path / "copy", only="events.out.tfevents.1").update()
    assert files_in(tmp_path / "copy") == {"events.out.tfevents.1"}
