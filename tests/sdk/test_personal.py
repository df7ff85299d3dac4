"""The user's own hub: of several starts at once, one starts it and the others find it."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from aboard.sdk.personal import (
    find_hub,
    last_hub,
    remember_personal,
    start_personal,
    state_directory,
    stop_personal,
)
from tests.engines.command import forked_hubs
from tests.engines.ports import free_port


def test_starts_at_once_give_one_hub_with_one_log(root):
    try:
        with ThreadPoolExecutor(3) as pool:
            hubs = list(pool.map(lambda _: start_personal([str(root)]), range(3)))
    finally:
        stopped = stop_personal()
    assert len({(hub.url, hub.pid) for hub in hubs}) == 1
    assert stopped is not None
    assert stopped.pid == hubs[0].pid
    assert not (state_directory() / "hub.log.old").exists()
    assert "already running" not in (state_directory() / "hub.log").read_text()


def test_the_port_of_boards_is_remembered_beside_that_of_the_hub(root):
    state_directory().mkdir(parents=True, exist_ok=True)  # other tests take the usual ports
    (state_directory() / "last-hub.json").write_text(json.dumps({"port": free_port()}))
    with forked_hubs():
        first = start_personal([str(root)])
        remember_personal(state_directory(), [str(root)])  # as for a root that is added
        stop_personal()
        last = last_hub()
        again = start_personal()
        assert find_hub(again.url).boards_port == again.boards_port
        stop_personal()
        assert last is not None
        assert (last.port, last.boards_port) == (urlsplit(first.url).port, first.boards_port)
        assert (again.url, again.boards_port) == (first.url, first.boards_port)
        told = []
        with socket.create_server(("127.0.0.1", first.boards_port)):
            moved = start_personal(notify=told.append)
        stop_personal()
    assert moved.url == first.url
    assert moved.boards_port not in {first.boards_port, None}
    now = f"http://localhost:{moved.boards_port}"
    assert told[0] == f"port {first.boards_port} is taken, so boards are at {now} now."


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_port_that_is_taken_on_the_other_address_of_localhost_is_not_used(root):
    port = free_port()
    state_directory().mkdir(parents=True, exist_ok=True)
    (state_directory() / "last-hub.json").write_text(json.dumps({"port": port}))
    told = []
    with forked_hubs(), socket.create_server(("::1", port), family=socket.AF_INET6):
        moved = start_personal([str(root)], notify=told.append)
        stop_personal()
    assert urlsplit(moved.url).port != port
    assert told[0] == f"port {port} is taken, so your hub is at {moved.url} now."
