"""The hub in use: stopped with and without its boards, gone, or closed to a token."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aboard.sdk import AuthError
from aboard.sdk.client import Client
from aboard.sdk.personal import log_in
from tests.engines.real_hub import PASSWORD, USER, team_hub


def runs(pid):
    """Return whether a process runs, and is not a zombie."""
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
        assert refused.err.startswith("aboard: vic (viewer) may not stop board ")
        assert refused.err.endswith(" (shown). Ask its owner, or an administrator.\n")


# Users and tokens of a real team hub.


SECRET = "battery staple"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with team_hub(tmp_path_factory.mktemp("team") / "hub", "") as hub:
        yield hub.url


@pytest.fixture(scope="module")
def admin_token(address):
    return log_in(address, USER, PASSWORD)


@pytest.fixture
def hub(variables, address, admin_token, tmp_path):
    """Let the command be the administrator's."""
    variables |= {
        "ABOARD_HUB": address,
        "ABOARD_HUB_TOKEN": admin_token,
        "ABOARD_STATE": str(tmp_path / "state"),
    }
    return address


@pytest.fixture
def told(aboard):
    """Run the command with something on its standard input."""
    return lambda text, *arguments: aboard(*arguments, stdin=text)


def typed(variables, answers, *arguments):
    """Run the command at a terminal, answer its questions; return its code and what was seen."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "aboard", *arguments]
    process = subprocess.Popen(
        command, env=variables, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    seen, asked, deadline = b"", 0, time.monotonic() + 60
    try:
        while select.select([ours], [], [], max(deadline - time.monotonic(), 0))[0]:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            seen += piece
            if asked < len(answers) and seen.count(b": ") > asked:
                os.write(ours, f"{answers[asked]}\n".encode())
                asked += 1
            if not piece:
                break
        return process.wait(180), seen.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def names(aboard):
    return [user["name"] for user in aboard("user", "list", "--json").json["users"]]


@pytest.mark.parametrize(
    ("group", "default"), [("hub", "status"), ("user", "list"), ("token", "list")]
)
def test_a_group_alone_shows_what_it_is_about(hub, aboard, group, default):
    done = aboard(group)
    assert done.code == 0
    assert done == aboard(group, default)
    assert aboard(group, "--json").json.keys() == aboard(group, default, "--json").json.keys()
    wrong = aboard(group, "nosuch")
    assert wrong.code == 2
    assert wrong.err == f"aboard: no such command 'nosuch'. See 'aboard {group} --help'.\n"


# Users.


def test_an_added_user_logs_in_with_a_password_and_has_a_role(hub, told):
    done = told(f"{SECRET}\n", "user", "add", "grace", "--role", "viewer", "--password-stdin")
    assert done == (0, "added grace, viewer\n", "")
    me = Client(hub, log_in(hub, "grace", SECRET)).me()
    assert (me["user"], me["role"]) == ("grace", "viewer")


def test_a_user_is_a_member_unless_told(hub, told, aboard):
    code, out, _ = told(SECRET, "user", "add", "max", "--password-stdin", "--json")
    assert (code, '"role": "member"' in out, SECRET in out) == (0, True, False)
    rows = [line.split()[:2] for line in aboard("user", "list").out.splitlines()]
    assert rows[0] == ["NAME", "ROLE"]
    assert ["max", "member"] in rows
    assert [USER, "admin"] in rows


def test_a_password_is_asked_for_twice_and_not_shown(hub, variables):
    code, seen = typed(variables, [SECRET, SECRET], "user", "add", "vera")
    assert code == 0, seen
    assert "A password for vera" in seen
    assert SECRET not in seen
    assert log_in(hub, "vera", SECRET)


def test_without_a_terminal_a_password_is_not_guessed(hub, told, aboard):
    code, out, err = told(f"{SECRET}\n", "user", "add", "nobody")
    assert (code, out) == (2, "")
    assert err == (
        "aboard: cannot prompt for a password without a terminal. Pipe it in and add"
        " --password-stdin.\n"
    )
    code, _, err = told("", "user", "add", "nobody", "--password-stdin")
    assert (code, err) == (2, "aboard: standard input contains no secret.\n")
    assert "nobody" not in names(aboard)


@pytest.mark.parametrize(
    ("name", "secret", "code", "said"),
    [
        ("Not A Name", SECRET, 2, "is not a valid user name"),
        ("short", "1234567", 2, "Use 8 to 1024 characters."),
        (USER, SECRET, 1, USER),
    ],
)
def test_what_the_hub_refuses_is_said_in_one_line(hub, told, name, secret, code, said):
    ended, out, err = told(secret, "user", "add", name, "--password-stdin")
    assert (ended, out) == (code, "")
    assert err.startswith("aboard: ")
    assert err.count("\n") == 1
    assert said in err
    assert secret not in err


def test_whoever_was_removed_is_shut_out_with_his_tokens(hub, told, aboard):
    told(SECRET, "user", "add", "gone", "--password-stdin")
    token = log_in(hub, "gone", SECRET)
    assert aboard("user", "remove", "gone", "--json").json == {"removed": "gone"}
    with pytest.raises(AuthError):
        Client(hub, token).me()
    again = aboard("user", "remove", "gone")
    assert again.code == 1
    assert again.err.startswith("aboard: ")
    assert again.err.count("\n") == 1


def test_a_password_is_changed_by_an_administrator_and_by_oneself(hub, told, variables):
    told(SECRET, "user", "add", "fay", "--password-stdin")
    other = f"{SECRET} anew"
    done = told(f"{other}\n", "user", "password", "fay", "--password-stdin")
    assert done == (0, "changed the password of fay\n", "")
    with pytest.raises(AuthError):
        log_in(hub, "fay", SECRET)
    own = {**variables, "ABOARD_HUB_TOKEN": log_in(hub, "fay", other)}
    code, seen = typed(own, [SECRET, SECRET], "user", "password", "fay", "--json")
    assert code == 0, seen
    assert '"changed": "fay"' in seen
    assert SECRET not in seen
    assert log_in(hub, "fay", SECRET)
    code, seen = typed(own, [SECRET, SECRET], "user", "password", USER)
    assert code == 1
    assert "may not" in seen
    assert log_in(hub, USER, PASSWORD)


def test_no_other_password_than_a_good_one_is_taken(hub, told):
    for name, secret, expected, said in (
        ("nobody-at-all", SECRET, 1, "user 'nobody-at-all' not found"),
        (USER, "short", 2, "Use 8 to 1024 characters."),
    ):
        code, out, err = told(secret, "user", "password", name, "--password-stdin")
        assert (code, out) == (expected, "")
        assert said in err
        assert err.count("\n") == 1
    code, _, err = told(SECRET, "user", "password", USER)
    assert (code, "--password-stdin" in err) == (2, True)


def test_the_last_administrator_stays(hub, aboard):
    done = aboard("user", "remove", USER)
    assert done.code == 1
    assert USER in names(aboard)
    done = aboard("user", "role", USER, "viewer")
    assert (done.code, done.out) == (1, "")
    assert aboard("hub", "status", "--json").json["role"] == "admin"


def test_a_role_is_changed_and_counts_at_once(hub, told, aboard):
    told(SECRET, "user", "add", "rising", "--role", "viewer", "--password-stdin")
    token = log_in(hub, "rising", SECRET)
    refused = aboard("start", "/nowhere", "--no-browser", ABOARD_HUB_TOKEN=token)
    assert refused.err == ("aboard: rising (viewer) may not create boards. Ask an administrator.\n")
    assert aboard("user", "role", "rising", "admin").out == "rising is admin now\n"
    assert Client(hub, token).me()["role"] == "admin"
    assert aboard("user", "role", "rising", "member", "--json").json["role"] == "member"
    assert aboard("user", "role", USER, "viewer", ABOARD_HUB_TOKEN=token).code == 1
    assert aboard("user", "role", "rising", "king").code == 2
    assert aboard("user", "role", "nobody-at-all", "viewer").code == 1


def test_only_administrators_manage_users(hub, told, aboard):
    told(SECRET, "user", "add", "member", "--password-stdin")
    token = log_in(hub, "member", SECRET)
    done = aboard("user", "remove", "member", ABOARD_HUB_TOKEN=token)
    assert (done.code, done.out) == (1, "")
    assert "member" in names(aboard)


# Tokens.


def test_a_token_is_printed_once_and_opens_the_hub_until_it_is_revoked(hub, aboard):
    made = aboard("token", "create", "nightly", "--for", "30d")
    assert made.code == 0, made.err
    secret = made.out.removesuffix("\n")
    assert Client(hub, secret).me()["user"] == USER
    assert secret not in made.err
    listed = aboard("token", "list")
    assert secret not in listed.out
    (row,) = [line.split() for line in listed.out.splitlines() if " nightly " in line]
    assert row[1:4] == [USER, "nightly", "valid"]
    assert "30d" in row
    assert aboard("token", "revoke", row[0]).out == f"revoked {row[0]}\n"
    assert aboard("token", "revoke", row[0]).out == f"{row[0]} was revoked already\n"
    with pytest.raises(AuthError):
        Client(hub, secret).me()
    (row,) = [line.split() for line in aboard("token", "list").out.splitlines() if row[0] in line]
    assert row[3] == "revoked"


def test_a_token_for_scripts(hub, aboard):
    made = aboard("token", "create", "--json").json
    assert Client(hub, made["token"]).me()["user"] == USER
    listed = {one["id"]: one for one in aboard("token", "list", "--json").json["tokens"]}
    assert listed[made["id"]]["token"] is None
    assert listed[made["id"]]["expires"] == made["expires"] is not None
    assert aboard("token", "revoke", made["id"], "--json").json == {"revoked": made["id"]}


def test_others_see_and_revoke_their_own_tokens_only(hub, told, aboard):
    told(SECRET, "user", "add", "own", "--password-stdin")
    token = log_in(hub, "own", SECRET)
    foreign = aboard("token", "create", "--json").json
    listed = aboard("token", "list", "--json", ABOARD_HUB_TOKEN=token).json["tokens"]
    assert {one["user"] for one in listed} == {"own"}
    done = aboard("token", "revoke", foreign["id"], ABOARD_HUB_TOKEN=token)
    assert done.code == 1
    assert done.err.startswith(f"aboard: token '{foreign['id']}' not found.")
    assert Client(hub, foreign["token"]).me()["user"] == USER


def test_a_time_that_is_none_is_refused(hub, aboard):
    for wrong in ("soon", "0"):
        done = aboard("token", "create", "--for", wrong)
        assert (done.code, done.out) == (2, ""), wrong
        assert done.err.count("\n") == 1
