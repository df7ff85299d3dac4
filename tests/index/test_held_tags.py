"""Tags that are held while their files are read anew: the points they stand for, or an error."""

import sqlite3
import threading

import pytest

from aboard.events import encode
from aboard.events.writer import EventWriter
from aboard.index import Index, Source, UnknownName, reader
from aboard.index.logs import Logs


@pytest.fixture
def path(tmp_path):
    """Give the place of an index that several open."""
    return tmp_path / "cache" / "index.db"


@pytest.fixture
def tree(tmp_path):
    """Write a run of two files with a restart, and one with a text."""
    root = tmp_path / "tree"
    for file, steps in enumerate((range(5), range(3, 8))):
        with EventWriter(root / "a", suffix=f".{file}") as writer:
            for step in steps:
                writer.scalar("loss", 10.0 * file + step, step)
    with EventWriter(root / "b") as writer:
        writer.scalar("loss", 7.0, 1)
        writer.add([encode.text("note", "hello")], 2)
    return root


LOSS_OF_A = [0.0, 1.0, 2.0, 13.0, 14.0, 15.0, 16.0, 17.0]


def read_anew(path, tree):
    """Let another process read everything again."""
    with Index(path) as other:
        other.refresh(Source.parse(str(tree)), anew=True)


def one_run(directory, values):
    with EventWriter(directory) as writer:
        for step, value in enumerate(values):
            writer.scalar("loss", value, step)
    return Source.parse(str(directory))


def damage_chunks(path):
    connection = sqlite3.connect(path)
    (page,) = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'chunk'"
    ).fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


def test_a_replaced_index_never_gives_a_run_the_points_of_another(path, tmp_path):
    first = one_run(tmp_path / "p", [100.0, 101.0, 102.0])
    second = one_run(tmp_path / "q", [-1.0, 0.0, 1.0])
    with Index(path) as index:
        index.refresh(first)
        index.refresh(second)
    with Index(path) as index:
        held = {}
        for source in (second, first):
            index.refresh(source)
            (held[source],) = index.tags(source)
        damage_chunks(path)
        assert index.series(held[second]).values.tolist() == [-1.0, 0.0, 1.0]
        assert index.series(held[first]).values.tolist() == [100.0, 101.0, 102.0]


def test_marks_of_a_replaced_index_are_others(path, tmp_path):
    source = one_run(tmp_path / "p", [1.0])
    marks = []
    for _ in range(2):
        with Index(path) as index:
            index.refresh(source)
            marks += index.marks([source])
        path.unlink()
    assert marks[0] != marks[1]


def test_what_was_read_anew_is_found_anew(path, tree):
    with Index(path) as index:
        logs = Logs(tree, index=index)
        a, b, note = logs.tag("a", "loss"), logs.tag("b", "loss"), logs.tag("b", "note")
        read_anew(path, tree)
        assert index.series(a).values.tolist() == LOSS_OF_A
        assert [one.values.tolist() for one in index.many_series([b, a], samples=100)] == [
            [7.0],
            LOSS_OF_A,
        ]
        assert [one.step for one in index.pointers(note)] == [2]
        assert index.point_counts([a, b, note]) == [8, 1, 1]


def test_one_file_as_a_source_stays_one_file(path, tree):
    first = min((tree / "a").iterdir())
    with Index(path) as index:
        (tag,) = Logs(first, index=index).tags
        read_anew(path, tree)
        assert index.series(tag).values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


class Interrupted(Exception):
    """A reading that ends in the middle."""


def test_what_is_half_read_anew_is_read_to_its_end(path, tmp_path, monkeypatch):
    source = one_run(tmp_path / "run", [float(step) for step in range(5000)])
    with Index(path) as index:
        index.refresh(source)
        (tag,) = index.tags(source)
        monkeypatch.setattr(reader, "BLOCK", 4096)
        monkeypatch.setattr(reader, "BATCH_VALUES", 500)

        def interrupt(_report):
            raise Interrupted

        with Index(path) as other, pytest.raises(Interrupted):
            other.refresh(source, anew=True, progress=interrupt)
        assert len(index.series(tag).steps) == 5000


def test_what_is_gone_is_an_error(path, tree):
    with Index(path) as index:
        logs = Logs(tree, index=index)
        a, b, note = logs.tag("a", "loss"), logs.tag("b", "loss"), logs.tag("b", "note")
        for file in (tree / "b").iterdir():
            file.unlink()
        read_anew(path, tree)
        gone = (
            f"tag 'loss' of run 'b' is no longer in {tree}: its files were deleted or replaced"
            " since it was listed. List the tags again."
        )
        with pytest.raises(UnknownName) as error:
            index.series(b)
        assert str(error.value) == gone
        with pytest.raises(UnknownName, match="'note' of run 'b' is no longer in"):
            index.pointers(note)
        series = index.many_series([b, a], samples=100)
        assert series[0] is None
        assert series[1].values.tolist() == LOSS_OF_A
        assert index.many_series([b], samples=100, together=True) == [None]


def test_an_index_that_is_removed_is_filled_for_whoever_holds_a_tag(path, tree):
    with Index(path) as index:
        tag = Logs(tree, index=index).tag("a", "loss")
        with index._connections.lend():
            for file in path.parent.iterdir():
                file.unlink()
            assert index.series(tag).values.tolist() == LOSS_OF_A


def test_readers_never_see_less_while_files_are_read_anew(path, tree):
    done = threading.Event()

    def rebuild():
        for _ in range(30):
            read_anew(path, tree)
        done.set()

    with Index(path) as index:
        tag = Logs(tree, index=index).tag("a", "loss")
        thread = threading.Thread(target=rebuild)
        thread.start()
        seen = set()
        while not done.is_set():
            seen.add(tuple(index.series(tag).values.tolist()))
        thread.join()
    assert seen == {tuple(LOSS_OF_A)}
