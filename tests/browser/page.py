"""What a page shows: words, colours and tables, in shadow roots too; and messages of the browser
about it that are not shown.
"""

import io
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

Colour = tuple[int, int, int]
_SECONDS = 180.0  # only a failure takes so long

_WORDS = """
(root) => {
  const found = [];
  const walk = (node) => {
    if (node.nodeType === Node.TEXT_NODE) {
      const text = node.data.replace(/\\s+/g, ' ').trim();
      if (text) found.push(text);
    } else if (node.nodeType === Node.ELEMENT_NODE) {
      if (['STYLE', 'SCRIPT', 'NOSCRIPT', 'TEMPLATE'].includes(node.tagName)) return;
      const style = getComputedStyle(node);
      if (style.display === 'none' || style.visibility === 'hidden') return;
    }
    if (node.shadowRoot) walk(node.shadowRoot);
    node.childNodes.forEach(walk);
  };
  walk(root);
  return found;
}
"""


def words(place: Any) -> list[str]:
    """Return the pieces of text that are visible in a place."""
    return place.evaluate(_WORDS)


def wait_for_words(place: Any, *expected: str) -> None:
    """Wait until every one of the words stands by itself somewhere in a place.

    The place is found again each time: the page may draw it anew meanwhile.
    """
    seen: set[str] = set()

    def shows() -> bool:
        seen.clear()
        seen.update(words(place))
        return seen.issuperset(expected)

    if not _seen_within(place.page, shows, _SECONDS):
        missing = sorted(set(expected) - seen)
        raise AssertionError(f"{missing} did not appear among {sorted(seen)}")


def eventually(page: Any, look: Callable[[], Any]) -> Any:
    """Look again and again until there is something to see, and return it."""
    seen = _seen_within(page, look, _SECONDS)
    assert seen, "it did not appear in time"
    return seen


def reload_until(page: Any, look: Callable[[], Any]) -> None:
    """Press the button that asks for new data, again whenever it brought nothing for a while."""

    def pressed() -> Any:
        page.locator("button.reload-button").click()
        return _seen_within(page, look, 3.0)

    eventually(page, pressed)


def _seen_within(page: Any, look: Callable[[], Any], seconds: float) -> Any:
    deadline, pause = time.monotonic() + seconds, 50.0
    while not (seen := look()) and time.monotonic() < deadline:
        page.wait_for_timeout(pause)
        pause = min(pause * 1.5, 500.0)  # a look costs the browser time, which it needs to draw
    return seen


def colours(place: Any) -> Counter[Colour]:
    """Count the pixels of each colour that a place has on the screen."""
    picture = Image.open(io.BytesIO(place.screenshot())).convert("RGB")
    counted = picture.getcolors(picture.width * picture.height) or []
    return Counter({colour: number for number, colour in counted})


def wait_for_colour(place: Any, pixels: int = 100) -> None:
    """Wait until something that is neither black, white nor grey is drawn in a place."""

    def drawn() -> bool:
        counted = colours(place)
        return sum(n for colour, n in counted.items() if max(colour) - min(colour) > 60) > pixels

    eventually(place.page, drawn)


def pixel(image: Any, across: float, down: float) -> list[int]:
    """Return the colour of an `<img>`'s pixel, at a share of its width and height."""
    return image.evaluate(
        """async (image, [across, down]) => {
          await image.decode();
          const canvas = document.createElement('canvas');
          [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
          const drawing = canvas.getContext('2d');
          drawing.drawImage(image, 0, 0);
          const [x, y] = [across * canvas.width, down * canvas.height].map(Math.floor);
          return [...drawing.getImageData(x, y, 1, 1).data].slice(0, 3);
        }""",
        [across, down],
    )


def open_tab(page: Any, plugin: str, dashboard: str) -> Any:
    """Click on a tab's heading, and return its dashboard."""
    page.locator(f'[role=tab] [data-plugin-id="{plugin}"]').click()
    place = page.locator(dashboard)
    place.wait_for()
    return place


def run_list(page: Any) -> dict[str, Colour]:
    """Return the runs that the Time Series tab lists, and the colour of each."""
    rows = page.locator("runs-data-table tb-data-table-content-row").evaluate_all(
        """rows => rows.map(row => [
          row.querySelector('.table-column-run').textContent.trim(),
          getComputedStyle(row.querySelector('.run-color-swatch')).backgroundColor,
        ])"""
    )
    return {
        run: tuple(int(part) for part in colour[4:-1].split(","))  # such as "rgb(1, 2, 3)"
        for run, colour in rows
        if colour  # a row that just left the page has none
    }


def data_table(card: Any) -> dict[str, dict[str, str]]:
    """Return the rows of a scalar card's table, by run and column."""
    heads, *rows = card.locator("scalar-card-data-table").evaluate(
        """table => {
          const texts = (place, cell) =>
            [...place.querySelectorAll(cell)].map(found => found.textContent.trim());
          const rows = [...table.querySelectorAll('tb-data-table-content-row')];
          return [
            [...table.querySelectorAll('tb-data-table-header-cell')].map(
              cell => cell.innerText.trim()),
            ...rows.map(row => texts(row, 'tb-data-table-content-cell')),
          ];
        }"""
    )
    tables = (dict(zip(heads, row, strict=True)) for row in rows)
    return {row["Run"]: row for row in tables}


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
        if message.type == "error" and not _asks_in_vain(503, message.location["url"]):
            self.heard.append(f"console: {message.text}")

    def _response(self, response: Any) -> None:
        if response.status >= 400 and not _asks_in_vain(response.status, response.url):
            self.heard.append(f"{response.status}: {response.url}")

    def _failed(self, request: Any) -> None:
        # A player that knows enough of a clip, or a page that is left, hangs up by itself.
        if "ERR_ABORTED" not in request.failure:
            self.heard.append(f"{request.failure}: {request.url}")


def _asks_in_vain(status: int, url: str) -> bool:
    """Say whether a page that was left open asks a board that was stopped what is new."""
    return status == 503 and url.endswith("/data/status")
