"""Event files that a program writes elsewhere: where they go, and whose they are."""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path, PurePath

import pytest
from training import wait_for

from aboard.track.adopt import Adoption, places_in, shortened, writer_of

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
    ("name", "whose"),
    [
        (f"events.out.tfevents.1800000000.{HOST}.17.0", "ours"),
        (f"events.out.tfevents.1800000000.{HOST}.17.0.v2", "ours"),
        (f"events.out.tfevents.1800000000.{HOST}.18.0", "others"),
        (f"events.out.tfevents.1799999999.{HOST}.17.0", "others"),
        (f"events.out.tfevents.1800000000.{HOST}", "ours"),
        (f"events.out.tfevents.1800000000.{HOST}2.17.0", "elsewhere"),
        ("events.out.tfevents.1800000000.container.17.0", "elsewhere"),
        ("events.out.tfevents.1799999999.container.17.0", "others"),
        ("my.tfevents", "ours"),
    ],
)
def test_a_name_tells_whose_a_file_is(name: str, whose: str) -> None:
    assert writer_of(name, {17}, 1_800_000_000.7) == whose


def adopt(into: Path, work: Path, *files: str) -> dict[str, bytes]:
    for name in files:
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    Adoption(into, work, since=0).stop()
    found = into.rglob("*tfevents*")
    return {path.relative_to(into).as_posix(): path.read_bytes() for path in found}


ELSEWHERE = "logs/events.out.tfevents.1800000000.node02.17.0"


def adopted(tmp_path: Path, *command: str) -> bool:
    """Say whether a file of another machine is taken for the program's."""
    (tmp_path / "w/logs").mkdir(parents=True)
    (tmp_path / "w" / ELSEWHERE).write_bytes(b"x")
    Adoption(tmp_path / "run", tmp_path / "w", 0, command).stop()
    return (tmp_path / "run" / ELSEWHERE.removeprefix("logs/")).exists()


def test_a_file_of_another_machine_is_left_and_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not adopted(tmp_path, "python", "train.py")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"aboard: {tmp_path}/w/{ELSEWHERE}: not copied into the run, since ")


@pytest.mark.parametrize(
    "command", [["docker", "run", "image"], ["sudo", "/usr/bin/podman"], ["mpirun", "-n", "2", "x"]]
)
def test_a_program_that_runs_elsewhere_writes_there(tmp_path: Path, command: list[str]) -> None:
    assert adopted(tmp_path, *command)


@pytest.mark.parametrize("nodes", ["node[01-04]", "login,node[1,02].cluster", "a node02"])
def test_the_machines_of_the_job_are_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", nodes)
    assert adopted(tmp_path, "python", "train.py")


def test_the_machines_of_the_job_may_be_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes").write_text("node01 8\nnode02 8 all.q\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    assert adopted(tmp_path, "python", "train.py")


def test_a_script_that_starts_a_container_is_seen(tmp_path: Path) -> None:
    (tmp_path / "docker").symlink_to(shutil.which("sleep") or "")
    (tmp_path / "w/logs").mkdir(parents=True)
    command = ["sh", "-c", f"{tmp_path}/docker 60; true"]
    script = subprocess.Popen(command, start_new_session=True)
    adoption = Adoption(tmp_path / "run", tmp_path / "w", 0, ["sh", "train.sh"])
    adoption.start(script.pid)
    wait_for(lambda: adoption._family.sends_elsewhere)
    (tmp_path / "w" / ELSEWHERE).write_bytes(b"x")
    adoption.stop()
    assert len(list((tmp_path / "run").rglob("*.tfevents.*"))) == 1
    os.killpg(script.pid, signal.SIGKILL)
    script.wait()


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
