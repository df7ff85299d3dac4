"""`aboard token`: tokens with which programs act for a user of a hub."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from aboard.cli.asking import JsonOption, age, print_json, seconds_of, standing, the_hub
from aboard.cli.errors import say
from aboard.cli.wording import moment, table

EPILOG = """
Examples:

- `aboard token create nightly --for 30d` - prints a token, once
- `aboard token list` - which there are, and when each was used last
- `aboard token revoke ID` - it opens nothing from now on
"""
GROUP = typer.Typer(
    help="Manage the tokens with which programs use a hub.", rich_markup_mode="markdown"
)
_HEADS = ("ID", "USER", "NAME", "STATE", "AGE", "EXPIRES", "USED")


@GROUP.command(
    "create",
    epilog="""
Examples:

- `aboard token create nightly > token-file` - keep it where only you can read it
- `aboard token create ci --for 7d` - for a week
- `aboard login https://aboard.example.org < token-file` - and use it on another machine
""",
)
def create_token(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="What it is for.")] = None,
    lasts: Annotated[
        str, typer.Option("--for", help="How long it opens the hub, such as 12h or 30d.")
    ] = "90d",
    json: JsonOption = False,
) -> None:
    """Make a token that acts for you; it is printed now, and never again."""
    made = the_hub().create_token(name or "", lasts=lasts)
    if json:
        print_json(made)
        return
    typer.echo(made["token"])
    until = moment(seconds_of(made["expires"]))
    say(
        "keep it: it is not shown again."
        f" It opens until {until}; 'aboard token revoke {made['id']}' ends it."
    )


@GROUP.command(
    "list",
    epilog="""
Examples:

- `aboard token list` - yours; everybody's for an administrator
- `aboard token list --json | jq -r '.tokens[] | select(.last_used == null).id'` - never used
""",
)
def list_tokens(json: JsonOption = False) -> None:
    """List tokens, the oldest first, without what opens the hub."""
    tokens = the_hub().tokens()
    if json:
        print_json({"tokens": tokens})
    elif tokens:
        typer.echo(table(_HEADS, [_row(one) for one in tokens], left=len(_HEADS)))
    else:
        say("there are no tokens. Make one with: aboard token create NAME")


@GROUP.command(
    "revoke",
    epilog="""
Examples:

- `aboard token revoke 3fk9xa7mnp2q` - by its id, as `aboard token list` shows it
""",
)
def revoke_token(
    token: Annotated[str, typer.Argument(metavar="ID", help="The token's id.", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Let a token open nothing from now on."""
    client = the_hub()
    known = [one for one in client.tokens() if token in {one["id"], one["prefix"]}]
    client.revoke_token(token)
    if json:
        print_json({"revoked": token})
    elif known and known[0]["revoked"]:
        typer.echo(f"{token} was revoked already")
    else:
        typer.echo(f"revoked {token}")


def _row(token: dict[str, Any]) -> list[str]:
    state = standing(token)
    ends = token["expires"]
    return [
        token["id"],
        token["user"],
        token["name"] or "-",
        state,
        age(token["created"]),
        f"in {age(ends)}" if ends and state == "good" else "-",
        f"{age(token['last_used'])} ago" if token["last_used"] else "never",
    ]
