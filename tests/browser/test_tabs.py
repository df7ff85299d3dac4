"""What a person sees: every tab of TensorBoard's frontend, in a real browser, over our index."""

import json

import pytest

from aboard.events.writer import EventWriter
from tests.browser.page import (
    Complaints,
    colours,
    data_table,
    eventually,
    open_tab,
    pixel,
    reload_until,
    run_list,
    wait_for_colour,
    wait_for_words,
    words,
)
from tests.browser.two_boards import BLUE, RED, Site
from tests.tensorboard.every_kind import RUNS

pytestmark = pytest.mark.engine("chromium")

TABS = [
    "timeseries",
    "scalars",
    "custom_scalars",
    "images",
    "audio",
    "graphs",
    "distributions",
    "histograms",
    "text",
    "pr_curves",
    "hparams",
    "mesh",
]
WITH_SCALARS = [run for run in RUNS if run != "empty"]
WITH_PICTURES = sorted(run for run in WITH_SCALARS if "eval" not in run)


# Coming in.


def test_a_stranger_sees_how_to_get_in_and_nothing_else(
    new_visitor, site: Site, complaints: Complaints
):
    page = new_visitor()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    assert page.goto(site.at("second")).status == 401
    # The page itself is the only one refused, which the browser says twice.
    complaints.expect("401")
    assert asked == [site.at("second")]
    assert page.title() == "Aboard: A link or a token is needed."
    assert page.get_by_role("heading").inner_text() == "A link or a token is needed."
    assert page.locator("script").count() == 0
    content = page.content()
    for secret in ("The second", "growing", "colourful", str(site.second), site.access.token):
        assert secret not in content
    # Its style is there in spite of its own strict policy.
    assert page.locator("main").evaluate("main => getComputedStyle(main).borderRadius") == "8px"


def test_the_token_leads_to_the_board_that_was_asked_for(
    new_visitor, site: Site, complaints: Complaints
):
    page = new_visitor()
    page.goto(site.at("second"))
    complaints.expect("401")
    page.get_by_label("Token").fill(site.access.token)
    page.get_by_role("button", name="Open").click()
    page.wait_for_url(site.at("second") + "**")
    wait_for_words(page.locator("runs-data-table"), "growing")


def test_a_link_opens_in_every_browser_and_leaves_no_key_behind(new_visitor, site: Site):
    link = site.link("second")
    page = new_visitor()
    page.goto(link)
    wait_for_words(page.locator("runs-data-table"), "growing")
    assert page.url.partition("#")[0] == site.at("second")
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert page.evaluate("document.cookie") == ""
    page.reload()
    wait_for_words(page.locator("runs-data-table"), "growing")
    settings = json.loads(page.evaluate("localStorage.getItem('_tb_global_settings')"))
    assert settings["autoReload"] is True  # new data shows by itself

    other = new_visitor()
    other.goto(link)
    wait_for_words(other.locator("runs-data-table"), "growing")
    assert other.url.partition("#")[0] == site.at("second")
    assert other.evaluate("performance.getEntriesByType('navigation')[0].name") == site.at("second")


# Two boards of one process.


def test_each_board_has_its_own_title_and_runs(every, second):
    wait_for_words(every.locator("runs-data-table"), *RUNS)
    wait_for_words(second.locator("runs-data-table"), "colourful", "growing")
    assert set(run_list(every)) == set(RUNS)
    assert set(run_list(second)) == {"colourful", "growing"}
    assert every.title() == "Every kind"
    assert second.title() == "The second"


def test_the_tabs_are_those_that_have_data(every, second):
    def enabled(page):
        page.locator("[role=tab] [data-plugin-id=timeseries]").wait_for()
        tabs = page.locator("[role=tab][aria-disabled=false] [data-plugin-id]")
        return tabs.evaluate_all("tabs => tabs.map(tab => tab.dataset.pluginId)")

    assert enabled(every) == TABS
    assert enabled(second) == ["timeseries", "scalars", "images", "mesh", "projector"]


# Each tab of the board with every kind of data.


def test_time_series(every):
    place = open_tab(every, "timeseries", "metrics-dashboard")
    place.locator("metrics-tag-filter input").fill("^loss$")
    card = place.locator("metrics-filtered-view scalar-card")
    wait_for_words(card, "loss", "Run", "Value", "Step", *WITH_SCALARS)
    table = data_table(card)
    assert set(table) == set(WITH_SCALARS)
    for number, run in enumerate(RUNS[:-1]):
        assert float(table[run]["Value"]) == pytest.approx(1 / (21 + number), abs=1e-4)
        assert table[run]["Step"] == "20"
        assert table[run]["Relative"] == "20 sec"
    lines = {run: colour for run, colour in run_list(every).items() if run != "empty"}
    assert len(set(lines.values())) == len(WITH_SCALARS)

    def drawn():
        seen = colours(card.locator("line-chart"))
        return all(seen[colour] > 50 for colour in lines.values())

    eventually(every, drawn)


def test_time_series_show_images_and_histograms_too(every):
    place = open_tab(every, "timeseries", "metrics-dashboard")
    found = place.locator("metrics-filtered-view")
    place.locator("metrics-tag-filter input").fill("^weights$")
    wait_for_words(found, "weights", *WITH_PICTURES)
    # The colour of the first run is close to grey.
    wait_for_colour(found.locator("tb-histogram").nth(1))
    place.locator("metrics-tag-filter input").fill("^grey/one$")
    images = found.locator("image-card img")
    eventually(every, lambda: images.count() == len(WITH_PICTURES))
    shades = sorted(pixel(image, 0.5, 0.5)[0] for image in images.all())
    assert shades == [20, 21, 23, 24]


def test_scalars(every):
    place = open_tab(every, "scalars", "tf-scalar-dashboard")
    # Accuracy is the name that a tag gave itself.
    wait_for_words(place, "Accuracy", "accuracy", "count", "odd numbers", *RUNS)
    wait_for_colour(place.locator("vz-line-chart2").first)


def test_custom_scalars(every):
    place = open_tab(every, "custom_scalars", "tf-custom-scalar-dashboard")
    wait_for_words(place, "Losses", "loss", "band of .", "band of sweep/first", "Matches (10)")
    for chart in place.locator("vz-line-chart2").all():
        wait_for_colour(chart)


def test_a_margin_chart_of_thousands_of_steps_is_drawn(new_visitor, site: Site):
    page = new_visitor()
    page.goto(site.link("band"))
    place = open_tab(page, "custom_scalars", "tf-custom-scalar-dashboard")
    wait_for_words(place, "Noise", "a band", "Matches (1)")
    wait_for_colour(place.locator("vz-line-chart2"), pixels=2000)
    assert not [text for text in words(place) if "do not match" in text]


def test_images(every):
    place = open_tab(every, "images", "tf-image-dashboard")
    wait_for_words(place, "grey/one", "step", "20", *WITH_PICTURES)
    images = place.locator("tf-image-loader").filter(has_text="grey/one").locator("img")
    eventually(every, lambda: images.count() == len(WITH_PICTURES))
    # In the order of their names, each run with the shade that it logged.
    assert [pixel(image, 0.5, 0.5) for image in images.all()] == [
        [20 + RUNS.index(run)] * 3 for run in WITH_PICTURES
    ]


def test_images_keep_their_colours(second):
    place = open_tab(second, "images", "tf-image-dashboard")
    wait_for_words(place, "flag", "colourful", "7")
    image = place.locator("tf-image-loader img")
    assert pixel(image, 0.25, 0.5) == list(RED)
    assert pixel(image, 0.75, 0.5) == list(BLUE)


def test_audio(every):
    place = open_tab(every, "audio", "tf-audio-dashboard")
    wait_for_words(place, "sound", "sample: 1 of 2", "sample: 2 of 2", *WITH_PICTURES)
    sound = place.locator("tf-audio-loader").filter(has_text="sample: 2 of 2").first
    # 50 frames at 8,000 Hz.
    player = sound.locator("audio")
    seconds = eventually(every, lambda: player.evaluate("player => player.duration || 0"))
    assert seconds == pytest.approx(50 / 8000)
    assert player.evaluate("player => player.error") is None


def test_graphs(every):
    place = open_tab(every, "graphs", "tf-graph-dashboard")
    nodes = place.locator("tf-graph-scene svg text")
    eventually(every, lambda: {"b", "const"} <= set(nodes.evaluate_all(_OWN_TEXTS)))
    wait_for_words(place, "sweep/first", "keras", "profiled", "step 3", "traced")


_OWN_TEXTS = "texts => texts.map(text => text.firstChild?.data?.trim())"


def test_distributions(every):
    place = open_tab(every, "distributions", "tf-distribution-dashboard")
    wait_for_words(place, "constant", "old/histogram", *WITH_PICTURES)
    wait_for_colour(place.locator("vz-distribution-chart").first)


def test_histograms(every):
    place = open_tab(every, "histograms", "tf-histogram-dashboard")
    wait_for_words(place, "constant", "old/histogram", *WITH_PICTURES)
    wait_for_colour(place.locator("vz-histogram-timeseries").first)


def test_text(every):
    place = open_tab(every, "text", "tf-text-dashboard")
    wait_for_words(place, "note", "one", "two", *WITH_PICTURES)
    # Markdown is rendered, HTML is shown as it was written.
    last = place.locator("tf-text-loader").filter(has_text="note").first.locator("tf-markdown-view")
    wait_for_words(last.first, "step", "20, <b>run</b> 0")
    assert last.first.locator("strong").inner_text() == "step"
    assert last.first.locator("b").count() == 0


def test_pr_curves(every):
    place = open_tab(every, "pr_curves", "tf-pr-curve-dashboard")
    wait_for_words(place, "curve", "step 20", *(f"{run} is at" for run in WITH_PICTURES))
    wait_for_colour(place.locator("vz-line-chart2").first)


def test_hparams(every):
    place = open_tab(every, "hparams", "tf-hparams-dashboard")
    table = place.locator("tf-hparams-table-view")
    wait_for_words(table, "bias", "rate", "optimizer", "loss", "eval.loss")
    wait_for_words(table, "group 1", "false", "0.10000", "sgd", "0.043478")


def test_mesh(second):
    place = open_tab(second, "mesh", "mesh-dashboard")
    wait_for_words(place, "pyramid", "7")
    canvas = place.locator("tf-mesh-loader canvas").first

    def reddish():
        seen = colours(canvas)
        return sum(n for (red, *others), n in seen.items() if red > 2 * max(others)) > 1000

    eventually(second, reddish)


def test_projector(second):
    frames = open_tab(second, "projector", "plugins-component iframe")
    # It is a page of its own, two frames deep.
    place = frames.content_frame.frame_locator("iframe").locator("vz-projector-app, vz-projector")
    wait_for_words(place.first, "1 tensor found", "words", "4x3", "labels.tsv", "Points:", "4")
    # The whole variance of four points in three dimensions.
    wait_for_words(place.first, "Total variance described: 100.0%.")
    drawing = place.first.locator("#scatter canvas").first

    def dots():
        # The axes fade; only a dot has many pixels of one colour.
        seen = colours(drawing)
        return any(n > 300 and max(colour) - min(colour) > 60 for colour, n in seen.items())

    eventually(second, dots)


# A board that is being written to.


def test_a_new_point_and_a_new_run_appear_without_a_restart(second, site: Site):
    place = open_tab(second, "timeseries", "metrics-dashboard")
    place.locator("metrics-tag-filter input").fill("^loss$")
    card = place.locator("metrics-filtered-view scalar-card")
    wait_for_words(card, "loss", "growing")
    assert data_table(card)["growing"]["Step"] == "3"

    with EventWriter(site.second / "growing") as writer:
        writer.scalar("loss", 0.125, 25)
    reload_until(second, lambda: data_table(card)["growing"]["Step"] == "25")
    assert data_table(card)["growing"]["Value"] == "0.125"

    with EventWriter(site.second / "late") as writer:
        writer.scalar("loss", 0.5, 25)
    reload_until(second, lambda: "late" in run_list(second))
    eventually(second, lambda: "late" in data_table(card))
    assert data_table(card)["late"]["Value"] == "0.5"
