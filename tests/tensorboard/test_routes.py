"""The hot routes: the same answers from arrays, whatever is asked of them."""

import json
import math

import numpy as np
import pytest

from aboard.events import encode
from aboard.events.records import frame
from aboard.events.writer import EventWriter
from aboard.index import Source
from aboard.index.library import Library, Member
from aboard.tensorboard import app, routes
from aboard.tensorboard.board import Board, Listing
from aboard.tensorboard.routes import ResponseCache
from aboard.tensorboard.workers import WorkerPool
from tests import summaries
from tests.tensorboard.servers import EVERYTHING, Ours, Stock, one_board

SERIES = "data/plugin/timeseries/timeSeries"
MULTIRUN = "data/plugin/scalars/scalars_multirun"
TAGS = "data/plugin/timeseries/tags"


@pytest.fixture
def logdir(tmp_path):
    return tmp_path / "logs"


def ask(ours, *requests):
    return ours.get(SERIES, requests=json.dumps(requests)).json


def test_odd_numbers_go_out_as_words(every_kind, serve):
    values = [value for _, value in serve(every_kind).points("odd numbers")]
    assert values[:3] == ["NaN", "Infinity", "-Infinity"]
    assert math.copysign(1, values[3]) == -1
    assert values[4:] == [np.float32(1e-45).item(), np.float32(3e38).item()]


def test_a_curve_of_many_points_is_sampled(logdir, serve):
    with EventWriter(logdir) as writer:
        for step in range(3000):
            writer.scalar("loss", float(step % 7), step, wall_time=5.0)
    assert len(serve(logdir).points("loss")) <= 1000
    assert len(serve(logdir, samples={"scalars": 40}).points("loss")) <= 40


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Missing 'requests' field"),
        ("[", "Unable to parse 'requests' as JSON"),
        ("NaN", "Unable to parse 'requests' as JSON"),
        ('"text"', "'requests' must be a list of objects"),
        ("[[]]", "'requests' must be a list of objects"),
        ('{"a": 1}', "'requests' must be a list of objects"),
        (
            '[{"plugin": "images", "tag": "a"}, {"plugin": "scalars", "tag": "b", "run": 5}]',
            "'run' must be the name of a run, not 5",
        ),
    ],
)
def test_a_request_that_cannot_be_understood(every_kind, serve, text, reason):
    answer = serve(every_kind).get(SERIES, requests=text)
    assert (answer.status, answer.text) == (400, f"Invalid argument: {reason}")


@pytest.mark.parametrize("value", [None, 1, 1.5, True, [], {}, ["."]], ids=repr)
@pytest.mark.parametrize("field", ["plugin", "tag", "run", "sample"])
def test_a_field_of_the_wrong_type(every_kind, serve, field, value):
    ours = serve(every_kind)
    for plugin in ("scalars", "histograms", "images"):
        request = {"plugin": plugin, "tag": "loss", "run": ".", "sample": 0, field: value}
        answer = ours.get(SERIES, requests=json.dumps([request]))
        assert answer.status in (200, 400)


def test_many_series_in_one_request_keep_their_order(every_kind, serve):
    ours = serve(every_kind, samples=EVERYTHING)
    requests = [
        {"plugin": "scalars", "tag": "loss"},
        {"plugin": "images", "tag": "pictures", "run": ".", "sample": 1},
        {"plugin": "histograms", "tag": "weights", "run": "."},
        {"plugin": "scalars", "tag": "accuracy", "run": "."},
        {"tag": "loss"},
    ]
    answers = ask(ours, *requests)
    assert [answer["tag"] for answer in answers] == [request["tag"] for request in requests]
    assert answers[-1]["error"] == "Invalid plugin"
    assert answers == [ask(ours, request)[0] for request in requests]
    assert ask(ours) == []


def test_a_large_request_comes_as_a_form(every_kind, serve):
    requests = json.dumps([{"plugin": "scalars", "tag": "loss", "run": "x" * 200}] * 1000)
    answer = serve(every_kind).post(SERIES, {"requests": requests})
    assert len(answer.json) == 1000


def test_descriptions_that_runs_disagree_on_are_all_told(logdir, serve):
    for run, text in (("a", "# one"), ("b", "# one"), ("c", "*two*")):
        with EventWriter(logdir / run) as writer:
            described = summaries.metadata("scalars", description=text)
            value = encode.scalar_tensor("loss", 1.0, "float32")._replace(metadata=described)
            writer.add([value], 0, wall_time=5.0)
    mine, theirs = serve(logdir).get(TAGS).json, Stock(str(logdir)).get(TAGS).json
    assert mine == theirs
    html = mine["scalars"]["tagDescriptions"]["loss"]
    assert "Multiple descriptions" in html
    assert "For runs: a, b" in html
    assert "<em>two</em>" in html


def test_a_description_can_run_no_script(logdir, serve):
    with EventWriter(logdir) as writer:
        described = summaries.metadata(
            "scalars", description="<script>alert(1)</script> [x](javascript:y)"
        )
        value = encode.scalar_tensor("loss", 1.0, "float32")._replace(metadata=described)
        writer.add([value], 0, wall_time=5.0)
    ours = serve(logdir)
    for path in (TAGS, "data/plugin/scalars/tags"):
        assert "<script>" not in ours.get(path).text
        assert "href" not in ours.get(path).text


def test_strange_names_come_through(logdir, serve):
    tag = 'a/b "c" \\ <d> é 🎉 %2F?&='
    with EventWriter(logdir / "rün #1 ?&%") as writer:
        writer.scalar(tag, 1.0, 0, wall_time=5.0)
    ours = serve(logdir)
    (run,) = ours.get("data/runs").json
    assert run == "rün #1 ?&%"
    assert ours.points(tag, run) == [(0, 1.0)]
    form = {"tag": tag, "runs": [run]}
    answer = ours.post("data/plugin/scalars/scalars_multirun", form).json
    assert answer == {run: [[5.0, 0, 1.0]]}


def test_runs_come_by_the_time_they_began(logdir, serve):
    for run, began in (("late", 3000.0), ("early", 1000.0), ("b", 2000.0), ("a", 2000.0)):
        (logdir / run).mkdir(parents=True)
        path = logdir / run / "events.out.tfevents.1"
        path.write_bytes(frame(encode.file_version(began)))
    empty = logdir / "empty"
    empty.mkdir()
    (empty / "events.out.tfevents.1").write_bytes(b"")
    ours, stock = serve(logdir), Stock(str(logdir))
    assert ours.get("data/runs").json == ["early", "a", "b", "late", "empty"]
    assert stock.get("data/runs").json == ["early", "a", "b", "late", "empty"]


def test_a_tag_whose_metadata_is_damaged_does_not_spoil_the_board(logdir, serve):
    with EventWriter(logdir) as writer:
        writer.scalar("good", 1.0, 1)
        damaged = encode.metadata("scalars", b"\xff\xff\xff")
        writer.add([encode.scalar_tensor("bad", 1.0, "float32")._replace(metadata=damaged)], 1)
    ours = serve(logdir)
    assert ours.get(TAGS).json["scalars"]["runTagInfo"] == {".": ["good"]}
    assert set(ours.get("data/plugin/scalars/tags").json["."]) == {"good"}


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_an_answer_in_many_parts_is_the_same(every_kind, serve, monkeypatch, encoding):
    """A large one is computed slice by slice, so that others have their turn."""
    request = json.dumps([{"plugin": "scalars", "tag": tag} for tag in ("loss", "wide", "none")])
    form = {"requests": request}
    headers = {"accept-encoding": encoding}

    def answers(ours):
        runs = {"tag": "loss", "runs": [".", "sweep/first", "empty"]}
        return [
            ours.ask(f"{ours.root}{path}", method="POST", data=data, headers=headers)
            for path, data in ((SERIES, form), (MULTIRUN, runs), (SERIES, form))
        ]

    whole = answers(serve(every_kind))
    assert all("content-length" in answer.headers for answer in whole)
    monkeypatch.setattr(app, "_SLICE_SECONDS", 0)
    monkeypatch.setattr(routes, "_POINTS_AT_ONCE", 2)
    in_parts = answers(serve(every_kind))
    assert [answer.body for answer in in_parts] == [answer.body for answer in whole]
    assert [len(one["runToSeries"]) for one in in_parts[0].json] == [5, 5, 0]
    # The last one is the first again, from the cache.
    assert ["content-length" in answer.headers for answer in in_parts] == [False, False, True]


# Responses are cached until a board changes, within a bound.


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


def test_what_a_worker_converted_is_kept_until_the_data_changes(tmp_path, index, monkeypatch):
    logs = tmp_path / "logs"
    with EventWriter(logs / "run1") as writer:
        writer.add([encode.text("note", "*one*")], 0)
        writer.flush()
        boards = one_board(index, logs)
        pool = WorkerPool(boards, {})
        monkeypatch.setattr(app, "WorkerPool", lambda *_: pool)
        ours = Ours(boards)

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
