"""Boards of chosen runs, and names that come from the records of runs."""

import time

import pytest
from serving import Ours

from aboard.events.writer import EventWriter
from aboard.index import Source
from aboard.runs import manifest
from aboard.runs.manifest import Manifest
from aboard.runs.naming import Template
from aboard.storage import open_storage
from aboard.tensorboard.board import Board, Listing, Member
from aboard.tensorboard.live import Follower
from aboard.tensorboard.provider import Boards
from aboard.tensorboard.selection import Chooser, Records, Selection


def write(root, label, *logdirs, loss=1.0, **fields):
    """Write a run with a record, and one point in each of its log directories."""
    experiment, _, name = label.rpartition("/")
    record = Manifest(name, experiment, heartbeat=time.time(), **fields)
    open_storage(str(root)).write(f"{label}/run.json", record.to_json())
    for logdir in logdirs:
        with EventWriter(root / label / logdir) as writer:
            writer.scalar("loss", loss, 3)


def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


# Names.


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "runs"
    hparams = {"lr": 0.01, "epochs": 2500}
    write(
        root, "cifar10/run23", "train", "test", workspace="ws1", job="2300", user="ada",
        host="node7", created=1_700_000_000.0, hparams=hparams, tags={"team": "vision"},
    )  # fmt: skip
    write(root, "cifar10/run24", "train", hparams={"lr": 1})
    with EventWriter(root / "raw" / "one") as writer:
        writer.scalar("loss", 1.0, 0)
    return root


@pytest.fixture
def names(index):
    """Give the names on a board of sources, under a template."""

    def names(template, *sources, roots=()):
        board = Board(
            "board",
            "A board",
            tuple(Member.parse(str(source)) for source in sources),
            Template.parse(template),
            roots=tuple(map(str, roots)),
        )
        records = Records(index, board.roots)
        for member in board.members:
            index.refresh(member.source)
            records.refresh(member.source)
        return list(Listing(board, index).runs())

    return names


def test_records_give_the_fields_of_a_template(names, root):
    assert names("{workspace}_{run}_{logdir}", root) == [
        "ws1_run23_test",
        "ws1_run23_train",
        "-_run24_train",
        "-_one_-",
    ]
    template = "{workspace}_{run}_{logdir}_lr={hparams.lr}_epochs={hparams.epochs}"
    assert names(template, root)[1] == "ws1_run23_train_lr=0.01_epochs=2500"
    assert names("{job} {user} {host} {state} {tags.team}", root / "cifar10" / "run23")[0] == (
        "2300 ada node7 running vision"
    )
    assert names("{created}", root)[0].startswith("2023-11-1")


@pytest.mark.parametrize("opened", ["", "cifar10", "cifar10/run23", "cifar10/run23/train"])
def test_the_nearest_record_above_counts_whatever_is_opened(names, root, opened):
    assert "ws1_run23_train" in names("{workspace}_{run}_{logdir}", root / opened)


def test_a_catalog_that_is_kept_up_to_date_is_used(names, root, index):
    index.refresh_catalog(str(root))
    chosen = names("{workspace}_{run}_{logdir}", root / "cifar10" / "run23", roots=[root])
    assert chosen == ["ws1_run23_test", "ws1_run23_train"]
    assert index.known_runs([str(root / "cifar10" / "run23")]) == []


def test_a_state_that_changes_changes_the_name(index, root, monkeypatch):
    run = root / "cifar10" / "run23"
    source = Source(str(run))
    index.refresh(source)
    records = Records(index)
    records.refresh(source)
    board = Board("board", "", (Member(source),), Template.parse("{run} {logdir} {state}"))
    listing = Listing(board, index)
    first = listing.runs()
    assert list(first) == ["run23 test running", "run23 train running"]
    assert listing.runs() is first
    manifest.update(open_storage(str(run)), lambda record: record.end("failed", 1))
    records.refresh(source)
    assert list(listing.runs()) == ["run23 test failed", "run23 train failed"]
    manifest.update(
        open_storage(str(run)), lambda record: record.begin(at=time.time(), host="", pid=1)
    )
    records.refresh(source)
    assert list(listing.runs()) == ["run23 test running", "run23 train running"]
    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert list(listing.runs()) == ["run23 test lost", "run23 train lost"]


def test_without_such_a_template_no_record_is_asked_for(index, root, monkeypatch):
    def never(*_):
        raise AssertionError("nobody asked")

    index.refresh(Source(str(root)))
    monkeypatch.setattr(type(index), "catalog_changes", never)
    monkeypatch.setattr(type(index), "known_runs", never)
    for template in (None, Template.parse("{experiment}/{run}/{logdir} {metrics.loss}")):
        board = Board("board", "", (Member(Source(str(root))),), template)
        assert len(Listing(board, index).runs()) == 4


# Selections.


@pytest.fixture
def choosing(index):
    """Serve a selection, followed as `aboard view` follows it."""
    opened = []

    def choosing(root, *selectors, beside=(), **options):
        index.refresh_catalog(str(root))
        others = tuple(Member.parse(str(one)) for one in beside)
        selection = Selection(selectors, (str(root),), others)
        members = selection.members(index)
        board = Board("board", "", members, selection=selection, roots=selection.roots, **options)
        boards = Boards(index)
        boards.add(board)
        follower = Follower(index)
        changes = []

        def changed(board):
            boards.get("board").show(board)
            changes.append([member.name for member in board.members])

        Chooser(board, index, follower, changed).start()
        ours = Ours(boards)
        opened.append((ours, follower))
        return ours, changes

    yield choosing
    for ours, follower in opened:
        follower.close()
        ours.close()


def runs_of(ours):
    return ours.get("data/runs").json


def test_a_board_of_chosen_runs_serves_theirs_and_no_others(choosing, root):
    ours, _ = choosing(root, "cifar10/run23-run30")
    expected = {"cifar10/run23/test", "cifar10/run23/train", "cifar10/run24/train"}
    until(lambda: set(runs_of(ours)) == expected)
    assert ours.points("loss", "cifar10/run24/train") == [(3, 1.0)]


def test_runs_that_start_later_join_and_others_leave(choosing, root, index):
    ours, changes = choosing(root, "tag:wanted", "cifar10/run24")
    until(lambda: runs_of(ours) == ["cifar10/run24/train"])
    write(root, "mnist/run1", "train", loss=0.25, tags={"wanted": True})
    until(lambda: runs_of(ours) == ["cifar10/run24/train", "mnist/run1/train"])
    assert ours.points("loss", "mnist/run1/train") == [(3, 0.25)]
    with EventWriter(root / "mnist" / "run1" / "train") as writer:
        writer.scalar("loss", 0.125, 4)
    until(lambda: ours.points("loss", "mnist/run1/train") == [(3, 0.25), (4, 0.125)])
    write(root, "mnist/run1", tags={})
    until(lambda: runs_of(ours) == ["cifar10/run24/train"])
    assert changes == [["cifar10/run24", "mnist/run1"], ["cifar10/run24"]]
    known = {run.name for run in index.runs(Source(str(root)))}
    assert "cifar10/run23/train" not in known, "what is not on the board is not read"


def test_what_is_beside_a_selection_stays(choosing, root, tmp_path):
    with EventWriter(tmp_path / "other") as writer:
        writer.scalar("loss", 5.0, 1)
    ours, _ = choosing(root, "cifar10/run24", beside=[tmp_path / "other"])
    until(lambda: set(runs_of(ours)) == {"other", "cifar10/run24/train"})
    assert ours.points("loss", "other") == [(1, 5.0)]


def test_a_template_names_chosen_runs_as_their_records_change(choosing, root):
    template = Template.parse("{run}_{logdir}_lr={hparams.lr}_{state}")
    ours, _ = choosing(root, "cifar10/run24", template=template)
    until(lambda: runs_of(ours) == ["run24_train_lr=1_running"])
    storage = open_storage(str(root / "cifar10" / "run24"))
    manifest.update(storage, lambda record: record.end("completed", 0))
    until(lambda: runs_of(ours) == ["run24_train_lr=1_completed"])


def test_joining_reads_nothing_again_of_those_that_are_there(root, index):
    index.refresh(Source(str(root)))
    first = Member(Source(str(root / "cifar10" / "run23")), "a")
    second = Member(Source(str(root / "cifar10" / "run24")), "b")
    listing = Listing(Board("board", "", (first,)), index)
    before = listing.runs()["a/train"]
    listing.show(Board("board", "", (first, second)))
    assert list(listing.runs()) == ["a/test", "a/train", "b/train"]
    assert listing.runs()["a/train"].tags is before.tags
