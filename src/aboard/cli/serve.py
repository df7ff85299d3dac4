"""`aboard serve`: a hub in the foreground, for a team or for oneself."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aboard.cli.errors import Failure, WrongUsage, say

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from aboard.hub.config import Config
    from aboard.hub.service import Hub

EPILOG = """
Examples:

- `aboard serve --config aboard.toml` - a hub for a team, as the file says
- `aboard serve --root /data/runs --root s3://bucket/runs --host 0.0.0.0 --port 8080`
- `aboard serve --personal` - your own hub, on this machine only

The first administrator of a new team hub is made with `--admin NAME`, which asks for a password.
"""


def serve(
    config: Annotated[
        Path | None,
        typer.Option(help="The settings of the hub, in TOML.", dir_okay=False),
    ] = None,
    personal: Annotated[
        bool,
        typer.Option("--personal", help="Your own hub: loopback only, one user, no passwords."),
    ] = False,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on. [default: localhost]")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="The port; by default 6006, or the next that is free.", min=0, max=65535),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help="A path, or postgresql://user:password@host/name."),
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
            help="Make this user an administrator if there is no user yet; the password is asked"
            " for, or read from a pipe.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the address as one JSON document.")
    ] = False,
) -> None:
    """Serve boards of a selection of runs, behind one authenticated address."""
    if personal and admin:
        raise WrongUsage("a personal hub has one user. Leave --admin out.")
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
    """Put together what the file and the options say; options come first."""
    from aboard.hub.config import Config, ConfigError, make_config, read_config
    from aboard.runs.catalog import find_roots
    from aboard.storage import is_remote

    try:
        settings = read_config(path) if path is not None else Config()
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
    except ConfigError as error:
        raise WrongUsage(str(error)) from error
    settings = replace(settings, **{name: getattr(options, name) for name in known})
    if personal and settings.host not in {"localhost", "127.0.0.1", "::1"}:
        raise WrongUsage("a personal hub listens on this machine only. Leave --host out.")
    for one in settings.roots:
        if not is_remote(one.uri) and not Path(one.uri).is_dir():
            say(f"{one.uri}: there is no such directory yet. Its runs show as soon as it is there.")
    return settings


def _serve(settings: Config, *, personal: bool, admin: str | None, json: bool) -> None:
    from aboard.boards.errors import BoardsError
    from aboard.hub.app import make_app
    from aboard.hub.journal import keep_journal
    from aboard.hub.personal import AlreadyRunning, only_one
    from aboard.hub.service import Hub
    from aboard.storage.place import make_private
    from aboard.web import listen
    from aboard.web import serve as run

    keep_journal()
    with ExitStack() as closing:
        try:
            if personal:
                closing.enter_context(only_one(settings.directory))
            else:
                make_private(settings.directory)
            hub = Hub(settings, personal=personal)
        except AlreadyRunning as error:
            raise Failure(str(error)) from None
        except BoardsError as error:
            raise Failure(str(error)) from error
        prepared = closing.enter_context(ExitStack())
        prepared.callback(hub.close)
        _prepare_users(hub, personal, admin)
        sockets = listen(settings.host, settings.port)
        certificate = None
        if settings.certificate is not None and settings.certificate_key is not None:
            certificate = (settings.certificate, settings.certificate_key)
        app = make_app(hub)
        prepared.pop_all()  # the application closes the hub when it ends
        ended_by = run(
            app,
            sockets,
            on_ready=lambda: _announce(hub, sockets, json=json),
            grace=max(int(settings.grace), 1),
            certificate=certificate,
        )
    if ended_by is signal.SIGINT:
        raise typer.Exit(130)


def _prepare_users(hub: Hub, personal: bool, admin: str | None) -> None:
    from aboard.boards.accounts import Role
    from aboard.boards.errors import BoardsError, NameTaken
    from aboard.hub.personal import token_of

    if personal:
        token_of(hub.auth, hub.config.directory)
        return
    if hub.auth.users():
        return
    if admin is None:
        raise Failure(
            "this hub has no user yet. Make the first one an administrator: aboard serve --admin"
            " NAME"
        )
    if sys.stdin is not None and sys.stdin.isatty():
        password = typer.prompt(f"A password for {admin}", hide_input=True, err=True)
    else:
        password = (sys.stdin.readline() if sys.stdin is not None else "").rstrip("\n")
    try:
        with suppress(NameTaken):  # by another hub that starts at the same time
            hub.auth.add_user(admin, Role.ADMIN, password)
    except BoardsError as error:
        raise WrongUsage(str(error)) from error


def _announce(hub: Hub, sockets: Sequence[socket.socket], *, json: bool) -> None:
    from aboard.hub.personal import TOKEN_FILE, HubFile, the_user, write_hub_file
    from aboard.web import exposure, forwarding_hint, urls

    settings = hub.config
    scheme = "https" if settings.certificate else "http"
    address = urls(sockets, settings.host, scheme)[0]
    url = settings.url or address
    if hub.personal:
        token_file = str(settings.directory / TOKEN_FILE)
        write_hub_file(settings.directory, HubFile(address, os.getpid(), time.time(), token_file))
        url = f"{address}/?key={hub.keys.mint(the_user(hub.auth))[0]}"
    if json:
        import orjson

        typer.echo(orjson.dumps({"url": url, "address": address, "pid": os.getpid()}))
        return
    typer.echo(f"{'Your hub' if hub.personal else 'The hub'}: {url}")
    if not settings.certificate and (warning := exposure(settings.host)) is not None:
        say(warning)
    if (command := forwarding_hint(os.environ, sockets[0].getsockname()[1])) is not None:
        typer.echo(f"From your own machine, first: {command}")
