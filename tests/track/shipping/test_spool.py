"""Where spools are: in their place, or, when that cannot be used, in another."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from aboard.track.shipping import spool
from aboard.track.shipping.shipper import Shipment
from aboard.track.shipping.spool import NoSpool, Spool


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Give the test a temporary directory of its own."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


@pytest.fixture
def blocked(tmp_path, monkeypatch) -> Path:
    """Let spools belong where no directory can be made."""
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("ABOARD_SPOOL", str(tmp_path / "file" / "spool"))
    return tmp_path / "file" / "spool"


def test_a_spool_that_cannot_be_in_its_place_is_made_in_another(
    tmp_path, temporary, blocked, capfd
):
    reserve = temporary / f"aboard-spool-{os.getuid()}"
    shipment = Shipment(str(tmp_path / "target"))
    (shipment.directory / "notes.txt").write_bytes(b"hello")
    assert shipment.spool.directory.parent == reserve
    assert reserve.stat().st_mode & 0o777 == 0o700
    assert [one.directory for one in spool.all_spools()] == [shipment.spool.directory]
    assert shipment.finish(60)
    assert (tmp_path / "target" / "notes.txt").read_bytes() == b"hello"
    said = capfd.readouterr().err
    assert said.startswith(f"aboard: {blocked}: logs cannot be kept here (not a directory); ")
    assert f"they are kept in {reserve}. Set ABOARD_SPOOL to choose another directory." in said


def test_no_place_at_all_is_one_line_that_says_what_to_do(tmp_path, blocked, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(NoSpool) as caught:
        Spool.create(str(tmp_path), 1)
    assert str(caught.value) == (
        f"{blocked}: logs for a bucket cannot be kept here (not a directory), nor in"
        " the temporary directory (not a directory)."
        " Set ABOARD_SPOOL to a directory on a local disk that you can write to."
    )


def test_a_directory_that_others_can_write_to_is_not_used(tmp_path, temporary, monkeypatch, capfd):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("ABOARD_SPOOL", str(shared))
    made = Spool.create(str(tmp_path), 1)
    assert made.directory.is_relative_to(temporary)
    assert "can be written to by other users" in capfd.readouterr().err


def test_a_disk_that_is_full_leaves_nothing_half_made(tmp_path, temporary, spool_root, monkeypatch):
    write = Path.write_text

    def full(path: Path, text: str) -> int:
        if path.is_relative_to(spool_root):
            raise OSError(28, "No space left on device")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", full)
    made = Spool.create(str(tmp_path), 1)
    assert made.directory.is_relative_to(temporary)
    assert list(spool_root.iterdir()) == []


@pytest.mark.parametrize("changed", [{"added": [1]}, {"created": None, "boot": 7, "interval": "x"}])
def test_what_another_version_wrote_is_read(tmp_path, changed):
    made = Spool.create(str(tmp_path), 1)
    before = made.owner()
    document = json.loads((made.directory / "owner.json").read_bytes()) | changed
    (made.directory / "owner.json").write_text(json.dumps(document))
    (made.directory / "status.json").write_text(json.dumps({"pid": 7, "speed": 3, "left": None}))
    owner = made.owner()
    assert (owner.target, owner.pid, owner.start) == (before.target, before.pid, before.start)
    assert owner.interval == (1 if "added" in changed else 5)
    assert made.status() == spool.Status(7)
    assert [one.directory for one in spool.all_spools()] == [made.directory]


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"target": ""}'])
def test_files_without_a_known_target_are_damage(tmp_path, text):
    made = Spool.create(str(tmp_path), 1)
    assert spool.all_spools(damaged=True) == []
    (made.directory / "owner.json").unlink()
    if text is not None:
        (made.directory / "owner.json").write_text(text)
    assert (spool.all_spools(), spool.all_spools(damaged=True)) == ([], [])
    (made.files / "train").mkdir()
    (made.files / "train" / "a").write_bytes(b"a")
    assert [one.directory for one in spool.all_spools(damaged=True)] == [made.directory]


def test_a_spool_without_locks_goes_without(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.lockf", refuse)
    made = Spool.create(str(tmp_path), 1)
    assert not made.lifeline.exists()
    assert made.owner().presence(made.lifeline) == "alive"
