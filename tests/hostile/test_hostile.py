"""Patterns, texts, sizes and clients that leave, at every route: others are not held up.

What is asked is generated (see `generate`), with a seed of its own in every round of `make soak`.
"""

import asyncio
import json
import os
import random
from contextlib import ExitStack
from contextvars import ContextVar

import httpx
import pytest

from aboard import EventWriter
from aboard.events import encode
from aboard.index.library import Library, Member
from aboard.system import find_process
from aboard.tensorboard import app as tensorboard_app
from aboard.tensorboard.app import make_app
from aboard.tensorboard.board import Board
from aboard.tensorboard.provider import Boards
from aboard.tensorboard.routes import MOST_ENTRIES
from aboard.tensorboard.workers import WorkerPool
from aboard.web import listen
from tests import summaries
from tests.hostile import generate
from tests.hostile.generate import VICTIM
from tests.tensorboard.every_kind import write_every_kind
from tests.waiting import until_async
from tests.web.serving import serving

SERIES = "data/plugin/timeseries/timeSeries"
TEXT = "data/plugin/text/text"
TEXT_SIZE = 60_000
GROWTH = 200 << 20
"""How much the process may grow in a test: each request alone may have megabytes."""

deadline: ContextVar[float] = ContextVar("deadline", default=60.0)


class Hasty(WorkerPool):
    """Workers with a deadline of its own for each request, so that a test need not wait."""

    _deadline = property(lambda self: deadline.get(), lambda self, _: None)


def log_hostile(root):
    texts = generate.texts(TEXT_SIZE)
    with EventWriter(root / "run") as writer:
        for name, text in texts.items():
            writer.add([encode.text(f"text/{name}", text)], 0)
        writer.scalar(VICTIM, 1.0, 0)
        start = encode.hparams_start({"name": VICTIM, VICTIM: 1.0}, group=VICTIM, start_time=1.0)
        writer.add([start, summaries.hparams_end(1, 2.0)], 0)
    described = summaries.metadata("scalars", description=texts["bracket"])
    with EventWriter(root / "described") as writer:
        writer.add([encode.scalar_tensor("loss", 1.0, "float32")._replace(metadata=described)], 0)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    log_hostile(root / "sick")
    write_every_kind(root / "sick" / "every kind")
    with EventWriter(root / "well" / "run") as writer:
        writer.scalar("loss", 1.0, 0)
        writer.add([encode.text("note", "**well**")], 0)
    return root


@pytest.fixture
def boards(logs, index):
    """Two boards of hostile logs, as many as take all workers they may, and a good one."""
    found = Boards(Library(index))
    places = {"sick": "sick", "described": "sick/described", "well": "well"}
    for name, place in places.items():
        member = Member.parse(str(logs / place))
        index.refresh(member.source)
        found.add(Board(name, name, (member,)))
    return found


class Hub:
    """An application under attack, and a client that is none of the attackers."""

    def __init__(self, app):
        transport = httpx.ASGITransport(app)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://aboard")

    async def send(self, path, board="sick", seconds=0.3, **request):
        deadline.set(seconds)
        method = "POST" if {"json", "data", "content"} & request.keys() else "GET"
        return await self._client.request(method, f"/b/{board}/{path}", timeout=120, **request)

    async def is_well(self):
        found = [
            await self.send("data/runs", "well", 60),
            await self.send(SERIES, "well", 60, data={"requests": scalars("loss")}),
            await self.send(TEXT, "well", 60, params={"run": "run", "tag": "note"}),
            await self.send("data/plugins_listing", "well", 60),
        ]
        return [response.status_code for response in found] == [200] * 4

    async def attack(self, requests):
        """Send requests at once, and see that others are answered meanwhile; return responses."""
        tasks = [asyncio.create_task(self.send(**request)) for request in requests]
        visits = 0
        while not all(task.done() for task in tasks):
            assert await self.is_well()
            visits += 1
        assert visits > 0
        found = [task.result() for task in tasks]
        for request, response in zip(requests, found, strict=True):
            check(request, response)
        return found

    async def __aenter__(self):
        await self.is_well()  # so that workers are there
        return self

    async def __aexit__(self, *_):
        await self._client.aclose()


def check(request, response):
    """See that a response is one, or says clearly why there is none."""
    status = response.status_code
    assert status < 500 or status in {503, 504}, (request["path"], status, response.text[:500])
    if status >= 500:
        error = response.json()["error"]
        assert error["code"] in {"too_slow", "busy", "worker_ended"}
        assert request["path"] in error["message"] or error["code"] == "busy"
        assert error["hint"]
        assert int(response.headers["retry-after"]) > 0


def scalars(*tags):
    return json.dumps([{"plugin": "scalars", "tag": tag} for tag in tags])


@pytest.fixture
def attacked(boards, monkeypatch):
    """Run a test of an application: `attacked(test)`."""

    def run(test):
        async def whole():
            with ExitStack() as closing:
                pool = Hasty(boards, {}, workers=4)
                monkeypatch.setattr(tensorboard_app, "WorkerPool", lambda *_: pool)
                app = make_app(boards, closing=closing)
                async with Hub(app) as hub:
                    before = resident()
                    await test(hub)
                    assert resident() - before < GROWTH
                    assert pool.size <= 4

        asyncio.run(whole())

    return run


def resident():
    return find_process(os.getpid()).resident


@pytest.mark.soak
def test_patterns_of_requests(attacked, rounds):
    """Wherever a pattern can be: a filter of hyperparameters, and any argument of any route."""

    async def test(hub):
        slow = 0
        for number in rounds(1):
            chance = random.Random(number)
            some = chance.sample(generate.patterns(), 6)
            filters = [
                {
                    "path": "data/plugin/hparams/session_groups",
                    "json": {
                        "sliceSize": 10,
                        "allowedStatuses": ["STATUS_SUCCESS"],
                        "colParams": [{"hparam": "name", "filterRegexp": f"(?i){pattern}"}],
                    },
                }
                for pattern in some[:3]
            ]
            tags = [
                {
                    "path": "data/plugin/custom_scalars/scalars",
                    "params": {"tag": pattern, "run": "run"},
                }
                for pattern in some[3:]
            ]
            found = await hub.attack([*filters, *tags])
            slow += sum(response.status_code == 504 for response in found)
        assert slow > 0

    attacked(test)


@pytest.mark.soak
def test_texts_that_are_hard_to_convert(attacked, rounds):
    async def test(hub):
        slow = 0
        for number in rounds(1):
            chance = random.Random(number)
            names = list(generate.texts(TEXT_SIZE))
            some = ["bracket", *chance.sample(names, 3 if number == 0 else len(names))]
            requests = [
                {
                    "path": "data/plugin/text/text",
                    "params": {
                        "run": "run",
                        "tag": f"text/{name}",
                        "markdown": "true",
                        "x": number,
                    },
                }
                for name in some
            ]
            # The descriptions of scalars are converted for routes of ours.
            requests += [
                {"path": f"data/plugin/{name}/tags", "board": "described", "params": {"x": number}}
                for name in ("timeseries", "scalars")
            ]
            found = await hub.attack(requests)
            slow += sum(response.status_code == 504 for response in found)
        assert slow >= 3

    attacked(test)


@pytest.mark.soak
def test_odd_values_at_every_route(attacked, boards, rounds):
    paths = generate.routes(boards)
    names = generate.parameters()
    runs = ["run", "every kind", "every kind/sweep/first"]
    tags = [VICTIM, "loss", "pictures", "note", "weights", "sound", "curve", "shape"]

    def arguments(chance):
        some = chance.sample(names, 8)  # a URL has 64 kB at most
        found = {name: chance.choice(generate.values(chance)) for name in some}
        for name, known in (("run", runs), ("tag", tags)):
            if chance.random() < 0.7:  # so that a plugin gets past its first look
                found[name] = chance.choice(known)
        return found

    async def test(hub):
        for number in rounds(1):
            chance = random.Random(number)
            requests = []
            for path in paths:
                requests.append({"path": path, "params": arguments(chance)})
                body = chance.choice(generate.documents(chance, runs, tags))
                if "hparams" in path or chance.random() < 0.2:
                    requests.append({"path": path, "json": body})
                if chance.random() < 0.2:
                    requests.append({"path": path, "data": arguments(chance)})
            chance.shuffle(requests)
            for start in range(0, len(requests), 40):
                await hub.attack(requests[start : start + 40])

    attacked(test)


@pytest.mark.parametrize(
    ("entries", "status"), [(MOST_ENTRIES, 200), (MOST_ENTRIES + 1, 413), (10_000, 413)]
)
def test_requests_for_many_series(attacked, entries, status):
    async def test(hub):
        body = scalars(*(["loss"] * entries))
        (found,) = await hub.attack([{"path": SERIES, "data": {"requests": body}}])
        assert found.status_code == status
        if status == 413:
            text = f"'requests' has {entries:,} entries: at most 2,000 are allowed."
            assert found.text == f"Invalid argument: {text} Send several requests"
        else:
            assert len(found.json()) == entries

    attacked(test)


@pytest.mark.parametrize("value", ["[]", "{}", "1", "[[[]]]", '{"plugin":"scalars","tag":"loss"}'])
def test_series_with_too_many_values(attacked, value):
    """They are refused before they are parsed, which nothing can interrupt."""

    async def test(hub):
        many = ",".join([value] * 50_000)
        bodies = [f"[{many}]", f'[{{"plugin":"scalars","tag":[{many}]}}]']
        requests = [{"path": SERIES, "data": {"requests": body}} for body in bodies]
        text = "'requests' has too many values: at most 2,000 entries are allowed."
        text += " Send several requests"
        for found in await hub.attack(requests):
            assert (found.status_code, found.text) == (413, f"Invalid argument: {text}")

    attacked(test)


def test_series_with_too_much_text(attacked):
    async def test(hub):
        body = json.dumps([{"plugin": "scalars", "tag": "x" * (9 << 20)}])
        (found,) = await hub.attack([{"path": SERIES, "data": {"requests": body}}])
        assert (found.status_code, found.text) == (
            413,
            "Invalid argument: 'requests' is longer than 8 MB. Send several",
        )

    attacked(test)


def test_clients_that_leave_end_their_work(boards, monkeypatch):
    """Real connections: a hundred clients ask for what takes for ever, and leave."""
    pattern = {"colParams": [{"hparam": "name", "filterRegexp": "(a|a)*$"}]}
    body = json.dumps({"sliceSize": 10, "allowedStatuses": ["STATUS_SUCCESS"], **pattern})
    path = "/b/sick/data/plugin/hparams/session_groups"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"

    async def leave(port):
        connections = []
        for number in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            other = f"{number:02}".join(["(a|a)*$|", ""])
            sent = f"{head}{body}".replace("(a|a)*$", other[: len("(a|a)*$")])
            writer.write(sent.encode())
            connections.append(writer)
        await until_async(lambda: len(pool._busy) >= 2)
        for writer in connections:
            writer.transport.abort()
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False
        ) as client:
            while pool._busy or pool._turns._waiting:
                assert (await client.get("/b/well/data/runs")).status_code == 200
            listing = await client.get("/b/sick/data/plugins_listing", timeout=180)
            assert listing.status_code == 200

    with ExitStack() as closing:
        pool = WorkerPool(boards, {}, workers=4, deadline=600)
        monkeypatch.setattr(tensorboard_app, "WorkerPool", lambda *_: pool)
        app = make_app(boards, closing=closing)
        sockets = listen("127.0.0.1", 0)
        closing.enter_context(serving(app, sockets))
        asyncio.run(leave(sockets[0].getsockname()[1]))
