"""Jobs from Python, as real processes of this machine."""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import aboard
from aboard.jobs import BadJob
from aboard.jobs.experiment import Experiment, resources
from aboard.runs.manifest import Manifest


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("ABOARD_ROOT", "ABOARD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def record_of(place: Path, run: str) -> Manifest:
    return Manifest.from_json((place / "runs" / run / "run.json").read_bytes())


def test_a_command_is_submitted_waited_for_and_tried_again(place):
    fails = "import os, sys; print('lr', sys.argv[1]); sys.exit(not os.path.exists('fixed'))"
    job = aboard.submit(
        [sys.executable, "-c", fails, "{lr}"],
        experiment="cifar10",
        sweep={"lr": [0.1, 0.01]},
        tags="baseline",
    )
    assert job.wait(timeout="2m") is job
    assert (job.state, job.exit_code) == ("failed", 1)
    assert [member.run for member in job.members] == [f"cifar10/{job.id}-1", f"cifar10/{job.id}-2"]
    assert list(job.logs(2)) == ["lr 0.01"]
    (place / "fixed").touch()
    again = aboard.Job.get(job.id[:5])
    assert again.retry([2]).wait().members[1].state == "completed"
    assert [one.id for one in aboard.Job.list()] == [job.id]
    assert job.refresh().document["states"] == {"failed": 1, "completed": 1}
    record = record_of(place, f"cifar10/{job.id}-2")
    assert record.hparams == {"lr": 0.01}
    assert record.job == job.id
    assert len(record.attempts) == 2
    assert repr(job) == f"<Job {job.id}: failed (1 failed, 1 completed)>"


@pytest.mark.engine("process")
def test_a_function_is_submitted_with_its_arguments(place):
    pytest.importorskip("cloudpickle")

    def train(lr, options, repeat):
        import aboard

        with aboard.init() as run:
            run.log_metrics({"loss": lr * options["scale"] + repeat})
        if repeat == 2:
            raise ValueError("diverged")

    job = aboard.submit(train, sweep={"lr": [0.5]}, repeat=2, options={"scale": 4}).wait("2m")
    assert [member.state for member in job.members] == ["completed", "failed"]
    assert "ValueError: diverged" in "\n".join(job.logs(2))
    record = record_of(place, f"default/{job.id}-1")
    assert record.hparams == {"lr": 0.5, "options.scale": 4, "repeat": 1}
    assert record.metrics["loss"] == 3.0


@pytest.mark.engine("process")
def test_an_experiment_submits_its_members_and_goes_on_without_its_board(place, monkeypatch, capfd):
    monkeypatch.setenv("ABOARD_HUB", "http://localhost:9")
    with aboard.experiment("digits", name="exp") as experiment:
        for lr in (0.1, 0.01):
            experiment.add([sys.executable, "-c", ""], hparams={"lr": lr})
        assert experiment.add_board(timeout="1h") is None
        experiment.add([sys.executable, "-c", "import sys; sys.exit(3)"])
    assert [job.id for job in experiment.jobs] == ["exp", "exp-2"]
    assert [len(job.members) for job in experiment.jobs] == [2, 1]
    assert [job.state for job in experiment.jobs] == ["completed", "failed"]
    assert experiment.state == "failed"
    assert record_of(place, "digits/exp-2").hparams == {"lr": 0.01}
    assert "the experiment continues without a board" in capfd.readouterr().err


SUBMIT = """
import sys
import aboard
print("ready", flush=True)
sys.stdin.readline()
aboard.submit([sys.executable, "-c", ""], name=sys.argv[1], sweep={"x": [1, 2]})
"""


@pytest.mark.soak
def test_a_submitter_killed_at_any_moment_leaves_a_whole_job_or_none(place, rounds):
    for number in rounds(1):
        name = f"k{number}"
        with subprocess.Popen(
            [sys.executable, "-c", SUBMIT, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as killed:
            assert killed.stdout.readline() == b"ready\n"
            killed.stdin.write(b"go\n")
            killed.stdin.flush()
            time.sleep(random.Random(number).uniform(0, 0.4))
            killed.kill()
        if name not in [one.id for one in aboard.Job.list()]:
            assert not (place / "runs/.jobs" / name).exists()
            continue
        job = aboard.Job.get(name).wait("2m")
        assert job.state == "completed"
        for member in job.members:
            assert len(record_of(place, member.run).attempts) == 1


def test_nothing_is_submitted_if_the_block_fails(place):
    def fail(experiment: Experiment) -> None:
        with experiment:
            experiment.add(["true"])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail(aboard.experiment("digits"))
    assert not (place / "runs").exists()


def test_what_cannot_be_submitted_says_why(place):
    def train(lr):
        pass

    with pytest.raises(BadJob, match="list of words"):
        aboard.submit("python train.py")
    with pytest.raises(TypeError, match="unexpected keyword argument 'gpu'"):
        aboard.submit(["true"], gpu=1)
    with pytest.raises(BadJob, match="'4x' is not a duration"):
        aboard.submit(["true"], time="4x")
    pytest.importorskip("cloudpickle")
    with pytest.raises(BadJob, match=r"train\(\) needs the argument 'lr'"):
        aboard.submit(train)
    with pytest.raises(BadJob, match=r"train\(\) has no argument 'depth'. Known: lr"):
        aboard.submit(train, lr=1, depth=2)
    with pytest.raises(BadJob, match="cannot be sent to another process"):
        aboard.submit(train, lr=threading.Lock())
    assert not (place / "runs").exists()


def test_amounts_are_written_as_users_write_them():
    made = resources(memory="16GiB", time="4h", cpus=0.5)
    assert (made.memory, made.time, made.cpus, made.nodes) == (16 << 30, 14400, 0.5, 1)


@pytest.mark.engine("process")
def test_a_job_in_a_bucket_keeps_its_secrets_here(place, s3_bucket, monkeypatch):
    monkeypatch.setenv("ABOARD_SPOOL", str(place / "spool"))
    writes = "import sys; print('lr', sys.argv[1])"
    job = aboard.submit(
        [sys.executable, "-c", writes, "{lr}"], root=s3_bucket, sweep={"lr": [0.1, 0.2]}
    ).wait("2m")
    assert job.state == "completed", job.document
    assert list(job.logs(2)) == ["lr 0.2"]
    assert aboard.Job.get(job.id).state == "completed"
    assert not list(place.rglob("submission.json"))
    assert list((place / "state/jobs").iterdir())
