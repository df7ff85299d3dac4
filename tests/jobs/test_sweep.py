"""Sweeps and placeholders, as users write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.jobs import BadJob
from aboard.jobs.sweep import check, expand, fill, parse_sweeps


def test_lists_and_ranges_become_values():
    assert parse_sweeps(["lr=0.1,1e-3", "depth=2..4", "wide=true,false", "model=a, b"]) == {
        "lr": [0.1, 0.001],
        "depth": [2, 3, 4],
        "wide": [True, False],
        "model": ["a", "b"],
    }
    assert parse_sweeps(["n=2..10..2", "m=1,3..5", "k=3..1..-1", "z=-2..0"]) == {
        "n": [2, 4, 6, 8, 10],
        "m": [1, 3, 4, 5],
        "k": [3, 2, 1],
        "z": [-2, -1, 0],
    }
    assert parse_sweeps(["path=../a,b..c", "id=007,8"]) == {
        "path": ["../a", "b..c"],
        "id": ["007", 8],
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lr", "NAME=VALUES"),
        ("=1", "NAME=VALUES"),
        ("lr=", "there are no values"),
        ("lr= , ", "there are no values"),
        ("lr=1,,2", "one of the values is empty"),
        ("lr=4..2", "the range 4..2 is empty. Write 2..4."),
        ("lr=1..5..0", "step 0"),
        ("lr=0.1..0.5", "whole numbers"),
        ("lr=1..x", "a range has whole numbers, as in 2..4. List the values."),
        ("lr=1..", "whole numbers"),
    ],
)
def test_what_is_no_sweep_says_so_in_one_line(text, problem):
    with pytest.raises(BadJob, match=problem) as error:
        parse_sweeps([text])
    assert "\n" not in str(error.value)


def test_a_name_is_swept_once():
    with pytest.raises(BadJob, match="lr is given twice"):
        parse_sweeps(["lr=1", "lr=2"])


def test_a_sweep_is_the_product_of_its_lists_and_the_last_changes_fastest():
    found = expand({"lr": [0.1, 0.01], "depth": [2, 3]}, hparams={"model": "a"})
    assert found == [
        {"model": "a", "lr": 0.1, "depth": 2},
        {"model": "a", "lr": 0.1, "depth": 3},
        {"model": "a", "lr": 0.01, "depth": 2},
        {"model": "a", "lr": 0.01, "depth": 3},
    ]
    assert expand({}, repeat=2) == [{"repeat": 1}, {"repeat": 2}]
    assert expand({}) == [{}]


@pytest.mark.parametrize(
    ("sweep", "options", "problem"),
    [
        ({"lr": []}, {}, "the sweep of 'lr' is empty"),
        ({"lr": [1, 1]}, {}, "has 1 twice"),
        ({"number": [1]}, {}, "every job has"),
        ({"repeat": [1]}, {"repeat": 2}, "every job has"),
        ({"a b": [1]}, {}, "is not a valid name"),
        ({"lr": [1]}, {"hparams": {"lr": 2}}, "has a sweep and a single value"),
        ({"a": list(range(1000)), "b": list(range(1000))}, {}, "At most 100,000"),
    ],
)
def test_a_sweep_that_cannot_be_says_why(sweep, options, problem):
    with pytest.raises(BadJob, match=problem):
        expand(sweep, **options)


def test_one_and_true_are_two_values():
    assert len(expand({"x": [1, "1", True]})) == 3


def test_names_in_braces_are_filled_and_all_else_stays():
    values = {"lr": 0.1, "wide": True, "optimizer.lr": 2, "number": 3}
    assert fill("--lr={lr}", values) == "--lr=0.1"
    assert fill("{wide}/{number}/{optimizer.lr}", values) == "true/3/2"
    for text in ('{"a": 1}', '{"a": {"b": 2}}', "{}", "{ lr }", "${lr}", "{1}", "{a-b}", "{x.y}"):
        assert fill(text, values) == text
    assert fill("{{lr}}", values) == "{lr}"


def test_a_placeholder_for_nothing_is_an_error_that_lists_the_known():
    with pytest.raises(BadJob) as error:
        check(["--lr", "{lr} {missing}"], ["lr"], "the command")
    assert str(error.value) == (
        "the command: unknown placeholder {missing}. Known: lr, number, job;"
        " write {{missing}} for the text {missing}."
    )
    check(["{{missing}}", "${HOME}", '{"a": 1}', "{a.b}"], [], "the command")


@given(st.text(), st.dictionaries(st.from_regex(r"[a-z]{1,3}", fullmatch=True), st.text()))
def test_text_without_names_in_braces_is_never_changed(text, values):
    assert fill(text.replace("{", "("), values) == text.replace("{", "(")
