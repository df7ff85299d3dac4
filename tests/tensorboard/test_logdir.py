"""One log directory made of links: what is in it, and what never is."""

import os
from pathlib import Path

import pytest

from aboard.index import Source
from aboard.index.library import Member
from aboard.tensorboard.board import Board
from aboard.tensorboard.logdir import LogTree, MemberDirectory


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
