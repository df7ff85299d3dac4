"""A client of a TensorBoard, ours or stock: sends the page's requests over one connection."""

from __future__ import annotations

import gzip
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

_PATHS = {"page": "", "runs": "data/runs", "tags": "data/plugin/timeseries/tags"}
_KEPT_ALIVE = 2.0  # seconds; servers close a connection that was idle for longer


class Site:
    """A board at a path of a local port."""

    def __init__(self, port: int, path: str, headers: Mapping[str, str] | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._path = path
        self._headers = {"Accept-Encoding": "gzip", **(headers or {})}
        self._used = 0.0

    def page(self) -> bytes:
        """Return the HTML of the page."""
        return decompress(self.ask("page"))

    def runs(self) -> list[str]:
        """Return the names of the runs."""
        return json.loads(decompress(self.ask("runs")))

    def tags(self) -> dict[str, Any]:
        """Return what the Time Series tab lists."""
        return json.loads(decompress(self.ask("tags")))

    def curve(self, tag: str) -> dict[str, list[Any]]:
        """Return the points of a tag in every run."""
        return json.loads(decompress(self.ask("curve", tag)))[0]["runToSeries"]

    def last_step(self, tag: str, run: str) -> int:
        """Return the last step of a tag in one run; -1 if it has no points."""
        (answer,) = json.loads(decompress(self.ask("curve", tag, run)))
        series = answer["runToSeries"].get(run)
        return series[-1]["step"] if series else -1

    def ask(self, question: str, tag: str = "", run: str = "") -> bytes:
        """Return a response as sent, compressed: unpacking is not part of the server's time."""
        if question != "curve":
            return self._send("GET", _PATHS[question])
        request = {"plugin": "scalars", "tag": tag} | ({"run": run} if run else {})
        body = urlencode({"requests": json.dumps([request])})
        return self._send("POST", "data/plugin/timeseries/timeSeries", body)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()

    def _connect(self) -> None:
        """Connect, and wait up to a minute for the server to listen."""
        if time.monotonic() - self._used > _KEPT_ALIVE:
            self._connection.close()
        deadline = time.monotonic() + 60
        while self._connection.sock is None:
            try:
                self._connection.connect()
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def _send(self, method: str, path: str, body: str | None = None) -> bytes:
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            self._connect()
            self._connection.request(method, self._path + path, body, headers)
            response = self._connection.getresponse()
            content = response.read()
            self._used = time.monotonic()
        except http.client.HTTPException as error:
            self._connection.close()
            raise RuntimeError(f"{path}: {error!r}") from error
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status}")
        return content


def decompress(answer: bytes) -> bytes:
    return gzip.decompress(answer) if answer.startswith(b"\x1f\x8b") else answer
