"""Boards from Python, on real hubs: what they serve, and what is said when something is wrong."""

import asyncio
import stat
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.error import HTTPError

import pytest

import aboard
from aboard.sdk import Unreachable
from aboard.sdk.personal import (
    find_hub,
    find_personal,
    forget_login,
    log_in,
    open_hub_for,
    write_login,
)
from tests.engines.real_hub import PASSWORD, USER, get, log_run, losses, own_hub, team_hub


def served(board):
    return losses(board.url, board._client.hub.token)


# What a board serves.


def test_a_created_board_serves_the_numbers_of_its_runs(client, root):
    board = aboard.Board.create(root)
    assert board.state == "running"
    assert board.url == board.app_uri == f"{client.url}/b/{board.id}/"
    assert served(board) == {
        "cifar10/run1": [1.0, 0.5],
        "cifar10/run2": [2.0, 1.5, 1.25],
        "mnist/run1": [3.0],
    }


def test_the_selectors_may_be_called_uri(client, root):
    assert aboard.Board.create(uri=root).id == aboard.Board.create(root).id
    assert client.create(uri=str(root)).id == client.create([root]).id
    with pytest.raises(TypeError, match="selectors or uri"):
        aboard.Board.create()
    with pytest.raises(TypeError, match="selectors or uri"):
        client.create("mnist", uri="mnist")


@pytest.mark.parametrize(
    ("selectors", "options", "problem"),
    [
        (5, {}, "selectors are 5, not a path, URI or selector, or several"),
        (b"mnist", {}, "selectors are b'mnist', not a path"),
        (["mnist", 5], {}, "5, one of the selectors, is not a path"),
        ("mnist", {"title": object}, "title is <class 'object'>, which a hub does not accept"),
        ("mnist", {"bogus": 1}, "unknown option: bogus"),
    ],
)
def test_arguments_of_the_wrong_type_are_named(client, selectors, options, problem):
    with pytest.raises(TypeError) as caught:
        client.create(selectors, **options)
    assert str(caught.value).startswith(problem)
    with pytest.raises(aboard.HubError, match="name should be a valid string"):
        client.create("mnist", name=5)
    with pytest.raises(TypeError, match="url is 5, not a string"):
        aboard.Client(5)


def test_selectors_choose_among_the_runs_of_the_hub(client):
    board = aboard.Board.create(["cifar10/run2", "mnist"], name="two", template="{run}!")
    assert board.name == "two"
    assert sorted(served(board).values()) == [[2.0, 1.5, 1.25], [3.0]]
    assert all(name.endswith("!") for name in served(board))


def test_a_path_counts_from_where_the_program_is(client, tmp_path, monkeypatch):
    log_run(tmp_path / "here", "a/run1", [7.0])
    monkeypatch.chdir(tmp_path)
    assert served(aboard.Board.create("here")) == {"a/run1": [7.0]}
    assert aboard.Board.create("./here").selectors == (str(tmp_path / "here"),)


def test_the_same_selection_is_the_same_board_unless_told(client):
    first = aboard.Board.create("cifar10")
    assert aboard.Board.create("cifar10").id == first.id
    assert aboard.Board.create("cifar10", new=True).id != first.id


def test_a_source_that_cannot_be_read_is_not_waited_for(client, monkeypatch):
    board = client.create("mnist")
    problems = ["s3://nowhere/x: no credentials were found. Set AWS_ACCESS_KEY_ID."]
    unread = aboard.Board(client, board.document | {"runs": 0, "problems": problems})
    monkeypatch.setattr(client, "get", lambda _: unread)
    with pytest.raises(aboard.NotReady, match="no credentials were found"):
        client.wait(board, seconds=600)


@pytest.mark.parametrize("limit", [0, -1, "x"])
def test_a_limit_is_checked(client, limit):
    with pytest.raises(ValueError, match="limit must be an integer"):
        client.runs(limit=limit)


def test_waiting_ends_when_there_is_data(client, tmp_path):
    board = aboard.Board.create(tmp_path, wait=False)
    with pytest.raises(aboard.NotReady, match=r"waiting for data.*aboard describe"):
        board.wait(seconds=0)
    assert board.wait(data=False).condition == "waiting for data"
    late = threading.Timer(0.3, log_run, (tmp_path, "late/run1", [4.0]))
    late.start()
    assert board.wait().runs == 1
    late.join()
    assert served(board) == {"late/run1": [4.0]}


def test_runs_come_and_go_while_a_board_is_open(client):
    board = aboard.Board.create("mnist/run1", new=True)
    assert board.add("cifar10/run1").selectors == ("mnist/run1", "cifar10/run1")
    assert sorted(served(board).values()) == [[1.0, 0.5], [3.0]]
    board.remove("mnist/run1")
    assert list(served(board).values()) == [[1.0, 0.5]]


def test_an_isolated_board_has_a_log_and_ends_when_it_is_deleted(client, root):
    board = aboard.Board.create(root / "mnist", on="process")
    assert list(served(board).values()) == [[3.0]]
    assert any("mnist" in line for line in board.logs())
    assert list(board.logs(tail=0)) == []
    board.delete()
    with pytest.raises(aboard.NotFound):
        aboard.Board.get(board.id)


# Its life.


def test_a_stopped_board_says_why_and_comes_back_at_its_address(client):
    board = aboard.Board.create("cifar10", new=True)
    assert board.stop().state == "stopped"
    with pytest.raises(aboard.BoardFailed, match=f"{board.name} has ended") as raised:
        board.wait()
    assert raised.value.state == "stopped"
    assert raised.value.reason == board.reason != ""
    address = board.url
    assert board.restart().wait().url == address
    assert len(served(board)) == 2
    assert [event["state"] for event in board.history()][-2:] == ["pending", "running"]


def test_boards_are_found_by_name_and_the_beginning_of_an_id(client):
    board = aboard.Board.create("mnist", new=True, name="findable")
    assert aboard.Board.get("findable").id == board.id
    assert aboard.Board.get(board.id[:-1]).id == board.id
    assert board.id in {one.id for one in aboard.Board.list()}
    board.stop()
    assert board.id not in {one.id for one in aboard.Board.list()}
    assert board.id in {one.id for one in aboard.Board.list(states=["stopped"])}
    assert board.id in {one.id for one in aboard.Board.list(all=True)}


def test_a_link_opens_a_board_and_a_share_does_until_it_is_revoked(client):
    board = aboard.Board.create("mnist")
    assert b"<html" in get(board.link()).lower()
    share = client.share(board, lasts="7d")
    assert b"<html" in get(share["url"]).lower()
    client.unshare(board, share["id"])
    with pytest.raises(HTTPError):
        get(share["url"])


def test_links_through_a_tunnel_have_the_address_of_its_end(client):
    board = aboard.Board.create("mnist")
    assert client.url.startswith("http://localhost:")
    # Such an address stands for another machine or port that is forwarded to the hub.
    client.hub = client.hub._replace(url=client.url.replace("localhost", "127.0.0.1"))
    link, share = client.link(board), client.share(board)["url"]
    assert link.startswith(f"{client.url}/b/{board.id}/?key=")
    assert share.startswith(f"{client.url}/s/")
    assert b"<html" in get(link).lower()


def test_boards_can_be_changed(client):
    board = aboard.Board.create("mnist", new=True)
    assert client.change(board, name="renamed", timeout="2h").name == "renamed"
    assert client.get(board).document["timeout"] == 7200


def test_runs_and_roots_of_a_hub_are_listed(client, root):
    labels = [f"{run['experiment']}/{run['name']}" for run in client.runs("cifar10")]
    assert labels == ["cifar10/run1", "cifar10/run2"]
    assert [one["uri"] for one in client.roots()] == [str(root)]


def test_an_event_loop_can_ask_many_things_at_once(client):
    async def ask():
        hub = aboard.AsyncClient()
        made = await asyncio.gather(*(hub.create(f"cifar10/run{i}", new=True) for i in (1, 2)))
        return await asyncio.gather(*map(hub.wait, made))

    first, second = asyncio.run(ask())
    assert list(served(first).values()) == [[1.0, 0.5]]
    assert list(served(second).values()) == [[2.0, 1.5, 1.25]]


def test_a_log_is_read_piece_by_piece_in_an_event_loop(client, root):
    board = aboard.Board.create(root / "mnist", on="process", new=True)

    async def read():
        return b"".join([piece async for piece in aboard.AsyncClient().logs(board)])

    assert b"mnist" in asyncio.run(read())
    board.delete()


def test_names_are_looked_for_where_the_program_is(tmp_path, monkeypatch, root):
    log_run(tmp_path / "runs", "here/run1", [4.0])
    with own_hub(tmp_path / "hub", root) as state:
        monkeypatch.setenv("ABOARD_STATE", str(state))
        first = aboard.Board.create("cifar10/run1")
        monkeypatch.chdir(tmp_path)
        assert list(served(aboard.Board.create("here")).values()) == [[4.0]]
        assert list(served(aboard.Board.get(first.id)).values()) == [[1.0, 0.5]]


# What goes wrong.


def test_an_error_carries_what_the_hub_said(client):
    with pytest.raises(aboard.NotFound, match=r"board 'nowhere' not found.*aboard list") as raised:
        aboard.Board.get("nowhere")
    assert (raised.value.code, raised.value.status) == ("not_found", 404)
    with pytest.raises(aboard.HubError, match="nearest is 'cifar10/run1'") as raised:
        aboard.Board.create("cifar10/run11")
    assert raised.value.code == "nothing_matches"


def test_a_wrong_token_is_an_authentication_error(client):
    with pytest.raises(
        aboard.AuthError, match=f"Log in again: aboard login {client.url}"
    ) as raised:
        aboard.Client(client.url, "x" * 32).me()
    assert raised.value.status == 401


def test_a_hub_that_is_not_there_is_said_with_its_address(closed_port):
    with pytest.raises(Unreachable, match=rf"localhost:{closed_port}: .*refused.*aboard serve"):
        aboard.Client(f"http://localhost:{closed_port}").me()
    with pytest.raises(Unreachable, match="not a valid hub address"):
        aboard.Client("file:///etc/passwd")
    with pytest.raises(Unreachable, match="no hub is running"):
        aboard.Client(start=False)


def test_a_redirect_is_not_followed_with_the_token():
    asked = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(307)
            self.send_header("location", "/stolen")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with pytest.raises(aboard.HubError, match="status 307"):
            aboard.Client(f"http://127.0.0.1:{server.server_port}", "secret").me()
        server.shutdown()
        thread.join()
    assert asked == ["/api/v1/me"]


# Which hub is meant.


def test_the_environment_comes_before_the_login_and_that_before_ones_own(client, monkeypatch):
    assert find_hub().how == "personal"
    place = write_login("https://team.example/", "team-token")
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert find_hub()[:3] == ("https://team.example", "team-token", "login")
    monkeypatch.setenv("ABOARD_HUB", "https://other.example")
    assert find_hub()[:3] == ("https://other.example", "", "environment")
    monkeypatch.setenv("ABOARD_HUB_TOKEN", "other-token")
    assert find_hub().token == "other-token"
    assert find_hub("https://given.example", "given")[:3] == (
        "https://given.example",
        "given",
        "given",
    )
    assert forget_login()
    assert not forget_login()


def test_a_hub_that_was_killed_is_not_asked(client, state, tmp_path, monkeypatch):
    for name in ("hub.json", "hub-token", "hub.lock"):
        (tmp_path / name).write_bytes((state / name).read_bytes())
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path))
    assert find_personal() is None


def test_no_secret_is_printed_or_readable_by_others(client, state):
    assert client.hub.token not in repr(client.hub)
    assert stat.S_IMODE((state / "hub-token").stat().st_mode) == 0o600


# A team's hub.


def test_a_team_hub_is_entered_with_a_password_and_keeps_its_limits(tmp_path, root):
    settings = f'[[roots]]\nuri = "{root}"\n[limits]\nisolated = 1\n'
    with team_hub(tmp_path / "team", settings) as hub:
        with pytest.raises(aboard.AuthError):
            log_in(hub.url, USER, "wrong password")
        client = aboard.Client(hub.url, log_in(hub.url, USER, PASSWORD))
        assert client.me() == {"user": USER, "role": "admin", "personal": False}
        client.add_user("grace")
        assert client.set_role("grace", "viewer")["role"] == "viewer"
        with pytest.raises(aboard.HubError, match="role cannot be 'queen': use 'viewer'"):
            client.set_role("grace", "queen")
        board = aboard.Board.create("mnist", on="process", client=client)
        assert list(served(board).values()) == [[3.0]]
        with pytest.raises(aboard.BoardLimitExceeded, match="aboard stop") as raised:
            aboard.Board.create("cifar10", on="process", client=client)
        assert list(raised.value.boards) == [board.id]
        with pytest.raises(aboard.AuthError, match="not below a root"):
            aboard.Board.create(tmp_path, client=client)
        board.delete()


# Jobs.


TRAIN = """
import os, sys
print("lr", sys.argv[1], flush=True)
sys.exit(sys.argv[1] == "0.5" and not os.path.exists("ok"))
"""


def test_a_job_is_submitted_followed_and_tried_again(client, root, tmp_path):
    command = [sys.executable, "-c", TRAIN, "{lr}"]
    swept = {"name": "swept", "experiment": "jobs", "sweep": {"lr": [0.1, 0.5]}}
    job = client.submit(command, root=root, workdir=tmp_path, **swept)
    assert (job["id"], job["count"], job["root"]) == ("swept", 2, str(root))
    board = client.create("job:swept", name="of-a-job")
    with pytest.raises(aboard.HubError, match="already has a job 'swept'") as raised:
        client.submit(command, root=root, workdir=tmp_path, **swept)
    assert (raised.value.status, raised.value.code) == (409, "name_taken")
    with pytest.raises(aboard.NotReady, match="job swept is"):
        client.wait_job("swept", seconds=0)
    ended = client.wait_job("swept", seconds=60)
    assert (ended["state"], ended["exit_code"]) == ("failed", 1)
    assert ended["states"] == {"completed": 1, "failed": 1}
    assert b"".join(client.job_logs("swept", 2)) == b"lr 0.5\n"
    (failed,) = client.job_members("swept", states=["failed"])
    assert (failed["number"], failed["run"]) == (2, "jobs/swept-2")
    (tmp_path / "ok").touch()
    assert client.retry_job("swept")["attempts"] == 2
    assert client.wait_job("job:swept", seconds=60)["state"] == "completed"
    assert client.stop_job("swept")["state"] == "completed"
    assert {run["job"] for run in client.runs("job:swept")} == {"swept"}
    assert len(client.get(board).sources) == 2

    async def listed():
        hub = aboard.AsyncClient(client)
        log = b"".join([chunk async for chunk in hub.job_logs("swept", 1)])
        return [one["id"] for one in await hub.jobs(states=["completed"])], log

    assert asyncio.run(listed()) == (["swept"], b"lr 0.1\n")
    client.delete_job("swept")
    with pytest.raises(aboard.HubError, match="job 'swept' not found"):
        client.job("swept")
    assert len(client.runs("job:swept")) == 2
    with pytest.raises(aboard.HubError, match="already has a run 'jobs/swept-1'") as raised:
        client.submit(command, root=root, workdir=tmp_path, **swept)
    assert (raised.value.status, raised.value.code) == (409, "name_taken")


def test_a_board_of_a_job_brings_its_root_to_a_hub_of_ones_own(client, tmp_path):
    place = tmp_path / "elsewhere"
    (place / ".jobs/later").mkdir(parents=True)
    (place / ".jobs/later/job.json").write_text("{}")
    hub = open_hub_for(["job:later"], roots=[str(place)])
    board = hub.create(["job:later"])
    assert str(place) in {one["uri"] for one in client.roots()}
    assert board.refresh().condition == "waiting for data"
