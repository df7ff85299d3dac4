"""A visitor of a TensorBoard, ours or stock: asks what the page asks, over one connection."""

from __future__ import annotations

import gzip
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode


class Site:
    """A board at a path of a local port."""

    def __init__(self, port: int, path: str, headers: Mapping[str, str] | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._path = path
        self._headers = {"Accept-Encoding": "gzip", **(headers or {})}

    def page(self) -> bytes:
        """Return the page itself."""
        return self._ask("GET", "")

    def runs(self) -> list[str]:
        """Return the names of the runs."""
        return json.loads(self._ask("GET", "data/runs"))

    def tags(self) -> dict[str, Any]:
        """Return what the Time Series tab lists."""
        return json.loads(self._ask("GET", "data/plugin/timeseries/tags"))

    def curve(self, tag: str) -> dict[str, list[Any]]:
        """Return the points of a tag in every run."""
        asked = urlencode({"requests": json.dumps([{"plugin": "scalars", "tag": tag}])})
        answer = json.loads(self._ask("POST", "data/plugin/timeseries/timeSeries", asked))
        return answer[0]["runToSeries"]

    def _connect(self) -> None:
        """Connect to a server that may still be about to listen."""
        deadline = time.monotonic() + 60
        while self._connection.sock is None:
            try:
                self._connection.connect()
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            self._connect()
            self._connection.request(method, self._path + path, body, headers)
            response = self._connection.getresponse()
            content = response.read()
        except http.client.HTTPException as error:
            self._connection.close()
            raise RuntimeError(f"{path}: {error!r}") from error
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status}")
        if response.headers.get("Content-Encoding") == "gzip":
            return gzip.decompress(content)
        return content
