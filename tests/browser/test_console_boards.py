"""The console's page of boards: start, open, change, share, stop and delete, as users click."""

import pytest

from aboard.boards.model import Limits
from tests.browser.accessibility import serious_problems
from tests.browser.console_visits import panel, visits
from tests.browser.page import eventually, wait_for_words, words
from tests.hub.hubs import create, log_run, served

pytestmark = pytest.mark.engine("chromium")

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("boards") / "logs"
    for number in range(3):
        log_run(root, f"cifar10/run{number}", [1.0, 0.5 + number], hparams={"lr": 10.0**-number})
    log_run(root, "mnist/run1", [3.0], job="7", user="max")
    return root


@pytest.fixture(scope="module")
def hub(root):
    with served(root.parent, [root], limits=Limits(isolated=1, instant=3)) as found:
        yield found


@pytest.fixture
def visit(hub, new_visitor):
    with visits(hub, new_visitor) as visit:
        yield visit
    with hub.client("anna") as client:
        for board in client.get("/api/v1/boards?all=true").json()["boards"]:
            client.post(f"/api/v1/boards/{board['id']}/stop", json={"now": True})


def boards_on(page):
    table = page.get_by_label("Boards", exact=True)
    return table.locator("tbody td:nth-child(1)").all_inner_texts()


def test_a_board_is_started_opened_changed_and_deleted(visit, hub):
    page = visit("/boards")
    page.get_by_text("No live boards").wait_for()
    page.keyboard.press("n")
    form = panel(page)
    form.get_by_role("button", name="+ cifar10").click()
    form.get_by_text("3 runs").wait_for()
    form.get_by_label("where", exact=True).fill("hparams.lr < 0.5")
    form.get_by_text("2 runs").wait_for()
    form.get_by_label("name", exact=True).fill("otter")
    form.get_by_label("stops after").fill("8h")
    page.reload()  # the address has the form
    assert form.get_by_label("where", exact=True).input_value() == "hparams.lr < 0.5"
    form.get_by_role("button", name="Start").click()
    panel(page).get_by_role("link", name="Open").wait_for()
    assert "board=" in page.url
    assert "where=" not in page.url
    eventually(page, lambda: boards_on(page) == ["otter"])

    about = panel(page)
    about.get_by_label("Add runs").fill("mnist")
    about.get_by_role("button", name="Add", exact=True).click()
    eventually(page, lambda: {"cifar10", "mnist"} <= set(words(about)))
    about.get_by_role("button", name="Remove mnist").click()
    eventually(page, lambda: "mnist" not in words(about))
    about.get_by_role("button", name="show to the team").click()
    about.get_by_role("button", name="hide from the team").wait_for()
    with hub.client("max") as client:
        before = client.get("/api/v1/boards/otter").json()
    assert (before["selectors"], before["visibility"]) == (["cifar10"], "team")
    about.get_by_role("button", name="Extend").click()
    page.get_by_role("menuitem", name="One more day").click()
    with hub.client("max") as client:
        eventually(
            page, lambda: client.get("/api/v1/boards/otter").json()["expires"] > before["expires"]
        )
    about.get_by_role("link", name="Open").click()
    page.wait_for_url("**/b/*/**")
    wait_for_words(page.locator("body"), "Time Series")
    page.go_back()
    about.get_by_role("button", name="Delete…").click()
    asked = page.get_by_role("dialog")
    assert "its shared links" in asked.inner_text()
    asked.get_by_role("button", name="Delete").click()
    page.get_by_text("No live boards").wait_for()
    with hub.client("max") as client:
        assert client.get("/api/v1/boards?all=true").json()["boards"] == []


def test_links_are_made_shown_once_and_revoked(visit, hub, new_visitor):
    with hub.client("max") as client:
        create(client, "cifar10", name="shared")
    page = visit("/boards")
    page.get_by_role("cell", name="shared").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("i")
    links = page.get_by_role("region", name="Links")
    links.get_by_role("button", name="Share").click()
    link = links.get_by_role("status").locator("code").inner_text()
    guest = new_visitor()
    guest.goto(link)
    wait_for_words(guest.locator("body"), "Time Series")
    guest.close()
    links.get_by_role("button", name="Revoke").click()
    links.get_by_text("No links to this board").wait_for()
    with hub.client() as client:
        assert client.get(link).status_code == 404


def test_a_limit_says_what_to_stop_with_the_button(visit, hub, complaints):
    with hub.client("max") as client:
        for name in ("first", "second", "third"):
            create(client, "cifar10", name=name, new=True)
    page = visit("/boards?new=1&selector=mnist")
    form = panel(page)
    form.get_by_role("button", name="Start").click()
    form.get_by_text("may have 3 instant boards").wait_for()
    complaints.expect("403")
    form.get_by_role("button", name="Stop second").click()
    eventually(page, lambda: form.get_by_text("may have 3").count() == 0)
    form.get_by_role("button", name="Start").click()
    panel(page).get_by_role("link", name="Open").wait_for()
    eventually(page, lambda: len(boards_on(page)) == 3 and "second" not in boards_on(page))


def test_the_form_of_a_new_board_is_read_to_its_end(visit, hub):
    page = visit("/boards?new=1")
    box = page.get_by_role("checkbox", name="Create a board even")
    box.scroll_into_view_if_needed()
    start = page.get_by_role("button", name="Start")
    box.check()  # not below the button
    found = box.bounding_box()
    assert found["width"] < 20
    assert found["y"] + found["height"] < start.bounding_box()["y"]


def test_columns_without_values_are_left_out(visit, hub):
    with hub.client("max") as client:
        board = create(client, "cifar10", new=True)
        page = visit("/boards")
        heads = page.locator("thead th")
        eventually(page, lambda: board["name"] in words(page.locator("tbody")))
        assert "last viewed" in heads.all_inner_texts()
        assert "reason" not in heads.all_inner_texts()
        client.post(f"/api/v1/boards/{board['id']}/stop", json={})
    page = visit("/boards?all=1")
    eventually(page, lambda: "reason" in heads_of(page))
    page = visit("/storage")
    eventually(page, lambda: "last checked" in heads_of(page))
    assert not {"damage", "problem"} & set(heads_of(page))


def heads_of(page):
    return page.locator("thead th").all_inner_texts()


def test_changes_of_others_appear_by_themselves(visit, hub):
    page = visit("/boards", "anna")
    page.get_by_text("No live boards").wait_for()
    with hub.client("mia") as client:
        board = create(client, "mnist", name="of-mia")
        eventually(page, lambda: boards_on(page) == ["of-mia"])
        client.post(f"/api/v1/boards/{board['id']}/stop", json={"now": True})
    page.get_by_text("No live boards").wait_for()


def test_an_isolated_board_shows_its_engine_and_its_log(visit, hub):
    page = visit("/boards?new=1&selector=cifar10")
    form = panel(page)
    form.get_by_label("engine", exact=True).select_option("process")
    form.get_by_label("memory", exact=True).fill("1GiB")
    form.get_by_role("button", name="Start").click()
    about = panel(page)
    eventually(page, lambda: "running" in words(about.locator("h2").first))
    assert "1.0 GiB" in words(about)
    log = about.get_by_role("region", name="Log of board")
    eventually(page, lambda: "Waiting for output" not in log.inner_text() and log.inner_text())
    about.get_by_role("button", name="Stop…").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    eventually(page, lambda: "stopped" in words(about.locator("h2").first))
    about.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    eventually(page, lambda: panel(page).count() == 0)


def test_a_viewer_is_offered_nothing_that_the_hub_refuses(visit, hub):
    with hub.client("mia") as client:
        create(client, "mnist", name="seen", visibility="team")
    page = visit("/boards", "vera")
    page.get_by_role("cell", name="seen").first.click()
    panel(page).get_by_role("link", name="Open").wait_for()
    assert page.get_by_role("button", name="New board").count() == 0
    for name in ("Stop…", "Restart", "Delete…", "Share", "Extend"):
        assert panel(page).get_by_role("button", name=name).count() == 0


def test_names_and_questions_are_text(visit, hub):
    with hub.client("max") as client:
        create(client, "cifar10", title=HOSTILE, name="hostile")
    page = visit("/boards")
    page.get_by_text(HOSTILE).first.wait_for()
    page.get_by_role("cell", name="instant").click()
    eventually(page, lambda: HOSTILE in words(panel(page)))
    assert page.locator("img").count() == 0


@pytest.mark.parametrize("path", ["/boards", "/boards?new=1&selector=cifar10"])
def test_nothing_serious_stands_in_the_way(visit, hub, path):
    with hub.client("max") as client:
        create(client, "cifar10", name="reachable")
    page = visit(path)
    page.get_by_role("cell", name="reachable").first.wait_for()
    if "new" not in path:
        page.get_by_role("cell", name="reachable").first.click()
        panel(page).get_by_role("link", name="Open").wait_for()
    assert serious_problems(page) == []
