"""A real browser, and people who sit down at it one after another."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from engines.absence import cannot_set_up

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


# Not for a whole session of tests: as long as Playwright runs, no other can run an event loop.
@contextmanager
def chromium() -> Iterator[Any]:
    """Run a browser; without one, what needs it is skipped, or fails where all must run."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        cannot_set_up("needs the package playwright")
    program = shutil.which("chromium")
    if program is None:
        cannot_set_up("needs a browser (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def visitors(browser: Any, listen: Callable[[Any], None]) -> Iterator[Callable[[], Any]]:
    """Give a function that lets somebody else sit down: it opens a page without cookies.

    Args:
        browser: where.
        listen: called with each new page.
    """
    contexts = []

    def new_visitor() -> Any:
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        listen(page)
        return page

    yield new_visitor
    for context in contexts:
        context.close()
