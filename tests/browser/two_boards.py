"""Boards in one process, behind one gate, with data that a test can look for."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aboard.events import encode
from aboard.events.writer import EventWriter
from aboard.index import Index, Source
from aboard.index.library import Library
from aboard.tensorboard.board import BoardSelection
from aboard.tensorboard.follower import Follower
from aboard.web import Gate, TokenAccess, listen, urls
from tests import summaries
from tests.web.serving import serving

RED, BLUE = (220, 30, 30), (30, 60, 220)


@dataclass
class Site:
    """A server of boards: `every` has each kind of data, `second` is being written to.

    `band` has a margin chart of more points than a curve gets.
    """

    address: str
    access: TokenAccess
    second: Path

    def at(self, board: str) -> str:
        """Return the address of a board."""
        return f"{self.address}/b/{board}/"

    def link(self, board: str) -> str:
        """Return the link of a board."""
        return f"{self.at(board)}?key={self.access.key}"


@contextmanager
def serve_two_boards(root: Path) -> Iterator[Site]:
    """Write the logs of the boards below a directory, and serve them."""
    from aboard.tensorboard.app import make_app
    from aboard.tensorboard.provider import Boards
    from tests.tensorboard.every_kind import write_every_kind

    write_every_kind(root / "every")
    write_second(root / "second")
    write_band(root / "band")
    with ExitStack() as closing:
        index = closing.enter_context(Index(root / "index.db"))
        library = Library(index)
        boards = Boards(library)
        follower = Follower(library, boards)
        closing.callback(follower.close)
        for board, title in (("every", "Every kind"), ("second", "The second"), ("band", "Band")):
            index.refresh(Source(str(root / board)))
            follower.show(BoardSelection(board, title, Library.parse([str(root / board)])))
        access = TokenAccess()
        sockets = listen(port=0)
        app = Gate(make_app(boards, follower=follower, closing=closing), access)
        closing.enter_context(serving(app, sockets))
        yield Site(urls(sockets, "localhost")[0], access, root / "second")


def write_second(root: Path) -> None:
    """Write a tree with a growing run, and one with colours that a test can look for."""
    with EventWriter(root / "growing") as writer:
        for step in range(4):
            writer.scalar("loss", 1 / (1 + step), step)
    with EventWriter(root / "colourful") as writer:
        half = np.full((6, 4, 3), RED, np.uint8)
        writer.add(
            [summaries.images("flag", [np.concatenate([half, np.full_like(half, BLUE)], axis=1)])],
            7,
        )
        corners = [[[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]]
        sides = [[[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]]
        writer.add(encode.mesh("pyramid", corners, faces=sides, colors=[[RED] * 4]), 7)
    (root / "colourful" / "projector_config.pbtxt").write_text(
        'embeddings { tensor_name: "words" tensor_path: "words.tsv" metadata_path: "labels.tsv" }'
    )
    (root / "colourful" / "words.tsv").write_text("0\t0\t1\n0\t1\t0\n1\t0\t0\n1\t1\t1\n")
    (root / "colourful" / "labels.tsv").write_text("apple\npear\nplum\nquince\n")


def write_band(root: Path) -> None:
    """Write a value between two bounds, all of them noisy, and the chart that draws them."""
    layout = {"Noise": {"a band": ["Margin", ["value", "lower", "upper"]]}}
    with EventWriter(root / "noisy") as writer:
        writer.add([encode.custom_scalars(encode.custom_scalars_layout(layout))], 0)
        for step, noise in enumerate(np.random.default_rng(3).normal(size=(3000, 3))):
            value, below, above = noise.tolist()
            bounds = {"lower": value - 1 - abs(below), "upper": value + 1 + abs(above)}
            writer.scalars({"value": value, **bounds}, step)
