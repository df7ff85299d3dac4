"""The sources and selectors of a command: what is opened or selected, and which errors remain."""

from itertools import permutations

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from aboard.cli.console import FAILURE, Failure, WrongUsage, code_for
from aboard.cli.sources import (
    check_each,
    distinct_labels,
    exists,
    matches,
    open_sources,
    parse_question,
    run_label,
    select_runs,
)
from aboard.runs.question import UnknownField
from aboard.storage import StorageError


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


def test_a_run_of_a_source_has_its_label_in_front():
    assert run_label("", "a/train") == "a/train"
    assert run_label("logs", "a/train") == "logs/a/train"
    assert run_label("logs", ".") == "logs"


def test_the_same_source_twice_is_one(aboard, tree):
    assert len(aboard("ls", tree, f"{tree}/", "--json").json["sources"]) == 1


def test_one_bad_source_does_not_spoil_the_others(aboard, tree):
    result = aboard("ls", "missing", tree, "s4://x", "--json")
    assert result.code == 1
    assert [one["source"] for one in result.json["sources"]] == [str(tree)]
    assert [one["source"] for one in result.json["errors"]] == ["s4://x", "missing"]
    assert result.err.count("\n") == 2


def test_the_exit_code_follows_from_the_errors(index, tree, capsys):
    whole = open_sources(index, [str(tree)])
    assert [one.uri for one in whole.opened] == [str(tree)]
    assert [run.name for run in whole.opened[0].runs] == ["a/train", "b"]
    assert whole.exit_code == 0
    whole.finish()
    missing = str(tree / "missing")
    partly = open_sources(index, [str(tree), missing])
    assert partly.exit_code == FAILURE
    nothing = open_sources(index, [missing])
    ((text, error),) = nothing.errors
    assert (text, nothing.exit_code) == (missing, code_for(error))
    with pytest.raises(typer.Exit):
        nothing.finish()
    assert nothing.as_json([])["errors"][0]["source"] == missing
    assert capsys.readouterr().err.count("file or directory not found") == 2


def test_a_name_of_a_source_is_the_label_of_its_runs(index, tree):
    (one, other) = open_sources(index, [f"mine={tree}/a", str(tree / "b")]).opened
    assert [one.name(run.name) for run in one.runs] == ["mine/train"]
    assert [other.name(run.name) for run in other.runs] == ["b"]


def test_selectors_select_runs_below_the_roots(index, root):
    found = select_runs(index, ["cifar10/1-2", "mnist"], [str(root)])
    assert [run.label for run in found.runs] == ["cifar10/run1", "cifar10/run2", "mnist/run1"]
    assert (found.total, found.roots, found.problems) == (3, [str(root)], [])
    found.finish()


def test_a_question_reads_what_it_needs_and_counts_before_its_limit(index, root):
    question = parse_question("metrics.loss < 4", ["-metrics.loss"], 2)
    found = select_runs(index, [], [str(root)], question=question)
    assert [run.label for run in found.runs] == ["mnist/run1", "cifar10/run2"]
    assert found.total == 3


def test_a_root_that_cannot_be_listed_leaves_the_others(index, root, capsys):
    missing = str(root / "missing")
    found = select_runs(index, ["mnist"], [str(root), missing])
    assert [run.label for run in found.runs] == ["mnist/run1"]
    assert found.problems == [f"{missing}: file or directory not found. Check the path."]
    with pytest.raises(typer.Exit):
        found.finish()
    assert found.problems[0] in capsys.readouterr().err
    with pytest.raises(StorageError, match="missing"):
        select_runs(index, [], [missing])


def test_a_path_without_runs_fails(index, tmp_path):
    with pytest.raises(Failure, match="no runs found"):
        select_runs(index, [f"{tmp_path}/"], [])


def test_a_question_without_options_is_none(root):
    assert parse_question(None, None, None) is None
    with pytest.raises(WrongUsage, match="--where is empty"):
        parse_question(" ", None, None)
    with pytest.raises(UnknownField, match="unknown field 'los'"):
        parse_question("los < 1", None, None, roots=[str(root)])


@pytest.mark.parametrize(
    ("word", "expected"), [("logs", True), ("log", False), ("a\0b", False), ("~no-such/x", False)]
)
def test_a_word_is_a_path_if_it_exists(word, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    assert exists(word) is expected


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


def test_a_name_matches_one_of_the_patterns_or_none_is_given():
    assert matches("loss", [])
    assert matches("eval/loss", ["lr", "eval/*"])
    assert not matches("Loss", ["loss", "eval/*"])


def test_tags_of_hyperparameters_are_not_suggested_and_many_names_are_counted():
    names = ["_hparams_/session_start_info", *(f"tag{n}" for n in range(7))]
    check_each("tag", ["tag*", "_hparams_/*"], names)
    shown = "'tag0', 'tag1', 'tag2', 'tag3', 'tag4' and 2 more"
    with pytest.raises(Failure, match=f"no tag matches --tag 'x'; there are {shown}\\."):
        check_each("tag", ["x"], names)
    with pytest.raises(Failure, match="there are none"):
        check_each("run", ["x"], [])
