"""The commands over a hub, against real hubs: what they print, and what the boards serve."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from aboard.cli.asking import age
from aboard.cli.errors import WrongUsage
from aboard.cli.start import narrowed
from engines.real_hub import PASSWORD, USER, get, log_run, losses, team_hub


def started(aboard, *arguments):
    done = aboard("start", *arguments, "--no-browser", "--json")
    assert done.code == 0, done.err
    return done.json


# Starting.


def test_the_first_start_starts_a_hub_and_says_so(no_hub, aboard, root, tmp_path):
    done = aboard("start", root, "--name", "first", "--no-browser", ABOARD_ROOT=str(root))
    assert done.code == 0, done.err
    assert re.fullmatch(
        r"aboard: started a hub of your own \(http://localhost:\d+\); .*\n", done.err
    )
    found = re.fullmatch(r"first \((\w{12})\): (http://localhost:\d+/b/\1/)\?key=\S+\n", done.out)
    token = no_hub / "hub-token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert losses(found[2], token.read_text().strip())["mnist/run1"] == [3.0]
    again = aboard("start", "mnist", "--no-browser")
    assert (again.code, again.err) == (0, "")
    assert aboard("hub", "stop").out.startswith("stopped your hub at http://localhost:")
    assert aboard("hub", "stop").err == "aboard: you have no hub of your own that runs.\n"
    assert aboard("hub", "status", "--json").json == {"running": False}


def test_a_hub_of_ones_own_learns_where_runs_are_and_does_not_forget(
    no_hub, aboard, root, tmp_path
):
    first = started(aboard, root, "--name", "first")
    log_run(tmp_path / "runs", "other/run1", [9.0])
    done = aboard("start", "other", "--name", "second", "--no-browser")
    assert done.code == 0, done.err
    where = tmp_path / "runs"
    assert done.err == f"aboard: your hub looks for runs below {where} too from now on.\n"
    aboard("hub", "stop")
    assert aboard("start", "other", "--no-browser", ABOARD_ROOT=str(root)).code == 0
    token = (no_hub / "hub-token").read_text().strip()
    second = aboard("describe", "second", "--json").json
    assert list(losses(second["url"], token).values()) == [[9.0]]
    again = aboard("describe", first["id"], "--json").json
    assert losses(again["url"], token)["mnist/run1"] == [3.0]


def test_a_hub_that_was_killed_comes_back_with_its_boards(no_hub, aboard, root):
    first = started(aboard, root)
    os.kill(json.loads((no_hub / "hub.json").read_text())["pid"], signal.SIGKILL)
    assert aboard("list").err.startswith("aboard: no hub runs")
    again = started(aboard, root)
    assert again["id"] == first["id"]
    token = (no_hub / "hub-token").read_text().strip()
    assert losses(again["url"], token)["mnist/run1"] == [3.0]


def test_several_first_starts_at_once_share_one_hub(no_hub, aboard, root):
    with ThreadPoolExecutor() as pool:
        boards = list(pool.map(lambda _: started(aboard, root), range(3)))
    assert len({board["url"] for board in boards}) == 1


def test_a_browser_is_opened_and_not_waited_for(hub, aboard, tmp_path):
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\ncat "${{1#file://}}" > {tmp_path}/page.part\n'
        f"mv {tmp_path}/page.part {tmp_path}/page\n"
    )
    browser.chmod(0o755)
    home = {
        "BROWSER": f"{browser} %s &",
        "HOME": str(tmp_path),
        "SSH_CONNECTION": "",
        "DISPLAY": ":0",
    }
    done = aboard("start", "mnist", **home)
    assert done.code == 0, done.err
    deadline = time.monotonic() + 60
    while not (tmp_path / "page").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    link = re.search(r"url=([^\"]+)", (tmp_path / "page").read_text())[1]
    assert link == done.out.split()[-1]


def test_over_ssh_the_way_to_a_hub_of_ones_own_is_told(hub, aboard):
    board = started(aboard, "mnist")["id"]
    done = aboard("open", board, "--no-browser", SSH_CONNECTION="10.0.0.1 5 10.0.0.2 22")
    link, hint = done.out.splitlines()
    port = re.search(r"localhost:(\d+)/", link)[1]
    assert f"ssh -N -L {port}:127.0.0.1:{port} " in hint


def test_a_board_that_fails_to_start_says_why(hub, aboard):
    options = ["--on", "process", "--memory", "1MiB", "--name", "small", "--no-browser"]
    done = aboard("start", "mnist", *options)
    assert (done.code, done.out) == (1, "")
    assert re.match(
        r"aboard: board small has ended \(failed\): used .* of 1.0 MiB memory", done.err
    )


def test_a_log_is_followed_to_its_end(hub, aboard, root):
    board = started(aboard, root / "mnist", "--on", "process", "--name", "followed")
    with ThreadPoolExecutor() as pool:
        following = pool.submit(aboard, "logs", "-f", "followed")
        assert aboard("stop", "followed").code == 0
        done = following.result()
    assert done.code == 0, done.err
    assert str(root / "mnist") in done.out
    assert aboard("describe", board["id"], "--json").json["state"] == "stopped"


def test_a_hub_that_cannot_start_says_why(no_hub, aboard, root):
    no_hub.mkdir(mode=0o700)
    (no_hub / "hub.db").write_bytes(b"this is no database" * 1000)
    done = aboard("start", root, "--no-browser")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("aboard: your hub did not start: ")
    assert done.err.endswith(f"Its log is {no_hub / 'hub.log'}.\n")


def test_without_a_hub_a_question_starts_none(no_hub, aboard):
    done = aboard("list")
    assert done.code == 1
    assert done.err.startswith("aboard: no hub runs, and none is configured. Start a board")
    assert not (no_hub / "hub.json").exists()


def test_a_started_board_serves_the_runs_of_its_selection(hub, aboard):
    board = started(aboard, "cifar10/run1-run2", "mnist", "--template", "{experiment}_{run}")
    assert board["condition"] == ""
    assert losses(board["url"], hub) == {
        "cifar10_run1": [1.0, 0.5],
        "cifar10_run2": [2.0, 1.5],
        "mnist_run1": [3.0],
    }
    assert aboard("describe", board["id"], "--json").json["runs"] == 3


def test_the_printed_link_opens_the_board(hub, aboard):
    done = aboard("start", "mnist", "--no-browser")
    assert b"<html" in get(done.out.split()[-1]).lower()


@pytest.mark.parametrize("option", ["--runs", "--trial-ids"])
def test_runs_of_an_experiment_can_be_picked(hub, aboard, option):
    board = started(aboard, "cifar10", option, "1,3")
    assert sorted(losses(board["url"], hub).values()) == [[1.0, 0.5], [5.0]]


def test_narrowing_is_of_experiments():
    assert narrowed(["a", "b"], ["1,best", "3-7"]) == [
        *("a/run1", "a/best", "a/run3-run7"),
        *("b/run1", "b/best", "b/run3-run7"),
    ]
    assert narrowed(["a", "/data"], []) == ["a", "/data"]
    with pytest.raises(WrongUsage, match="'/data' is none"):
        narrowed(["a", "/data"], ["1"])
    with pytest.raises(WrongUsage, match="no run of 'b'"):
        narrowed(["b"], ["a/run1"])
    with pytest.raises(WrongUsage, match="say which runs"):
        narrowed([], [])


def test_runs_are_named_without_their_experiment_or_with_it():
    assert narrowed(["a", "4", "6-7"], ["1"]) == ["a/run1", "a/run4", "a/run6-run7"]
    assert narrowed(["7"], ["1"]) == ["7/run1"]
    assert narrowed([], ["1,best"]) == ["run1", "best"]
    assert narrowed(["b/run2"], ["a/run1"]) == ["b/run2", "a/run1"]
    assert narrowed(["b/run2", "a"], ["1"]) == ["b/run2", "a/run1"]


def test_an_isolated_board_of_the_stock_engine_has_a_log(hub, aboard, root):
    options = ["--engine", "stock", "--memory", "2GiB", "--timeout", "8h", "--name", "stock"]
    board = started(aboard, root / "mnist", *options)
    assert (board["on"], board["engine"]) == ("process", "stock")
    assert (board["memory"], board["timeout"]) == (2 << 30, 8 * 3600)
    assert board["expires"] is not None
    assert losses(board["url"], hub) == {"run1": [3.0]}
    assert aboard("logs", "stock", "--tail", 5).code == 0
    assert set(aboard("logs", "stock", "--json").json) == {"id", "name", "lines"}
    assert aboard("delete", "stock").out == f"deleted stock ({board['id']})\n"
    assert aboard("logs", "stock").code == 1


def test_what_the_hub_refuses_is_one_line_with_its_hint(hub, aboard):
    done = aboard("start", "cifar10/run11", "--no-browser")
    assert (done.code, done.out) == (1, "")
    assert done.err == "aboard: 'cifar10/run11' matches no run. The nearest is 'cifar10/run1'.\n"


def test_detached_is_not_waited_for(hub, aboard, tmp_path):
    (tmp_path / "empty").mkdir()
    done = aboard("start", "empty", "--detach", "--json")
    assert done.json["condition"] == "waiting for data"
    assert done.json["selectors"] == [str(tmp_path / "empty")]


# Looking.


def test_boards_are_listed_and_described(hub, aboard, root):
    board = started(aboard, "mnist", "--name", "listed", "--new")
    lines = aboard("list").out.splitlines()
    assert lines[0].split() == [
        *("ID", "NAME", "OWNER", "STATE", "SHOWS", "ON", "URL", "AGE", "EXPIRES", "REASON")
    ]
    (row,) = [line.split() for line in lines if " listed " in line]
    assert row[0] == board["id"]
    assert row[3:7] == ["running", "mnist", "instant", board["url"]]
    described = aboard("describe", board["id"][:8]).out
    assert "shows        1 run of mnist" in described
    history = aboard("describe", "listed", "--json").json["history"]
    assert [one["state"] for one in history] == ["pending", "running"]
    assert aboard("stop", "listed").code == 0
    assert board["id"] not in aboard("list").out
    stopped = aboard("list", "--state", "stopped", "--json").json["boards"]
    assert board["id"] in {one["id"] for one in stopped}
    assert board["id"] in aboard("list", "--all").out


def test_open_prints_a_link_and_an_ended_board_is_told(hub, aboard):
    started(aboard, "mnist", "--name", "opened", "--new")
    assert b"<html" in get(aboard("open", "opened", "--json").json["link"]).lower()
    aboard("stop", "opened")
    done = aboard("open", "opened", "--no-browser")
    assert done.code == 1
    assert done.err.startswith("aboard: board opened has ended (stopped): ")


def test_an_instant_board_has_no_log(hub, aboard):
    started(aboard, "mnist", "--name", "instant", "--new")
    done = aboard("logs", "instant")
    assert (done.code, done.out) == (0, "")
    assert "is an instant board" in done.err


# Ending.


@pytest.mark.parametrize("command", ["stop", "kill"])
def test_one_that_cannot_be_stopped_does_not_spare_the_others(hub, aboard, command):
    first, second = (started(aboard, "mnist", "--new") for _ in range(2))
    done = aboard(command, first["id"], "nowhere", second["name"], "--json")
    assert done.code == 1
    assert [one["id"] for one in done.json["stopped"]] == [first["id"], second["id"]]
    assert {one["state"] for one in done.json["stopped"]} == {"stopped"}
    assert [(one["board"], one["code"]) for one in done.json["errors"]] == [
        ("nowhere", "not_found")
    ]
    assert done.err == (
        "aboard: there is no board 'nowhere'. See which there are: aboard list --all\n"
    )


def test_a_board_is_restarted_at_its_address_and_deleted(hub, aboard):
    board = started(aboard, "mnist", "--name", "again", "--new")
    aboard("stop", "again")
    assert aboard("restart", "again").out == f"restarted again ({board['id']})\n"
    assert list(losses(board["url"], hub).values()) == [[3.0]]
    assert aboard("delete", "again", "--json").json == {
        "deleted": [{"id": board["id"], "name": "again"}],
        "errors": [],
    }
    assert aboard("describe", board["id"]).code == 1


# Changing and giving away.


def test_runs_are_added_and_removed(hub, aboard):
    board = started(aboard, "mnist", "--name", "growing", "--new")
    done = aboard("boards", "add", "growing", "cifar10/run3")
    assert done.out == f"growing ({board['id']}) shows mnist, cifar10/run3\n"
    assert sorted(losses(board["url"], hub).values()) == [[3.0], [5.0]]
    aboard("boards", "remove", "growing", "mnist")
    assert list(losses(board["url"], hub).values()) == [[5.0]]


def test_a_board_is_changed_while_it_is_open(hub, aboard):
    board = started(aboard, "mnist", "--name", "mine", "--timeout", "1h", "--team", "--new")
    assert board["visibility"] == "team"
    command = ("boards", "change", "mine", "--name", "ours", "--private", "--extend", "2h")
    done = aboard(*command, "--idle-timeout", "30m", "--json").json
    assert (done["name"], done["visibility"], done["idle_timeout"]) == ("ours", "private", 1800.0)
    expires = [datetime.fromisoformat(one["expires"]) for one in (board, done)]
    assert expires[1] - expires[0] == timedelta(hours=2)
    assert aboard("boards", "change", "ours", "--timeout", "0", "--json").json["expires"] is None
    nothing = aboard("boards", "change", "ours")
    assert (nothing.code, "say what to change" in nothing.err) == (2, True)


def test_a_share_opens_without_a_token_until_it_is_revoked(hub, aboard):
    started(aboard, "mnist", "--name", "shared", "--new")
    done = aboard("share", "shared", "--for", "3d")
    assert b"<html" in get(done.out.strip()).lower()
    revoke = re.search(r"'aboard (share shared --revoke \S+)'", done.err)[1]
    assert aboard(*revoke.split()).code == 0
    with pytest.raises(OSError, match="40"):
        get(done.out.strip())


# Which hub.


def test_status_tells_which_hub_is_used(hub, aboard, variables):
    document = aboard("hub", "status", "--json").json
    assert document["known_by"] == "personal"
    assert document["personal"] is True
    assert (
        document["pid"]
        == json.loads((Path(variables["ABOARD_STATE"]) / "hub.json").read_text())["pid"]
    )
    assert aboard("hub", "status").out.startswith(f"{document['url']} (your own, process ")
    gone = aboard("hub", "status", ABOARD_HUB="http://localhost:1")
    assert gone.code == 1
    assert gone.err.startswith("aboard: http://localhost:1: Connection refused. ")


def test_a_team_hub_is_used_after_login_and_until_it_is_forgotten(
    no_hub, variables, tmp_path, root
):
    with team_hub(tmp_path / "team", f'[[roots]]\nuri = "{root}"\n') as hub:
        done = _with_input(variables, PASSWORD, "login", hub.url, "--user", USER)
        assert done == (0, f"logged in to {hub.url} as {USER}, admin\n", "")
        kept = json.loads((no_hub / "login.json").read_text())
        assert stat.S_IMODE((no_hub / "login.json").stat().st_mode) == 0o600
        assert kept["token"] != PASSWORD
        code, out, _ = _with_input(variables, "", "start", "mnist", "--no-browser", "--json")
        assert code == 0
        assert list(losses(json.loads(out)["url"], kept["token"]).values()) == [[3.0]]
        code, _, err = _with_input(variables, "wrong", "login", hub.url, "--user", USER)
        assert code == 1
        assert err.startswith("aboard: ")
    assert _with_input(variables, "", "login", "--forget")[0] == 0
    assert not (no_hub / "login.json").exists()


def _with_input(variables, text, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "aboard", *arguments],
        env=variables,
        input=f"{text}\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def test_ages_are_written_roughly():
    then = "2026-01-01T00:00:00.000Z"
    at = 1767225600.0
    assert [age(then, now=at + one) for one in (0, 119, 120, 7199, 7200, 172800)] == [
        *("0s", "119s", "2m", "120m", "2h", "2d")
    ]
    assert age(None) == "-"
