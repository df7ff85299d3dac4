"""Two servers of one log directory: ours, and TensorBoard's own, both in this process."""

import argparse
import asyncio
import json
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from aboard.events.messages import keep_tensorflow_out
from aboard.index import Index
from aboard.index.library import Library, Member
from aboard.tensorboard.app import make_app
from aboard.tensorboard.board import Board
from aboard.tensorboard.plugins import stock_plugins
from aboard.tensorboard.provider import Boards

keep_tensorflow_out()

from tensorboard import version  # noqa: E402
from tensorboard.backend import application  # noqa: E402
from tensorboard.backend.event_processing import (  # noqa: E402
    data_provider,
    plugin_event_multiplexer,
)
from werkzeug.test import Client  # noqa: E402

VERSION: str = version.VERSION
EVERYTHING = dict.fromkeys(
    ("scalars", "histograms", "images", "audio", "text", "pr_curves", "mesh", "distributions"),
    1_000_000,
)
"""Points per series for a comparison in which nothing is left out."""


class Answer(NamedTuple):
    status: int
    kind: str
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        assert self.status == 200, (self.status, self.body)
        assert self.kind == "application/json"
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


class Ours:
    """Our application, asked as a browser asks it."""

    def __init__(self, boards: Boards, board: str = "board", **options: Any) -> None:
        self.boards = boards
        self.board = board
        self.root = f"/b/{board}/"
        self._closing = ExitStack()
        self.app = make_app(boards, closing=self._closing, **options)
        self._runner = asyncio.Runner()
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://aboard"
        )

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._closing.close()
        self._runner.close()

    def ask(self, address: str, **request: Any) -> Answer:
        """Ask for any address."""
        method = request.pop("method", "GET")
        response = self._runner.run(self._client.request(method, address, **request))
        kind = response.headers.get("content-type", "").partition(";")[0]
        return Answer(response.status_code, kind, response.content, response.headers)

    def get(self, path: str, **query: Any) -> Answer:
        return self.ask(self.root + path, params=query)

    def post(self, path: str, form: Any = None, content: bytes | None = None) -> Answer:
        return self.ask(self.root + path, method="POST", data=form, content=content)

    def refresh(self) -> None:
        """Read what is new in the board's sources."""
        for board in self.boards:
            for member in board.members:
                self.boards.index.refresh(member.source)

    def points(self, tag: str, run: str = ".") -> list[tuple[int, float]]:
        """Return the steps and values of a scalar, as a chart gets them."""
        request = json.dumps([{"plugin": "scalars", "tag": tag, "run": run}])
        (answer,) = self.get("data/plugin/timeseries/timeSeries", requests=request).json
        series = answer["runToSeries"].get(run, [])
        return [(point["step"], point["value"]) for point in series]

    def through(self, prefix: str) -> "Ours":
        """Ask below a prefix from now on."""
        self.root = f"/b/{self.board}/{prefix}"
        return self


class Stock:
    """TensorBoard with its Python backend, loaded once, nothing sampled unless asked for."""

    def __init__(self, logdir: str, samples: Mapping[str, int] = EVERYTHING) -> None:
        self._logdir = logdir
        self._multiplexer = plugin_event_multiplexer.EventMultiplexer(
            size_guidance={"tensors": 0}, tensor_size_guidance=dict.fromkeys(samples, 0)
        )
        self.reload()
        flags = argparse.Namespace(
            logdir=logdir,
            logdir_spec="",
            path_prefix="",
            samples_per_plugin=dict(samples),
            window_title="",
        )
        provider = data_provider.MultiplexerDataProvider(self._multiplexer, logdir)
        plugins = stock_plugins()
        self._client = Client(application.TensorBoardWSGIApp(flags, plugins, provider))

    def reload(self) -> None:
        self._multiplexer.AddRunsFromDirectory(self._logdir)
        self._multiplexer.Reload()

    def get(self, path: str, **query: Any) -> Answer:
        return _answer(self._client.get(f"/{quote(path)}", query_string=query))

    points = Ours.points

    def post(self, path: str, form: Any = None, content: bytes | None = None) -> Answer:
        body = content if content is not None else form
        return _answer(self._client.post(f"/{quote(path)}", data=body))


def _answer(response: Any) -> Answer:
    return Answer(response.status_code, response.mimetype, response.get_data(), response.headers)


def one_board(index: Index, *logdirs: object, board: str = "board", **options: Any) -> Boards:
    """Serve one board of some directories, read into the index."""
    boards = Boards(Library(index))
    members = tuple(Member.parse(str(logdir)) for logdir in logdirs)
    for member in members:
        index.refresh(member.source)
    boards.add(Board(board, "A board", members, **options))
    return boards
