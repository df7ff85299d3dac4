"""Questions over tables: columns give the answer that a plain loop over runs gives."""

from fnmatch import fnmatchcase
from functools import cmp_to_key

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aboard.runs.catalog import natural
from aboard.runs.columns import answer
from aboard.runs.question import (
    Ago,
    And,
    Compare,
    Contains,
    Field,
    Literal,
    Matches,
    Missing,
    Not,
    OneOf,
    Or,
    Question,
    Seconds,
    SortKey,
    Truth,
)
from tests.runs.tables import column_of

NOW = 1_800_000_000.0
NAN = float("nan")


class Rows:
    """A table of rows; each is a mapping from fields to values."""

    def __init__(self, rows):
        self.held = rows
        self.rows = np.arange(len(rows))
        self.now = NOW

    def __len__(self):
        return len(self.held)

    def column(self, field):
        return column_of([row.get(field) for row in self.held])


def asked(rows, where=None, **others):
    parsed = [
        {Question.parse(sort=[name]).sort[0].field: value for name, value in row.items()}
        for row in rows
    ]
    return answer(Question.parse(where, **others), Rows(parsed)).rows.tolist()


def test_a_missing_value_is_unequal_and_has_no_order():
    rows = [{"hparams.lr": 0.1}, {}, {"hparams.lr": "0.1"}, {"hparams.lr": NAN}]
    assert asked(rows, "hparams.lr == 0.1") == [0]
    assert asked(rows, "hparams.lr != 0.1") == [1, 2, 3]
    assert asked(rows, "hparams.lr < 1") == [0]
    assert asked(rows, "not hparams.lr < 1") == [1, 2, 3]
    assert asked(rows, "hparams.lr == none") == [1]
    assert asked(rows, "hparams.lr != none") == [0, 2, 3]
    assert asked(rows, "hparams.lr == hparams.none") == []
    assert asked(rows, "hparams.lr != hparams.none") == [0, 1, 2, 3]


def test_missing_values_and_nan_are_last_in_both_directions():
    rows = [{}, {"metrics.a": NAN}, {"metrics.a": 2.0}, {"metrics.a": float("inf")}, {}]
    assert asked(rows, sort=["metrics.a"]) == [2, 3, 1, 0, 4]
    assert asked(rows, sort=["-metrics.a"]) == [3, 2, 1, 0, 4]
    assert asked(rows, sort=["-metrics.a"], limit=3) == [3, 2, 1]


def test_texts_are_sorted_in_natural_order_behind_numbers():
    rows = [{"hparams.n": one} for one in ("run10", "run9", 3, True, "Run1")]
    assert asked(rows, sort=["hparams.n"]) == [3, 2, 4, 1, 0]
    assert asked(rows, sort=["-hparams.n"]) == [0, 1, 4, 2, 3]


def test_several_keys_and_equal_rows_in_the_order_of_the_table():
    rows = [{"user": "b", "metrics.a": 1}, {"user": "a", "metrics.a": 1}, {"user": "a"}]
    assert asked(rows * 2, sort=["user", "-metrics.a"]) == [1, 4, 2, 5, 0, 3]


def test_true_is_not_one_and_a_large_integer_is_not_rounded():
    rows = [{"hparams.n": one} for one in (1, True, "1", 2**53, float(2**53))]
    assert asked(rows, "hparams.n == 1") == [0]
    assert asked(rows, "hparams.n == true") == [1]
    assert asked(rows, f"hparams.n < {2**53 + 1}") == [0, 3, 4]
    assert asked([{"hparams.n": float(2**53)}], f"hparams.n == {2**53 + 1}") == []
    assert asked([{"hparams.n": 2**53 + 1}], f"hparams.n == {2**53 + 1}") == [0]
    assert asked([{"hparams.n": 10**400}, {"hparams.n": 1}], "hparams.n > 1e300") == [0]


def test_times_are_compared_with_texts():
    rows = [{"created": NOW - 86_400 * days, "duration": 3600.0 * days} for days in range(5)]
    assert asked(rows, 'created > "2d ago"') == [0, 1]
    assert asked(rows, 'created >= "2 days ago"') == [0, 1, 2]
    assert asked(rows, 'created < "2027-01-14"') == [2, 3, 4]
    assert asked(rows, 'created > "2027-01-14T09:00:00+01:00"') == [0]
    assert asked(rows, f"created > {NOW - 1}") == [0]
    assert asked(rows, 'created > "1.5 D ago"') == [0, 1]
    assert asked(rows, 'created > "99999d ago"') == [0, 1, 2, 3, 4]
    assert asked(rows, 'duration > "2h"') == [3, 4]
    assert asked(rows, 'duration > "7200"') == [3, 4]
    assert asked(rows, 'duration <= "120 min" and duration != 0') == [1, 2]


def test_groups_are_in_the_order_of_their_values_or_of_their_best_run():
    rows = Rows([
        {Field("lr", "hparams"): lr, Field("a", "metrics", "last"): a}
        for lr, a in ((0.1, 1), (None, 9), (0.01, 3), (0.1, 5), (0.01, 2))
    ])  # fmt: skip

    def groups(**question):
        found = answer(Question.parse(group_by=["hparams.lr"], **question), rows)
        return [(*one.values, one.rows.tolist()) for one in found.groups], found.total

    assert groups() == ([(0.01, [2, 4]), (0.1, [0, 3]), (None, [1])], 3)
    by_metric = [(None, [1]), (0.1, [3, 0]), (0.01, [2, 4])]
    assert groups(sort=["-metrics.a"]) == (by_metric, 3)
    assert groups(sort=["-metrics.a"], limit=2) == (by_metric[:2], 3)


def test_groups_tell_one_from_true_and_put_nan_together():
    rows = Rows([{Field("a", "hparams"): one} for one in (1, True, NAN, "1", NAN, 1.0)])
    found = answer(Question.parse(group_by=["hparams.a"]), rows)
    assert sorted(one.rows.tolist() for one in found.groups) == [[0, 5], [1], [2, 4], [3]]


def test_the_values_of_columns():
    rows = np.arange(3)
    assert column_of([1, None, 2]).values(rows) == [1, None, 2]
    assert column_of([1, None, 2.5]).values(rows) == [1.0, None, 2.5]
    assert column_of(["a", None, True]).values(rows) == ["a", None, True]


def test_a_pattern_with_brackets_matches_itself():
    rows = [{"name": "a[1]"}, {"name": "a1"}, {"name": "b"}, {}]
    assert asked(rows, "name ~ 'a[1]'") == [0, 1]
    assert asked(rows, "not name ~ '*'") == [3]


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_a_limit_takes_the_first_of_all(limit):
    rows = [{"metrics.a": one} for one in (3, 1, None, 3, 2, NAN, 1)]
    assert asked(rows, sort=["metrics.a"], limit=limit) == asked(rows, sort=["metrics.a"])[:limit]


# A plain evaluation, run by run.

FIELDS = [
    Field("name"), Field("a", "hparams"), Field("b", "hparams"), Field("m", "metrics", "max"),
]  # fmt: skip
TAGS = Field("tags")
numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**53, 2**53 + 1, -(2**70), 0.5, -0.0, float(2**53)]),
    st.floats(allow_nan=False, allow_infinity=False),
)
held = st.one_of(numbers, st.sampled_from(["", "a", "ab", "B2", "B10"]), st.booleans())
values = st.none() | held | st.sampled_from([NAN, float("inf"), float("-inf")])
tables = st.lists(
    st.fixed_dictionaries(
        {TAGS: st.frozensets(st.sampled_from(["a", "b"]))},
        optional={
            Field("name"): st.sampled_from(["a", "ab", "run1", "run10", "run9"]),
            Field("a", "hparams"): values,
            Field("b", "hparams"): values,
            Field("m", "metrics", "max"): st.floats(),
        },
    ),
    max_size=8,
)
fields = st.sampled_from(FIELDS)
literals = st.builds(Literal, held) | st.builds(Seconds, numbers, st.just("")) | st.just(Ago(1, ""))
signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
leaves = st.one_of(
    st.builds(Compare, fields, signs, literals | fields),
    st.builds(Matches, fields, st.sampled_from(["*", "a*", "run[0-9]", "?b", ""])),
    st.builds(OneOf, fields, st.lists(literals, max_size=3).map(tuple)),
    st.builds(Contains, st.just(TAGS) | fields, st.sampled_from(["a", "b", "run"])),
    st.builds(Missing, fields),
    st.builds(Truth, fields | st.just(TAGS)),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda nodes: And(tuple(nodes))),
        st.lists(inner, min_size=1, max_size=3).map(lambda nodes: Or(tuple(nodes))),
        st.builds(Not, inner),
    ),
    max_leaves=6,
)
questions = st.builds(
    Question,
    st.none() | conditions,
    st.lists(st.builds(SortKey, fields, st.booleans()), max_size=3).map(tuple),
    st.none() | st.integers(1, 5),
)


def kind(value):
    return "number" if type(value) in (int, float) else type(value)


def compared(left, sign, right):
    if left is None or right is None or kind(left) != kind(right):
        return sign == "!="
    return {
        "==": left == right, "!=": left != right, "<": left < right,
        "<=": left <= right, ">": left > right, ">=": left >= right,
    }[sign]  # fmt: skip


def value_of(operand, row):
    match operand:
        case Field():
            return row.get(operand)
        case Literal(value):
            return value
        case Ago(seconds):
            return NOW - seconds
        case Seconds(seconds):
            return seconds


def is_true(node, row):
    match node:
        case And(nodes):
            return all(is_true(one, row) for one in nodes)
        case Or(nodes):
            return any(is_true(one, row) for one in nodes)
        case Not(inner):
            return not is_true(inner, row)
        case Compare(field, sign, right):
            return compared(row.get(field), sign, value_of(right, row))
        case Matches(field, pattern):
            return isinstance(row.get(field), str) and fnmatchcase(row[field], pattern)
        case OneOf(field, choices):
            return any(compared(row.get(field), "==", value_of(one, row)) for one in choices)
        case Contains(field, text):
            return isinstance(row.get(field), (str, frozenset)) and text in row[field]
        case Missing(field):
            return row.get(field) is None
        case Truth(field):
            return bool(row.get(field))


def before(key):
    def compare_rows(one, other):
        left, right = one.get(key.field), other.get(key.field)
        place = [(one is None) * 2 + (one is not None and one != one) for one in (left, right)]
        if any(place):
            return place[0] - place[1]
        left, right = (
            (1, natural(one)) if isinstance(one, str) else (0, one) for one in (left, right)
        )
        order = (left > right) - (left < right)
        return -order if key.descending else order

    return cmp_to_key(compare_rows)


@given(tables, questions)
@example([{TAGS: frozenset()}], Question(Truth(TAGS)))
def test_a_table_answers_what_a_loop_answers(table, question):
    rows = [
        at for at, row in enumerate(table) if question.where is None or is_true(question.where, row)
    ]
    total = len(rows)
    for key in reversed(question.sort):
        rows.sort(key=lambda at: before(key)(table[at]))
    found = answer(question, Rows(table))
    assert found.rows.tolist() == rows[: question.limit]
    assert found.total == total


@given(tables, st.sampled_from(FIELDS))
def test_groups_hold_what_has_the_same_value(table, field):
    expected = []
    for at, row in enumerate(table):
        value = row.get(field)
        for other, members in expected:
            both_nan = value != value and other != other
            if both_nan or (kind(value) == kind(other) and value == other):
                members.append(at)
                break
        else:
            expected.append((value, [at]))
    found = answer(Question(group_by=(field,)), Rows(table))
    assert sorted(one.rows.tolist() for one in found.groups) == sorted(
        members for _, members in expected
    )
    assert found.total == len(expected)
