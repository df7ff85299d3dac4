"""Event files that a program writes elsewhere: where they go, and whose they are."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path, PurePath

import pytest

from aboard import EventWriter
from aboard.events.files import adopted_name, adopted_originals
from aboard.index import Index
from aboard.index.logs import Logs
from aboard.runs.manifest import Manifest
from aboard.track.adoption import (
    Adoption,
    _program_of,
    directories_in,
    expand_nodes,
    job_nodes,
    pause_after,
    shortened,
    starts_remote,
    writer_of,
)
from tests.track.training import environment
from tests.waiting import until

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
        (f"events.out.tfevents.1800000000.{HOST}.17.0", "program"),
        (f"events.out.tfevents.1800000000.{HOST}.17.0.v2", "program"),
        (f"events.out.tfevents.1800000000.{HOST}.18.0", "other"),
        (f"events.out.tfevents.1799999999.{HOST}.17.0", "other"),
        (f"events.out.tfevents.1800000000.{HOST}", "program"),
        (f"events.out.tfevents.1800000000.{HOST}2.17.0", "remote"),
        ("events.out.tfevents.1800000000.container.17.0", "remote"),
        ("events.out.tfevents.1799999999.container.17.0", "other"),
        ("my.tfevents", "program"),
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
    return bool(list((tmp_path / "run").glob("*tfevents*")))


def test_a_file_of_another_machine_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not adopted(tmp_path, "python", "train.py")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"aboard: {tmp_path}/w/{ELSEWHERE}: not copied into the run, because ")


@pytest.mark.parametrize(
    "command", [["docker", "run", "image"], ["sudo", "/usr/bin/podman"], ["mpirun", "-n", "2", "x"]]
)
def test_a_program_that_runs_elsewhere_writes_there(tmp_path: Path, command: list[str]) -> None:
    assert adopted(tmp_path, *command)


@pytest.mark.parametrize("nodes", ["node[01-04]", "login,node[1,02].cluster", "a node02"])
def test_files_from_the_nodes_of_the_job_are_adopted(
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
    until(lambda: adoption._processes.starts_remote)
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


def test_a_failed_copy_is_reported_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(
    ("cost", "pause"),
    [(0.002, 0.2), (0.02, 2.0), (0.1, 5.0), (0.19, 5.0), (0.2, 20.0), (3.0, 300.0)],
)
def test_a_cheap_search_is_repeated_soon(cost: float, pause: float) -> None:
    assert pause_after(cost) == pytest.approx(pause)


def test_what_lies_around_the_working_directory_is_not_searched(tmp_path: Path) -> None:
    work = tmp_path / "w"
    assert directories_in(["train.py", "..", "/", str(tmp_path), "s3://b/x", "w/y"], work) == [work]


# Lists of machines, as schedulers write them.


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("", []),
        ("node1", ["node1"]),
        ("node1,node2", ["node1", "node2"]),
        ("node[01-03,07],login", ["node01", "node02", "node03", "node07", "login"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("r[1-2]n[3,5]-ib", ["r1n3-ib", "r1n5-ib", "r2n3-ib", "r2n5-ib"]),
        ("x[a-b]", []),
    ],
)
def test_lists_of_machines(listed: str, names: list[str]) -> None:
    assert list(expand_nodes(listed)) == names


def test_a_list_without_end_is_not_followed_to_it() -> None:
    assert len(list(expand_nodes("n[1-99999999]"))) == 100_000


def test_names_are_known_short_and_long() -> None:
    assert job_nodes({"LSB_HOSTS": "a.cluster a.cluster b"}) == {"a", "a.cluster", "b"}
    assert job_nodes({"PBS_NODEFILE": "/nowhere"}) == set()


@pytest.mark.parametrize(
    ("command", "elsewhere"),
    [
        (["/usr/bin/docker", "run"], True),
        (["sudo", "-E", "podman", "run"], True),
        (["env", "A=1", "srun", "python", "train.py"], True),
        (["python", "train.py", "--backend", "mpirun"], False),
        (["docker.py"], False),
        ([], False),
    ],
)
def test_programs_that_start_others_elsewhere(command: list[str], elsewhere: bool) -> None:
    assert starts_remote([_program_of(command)]) is elsewhere


# Ranks.

TWO_RANKS = """
import os, subprocess, sys
train = '''
import sys
from aboard import EventWriter
with EventWriter(sys.argv[1], flush_secs=0) as writer:
    writer.scalar("loss", 1.0, 0)
    input()
'''
def start(rank):
    command = [sys.executable, "-c", train, os.path.expandvars(sys.argv[1])]
    variables = {"RANK": str(rank), "WORLD_SIZE": "2"} if len(sys.argv) < 3 else {}
    return subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **variables})
ranks = [start(rank) for rank in range(2)]
input()
for rank in ranks:
    rank.communicate(b"\\n")
"""


def two_ranks(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "aboard", "run", "-q", "--root", "root", "--ranks", "all"]
    return subprocess.Popen(
        [*command, "--", sys.executable, "-c", TWO_RANKS, *arguments],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_files_of_each_rank_have_a_directory(tmp_path: Path) -> None:
    process = two_ranks(tmp_path, "logs/train")
    run = tmp_path / "root/default/run1"
    until(lambda: len(list(run.glob("rank-*/train/*tfevents*"))) == 2)
    assert process.communicate("\n", timeout=180)[1] == ""
    assert sorted(path.name for path in run.glob("rank-*")) == ["rank-0", "rank-1"]
    assert not list(run.glob("*tfevents*"))


@pytest.mark.parametrize(
    ("arguments", "who"),
    [
        (["$ABOARD_LOGDIR"], r"rank \d and rank \d"),
        (["logs", "no"], r"process \d+ and process \d+"),
    ],
    ids=["in the run", "unknown ranks"],
)
def test_ranks_that_share_a_directory_are_reported_at_once(
    tmp_path: Path, arguments: list[str], who: str
) -> None:
    process = two_ranks(tmp_path, *arguments)
    assert process.stderr
    line = process.stderr.readline()  # while the program runs
    run = tmp_path / "root/default/run1"
    assert re.fullmatch(rf"aboard: {who} both write event files to {run}, which .*\n", line)
    assert process.communicate("\n", timeout=180)[1] == ""


# Copies and originals.


@pytest.mark.parametrize(
    ("name", "is_marked"),
    [
        (f"events.out.tfevents.1800000000.{HOST}.17.0", True),
        ("events.out.tfevents.1800000000.node-1.cluster.17.3.v2", True),
        ("events.out.tfevents.1800000000.node-1.17.0suffix", True),
        ("events.out.tfevents.1800000000.node-1", False),
        ("events.out.tfevents.1800000000.10.0.0.1.17.0", False),
        ("my.tfevents", False),
    ],
)
def test_a_copy_is_marked_if_its_name_is_unique(name: str, is_marked: bool) -> None:
    assert adopted_name(name) == (f"{name}.adopted" if is_marked else name)
    assert adopted_originals([name, adopted_name(name)]) == ({name} if is_marked else set())


def test_a_copy_is_shown_instead_of_its_original(tmp_path: Path, index: Index) -> None:
    for name in ("alone", "original"):
        with EventWriter(tmp_path / name) as writer:
            writer.scalar("loss", 1.0, 0)
    (original,) = (tmp_path / "original").iterdir()
    run = tmp_path / "default" / "run1"
    run.mkdir(parents=True)
    shutil.copy(original, run / adopted_name(original.name))
    (run / "run.json").write_bytes(Manifest("run1", "default").to_json())
    logs = Logs(str(tmp_path), index=index)
    shown = ["alone", "default/run1"]
    assert [one.name for one in logs.runs] == shown
    assert [tag.run for tag in logs.tags] == shown
    assert list(index.tag_counts(logs.source)) == shown
    assert list(index.marks([logs.source])[0]) == [str(tmp_path / one) for one in shown]
    index.refresh_catalog(str(tmp_path))
    assert [one.label for one in index.known_runs([str(tmp_path)])] == shown
    # Selected by itself, the original is shown.
    assert [one.name for one in Logs(str(original.parent), index=index).runs] == ["."]
