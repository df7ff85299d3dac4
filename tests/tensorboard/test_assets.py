"""The frontend's files come from their archive, and nothing else does."""

import gzip
import zipfile

import pytest

from aboard.index.library import Library
from aboard.tensorboard.app import INDEX, Assets
from aboard.tensorboard.board import Board
from aboard.tensorboard.provider import Boards
from tests.tensorboard.serving import Ours


@pytest.fixture(scope="module")
def assets():
    return Assets()


@pytest.fixture
def ours(index, assets):
    boards = Boards(Library(index))
    boards.add(Board("board", "A board", ()))
    opened = Ours(boards, assets=assets)
    yield opened
    opened.close()


def ask(ours, path, encoding="gzip", **headers):
    return ours.ask(path, headers={"accept-encoding": encoding, **headers})


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


def test_the_page_is_tensorboards(ours):
    for path in ("/b/board/", "/b/board/index.html"):
        answer = ours.ask(path)
        assert (answer.status, answer.kind) == (200, "text/html")
        assert b"<tb-webapp" in answer.body
        assert b'name="tb-relative-root" content="./"' in answer.body


def test_without_a_slash_the_page_is_elsewhere(ours):
    answer = ours.ask("/b/board")
    assert answer.status == 308
    assert answer.headers["location"] == "board/"


def test_a_file_is_asked_for_again_unless_its_name_has_a_hash(ours):
    plain = ask(ours, "/b/board/index.js")
    hashed = ask(ours, "/b/board/index.js?_file_hash=1234")
    assert plain.status == hashed.status == 200
    assert plain.kind == "text/javascript"
    assert plain.headers["cache-control"] == "private, no-cache"
    assert "immutable" in hashed.headers["cache-control"]
    assert plain.body == hashed.body


def test_a_copy_that_is_still_good_is_not_sent_again(ours):
    etag = ask(ours, "/b/board/index.js").headers["etag"]
    again = ask(ours, "/b/board/index.js", **{"if-none-match": etag})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["etag"] == etag
    other = ask(ours, "/b/board/index.js", **{"if-none-match": '"00000000"'})
    assert other.status == 200


def test_gzip_is_sent_only_to_those_who_take_it(ours):
    squeezed = ask(ours, "/b/board/index.js")
    plain = ask(ours, "/b/board/index.js", "identity")
    refused = ask(ours, "/b/board/index.js", "gzip;q=0, br")
    assert squeezed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert "content-encoding" not in refused.headers
    assert squeezed.body == plain.body == refused.body
    assert squeezed.headers["vary"] == plain.headers["vary"] == "accept-encoding"


def test_fonts_are_at_the_root_too(ours, assets):
    name = next(name for name in assets._members if name.endswith(".woff2"))
    for path in (f"/{name}", f"/b/board/{name}", f"/b/board/experiment/x/{name}"):
        answer = ask(ours, path)
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
def test_nothing_else_is_served(ours, path):
    answer = ask(ours, path)
    assert answer.status == 404
    assert b"root:" not in answer.body
