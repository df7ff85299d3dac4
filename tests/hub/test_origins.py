"""Boards at an origin of their own: what opens where, and every way back to the hub refused."""

from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from aboard.boards.accounts import Role
from aboard.hub.app import make_app
from aboard.hub.config import Config
from aboard.hub.service import Hub
from aboard.index.library import Root
from aboard.web import listen, serving
from tests.hub.hubs import PASSWORD, QUICK, Served, create, points

FONT = "/font-roboto/oMMgfZMQthOryQo9n22dcuvvDin1pK8aKteLpeZ5c0A.woff2"
PAGE = {"accept": "text/html"}
# What a browser adds to requests of a script on a board, which is another port of the same host.
SCRIPT = {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "x-aboard-csrf": "1"}


@contextmanager
def served_apart(tmp_path, root, hub_path="", boards_path=""):
    """Serve a hub whose boards have another port of the same host."""
    own, boards = listen("127.0.0.1", 0), listen("127.0.0.1", 0)
    url, boards_url = (
        f"http://127.0.0.1:{sockets[0].getsockname()[1]}{path}"
        for sockets, path in ((own, hub_path), (boards, boards_path))
    )
    config = Config(
        directory=tmp_path / "hub",
        roots=(Root(str(root), "logs"),),
        host="127.0.0.1",
        url=url,
        boards_url=boards_url,
    )
    hub = Hub(config)
    found = Served(hub, url)
    for name, role in (("max", Role.MEMBER), ("mia", Role.MEMBER)):
        user = hub.auth.add_user(name, role, PASSWORD)
        found.tokens[name] = hub.auth.create_token(user).secret
    with serving(make_app(hub), [*own, *boards]):
        yield found


@pytest.fixture
def apart(tmp_path, root):
    with served_apart(tmp_path, root) as found:
        yield found


@pytest.fixture
def browser():
    """A client that keeps cookies of a host for all of its ports, as browsers do."""
    with httpx.Client(headers=PAGE, follow_redirects=True, **QUICK) as client:
        yield client


def log_in(browser, hub, user="max"):
    form = {"user": user, "password": PASSWORD}
    assert browser.post(f"{hub.url}/login", data=form).status_code == 200


@pytest.fixture
def board(apart):
    with apart.client("max") as client:
        return create(client, "cifar10")["id"]


def boards_url(hub):
    return hub.hub.config.boards_url


def test_a_board_opens_at_its_own_origin_and_its_session_opens_nothing_else(apart, browser, board):
    log_in(browser, apart)
    answer = browser.get(f"{apart.url}/b/{board}/?a=b#c")
    assert answer.status_code == 200
    assert str(answer.url) == f"{boards_url(apart)}/b/{board}/?a=b#c"
    assert [hop.status_code for hop in answer.history] == [303, 303]
    assert browser.get(f"{boards_url(apart)}/b/{board}/data/runs").is_success
    assert browser.get(f"{boards_url(apart)}{FONT}").is_success
    for path in ("/api/v1/me", "/api/v1/boards", "/runs", "/", "/openapi.json", "/metrics"):
        assert browser.get(f"{boards_url(apart)}{path}").status_code == 404
    # The cookie of either origin, in the place of the other's.
    for origin, path in ((apart.url, "/api/v1/me"), (boards_url(apart), f"/b/{board}/data/runs")):
        with httpx.Client(**QUICK) as client:
            names = [cookie.name for cookie in browser.cookies.jar]
            secrets = [cookie.value for cookie in browser.cookies.jar]
            assert len(set(names)) == 2
            swapped = "; ".join(
                f"{name}={secret}" for name, secret in zip(names, reversed(secrets), strict=True)
            )
            headers = {"cookie": swapped}
            assert client.get(f"{origin}{path}", headers=headers).status_code == 401


def test_without_a_session_the_login_is_at_the_hub(apart, browser, board):
    answer = browser.get(f"{boards_url(apart)}/b/{board}/")
    assert (answer.status_code, answer.url.port) == (401, urlsplit(apart.url).port)
    assert f'value="/b/{board}/"' in answer.text
    assert browser.post(f"{boards_url(apart)}/login", data={}).status_code in {401, 404}
    form = {"user": "max", "password": PASSWORD, "next": f"/b/{board}/"}
    answer = browser.post(f"{apart.url}/login", data=form)
    assert (answer.status_code, answer.url.port) == (200, urlsplit(boards_url(apart)).port)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PATCH", "PUT", "DELETE"])
def test_a_script_on_a_board_gets_nothing_with_the_session_of_the_hub(
    apart, browser, board, method
):
    log_in(browser, apart)
    browser.get(f"{apart.url}/b/{board}/")
    origin = {"origin": boards_url(apart)}
    for path in (
        "/api/v1/me",
        f"/api/v1/boards/{board}",
        "/api/v1/tokens",
        "/runs",
        f"/b/{board}/",
    ):
        for headers in (SCRIPT, {**SCRIPT, "sec-fetch-mode": "cors"}):
            answer = browser.request(method, f"{apart.url}{path}", headers={**headers, **origin})
            assert answer.status_code == 403, (path, headers)
            assert answer.url.port == urlsplit(apart.url).port
    with apart.client("max") as client:
        assert client.get(f"/api/v1/boards/{board}").json()["state"] == "running"


def test_a_form_on_a_board_changes_nothing(apart, browser, board):
    log_in(browser, apart)
    form = {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}
    for path in ("/logout", "/login", f"/api/v1/boards/{board}/stop"):
        answer = browser.post(f"{apart.url}{path}", data={"a": "b"}, headers=form)
        assert answer.status_code == 403, path
    old = {"origin": boards_url(apart)}  # a browser without Sec-Fetch-Site
    assert browser.post(f"{apart.url}/logout", headers=old).status_code == 403
    assert browser.get(f"{apart.url}/api/v1/me").is_success


def test_a_key_opens_the_origin_that_it_is_for(apart, browser, board):
    user = apart.hub.auth.user("max")
    for boards, right, wrong in (
        (True, boards_url(apart), apart.url),
        (False, apart.url, boards_url(apart)),
    ):
        key, _ = apart.hub.auth.mint_key(user, boards=boards)
        with httpx.Client(headers=PAGE, **QUICK) as client:
            refused = client.get(f"{wrong}/b/{board}/?key={key}")
            assert refused.status_code in {303, 401}
            assert not client.cookies
            client.get(f"{right}/b/{board}/?key={key}")
            assert client.cookies


def test_links_begin_with_the_origin_of_boards(apart, browser, board):
    with apart.client("max") as client:
        link = client.post(f"/api/v1/boards/{board}/link").json()["url"]
        share = client.post(f"/api/v1/boards/{board}/shares").json()["url"]
    assert link.startswith(f"{boards_url(apart)}/b/{board}/?key=boards_")
    assert share.startswith(f"{boards_url(apart)}/s/")
    answer = browser.get(link)
    assert answer.status_code == 200
    assert "key" not in parse_qs(answer.url.query.decode())
    guests = share, share.replace(boards_url(apart), apart.url)
    for url in guests:
        with httpx.Client(headers=PAGE, follow_redirects=True, **QUICK) as guest:
            answer = guest.get(url)
            assert str(answer.url) == f"{boards_url(apart)}/b/{board}/"
            assert guest.get(f"{apart.url}/api/v1/me").status_code == 401
            assert guest.get(f"{boards_url(apart)}/api/v1/me").status_code == 401


def test_a_board_that_the_user_may_not_see_does_not_exist_at_either_origin(apart, browser, board):
    log_in(browser, apart, "mia")
    assert browser.get(f"{apart.url}/b/{board}/").status_code == 404
    assert browser.get(f"{apart.url}/b/none/").status_code == 404
    with apart.client("mia") as client:
        mine = create(client, "mnist")["id"]
    browser.get(f"{apart.url}/b/{mine}/")
    assert browser.get(f"{boards_url(apart)}/b/{mine}/").is_success
    assert browser.get(f"{boards_url(apart)}/b/{board}/").status_code == 404


def test_a_token_reads_a_board_at_either_origin_and_the_api_at_one(apart, board):
    with apart.client("max") as client:
        assert points(client, board).keys() == {"cifar10/run1", "cifar10/run2"}
        client.base_url = boards_url(apart)
        assert points(client, board).keys() == {"cifar10/run1", "cifar10/run2"}
        assert client.get("/api/v1/me").status_code == 404


def test_prefixes_of_either_origin(tmp_path, root, browser):
    with served_apart(tmp_path, root, "/hub", "/shown") as hub:
        with hub.client("max") as client:
            client.base_url = hub.url
            board = create(client, "cifar10")
        log_in(browser, hub)
        answer = browser.get(f"{hub.url}/b/{board['id']}/")
        assert str(answer.url) == f"{boards_url(hub)}/b/{board['id']}/"
        assert answer.is_success
        assert browser.get(f"{boards_url(hub)}/b/{board['id']}/data/runs").is_success


@pytest.mark.parametrize(
    ("url", "apart_url", "text"),
    [
        ("", "https://b.example.org", "boards_url needs url"),
        ("https://a.example.org/x", "https://A.example.org:443/y", "a host name or a port"),
        ("https://a.example.org", "b.example.org", "is not an address"),
    ],
)
def test_origins_that_are_not_apart_are_refused(url, apart_url, text):
    with pytest.raises(ValueError, match=text):
        Config(url=url, boards_url=apart_url)
