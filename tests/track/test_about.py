"""What a record says of its process, and what it must not say."""

import subprocess
from pathlib import Path

import pytest

from aboard.track.about import command_line, git_commit, host_name, looks_secret, user_name


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["a.py", "--token", "abc", "-x"], ["a.py", "--token", "***", "-x"]),
        (["a.py", "--api-key=abc"], ["a.py", "--api-key=***"]),
        (["a.py", "--hf_token", "abc"], ["a.py", "--hf_token", "***"]),
        (["env", "WANDB_API_KEY=abc", "a.py"], ["env", "WANDB_API_KEY=***", "a.py"]),
        (["a.py", "db.password=abc"], ["a.py", "db.password=***"]),
        (["a.py", "--token", "--lr=1"], ["a.py", "--token", "--lr=1"]),
        (["a.py", "--max-tokens", "9", "--tokenizer", "x"],) * 2,
        (["a.py", "--author=me", "--keys=3", "a  b"],) * 2,
        (["a.py", "--db=pg://me:abc@host/x"], ["a.py", "--db=pg://***@host/x"]),
        (["a.py", "hf_" + "a" * 30], ["a.py", "***"]),
        (["sh", "-c", "a.py --token abc --lr 1"], ["sh", "-c", "a.py --token *** --lr 1"]),
        (["a.py", "az://c/x?sv=1&sig=a%2Bb&se=2"], ["a.py", "az://c/x?sv=1&sig=***&se=2"]),
        (["a.py", "--url=https://h/x?sig=abc"], ["a.py", "--url=https://h/x?sig=***"]),
        (
            ["a.py", "--url", "https://h/x?X-Amz-Credential=a/b&X-Amz-Signature=c&d=1"],
            ["a.py", "--url", "https://h/x?X-Amz-Credential=***"],
        ),
        (
            ["a.py", "--url=https://h/x?X-Amz-Credential=a/b&X-Amz-Signature=c&d=1"],
            ["a.py", "--url=https://h/x?X-Amz-Credential=***&X-Amz-Signature=***&d=1"],
        ),
        (["a.py", "--u=gs://h?X-Goog-Signature=abc"], ["a.py", "--u=gs://h?X-Goog-Signature=***"]),
        (["a.py", "--to=A=b;AccountKey=ab==;C=d"], ["a.py", "--to=A=b;AccountKey=***;C=d"]),
        (["a.py", "SharedAccessSignature=s&g=1"], ["a.py", "SharedAccessSignature=***"]),
        (["a.py", "--connection-string=A=b"], ["a.py", "--connection-string=***"]),
        (["a.py", "--wandb-key=abc", "--pat", "x"], ["a.py", "--wandb-key=***", "--pat", "***"]),
        (
            ["curl", "-H", "Authorization: Bearer abc.def"],
            ["curl", "-H", "Authorization: Bearer ***"],
        ),
        (["a.py", "--signature-def", "serve", "--path=x", "--sig=1"],) * 2,
        (["sh", "-c", "KEY=1  SECRET=abc\na.py"], ["sh", "-c", "KEY=1 SECRET=*** a.py"]),
    ],
)
def test_secrets_are_hidden_in_a_command(arguments: list[str], shown: list[str]) -> None:
    assert command_line(arguments) == shown


def test_options_that_look_secret() -> None:
    secret = ["--password", "--passwd", "--aws-secret-key", "access_key", "--auth", "auth_token"]
    assert all(map(looks_secret, secret))
    assert not any(map(looks_secret, ["--lr", "--key", "--num-tokens", "token-size", "--authors"]))


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
