"""`aboard hub`: which hub is used, how it is, and the end of one's own."""

from __future__ import annotations

import typer

from aboard.cli.asking import JsonOption, print_json
from aboard.cli.errors import FAILURE, Failure, say

EPILOG = """
Examples:

- `aboard hub status` - which hub `aboard start` uses, and whether it answers
- `aboard hub stop` - end your own; its boards come back when it is started again
"""
_HOW = {
    "environment": "named by ABOARD_HUB",
    "login": "logged in to",
    "personal": "your own",
}
GROUP = typer.Typer(help="Look at the hub in use, or stop your own.", rich_markup_mode="markdown")


@GROUP.command(
    "status",
    epilog="""
Examples:

- `aboard hub status --json` - for scripts; the exit code is 1 if no hub answers
""",
)
def show_status(json: JsonOption = False) -> None:
    """Say which hub is used, and whether it answers."""
    from aboard.sdk.client import Client
    from aboard.sdk.errors import HubError
    from aboard.sdk.finding import find_hub

    known = find_hub()
    if known is None:
        if json:
            print_json({"running": False})
        else:
            say("no hub runs, and none is configured. 'aboard start' starts one of your own.")
        raise typer.Exit(FAILURE)
    document = {"running": True, "url": known.url, "known_by": known.how, "pid": known.pid}
    try:
        client = Client()
        document |= client.me() | {"boards": len(client.list())}
    except HubError as error:
        if json:
            print_json(document | {"running": False, "error": str(error)})
            raise typer.Exit(FAILURE) from None
        raise
    if json:
        print_json(document)
        return
    process = f", process {known.pid}" if known.pid else ""
    typer.echo(f"{known.url} ({_HOW[known.how]}{process})")
    typer.echo(f"you are {document['user']}, {document['role']}; boards: {document['boards']}")


@GROUP.command(
    "stop",
    epilog="""
Examples:

- `aboard hub stop` - boards with a process of their own go on, the others come back with it
""",
)
def stop_hub(json: JsonOption = False) -> None:
    """Stop your own hub."""
    from aboard.sdk.finding import stop_personal

    stopped = stop_personal()
    if stopped is None:
        raise Failure("you have no hub of your own that runs.")
    if json:
        print_json({"url": stopped.url, "pid": stopped.pid})
    else:
        typer.echo(f"stopped your hub at {stopped.url}")
