"""What the first line of a command's help says of its arguments."""

from collections.abc import Iterator

import typer
from typer.main import get_command

from aboard.cli.app import add_commands


def arguments(command, context) -> Iterator[tuple[str, str, bool]]:
    for child in getattr(command, "commands", {}).values():
        yield from arguments(child, context)
    for one in command.params:
        if one.param_type_name == "argument":
            yield command.name, one.make_metavar(context, usage=True), one.nargs == -1


def test_an_argument_that_may_be_repeated_says_so():
    command = get_command(add_commands())
    found = list(arguments(command, typer.Context(command)))
    assert ("view", "{SOURCE...}", True) in found
    assert [one for one in found if ("..." in one[1]) is not one[2]] == []
