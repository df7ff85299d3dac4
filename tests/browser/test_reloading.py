"""What a user sees of a board that is being written to, without pressing anything."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from aboard.events.writer import EventWriter
from tests import summaries
from tests.browser.page import data_table, eventually, open_tab, run_list, wait_for_words
from tests.browser.two_boards import Site
from tests.hub.hubs import create, log_run, served

pytestmark = pytest.mark.engine("chromium")

PERIOD = 1_000
"""Milliseconds between two polls of the page in these tests; 5,000 for users."""


def poll_often(page: Any) -> None:
    """Let a page poll more often than it does for users."""

    def shortened(route: Any) -> None:
        script = route.fetch().text()
        assert "period = 5_000" in script
        route.fulfill(
            body=script.replace("period = 5_000", f"period = {PERIOD}"),
            content_type="text/javascript",
        )

    page.route("**/aboard.js", shortened)


class Watched:
    """A page, and how often it polled its board and reloaded its data."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.polls = 0
        self.reloads = 0
        page.on("requestfinished", self._note)

    def _note(self, request: Any) -> None:
        self.polls += request.url.endswith("data/status")
        self.reloads += request.url.endswith("data/plugins_listing")

    def has_polled(self, times: int) -> None:
        """Wait until the page has polled this often from now on."""
        enough = self.polls + times
        eventually(self.page, lambda: self.polls >= enough)


@pytest.fixture(scope="module")
def media(site: Site) -> Site:
    """The site, with several steps of an image and of a sound on the board that grows."""
    with EventWriter(site.second / "moving") as writer:
        for step in range(4):
            writer.add([summaries.images("shade", [np.full((6, 6, 3), 60 * step, np.uint8)])], step)
            hum = np.sin(np.arange(8000 * 120) / 9) / 100
            writer.add([summaries.audio("hum", [hum], rate=8000)], step)
    return site


@pytest.fixture(scope="module")
def watched(new_visitor, media: Site) -> Watched:
    page = new_visitor()
    watched = Watched(page)
    poll_often(page)
    page.goto(media.link("second"))
    wait_for_words(page.locator("runs-data-table"), "moving")
    watched.has_polled(2)  # what was read when the page came is on it
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


def test_nothing_is_reloaded_while_nothing_changes(watched: Watched):
    before = watched.reloads
    watched.has_polled(3)
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
    watched.has_polled(3)
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
    watched.has_polled(3)
    assert watched.reloads == before
    assert not player.evaluate("player => player.paused")
    assert player.evaluate("player => player.currentTime") > began
    player.evaluate("player => player.pause()")
    eventually(watched.page, lambda: watched.reloads > before)


def test_a_banner_names_a_source_that_cannot_be_read(new_visitor, site: Site, complaints):
    page = new_visitor()
    poll_often(page)
    page.goto(site.link("second"))
    wait_for_words(page.locator("runs-data-table"), "growing")
    away = site.second.with_name("away")
    site.second.rename(away)
    banner = page.locator("#aboard-problems")
    problem = f"{site.second}: file or directory not found. Check the path."
    wait_for_words(banner, problem)
    away.rename(site.second)
    eventually(page, lambda: banner.count() == 0)
    # Images that the page requested meanwhile were not there.
    complaints.heard = [one for one in complaints.heard if "404" not in one]


def test_a_board_of_a_job_shows_its_run_once_it_begins(new_visitor, tmp_path):
    record = tmp_path / "logs/.jobs/sweep/job.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    with served(tmp_path, [tmp_path / "logs"]) as hub, hub.client("anna") as client:
        board = create(client, "job:sweep")
        with closing(new_visitor()) as page:
            poll_often(page)
            page.goto(client.post(f"/api/v1/boards/{board['id']}/link").json()["url"])
            wait_for_words(
                page.locator("body"), "No dashboards are active for the current data set."
            )
            log_run(tmp_path / "logs", "cifar10/sweep-1", [1.0, 0.5], job="sweep")
            eventually(page, lambda: "cifar10/sweep-1" in run_list(page))


def test_a_board_of_the_best_runs_follows_as_a_better_one_arrives(new_visitor, tmp_path):
    root = tmp_path / "logs"
    for number, best in enumerate((1.0, 2.0, 3.0, 4.0)):
        log_run(root, f"a/run{number}", [best, 0.0])
    with served(tmp_path, [root]) as hub, hub.client("anna") as client:
        board = create(client, "a", sort=["-metrics.loss.max"], limit=3)
        with closing(new_visitor()) as page:
            poll_often(page)
            page.goto(client.post(f"/api/v1/boards/{board['id']}/link").json()["url"])
            eventually(page, lambda: set(run_list(page)) == {"a/run1", "a/run2", "a/run3"})
            log_run(root, "a/run4", [9.0, 0.0])
            eventually(page, lambda: set(run_list(page)) == {"a/run2", "a/run3", "a/run4"})


def test_a_user_who_turned_reloading_off_is_left_alone(watched: Watched, site: Site):
    watched.page.evaluate(
        """() => {
          const place = '_tb_global_settings';
          const settings = JSON.parse(localStorage.getItem(place));
          localStorage.setItem(place, JSON.stringify({...settings, autoReload: false}));
        }"""
    )
    loaded, polled = watched.reloads, watched.polls
    watched.page.reload()
    wait_for_words(watched.page.locator("tf-audio-dashboard"), "hum")
    eventually(watched.page, lambda: watched.polls > polled and watched.reloads > loaded)
    before = watched.reloads, watched.polls
    more(site, 45)
    watched.page.wait_for_timeout(3 * PERIOD)
    assert (watched.reloads, watched.polls) == before
