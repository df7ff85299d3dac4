"""Responses are cached until a board changes, within a bound."""

import json

from aboard import EventWriter
from aboard.events import encode
from aboard.index import Source
from aboard.index.library import Library, Member
from aboard.tensorboard import routes
from aboard.tensorboard.board import Board, Listing
from aboard.tensorboard.routes import ResponseCache
from aboard.tensorboard.workers import WorkerPool
from tests.tensorboard.serving import Ours, one_board

SERIES = "data/plugin/timeseries/timeSeries"


def test_what_was_asked_for_longest_ago_goes_first():
    answers = ResponseCache(40_000)
    for key in "abcd":
        answers.put(key, key.encode() * 9_000)
    assert answers.get("a") == b"a" * 9_000
    answers.put("e", b"e" * 9_000)
    assert [answers.get(key) is not None for key in "abcde"] == [True, False, True, True, True]
    answers.put("c", b"c")
    answers.put("f", b"f" * 9_000)
    assert all(answers.get(key) is not None for key in "acdef")


def test_an_answer_that_would_take_the_room_of_all_is_not_kept():
    answers = ResponseCache(40_000)
    answers.put("small", b"1")
    answers.put("large", b"2" * 10_000)
    assert (answers.get("small"), answers.get("large")) == (b"1", None)


def test_a_great_many_small_answers_are_not_kept():
    answers = ResponseCache(100_000)
    for key in range(1000):
        answers.put(key, b"[]")
    kept = sum(answers.get(key) is not None for key in range(1000))
    assert 100 < kept < 200


def test_a_version_changes_with_the_data_and_with_the_board_only(tmp_path, index):
    source = Source(str(tmp_path / "logs"))
    listing = Listing(Board("one", "One", (Member(source),)), Library(index))
    with EventWriter(tmp_path / "logs/run1") as writer:
        writer.scalar("loss", 1.0, 0)
        writer.flush()
        before = listing.version()
        index.refresh(source)
        first = listing.version()
        assert before != first == listing.version()
        writer.scalar("loss", 2.0, 1)
    index.refresh(source)
    second = listing.version()
    assert second not in {before, first}
    listing.show(Board("one", "One", ()))
    third = listing.version()
    assert third not in {before, first, second}
    assert Listing(listing.board, Library(index)).version() not in {before, first, second, third}


def test_an_answer_is_made_once_until_the_data_changes(tmp_path, index, monkeypatch, serve):
    made = []
    points_of = routes._time_points
    monkeypatch.setattr(routes, "_time_points", lambda *all: made.append(1) or points_of(*all))
    logs = tmp_path / "logs"
    with EventWriter(logs / "run1") as writer:
        writer.scalar("loss", 1.0, 0)
        writer.flush()
        ours = serve(logs)

        def points(**asked):
            request = json.dumps([{"plugin": "scalars", "tag": "loss", **asked}])
            answer = ours.ask(f"/b/{ours.board}/{SERIES}", params={"requests": request})
            return len(answer.json[0]["runToSeries"]["run1"])

        assert [points() for _ in range(3)] == [1, 1, 1]
        assert len(made) == 1
        assert points(run="run1") == 1
        assert len(made) == 2
        writer.scalar("loss", 2.0, 1)
    index.refresh(Source(str(logs)))
    assert [points() for _ in range(3)] == [2, 2, 2]
    assert len(made) == 3


def test_what_a_worker_converted_is_kept_until_the_data_changes(tmp_path, index):
    logs = tmp_path / "logs"
    with EventWriter(logs / "run1") as writer:
        writer.add([encode.text("note", "*one*")], 0)
        writer.flush()
        boards = one_board(index, logs)
        pool = WorkerPool(boards, {})
        ours = Ours(boards, pool=pool)

        def texts():
            answer = ours.get("data/plugin/text/text", run="run1", tag="note")
            return answer.headers["content-type"], [one["text"] for one in answer.json]

        def calls():
            return sum(worker.calls for worker in pool._idle)

        first = texts()
        assert first[1] == ["<p><em>one</em></p>"]
        assert (texts(), calls()) == (first, 1)
        writer.add([encode.text("note", "*two*")], 1)
    ours.refresh()
    assert (texts()[1][1:], calls()) == (["<p><em>two</em></p>"], 2)
    ours.close()


def test_an_answer_that_lacks_what_could_not_be_read_is_not_kept(tmp_path, serve):
    logs = tmp_path / "logs"
    with EventWriter(logs / "run1") as writer:
        for step in range(2):
            writer.add([encode.text("note", f"step {step}")], step)
    ours = serve(logs)
    (file,) = (logs / "run1").iterdir()
    content = file.read_bytes()

    def texts():
        return len(ours.get("data/plugin/text/text", run="run1", tag="note").json)

    file.write_bytes(content[: len(content) // 2])
    assert texts() < 2
    file.write_bytes(content)
    assert texts() == 2


def test_what_is_kept_is_compressed_for_those_who_take_it_only(tmp_path, serve):
    with EventWriter(tmp_path / "logs/run1") as writer:
        writer.add([encode.text("note", "text " * 1000)], 0)
    ours = serve(tmp_path / "logs")

    def encoding(**headers):
        path, query = f"{ours.root}data/plugin/text/text", {"run": "run1", "tag": "note"}
        answer = ours.ask(path, params=query, headers={"accept-encoding": "identity"} | headers)
        assert len(answer.json) == 1
        return answer.headers.get("content-encoding")

    # TensorBoard takes all of these for a wish for gzip.
    for wish in ("*", "x-gzip", "gzip ;q=0"):
        assert encoding(**{"accept-encoding": wish}) is None
    assert encoding(accept_encoding="gzip") is None
    assert encoding() is None
    for wish in ("gzip", "gzip;q=0.5", "br, gzip"):
        assert encoding(**{"accept-encoding": wish}) == "gzip"
