"""Several runs of one process where the environment has one in mind."""

import subprocess
import sys
from pathlib import Path

import pytest
from training import environment, points, record, start, train

from aboard.track import env

TRIALS = """
for trial in range(3):
    with aboard.init({init}) as run:
        for step in range(3):
            run.log_metrics({{'loss': trial}}, step=step)
        print(run.name, run.uri)
"""
SAID = "which this process has begun already; others get directories inside it.\n"


def trials(init: str) -> str:
    return TRIALS.format(init=init)


@pytest.mark.parametrize("variable", [env.LOGDIR, "PAI_OUTPUT_TENSORBOARD"])
def test_a_directory_that_is_named_is_that_of_the_first(tmp_path: Path, variable: str) -> None:
    there = tmp_path / "job" / "tb"
    ended = train(trials("'x'"), tmp_path, **{variable: str(there)})
    assert ended.out == f"tb {there}\nrun2 {there}/run2\nrun3 {there}/run3\n"
    said = f"aboard: the environment has one run in mind, {there}, {SAID}"
    assert ended.err == said
    for trial, run in enumerate(("tb", "tb/run2", "tb/run3")):
        expected = [(step, float(trial)) for step in range(3)]
        assert points(tmp_path / "job", run, "loss") == expected
        found = record(tmp_path / "job" / run)
        assert (found["experiment"], found["state"], len(found["attempts"])) == (
            "x", "completed", 1
        )  # fmt: skip


def test_names_that_the_code_gives_are_used(tmp_path: Path) -> None:
    there = tmp_path / "tb"
    ended = train(trials("'x', f'trial{trial}'"), tmp_path, ABOARD_LOGDIR=str(there))
    assert ended.out.split()[::2] == ["trial0", "trial1", "trial2"]
    assert record(there)["name"] == "trial0"
    for trial in (1, 2):
        assert record(there / f"trial{trial}")["name"] == f"trial{trial}"
    resumed = train("print(aboard.init('x', 'b').name)", tmp_path, ABOARD_LOGDIR=str(there))
    assert resumed.out == "trial0\n"
    assert resumed.err == (
        "aboard: this run is x/trial0, as the environment says, and not called x/b.\n"
    )


def test_a_run_that_is_named_is_the_first(tmp_path: Path) -> None:
    told = {"ABOARD_ROOT": str(tmp_path), "ABOARD_RUN": "x/job17"}
    ended = train(trials(""), tmp_path, **told)
    assert ended.out.split()[::2] == ["job17", "run2", "run3"]
    assert points(tmp_path, "x/job17/run3", "loss") == [(step, 2.0) for step in range(3)]


def test_going_on_with_the_first_is_possible(tmp_path: Path) -> None:
    there = tmp_path / "tb"
    script = """
for _ in range(2):
    with aboard.init(resume=True) as run:
        run.log_metrics({'loss': 1})
"""
    ended = train(script, tmp_path, ABOARD_LOGDIR=str(there))
    assert (ended.code, ended.err) == (0, "")
    assert points(tmp_path, "tb", "loss") == [(0, 1.0), (1, 1.0)]
    assert len(record(there)["attempts"]) == 2


def test_a_restarted_job_finds_them_again(tmp_path: Path) -> None:
    there = tmp_path / "tb"
    told = {"ABOARD_LOGDIR": str(there), "SLURM_JOB_ID": "17"}
    script = "aboard.init(), aboard.init('default', 'b')\nsys.exit(1)"
    assert train(script, tmp_path, **told).code == 1
    again = train(script, tmp_path, **told, SLURM_RESTART_COUNT="1")
    assert "RunExists" not in again.err
    for run in (there, there / "b"):
        assert len(record(run)["attempts"]) == 2


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_runs_below_aboard_run(tmp_path: Path, place: str, request: pytest.FixtureRequest) -> None:
    root = str(tmp_path / "root")
    if place == "bucket":
        root = f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}"
    script = "import aboard" + trials("'mine', f'trial{trial}'")
    below = [sys.executable, "-m", "aboard", "run", "-q", "--root", root, "--name", "a", "--"]
    done = subprocess.run(
        [*below, sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    whole = f"{root}/default/a"
    expected = [f"a {whole}", f"trial1 {whole}/trial1", f"trial2 {whole}/trial2"]
    assert done.stdout.splitlines() == expected
    overridden, several = done.stderr.splitlines()
    assert overridden == (
        "aboard: this run is default/a, as the environment says, and not called mine/trial0."
    )
    assert several + "\n" == f"aboard: the environment has one run in mind, {whole}, {SAID}"
    for trial, run in enumerate(("a", "a/trial1", "a/trial2")):
        assert points(root, f"default/{run}", "loss") == [(step, float(trial)) for step in range(3)]


def test_every_rank_finds_the_directories_inside(tmp_path: Path) -> None:
    script = """
import os, subprocess, sys
log = '''import aboard
for _ in range(2):
    with aboard.init() as run:
        run.log_metrics({'loss': run.rank})
'''
told = {'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '29701'}
ranks = [
    subprocess.Popen([sys.executable, '-c', log], env=os.environ | told | {'RANK': str(rank)})
    for rank in range(2)
]
sys.exit(sum(one.wait() for one in ranks))
"""
    below = [sys.executable, "-m", "aboard", "run", "-q", "--root", ".", "--ranks", "all", "--"]
    command = [*below, sys.executable, "-c", script]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True, timeout=200)
    for rank in range(2):
        for run in (f"run1/rank-{rank}", f"run1/run2/rank-{rank}"):
            assert points(tmp_path, f"default/{run}", "loss") == [(0, float(rank))]


def test_ranks_that_each_have_a_directory_have_others_inside(tmp_path: Path) -> None:
    script = "import aboard\nfor _ in range(2): aboard.init().log_metrics({'loss': 1})"
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29702"}
    below = [sys.executable, "-m", "aboard", "run", "-q", "--root", ".", "--ranks", "all", "--"]
    for rank in "01":
        command = [*below, sys.executable, "-c", script]
        variables = environment(**told, RANK=rank)
        subprocess.run(command, cwd=tmp_path, env=variables, check=True, timeout=200)
    for rank in "01":
        for run in (f"run1/rank-{rank}", f"run1/rank-{rank}/run2"):
            assert points(tmp_path, f"default/{run}", "loss") == [(0, 1.0)]


def test_ranks_agree_each_time_anew(tmp_path: Path) -> None:
    script = """
for _ in range(2):
    with aboard.init('x', root='.', ranks='all') as run:
        print(run.name)
"""
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29703"}
    ranks = [start(script, tmp_path, **told, RANK=str(rank)) for rank in range(2)]
    assert [one.communicate(timeout=100) for one in ranks] == [("run1\nrun2\n", "")] * 2
