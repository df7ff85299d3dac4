"""`aboard hub`: which hub is used, how it is, and the end of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from aboard.cli.asking import JsonOption, print_json
from aboard.cli.errors import FAILURE, Failure, line_for, say
from aboard.cli.wording import counted

if TYPE_CHECKING:
    from aboard.sdk.finding import KnownHub

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
- `aboard hub stop --boards` - those end too, also when the hub has been stopped before
""",
)
def stop_hub(
    boards: Annotated[
        bool, typer.Option("--boards", help="End boards with a process of their own, too.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Stop your own hub."""
    from aboard.sdk.finding import find_personal, last_roots, start_personal, stop_personal

    known = find_personal()
    if known is None and boards and last_roots() is not None:
        known = start_personal()  # boards that go on without a hub are known to the next one
    if known is None:
        raise Failure("you have no hub of your own that runs.")
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
        say(_go_on(going_on))


def _isolated(hub: KnownHub, *, end: bool) -> tuple[list[str], list[str]]:
    """Return the names of the boards with a process of their own: those ended, and the others."""
    from aboard.sdk.client import Client
    from aboard.sdk.errors import HubError

    client = Client(hub.url, hub.token)
    ended: list[str] = []
    going_on: list[str] = []
    try:
        isolated = [board for board in client.list() if board.on != "instant"]
    except HubError as error:  # a hub that does not answer is stopped all the same
        say(line_for(error))
        return ended, going_on
    for board in isolated:
        try:
            if end:
                client.stop(board)
            (ended if end else going_on).append(board.name)
        except HubError as error:
            say(line_for(error))
            going_on.append(board.name)
    return ended, going_on


def _go_on(names: Sequence[str]) -> str:
    one = len(names) == 1
    return (
        f"{counted(len(names), 'board')} with a process of {'its' if one else 'their'} own"
        f" {'goes' if one else 'go'} on: {', '.join(names)}. 'aboard hub stop --boards' ends"
        f" {'it' if one else 'them'} too; the next hub has {'it' if one else 'them'} again."
    )
