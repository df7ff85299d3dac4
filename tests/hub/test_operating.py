"""Operating a hub: its log, what survives a restart, and the files of its service."""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import httpx
import pytest

from aboard.hub.access import redact_path
from aboard.hub.config import make_config
from aboard.sdk import AuthError
from aboard.sdk.client import Client
from aboard.sdk.personal import log_in
from tests.engines.command import run_command
from tests.engines.real_hub import PASSWORD, USER, team_hub
from tests.hub.hubs import QUICK, create, personal_hub, served
from tests.waiting import until

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "team-hub.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


# The log.


def test_no_secret_of_a_request_is_in_the_log(tmp_path, root):
    """Everything that opens something is used once, rightly and wrongly; then all is searched."""
    said = {"wrong password": "a-wrong-password", "password": PASSWORD}
    with team_hub(tmp_path / "team", f'roots = ["{root}"]\n') as hub:
        said["token"] = log_in(hub.url, USER, PASSWORD)
        client = Client(hub.url, said["token"])
        said["password of another"] = "another-long-password"
        client.add_user("grace", password=said["password of another"])
        said["new password"] = "a-new-long-password"
        client.set_password("grace", said["new password"])
        revoked = client.create_token("nightly")
        said["revoked token"] = revoked["token"]
        client.revoke_token(revoked["id"])
        board = client.create("cifar10")
        isolated = client.create("mnist", on="process")
        share, key = client.share(board)["url"], client.link(board)
        said["share"], said["key"] = share.rpartition("/")[2], key.rpartition("=")[2]
        with httpx.Client(base_url=hub.url, **QUICK) as browser:
            for secret in ("wrong password", "password"):
                browser.post("/login", data={"user": USER, "password": said[secret]})
            browser.post("/api/v1/login", json={"user": "nobody", "password": PASSWORD})
            said["session"] = next(iter(browser.cookies.jar)).value
            browser.get("/api/v1/me")
            browser.post("/api/v1/tokens", json={"name": "unmarked"})
        with httpx.Client(base_url=hub.url, **QUICK) as stranger:
            for url in (share, key, key, f"{key}&again", f"/nowhere?key={said['key']}"):
                stranger.get(url)
            for path in (f"//s/{said['share']}", f"/s/{said['share']}/x", f"/{said['token']}"):
                stranger.get(f"{hub.url}{path}")
            wrong = {"authorization": f"Bearer {said['revoked token']}"}
            stranger.get("/api/v1/me", headers=wrong)
            stranger.get(f"/b/{board.id}/", headers={"cookie": f"aboard-share-x={said['share']}"})
            stranger.post("/login", data={"token": key})
            right = {"authorization": f"Bearer {said['token']}"}
            at = f"/b/{isolated.id}/data/runs"
            until(lambda: stranger.get(at, headers=right).status_code == 200)
            stranger.delete(f"/api/v1/tokens/{said['token']}", headers=right)
        until(lambda: "DELETE /api/v1/tokens/aboard_" in (hub.directory / "log").read_text())
        (token_file,) = (hub.directory / "hub" / "boards").rglob("token")
        said["token of the board"] = token_file.read_text().strip()
        client.stop(isolated, now=True)
        until(lambda: client.get(isolated.id).state == "stopped")
    lines = (hub.directory / "log").read_text()
    noted = [json.loads(line) for line in lines.splitlines()]
    assert {(one["path"], one["user"]) for one in noted if "path" in one} >= {
        ("/api/v1/users", USER),
        ("/s/…", ""),
        ("/login", ""),
    }
    (log_of_board,) = (hub.directory / "hub" / "boards").rglob("log")
    assert "token of the board" in said
    for what, secret in said.items():
        assert len(secret) >= 16 or "password" in what
        assert secret not in lines, what
        assert secret not in log_of_board.read_text(), what


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/s/share_abc", "/s/…"),
        ("//s/share_abcdefgh-_1", "//s/share_…"),
        ("/api/v1/tokens/aboard_abc_DEF-g", "/api/v1/tokens/aboard_…"),
        ("/b/abc/data/runs", "/b/abc/data/runs"),
    ],
)
def test_a_secret_in_a_path_is_not_shown(path, shown):
    assert redact_path(path) == shown


def test_the_password_of_a_database_is_not_shown(tmp_path, root, closed_port):
    database = f"postgresql://aboard:db-password@127.0.0.1:{closed_port}/aboard"
    words = ["serve", "--root", str(root), "--port", "0"]
    words += ["--database", database, "--directory", str(tmp_path / "hub")]
    done = run_command(words, env=os.environ, cwd=tmp_path)
    assert done.code == 1
    assert str(closed_port) in done.err
    assert "db-password" not in done.out + done.err


# What outlives the process.


def test_a_link_that_was_printed_opens_after_a_restart_and_once_only(tmp_path, root):
    with personal_hub(tmp_path, root) as hub:
        port, printed = hub.port, hub.document["url"]
        with hub.client() as client:
            board = create(client, "cifar10")["id"]
            link = client.post(f"/api/v1/boards/{board}/link").json()["url"]
            used = client.post(f"/api/v1/boards/{board}/link").json()["url"]
        assert httpx.get(used, **QUICK).status_code == 303
        hub.kill()
    digests = (tmp_path / "state" / "hub.db").read_bytes()
    for url in (link, used, printed):
        assert url.rpartition("=")[2].encode() not in digests
    with personal_hub(tmp_path, root, port):
        with httpx.Client(follow_redirects=True, **QUICK) as browser:
            assert browser.get(link).status_code == 200
            runs = browser.get(f"{link.partition('?')[0]}data/runs")
            assert runs.json() == ["cifar10/run1", "cifar10/run2"]
        with httpx.Client(headers={"accept": "text/html"}, **QUICK) as late:
            for url in (link, used):
                again = late.get(url)
                assert again.status_code == 401
                assert "already used" in again.text
            assert late.get(printed).status_code == 303


def test_a_one_time_link_admits_one_of_many_concurrent_requests(tmp_path, root):
    with served(tmp_path, [root]) as hub, hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        for _ in range(5):
            link = client.post(f"/api/v1/boards/{board}/link").json()["url"]

            def open_it(_, link=link):
                return httpx.get(link, **QUICK).status_code

            with concurrent.futures.ThreadPoolExecutor(8) as crowd:
                seen = sorted(crowd.map(open_it, range(8)))
            assert seen == [303, *[401] * 7]


def test_a_link_expires_with_its_time_its_user_and_the_password(tmp_path, root):
    with served(tmp_path, [root]) as hub:
        user = hub.hub.auth.user("max")
        changed = hub.hub.auth.mint_key(user)[0]
        page = {"accept": "text/html"}
        hub.hub.auth.set_password("max", "a-new-long-password")
        with hub.client(headers=page) as late:
            assert late.get(f"/?key={changed}").status_code == 401
            kept = hub.hub.auth.mint_key(user)[0]
            hub.hub.auth.remove_user("max")
            assert late.get(f"/?key={kept}").status_code == 401
            vera = hub.hub.auth.user("vera")
            expired = hub.hub.auth.mint_key(vera)[0]
            for keeping in (hub.hub.auth, hub.hub.registry.accounts):
                keeping._clock = lambda: time.time() + 90000
            answer = late.get(f"/?key={expired}")
            assert answer.status_code == 401
            assert "expired" in answer.text


def test_a_new_password_ends_the_sessions_of_the_old_one(tmp_path, root):
    with team_hub(tmp_path / "team", f'roots = ["{root}"]\n') as hub:
        client = Client(hub.url, log_in(hub.url, USER, PASSWORD))
        client.add_user("grace", password="the-first-password")
        login = {"user": "grace", "password": "the-first-password"}
        with httpx.Client(base_url=hub.url, **QUICK) as browser:
            assert browser.post("/api/v1/login", json=login).status_code == 200
            assert browser.get("/api/v1/me").json()["user"] == "grace"
            client.set_password("grace", "the-second-password")
            assert browser.get("/api/v1/me").status_code == 401
        with pytest.raises(AuthError):
            log_in(hub.url, "grace", "the-first-password")
        token = log_in(hub.url, "grace", "the-second-password")
        Client(hub.url, token).set_password("grace", "the-third-password")  # her own


# The files that start it.


def test_the_settings_of_the_guide_are_settings(tmp_path):
    for block in blocks("toml"):
        assert make_config(tomllib.loads(block), tmp_path, "the guide")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="install systemd")
def test_the_unit_of_the_guide_is_valid(tmp_path):
    (unit,) = blocks("ini")
    command = re.search(r"^ExecStart=(\S+)", unit, re.MULTILINE)[1]
    place = tmp_path / "aboard.service"
    place.write_text(unit.replace(command, sys.executable))  # which is here
    done = subprocess.run(
        ["systemd-analyze", "verify", str(place)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if "aboard.service" in line]
    assert not told, done.stderr


def test_the_commands_in_the_guide_are_valid():
    (unit,) = blocks("ini")
    (container,) = blocks("dockerfile")
    started = re.search(r"^ExecStart=\S+ (.*)$", unit, re.MULTILINE)[1].split()
    arguments = json.loads(re.search(r"^CMD (.*)$", container, re.MULTILINE)[1])
    assert arguments[0] == "aboard"
    for words in (started, arguments[1:]):
        options = [word for word in words if word.startswith("--")]
        done = subprocess.run(
            [sys.executable, "-m", "aboard", words[0], "--help"],
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        )
        for option in options:
            assert option in done.stdout
