"""Event files that a program writes elsewhere: where they go, and whose they are."""

import socket
from pathlib import Path, PurePath

import pytest

from aboard.track.adopt import Adoption, may_be_of, places_in, shortened

HOST = socket.gethostname()


@pytest.mark.parametrize(
    ("directory", "short"),
    [
        ("logs/train", "train"),
        ("logs/fit/20260101/train", "fit/20260101/train"),
        ("runs/Nov16_12-00-00_host", "."),
        ("runs/Nov16_12-00-00_host-comment/a", "a"),
        ("lightning_logs/version_3", "."),
        ("out/tb/eval", "eval"),
        ("out/eval", "out/eval"),
        (".", "."),
    ],
)
def test_directories_that_say_nothing_are_left_out(directory: str, short: str) -> None:
    assert shortened(PurePath(directory)) == PurePath(short)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        (f"events.out.tfevents.1800000000.{HOST}.17.0", True),
        (f"events.out.tfevents.1800000000.{HOST}.17.0.v2", True),
        (f"events.out.tfevents.1800000000.{HOST}.18.0", False),
        (f"events.out.tfevents.1799999999.{HOST}.17.0", False),
        (f"events.out.tfevents.1800000000.{HOST}", True),
        ("events.out.tfevents.1800000000.container.18.0", True),
        ("my.tfevents", True),
    ],
)
def test_a_name_tells_whose_a_file_is(name: str, ours: bool) -> None:
    assert may_be_of(name, {17}, 1_800_000_000.7) is ours


def adopt(into: Path, work: Path, *files: str) -> dict[str, bytes]:
    for name in files:
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    Adoption(into, work, since=0).stop()
    found = into.rglob("*tfevents*")
    return {path.relative_to(into).as_posix(): path.read_bytes() for path in found}


def test_stages_keep_their_names(tmp_path: Path) -> None:
    found = adopt(tmp_path / "run", tmp_path / "w", "logs/train/a.tfevents", "logs/b.tfevents")
    assert found == {"train/a.tfevents": b"logs/train/a.tfevents", "b.tfevents": b"logs/b.tfevents"}


def test_directories_that_would_collide_stay_apart(tmp_path: Path) -> None:
    files = [f"{name}/logs/train/x.tfevents" for name in "abc"]
    found = adopt(tmp_path / "run", tmp_path / "w", *files)
    assert sorted(found.values()) == [name.encode() for name in files]
    assert "train/x.tfevents" in found


def test_files_of_another_run_are_left_there(tmp_path: Path) -> None:
    work = tmp_path / "w"
    (work / "runs/x/run1").mkdir(parents=True)
    (work / "runs/x/run1/run.json").write_text("{}")
    assert adopt(tmp_path / "run", work, "runs/x/run1/train/a.tfevents") == {}


def test_what_cannot_be_copied_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").write_text("in the way")
    work = tmp_path / "w"
    assert adopt(tmp_path / "run", work, "a/x.tfevents", "b/x.tfevents") == {}
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("x.tfevents cannot be copied into the run: Not a directory.")


def test_a_directory_that_the_command_names_is_searched_too(tmp_path: Path) -> None:
    work, outside = tmp_path / "w", tmp_path / "scratch" / "tb"
    work.mkdir()
    (outside / "train").mkdir(parents=True)
    (outside / "train" / "a.tfevents").write_bytes(b"a")
    for option in (["--dir", str(outside)], [f"--dir={outside}"], ["../scratch/tb"]):
        into = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        Adoption(into, work, 0, ["train.py", *option]).stop()
        assert [path.name for path in into.rglob("*.tfevents")] == ["a.tfevents"]


def test_what_lies_around_the_working_directory_is_not_searched(tmp_path: Path) -> None:
    work = tmp_path / "w"
    assert places_in(["train.py", "..", "/", str(tmp_path), "s3://b/x", "w/y"], work) == []
