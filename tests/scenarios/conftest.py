"""A user at a terminal and at a browser, in whose stories everything is real."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.page import Complaints
from tests.engines.chromium import chromium, visitors
from tests.scenarios.person import Person


@pytest.fixture(scope="module")
def someone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A user without a hub; a hub that the user starts ends with the tests of the module."""
    person = Person(tmp_path_factory.mktemp("someone"))
    yield person
    person.leaves()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    """The browser's complaints during a test, of which none may be left when it ends."""
    heard = Complaints()
    yield heard
    assert heard.heard == []


@pytest.fixture
def new_visitor(browser: Any, complaints: Complaints) -> Iterator[Any]:
    """Open the browser for another user: `new_visitor()` is a page without cookies."""
    with visitors(browser, complaints.listen) as opening:
        yield opening
