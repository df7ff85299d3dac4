"""Boards of any runs, live or finished, under names of the user's own making.

What users of XT know as `xt view tensorboard` and its path templates, typed here as `aboard`.
"""

import time

import pytest

from aboard import EventWriter
from tests.browser.page import eventually, reload_until, run_list, wait_for_words
from tests.scenarios.person import Person, chart, opens, sees, shown

pytestmark = pytest.mark.engine("chromium")

TRAIN = """
import sys
import aboard

name, job, lr, epochs = sys.argv[1:]
hparams = {"lr": float(lr), "epochs": int(epochs)}
run = aboard.init("digits", name, workspace="ws1", job=job, hparams=hparams)
for epoch in range(3):
    train, test = {"loss": 1 / 2**epoch, "acc": 0.5}, {"loss": 2 / 2**epoch, "acc": 0.25}
    run.log_metrics({"epoch": epoch, **train}, step_name="epoch", stage="train")
    run.log_metrics({"epoch": epoch, **test}, step_name="epoch", stage="test")
run.finish()
"""
LIVE = """
import sys
import aboard

with aboard.init("digits", sys.argv[1], workspace="ws1", flush_secs=0.1) as run:
    for line in sys.stdin:
        epoch, loss = line.split()
        metrics = {"epoch": int(epoch), "loss": float(loss)}
        run.log_metrics(metrics, step_name="epoch", stage="train")
        print(epoch, flush=True)
"""
OWN_LOGGING = """
import os
from aboard import EventWriter

with EventWriter(os.environ["XT_OUTPUT_MNT"]) as writer:
    writer.scalar("loss", 0.125, 0)
"""
TRAINED = [(epoch, 1 / 2**epoch) for epoch in range(3)]
TESTED = [(epoch, 2 / 2**epoch) for epoch in range(3)]
WEEK = 7 * 86400


@pytest.fixture(scope="module")
def user(someone: Person) -> Person:
    """A user with runs of two jobs, of a program that logs by itself, and of last week."""
    someone.writes("train.py", TRAIN)
    someone.writes("live.py", LIVE)
    someone.writes("own.py", OWN_LOGGING)
    someone.does("python train.py run23 2299 .01 2500")
    someone.does("python train.py run341 2300 .1 10")
    someone.does("python train.py run343 2300 .1 20")
    someone.does("aboard run --experiment digits --name run310 -- python own.py")
    with EventWriter(someone.place / "runs" / "digits" / "run300" / "train") as writer:
        for epoch, loss in TRAINED:
            writer.scalar("loss", 4 * loss, epoch, wall_time=time.time() - WEEK + epoch)
    return someone


def of(*runs: str) -> dict[str, list[tuple[int, float]]]:
    """Return what finished runs logged, as boards name them."""
    return {f"digits/{run}/train": TRAINED for run in runs} | {
        f"digits/{run}/test": TESTED for run in runs
    }


def test_a_single_run(user):
    user.gets(user.starts("run343").url, of("run343"))


def test_all_runs_of_a_job(user):
    board = user.starts("job:2300")
    user.gets(board.url, of("run341", "run343"))
    accuracy = {run: 0.5 if run.endswith("train") else 0.25 for run in of("run341", "run343")}
    points = {run: [(epoch, value) for epoch in range(3)] for run, value in accuracy.items()}
    user.gets(board.url, points, tag="acc")


def test_runs_one_by_one_with_commas_between(user):
    board = user.starts("run23, run341, run343")
    user.gets(board.url, of("run23", "run341", "run343"))
    assert user.does(f"aboard describe {board.id} --json").json["selectors"] == [
        *("run23", "run341", "run343")
    ]
    user.does(f"aboard boards remove {board.id} run341")
    user.gets(board.url, of("run23", "run343"))


def test_a_program_that_logs_by_itself_where_it_was_told(user):
    user.gets(user.starts("run310").url, {"digits/run310": [(0, 0.125)]})


def test_a_run_of_last_week_a_live_one_and_one_just_ended_in_a_single_view(user, new_visitor):
    with user.training("python live.py run400") as training:
        training.logs(0, 8.0)
        board = user.starts("run300, run343, run400")
        page = new_visitor()
        opens(
            page,
            board.link,
            *("digits/run300/train", "digits/run343/test"),
            *("digits/run343/train", "digits/run400/train"),
        )
        card = chart(page, "loss")
        finished = {
            "digits/run300/train": (2, 1.0),
            "digits/run343/train": (2, 0.25),
            "digits/run343/test": (2, 0.5),
        }
        sees(card, finished | {"digits/run400/train": (0, 8.0)})
        # The page asks for what is new by itself.
        training.logs(1, 6.0)
        sees(card, finished | {"digits/run400/train": (1, 6.0)})
        training.logs(2, 5.0)
    user.gets(
        board.url,
        of("run343")
        | {
            "digits/run300/train": [(0, 4.0), (1, 2.0), (2, 1.0)],
            "digits/run400/train": [(0, 8.0), (1, 6.0), (2, 5.0)],
        },
    )


def test_a_run_is_added_to_a_board_that_is_open(user, new_visitor):
    board = user.starts("run310 --new")
    page = new_visitor()
    opens(page, board.link, "digits/run310")
    user.does(f"aboard boards add {board.id} run300")
    page.reload()
    wait_for_words(page.locator("runs-data-table"), "digits/run310", "digits/run300/train")
    sees(chart(page, "loss"), {"digits/run310": (0, 0.125), "digits/run300/train": (2, 1.0)})
    user.does(f"aboard boards remove {board.id} run310")
    reload_until(page, lambda: set(run_list(page)) == {"digits/run300/train"})


def test_runs_that_start_later_join_the_board_of_their_job(user, new_visitor):
    board = user.starts("job:2299")
    page = new_visitor()
    opens(page, board.link, "digits/run23/train", "digits/run23/test")
    user.does("python train.py run24 2299 .02 5")
    card = chart(page, "loss")
    expected = {run: points[-1] for run, points in of("run23", "run24").items()}
    reload_until(page, lambda: shown(card) == expected)


def test_directories_are_named_by_a_template(user, new_visitor):
    board = user.starts("run23 --template {workspace}_{run}_{logdir}")
    user.gets(board.url, {"ws1_run23_train": TRAINED, "ws1_run23_test": TESTED})
    page = new_visitor()
    page.goto(board.link)
    wait_for_words(page.locator("runs-data-table"), "ws1_run23_train", "ws1_run23_test")
    sees(chart(page, "loss"), {"ws1_run23_train": (2, 0.25), "ws1_run23_test": (2, 0.5)})


def test_hyperparameters_in_names_can_be_searched_for(user, new_visitor):
    template = "{workspace}_{run}_{logdir}_lr={hparams.lr}_epochs={hparams.epochs}"
    board = user.starts(f"run23 run341 --template {template}")
    quick = "ws1_run23_train_lr=0.01_epochs=2500"
    slow = "ws1_run341_train_lr=0.1_epochs=10"
    assert user.points(board.url)[quick] == user.points(board.url)[slow] == TRAINED
    page = new_visitor()
    page.goto(board.link)
    wait_for_words(page.locator("runs-data-table"), quick, slow)
    page.get_by_role("textbox", name="Filter runs (regex)").press_sequentially("train_lr=0.01_")
    eventually(page, lambda: set(run_list(page)) == {quick})
    sees(chart(page, "loss"), {quick: (2, 0.25)})


def test_a_field_that_is_not_known_is_told_with_those_that_are(user):
    done = user.types("aboard start run23 --template {worksapce}_{run} --no-browser")
    assert (done.code, done.out) == (2, "")
    assert "unknown field 'worksapce'. Did you mean 'workspace'? Known:" in done.err
