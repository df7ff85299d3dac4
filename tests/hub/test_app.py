"""The hub in a browser and behind a proxy: sessions, links, cookies and health."""

import json
import logging

import httpx
import pytest

from aboard.hub.access import JsonLines, client_scope
from aboard.hub.config import Config, make_config
from tests.hub.hubs import PASSWORD, QUICK, create, points, served
from tests.waiting import until

PAGE = {"accept": "text/html"}


@pytest.fixture
def browser(hub):
    """Return a client that logged in with the form of a page."""
    hub.hub.auth.set_password("max", PASSWORD)
    with hub.client(headers=PAGE) as client:
        form = {"user": "max", "password": PASSWORD, "next": "/api/v1/me"}
        answer = client.post("/login", data=form, headers={"origin": hub.url})
        assert (answer.status_code, answer.headers["location"]) == (303, "./api/v1/me")
        client.headers["x-aboard-csrf"] = "1"
        yield client


def test_a_request_without_a_secret_gets_the_login_form(hub):
    with hub.client(headers=PAGE) as client:
        page = client.get("/b/abc/?x=1")
        assert page.status_code == 401
        assert 'action="../../login"' in page.text
        assert 'value="/b/abc/?x=1"' in page.text
        assert 'name="password"' in page.text


def test_a_session_is_a_cookie_that_scripts_and_other_sites_do_not_get(browser):
    cookie = browser.cookies.jar
    assert [(one.path, one.secure) for one in cookie] == [("/", False)]
    assert [one.has_nonstandard_attr("HttpOnly") for one in cookie] == [True]
    assert [one.get_nonstandard_attr("SameSite") for one in cookie] == ["Lax"]
    assert browser.get("/api/v1/me").json() == {
        "user": "max",
        "role": "member",
        "personal": False,
    }


def test_a_wrong_password_opens_nothing(hub, browser):
    with hub.client(headers=PAGE) as stranger:
        for form in ({"user": "max", "password": "wrong"}, {"user": "max"}, {"token": "x"}, {}):
            answer = stranger.post("/login", data=form)
            assert answer.status_code == 401
            assert "set-cookie" not in answer.headers


def test_another_sites_page_changes_nothing(hub, browser):
    wish = {"selectors": ["cifar10"]}
    for headers in (
        {"origin": "http://elsewhere"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        answer = browser.post("/api/v1/boards", json=wish, headers={**headers, "accept": "*/*"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_origin")
        assert browser.post("/login", data={}, headers=headers).status_code == 403
    assert browser.get("/api/v1/boards").json()["boards"] == []
    own = browser.post("/api/v1/boards", json=wish, headers={"sec-fetch-site": "same-origin"})
    assert own.status_code == 201
    with hub.client("max") as program:
        elsewhere = {"origin": "http://elsewhere"}
        assert program.post("/api/v1/boards", json=wish, headers=elsewhere).status_code == 200


def test_a_page_that_was_not_written_for_the_hub_changes_nothing(hub, browser):
    """Scripts of a board are of the hub's own origin: their requests look like the hub's own."""
    del browser.headers["x-aboard-csrf"]
    ours = {"sec-fetch-site": "same-origin", "origin": hub.url, "accept": "*/*"}
    with hub.client("max") as program:
        board = create(program, "cifar10")["id"]
    for method, path in (
        ("POST", "boards"),
        ("DELETE", f"boards/{board}"),
        ("PATCH", f"boards/{board}"),
        ("POST", f"boards/{board}/shares"),
        ("POST", "tokens"),
        ("PUT", "users/max/password"),
        ("POST", "logout"),
    ):
        answer = browser.request(method, f"/api/v1/{path}", headers=ours, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "unmarked"), path
    assert [one["id"] for one in browser.get("/api/v1/boards").json()["boards"]] == [board]
    assert points(browser, board)["cifar10/run1"] == [(0, 1.0), (1, 0.5)]


def test_logging_out_ends_the_session(browser):
    before = dict(browser.cookies)
    assert browser.post("/api/v1/logout").status_code == 204
    assert not browser.cookies
    again = httpx.get(f"{browser.base_url}/api/v1/me", cookies=before, **QUICK)
    assert again.status_code == 401


def test_the_login_does_not_redirect_to_another_site(browser):
    for target in ("//elsewhere/", "https://elsewhere/", "/\\elsewhere", "x"):
        form = {"user": "max", "password": PASSWORD, "next": target}
        assert browser.post("/login", data=form).headers["location"] == "./"


def test_a_link_opens_a_board_once(hub):
    with hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        link = client.post(f"/api/v1/boards/{board}/link").json()["url"]
    assert link.startswith(f"{hub.url}/b/{board}/?key=")
    with hub.client(headers=PAGE, follow_redirects=True) as browser:
        page = browser.get(link)
        assert page.status_code == 200
        assert str(page.url) == f"{hub.url}/b/{board}/"
        assert points(browser, board)["cifar10/run1"] == [(0, 1.0), (1, 0.5)]
    with hub.client(headers=PAGE) as late:
        used = late.get(link)
        assert used.status_code == 401
        assert "already used" in used.text
        assert late.get(f"/b/{board}/?key=wrong").status_code == 401


def test_a_shared_board_is_shown_and_nothing_else(hub):
    with hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        other = create(client, "mnist", visibility="team")["id"]
        made = client.post(f"/api/v1/boards/{board}/shares", json={"for": "7d"})
        assert made.status_code == 201
        link = made.json()
        with hub.client(follow_redirects=True) as guest:
            assert guest.get(link["url"]).status_code == 200
            assert [one.path for one in guest.cookies.jar] == [f"/b/{board}/"]
            assert points(guest, board)["cifar10/run2"] == [(0, 2.0), (1, 1.5)]
            for path in (f"/b/{other}/", "/api/v1/me", f"/api/v1/boards/{board}", "/", "/metrics"):
                assert guest.get(path).status_code == 401, path
            assert client.get(f"/api/v1/boards/{board}/shares").json()["shares"][0]["url"] is None
            gone = client.delete(f"/api/v1/boards/{board}/shares/{link['id']}")
            assert gone.status_code == 204
            assert guest.get(f"/b/{board}/").status_code == 401
            assert guest.get(link["url"]).status_code == 404


def test_a_guest_of_one_board_can_use_their_own_link(hub):
    with hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        share = client.post(f"/api/v1/boards/{board}/shares").json()["url"]
        link = client.post(f"/api/v1/boards/{board}/link").json()["url"]
    with hub.client(follow_redirects=True) as guest:
        assert guest.get(share).status_code == 200
        assert guest.get("/").status_code == 401
        assert guest.get(link).status_code == 200
        assert guest.get("/").status_code == 200


def test_a_link_that_has_expired_shows_nothing(tmp_path, root):
    with served(tmp_path, [root]) as hub, hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        link = client.post(f"/api/v1/boards/{board}/shares", json={"for": 1000}).json()
        hub.hub.auth._clock = lambda: 1e12
        assert httpx.get(link["url"], **QUICK).status_code == 404


def test_health_checks_need_no_secret(hub):
    with hub.client() as client:
        assert client.get("/healthz").json() == {"status": "alive"}
        assert client.get("/readyz").json() == {"status": "ready"}


def test_the_log_has_no_secrets(hub, caplog):
    caplog.set_level(logging.DEBUG, "aboard")
    with hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        key = client.post(f"/api/v1/boards/{board}/link").json()["url"].rpartition("=")[2]
        share = client.post(f"/api/v1/boards/{board}/shares").json()["url"]
    httpx.get(f"{hub.url}/b/{board}/?key={key}", **QUICK)
    httpx.get(share, **QUICK)
    until(lambda: any("/s/" in record.getMessage() for record in caplog.records))
    lines = [JsonLines().format(record) for record in caplog.records]
    requests = [one for one in map(json.loads, lines) if one["logger"] == "aboard.hub.requests"]
    assert {(one["method"], one["path"], one["status"]) for one in requests} >= {
        ("POST", "/api/v1/boards", 201),
        ("GET", "/s/…", 303),
    }
    text = "\n".join(lines)
    for secret in (hub.tokens["max"], key, share.rpartition("/")[2]):
        assert secret not in text


def test_an_ambiguous_path_is_refused(hub):
    with hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        for path in (f"/b/{board}/%2e%2e/x", f"/b/{board}/..%2fx", "/b/%5cx/"):
            assert client.get(path).status_code == 400


def sent(headers, config, client="10.0.0.7", path="/hub/b/x/"):
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "scheme": "http",
        "client": (client, 1),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    return client_scope(scope, config)


def test_forwarded_headers_count_only_from_a_trusted_proxy(tmp_path):
    told = {
        "host": "inner:80",
        "x-forwarded-for": "6.6.6.6, 1.2.3.4",
        "x-forwarded-proto": "https",
        "x-forwarded-host": "boards.example.org",
    }
    settings = {"trusted_proxies": ["10.0.0.0/8"], "url": "https://boards.example.org/hub"}
    trusting = make_config(settings, tmp_path, "here")
    scope = sent(told, trusting)
    assert (scope["client"][0], scope["scheme"], scope["path"]) == ("1.2.3.4", "https", "/b/x/")
    assert (b"host", b"boards.example.org") in scope["headers"]
    for config, client in ((trusting, "192.168.0.1"), (Config(), "10.0.0.7")):
        scope = sent(told, config, client)
        assert scope["client"][0] == client
        assert scope["scheme"] == ("https" if config.url else "http")  # as the hub's own url says
        assert (b"host", b"inner:80") in scope["headers"]


def test_behind_a_prefix_addresses_and_cookies_have_it(tmp_path, root):
    with served(tmp_path, [root], url="https://boards.example.org/hub") as hub:
        with hub.client("max") as client:
            board = create(client, "cifar10")
            assert board["url"] == f"/hub/b/{board['id']}/"
            link = client.post(f"/api/v1/boards/{board['id']}/link").json()["url"]
            assert link.startswith(f"https://boards.example.org/hub/b/{board['id']}/?key=")
            assert client.get(f"/hub/b/{board['id']}/data/runs").status_code == 200
        opened = httpx.get(link.replace("https://boards.example.org", hub.url), **QUICK)
        assert opened.status_code == 303
        assert "; Path=/hub/;" in opened.headers["set-cookie"]
        assert opened.headers["set-cookie"].endswith("; Secure")
