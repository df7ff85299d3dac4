"""A real hub with TLS, with its own certificate or behind a reverse proxy that terminates it."""

import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from aboard.executors.base import Address
from aboard.hub.access import client_scope
from aboard.hub.config import make_config
from aboard.hub.proxy import request_headers, response_headers
from aboard.sdk import Unreachable
from aboard.sdk.client import Client
from aboard.sdk.personal import log_in
from aboard.web import ServeError, serve
from tests.engines.real_hub import PASSWORD, USER, team_hub
from tests.engines.relay import Relay
from tests.hub.hubs import create, log_run, points
from tests.waiting import until

MARK = {"x-aboard-csrf": "1"}
PREFIX = "/team/aboard"
BROWSER = "127.0.0.2"
"""Where a browser is that is not on the machine of its proxy."""
LOGIN = {"user": USER, "password": PASSWORD}


# By its own certificate.


class Certificate(NamedTuple):
    file: str
    key: str


def make_certificate(directory, name="own"):
    made = Certificate(str(directory / f"{name}.pem"), str(directory / f"{name}-key.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", made.key]
    command += ["-out", made.file, "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("roots") / "logs"
    log_run(root, "cifar10/run1", [1.0, 0.5])
    log_run(root, "cifar10/run2", [2.0, 1.5])
    log_run(root, "mnist/run1", [3.0])
    return root


@pytest.fixture(scope="module")
def secure_hub(tmp_path_factory, root, certificate):
    directory = tmp_path_factory.mktemp("secure")
    settings = f'roots = ["{root}"]\ncertificate = "{certificate.file}"\n'
    with team_hub(directory / "team", f'{settings}certificate_key = "{certificate.key}"\n') as hub:
        assert hub.url.startswith("https://localhost:")
        yield hub


@pytest.fixture
def secure_browser(secure_hub, certificate):
    with httpx.Client(
        base_url=secure_hub.url, verify=trusting(certificate), timeout=180, trust_env=False
    ) as client:
        yield client


def trusting(certificate):
    return ssl.create_default_context(cafile=certificate.file)


def test_a_session_over_tls_is_kept_from_plain_connections(secure_hub, secure_browser, certificate):
    form = {**LOGIN, "next": "/api/v1/me"}
    answer = secure_browser.post("/login", data=form, headers={"origin": secure_hub.url})
    assert answer.status_code == 303
    assert answer.headers["set-cookie"].endswith("; HttpOnly; SameSite=Lax; Secure")
    secure_browser.headers.update(MARK)
    board = create(secure_browser, "cifar10")["id"]
    assert points(secure_browser, board)["cifar10/run1"] == [(0, 1.0), (1, 0.5)]
    isolated = create(secure_browser, "mnist", on="process")["id"]
    until(lambda: secure_browser.get(f"/b/{isolated}/data/runs").status_code == 200)
    until(lambda: points(secure_browser, isolated).get("mnist/run1") == [(0, 3.0)])
    for made in (f"boards/{board}/shares", f"boards/{board}/link"):
        link = secure_browser.post(f"/api/v1/{made}").json()["url"]
        assert link.startswith(f"{secure_hub.url}/")
        opened = httpx.get(link, verify=trusting(certificate), trust_env=False)
        assert opened.headers["set-cookie"].endswith("; Secure"), made
    secure_browser.post(f"/api/v1/boards/{isolated}/stop", json={"now": True})
    at = f"/api/v1/boards/{isolated}"
    until(lambda: secure_browser.get(at).json()["state"] == "stopped")


def test_a_client_without_tls_is_not_served(secure_hub):
    port = int(secure_hub.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=180) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"alive" not in connection.recv(4096)


def test_programs_trust_the_configured_authority(secure_hub, certificate, environment):
    with pytest.raises(Unreachable, match=r"certificate is not trusted.*SSL_CERT_FILE"):
        log_in(secure_hub.url, USER, PASSWORD)
    environment.setenv("SSL_CERT_FILE", certificate.file)
    token = log_in(secure_hub.url, USER, PASSWORD)
    assert Client(secure_hub.url, token).me()["user"] == USER
    variables = {**os.environ, "ABOARD_STATE": str(secure_hub.directory / "state")}
    told = subprocess.run(
        [sys.executable, "-m", "aboard", "login", secure_hub.url, "--user", USER, "--json"],
        input=PASSWORD,
        env=variables,
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert json.loads(told.stdout)["user"] == USER


def test_a_certificate_that_cannot_be_used_is_reported_before_anything_is_served(
    tmp_path, root, certificate
):
    with pytest.raises(ServeError, match="certificate or its key cannot be used: no such file"):
        serve(None, [], certificate=(Path(certificate.file), tmp_path / "none.pem"))
    other = make_certificate(tmp_path, "other")
    config = tmp_path / "aboard.toml"
    config.write_text(
        f'directory = "hub"\nroots = ["{root}"]\nport = 0\n'
        f'certificate = "{certificate.file}"\ncertificate_key = "{other.key}"\n'
    )
    command = [sys.executable, "-m", "aboard", "serve", "--config", str(config)]
    done = subprocess.run(
        [*command, "--admin", USER],
        input=PASSWORD,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 1
    assert "certificate or its key cannot be used" in done.stderr
    assert "mismatch" in done.stderr
    assert "Traceback" not in done.stderr


# Behind a reverse proxy.


class ReverseProxy(Relay):
    """Passes on requests below a prefix, with the headers that web servers add."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):  # noqa: N802 - the server's name for it
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        path = self.path.removeprefix(PREFIX) if self.server.cuts else self.path
        kept = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in {"host", "connection", "x-forwarded-for"}
        }
        before = self.headers["x-forwarded-for"]
        client = self.client_address[0]
        kept |= {
            "host": f"127.0.0.1:{self.server.hub_port}",
            "x-forwarded-proto": "https",
            "x-forwarded-host": "boards.example.org",
            "x-forwarded-for": f"{before}, {client}" if before else client,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.server.hub_port, timeout=180)
        try:
            connection.request(self.command, path, body or None, kept)
            answer = connection.getresponse()
            self._answer(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    do_POST = do_GET  # noqa: N815


@pytest.fixture(scope="module")
def hub_below_path(tmp_path_factory, root):
    directory = tmp_path_factory.mktemp("below")
    with hub_behind_proxy(directory / "team", root, ["127.0.0.1"]) as hub:
        yield hub


def hub_behind_proxy(directory, root, trusted):
    settings = f'host = "127.0.0.1"\nroots = ["{root}"]\ntrusted_proxies = {trusted}\n'
    return team_hub(directory, f'{settings}url = "https://boards.example.org{PREFIX}"\n')


@contextmanager
def proxy_to(hub, *, cuts):
    with ThreadingHTTPServer(("127.0.0.1", 0), ReverseProxy) as server:
        server.hub_port, server.cuts = int(hub.url.rpartition(":")[2]), cuts
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def browser_at(proxy):
    from_elsewhere = httpx.HTTPTransport(local_address=BROWSER)
    url = f"http://127.0.0.1:{proxy.server_port}"
    return httpx.Client(base_url=url, transport=from_elsewhere, timeout=180)


def logged(hub, **wanted):
    """Return the requests in a hub's log that fit."""
    lines = (hub.directory / "log").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [one for one in found if all(one.get(key) == value for key, value in wanted.items())]


@pytest.mark.parametrize("cuts", [True, False], ids=["prefix cut off", "prefix left on"])
def test_a_hub_below_a_path_of_another_server(hub_below_path, cuts):
    hub = hub_below_path
    with proxy_to(hub, cuts=cuts) as proxy, browser_at(proxy) as browser:
        page = browser.get(f"{PREFIX}/", headers={"accept": "text/html"})
        assert page.status_code == 401
        assert 'action="./login"' in page.text
        ours = {"origin": "https://boards.example.org"}
        answer = browser.post(f"{PREFIX}/login", data=LOGIN, headers=ours)
        assert (answer.status_code, answer.headers["location"]) == (303, "./")
        cookie = answer.headers["set-cookie"]
        assert f"; Path={PREFIX}/;" in cookie
        assert cookie.endswith("; Secure")
        # What httpx does not send on over plain HTTP, a browser sends to the proxy over TLS.
        inside = {"cookie": cookie.partition(";")[0], **MARK, **ours}
        wish = {"selectors": ["cifar10"]}
        board = browser.post(f"{PREFIX}/api/v1/boards", json=wish, headers=inside).json()
        assert board["url"] == f"{PREFIX}/b/{board['id']}/"
        assert browser.get(board["url"], headers=inside).status_code == 200
        runs = browser.get(f"{board['url']}data/runs", headers=inside)
        assert runs.json() == ["cifar10/run1", "cifar10/run2"]
        bare = browser.get(board["url"].rstrip("/"), headers=inside)
        assert (bare.status_code, bare.headers["location"]) == (308, f"{board['id']}/")
        link = browser.post(f"{PREFIX}/api/v1/boards/{board['id']}/link", headers=inside).json()
        assert link["url"].startswith(f"https://boards.example.org{board['url']}?key=")
        elsewhere = {**inside, "origin": "https://elsewhere.example.org"}
        refused = browser.post(f"{PREFIX}/api/v1/boards", json=wish, headers=elsewhere)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "cross_origin")
        # What a client of the proxy claims about itself does not count.
        browser.get(f"{PREFIX}/api/v1/me", headers={**inside, "x-forwarded-for": "6.6.6.6"})
        seen = until(lambda: logged(hub, path="/api/v1/me"))
        assert {one["client"] for one in seen} == {BROWSER}


def test_headers_of_an_untrusted_proxy_are_ignored(tmp_path, root):
    with (
        hub_behind_proxy(tmp_path / "team", root, ["10.9.8.7"]) as hub,
        proxy_to(hub, cuts=True) as proxy,
        browser_at(proxy) as browser,
    ):
        claims = {"x-forwarded-for": "6.6.6.6", "accept": "application/json"}
        assert browser.get(f"{PREFIX}/api/v1/me", headers=claims).status_code == 401
        (seen,) = until(lambda: logged(hub, path="/api/v1/me"))
        assert seen["client"] == "127.0.0.1"
        # Its word for the host is not taken either, so its pages are those of another origin.
        ours = {"origin": "https://boards.example.org"}
        answer = browser.post(f"{PREFIX}/login", data=LOGIN, headers=ours)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


def test_responses_of_a_board_have_the_prefix():
    address = Address("127.0.0.1", 5000, "/b/view/", "token")
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"{PREFIX}/b/one/x",
        "raw_path": f"{PREFIX}/b/one/x".encode(),
        "scheme": "http",
        "headers": [(b"host", b"hub"), (b"referer", f"http://hub{PREFIX}/b/one/page".encode())],
    }
    config = make_config({"url": f"http://hub{PREFIX}"}, Path(), "here")
    inner = {**client_scope(scope, config), "root_path": "/b/one"}
    assert inner["path"] == "/b/one/x"
    told = [(b"location", b"/b/view/next"), (b"set-cookie", b"a=b; Path=/b/view/sub")]
    answered = dict(response_headers(told, inner, address, "/b/view/x"))
    assert answered[b"location"] == f"{PREFIX}/b/one/next".encode()
    assert answered[b"set-cookie"] == f"a=b; Path={PREFIX}/b/one/sub".encode()
    sent = dict(request_headers(inner, address))
    assert sent["referer"] == "http://127.0.0.1:5000/b/view/page"
