"""The hub in use: stopped with and without its boards, gone, or closed to a token."""

import json
from pathlib import Path

import pytest

from aboard.sdk.client import Client, log_in
from tests.engines.real_hub import PASSWORD, USER, team_hub


def runs(pid):
    """Say whether a process is there, and not only waits for somebody to take note of its end."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def isolated(no_hub, aboard, root):
    """Start a board with a process of its own on a new hub; give the process."""
    done = aboard("start", root / "mnist", "--on", "process", "--name", "apart", "--no-browser")
    assert done.code == 0, done.err
    (handle,) = no_hub.rglob("process.json")
    pid = json.loads(handle.read_text())["pid"]
    assert runs(pid)
    yield pid
    aboard("hub", "stop", "--boards")
    assert not runs(pid)


def test_a_stopped_hub_says_which_boards_go_on_and_how_they_end(isolated, aboard):
    done = aboard("hub", "stop")
    assert done.code == 0, done.err
    assert done.out.startswith("stopped your hub at http://localhost:")
    assert done.err == (
        "aboard: 1 board with its own process keeps running: apart. 'aboard hub stop --boards'"
        " stops it too; the next hub manages it again.\n"
    )
    assert runs(isolated)
    ended = aboard("hub", "stop", "--boards", "--json").json
    assert (ended["stopped"], ended["going_on"]) == (["apart"], [])
    assert not runs(isolated)
    assert aboard("hub", "status").code == 1


def test_boards_are_ended_with_their_hub(isolated, aboard):
    done = aboard("hub", "stop", "--boards")
    assert done.out.startswith("stopped apart\nstopped your hub at ")
    assert done.err == ""
    assert not runs(isolated)


def test_where_there_never_was_a_hub_none_is_started_to_be_stopped(no_hub, aboard):
    done = aboard("hub", "stop", "--boards")
    assert (done.code, done.err) == (1, "aboard: your hub is not running.\n")
    assert not no_hub.exists()


def test_a_hub_that_is_gone_is_told_with_what_to_do(no_hub, aboard, closed_port):
    gone = aboard("hub", "status", ABOARD_HUB=f"http://localhost:{closed_port}")
    assert gone.code == 1
    assert "Start it with 'aboard serve' on its machine" in gone.err
    assert "unset ABOARD_HUB" in gone.err
    no_hub.mkdir(mode=0o700)
    login = {"url": f"http://localhost:{closed_port}", "token": "x" * 40}
    (no_hub / "login.json").write_text(json.dumps(login))
    assert "aboard login --forget" in aboard("hub", "status").err


def test_a_token_that_opens_nothing_leads_to_the_login(no_hub, aboard, tmp_path):
    with team_hub(tmp_path / "team", "") as hub:
        token = log_in(hub.url, USER, PASSWORD)
        no_hub.mkdir(mode=0o700)
        login = {"url": hub.url, "token": token}
        (no_hub / "login.json").write_text(json.dumps(login))
        (kept,) = aboard("token", "list", "--json").json["tokens"]
        assert aboard("token", "revoke", kept["id"]).code == 0
        done = aboard("list")
        assert done.code == 1
        assert done.err == (
            f"aboard: {hub.url} does not accept your token: it is wrong, expired or revoked."
            f" Log in again: aboard login {hub.url}\n"
        )
        named = aboard("list", ABOARD_HUB=hub.url, ABOARD_HUB_TOKEN="x" * 40)
        assert "Set ABOARD_HUB_TOKEN to a valid token, or unset it." in named.err
        (no_hub / "login.json").unlink()
        nobody = aboard("list", ABOARD_HUB=hub.url)
        assert nobody.err == (
            f"aboard: {hub.url} needs a token, and you have none. Log in: aboard login {hub.url}\n"
        )


def test_a_viewer_is_told_one_thing_of_a_board_without_a_log(no_hub, aboard, tmp_path, root):
    with team_hub(tmp_path / "team", f'[[roots]]\nuri = "{root}"\n') as hub:
        admin = Client(hub.url, log_in(hub.url, USER, PASSWORD))
        admin.create("mnist", name="shown", visibility="team")
        admin.add_user("vic", role="viewer", password=PASSWORD)
        viewer = {"ABOARD_HUB": hub.url, "ABOARD_HUB_TOKEN": log_in(hub.url, "vic", PASSWORD)}
        done = aboard("logs", "shown", **viewer)
        assert (done.code, done.out) == (0, "")
        assert done.err == (
            "aboard: shown is an instant board: the hub serves it, so it has no log.\n"
        )
        refused = aboard("stop", "shown", **viewer)
        assert refused.err.endswith("as viewer. Ask its owner, or an administrator.\n")
