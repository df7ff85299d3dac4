"""A real browser, and two boards in one process for it to look at."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.console_visits import visits
from tests.browser.page import Complaints
from tests.browser.two_boards import Site, serve_two_boards
from tests.engines.chromium import chromium, visitors


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def new_visitor(browser: Any, all_complaints: Complaints) -> Iterator[Any]:
    """Open the browser for another user: `new_visitor()` is a page without cookies."""
    with visitors(browser, all_complaints.listen) as opening:
        yield opening


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


@pytest.fixture
def visit(hub: Any, new_visitor: Any) -> Iterator[Any]:
    """Give a function that opens a path of the console of the module's hub."""
    with visits(hub, new_visitor) as visit:
        yield visit
