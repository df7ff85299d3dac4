"""The language to filter, sort and group runs: `state == "completed" and hparams.lr < 0.1`.

Parses text into a tree, and turns a tree back into text; nothing is evaluated as Python. `columns`
answers a question over a table of runs. Questions come from requests, so their length and depth are
bounded.

    state == "completed"   also !=, <, <=, >, >=, and chains such as 0.01 < hparams.lr < 0.1
    experiment ~ "cifar*"  a shell pattern
    state in ("failed", "lost")    one of several; "baseline" in tags; "resnet" in name
    created > "7d ago"     times: ISO 8601, or a time ago; duration > "2h"
    hparams.lr             also hparams["learning rate"], tags.team
    metrics["eval/acc"]    its last value; also .min, .max, .mean, .first, .count, .at(1000), …
    x == none              the value is missing
    not, and, or, ( )
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar, NamedTuple

from aboard.runs import RunsError, nearest
from aboard.runs.manifest import State
from aboard.runs.naming import (
    AT,
    ESCAPED,
    GROUPS,
    LAST,
    LOOSE_NAME,
    NUMBERS,
    RUN_FIELDS,
    STATISTICS,
    TAGS,
    TIMED,
    TIMES,
    field_text,
    quoted,
    split_statistic,
)
from aboard.runs.units import seconds_in

_ALIASES = {"commit": "git_commit"}

MAX_LENGTH = 4000  # characters of a text
MAX_DEPTH = 40  # of parentheses and `not`
MAX_CONDITIONS = 100  # comparisons, patterns and lists
MAX_PATTERNS = 10
MAX_PATTERN = 200  # characters of a shell pattern
MAX_STARS = 8  # in a shell pattern
MAX_FIELDS = 8  # to sort or group by
MAX_LIMIT = 1_000_000_000
_SHOWN = 60  # characters of a text around an error

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[^\W\d]\w*")
_CALL = re.compile(r"\.at\([^)]*\)$")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_SIGN = re.compile(r"==|!=|<=|>=|<|>|=|~|\(|\)|\[|\]|,|\.|-")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"|' r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">", "=")
_FOREIGN = {"&&": "and", "||": "or", "!": "not", "&": "and", "|": "or"}
_KEYWORDS = ("and", "or", "not", "in", "true", "false", "none")
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_AGO = re.compile(r"(.*[a-z])\s+ago")

_EXAMPLE = 'Example: state == "completed" and hparams.lr < 0.1.'
_TYPO = 0.75  # similarity of a misspelt name

Value = str | int | float | bool


class Place(NamedTuple):
    """The position of a part of a question in its text."""

    start: int = 0
    end: int = 0


NOWHERE = Place()


class BadQuestion(RunsError):
    """An invalid question; `picture` shows the text with carets under the invalid part."""

    code: ClassVar[str] = "bad_question"

    def __init__(
        self, message: str, hint: str = "", *, text: str = "", at: Place = NOWHERE
    ) -> None:
        super().__init__(message, hint)
        self.picture = _picture(text, at) if text else ""


class UnknownField(BadQuestion):
    """A bare name that is not a field of runs, such as `lr` instead of `hparams.lr`."""

    def __init__(self, message: str, hint: str, *, name: str, text: str, at: Place) -> None:
        super().__init__(message, hint, text=text, at=at)
        self.name = name
        self._text, self._at = text, at

    def suggest(self, known: Mapping[str, Iterable[str]]) -> UnknownField:
        """Suggest what the name may stand for, given the names in each group that runs have."""
        name = self.name
        _, statistic = split_statistic("metrics", name)
        ending = "" if statistic == LAST else f".{statistic}"
        named: dict[str, list[str]] = {}
        for group, names in known.items():
            for one in names:
                if group != "metrics":
                    named.setdefault(one, []).append(field_text(group, one))
                    continue
                parts = one.split("/")  # a metric is also found without its stage
                for count in range(len(parts)):
                    spelt = "/".join(parts[count:]) + ending
                    named.setdefault(spelt, []).append(field_text(group, one) + ending)
        near = nearest(name, [*named, *RUN_FIELDS])
        found, hint = named.get(name) or named.get(near), ""
        before, _, last = name.rpartition(".")
        metrics = [one for one in named.get(before, ()) if one.startswith("metrics")]
        if metrics and near in ("", before):  # rather an unknown statistic
            likely = nearest(last, STATISTICS)
            found = [f"{one}.{likely}" if likely else one for one in metrics]
            hint = "" if likely else f" Statistics: {', '.join(STATISTICS)}."
        if not found:
            return self
        hint = f"Did you mean {_either(found)}?{hint}"
        return UnknownField(self.message, hint, name=name, text=self._text, at=self._at)


def _picture(text: str, at: Place) -> str:
    """Return the text around a place, with carets under the place."""
    flat = "".join(one if one.isprintable() else " " for one in text)
    start = max(0, min(at.start - _SHOWN // 2, len(flat) - _SHOWN))
    end = start + _SHOWN
    before, after = "…" if start else "", "…" if end < len(flat) else ""
    width = max(1, min(at.end, end) - at.start)
    return (
        f"{before}{flat[start:end]}{after}\n{' ' * (len(before) + at.start - start)}{'^' * width}"
    )


# The tree.


@dataclass(frozen=True, slots=True)
class Field:
    """A value of each run: `state`, `hparams.lr`, `metrics["eval/acc"].max`.

    `group` is empty for a field of the run itself; `statistic` is that of a metric, and `step` is
    the STEP of `.at(STEP)`.
    """

    name: str
    group: str = ""
    statistic: str = ""
    step: int = 0
    place: Place = field(default=NOWHERE, compare=False, repr=False)

    def __str__(self) -> str:
        if not self.group:
            return self.name
        is_plain = _WORD.fullmatch(self.name)
        named = self.group + (f".{self.name}" if is_plain else f"[{quoted(self.name)}]")
        if self.statistic in ("", LAST):
            return named
        return f"{named}.{self.statistic}" + (f"({self.step})" if self.statistic == AT else "")


@dataclass(frozen=True, slots=True)
class Literal:
    value: Value
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Ago:
    """A time before now, in seconds: `"7d ago"`."""

    seconds: float
    text: str = field(compare=False)
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time or a duration that was given as text, in seconds."""

    seconds: float
    text: str = field(compare=False)
    place: Place = field(default=NOWHERE, compare=False, repr=False)


Operand = Field | Literal | Ago | Seconds


@dataclass(frozen=True, slots=True)
class Compare:
    """The sign is one of ==, !=, <, <=, >, >=."""

    field: Field
    sign: str
    right: Operand


@dataclass(frozen=True, slots=True)
class Matches:
    field: Field
    pattern: str


@dataclass(frozen=True, slots=True)
class OneOf:
    field: Field
    values: tuple[Literal | Ago | Seconds, ...]


@dataclass(frozen=True, slots=True)
class Contains:
    """A text is one of the tags, or part of another text."""

    field: Field
    text: str


@dataclass(frozen=True, slots=True)
class Missing:
    field: Field


@dataclass(frozen=True, slots=True)
class Truth:
    """A field alone: its value is not missing, false, 0 or empty."""

    field: Field


@dataclass(frozen=True, slots=True)
class Not:
    node: Node


@dataclass(frozen=True, slots=True)
class And:
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    nodes: tuple[Node, ...]


Node = Compare | Matches | OneOf | Contains | Missing | Truth | Not | And | Or


class SortKey(NamedTuple):
    field: Field
    descending: bool = False

    def __str__(self) -> str:
        return f"{'-' if self.descending else ''}{self.field}"


@dataclass(frozen=True, slots=True)
class Question:
    """A query over runs: filter, order, limit and groups."""

    where: Node | None = None
    sort: tuple[SortKey, ...] = ()
    limit: int | None = None
    group_by: tuple[Field, ...] = ()
    text: str = field(default="", compare=False)  # of `where`, as it was given

    @classmethod
    def parse(
        cls,
        where: str | None = None,
        sort: Sequence[str] = (),
        limit: int | None = None,
        group_by: Sequence[str] = (),
    ) -> Question:
        """Parse a question; an empty `where` selects all runs.

        Each text in `sort` and `group_by` names one field; see `each_field`.

        Raises:
            BadQuestion: a part is invalid, or a field is unknown.
        """
        if limit is not None and not 1 <= limit <= MAX_LIMIT:
            raise BadQuestion(f"limit must be a number from 1 to {MAX_LIMIT:,}, not {limit}.")
        for what, texts in (("sort", sort), ("group", group_by)):
            if len(texts) > MAX_FIELDS:
                raise BadQuestion(f"runs can be {what}ed by at most {MAX_FIELDS} fields.")
        text = (where or "").strip()
        return cls(
            parse(text) if text else None,
            tuple(parse_sort(one) for one in sort),
            limit,
            tuple(parse_field(one) for one in group_by),
            text,
        )

    def __str__(self) -> str:
        parts = [f"where {unparse(self.where)}"] if self.where is not None else []
        for word, named in (("sorted by", self.sort), ("grouped by", self.group_by)):
            if named:
                parts.append(f"{word} {', '.join(map(str, named))}")
        return ", ".join([*parts, f"the first {self.limit}"] if self.limit else parts)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The distinct fields in the question."""
        named = [*fields_of(self.where)] if self.where else []
        named += [key.field for key in self.sort]
        return tuple(dict.fromkeys([*named, *self.group_by]))

    @property
    def metrics(self) -> tuple[Field, ...]:
        """The fields of metrics, which come from event files."""
        return tuple(one for one in self.fields if one.group == "metrics")

    @property
    def is_timed(self) -> bool:
        """Whether the answer changes with time."""
        named = any(not one.group and one.name in TIMED for one in self.fields)
        return named or (self.where is not None and _has_ago(self.where))

    @property
    def prefilter(self) -> Question:
        """A weaker question that records alone can answer."""
        return self._without("metrics")

    @property
    def prefilter_of_raw(self) -> Question:
        """A weaker question that can be answered for a run without a record before it is read."""
        return self._without("metrics", "hparams")

    def _without(self, *groups: str) -> Question:
        parts = self.where.nodes if isinstance(self.where, And) else (self.where,)
        plain = [one for one in parts if one and not any(f.group in groups for f in fields_of(one))]
        return Question(And(tuple(plain)) if plain else None)

    def check_names(self, known: Mapping[str, Iterable[str]]) -> None:
        """Check that each hyperparameter, metric and tag exists in some run.

        Raises:
            BadQuestion: no run has one of them.
        """
        for one in self.fields:
            if not one.group or one.name in (names := set(known.get(one.group, ()))):
                continue
            what = {"hparams": "hyperparameter", "metrics": "metric", "tags": "tag"}[one.group]
            message = f"no run has a {what} {_shortened(one.name)}."
            near = nearest(one.name, names)
            if not names:
                hint = f"No run has any {what}."
            elif one.statistic and _is_statistic(one.name, near, names):
                message, hint = _unknown_statistic(*one.name.rpartition(".")[::-2])
            else:
                listed = _listed(f"The {what}s are", sorted(names))
                hint = f"Did you mean {near!r}?" if near else listed
            in_where = self.where is not None and one in tuple(fields_of(self.where))
            raise BadQuestion(
                message,
                hint,
                text=self.text if in_where else str(one),
                at=one.place if in_where else Place(0, len(str(one))),
            )


def fields_of(node: Node) -> Iterator[Field]:
    """Yield the fields of a tree in order, with repetitions."""
    match node:
        case And(nodes) | Or(nodes):
            for one in nodes:
                yield from fields_of(one)
        case Not(inner):
            yield from fields_of(inner)
        case Compare(left, _, right) if isinstance(right, Field):
            yield from (left, right)
        case _:
            yield node.field


def _has_ago(node: Node) -> bool:
    match node:
        case And(nodes) | Or(nodes):
            return any(map(_has_ago, nodes))
        case Not(inner):
            return _has_ago(inner)
        case Compare(_, _, right):
            return isinstance(right, Ago)
        case OneOf(_, values):
            return any(isinstance(one, Ago) for one in values)
    return False


# A text from a tree.


def unparse(node: Node) -> str:  # noqa: PLR0911 - one for each kind of node
    """Return the canonical text of a tree; parsing it gives the same tree."""
    match node:
        case Or(nodes):
            return " or ".join(_inside(one, And, Not) for one in nodes)
        case And(nodes):
            return " and ".join(_inside(one, Not) for one in nodes)
        case Not(Missing(one)):
            return f"{one} != none"
        case Not(inner):
            return f"not {_inside(inner, Not)}"
        case Compare(left, sign, right):
            return f"{left} {sign} {_written(right)}"
        case Matches(left, pattern):
            return f"{left} ~ {quoted(pattern)}"
        case OneOf(left, values):
            return f"{left} in ({', '.join(map(_written, values))})"
        case Contains(one, text):
            return f"{quoted(text)} in {one}"
        case Missing(one):
            return f"{one} == none"
        case Truth(one):
            return str(one)


def _inside(node: Node, *bare: type) -> str:
    is_bare = not isinstance(node, (And, Or, Not)) or isinstance(node, bare)
    return unparse(node) if is_bare else f"({unparse(node)})"


def _written(operand: Operand) -> str:
    match operand:
        case Field():
            return str(operand)
        case Literal(bool() as value):
            return "true" if value else "false"
        case Literal(str() as value):
            return quoted(value)
        case Literal(value):
            return repr(value)
        case Ago() | Seconds():
            return quoted(operand.text)


# A tree from a text.


def parse(text: str) -> Node:
    """Parse a condition.

    Raises:
        BadQuestion: the condition is invalid; the picture shows where.
    """
    parser = _Parser(text)
    node = parser.condition()
    parser.end()
    return node


def parse_field(text: str) -> Field:
    """Parse a field on its own, such as the name of a column.

    After `hparams.`, `metrics.` and `tags.` the name may have any characters, since only the
    statistic of a metric can follow it.
    """
    word = text.strip()
    group, _, name = word.partition(".")
    is_odd = group in GROUPS and bool(name) and LOOSE_NAME.fullmatch(name) is None
    if is_odd and not (group == "metrics" and _CALL.search(name)):
        if len(word) > MAX_LENGTH:
            raise BadQuestion(f"a field can have at most {MAX_LENGTH:,} characters.")
        name, statistic = split_statistic(group, name)
        return Field(name, group, statistic, place=Place(0, len(word)))
    parser = _Parser(word)
    found = parser.field()
    parser.end()
    return found


def parse_bare(text: str) -> float | bool | None:
    """Return the number or boolean that a text is without quotes; None for any other text."""
    if _NUMBER.fullmatch(text):
        return float(text)
    return {"true": True, "false": False}.get(text.lower())


def parse_sort(text: str) -> SortKey:
    """Parse a field to sort by, with `-` before it for descending order."""
    word = text.strip()
    return SortKey(parse_field(word.removeprefix("-")), word.startswith("-"))


def split_fields(text: str) -> list[str]:
    """Split names of fields at commas outside quotes."""
    parts = [""]
    at = 0
    while at < len(text):
        quoted = _STRING.match(text, at) if text[at] in "\"'" and parts[-1].endswith("[") else None
        if text[at] == ",":
            parts.append("")
            at += 1
        else:
            parts[-1] += quoted[0] if quoted else text[at]
            at += len(quoted[0]) if quoted else 1
    return [part.strip() for part in parts if part.strip()]


def each_field(texts: Iterable[str]) -> list[str]:
    """Return the names of fields in texts, each of which may have several."""
    return [part for text in texts for part in split_fields(text) or [text]]


class _Token(NamedTuple):
    kind: str  # word, number, string, sign or end
    text: str
    place: Place
    value: Value = ""


class _Parser:
    """A recursive-descent parser that scans tokens on demand."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise BadQuestion(
                f"a query can have at most {MAX_LENGTH:,} characters, not {len(text):,}."
            )
        self._text = text
        self._at = 0
        self._depth = 0
        self._conditions = 0
        self._patterns = 0
        self._token = self._scan()

    def error(self, message: str, hint: str = "", at: Place | None = None) -> BadQuestion:
        return BadQuestion(message, hint, text=self._text, at=at or self._token.place)

    # Tokens.

    def _scan(self) -> _Token:
        text = self._text
        start = _SPACE.match(text, self._at).end()  # type: ignore[union-attr] # it matches nothing too
        if start == len(text):
            self._at = start
            return _Token("end", "", Place(start, start + 1))
        if text[start] in "\"'":
            return self._scan_string(start)
        for kind, pattern in (("number", _NUMBER), ("word", _WORD), ("sign", _SIGN)):
            if found := pattern.match(text, start):
                self._at = found.end()
                token = _Token(kind, found[0], Place(*found.span()))
                return token._replace(value=self._number(token)) if kind == "number" else token
        for foreign, ours in _FOREIGN.items():
            if text.startswith(foreign, start):
                place = Place(start, start + len(foreign))
                raise self.error(f"write {ours!r} instead of {foreign!r}.", at=place)
        raise self.error(
            f"unexpected {text[start]!r}.",
            "Put strings in quotes.",
            Place(start, start + 1),
        )

    def _scan_string(self, start: int) -> _Token:
        found = _STRING.match(self._text, start)
        if found is None:
            raise self.error("the closing quote is missing.", at=Place(start, len(self._text)))
        self._at = found.end()
        raw = found[1] if found[1] is not None else found[2]
        value = _ESCAPE.sub(lambda one: ESCAPED.get(one[1], one[1]), raw)
        return _Token("string", found[0], Place(*found.span()), value)

    def _number(self, token: _Token) -> int | float:
        is_whole = re.fullmatch(r"[+-]?\d{1,30}", token.text) is not None
        value = int(token.text) if is_whole else float(token.text)
        if value in (float("inf"), float("-inf")):
            raise self.error("this number is too large.", at=token.place)
        return value

    def _next(self) -> _Token:
        token = self._token
        self._token = self._scan()
        return token

    def _take(self, *texts: str) -> _Token | None:
        is_ours = self._token.kind in ("word", "sign") and self._token.text in texts
        return self._next() if is_ours else None

    def _expect(self, text: str, why: str) -> _Token:
        if (token := self._take(text)) is None:
            raise self.error(f"{text!r} is missing {why}.")
        return token

    def end(self) -> None:
        token = self._token
        if token.kind == "end":
            return
        if token.kind == "word" and (near := nearest(token.text.lower(), ("and", "or", "in"))):
            raise self.error(f"unexpected {token.text!r}.", f"Did you mean {near!r}?")
        raise self.error(
            f"unexpected {_shortened(token.text)}.",
            "Join conditions with 'and' or 'or'.",
        )

    # Conditions.

    def condition(self) -> Node:
        return self._joined("or", Or, lambda: self._joined("and", And, self._negation))

    def _joined(self, word: str, kind: type[And | Or], part: Callable[[], Node]) -> Node:
        nodes = [part()]
        while self._take(word):
            nodes.append(part())
        flat = [
            one for node in nodes for one in (node.nodes if isinstance(node, kind) else (node,))
        ]
        return kind(tuple(flat)) if len(flat) > 1 else flat[0]

    def _negation(self) -> Node:
        if token := self._take("not"):
            with self._deeper(token.place):
                return Not(self._negation())
        return self._comparison()

    @contextmanager
    def _deeper(self, place: Place) -> Iterator[None]:
        if self._depth >= MAX_DEPTH:
            raise self.error(f"conditions can be nested at most {MAX_DEPTH} deep.", at=place)
        self._depth += 1
        yield
        self._depth -= 1

    def _comparison(self) -> Node:
        if token := self._take("("):
            with self._deeper(token.place):
                node = self.condition()
            self._expect(")", "to close this condition")
            return node
        left = self._operand()
        self._count_condition()
        found: list[Node] = []
        while sign := self._take(*_COMPARISONS):
            self._count_condition()
            right = self._operand(is_value=isinstance(left, Field))
            found.append(self._compare(left, "==" if sign.text == "=" else sign.text, right, sign))
            left = right
        if found:
            return And(tuple(found)) if len(found) > 1 else found[0]
        if self._take("~"):
            return self._match(left)
        if self._take("in"):
            return self._membership(left)
        if self._take("not"):
            self._expect("in", "after 'not'")
            return Not(self._membership(left))
        if isinstance(left, Field):
            return Truth(left)
        raise self.error("a comparison is missing.", _EXAMPLE, left.place if left else None)

    def _count_condition(self) -> None:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise self.error(
                f"a query can have at most {MAX_CONDITIONS} conditions.",
                "Use 'in' for many values of one field.",
            )

    def _operand(self, *, is_value: bool = False) -> Operand | None:
        """Return a field or a literal; None stands for `none`.

        An unknown word with `is_value` is probably a text without quotes.
        """
        token = self._token
        if token.kind in ("number", "string"):
            return Literal(self._next().value, token.place)
        if token.kind == "word":
            word = token.text.lower()
            if word in ("true", "false"):
                return Literal(self._next().text.lower() == "true", token.place)
            if word in ("none", "null"):
                self._next()
                return None
            if word in _KEYWORDS:
                raise self.error(f"a field or a value is missing before {token.text!r}.", _EXAMPLE)
            return self.field(is_value=is_value)
        if token.kind == "end":
            raise self.error("the query is incomplete.", _EXAMPLE)
        raise self.error(f"unexpected {token.text!r}.", _EXAMPLE)

    def _compare(self, left: Operand | None, sign: str, right: Operand | None, at: _Token) -> Node:
        if left is None or right is None:
            one = right if left is None else left
            if not isinstance(one, Field):
                raise self.error("one side of a comparison must be a field.", _EXAMPLE, at.place)
            if sign not in ("==", "!="):
                raise self.error(
                    "'none' has no order.", "Compare with == none or != none.", at.place
                )
            return Missing(one) if sign == "==" else Not(Missing(one))
        if not isinstance(left, Field):
            if not isinstance(right, Field):
                raise self.error("one side of a comparison must be a field.", _EXAMPLE, at.place)
            left, sign, right = right, _MIRRORED.get(sign, sign), left
        if left == Field(TAGS) or right == Field(TAGS):
            raise self.error(
                "tags are a set of names.",
                'Write "baseline" in tags, or tags.NAME == "value".',
                at.place,
            )
        return Compare(
            left, sign, self._typed(left, right) if isinstance(right, Literal) else right
        )

    def _typed(self, left: Field, right: Literal) -> Literal | Ago | Seconds:
        """Convert a text literal to what its field needs: a time, a duration or a state."""
        if left.group or left.name not in (*TIMES, "duration", "state"):
            return right
        if left.name == "state":
            self._check_state(right)
            return right
        if not isinstance(right.value, str):
            return right
        text = right.value.strip().lower()
        if left.name == "duration":
            if (seconds := seconds_in(text)) is None:
                raise self.error(
                    f"{_shortened(text)} is not a duration.",
                    "Write seconds, or a string such as '90s', '2h' or '1.5d'.",
                    right.place,
                )
            return Seconds(seconds, right.value, right.place)
        ago = _AGO.fullmatch(text)
        if ago and (seconds := seconds_in(ago[1])) is not None:
            return Ago(seconds, right.value, right.place)
        if (moment := parse_moment(right.value.strip())) is None:
            raise self.error(
                f"{_shortened(right.value)} is not a time.",
                "Write '7d ago', '2h ago', '2026-01-31' or '2026-01-31T12:00:00Z'.",
                right.place,
            )
        return Seconds(moment, right.value, right.place)

    def _check_state(self, literal: Literal) -> None:
        if literal.value not in list(State):
            near = nearest(str(literal.value).lower(), list(State))
            hint = f"Did you mean {near!r}?" if near else f"Known: {', '.join(State)}."
            raise self.error(f"{_shortened(literal.value)} is not a state.", hint, literal.place)

    def _match(self, left: Operand | None) -> Node:
        token = self._token
        if not isinstance(left, Field) or left == Field(TAGS):
            raise self.error("'~' compares a field with a pattern.", 'Write name ~ "run*".')
        if token.kind != "string":
            raise self.error("a pattern in quotes is missing here.", 'Write name ~ "run*".')
        self._patterns += 1
        if self._patterns > MAX_PATTERNS:
            raise self.error(f"a query can have at most {MAX_PATTERNS} patterns.")
        pattern = str(self._next().value)
        if len(pattern) > MAX_PATTERN or pattern.count("*") > MAX_STARS:
            raise self.error(
                f"a pattern can have at most {MAX_PATTERN} characters and {MAX_STARS} stars.",
                at=token.place,
            )
        return Matches(left, pattern)

    def _membership(self, left: Operand | None) -> Node:
        if isinstance(left, Literal) and isinstance(left.value, str):
            container = self.field()
            if not container.group and container.name in (*TIMES, *NUMBERS):
                raise self.error(
                    f"{container.name} is a number and cannot contain text.", at=container.place
                )
            return Contains(container, left.value)
        if not isinstance(left, Field) or left == Field(TAGS):
            raise self.error(
                "'in' needs a field or a string before it.",
                'Write "baseline" in tags, or state in ("failed", "lost").',
            )
        if self._token.text not in ("(", "[") or self._token.kind != "sign":
            raise self.error(
                "a list of values is missing here.", 'Write state in ("failed", "lost").'
            )
        closing = ")" if self._next().text == "(" else "]"
        values: list[Literal | Ago | Seconds] = []
        while not self._take(closing):
            one = self._operand(is_value=True)
            if not isinstance(one, Literal):
                place = one.place if one else None
                raise self.error("a list can have strings, numbers, true and false.", at=place)
            values.append(self._typed(left, one))
            if not self._take(",") and self._token.text != closing:
                raise self.error(f"{closing!r} is missing to close this list.")
        return OneOf(left, tuple(values))

    # Fields.

    def field(self, *, is_value: bool = False) -> Field:
        token = self._token
        if token.kind != "word":
            raise self.error("the name of a field is missing here.", _EXAMPLE)
        start = token.place.start
        if token.text in GROUPS and self._text[self._at : self._at + 1] == ".":
            return self._dotted(token.text, start)
        name = _ALIASES.get(token.text, token.text)
        if name not in (*RUN_FIELDS, *GROUPS):
            raise self._unknown(token, is_value=is_value)
        self._next()
        if token.text in GROUPS and self._take("["):
            return self._bracketed(token.text, start)
        if name in RUN_FIELDS:
            return Field(name, place=token.place)
        raise self.error(
            f"{token.text!r} needs a name.",
            f'Write {token.text}.NAME or {token.text}["NAME"].',
            token.place,
        )

    def _unknown(self, token: _Token, *, is_value: bool) -> BadQuestion:
        """Return the error of a name that is not a field of runs."""
        found = LOOSE_NAME.match(self._text, token.place.start)
        name = found[0] if found else token.text
        place = Place(token.place.start, token.place.start + len(name))
        if is_value:
            hint = f"Put strings in quotes: {quoted(token.text)}."
            return self.error(f"unknown field {_shortened(token.text)}.", hint, token.place)
        near = nearest(token.text, (*RUN_FIELDS, *_ALIASES, *GROUPS), cutoff=_TYPO)
        hint = f"Did you mean {near!r}?"
        if not near:
            hint = f"Fields of runs: {', '.join(RUN_FIELDS)}."
            if len(name) <= _SHOWN:
                hint = (
                    f"For a hyperparameter write hparams.{name}, for a metric metrics.{name}, for a"
                    f" tag tags.{name}. {hint}"
                )
        message = f"unknown field {_shortened(name)}."
        return UnknownField(message, hint, name=name, text=self._text, at=place)

    def _dotted(self, group: str, start: int) -> Field:
        """Read `hparams.optimizer.lr` or `metrics.eval/acc.max`."""
        found = LOOSE_NAME.match(self._text, self._at + 1)
        if found is None:
            at = Place(self._at, self._at + 1)
            raise self.error("a name is missing after the dot.", f'Write {group}["NAME"].', at)
        self._at = found.end()
        name, statistic = found[0], ""
        is_call = self._text[self._at : self._at + 1] == "("
        self._token = self._scan()
        if group == "metrics":
            if is_call and name.endswith(f".{AT}"):
                return self._called(name.removesuffix(f".{AT}"), start)
            name, statistic = split_statistic(group, name)
        return Field(name, group, statistic, place=Place(start, found.end()))

    def _bracketed(self, group: str, start: int) -> Field:
        """Read what follows `metrics[`: `"eval/acc"].max`."""
        token = self._token
        if token.kind != "string" or not token.value:
            raise self.error("a name in quotes is missing here.", f'Write {group}["NAME"].')
        self._next()
        end = self._expect("]", "after the name").place.end
        name = str(token.value)
        if group != "metrics":
            return Field(name, group, place=Place(start, end))
        if not self._take("."):
            return Field(name, group, LAST, place=Place(start, end))
        word = self._token
        if word.text == AT:
            self._next()
            return self._called(name, start)
        if word.kind != "word" or word.text not in STATISTICS:
            raise self.error(*_unknown_statistic(word.text, name))
        self._next()
        return Field(name, group, word.text, place=Place(start, word.place.end))

    def _called(self, name: str, start: int) -> Field:
        """Read what follows `.at`: `(1000)`."""
        self._expect("(", "after 'at'")
        token = self._token
        if not isinstance(token.value, int) or abs(token.value) >= 1 << 63:
            raise self.error("the step must be an integer.", f"Write .{AT}(1000).")
        self._next()
        end = self._expect(")", "after the step").place.end
        return Field(name, "metrics", AT, token.value, Place(start, end))


def _is_statistic(name: str, near: str, metrics: Collection[str]) -> bool:
    """Return whether the end of an unknown name, near a metric, is rather an unknown statistic."""
    before, _, last = name.rpartition(".")
    return before in metrics and near in ("", before) and last not in STATISTICS


def _unknown_statistic(word: str, metric: str) -> tuple[str, str]:
    """Return the message and the hint about a word after a metric."""
    near = nearest(word, (*STATISTICS, AT))
    hint = f"Did you mean {near!r}? " * bool(near)
    message = f"unknown statistic {_shortened(word)} of the metric {_shortened(metric)}."
    return message, f"{hint}Known: {', '.join(STATISTICS)}, {AT}(STEP)."


def parse_moment(text: str) -> float | None:
    """Return the time of an ISO 8601 text, by default in UTC; None for any other text."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _shortened(value: object) -> str:
    text = str(value)
    return repr(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…")


def _either(texts: Sequence[str]) -> str:
    *others, last = texts[:4]
    return f"{', '.join(others)} or {last}" if others else last


def _listed(before: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{before} {', '.join(names[:8])}{more}."
