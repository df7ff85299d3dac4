"""What a user sees of the console: runs in a table, curves, and nothing that a run could plant."""

import re

import pytest

from tests.browser.page import eventually, words
from tests.hub.hubs import create, log_run, served

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("console") / "logs"
    for number in range(4):
        values = [1 / (1 + step * (number + 1)) for step in range(200)]
        hparams = {"lr": 0.1 / 10**number, "optimizer": "adam" if number % 2 else "sgd"}
        log_run(root, f"cifar10/run{number}", values, hparams=hparams, job="7", user=HOSTILE)
    log_run(root, "hostile/run", [1.0], hparams={HOSTILE: HOSTILE}, tags={HOSTILE: HOSTILE})
    return root


@pytest.fixture(scope="module")
def hub(root):
    with served(root.parent, [root]) as found:
        yield found


@pytest.fixture(scope="module")
def link(hub):
    """Return a link that opens a page of the console in a browser without a session."""

    def link(path):
        user = hub.hub.auth.user("anna")
        return f"{hub.url}{path}{'&' if '?' in path else '?'}key={hub.hub.auth.mint_key(user)[0]}"

    return link


def opened(new_visitor, link, path):
    page = new_visitor()
    page.goto(link(path))
    eventually(page, lambda: "live" in words(page.locator("body > header")))
    return page


def runs_on(page):
    return [text for text in page.locator("tbody tr td:nth-child(2)").all_inner_texts() if text]


def test_the_front_page_is_a_table_of_runs(new_visitor, link):
    page = opened(new_visitor, link, "/")
    eventually(page, lambda: len(runs_on(page)) == 5)
    assert {f"cifar10/run{number}" for number in range(4)} < set(runs_on(page))
    head = [text.strip(" ▾") for text in page.locator("thead th").all_inner_texts()]
    assert {"run", "state", "lr", "optimizer", "created", HOSTILE} <= set(head)
    # No record names a metric, so there are curves of what was logged.
    eventually(page, lambda: "loss ∿" in page.locator("thead").inner_text())
    page.close()


def test_the_address_is_the_view(new_visitor, link, complaints):
    page = opened(new_visitor, link, "/runs")
    page.keyboard.press("/")
    page.keyboard.insert_text('hparams.optimizer == "sgd"')
    page.keyboard.press("Enter")
    eventually(page, lambda: runs_on(page) == ["cifar10/run0", "cifar10/run2"])
    page.get_by_role("button", name="lr", exact=True).click()
    eventually(page, lambda: "sort=-hparams" in page.url)
    page.reload()
    eventually(page, lambda: runs_on(page) == ["cifar10/run0", "cifar10/run2"])
    page.go_back()
    page.go_back()
    eventually(page, lambda: len(runs_on(page)) == 5)
    page.keyboard.press("/")
    page.keyboard.type("stat == 1")
    page.keyboard.press("Enter")
    note = page.locator(".note")
    eventually(page, lambda: "Did you mean 'state'?" in note.inner_text())
    assert "^^^^" in note.inner_text()
    page.close()
    complaints.expect("400")


def test_keys_select_runs_and_compare_them(new_visitor, link):
    page = opened(new_visitor, link, "/runs?sort=run")
    eventually(page, lambda: len(runs_on(page)) == 5)
    for key in ("x", "j", "x", "c"):
        page.keyboard.press(key)
    eventually(page, lambda: page.locator("h1").inner_text() == "Compare 2 runs")
    assert page.url.count("run=") == 2
    eventually(page, lambda: page.locator("figure.chart").count() == 1)
    page.keyboard.press("Control+k")
    page.keyboard.type("storage")
    page.keyboard.press("Enter")
    eventually(page, lambda: page.url.endswith("/storage"))
    page.keyboard.press("?")
    eventually(page, lambda: page.locator("dialog").is_visible())
    page.close()


def test_keys_work_after_a_link_of_the_header(new_visitor, link):
    page = opened(new_visitor, link, "/runs?sort=run")
    pages = page.get_by_role("navigation", name="Pages")
    pages.get_by_role("link", name="Boards").click()
    page.get_by_role("main", name="Boards").wait_for()
    for _ in range(2):  # the second time it is the page that is shown
        pages.get_by_role("link", name="Runs").click()
        page.get_by_role("main", name="Runs").wait_for()
        assert page.evaluate("document.activeElement.tagName") == "MAIN"
    eventually(page, lambda: len(runs_on(page)) == 5)
    page.keyboard.press("j")
    eventually(page, lambda: page.locator("tbody tr").nth(1).get_attribute("class") == "active")
    second = runs_on(page)[1]
    page.keyboard.press("Enter")
    eventually(page, lambda: page.locator("h1").inner_text() == second)
    page.close()


@pytest.mark.parametrize(("platform", "keys"), [("Linux x86_64", "Ctrl K"), ("MacIntel", "⌘K")])
def test_keys_are_named_as_on_the_keyboard(new_visitor, link, platform, keys):
    page = new_visitor()
    script = f"Object.defineProperty(navigator, 'platform', {{get: () => '{platform}'}})"
    page.add_init_script(script)
    page.goto(link("/boards"))
    eventually(page, lambda: keys in words(page.locator("body > header")))
    page.close()


def test_a_run_shows_what_it_was_and_its_curve_grows(new_visitor, link, root):
    page = opened(new_visitor, link, "/runs?sort=run")
    page.get_by_role("link", name="cifar10/run1").click()
    eventually(page, lambda: page.locator("figure.chart").count() == 1)
    assert re.search("/runs/[0-9a-f]{8}(:|%3A)cifar10(:|%3A)run1$", page.url)
    assert {"lr", "0.01", "optimizer", "adam"} <= set(words(page.locator(".about")))
    page.reload()
    eventually(page, lambda: page.locator("figure.chart").count() == 1)
    nothing = page.get_by_text("No output.")
    nothing.wait_for()
    assert page.get_by_role("region", name="Output").bounding_box()["height"] < 40
    assert page.get_by_label("Follow").count() == 0 or not page.get_by_label("Follow").is_visible()
    page.close()


def test_the_files_of_a_run_are_downloaded(new_visitor, link, root, tmp_path):
    page = opened(new_visitor, link, "/runs?sort=run")
    page.get_by_role("link", name="cifar10/run1").click()
    page.get_by_role("heading", name="Doctor").wait_for()
    for text in ("Looking for boards…", "Reading the run…"):  # what replaces it moves the rest
        page.get_by_text(text).wait_for(state="detached")
    page.locator("summary", has_text="Files").click()
    with page.expect_download() as downloading:
        page.locator("dl.facts div", has_text="run.json").get_by_role("link").click()
    downloading.value.save_as(tmp_path / "record")
    assert downloading.value.suggested_filename == "run.json"
    assert (tmp_path / "record").read_bytes() == (root / "cifar10/run1/run.json").read_bytes()
    page.close()


def test_recent_runs_are_offered_to_compare(new_visitor, link):
    page = opened(new_visitor, link, "/compare")
    page.get_by_role("checkbox", name="hostile/run").uncheck()
    page.get_by_role("button", name="Compare 4 runs").click()
    eventually(page, lambda: page.locator("h1").inner_text() == "Compare 4 runs")
    assert "hostile" not in page.url
    # A chart alone has most of the page.
    chart = page.locator("figure.chart")
    eventually(page, lambda: chart.count() == 1 and chart.bounding_box()["height"] > 400)
    assert chart.bounding_box()["width"] > 800
    page.close()


def test_new_runs_appear_by_themselves(new_visitor, link, root):
    page = opened(new_visitor, link, "/runs")
    eventually(page, lambda: len(runs_on(page)) == 5)
    log_run(root, "cifar10/late", [1.0], hparams={"lr": 0.5})
    eventually(page, lambda: "cifar10/late" in runs_on(page))
    page.close()


@pytest.mark.parametrize("path", ["/boards", "/jobs", "/storage", "/people", "/compare"])
def test_every_page_opens(new_visitor, link, hub, path):
    with hub.client("anna") as client:
        board = create(client, "cifar10")
    page = opened(new_visitor, link, path)
    expected = {"/boards": board["name"], "/storage": "logs", "/people": "vera"}.get(path, "yet")
    eventually(page, lambda: any(expected in one for one in words(page.locator("main"))))
    page.close()
