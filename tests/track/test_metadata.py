"""What a run records about its process."""

import subprocess
from pathlib import Path

from aboard.track.metadata import git_commit, host_name, user_name


def git(directory: Path, *arguments: str) -> str:
    told = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(directory), *told, *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def test_the_commit_is_what_git_says(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    (repository / "src").mkdir(parents=True)
    assert git_commit(repository) == ""
    git(repository, "init")
    assert git_commit(repository) == ""
    git(repository, "commit", "--allow-empty", "-m", "one")
    head = git(repository, "rev-parse", "HEAD")
    assert git_commit(repository / "src") == head
    git(repository, "worktree", "add", "-b", "side", str(tmp_path / "side"))
    git(tmp_path / "side", "commit", "--allow-empty", "-m", "two")
    assert git_commit(tmp_path / "side") == git(tmp_path / "side", "rev-parse", "HEAD") != head
    git(repository, "pack-refs", "--all")
    assert git_commit(repository) == head
    git(repository, "checkout", "--detach")
    assert git_commit(repository) == head
    (repository / ".git" / "HEAD").write_bytes(b"\xff\xfe")
    assert git_commit(repository) == ""


def test_who_and_where() -> None:
    assert user_name()
    assert host_name()
