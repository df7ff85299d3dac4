"""What a person sees of a board that is being written to, without pressing anything."""

from typing import Any

import numpy as np
import pytest
from looking import data_table, eventually, open_tab, run_list, wait_for_words
from two_boards import Site

from aboard.events.writer import EventWriter


class Watched:
    """A page, and how often it asked whether its board has changed, and loaded it anew."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.questions = 0
        self.reloads = 0
        page.on("requestfinished", self._note)

    def _note(self, request: Any) -> None:
        self.questions += request.url.endswith("data/version")
        self.reloads += request.url.endswith("data/plugins_listing")

    def has_asked(self, times: int) -> None:
        """Wait until the page has asked this often from now on."""
        enough = self.questions + times
        eventually(self.page, lambda: self.questions >= enough)


@pytest.fixture(scope="module")
def media(site: Site) -> Site:
    """The site, with several steps of an image and of a sound on the board that grows."""
    with EventWriter(site.second / "moving") as writer:
        for step in range(4):
            writer.images("shade", [np.full((6, 6, 3), 60 * step, np.uint8)], step)
            hum = np.sin(np.arange(8000 * 120) / 9) / 100
            writer.audio("hum", [hum], step, rate=8000)
    return site


@pytest.fixture(scope="module")
def watched(new_visitor, media: Site) -> Watched:
    page = new_visitor()
    watched = Watched(page)
    page.goto(media.link("second"))
    wait_for_words(page.locator("runs-data-table"), "moving")
    watched.has_asked(2)  # what was read when the page came is on it
    return watched


def more(site: Site, step: int) -> None:
    with EventWriter(site.second / "growing") as writer:
        writer.scalar("loss", 0.125, step)


def test_new_points_and_runs_appear_by_themselves(watched: Watched, site: Site):
    place = open_tab(watched.page, "timeseries", "metrics-dashboard")
    place.locator("metrics-tag-filter input").fill("^loss$")
    card = place.locator("metrics-filtered-view scalar-card")
    wait_for_words(card, "loss", "growing")
    more(site, 25)
    eventually(watched.page, lambda: data_table(card)["growing"]["Step"] == "25")
    with EventWriter(site.second / "by itself") as writer:
        writer.scalar("loss", 0.5, 25)
    eventually(watched.page, lambda: "by itself" in run_list(watched.page))
    eventually(watched.page, lambda: "by itself" in data_table(card))


def test_nothing_is_loaded_anew_while_nothing_changes(watched: Watched):
    before = watched.reloads
    watched.has_asked(3)
    assert watched.reloads == before


def test_a_slider_stays_where_it_was_moved(watched: Watched, site: Site):
    place = open_tab(watched.page, "images", "tf-image-dashboard")
    image = place.locator("tf-image-loader").filter(has_text="shade")
    slider = image.locator("paper-slider#steps")
    slider.focus()
    for _ in range(2):
        slider.press("ArrowLeft")
    eventually(watched.page, lambda: slider.evaluate("slider => slider.value") == 1)
    before = watched.reloads
    more(site, 35)
    watched.has_asked(3)
    assert slider.evaluate("slider => slider.value") == 1
    assert watched.reloads == before
    for _ in range(2):
        slider.press("ArrowRight")
    eventually(watched.page, lambda: watched.reloads > before)


def test_a_sound_plays_on(watched: Watched, site: Site):
    place = open_tab(watched.page, "audio", "tf-audio-dashboard")
    player = place.locator("tf-audio-loader").filter(has_text="hum").locator("audio")
    eventually(watched.page, lambda: player.evaluate("player => player.readyState") == 4)
    player.evaluate("player => player.play()")
    began = player.evaluate("player => player.currentTime")
    before = watched.reloads
    more(site, 40)
    watched.has_asked(3)
    assert watched.reloads == before
    assert not player.evaluate("player => player.paused")
    assert player.evaluate("player => player.currentTime") > began + 1
    player.evaluate("player => player.pause()")
    eventually(watched.page, lambda: watched.reloads > before)


def test_whoever_switched_reloading_off_is_left_alone(watched: Watched, site: Site):
    watched.page.evaluate(
        """() => {
          const place = '_tb_global_settings';
          const settings = JSON.parse(localStorage.getItem(place));
          localStorage.setItem(place, JSON.stringify({...settings, autoReload: false}));
        }"""
    )
    loaded, asked = watched.reloads, watched.questions
    watched.page.reload()
    wait_for_words(watched.page.locator("tf-audio-dashboard"), "hum")
    eventually(watched.page, lambda: watched.questions > asked and watched.reloads > loaded)
    before = watched.reloads, watched.questions
    more(site, 45)
    watched.page.wait_for_timeout(12_000)
    assert (watched.reloads, watched.questions) == before
