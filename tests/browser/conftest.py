"""A real browser, and two boards in one process for it to look at."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from looking import Complaints
from two_boards import Site, serve_two_boards

# For the tree with every kind of data.
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serve_two_boards(tmp_path_factory.mktemp("site")) as served:
        yield served


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
