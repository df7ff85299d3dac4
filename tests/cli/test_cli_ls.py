"""`aboard ls`, `aboard index`, `--version` and help."""

import os
import pty
import re
import shutil
import subprocess
import sys
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import aboard as library
from aboard.cli.sources import distinct_labels
from aboard.cli.wording import duration, shortened, size, table


def test_runs_are_listed(aboard, tree):
    result = aboard("ls", tree)
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["RUN", "FIRST", "EVENT", "FILES", "SIZE", "EVENTS", "TAGS", "DAMAGED"]
    assert [(line[0], line[3], line[-3], line[-2], line[-1]) for line in lines[1:]] == [
        ("a/train", "1", "12", "2", "-"),
        ("b", "1", "7", "3", "-"),
    ]
    assert (result.code, result.err) == (0, "")


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


def test_index_says_what_it_found(aboard, tree):
    first = aboard("index", tree)
    lines = first.out.splitlines()
    assert lines[:5] == [
        str(tree),
        "  runs     2",
        "  series   5",
        "  points   15",
        "  records  2 (text 1, images 1)",
    ]
    assert lines[6].startswith("  read     ")
    assert " from 2 files in " in lines[6]
    assert lines[-2] == ""
    assert re.fullmatch(r"The index is /.+/cache/index-\d+\.db, \d.* kB\.", lines[-1])
    assert "  read     0 B from 0 files in " in aboard("index", tree).out
    assert " from 2 files in " in aboard("index", "--rebuild", tree).out


def test_json_of_index(aboard, tree, variables):
    document = aboard("index", "--json", tree).json
    (source,) = document["sources"]
    assert document["index"].startswith(variables["ABOARD_CACHE"])
    assert document["index_bytes"] > 16_384
    assert source["points"] == 15
    assert source["records"] == {"text": 1, "images": 1}
    assert source["read"]["files"] == 2
    assert source["read"]["events"] == source["events"] == 19


def test_a_source_is_forgotten_also_when_it_is_gone(aboard, tree, tmp_path):
    shutil.copytree(tree, tmp_path / "other")
    aboard("index", tree, "other")
    shutil.rmtree(tree)
    forgotten = aboard("index", "--forget", tree)
    assert forgotten.code == 0
    assert forgotten.out.splitlines()[:2] == [
        str(tree),
        "  forgot   2 runs, 2 files, 17 values",
    ]
    assert forgotten.out.splitlines()[-1].startswith("The index is ")
    assert aboard("index", "--forget", tree) == (
        1,
        "",
        (
            f"aboard: the index knows nothing of {tree}. Name it as it was when it was read;"
            " 'aboard index' without --forget reads it.\n"
        ),
    )
    read = aboard("index", "other", "--json").json["sources"][0]["read"]
    assert (read["files"], read["files_unchanged"]) == (0, 2)


def test_json_of_forgetting(aboard, tree):
    aboard("index", tree)
    result = aboard("index", "--forget", "--json", tree, "/not/there")
    assert result.code == 1
    document = result.json
    assert document["forgotten"] == [
        {"source": str(tree), "runs": 2, "files": 2, "values": 17, "records": 0}
    ]
    assert [one["source"] for one in document["errors"]] == ["/not/there"]
    assert document["sources"] == document["notices"] == []
    assert document["index_bytes"] > 0


def test_a_directory_with_the_name_of_an_event_file_is_forgotten(aboard, tree, tmp_path):
    shutil.copytree(tree, tmp_path / "old.tfevents.1")
    aboard("index", "old.tfevents.1")
    shutil.rmtree(tmp_path / "old.tfevents.1")
    assert "forgot   2 runs" in aboard("index", "--forget", "old.tfevents.1").out


def test_forgetting_and_reading_again_exclude_each_other(aboard, tree):
    assert aboard("index", "--forget", "--rebuild", tree) == (
        2,
        "",
        "aboard: --rebuild and --forget exclude each other; give one of them.\n",
    )


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
    process.wait(timeout=30)
    return shown.decode()


def test_colours_are_for_terminals(variables, tree):
    variables = {**variables, "TERM": "xterm"}
    variables.pop("NO_COLOR", None)
    assert "\x1b[1mRUN" in on_terminal(["ls", tree], variables)
    assert "\x1b[1mRUN" not in on_terminal(["ls", tree], variables | {"NO_COLOR": "1"})


@pytest.mark.parametrize("options", [[], ["--tags"]])
@pytest.mark.parametrize("width", [100, 80, 50])
def test_a_table_fits_the_terminal(variables, tmp_path, options, width):
    names = ("a" * 60, "run 東京", "é" * 30)
    for name in names:
        with library.EventWriter(tmp_path / "logs" / name) as writer:
            for tag in names:
                writer.scalar(f"loss of {tag}", 0.125, 1234)
    plain = variables | {"COLUMNS": str(width), "NO_COLOR": "1"}
    shown = on_terminal(["ls", tmp_path / "logs", *options], plain)
    lines = shown.replace("\r", "").splitlines()
    assert len(lines) == (10 if options else 4)
    assert max(map(cell_len, lines)) <= width
    assert len({cell_len(line) for line in lines}) == 1
    assert lines[0].startswith("RUN ")
    assert all(line.endswith("0.125" if options else "-") for line in lines[1:])


def test_wide_characters_are_aligned():
    lines = table(("NAME", "N"), [["東京", "1"], ["ab", "22"], ["e\u0301", "3"]], left=1)
    assert lines.splitlines() == ["NAME   N", "東京   1", "ab    22", "e\u0301      3"]
    assert shortened("東京都港区", 6) == "東京…"
    assert shortened("東京", 4) == "東京"


def test_sizes_and_times_read_well():
    assert [size(n) for n in (0, 999, 1000, 43_900_000, 999_600)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "43.9 MB",
        "1.00 MB",
    ]
    assert [duration(s) for s in (0.123, 61, 7200)] == ["0.12 s", "1 min 01 s", "2 h 00 min"]


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
