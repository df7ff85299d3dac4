"""Curves, media and output in the console: a run, a comparison and a sweep in a real browser."""

import json
from pathlib import Path

import numpy as np
import pytest

from aboard import EventWriter
from aboard.track.shipping.segments import OUTPUT_LOG
from aboard.track.summary import SummaryWriter
from tests.browser.page import eventually, pixel, words
from tests.engines.requirements import cannot_set_up
from tests.hub.hubs import create, log_run, served
from tests.waiting import until

pytestmark = pytest.mark.engine("chromium")

HOSTILE = "<img src=x onerror=alert(1)>"
POINTS = 20_000
AXE = Path(__file__).parents[2] / "console/node_modules/axe-core/axe.min.js"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("charts") / "logs"
    for number in range(6):
        rate = 0.1 / 10 ** (number % 3)
        noise = np.random.default_rng(number).normal(size=400) / 50
        values = np.exp(-np.arange(400) * rate / 4) + noise + number / 50
        hparams = {"lr": rate, "depth": 2 + number % 2, "seed": 7, "optimizer": "ad" * (number % 2)}
        directory = log_run(
            root, f"spirals/run{number}", values.tolist(), hparams=hparams, host="n01"
        )
        with EventWriter(directory) as writer:
            for step in range(100):
                writer.scalar("eval/acc", step / 100 + number / 20, step * 4)
    long = root / "long/run1"
    log_run(root, "long/run1", [1.0], hparams={"lr": 1})
    with EventWriter(long) as writer:
        for step in range(POINTS):
            writer.scalar("wave", float(np.sin(step / 10)), step)
    with SummaryWriter(long) as writer:
        for step in (0, 10, 20):
            writer.add_image("picture", np.full((3, 8, 8), 10 * step, np.uint8), step)
            writer.add_histogram("weights", np.random.default_rng(1).normal(size=500) + step, step)
            writer.add_text("notes", f"{HOSTILE} at {step}", step)
    hostile = log_run(
        root, "hostile/run", [1.0, 2.0], tag=HOSTILE, hparams={HOSTILE: HOSTILE}, note=HOSTILE
    )
    with SummaryWriter(hostile) as writer:
        writer.add_image(HOSTILE, np.zeros((3, 4, 4), np.uint8), 1)
    output = hostile / OUTPUT_LOG
    output.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f"\x1b[31mred\x1b[0m {HOSTILE}",
        "10%\r50%\r100%",
        *(f"line {at}" for at in range(300)),
    ]
    output.write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture(scope="module")
def hub(root):
    with served(root.parent, [root]) as found:
        yield found


@pytest.fixture(scope="module")
def ids(hub, root):
    with hub.client("anna") as client:
        runs = until(lambda: client.get("/api/v1/runs").json()["runs"])
    return {f"{one['experiment']}/{one['name']}": one["id"] for one in runs}


@pytest.fixture(scope="module")
def show(hub, new_visitor):
    """Open a page of the console in a browser without a session."""

    def show(path, **options):
        user = hub.hub.auth.user("anna")
        page = new_visitor()
        page.set_viewport_size({"width": 1280, "height": 900, **options})
        key = hub.hub.auth.mint_key(user)[0]
        page.goto(f"{hub.url}{path}{'&' if '?' in path else '?'}key={key}")
        eventually(page, lambda: "live" in words(page.locator("body > header")))
        return page

    return show


def compared(ids, *labels, **query):
    chosen = "&".join(f"run={ids[label]}" for label in labels)
    return f"/compare?{chosen}" + "".join(f"&{name}={value}" for name, value in query.items())


def chart(page, title):
    return page.locator("figure.chart").filter(has=page.locator(f'.name[title="{title}"]'))


def drawn(page, title, curves):
    """Wait until a chart shows so many curves, and return what it says of itself."""

    def look():
        found = chart(page, title)
        if found.count() != 1:
            return None
        data = found.evaluate("figure => ({...figure.dataset})")
        is_there = int(data.get("curves", 0)) == curves and int(data["points"]) > 0
        return data if is_there and "waits" not in found.get_attribute("class") else None

    return eventually(page, look)


def span(data):
    low, high = map(float, data["range"].split("~"))
    return low, high


def dragged(page, title, start, end, key=None):
    box = chart(page, title).locator(".plot").bounding_box()
    if key:
        page.keyboard.down(key)
    page.mouse.move(box["x"] + box["width"] * start, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * (start + end) / 2, box["y"] + 90)
    page.mouse.move(box["x"] + box["width"] * end, box["y"] + 80)
    page.mouse.up()
    if key:
        page.keyboard.up(key)


def ink(page, title):
    """Count the coloured pixels of a chart's canvas."""
    return (
        chart(page, title)
        .locator("canvas")
        .first.evaluate(
            """canvas => {
          const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          let count = 0;
          for (let at = 0; at < data.length; at += 4) {
            const [red, green, blue, alpha] = data.slice(at, at + 4);
            const spread = Math.max(red, green, blue) - Math.min(red, green, blue);
            if (alpha > 100 && spread > 60) count++;
          }
          return count;
        }"""
        )
    )


def check_axe(page):
    if not AXE.exists():
        cannot_set_up("needs axe-core: make console")
    # The page's own policy forbids scripts that it did not bring; this one comes by the debugger.
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        (one["id"], [node["html"][:200] for node in one["nodes"]])
        for one in found["violations"]
        if one["impact"] in {"serious", "critical"}
    ]
    assert serious == []


def test_curves_of_several_runs_share_charts(show, ids):
    page = show(compared(ids, "spirals/run0", "spirals/run1", "spirals/run2"))
    assert int(drawn(page, "loss", 3)["points"]) == 1200
    drawn(page, "eval/acc", 3)
    eventually(page, lambda: ink(page, "loss") > 300)
    beside = words(page.locator(".runs-beside"))
    assert {"run0", "run1", "run2", "lr", "depth", "0.01"} <= set(beside)
    assert "seed" not in beside  # it is the same in all of them
    check_axe(page)
    page.close()


def test_the_toolbar_of_a_comparison_is_one_line(show, ids):
    page = show(compared(ids, "spirals/run0", "spirals/run1"))
    drawn(page, "loss", 2)
    bar = page.locator(".bar")
    assert bar.bounding_box()["height"] <= 44
    page.get_by_label("group").select_option("hparams.lr")
    page.get_by_label("band").wait_for()
    assert bar.bounding_box()["height"] <= 44
    page.close()


def test_a_drag_zooms_all_charts_and_brings_full_resolution(show, ids):
    page = show(compared(ids, "long/run1"))
    whole = drawn(page, "wave", 1)
    assert int(whole["points"]) == 1000
    asked = []
    page.on(
        "request",
        lambda one: one.url.endswith("/series") and asked.append(json.loads(one.post_data)),
    )
    dragged(page, "wave", 0.4, 0.42)
    eventually(page, lambda: "zoom=" in page.url)
    low, high = span(drawn(page, "wave", 1))
    assert 0 < low < high < POINTS / 10 * 6
    wish = eventually(page, lambda: [one for one in asked if "start" in one])[-1]
    assert low - 50 <= wish["start"] <= low
    assert high <= wish["stop"] <= high + 50
    # All points of the window, and those around it as they were.
    eventually(page, lambda: int(drawn(page, "wave", 1)["points"]) > 1000)
    assert span(drawn(page, "loss", 1)) == (low, high)
    page.reload()
    assert span(drawn(page, "wave", 1)) == pytest.approx((low, high))
    dragged(page, "wave", 0.6, 0.3, key="Shift")
    eventually(page, lambda: span(drawn(page, "wave", 1))[0] > low)
    chart(page, "wave").locator(".plot").dblclick()
    eventually(page, lambda: "zoom=" not in page.url)
    assert span(drawn(page, "wave", 1)) == span(whole)
    page.go_back()
    eventually(page, lambda: "zoom=" in page.url)
    page.close()


def test_smoothing_axes_and_scales_are_of_the_server(show, ids):
    page = show(compared(ids, "spirals/run0", "spirals/run3"))
    drawn(page, "loss", 2)
    asked = []
    page.on(
        "request",
        lambda one: one.url.endswith("/series") and asked.append(json.loads(one.post_data)),
    )
    slider = page.get_by_role("slider", name="smooth")
    slider.fill("0.9")
    eventually(page, lambda: "smooth=0.9" in page.url)
    eventually(page, lambda: any(one["smoothing"] == 0.9 for one in asked))
    drawn(page, "loss", 2)
    page.get_by_label("x", exact=True).select_option("relative_time")
    eventually(page, lambda: any(one["x"] == "relative_time" for one in asked))
    page.get_by_label("x", exact=True).select_option("eval/acc")
    eventually(page, lambda: any(one.get("metric") == "eval/acc" for one in asked))
    low, high = span(drawn(page, "loss", 2))
    assert -0.1 < low < high < 2
    page.get_by_role("button", name="Logarithmic y-axis").click()
    eventually(page, lambda: "log=y" in page.url)
    drawn(page, "loss", 2)
    page.close()


def test_groups_have_a_mean_and_a_band(show, ids):
    labels = [f"spirals/run{number}" for number in range(6)]
    page = show(compared(ids, *labels))
    drawn(page, "loss", 6)
    page.get_by_label("group").select_option("hparams.lr")
    drawn(page, "loss", 3)
    eventually(page, lambda: "lr=0.01" in words(page.locator(".runs-beside")))
    assert words(page.locator(".runs-beside")).count("2 runs") == 3
    page.get_by_label("band").select_option("minmax")
    eventually(page, lambda: "band=minmax" in page.url)
    drawn(page, "loss", 3)
    page.reload()
    drawn(page, "loss", 3)
    check_axe(page)
    page.close()


def test_the_cursor_stands_on_all_charts_and_sorts_the_runs(show, ids):
    page = show(compared(ids, "spirals/run0", "spirals/run2"))
    drawn(page, "loss", 2)
    drawn(page, "eval/acc", 2)
    box = chart(page, "loss").locator(".plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 60)
    eventually(page, lambda: any(one.startswith("at 3") for one in words(page.locator(".at"))))
    rows = page.locator(".runs-beside tbody tr")
    assert [rows.nth(at).locator(".who a").inner_text() for at in range(2)] == ["run2", "run0"]
    values = [float(rows.nth(at).locator("td.number").inner_text()) for at in range(2)]
    assert values == sorted(values, reverse=True)
    page.mouse.move(5, 5)
    eventually(page, lambda: "at the end" in words(page.locator(".at")))
    rows.nth(0).hover()
    rows.nth(0).get_by_role("button", name="Focus").click()
    eventually(page, lambda: "focus=" in page.url)
    page.keyboard.press("Escape")
    eventually(page, lambda: "focus=" not in page.url)
    page.get_by_role("button", name="Show run0").click()
    drawn(page, "loss", 1)
    page.close()


def test_several_metrics_on_a_pinned_chart(show, ids):
    page = show(compared(ids, "spirals/run0", "spirals/run1"))
    drawn(page, "loss", 2)
    chart(page, "loss").hover()
    chart(page, "loss").get_by_role("button", name="Chart loss").click()
    page.get_by_role("menuitem", name="Metrics on this chart").click()
    page.get_by_role("dialog").get_by_label("eval/acc").check()
    page.get_by_role("button", name="Show 2 metrics").click()
    drawn(page, "loss, eval/acc", 4)
    assert page.locator("figure.chart").count() == 1
    page.reload()
    drawn(page, "loss, eval/acc", 4)
    chart(page, "loss, eval/acc").get_by_role("button", name="Unpin").click()
    drawn(page, "eval/acc", 2)
    page.get_by_role("searchbox", name="Filter metrics").fill("acc")
    eventually(page, lambda: page.locator("figure.chart").count() == 1)
    page.close()


def saved(page, title, entry):
    chart(page, title).hover()
    chart(page, title).get_by_role("button", name=f"Chart {title}").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name=entry).click()
    return Path(download.value.path()).read_bytes()


def test_a_chart_is_saved_as_table_and_picture(show, ids):
    page = show(compared(ids, "spirals/run0", "spirals/run1"))
    drawn(page, "eval/acc", 2)
    lines = saved(page, "eval/acc", "Save all points as CSV").decode().splitlines()
    assert lines[:3] == ["run,tag,x,y", "spirals/run0,eval/acc,0,0", lines[2]]
    assert len(lines) == 201
    run, tag, x, y = lines[-1].split(",")
    assert (run, tag, x, float(y)) == ("spirals/run1", "eval/acc", "396", pytest.approx(1.04))
    svg = saved(page, "eval/acc", "Save as SVG").decode()
    assert svg.startswith("<svg ")
    assert svg.count(">run0</text>") == 1
    assert saved(page, "eval/acc", "Save as PNG").startswith(b"\x89PNG")
    page.close()


def test_images_and_histograms_follow_one_slider(show, ids):
    page = show(compared(ids, "long/run1"), height=1400)
    picture = page.locator('[data-media="picture"] img')
    eventually(page, lambda: picture.count() == 1)
    assert pixel(picture, 0.5, 0.5) == [200, 200, 200]
    page.get_by_role("slider", name="Step of images").fill("10")
    eventually(page, lambda: "step=10" in page.url)
    eventually(page, lambda: pixel(picture, 0.5, 0.5) == [100, 100, 100])
    histogram = page.locator('[data-media="weights"] svg')
    assert "500 values" in histogram.get_attribute("aria-label")
    assert f"{HOSTILE} at 10" in words(page.locator('[data-media="notes/text_summary"]'))
    check_axe(page)
    page.close()


def test_new_points_extend_the_curve(show, ids, root):
    log_run(root, "growing/run1", [1.0, 2.0], hparams={"lr": 1})
    page = show("/compare?selector=growing")
    assert int(drawn(page, "loss", 1)["points"]) == 2
    with EventWriter(root / "growing/run1") as writer:
        for step in range(2, 52):
            writer.scalar("loss", 1.0, step)
    eventually(page, lambda: int(drawn(page, "loss", 1)["points"]) == 52)
    page.close()


def test_a_run_in_full(show, ids, hub):
    with hub.client("anna") as client:
        create(client, "long", name="watched", visibility="team")
    page = show(f"/runs/{ids['long/run1']}", height=2400)
    drawn(page, "wave", 1)
    about = page.locator(".about")
    eventually(page, lambda: "watched" in words(about))
    eventually(page, lambda: page.locator('[data-media="picture"] img').count() == 1)
    page.get_by_role("button", name="Add a note").click()
    page.get_by_role("textbox", name="Note").fill(f"Good. {HOSTILE}")
    page.get_by_role("button", name="Save note").click()
    eventually(page, lambda: f"Good. {HOSTILE}" in words(about))
    page.get_by_role("textbox", name="Add a tag").fill("best=yes")
    page.keyboard.press("Enter")
    eventually(page, lambda: "best=yes" in words(about))
    page.get_by_role("button", name="Remove the tag best").click()
    eventually(page, lambda: "best=yes" not in words(about))
    page.locator("summary", has_text="Files").click()
    eventually(page, lambda: "run.json" in words(about))
    check_axe(page)
    page.close()


def test_output_has_colours_and_a_search_and_nothing_becomes_markup(show, ids):
    page = show(f"/runs/{ids['hostile/run']}", height=1600)
    log = page.get_by_role("region", name="Output")
    eventually(page, lambda: "line 299" in words(log))
    page.get_by_role("searchbox", name="Search in output").fill("100%")
    eventually(page, lambda: "1 line" in words(page.locator(".log")))
    page.keyboard.press("Enter")
    red = log.locator("[style*='--ansi-red']")
    eventually(page, lambda: red.count() == 1)
    assert red.inner_text() == "red"
    assert f" {HOSTILE}" in log.inner_text()
    assert "50%" not in log.inner_text()  # as a terminal, which goes back to the beginning
    assert HOSTILE in words(page.locator(".about"))
    drawn_title = page.locator("figure.chart .name")
    assert drawn_title.inner_text() == HOSTILE
    assert page.locator("main img[src='x']").count() == 0
    check_axe(page)
    page.close()


def test_output_is_followed(show, root, hub):
    directory = log_run(
        root, "growing/talker", [1.0], hparams={}, state="running", started=1.0, heartbeat=4e9
    )
    output = directory / OUTPUT_LOG
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("first\n")
    with hub.client("anna") as client:
        found = client.get("/api/v1/runs", params={"selector": "growing/talker"}).json()["runs"]
    page = show(f"/runs/{found[0]['id']}")
    log = page.get_by_role("region", name="Output")
    eventually(page, lambda: "first" in words(log))
    with output.open("a") as file:
        file.write("second\n")
    eventually(page, lambda: "second" in words(log))
    page.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_their_windows(show, ids, width):
    for path in (compared(ids, "spirals/run0", "long/run1"), f"/runs/{ids['long/run1']}", "/sweep"):
        page = show(path, width=width)
        eventually(page, lambda: page.locator("canvas").count() > 0)  # noqa: B023
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.close()


def chosen_runs(page):
    return page.get_by_role("region", name="Chosen runs").locator("tbody a").all_inner_texts()


def test_a_sweep_is_brushed(show, ids):
    page = show('/sweep?where=experiment == "spirals"&metric=loss&of=min')
    eventually(page, lambda: len(chosen_runs(page)) == 6)
    strengths = page.get_by_role("region", name="Importance")
    eventually(page, lambda: {"lr", "depth", "optimizer"} <= set(words(strengths)))
    assert "seed" not in words(strengths)
    strip = page.get_by_role("slider", name="Choose runs by depth")
    box = strip.bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 10, box["y"] + box["height"] * 0.3, steps=4)
    page.mouse.up()
    eventually(page, lambda: sorted(chosen_runs(page)) == ["run1", "run3", "run5"])
    page.reload()
    eventually(page, lambda: sorted(chosen_runs(page)) == ["run1", "run3", "run5"])
    check_axe(page)
    page.get_by_role("button", name="lr", exact=True).first.click()
    eventually(page, lambda: "sort=" in page.url)
    page.get_by_role("button", name="Compare").click()
    drawn(page, "loss", 3)
    page.go_back()
    page.get_by_role("button", name="Choose all").click()
    eventually(page, lambda: len(chosen_runs(page)) == 6)
    page.close()


def test_a_sweep_of_nothing_teaches(show, ids):
    page = show('/sweep?where=user == "nobody"')
    eventually(page, lambda: "No run matches the filter" in words(page.locator("main")))
    page.close()
