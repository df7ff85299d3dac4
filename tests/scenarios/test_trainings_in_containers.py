"""Trainings in containers of this machine: submitted with an image, shown while they run.

What PAI's users know as `estimator.fit(wait=False)`, `estimator.tensorboard()`, `app_uri` and
`delete`, written here with `aboard.submit`.
"""

import json
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.engines.docker import Docker
from tests.engines.rigs import Rig, toml_table
from tests.scenarios.person import Person

pytestmark = pytest.mark.engine("docker")

TRAIN = """
import os, sys, time
from pathlib import Path

import numpy as np
from aboard import SummaryWriter  # PyTorch's: the image has no PyTorch

writer = SummaryWriter(log_dir=os.environ.get("PAI_OUTPUT_TENSORBOARD"))
writer.add_scalar("train/loss", 0.5, 1)
writer.add_image("train/image", np.zeros((3, 64, 64)), 1)
writer.flush()
while not Path("go").exists():
    time.sleep(0.1)
writer.add_scalar("train/loss", 0.25, 2)
writer.close()
"""
FIT = """
import aboard

job = aboard.submit(
    ["python3", "train.py"], experiment="mnist", name="fit", on="docker", image={image!r}
)
board = job.board()
print(board.app_uri, flush=True)
input()
print(job.wait().state, flush=True)
board.delete()
"""
FAILS = "import os, sys; print('lr', sys.argv[1]); sys.exit(not os.path.exists('fixed'))"


@pytest.fixture(scope="module")
def user(docker_rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    home = tmp_path_factory.mktemp("pai")
    person = Person(home)
    settings = home / ".config" / "aboard" / "aboard.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(toml_table(docker_rig))
    person.writes("train.py", TRAIN)
    person.writes("fails.py", FAILS)
    yield person
    for job in person.does("aboard jobs --json").json["jobs"]:
        person.types(f"aboard jobs stop {job['id']} --now")
    person.leaves()


def test_a_script_fits_shows_its_board_and_deletes_it(user: Person, docker_engine: Docker) -> None:
    fit = user.writes("fit.py", FIT.format(image=docker_engine.image))
    with subprocess.Popen(
        [sys.executable, fit],
        cwd=user.place,
        env=user.variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        url = urlsplit(process.stdout.readline().strip())._replace(query="").geturl()
        user.gets(url, {"mnist/fit": [(1, 0.5)]}, tag="train/loss")
        user.writes("go", "")
        user.gets(url, {"mnist/fit": [(1, 0.5), (2, 0.25)]}, tag="train/loss")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "completed\n"
        assert process.wait(180) == 0
    with pytest.raises(urllib.error.HTTPError, match="404"):
        user.points(url)
    record = json.loads((user.place / "runs/mnist/fit/run.json").read_bytes())
    assert (record["state"], record["job"], record["exit_code"]) == ("completed", "fit", 0)
    assert not docker_engine.docker("ps", "--all", "--quiet")


def test_a_sweep_fails_and_is_tried_again(user: Person) -> None:
    line = "aboard submit --on docker --name sweep --sweep lr=1,2 --wait --memory 256MiB"
    done = user.types(f"{line} -- python3 fails.py {{lr}}")
    assert done.code == 1, done.err
    assert user.does("aboard jobs logs sweep 2").out == "lr 2\n"
    user.writes("fixed", "")
    user.does("aboard jobs retry sweep --wait")
    members = user.does("aboard jobs show sweep --json").json["members"]
    assert [member["state"] for member in members] == ["completed", "completed"]


def test_what_runs_and_what_waits_is_stopped(user: Person, docker_engine: Docker) -> None:
    user.does("aboard submit --on docker --name slow --repeat 2 --parallel 1 -- sleep 600")
    user.does("aboard jobs stop slow --now")
    assert user.types("aboard jobs wait slow").out.startswith("slow: stopped (2 killed)")
    assert not docker_engine.docker("ps", "--all", "--quiet")


def test_what_docker_refuses_is_one_line_and_leaves_nothing(user: Person) -> None:
    done = user.types("aboard submit --on docker --image no-such:1 --name refused -- true")
    assert done.code == 1
    assert done.err == "aboard: Docker has no image no-such:1. Check: docker images\n"
    assert not (user.place / "runs/.jobs/refused").exists()


def test_an_image_without_aboard_is_named(user: Person, docker_engine: Docker) -> None:
    base = docker_engine.base
    done = user.types(f"aboard submit --on docker --image {base} --name plain --wait -- true")
    assert done.code == 1
    assert f"image {base} has no Aboard for python3. Add it: aboard image build" in done.out
