"""A real hub under a hundred sick requests, through a shared link: it answers, and it ends."""

import json
import re
import select
import signal
import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

from aboard import EventWriter
from aboard.events import encode
from aboard.system import children, find_process
from tests import summaries
from tests.hostile.generate import VICTIM
from tests.hub.hubs import create, personal_hub
from tests.waiting import until

PATIENT = """
from functools import partial
from aboard.tensorboard import app
app.WorkerPool = partial(app.WorkerPool, deadline=3600.0)
"""
GROUPS = "data/plugin/hparams/session_groups"


def log(root):
    with EventWriter(root / "sick" / "run1") as writer:
        start = encode.hparams_start({"name": VICTIM}, group="g", start_time=1.0)
        writer.add([start, summaries.hparams_end(1, 2.0)], 0)
    with EventWriter(root / "well" / "run1") as writer:
        writer.scalar("loss", 1.0, 0)


def request(port, path, cookie, body):
    sent = json.dumps(body)
    connection = socket.create_connection(("127.0.0.1", port))
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n"
    connection.sendall(f"{head}Content-Length: {len(sent)}\r\n\r\n{sent}".encode())
    return connection


def test_a_hundred_sick_requests_stop_neither_the_hub_nor_its_end(tmp_path, monkeypatch):
    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "root"
    log(root)
    with (
        personal_hub(tmp_path, root, first=PATIENT) as hub,
        hub.client() as client,
        ExitStack() as closing,
    ):
        sick, well = (create(client, name)["id"] for name in ("sick", "well"))
        shared = client.post(f"/api/v1/boards/{sick}/shares", json={"for": "1h"}).json()["url"]
        guest = {"authorization": ""}
        at_boards = client.get(urlsplit(shared).path, headers=guest).headers["location"]
        entered = client.get(at_boards, headers=guest)
        port = urlsplit(at_boards).port
        cookie = re.match("[^;]+", entered.headers["set-cookie"])[0]
        assert client.get(f"/b/{well}/data/plugins_listing").status_code == 200
        (server,) = children(hub.process.pid)
        connections = []
        for number in range(100):
            regexp = f"(a|a)*$|{number}"
            body = {
                "sliceSize": 10,
                "allowedStatuses": ["STATUS_SUCCESS"],
                "colParams": [{"hparam": "name", "filterRegexp": regexp}],
            }
            sent = request(port, f"/b/{sick}/{GROUPS}", cookie, body)
            connections.append(closing.enter_context(sent))
        until(lambda: len(children(server)) >= 2)
        for path in ("/healthz", f"/b/{well}/data/runs", f"/b/{well}/data/plugins_listing"):
            assert client.get(path).status_code == 200
        answered = select.select(connections, [], [], 0)[0]
        assert len(answered) < 40  # which could not wait; the others do
        assert all(b"HTTP/1.1 503" in one.recv(20) for one in answered)
        workers = children(server)
        hub.process.send_signal(signal.SIGTERM)
        assert hub.process.wait(180) == 0  # although none of them has come to its deadline
        until(lambda: not any(is_alive(pid) for pid in (server, *workers)))


def is_alive(pid):
    found = find_process(pid)
    return found is not None and found.is_alive
