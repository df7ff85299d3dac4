"""Accounts on a team's hub: `aboard login`, `aboard user` and `aboard token`."""

from __future__ import annotations

import socket
import time
from typing import Annotated, Any, Literal

import typer

from aboard.cli.console import (
    Failure,
    JsonOption,
    WrongUsage,
    age,
    ask_secret,
    examples,
    is_at_terminal,
    moment,
    notify,
    print_json,
    seconds_of,
    table,
)
from aboard.cli.hub import open_hub

PasswordOption = Annotated[
    bool,
    typer.Option(
        "--password-stdin", help="Read the password from the first line of standard input."
    ),
]

_LOGIN_EPILOG = examples(
    "`aboard login https://aboard.example.org --user ada` - asks for the password",
    "`aboard login https://aboard.example.org --user ada --password-stdin < secret-file` - for"
    " scripts",
    "`aboard login https://aboard.example.org < token-file` - with a token that you have",
    "`aboard login --forget` - use your own hub again",
    note="The password is not stored. The login stores a token in a file that only you can read.",
)


def login(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The address of the hub.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Your user name on the hub; prompts for the password.")
    ] = None,
    password_stdin: PasswordOption = False,
    forget: Annotated[bool, typer.Option("--forget", help="Forget the hub and its token.")] = False,
    json: JsonOption = False,
) -> None:
    """Use a team's hub from now on."""
    from aboard.sdk.client import Client, log_in
    from aboard.sdk.personal import forget_login, write_login

    if forget:
        if url is not None:
            raise WrongUsage("--forget takes no address.")
        if not forget_login():
            raise Failure("you are not logged in to a hub.")
        _print({"forgotten": True}, "forgotten", json=json)
        return
    if url is None:
        raise WrongUsage("name the hub: aboard login https://HOST.")
    if password_stdin and user is None:
        raise WrongUsage("--password-stdin needs --user NAME.")
    if user is not None:
        secret = _ask_password(f"The password of {user}", from_pipe=True)
        token = log_in(url, user, secret, name=f"aboard login on {socket.gethostname()}")
    else:
        token = ask_secret("A token (or give --user to log in with a password)")
    me = Client(url, token).me()
    write_login(url, token)
    document = {"url": url.rstrip("/"), "user": me["user"], "role": me["role"]}
    _print(document, f"logged in to {document['url']} as {me['user']}, {me['role']}", json=json)


# Users.

USER_GROUP = typer.Typer(help="Manage the users of a team's hub.", rich_markup_mode="markdown")
_USER_EPILOG = examples(
    "`aboard user add grace --role viewer` - asks for a password without showing it",
    "`aboard user list` - users and their roles",
    "`aboard user role grace member` - change a role",
    "`aboard user password grace` - set a new password, which ends the user's sessions",
    "`aboard user remove grace` - with all tokens, sessions and links; the boards stay",
    note="Only administrators manage users. Every user may change their own password.",
)
Role = Literal["viewer", "member", "admin"]
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The user's name.", show_default=False)
]


@USER_GROUP.command(
    "add",
    epilog=examples(
        "`aboard user add grace` - a member, who can start boards; asks for the password twice",
        "`aboard user add grace --role viewer` - a user who sees boards that are shared with"
        " the team",
        "`aboard user add grace --password-stdin < password-file` - for scripts",
    ),
)
def add_user(
    name: NameArgument,
    role: Annotated[Role, typer.Option(help="What the user may do.")] = "member",
    password_stdin: PasswordOption = False,
    json: JsonOption = False,
) -> None:
    """Add a user. The command prompts for the password."""
    client = open_hub()
    password = _ask_password(f"A password for {name}", from_pipe=password_stdin, twice=True)
    added = client.add_user(name, role=role, password=password)
    _print(added, f"added {added['name']}, {added['role']}", json=json)


@USER_GROUP.command(
    "role",
    epilog=examples(
        "`aboard user role grace viewer` - sees boards that are shared with the team, and"
        " starts none",
        "`aboard user role grace admin` - manages users, and every board",
        note="The role of the last administrator cannot be changed.",
    ),
)
def set_role(
    name: NameArgument,
    role: Annotated[
        Role, typer.Argument(metavar="ROLE", help="viewer, member or admin.", show_default=False)
    ],
    json: JsonOption = False,
) -> None:
    """Change the role of a user, from the next request on."""
    changed = open_hub().set_role(name, role)
    _print(changed, f"{changed['name']} is {changed['role']} now", json=json)


@USER_GROUP.command(
    "password",
    epilog=examples(
        "`aboard user password grace` - asks for the new password twice",
        "`aboard user password grace --password-stdin < password-file` - for scripts",
        note="Browsers that are logged in with the old password have to log in again; tokens"
        " stay valid.",
    ),
)
def set_password(
    name: NameArgument, password_stdin: PasswordOption = False, json: JsonOption = False
) -> None:
    """Change your own password or, as an administrator, any. It ends all sessions of the user."""
    client = open_hub()
    password = _ask_password(f"A new password for {name}", from_pipe=password_stdin, twice=True)
    client.set_password(name, password)
    _print({"changed": name}, f"changed the password of {name}", json=json)


@USER_GROUP.command(
    "list",
    epilog=examples(
        "`aboard user list` - by name",
        "`aboard user list --json | jq -r '.users[] | select(.role == \"admin\").name'` -"
        " administrators",
    ),
)
def list_users(json: JsonOption = False) -> None:
    """List users and their roles."""
    users = open_hub().users()
    rows = [[one["name"], one["role"], moment(seconds_of(one["created"]))] for one in users]
    _print({"users": users}, table(("NAME", "ROLE", "SINCE"), rows, left=3), json=json)


@USER_GROUP.command("remove", epilog=examples("`aboard user remove grace` - effective at once"))
def remove_user(name: NameArgument, json: JsonOption = False) -> None:
    """Remove a user with all tokens, sessions and links. The boards stay."""
    open_hub().remove_user(name)
    _print({"removed": name}, f"removed {name}", json=json)


# Tokens.

TOKEN_GROUP = typer.Typer(
    help="Manage the tokens with which programs use a hub.", rich_markup_mode="markdown"
)
_TOKENS_HELP = examples(
    "`aboard token create nightly --for 30d` - prints a token, once",
    "`aboard token list` - every token, and when it was last used",
    "`aboard token revoke ID` - make it invalid from now on",
)
_TOKEN_HEADS = ("ID", "USER", "NAME", "STATE", "AGE", "EXPIRES", "USED")


@TOKEN_GROUP.command(
    "create",
    epilog=examples(
        "`aboard token create nightly > token-file` - keep it where only you can read it",
        "`aboard token create ci --for 7d` - valid for a week",
        "`aboard login https://aboard.example.org < token-file` - use it on another machine",
    ),
)
def create_token(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="What it is for.")] = None,
    lasts: Annotated[
        str, typer.Option("--for", help="How long it is valid, such as 12h or 30d.")
    ] = "90d",
    json: JsonOption = False,
) -> None:
    """Create a token that acts for you. It is printed now, and never again."""
    made = open_hub().create_token(name or "", lasts=lasts)
    if json:
        print_json(made)
        return
    typer.echo(made["token"])
    until = moment(seconds_of(made["expires"]))
    notify(
        "keep it: it is not shown again."
        f" It is valid until {until}; 'aboard token revoke {made['id']}' revokes it."
    )


@TOKEN_GROUP.command(
    "list",
    epilog=examples(
        "`aboard token list` - your own; for an administrator those of all users",
        "`aboard token list --json | jq -r '.tokens[] | select(.last_used == null).id'` -"
        " never used",
    ),
)
def list_tokens(json: JsonOption = False) -> None:
    """List tokens, the oldest first, without their secrets."""
    tokens = open_hub().tokens()
    if json:
        print_json({"tokens": tokens})
    elif tokens:
        rows = [_token_row(one) for one in tokens]
        typer.echo(table(_TOKEN_HEADS, rows, left=len(_TOKEN_HEADS)))
    else:
        notify("no tokens found. Create one: aboard token create NAME")


@TOKEN_GROUP.command(
    "revoke",
    epilog=examples(
        "`aboard token revoke 3fk9xa7mnp2q` - by its id, as `aboard token list` shows it"
    ),
)
def revoke_token(
    token: Annotated[str, typer.Argument(metavar="ID", help="The token's id.", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Make a token invalid from now on."""
    client = open_hub()
    known = [one for one in client.tokens() if token in {one["id"], one["prefix"]}]
    client.revoke_token(token)
    was_revoked = bool(known and known[0]["revoked"])
    text = f"{token} was revoked already" if was_revoked else f"revoked {token}"
    _print({"revoked": token}, text, json=json)


def secret_state(secret: dict[str, Any]) -> str:
    if secret["revoked"]:
        return "revoked"
    ends = seconds_of(secret["expires"])
    return "expired" if ends is not None and ends <= time.time() else "valid"


def _token_row(token: dict[str, Any]) -> list[str]:
    state = secret_state(token)
    ends = token["expires"]
    return [
        token["id"],
        token["user"],
        token["name"] or "-",
        state,
        age(token["created"]),
        f"in {age(ends)}" if ends and state == "valid" else "-",
        f"{age(token['last_used'])} ago" if token["last_used"] else "never",
    ]


def _ask_password(question: str, *, from_pipe: bool, twice: bool = False) -> str:
    if not from_pipe and not is_at_terminal():
        raise WrongUsage(
            "cannot prompt for a password without a terminal. Pipe it in and add --password-stdin."
        )
    return ask_secret(question, twice=twice)


def _print(document: dict[str, Any], text: str, *, json: bool) -> None:
    if json:
        print_json(document)
    else:
        typer.echo(text)


COMMANDS = {
    "login": (login, _LOGIN_EPILOG),
    "user": (USER_GROUP, _USER_EPILOG),
    "token": (TOKEN_GROUP, _TOKENS_HELP),
}
