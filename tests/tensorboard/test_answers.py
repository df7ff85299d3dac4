"""Answers that are kept: as long as they are true, and no more of them than there is room for."""

import json

from aboard import EventWriter
from aboard.index import Source
from aboard.tensorboard import routes
from aboard.tensorboard.answers import Answers
from aboard.tensorboard.board import Board, Listing, Member

SERIES = "data/plugin/timeseries/timeSeries"


def test_what_was_asked_for_longest_ago_goes_first():
    answers = Answers(40_000)
    for key in "abcd":
        answers.keep(key, key.encode() * 9_000)
    assert answers.get("a") == b"a" * 9_000
    answers.keep("e", b"e" * 9_000)
    assert [answers.get(key) is not None for key in "abcde"] == [True, False, True, True, True]
    answers.keep("c", b"c")
    answers.keep("f", b"f" * 9_000)
    assert all(answers.get(key) is not None for key in "acdef")


def test_an_answer_that_would_take_the_room_of_all_is_not_kept():
    answers = Answers(40_000)
    answers.keep("small", b"1")
    answers.keep("large", b"2" * 10_000)
    assert (answers.get("small"), answers.get("large")) == (b"1", None)


def test_a_great_many_small_answers_are_not_kept():
    answers = Answers(100_000)
    for key in range(1000):
        answers.keep(key, b"[]")
    kept = sum(answers.get(key) is not None for key in range(1000))
    assert 100 < kept < 200


def test_a_version_changes_with_the_data_and_with_the_board_only(tmp_path, index):
    source = Source(str(tmp_path / "logs"))
    listing = Listing(Board("one", "One", (Member(source),)), index)
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
    assert Listing(listing.board, index).version() not in {before, first, second, third}


def test_an_answer_is_made_once_until_the_data_changes(tmp_path, index, monkeypatch, serve):
    made = []
    columns = routes._columns
    monkeypatch.setattr(routes, "_columns", lambda series: made.append(1) or columns(series))
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
