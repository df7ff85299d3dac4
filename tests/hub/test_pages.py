"""The hub serves the page and the files of the console only after a login."""

import gzip
import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aboard.hub import pages
from aboard.hub.pages import METRICS_TYPE
from tests.engines.requirements import cannot_set_up
from tests.hub.hubs import PASSWORD, create, points, served
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "console"
PAGE = {"accept": "text/html"}
MOST_KB = 120
ADDRESSES = ["/", *(path.format(run="1f0c93ab:cifar10:run1") for path in pages.CONSOLE_PATHS)]


@pytest.fixture(scope="module")
def built():
    if not (pages.CONSOLE_FILES / "index.html").exists():
        cannot_set_up("needs the console: make console")


@pytest.fixture
def not_built(monkeypatch, tmp_path):
    monkeypatch.setattr(pages, "CONSOLE_FILES", tmp_path / "none")


def names_in(page):
    return re.findall(r'(?:src|href)="(console/[^"]+)"', page)


@pytest.mark.parametrize("path", ADDRESSES)
def test_every_address_of_the_console_is_the_same_page(hub, built, path):
    with hub.client("vera", headers=PAGE) as client:
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        up = re.search('<base href="([^"]*)">', answer.text)[1]
        assert up == ("../" if path.startswith("/runs/") else "./")
        assert len(names_in(answer.text)) == 2
        assert client.get(f"{path.rpartition('/')[0]}/{up}{names_in(answer.text)[0]}").is_success


def test_the_policy_allows_only_the_hubs_own_files(hub, built):
    with hub.client("vera", headers=PAGE) as client:
        answer = client.get("/runs")
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'self'"
    assert "script-src" not in policy
    assert "style-src" not in policy
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in str(policy)
    assert not re.search(r"<style|style=|<script(?![^>]*src)|\son\w+=", answer.text)
    assert answer.headers["x-frame-options"] == "SAMEORIGIN"


def test_files_are_cached_under_names_with_a_hash(hub, built):
    with hub.client("vera", headers=PAGE) as client:
        types = {}
        for name in names_in(client.get("/").text):
            answer = client.get(f"/{name}")
            assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
            types[name.rpartition(".")[2]] = answer.headers["content-type"]
            assert answer.headers["content-encoding"] == "gzip"
            plain = client.get(f"/{name}", headers={"accept-encoding": "identity"})
            assert "content-encoding" not in plain.headers
            assert plain.content == answer.content
        assert types == {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
        for name in ("index.html", "app-0.js", "..%2Fpages.py", "app-A.js%00", "app.js"):
            assert client.get(f"/console/{name}").status_code in {400, 404}


def test_without_a_login_only_the_login_page_is_served(hub, built):
    name = next(path.name for path in pages.CONSOLE_FILES.glob("*.js"))
    with hub.client(headers=PAGE) as stranger:
        for path in (*ADDRESSES, f"/console/{name}"):
            answer = stranger.get(path)
            assert answer.status_code == 401
            assert 'name="password"' in answer.text
            assert "console/" not in answer.text.replace(f"/console/{name}", "")


def test_the_login_redirects_to_the_requested_address(hub, built):
    hub.hub.auth.set_password("max", PASSWORD)
    with hub.client(headers=PAGE, follow_redirects=True) as client:
        assert 'value="/runs?where=x"' in client.get("/runs?where=x").text
        form = {"user": "max", "password": PASSWORD, "next": "/runs?where=x"}
        answer = client.post("/login", data=form)
        assert (answer.status_code, str(answer.url)) == (200, f"{hub.url}/runs?where=x")
        assert names_in(answer.text)


def test_a_prefix_is_part_of_every_address(tmp_path, root, built):
    with (
        served(tmp_path, [root], url="https://boards.example.org/hub") as hub,
        hub.client("vera", headers=PAGE) as client,
    ):
        page = client.get("/hub/runs/1f0c93ab:run")
        assert page.status_code == 200
        assert '<base href="../">' in page.text
        assert client.get(f"/hub/{names_in(page.text)[0]}").is_success


def test_programs_get_json(hub):
    with hub.client("max") as client:
        create(client, "cifar10")
        assert client.get("/").json() == {"user": "max", "boards": 1}


def test_without_its_files_a_page_names_the_command_to_run(hub, not_built):
    with hub.client("max", headers=PAGE) as client:
        board = create(client, "cifar10", name="otter")
        for path, up in (("/", "./"), ("/boards", "./"), ("/runs/1f0c93ab:run", "../")):
            page = client.get(path)
            assert page.status_code == 200
            assert "<code>make console</code>" in page.text
            assert f'<a href="{up}b/{board["id"]}/">otter</a>' in page.text
            assert f'action="{up}logout"' in page.text
            assert "You are logged in as max" in page.text
        assert client.get("/console/app-ABCDEFGH.js").status_code == 404
        assert client.get("/api/v1/runs").is_success


def test_the_built_files_are_small(built):
    files = [path for path in pages.CONSOLE_FILES.iterdir() if path.suffix in {".js", ".css"}]
    assert len(files) == 2
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in files}
    assert sum(sizes.values()) <= MOST_KB * 1000, sizes


def test_the_lock_file_names_versions_and_no_host():
    lock = json.loads((SOURCES / "package-lock.json").read_text())
    for name, package in lock["packages"].items():
        assert "resolved" not in package, name
        assert not name or package["integrity"], name
    known = lock["packages"][""]
    assert {**known["dependencies"], **known["devDependencies"]} == {
        name: lock["packages"][f"node_modules/{name}"]["version"]
        for name in (*known["dependencies"], *known["devDependencies"])
    }


def test_every_page_of_the_console_is_served():
    table = re.findall(r'^  \["(/[^"]*)", "', (SOURCES / "src/app.tsx").read_text(), re.MULTILINE)
    served_paths = {re.sub(r"\{\w+\}", ":", path) for path in ("/", *pages.CONSOLE_PATHS)}
    assert {re.sub(r":\w+", ":", path) for path in table} == served_paths


# The hub's metrics, as Prometheus reads them.


def test_metrics_count_boards_and_requests(hub):
    with hub.client("vera") as client, hub.client("max") as owner:
        board = create(owner, "cifar10")["id"]
        points(owner, board)
        owner.post(f"/api/v1/boards/{create(owner, 'mnist')['id']}/stop")
        counted = 'aboard_requests_total{route="board",status="2xx"} 1'
        until(lambda: counted in client.get("/metrics").text)
        response = client.get("/metrics")
        text = response.text
    assert response.headers["content-type"] == METRICS_TYPE
    assert {one.name for one in text_string_to_metric_families(text)} >= {"aboard_boards"}
    for line in text.splitlines():
        assert line.startswith("# ") or re.fullmatch(r"[a-z_]+(\{[^}]*\})? [0-9.e+-]+", line), line
    assert 'aboard_boards{state="running"} 1' in text
    assert 'aboard_boards{state="stopped"} 1' in text
    assert "aboard_index_lag_seconds" in text
