"""A real browser, and pages of different users in it."""

import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.engines import steady_network
from tests.engines.requirements import cannot_set_up

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE = 180_000
"""Milliseconds to wait for an element; long, because the machine may be busy."""


def _program() -> str:
    # The headless shell is the same browser without windows, at half the CPU time.
    return shutil.which("chromium-headless-shell") or shutil.which("chromium") or ""


def missing() -> str:
    """Return what is not installed; empty if nothing is missing."""
    return "" if _program() else "needs a browser (Debian: apt-get install chromium-headless-shell)"


# Not a fixture of the session: while Playwright runs, no other event loop can run.
@contextmanager
def chromium() -> Iterator[Any]:
    """Run a browser; skip the test without one, or fail it if all tests must run."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        cannot_set_up("needs the package playwright")
    if lacking := missing():
        cannot_set_up(lacking)
    with sync_playwright() as playwright, _steadily(_program()) as steady:
        browser = playwright.chromium.launch(executable_path=steady, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def _steadily(program: str) -> Iterator[str]:
    """Yield a script that starts a program without notifications of network changes."""
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "start"
        words = shlex.join([sys.executable, "-I", "-S", steady_network.__file__, program])
        script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        script.chmod(0o755)
        yield str(script)


@contextmanager
def visitors(browser: Any, listen: Callable[[Any], None]) -> Iterator[Callable[[], Any]]:
    """Yield a function that opens a page without cookies, as another user would.

    Args:
        browser: the browser to open pages in.
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
