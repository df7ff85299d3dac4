"""A real browser, and two boards in one process for it to look at."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aboard.events.writer import EventWriter
from aboard.web import Access, Gate, listen, serving, urls

sys.path.append(str(Path(__file__).parent.parent / "tensorboard"))

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE = 60_000
"""Milliseconds to wait for something to appear: for a busy machine, not for a slow board."""
RED, BLUE = (220, 30, 30), (30, 60, 220)


def pytest_configure(config: pytest.Config) -> None:
    # TensorBoard brings a copy of html5lib that says so when it is imported.
    config.addinivalue_line(
        "filterwarnings", "ignore:html5lib's sanitizer is deprecated:DeprecationWarning"
    )


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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    from every_kind import write_every_kind

    from aboard.index import Index
    from aboard.tensorboard.app import make_app
    from aboard.tensorboard.board import Board, Member
    from aboard.tensorboard.live import Follower
    from aboard.tensorboard.provider import Boards

    root = tmp_path_factory.mktemp("site")
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
        corners = [[[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]
        writer.mesh("triangle", corners, 7, faces=[[[0, 1, 2], [2, 1, 0]]], colors=[[RED] * 3])


@dataclass
class Complaints:
    """What a browser does not like about the pages it shows."""

    heard: list[str] = field(default_factory=list)

    def listen(self, page: Any) -> None:
        """Listen to a page from now on."""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.heard.append(f"uncaught: {error}"))
        page.on("response", self._response)
        page.on("requestfailed", self._failed)

    def expect(self, part: str) -> None:
        """Take out the complaints with a part of their text, of which there must be some."""
        assert any(part in text for text in self.heard), self.heard
        self.heard = [text for text in self.heard if part not in text]

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.heard.append(f"console: {message.text}")

    def _response(self, response: Any) -> None:
        if response.status >= 400:
            self.heard.append(f"{response.status}: {response.url}")

    def _failed(self, request: Any) -> None:
        # A player that knows enough of a clip, or a page that is left, hangs up by itself.
        if "ERR_ABORTED" not in request.failure:
            self.heard.append(f"{request.failure}: {request.url}")


@pytest.fixture(scope="module")
def all_complaints() -> Complaints:
    return Complaints()


@pytest.fixture(autouse=True)
def complaints(all_complaints: Complaints) -> Iterator[Complaints]:
    """The browser's complaints during a test, of which none may be left when it ends."""
    yield all_complaints
    heard, all_complaints.heard = all_complaints.heard, []
    assert heard == []


# Not for the whole session: as long as Playwright runs, no other test can run an event loop.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs a browser (Debian: apt-get install chromium)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def new_visitor(browser: Any, all_complaints: Complaints) -> Iterator[Any]:
    """Let somebody else sit down at the browser: `new_visitor()` is a page without cookies."""
    contexts = []

    def new_visitor() -> Any:
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        all_complaints.listen(page)
        return page

    yield new_visitor
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def every(new_visitor: Any, site: Site) -> Any:
    """A page with the board that has every kind of data."""
    page = new_visitor()
    page.goto(site.link("every"))
    return page


@pytest.fixture(scope="module")
def second(new_visitor: Any, site: Site) -> Any:
    """A page with the board that is being written to."""
    page = new_visitor()
    page.goto(site.link("second"))
    return page
