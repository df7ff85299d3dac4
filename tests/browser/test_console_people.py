"""The console's pages of storage and people: roots, users, tokens, sessions and passwords."""

import httpx
import pytest

from aboard.index.library import Root
from tests.browser.accessibility import serious_problems
from tests.browser.console_visits import panel
from tests.browser.page import eventually, words
from tests.hub.hubs import QUICK, log_run, served

pytestmark = pytest.mark.engine("chromium")

PASSWORD = "another long password"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("people") / "logs"
    log_run(root, "cifar10/run1", [1.0])
    return root


@pytest.fixture(scope="module")
def hub(root):
    with served(root.parent, [root, Root(str(root.parent / "missing"), "missing")]) as found:
        yield found


def test_a_root_says_what_is_wrong_and_another_one_is_added(visit, hub, tmp_path, complaints):
    log_run(tmp_path, "mnist/run1", [1.0])
    page = visit("/storage", "anna")
    page.get_by_role("cell", name="missing", exact=False).first.click()
    eventually(page, lambda: "What to do" in words(panel(page)))
    assert serious_problems(page) == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Add root").click()
    panel(page).get_by_label("place").fill("relative")
    panel(page).get_by_role("button", name="Add", exact=True).click()
    panel(page).get_by_text("is a relative path").wait_for()
    complaints.expect("422")
    panel(page).get_by_label("place").fill(str(tmp_path))
    panel(page).get_by_role("button", name="Add", exact=True).click()
    eventually(page, lambda: "1 run" in words(panel(page)))
    with hub.client("vera") as client:
        roots = [one["uri"] for one in client.get("/api/v1/roots").json()["roots"]]
    assert str(tmp_path) in roots


def test_only_an_administrator_adds_roots(visit):
    page = visit("/storage", "max")
    page.get_by_role("cell", name="logs", exact=True).wait_for()
    assert page.get_by_role("button", name="Add root").count() == 0


def test_a_token_is_made_shown_once_and_revoked(visit, hub):
    page = visit("/people")
    tokens = page.get_by_role("region", name="Tokens")
    tokens.get_by_label("what it is for").fill("notebook")
    tokens.get_by_role("button", name="Create token").click()
    secret = tokens.get_by_role("status").locator("code").inner_text()
    headers = {"authorization": f"Bearer {secret}"}
    me = f"{hub.url}/api/v1/me"
    assert httpx.get(me, headers=headers, **QUICK).json()["user"] == "max"
    page.reload()
    eventually(page, lambda: "notebook" in words(tokens))
    assert secret not in page.content()
    tokens.get_by_role("button", name="Revoke notebook").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    eventually(page, lambda: "notebook" not in words(tokens))
    assert httpx.get(me, headers=headers, **QUICK).status_code == 401


def test_another_browser_is_logged_out(visit, complaints):
    page, other = visit("/people", "mia"), visit("/runs", "mia")
    sessions = page.get_by_role("region", name="Sessions")
    page.reload()
    eventually(page, lambda: sessions.get_by_role("listitem").count() == 2)
    sessions.get_by_role("button", name="End the session of").and_(page.locator(":enabled")).click()
    eventually(page, lambda: sessions.get_by_role("listitem").count() == 1)
    other.goto(other.url)
    other.locator("body").get_by_text("Log in to this hub.").wait_for()
    other.close()
    complaints.expect("401")


def test_an_administrator_adds_changes_and_removes_a_user(visit, hub):
    page = visit("/people", "anna")
    users = page.get_by_role("region", name="Users")
    users.get_by_label("name", exact=True).fill("linus")
    users.get_by_label("password").fill(PASSWORD)
    users.get_by_role("button", name="Add user").click()
    users.get_by_label("Role of linus").select_option("viewer")
    eventually(page, lambda: hub.hub.auth.user("linus").role == "viewer")
    assert serious_problems(page) == []
    users.get_by_role("button", name="Remove linus").click()
    asked = page.get_by_role("dialog")
    assert "tokens, sessions" in asked.inner_text()
    asked.get_by_role("button", name="Remove").click()
    eventually(page, lambda: "linus" not in words(users))


def test_a_password_is_set_by_its_user(visit, hub, complaints):
    page = visit("/people", "vera")
    assert page.get_by_role("region", name="Users").count() == 0
    place = page.get_by_role("region", name="Password")
    place.get_by_label("new password").fill(PASSWORD)
    place.get_by_label("again").fill(PASSWORD)
    place.get_by_role("button", name="Set password").click()
    eventually(page, lambda: "Your session has ended." in " ".join(words(page.locator("body"))))
    page.close()
    with hub.client() as client:  # once: wrong passwords make their user wait
        form = {"user": "vera", "password": PASSWORD}
        assert client.post("/api/v1/login", json=form).is_success
    complaints.expect("401")
