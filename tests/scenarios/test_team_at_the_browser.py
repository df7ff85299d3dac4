"""A team's hub as its people meet it: log in, look at boards, share one, log out."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.browser.page import wait_for_words
from tests.engines.real_hub import PASSWORD, USER, log_run, team_hub
from tests.scenarios.person import Person, Started, chart, opens, read_link, sees

pytestmark = pytest.mark.engine("chromium")

GRACES = "another horse battery"


class Team(NamedTuple):
    url: str
    ada: Person
    grace: Person


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """An administrator and a member, both logged in at their terminals."""
    place = tmp_path_factory.mktemp("team")
    log_run(place / "runs", "cifar10/run1", [1.0, 0.5])
    log_run(place / "runs", "mnist/run1", [3.0])
    with team_hub(place / "hub", f'[[roots]]\nuri = "{place / "runs"}"\n') as hub:
        ada, grace = Person(place / "ada"), Person(place / "grace")
        ada.does(f"aboard login {hub.url} --user {USER}", PASSWORD)
        ada.does("aboard user add grace --password-stdin", GRACES)
        grace.does(f"aboard login {hub.url} --user grace", GRACES)
        yield Team(hub.url, ada, grace)


@pytest.fixture(scope="module")
def adas(team: Team) -> Started:
    return team.ada.starts("cifar10 --name adas")


@pytest.fixture(scope="module")
def graces(team: Team) -> Started:
    return team.grace.starts("mnist --name graces")


def heading(page: Any) -> str:
    return page.get_by_role("heading").inner_text()


def log_in(page: Any, name: str, password: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def test_a_member_logs_in_and_comes_to_the_board_that_was_asked_for(
    team, graces, new_visitor, complaints
):
    page = new_visitor()
    page.goto(graces.url)
    complaints.expect("401")
    assert heading(page) == "Log in to this hub."
    log_in(page, "grace", "not the password")
    page.get_by_role("heading", name="Wrong user name or password.").wait_for()
    complaints.expect("401")
    log_in(page, "grace", GRACES)
    page.wait_for_url(graces.url + "**")
    wait_for_words(page.locator("runs-data-table"), "mnist/run1")
    sees(chart(page, "loss"), {"mnist/run1": (0, 3.0)})


def test_only_boards_that_one_may_see_are_listed_and_opened(
    team, adas, graces, new_visitor, complaints
):
    page = new_visitor()
    page.goto(f"{team.url}/login")
    complaints.expect("401")
    log_in(page, "grace", GRACES)
    page.wait_for_url(f"{team.url}/")
    page.get_by_role("link", name="Boards").click()
    listed = page.get_by_label("Boards", exact=True).locator("tbody tr")
    wait_for_words(listed, "graces")
    assert [words[0] for words in map(str.split, listed.all_inner_texts())] == ["graces"]
    assert page.goto(adas.url).status == 404
    complaints.expect("404")
    assert heading(page) == "Page not found."
    assert "adas" not in page.content()
    page.goto(f"{team.url}/boards?board={graces.id}")
    page.get_by_role("complementary").get_by_role("link", name="Open").click()
    wait_for_words(page.locator("runs-data-table"), "mnist/run1")

    done = team.grace.types("aboard open adas --no-browser")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("aboard: board 'adas' not found.")


def test_a_board_that_is_shared_with_the_team_is_seen_by_all(team, new_visitor):
    document = team.ada.does("aboard start cifar10 --name ours --new --detach --json").json
    script = f"import aboard; aboard.Client().change({document['id']!r}, visibility='team')"
    team.ada.writes("open_up.py", script)
    team.ada.does("python open_up.py")
    page = new_visitor()
    opens(
        page, read_link(team.grace.does("aboard open ours --no-browser").out).link, "cifar10/run1"
    )
    sees(chart(page, "loss"), {"cifar10/run1": (1, 0.5)})
    done = team.grace.types("aboard kill ours")
    assert done.code == 1
    assert document["id"] in team.ada.does("aboard list").out


def test_a_share_shows_one_board_to_somebody_without_an_account(
    team, adas, graces, new_visitor, complaints
):
    share = json.loads(team.ada.does("aboard share adas --for 7d --json").out)
    page = new_visitor()
    page.goto(share["url"])
    wait_for_words(page.locator("runs-data-table"), "cifar10/run1")
    assert page.url.partition("#")[0] == adas.url
    sees(chart(page, "loss"), {"cifar10/run1": (1, 0.5)})
    for other in (graces.url, f"{team.url}/", f"{team.url}/api/v1/boards"):
        assert page.goto(other).status == 401
        complaints.expect("401")

    team.ada.does(f"aboard share adas --revoke {share['id']}")
    assert page.goto(adas.url).status == 401
    complaints.expect("401")
    assert page.goto(share["url"]).status == 404
    complaints.expect("404")
    assert heading(page) == "This link does not show a board."


def test_a_share_ends_when_its_time_is_over(team, adas, new_visitor, complaints):
    share = json.loads(team.ada.does("aboard share adas --for 1s --json").out)
    page = new_visitor()
    page.wait_for_timeout(1100)
    assert page.goto(share["url"]).status == 404
    complaints.expect("404")
    assert heading(page) == "This link does not show a board."
    assert page.get_by_text("It may have expired. Ask its owner for a new one.").is_visible()


def test_whoever_logs_out_is_a_stranger_again(team, graces, new_visitor, complaints):
    page = new_visitor()
    page.goto(f"{team.url}/login")
    complaints.expect("401")
    log_in(page, "grace", GRACES)
    page.wait_for_url(f"{team.url}/")
    (cookie,) = page.context.cookies()
    page.get_by_title("Account", exact=True).click()
    page.get_by_role("menuitem", name="Log out").click()
    page.wait_for_url(f"{team.url}/login")
    complaints.expect("401")
    assert page.context.cookies() == []
    assert page.goto(graces.url).status == 401
    complaints.expect("401")
    # Nor does the cookie open anything for somebody who kept it.
    page.context.add_cookies([cookie])
    assert page.goto(graces.url).status == 401
    complaints.expect("401")
