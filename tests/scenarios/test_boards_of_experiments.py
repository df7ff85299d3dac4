"""Boards of experiments and their trials: start, list, open, read the log, kill.

What users of Determined know as `det tensorboard`, typed here as `aboard`.
"""

import json
import os
import signal
from urllib.parse import urlsplit

import pytest

from aboard import EventWriter
from tests.browser.page import eventually, reload_until
from tests.scenarios.person import Person, chart, opens, read_link, sees, series

pytestmark = pytest.mark.engine("chromium")

SWEEP = """
import aboard

for experiment, trials in {"cifar10": 3, "mnist": 2}.items():
    for trial in range(1, trials + 1):
        with aboard.init(experiment) as run:
            for step in range(4):
                run.log_metrics({"loss": trial / 2**step}, step=step)
"""


def losses(trial: int) -> list[tuple[int, float]]:
    return [(step, trial / 2**step) for step in range(4)]


def last(*trials: str) -> dict[str, tuple[int, float]]:
    return {trial: losses(int(trial[-1]))[-1] for trial in trials}


CIFAR10 = [f"cifar10/run{trial}" for trial in (1, 2, 3)]
MNIST = [f"mnist/run{trial}" for trial in (1, 2)]


@pytest.fixture(scope="module")
def user(someone: Person) -> Person:
    """A user with two experiments."""
    someone.writes("sweep.py", SWEEP)
    someone.does("python sweep.py")
    return someone


def served(*trials: str) -> dict[str, list[tuple[int, float]]]:
    return {trial: losses(int(trial[-1])) for trial in trials}


def test_the_first_board_brings_a_hub_with_it_and_shows_the_experiment(user, new_visitor):
    done = user.does("aboard start cifar10 --no-browser")
    assert done.err.startswith("aboard: started your own hub (http://localhost:")
    board = read_link(done.out)
    page = new_visitor()
    with page.expect_response(lambda answer: "timeSeries" in answer.url) as fetched:
        opens(page, board.link, *CIFAR10)
    assert urlsplit(page.url).path == urlsplit(board.url).path  # at the port of boards
    assert page.title() == board.name
    sees(chart(page, "loss"), last(*CIFAR10))
    # Not the last points alone: the page was given every one of them.
    assert series(fetched.value.json()) == served(*CIFAR10)


def test_boards_are_listed_with_what_they_show(user):
    board = user.starts("cifar10 --name listed --new")
    head, *rows = (line.split() for line in user.does("aboard list").out.splitlines())
    assert head[:6] == ["ID", "NAME", "OWNER", "STATE", "RUNS", "SHOWS"]
    (row,) = [row for row in rows if row[0] == board.id]
    assert row[1] == "listed"
    assert row[3:8] == ["running", "3", "cifar10", "instant", board.url]
    (document,) = [
        one for one in user.does("aboard list --json").json["boards"] if one["id"] == board.id
    ]
    assert (document["state"], document["selectors"], document["url"]) == (
        "running",
        ["cifar10"],
        board.url,
    )


def test_several_experiments_are_compared(user, new_visitor):
    board = user.starts("cifar10 mnist")
    user.gets(board.url, served(*CIFAR10, *MNIST))
    page = new_visitor()
    opens(page, board.link, *CIFAR10, *MNIST)
    sees(chart(page, "loss"), last(*CIFAR10, *MNIST))


@pytest.mark.parametrize(
    "typed",
    [
        "cifar10 --trial-ids 1,3",
        "cifar10 --trial-ids 1 3",
        "cifar10 --trial-ids 1 --trial-ids 3",
        "cifar10 --runs run1,run3",
    ],
)
def test_some_trials_of_an_experiment(user, typed):
    board = user.starts(typed)
    user.gets(board.url, served("cifar10/run1", "cifar10/run3"))


@pytest.mark.parametrize(
    "typed",
    [
        "--trial-ids cifar10/run1 mnist/run2",
        "--runs cifar10/run1,mnist/run2",
        "cifar10/run1 mnist/run2",
    ],
)
def test_trials_of_different_experiments(user, typed):
    board = user.starts(typed)
    user.gets(board.url, served("cifar10/run1", "mnist/run2"))


def test_the_same_trial_of_several_experiments(user, new_visitor):
    board = user.starts("cifar10 mnist --trial-ids 2")
    page = new_visitor()
    opens(page, board.link, "cifar10/run2", "mnist/run2")
    sees(chart(page, "loss"), last("cifar10/run2", "mnist/run2"))


def test_a_trial_that_does_not_exist_is_told_with_its_nearest(user):
    done = user.types("aboard start cifar10 --trial-ids 9 --no-browser")
    assert (done.code, done.out) == (1, "")
    near = "'cifar10/run1', 'cifar10/run2' and 'cifar10/run3'"
    assert done.err == f"aboard: 'cifar10/9' matches no run. The nearest are {near}.\n"


def test_a_board_of_before_is_opened_again(user, new_visitor):
    board = user.starts("mnist --name earlier --new")
    again = read_link(user.does("aboard open earlier --no-browser").out)
    assert again.url == board.url
    assert again.link != board.link
    page = new_visitor()
    opens(page, again.link, *MNIST)
    sees(chart(page, "loss"), last(*MNIST))
    beginning = user.does(f"aboard open {board.id[:6]} --json").json
    assert beginning["url"] == board.url


def test_a_link_opens_once(user, new_visitor, complaints):
    board = user.starts("mnist")
    opens(new_visitor(), board.link, *MNIST)
    late = new_visitor()
    late.goto(board.link)
    complaints.expect("401")
    assert late.get_by_role("heading").inner_text() == "This link was already used."


def test_a_board_with_a_process_of_its_own_has_a_log_and_can_be_killed(
    user, new_visitor, complaints
):
    board = user.starts("cifar10 --on process --name apart")
    user.gets(board.url, served(*CIFAR10))
    page = new_visitor()
    opens(page, board.link, *CIFAR10)
    sees(chart(page, "loss"), last(*CIFAR10))
    assert "serving apart at http://" in user.does("aboard logs apart").out
    page.goto("about:blank")

    assert user.does(f"aboard kill {board.id}").out.startswith(f"stopped apart ({board.id})")
    assert board.id not in user.does("aboard list").out
    (ended,) = [
        one
        for one in user.does("aboard list --state stopped --json").json["boards"]
        if one["id"] == board.id
    ]
    assert ended["reason"].startswith("stopped by ")
    assert "serving apart at http://" in user.does("aboard logs apart --tail 1").out
    page.goto(board.url)
    complaints.expect("503")
    assert page.get_by_role("heading").inner_text() == "This board is stopped."
    assert page.get_by_text(f"aboard restart {board.id}").is_visible()

    user.does("aboard restart apart")
    opens(page, board.url, *CIFAR10)
    sees(chart(page, "loss"), last(*CIFAR10))
    user.does("aboard kill apart")


def test_a_board_whose_process_died_says_so_and_what_to_do(user, new_visitor, complaints):
    board = user.starts("mnist --on process --name doomed")
    page = new_visitor()
    opens(page, board.link, *MNIST)
    page.goto("about:blank")
    process = json.loads((user.state / "boards" / board.id / "process.json").read_text())
    os.kill(process["pid"], signal.SIGKILL)

    def failed():
        page.goto(board.url)
        return page.get_by_role("heading", name="This board has failed.").count()

    eventually(page, failed)
    complaints.heard.clear()  # of the refusals until then
    why = "It was killed, by a user or because the machine ran out of memory."
    assert page.get_by_text(why, exact=True).is_visible()
    assert page.get_by_text(f"aboard restart {board.id}").is_visible()
    assert user.does("aboard describe doomed --json").json["state"] == "failed"


def test_a_board_without_data_shows_them_as_soon_as_they_come(user, new_visitor):
    (user.place / "later").mkdir()
    board = read_link(user.does("aboard start later --detach").out)
    page = new_visitor()
    page.goto(board.link)
    page.get_by_text("No dashboards are active for the current data set.").wait_for()
    assert "waiting for data" in user.does("aboard list").out
    with EventWriter(user.place / "later" / "first") as writer:
        writer.scalar("loss", 0.5, 7)
    reload_until(page, lambda: page.locator("metrics-dashboard").count())
    sees(chart(page, "loss"), {"first": (7, 0.5)})
    assert "waiting for data" not in user.does("aboard list").out


def test_one_wrong_id_does_not_spare_the_other_boards(user):
    first, second = user.starts("mnist --new"), user.starts("mnist --new")
    done = user.types(f"aboard kill {first.id} nowhere {second.name}")
    assert done.code == 1
    assert [line.split(":")[0] for line in done.out.splitlines()] == [
        f"stopped {first.name} ({first.id})",
        f"stopped {second.name} ({second.id})",
    ]
    assert done.err.startswith("aboard: board 'nowhere' not found.")
