"""`aboard runs`: what is listed, shown, deleted and tagged, and what is said when it cannot be."""

import json
import math
import os
import pty
import subprocess
import sys
import time

import pytest
from rich.cells import cell_len

import aboard as library
from aboard import EventWriter, SummaryWriter
from aboard.runs.manifest import Manifest, State
from aboard.storage import open_storage
from tests.engines.real_hub import log_run

EVENTS = "events.out.tfevents.1"


def record(root, label, *, fresh=False, **fields):
    experiment, _, name = label.rpartition("/")
    at = time.time() if fresh else 1_700_000_000.0
    manifest = Manifest(name, experiment, created=at, **fields)
    manifest.begin(at=at, host="node7", pid=5, job=manifest.job)
    if not fresh:
        manifest.end("completed", 0, at=at + 90)
    storage = open_storage(str(root))
    storage.write(f"{label}/run.json", manifest.to_json())
    storage.write(f"{label}/train/{EVENTS}", b"12345678")


@pytest.fixture
def root(tmp_path):
    """A root with recorded runs of two experiments and a raw one."""
    root = tmp_path / "runs"
    record(root, "cifar10/run1", hparams={"lr": 0.1}, metrics={"eval/acc": 0.5}, job="2300")
    record(root, "cifar10/run2", hparams={"lr": 0.01}, metrics={"eval/acc": 0.9}, job="2300")
    record(root, "cifar10/run10", hparams={"lr": 1}, tags={"baseline": True, "team": "vision"})
    record(root, "mnist/run1", metrics={"eval/acc": 0.7}, user="ada")
    (root / "raw" / "one").mkdir(parents=True)
    (root / "raw" / "one" / EVENTS).write_bytes(b"123")
    (root / "raw" / "one" / "model.pt").write_bytes(b"weights")
    return root


def column(result, place=0):
    assert result.code == 0, result.err
    return [line.split()[place] for line in result.out.splitlines()[1:]]


def labels(root):
    return sorted(str(path.parent.relative_to(root)) for path in root.rglob("run.json"))


# Listing.


def test_a_path_without_runs_is_an_error(aboard, tmp_path):
    (tmp_path / "empty").mkdir()
    result = aboard("runs", tmp_path / "empty")
    assert result.code == 1
    assert f"{tmp_path}/empty: no runs found in it or below it. Check the path." in result.err


def test_runs_are_listed_in_natural_order(aboard, root):
    result = aboard("runs")
    assert column(result) == [
        "cifar10/run1", "cifar10/run2", "cifar10/run10", "mnist/run1", "raw/one",
    ]  # fmt: skip
    head, first, *_ = result.out.splitlines()
    assert head.split() == ["RUN", "STATE", "CREATED", "DURATION", "HOST", "USER", "TAGS"]
    assert "completed  2023-11-14 22:13:20  1 min 30 s  node7" in first
    assert "baseline, team=vision" in result.out
    assert "\x1b" not in result.out


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        (["cifar10/run1-run2"], ["cifar10/run1", "cifar10/run2"]),
        (["list", "mnist", "tag:baseline"], ["cifar10/run10", "mnist/run1"]),
        (["hparam:lr<1,", "raw"], ["cifar10/run1", "cifar10/run2", "raw/one"]),
        (["./runs/mnist"], ["mnist/run1"]),
        (["runs/cifar10/run1"], ["cifar10/run1"]),
        (["runs/mnist", "cifar10/run10"], ["cifar10/run10", "mnist/run1"]),
    ],
)
def test_selectors_choose(aboard, root, selectors, expected):
    assert column(aboard("runs", *selectors)) == expected


def test_columns_order_and_limit(aboard, root):
    columns = ["--columns", "run,hparams.lr,metrics.eval/acc"]
    result = aboard("runs", *columns, "--sort", "-metrics.eval/acc")
    assert [line.split() for line in result.out.splitlines()] == [
        ["RUN", "HPARAMS.LR", "METRICS.EVAL/ACC"],
        ["cifar10/run2", "0.01", "0.9"],
        ["mnist/run1", "-", "0.7"],
        ["cifar10/run1", "0.1", "0.5"],
        ["cifar10/run10", "1", "-"],
        ["raw/one", "-", "-"],
    ]
    limited = aboard("runs", "--sort", "hparams.lr", "--limit", 1)
    assert column(limited) == ["cifar10/run2"]
    assert "4 more runs; raise --limit to see them." in limited.err


@pytest.fixture
def measured(root):
    """Give three of the runs points: their best values are not their last ones."""
    for label, values in {"cifar10/run1": [0.2, 0.8, 0.5], "cifar10/run2": [0.1, 0.3],
                          "mnist/run1": [0.6]}.items():  # fmt: skip
        with EventWriter(str(root / label / "eval")) as writer:
            for step, value in enumerate(values):
                writer.scalar("acc", value, step, dtype="float64")
    return root


def test_a_question_narrows_over_all_points(aboard, measured):
    def asked(where, *more):
        return column(aboard("runs", "--where", where, *more))

    assert asked('metrics["eval/acc"].max > 0.5') == ["cifar10/run1", "mnist/run1"]
    assert asked("metrics.eval/acc.count >= 2 and hparams.lr < 0.05") == ["cifar10/run2"]
    assert asked('"baseline" in tags or name ~ "o*"') == ["cifar10/run10", "raw/one"]
    assert column(aboard("runs", "cifar10", "--where", "hparams.lr <= 0.1", "--limit", 1)) == [
        "cifar10/run1"
    ]
    best = aboard("runs", "--sort", "-metrics.eval/acc.max", "--limit", 2, "--columns",
                  'run,metrics["eval/acc"].max,metrics.eval/acc.at(1)')  # fmt: skip
    assert [line.split() for line in best.out.splitlines()] == [
        ["RUN", 'METRICS["EVAL/ACC"].MAX', "METRICS.EVAL/ACC.AT(1)"],
        ["cifar10/run1", "0.8", "0.8"],
        ["mnist/run1", "0.6", "-"],
    ]
    assert "3 more runs" in best.err
    document = aboard(
        "runs", "--where", "hparams.lr > 0", "--sort", "-user", "--limit", 1, "--json"
    )
    assert document.json["total"] == 3


def test_groups_have_counts_and_means(aboard, measured):
    columns = ["--columns", 'metrics["eval/acc"].max']
    result = aboard("runs", "--group-by", "experiment", *columns)
    assert [line.split() for line in result.out.splitlines()] == [
        ["EXPERIMENT", "RUNS", "MEAN", 'METRICS["EVAL/ACC"].MAX'],
        ["cifar10", "3", "0.55"],
        ["mnist", "1", "0.6"],
        ["raw", "1", "-"],
    ]
    groups = aboard("runs", "--group-by", "experiment", *columns, "--limit", 1, "--json").json
    assert groups["total"] == 3
    assert groups["groups"] == [
        {
            "values": {"experiment": "cifar10"},
            "count": 3,
            "means": {'metrics["eval/acc"].max': pytest.approx(0.55)},
            "runs": ["cifar10/run1", "cifar10/run2", "cifar10/run10"],
        }
    ]


def test_a_wrong_question_is_marked(aboard, measured):
    result = aboard("runs", "--where", 'state == "completed" and hparams.lrr < 1')
    assert result.code == 2
    assert result.err == (
        "aboard: no run has a hyperparameter 'lrr'. Did you mean 'lr'?\n"
        '  state == "completed" and hparams.lrr < 1\n'
        "                           ^^^^^^^^^^^\n"
    )
    result = aboard("runs", "--where", "stat == 1", "--json")
    (error,) = result.json["errors"]
    assert (result.code, error["code"]) == (2, "bad_question")
    assert error["picture"] == "stat == 1\n^^^^"
    none = aboard("runs", "--where", "hparams.lr > 99")
    assert (none.code, none.out) == (0, "")
    assert none.err == "aboard: no run matches --where 'hparams.lr > 99'.\n"
    for where, hint in {
        "hparams.lr in ('0.1',)": "hparams.lr is a number in all runs, not a string. Write it"
        " without quotes.",
        "state == 'killed' or name == 3": "name is a string in all runs, not a number. Write it in"
        " quotes.",
        "name ~ 'run*' and 'basline' in tags": "No run has a tag 'basline'. Did you mean"
        " 'baseline'?",
    }.items():
        none = aboard("runs", "--where", where)
        assert (none.code, none.err) == (0, f"aboard: no run matches --where {where!r}. {hint}\n")


def test_numbers_that_are_not_finite_have_names_in_json(aboard, measured):
    with EventWriter(str(measured / "mnist/run1/eval")) as writer:
        for step, value in enumerate((math.nan, math.inf, -math.inf), start=5):
            writer.scalar("acc", value, step)
    statistics = ("at(5)", "at(6)", "last", "max", "infinities", "max_step")
    columns = ",".join(f'metrics["eval/acc"].{one}' for one in statistics)
    (run,) = aboard("runs", "mnist/run1", "--columns", columns, "--json").json["runs"]
    assert [*run.values()] == ["NaN", "Infinity", "-Infinity", 0.6, 2, 0]
    assert all(type(one) is int for one in [*run.values()][-2:])
    groups = aboard("runs", "--group-by", "tags", "--json").json["groups"]
    assert ["baseline", "team"] in [one["values"]["tags"] for one in groups]
    rows = aboard("runs", "--group-by", "tags").out.splitlines()[1:]
    assert sorted(row.split("  ")[0] for row in rows) == ["-", "baseline, team"]


def test_json_has_every_field(aboard, root):
    document = aboard("runs", "cifar10/run10", "--json").json
    (run,) = document["runs"]
    assert document["roots"] == [str(root)]
    assert document["problems"] == []
    assert run["run"] == "cifar10/run10"
    assert (run["experiment"], run["name"], run["state"]) == ("cifar10", "run10", "completed")
    assert (run["created"], run["duration"]) == (1_700_000_000.0, 90.0)
    assert run["tags"] == {"baseline": True, "team": "vision"}
    assert run["hparams"] == {"lr": 1}
    assert run["uri"] == f"{root}/cifar10/run10"
    narrow = aboard("runs", "mnist", "--json", "--columns", "uri,metrics.eval/acc").json
    assert narrow["runs"] == [{"uri": f"{root}/mnist/run1", "metrics.eval/acc": 0.7}]


def test_roots_are_given_or_in_the_environment(aboard, root, tmp_path):
    record(tmp_path / "other", "imagenet/run1")
    both = aboard("runs", "--root", tmp_path / "other", "--root", root, "run1")
    assert column(both) == ["cifar10/run1", "imagenet/run1", "mnist/run1"]
    assert column(aboard("runs", ABOARD_ROOT=str(tmp_path / "other"))) == ["imagenet/run1"]


def test_what_cannot_be_read_is_told_and_the_rest_is_listed(aboard, root, tmp_path):
    (root / "cifar10" / "run2" / "run.json").write_text("{")
    result = aboard("runs", "--root", root, "--root", tmp_path / "missing")
    assert result.code == 1
    assert len(result.out.splitlines()) == 6
    lines = result.err.splitlines()
    assert any("run2/run.json: invalid JSON" in line for line in lines)
    assert any("missing: file or directory not found" in line for line in lines)
    assert len(lines) == 2


def test_of_many_bad_records_some_are_named_and_the_others_counted(aboard, root):
    for number in range(30):
        (root / "mnist" / f"bad{number}").mkdir()
        (root / "mnist" / f"bad{number}" / "run.json").write_text("{}")
    result = aboard("runs", "--root", root)
    assert result.code == 1
    assert "mnist/run1 " in result.out
    lines = result.err.splitlines()
    assert len(lines) == 20
    assert all("/run.json: " in line for line in lines[:19])
    assert lines[19].startswith("aboard: 11 more problems like these. ")
    assert len(json.loads(aboard("runs", "--root", root, "--json").out)["problems"]) == 30


def test_fields_are_separated_by_commas(aboard, root):
    several = aboard("runs", "--sort", "-hparams.lr", "--sort", "name", "--columns", "run")
    assert aboard("runs", "--sort", "-hparams.lr,name", "--columns", "run").out == several.out
    groups = aboard("runs", "--group-by", "experiment,hparams.lr", "--json").json["groups"]
    assert {"experiment", "hparams.lr"} == set(groups[0]["values"])
    first = aboard("ls", root, "--sort", "experiment,-name", "--limit", "1", "--json").json
    twice = ("--sort", "experiment", "--sort=-name")
    assert first == aboard("ls", root, *twice, "--limit", "1", "--json").json
    result = aboard("runs", "--sort", 'hparams["a,b"]')
    assert "no run has a hyperparameter 'a,b'." in result.err


def test_a_bare_name_is_suggested_with_its_group(aboard, root):
    for command in ("runs", "ls", "export", "start"):
        result = aboard(command, *([root] * (command != "runs")), "--where", "lr < 0.1")
        assert (result.code, result.out) == (2, "")
        assert result.err == (
            "aboard: unknown field 'lr'. Did you mean hparams.lr?\n  lr < 0.1\n  ^^\n"
        )


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["cifar1"], 1, "'cifar1' matches no run. The nearest is 'cifar10'."),
        (["shwo", "cifar10/run1"], 1, "no run. Known here: cifar10, mnist, raw. If you meant a"),
        (["shwo"], 1, "If you meant a command: aboard runs show"),
        (["jobs:1"], 2, "unknown selector 'jobs'. Did you mean job:1?"),
        (["--columns", "stat"], 2, "unknown column 'stat'. Did you mean 'state'?"),
        (["--columns", "run,hparams.l"], 2, "no run has a hyperparameter 'l'. Did you mean 'lr'?"),
        (["--columns", "run,lr"], 2, "unknown column 'lr'. Did you mean hparams.lr?"),
        (["--where", " "], 2, "--where is empty. Write a condition, such as"),
        (["--limit", "x"], 2, "invalid value for '--limit': 'x' must be a whole number."),
        (["--limit", "0"], 2, "invalid value for '--limit': 0 must be at least 1."),
        (["--sort", "-creatd"], 2, "unknown field 'creatd'. Did you mean 'created'?"),
        (["--root", "nowhere"], 1, "nowhere: file or directory not found."),
        (["./nowhere"], 1, "nowhere: file or directory not found."),
        (["show", "cifar10"], 1, "'cifar10' is 3 runs: cifar10/run1, cifar10/run2, cifar10/run10."),
        (["show", "cifar10/run3"], 1, "The nearest are 'cifar10/run1' and 'cifar10/run2'."),
        (["delete", "run1", "--yes"], 1, "'run1' is the name of cifar10/run1, mnist/run1."),
        (["delete", "cifar10/run1"], 2, "nothing deleted. Add --yes"),
        (["tag", "mnist"], 2, "nothing to do: give --add NAME"),
        (["tag", "mnist", "--add", "=x"], 2, "write NAME or NAME=VALUE."),
        (["tag", "raw/one", "--add", "x"], 1, "cannot store tags and notes without a run.json."),
    ],
)
def test_bad_input_gets_one_clear_line(aboard, root, arguments, code, text):
    before = labels(root)
    result = aboard("runs", *arguments)
    assert (result.code, result.out) == (code, "")
    assert text in result.err
    assert "Traceback" not in result.err
    assert labels(root) == before


def test_a_note_is_written_shown_and_removed(aboard, root):
    record = root / "cifar10/run1/run.json"
    done = aboard("runs", "note", "cifar10/run1", "of the paper")
    assert (done.code, done.out.strip()) == (0, "cifar10/run1: of the paper")
    assert json.loads(record.read_text())["note"] == "of the paper"
    assert "note       of the paper" in aboard("runs", "show", "cifar10/run1").out
    assert aboard("runs", "note", "cifar10/run1", "").code == 0
    assert json.loads(record.read_text())["note"] == ""


def test_without_a_root_it_is_said_how_to_give_one(aboard):
    result = aboard("runs")
    assert result.code == 1
    assert "Name the directory of the runs with --root or ABOARD_ROOT." in result.err


def test_listing_imports_neither_the_boards_nor_numpy(variables, root, tmp_path):
    script = (
        "import sys\nfrom aboard.cli.app import run\nrun(['runs'])\n"
        "heavy = {'numpy', 'tensorboard', 'aboard.tensorboard', 'starlette', 'aboard.cli.view'}\n"
        "print(heavy & set(sys.modules), file=sys.stderr)\n"
        "assert 'aboard.cli.runs' in sys.modules\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, check=True)
    assert done.stderr.decode() == "set()\n"
    script = "import sys\nfrom aboard.cli.app import run\nrun(['ls', '--help'])\n"
    script += "assert 'aboard.cli.runs' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", script], env=variables, check=True)


# One run.


def test_show_tells_everything(aboard, root):
    result = aboard("runs", "show", "cifar10/run2")
    assert result.code == 0
    for text in ("completed, exit code 0", "lr  0.01", "eval/acc  0.9", "2300", "1 min 30 s"):
        assert text in result.out
    assert "2 files" in result.out
    assert f"aboard view {root}/cifar10/run2" in result.out
    assert "ATTEMPT" in result.out


def test_show_reads_the_event_files_of_a_run_without_recorded_hyperparameters(aboard, root):
    for run in ("mnist/run1", "raw/one"):
        with SummaryWriter(root / run) as writer:
            writer.add_hparams({"lr": 0.25}, {"accuracy": 0.5})
        assert aboard("runs", "show", run, "--json").json["hparams"] == {"lr": 0.25}


def test_show_as_json(aboard, root):
    document = aboard("runs", "show", "run2", "--json").json
    assert (document["run"], document["files"]) == ("cifar10/run2", 2)
    (attempt,) = document["attempts"]
    assert (attempt["number"], attempt["host"], attempt["exit_code"]) == (1, "node7", 0)
    raw = aboard("runs", "show", "raw", "--json").json
    assert (raw["state"], raw["attempts"], raw["files"]) == (None, [], 2)


# Deleting.


def test_deleting_run1_leaves_run10(aboard, root):
    result = aboard("runs", "delete", "cifar10/run1", "--yes")
    assert result.code == 0
    assert result.out.startswith("deleted cifar10/run1: 2 files, ")
    assert labels(root) == ["cifar10/run10", "cifar10/run2", "mnist/run1"]
    assert not (root / "cifar10" / "run1").exists()
    assert (root / "cifar10" / "run10" / "train" / EVENTS).read_bytes() == b"12345678"
    assert column(aboard("runs", "cifar10")) == ["cifar10/run2", "cifar10/run10"]


@pytest.mark.parametrize(("answer", "deleted"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_it_asks_first(variables, root, tmp_path, answer, deleted):
    command = [sys.executable, "-m", "aboard", "runs", "delete", "cifar10/run1-run2"]
    done = subprocess.run(
        command,
        env=variables,
        cwd=tmp_path,
        input=answer.encode(),
        capture_output=True,
        check=False,
    )
    assert b"Delete 2 runs: cifar10/run1, cifar10/run2? [y/N]" in done.stderr
    assert done.returncode == (0 if deleted else 1)
    assert ("cifar10/run1" in labels(root)) is not deleted


def test_links_and_runs_inside_are_left_alone(aboard, root, tmp_path):
    inside = root / "cifar10" / "run1"
    (inside / "latest").symlink_to(root / "cifar10" / "run10")
    (inside / "data.bin").symlink_to(tmp_path / "data.bin")
    (tmp_path / "data.bin").write_bytes(b"dear")
    record(inside, "sub/run5")
    (root / "cifar10" / "linked").symlink_to(root / "mnist" / "run1")
    assert aboard("runs", "delete", "cifar10/run1", "--yes").code == 0
    assert (tmp_path / "data.bin").read_bytes() == b"dear"
    assert (root / "cifar10" / "run10" / "run.json").exists()
    assert (inside / "sub" / "run5" / "run.json").exists()
    assert not (inside / "run.json").exists()
    linked = aboard("runs", "delete", "runs/cifar10/linked", "--yes")
    assert linked.code == 1
    assert (root / "mnist" / "run1" / "run.json").exists()


def test_of_a_raw_run_only_event_files_are_deleted(aboard, root):
    record(root, "raw/one/run7")
    raw = root / "raw" / "one"
    (raw / "eval").mkdir()
    (raw / "eval" / EVENTS).write_bytes(b"45")
    result = aboard("runs", "delete", "raw/one", "--yes", "--json")
    assert result.code == 0
    (deleted,) = result.json["deleted"]
    assert (deleted["uri"], deleted["files"], deleted["bytes"]) == (str(raw), 2, 5)
    assert sorted(path.name for path in raw.iterdir()) == ["model.pt", "run7"]
    assert (raw / "run7" / "train" / EVENTS).exists()


def test_what_still_runs_is_refused_and_the_others_are_deleted(aboard, root):
    record(root, "cifar10/live", fresh=True)
    result = aboard("runs", "delete", "cifar10", "--yes", "--json")
    assert result.code == 1
    assert [one["run"] for one in result.json["deleted"]] == [
        "cifar10/run1", "cifar10/run2", "cifar10/run10",
    ]  # fmt: skip
    (error,) = result.json["errors"]
    assert error["run"] == "cifar10/live"
    assert "still running" in error["message"]
    assert "add --force" in result.err
    assert labels(root) == ["cifar10/live", "mnist/run1"]
    assert aboard("runs", "delete", "cifar10", "--yes", "--force").code == 0
    assert labels(root) == ["mnist/run1"]


def test_a_bucket_is_deleted_from_without_its_neighbours(aboard, s3_bucket, variables):
    root = f"{s3_bucket}/delete"
    for label in ("a/run1", "a/run10", "a/run2"):
        record(root, label)
    cloud = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    assert column(aboard("runs", "--root", root, **cloud)) == ["a/run1", "a/run2", "a/run10"]
    result = aboard("runs", "delete", "a/run1", "--root", root, "--yes", **cloud)
    assert result.out.startswith("deleted a/run1: 2 files"), result.err
    left = sorted(entry.name for entry in open_storage(root).list())
    assert left == [
        f"a/run{number}/{name}" for number in (10, 2) for name in ("run.json", f"train/{EVENTS}")
    ]


# Tagging.


def test_tags_are_added_and_removed(aboard, root):
    result = aboard("runs", "tag", "cifar10", "--add", "seen", "--add", "by=me")
    assert result.code == 0
    assert result.out.splitlines()[0] == "cifar10/run1: seen, by=me"
    aboard("runs", "tag", "cifar10/run10", "--remove", "seen", "--remove", "team")
    document = json.loads((root / "cifar10" / "run10" / "run.json").read_text())
    assert document["tags"] == {"baseline": True, "by": "me"}
    assert document["state"] == State.COMPLETED
    assert column(aboard("runs", "tag:seen")) == ["cifar10/run1", "cifar10/run2"]
    hidden = aboard("runs", "tag", "mnist", "--add", "api_key=opensesame", "--json").json
    assert hidden["tagged"][0]["tags"] == {"api_key": "***"}
    aboard("runs", "tag", "mnist", "--remove", "api_key")
    tagged = aboard("runs", "tag", "mnist", "--add", "x", "--json").json
    assert tagged["tagged"][0]["tags"] == {"x": True}


def test_a_tag_that_no_run_has_is_not_removed_silently(aboard, root):
    one = aboard("runs", "tag", "cifar10/run1", "--remove", "nosuch")
    assert (one.code, one.out) == (0, "cifar10/run1: -\n")
    assert one.err == "aboard: cifar10/run1 has no tag 'nosuch'.\n"
    several = aboard("runs", "tag", "cifar10", "--remove", "nosuch", "--remove", "baseline")
    assert several.err == "aboard: none of the 3 runs has a tag 'nosuch'.\n"
    added = aboard("runs", "tag", "cifar10/run1", "--remove", "new", "--add", "new", "--json")
    assert (added.err, added.json["tagged"][0]["tags"]) == ("", {"new": True})


def test_a_command_is_suggested_only_for_the_first_word(aboard, root):
    assert aboard("runs", "cifar1", "shwo").err.count("command") == 0
    assert aboard("runs", "cifar10", "shwo").err.count("command") == 0


def test_the_names_of_many_runs_are_cut_off(aboard, tmp_path):
    for number in range(13):
        record(tmp_path / "runs", f"cifar10/run{number}")
    result = aboard("runs", "show", "cifar10")
    assert result.code == 1
    assert result.err.startswith("aboard: 'cifar10' is 13 runs: cifar10/run0, cifar10/run1, ")
    assert result.err.endswith(", cifar10/run9 and 3 more. Name one of them.\n")


def test_options_may_come_before_the_command(aboard, tmp_path):
    from aboard.runs.manifest import Manifest
    from aboard.storage import open_storage

    record = Manifest("run23", "cifar10", job="7").to_json()
    open_storage(str(tmp_path / "logs")).write("cifar10/run23/run.json", record)
    root = ("--root", tmp_path / "logs")
    assert aboard("runs", *root, "show", "run23", "--json").json["run"] == "cifar10/run23"
    assert aboard("runs", "--json", *root, "show", "23").json["run"] == "cifar10/run23"
    assert aboard("runs", f"--root={tmp_path / 'logs'}", "list", "cifar10/20-30").out
    assert "cifar10/run23" in aboard("runs", *root, "run23").out
    assert aboard("runs", *root).code == 0


# `aboard ls`.


def test_runs_are_listed(aboard, tree):
    result = aboard("ls", tree)
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["RUN", "FIRST", "EVENT", "FILES", "SIZE", "EVENTS", "TAGS", "DAMAGED"]
    assert [(line[0], line[3], line[-3], line[-2], line[-1]) for line in lines[1:]] == [
        ("a/train", "1", "12", "2", "-"),
        ("b", "1", "7", "3", "-"),
    ]
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("ls", []),
        ("ls", ["--limit", "1"]),
        ("ls", ["--tag", "loss"]),
        ("index", ["--rebuild"]),
        ("export", []),
        ("export", ["--where", "metrics.loss > 0"]),
    ],
)
def test_without_a_source_the_root_is_read(aboard, tmp_path, command, options):
    for number in (1, 2):
        log_run(tmp_path / "runs", f"mnist/run{number}", [float(number)])
    (tmp_path / "elsewhere").mkdir()

    def told(*arguments, **more):
        done = aboard(command, *arguments, *options, **more)
        assert (done.code, done.err) == (0, "")
        varying = ("  read ", "The index is ")  # how fast it was, and how large it is
        return [line for line in done.out.splitlines() if not line.startswith(varying)]

    named = told(tmp_path / "runs")
    assert told() == named
    assert told(ABOARD_ROOT=str(tmp_path / "runs"), cwd=tmp_path / "elsewhere") == named
    if command != "index":
        assert told("--root", tmp_path / "runs", cwd=tmp_path / "elsewhere") == named


def test_tags_are_listed(aboard, tree):
    lines = [line.split() for line in aboard("ls", "--tags", tree).out.splitlines()]
    assert lines[1:] == [
        ["a/train", "exact", "scalars", "1", "3", "3", "0.1"],
        ["a/train", "loss", "scalars", "10", "0", "9", "0.1"],
        ["b", "loss", "scalars", "4", "0", "3", "-inf"],
        ["b", "notes", "text", "1", "0", "0", "-"],
        ["b", "picture", "images", "1", "0", "0", "-"],
    ]


def test_json_of_ls(aboard, tree):
    (source,) = aboard("ls", "--tags", "--json", tree).json["sources"]
    (event_file,) = (tree / "b").iterdir()
    assert source["runs"][1] == {
        "run": "b",
        "directory": str(tree / "b"),
        "files": 1,
        "bytes": event_file.stat().st_size,
        "events": 7,
        "tags": 3,
        "first_event_time": source["runs"][1]["first_event_time"],
        "damaged_bytes": 0,
    }
    assert source["tags"][2] == {
        "run": "b",
        "tag": "loss",
        "kind": "scalars",
        "points": 4,
        "first_step": 0,
        "last_step": 3,
        "last_wall_time": 1_700_000_103.0,
        "last_value": "-Infinity",
    }
    assert source["problems"] == []


def test_some_runs_and_tags_are_listed(aboard, tree):
    def shown(*options):
        return [line.split()[:2] for line in aboard("ls", tree, *options).out.splitlines()[1:]]

    assert [run for run, *_ in shown("--run", "b*")] == ["b"]
    assert shown("--tag", "loss") == [["a/train", "loss"], ["b", "loss"]]
    assert shown("--tag", "exact", "--tag", "n*") == [["a/train", "exact"], ["b", "notes"]]
    assert shown("--tags", "--run", "a*") == [["a/train", "exact"], ["a/train", "loss"]]
    (source,) = aboard("ls", tree, "--run", "b", "--tag", "loss", "--json").json["sources"]
    assert [(run["run"], run["tags"]) for run in source["runs"]] == [("b", 3)]
    assert [(tag["run"], tag["tag"]) for tag in source["tags"]] == [("b", "loss")]


def test_tags_are_counted_and_not_loaded(tree, tmp_path, monkeypatch, capfd):
    from aboard.cli.app import run
    from aboard.index import query

    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path / "cache"))
    loads = []
    real = query.tags
    monkeypatch.setattr(query, "tags", lambda *args: loads.append(args) or real(*args))
    assert run(["ls", str(tree)]) == 0
    assert [line.split()[-2] for line in capfd.readouterr().out.splitlines()[1:]] == ["2", "3"]
    assert run(["ls", str(tree), "--json"]) == 0
    assert loads == []
    assert run(["ls", str(tree), "--json", "--tags"]) == 0
    assert len(loads) == 1


def test_damage_shows(aboard, tree, damage):
    path = damage(tree / "a/train")
    listed = aboard("ls", tree)
    assert listed.code == 0
    assert f"1 damaged place (42 B) skipped; 'aboard index {tree}' says where." in listed.err
    indexed = aboard("index", tree)
    assert "  damaged  1 place, " in indexed.out
    (source,) = aboard("index", "--json", tree).json["sources"]
    (span,) = source["damage"]
    assert span["uri"] == str(path)
    assert f"{path} at byte {span['offset']}: {span['length']} B" in indexed.out


def on_terminal(arguments, variables):
    """Run the command with standard output and error on a terminal; return what it shows."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "aboard", *map(str, arguments)],
        env=variables,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            shown += os.read(leader, 4096)
        except OSError:
            break
    os.close(leader)
    process.wait(timeout=180)
    return shown.decode()


def test_colours_are_for_terminals(variables, tree):
    variables = {**variables, "TERM": "xterm"}
    variables.pop("NO_COLOR", None)
    assert "\x1b[1mRUN" in on_terminal(["ls", tree], variables)
    assert "\x1b[1mRUN" not in on_terminal(["ls", tree], variables | {"NO_COLOR": "1"})


@pytest.mark.parametrize("options", [[], ["--tags"]])
@pytest.mark.parametrize("width", [100, 80, 50])
def test_a_table_fits_the_terminal(aboard, variables, tmp_path, options, width):
    names = ("a" * 60, "run 東京", "é" * 30)
    for name in names:
        with library.EventWriter(tmp_path / "logs" / name) as writer:
            for tag in names:
                writer.scalar(f"loss of {tag}", 0.125, 1234)
    assert aboard("index", tmp_path / "logs").code == 0  # so that no progress bar is shown
    plain = variables | {"COLUMNS": str(width), "NO_COLOR": "1"}
    shown = on_terminal(["ls", tmp_path / "logs", *options], plain)
    lines = shown.replace("\r", "").splitlines()
    assert len(lines) == (10 if options else 4)
    assert max(map(cell_len, lines)) <= width
    assert len({cell_len(line) for line in lines}) == 1
    assert lines[0].startswith("RUN ")
    assert all(line.endswith("0.125" if options else "-") for line in lines[1:])


def test_a_bucket_is_listed_and_exported(s3_bucket, tree, aboard, tmp_path):
    from aboard.storage import open_storage

    storage = open_storage(f"{s3_bucket}/{tmp_path.name}")
    for path in tree.rglob("*tfevents*"):
        storage.write(str(path.relative_to(tree)), path.read_bytes())
    uri = f"{s3_bucket}/{tmp_path.name}"
    listed = aboard("ls", uri, "--json").json["sources"][0]
    assert [run["run"] for run in listed["runs"]] == ["a/train", "b"]
    assert aboard("export", uri).out == aboard("export", tree).out
    nothing = aboard("ls", f"{uri}/nothing")
    assert nothing.code == 1
    assert nothing.err.startswith(f"aboard: {uri}/nothing: ")


def test_runs_of_a_root_are_listed_by_selectors(aboard, tmp_path, monkeypatch):
    from aboard import EventWriter

    for run in ("exp/run1", "exp/run2", "exp/run3", "other/run1"):
        with EventWriter(tmp_path / "runs" / run / "train") as writer:
            writer.scalar("loss", 1.0, 0)
    monkeypatch.chdir(tmp_path)

    def runs(*arguments):
        listed = aboard("ls", "--json", *arguments).json
        return [one["run"] for source in listed["sources"] for one in source["runs"]]

    assert runs("exp/1-2") == ["exp/run1/train", "exp/run2/train"]
    assert runs("exp/3", "new=runs/other") == ["new/run1/train", "exp/run3/train"]
    assert runs("--root", tmp_path / "runs", "run3") == ["exp/run3/train"]
    lines = aboard("export", "exp/2-3").out.splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["exp/run2/train", "exp/run3/train"]
    failed = aboard("ls", "exp/9")
    assert (failed.code, failed.out) == (1, "")
    assert "'exp/9' matches no run." in failed.err


def test_a_question_narrows_the_runs_of_a_tree(aboard, tree):
    def listed(*options):
        found = aboard("ls", tree, *options)
        assert found.code == 0, found.err
        return [line.split()[0] for line in found.out.splitlines()[1:]]

    assert listed("--where", "metrics.train/loss.min < 0.2") == ["a/train"]
    assert listed("--sort", "-name") == ["b", "a/train"]
    assert listed("--sort", "-name", "--limit", 1) == ["b"]
    named = aboard("ls", tree.name, "--where", 'name == "b"', cwd=tree.parent)
    assert [line.split()[0] for line in named.out.splitlines()[1:]] == ["b"], named.err
    nothing = aboard("ls", tree, "--where", 'name == "c"')
    assert (nothing.code, nothing.err) == (
        1, "aboard: no run matches --where.\n",
    )  # fmt: skip
