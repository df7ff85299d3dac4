"""The commands over a hub, against real hubs: what they print, and what the boards serve."""

import json
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from aboard import EventWriter
from aboard.boards.model import BoardState
from aboard.cli import boards, console
from aboard.cli.console import BoardProgress, WrongUsage
from aboard.cli.sources import narrow_selectors
from aboard.runs.manifest import FILE_NAME, Manifest
from aboard.sdk import NotReady
from aboard.sdk.client import Client
from aboard.sdk.personal import KnownHub
from tests.cli.conftest import end_hub
from tests.engines.ports import free_port
from tests.engines.real_hub import PASSWORD, USER, get, log_run, losses, team_hub
from tests.waiting import until


def started(aboard, *arguments):
    done = aboard("start", *arguments, "--no-browser", "--json")
    assert done.code == 0, done.err
    return done.json


# Starting.


def test_the_first_start_starts_a_hub_and_says_so(no_hub, aboard, root, tmp_path):
    done = aboard("start", root, "--name", "first", "--no-browser", ABOARD_ROOT=str(root))
    assert done.code == 0, done.err
    assert re.fullmatch(r"aboard: started your own hub \(http://localhost:\d+\); .*\n", done.err)
    found = re.fullmatch(r"first \((\w{12})\): (http://localhost:\d+/b/\1/)\?key=\S+\n", done.out)
    token = no_hub / "hub-token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert losses(found[2], token.read_text().strip())["mnist/run1"] == [3.0]
    again = aboard("start", "mnist", "--no-browser")
    assert (again.code, again.err) == (0, "")
    assert aboard("hub", "stop").out.startswith("stopped your hub at http://localhost:")
    assert aboard("hub", "stop").err == "aboard: your hub is not running.\n"
    assert aboard("hub", "status", "--json").json["running"] is False


def served(no_hub, board):
    return losses(board["url"], (no_hub / "hub-token").read_text().strip())


def hub_file(no_hub):
    return json.loads((no_hub / "hub.json").read_text())


def test_projects_with_equal_names_of_roots_share_a_hub(no_hub, aboard, tmp_path):
    log_run(tmp_path / "a" / "runs", "first/run1", [1.0])
    log_run(tmp_path / "b" / "runs", "second/run1", [2.0])
    options = ["--no-browser", "--json"]
    first = aboard("start", "first", *options, cwd=tmp_path / "a").json
    process = hub_file(no_hub)["pid"]
    done = aboard("start", "second", *options, cwd=tmp_path / "b")
    where = tmp_path / "b" / "runs"
    assert done.err == f"aboard: added to the roots of your hub: {where}.\n"
    assert hub_file(no_hub)["pid"] == process
    assert list(served(no_hub, done.json).values()) == [[2.0]]
    assert list(served(no_hub, first).values()) == [[1.0]]
    aboard("hub", "stop")
    again = aboard("start", "second", *options, cwd=tmp_path / "a").json
    assert again["id"] == done.json["id"]
    assert list(served(no_hub, again).values()) == [[2.0]]


def test_a_root_can_be_named(no_hub, aboard, tmp_path):
    log_run(tmp_path / "elsewhere", "exp/run1", [1.0])
    log_run(tmp_path / "further", "other/run1", [2.0])
    by_name = started(aboard, "exp", "--root", tmp_path / "elsewhere")
    assert list(served(no_hub, by_name).values()) == [[1.0]]
    whole = started(aboard, "--root", tmp_path / "further")
    assert served(no_hub, whole) == {"other/run1": [2.0]}
    nothing = aboard("start", "--no-browser")
    assert (nothing.code, nothing.out) == (2, "")
    assert "Name what to show: aboard start SELECTOR" in nothing.err


def test_a_root_narrows_what_a_selector_selects(no_hub, aboard, tmp_path):
    for number, place in enumerate(("a", "b")):
        log_run(tmp_path / place, "exp/run1", [float(number)])
    everything = started(aboard, "exp", "--root", tmp_path / "a", "--root", tmp_path / "b")
    assert sorted(served(no_hub, everything).values()) == [[0.0], [1.0]]
    one = started(aboard, "exp", "--root", tmp_path / "b", "--where", 'name == "run1"')
    assert list(served(no_hub, one).values()) == [[1.0]]


def test_a_selector_with_a_root_has_to_match_there(no_hub, aboard, tmp_path):
    log_run(tmp_path / "a", "exp/run1", [1.0])
    log_run(tmp_path / "b", "other/run1", [2.0])
    assert aboard("start", "exp", "--root", tmp_path / "b", "--no-browser").code == 1
    assert not (no_hub / "hub.json").exists()
    started(aboard, "exp", "--root", tmp_path / "a", "--root", tmp_path / "b")
    done = aboard("start", "exp", "--root", tmp_path / "b", "--no-browser")
    assert (done.code, done.out) == (1, "")
    assert done.err == "aboard: 'exp' matches no run. Known here: other.\n"
    assert len(aboard("list", "--json").json["boards"]) == 1


def test_a_condition_that_no_run_meets_is_reported_at_once(hub, aboard):
    command = ("start", "cifar10", "--no-browser", "--json", "--where")
    done = aboard(*command, "metrics.loss.max > 100")
    assert (done.code, done.json["runs"]) == (0, 0)
    assert done.err == (
        "aboard: no run matches --where 'metrics.loss.max > 100' yet; the board shows such runs as"
        " soon as they exist.\n"
    )
    assert aboard(*command, "metrics.loss.max > 4").err == ""


def test_a_run_that_meets_a_condition_may_have_no_data_yet(hub, aboard, root, monkeypatch):
    monkeypatch.setattr("aboard.cli.boards._DATA_SECONDS", 1.0)
    directory = root / "new/run1"
    directory.mkdir(parents=True)
    record = Manifest("run1", experiment="new", heartbeat=time.time())
    (directory / FILE_NAME).write_bytes(record.to_json())
    done = aboard("start", "new", "--no-browser", "--where", 'state == "running"')
    shutil.rmtree(directory.parent)
    assert "no run matches" not in done.err
    assert "no data yet" in done.err


def test_runs_of_several_roots_are_reported(no_hub, aboard, tmp_path):
    for place in ("a", "b"):
        log_run(tmp_path / place, "exp/run1", [1.0])
    log_run(tmp_path / "b", "exp/run2", [1.0])
    first = aboard("start", "exp", "--root", tmp_path / "a", "--no-browser")
    assert "2 roots" not in first.err
    added = aboard("start", "exp", "--root", tmp_path / "b", "--no-browser")
    assert "2 roots" not in added.err
    both = aboard("start", "exp", "--no-browser")
    assert both.err == (
        f"aboard: the selectors match runs below 2 roots: {tmp_path}/b (2 runs), {tmp_path}/a"
        " (1 run). To show only those of one root, add --root ROOT.\n"
    )
    for narrower in (
        ["exp/run2"],
        ["exp", f'--where=root == "{tmp_path}/a"'],
        [tmp_path / "a"],
        [tmp_path / "b/exp/run2", "not:exp/run1"],
    ):
        assert aboard("start", *narrower, "--no-browser").err == ""


def test_a_root_that_does_not_exist_is_not_added(no_hub, aboard, tmp_path):
    log_run(tmp_path / "a", "exp/run1", [1.0])
    for command in (["start", "exp"], ["start"], ["open"]):
        done = aboard(*command, "--root", tmp_path / "b", "--no-browser")
        assert (done.code, done.out) == (1, "")
        assert done.err == f"aboard: {tmp_path}/b: no such directory. Check the path.\n"
    started(aboard, "exp", "--root", tmp_path / "a")
    assert aboard("start", "exp", "--root", tmp_path / "b", "--no-browser").code == 1
    assert roots_of(no_hub) == [str(tmp_path / "a")]


def test_many_roots_are_counted(no_hub, aboard, tmp_path):
    places = [tmp_path / f"p{number:02}" for number in range(12)]
    for place in places:
        log_run(place, "exp/run1", [1.0])
    roots = [text for place in places for text in ("--root", place)]
    assert aboard("start", "exp", *roots, "--no-browser").err.count("\n") == 1  # the hub's start
    client = Client(hub_file(no_hub)["url"], (no_hub / "hub-token").read_text().strip())
    until(lambda: client.facet("root", "exp")["distinct"] == 12)
    notice = aboard("start", "exp", "--no-browser").err
    assert notice.startswith("aboard: the selectors match runs below 12 roots: ")
    assert notice.endswith(" and 8 more. To show only those of one root, add --root ROOT.\n")
    assert notice.count("(1 run)") == 4
    missing = aboard("doctor", "nosuch", *roots)
    assert f"{places[2]}\n" in missing.out
    assert str(places[9]) not in missing.out


def test_a_hub_that_ran_before_comes_back_with_its_boards_on_its_port(no_hub, aboard, root):
    no_hub.mkdir()  # other tests take the usual port as soon as it is free
    (no_hub / "last-hub.json").write_text(json.dumps({"port": free_port()}))
    first = started(aboard, root, "--name", "mine")
    address = hub_file(no_hub)["url"]
    note = f"aboard: started your hub again ({address}). Stop it with: aboard hub stop\n"
    aboard("hub", "stop")
    listed = aboard("list")
    assert (listed.code, listed.err, first["id"] in listed.out) == (0, note, True)
    aboard("hub", "stop")
    again = aboard("start", root, "--name", "mine", "--no-browser", "--json")
    assert (again.code, again.err, again.json["id"]) == (0, note, first["id"])
    end_hub(no_hub, signal.SIGKILL)
    opened = aboard("open", "mine", "--no-browser", "--json")
    assert (opened.code, opened.err, opened.json["url"]) == (0, note, first["url"])
    assert served(no_hub, first)["mnist/run1"] == [3.0]
    aboard("hub", "stop")
    port = int(address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        moved = aboard("list")
    now = hub_file(no_hub)["url"]
    assert (moved.code, now != address) == (0, True)
    assert f"aboard: port {port} is taken, so your hub is at {now} now.\n" in moved.err


def test_a_board_that_has_ended_is_opened_with_a_restart(hub, aboard):
    board = started(aboard, "mnist", "--new", "--name", "ended")
    aboard("stop", "ended")
    done = aboard("open", "ended", "--no-browser")
    assert (done.code, done.out) == (1, "")
    assert done.err.endswith(f"Start it again with: aboard restart {board['id']}\n")
    assert aboard("restart", "ended").code == 0
    assert aboard("open", "ended", "--no-browser").code == 0


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
    done = aboard("start", "mnist", process=True, **home)
    assert done.code == 0, done.err
    until((tmp_path / "page").exists)
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
    assert re.search(
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
    assert done.err.startswith("aboard: no hub is running, and none is configured. Start a board")
    assert not (no_hub / "hub.json").exists()


def test_a_started_board_serves_the_runs_of_its_selection(hub, aboard):
    board = started(aboard, "cifar10/run1-run2", "mnist", "--template", "{experiment}_{run}")
    assert board["condition"] == ""
    assert losses(board["url"], hub, runs=3) == {
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
    assert sorted(losses(board["url"], hub, runs=2).values()) == [[1.0, 0.5], [5.0]]


def test_narrowing_is_of_experiments():
    assert narrow_selectors(["a", "b"], ["1,best", "3-7"]) == [
        *("a/1", "a/best", "a/3-7"),
        *("b/1", "b/best", "b/3-7"),
    ]
    assert narrow_selectors(["a", "/data"], []) == ["a", "/data"]
    with pytest.raises(WrongUsage, match="'/data' is not one"):
        narrow_selectors(["a", "/data"], ["1"])
    with pytest.raises(WrongUsage, match="no run of 'b'"):
        narrow_selectors(["b"], ["a/run1"])
    with pytest.raises(WrongUsage, match="--runs names no run"):
        narrow_selectors([], [])


def test_runs_are_named_without_their_experiment_or_with_it():
    assert narrow_selectors(["a", "4", "6-7"], ["1"]) == ["a/1", "a/4", "a/6-7"]
    assert narrow_selectors(["7"], ["1"]) == ["7/1"]
    assert narrow_selectors([], ["1,best"]) == ["1", "best"]
    assert narrow_selectors(["b/run2"], ["a/run1"]) == ["b/run2", "a/run1"]
    assert narrow_selectors(["a", "b"], ["a/1-3", "b/run1"]) == ["a/1-3", "b/run1"]
    assert narrow_selectors(["b/run2", "a"], ["1"]) == ["b/run2", "a/1"]


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


def test_a_board_keeps_its_question(hub, aboard):
    board = started(aboard, "cifar10", "--sort=-metrics.loss.max", "--limit", 1)
    assert set(losses(board["url"], hub)) == {"cifar10/run3"}
    described = aboard("describe", board["id"]).out
    assert "1 run of cifar10, sorted by -metrics.loss.max, the first 1" in described
    (row,) = [line for line in aboard("list").out.splitlines() if line.startswith(board["id"])]
    assert "cifar10, sorted by -metrics.loss.max, the first 1" in row
    wrong = aboard("start", "cifar10", "--where", "stat == 1")
    assert (wrong.code, wrong.err.splitlines()[1:]) == (2, ["  stat == 1", "  ^^^^"])
    refused = aboard("start", "cifar10", "--where", "run ~ 'a' or", "--json")
    assert (refused.code, refused.json["errors"][0]["code"]) == (2, "bad_question")


def test_a_name_in_a_question_that_no_run_has_is_reported(hub, aboard):
    done = aboard("start", "cifar10", "--sort=-metrics.los", "--limit", "1", "--json")
    assert done.code == 0
    assert done.err.count("no run has a metric 'los'. Did you mean 'loss'?") == 1
    until(lambda: "metric 'los'" in aboard("describe", done.json["id"]).out)
    done = aboard("start", "cifar10", "--group-by", "hparams.lrr", "--json")
    assert "no run has a hyperparameter 'lrr'" in done.err
    names = "{run} {hparams.lrr} {hparams.lr} {metrics.loss} {metrics.los}"
    done = aboard("start", "cifar10", "--template", names, "--json")
    assert done.code == 0
    assert "no run has a hyperparameter 'lrr'. No run has any" in done.err
    assert "no run has a metric 'los'. Did you mean 'loss'? It is shown as '-'" in done.err
    assert "no run has a metric 'loss'" not in done.err
    board = done.json["id"]
    assert "no run has a metric 'los'" in aboard("describe", board).out


def test_a_metric_below_a_name_is_not_a_metric_of_a_stage(hub, aboard, root):
    with EventWriter(root / "staged" / "run1") as writer:
        writer.scalar("eval/acc", 0.5, 0)
    done = aboard("start", "staged", "--template", "{run} acc={metrics.acc}", "--json")
    assert "no run has a metric 'acc'. The metrics are eval/acc. It is shown as '-'" in done.err


def test_a_board_of_a_source_that_cannot_be_read_is_reported_at_once(no_hub, aboard):
    command = ("start", "s3://bucket/x", "--name", "unread", "--no-browser", "--json")
    done = aboard(*command, AWS_EC2_METADATA_DISABLED="true")
    assert (done.code, done.json["condition"]) == (0, "source cannot be read")
    _, problem, board, _ = done.err.splitlines()
    assert problem.startswith("aboard: s3://bucket/x: no credentials were found. Set AWS_ACCESS")
    assert board == (
        "aboard: board unread has started, and shows data as soon as its source can be read."
        f" To delete it: aboard delete {done.json['id']}"
    )


def test_a_board_tells_its_groups(hub, aboard):
    options = ("--group-by", "experiment", "--band", "minmax", "--show", "both", "--new")
    board = started(aboard, "cifar10", *options)
    described = aboard("describe", board["id"]).out
    assert "groups       by experiment; band minmax; shows groups and runs" in described
    (row,) = [line for line in aboard("list").out.splitlines() if line.startswith(board["id"])]
    assert "cifar10, grouped by experiment" in row
    assert aboard("stop", board["id"]).code == 0


def test_a_count_that_is_not_known_is_not_told(hub, aboard):
    board = started(aboard, "mnist", "--new")
    assert aboard("stop", board["id"]).code == 0
    lines = aboard("list", "--all").out.splitlines()
    (row,) = [line.split() for line in lines if line.startswith(board["id"])]
    assert row[4] == "-"
    described = aboard("describe", board["id"])
    assert "shows        mnist\n" in described.out


def test_boards_are_listed_and_described(hub, aboard, root):
    board = started(aboard, "mnist", "--name", "listed", "--new")
    lines = aboard("list").out.splitlines()
    assert lines[0].split() == [
        *("ID", "NAME", "OWNER", "STATE", "RUNS", "SHOWS"),
        *("ON", "URL", "AGE", "EXPIRES", "REASON"),
    ]
    (row,) = [line.split() for line in lines if " listed " in line]
    assert row[0] == board["id"]
    assert row[3:8] == ["running", "1", "mnist", "instant", board["url"]]
    described = aboard("describe", board["id"][:8]).out
    assert "shows        1 run of mnist" in described
    history = aboard("describe", "listed", "--json").json["history"]
    assert [one["state"] for one in history] == ["pending", "running"]
    assert aboard("stop", "listed").code == 0
    assert board["id"] not in aboard("list").out
    stopped = aboard("list", "--state", "stopped", "--json").json["boards"]
    assert board["id"] in {one["id"] for one in stopped}
    assert board["id"] in aboard("list", "--all").out


def test_open_alone_opens_the_console(hub, aboard, tmp_path):
    done = aboard("open", "--no-browser")
    assert done.code == 0
    assert re.fullmatch(r"The console: http://localhost:\d+/\?key=\S+\n", done.out)
    document = aboard("open", "--json").json
    assert document["link"].startswith(f"{document['url']}/?key=")
    assert json.loads(get(document["link"]))["user"]
    refused = aboard("open", "nightly", "--root", tmp_path)
    assert (refused.code, refused.out) == (2, "")
    assert "--root applies to the console only" in refused.err


def test_open_starts_a_hub_with_the_runs_that_are_here(no_hub, aboard, tmp_path):
    log_run(tmp_path / "runs", "cifar10/run1", [1.0])
    log_run(tmp_path / "more", "mnist/run1", [1.0])
    first = aboard("open", "--json")
    assert first.code == 0
    assert "started your own hub" in first.err
    assert roots_of(no_hub) == [str(tmp_path / "runs")]
    again = aboard("open", "--root", "more", "--json")
    assert again.json["url"] == first.json["url"]
    assert roots_of(no_hub) == [str(tmp_path / "runs"), str(tmp_path / "more")]


def roots_of(state):
    return json.loads((state / "last-hub.json").read_text())["roots"]


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
    assert done.err == ("aboard: board 'nowhere' not found. List them: aboard list --all\n")


def test_all_stops_are_requested_before_the_first_wait(no_hub, aboard, root, monkeypatch):
    names = ("one", "two", "three")
    boards = [started(aboard, root, "--name", one, "--new", "--detach")["id"] for one in names]
    calls = []
    real = Client.stop

    def stop(client, board, *, wait=True, **options):
        calls.append((board.id, wait))
        return real(client, board, wait=wait, **options)

    monkeypatch.setattr(Client, "stop", stop)
    assert aboard("stop", *boards).code == 0
    assert calls == [*((one, False) for one in boards), *((one, True) for one in boards)]


def test_a_file_that_is_no_event_file_starts_no_board(no_hub, aboard, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    done = aboard("start", script, "--detach")
    assert (done.code, done.out) == (1, "")
    assert f"{script}: not an event file, whose name contains 'tfevents'." in done.err
    assert aboard("list", "--all", "--json").json["boards"] == []


def test_all_boards_are_stopped_after_a_question(no_hub, aboard, root):
    nothing = (0, "", "aboard: none of your boards is running.\n")
    assert aboard("stop", "--all") == nothing
    assert not no_hub.exists()
    first, second = (
        started(aboard, root, "--name", name, "--new", "--detach") for name in ("one", "two")
    )
    question = "Stop 2 boards: two, one? [y/N] "
    refused = aboard("stop", "--all", stdin="n\n")
    assert (refused.code, refused.err) == (1, f"{question}aboard: nothing was stopped.\n")
    unanswered = aboard("kill", "--all")
    assert unanswered.code == 2
    assert "nothing stopped. Add --yes to stop without confirmation." in unanswered.err
    assert {one["state"] for one in aboard("list", "--json").json["boards"]} == {"running"}
    done = aboard("stop", "--all", "--json", stdin="y\n")
    assert (done.code, done.err) == (0, question)
    assert {one["id"] for one in done.json["stopped"]} == {first["id"], second["id"]}
    assert {one["state"] for one in done.json["stopped"]} == {"stopped"}
    assert aboard("kill", "--all") == nothing
    assert aboard("stop", "--all", "--json").json == {"stopped": [], "errors": []}
    aboard("restart", "one")
    assert aboard("kill", "--all", "--yes").out.startswith(f"stopped one ({first['id']})")
    for arguments in ([], ["one", "--all"]):
        wrong = aboard("stop", *arguments)
        assert wrong[:2] == (2, "")
        assert "name the boards to stop, or add --all, not both." in wrong.err
    assert aboard("stop", "--yes", "one").err == "aboard: --yes requires --all.\n"


def test_boards_of_others_are_not_stopped(no_hub, aboard, tmp_path, root):
    def log_in(name):
        given = ("--user", name, "--password-stdin")
        assert aboard("login", hub.url, *given, stdin=f"{PASSWORD}\n").code == 0

    with team_hub(tmp_path / "team", f'[[roots]]\nuri = "{root}"\n') as hub:
        log_in(USER)
        started(aboard, "mnist", "--name", "theirs", "--team", "--detach")
        added = aboard("user", "add", "bo", "--password-stdin", stdin=f"{PASSWORD}\n")
        assert added.code == 0
        log_in("bo")
        started(aboard, "mnist", "--name", "mine", "--new", "--detach")
        done = aboard("stop", "--all", "--yes", "--json")
        assert [one["name"] for one in done.json["stopped"]] == ["mine"]
        (left,) = aboard("list", "--json").json["boards"]
        assert (left["name"], left["state"]) == ("theirs", "running")


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
    assert sorted(losses(board["url"], hub, runs=2).values()) == [[3.0], [5.0]]
    aboard("boards", "remove", "growing", "mnist")
    assert list(losses(board["url"], hub).values()) == [[5.0]]
    emptied = aboard("boards", "remove", "growing", "cifar10")
    assert (emptied.code, emptied.out) == (2, "")
    assert emptied.err.startswith("aboard: a board needs at least one selector.")
    aboard("stop", "growing")
    stopped = aboard("boards", "add", "growing", "mnist")
    assert stopped.err == (
        f"aboard: growing is stopped. Start it with: aboard restart {board['id']}\n"
    )


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
    assert (nothing.code, "nothing to change" in nothing.err) == (2, True)


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


def test_a_team_hub_is_used_after_login_and_until_it_is_forgotten(no_hub, aboard, tmp_path, root):
    with team_hub(tmp_path / "team", f'[[roots]]\nuri = "{root}"\n') as hub:
        done = aboard("login", hub.url, "--user", USER, "--password-stdin", stdin=f"{PASSWORD}\n")
        assert done == (0, f"logged in to {hub.url} as {USER}, admin\n", "")
        kept = json.loads((no_hub / "login.json").read_text())
        assert stat.S_IMODE((no_hub / "login.json").stat().st_mode) == 0o600
        assert kept["token"] != PASSWORD
        board = started(aboard, "mnist")
        assert list(losses(board["url"], kept["token"]).values()) == [[3.0]]
        refused = aboard("start", "mnist", "--root", tmp_path / "elsewhere", "--no-browser")
        assert (refused.code, refused.err) == (
            1,
            f"aboard: {tmp_path}/elsewhere is not a root of {hub.url}. Its roots are {root}.\n",
        )
        wrong = aboard("login", hub.url, "--user", USER, stdin="wrong\n")
        assert wrong.code == 1
        assert wrong.err.startswith("aboard: ")
        nobody = aboard("login", hub.url, "--password-stdin", stdin="x\n")
        assert nobody == (2, "", "aboard: --password-stdin needs --user NAME.\n")
    assert aboard("login", "--forget").code == 0
    assert not (no_hub / "login.json").exists()


@pytest.fixture
def board(hub, aboard):
    """Start a board; give its name and id."""
    done = aboard("start", "mnist", "--new", "--detach", "--json")
    assert done.code == 0, done.err
    return done.json["name"], done.json["id"]


# Changing and sharing.


def test_a_change_says_who_sees_a_board_and_until_when_it_runs(board, aboard):
    name, identity = board
    done = aboard("boards", "change", name, "--team")
    assert done.out == f"{name} ({identity}): every user of the hub sees it; it has no time limit\n"
    done = aboard("boards", "change", name, "--private", "--timeout", "8h", "--idle-timeout", "30m")
    assert re.fullmatch(
        rf"{name} \({identity}\): only its owner sees it; it runs until \d{{4}}-\S+ \S+,"
        r" and stops after 30m without a request\n",
        done.out,
    )
    done = aboard("boards", "change", name, "--name", f"{name}-2")
    assert done.out.startswith(f"{name}-2 ({identity}): ")


def test_what_has_no_end_cannot_be_extended(board, aboard):
    done = aboard("boards", "change", board[0], "--extend", "8h")
    assert "it has no time limit" in done.out
    assert done.err == (
        f"aboard: {board[0]} has no time limit to extend. Set one with --timeout.\n"
    )
    aboard("boards", "change", board[0], "--timeout", "8h")
    assert aboard("boards", "change", board[0], "--extend", "8h").err == ""
    aboard("stop", board[0])
    done = aboard("boards", "change", board[0], "--extend", "8h")
    assert done.err == (
        f"aboard: board {board[1]} ({board[0]}) is stopped. Start it with: aboard restart"
        f" {board[1]}\n"
    )
    done = aboard("boards", "change", board[0], "--timeout", "9h")
    assert done.out.endswith("; it may run for 9h\n")


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
        f"aboard: no links found. Create one: aboard share {name}\n"
    )
    made = aboard("share", name, "--for", "3d", "--json").json
    head, row = (line.split() for line in aboard("share", name, "--list").out.splitlines())
    assert head == ["ID", "MADE", "BY", "STATE", "AGE", "EXPIRES"]
    assert (row[0], row[2], row[-1]) == (made["id"], "valid", "3d")
    assert aboard("share", name, "--revoke", made["id"]).out == f"revoked {made['id']}\n"
    again = aboard("share", name, "--revoke", made["id"])
    assert (again.code, again.out) == (0, f"{made['id']} was revoked already\n")
    (known,) = aboard("share", name, "--list", "--json").json["shares"]
    assert (known["id"], known["url"], known["revoked"] is None) == (made["id"], None, False)
    unknown = aboard("share", name, "--revoke", "nothing")
    assert unknown.code == 1
    assert unknown.err == (
        f"aboard: {name} has no link 'nothing'. List them: aboard share {name} --list\n"
    )
    assert aboard("share", name, "--list", "--for", "1d").code == 2


# Wrong usage.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["start", "mnist", "--on", "mars"],
            "cannot run on 'mars' here. Use one of: instant, ",
        ),
        (["start", "mnist", "--engine", "steam"], "'steam' is not one of 'fast', 'stock'"),
        (["list", "--state", "asleep"], "'asleep' is not one of 'pending', 'starting', 'running'"),
        (["start", "mnist", "--memory", "lots"], "'lots' is not a size. Write bytes, or"),
        (["start", "mnist", "--timeout", "never"], "'never' is not a duration. Write seconds, or"),
        (["start", "mnist", "--template", "{"], "{"),
        (["describe", ""], "the board's name is empty."),
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
    assert done.err.endswith("Use a longer prefix.\n")


def test_what_may_still_run_of_a_deleted_board_is_reported(monkeypatch, capsys):
    left = "job 17 may still run on slurm. Stop it with: scancel 17"
    client = SimpleNamespace(
        get=lambda _: SimpleNamespace(id="b1", name="nightly"),
        delete=lambda _, *, force: left if force else "",
    )
    monkeypatch.setattr(boards, "open_hub", lambda **_: client)
    boards.delete_boards(["nightly"], force=True)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("deleted nightly (b1)\n", f"aboard: nightly: {left}\n")
    boards.delete_boards(["nightly"], force=True, json=True)
    deleted = json.loads(capsys.readouterr().out)["deleted"]
    assert deleted == [{"id": "b1", "name": "nightly", "left": left}]
    boards.delete_boards(["nightly"], json=True)
    assert json.loads(capsys.readouterr().out)["deleted"] == [{"id": "b1", "name": "nightly"}]


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
        out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (130, "")
    assert re.fullmatch(
        r"aboard: board late keeps running; stop it with: aboard stop \w{12}\n", err
    )


def test_a_board_that_has_ended_is_not_waited_for(monkeypatch, capsys):
    monkeypatch.setattr(console, "_SILENT_SECONDS", 0.0)
    progress = BoardProgress()
    for state, reason in (("starting", "Resources"), ("failed", "killed")):
        progress(SimpleNamespace(name="b", condition="", state=BoardState(state), reason=reason))
    said = capsys.readouterr().err
    assert said == "aboard: board b is starting (Resources); waiting until it runs.\n"


def test_a_board_that_waits_is_opened_at_the_page_that_says_why(monkeypatch, capsys):
    waiting = SimpleNamespace(
        id="b1",
        name="b",
        url="http://hub/b/b1/",
        document={},
        state=BoardState("starting"),
        reason="Resources",
    )
    client = SimpleNamespace(
        get=lambda _: waiting,
        wait=lambda *_, **__: (_ for _ in ()).throw(NotReady("not ready", code="not_ready")),
        link=lambda board: f"{board.url}?key=k",
        hub=KnownHub("http://hub", "", "given"),
    )
    monkeypatch.setattr(boards, "open_hub", lambda **_: client)
    boards.open_board("b", browser=False)
    said = capsys.readouterr()
    assert said.out == "b (b1): http://hub/b/b1/?key=k\n"
    assert said.err.splitlines()[0] == (
        "aboard: board b is starting (Resources); its page shows it when it runs."
    )


# The list.


def test_boards_are_listed_below_their_group_too(board, aboard):
    assert board[1] in aboard("boards", "list").out


def test_a_board_that_waits_says_what_for_each_time_that_changes(monkeypatch, capsys):
    monkeypatch.setattr(console, "_SILENT_SECONDS", 0.0)
    progress = BoardProgress()
    for state, reason in (
        ("starting", "Priority"),
        ("starting", "Priority"),
        ("starting", "Resources"),
        ("starting", ""),
        ("running", ""),
    ):
        progress(SimpleNamespace(name="otter", state=state, reason=reason, condition=""))
    assert capsys.readouterr().err.splitlines() == [
        "aboard: board otter is starting (Priority); waiting until it runs.",
        "aboard: board otter is starting (Resources); waiting until it runs.",
    ]


def test_only_a_wait_for_data_reports_that_there_is_none(monkeypatch, capsys):
    monkeypatch.setattr(console, "_SILENT_SECONDS", 0.0)
    running = {"name": "otter", "state": "running", "reason": "", "condition": ""}
    BoardProgress()(SimpleNamespace(**running, runs=None))  # it has just started
    BoardProgress(data_seconds=10.0)(SimpleNamespace(**running, runs=2))
    assert capsys.readouterr().err == ""
    BoardProgress(data_seconds=10.0)(SimpleNamespace(**running, runs=0))
    assert capsys.readouterr().err == (
        "aboard: board otter has no data yet; waiting 10 s for some.\n"
    )
