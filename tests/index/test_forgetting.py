"""Forgetting sources: what is known of them goes, and nothing else."""

import shutil

import pytest

from aboard.events.writer import EventWriter
from aboard.index import Index, Source
from aboard.index.logs import Logs
from aboard.runs.manifest import Manifest
from aboard.storage import open_storage


@pytest.fixture
def trees(tmp_path):
    """Write two trees, and one whose name begins with another's."""
    for name in ("old", "older", "new"):
        for run in ("a", "b"):
            with EventWriter(tmp_path / name / run) as writer:
                for step in range(3000):
                    writer.scalar("loss", step * 0.37, step, wall_time=step**0.5)
                writer.text("note", "hello", 0)
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
        index.forget(Source.parse(str(trees / "old")))
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
    forgotten = index.forget(Source.parse(str(trees / "old")))
    assert forgotten == (0, 0, 0, 2)
    assert {run.directory for run in index.known_runs([root])} == {
        *("older/a", "older/b", "new/a", "new/b")
    }
    assert index.catalog_changes(root) > changes
    index.refresh_catalog(root)
    assert len(index.known_runs([root])) == 6


def test_a_file_that_cannot_shrink_is_a_problem_and_no_more(trees, index, monkeypatch):
    import sqlite3

    from aboard.index import forgetting

    def full(_connection):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(forgetting, "compact", full)
    logs = Logs(trees / "old", index=index)
    index.compact()
    assert str(index.problems[0]) == (
        f"the index {index.path} could not be made smaller (database or disk is full)."
        " It needs as much free space as it takes; free some, or try again."
    )
    assert [run.name for run in logs.runs] == ["a", "b"]
