"""Deleting a run: what is counted, and what is left when a file cannot be deleted."""

import pytest

from aboard.runs.deletion import delete_run
from aboard.runs.known import KnownRun
from aboard.runs.manifest import Manifest
from aboard.storage import NotFound, PermissionDenied, open_storage
from aboard.storage.local import LocalStorage


@pytest.fixture
def run(tmp_path):
    storage = open_storage(str(tmp_path))
    record = Manifest("run1", "a")
    storage.write("a/run1/run.json", record.to_json())
    for name in ("model.pt", "train/events.out.tfevents.1", "eval/events.out.tfevents.1"):
        storage.write(f"a/run1/{name}", b"1234")
    return KnownRun.of_record(storage.uri, "a/run1", record)


def test_files_and_bytes_are_counted(run, tmp_path):
    size = (tmp_path / "a/run1/run.json").stat().st_size
    deleted = delete_run(run)
    assert (deleted.files, deleted.bytes, deleted.problems) == (4, size + 12, [])
    assert list((tmp_path / "a").iterdir()) == []
    with pytest.raises(NotFound):
        delete_run(run)


def test_the_record_stays_until_all_else_is_gone(run, tmp_path, monkeypatch):
    original = LocalStorage.delete

    def delete(self, name):
        if name.startswith("a/run1/eval/"):
            raise PermissionDenied(f"{self.uri}/{name}", "permission denied")
        original(self, name)

    monkeypatch.setattr(LocalStorage, "delete", delete)
    deleted = delete_run(run)
    assert (deleted.files, deleted.bytes, len(deleted.problems)) == (2, 8, 1)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["a/run1/eval/events.out.tfevents.1", "a/run1/run.json"]
    monkeypatch.undo()
    assert delete_run(run).problems == []
    assert list((tmp_path / "a").iterdir()) == []
