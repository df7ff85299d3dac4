"""`aboard runs`: what is listed, shown, deleted and tagged, and what is said when it cannot be."""

import json
import math
import os
import subprocess
import sys
import time

import pytest

from aboard import EventWriter
from aboard.runs.manifest import Manifest, State
from aboard.storage import open_storage

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
        "hparams.lr in ('0.1',)": "hparams.lr is a number in all runs, not a text. Write it without"
        " quotes.",
        "state == 'killed' or name == 3": "name is a text in all runs, not a number. Write it in"
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


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["cifar1"], 1, "'cifar1' matches no run. The nearest is 'cifar10'."),
        (["shwo", "cifar10/run1"], 1, "no run. Known here: cifar10, mnist, raw. If you meant a"),
        (["shwo"], 1, "If you meant a command: aboard runs show"),
        (["jobs:1"], 2, "unknown selector 'jobs'. Did you mean job:1?"),
        (["--columns", "stat"], 2, "unknown column 'stat'. Did you mean 'state'?"),
        (["--columns", "run,hparams.l"], 2, "no run has a hyperparameter 'l'. Did you mean 'lr'?"),
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
