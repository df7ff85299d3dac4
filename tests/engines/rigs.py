"""Engines for the tests of executors, each with settings for this machine."""

import hashlib
import http.client
import json
import os
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aboard.executors import batch_executor, executor_class
from aboard.executors.base import (
    PYTHON,
    Address,
    Batch,
    BatchExecutor,
    CommandState,
    Executor,
    Handle,
    Status,
)
from tests.waiting import until

HUB = f"test-{os.getpid()}"  # other tests run on this machine at the same time

SERVES = """
import base64, hashlib, http.server, json, os, socket, ssl, sys

class Board(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_open = self.headers.get("authorization") == "Bearer " + os.environ["ABOARD_TOKEN"]
        if is_open and "sec-websocket-key" in self.headers:
            return self.echo()
        self.send_response(200 if is_open else 401)
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"hello" if is_open else b"token")

    def echo(self):  # short messages of a WebSocket, one frame each
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest())
        heads = b"upgrade: websocket\\r\\nconnection: upgrade\\r\\nsec-websocket-accept: " + accept
        self.wfile.write(b"HTTP/1.1 101 Switching Protocols\\r\\n" + heads + b"\\r\\n\\r\\n")
        kind = 0
        while kind != 8 and (head := self.rfile.read(2)):
            kind, length, mask = head[0] & 15, head[1] & 127, self.rfile.read(4)
            text = bytes(one ^ mask[i % 4] for i, one in enumerate(self.rfile.read(length)))
            self.wfile.write(bytes([128 | kind, length]) + text)
        self.close_connection = True

    def log_message(self, *_):
        pass

host, certificate = os.environ["ABOARD_HOST"], os.environ.get("ABOARD_CERTIFICATE")
server = http.server.ThreadingHTTPServer((host, int(os.environ["ABOARD_PORT"])), Board)
if certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
name = socket.gethostname() if host == "0.0.0.0" else host
scheme = "https" if certificate else "http"
address = f"{scheme}://{name}:{server.server_address[1]}/b/view/"
print("a plugin says hello")
print(json.dumps({"url": address + "?key=k", "address": address}), flush=True)
print("first line\\nsecond line\\nthird line", file=sys.stderr, flush=True)
server.serve_forever()
"""
"""A board that serves one word, or echoes WebSocket messages, to clients with the token."""


@dataclass(frozen=True)
class Rig:
    """An engine and its settings for an executor; another process can create the same rig from
    `name`, `settings` and the environment."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    place: Path | None = None  # the directory that the engine can read, for the files of boards

    def reading(self, place: Path) -> "Rig":
        """Return the rig with a directory of this machine that boards can read."""
        if self.name != "kubernetes":
            return self
        volume = {"path": str(place), "host_path": str(place)}
        return replace(self, settings={**self.settings, "volumes": [volume]})

    def make(self, *, hub: str = HUB, grace: float = 1.0) -> Executor:
        kind = executor_class(self.name)
        return kind({"": kind.Settings(**self.settings)}, hub=hub, grace=grace)

    def make_batches(self) -> BatchExecutor:
        """Return the executor of jobs on the engine."""
        kind = batch_executor(self.name)
        return kind({"": kind.Settings(**self.settings)})


def toml_table(rig: Rig) -> str:
    """Return the TOML table of a hub's settings for the engine."""
    lines = [f"{name} = {_toml(value)}\n" for name, value in rig.settings.items()]
    return f"[executors.{rig.name}]\n{''.join(lines)}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = [f"{json.dumps(name)} = {_toml(one)}" for name, one in value.items()]
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value) if isinstance(value, Path) else value)


def command(script: str) -> tuple[str, ...]:
    return (PYTHON, "-S", "-c", script)


def until_state(executor: Executor, handle: Handle, wanted: CommandState) -> Status:
    """Wait until a command is in a state; fail at once if it has stopped in another."""

    def poll() -> Status:
        return executor.poll({"one": handle})["one"]

    def reached() -> Status | None:
        status = poll()
        assert status.state == wanted or status.state != CommandState.ENDED, status
        return status if status.state == wanted else None

    return until(reached, poll)


def fetch(address: Address, token: str | None) -> tuple[int, bytes]:
    """Send a request as the hub does: the certificate is compared before the token is sent."""
    if address.fingerprint:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address.host, address.port, timeout=180, context=context
        )
        connection.connect()
        shown = connection.sock.getpeercert(binary_form=True)
        assert hashlib.sha256(shown).hexdigest() == address.fingerprint
    else:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=180)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", address.path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def make_batch(place: Path, script: str, job: str = "a", **options: Any) -> Batch:
    """Return a batch of three tasks, in the directory of its job below a place."""
    given = {"numbers": (1, 2, 3), "payload": b"{}", "workdir": place, **options}
    return Batch(
        job=job,
        command=command(script),
        directory=place / job / str(given.get("attempt", 1)),
        **given,
    )


def _submit_for_parent() -> None:
    """Submit a batch in a process that the test kills; see tests/executors/test_batches."""
    name, settings, job, place, script = json.loads(sys.argv[2])
    executor = Rig(name, settings).make_batches()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(executor.submit(make_batch(Path(place), script, job))), flush=True)


def _start_for_parent() -> None:
    """Start a board in a process that the test kills; see tests/executors/test_contract."""
    from aboard.executors.base import Spec

    name, settings, hub, board, directory = json.loads(sys.argv[1])
    executor = Rig(name, settings).make(hub=hub)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(executor.start(Spec(board, command(SERVES), Path(directory)))), flush=True)


if __name__ == "__main__":
    _submit_for_parent() if sys.argv[1] == "batch" else _start_for_parent()
