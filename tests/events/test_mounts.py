"""Which file system holds a path, and which of them are buckets in disguise."""

import errno
import os

import pytest

from aboard.events.mounts import file_system_of, is_fuse


def test_the_innermost_mount_counts(tmp_path):
    mounts = f"22 1 0:1 / / rw - ext4 root rw\n23 22 0:2 / {tmp_path} rw - lustre l rw\n"
    assert file_system_of(tmp_path / "not" / "yet", mounts) == "lustre"
    assert file_system_of(tmp_path.parent, mounts) == "ext4"
    deeper = tmp_path / "a b"
    deeper.mkdir()
    mounts += f"24 23 0:3 / {str(deeper).replace(' ', chr(92) + '040')} rw shared:1 - xfs x rw\n"
    assert file_system_of(deeper / "x", mounts) == "xfs"


def test_without_mounts_nothing_is_known(tmp_path):
    assert file_system_of(tmp_path, "") == ""
    assert file_system_of(tmp_path, "garbage\n - \n") == ""


@pytest.mark.parametrize("error", [errno.ENOTCONN, errno.EACCES, errno.ESTALE])
def test_of_a_path_that_cannot_be_looked_at_nothing_is_known(tmp_path, monkeypatch, error):
    stat = os.stat

    def dead(path, *arguments, **options):
        if str(path).startswith(str(tmp_path)):
            raise OSError(error, os.strerror(error), str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", dead)
    mounts = f"23 22 0:2 / {tmp_path} rw - fuse.gcsfuse source rw\n"
    assert file_system_of(tmp_path / "run", mounts) == ""
    assert not is_fuse(tmp_path / "run", mounts)


@pytest.mark.parametrize(
    ("kind", "fuse"),
    [
        ("fuse.gcsfuse", True),
        ("fuse", True),
        ("fuseblk", False),
        ("fusectl", False),
        ("nfs", False),
    ],
)
def test_file_systems_in_user_space_are_known_by_their_type(tmp_path, kind, fuse):
    assert is_fuse(tmp_path, f"23 22 0:2 / {tmp_path} rw - {kind} source rw\n") is fuse
