"""The user's own hub: of several starts at once, one starts it and the others find it."""

from concurrent.futures import ThreadPoolExecutor

from aboard.sdk.personal import start_personal, state_directory, stop_personal


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
    assert "runs already" not in (state_directory() / "hub.log").read_text()
