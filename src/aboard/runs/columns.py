"""Answers to questions over a table of runs, column by column.

A *table* returns the column of a field. A column of `Numbers` is an array; one of `Words` has each
distinct value once and a code per row, so that a condition tests few values; `Mixed` has both. The
table decides where columns come from.

A comparison with a missing value is false, except `!=`, the opposite of `==`, which is true. Values
of different types (number, text, boolean) are not equal and have no order.
"""

from __future__ import annotations

import math
import operator
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import reduce
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from aboard.runs import is_number, nearest
from aboard.runs.catalog import natural
from aboard.runs.naming import TAGS
from aboard.runs.question import (
    Ago,
    And,
    Compare,
    Contains,
    Field,
    Literal,
    Matches,
    Missing,
    Node,
    Not,
    OneOf,
    Or,
    Question,
    Seconds,
    SortKey,
    Truth,
    Value,
    parse_bare,
)

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Held = Value | frozenset[str]  # a value in a column; a set for `tags`

EXACT = 1 << 53  # integers up to here are exact as floats
_UNORDERED = 2
_SPECIAL = re.compile(r"[*?\[]")
_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Numbers:
    """Numbers. `missing` is None if none is missing; `whole` is true if all are integers."""

    array: Floats
    missing: Bools | None = None
    whole: bool = False

    def __len__(self) -> int:
        return len(self.array)

    @property
    def present(self) -> Bools:
        return np.ones(len(self), np.bool_) if self.missing is None else ~self.missing

    def values(self, rows: Ints) -> list[Held | None]:
        array = self.array[rows]
        held: list[Any] = (array.astype(np.int64) if self.whole else array).tolist()
        if self.missing is None:
            return held
        gone = self.missing[rows].tolist()
        return [None if is_gone else one for one, is_gone in zip(held, gone, strict=True)]

    def compare(self, sign: str, value: Value) -> Bools:
        if _kind(value) is not float:
            return np.full(len(self), sign == "!=")
        near = float(value)
        found: Bools = _SIGNS[sign](self.array, near)
        if near != value:  # a large integer, not exact as a float
            found = np.where(self.array == near, _SIGNS[sign](near, value), found)
        return found & self.present if sign != "!=" else found | ~self.present

    def one_of(self, values: Sequence[Value]) -> Bools:
        numbers = [float(one) for one in values if _kind(one) is float and float(one) == one]
        return np.isin(self.array, numbers) & self.present

    def each(self, _test: Callable[[Held], bool]) -> Bools:
        """Apply a test that only texts and sets can pass."""
        return np.zeros(len(self), np.bool_)

    @property
    def truth(self) -> Bools:
        return self.compare("!=", 0) & self.present

    @property
    def order(self) -> tuple[Floats, Bools]:
        """Return numbers that sort like the values, and which rows have one."""
        return self.array, self.present & ~np.isnan(self.array)

    def factors(self, rows: Ints) -> Ints:
        """Return a number for each of the rows, equal for equal values; 0 if missing."""
        return self.distinct[1][rows]

    @property
    def distinct(self) -> tuple[Floats, Ints]:
        """Return the sorted distinct values; and for each row a position from 1, 0 if missing."""
        if self not in _DISTINCT:
            values, places = np.unique(self.array, return_inverse=True)
            places += 1
            if self.missing is not None:
                places[self.missing] = 0
            _DISTINCT[self] = values, places
        return _DISTINCT[self]


_DISTINCT: WeakKeyDictionary[Numbers, tuple[Floats, Ints]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """Values of any type: for each row its position in `words`, or -1 if missing."""

    codes: npt.NDArray[np.int32]
    words: Sequence[Held]

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def present(self) -> Bools:
        return self.codes >= 0

    def values(self, rows: Ints) -> list[Held | None]:
        return [None if code < 0 else self.words[code] for code in self.codes[rows].tolist()]

    def compare(self, sign: str, value: Value) -> Bools:
        return self._of_each([compare(sign, one, value) for one in self.words], sign == "!=")

    def one_of(self, values: Sequence[Value]) -> Bools:
        accepted = {(_kind(one), one) for one in values}
        return self.each(lambda held: (_kind(held), held) in accepted)

    def each(self, test: Callable[[Held], bool]) -> Bools:
        return self._of_each([test(one) for one in self.words], missing=False)

    @property
    def truth(self) -> Bools:
        return self._of_each([bool(one) for one in self.words], missing=False)

    @property
    def order(self) -> tuple[Floats, Bools]:
        keys = [_sort_key(one) for one in self.words]
        ranks = np.zeros(len(keys) + 1)
        rank, before = -1.0, None
        for at in sorted(range(len(keys)), key=keys.__getitem__):
            rank += keys[at] != before
            ranks[at], before = rank, keys[at]
        placed = [key[0] < _UNORDERED for key in keys]
        return ranks[self.codes], self._of_each(placed, missing=False)

    def factors(self, rows: Ints) -> Ints:
        places: dict[Any, int] = {}
        held = [places.setdefault(_group_key(one), len(places) + 1) for one in self.words]
        return np.array([*held, 0], np.int64)[self.codes[rows]]

    def _of_each(self, found: Sequence[bool], missing: bool) -> Bools:
        # The code of a missing value is -1, which indexes the last element.
        return np.array([*found, missing], np.bool_)[self.codes]


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """Numbers in some rows, values of other types in others."""

    numbers: Numbers
    words: Words

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def present(self) -> Bools:
        return self.numbers.present | self.words.present

    def values(self, rows: Ints) -> list[Held | None]:
        held = zip(self.numbers.values(rows), self.words.values(rows), strict=True)
        return [word if number is None else number for number, word in held]

    def compare(self, sign: str, value: Value) -> Bools:
        numbers, words = self.numbers.compare(sign, value), self.words.compare(sign, value)
        # For a value of the other type, `!=` is true and everything else false.
        return numbers & words if sign == "!=" else numbers | words

    def one_of(self, values: Sequence[Value]) -> Bools:
        return self.numbers.one_of(values) | self.words.one_of(values)

    def each(self, test: Callable[[Held], bool]) -> Bools:
        return self.words.each(test)

    @property
    def truth(self) -> Bools:
        return self.numbers.truth | self.words.truth

    @property
    def order(self) -> tuple[Floats, Bools]:
        flags = np.array([isinstance(one, bool) for one in self.words.words] + [False])
        is_flag = flags[self.words.codes]
        truths = np.array([one is True for one in self.words.words] + [False])
        numbers = np.where(is_flag, truths[self.words.codes], self.numbers.array)
        placed = is_flag | self.numbers.order[1]
        ranks = np.zeros(len(self))
        distinct, found = np.unique(numbers[placed], return_inverse=True)
        ranks[placed] = found
        texts, has_text = self.words.order
        has_text = has_text & ~is_flag
        ranks[has_text] = texts[has_text] + len(distinct)  # after all numbers
        return ranks, placed | has_text

    def factors(self, rows: Ints) -> Ints:
        numbers, words = self.numbers.factors(rows), self.words.factors(rows)
        return np.where(words > 0, words + numbers.max(initial=0), numbers)


Column = Numbers | Words | Mixed


class Table(Protocol):
    """Runs in rows. `rows` lists them in order; `7d ago` counts back from `now`.

    `len` is the length of columns, which may include rows of other runs.
    """

    now: float

    @property
    def rows(self) -> Ints: ...
    def __len__(self) -> int: ...
    def column(self, field: Field) -> Column: ...


def compare(sign: str, left: Held, right: Held) -> bool:
    """Compare two values; those of different types differ and have no order."""
    if _kind(left) is not _kind(right):
        return sign == "!="
    return bool(_SIGNS[sign](left, right))


def _kind(value: object) -> type:
    return float if type(value) is int else type(value)


def _sort_key(value: Held) -> tuple[int, Any]:
    """Return a key that sorts numbers first, NaN last among them, then texts in natural order."""
    if isinstance(value, str):
        return 1, natural(value)
    if isinstance(value, frozenset):
        return 1, natural(", ".join(sorted(value)))
    return (_UNORDERED, 0) if value != value else (0, value)  # noqa: PLR0124 - NaN


# Conditions.


def evaluate(node: Node, table: Table) -> Bools:
    """Return for each row of a table whether a condition is true."""
    match node:
        case And(nodes):
            return reduce(operator.and_, (evaluate(one, table) for one in nodes))
        case Or(nodes):
            return reduce(operator.or_, (evaluate(one, table) for one in nodes))
        case Not(inner):
            return ~evaluate(inner, table)
    return _test(node, table)


def _test(node: Compare | Matches | OneOf | Contains | Missing | Truth, table: Table) -> Bools:
    column = table.column(node.field)
    match node:
        case Compare(_, sign, Field() as right):
            found = _compare_columns(column, sign, table.column(right))
        case Compare(_, sign, (Literal() | Ago() | Seconds()) as right):
            found = column.compare(sign, _value(right, table.now))
        case Matches(_, pattern):
            found = column.each(_matcher(pattern))
        case OneOf(_, values):
            found = column.one_of([_value(value, table.now) for value in values])
        case Contains(_, text):
            found = column.each(lambda one: isinstance(one, (str, frozenset)) and text in one)
        case Missing():
            found = ~column.present
        case Truth():
            found = column.truth
    return found


def _matcher(pattern: str) -> Callable[[Held], bool]:
    """Match a shell pattern; a name with brackets also matches itself."""
    start = pattern.removesuffix("*")
    if not _SPECIAL.search(start):
        begins = start != pattern
        return lambda held: (
            isinstance(held, str) and (held.startswith(start) if begins else held == pattern)
        )
    matches = re.compile(translate(pattern)).match
    return lambda held: isinstance(held, str) and (held == pattern or matches(held) is not None)


def _value(operand: Literal | Ago | Seconds, now: float) -> Value:
    if isinstance(operand, Literal):
        return operand.value
    return now - operand.seconds if isinstance(operand, Ago) else operand.seconds


def _compare_columns(left: Column, sign: str, right: Column) -> Bools:
    both = left.present & right.present
    if isinstance(left, Numbers) and isinstance(right, Numbers):
        found: Bools = _SIGNS[sign](left.array, right.array)
    else:
        rows = np.arange(len(left))
        pairs = zip(left.values(rows), right.values(rows), strict=True)
        found = np.array(
            [a is not None and b is not None and compare(sign, a, b) for a, b in pairs], np.bool_
        )
    return found & both if sign != "!=" else found | ~both


_KINDS: dict[type, str] = {float: "a number", str: "a string", bool: "true or false"}


def hint_for_nothing(node: Node, table: Table) -> str:
    """Return why no run may match a condition: a type that no value has, or an unknown tag."""
    match node:
        case And(nodes) | Or(nodes):
            return next((hint for one in nodes if (hint := hint_for_nothing(one, table))), "")
        case Contains(field, text) if field == Field(TAGS):
            return _hint_for_tag(text, table)
        case Compare() | OneOf() | Matches() | Contains():
            return _hint_for_type(node, table)
    return ""


def _hint_for_type(node: Compare | OneOf | Matches | Contains, table: Table) -> str:
    held = table.column(node.field).values(table.rows)
    kinds = {_kind(one) for one in held if one is not None}
    given = {_kind(one) for one in _literals(node)}
    if not kinds or not given or kinds & given:
        return ""
    known, wanted = (
        " or ".join(_KINDS[one] for one in _KINDS if one in of) for of in (kinds, given)
    )
    hint = f"{node.field} is {known} in all runs, not {wanted}."
    bare = {_kind(parse_bare(str(one))) for one in _literals(node)}
    if given == {str} and bare <= kinds and isinstance(node, Compare | OneOf):
        return f"{hint} Write it without quotes."
    return f"{hint} Write it in quotes." if kinds == {str} else hint


def _literals(node: Compare | OneOf | Matches | Contains) -> list[Value]:
    match node:
        case Compare(_, sign, Literal(value)) if sign != "!=":
            return [value]
        case OneOf(_, literals):
            return [one.value for one in literals if isinstance(one, Literal)]
        case Matches(_, text) | Contains(_, text):
            return [text]
    return []


def _hint_for_tag(text: str, table: Table) -> str:
    held = table.column(Field(TAGS)).values(table.rows)
    names = sorted({name for one in held if isinstance(one, frozenset) for name in one})
    if text in names:
        return ""
    near = nearest(text, names)
    return f"No run has a tag {text!r}." + (f" Did you mean {near!r}?" if near else "")


# Order and groups.


class Group(NamedTuple):
    """Runs with equal values of the fields that a question groups by."""

    values: tuple[Held | None, ...]
    rows: Ints  # in the order of the question


class Answer(NamedTuple):
    """The rows that a question selects, in its order and within its limit.

    `total` is their number without the limit. With `group_by`, the limit and `total` count groups,
    and `rows` has the rows of all groups. Groups are in the order of their first run or, without
    `sort`, of their values.
    """

    rows: Ints
    total: int
    groups: list[Group]


def answer(question: Question, table: Table, rows: Ints | None = None) -> Answer:
    """Answer a question over rows of a table, all of them by default.

    Rows that compare equal keep their order. Missing values sort last in both directions, after
    NaN.
    """
    chosen = table.rows if rows is None else rows
    if question.where is not None:
        chosen = chosen[evaluate(question.where, table)[chosen]]
    if not question.group_by:
        return Answer(_ordered(question.sort, table, chosen, question.limit), len(chosen), [])
    if question.sort:
        groups = _grouped(question.group_by, table, _ordered(question.sort, table, chosen, None))
    else:
        groups = _grouped(question.group_by, table, chosen)
        firsts = {int(one.rows[0]): one for one in groups}
        by_value = tuple(SortKey(one) for one in question.group_by)
        order = _ordered(by_value, table, np.array([*firsts], np.int64), None)
        groups = [firsts[row] for row in order.tolist()]
    kept = groups[: question.limit]
    members = [one.rows for one in kept] or [chosen[:0]]
    return Answer(np.concatenate(members), len(groups), kept)


def _ordered(keys: Sequence[SortKey], table: Table, rows: Ints, limit: int | None) -> Ints:
    if not keys or not len(rows):
        return rows[:limit]
    sorted_by: list[npt.NDArray[Any]] = []
    for key in keys:
        column = table.column(key.field)
        numbers, placed = column.order
        numbers, placed = numbers[rows], placed[rows]
        last = np.where(placed, 0, np.where(column.present[rows], 1, 2))
        sorted_by += [last, np.where(placed, -numbers if key.descending else numbers, 0.0)]
    if limit is not None and limit < len(rows):
        # Sort only rows that can be within the limit, judged by the first key.
        last, numbers = sorted_by[:2]
        first = numbers + 0.0
        first[last > 0] = np.inf
        candidates = np.flatnonzero(first <= np.partition(first, limit - 1)[limit - 1])
        rows = rows[candidates]
        sorted_by = [one[candidates] for one in sorted_by]
    return rows[np.lexsort(sorted_by[::-1])][:limit]


class Mark(NamedTuple):
    """The end of a page: the sort values of its last run, and its position in natural order.

    The next page begins after it, even if runs were added or removed meanwhile. `now` is the time
    of the first page if values depend on the time: later pages use it too, since a duration that
    grows would move runs across the mark.
    """

    values: tuple[Held | None, ...]
    label: str
    root: str
    directory: str
    now: float | None = None


def mark_of(keys: Sequence[SortKey], table: Table, row: int) -> Mark:
    def value(field: Field) -> Held | None:
        return table.column(field).values(np.array([row]))[0]

    experiment, name, root, directory = (
        str(value(Field(one)) or "") for one in ("experiment", "name", "root", "directory")
    )
    label = f"{experiment}/{name}" if experiment else name
    return Mark(tuple(value(key.field) for key in keys), label, root, directory)


def place_behind(mark: Mark, keys: Sequence[SortKey], table: Table, rows: Ints) -> int:
    """Return how many of the sorted rows are at or before a mark."""

    def is_behind(row: int) -> bool:
        found = mark_of(keys, table, row)
        for key, one, other in zip(keys, found.values, mark.values, strict=True):
            rank, other_rank = _rank(one), _rank(other)
            if rank != other_rank:
                return rank > other_rank
            if rank == 0 and (first := _sort_key(one)) != (second := _sort_key(other)):  # type: ignore[arg-type]
                return (first < second) is key.descending
        return _natural_place(found) > _natural_place(mark)

    return bisect_left(rows, True, key=lambda row: is_behind(int(row)))


def _rank(value: Held | None) -> int:
    """Return 0 for a value with an order, and more for NaN and for a missing value."""
    if value is None:
        return 2
    return int(_sort_key(value)[0] == _UNORDERED)


def _natural_place(mark: Mark) -> tuple[str, str, str]:
    return natural(mark.label), mark.root, mark.directory


def _grouped(fields: Sequence[Field], table: Table, rows: Ints) -> list[Group]:
    """Group rows; groups come in the order of their first rows."""
    columns = [table.column(one) for one in fields]
    factors = columns[0].factors(rows)
    for column in columns[1:]:
        _, factors = np.unique(factors, return_inverse=True)  # keeps the product small
        found = column.factors(rows)
        factors = factors * (found.max(initial=0) + 1) + found
    if factors.max(initial=0) < 1 << 16:
        factors = factors.astype(np.uint16)  # sorts ten times faster
    members = np.argsort(factors, kind="stable")
    starts = np.flatnonzero(np.diff(factors[members].astype(np.int64), prepend=-1))
    groups = np.split(rows[members], starts[1:]) if len(rows) else []
    firsts = members[starts]
    values = zip(*(column.values(rows[firsts]) for column in columns), strict=True)
    named = list(zip(values, groups, strict=True))
    return [Group(*named[at]) for at in np.argsort(firsts).tolist()]


def _group_key(value: Held) -> tuple[type, Any]:
    # NaN is not equal to itself, and 1 is equal to True.
    return _kind(value), "nan" if value != value else value  # noqa: PLR0124


# Facets.


class Facet(NamedTuple):
    """The values of a field over a set of runs, the most frequent first."""

    values: Sequence[tuple[Any, int]]
    bins: Sequence[tuple[float, float, int]]
    distinct: int
    missing: int


def facet(column: Column, rows: Ints, limit: int) -> Facet:
    """Count the values in the rows; too many distinct finite numbers are counted in bins."""
    numbers, counts = _counted_numbers(column, rows)
    words = column.words if isinstance(column, Mixed) else column
    found = _counted_words(words, rows) if isinstance(words, Words) else {}
    missing = (
        len(rows)
        - int(counts.sum())
        - sum(held for one, held in _codes(words, rows) if one not in (None, frozenset()))
    )
    distinct = len(numbers) + len(found)
    counted = [(value, held) for (_, value), held in found.items()]
    large = [one for one in counted if is_number(one[0])]
    bins: list[tuple[float, float, int]] = []
    finite = np.isfinite(numbers)
    others = list(zip(numbers[~finite].tolist(), counts[~finite].tolist(), strict=True))
    numbers, counts = numbers[finite], counts[finite]
    if len(numbers) + len(large) > limit:
        array = np.concatenate([numbers, [float(one) for one, _ in large]])
        bins = _bins(array, np.concatenate([counts, [held for _, held in large]]), limit)
        counted = [one for one in counted if not is_number(one[0])]
    else:
        part = column.numbers if isinstance(column, Mixed) else column
        is_whole = isinstance(part, Numbers) and part.whole
        shown = (numbers.astype(np.int64) if is_whole else numbers).tolist()
        counted += zip(shown, counts.tolist(), strict=True)
    counted += others
    counted.sort(key=lambda one: (-one[1], str(type(one[0])), _sortable(one[0])))
    return Facet(counted[:limit], bins, distinct, missing)


def _counted_numbers(column: Column, rows: Ints) -> tuple[Floats, Ints]:
    part = column.numbers if isinstance(column, Mixed) else column
    if not isinstance(part, Numbers):
        return np.zeros(0), np.zeros(0, np.int64)
    held = part.array[rows] if part.missing is None else part.array[rows[~part.missing[rows]]]
    return np.unique(held, return_counts=True)


def _codes(column: Column, rows: Ints) -> list[tuple[Held | None, int]]:
    """Return the values of a column of words in the rows, and how many rows have each."""
    if not isinstance(column, Words):
        return []
    counts = np.bincount(column.codes[rows] + 1, minlength=1)
    held = [None, *column.words]
    return [(held[at], int(counts[at])) for at in np.flatnonzero(counts).tolist()]


def _counted_words(column: Words, rows: Ints) -> dict[tuple[bool, Any], int]:
    found: Counter[tuple[bool, Any]] = Counter()
    for held, count in _codes(column, rows):
        for value in held if isinstance(held, frozenset) else () if held is None else (held,):
            found[isinstance(value, bool), value] += count
    return found


def _sortable(value: object) -> Any:
    # NaN is last.
    return (value != value, value) if is_number(value) else str(value)  # noqa: PLR0124


def _bins(values: Floats, counts: Ints, most: int) -> list[tuple[float, float, int]]:
    """Return up to `most` equal bins with their bounds; logarithmic over several decades."""
    low, high = float(values.min()), float(values.max())
    count = min(most, 20)
    by_magnitude = low > 0 and high / low >= 1000
    first, last = (math.log10(low), math.log10(high)) if by_magnitude else (low, high)
    width = (last - first) / count
    if not math.isfinite(width) or width <= 0:
        return [(low, high, int(counts.sum()))]
    places = np.log10(values) if by_magnitude else values
    held = np.minimum((places - first) / width, count - 1).astype(np.int64)
    totals = np.bincount(held, counts, minlength=count)
    edges = [first + width * at for at in range(count + 1)]
    bounds = [10**edge for edge in edges] if by_magnitude else edges
    bounds[0], bounds[-1] = low, high
    return [(bounds[at], bounds[at + 1], int(total)) for at, total in enumerate(totals)]


def mean_of(column: Column, rows: Ints) -> float | None:
    """Return the mean of the finite numbers in the rows of a column; None if there are none."""
    if not isinstance(column, Numbers):
        return mean(column.values(rows))
    numbers = column.array[rows]
    is_there = np.isfinite(numbers)
    if column.missing is not None:
        is_there &= ~column.missing[rows]
    numbers = numbers[is_there]
    return math.fsum(numbers) / len(numbers) if len(numbers) else None


def mean(values: Sequence[object]) -> float | None:
    """Return the mean of the finite numbers among the values; None if there are none."""
    numbers = [one for one in values if type(one) in (int, float) and math.isfinite(one)]  # type: ignore[arg-type]
    return math.fsum(numbers) / len(numbers) if numbers else None  # type: ignore[arg-type]
