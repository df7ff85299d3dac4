"""Hubs for tests: one in this process for the responses of routes, and real ones as processes."""

import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import httpx

from aboard import EventWriter
from aboard.boards.accounts import Role
from aboard.hub.app import make_app
from aboard.hub.config import Config
from aboard.hub.service import Hub
from aboard.index.library import Root
from aboard.web import listen
from tests.engines.command import fork_command
from tests.web.serving import serving

PASSWORD = "a-long-password"
BODIES = {
    ("POST", "/api/v1/boards"): {"selectors": ["cifar10"]},
    ("PATCH", "/api/v1/boards/{ref}"): {"title": "x"},  # well-formed but invalid
    ("POST", "/api/v1/boards/{ref}/selection"): {},
    ("POST", "/api/v1/jobs"): {"command": ["true"], "workdir": "relative"},  # also invalid
    ("PATCH", "/api/v1/runs/{run}"): {},
    ("POST", "/api/v1/roots"): {"uri": "relative"},  # also invalid
    ("POST", "/api/v1/series"): {"selectors": ["cifar10"], "tags": ["loss"]},
    ("PUT", "/api/v1/views"): {"name": "mine", "query": ""},
    ("POST", "/api/v1/users"): {"name": "new"},
    ("PATCH", "/api/v1/users/{name}"): {"role": "viewer"},
    ("PUT", "/api/v1/users/{name}/password"): {"password": "x"},
    ("POST", "/api/v1/login"): {"user": "nobody", "password": "x"},
}
# Options of a client; reading the certificates of this machine would take 30 ms.
QUICK = {"timeout": 180, "trust_env": False, "verify": False}


def log_run(root, label, values, tag="loss", **record):
    """Write a run with one scalar series, and its record if fields are given."""
    directory = Path(root) / label
    with EventWriter(directory) as writer:
        for step, value in enumerate(values):
            writer.scalar(tag, value, step)
    if record:
        from aboard.runs.manifest import Manifest

        experiment, _, name = label.rpartition("/")
        manifest = Manifest(name, experiment=experiment, **record)
        (directory / "run.json").write_bytes(manifest.to_json())
    return directory


def add_job(root, job, *states, at=1000.0, **fields):
    """Write the record of a job whose members have ended, except those without a state."""
    from aboard.jobs.model import JobRecord, Submission
    from aboard.jobs.store import JobStore

    values = {"experiment": "cifar10", "on": "process", "user": "ada", **fields}
    numbers = list(range(1, len(states) + 1))
    record = JobRecord(
        id=job,
        run="{job}-{number}",
        command=["python", "train.py", "--lr", "{lr}"],
        members=[{"lr": number / 10} for number in numbers],
        created=at,
        submissions=[
            Submission(attempt=1, numbers=numbers, at=at, by="", directory="/none", handle={})
        ],
        settled={
            str(number): [state, 0 if state == "completed" else 3, ""]
            for number, state in zip(numbers, states, strict=True)
            if state
        },
        **values,
    )
    JobStore(str(root)).create(record)
    return record


def points(client, board, tag="loss"):
    """Return the points that a board serves, by run."""
    form = {"requests": json.dumps([{"plugin": "scalars", "tag": tag}])}
    answer = client.post(f"/b/{board}/data/plugin/timeseries/timeSeries", data=form)
    assert answer.status_code == 200, answer.text
    return {
        run: [(point["step"], point["value"]) for point in series]
        for run, series in answer.json()[0]["runToSeries"].items()
    }


def create(client, *selectors, **fields):
    answer = client.post("/api/v1/boards", json={"selectors": list(map(str, selectors)), **fields})
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()


def ask(client, method, path, ref="none"):
    """Send a request of the route table."""
    names = dict.fromkeys(("session", "share", "token", "secret", "board", "job", "run"), "none")
    filled = path.format(ref=ref, name="nobody", **names)
    if path.endswith("/events"):
        filled += "?seconds=0"  # otherwise the response is endless
    return client.request(method, filled, json=BODIES.get((method, path)))


class Served:
    """A hub in this process on a port, with a user of every role."""

    def __init__(self, hub, url):
        self.hub = hub
        self.url = url
        self.tokens = {}

    def client(self, who=None, headers=None, **options):
        headers = dict(headers or {})
        if who:
            headers["authorization"] = f"Bearer {self.tokens[who]}"
        return httpx.Client(base_url=self.url, headers=headers, **QUICK, **options)


@contextmanager
def served(tmp_path, roots=(), personal=False, **settings):
    config = Config(
        directory=tmp_path / "hub",
        roots=tuple(one if isinstance(one, Root) else Root(str(one), "logs") for one in roots),
        **{"host": "127.0.0.1", **settings},
    )
    hub = Hub(config, personal=personal)
    known = {user.name for user in hub.auth.users()}  # of an earlier hub with this database
    for name, role in (
        ("anna", Role.ADMIN),
        ("max", Role.MEMBER),
        ("mia", Role.MEMBER),
        ("vera", Role.VIEWER),
    ):
        if name not in known:
            hub.auth.add_user(name, role)
    sockets = listen("127.0.0.1", 0)
    found = Served(hub, f"http://127.0.0.1:{sockets[0].getsockname()[1]}")
    for user in hub.auth.users():
        found.tokens[user.name] = hub.auth.create_token(user).secret
    with serving(make_app(hub), sockets):
        yield found


class Process:
    """A real hub in its own process."""

    def __init__(self, process, document, state):
        self.process = process
        self.document = document
        self.state = state

    @property
    def port(self):
        return int(self.document["address"].rpartition(":")[2])

    def client(self):
        token = (self.state / "hub-token").read_text().strip()
        return httpx.Client(
            base_url=self.document["address"],
            headers={"authorization": f"Bearer {token}"},
            **QUICK,
        )

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        return self.process.wait(180)


@contextmanager
def personal_hub(tmp_path, root, port=0, first=""):
    """Run a personal hub; its process runs `first`, Python code, before the command."""
    state = tmp_path / "state"
    log = tmp_path / "hub-log"
    process = fork_command(
        ["serve", "--personal", "--json", "--root", str(root), "--port", str(port)],
        env={**os.environ, "ABOARD_STATE": str(state)},
        cwd=Path.cwd(),
        stderr=str(log),
        first=first,
    )
    try:
        line = process.stdout.readline()
        assert line, log.read_text()
        yield Process(process, json.loads(line), state)
    finally:
        process.end()
