"""A board is a selection under names of its own, and its listing follows the index."""

import shutil

import pytest

from aboard.events.writer import EventWriter
from aboard.index import Source
from aboard.tensorboard.board import Board, Listing, Member


def write(directory, step=0, **tags):
    with EventWriter(directory) as writer:
        for tag, value in tags.items():
            writer.scalar(tag, value, step, wall_time=1000.0 + step)


@pytest.fixture
def logs(tmp_path):
    for run in ("one", "two/eval", "two"):
        write(tmp_path / "logs" / run, loss=1.0)
    return tmp_path / "logs"


@pytest.fixture
def listing(index):
    def listing(*members, **options):
        for member in members:
            index.refresh(member.source)
        return Listing(Board("board", "A board", members, **options), index)

    return listing


def member(path, name=""):
    return Member(Source.parse(str(path)), name)


@pytest.mark.parametrize("board_id", ["", "a b", "a/b", "..", "é", "a%2f"])
def test_an_id_must_fit_into_an_address(board_id):
    with pytest.raises(ValueError, match="cannot be a board's id"):
        Board(board_id, "", ())


def test_a_member_may_have_a_name(tmp_path):
    assert Member.parse(f"mine={tmp_path}") == Member(Source(str(tmp_path)), "mine")
    assert Member.parse(str(tmp_path)) == Member(Source(str(tmp_path)), "")
    assert Member.parse(f"{tmp_path}/lr=0.1").name == ""
    assert Member.parse("s3://bucket/lr=0.1") == Member(Source("s3://bucket/lr=0.1"), "")


def test_one_member_keeps_the_names_of_tensorboard(logs, listing):
    write(logs, loss=1.0)
    assert list(listing(member(logs)).runs()) == [".", "one", "two", "two/eval"]


def test_several_members_stand_in_front(logs, tmp_path, listing):
    write(tmp_path / "other", loss=1.0)
    write(tmp_path / "other" / "three", loss=1.0)
    shown = listing(member(logs), member(tmp_path / "other", "named"))
    assert list(shown.runs()) == ["logs/one", "logs/two", "logs/two/eval", "named", "named/three"]


def test_the_same_runs_twice_have_two_names(logs, listing):
    names = list(listing(member(logs, "a"), member(logs, "a")).runs())
    assert len(names) == len(set(names)) == 3
    names = list(listing(member(logs, "a"), member(logs / "two", "a/two")).runs())
    assert len(names) == len(set(names)) == 5


def test_patterns_choose_runs(logs, listing):
    assert list(listing(member(logs), include=("two*",)).runs()) == ["two", "two/eval"]
    assert list(listing(member(logs), exclude=("*eval",)).runs()) == ["one", "two"]
    assert list(listing(member(logs), include=("t*",), exclude=("*/*",)).runs()) == ["two"]


def test_nothing_is_read_again_while_nothing_changes(logs, listing, index):
    shown = listing(member(logs))
    first = shown.runs()
    assert shown.runs() is first
    write(logs / "one", 1, loss=2.0, accuracy=0.5)
    index.refresh(Source(str(logs)))
    second = shown.runs()
    assert set(second["one"].tags) == {"loss", "accuracy"}
    assert set(first["one"].tags) == {"loss"}
    assert second["two"].tags is first["two"].tags


def test_deleted_runs_and_new_ones(logs, listing, index):
    shown = listing(member(logs))
    assert shown.find("two", "loss") is not None
    shutil.rmtree(logs / "two")
    write(logs / "three", loss=1.0)
    index.refresh(Source(str(logs)))
    assert list(shown.runs()) == ["one", "three"]
    assert shown.find("two", "loss") is None
    assert shown.find("one", "nothing") is None


def test_many_runs_are_listed_as_few_are(tmp_path, listing):
    for run in range(120):
        write(tmp_path / "logs" / f"run{run:03}", **{"loss": 1.0, f"own{run}": 2.0})
    runs = listing(member(tmp_path / "logs")).runs()
    assert len(runs) == 120
    assert all(set(run.tags) == {"loss", f"own{int(name[3:])}"} for name, run in runs.items())


def test_a_run_begins_with_its_first_event(logs, listing):
    write(logs / "one", 5, loss=1.0)
    begun = listing(member(logs)).runs()["one"].start_time
    assert begun is not None
    assert begun > 1_700_000_000


def test_a_board_of_many_runs_asks_no_more_often_than_one_of_few(
    tmp_path, index, listing, monkeypatch
):
    for number in range(30):
        write(tmp_path / "logs" / f"run{number}", loss=1.0)
    members = [member(tmp_path / "logs" / f"run{number}", f"m{number}") for number in range(30)]
    few, many = listing(*members[:2]), listing(*members)
    asked = []
    original = type(index)._ask
    monkeypatch.setattr(
        type(index), "_ask", lambda self, question: asked.append(1) or original(self, question)
    )
    questions = []
    for shown, runs in ((few, 2), (many, 30), (many, 30)):
        asked.clear()
        assert len(shown.runs()) == runs
        questions.append(len(asked))
    assert questions == [3, 3, 1]
    write(tmp_path / "logs" / "run7", step=1, accuracy=1.0)
    index.refresh(members[7].source)
    assert set(many.runs()["m7"].tags) == {"loss", "accuracy"}
