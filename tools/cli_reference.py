"""Generate docs/reference/cli.md from the command line; `make docs` runs this.

A test fails if the page is out of date.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from aboard.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
_INTRODUCTION = """\
<!-- Written by tools/cli_reference.py; run `make docs` to generate it again. -->
# The command line

`python -m aboard` is the same as `aboard`. Options of `aboard` itself come before the command.

Results go to standard output; errors, notices and the progress bar go to standard error. The exit
code is 0 on success, 1 if something could not be done (the rest was still done), 2 for wrong usage,
and 130 after Ctrl-C. The fields of `--json` are described in [JSON output](json.md),
environment variables in [Settings](settings.md).
"""


def reference() -> str:
    """Return the page as Markdown."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="aboard", **group.context_settings)
    parts = [_INTRODUCTION, _section("aboard", group, context)]
    parts += _sections_below("aboard", group, context)
    return "\n".join(parts)


def _sections_below(title: str, group: Any, context: Any) -> Iterator[str]:
    """Yield the sections of a group's commands by name, each followed by its subcommands."""
    for name, command in sorted(group.commands.items()):
        below = typer.Context(command, info_name=name, parent=context)
        yield _section(f"{title} {name}", command, below)
        if hasattr(command, "commands"):
            yield from _sections_below(f"{title} {name}", command, below)


def _section(title: str, command: Any, context: Any) -> str:
    usage = " ".join([title, *command.collect_usage_pieces(context)])
    usage = re.sub(r"\{([A-Z]+(?:\.\.\.)?)\}", r"\1", usage)
    lines = [f"## {title}", "", inspect.cleandoc(command.help or ""), "", f"    {usage}", ""]
    lines += ["| option | default | meaning |", "| --- | --- | --- |"]
    lines += [_row(parameter) for parameter in command.get_params(context)]
    if command.epilog:
        lines += ["", inspect.cleandoc(command.epilog)]
    return "\n".join(lines) + "\n"


def _row(parameter: Any) -> str:
    meaning = re.sub(r"\s+", " ", parameter.help or "")
    default = _default(parameter)
    # The help text names a default that is computed at run time.
    if computed := re.search(r" ?\[default: (.+)\]$", meaning):
        meaning, default = meaning[: computed.start()], f"`{computed[1]}`"
    if parameter.envvar:
        value = "=1" if parameter.is_flag else ""
        meaning += f" Also set by `{parameter.envvar}{value}`."
    cells = [_names(parameter), default, meaning]
    row = " | ".join(cell.replace("|", r"\|") for cell in cells)
    return f"| {row} |".replace("  ", " ")


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar}`"
    value = "" if parameter.is_flag else f" {_value(parameter)}"
    options = [*sorted(parameter.opts, key=len), *parameter.secondary_opts]
    return ", ".join(f"`{option}{value}`" for option in options)


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required or default is None or default is False:
        return ""
    return f"`{parameter.opts[0] if default is True else default}`"


def _value(parameter: Any) -> str:
    choices = getattr(parameter.type, "choices", None)
    return parameter.metavar or (" or ".join(choices) if choices else "VALUE")


if __name__ == "__main__":
    PAGE.write_text(reference())
