"""A hub over a scripted engine: the settings of started boards, and why boards wait."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aboard.boards.model import BoardRecord
from aboard.executors.base import PYTHON
from aboard.hub import service
from aboard.index.library import Root
from aboard.sdk import NotReady
from aboard.sdk.client import Client
from tests.boards.pretending import PretendExecutor
from tests.hub.hubs import create, served
from tests.waiting import until

PAGE = {"accept": "text/html"}


class Engine(PretendExecutor):
    is_open = True

    def close(self):
        self.is_open = False

    def logs(self, handle, *, tail=None, follow=False):
        yield b"first\nscanning <the index>\n"


@pytest.fixture
def engine(tmp_path, monkeypatch):
    made = Engine(tmp_path / "hub" / "boards", "slurm", ("long",))
    monkeypatch.setattr(service, "make_executors", lambda *_, **__: {"slurm": made})
    return made


def described(client, board):
    return client.get(f"/api/v1/boards/{board}").json()


def test_a_waiting_board_shows_the_reason_everywhere(tmp_path, root, engine):
    with served(tmp_path, [root]) as hub, hub.client("max") as client, hub.client() as guest:
        board = create(client, "cifar10", on="slurm:long")["id"]
        until(lambda: hub.hub.registry.get(board).handle)
        engine.waits(board, "Resources <none free>")
        until(lambda: described(client, board)["reason"] == "Resources <none free>")
        (listed,) = client.get("/api/v1/boards").json()["boards"]
        assert (listed["state"], listed["reason"]) == ("starting", "Resources <none free>")
        page = client.get(f"/b/{board}/", headers=PAGE)
        assert page.status_code == 503
        assert "Resources &lt;none free&gt;." in page.text
        assert "<pre>first\nscanning &lt;the index&gt;</pre>" in page.text
        assert 'http-equiv="refresh"' in page.text
        # Who may not read the log sees the reason alone.
        link = client.post(f"/api/v1/boards/{board}/shares", json={}).json()["url"]
        guest.get(re.sub("^https?://[^/]+", "", link))
        shared = guest.get(f"/b/{board}/", headers=PAGE)
        assert "Resources &lt;none free&gt;." in shared.text
        assert "scanning" not in shared.text
        engine.is_ready(board)
        until(lambda: described(client, board)["state"] == "running")
        assert described(client, board)["reason"] == ""


def test_a_stop_reports_an_unresponsive_engine_and_continues(tmp_path, root, engine):
    with served(tmp_path, [root]) as hub, hub.client("max") as client:
        board = create(client, "cifar10", on="slurm", name="otter")["id"]
        until(lambda: hub.hub.registry.get(board).handle)
        engine.is_deaf = True
        said = "stopped by max; not yet: slurm does not answer: no such socket"
        said += "; it stops when slurm answers"
        sdk = Client(hub.url, hub.tokens["max"])
        with pytest.raises(NotReady, match=r"^board otter is still stopping after 0 s"):
            sdk.stop(board, seconds=0)
        until(lambda: described(client, board)["reason"] == said)
        with subprocess.Popen(
            [sys.executable, "-m", "aboard", "stop", "otter"],
            env={**os.environ, "ABOARD_HUB": hub.url, "ABOARD_HUB_TOKEN": hub.tokens["max"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            line = process.stderr.readline()
            assert line == f"aboard: board otter is stopping ({said}); waiting until it stops.\n"
            assert described(client, board)["state"] == "stopping"
            engine.is_deaf = False
            out, _ = process.communicate(timeout=180)
        assert (process.returncode, out) == (0, f"stopped otter ({board}): stopped by max\n")


def test_the_log_of_a_stopped_board_is_read_where_its_stop_was_seen(tmp_path, root, engine):
    with served(tmp_path, [root]) as hub, hub.client("max") as client:
        board = create(client, "cifar10", on="slurm", name="otter")["id"]
        until(lambda: hub.hub.registry.get(board).handle)
        engine.dies(board, 1, "out of luck")
        until(lambda: described(client, board)["state"] == "failed")
        logs = client.get(f"/api/v1/boards/{board}/logs")
        assert (logs.status_code, logs.text) == (200, "first\nscanning <the index>\n")
        ended = hub.hub.registry.get(board)
        assert ended.handle["log_host"] == os.uname().nodename
        # As another hub of the same database has stored it.
        elsewhere = {**ended.handle, "directory": "/var/hub/boards/x", "log_host": "node7"}
        hub.hub.registry.update(ended, handle=elsewhere)
        refused = client.get(f"/api/v1/boards/{board}/logs")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
        said = f"the log of board otter ({board}) is on node7, in /var/hub/boards/x/log."
        assert refused.json()["error"]["message"] == said


def test_a_hub_that_stops_closes_its_executors(tmp_path, root, engine):
    with served(tmp_path, [root]):
        assert engine.is_open
    assert not engine.is_open


def test_a_start_names_what_the_board_needs_and_no_more(tmp_path, root, engine, environment):
    home, other = tmp_path / "home", tmp_path / "other"
    (home / ".aws").mkdir(parents=True)
    (home / ".azure").mkdir()
    other.mkdir()
    environment.setenv("HOME", str(home))
    roots = [Root(str(root), "logs"), Root(str(other), "other")]
    with served(tmp_path, roots) as hub, hub.client("max") as client:
        limits = {"memory": "1GiB", "cpus": 1.5, "timeout": "1h"}
        board = create(client, root / "cifar10", on="slurm:long", **limits)
        assert board["cpus"] == 1.5
        until(lambda: engine.specs)
        (spec,) = engine.specs
        assert spec.command[:5] == (PYTHON, "-P", "-m", "aboard", "view")
        assert "--port" not in spec.command
        assert (spec.board, spec.attempt, spec.profile) == (board["id"], 1, "long")
        assert (spec.memory, spec.cpus, spec.timeout) == (1 << 30, 1.5, 3660.0)
        assert spec.reads == (Path(root),)
        assert spec.credential_files == ()


def test_a_link_out_of_the_root_mounts_nothing_on_the_engine(tmp_path, root, engine):
    secrets, link = tmp_path / "secrets", tmp_path / "link"
    secrets.mkdir()
    link.symlink_to(root)
    (root / "escape").symlink_to(secrets)
    with served(tmp_path, [link]) as hub:
        places = [str(link / "cifar10"), str(link / "escape"), str(secrets)]
        assert set(hub.hub._local_places(places)) == {root, link}
    with served(tmp_path / "other", any_path=True) as hub:
        assert hub.hub._local_places([str(secrets)]) == (secrets,)


def test_a_board_of_a_bucket_gets_the_files_of_its_cloud(tmp_path, engine, environment):
    home = tmp_path / "home"
    for name in (".aws", ".azure"):
        (home / name).mkdir(parents=True)
    environment.setenv("HOME", str(home))
    with served(tmp_path, any_path=True) as hub:
        record = hub.hub.registry.create(
            BoardRecord(owner="max", selectors=("s3://bucket/runs",), on="slurm")
        ).board
        spec = hub.hub._specify(record)
        assert spec.credential_files == (home / ".aws",)
        assert spec.reads == ()


def test_an_instant_board_cannot_have_its_own_processors(tmp_path, root):
    with served(tmp_path, [root]) as hub, hub.client("max") as client:
        body = {"selectors": ["cifar10"], "on": "instant", "cpus": 2}
        error = client.post("/api/v1/boards", json=body).json()["error"]
        assert "cannot have its own processor limit" in error["message"]
