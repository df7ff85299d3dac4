"""The change stream from Python, on a real hub."""

import asyncio
from contextlib import aclosing, closing

import pytest

import aboard
from aboard.runs.catalog import run_id
from tests.engines.real_hub import log_run


def put_run(root, label):
    shelf = root.parent / f"{root.name}-shelf"
    log_run(shelf, label, [1.0])
    (root / label).parent.mkdir(parents=True, exist_ok=True)
    (shelf / label).rename(root / label)


def test_events_come_as_they_happen_and_go_on_after_the_last(client, root):
    with closing(client.events(["run"])) as events:
        assert next(events)["event"] == "hello"
        put_run(root, "news/run1")
        new = next(events)
    assert (new["event"], new["change"], new["id"]) == (
        "run",
        "new",
        run_id(str(root), "news/run1"),
    )
    put_run(root, "news/run2")
    with closing(client.events(["run"], last=new["cursor"])) as events:
        heard = [next(events) for _ in range(2)]
    assert [one["event"] for one in heard] == ["hello", "run"]
    assert heard[1]["run"]["name"] == "run2"


def test_runs_are_followed_by_selector(client, root):
    with closing(client.events(["points"], follow=["cifar10/run2"])) as events:
        points = next(one for one in events if one["event"] == "points")
    assert points["runs"] == [run_id(str(root), "cifar10/run2")]


def test_what_is_wrong_with_the_request_is_raised(client):
    with pytest.raises(aboard.HubError, match="kind"):
        next(client.events(["weather"]))


def test_events_in_an_event_loop(client, root):
    async def first():
        async with aclosing(aboard.AsyncClient(client).events(["run"])) as events:
            assert (await anext(events))["event"] == "hello"
            await asyncio.to_thread(put_run, root, "news/run3")
            return await anext(events)

    assert asyncio.run(first())["run"]["name"] == "run3"
