"""`aboard image`: the image of boards that run in containers."""

from __future__ import annotations

from typing import Annotated

import typer

from aboard.cli.console import JsonOption, examples, print_json, size
from aboard.cli.errors import Failure, notify

EPILOG = examples(
    "`aboard image build` - the default image of boards on Docker",
    "`aboard image build --tag registry.example.org/aboard:1` - for a cluster, to push",
    "`aboard image build --add 'aboard[postgres]'` - with an extra that is installed here",
    "`aboard image build --base my-python` - on your own image, without a registry",
)
GROUP = typer.Typer(no_args_is_help=True, help="Build the image of boards in containers.")


@GROUP.command(epilog=EPILOG)
def build(
    tag: Annotated[
        str | None, typer.Option(help="The image's name; `aboard:VERSION` by default.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="The base image; it needs the Python version that runs here."),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE",
            help="An installed package to add to the image: a plugin of TensorBoard, or an extra"
            " such as `aboard[postgres]`.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address of the daemon; by default that of `docker`.")
    ] = "",
    json: JsonOption = False,
) -> None:
    """Build the image from the running installation, with the same versions of all packages."""
    from aboard.executors import ExecutorError
    from aboard.executors.docker.daemon import connect
    from aboard.executors.docker.image import BASE, build_image, default_tag

    name, on = tag or default_tag(), base or BASE
    try:
        with connect(host) as client:
            built = build_image(client, tag=name, base=on, add=add or (), progress=notify)
    except ExecutorError as error:
        raise Failure(str(error)) from error
    if json:
        print_json({"image": name, "id": built.id, "base": on, "bytes": built.size})
    else:
        typer.echo(f"{name}  {size(built.size)}, on {on}")
