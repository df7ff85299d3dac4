"""`aboard user`: let people into a team's hub, list and change them, shut them out."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from aboard.cli.asking import (
    JsonOption,
    ask_secret,
    is_at_terminal,
    print_json,
    seconds_of,
    the_hub,
)
from aboard.cli.errors import WrongUsage
from aboard.cli.wording import moment, table

EPILOG = """
Examples:

- `aboard user add grace --role viewer` - asks for a password that nobody sees
- `aboard user list` - who may come in, and as what
- `aboard user role grace member` - what she may do from now on
- `aboard user password grace` - another password, which ends her sessions
- `aboard user remove grace` - with her tokens, sessions and links; her boards stay

Only an administrator of the hub may do this; everybody may change the password that is his own.
"""
Role = Literal["viewer", "member", "admin"]
GROUP = typer.Typer(help="Manage who may use a team's hub.", rich_markup_mode="markdown")
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The user's name.", show_default=False)
]
PasswordOption = Annotated[
    bool,
    typer.Option(
        "--password-stdin", help="Read the password from the first line of standard input."
    ),
]


@GROUP.command(
    "add",
    epilog="""
Examples:

- `aboard user add grace` - a member, who starts boards; asks for the password twice
- `aboard user add grace --role viewer` - one who sees what is shared with the team
- `aboard user add grace --password-stdin < password-file` - for scripts
""",
)
def add_user(
    name: NameArgument,
    role: Annotated[Role, typer.Option(help="What the user may do.")] = "member",
    password_stdin: PasswordOption = False,
    json: JsonOption = False,
) -> None:
    """Let somebody in; the password is asked for, and never part of the command."""
    client = the_hub()
    password = _ask_password(f"A password for {name}", from_pipe=password_stdin)
    added = client.add_user(name, role=role, password=password)
    if json:
        print_json(added)
    else:
        typer.echo(f"added {added['name']}, {added['role']}")


@GROUP.command(
    "role",
    epilog="""
Examples:

- `aboard user role grace viewer` - she sees what is shared with the team, and starts nothing
- `aboard user role grace admin` - she manages users, and every board

The last administrator stays one.
""",
)
def set_role(
    name: NameArgument,
    role: Annotated[
        Role, typer.Argument(metavar="ROLE", help="viewer, member or admin.", show_default=False)
    ],
    json: JsonOption = False,
) -> None:
    """Change what somebody may do, from the next request on."""
    changed = the_hub().set_role(name, role)
    if json:
        print_json(changed)
    else:
        typer.echo(f"{changed['name']} is {changed['role']} now")


@GROUP.command(
    "password",
    epilog="""
Examples:

- `aboard user password grace` - asks for the new password twice
- `aboard user password grace --password-stdin < password-file` - for scripts

Whoever is logged in with the old one in a browser has to log in again; tokens stay good.
""",
)
def set_password(
    name: NameArgument, password_stdin: PasswordOption = False, json: JsonOption = False
) -> None:
    """Change a password, your own or as an administrator; it ends all sessions of its user."""
    client = the_hub()
    password = _ask_password(f"A new password for {name}", from_pipe=password_stdin)
    client.set_password(name, password)
    if json:
        print_json({"changed": name})
    else:
        typer.echo(f"changed the password of {name}")


@GROUP.command(
    "list",
    epilog="""
Examples:

- `aboard user list` - by name
- `aboard user list --json | jq -r '.users[] | select(.role == "admin").name'` - administrators
""",
)
def list_users(json: JsonOption = False) -> None:
    """List who may come in, and as what."""
    users = the_hub().users()
    if json:
        print_json({"users": users})
        return
    rows = [[one["name"], one["role"], moment(seconds_of(one["created"]))] for one in users]
    typer.echo(table(("NAME", "ROLE", "SINCE"), rows, left=3))


@GROUP.command(
    "remove",
    epilog="""
Examples:

- `aboard user remove grace` - from now on nothing opens for her
""",
)
def remove_user(name: NameArgument, json: JsonOption = False) -> None:
    """Shut somebody out, with tokens, sessions and links; the boards stay."""
    the_hub().remove_user(name)
    if json:
        print_json({"removed": name})
    else:
        typer.echo(f"removed {name}")


def _ask_password(question: str, *, from_pipe: bool) -> str:
    if not from_pipe and not is_at_terminal():
        raise WrongUsage(
            "there is no terminal to ask for a password. Pipe it in, and add --password-stdin."
        )
    return ask_secret(question, twice=True)
