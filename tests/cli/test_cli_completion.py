"""What Tab offers, asked as a shell asks it."""

import pytest

from aboard.cli.completing import offered_runs
from aboard.runs.known import KnownRun
from engines.real_hub import log_run


@pytest.fixture
def offered(aboard):
    """Ask what the last of some words can become; nothing is ever said beside it."""

    def ask(*words):
        done = aboard(
            _ABOARD_COMPLETE="complete_bash",
            COMP_WORDS=" ".join(["aboard", *words]),
            COMP_CWORD=str(len(words)),
        )
        assert done.err == ""
        return done.out.split()

    return ask


def test_boards_are_offered_by_name_and_id(hub, aboard, offered):
    made = aboard("start", "mnist", "--new", "--name", "offered", "--detach", "--json").json
    for command in ("stop", "describe", "open", "share"):
        assert offered(command, "offe") == ["offered"]
    assert offered("boards", "change", made["id"][:11]) == [made["id"]]
    aboard("stop", "offered")
    assert offered("stop", "offe") == []


def test_without_a_hub_no_board_is_offered_and_none_started(
    no_hub, offered, closed_port, variables
):
    assert offered("stop", "") == []
    assert not no_hub.exists()
    variables["ABOARD_HUB"] = f"http://localhost:{closed_port}"
    assert offered("stop", "") == []


def test_experiments_and_runs_that_are_known_are_offered(no_hub, aboard, offered, tmp_path):
    log_run(tmp_path / "runs", "cifar10/run1", [1.0])
    log_run(tmp_path / "runs", "cifar10/run2", [1.0])
    log_run(tmp_path / "runs", "mnist/run1", [1.0])
    assert offered("runs", "ci") == []  # nobody has looked yet, and Tab does not
    aboard("runs")
    assert offered("runs", "ci") == ["cifar10", "cifar10/run1", "cifar10/run2"]
    assert offered("runs", "show", "cifar10/") == ["cifar10/run1", "cifar10/run2"]
    assert offered("start", "mn") == ["mnist", "mnist/run1"]
    assert offered("view", "mn") == ["mnist", "mnist/run1"]
    assert offered("boards", "add", "some-board", "mn") == ["mnist", "mnist/run1"]
    assert {"list", "show", "delete", "tag", "cifar10", "mnist"} <= set(offered("runs", ""))
    assert offered("view", "ru") == ["runs/"]
    assert not no_hub.exists()


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["start", "x", "--on", ""], ["instant", "process"]),
        (["start", "x", "--engine", "s"], ["stock"]),
        (["view", "x", "--engine", ""], ["fast", "stock"]),
        (["list", "--state", "sto"], ["stopping", "stopped"]),
        (["runs", "list", "--columns", "run,st"], ["run,state", "run,started"]),
        (["user", "role", "grace", "m"], ["member"]),
    ],
)
def test_values_of_options_are_offered(no_hub, offered, words, values):
    assert offered(*words) == values


def test_runs_are_offered_once_one_experiment_is_left():
    labels = ("cifar10/run1", "cifar100/run1", "mnist/run1")
    known = [KnownRun("/runs", one, *one.split("/")) for one in labels]
    known.append(KnownRun("/runs", "raw", "", "raw"))

    def texts(incomplete):
        return [text for text, _ in offered_runs(known, incomplete)]

    assert texts("") == ["cifar10", "cifar100", "mnist", "raw"]
    assert texts("cifar10") == ["cifar10", "cifar100"]
    assert texts("cifar10/") == ["cifar10/run1"]
    assert texts("m") == ["mnist", "mnist/run1"]
    assert texts("r") == ["raw"]
