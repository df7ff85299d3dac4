"""`aboard ls`, `--version` and help."""

import os
import pty
import subprocess
import sys
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import aboard as library
from aboard.cli.sources import distinct_labels
from tests.engines.real_hub import log_run


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


def test_runs_of_several_sources_get_the_sources_in_front(aboard, tree):
    runs = [line.split()[0] for line in aboard("ls", tree / "a", tree / "b").out.splitlines()]
    assert runs[1:] == ["a/train", "b"]


@pytest.mark.parametrize(
    ("places", "labels"),
    [
        (["/x/logs"], [""]),
        (["/x/logs", "/y/other"], ["logs", "other"]),
        (["/x/logs", "/y/logs"], ["x/logs", "y/logs"]),
        (["s3://b/logs", "gs://b/logs"], ["s3:/b/logs", "gs:/b/logs"]),
        (["/logs", "/x/logs"], ["logs", "x/logs"]),
        (["/runs", "/data/runs/x", "/old/x"], ["runs", "data/runs/x", "old/x"]),
        (["/runs", "/runs/x", "/old/x"], ["runs", "x", "x_2"]),
        (["/", "/x"], ["root", "x"]),
    ],
)
def test_labels_tell_sources_apart(places, labels):
    assert distinct_labels(places) == labels


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=4), min_size=2, max_size=6))
def test_no_label_is_the_beginning_of_another(paths):
    places = ["/" + "/".join(one) for one in dict.fromkeys(map(tuple, paths))]
    labels = distinct_labels(places)
    for one, other in permutations(labels, 2):
        assert not f"{other}/".startswith(f"{one}/")


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


def test_patterns_that_match_nothing_are_each_an_error(aboard, tree):
    assert aboard("ls", tree, "--run", "c", "--run", "b", "--run", "zzz") == (
        1,
        "",
        (
            "aboard: no run matches --run 'c'; there are 'a/train', 'b'.\n"
            "aboard: no run matches --run 'zzz'; there are 'a/train', 'b'.\n"
        ),
    )
    assert aboard("ls", tree, "--tag", "los").err == (
        "aboard: no tag matches --tag 'los'; did you mean 'loss'?\n"
    )


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


def test_the_same_source_twice_is_one(aboard, tree):
    assert len(aboard("ls", tree, f"{tree}/", "--json").json["sources"]) == 1


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


def test_version(aboard, variables):
    compiled = aboard("--version").out.splitlines()
    assert compiled[0] == f"aboard {library.__version__}"
    assert compiled[2].startswith("tensorboard: 2.")
    assert compiled[3].startswith(f"index: {variables['ABOARD_CACHE']}/index-")
    fallback = aboard("--version", ABOARD_PURE_PYTHON="1").out
    assert "scanning core: Python fallback (ABOARD_PURE_PYTHON is set; slower)" in fallback


def test_help_is_shown_when_nothing_is_asked(aboard):
    result = aboard()
    assert result.code == 0
    assert "Every training run, on one board." in result.out


def test_help_has_examples(aboard):
    for command in ("view", "ls", "index", "export", "doctor", "demo"):
        assert f"aboard {command}" in aboard(command, "--help").out.split("Examples")[1]


def test_completion_can_be_installed(aboard):
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert "complete" in aboard("--show-completion", "bash", **named).out


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
