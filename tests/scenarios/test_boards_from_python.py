"""A training writes where it was told, and a script of its user makes boards of that.

What users of Alibaba's PAI know as `pai.tensorboard.TensorBoard`, written here with `aboard`.
"""

import json

import pytest

from tests.browser.page import open_tab, pixel, wait_for_words
from tests.scenarios.person import Person, chart, opens, sees

pytestmark = pytest.mark.engine("chromium")

TRAIN = """
import os
import torch
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter(log_dir=os.environ.get("PAI_OUTPUT_TENSORBOARD"))
for step in range(4):
    writer.add_scalar("train/loss", 0.5 / 2**step, step)
writer.add_image("train/image", torch.full((3, 8, 8), 0.2), 1)
writer.flush()
writer.close()
"""
CREATE = """
import json, sys
import aboard

board = aboard.Board.create(sys.argv[1])
print(json.dumps({
    "app_uri": board.app_uri, "url": board.url, "state": board.state,
    "id": board.id, "link": board.link(), "runs": board.runs,
}))
"""
DELETE = """
import sys
import aboard

board = aboard.Board.get(sys.argv[1])
board.delete()
try:
    board.refresh()
except aboard.NotFound as error:
    print(error.code, error.status)
"""
LOG_TO_BUCKET = """
import sys
import aboard

with aboard.init("digits", root=sys.argv[1]) as run:
    run.log_metrics({"loss": 0.5})
    run.log_metrics({"loss": 0.25})
"""
WHILE_TRAINING = """
import json
import aboard

with aboard.init("digits", "live") as run:
    run.log_metrics({"loss": 4.0})
    board = run.board(wait=True)
    run.log_metrics({"loss": 2.0})
    print(json.dumps({"app_uri": board.app_uri, "state": board.state}))
"""
TOO_MANY = """
import json, sys
import aboard

def create(number):
    wishes = {"on": "process", "name": f"apart-{number}", "new": True}
    return aboard.Board.create(sys.argv[1], wait=False, **wishes)

boards = [create(number) for number in range(5)]
try:
    create(5)
except aboard.BoardLimitExceeded as error:
    known, message, code = list(error.boards), str(error), error.code
boards[0].delete()
sixth = create(5).wait()
print(json.dumps({
    "known": sorted(known) == sorted(board.id for board in boards),
    "oldest": boards[0].id, "message": message, "code": code,
    "url": sixth.url, "log": list(sixth.logs()),
}))
for board in (*boards[1:], sixth):
    board.delete()
print(len(aboard.Board.list(states=["running", "starting", "pending"])))
"""
NOTHING_YET = """
import aboard, os, threading

os.makedirs("later", exist_ok=True)
board = aboard.Board.create("later", wait=False)
print(board.state, "/", board.condition)
try:
    board.wait(seconds=0)
except aboard.NotReady as error:
    print("not ready:", "waiting for data" in str(error))
with aboard.EventWriter("later/run1") as writer:
    writer.scalar("loss", 0.5, 3)
print(board.wait().runs, board.url)
"""
FAILING = """
import aboard

try:
    aboard.Board.create("digits/job7", on="process", memory="1MiB")
except aboard.BoardFailed as error:
    print(error.state, "/", error.reason)
"""


@pytest.fixture(scope="module")
def user(someone: Person) -> Person:
    """A user whose training job has run."""
    scripts = {
        "train.py": TRAIN,
        "create.py": CREATE,
        "delete.py": DELETE,
        "while_training.py": WHILE_TRAINING,
        "too_many.py": TOO_MANY,
        "nothing_yet.py": NOTHING_YET,
        "failing.py": FAILING,
    }
    for name, text in scripts.items():
        someone.writes(name, text)
    someone.does("aboard run --experiment digits --name job7 -- python train.py")
    return someone


LOSS = [(step, 0.5 / 2**step) for step in range(4)]


def test_a_board_of_a_path_is_created_looked_at_and_deleted(user, new_visitor, complaints):
    created = user.does("python create.py runs/digits/job7").json
    assert created["state"] == "running"
    assert created["url"] == created["app_uri"]
    assert created["runs"] == 1
    user.gets(created["app_uri"], {".": LOSS}, tag="train/loss")
    page = new_visitor()
    opens(page, created["link"], ".")
    sees(chart(page, "train/loss"), {".": LOSS[-1]})
    images = open_tab(page, "images", "tf-image-dashboard")
    wait_for_words(images, "train/image")
    assert pixel(images.locator("tf-image-loader img"), 0.5, 0.5) == [51, 51, 51]

    assert user.does(f"python delete.py {created['id']}").out == "not_found 404\n"
    page.goto(created["app_uri"])
    complaints.expect("404")
    assert page.get_by_role("heading").inner_text() == "Page not found."
    assert created["id"] not in user.does("aboard list --all").out


def test_a_board_of_a_bucket(oss_bucket, tmp_path):
    someone = Person(tmp_path / "someone")
    someone.writes("log.py", LOG_TO_BUCKET)
    someone.writes("create.py", CREATE)
    someone.does(f"python log.py {oss_bucket}/path/to")
    try:
        created = someone.does(f"python create.py {oss_bucket}/path/to/digits/").json
        someone.gets(created["app_uri"], {"run1": [(0, 0.5), (1, 0.25)]})
    finally:
        someone.leaves()


def test_a_board_of_a_name(user):
    created = user.does("python create.py digits/job7").json
    user.gets(created["app_uri"], {"digits/job7": LOSS}, tag="train/loss")


def test_a_training_has_a_board_of_itself(user):
    board = user.does("python while_training.py").json
    assert board["state"] == "running"
    user.gets(board["app_uri"], {".": [(0, 4.0), (1, 2.0)]})


def test_waiting_ends_when_there_is_data(user):
    first, second, third = user.does("python nothing_yet.py").out.splitlines()
    assert (first, second) == ("running / waiting for data", "not ready: True")
    runs, url = third.split()
    assert runs == "1"
    user.gets(url, {"run1": [(3, 0.5)]})


def test_the_sixth_board_with_a_process_of_its_own_is_refused_until_one_is_deleted(user):
    told, left = user.does("python too_many.py runs/digits/job7").out.splitlines()
    document = json.loads(told)
    assert document["known"]
    assert document["code"] == "limit_exceeded"
    assert f"aboard stop {document['oldest']}" in document["message"]
    assert any("serving apart-5 at http://" in line for line in document["log"])
    assert int(left) == len(user.does("aboard list --json").json["boards"])


def test_a_board_that_fails_says_why(user):
    done = user.does("python failing.py").out
    assert done.startswith("failed / used ")
    assert done.endswith(" of 1.0 MiB memory\n")
