"""Users who open pages of the console, each with a link that logs them in."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.browser.page import eventually, words


@contextmanager
def visits(hub: Any, new_visitor: Callable[[], Any]) -> Iterator[Callable[..., Any]]:
    """Give a function that opens a path of the console as a user, and waits until it is live."""
    opened = []

    def visit(path: str, user: str = "max") -> Any:
        page = new_visitor()
        opened.append(page)
        key = hub.hub.auth.mint_key(hub.hub.auth.user(user))[0]
        page.goto(f"{hub.url}{path}{'&' if '?' in path else '?'}key={key}")
        eventually(page, lambda: "live" in words(page.locator("body > header")))
        return page

    yield visit
    for page in opened:
        page.close()


def panel(page: Any) -> Any:
    return page.get_by_role("complementary")
