"""A real hub that is killed, stopped or loses its database: its boards afterwards."""

import json
import os
import shutil
import signal
import socket
import stat
from pathlib import Path
from urllib.parse import urlencode

import httpx

from aboard.hub import auth
from tests.engines.command import fork_command, run_command
from tests.hub.hubs import QUICK, create, log_run, personal_hub, points, served
from tests.waiting import until


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_killed_hub_comes_back_with_every_board_at_its_address(tmp_path, root):
    with personal_hub(tmp_path, root) as hub:
        port = hub.port
        with hub.client() as client:
            instant = create(client, "cifar10", name="mine")["id"]
            isolated = create(client, "mnist", on="process")["id"]
            stopped = create(client, "cifar10/run1")["id"]
            client.post(f"/api/v1/boards/{stopped}/stop")
            until(lambda: client.get(f"/api/v1/boards/{isolated}").json()["runs"] == 1)
            assert points(client, isolated)["mnist/run1"] == [(0, 3.0)]
            link = client.post(f"/api/v1/boards/{instant}/link").json()["url"]
        with httpx.Client(follow_redirects=True, **QUICK) as browser:
            assert browser.get(link).status_code == 200
            hub.kill()
            with personal_hub(tmp_path, root, port) as again, again.client() as client:
                assert again.port == port
                assert browser.get(f"{link.partition('?')[0]}data/runs").json() == [
                    "cifar10/run1",
                    "cifar10/run2",
                ]
                assert points(client, instant)["cifar10/run2"] == [(0, 2.0), (1, 1.5)]
                assert points(client, isolated)["mnist/run1"] == [(0, 3.0)]
                boards = client.get("/api/v1/boards").json()["boards"]
                assert {board["id"] for board in boards} == {instant, isolated}
                assert client.get(f"/b/{stopped}/").status_code == 503
                assert create(client, "cifar10")["id"] == instant
                client.post(f"/api/v1/boards/{isolated}/stop")
                board = f"/api/v1/boards/{isolated}"
                until(lambda: client.get(board).json()["state"] == "stopped")


def test_a_board_whose_runs_came_later_is_listed_with_them(tmp_path, root):
    (root / ".jobs/sweep").mkdir(parents=True)
    (root / ".jobs/sweep/job.json").write_text("{}")
    with personal_hub(tmp_path, root) as hub, hub.client() as client:
        assert create(client, "job:sweep")["condition"] == "waiting for data"
        hub.kill()
    log_run(root, "cifar10/sweep-1", [4.0], job="sweep")
    with personal_hub(tmp_path, root) as hub, hub.client() as client:

        def listed():
            (board,) = client.get("/api/v1/boards").json()["boards"]
            return board["condition"], board["runs"]

        until(lambda: listed() == ("", 1))  # although no request was for the board itself


def test_the_log_and_the_death_of_an_isolated_board_are_reported(tmp_path, root):
    with personal_hub(tmp_path, root) as hub, hub.client() as client:
        board = create(client, "mnist", on="process", engine="stock")["id"]
        until(lambda: client.get(f"/api/v1/boards/{board}").json()["runs"] == 1)
        place = hub.state / "boards" / board / "process.json"
        pid = json.loads(place.read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: client.get(f"/api/v1/boards/{board}").json()["state"] == "failed")
        described = client.get(f"/api/v1/boards/{board}").json()
        assert "killed" in described["reason"]
        assert client.get(f"/api/v1/boards/{board}/logs", params={"tail": 5}).status_code == 200
        page = client.get(f"/b/{board}/")
        assert (page.status_code, page.json()["error"]["code"]) == (503, "board_failed")
        assert not is_running(pid)


def test_a_clean_stop_waits_for_the_current_request(tmp_path, root):
    with personal_hub(tmp_path, root) as hub, hub.client() as client:
        board = create(client, "cifar10")["id"]
        until(lambda: client.get(f"/api/v1/boards/{board}").json()["runs"] == 2)
        body = urlencode({"requests": '[{"plugin": "scalars", "tag": "loss"}]'}).encode()
        head = [
            f"POST /b/{board}/data/plugin/timeseries/timeSeries HTTP/1.1",
            f"Host: localhost:{hub.port}",
            f"Authorization: {client.headers['authorization']}",
            "Content-Type: application/x-www-form-urlencoded",
            f"Content-Length: {len(body)}",
            "Expect: 100-continue",
        ]
        with socket.create_connection(("127.0.0.1", hub.port), timeout=180) as connection:
            connection.sendall("\r\n".join([*head, "", ""]).encode())
            # The hub asks for the body, so the request is under way.
            assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
            hub.process.send_signal(signal.SIGTERM)
            until(lambda: not listens(hub.port))
            connection.sendall(body)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'"step":1,"value":1.5' in answer
        assert hub.process.wait(180) == 0
        assert not (hub.state / "hub.json").exists()


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_personal_hub_is_found_through_its_file_and_is_the_only_one(tmp_path, root):
    with personal_hub(tmp_path, root) as hub:
        file = hub.state / "hub.json"
        document = json.loads(file.read_text())
        assert document["url"] == hub.document["address"]
        assert document["pid"] == hub.process.pid
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        token_file = Path(document["token_file"])
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        env = {**os.environ, "ABOARD_STATE": str(hub.state)}
        second = run_command(["serve", "--personal"], env=env, cwd=tmp_path)
        assert second.code == 1
        assert f"your hub is already running at {document['url']}" in second.err
        with httpx.Client(
            follow_redirects=True, headers={"accept": "text/html"}, **QUICK
        ) as browser:
            opened = browser.get(hub.document["url"])
            assert opened.status_code == 200
            assert 'name="token"' not in opened.text
            assert browser.get(f"{document['url']}/api/v1/me").json()["personal"]
        stranger = httpx.get(document["url"], headers={"accept": "text/html"}, **QUICK)
        assert stranger.status_code == 401
        assert 'name="token"' in stranger.text


def test_without_its_database_a_hub_serves_known_boards(tmp_path, root, monkeypatch):
    monkeypatch.setattr(auth, "_RECENT_SECONDS", -1.0)  # visitors are looked up each time
    with served(tmp_path, [root]) as hub, hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        assert len(points(client, board)) == 2
        place = tmp_path / "hub" / "hub.db"
        away = place.with_name("away.db")
        shutil.move(place, away)
        assert points(client, board)["cifar10/run1"] == [(0, 1.0), (1, 0.5)]
        assert client.get(f"/api/v1/boards/{board}").json()["state"] == "running"
        assert [one["id"] for one in client.get("/api/v1/boards").json()["boards"]] == [board]
        assert client.get("/api/v1/me").json()["user"] == "max"
        refused = client.post("/api/v1/boards", json={"selectors": ["mnist"]})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "database_unavailable"
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
        stranger = httpx.get(
            f"{hub.url}/api/v1/me", headers={"authorization": "Bearer unknown"}, **QUICK
        )
        assert stranger.status_code == 503
        shutil.move(away, place)
        until(lambda: client.get("/readyz").status_code == 200)
        assert create(client, "mnist")["state"] == "running"


def test_a_team_hub_starts_with_an_administrator(tmp_path, root):
    (tmp_path / "aboard.toml").write_text(f'directory = "hub"\nroots = ["{root}"]\nport = 0\n')
    words = ["serve", "--config", str(tmp_path / "aboard.toml")]
    nobody = run_command(words, env=os.environ, cwd=tmp_path)
    assert nobody.code == 1
    assert "aboard serve --admin NAME" in nobody.err
    words += ["--json", "--admin", "anna"]
    process = fork_command(words, env=os.environ, cwd=tmp_path, stdin="a-long-password\n")
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        with httpx.Client(base_url=json.loads(line)["address"], **QUICK) as client:
            login = {"user": "anna", "password": "a-long-password"}
            assert client.post("/api/v1/login", json=login).json() == {
                "user": "anna",
                "role": "admin",
                "personal": False,
            }
            client.headers["x-aboard-csrf"] = "1"
            board = create(client, "cifar10")["id"]
            assert points(client, board)["cifar10/run1"] == [(0, 1.0), (1, 0.5)]
    finally:
        process.end()
