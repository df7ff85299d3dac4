"""The events of a hub: changes, their visibility, missed events and the cost of many listeners."""

import asyncio
import json
import threading
import time

from aboard import EventWriter
from aboard.hub import events as events_module
from aboard.hub.api import events as stream_module
from aboard.jobs.model import JobRecord
from aboard.jobs.store import JobStore
from aboard.runs import manifest
from aboard.runs.catalog import run_id
from aboard.runs.manifest import State
from aboard.storage import open_storage
from tests.hub.hubs import create, log_run
from tests.hub.listeners import PATH, events_of_many, put_run
from tests.waiting import until


def test_new_changed_and_deleted_runs_are_events(hub, root, listen):
    ears = listen(kind="run")
    assert ears.heard[0]["event"] == "hello"
    put_run(root, "cifar10/run7", state=State.RUNNING, heartbeat=time.time() + 1e6)
    new = ears.until("run", change="new")
    assert new["run"]["name"] == "run7"
    assert new["run"]["state"] == "running"
    assert new["id"] == new["run"]["id"] == run_id(str(root), "cifar10/run7")
    storage = open_storage(str(root / "cifar10/run7"))
    manifest.update(storage, lambda one: one.end(State.FAILED, 3))
    changed = ears.until("run", change="changed")
    assert (changed["run"]["state"], changed["run"]["exit_code"]) == ("failed", 3)
    with hub.client("anna") as client:
        path = f"/api/v1/runs/{new['id']}"
        client.patch(path, json={"tags": {"seen": True}})
        until(lambda: [one for one in ears.all("run") if one.get("run", {}).get("tags")])
        token = client.delete(path).json()["confirm"]
        assert client.delete(path, params={"confirm": token}).json()["deleted"]
    assert ears.until("run", change="gone")["id"] == new["id"]


def test_a_run_is_lost_when_its_heartbeat_stops(hub, root, listen, monkeypatch):
    monkeypatch.setattr(events_module, "_STATE_SECONDS", 0.0)
    now = time.time()
    record = {"state": State.RUNNING, "heartbeat": now, "heartbeat_secs": 3600.0}
    put_run(root, "cifar10/run7", **record)
    with hub.client("vera") as client:
        until(lambda: len(client.get("/api/v1/runs").json()["runs"]) == 4)
    listen_to = listen(kind="run")
    hub.hub.clock = lambda: now + 6 * 3600
    assert listen_to.until("run", change="changed")["run"]["state"] == "lost"


def test_many_changes_at_once_are_one_event(hub, root, listen, monkeypatch):
    monkeypatch.setattr(events_module, "_MOST_CHANGES", 3)
    ears = listen(kind="run")
    shelf = root.parent / "shelf"
    for number in range(20):
        log_run(shelf, f"run{number}", [1.0])
    shelf.rename(root / "sweep")
    until(lambda: sum(one["new"] for one in ears.all("runs")) + len(ears.all("run")) >= 20)
    assert ears.all("runs")
    assert len(ears.all("run")) <= 3


def test_board_events_are_sent_only_to_users_who_may_see_the_board(hub, listen):
    max_hears, mia_hears, anna_hears = (listen(who, kind="board") for who in ("max", "mia", "anna"))
    with hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        for ears in (max_hears, anna_hears):
            assert ears.until("board", change="new")["board"]["id"] == board
        client.patch(f"/api/v1/boards/{board}", json={"visibility": "team"})
        assert mia_hears.until("board")["board"]["visibility"] == "team"
        client.patch(f"/api/v1/boards/{board}", json={"visibility": "private"})
        gone = mia_hears.until("board", change="gone")
        assert gone["id"] == board
        assert "board" not in gone
        client.post(f"/api/v1/boards/{board}/stop")
        until(lambda: max_hears.heard[-1].get("board", {}).get("state") == "stopped")
        until(lambda: anna_hears.heard[-1].get("board", {}).get("state") == "stopped")
        other = create(client, "mnist", visibility="team")["id"]
        mia_hears.until("board", change="new", id=other)
    heard = [one for one in mia_hears.all("board") if one["id"] == board]
    assert [one["change"] for one in heard] == ["changed", "gone"]


def test_new_points_of_followed_runs_are_events_without_a_board(hub, root, listen):
    followed, other = (run_id(str(root), f"cifar10/run{n}") for n in (1, 2))
    ears = listen(follow=followed, kind="points")
    ears.until("points", runs=[followed])  # the first reading
    before = len(ears.all("points"))
    for name in ("run1", "run2"):
        with EventWriter(root / "cifar10" / name) as writer:
            writer.scalar("loss", 0.25, 9)
    until(lambda: len(ears.all("points")) > before)
    assert {run for one in ears.all("points") for run in one["runs"]} == {followed}
    assert other not in json.dumps(ears.heard)
    with hub.client("vera") as client:
        metrics = client.get(f"/api/v1/runs/{followed}/metrics").json()["metrics"]
    assert metrics[0]["last"] == 0.25


def test_point_events_of_a_path_are_sent_to_users_who_may_see_its_board(hub, root, listen):
    ears = {who: listen(who, kind="points") for who in ("max", "mia")}
    with hub.client("max") as client:
        board = create(client, root / "mnist")["id"]
        client.get(f"/b/{board}/data/runs")
        ears["max"].until("points", source=str(root / "mnist"))
    assert not ears["mia"].all("points")


def test_changed_jobs_are_events(hub, root, listen, monkeypatch):
    monkeypatch.setattr(events_module, "_JOB_SECONDS", 0.1)
    ears = listen(kind="job")
    ears.until("jobs")  # from here on changes are noticed
    record = JobRecord(
        id="sweep", root=str(root), experiment="cifar10", run="{job}", command=["true"],
        on="process", members=[{"lr": 0.1}], created=1000.0,
    )  # fmt: skip
    JobStore(str(root)).create(record)
    heard = ears.until("job", change="new")
    assert (heard["id"], heard["job"]["experiment"]) == ("sweep", "cifar10")
    (root / ".jobs/sweep/job.json").unlink()
    assert ears.until("job", change="gone")["id"] == "sweep"


def test_a_listener_that_reconnects_gets_missed_events(root, listen):
    first = listen(kind="run")
    put_run(root, "cifar10/run7")
    last = first.until("run", change="new")["cursor"]
    first.leave()
    put_run(root, "cifar10/run8")
    second = listen(kind="run", headers={"last-event-id": last})
    assert second.heard[0]["event"] == "hello"
    assert second.until("run", change="new")["run"]["name"] == "run8"
    assert [one["run"]["name"] for one in second.all("run")] == ["run8"]


def test_a_listener_that_reconnects_to_another_hub_is_reset(hub, listen):
    for last in ("deadbeef.7", "nonsense", "9"):
        ears = listen(headers={"last-event-id": last})
        assert [one["event"] for one in ears.heard[:1]] == ["reset"]


def test_a_slow_listener_is_reset(hub, root, listen, monkeypatch):
    ears = listen(kind="run")
    last = ears.heard[0]["cursor"]
    monkeypatch.setattr(events_module, "_MOST_EVENTS", 2)
    for number in range(5):
        put_run(root, f"cifar10/late{number}")
        ears.until("run", change="new", id=run_id(str(root), f"cifar10/late{number}"))
    assert len(hub.hub.events._ring) == 2
    late = listen(kind="run", headers={"last-event-id": last})
    assert late.heard[0]["event"] == "reset"


def test_everything_is_listed_again_after_a_failed_scan(hub, root, listen, monkeypatch):
    ears = listen(kind=["run", "board"])
    failed = threading.Event()
    boards = events_module._Scan._of_boards

    def fail_once(self):
        if len(self._hub.library.runs()) < 4 or failed.is_set():
            return boards(self)
        failed.set()
        raise OSError("disk I/O error")

    monkeypatch.setattr(events_module._Scan, "_of_boards", fail_once)
    put_run(root, "cifar10/run7")
    ears.until("reset")
    assert failed.is_set()
    put_run(root, "cifar10/run8")
    assert ears.until("run", change="new", id=run_id(str(root), "cifar10/run8"))


async def open_stream(hub, who):
    port = int(hub.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    secret = f"authorization: Bearer {hub.tokens[who]}\r\n"
    writer.write(f"GET {PATH}?kind=run HTTP/1.1\r\nhost: hub\r\n{secret}\r\n".encode())
    return reader, writer


def test_hundreds_of_listeners_share_one_poll_and_can_leave_at_any_time(hub, root, monkeypatch):
    """Of 250 real connections 100 leave; the others hear the same, from one look each."""
    monkeypatch.setattr(events_module, "MOST_OF_USER", 250)
    looks = []
    find = events_module._Scan._changed_runs

    def counted(self):
        looks.append(self)
        return find(self)

    async def everyone():
        streams = []
        for _ in range(250):  # one after the other: of one user, few requests may wait
            streams.append(await open_stream(hub, "vera"))
            hello = streams[-1][0].readuntil(b"event: hello\ndata: {}\n\n")
            await asyncio.wait_for(hello, 120)
        for _, writer in streams[:100]:
            writer.transport.abort()
        await asyncio.to_thread(until, lambda: len(hub.hub.events._listeners) == 150)
        await asyncio.to_thread(put_run, root, "cifar10/run7")
        heard = []
        for reader, _ in streams[100:]:
            await asyncio.wait_for(reader.readuntil(b"event: run\n"), 120)
            heard.append(await asyncio.wait_for(reader.readuntil(b"\n\n"), 120))
        for _, writer in streams[100:]:
            writer.transport.abort()
        await asyncio.to_thread(until, lambda: not hub.hub.events._listeners)
        return heard

    events_module._Scan._changed_runs = counted
    try:
        heard = asyncio.run(everyone())
    finally:
        events_module._Scan._changed_runs = find
    assert len(set(heard)) == 1
    assert b"run7" in heard[0]
    assert len(set(map(id, looks))) == 1
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("aboard-events") == 1


def test_listeners_are_limited(hub, listen, monkeypatch):
    monkeypatch.setattr(events_module, "MOST_LISTENERS", 1)
    listen()
    with hub.client("vera") as client:
        refused = client.get(PATH, params={"seconds": 0})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")


def test_the_listeners_of_one_user_are_limited(hub, listen, monkeypatch):
    monkeypatch.setattr(events_module, "MOST_OF_USER", 2)
    first, _ = listen("max"), listen("max")
    with hub.client("max") as client:
        refused = client.get(PATH, params={"seconds": 0})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
        assert refused.json()["error"]["message"] == "2 of your clients already listen."
        listen("vera")
        first.leave()
        events_of_many(hub, 1)  # it leaves when it hears something
        until(lambda: client.get(PATH, params={"seconds": 0}).status_code == 200)


def test_polling_stops_with_the_last_listener_and_starts_again_with_the_next(
    hub, listen, monkeypatch
):
    monkeypatch.setattr(events_module, "_LINGER_SECONDS", 0.1)
    monkeypatch.setattr(stream_module, "_HEARTBEAT_SECONDS", 0.1)
    ears = listen(kind="board")
    last = ears.heard[0]["cursor"]
    ears.leave()
    until(lambda: hub.hub.events._thread is None)
    assert listen(headers={"last-event-id": last}).heard[0]["event"] == "reset"
