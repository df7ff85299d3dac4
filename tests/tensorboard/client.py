"""A client of an application of either engine, with the headers of a browser."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from aboard import EventWriter
from aboard.index.library import Member
from aboard.tensorboard.app import make_app
from aboard.tensorboard.board import Board
from aboard.tensorboard.provider import Boards
from aboard.tensorboard.stock import make_stock_app
from tests.waiting import until

SECONDS = 0.1
"""How often the stock engine looks in tests."""


class Client:
    """Asks one application."""

    def __init__(self, app: Any, board: str = "board") -> None:
        self.app = app
        self._root = f"/b/{board}/"
        self._runner = asyncio.Runner()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://aboard")

    def ask(self, address: str, **request: Any) -> httpx.Response:
        return self._runner.run(self._client.get(address, **request))

    def get(self, path: str, **query: str) -> httpx.Response:
        return self.ask(self._root + path, params=query)

    def json(self, path: str, **query: str) -> Any:
        response = self.get(path, **query)
        assert response.status_code == 200, response.text
        return response.json()

    def projector(self, route: str, **query: str) -> httpx.Response:
        return self.get(f"data/plugin/projector/{route}", **query)

    def steps(self, run: str, tag: str = "loss") -> list[int]:
        """Return the steps of a scalar; none if there is no such scalar yet."""
        response = self.get("data/plugin/scalars/scalars", run=run, tag=tag)
        return [step for _, step, _ in response.json()] if response.status_code == 200 else []

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


class Fast(Client):
    """The fast engine over some boards."""

    def __init__(self, boards: Boards, board: str = "board") -> None:
        self._closing = ExitStack()
        super().__init__(make_app(boards, closing=self._closing), board)

    def close(self) -> None:
        super().close()
        self._closing.close()


class Stock(Client):
    """The stock engine over some places, loaded."""

    def __init__(self, work_directory: Path, *members: object, **options: Any) -> None:
        samples = options.pop("samples", None)
        parsed = tuple(Member.parse(str(member)) for member in members)
        board = Board("board", "A board", parsed, **options)
        self.stock = make_stock_app(
            board, samples=samples, reload_seconds=SECONDS, work_directory=work_directory
        )
        super().__init__(self.stock.app)
        until(lambda: self.stock.loaded)

    def close(self) -> None:
        super().close()
        self.stock.close()


def write_scalars(directory: Path, *steps: int, tag: str = "loss") -> None:
    with EventWriter(directory) as writer:
        for step in steps:
            writer.scalar(tag, step / 2, step)


def websocket(app: Any, path: str) -> list[Any]:
    """Try to open a WebSocket; return what is sent back."""
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "websocket",
        "scheme": "ws",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"aboard")],
        "subprotocols": [],
    }
    asyncio.run(app(scope, receive, send))
    return sent
