"""Fixtures: a hub over a root with a few runs, and a proxy with replaceable boards."""

import pytest

from tests.hub.fronts import Scripted, fronting, streaming_board
from tests.hub.hubs import add_job, log_run, served
from tests.hub.listeners import Ears


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "logs"
    log_run(root, "cifar10/run1", [1.0, 0.5], job="7", hparams={"lr": 0.1}, workspace="ws1")
    log_run(root, "cifar10/run2", [2.0, 1.5], job="8", hparams={"lr": 0.01}, workspace="ws1")
    log_run(root, "mnist/run1", [3.0])
    return root


@pytest.fixture
def hub(tmp_path, root):
    with served(tmp_path, [root]) as found:
        yield found


@pytest.fixture
def front():
    with fronting() as front:
        yield front


@pytest.fixture
def scripted(front):
    """Return a function that puts a board behind the proxy, given its response or a handler."""
    made = []

    def scripted(answer):
        made.append(Scripted(answer))
        front.boards["one"] = made[-1].address
        return made[-1]

    yield scripted
    for one in made:
        one.close()


@pytest.fixture
def board_of(front):
    """Return a function that puts an aiohttp application behind the proxy."""
    stops = []

    def board_of(*routes):
        front.boards["one"], stop = streaming_board(routes)
        stops.append(stop)

    yield board_of
    for stop in stops:
        stop()


@pytest.fixture
def jobs(root):
    add_job(root, "first", "completed", "failed", "completed", at=1000.0)
    add_job(root, "second", "completed", at=2000.0, experiment="mnist")
    add_job(root, "third", "completed", at=3000.0, user="linus")


@pytest.fixture
def listen(hub):
    clients = []

    def listen(who="vera", headers=None, **params):
        client = hub.client(who)
        clients.append(client)
        ears = Ears(client, params, headers or {})
        assert ears.ready.wait(180)
        return ears

    yield listen
    for client in clients:
        client.close()
