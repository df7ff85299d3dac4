"""Many boards in one process: each at its own address, and none reachable from another's."""

import gzip
import json
import sys
import tracemalloc
import zipfile
from urllib.parse import parse_qs, parse_qsl

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.events.writer import EventWriter
from aboard.index.library import Library, Member
from aboard.tensorboard import app
from aboard.tensorboard.app import INDEX, Assets
from aboard.tensorboard.board import Board
from aboard.tensorboard.follower import FollowedBoard
from aboard.tensorboard.provider import Boards
from tests import summaries
from tests.tensorboard.client import websocket
from tests.tensorboard.servers import Ours

IMAGES = "data/plugin/images/images"
SERIES = "data/plugin/timeseries/timeSeries"
STATUS = "data/status"
REQUEST = json.dumps([{"plugin": "scalars", "tag": "loss"}])


def write(directory, value):
    with EventWriter(directory) as writer:
        writer.scalar("loss", value, 0, wall_time=5.0)
        writer.add(
            [summaries.images("image", [np.full((2, 2), value, np.uint8)])], 0, wall_time=5.0
        )


@pytest.fixture(scope="module")
def assets():
    return Assets()


@pytest.fixture
def ours(tmp_path, index):
    """Two boards of one run each, `mine` and `yours`."""
    boards = Boards(Library(index))
    for place, name in enumerate(("mine", "yours")):
        write(tmp_path / name / f"run of {name}", place + 1)
        member = Member.parse(str(tmp_path / name))
        index.refresh(member.source)
        boards.add(Board(name, name.title(), (member,)))
    opened = Ours(boards, "mine")
    yield opened
    opened.close()


def runs(ours, path="/b/mine/data/runs", **headers):
    return ours.ask(path, headers=headers).json


def image_key(ours, board):
    query = {"run": f"run of {board}", "tag": "image"}
    (image,) = ours.ask(f"/b/{board}/{IMAGES}", params=query).json
    return parse_qs(image["query"])["blob_key"][0]


def open_image(ours, board, key):
    path = f"/b/{board}/data/plugin/images/individualImage"
    return ours.ask(path, params={"blob_key": key})


def test_each_board_shows_its_own(ours):
    assert runs(ours) == ["run of mine"]
    assert runs(ours, "/b/yours/data/runs") == ["run of yours"]
    titles = [ours.ask(f"/b/{name}/data/environment").json["window_title"] for name in
              ("mine", "yours")]  # fmt: skip
    assert titles == ["Mine", "Yours"]


@pytest.mark.parametrize(
    "header",
    [
        "Tensorboard-Experiment-Id",
        "tensorboard-experiment-id",
        "TENSORBOARD_EXPERIMENT_ID",
        "Tensorboard_Experiment-Id",
    ],
)
def test_a_header_does_not_lead_to_another_board(ours, header):
    for path in ("data/runs", "data/plugin/scalars/tags", "data/plugin/images/tags"):
        answer = ours.ask(f"/b/mine/{path}", headers={header: "yours"})
        assert b"run of mine" in answer.body
        assert b"run of yours" not in answer.body
    key = image_key(ours, "yours")
    path = "/b/mine/data/plugin/images/individualImage"
    stolen = ours.ask(path, params={"blob_key": key}, headers={header: "yours"})
    assert stolen.status == 404


@pytest.mark.parametrize(
    "inner",
    [
        "experiment/yours/",
        "experiment/defaultExperimentId/",
        "experiment//",
        "experiment/x/experiment/yours/",
        "/experiment/yours/",
        "experiment/x//experiment/yours/",
    ],
)
def test_a_path_does_not_lead_to_another_board(ours, inner):
    for path in ("data/runs", "data/plugin/images/tags"):
        answer = ours.ask(f"/b/mine/{inner}{path}")
        assert answer.status in (200, 404)
        assert b"run of yours" not in answer.body


def test_a_key_opens_nothing_on_another_board(ours):
    key = image_key(ours, "mine")
    assert open_image(ours, "mine", key).kind == "image/png"
    elsewhere = open_image(ours, "yours", key)
    assert elsewhere.status == 404
    assert "blob not found on this board" in elsewhere.text


@pytest.mark.parametrize("change", [lambda key: key[:-1], lambda key: key[1:], str.swapcase,
                                    lambda key: key + "A", lambda _: "é", lambda _: "../x",
                                    lambda _: "A" * 5000, lambda _: "%"])  # fmt: skip
def test_a_changed_key_opens_nothing(ours, change):
    answer = open_image(ours, "mine", change(image_key(ours, "mine")))
    assert answer.status == 404
    assert "blob not found" in answer.text
    other = ours.ask("/b/mine/data/plugin/timeseries/imageData", params={"imageId": "x"})
    assert other.status == 404


@pytest.mark.parametrize("path", ["", "data/runs", IMAGES, "index.js", "experiment/mine/data/runs"])
@pytest.mark.parametrize("board", ["other", "%2e%2e", "mine%2F..%2Fyours", "MINE"])
def test_an_unknown_board_is_not_found(ours, board, path):
    assert ours.ask(f"/b/{board}/{path}").status == 404


@pytest.mark.parametrize(
    ("query", "kept"),
    [("", ""), ("?darkMode=true&x=%2F%20", "?darkMode=true&x=%2F%20"), ("?key=secret", "")],
)
def test_an_address_without_its_slash_leads_on(ours, query, kept):
    answer = ours.ask(f"/b/mine{query}")
    assert answer.status == 308
    assert answer.headers["location"] == f"mine/{kept}"


def test_boards_come_and_go(ours):
    boards = ours.boards
    boards.remove("yours")
    boards.remove("yours")
    assert ours.ask("/b/yours/data/runs").status == 404
    board = boards.get("mine").board
    boards.add(Board("third", "Third", board.members))
    assert runs(ours, "/b/third/data/runs") == ["run of mine"]
    boards.add(Board("third", "Third", board.members, exclude=("*mine",)))
    assert runs(ours, "/b/third/data/runs") == []
    assert [one.id for one in boards] == ["mine", "third"]


class Requests:
    """Stands for a follower."""

    def __init__(self):
        self.boards = []
        self.problems = []

    def requested(self, board):
        self.boards.append(board)

    def status(self, board):
        problems = self.problems if board == "mine" else []
        return FollowedBoard(None, problems, [], is_read=True)


def test_the_follower_is_notified_of_requests(ours):
    follower = Requests()
    watched = Ours(ours.boards, "mine", follower=follower)
    for path in ("", "index.html", "data/runs", "index.js", "data/plugin/text/tags", STATUS):
        watched.get(path)
    assert follower.boards == ["mine"] * 5
    watched.close()


def test_the_version_changes_with_what_a_board_shows_and_only_then(ours):
    def version(board):
        return ours.ask(f"/b/{board}/{STATUS}").json["version"]

    mine, yours = version("mine"), version("yours")
    ours.refresh()
    assert (version("mine"), version("yours")) == (mine, yours)
    with EventWriter(ours.boards.get("mine").board.members[0].source.uri) as writer:
        writer.scalar("loss", 1.0, 1000)
    ours.refresh()
    assert version("mine") != mine
    assert version("yours") == yours


def test_the_status_has_the_runs_and_the_problems_of_a_board(ours):
    follower = Requests()
    watched = Ours(ours.boards, "mine", follower=follower)
    assert (watched.get(STATUS).json["runs"], watched.get(STATUS).json["problems"]) == (1, [])
    follower.problems = ["s3://nothing: there is no such bucket."]
    assert watched.get(STATUS).json["problems"] == follower.problems
    assert watched.ask(f"/b/yours/{STATUS}").json["problems"] == []
    watched.close()


def test_an_answer_is_compressed_for_those_who_take_it(ours):
    with EventWriter(ours.boards.get("mine").board.members[0].source.uri) as writer:
        for step in range(100):
            writer.scalar("loss", step / 7, step, wall_time=5.0)
    ours.refresh()
    answers = [
        ours.ask(f"/b/mine/{SERIES}", params={"requests": REQUEST}, headers={"accept-encoding": e})
        for e in ("gzip", "identity", "gzip;q=0", "gzip;q=0.5")
    ]
    assert ["content-encoding" in answer.headers for answer in answers] == [
        True,
        False,
        False,
        True,
    ]
    assert len({answer.body for answer in answers}) == 1


def test_another_board_costs_next_to_nothing(ours):
    """A board is a selection: no thread, no connection, no copy of what it shows."""
    members = ours.boards.get("mine").board.members
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for place in range(100):
        ours.boards.add(Board(f"copy{place}", "Copy", members))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown / 100 < 4096
    assert runs(ours, "/b/copy99/data/runs") == ["run of mine"]


@pytest.mark.parametrize("path", ["data/environment", "data/runs", STATUS, f"{SERIES}?requests=[]"])
def test_our_own_routes_are_read_and_no_more(ours, path):
    ours.board, ours.root = "mine", "/b/mine/"
    for method in ("GET", "HEAD"):
        assert ours.ask(ours.root + path, method=method).status == 200
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        refused = ours.ask(ours.root + path, method=method)
        assert refused.status == 405
        assert refused.headers["allow"].startswith("GET, HEAD")
    posted = ours.ask(ours.root + path, method="POST", data={"requests": REQUEST})
    assert posted.status == (200 if path.startswith(SERIES) else 405)


@pytest.mark.parametrize("board", ["mine", "nobodys"])
def test_a_board_has_no_websockets(ours, board, caplog):
    assert websocket(ours.app, f"/b/{board}/data/runs") == [
        {"type": "websocket.close", "code": 4404}
    ]
    assert caplog.text == ""


def parse_form(body):
    headers = [(b"content-type", b"Application/x-www-form-urlencoded; charset=utf-8")]
    return app._parse_form({"type": "http", "method": "POST", "headers": headers}, body)


@given(st.lists(st.sampled_from([b"%", b"%C3%A9", b"2F", b"+", b"=", b"&", b"a", b"\xc3"])))
def test_a_form_is_parsed_in_pieces_as_it_is_in_one(parts):
    body = b"".join(parts)
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(app, "_FORM_PIECE", 3)
        found = parse_form(body).multi_items()
    fields = parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
    decoded = [tuple(text.encode("latin-1").decode("utf-8", "replace") for text in one)
               for one in fields]  # fmt: skip
    assert found == decoded


def test_a_form_of_escapes_takes_little_memory():
    tracemalloc.start()
    form = parse_form(b"requests=" + b"%5B" * 1_000_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert form["requests"] == "[" * 1_000_000
    assert peak < 20 << 20


def test_a_form_has_a_most_of_fields(ours):
    path = "/b/mine/data/plugin/scalars/scalars_multirun"
    headers = {"content-type": "application/x-www-form-urlencoded"}
    refused = ours.ask(path, method="POST", content=b"runs=a&" * 100_001, headers=headers)
    text = "Invalid argument: the form has more than 100,000 fields. Request less data"
    assert (refused.status, refused.text) == (413, text)


def test_zero_samples_is_no_limit():
    assert app.sample_limits({"scalars": 0, "images": 3}) == {"scalars": sys.maxsize, "images": 3}
    assert app.sample_limits(None) == {}


# The frontend's files come from their archive, and nothing else does.


@pytest.fixture
def frontend(index):
    boards = Boards(Library(index))
    boards.add(Board("board", "A board", ()))
    opened = Ours(boards)
    yield opened
    opened.close()


def ask(frontend, path, encoding="gzip", **headers):
    return frontend.ask(path, headers={"accept-encoding": encoding, **headers})


def test_every_file_is_what_the_archive_holds(assets):
    with zipfile.ZipFile(assets._archive) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
        assert len(names) > 50
        for name in names:
            asset = assets.get(name)
            assert asset is not None
            assert gzip.decompress(asset.body) == archive.read(name)


def test_a_stored_member_is_compressed(tmp_path):
    path = tmp_path / "archive.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.js", b"let a")
        archive.writestr(INDEX, b"<html>")
    asset = Assets(path).get("a.js")
    assert asset is not None
    assert gzip.decompress(asset.body) == b"let a"


def test_the_page_is_tensorboards(frontend):
    for path in ("/b/board/", "/b/board/index.html"):
        answer = frontend.ask(path)
        assert (answer.status, answer.kind) == (200, "text/html")
        assert b"<tb-webapp" in answer.body
        assert b'name="tb-relative-root" content="./"' in answer.body


def test_without_a_slash_the_page_is_elsewhere(frontend):
    answer = frontend.ask("/b/board")
    assert answer.status == 308
    assert answer.headers["location"] == "board/"


def test_a_file_is_asked_for_again_unless_its_name_has_a_hash(frontend):
    plain = ask(frontend, "/b/board/index.js")
    hashed = ask(frontend, "/b/board/index.js?_file_hash=1234")
    assert plain.status == hashed.status == 200
    assert plain.kind == "text/javascript"
    assert plain.headers["cache-control"] == "private, no-cache"
    assert "immutable" in hashed.headers["cache-control"]
    assert plain.body == hashed.body


def test_a_copy_that_is_still_good_is_not_sent_again(frontend):
    etag = ask(frontend, "/b/board/index.js").headers["etag"]
    again = ask(frontend, "/b/board/index.js", **{"if-none-match": etag})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["etag"] == etag
    other = ask(frontend, "/b/board/index.js", **{"if-none-match": '"00000000"'})
    assert other.status == 200


def test_gzip_is_sent_only_to_those_who_take_it(frontend):
    squeezed = ask(frontend, "/b/board/index.js")
    plain = ask(frontend, "/b/board/index.js", "identity")
    refused = ask(frontend, "/b/board/index.js", "gzip;q=0, br")
    assert squeezed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert "content-encoding" not in refused.headers
    assert squeezed.body == plain.body == refused.body
    assert squeezed.headers["vary"] == plain.headers["vary"] == "accept-encoding"


def test_fonts_are_at_the_root_too(frontend, assets):
    name = next(name for name in assets._members if name.endswith(".woff2"))
    for path in (f"/{name}", f"/b/board/{name}", f"/b/board/experiment/x/{name}"):
        answer = ask(frontend, path)
        assert (answer.status, answer.kind) == (200, "font/woff2")
        assert answer.body[:4] == b"wOF2"


@pytest.mark.parametrize(
    "path",
    [
        "/font-roboto/nothing.woff2",
        "/font-roboto/../index.js",
        "/font-roboto/..%2Findex.js",
        "/font-roboto/%2e%2e%2findex.js",
        "/font-roboto/",
        "/b/board/../../etc/passwd",
        "/b/board/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/b/board/%2e%2e/%2e%2e/etc/passwd",
        "/b/board//etc/passwd",
        "/b/board/font-roboto/",
        "/b/board/font-roboto/../../../../etc/passwd",
        "/etc/passwd",
    ],
)
def test_nothing_else_is_served(frontend, path):
    answer = ask(frontend, path)
    assert answer.status == 404
    assert b"root:" not in answer.body
