import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aboard.system import machine_digest, own_directory, own_file

HOLDER = """
import sys
from pathlib import Path
from aboard.system import own_directory, own_file
with own_directory("mine") as directory, own_file(Path(sys.argv[1]), "page", ".html", "x") as file:
    (directory / "copy").write_text("large")
    print(directory, file, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@contextmanager
def holder(place: Path) -> Iterator["tuple[subprocess.Popen[str], Path, Path]"]:
    """Let another process have a directory and a file."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            directory, file = process.stdout.readline().split()
            yield process, Path(directory), Path(file)
        finally:
            process.kill()


def use(place: Path) -> None:
    with own_directory("mine"), own_file(place, "page", ".html", "y"):
        pass


def test_they_are_ours_alone_and_gone_afterwards(place: Path) -> None:
    with own_directory("mine") as directory, own_file(place, "page", ".html", "hello") as file:
        assert directory.stat().st_mode & 0o777 == 0o700
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_text() == "hello"
        assert file.suffix == ".html"
        (directory / "below").mkdir()
    assert list(place.iterdir()) == []


def test_those_of_a_process_that_lives_stay(place: Path) -> None:
    with holder(place) as (_, directory, file):
        use(place)
        assert (directory / "copy").exists()
        assert file.exists()


def test_those_of_a_process_that_was_killed_go(place: Path) -> None:
    with holder(place) as (process, directory, file):
        process.kill()
        process.wait()
        assert (directory / "copy").exists()
        assert file.exists()
        use(place)
    assert list(place.iterdir()) == []


def test_nothing_else_is_touched(place: Path) -> None:
    mine = machine_digest()
    kept = [f"mine-{mine}-unlocked", "mine-other000-abc", "mine", f"other-{mine}-abc"]
    for name in kept:
        (place / name).mkdir()
    (place / "mine-other000-abc" / "lock").touch()
    (place / "thesis.html").write_text("precious")
    (place / f"page-{mine}-link.html").symlink_to(place / "thesis.html")
    os.mkfifo(place / f"page-{mine}-pipe.html")
    before = sorted(place.iterdir())
    use(place)
    assert sorted(place.iterdir()) == before
    assert (place / "thesis.html").read_text() == "precious"


def test_a_place_that_cannot_be_written_is_an_error(place: Path) -> None:
    with pytest.raises(OSError, match="No such file"), own_file(place / "no", "page", ".html", "x"):
        pass
