"""`aboard engines`, `aboard doctor --engine`, and `aboard image` without a daemon."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from aboard.sdk.client import Client
from tests.engines.rigs import Rig, toml_table

_MEMORY = {"slurm": 'memory = "1G"\n'}  # the cluster of the tests gives little by default
STAGES = ["answers", "start", "wait", "address", "encrypted", "refuses", "curve", "log"]


def test_engines_are_listed_with_what_they_offer(hub, aboard):
    done = aboard("engines")
    assert done.code == 0
    heads, *rows = done.out.splitlines()
    assert heads.split() == ["NAME", "ANSWERS", "VERSION", "RESOURCES"]
    assert rows[0].split()[:2] == ["process", "yes"]
    first = aboard("engines", "--json").json["engines"][0]
    assert set(first) == {"name", "answers", "version", "resources", "problem", "hint"}
    assert "cpus" in first["resources"]


def test_what_is_wrong_with_an_engine_is_said_with_what_to_do(no_hub, aboard, tmp_path):
    settings = tmp_path / "aboard.toml"
    settings.write_text(f'[executors.docker]\nhost = "unix://{tmp_path}/none.sock"\n')
    done = aboard("engines", ABOARD_CONFIG=str(settings))
    assert done.code == 0
    rows = {line.split()[0]: line.split()[1] for line in done.out.splitlines()[1:] if line.strip()}
    assert (rows["process"], rows["docker"]) == ("yes", "no")
    _, _, problem = done.out.partition("\ndocker: ")
    assert f"{tmp_path}/none.sock" in problem.splitlines()[0]
    assert problem.splitlines()[1].startswith("  -> ")
    assert problem.count("Check: docker info") == 1


def test_engines_start_a_hub_of_the_user_where_there_is_none(no_hub, aboard):
    done = aboard("engines", "--json")
    assert done.json["engines"][0]["name"] == "process"
    assert "started your own hub" in done.err


def test_an_engine_is_tried_from_start_to_end(hub, root, aboard):
    done = aboard("doctor", "--engine", "process", "--json")
    assert done.code == 0, done.out
    assert (done.json["engine"], done.json["ok"]) == ("process", True)
    found = {stage["stage"]: stage["detail"] for stage in done.json["stages"]}
    assert list(found) == [*STAGES, "roots", "stop", "cleanup"]
    assert found["roots"] == f"{root} can be read there"
    assert found["cleanup"] == "nothing is left behind"
    assert aboard("list", "--all", "--json").json["boards"] == []


def test_a_root_that_a_board_cannot_read_is_a_failure_with_what_to_do(
    hub, aboard, tmp_path, variables, monkeypatch
):
    monkeypatch.setenv("ABOARD_STATE", variables["ABOARD_STATE"])
    gone = tmp_path / "gone"
    gone.mkdir()
    Client().add_root(gone)
    gone.rmdir()
    done = aboard("doctor", "--engine", "process")
    assert done.code == 1
    assert f"FAILED roots      {gone}: no such file or directory\n" in done.out
    assert "-> Boards of runs below it show nothing" in done.out
    assert "ok     cleanup    nothing is left behind\n" in done.out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_trial_that_is_interrupted_leaves_no_board(hub, variables, aboard, number):
    with subprocess.Popen(
        [sys.executable, "-m", "aboard", "doctor", "--engine", "process"],
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline().startswith("ok     answers")
        assert process.stdout.readline().startswith("ok     start")
        process.send_signal(number)
        out, _ = process.communicate(timeout=180)
    assert process.returncode == 128 + number
    assert out.endswith("ok     cleanup    nothing is left behind\n"), out
    listed = aboard("list", "--all", "--json").json["boards"]
    assert not [one for one in listed if one["on"] == "process"]


def test_an_engine_that_is_not_there_names_those_that_are(hub, aboard):
    done = aboard("doctor", "--engine", "slrum")
    assert done.code == 1
    first, second = done.out.splitlines()
    assert first == "FAILED answers    boards cannot run on 'slrum' here."
    assert second.strip().startswith("-> Use one of: process")
    refused = aboard("start", "mnist", "--on", "slrum", "--detach")
    assert refused.code == 2
    assert "boards cannot run on 'slrum' here. Use one of: instant" in refused.err
    refused = aboard("start", "mnist", "--on", "vertex", "--detach")
    assert refused.code == 2
    assert "'vertex' here. Add [executors.vertex] to the settings of the hub. Use" in refused.err
    done = aboard("doctor", "--engine", "process:long")
    assert done.out.startswith("FAILED answers    process has no profile 'long' here.\n")
    assert done.out.endswith("-> Use one of: process.\n")


@pytest.mark.parametrize("more", [["runs"], ["--root", "runs"]])
def test_an_engine_is_tried_alone(aboard, more):
    done = aboard("doctor", "--engine", "process", *more)
    assert done.code == 2
    assert "cannot be combined with a source or --root" in done.err


def test_doctor_needs_something_to_examine(aboard):
    done = aboard("doctor")
    assert done.code == 2
    assert "aboard doctor SOURCE" in done.err


@pytest.fixture
def place(rig: Rig):
    """Give a root that boards on the engine can read."""
    with tempfile.TemporaryDirectory(prefix="root-", dir=rig.place or "/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_every_engine_runs_boards_from_start_to_end(rig, place, no_hub, aboard, tmp_path):
    settings = tmp_path / "aboard.toml"
    settings.write_text(toml_table(rig.reading(place)) + _MEMORY.get(rig.name, ""))
    hub = {"ABOARD_CONFIG": str(settings), "ABOARD_ROOT": str(place)}
    done = aboard("doctor", "--engine", rig.name, "--json", **hub)
    assert done.code == 0, done.out
    found = {stage["stage"]: stage["detail"] for stage in done.json["stages"]}
    assert list(found) == [*STAGES, "roots", "stop", "cleanup"]
    assert found["roots"] == f"{place} can be read there"
    assert ("certificate" in found["encrypted"]) == (rig.name != "process")
    known = {one["name"]: one for one in aboard("engines", "--json", **hub).json["engines"]}
    assert known[rig.name]["answers"]
    assert known[rig.name]["version"]


@pytest.mark.engine("slurm")
def test_a_board_is_not_started_while_slurm_does_not_answer(
    slurm_cluster, slurm_rig, tree, no_hub, aboard, tmp_path
):
    settings = tmp_path / "aboard.toml"
    settings.write_text(toml_table(slurm_rig))
    hub = {"ABOARD_CONFIG": str(settings)}
    slurm_cluster.kill("slurmctld")
    try:
        done = aboard("start", tree, "--on", "slurm", "--no-browser", "--name", "curves", **hub)
    finally:
        slurm_cluster.start_controller()
    assert done.code == 1
    assert done.out == ""
    said = done.err.splitlines()[-1]
    assert said.startswith(
        "aboard: board curves has ended (failed): Slurm does not answer: squeue: slurm_load_jobs"
        " error: Unable to contact slurm controller (connect failure)."
        " Check slurmctld with: scontrol ping."
    )
    assert not list(no_hub.glob("boards/*/start-*"))
    jobs = slurm_cluster.ask("squeue", "--noheader", "--states=all", "--format=%j").stdout
    (board,) = aboard("list", "--all", "--json", **hub).json["boards"]
    assert board["id"] not in jobs


def test_without_a_daemon_building_an_image_says_which_and_what_to_check(aboard, tmp_path):
    done = aboard("image", "build", "--host", f"unix://{tmp_path}/docker.sock", process=True)
    assert done.code == 1
    assert done.out == ""
    assert done.err == (
        f"aboard: unix://{tmp_path}/docker.sock: Docker does not answer: no such file or directory."
        " Check: docker info\n"
    )
