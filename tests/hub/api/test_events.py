"""The change stream over HTTP: its end, keepalives, permissions and slow clients."""

import socket

from aboard.boards.accounts import Role
from aboard.hub.api import events as stream_module
from aboard.runs.catalog import run_id
from tests.hub.hubs import create, served
from tests.hub.listeners import PATH, Ears, events_of_many
from tests.waiting import until


def test_a_stream_ends_after_its_time_and_without_waiting_for_events(hub):
    with hub.client("vera") as client:
        answer = client.get(PATH, params={"seconds": 0})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.startswith("retry: 2000\n\n")
        assert "event: hello" in answer.text
        assert client.get(PATH, params={"seconds": 0.3}).text.count("event: hello") == 1
        wrong = client.get(PATH, params={"kind": "nothing"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (422, "invalid")
        missing = client.get(PATH, params={"follow": "00000000:x"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


def test_a_followed_run_that_is_gone_does_not_end_the_stream_of_others(hub, root, listen):
    followed = run_id(str(root), "cifar10/run1")
    ears = listen(follow=[followed, run_id(str(root), "cifar10/run99")], kind="points")
    ears.until("points", runs=[followed])


def test_keepalives_are_sent_without_events(listen, monkeypatch):
    monkeypatch.setattr(stream_module, "_HEARTBEAT_SECONDS", 0.1)
    ears = listen(kind="board")
    before = ears.comments
    until(lambda: ears.comments > before + 2)


def test_the_stream_needs_a_secret_and_accepts_a_session(hub):
    with hub.client() as client:
        assert client.get(PATH, params={"seconds": 0}).status_code == 401
    key, _ = hub.hub.auth.mint_key(hub.hub.auth.user("vera"))
    with hub.client() as client:
        client.get("/", params={"key": key})
        assert client.get(PATH, params={"seconds": 0}).status_code == 200


def test_a_stream_ends_when_rights_change_and_the_next_needs_them(hub, listen):
    ears = listen("mia", kind="board")
    hub.hub.auth.set_role("mia", Role.VIEWER)
    with hub.client("max") as client:
        create(client, "cifar10", visibility="team")
    assert ears.ended.wait(180)
    assert not ears.all("board")
    token = hub.hub.auth.tokens(hub.hub.auth.user("mia"))[0]
    hub.hub.auth.revoke_token(hub.hub.auth.user("anna"), token.id)
    with hub.client("mia") as client:
        assert client.get(PATH, params={"seconds": 0}).status_code == 401


def test_a_client_that_does_not_read_is_dropped_and_blocks_no_other(hub, root, listen, monkeypatch):
    monkeypatch.setattr(stream_module, "_SLOW_SECONDS", 0.5)
    port = int(hub.url.rpartition(":")[2])
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect(("127.0.0.1", port))
    secret = f"authorization: Bearer {hub.tokens['vera']}\r\n"
    deaf.sendall(f"GET {PATH}?kind=run HTTP/1.1\r\nhost: hub\r\n{secret}\r\n".encode())
    until(lambda: len(hub.hub.events._listeners) == 1)
    ears = listen(kind="run")

    def dropped():
        heard = len(ears.heard)
        events_of_many(hub, 100)
        until(lambda: len(ears.heard) > heard)
        return len(hub.hub.events._listeners) == 1

    until(dropped)
    deaf.close()


def test_streams_end_with_the_server(tmp_path, root):
    with served(tmp_path / "other", [root]) as hub:
        client = hub.client("vera")
        ears = Ears(client, {}, {})
        assert ears.ready.wait(180)
    assert ears.ended.wait(180)
    client.close()
