"""A proxy in front of an S3 server that injects faults.

It counts all received bytes, also of requests that it does not answer: this is network traffic.
"""

import http.client
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

from tests.engines.relay import Relay

Fault = Literal["", "500", "403", "reset", "hang", "deaf", "late"]
"""`reset` closes the connection without reading, `hang` never responds, `deaf` performs the request
and closes the connection without a response.

`late` holds writes, and sends them when `carry_out_late` is called.
"""


Answer = tuple[int, list[tuple[str, str]], bytes]


class Faulty:
    """The proxy: its address, the current fault, and the counted requests and bytes."""

    def __init__(self, s3_url: str) -> None:
        self.s3 = urlsplit(s3_url).netloc
        self.fault: Fault = ""
        self.sent: Counter[str] = Counter()
        """Bytes of the request bodies, by the name of the object."""
        self.requests: Counter[str] = Counter()
        """Number of requests by outcome."""
        self.largest = 0
        self._held: list[Callable[[], object]] = []
        self.closing = threading.Event()
        self._port = 0
        self._listen()

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def total(self) -> int:
        return sum(self.sent.values())

    def keep(self, request: Callable[[], object]) -> None:
        self._held.append(request)

    @property
    def kept(self) -> int:
        return len(self._held)

    def carry_out_late(self) -> int:
        """Send the held requests in reverse order; return their number."""
        late, self._held = self._held[::-1], []
        for request in late:
            request()
        return len(late)

    def away(self) -> None:
        """Stop listening: connections are refused."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def back(self) -> None:
        self._listen()

    def close(self) -> None:
        self.closing.set()
        self.away()

    def _listen(self) -> None:
        self._server = _Server(("127.0.0.1", self._port), _Requests)
        self._server.faulty = self
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    faulty: Faulty

    def handle_error(self, *_: object) -> None:
        """Ignore errors: the client was killed."""


class _Requests(Relay):
    server: _Server
    protocol_version = "HTTP/1.1"

    def _take(self) -> None:
        faulty, fault = self.server.faulty, self.server.faulty.fault
        faulty.requests[fault] += 1
        if fault == "reset":
            self._hang_up()
            return
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        faulty.sent[urlsplit(self.path).path] += len(content)
        faulty.largest = max(faulty.largest, len(content))
        if fault == "late" and self.command == "PUT":
            headers, path = self._passed_on(), self.path
            faulty.keep(lambda: self._ask("PUT", path, content, headers))
        if fault == "hang" or (fault == "late" and self.command == "PUT"):
            while faulty.fault == fault and not faulty.closing.wait(0.02):
                pass
            self._hang_up()
        elif fault == "500":
            self._answer(500, [], b"<Error><Code>InternalError</Code></Error>")
        elif fault == "403":
            self._answer(403, [], b"<Error><Code>AccessDenied</Code></Error>")
        else:
            self._forward(content, deaf=fault == "deaf")

    def _forward(self, content: bytes, *, deaf: bool) -> None:
        answer = self._ask(self.command, self.path, content, self._passed_on())
        if deaf:
            self._hang_up()
        else:
            self._answer(*answer)

    def _passed_on(self) -> dict[str, str]:
        held_back = {"connection", "expect"}
        return {name: one for name, one in self.headers.items() if name.lower() not in held_back}

    def _ask(self, command: str, path: str, content: bytes, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection(self.server.faulty.s3, timeout=60)
        try:
            connection.request(command, path, content, headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def _hang_up(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _take  # noqa: N815
