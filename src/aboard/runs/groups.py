"""Groups of runs on a board: the fields to group by, and the curves drawn for each group.

A group is named after the values that its runs share, such as `lr=0.1`. Its curves appear as runs
of the board, with a suffix: `lr=0.1 mean`, `lr=0.1 +std`, `lr=0.1 -std`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aboard.runs import naming
    from aboard.runs.naming import Template
    from aboard.runs.question import Field

COUNT_PREFIX = "members/"  # of the tag that counts the members at each step
_SAME = ("experiment", "state", "host", "user", "job", "workspace", "created")
_FIELDS = {"name": "run", "run": "run", **{name: name for name in _SAME}}


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


@dataclass(frozen=True, slots=True)
class Grouping:
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
        # The lists of tags need the names above, not the language.
        from aboard.runs import naming
        from aboard.runs.naming import Template
        from aboard.runs.question import parse_field

        parts: list[str | naming.Field] = []
        for text in fields:
            one = parse_field(text)
            parts += [", "] if parts else []
            parts += [f"{one.name}=", naming.Field(_template_field(one))]
        return cls(Template(", ".join(fields), tuple(parts)), Band(band), Show(show))


def _template_field(field: Field) -> str:
    if field.group in ("hparams", "tags"):
        return f"{field.group}.{field.name}"
    if field.group or field.name not in _FIELDS:
        from aboard.runs.question import BadQuestion

        raise BadQuestion(
            f"runs on a board cannot be grouped by {str(field)!r}.",
            f"Use hparams.NAME, tags.NAME, {', '.join(_FIELDS)}.",
            text=str(field),
        )
    return _FIELDS[field.name]
