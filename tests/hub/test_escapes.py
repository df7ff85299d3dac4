"""Attempts to get around permissions on a team's hub: links, spellings, keys and redirects."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from urllib.parse import parse_qs

import numpy as np
import pytest

from aboard import EventWriter
from aboard.hub.permissions import RULES
from aboard.index.library import Root
from tests import summaries
from tests.hub.hubs import ask, create, log_run, points, served
from tests.waiting import until

SECRET = "nobody-should-read-this"
KINDS = {
    "instant": {},
    "process": {"on": "process"},
    "stock": {"on": "process", "engine": "stock"},
}
PROJECTOR = """
embeddings {{
  tensor_name: "{name}"
  tensor_path: "tensor.tsv"
  metadata_path: "metadata.tsv"
}}
"""


@pytest.fixture
def elsewhere(tmp_path):
    """Another user's directory: a run, embeddings, and a file."""
    place = tmp_path / "home" / "mia"
    log_run(place, "run9", [42.0])
    log_run(place, "deep/below/run8", [43.0])
    for directory in (place, place / "plugins" / "org_tensorflow_tensorboard_projector"):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "projector_config.pbtxt").write_text(PROJECTOR.format(name=SECRET))
        (directory / "tensor.tsv").write_text("1\t2\n3\t4\n")
        (directory / "metadata.tsv").write_text(f"{SECRET}\nx\n")
    return place


@pytest.fixture
def trapped(root, elsewhere):
    """A root with symbolic links to everything outside that a user might want to read."""
    runs = root / "trapped"
    good = log_run(root, "trapped/good", [5.0])
    # A run is a link; its event file is one; a directory in it is one.
    (runs / "linked").symlink_to(elsewhere / "run9")
    event_file = next((elsewhere / "run9").iterdir())
    (runs / "one-file").mkdir()
    (runs / "one-file" / event_file.name).symlink_to(event_file)
    (good / event_file.name).symlink_to(event_file)
    (good / "below").symlink_to(elsewhere)
    # The same by a way round: a link to a link, and one that goes up.
    (runs / "twice").symlink_to(runs / "linked")
    (runs / "up").symlink_to("../../home/mia/run9")
    # Files of plugins: a configuration, a file that one names, and a directory of both.
    (good / "projector_config.pbtxt").write_text(PROJECTOR.format(name="mine"))
    (good / "tensor.tsv").write_text("1\t2\n3\t4\n")
    (good / "metadata.tsv").symlink_to("/etc/passwd")
    for name, target in (
        ("config", "projector_config.pbtxt"),
        ("tensor.tsv", "tensor.tsv"),
        ("metadata.tsv", "metadata.tsv"),
    ):
        run = log_run(root, f"trapped/linked-{name}", [6.0])
        if name != "config":
            (run / "projector_config.pbtxt").write_text(PROJECTOR.format(name="mine"))
        (run / target).symlink_to(elsewhere / target)
    plugins = log_run(root, "trapped/linked-plugins", [7.0])
    (plugins / "plugins").symlink_to(elsewhere / "plugins")
    return root


def test_no_board_shows_what_a_link_out_of_the_root_leads_to(tmp_path, trapped):
    """Boards of every kind and by either selector run at once: starting them takes longest."""
    with served(tmp_path, [trapped]) as hub, hub.client("max") as client:
        selectors = ("trapped", str(trapped / "trapped"))
        boards = {
            (kind, selector): create(client, selector, **KINDS[kind])["id"]
            for kind in KINDS
            for selector in selectors
        }
        assert len(set(boards.values())) == 6
        try:
            for board in boards.values():
                until(lambda at=f"/b/{board}/data/runs": client.get(at).status_code == 200)
                until(lambda board=board: set(all_values(client, board)) >= {5.0, 6.0, 7.0})
            # Once a later look shows what is new, all that an earlier one found is shown too.
            with EventWriter(trapped / "trapped" / "linked-plugins") as writer:
                writer.scalar("loss", 8.0, 1)
            for which, board in boards.items():
                until(lambda board=board: 8.0 in all_values(client, board))
                shown = points(client, board)
                assert all_values(client, board) == [5.0, 6.0, 6.0, 6.0, 7.0, 8.0], which
                outside = [run for run in shown if "run8" in run or "run9" in run or "twice" in run]
                assert not outside, which
                for path, body in projector_answers(client, board, shown):
                    assert SECRET.encode() not in body, (which, path)
                    assert b"root:" not in body, (which, path)
        finally:
            end(client, *boards.values())


def end(client, *boards):
    for board in boards:
        client.post(f"/api/v1/boards/{board}/stop", json={"now": True})
    for board in boards:
        at = f"/api/v1/boards/{board}"
        until(lambda at=at: client.get(at).json()["state"] == "stopped")


def all_values(client, board):
    """Return the values that a board serves, of whatever run."""
    return sorted(value for series in points(client, board).values() for _, value in series)


def projector_answers(client, board, runs):
    base = f"/b/{board}/data/plugin/projector"
    yield base, client.get(f"{base}/runs").content
    for run in runs:
        asked = {"run": run}
        yield f"info {run}", client.get(f"{base}/info", params=asked).content
        for name in ("mine", SECRET):
            for route in ("tensor", "metadata"):
                answer = client.get(f"{base}/{route}", params={**asked, "name": name})
                yield f"{route} {run} {name}", answer.content.replace(name.encode(), b"")


def test_the_projector_shows_embeddings_that_are_in_the_root(tmp_path, trapped):
    """What is refused above is refused because of the links, and not because nothing is shown."""
    (trapped / "trapped" / "good" / "metadata.tsv").unlink()
    (trapped / "trapped" / "good" / "metadata.tsv").write_text("one\ntwo\n")
    with served(tmp_path, [trapped]) as hub, hub.client("max") as client:
        board = create(client, "trapped/good")["id"]
        (run,) = until(lambda: points(client, board))
        base = f"/b/{board}/data/plugin/projector"
        until(lambda: client.get(f"{base}/runs").json() == [run])
        answer = client.get(f"{base}/metadata", params={"run": run, "name": "mine"})
        assert answer.text == "one\ntwo\n"


def test_a_hub_that_may_show_any_path_follows_links(tmp_path, trapped):
    with served(tmp_path, [trapped], any_path=True) as hub, hub.client("max") as client:
        place = trapped / "trapped" / "linked"
        boards = [create(client, place, **kind)["id"] for kind in KINDS.values()]
        try:
            for board in boards:
                until(lambda at=f"/b/{board}/data/runs": client.get(at).status_code == 200)
                until(lambda board=board: [*points(client, board).values()] == [[(0, 42.0)]])
        finally:
            end(client, *boards)


_OPEN = """
import json, os, pathlib, sqlite3, sys
from urllib.parse import quote
from aboard.storage.local import admit, confine
root, links = sys.argv[1], sys.argv[2]
confine([root])
admit(links)
told = {}
for path in sys.argv[3:]:
    for how in (open, os.listdir, os.scandir, lambda one: pathlib.Path(one).read_bytes(),
                lambda one: os.open(one, os.O_RDONLY), lambda one: os.listdir(os.fsencode(one)),
                sqlite3.connect, lambda one: sqlite3.connect(f"file:{quote(one)}", uri=True)):
        try:
            how(path)
        except PermissionError as error:
            assert "leads out of its root" in str(error)
            told.setdefault(path, set()).add(False)
        except (NotADirectoryError, IsADirectoryError, sqlite3.OperationalError):
            pass
        else:
            told.setdefault(path, set()).add(True)
print(json.dumps({path: sorted(seen) for path, seen in told.items()}))
"""


def test_files_opened_through_python_are_inside_the_roots(tmp_path, elsewhere):
    """Plugins open files of their own: by any call, through links of ours, up and back again."""
    root, links = tmp_path / "real-root", tmp_path / "links"
    run = log_run(root, "run", [1.0])
    links.mkdir()
    (tmp_path / "root").symlink_to(root)  # the root itself may be a link
    (root / "file").symlink_to(elsewhere / "metadata.tsv")
    (root / "directory").symlink_to(elsewhere)
    (links / "run").symlink_to(run)
    (links / "mine").symlink_to(root / "directory")
    inside = [root, run, links / "run", tmp_path / "root" / "run", next(run.iterdir())]
    elsewhere_by_itself = ["/etc/passwd", os.fspath(elsewhere)]
    outside = [
        root / "file",
        root / "directory",
        root / "directory" / "metadata.tsv",
        tmp_path / "root" / "file",
        links / "mine",
        links / "mine" / "metadata.tsv",
        f"{root}/../home/mia/metadata.tsv",
        f"{links}/run/../directory/metadata.tsv",
    ]
    paths = [os.fspath(one) for one in (*inside, *elsewhere_by_itself, *outside)]
    command = [sys.executable, "-c", _OPEN, str(tmp_path / "root"), str(links), *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for path in (*inside, *elsewhere_by_itself):
        assert told[os.fspath(path)] == [True], path
    for path in outside:
        assert told[os.fspath(path)] == [False], path


_CHECK = """
import os, pathlib, sys
from aboard.storage import PermissionDenied, local
root, outside = map(pathlib.Path, sys.argv[1:])
local.confine([str(root)])
file, link = root / "file", root / "link"
file.write_bytes(b"mine")
link.symlink_to(outside)
descriptor = os.open(file, os.O_RDONLY)
local.check_opened(str(file), descriptor)
file.unlink()
local.check_opened(str(file), descriptor)
with local.unwatched():
    with local.unwatched():
        pass
    stolen = os.open(link, os.O_RDONLY)
try:
    local.check_opened(str(link), stolen)
except PermissionDenied:
    print("refused")
try:
    open(link)
except PermissionError:
    print("refused")
"""


def test_files_opened_without_the_check_are_checked_by_their_path(tmp_path, elsewhere):
    """A file that was deleted meanwhile is still inside, and what is opened in turn is too."""
    (tmp_path / "root").mkdir()
    paths = [str(tmp_path / "root"), str(elsewhere / "metadata.tsv")]
    command = [sys.executable, "-c", _CHECK, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["refused", "refused"]


# Other ways out.


OUTSIDE = (
    "{root}2",
    "{root}/../secrets",
    "{root}/cifar10/../../secrets",
    "file://{root}/../secrets",
    "file://{root}/%2e%2e/secrets",
    "{root}/../logs2",
    "s3://bucket-of-others/runs",
    "s3://bucket/runs-of-others",
    "s3://bucket",
    "gs://bucket/runs",
    "/etc",
    "/proc/self",
    "/",
)


def test_no_spelling_of_a_place_outside_of_the_roots_is_shown(tmp_path, root):
    for sibling in ("secrets", "logs2"):
        log_run(tmp_path / sibling, "run", [42.0])
    roots = [Root(str(root), "logs"), Root("s3://bucket/runs", "bucket")]
    with served(tmp_path, roots) as hub, hub.client("max") as client:
        board = create(client, "mnist")["id"]
        for place in OUTSIDE:
            wish = {"selectors": [place.format(root=root)]}
            added = {"add": wish["selectors"]}
            answers = [
                *(client.post("/api/v1/boards", json={**wish, **kind}) for kind in KINDS.values()),
                client.post(f"/api/v1/boards/{board}/selection", json=added),
            ]
            for answer in answers:
                code = answer.json()["error"]["code"]
                assert (answer.status_code, code) == (403, "outside_roots"), place
        assert list(points(client, board).values()) == [[(0, 3.0)]]


@pytest.mark.parametrize("kind", ["instant", "process"])
def test_the_key_of_a_picture_opens_it_on_its_own_board_only(tmp_path, root, kind):
    with EventWriter(root / "pictures" / "run1") as writer:
        writer.add([summaries.images("picture", [np.full((2, 2), 255, np.uint8)])], 0)
    with served(tmp_path, [root]) as hub, hub.client("mia") as owner, hub.client("max") as other:
        private = create(owner, "pictures", **KINDS[kind])["id"]
        mine = create(other, "pictures", **KINDS[kind])["id"]
        try:
            for client, board in ((owner, private), (other, mine)):
                at = f"/b/{board}/data/runs"
                until(lambda at=at, client=client: client.get(at).status_code == 200)
            key = until(lambda: picture_key(owner, private))
            picture = "data/plugin/images/individualImage"
            opened = owner.get(f"/b/{private}/{picture}", params={"blob_key": key})
            assert opened.headers["content-type"] == "image/png"
            for board in (private, mine):
                stolen = other.get(f"/b/{board}/{picture}", params={"blob_key": key})
                assert stolen.status_code == 404
        finally:
            for client, board in ((owner, private), (other, mine)):
                end(client, board)


def picture_key(client, board):
    tags = client.get(f"/b/{board}/data/plugin/images/tags").json()
    for run, found in tags.items():
        query = {"run": run, "tag": next(iter(found)), "sample": 0}
        (picture,) = client.get(f"/b/{board}/data/plugin/images/images", params=query).json()
        return parse_qs(picture["query"])["blob_key"][0]
    return None


def test_an_expired_link_also_ends_open_sessions(tmp_path, root):
    with served(tmp_path, [root]) as hub, hub.client("max") as client:
        board = create(client, "cifar10")["id"]
        link = client.post(f"/api/v1/boards/{board}/shares", json={"for": "1h"}).json()["url"]
        with hub.client(follow_redirects=True) as guest:
            assert guest.get(link).status_code == 200
            hub.hub.auth._clock = lambda: time.time() + 3601
            until(lambda: guest.get(f"/b/{board}/data/runs").status_code == 401)


def test_no_address_of_the_hub_leads_to_another_host(tmp_path, root):
    """Neither a one-time link, nor the login page, nor a board's address."""
    places = ("//elsewhere", "/\\elsewhere", "/%5celsewhere", "/b/..//elsewhere")
    paths = [path for to in places for path in (to, f"{to}/", f"/b{to}", f"/s{to}", f"/login{to}")]
    with served(tmp_path, [root]) as hub:
        hub.hub.auth.set_password("max", "a-long-password")
        hub.hub.auth.throttle.first = 0.0
        targets = set()
        for path in paths:
            key = hub.hub.auth.mint_key(hub.hub.auth.user("max"))[0]
            location, _ = raw_get(hub.url, f"{path}?key={key}")
            assert location.startswith(("./", "../")), path
            assert "://" not in location
            _, page = raw_get(hub.url, path)
            targets.update(re.findall(r'name="next" type="hidden" value="([^"]*)"', page))
        assert targets
        for target in targets:
            form = {"user": "max", "password": "a-long-password", "next": target}
            with hub.client() as browser:
                led = browser.post("/login", data=form).headers["location"]
            assert led.startswith("./")
            assert not led.startswith((".//", "./\\"))


FOREIGN = {
    "host": "elsewhere.example:81",
    "x-forwarded-host": "elsewhere.example",
    "x-forwarded-proto": "elsewhere.example",
    "x-forwarded-server": "elsewhere.example",
    "x-original-host": "elsewhere.example",
    "forwarded": "host=elsewhere.example",
}
PAGES = ("", "data/runs", "data/environment", "data/plugins_listing", "missing", "data")


def test_no_answer_has_the_host_that_a_client_sent(tmp_path, root):
    """No route of the table and no page: not in the body, and in no header."""
    with (
        served(tmp_path, [root], trusted_proxies=["127.0.0.1"]) as hub,
        hub.client("anna", headers=FOREIGN) as owner,
        hub.client(headers=FOREIGN) as stranger,
    ):
        hub.hub.auth.throttle.first = 0.0
        board = create(owner, "cifar10")["id"]
        pages = ["/login", f"/b/{board}", *(f"/b/{board}/{page}" for page in PAGES)]
        answers = [
            client.get(path, headers={"accept": accept})
            for client in (owner, stranger)
            for path in pages
            for accept in ("text/html", "*/*")
        ]
        routes = sorted(RULES, key=lambda route: route[0] == "DELETE")
        for client in (stranger, owner):
            answers += [ask(client, *route, ref=board) for route in routes]
        assert {answer.status_code for answer in answers} >= {200, 201, 204, 401, 404}
        for answer in answers:
            assert "elsewhere" not in f"{answer.headers} {answer.text}", answer.request.url.path
            assert answer.status_code < 500


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, "http://127.0.0.1:{port}"),
        ({"host": "localhost"}, "http://localhost:{port}"),
        ({"host": "0.0.0.0"}, "http://node7:{port}"),
        ({"host": "::1"}, "http://[::1]:{port}"),
        ({"url": "https://boards.example.org/hub"}, "https://boards.example.org/hub"),
        ({"host": "0.0.0.0", "url": "http://boards:80"}, "http://boards:80"),
    ],
)
def test_links_have_the_configured_address_or_where_the_hub_listens(
    tmp_path, root, monkeypatch, settings, shown
):
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    with served(tmp_path, [root], **settings) as hub, hub.client("max", headers=FOREIGN) as client:
        shown = shown.format(port=hub.url.rpartition(":")[2])
        board = create(client, "cifar10")["id"]
        link = client.post(f"/api/v1/boards/{board}/link").json()["url"]
        assert link.startswith(f"{shown}/b/{board}/?key=")
        share = client.post(f"/api/v1/boards/{board}/shares").json()["url"]
        assert share.startswith(f"{shown}/s/share_")


def raw_get(url, path):
    """Ask for a path as it is written; return where the answer leads, and its page."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=180)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"accept": "text/html"})
        answer = connection.getresponse()
        return answer.getheader("location", "./"), answer.read().decode()
