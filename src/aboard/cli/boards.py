"""Boards on a hub: list and describe them, open, stop, restart, delete and share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aboard.boards.model import State
from aboard.cli.asking import (
    BoardArgument,
    BoardsArgument,
    JsonOption,
    age,
    each,
    open_in_browser,
    print_json,
    seconds_of,
    shown,
    standing,
    tell_way,
    the_hub,
)
from aboard.cli.completing import selectors_like
from aboard.cli.errors import Failure, WrongUsage, say
from aboard.cli.wording import (
    counted,
    duration,
    fitted,
    moment,
    printable,
    size,
    strong,
    table,
    terminal_width,
)

if TYPE_CHECKING:
    from aboard.sdk.board import Board
    from aboard.sdk.client import Client

_HEADS = ("ID", "NAME", "OWNER", "STATE", "SHOWS", "ON", "URL", "AGE", "EXPIRES", "REASON")
_LEAST = ("REASON", "EXPIRES", "AGE", "ON", "OWNER", "URL")
_SHORTEST = {"SHOWS": 12, "REASON": 20}
_SHARE_HEADS = ("ID", "MADE BY", "STATE", "AGE", "EXPIRES")


def list_boards(
    all: Annotated[  # noqa: A002 - named as on the command line
        bool, typer.Option("--all", "-a", help="Those that have ended, too.")
    ] = False,
    state: Annotated[
        list[State] | None,
        typer.Option(
            metavar="STATE",
            help="Only in this state: pending, starting, running, stopping, stopped, failed or"
            " lost; may be repeated.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List boards, the newest first."""
    boards = the_hub().list(all=all, states=state or [])
    if json:
        print_json({"boards": [board.document for board in boards]})
    elif boards:
        heads: Sequence[str] = _HEADS
        rows = [_row(board) for board in boards]
        if (width := terminal_width()) is not None:
            heads, rows = fitted(heads, rows, width, least=_LEAST, shortest=_SHORTEST)
        typer.echo(table(heads, rows, left=len(heads)))
    else:
        say("there are no such boards. Start one with: aboard start SELECTOR")


def describe_board(board: BoardArgument, json: JsonOption = False) -> None:
    """Show everything about a board, and what it went through."""
    client = the_hub()
    found = client.get(board)
    history = client.history(found)
    if json:
        print_json(found.document | {"history": history})
        return
    typer.echo(_about(found))
    rows = [[moment(seconds_of(one["at"])), one["state"], one["reason"] or "-"] for one in history]
    typer.echo("\n" + table(("AT", "STATE", "REASON"), rows, left=3))


def open_board(
    board: BoardArgument,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser, or only print the link.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Open a board in the browser."""
    client = the_hub()
    found = client.wait(client.get(board), data=False)
    link = client.link(found)
    if json:
        print_json(found.document | {"link": link})
        return
    typer.echo(f"{found.name} ({found.id}): {link}")
    tell_way(found.url)
    if browser:
        open_in_browser(link)


def show_logs(
    board: BoardArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as it writes, until Ctrl-C.")
    ] = False,
    tail: Annotated[int | None, typer.Option(help="Only so many lines of its end.", min=0)] = None,
    json: JsonOption = False,
) -> None:
    """Print what a board wrote."""
    client = the_hub()
    found = client.get(board)
    if found.on == "instant":
        say(f"{found.name} is an instant board: the hub serves it, and it has no log of its own.")
    if json:
        lines = [] if found.on == "instant" else list(found.logs(tail=tail, follow=follow))
        print_json({"id": found.id, "name": found.name, "lines": lines})
        return
    if found.on == "instant":
        return
    for piece in client.logs(found, tail=tail, follow=follow):
        typer.echo(piece, nl=False)


def stop_boards(
    board: BoardsArgument,
    now: Annotated[bool, typer.Option("--now", help="Without time to end by themselves.")] = False,
    json: JsonOption = False,
) -> None:
    """Stop boards; one that fails does not spare the others."""
    from aboard.sdk.board import ENDED

    client = the_hub()

    def stop(one: str) -> tuple[str, dict[str, Any]]:
        found = client.get(one)
        if found.state in ENDED:
            return f"already {found.state}:", found.document
        return "stopped", client.stop(found, now=now).document

    each(board, stop, "stopped", json=json)


def restart_boards(board: BoardsArgument, json: JsonOption = False) -> None:
    """Start boards anew, at the same addresses."""
    client = the_hub()

    def restart(one: str) -> tuple[str, dict[str, Any]]:
        return "restarted", client.wait(client.restart(one), data=False).document

    each(board, restart, "restarted", json=json)


def delete_boards(board: BoardsArgument, json: JsonOption = False) -> None:
    """Delete boards with their history; the runs stay. Those that run are stopped first."""
    client = the_hub()

    def delete(one: str) -> tuple[str, dict[str, Any]]:
        found = client.get(one)
        client.delete(found)
        return "deleted", {"id": found.id, "name": found.name}

    each(board, delete, "deleted", json=json)


def share_board(
    board: BoardArgument,
    lasts: Annotated[
        str | None,
        typer.Option("--for", help="How long the link lasts, such as 12h or 30d. [default: 7d]"),
    ] = None,
    revoke: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Let an earlier link show nothing from now on."),
    ] = None,
    which: Annotated[
        bool, typer.Option("--list", help="Only say which links there are, and make none.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Make a link that shows a board, and nothing else, to whoever has it."""
    if sum((lasts is not None, revoke is not None, which)) > 1:
        raise WrongUsage("--for, --revoke and --list do not go together.")
    client = the_hub()
    if which:
        _list_shares(client.shares(board), board, json=json)
        return
    if revoke is not None:
        _revoke_share(client, board, revoke, json=json)
        return
    made = client.share(board, lasts=lasts)
    if json:
        print_json(made)
        return
    typer.echo(made["url"])
    until = f"until {moment(seconds_of(made['expires']))}" if made["expires"] else "for ever"
    say(f"it opens {until}; 'aboard share {board} --revoke {made['id']}' ends it.")


def _list_shares(shares: list[dict[str, Any]], board: str, *, json: bool) -> None:
    if json:
        print_json({"shares": shares})
    elif shares:
        typer.echo(table(_SHARE_HEADS, [_share_row(one) for one in shares], left=5))
    else:
        say(f"there are no links. Make one with: aboard share {board}")


def _share_row(share: dict[str, Any]) -> list[str]:
    state = standing(share)
    ends = f"in {age(share['expires'])}" if share["expires"] and state == "good" else "-"
    return [share["id"], share["made_by"], state, age(share["created"]), ends]


def _revoke_share(client: Client, board: str, share: str, *, json: bool) -> None:
    known = [one for one in client.shares(board) if one["id"] == share]
    if not known:
        raise Failure(f"{board} has no link {share!r}. See which: aboard share {board} --list")
    client.unshare(board, share)
    if json:
        print_json({"revoked": share})
    elif known[0]["revoked"]:
        typer.echo(f"{share} was revoked already")
    else:
        typer.echo(f"revoked {share}")


GROUP = typer.Typer(
    help="Change what a board shows, and how it is kept.", rich_markup_mode="markdown"
)
SelectorsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SELECTOR...",
        help="Selectors, paths or URIs, one or more.",
        show_default=False,
        autocompletion=selectors_like,
    ),
]


@GROUP.command(
    "add",
    epilog="""
Examples:

- `aboard boards add nightly cifar10/run9` - one more run on a board that is open
""",
)
def add_runs(board: BoardArgument, selector: SelectorsArgument, json: JsonOption = False) -> None:
    """Show more runs on a board, while it is open."""
    _tell(the_hub().select(board, add=selector), json=json)


@GROUP.command(
    "remove",
    epilog="""
Examples:

- `aboard boards remove nightly cifar10/run9` - also if it came with its experiment
""",
)
def remove_runs(
    board: BoardArgument, selector: SelectorsArgument, json: JsonOption = False
) -> None:
    """Show fewer runs on a board, while it is open."""
    _tell(the_hub().select(board, remove=selector), json=json)


@GROUP.command(
    "change",
    epilog="""
Examples:

- `aboard boards change nightly --extend 8h` - let it run eight hours longer
- `aboard boards change nightly --team` - let everybody on the hub see it
- `aboard boards change 3fk --name weekly --timeout 0` - another name, and no end
""",
)
def change_board(
    board: BoardArgument,
    name: Annotated[str | None, typer.Option(help="What to call it.")] = None,
    team: Annotated[
        bool | None,
        typer.Option("--team/--private", help="Who sees it: everybody on the hub, or its owner."),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(help="How long it may run since its start, such as 8h; 0: for ever."),
    ] = None,
    idle_timeout: Annotated[
        str | None, typer.Option(help="How long it may run while nobody looks, such as 30m.")
    ] = None,
    extend: Annotated[
        str | None, typer.Option(help="How much longer it may run than it would, such as 8h.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Change a board's name, who sees it, and how long it runs."""
    wishes = {
        "name": name,
        "visibility": None if team is None else "team" if team else "private",
        "timeout": timeout,
        "idle_timeout": idle_timeout,
        "extend": extend,
    }
    if not any(wish is not None for wish in wishes.values()):
        raise WrongUsage("say what to change, for example --extend 8h.")
    changed = the_hub().change(board, **wishes)
    if json:
        print_json(changed.document)
    else:
        typer.echo(_kept(changed))
    if extend is not None and not changed.document["expires"]:
        say(f"{changed.name} has no end, so there is nothing to extend; --timeout gives it one.")


EPILOG = """
Examples:

- `aboard boards change nightly --extend 8h` - let it run longer
- `aboard boards add nightly cifar10/run9` - one more run on a board that is open
- `aboard boards remove nightly cifar10/run9` - and away with it
"""
_LIST_EPILOG = """
Examples:

- `aboard list` - boards that live
- `aboard list --all --state failed` - those that failed, and why
- `aboard list --json | jq -r '.boards[].url'` - for scripts
"""
GROUP.command("list", epilog=_LIST_EPILOG, help="The same as `aboard list`.")(list_boards)
_STOP_EPILOG = """
Examples:

- `aboard stop nightly` - by its name
- `aboard stop 3fk 9xa` - two, by the beginnings of their ids
- `aboard list --json | jq -r '.boards[].id' | xargs aboard stop` - all of them
"""
SEVERAL = {
    "list": (list_boards, _LIST_EPILOG),
    "describe": (
        describe_board,
        """
Examples:

- `aboard describe nightly` - its selection, times and limits, and its history
""",
    ),
    "open": (
        open_board,
        """
Examples:

- `aboard open nightly` - in the browser
- `aboard open nightly --no-browser` - print a link that opens once
""",
    ),
    "logs": (
        show_logs,
        """
Examples:

- `aboard logs nightly --tail 50` - the end of its log
- `aboard logs nightly -f` - as it goes on
""",
    ),
    "stop": (stop_boards, _STOP_EPILOG),
    "kill": (stop_boards, _STOP_EPILOG.replace("aboard stop", "aboard kill")),
    "restart": (
        restart_boards,
        """
Examples:

- `aboard restart nightly` - after it failed, or was stopped
""",
    ),
    "delete": (
        delete_boards,
        """
Examples:

- `aboard delete nightly` - forget a board and its history
""",
    ),
    "share": (
        share_board,
        """
Examples:

- `aboard share nightly --for 30d` - a link for somebody without an account
- `aboard share nightly --list` - which links there are
- `aboard share nightly --revoke ID` - take it back
""",
    ),
}


def _tell(board: Board, *, json: bool) -> None:
    if json:
        print_json(board.document)
    else:
        typer.echo(f"{board.name} ({board.id}) shows {shown(board, most=10)}")


def _kept(board: Board) -> str:
    """Say what a board is called, who sees it, and until when it runs."""
    about = board.document
    seen = "everybody on the hub sees" if about["visibility"] == "team" else "only its owner sees"
    ends = moment(seconds_of(about["expires"])) if about["expires"] else ""
    until = f"it runs until {ends}" if ends else "it has no end"
    idle = duration(about["idle_timeout"]) if about["idle_timeout"] else ""
    unseen = f", and ends when nobody has looked for {idle}" if idle else ""
    return f"{board.name} ({board.id}): {seen} it; {until}{unseen}"


def _row(board: Board) -> list[str]:
    about = board.document
    return [
        board.id,
        board.name,
        board.owner,
        board.condition or board.state,
        shown(board),
        board.on,
        board.url,
        age(about["created"]),
        f"in {age(about['expires'])}" if about["expires"] else "-",
        board.reason or "-",
    ]


def _about(board: Board) -> str:
    about = board.document
    condition = f", {board.condition}" if board.condition else ""
    facts = {
        "id": board.id,
        "title": about["title"],
        "owner": f"{board.owner}, {about['visibility']}",
        "state": f"{board.state}{condition}",
        "reason": board.reason,
        "url": board.url,
        "shows": f"{counted(board.runs, 'run')} of {', '.join(board.selectors)}",
        "template": about["template"],
        "on": f"{board.on}, {about['engine']} engine",
        "memory": size(about["memory"]) if about["memory"] else "",
        "timeout": duration(about["timeout"]) if about["timeout"] else "",
        "idle": f"after {duration(about['idle_timeout'])}" if about["idle_timeout"] else "",
    }
    for name in ("created", "started", "ended", "expires", "last_request"):
        if about[name]:
            facts[name.replace("_", " ")] = moment(seconds_of(about[name]))
    lines = [f"  {name:<12} {printable(value)}" for name, value in facts.items() if value]
    return "\n".join([strong(printable(board.name)), *lines])
