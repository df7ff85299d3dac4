"""The engines of a hub: probed in parallel, and tested with a small board."""

import http.server
import json
import os
import re
import ssl
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from aboard.boards.model import BoardRecord, NoSuchName
from aboard.cli.engines import TRIAL_RUN, TRIAL_TAG, TRIAL_VALUES
from aboard.executors.base import PYTHON, Address, EngineReport, EngineSettings, ExecutorError
from aboard.hub import service
from aboard.hub.proxy import examine_address
from aboard.hub.service import Engines
from aboard.index.library import Root
from aboard.sdk import NotReady
from aboard.sdk.client import Client
from aboard.web.server import make_certificate
from tests.boards.fake_executor import PretendExecutor
from tests.hub.hubs import create, served
from tests.waiting import until

PROFILES = {"process": {"": EngineSettings(), "quiet": EngineSettings()}}


class Scripted:
    """An executor of which only the probe is used."""

    def __init__(self, probe, *profiles):
        self.profiles = {"": None, **dict.fromkeys(profiles)}
        self._probe = probe

    def probe(self, profile=""):
        return self._probe(profile)


def answer(profile):
    return EngineReport(True, version=f"1.0 {profile}".strip(), resources={"cpus": "4"})


def test_each_profile_is_probed():
    engines = Engines({"farm": Scripted(answer, "long")})
    assert engines.names == ["farm", "farm:long"]
    assert {one.name: one.report.version for one in engines.probe()} == {
        "farm": "1.0",
        "farm:long": "1.0 long",
    }


def test_a_hanging_engine_hides_no_other_and_blocks_one_thread():
    released = threading.Event()
    begun = []

    def hang(profile):
        begun.append(profile)
        released.wait(180)
        return answer(profile)

    # Long enough for the other one to answer on a busy machine.
    engines = Engines({"hung": Scripted(hang), "farm": Scripted(answer)}, seconds=3)
    try:
        for _ in range(2):
            hung, farm = engines.probe()
            assert (hung.name, hung.report.answers) == ("hung", False)
            assert hung.report.problem == "it did not answer within 3 s."
            assert farm.report.answers
        assert begun == [""]
    finally:
        released.set()
    until(lambda: engines.probe()[0].report.answers)


def test_an_engine_that_fails_reports_the_reason():
    def fail(profile):
        raise ExecutorError("the farm is closed. Open it.")

    def break_down(profile):
        raise RuntimeError("unexpected")

    engines = Engines({"farm": Scripted(fail), "mill": Scripted(break_down)})
    farm, mill = (one.report for one in engines.probe())
    assert (farm.answers, farm.problem) == (False, "the farm is closed. Open it.")
    assert (mill.answers, mill.problem) == (
        False,
        "the probe failed: RuntimeError('unexpected').",
    )


def test_the_error_of_an_unknown_engine_lists_the_known_ones():
    engines = Engines({"farm": Scripted(answer, "long")})
    for name in ("fram", "farm:short", ""):
        with pytest.raises(NoSuchName, match=r"Use one of: farm, farm:long\."):
            engines.executor(name)
    assert engines.executor("farm:long") is engines.executor("farm")


def test_engines_are_listed_for_users_who_may_start_boards(tmp_path, root):
    with served(tmp_path, [root], executors=PROFILES) as hub:
        with hub.client("max") as client:
            found = client.get("/api/v1/engines").json()["engines"]
            assert [one["name"] for one in found] == ["process", "process:quiet"]
            assert all(one["answers"] and one["version"] for one in found)
            names = client.get("/api/v1/engines", params={"probe": False}).json()["engines"]
            assert [(one["name"], one["answers"]) for one in names] == [
                ("process", None),
                ("process:quiet", None),
            ]
        with hub.client("vera") as client:
            assert client.get("/api/v1/engines").status_code == 403
            assert client.post("/api/v1/engines/process/trials").status_code == 403


def test_a_trial_shows_its_own_points_and_reports_the_readable_roots(tmp_path, root):
    missing = tmp_path / "missing"
    missing.mkdir()
    with served(tmp_path, [root], executors=PROFILES) as hub, hub.client("anna") as client:
        assert client.post("/api/v1/roots", json={"uri": str(missing)}).status_code == 201
        missing.rmdir()
        trials = "/api/v1/engines/process:quiet/trials"
        board = client.post(trials).json()
        assert (board["on"], board["owner"]) == ("process:quiet", "anna")
        ref = f"/api/v1/boards/{board['id']}"
        until(lambda: client.get(ref).json()["state"] == "running")
        seen = client.get(f"{trials}/{board['id']}").json()
        assert seen["accepted"]
        assert seen["address"].startswith("127.0.0.1:")
        assert (seen["fingerprint"], seen["status"], seen["problem"]) == ("", 401, "")
        curve = f"/b/{board['id']}/data/plugin/scalars/scalars"
        query = {"run": TRIAL_RUN, "tag": TRIAL_TAG}
        read = until(lambda: (one := client.get(curve, params=query)).status_code == 200 and one)
        assert [value for _, _, value in read.json()] == list(TRIAL_VALUES)
        log = client.get(f"{ref}/logs").text.splitlines()
        notes = [json.loads(line) for line in log if line.startswith("{")]
        assert [one for one in notes if "root" in one] == [
            {"root": str(root), "problem": ""},
            {"root": str(missing), "problem": "no such file or directory"},
        ]
        assert client.post(f"{ref}/stop").status_code == 200
        until(lambda: client.get(ref).json()["state"] == "stopped")
        assert client.delete(ref).status_code == 204
        after = client.get(f"{trials}/{board['id']}").json()
        assert (after["accepted"], after["left"]) == (False, [])


def test_a_trial_without_roots_reads_none(tmp_path, root):
    with served(tmp_path, [root]) as hub, hub.client("max") as client:
        board = client.post("/api/v1/engines/process/trials", json={"roots": False}).json()
        assert board["selectors"] == ["tag:aboard-doctor"]
        ref = f"/api/v1/boards/{board['id']}"
        client.post(f"{ref}/stop", json={"now": True})
        until(lambda: client.get(ref).json()["state"] == "stopped")


def test_a_trial_needs_an_engine_that_the_hub_has(hub):
    with hub.client("max") as client:
        refused = client.post("/api/v1/engines/slrum/trials")
        assert refused.status_code == 404
        assert refused.json()["error"]["hint"] == "Use one of: process."


def test_a_trial_reveals_nothing_about_other_boards(hub):
    with hub.client("max") as client:
        board = create(client, "mnist")["id"]
    with hub.client("mia") as client:
        assert client.get(f"/api/v1/engines/process/trials/{board}").status_code == 404


def test_a_trial_of_another_user_is_hidden(hub):
    trials = "/api/v1/engines/process/trials"
    with hub.client("max") as client:
        board = client.post(trials, json={"roots": False}).json()["id"]
        mine = client.get(f"{trials}/{board}").status_code
        with hub.client("mia") as other:
            hers = other.get(f"{trials}/{board}").status_code
        client.post(f"/api/v1/boards/{board}/stop", json={"now": True})
        until(lambda: client.get(f"/api/v1/boards/{board}").json()["state"] == "stopped")
        assert (mine, hers) == (200, 404)


@pytest.fixture
def tls_board(tmp_path):
    """Serve over TLS what answers 401 to everyone; give its port and its fingerprint."""

    class Board(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(401)

        def log_message(self, *_):
            pass

    pem, fingerprint = make_certificate()
    (tmp_path / "pem").write_text(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem")
    server = http.server.HTTPServer(("127.0.0.1", 0), Board)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1], fingerprint
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_certificate_of_a_board_is_compared(tls_board):
    port, fingerprint = tls_board
    seen = examine_address(Address("127.0.0.1", port, "/b/view/", "token", fingerprint))
    assert (seen.presented, seen.status) == (fingerprint, 401)
    other = examine_address(Address("127.0.0.1", port, "/b/view/", "token", "0" * 64))
    assert other.presented == fingerprint != other.fingerprint


def test_an_address_that_does_not_respond_is_reported(closed_port):
    seen = examine_address(Address("127.0.0.1", closed_port, "/b/view/", "token"))
    assert (seen.address, seen.status) == (f"127.0.0.1:{closed_port}", None)
    assert "refused" in seen.problem.lower()


# A hub over a scripted engine: the settings of started boards, and why boards wait.


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


def test_a_condition_on_a_place_needs_the_roots_above_it_only(tmp_path, engine):
    roots = ["s3://bucket/runs", "s3://bucket/others"]
    with served(tmp_path, [Root(one, one[-6:]) for one in roots], any_path=True) as hub:

        def roots_of(*selectors):
            record = BoardRecord(owner="max", selectors=selectors, where="run == 1", on="slurm")
            command = hub.hub._specify(hub.hub.registry.create(record).board).command
            return [after for one, after in pairwise(command) if one == "--root"]

        assert roots_of("s3://bucket/runs/exp") == roots[:1]
        assert roots_of("s3://elsewhere/runs") == []
        assert roots_of("s3://bucket/runs/exp", "cifar10") == roots


def test_an_instant_board_cannot_have_its_own_processors(tmp_path, root):
    with served(tmp_path, [root]) as hub, hub.client("max") as client:
        body = {"selectors": ["cifar10"], "on": "instant", "cpus": 2}
        error = client.post("/api/v1/boards", json=body).json()["error"]
        assert "cannot have its own processor limit" in error["message"]
