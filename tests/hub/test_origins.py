"""Boards at their own origin: links lead there, and the hub refuses requests from it."""

import random
import socket
from contextlib import contextmanager, suppress
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from aboard.boards.accounts import Role
from aboard.hub.app import make_app
from aboard.hub.config import Addresses, Config
from aboard.hub.service import Hub
from aboard.index.library import Root
from aboard.web import listen
from tests.engines.command import run_command
from tests.hub.hubs import PASSWORD, QUICK, Served, create, personal_hub, points
from tests.web.serving import serving

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


def test_a_path_without_a_slash_does_not_choose_the_host_of_the_login(apart):
    parts = urlsplit(boards_url(apart))
    sent = f"GET @elsewhere.example/ HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: text/html\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.sendall(sent.encode())
        answer = connection.recv(1 << 16).decode()
    assert "elsewhere" not in answer


@pytest.mark.parametrize(
    ("url", "apart_url", "text"),
    [
        ("", "https://b.example.org", "boards_url requires url"),
        ("https://a.example.org/x", "https://A.example.org:443/y", "host name or port"),
        ("https://a.example.org", "b.example.org", "is not an address"),
    ],
)
def test_origins_that_are_not_apart_are_refused(url, apart_url, text):
    with pytest.raises(ValueError, match=text):
        Config(url=url, boards_url=apart_url)


# A personal hub: a second port for boards, unless the hub's own port was forwarded.


@contextmanager
def served_twice(tmp_path, root):
    """Serve a personal hub as `aboard start` does: with a second port for boards."""
    own, boards = listen("localhost", 0), listen("localhost", 0)
    addresses = Addresses(*(f"http://localhost:{one[0].getsockname()[1]}" for one in (own, boards)))
    hub = Hub(Config(directory=tmp_path / "hub", roots=(Root(str(root), "logs"),)), personal=True)
    found = Served(hub, addresses.hub)
    found.boards = addresses.boards
    found.tokens["me"] = hub.auth.create_token(hub.auth.personal("me")).secret
    with serving(make_app(hub, addresses), [*own, *boards]):
        yield found


@pytest.fixture
def own(tmp_path, root):
    with served_twice(tmp_path, root) as found:
        yield found


@pytest.fixture
def shown(own):
    with own.client("me") as client:
        return create(client, "cifar10")["id"]


def link_to(hub, path):
    """Make a link as the API does, at the hub's own address."""
    return f"{hub.url}{path}?key={hub.hub.auth.mint_key(hub.hub.auth.personal('me'))[0]}"


def test_a_personal_hub_shows_boards_at_its_second_port(own, browser, shown):
    answer = browser.get(link_to(own, f"/b/{shown}/"))
    assert (answer.status_code, str(answer.url)) == (200, f"{own.boards}/b/{shown}/")
    assert browser.get(f"{own.boards}/b/{shown}/data/runs").is_success
    assert browser.get(f"{own.url}/api/v1/me").json()["personal"]
    cookies = {cookie.name: cookie.value for cookie in browser.cookies.jar}
    assert len(cookies) == 2
    assert sum(value.startswith("boards_") for value in cookies.values()) == 1
    # The name of the machine does not matter at the second port, nor does any other.
    for name in ("localhost", "127.0.0.1", "elsewhere.example"):
        host = {"host": f"{name}:{urlsplit(own.url).port}", "accept": "application/json"}
        assert browser.get(f"{own.boards}/api/v1/me", headers=host).status_code == 404
    # A session of either port, as the other's.
    with httpx.Client(**QUICK) as client:
        swapped = zip(cookies, reversed(cookies.values()), strict=True)
        headers = {"cookie": "; ".join(f"{name}={value}" for name, value in swapped)}
        assert client.get(f"{own.url}/api/v1/me", headers=headers).status_code == 401
        address = f"{own.boards}/b/{shown}/data/runs"
        assert client.get(address, headers=headers).status_code == 401


def test_every_port_of_a_personal_hub_needs_a_secret(own, shown):
    with httpx.Client(**QUICK) as client:
        for address in (own.url, own.boards):
            for host in (
                "localhost:9",
                "127.0.0.1:9",
                "elsewhere.example",
                urlsplit(address).netloc,
            ):
                for path in ("/", "/api/v1/me", f"/b/{shown}/", f"/b/{shown}/data/runs"):
                    answer = client.get(f"{address}{path}", headers={"host": host})
                    assert answer.status_code == 401, (address, host, path)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_script_at_the_second_port_gets_nothing_with_the_session_of_the_hub(
    own, browser, shown, method
):
    browser.get(link_to(own, f"/b/{shown}/"))
    for path in ("/api/v1/me", "/api/v1/tokens", "/", f"/b/{shown}/", f"/b/{shown}/data/runs"):
        # A browser connects to where its `Host` says: to the hub under any name, at its own port.
        for name in ("localhost", "127.0.0.1", "[::1]", "elsewhere.example"):
            headers = {
                **SCRIPT,
                "origin": own.boards,
                "host": f"{name}:{urlsplit(own.url).port}",
            }
            answer = browser.request(method, f"{own.url}{path}", headers=headers)
            assert answer.status_code == 403, (path, name)


def test_pages_of_the_hub_at_the_second_port_lead_to_the_first(own, browser, shown):
    assert browser.get(f"{own.boards}/b/{shown}/").url.port == urlsplit(own.url).port
    browser.get(link_to(own, f"/b/{shown}/"))
    for path in ("/", "/runs?where=x", "/boards"):
        answer = browser.get(f"{own.boards}{path}")
        assert (answer.status_code, str(answer.url)) == (200, f"{own.url}{path}")
    link = link_to(own, "/boards").replace(own.url, own.boards)
    with httpx.Client(headers=PAGE, follow_redirects=True, **QUICK) as client:
        answer = client.get(link)
        assert (answer.status_code, str(answer.url)) == (200, f"{own.url}/boards")


def test_links_of_a_personal_hub_begin_with_its_first_port(own, browser, shown):
    with own.client("me") as client:
        link = client.post(f"/api/v1/boards/{shown}/link").json()["url"]
        share = client.post(f"/api/v1/boards/{shown}/shares").json()["url"]
    assert link.startswith(f"{own.url}/b/{shown}/?key=")
    for url in (link, share):
        with httpx.Client(headers=PAGE, follow_redirects=True, **QUICK) as client:
            assert str(client.get(url).url) == f"{own.boards}/b/{shown}/"


def through(browser, hub, url, **headers):
    """Send a request through a forwarded port: the address says `Host`, and the hub gets it."""
    parts = urlsplit(url)
    target = parts._replace(netloc=urlsplit(hub.url).netloc).geturl()
    return browser.get(target, headers={"host": parts.netloc, **headers}, follow_redirects=False)


def test_through_one_forwarded_port_boards_have_the_other_name_of_loopback(own, browser, shown):
    hub, boards = "http://localhost:9000", "http://127.0.0.1:9000"
    let_in = through(browser, own, link_to(own, f"/b/{shown}/").replace(own.url, hub))
    assert (let_in.status_code, let_in.headers["location"]) == (303, "./")
    sent_on = through(browser, own, f"{hub}/b/{shown}/?a=b")
    location = sent_on.headers["location"]
    assert location.startswith(f"{boards}/b/{shown}/?a=b&key=boards_")
    with httpx.Client(headers=PAGE, **QUICK) as other:  # cookies of another host
        assert through(other, own, location).headers["location"] == "./?a=b"
        assert through(other, own, f"{boards}/b/{shown}/").status_code == 200
        assert through(other, own, f"{boards}/b/{shown}/data/runs").is_success
        asking = {"accept": "application/json"}
        assert through(other, own, f"{boards}/api/v1/me", **asking).status_code == 404
        assert through(other, own, f"{hub}/api/v1/me", **asking).status_code == 401
        home = through(other, own, f"{boards}/boards")
        assert (home.status_code, home.headers["location"]) == (303, f"{hub}/boards")
        script = {**SCRIPT, "sec-fetch-site": "cross-site", "origin": boards}
    assert through(browser, own, f"{hub}/api/v1/me", **script).status_code == 403
    assert through(browser, own, f"{hub}/b/{shown}/", **script).status_code == 403
    assert through(browser, own, f"{hub}/api/v1/me").json()["personal"]


def test_a_link_with_the_number_of_loopback_opens_through_a_forwarded_port(own, browser, shown):
    for path in ("/boards", f"/b/{shown}/"):
        link = link_to(own, path)
        sent_on = through(browser, own, link.replace(own.url, "http://127.0.0.1:9000"))
        assert sent_on.headers["location"] == link.replace(own.url, "http://localhost:9000")
        assert not browser.cookies
    with own.client("me", headers={"host": "127.0.0.1:9000"}) as client:  # a program's token
        assert client.get("/api/v1/me").is_success
        assert points(client, shown).keys() == {"cifar10/run1", "cifar10/run2"}
    wrong = {"host": "127.0.0.1:9000", "authorization": "Bearer x"}
    assert browser.get(f"{own.url}/api/v1/me", headers=wrong).status_code == 401


def test_under_an_unknown_host_name_boards_are_at_the_hubs_origin(own, browser, shown):
    proxy = "http://proxy.example.org"
    through(browser, own, link_to(own, "/").replace(own.url, proxy))
    assert through(browser, own, f"{proxy}/b/{shown}/").status_code == 200
    assert through(browser, own, f"{proxy}/b/{shown}/data/runs").is_success
    with own.client("me") as client:
        share = client.post(f"/api/v1/boards/{shown}/shares").json()["url"]
    with httpx.Client(headers=PAGE, **QUICK) as guest:
        opened = through(guest, own, share.replace(own.url, proxy))
        assert (opened.status_code, opened.headers["location"]) == (303, f"../b/{shown}/")
        assert through(guest, own, f"{proxy}/b/{shown}/").status_code == 200
        assert through(guest, own, f"{proxy}/api/v1/me").status_code == 401


def opened_at(hub, board):
    """Open a board in a browser that has followed the link of a personal hub."""
    with httpx.Client(headers=PAGE, follow_redirects=True, **QUICK) as client:
        with hub.client() as program:
            link = program.post(f"/api/v1/boards/{board}/link").json()["url"]
        answer = client.get(link)
        assert answer.status_code == 200
        return answer.url.port


def two_free_ports():
    """Return the first of two ports in a row, outside the range that other tests get ports from."""
    for port in random.sample(range(15_000, 30_000, 2), 1000):
        with suppress(OSError):
            for one in (port, port + 1):
                socket.create_server(("127.0.0.1", one)).close()
            return port
    raise AssertionError("no ports are free")


def test_the_second_port_of_a_personal_hub_is_reused_unless_taken(tmp_path, root):
    with personal_hub(tmp_path, root, two_free_ports()) as hub:
        with hub.client() as client:
            board = create(client, "cifar10")["id"]
        first = opened_at(hub, board)
        assert first != hub.port
        hub.kill(15)
        for port in (hub.port, first):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
    with personal_hub(tmp_path, root, hub.port) as again:
        assert opened_at(again, board) == first
    with (
        socket.create_server(("127.0.0.1", first)),
        personal_hub(tmp_path, root, hub.port) as moved,
    ):
        assert opened_at(moved, board) not in {first, hub.port}


def test_over_ssh_the_hint_names_both_ports(tmp_path, root):
    env = {"ABOARD_STATE": str(tmp_path / "state"), "SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22"}
    with personal_hub(tmp_path, root) as hub, hub.client() as client:
        board = create(client, "cifar10")["id"]
        boards = opened_at(hub, board)
        done = run_command(["open", board, "--no-browser"], env=env, cwd=tmp_path)
        assert done.code == 0, done.err
        ways = f"-L {hub.port}:127.0.0.1:{hub.port} -L {boards}:127.0.0.1:{boards} "
        assert f"ssh -N {ways}" in done.out.splitlines()[-1]
