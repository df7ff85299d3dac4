"""The hub's REST API under odd requests, of which its OpenAPI document tells the routes.

Whatever is sent, each request gets an answer, the hub serves others meanwhile, and it ends.
"""

import json
import random
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import httpx

from aboard import EventWriter
from tests.hostile import generate
from tests.hub.hubs import QUICK, personal_hub

FIELDS = ("hparams.lr", 'metrics["loss"].max', "state", "name", "tags", "nothing.like.it")


def log(root):
    for number in range(30):
        with EventWriter(root / f"exp/run{number}") as writer:
            writer.scalar("loss", number, 0)


def texts(chance):
    """Return what a pattern, a condition, a name or a number may be in a hostile request."""
    deep = chance.choice([30, 200, 1500])
    return [
        chance.choice(generate.patterns()),
        f"{'(' * deep}state == 'x'{')' * deep}",
        f"{'not ' * deep}state == 'x'",
        " or ".join(f'name ~ "*{at}*a*a*"' for at in range(deep)),
        ",".join(f"*{at}*" for at in range(deep)),
        ",".join(f"exp/run{at}" for at in range(deep)),
        ",".join(FIELDS * (deep // 6)),
        chance.choice(FIELDS),
        "*" * deep,
        "9" * deep,
        "-1",
        "\x00",
        "",
    ]


def bodies(chance):
    nested = "[" * 3000 + "]" * 3000
    return [
        nested,
        "{" * 3000,
        json.dumps({"selectors": ["*"] * 5000, "tags": [f"t{at}" for at in range(1000)]}),
        json.dumps({"selectors": [f"*{at}*" for at in range(5000)], "tags": ["loss"]}),
        '{"selectors": ["exp"], "tags": ["loss"], "samples": 4000000, "smoothing": 0.99}',
        json.dumps({"selectors": ["exp"], "where": chance.choice(texts(chance))}),
        "null",
    ]


def routes(client):
    """Yield each method and path, with parameters; what ends the hub or a login is left out."""
    document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            names = [one["name"] for one in about.get("parameters", ()) if one["in"] == "query"]
            if path.endswith(("/events", "/login", "/logout")):
                continue
            yield method.upper(), path, names


def requests(client, chance):
    for method, path, names in routes(client):
        for _ in range(2):
            some = texts(chance)
            place = re.sub(r"\{\w+\}", lambda _: chance.choice(["exp", "run1", "none"]), path)
            query = [(name, chance.choice(some)) for name in names]
            many = [("selector", f"*{at}*") for at in range(2000)] if "selector" in names else []
            address = f"{place}?{urlencode(query + many)}"[:60_000]
            yield method, address, chance.choice(bodies(chance)) if method != "GET" else None


def leave(hub, method, address, token):
    """Send a request and go away."""
    with socket.create_connection(("127.0.0.1", hub.port)) as connection:
        head = f"{method} {address} HTTP/1.1\r\nHost: 127.0.0.1:{hub.port}\r\n"
        connection.sendall(f"{head}Authorization: {token}\r\nContent-Length: 0\r\n\r\n".encode())


def test_odd_requests_at_every_route_of_the_api(tmp_path, monkeypatch):
    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "root"
    log(root)
    chance = random.Random(1)
    with personal_hub(tmp_path, root) as hub, hub.client() as client:
        token = client.headers["authorization"]

        def send(request):
            method, address, body = request
            headers = {"content-type": "application/json"}
            answer = client.request(method, address, content=body, headers=headers, timeout=300)
            return request, answer

        with ThreadPoolExecutor(20) as pool:
            sent = list(requests(client, chance))
            assert len(sent) > 80
            waiting = [pool.submit(send, one) for one in sent]
            for method, address, _ in sent:
                if method == "GET" and chance.random() < 0.3:
                    leave(hub, method, address, token)
            while not all(one.done() for one in waiting):
                with httpx.Client(base_url=client.base_url, **QUICK) as other:
                    assert other.get("/healthz", timeout=120).status_code == 200
            for one in waiting:
                (method, address, _), answer = one.result()
                allowed = answer.status_code < 500 or answer.status_code in (501, 503, 504)
                assert allowed, (method, address[:200], answer.text[:300])
        hub.process.send_signal(signal.SIGTERM)
        assert hub.process.wait(120) == 0
