"""A sweep on this machine, as its user types it: submitted, failed in part, tried again."""

import json
import os
import signal
import time
from collections import Counter

import pytest

from aboard import EventWriter
from tests.executors.test_queue import supervisors
from tests.scenarios.person import Person, read_link

TRAIN = """
import sys
from pathlib import Path

import aboard

lr = float(sys.argv[1])
print("learning rate", lr)
with aboard.init() as run:
    run.log_metrics({"loss": lr * 2}, step=0)
if lr < 0.05 and not Path("enough-memory").exists():
    sys.exit("out of memory")
"""
SCRIPT = """
import json
import aboard

job = aboard.submit(
    ["python", "train.py", "{lr}"], experiment="digits", on="process", sweep={"lr": [0.5, 0.25]}
)
board = job.board()
print(board.app_uri)
job.wait()
print(job.state, len(job.members))
board.delete()
"""
EXPERIMENT = """
import aboard

with aboard.experiment("letters", on="process", parallel=1) as experiment:
    for lr in (0.5, 0.25):
        experiment.add(["python", "train.py", "{lr}"], hparams={"lr": lr})
    board = experiment.add_board(timeout="1h")
    print(board.app_uri)
    board.stop()  # whatever happens to it
    experiment.add(["python", "train.py", "{lr}"], hparams={"lr": 1.0})
print(experiment.state, [len(job.members) for job in experiment.jobs], board.refresh().state)
"""


@pytest.fixture(scope="module")
def someone(tmp_path_factory):
    person = Person(tmp_path_factory.mktemp("jobs"))
    person.writes("train.py", TRAIN)
    yield person
    person.leaves()


@pytest.mark.engine("process")
def test_a_sweep_with_a_board_fails_in_part_and_is_tried_again(someone):
    sweep = "--experiment cifar10 --name sweep --sweep lr=0.1,0.01"
    done = someone.types(f"aboard submit {sweep} --board --wait -- python train.py {{lr}}")
    assert done.code == 1, done.err
    submitted, link, ended = done.out.splitlines()
    assert submitted == "sweep: 2 members on process; check it with: aboard jobs show sweep"
    assert ended == "sweep: failed (1 completed, 1 failed): exit code 1"
    board = read_link(f"{link}\n")
    points = {"cifar10/sweep-1": [(0, 0.2)], "cifar10/sweep-2": [(0, 0.02)]}
    shown = {
        run: [(step, pytest.approx(value)) for step, value in values]
        for run, values in points.items()
    }
    someone.gets(board.url, shown)
    listed = someone.does("aboard jobs").out.splitlines()[1]
    assert listed.split()[:3] == ["sweep", "failed", "cifar10"]
    members = someone.does("aboard jobs show sweep --json").json["members"]
    assert [one["state"] for one in members] == ["completed", "failed"]
    assert members[1]["hparams"] == {"lr": 0.01}
    assert "out of memory" in someone.does("aboard jobs logs sweep --failed").out
    assert someone.does("aboard jobs logs sweep 1").out == "learning rate 0.1\n"

    someone.writes("enough-memory", "")
    again = someone.does("aboard jobs retry sweep --wait").out
    assert again == "sweep: resubmitted 1 member\nsweep: completed (2 completed)\n"
    assert someone.types("aboard jobs wait sweep").code == 0
    record = json.loads((someone.place / "runs/cifar10/sweep-2/run.json").read_text())
    assert [one["state"] for one in record["attempts"]] == ["failed", "completed"]
    assert someone.does("aboard runs list job:sweep --json").json["runs"][0]["job"] == "sweep"


@pytest.mark.engine("process")
def test_a_script_fits_shows_its_board_and_deletes_it(someone):
    someone.writes("launch.py", SCRIPT)
    address, state = someone.does("python launch.py").out.splitlines()
    assert "/b/" in address
    assert state == "completed 2"


@pytest.mark.engine("process")
def test_an_experiment_completes_although_its_board_ends(someone):
    someone.writes("experiment.py", EXPERIMENT)
    address, state = someone.does("python experiment.py").out.splitlines()
    assert "/b/" in address
    assert state == "completed [2, 1] stopped"


@pytest.mark.engine("process")
def test_what_waits_is_stopped_before_it_begins(someone):
    someone.does("aboard submit --name slow --repeat 3 --parallel 1 -- sleep 600")
    stopped = someone.does("aboard jobs stop slow --now").out
    assert stopped.startswith("stopping slow (")
    assert someone.types("aboard jobs wait slow").out.startswith("slow: stopped (3 killed)")
    assert not (someone.place / "runs/default/slow-3").exists()


LIVE = """
import time
from pathlib import Path

import aboard

with aboard.init(flush_secs=0.1) as run:
    run.log_metrics({"loss": 8.0}, step=0)
    while not Path("go-on").exists():
        time.sleep(0.05)
    run.log_metrics({"loss": 6.0}, step=1)
"""


@pytest.mark.engine("process")
def test_trials_of_two_experiments_on_one_board(someone):
    """What users of Determined type as `det tensorboard start --trial-ids`."""
    for experiment, values in (("digits", "0.1,0.2,0.3"), ("faces", "0.4,0.5")):
        options = f"--experiment {experiment} --name {experiment} --sweep lr={values} --wait"
        someone.does(f"aboard submit {options} -- python train.py {{lr}}")
    points = {
        trial: [(0, pytest.approx(2 * lr))]
        for trial, lr in (
            ("digits/digits-1", 0.1),
            ("digits/digits-3", 0.3),
            ("faces/faces-2", 0.5),
        )
    }
    board = someone.starts("--trial-ids digits-1 --trial-ids digits-3,faces-2")
    someone.gets(board.url, points)
    someone.does(f"aboard delete {board.id}")


@pytest.mark.engine("process")
def test_a_run_of_last_week_a_live_job_and_one_that_just_ended_in_a_single_view(someone):
    """What users of XT type as `xt view tensorboard`, with the runs of jobs."""
    someone.writes("live.py", LIVE)
    with EventWriter(someone.place / "runs" / "mixed" / "run300") as writer:
        writer.scalar("loss", 4.0, 0, wall_time=time.time() - 7 * 86400)
    submit = "aboard submit --experiment mixed --name"
    someone.does(f"{submit} ended --wait -- python train.py 0.5")
    someone.does(f"{submit} live -- python live.py")
    board = someone.starts("job:live, job:ended, mixed/run300")
    before = {"mixed/run300": [(0, 4.0)], "mixed/ended": [(0, 1.0)]}
    someone.gets(board.url, {**before, "mixed/live": [(0, 8.0)]})
    someone.writes("go-on", "")
    someone.does("aboard jobs wait live")
    someone.gets(board.url, {**before, "mixed/live": [(0, 8.0), (1, 6.0)]})


@pytest.mark.slow
def test_a_sweep_of_200_members_goes_on_without_hub_and_supervisor(someone):
    """None is lost and none runs twice, although both are killed meanwhile."""
    line = "aboard submit --name many --sweep lr=1..200 --parallel 8 --board"
    someone.does(f"{line} -- sh -c 'echo {{lr}} >>ran'")
    ran = someone.place / "ran"
    for tasks in (20, 60, 100, 140):
        while len(read_words(ran)) < tasks:
            someone.does("aboard jobs")
        for pid in supervisors(someone.place / "runs/.jobs/many/1"):
            os.kill(pid, signal.SIGKILL)
        if tasks == 60:
            os.kill(json.loads((someone.state / "hub.json").read_text())["pid"], signal.SIGKILL)
    done = someone.does("aboard jobs wait many")
    assert done.out == "many: completed (200 completed)\n"
    assert Counter(read_words(ran)) == Counter(map(str, range(1, 201)))
    runs = someone.does("aboard runs list job:many --json").json["runs"]
    assert Counter(run["state"] for run in runs) == {"completed": 200}


def read_words(path):
    return path.read_text().split() if path.exists() else []
