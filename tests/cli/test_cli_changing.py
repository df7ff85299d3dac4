"""Changing boards and giving them away: what is true afterwards, and what was so already."""

import re
import signal
import subprocess
import sys

import pytest

from aboard.cli.wording import fitted, table


@pytest.fixture
def board(hub, aboard):
    """Start a board; give its name and id."""
    done = aboard("start", "mnist", "--new", "--detach", "--json")
    assert done.code == 0, done.err
    return done.json["name"], done.json["id"]


# What is true now.


def test_a_change_says_who_sees_a_board_and_until_when_it_runs(board, aboard):
    name, identity = board
    done = aboard("boards", "change", name, "--team")
    assert done.out == f"{name} ({identity}): everybody on the hub sees it; it has no end\n"
    done = aboard("boards", "change", name, "--private", "--timeout", "8h", "--idle-timeout", "30m")
    assert re.fullmatch(
        rf"{name} \({identity}\): only its owner sees it; it runs until \d{{4}}-\S+ \S+,"
        r" and ends when nobody has looked for 30 min 00 s\n",
        done.out,
    )
    done = aboard("boards", "change", name, "--name", f"{name}-2")
    assert done.out.startswith(f"{name}-2 ({identity}): ")


def test_what_has_no_end_cannot_be_extended(board, aboard):
    done = aboard("boards", "change", board[0], "--extend", "8h")
    assert "it has no end" in done.out
    assert done.err == (
        f"aboard: {board[0]} has no end, so there is nothing to extend; --timeout gives it one.\n"
    )
    aboard("boards", "change", board[0], "--timeout", "8h")
    assert aboard("boards", "change", board[0], "--extend", "8h").err == ""


def test_what_was_stopped_already_is_told_as_such(board, aboard):
    name, identity = board
    first = aboard("stop", name)
    assert first.out.startswith(f"stopped {name} ({identity}): stopped by ")
    again = aboard("stop", identity)
    assert (again.code, again.out) == (0, first.out.replace("stopped", "already stopped:", 1))
    assert aboard("stop", identity, "--json").json["stopped"][0]["state"] == "stopped"


def test_links_are_listed_and_revoked_once(board, aboard):
    name = board[0]
    assert aboard("share", name, "--list").err == (
        f"aboard: there are no links. Make one with: aboard share {name}\n"
    )
    made = aboard("share", name, "--for", "3d", "--json").json
    head, row = (line.split() for line in aboard("share", name, "--list").out.splitlines())
    assert head == ["ID", "MADE", "BY", "STATE", "AGE", "EXPIRES"]
    assert (row[0], row[2], row[-1]) == (made["id"], "good", "3d")
    assert aboard("share", name, "--revoke", made["id"]).out == f"revoked {made['id']}\n"
    again = aboard("share", name, "--revoke", made["id"])
    assert (again.code, again.out) == (0, f"{made['id']} was revoked already\n")
    (known,) = aboard("share", name, "--list", "--json").json["shares"]
    assert (known["id"], known["url"], known["revoked"] is None) == (made["id"], None, False)
    unknown = aboard("share", name, "--revoke", "nothing")
    assert unknown.code == 1
    assert unknown.err == (
        f"aboard: {name} has no link 'nothing'. See which: aboard share {name} --list\n"
    )
    assert aboard("share", name, "--list", "--for", "1d").code == 2


# What cannot be meant.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["start", "mnist", "--on", "mars"], "'mars' is not one of 'instant', 'process'"),
        (["start", "mnist", "--engine", "steam"], "'steam' is not one of 'fast', 'stock'"),
        (["list", "--state", "asleep"], "'asleep' is not one of 'pending', 'starting', 'running'"),
        (["start", "mnist", "--memory", "lots"], "'lots' is not a size. Write bytes, or"),
        (["start", "mnist", "--timeout", "never"], "'never' is not a duration. Write seconds, or"),
        (["start", "mnist", "--template", "{"], "{"),
        (["describe", ""], "say which board."),
    ],
)
def test_wrong_values_are_wrong_usage(hub, aboard, arguments, said):
    done = aboard(*arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_beginning_of_several_names_asks_for_more(hub, aboard):
    for name in ("alike-1", "alike-2"):
        aboard("start", "mnist", "--new", "--name", name, "--detach")
    assert aboard("describe", "alike-1").code == 0
    done = aboard("describe", "alike")
    assert done.code == 1
    assert done.err.endswith("Write more of the name or id.\n")


# Waiting for data.


def test_whoever_waits_without_a_terminal_is_told_and_may_leave(hub, variables, tmp_path):
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "aboard", "start", "empty", "--name", "late", "--no-browser"]
    with subprocess.Popen(
        command,
        env=variables,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr.readline() == (
            "aboard: board late has no data yet; waiting 10 s for some.\n"
        )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert re.fullmatch(
        r"aboard: board late goes on without you; end it with: aboard stop \w{12}\n", err
    )


# The list.


def test_boards_are_listed_below_their_group_too(board, aboard):
    assert board[1] in aboard("boards", "list").out


def test_a_list_fits_the_terminal():
    heads = ("ID", "NAME", "SHOWS", "URL", "REASON")
    rows = [["1", "otter", "a" * 30, "http://hub/b/1/", "x" * 30], ["2", "cat", "b", "-", "-"]]

    def fit(width):
        least, shortest = ("REASON", "URL"), {"SHOWS": 10, "REASON": 8}
        kept, cells = fitted(heads, rows, width, least=least, shortest=shortest)
        lines = table(kept, cells, left=len(kept)).splitlines()
        assert max(map(len, lines)) <= width
        return kept, cells[0]

    assert fit(200) == (heads, rows[0])
    kept, first = fit(60)
    assert kept == heads
    assert first[2:] == ["a" * 21 + "…", "http://hub/b/1/", "x" * 7 + "…"]
    assert fit(40) == (heads[:4], ["1", "otter", "a" * 11 + "…", "http://hub/b/1/"])
    assert fit(30)[0] == heads[:3]
    assert fit(21) == (heads[:3], ["1", "otter", "a" * 9 + "…"])
