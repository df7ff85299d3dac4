"""What a user does with the table of runs: narrow, sort, group, select, change and delete."""

import json
import re

import pytest

from aboard.index.library import Root
from tests.browser.accessibility import serious_problems
from tests.browser.console_visits import visits
from tests.browser.page import eventually, words
from tests.hub.hubs import log_run, served
from tests.waiting import until

pytestmark = pytest.mark.engine("chromium")

DOOMED = "where=experiment+%3D%3D+%22doomed%22"
HOSTILE = '<img src=x onerror="alert(1)">'


def seed(root):
    for number in range(6):
        values = [1 / (1 + step * (number + 1)) for step in range(50)]
        log_run(
            root,
            f"cifar10/run{number}",
            values,
            hparams={"lr": 0.1 / 10 ** (number % 3), "optimizer": "adam" if number % 2 else "sgd"},
            metrics={"loss": values[-1]},
            state="failed" if number == 5 else "completed",
            exit_code=3 if number == 5 else 0,
            created=1_700_000_000.0 + number,
            user="anna",
            host=f"node{number}",
        )
    log_run(
        root,
        f"hostile/{HOSTILE.replace('/', '')}",
        [1.0],
        hparams={HOSTILE: HOSTILE},
        tags={HOSTILE: HOSTILE},
        host=HOSTILE,
        user="anna",
        state="completed",
        created=1_600_000_000.0,
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("console-runs") / "logs"
    seed(root)
    return root


@pytest.fixture(scope="module")
def hub(root):
    with served(root.parent, [root]) as found:
        with found.client("anna") as client:
            until(lambda: client.get("/api/v1/runs").json()["total"] == 7)
        yield found


@pytest.fixture
def opened(new_visitor, hub):
    """Return a function that opens a page of the console as a user."""
    pages = []

    def opened(path, user="anna"):
        page = new_visitor()
        pages.append(page)
        key = hub.hub.auth.mint_key(hub.hub.auth.user(user))[0]
        page.goto(f"{hub.url}{path}{'&' if '?' in path else '?'}key={key}")
        eventually(page, lambda: "live" in words(page.locator("header")))
        eventually(page, lambda: page.locator("tbody tr").count() > 0)
        return page

    yield opened
    for page in pages:
        page.close()


def column(page, title):
    """Return the texts of a column, by its heading."""
    heads = [text.strip(" ▾▴12") for text in page.locator("thead th").all_inner_texts()]
    at = heads.index(title) + 1
    cells = page.locator(f"tbody tr td:nth-child({at})").all_inner_texts()
    return [text.strip("\u2007\u2008 ") for text in cells]


def runs_on(page):
    return column(page, "run")


def shows(page, *runs):
    eventually(page, lambda: runs_on(page) == list(runs))


def cifar10(*numbers):
    return [f"cifar10/run{number}" for number in numbers]


def type_filter(page, text):
    page.keyboard.press("/")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)  # at once: half a condition is wrong


def test_columns_suit_the_runs(opened):
    page = opened("/runs?selector=cifar10")
    shows(page, *cifar10(5, 4, 3, 2, 1, 0))  # the newest first
    assert column(page, "lr") == ["0.001", "0.01", "0.1"] * 2
    assert column(page, "state")[0] == "✗ failed (3)"
    assert column(page, "state")[1:] == ["✓ completed"] * 5
    eventually(page, lambda: page.locator("svg.spark path").count() == 6)
    cell = page.locator("tbody tr").nth(0).locator("td.number span[title]")
    loss = cell.last.get_attribute("title")
    assert float(loss) == pytest.approx(1 / (1 + 49 * 6))
    eventually(page, lambda: "6 of 7 runs" in words(page.locator(".bar")))


@pytest.mark.parametrize("width", [390, 1280])
def test_a_sparkline_is_visible_without_scrolling(opened, width):
    page = opened("/runs?selector=cifar10")
    page.set_viewport_size({"width": width, "height": 800})
    page.reload()
    spark = page.locator("svg.spark").first
    spark.wait_for()
    box = spark.bounding_box()
    assert box["x"] + box["width"] <= width
    page.close()


def test_the_filter_completes_and_explains(opened, complaints):
    page = opened("/runs")
    type_filter(page, "hparams.opt")
    choices = page.get_by_role("option")
    eventually(
        page, lambda: choices.all_inner_texts()[:1] and "optimizer" in choices.nth(0).inner_text()
    )
    page.keyboard.press("Tab")
    box = page.get_by_role("combobox", name="Filter")
    eventually(page, lambda: box.input_value() == "hparams.optimizer ")
    page.keyboard.insert_text("== ")
    eventually(page, lambda: any('"sgd"' in text for text in choices.all_inner_texts()))
    page.get_by_role("option", name='"sgd"').click()
    eventually(page, lambda: box.input_value() == 'hparams.optimizer == "sgd" ')
    eventually(page, lambda: "3 runs" in page.locator(".filter .below").inner_text())
    page.keyboard.press("Enter")
    shows(page, *cifar10(4, 2, 0))
    assert "where=hparams.optimizer" in page.url
    # What is wrong is said while it is typed, and the rows stay.
    type_filter(page, 'stat == "failed" ')
    wrong = page.locator(".wrong")
    eventually(page, lambda: wrong.count() and "Did you mean 'state'?" in wrong.inner_text())
    assert "^^^^" in wrong.inner_text()
    assert runs_on(page) == cifar10(4, 2, 0)
    page.keyboard.press("Escape")
    eventually(page, lambda: box.input_value() == 'hparams.optimizer == "sgd"')
    # Names and a condition together, as the address has them.
    type_filter(page, "cifar10 where hparams.lr < 0.05")
    page.keyboard.press("Enter")
    shows(page, *cifar10(5, 4, 2, 1))
    assert "selector=cifar10" in page.url
    page.reload()
    shows(page, *cifar10(5, 4, 2, 1))
    assert box.input_value() == "cifar10 where hparams.lr < 0.05"
    complaints.expect("400")


def test_facets_narrow_the_filter(opened):
    page = opened("/runs")
    facet = page.get_by_role("region", name="state")
    failed = facet.get_by_role("button", name="failed 1")
    failed.click()
    shows(page, *cifar10(5))
    assert failed.get_attribute("aria-pressed") == "true"
    completed = facet.get_by_role("button", name="completed 6")  # still counted
    completed.click()
    eventually(page, lambda: len(runs_on(page)) == 7)
    box = page.get_by_role("combobox", name="Filter")
    assert box.input_value() == 'state in ("failed", "completed")'
    adam = page.get_by_role("region", name="hparams.optimizer").get_by_role("button", name="adam")
    adam.click()  # it stands where it stood before
    shows(page, *cifar10(5, 3, 1))
    page.go_back()
    eventually(page, lambda: len(runs_on(page)) == 7)
    page.get_by_role("combobox", name="Add a facet").select_option("host")
    page.get_by_role("region", name="host").get_by_role("button", name="node3").click()
    shows(page, *cifar10(3))
    page.go_back()
    eventually(page, lambda: len(runs_on(page)) == 7)


def test_headings_sort_move_and_resize(opened):
    page = opened("/runs?selector=cifar10&column=run&column=hparams.lr&column=metrics.loss.max")
    shows(page, *cifar10(5, 4, 3, 2, 1, 0))
    eventually(page, lambda: column(page, "loss max") == ["1"] * 6)
    lr = page.get_by_role("button", name="lr", exact=True)
    lr.click()
    eventually(page, lambda: column(page, "lr") == ["0.1"] * 2 + ["0.01"] * 2 + ["0.001"] * 2)
    lr.click()
    eventually(page, lambda: column(page, "lr") == ["0.001"] * 2 + ["0.01"] * 2 + ["0.1"] * 2)
    page.get_by_role("button", name="run", exact=True).click(modifiers=["Shift"])
    shows(page, *cifar10(5, 2, 4, 1, 3, 0))
    assert re.search("sort=hparams.lr&sort=-run", page.url)
    page.reload()
    shows(page, *cifar10(5, 2, 4, 1, 3, 0))

    def heads():
        return [text.strip(" ▾▴12\n") for text in page.locator("thead th").all_inner_texts()][1:]

    lr.focus()
    page.keyboard.press("Alt+ArrowLeft")
    eventually(page, lambda: heads() == ["lr", "run", "loss max"])
    page.locator("th", has_text="loss max").drag_to(page.locator("th", has_text="lr"))
    eventually(page, lambda: heads() == ["loss max", "lr", "run"])
    width = page.locator("th", has_text="lr").bounding_box()["width"]
    grip = page.locator("th", has_text="lr").locator(".grip").bounding_box()
    page.mouse.move(grip["x"] + 3, grip["y"] + 8)
    page.mouse.down()
    page.mouse.move(grip["x"] + 63, grip["y"] + 8, steps=4)
    page.mouse.up()
    eventually(page, lambda: f"hparams.lr%40{round(width + 60)}" in page.url)
    lr.focus()
    page.keyboard.press("Alt+Shift+ArrowRight")
    eventually(page, lambda: f"hparams.lr%40{round(width + 76)}" in page.url)
    page.reload()
    eventually(page, lambda: heads() == ["loss max", "lr", "run"])
    page.keyboard.press("o")
    page.get_by_role("checkbox", name="host").check()
    page.get_by_role("checkbox", name="metrics.loss curve").check()
    page.get_by_role("button", name="Remove metrics.loss.max").click()
    page.get_by_role("button", name="Done").click()
    eventually(page, lambda: heads() == ["lr", "run", "host", "loss ∿"])


def test_groups_have_counts_and_means(opened):
    page = opened("/runs?selector=cifar10")
    page.keyboard.press("g")
    page.get_by_role("checkbox", name="hparams.optimizer").check()
    page.keyboard.press("Escape")
    eventually(page, lambda: "⌀ loss" in words(page.locator("thead")))
    assert column(page, "optimizer") == ["adam", "sgd"]
    assert column(page, "runs") == ["3", "3"]
    assert float(column(page, "⌀ lr")[1]) == pytest.approx((0.1 + 0.001 + 0.01) / 3)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    shows(page, *cifar10(4, 2, 0))
    assert 'hparams.optimizer == "sgd"' in page.get_by_role("combobox", name="Filter").input_value()


def test_a_board_of_selected_runs_opens(opened, hub):
    page = opened("/runs?selector=cifar10&sort=run")
    for key in ("x", "j", "Shift+j"):
        page.keyboard.press(key)
    eventually(page, lambda: "3 selected" in words(page.locator(".tray")))
    page.reload()
    eventually(page, lambda: "3 selected" in words(page.locator(".tray")))
    page.keyboard.press("b")
    eventually(page, lambda: "/b/" in page.url)
    found = re.search("/b/([^/]+)/", page.url)
    with hub.client("anna") as client:
        board = client.get(f"/api/v1/boards/{found[1]}").json()
    assert board["selectors"] == cifar10(0, 1, 2)


def test_selected_runs_are_compared(opened):
    page = opened("/runs?selector=cifar10&sort=run")
    page.get_by_role("checkbox", name="Select cifar10/run1").click()
    page.get_by_role("checkbox", name="Select cifar10/run3").click(modifiers=["Shift"])
    eventually(page, lambda: "3 selected" in words(page.locator(".tray")))
    page.get_by_role("checkbox", name="Select all runs").click()
    eventually(page, lambda: "6 selected" in words(page.locator(".tray")))
    page.get_by_role("button", name="Compare", exact=True).click()
    eventually(page, lambda: "/compare?" in page.url)
    assert page.url.count("run=") == 6
    page.go_back()
    eventually(page, lambda: "6 selected" in words(page.locator(".tray")))


def test_runs_are_tagged_and_annotated(opened, hub):
    page = opened("/runs?selector=cifar10&sort=run&column=run&column=tags")
    page.keyboard.press("x")
    page.keyboard.press("t")
    page.keyboard.type("score=7")
    page.keyboard.press("Enter")
    eventually(page, lambda: column(page, "tags")[0] == "score")
    page.get_by_role("button", name="Note").click()
    page.get_by_role("textbox", name="Note").fill(HOSTILE)
    page.get_by_role("button", name="Write").click()
    eventually(page, lambda: page.locator("dialog").count() == 0)
    with hub.client("anna") as client:
        run = client.get("/api/v1/runs", params={"selector": "cifar10/run0"}).json()["runs"][0]
        assert run["tags"] == {"score": 7}
        assert client.get(f"/api/v1/runs/{run['id']}").json()["note"] == HOSTILE
    page.keyboard.press("t")
    page.get_by_role("button", name="Remove the tag score").click()
    eventually(page, lambda: column(page, "tags")[0] == "")


def test_runs_are_exported(opened, tmp_path):
    page = opened(
        "/runs?selector=cifar10&sort=run&column=run&column=hparams.lr&column=metrics.loss"
    )
    page.get_by_role("checkbox", name="Select cifar10/run1").click()
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Save runs.csv").click()
    downloading.value.save_as(tmp_path / "some.csv")
    head, only = (tmp_path / "some.csv").read_text().splitlines()
    assert head == "run,hparams.lr,metrics.loss,uri"
    assert only.split(",")[:2] == ["cifar10/run1", "0.01"]
    assert float(only.split(",")[2]) == pytest.approx(1 / 99, rel=1e-6)  # in full
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("export the table")
    page.keyboard.press("Enter")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Save runs.csv").click()
    downloading.value.save_as(tmp_path / "all.csv")
    lines = (tmp_path / "all.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == cifar10(0, 1, 2, 3, 4, 5)


def test_deletion_says_what_is_lost(opened, root, hub):
    for name in ("old1", "old2"):
        log_run(root, f"doomed/{name}", [1.0], hparams={}, user="max", state="completed")
    with hub.client("max") as client:
        until(lambda: client.get(f"/api/v1/runs?{DOOMED}").json()["total"] == 2)
    page = opened(f"/runs?{DOOMED}&sort=run", user="max")
    shows(page, "doomed/old1", "doomed/old2")
    page.get_by_role("checkbox", name="Select all runs").click()
    page.get_by_role("button", name="Delete…").click()
    dialog = page.locator("dialog")
    eventually(page, lambda: "4 files" in dialog.inner_text())
    assert "doomed/old1" in dialog.inner_text()
    assert (root / "doomed/old1/run.json").exists()
    page.get_by_role("button", name="Delete 2 runs").click()
    eventually(page, lambda: dialog.count() == 0)
    assert not (root / "doomed/old1/run.json").exists()
    eventually(page, lambda: page.locator(".tray").count() == 0)


def test_runs_of_others_are_not_deleted(opened, root, complaints):
    page = opened("/runs?selector=cifar10&sort=run", user="max")
    page.keyboard.press("x")
    page.get_by_role("button", name="Delete…").click()
    dialog = page.locator("dialog")
    refusal = "max (member) may not delete runs of other users"
    eventually(page, lambda: refusal in dialog.inner_text().lower())
    assert page.get_by_role("button", name="Delete 0 runs").is_disabled()
    assert (root / "cifar10/run0/run.json").exists()
    complaints.expect("403")


def test_viewers_see_no_buttons_that_would_be_refused(opened):
    page = opened("/runs", user="vera")
    page.keyboard.press("x")
    eventually(page, lambda: "1 selected" in words(page.locator(".tray")))
    assert {"Compare", "Export"} <= set(words(page.locator(".tray")))
    assert not {"Open board", "Tag", "Note", "Delete…"} & set(words(page.locator(".tray")))


def test_views_are_saved_and_shared(opened):
    page = opened("/runs?selector=cifar10&sort=run&where=hparams.lr+%3C+0.05", user="max")
    shows(page, *cifar10(1, 2, 4, 5))
    page.get_by_role("button", name="Views").click()
    page.get_by_role("menuitem", name="Save or delete views…").click()
    page.get_by_role("textbox", name="Name").fill(HOSTILE)
    page.get_by_role("checkbox", name="Share with the team").check()
    page.get_by_role("button", name="Save", exact=True).click()
    eventually(page, lambda: HOSTILE in words(page.locator(".bar")))
    other = opened("/runs", user="mia")
    other.get_by_role("button", name="Views").click()
    other.get_by_role("menuitemradio", name=f"{HOSTILE} — max").click()
    shows(other, *cifar10(1, 2, 4, 5))
    assert other.locator("img").count() == 0
    page.get_by_role("button", name=HOSTILE).click()
    page.get_by_role("menuitem", name="Save or delete views…").click()
    page.get_by_role("button", name=f"Delete the view {HOSTILE}").click()
    eventually(page, lambda: page.locator("dialog .list li").count() == 0)


def test_order_does_not_jump_under_the_pointer(opened, root, hub):
    log_run(root, "live/run0", [1.0], hparams={"lr": 0.5}, created=1_800_000_000.0)
    with hub.client("max") as client:
        until(lambda: client.get("/api/v1/runs?selector=live").is_success)
    page = opened("/runs?selector=live")
    shows(page, "live/run0")
    page.locator("tbody tr").nth(0).hover()
    pill = page.locator(".pill")
    shown = ["live/run0"]
    # The page lists once more after it has connected: that may be just now, and show the first.
    for number in (1, 2):
        late = f"live/run{number}"
        log_run(root, late, [1.0], hparams={"lr": 0.25}, created=1.9e9 + number)
        eventually(page, lambda late=late: pill.count() or late in runs_on(page))
        if pill.count():
            break
        shown = [late, *shown]
    assert pill.inner_text() == "1 new"
    assert runs_on(page) == shown
    pill.click()
    shows(page, f"live/run{number}", *shown)
    # A value changes in its place.
    record = root / f"live/run{number}/run.json"
    held = json.loads(record.read_text())
    held["hparams"]["lr"] = 0.75
    record.write_text(json.dumps(held))
    eventually(page, lambda: column(page, "lr")[0] == "0.75")
    # The pointer is on no row: the new run is shown at once.
    page.mouse.move(5, 5)
    log_run(root, "live/last", [1.0], hparams={"lr": 0.1}, created=1.95e9)
    shows(page, "live/last", f"live/run{number}", *shown)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_used_by_everybody(opened, scheme):
    page = opened("/runs")
    page.emulate_media(color_scheme=scheme)
    page.keyboard.press("x")
    eventually(page, lambda: page.locator(".tray").count() == 1)
    assert serious_problems(page) == []
    for key in ("o", "g", "t", "?"):
        page.keyboard.press(key)
        eventually(page, lambda: page.locator("dialog").count() == 1)
        assert serious_problems(page) == []
        page.keyboard.press("Escape")
        eventually(page, lambda: page.locator("dialog").count() == 0)
    type_filter(page, "hparams.lr ")
    eventually(page, lambda: page.get_by_role("option").count() > 0)
    assert serious_problems(page) == []


def test_nothing_of_a_run_becomes_markup(opened):
    page = opened("/runs?facet=host&facet=state&selector=hostile")
    eventually(page, lambda: any(HOSTILE in text for text in words(page.locator("tbody"))))
    page.keyboard.press("x")
    page.keyboard.press("t")
    eventually(page, lambda: HOSTILE in page.locator("dialog").inner_text())
    page.keyboard.press("Escape")
    page.get_by_role("region", name="host").get_by_role("button", name=HOSTILE).click()
    eventually(page, lambda: len(runs_on(page)) == 1 and "where=" in page.url)
    assert page.locator("img").count() == 0
    page.keyboard.press("o")
    eventually(page, lambda: HOSTILE in page.locator("dialog").inner_text())
    assert page.locator("img").count() == 0


def test_runs_and_actions_are_found_by_name(opened):
    page = opened("/runs")
    page.keyboard.press("Control+k")
    page.keyboard.type("failed runs")
    eventually(page, lambda: page.get_by_role("option", name="Failed runs").count() == 1)
    page.keyboard.press("Enter")
    shows(page, *cifar10(5))
    page.keyboard.press("Control+k")
    page.keyboard.insert_text("cifar10/run3")
    eventually(page, lambda: page.get_by_role("option", name="cifar10/run3").count() == 1)
    page.keyboard.press("Enter")
    eventually(page, lambda: re.search("run3$", page.url))


def test_runs_of_several_roots_are_told_apart(new_visitor, tmp_path):
    roots = [tmp_path / "a" / "runs", tmp_path / "b" / "runs"]
    for number, root in enumerate(roots):
        for depth in (2, 3):
            hparams = {"depth": depth, "lr": 0.1}
            loss = 1.0 / (number + depth)
            log_run(root, f"exp/run{depth}", [loss], hparams=hparams, metrics={"loss": loss})
    with (
        served(tmp_path, [Root(str(root)) for root in roots]) as hub,
        visits(hub, new_visitor) as visit,
    ):
        with hub.client("anna") as client:
            until(lambda: client.get("/api/v1/runs").json()["total"] == 4)
        page = visit("/runs?sort=root&sort=run")
        expected = [("exp/run2", "a/runs"), ("exp/run3", "a/runs")]
        expected += [("exp/run2", "b/runs"), ("exp/run3", "b/runs")]
        eventually(page, lambda: "root" in page.locator("thead").inner_text())
        rows = list(zip(column(page, "run"), column(page, "root"), strict=True))
        assert rows == expected
        page.get_by_role("region", name="root").get_by_role("button", name="b/runs").click()
        eventually(page, lambda: column(page, "root") == ["b/runs"] * 2)

        page = visit("/compare?where=hparams.depth+%3D%3D+2")
        names = page.locator(".runs-beside a")
        eventually(
            page, lambda: sorted(names.all_inner_texts()) == ["a/runs: run2", "b/runs: run2"]
        )

        page = visit("/sweep")
        names = page.locator("tbody a")
        labels = [f"{root}: run{depth}" for root in ("a/runs", "b/runs") for depth in (2, 3)]
        eventually(page, lambda: sorted(names.all_inner_texts()) == labels)
        # An axis of whole numbers has no others.
        axis = page.locator(".axis", has=page.get_by_role("slider", name="depth"))
        assert axis.locator(".mark").all_inner_texts() == ["2", "3"]


def test_an_empty_hub_teaches(new_visitor, tmp_path, browser):
    (tmp_path / "none").mkdir()
    with served(tmp_path, [tmp_path / "none"]) as hub:
        page = new_visitor()
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(f"{hub.url}/?key={hub.hub.auth.mint_key(hub.hub.auth.user('anna'))[0]}")
        eventually(page, lambda: "No runs yet" in words(page.locator("main")))
        page.get_by_role("button", name="Copy the lines that log a first run").click()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert 'aboard.init("spirals"' in copied
        page.close()
