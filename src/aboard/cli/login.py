"""`aboard login`: use a team's hub from now on."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from aboard.cli.asking import JsonOption, ask_secret, print_json
from aboard.cli.errors import Failure, WrongUsage

EPILOG = """
Examples:

- `aboard login https://aboard.example.org --user ada` - asks for the password
- `aboard login https://aboard.example.org < token-file` - with a token that you have
- `aboard login --forget` - use your own hub again

The password is not kept: it buys a token, which is kept in a file that only you can read.
"""


def login(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The address of the hub.")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(help="Your name there; the password is asked for, or read from a pipe."),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Forget the hub and its token.")] = False,
    json: JsonOption = False,
) -> None:
    """Use a team's hub from now on."""
    from aboard.sdk.client import Client, log_in
    from aboard.sdk.finding import forget_login, write_login

    if forget:
        if url is not None:
            raise WrongUsage("--forget takes no address.")
        if not forget_login():
            raise Failure("you are not logged in to a hub.")
        _tell({"forgotten": True}, "forgotten", json=json)
        return
    if url is None:
        raise WrongUsage("say which hub: aboard login https://HOST.")
    if user is not None:
        secret = ask_secret(f"The password of {user}")
        token = log_in(url, user, secret, name=f"aboard login on {socket.gethostname()}")
    else:
        token = ask_secret("A token (or give --user to log in with a password)")
    me = Client(url, token).me()
    write_login(url, token)
    document = {"url": url.rstrip("/"), "user": me["user"], "role": me["role"]}
    _tell(document, f"logged in to {document['url']} as {me['user']}, {me['role']}", json=json)


def _tell(document: dict[str, object], text: str, *, json: bool) -> None:
    if json:
        print_json(document)
    else:
        typer.echo(text)
