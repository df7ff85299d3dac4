"""A board is a selection under names of its own, and its listing follows the index."""

import json
import pickle
import shutil
import time

import pytest

from aboard.events.writer import EventWriter
from aboard.index import Source
from aboard.index.library import Library, Member
from aboard.runs import manifest
from aboard.runs.manifest import Manifest
from aboard.runs.naming import Grouping, Template
from aboard.storage import open_storage
from aboard.tensorboard import board as board_module
from aboard.tensorboard import board as module
from aboard.tensorboard.board import Board, Listing, member_labels
from aboard.track.summary import SummaryWriter


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
        return Listing(Board("board", "A board", members, **options), Library(index))

    return listing


def member(path, name=""):
    return Member(Source.parse(str(path)), name)


@pytest.mark.parametrize("board_id", ["", "a b", "a/b", "..", "é", "a%2f"])
def test_an_id_must_fit_into_an_address(board_id):
    with pytest.raises(ValueError, match="invalid board id"):
        Board(board_id, "", ())


def test_only_fields_go_to_another_process():
    board = Board("board", "A board", (member("/logs/a"), member("/logs/b")))
    alone = pickle.dumps(board)
    assert board.labels
    assert board.templates == ()
    assert board.pickled
    assert pickle.dumps(board) == alone
    again = pickle.loads(board.pickled)
    assert (again, again.labels) == (board, board.labels)


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
    assert "loss" in shown.runs()["two"].tags
    shutil.rmtree(logs / "two")
    write(logs / "three", loss=1.0)
    index.refresh(Source(str(logs)))
    assert list(shown.runs()) == ["one", "three"]
    assert "two" not in shown.runs()


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


def log_run(root, label, *logdirs, loss=1.0, **fields):
    """Write a run with a record, and one point in each of its log directories."""
    experiment, _, name = label.rpartition("/")
    record = Manifest(name, experiment, heartbeat=time.time(), **fields)
    open_storage(str(root)).write(f"{label}/run.json", record.to_json())
    for logdir in logdirs:
        with EventWriter(root / label / logdir) as writer:
            writer.scalar("loss", loss, 3)


# Names of several members.


@pytest.mark.parametrize(
    ("members", "labels"),
    [
        (["runs/mnist/run1", "runs/cifar10/run1"], ["mnist/run1", "cifar10/run1"]),
        (["/a/runs/x", "/b/runs/x", "/c/y"], ["a/runs/x", "b/runs/x", "y"]),
        (["s3://team/runs", "/home/ada/runs"], ["team/runs", "ada/runs"]),
        (["s3://team/runs", "gs://team/runs"], ["s3/team/runs", "gs/team/runs"]),
        (["s3://team/runs", "/team/runs"], ["s3/team/runs", "team/runs"]),
        # What is in `a` may be called `b`, too.
        (["/1/a", "/2/b", "/3/x/a/b"], ["a", "2/b", "x/a/b"]),
        (["new=/1/a", "old=/2/a"], ["new", "old"]),
        (["new=/1/a", "/2/new", "/3/new"], ["new", "2/new", "3/new"]),
        (["x=/1/a", "x=/2/a"], ["x", "x_2"]),
        (["/", "/a"], ["root", "a"]),
    ],
)
def test_labels_are_the_shortest_that_tell_members_apart(members, labels, monkeypatch):
    monkeypatch.chdir("/")
    assert member_labels([Member.parse(one) for one in members]) == labels


def test_runs_of_equal_labels_get_more_of_their_uris():
    roots = ("/a/runs", "/b/runs", "s3://team/runs")
    members = [Member(Source(f"{root}/cifar10/run1"), "cifar10/run1") for root in roots]
    members.append(Member(Source("/a/runs/mnist/run1"), "mnist/run1"))
    expected = [f"{one}/runs/cifar10/run1" for one in ("a", "b", "team")]
    assert member_labels(members) == [*expected, "mnist/run1"]


def test_no_run_appears_below_the_name_of_another(tmp_path, listing):
    for experiment in ("mnist", "cifar10"):
        for stage in ("", "train", "eval"):
            write(tmp_path / experiment / "run1" / stage, loss=1.0)
    shown = listing(member(tmp_path / "mnist/run1"), member(tmp_path / "cifar10/run1"))
    stages = ("", "/eval", "/train")
    expected = {f"{one}/run1{stage}" for one in ("mnist", "cifar10") for stage in stages}
    assert set(shown.runs()) == expected
    assert shown.count_runs()[1] == 2


def test_what_add_hparams_writes_below_a_run_is_not_a_run_of_its_own(tmp_path, listing):
    with SummaryWriter(tmp_path / "run1") as writer:
        writer.add_scalar("loss", 1.0, 0)
        writer.add_hparams({"lr": 0.1}, {"hparam/acc": 0.9})
        writer.add_hparams({"lr": 0.1}, {"hparam/acc": 0.95}, run_name="again")
    with SummaryWriter(tmp_path / "trials") as writer:  # logs nothing itself
        for trial in ("one", "two"):
            writer.add_hparams({"lr": 0.1}, {"hparam/acc": 0.9}, run_name=trial)
    with SummaryWriter(tmp_path / "run1" / "other") as writer:
        for step in range(2):
            writer.add_scalar("loss", 1.0, step)
        writer.add_hparams({"lr": 0.1}, {"hparam/acc": 0.9}, run_name=".")
    shown = listing(member(tmp_path))
    runs = shown.runs()
    assert {"run1", "run1/again", "run1/other", "trials/one", "trials/two"} < set(runs)
    assert len(runs) == 7
    assert "hparam/acc" in runs["run1/again"].tags
    assert shown.count_runs()[1] == len(runs) - 2  # all but the two below run1


# Names from the records of runs.


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "runs"
    hparams = {"lr": 0.01, "epochs": 2500}
    log_run(
        root, "cifar10/run23", "train", "test", workspace="ws1", job="2300", user="ada",
        host="node7", created=1_700_000_000.0, hparams=hparams, tags={"team": "vision"},
    )  # fmt: skip
    log_run(root, "cifar10/run24", "train", hparams={"lr": 1})
    with EventWriter(root / "raw" / "one") as writer:
        writer.scalar("loss", 1.0, 0)
    return root


@pytest.fixture
def names(index):
    """Return the names on a board of sources, under a template."""

    def names(template, *sources, roots=()):
        board = Board(
            "board",
            "A board",
            tuple(Member.parse(str(source)) for source in sources),
            Template.parse(template),
        )
        library = Library(index, map(str, roots))
        for member in board.members:
            index.refresh(member.source)
            library.refresh_records(member.source)
        return list(Listing(board, library).runs())

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


def test_metrics_of_a_stage_also_have_the_names_that_they_have_in_questions(names, tmp_path):
    root = tmp_path / "runs"
    log_run(root, "cifar10/run1", "train")  # with a record
    for run in ("cifar10/run1", "raw/one"):
        for stage, tag in (("train", "loss"), ("eval", "acc"), ("eval", "eval/odd")):
            with EventWriter(root / run / stage) as writer:
                writer.scalar(tag, 0.25, 0)
    assert names("{run} {logdir} {metrics.acc} {metrics.eval/acc}", root) == [
        "run1 eval 0.25 0.25", "run1 train - 0.25", "one eval 0.25 0.25", "one train - 0.25",
    ]  # fmt: skip
    template = '{metrics["eval/eval/odd"]} {metrics.eval/odd} {metrics.loss/acc}'
    assert names(template, root / "raw/one/eval") == ["0.25 0.25 -"]


@pytest.mark.parametrize("template", ["{metrics.eval/ac}", "{metrics.x}"])
def test_an_unknown_metric_in_a_template_lists_those_of_stages(tmp_path, index, template):
    with EventWriter(tmp_path / "run1" / "eval") as writer:
        writer.scalar("acc", 0.25, 0)
    index.refresh(Source(str(tmp_path)))
    board = Board("board", "", (member(tmp_path),), Template.parse(template))
    shown = Listing(board, Library(index))
    assert list(shown.runs()) == ["-"]
    (problem,) = shown.missing_fields()
    assert "eval/acc" in problem


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
    library = Library(index)
    library.refresh_records(source)
    board = Board("board", "", (Member(source),), Template.parse("{run} {logdir} {state}"))
    listing = Listing(board, Library(index))
    first = listing.runs()
    assert list(first) == ["run23 test running", "run23 train running"]
    assert listing.runs() is first
    manifest.update(open_storage(str(run)), lambda record: record.end("failed", 1))
    library.refresh_records(source)
    assert list(listing.runs()) == ["run23 test failed", "run23 train failed"]
    manifest.update(
        open_storage(str(run)), lambda record: record.begin(at=time.time(), host="", pid=1)
    )
    library.refresh_records(source)
    assert list(listing.runs()) == ["run23 test running", "run23 train running"]
    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert list(listing.runs()) == ["run23 test lost", "run23 train lost"]


def test_other_templates_read_no_record(index, root, monkeypatch):
    def never(*_):
        raise AssertionError("a record was read")

    index.refresh(Source(str(root)))
    monkeypatch.setattr(type(index), "catalog_changes", never)
    monkeypatch.setattr(type(index), "known_runs", never)
    for template in (None, Template.parse("{experiment}/{run}/{logdir} {metrics.loss}")):
        board = Board("board", "", (Member(Source(str(root))),), template)
        assert len(Listing(board, Library(index)).runs()) == 4


def test_joining_reads_nothing_again_of_those_that_are_there(root, index):
    index.refresh(Source(str(root)))
    first = Member(Source(str(root / "cifar10" / "run23")), "a")
    second = Member(Source(str(root / "cifar10" / "run24")), "b")
    listing = Listing(Board("board", "", (first,)), Library(index))
    before = listing.runs()["a/train"]
    listing.show(Board("board", "", (first, second)))
    assert list(listing.runs()) == ["a/test", "a/train", "b/train"]
    assert listing.runs()["a/train"].tags is before.tags


def test_a_run_with_too_many_tags_is_named(logs, listing, index, monkeypatch):
    monkeypatch.setattr(board_module, "MOST_TAGS", 3)
    write(logs / "many", **{f"tag{number}": 1.0 for number in range(5)})
    shown = listing(member(logs))
    assert sorted(shown.runs()["many"].tags) == ["tag0", "tag1", "tag2"]
    assert sorted(shown.runs()) == ["many", "one", "two", "two/eval"]
    (problem,) = shown.problems()
    assert problem.startswith(f"{logs / 'many'}: this run has 5 tags; the board shows the first 3")
    shutil.rmtree(logs / "many")
    index.refresh(Source(str(logs)))
    assert "many" not in shown.runs()
    assert shown.problems() == []


# Groups on a board: a run for each of their curves, served like any run and live.


def log(root, run, values, tag="loss", **hparams):
    with EventWriter(root / run) as writer:
        for step, value in enumerate(values):
            writer.scalar(tag, value, step, wall_time=1000.0 + step)
    if hparams:
        above = root / run.partition("/")[0]
        record = Manifest(above.name, "logs", hparams=hparams)
        (above / "run.json").write_bytes(record.to_json())


@pytest.fixture
def grouped_logs(tmp_path):
    root = tmp_path / "logs"
    log(root, "one", [1.0, 2.0], lr=0.1)
    log(root, "two", [3.0, 4.0, 5.0], lr=0.1)
    log(root, "three", [7.0], lr=0.01)
    return root


@pytest.fixture
def show(serve, index):
    def show(root, *fields, **options):
        ours = serve(root, grouping=Grouping.parse(fields or ["hparams.lr"], **options))
        ours.boards.library.refresh_records(next(iter(ours.boards)).members[0].source)
        return ours

    return show


def curves(ours, tag="loss"):
    requests = [{"plugin": "scalars", "tag": tag}]
    asked = {"requests": json.dumps(requests)}
    (answer,) = ours.post("data/plugin/timeseries/timeSeries", asked).json
    return {
        run: {point["step"]: point["value"] for point in points}
        for run, points in answer["runToSeries"].items()
    }


def runs(ours):
    return ours.get("data/runs").json


def test_a_group_has_a_run_for_each_of_its_curves(grouped_logs, show):
    ours = show(grouped_logs)
    assert curves(ours) == {
        "lr=0.1 mean": {0: 2.0, 1: 3.0, 2: 5.0},
        "lr=0.1 +std": {0: pytest.approx(2 + 2**0.5), 1: pytest.approx(3 + 2**0.5)},
        "lr=0.1 -std": {0: pytest.approx(2 - 2**0.5), 1: pytest.approx(3 - 2**0.5)},
        "lr=0.01 mean": {0: 7.0},
    }
    assert sorted(runs(ours)) == ["lr=0.01 mean", "lr=0.1 +std", "lr=0.1 -std", "lr=0.1 mean"]
    assert curves(ours, "members/loss") == {
        "lr=0.1 mean": {0: 2, 1: 2, 2: 1},
        "lr=0.01 mean": {0: 1},
    }
    assert json.loads(ours.get("data/status").body)["runs"] == 3  # a curve is not a run


@pytest.mark.parametrize(
    ("band", "names"),
    [
        ("sem", ["+sem", "-sem", "mean"]),
        ("minmax", ["max", "mean", "min"]),
        ("quartiles", ["median", "q1", "q3"]),
    ],
)
def test_bands(grouped_logs, show, band, names):
    ours = show(grouped_logs, band=band)
    assert sorted(run for run in runs(ours) if "0.1 " in run) == [f"lr=0.1 {one}" for one in names]


def test_what_is_shown(grouped_logs, show):
    plain = {"one", "two", "three"}
    assert set(runs(show(grouped_logs, show="runs"))) == plain
    both = set(runs(show(grouped_logs, show="both")))
    assert plain < both
    assert both - plain == set(runs(show(grouped_logs)))


def test_runs_without_a_value_are_a_group_and_stages_are_apart(grouped_logs, show):
    log(grouped_logs, "four", [9.0])
    log(grouped_logs, "one/eval", [0.5], "acc")
    log(grouped_logs, "two/eval", [1.0], "acc")
    ours = show(grouped_logs)
    assert curves(ours)["lr=- mean"] == {0: 9.0}
    assert curves(ours, "acc")["lr=0.1/eval mean"] == {0: 0.75}


def test_hyperparameters_of_event_files(tmp_path, show):
    from torch.utils.tensorboard import SummaryWriter

    for number, lr in enumerate([0.5, 0.5, 0.25]):
        with SummaryWriter(str(tmp_path / "logs" / str(number))) as writer:
            writer.add_hparams({"lr": lr}, {"loss": number}, run_name=".")
    assert curves(show(tmp_path / "logs"), "loss")["lr=0.5 mean"] == {0: 0.5}


def test_groups_follow_new_points_and_runs(grouped_logs, show):
    ours = show(grouped_logs)
    assert curves(ours)["lr=0.01 mean"] == {0: 7.0}
    log(grouped_logs, "three", [7.0, 9.0])
    log(grouped_logs, "four", [1.0], lr=0.01)
    ours.refresh()
    ours.boards.library.refresh_records(next(iter(ours.boards)).members[0].source)
    assert curves(ours)["lr=0.01 mean"] == {0: 4.0, 1: 9.0}
    assert curves(ours)["lr=0.01 +std"] == {0: pytest.approx(4 + 18**0.5)}


def test_every_route_has_the_groups(grouped_logs, show):
    ours = show(grouped_logs)
    tags = ours.get("data/plugin/scalars/tags").json
    assert set(tags["lr=0.1 mean"]) == {"loss", "members/loss"}
    found = ours.get("data/plugin/timeseries/tags").json["scalars"]["runTagInfo"]
    assert found["lr=0.1 +std"] == ["loss"]
    rows = ours.get("data/plugin/scalars/scalars", run="lr=0.1 mean", tag="loss").json  # a worker
    assert [row[1:] for row in rows] == [[0, 2.0], [1, 3.0], [2, 5.0]]
    listed = ours.get("data/plugins_listing").json
    assert listed["timeseries"]["enabled"]
    assert ours.get("data/plugin/projector/runs").json == []


def test_very_many_groups(grouped_logs, show, monkeypatch):
    monkeypatch.setattr(module, "MOST_GROUPS", 1)
    ours = show(grouped_logs)
    assert len(runs(ours)) in {1, 3}
    (problem,) = ours.boards.get("board").problems()
    assert "in 2 groups; the board shows the first 1." in problem
