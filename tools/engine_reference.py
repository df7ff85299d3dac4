"""Generate docs/reference/engines.md from the settings of the engines; `make docs` runs this.

A test fails if the page is out of date.
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_type_hints

from pydantic.fields import FieldInfo

from aboard.executors import EXECUTORS, executor_class

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "engines.md"
_INTRODUCTION = """\
<!-- Written by tools/engine_reference.py; run `make docs` to generate it again. -->
# Engines

An engine runs isolated boards: `aboard start … --on ENGINE`, or `--on ENGINE:PROFILE` with a
[profile](config.md#executorsname) of its settings. Each runs the same `aboard view`, and the hub
proxies it; on Vertex it leads to the managed TensorBoard.

| engine | what it does |
| --- | --- |
"""
_COMMANDS = """
`aboard engines` lists what the hub offers: whether each engine answers, its version, what is free
where the engine says so, and what is wrong with what to do.

`aboard doctor --engine NAME` starts a small board on an engine, which writes a few points of its
own and shows them, and reports each stage:

| stage | what it checks |
| --- | --- |
| `answers` | the engine answers the hub |
| `start` | it accepts a board |
| `wait` | the board runs; if it has to wait, for what |
| `address` | the hub reaches the board |
| `encrypted` | the traffic is encrypted, with the certificate that was made for this start |
| `refuses` | a request without the board's token gets 401 |
| `curve` | the points of the board arrive through the hub |
| `log` | the log of the board can be read |
| `roots` | the hub's local roots can be read where the board runs, one line for each |
| `stop` | the board ends |
| `cleanup` | nothing is left on the engine or in the hub's directory |

The exit code is 1 if a stage failed.
"""


def reference() -> str:
    """Return the page as Markdown."""
    kinds = "\n".join(f"| `{name}` | {_purpose(name)} |" for name in EXECUTORS)
    sections = [f"\n{_section(name)}" for name in EXECUTORS]
    return "".join([_INTRODUCTION, kinds, "\n", _COMMANDS, *sections])


def _purpose(name: str) -> str:
    return (executor_class(name).__doc__ or "").splitlines()[0]


def _section(name: str) -> str:
    rows = list(_rows(executor_class(name).Settings))
    lines = [f"## `[executors.{name}]`", ""]
    if not rows:
        return "\n".join([*lines, "It has no settings.", ""])
    return "\n".join([*lines, "| setting | meaning | default |", "| --- | --- | --- |", *rows, ""])


def _rows(kind: type) -> Iterator[str]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        cells = [f"`{field.name}`", _meaning(field, hints[field.name]), _default(field)]
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _meaning(field: "Field[Any]", hint: Any) -> str:
    notes = [*getattr(hint, "__metadata__", ()), field.default]
    texts = [one.description for one in notes if isinstance(one, FieldInfo) and one.description]
    if not texts:
        raise ValueError(f"{field.name} has no description: Annotated[..., Field(description=...)]")
    text = " ".join(texts[0].split()).rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2] == " " or text[1:2].islower() else text


def _default(field: "Field[Any]") -> str:
    default = field.default
    if isinstance(default, FieldInfo):
        default = default.get_default(call_default_factory=True)
    elif default is MISSING and field.default_factory is not MISSING:
        default = field.default_factory()
    if default in (None, "", (), {}, []):
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f'`"{default}"`' if isinstance(default, str) else f"`{default}`"


if __name__ == "__main__":
    PAGE.write_text(reference())
