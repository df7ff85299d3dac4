"""Two boards in one process, behind one gate, with data that a test can look for."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aboard.events.writer import EventWriter
from aboard.index import Index
from aboard.tensorboard.board import Board, Member
from aboard.tensorboard.live import Follower
from aboard.web import Access, Gate, listen, serving, urls

RED, BLUE = (220, 30, 30), (30, 60, 220)


@dataclass
class Site:
    """A server of two boards: `every` has each kind of data, `second` is being written to."""

    address: str
    access: Access
    second: Path

    def at(self, board: str) -> str:
        """Return the address of a board."""
        return f"{self.address}/b/{board}/"

    def link(self, board: str) -> str:
        """Return an address of a board that opens once."""
        return f"{self.at(board)}?key={self.access.mint_key()}"


@contextmanager
def serve_two_boards(root: Path) -> Iterator[Site]:
    """Write the logs of both boards below a directory, and serve them."""
    from every_kind import write_every_kind

    from aboard.tensorboard.app import make_app
    from aboard.tensorboard.provider import Boards

    write_every_kind(root / "every")
    write_second(root / "second")
    with ExitStack() as closing:
        index = closing.enter_context(Index(root / "index.db"))
        boards = Boards(index)
        boards.add(Board("every", "Every kind", (Member.parse(str(root / "every")),)))
        boards.add(Board("second", "The second", (Member.parse(str(root / "second")),)))
        sources = [member.source for board in boards for member in board.members]
        for source in sources:
            index.refresh(source)
        follower = Follower(index)
        closing.callback(follower.close)
        follower.follow(sources)
        access = Access()
        sockets = listen(port=0)
        app = Gate(make_app(boards, asked=lambda _: follower.asked()), access)
        closing.enter_context(serving(app, sockets))
        yield Site(urls(sockets, "localhost")[0], access, root / "second")


def write_second(root: Path) -> None:
    """Write a tree with a growing run, and one with colours that a test can look for."""
    with EventWriter(root / "growing") as writer:
        for step in range(4):
            writer.scalar("loss", 1 / (1 + step), step)
    with EventWriter(root / "colourful") as writer:
        half = np.full((6, 4, 3), RED, np.uint8)
        writer.images("flag", [np.concatenate([half, np.full_like(half, BLUE)], axis=1)], 7)
        corners = [[[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]]
        sides = [[[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]]
        writer.mesh("pyramid", corners, 7, faces=sides, colors=[[RED] * 4])
    (root / "colourful" / "projector_config.pbtxt").write_text(
        'embeddings { tensor_name: "words" tensor_path: "words.tsv" metadata_path: "labels.tsv" }'
    )
    (root / "colourful" / "words.tsv").write_text("0\t0\t1\n0\t1\t0\n1\t0\t0\n1\t1\t1\n")
    (root / "colourful" / "labels.tsv").write_text("apple\npear\nplum\nquince\n")
