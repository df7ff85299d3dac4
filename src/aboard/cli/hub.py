"""Hubs: `aboard serve` runs one in the foreground, `aboard hub` shows or stops the one in use.

`aboard login`, `aboard user` and `aboard token` are for accounts on a team's hub.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from aboard.boards.model import INSTANT
from aboard.cli.app import ListByDefault, StatusByDefault
from aboard.cli.console import (
    FAILURE,
    AddressOption,
    Failure,
    JsonOption,
    PortOption,
    WrongUsage,
    age,
    ask_secret,
    examples,
    is_at_terminal,
    line_for,
    moment,
    notify,
    print_json,
    seconds_of,
    table,
)
from aboard.runs.units import counted

if TYPE_CHECKING:
    from aboard.boards.accounts import User
    from aboard.hub.config import Addresses, Config
    from aboard.hub.service import Hub
    from aboard.sdk.client import Client
    from aboard.sdk.personal import KnownHub

_SERVE_EPILOG = examples(
    "`aboard serve --config aboard.toml` - a hub for a team, with settings from a file",
    "`aboard serve --root /data/runs --root s3://bucket/runs --host 0.0.0.0 --port 8080`",
    "`aboard serve --personal` - your own hub, on this machine only",
    note="`--admin NAME` creates the first administrator of a new team hub, and prompts for a"
    " password.",
)
_HUB_EPILOG = examples(
    "`aboard hub` - which hub `aboard start` uses, and whether it answers",
    "`aboard hub stop` - stop your own; its boards come back when it is started again",
)
_HOW = {"environment": "named by ABOARD_HUB", "login": "logged in to", "personal": "your own"}
_HUB_GROUP = typer.Typer(
    cls=StatusByDefault,
    help="Show the hub in use, or stop your own.",
    rich_markup_mode="markdown",
)


def open_hub(*, revive: bool = False, seconds: float = 120.0) -> Client:
    """Return the hub in use; `revive` restarts the user's own, but never starts the first.

    `seconds` is the timeout of its requests.
    """
    from aboard.sdk.client import Client
    from aboard.sdk.personal import require_hub

    require_hub(start=revive, first=False, roots=(), notify=notify)
    return Client(start=False, seconds=seconds)


def serve(
    config: Annotated[
        Path | None, typer.Option(help="The settings of the hub, in TOML.", dir_okay=False)
    ] = None,
    personal: Annotated[
        bool,
        typer.Option("--personal", help="Your own hub: loopback only, one user, no passwords."),
    ] = False,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on. [default: localhost]")
    ] = None,
    port: PortOption = None,
    database: Annotated[
        str | None, typer.Option(help="A path, or postgresql://user@host/name.")
    ] = None,
    root: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROOT", help="Where runs are: a directory or bucket URI, may be repeated."
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(help="Where the hub keeps its database and logs of boards.", file_okay=False),
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Create this administrator if the hub has no users. Prompts for the password, or"
            " reads it from a pipe.",
        ),
    ] = None,
    json: AddressOption = False,
) -> None:
    """Serve boards of a selection of runs, behind one authenticated address."""
    if personal and admin:
        raise WrongUsage("a personal hub has one user. Remove --admin.")
    settings = _settings(config, personal, host, port, database, root, directory)
    _serve(settings, personal=personal, admin=admin, json=json)


def _settings(
    path: Path | None,
    personal: bool,
    host: str | None,
    port: int | None,
    database: str | None,
    roots: list[str] | None,
    directory: Path | None,
) -> Config:
    """Combine the settings of the file and the options; options take precedence."""
    from aboard.executors import ConfigError
    from aboard.hub.config import Config, make_config, read_config, read_personal_config
    from aboard.runs.catalog import find_roots
    from aboard.storage import is_remote

    try:
        if path is not None:
            settings = read_config(path)
        else:
            settings = read_personal_config() if personal else Config()
        texts = roots or []
        if not texts and path is None:
            texts = find_roots(())
        given = {
            "host": host,
            "port": port,
            "database": database,
            "roots": texts or None,
            "directory": None if directory is None else str(directory),
        }
        known = {name: value for name, value in given.items() if value is not None}
        options = make_config(known, Path.cwd(), "options")
        settings.engines(personal=personal)  # check before anything is started
    except ConfigError as error:
        raise WrongUsage(str(error)) from error
    settings = replace(settings, **{name: getattr(options, name) for name in known})
    if personal and settings.host not in {"localhost", "127.0.0.1", "::1"}:
        raise WrongUsage("a personal hub listens on this machine only. Remove --host.")
    for one in settings.roots:
        if not is_remote(one.uri) and not Path(one.uri).is_dir():
            notify(f"{one.uri}: directory not found. Its runs appear once it exists.")
    return settings


def _serve(settings: Config, *, personal: bool, admin: str | None, json: bool) -> None:
    from aboard.boards.model import BoardsError
    from aboard.hub.access import configure_log
    from aboard.hub.app import make_app
    from aboard.hub.service import Hub
    from aboard.sdk.personal import personal_lock
    from aboard.system import make_private
    from aboard.web import listen
    from aboard.web import serve as run

    configure_log()
    with ExitStack() as closing:
        try:
            if personal:
                closing.enter_context(personal_lock(settings.directory))
            else:
                make_private(settings.directory)
            hub = Hub(settings, personal=personal)
        except BoardsError as error:
            raise Failure(str(error)) from error
        prepared = closing.enter_context(ExitStack())
        prepared.callback(hub.close)
        _prepare_users(hub, personal, admin)
        sockets = listen(settings.host, settings.port)
        boards = open_boards_port(settings, sockets) if personal else []
        certificate = None
        if settings.certificate is not None and settings.certificate_key is not None:
            certificate = (settings.certificate, settings.certificate_key)
        app = make_app(hub, addresses_of(settings, sockets, boards))
        prepared.pop_all()  # the application closes the hub
        ended_by = run(
            app,
            [*sockets, *boards],
            on_ready=lambda: _announce(hub, sockets, boards, json=json),
            grace=max(int(settings.grace), 1),
            certificate=certificate,
        )
    if ended_by is signal.SIGINT:
        raise typer.Exit(130)


def open_boards_port(settings: Config, sockets: Sequence[socket.socket]) -> list[socket.socket]:
    """Open the second port of a personal hub: the same as before, or the next free one.

    A hub with an address in its settings is behind a proxy, which knows only one port.
    """
    from aboard.sdk.personal import last_hub
    from aboard.web import listen_beside

    if settings.url:
        return []
    last = last_hub(settings.directory)
    return listen_beside(sockets, settings.host, last.boards_port if last else None)


def addresses_of(
    settings: Config, sockets: Sequence[socket.socket], boards: Sequence[socket.socket]
) -> Addresses | None:
    """Return the addresses of a hub and its boards; None if it has one port."""
    from aboard.hub.config import Addresses
    from aboard.web import urls

    scheme = "https" if settings.certificate else "http"
    if not boards:
        return None
    return Addresses(*(urls(one, settings.host, scheme)[0] for one in (sockets, boards)))


def _prepare_users(hub: Hub, personal: bool, admin: str | None) -> None:
    from aboard.boards.accounts import Role
    from aboard.boards.model import BoardsError, NameTaken

    if personal:
        _prepare_token(hub)
        return
    if hub.auth.users():
        return
    if admin is None:
        raise Failure(
            "this hub has no users. Create the first administrator: aboard serve --admin NAME"
        )
    password = ask_secret(f"A password for {admin}")
    try:
        with suppress(NameTaken):  # by another hub that starts at the same time
            hub.auth.add_user(admin, Role.ADMIN, password)
    except BoardsError as error:
        raise WrongUsage(str(error)) from error


def owner_of(hub: Hub) -> User:
    import getpass

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        name = "me"
    return hub.auth.personal(name)


def _prepare_token(hub: Hub) -> None:
    """Check the token in the file of a personal hub; replace it if it is not valid."""
    from aboard.sdk.personal import TOKEN_FILE
    from aboard.web.tokens import TokenError, read_token_file, write_token_file

    path = hub.config.directory / TOKEN_FILE
    with suppress(TokenError):
        if hub.auth.token(read_token_file(path)) is not None:
            return
    write_token_file(path, hub.auth.create_token(owner_of(hub), "personal hub").secret)


def _announce(
    hub: Hub, sockets: Sequence[socket.socket], boards: Sequence[socket.socket], *, json: bool
) -> None:
    from aboard.sdk.personal import announce_personal, remember_personal
    from aboard.web import exposure, urls

    settings = hub.config
    scheme = "https" if settings.certificate else "http"
    address = urls(sockets, settings.host, scheme)[0]
    url = settings.url or address
    if hub.personal:
        roots = [root.uri for root in settings.roots]
        port, *others = [one[0].getsockname()[1] for one in (sockets, boards) if one]
        remember_personal(settings.directory, roots, port, *others)
        announce_personal(settings.directory, address, *others)
        if json or sys.stdout.isatty():  # a log would keep the key
            url = f"{address}/?key={hub.auth.mint_key(owner_of(hub))[0]}"
    if json:
        import orjson

        typer.echo(orjson.dumps({"url": url, "address": address, "pid": os.getpid()}))
        return
    typer.echo(f"{'Your hub' if hub.personal else 'The hub'}: {url}")
    if not settings.certificate and (warning := exposure(settings.host)) is not None:
        notify(warning)
    print_forwarding(*(one[0].getsockname()[1] for one in (sockets, boards) if one))


def print_forwarding_to(hub: KnownHub) -> None:
    """Print how to reach a hub on this machine from the other end of an SSH session."""
    from urllib.parse import urlsplit

    parts = urlsplit(hub.url)
    if parts.hostname == "localhost" and parts.port:
        print_forwarding(parts.port, *([hub.boards_port] if hub.boards_port else []))


def print_forwarding(*ports: int) -> None:
    """Print how to reach ports of this machine from the other end of an SSH session."""
    if not os.environ.keys() & {"SSH_CONNECTION", "SLURM_SUBMIT_HOST"}:
        return  # before the slow import
    from aboard.web import forwarding_hint

    if (command := forwarding_hint(os.environ, *ports)) is not None:
        typer.echo(f"From your own machine, first: {command}")


@_HUB_GROUP.command(
    "status",
    epilog=examples(
        "`aboard hub status --json` - for scripts; the exit code is 1 if no hub answers"
    ),
)
def show_status(json: JsonOption = False) -> None:
    """Show which hub is used, and whether it answers."""
    from aboard.sdk import HubError
    from aboard.sdk.client import Client
    from aboard.sdk.personal import find_hub

    known = find_hub()
    if known is None:
        text = "no hub is running or configured. Start your own: aboard start."
        if json:
            print_json({"running": False, "errors": [{"code": "no_hub", "message": text}]})
        notify(text)
        raise typer.Exit(FAILURE)
    document = {"running": True, "url": known.url, "known_by": known.how, "pid": known.pid}
    try:
        client = Client()
        document |= client.me() | {"boards": len(client.list())}
    except HubError as error:
        if not json:
            raise
        errors = [{"code": error.code, "message": str(error)}]
        print_json(document | {"running": False, "errors": errors})
        notify(line_for(error))
        raise typer.Exit(FAILURE) from None
    if json:
        print_json(document)
        return
    process = f", process {known.pid}" if known.pid else ""
    typer.echo(f"{known.url} ({_HOW[known.how]}{process})")
    typer.echo(f"you are {document['user']}, {document['role']}; boards: {document['boards']}")


@_HUB_GROUP.command(
    "stop",
    epilog=examples(
        "`aboard hub stop` - boards with their own process keep running, the others come back"
        " with the hub",
        "`aboard hub stop --boards` - stop those too, even if the hub is already stopped",
    ),
)
def stop_hub(
    boards: Annotated[
        bool, typer.Option("--boards", help="Also stop boards that run outside the hub.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Stop your own hub."""
    from aboard.sdk.personal import find_personal, last_hub, start_personal, stop_personal

    known = find_personal()
    if known is None and boards and last_hub() is not None:
        known = start_personal()  # the next hub knows boards that run without one
    if known is None:
        raise Failure("your hub is not running.")
    ended, going_on = _isolated(known, end=boards)
    stop_personal()
    if json:
        document = {"url": known.url, "pid": known.pid}
        print_json(document | {"stopped": ended, "going_on": going_on})
        return
    for name in ended:
        typer.echo(f"stopped {name}")
    typer.echo(f"stopped your hub at {known.url}")
    if going_on:
        notify(_keep_running(going_on))


def _isolated(hub: KnownHub, *, end: bool) -> tuple[list[str], list[str]]:
    """Return the names of boards with their own process: those stopped, and the others."""
    from aboard.sdk import HubError
    from aboard.sdk.client import Client

    client = Client(hub.url, hub.token)
    ended: list[str] = []
    going_on: list[str] = []
    try:
        isolated = [board for board in client.list() if board.on != INSTANT]
    except HubError as error:  # a hub that does not answer is stopped anyway
        notify(line_for(error))
        return ended, going_on
    for board in isolated:
        try:
            if end:
                client.stop(board)
            (ended if end else going_on).append(board.name)
        except HubError as error:
            notify(line_for(error))
            going_on.append(board.name)
    return ended, going_on


def _keep_running(names: Sequence[str]) -> str:
    one = len(names) == 1
    them = "it" if one else "them"
    return (
        f"{counted(len(names), 'board')} with {'its' if one else 'their'} own process"
        f" {'keeps' if one else 'keep'} running: {', '.join(names)}. 'aboard hub stop --boards'"
        f" stops {them} too; the next hub manages {them} again."
    )


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
    from aboard.sdk.client import Client
    from aboard.sdk.personal import forget_login, log_in, write_login

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

_USER_GROUP = typer.Typer(
    cls=ListByDefault,
    help="List and manage the users of a team's hub.",
    rich_markup_mode="markdown",
)
_USER_EPILOG = examples(
    "`aboard user add grace --role viewer` - asks for a password without showing it",
    "`aboard user` - users and their roles",
    "`aboard user role grace member` - change a role",
    "`aboard user password grace` - set a new password, which ends the user's sessions",
    "`aboard user remove grace` - with all tokens, sessions and links; the boards stay",
    note="Only administrators manage users. Every user may change their own password.",
)
Role = Literal["viewer", "member", "admin"]
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The user's name.", show_default=False)
]


@_USER_GROUP.command(
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


@_USER_GROUP.command(
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


@_USER_GROUP.command(
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


@_USER_GROUP.command(
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


@_USER_GROUP.command("remove", epilog=examples("`aboard user remove grace` - effective at once"))
def remove_user(name: NameArgument, json: JsonOption = False) -> None:
    """Remove a user with all tokens, sessions and links. The boards stay."""
    open_hub().remove_user(name)
    _print({"removed": name}, f"removed {name}", json=json)


# Tokens.

_TOKEN_GROUP = typer.Typer(
    cls=ListByDefault,
    help="List and manage the tokens with which programs use a hub.",
    rich_markup_mode="markdown",
)
_TOKENS_HELP = examples(
    "`aboard token create nightly --for 30d` - prints a token, once",
    "`aboard token` - every token, and when it was last used",
    "`aboard token revoke ID` - effective at once",
)
_TOKEN_HEADS = ("ID", "USER", "NAME", "STATE", "AGE", "EXPIRES", "USED")


@_TOKEN_GROUP.command(
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
    """Create a token that acts for you. It is printed only once."""
    made = open_hub().create_token(name or "", lasts=lasts)
    if json:
        print_json(made)
        return
    typer.echo(made["token"])
    until = moment(seconds_of(made["expires"]))
    notify(
        "save it: it is not shown again."
        f" It is valid until {until}; 'aboard token revoke {made['id']}' revokes it."
    )


@_TOKEN_GROUP.command(
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


@_TOKEN_GROUP.command(
    "revoke",
    epilog=examples(
        "`aboard token revoke 3fk9xa7mnp2q` - by its id, as `aboard token list` shows it"
    ),
)
def revoke_token(
    token: Annotated[str, typer.Argument(metavar="ID", help="The token's id.", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Revoke a token, effective at once."""
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


def expiry_of(secret: dict[str, Any]) -> str:
    ends = secret["expires"]
    return f"in {age(ends)}" if ends and secret_state(secret) == "valid" else "-"


def _token_row(token: dict[str, Any]) -> list[str]:
    return [
        token["id"],
        token["user"],
        token["name"] or "-",
        secret_state(token),
        age(token["created"]),
        expiry_of(token),
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
    "serve": (serve, _SERVE_EPILOG),
    "hub": (_HUB_GROUP, _HUB_EPILOG),
    "login": (login, _LOGIN_EPILOG),
    "user": (_USER_GROUP, _USER_EPILOG),
    "token": (_TOKEN_GROUP, _TOKENS_HELP),
}
