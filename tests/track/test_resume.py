"""Runs that go on: asked for, or because the environment says that this is the same job."""

import subprocess
import sys
from pathlib import Path

import pytest
from training import environment, points, record, train

LOG = """
run = aboard.init({init})
for i in range(3):
    run.log_metrics({{'loss': {value}}}, stage='train')
run.log_metrics({{'acc': 1}})
print(run.name)
"""


def log(init: str = "'x', 'a', '.'", value: int = 1) -> str:
    return LOG.format(init=init, value=value)


def test_counters_go_on_in_every_stage(tmp_path: Path) -> None:
    assert train(log(), tmp_path).out == "a\n"
    again = log("'x', 'a', '.', resume=True, hparams={'lr': 1}, tags='again'", 2)
    assert train(again, tmp_path).out == "a\n"
    assert points(tmp_path, "x/a/train", "loss") == [
        (0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)
    ]  # fmt: skip
    assert points(tmp_path, "x/a", "acc") == [(0, 1.0), (1, 1.0)]
    found = record(tmp_path / "x/a")
    assert [one["number"] for one in found["attempts"]] == [1, 2]
    assert [one["state"] for one in found["attempts"]] == ["completed"] * 2
    assert (found["hparams"], found["tags"]) == ({"lr": 1}, {"again": True})
    refused = train(log(), tmp_path)
    assert refused.code == 1
    assert f"there is a run at {tmp_path}/x/a already." in refused.err.splitlines()[-1]
    assert "already" in train(log("'x', 'a', '.', resume=False"), tmp_path).err
    assert train(log("'x', 'new', '.', resume=True"), tmp_path).out == "new\n"


def test_a_curve_that_goes_on_from_an_earlier_step_is_one_curve(tmp_path: Path) -> None:
    script = """
with aboard.init('x', 'a', '.', resume=True) as run:
    for step in range(int(sys.argv[1]), int(sys.argv[2])):
        run.log_metrics({'loss': float(sys.argv[3])}, step=step)
"""
    assert train(script, tmp_path, "0", "10", "1").code == 0
    assert train(script, tmp_path, "5", "12", "2").code == 0
    expected = [(step, 1.0) for step in range(5)] + [(step, 2.0) for step in range(5, 12)]
    assert points(tmp_path, "x/a", "loss") == expected


@pytest.mark.parametrize("way", ["aboard run", "aboard.init"])
def test_counters_of_a_run_in_a_bucket_go_on(tmp_path: Path, s3_bucket: str, way: str) -> None:
    root = f"{s3_bucket}/{tmp_path.name}"
    loop = "    for _ in range(3): run.log_metrics({{'loss': 1}})"
    script = f"import aboard\nwith aboard.init({{}}) as run:\n{loop}"
    if way == "aboard run":
        below = [sys.executable, "-m", "aboard", "run", "-q", "--root", root, "--name", "a"]
        command = [*below, "--resume", "--", sys.executable, "-c", script.format("")]
    else:
        told = f"name='a', root={root!r}, resume=True"
        command = [sys.executable, "-c", script.format(told)]
    for _ in range(2):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert points(root, "default/a", "loss") == [(step, 1.0) for step in range(6)]


def test_a_killed_attempt_is_recorded_by_the_next(tmp_path: Path) -> None:
    assert train(log() + "run.flush()\nos._exit(1)", tmp_path).code == 1
    ended = train(log("'x', 'a', '.', resume=True"), tmp_path)
    assert ended.err.startswith("aboard: a seems to be running still on ")
    first, second = record(tmp_path / "x/a")["attempts"]
    assert (first["state"], first["reason"]) == ("killed", "another attempt began")
    assert second["state"] == "completed"
    assert len(points(tmp_path, "x/a/train", "loss")) == 6


def test_the_environment_names_the_run(tmp_path: Path) -> None:
    told = {"ABOARD_ROOT": str(tmp_path), "ABOARD_RUN": "x/job17"}
    for attempts in (1, 2):
        assert train(log(""), tmp_path, **told).out == "job17\n"
        assert len(record(tmp_path / "x/job17")["attempts"]) == attempts
    assert len(points(tmp_path, "x/job17/train", "loss")) == 6
    assert "already" in train(log("resume=False"), tmp_path, **told).err


def test_a_requeued_slurm_job_goes_on(tmp_path: Path) -> None:
    told = {"ABOARD_ROOT": str(tmp_path), "SLURM_JOB_ID": "17"}
    assert train(log("'x'"), tmp_path, **told).out == "run1\n"
    assert train(log("'x'"), tmp_path, **told).out == "run2\n"
    failing = log("'x'") + "sys.exit(1)"
    assert train(failing, tmp_path, **told).out == "run3\n"
    restarted = told | {"SLURM_RESTART_COUNT": "1"}
    assert train(failing, tmp_path, **restarted).out == "run3\n"
    assert train(failing, tmp_path, **restarted | {"SLURM_JOB_ID": "18"}).out == "run4\n"
    found = record(tmp_path / "x/run3")
    assert (found["job"], len(found["attempts"])) == ("17", 2)
    assert len(points(tmp_path, "x/run3/train", "loss")) == 6


def test_workers_that_torchrun_starts_again_go_on(tmp_path: Path) -> None:
    told = {"ABOARD_ROOT": str(tmp_path), "TORCHELASTIC_RUN_ID": "none"}
    failing = log("'x'") + "sys.exit(1)"
    assert train(failing, tmp_path, **told, TORCHELASTIC_RESTART_COUNT="0").out == "run1\n"
    assert train(failing, tmp_path, **told, TORCHELASTIC_RESTART_COUNT="1").out == "run1\n"
    assert len(record(tmp_path / "x/run1")["attempts"]) == 2


@pytest.mark.parametrize(
    "variable",
    ["ABOARD_LOGDIR", "PAI_OUTPUT_TENSORBOARD", "AIP_TENSORBOARD_LOG_DIR", "XT_OUTPUT_MNT"],
)
def test_a_fixed_directory_is_begun_and_resumed(tmp_path: Path, variable: str) -> None:
    there = tmp_path / "job" / "tb"
    for attempts in (1, 2):
        ended = train(log("'x'"), tmp_path, **{variable: str(there)})
        assert (ended.out, ended.err) == ("tb\n", "")
        assert len(record(there)["attempts"]) == attempts
    assert len(points(tmp_path / "job", "tb/train", "loss")) == 6
    refused = train(log("resume=False"), tmp_path, **{variable: str(there)})
    assert f"there is a run at {there} already, and resume is False." in refused.err
