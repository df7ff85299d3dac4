"""Names: of fields, of roots, and of runs and groups of runs on a board, from templates.

A template is a text such as `{experiment}_{run}_lr={hparams.lr}`. TensorBoard shows a name as a
path, so slashes are kept and group runs. A value never adds an empty, `.` or `..` part. A group is
named after the values that its runs share, such as `lr=0.1`. Its curves appear as runs of the
board, with a suffix: `lr=0.1 mean`, `lr=0.1 +std`, `lr=0.1 -std`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from aboard.runs import RunsError, nearest

if TYPE_CHECKING:
    from aboard.runs import question

# Fields of runs in questions.
TEXTS = (
    "run", "experiment", "name", "state", "host", "user", "job", "workspace", "git_commit",
    "reason", "uri", "root",
)  # fmt: skip
TIMES = ("created", "started", "ended", "heartbeat")
NUMBERS = ("duration", "exit_code")
TIMED = ("state", "duration")  # change with time, without a change of the record
TAGS = "tags"
RUN_FIELDS = (*TEXTS, *TIMES, *NUMBERS, TAGS)
GROUPS = ("hparams", "metrics", "tags")  # of fields that each have a name
STATISTICS = (
    "last", "min", "max", "mean", "first", "count", "nans", "infinities", "first_step",
    "last_step", "min_step", "max_step",
)  # fmt: skip
LAST, AT = "last", "at"

# Fields of runs in templates, besides those in groups.
PLAIN_FIELDS = (
    "workspace",
    "experiment",
    "run",
    "logdir",
    "job",
    "user",
    "host",
    "state",
    "created",
    "source",
)
KNOWN_FIELDS = (*PLAIN_FIELDS, "hparams.<name>", "tags.<name>", "metrics.<tag>")
MISSING = "-"  # replaces a value that a run does not have

LOOSE_NAME = re.compile(r"\w(?:[\w/.:-]*[\w/])?")  # without quotes after `hparams.`
ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}

_LONGEST_VALUE = 120
_QUOTED_NAME = re.compile(r"""\s*(\w+)\[(["'])(.+)\2\]\s*(?::(.*))?""", re.DOTALL)
_FORMAT = re.compile(r"0?\d{0,2},?(d|(\.\d{1,2})?[eEfFgG%])")


def field_text(group: str, name: str) -> str:
    """Return a name with its group, with quotes only if needed."""
    is_loose = LOOSE_NAME.fullmatch(name) and split_statistic(group, name)[0] == name
    return f"{group}.{name}" if is_loose else f"{group}[{quoted(name)}]"


def split_statistic(group: str, name: str) -> tuple[str, str]:
    """Split `loss.max`; only metrics have a statistic."""
    if group != "metrics":
        return name, ""
    before, dot, last = name.rpartition(".")
    return (before, last) if dot and before and last in STATISTICS else (name, LAST)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    for letter, character in ESCAPED.items():
        escaped = escaped.replace(character, f"\\{letter}")
    return f'"{escaped}"'


class BadTemplate(RunsError):
    code: ClassVar[str] = "bad_template"


class Field(NamedTuple):
    name: str
    form: str = ""


class Template(NamedTuple):
    text: str
    parts: tuple[str | Field, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parse a template.

        `{field}` is a value, `{field:.3g}` a number in a Python format, `{{` and `}}` are braces.
        A name that contains a colon must be followed by another: `{metrics.loss:0:}`. As in
        questions, a name may be in quotes: `{metrics["eval/acc"]:.2f}`.
        """
        parts: list[str | Field] = []
        literal, place = "", 0
        while place < len(text):
            if text.startswith(("{{", "}}"), place):
                literal, place = literal + text[place], place + 2
            elif text[place] == "}":
                raise _bad(text, place, "unmatched '}'", "Write '}}' for a brace")
            elif text[place] == "{":
                end = text.find("}", place)
                if end < 0 or "{" in text[place + 1 : end]:
                    raise _bad(text, place, "unmatched '{'", "Write '{{' for a brace")
                parts += [literal] * bool(literal)
                parts.append(_field(text, place, text[place + 1 : end]))
                literal, place = "", end + 1
            else:
                literal, place = literal + text[place], place + 1
        parts += [literal] * bool(literal)
        if not parts:
            raise BadTemplate("the name template is empty. Write one such as '{run}'.")
        return cls(text, tuple(parts))

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.name for part in self.parts if isinstance(part, Field)))

    def values(self, fields: Mapping[str, object]) -> tuple[object, ...]:
        """Return the values of the fields in a run's name; None for those it does not have."""
        return tuple(_value(fields, part.name) for part in self.parts if isinstance(part, Field))

    def render(self, fields: Mapping[str, object]) -> str:
        """Return the name of a run; `tags` may be a mapping, or a collection of labels."""
        texts = (
            part if isinstance(part, str) else shown(_value(fields, part.name), part.form)
            for part in self.parts
        )
        return _clean("".join(texts)) or MISSING


def distinct(names: Iterable[str]) -> list[str]:
    """Return the names with `_2`, `_3` … added to repeated ones.

    A name depends only on those before it, so appending names changes none.
    """
    taken: set[str] = set()
    last: dict[str, int] = {}
    result = []
    for name in names:
        free = name
        while free in taken:
            last[name] = last.get(name, 1) + 1
            free = f"{name}_{last[name]}"
        taken.add(free)
        result.append(free)
    return result


def fields_of_path(source_uri: str, run_name: str) -> dict[str, str]:
    """Derive the fields of a plain log directory from its path below the opened source.

    The layout is `<experiment>/<run>/<logdir…>`: names such as `train`, `eval` or `rank-3` at the
    end are the logdir, and so is everything after the second part of a deeper path. Parts that are
    missing below the source are taken from above it, so that a run has the same name whether its
    root, its experiment or the run itself is opened.
    """
    from aboard.runs.catalog import is_logdir

    above = [part for part in source_uri.rpartition("://")[2].split("/") if part]
    below = [part for part in run_name.split("/") if part not in ("", ".")]
    logdir: list[str] = []
    while len(above) + len(below) > 1 and is_logdir((below or above)[-1]):
        logdir.insert(0, (below or above).pop())
    logdir = below[2:] + logdir
    experiment, run = ["", "", *above, *below[:2]][-2:]
    found = {"experiment": experiment, "run": run, "logdir": "/".join(logdir)}
    return {name: value for name, value in found.items() if value} | {"source": source_uri}


def _field(template: str, place: int, inside: str) -> Field:
    if quoted := _QUOTED_NAME.fullmatch(inside):
        name, form = f"{quoted[1]}.{quoted[3]}", quoted[4] or ""
    else:
        name, _, form = inside.rpartition(":") if ":" in inside else (inside, "", "")
        name = name.strip()
    group, dot, rest = name.partition(".")
    if name not in PLAIN_FIELDS and not (group in GROUPS and dot and rest):
        near = nearest(name, (*PLAIN_FIELDS, *(f"{one}." for one in GROUPS)))
        guess = f"Did you mean '{near}'? " if near else ""
        hint = f"{guess}Known: {', '.join(KNOWN_FIELDS)}"
        raise _bad(template, place, f"unknown field {name!r}", hint)
    if form and not _FORMAT.fullmatch(form):
        hint = "Write one such as ':.3g', or ':' at the end of a name that contains a colon"
        raise _bad(template, place, f"invalid number format {form!r}", hint)
    return Field(name, form)


def _bad(template: str, place: int, problem: str, hint: str) -> BadTemplate:
    return BadTemplate(f"name template {template!r}, character {place + 1}: {problem}. {hint}.")


def _value(fields: Mapping[str, object], name: str) -> object:
    group, _, rest = name.partition(".")
    held = fields.get(group)
    if not rest or held is None:
        return held
    if isinstance(held, Mapping):
        return held.get(rest)
    if isinstance(held, Collection) and not isinstance(held, (str, bytes)):
        return rest if rest in held else None
    return None


def shown(value: object, form: str = "") -> str:
    """Return a value as written in a name; `MISSING` for None."""
    if isinstance(value, datetime):
        text = value.strftime("%Y-%m-%d_%H-%M-%S")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        text = _number(value, form)
    else:
        text = "" if value is None else str(value)
    text = _clean(text)
    if len(text) > _LONGEST_VALUE:
        text = text[: _LONGEST_VALUE - 1] + "…"
    return text or MISSING


def _number(value: float, form: str) -> str:
    """Format a number; by default integers in full, others with six digits."""
    try:
        if form.endswith("d"):
            return format(round(value), form)
        if form:
            return format(value, form)
        whole = isinstance(value, int) or (value.is_integer() and abs(value) < 1e15)
        return str(int(value)) if whole else f"{value:.6g}"
    except (OverflowError, ValueError):
        # Not finite, or too many digits for Python.
        return str(value) if isinstance(value, float) else ""


def _clean(text: str) -> str:
    """Return text without control characters, line breaks, and parts that leave its directory."""
    words = "".join(one if one.isprintable() else " " for one in text).split()
    parts = (part.strip() for part in " ".join(words).split("/"))
    return "/".join(part for part in parts if part not in ("", ".", ".."))


def name_roots(given: Mapping[str, str]) -> dict[str, str]:
    """Return names of roots by URI: the given ones, and for empty ones the shortest distinct ones.

    `/a/runs` and `s3://bucket/runs` become `a/runs` and `bucket/runs`; a single one `runs`.
    """
    endings = {uri: _endings(uri) for uri in given}
    names = dict(given)
    for uri in (uri for uri, name in given.items() if not name):
        others = {name for one, held in endings.items() if one != uri for name in held}
        others.update(filter(None, given.values()))
        names[uri] = next((name for name in endings[uri] if name not in others), uri)
    return names


def _endings(uri: str) -> list[str]:
    parts = [part for part in uri.partition("://")[2 if "://" in uri else 0].split("/") if part]
    return ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)]


# Groups of runs on a board.

COUNT_PREFIX = "members/"  # of the tag that counts the members at each step
_GROUP_FIELDS = {"name": "run"} | {  # by their names in the query language
    name: name
    for name in ("run", "experiment", "state", "host", "user", "job", "workspace", "created")
}


class Band(StrEnum):
    """What is drawn around the middle of a group."""

    STD = "std"
    SEM = "sem"
    MINMAX = "minmax"
    QUARTILES = "quartiles"


class Show(StrEnum):
    """What a board with groups shows."""

    GROUPS = "groups"
    RUNS = "runs"
    BOTH = "both"


class Line(StrEnum):
    """A curve of a group."""

    MIDDLE = "middle"
    UPPER = "upper"
    LOWER = "lower"
    COUNT = "count"


LINES: dict[Band, dict[Line, str]] = {
    Band.STD: {Line.MIDDLE: "mean", Line.UPPER: "+std", Line.LOWER: "-std"},
    Band.SEM: {Line.MIDDLE: "mean", Line.UPPER: "+sem", Line.LOWER: "-sem"},
    Band.MINMAX: {Line.MIDDLE: "mean", Line.UPPER: "max", Line.LOWER: "min"},
    Band.QUARTILES: {Line.MIDDLE: "median", Line.UPPER: "q3", Line.LOWER: "q1"},
}
"""The suffixes of the name of a group."""


class Grouping(NamedTuple):
    """How a board groups its runs; `template` makes the name of a group from one of its runs."""

    template: Template
    band: Band = Band.STD
    show: Show = Show.GROUPS

    @classmethod
    def parse(
        cls, fields: Sequence[str], band: str = Band.STD, show: str = Show.GROUPS
    ) -> Grouping | None:
        """Parse the fields that runs are grouped by; None if there are none.

        Raises:
            BadQuestion: a field does not exist, or cannot be grouped by.
        """
        if not fields:
            return None
        # Most importers of this module do not need the query language.
        from aboard.runs.question import parse_field

        parts: list[str | Field] = []
        for text in fields:
            one = parse_field(text)
            parts += [", "] if parts else []
            parts += [f"{one.name}=", Field(_template_field(one))]
        return cls(Template(", ".join(fields), tuple(parts)), Band(band), Show(show))


def _template_field(field: question.Field) -> str:
    if field.group in ("hparams", "tags"):
        return f"{field.group}.{field.name}"
    if field.group or field.name not in _GROUP_FIELDS:
        from aboard.runs.question import BadQuestion

        raise BadQuestion(
            f"runs on a board cannot be grouped by {str(field)!r}.",
            f"Use hparams.NAME, tags.NAME, {', '.join(_GROUP_FIELDS)}.",
            text=str(field),
        )
    return _GROUP_FIELDS[field.name]
