"""Where caches are kept, and that they are never on a network file system."""

import os

import pytest

from aboard.index import Index
from aboard.storage.place import cache_place, is_network, make_private


def test_a_network_cache_is_not_used_and_this_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("aboard.storage.place.file_system_of", lambda path: "nfs4")
    place = cache_place()
    assert place.directory == tmp_path / "tmp" / f"aboard-{os.getuid()}"
    with Index() as index:
        assert index.path is not None
        assert index.path.parent == place.directory
        assert str(index.problems[0]) == (
            f"{tmp_path}/cache is on a network file system (nfs4), so the index is in"
            f" {place.directory} on this machine."
            " Set ABOARD_CACHE to a local directory to choose another place."
        )


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        ("fuse", True),
        ("fuse.goofys", True),
        ("fuse.geesefs", True),
        ("fuse.ossfs", True),
        ("fuse.blobfuse", True),
        ("fuse.sshfs", True),
        ("lustre", True),
        ("fuse.fuse-overlayfs", False),
        ("fuse.ntfs-3g", False),
        ("fuseblk", False),
        ("ext4", False),
        ("", False),
    ],
)
def test_mounts_in_user_space_are_shared_unless_known_not_to_be(kind, shared):
    assert is_network(kind) is shared


def test_the_usual_places(monkeypatch, tmp_path):
    monkeypatch.setattr("aboard.storage.place.file_system_of", lambda path: "ext4")
    monkeypatch.delenv("ABOARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_place() == (tmp_path / "aboard", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_place() == (tmp_path / "home" / ".cache" / "aboard", "")


def test_a_directory_that_others_can_write_is_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(PermissionError, match="can be written to by other users"):
        make_private(shared)


def test_a_directory_of_someone_else_is_refused(tmp_path):
    if os.getuid() != 0:
        pytest.skip("only root can give a directory away")
    other = tmp_path / "other"
    other.mkdir()
    os.chown(other, 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to another user"):
        make_private(other)
