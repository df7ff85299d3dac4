"""`aboard view`: a board of some sources, in the browser, behind a secret."""

from __future__ import annotations

import html
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aboard.cli.choosing import RootOption, choose_runs, is_place, understand
from aboard.cli.completing import selectors_like
from aboard.cli.errors import WrongUsage, say
from aboard.cli.progress import LoadingLine, StockLine
from aboard.cli.samples import parse_samples
from aboard.cli.sources import check_readable

if TYPE_CHECKING:
    import socket

    from aboard.tensorboard.board import Board
    from aboard.tensorboard.viewer import Engine
    from aboard.web import Access

EPILOG = """
Examples:

- `aboard view runs/` - every run below a directory
- `aboard view cifar10 tag:baseline` - the runs of an experiment, and those with a tag
- `aboard view new=runs/today old=s3://bucket/runs` - two places on one board, under names
- `aboard view runs/ --include 'lr=*' --exclude '*/eval'` - some of the runs
- `aboard view runs/ --template '{run}_lr={hparams.lr}'` - runs named by what they tried
- `aboard view runs/ --host 0.0.0.0 --token-file ~/.aboard-token` - on a network you trust

The address that is printed opens once; the browser then holds a cookie. Press Enter for another.
"""

ShownArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Directories, bucket URIs or event files, one or more; each also as NAME=SOURCE."
        " Or selectors of runs, such as 'cifar10/run1-run3', where there is no such path.",
        show_default=False,
        autocompletion=selectors_like,
    ),
]
"""What a board can show."""

_BOARD_ID = "view"
_TO_OPEN_SECONDS = 20.0
"""How long a browser may take to read the page that leads it to a board."""


def view(
    context: typer.Context,
    source: ShownArgument,
    root: RootOption = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "localhost",
    port: Annotated[
        int | None,
        typer.Option(help="The port; by default 6006, or the next that is free.", min=0, max=65535),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser when ready.")
    ] = True,
    token: Annotated[
        str | None,
        typer.Option(
            help="The secret that opens the board; made up anew if there is none."
            " --token-file does not leave it in your shell's history.",
            envvar="ABOARD_TOKEN",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file that holds the secret, readable by you alone.", dir_okay=False),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="fast: our index. stock: TensorBoard's own loaders, for plugins that need the"
            " log directory.",
            metavar="fast|stock",
            autocompletion=lambda: ["fast", "stock"],
        ),
    ] = "fast",
    template: Annotated[
        str | None,
        typer.Option(help="How runs are named, such as '{experiment}_{run}_lr={hparams.lr}'."),
    ] = None,
    samples: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[KIND=]N",
            help="Points per curve, spikes kept, or values of another kind, such as images=100;"
            " 0 for all; may be repeated. [default: 1000]",
        ),
    ] = None,
    poll: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How long to wait between two looks at a bucket in which something changes;"
            " longer while nothing does. [default: 5]",
            min=0.5,
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="What the browser's tab shows.")] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Show only runs whose name matches; may be repeated."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Hide runs whose name matches; may be repeated."),
    ] = None,
    confine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Read runs in these directories only, wherever links in them lead; may be"
            " repeated.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the address as one JSON document.")
    ] = False,
) -> None:
    """Show runs in TensorBoard, live."""
    from aboard.storage import confines
    from aboard.web import listen

    hide_token(context, token)

    chosen = _engine(engine)
    limits = parse_samples(samples or ())
    confines.confine(confine or ())
    board = make_board(
        source,
        roots=root or (),
        template=template,
        title=title,
        include=include or (),
        exclude=exclude or (),
    )
    access = _access(token, token_file)
    sockets = listen(host, port)
    serve_board(
        board,
        access,
        sockets,
        host,
        engine=chosen,
        samples=limits,
        poll=poll,
        browser=browser,
        json=json,
    )


def hide_token(context: typer.Context, token: str | None) -> None:
    """Start over with the token in the environment if it is in the list of processes."""
    given = context.get_parameter_source("token")
    if token is None or given is None or given.name != "COMMANDLINE":
        return
    arguments = []
    skip = False
    for argument in sys.argv:
        if not skip and argument != "--token" and not argument.startswith("--token="):
            arguments.append(argument)
        skip = argument == "--token" and not skip
    # -P: nothing is imported from the directory we happen to be in.
    command = [sys.executable, "-P", "-m", "aboard", *arguments[1:]]
    os.execve(sys.executable, command, {**os.environ, "ABOARD_TOKEN": token})  # noqa: S606


def make_board(
    texts: Sequence[str],
    *,
    roots: Sequence[str] = (),
    template: str | None = None,
    title: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Board:
    """Make a board of what a user typed, and check that it can be."""
    from aboard.runs.catalog import find_roots
    from aboard.runs.naming import BadTemplate, Template
    from aboard.tensorboard.board import Board, Member

    try:
        parsed = Template.parse(template) if template is not None else None
    except BadTemplate as error:
        raise WrongUsage(str(error)) from None
    searched = find_roots(roots)
    places, words = parted(texts, searched)
    members = tuple(dict.fromkeys(Member.parse(text) for text in places))
    for member in members:
        check_readable(member.source)
    names = [one.name or one.source.uri.rstrip("/").rpartition("/")[2] for one in members]
    title = title or ", ".join([*names, *words]) or "Aboard"
    board = Board(_BOARD_ID, title, members, parsed, tuple(include), tuple(exclude))
    return _with_selected(board, words, searched) if words else board


def parted(texts: Sequence[str], roots: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part places from selectors, which mean something only where there are roots."""
    words = [text for text in texts if roots and not is_place(text)]
    return [text for text in texts if text not in words], words


def _with_selected(board: Board, words: Sequence[str], roots: Sequence[str]) -> Board:
    """Add the runs that selectors mean; each must mean one now, and more may come later."""
    from dataclasses import replace

    from aboard.index import Index
    from aboard.tensorboard.selection import Selection

    selectors = tuple(one.text for one in understand(words))
    selection = Selection(selectors, tuple(roots), board.members)
    with Index() as index:
        choose_runs(index, words, roots)
        members = selection.members(index)
        return replace(board, members=members, selection=selection, roots=selection.roots)


def serve_board(
    board: Board,
    access: Access,
    sockets: Sequence[socket.socket],
    host: str,
    *,
    engine: Engine = "fast",
    samples: Mapping[str, int] | None = None,
    poll: float | None = None,
    browser: bool = True,
    json: bool = False,
    on_ready: Callable[[], None] | None = None,
) -> None:
    """Serve a board until the user has seen enough; `on_ready` is called when it can be opened."""
    from aboard.index import Index
    from aboard.tensorboard.viewer import Viewer
    from aboard.web import ending_in_order, serve

    with (
        ending_in_order(),
        Index() as index,
        LoadingLine(board, index) as line,
        StockLine(board) as stock_line,
    ):
        for problem in index.problems:
            say(str(problem))
        viewer = Viewer(
            board,
            access,
            engine=engine,
            samples=samples,
            poll=poll,
            index=index,
            changed=line,
            told=stock_line,
            chosen=_Joining(board),
        )
        front = _Front(board, viewer.path, access, sockets, host, json=json)

        def ready() -> None:
            front.announce()
            if browser and not json:
                front.open_browser()
            if on_ready is not None:
                on_ready()

        try:
            caught = serve(viewer.app, sockets, on_ready=ready)
        finally:
            front.close()
            viewer.close()
    if caught == signal.SIGINT:
        if sys.stderr.isatty():
            typer.echo(err=True)  # the terminal has written ^C
        raise typer.Exit(130)


class _Joining:
    """Says which runs join a board, and which leave it."""

    def __init__(self, board: Board) -> None:
        self._shown = set(board.members)

    def __call__(self, board: Board) -> None:
        now = set(board.members)
        for runs, verb in ((now - self._shown, "joined"), (self._shown - now, "left")):
            if runs:
                names = sorted(member.name for member in runs)
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                say(f"{', '.join(names[:5])}{more} {verb} the board.")
        self._shown = now


class _Front:
    """What the user sees in the terminal: addresses, each good for one browser."""

    def __init__(
        self,
        board: Board,
        path: str,
        access: Access,
        sockets: Sequence[socket.socket],
        host: str,
        *,
        json: bool,
    ) -> None:
        from aboard.web import urls

        self._board = board
        self._access = access
        self._host = host
        self._json = json
        self._closed = threading.Event()
        self._opener: threading.Thread | None = None
        self._port: int = sockets[0].getsockname()[1]
        self._addresses = [address + path for address in urls(sockets, host)]

    def _link(self, address: str = "") -> str:
        return f"{address or self._addresses[0]}?key={self._access.mint_key()}"

    def announce(self) -> None:
        from aboard.web import exposure, forwarding_hint

        if self._json:
            import orjson

            address = self._addresses[0]
            document = {"url": self._link(), "address": address, "pid": os.getpid()}
            typer.echo(orjson.dumps(document))
            say(f"{self._board.title} is served at {address}")  # for whoever reads the log
            return
        typer.echo(f"{self._board.title}: {self._link()}")
        if (warning := exposure(self._host)) is not None:
            say(warning)
        if (command := forwarding_hint(os.environ, self._port)) is not None:
            typer.echo(f"From your own machine, first: {command}")
            if len(self._addresses) > 1:
                typer.echo(f"then open: {self._link(self._addresses[-1])}")
        if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
            typer.echo("Press Enter for another link, Ctrl-C to stop.")
            threading.Thread(target=self._more_links, daemon=True).start()

    def _more_links(self) -> None:
        with suppress(OSError):  # of a terminal that was closed
            for _ in sys.stdin:
                typer.echo(self._link())

    def open_browser(self) -> None:
        """Open a browser, unless it would be on the far side of an SSH connection."""
        if not can_open():
            return
        self._opener = threading.Thread(target=open_link, args=[self._link(), self._closed])
        self._opener.start()

    def close(self) -> None:
        """Take back what leads to a board that is no longer served."""
        self._closed.set()
        if self._opener:
            self._opener.join()


def can_open() -> bool:
    """Say whether a browser would be where the user is, and not on the far side of SSH."""
    return "SSH_CONNECTION" not in os.environ or "DISPLAY" in os.environ


def open_link(link: str, closed: threading.Event) -> None:
    """Open a link in a browser, without its secret in the list of processes.

    The browser is given a page that leads to the link and that only its user can read. It is in
    the home directory because browsers in a sandbox see no other place of ours.
    """
    from aboard.web.lifetime import own_file

    try:
        controller = webbrowser.get()
    except webbrowser.Error:
        return
    if type(controller) is webbrowser.GenericBrowser:
        return  # one for the terminal, which it would take over
    page = f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">'
    # Without it, the link is in the terminal still.
    with suppress(OSError), own_file(Path.home(), "aboard", ".html", page) as path:
        controller.open(path.as_uri())
        closed.wait(_TO_OPEN_SECONDS)


def _engine(text: str) -> Engine:
    if text == "fast":
        return "fast"
    if text == "stock":
        return "stock"
    raise WrongUsage(f"there is no engine {text!r}. Choose 'fast' or 'stock'.")


def _access(token: str | None, token_file: Path | None) -> Access:
    from aboard.web import Access, TokenError, read_token_file

    if token is not None and token_file is not None:
        raise WrongUsage("give --token or --token-file, not both.")
    try:
        return Access(read_token_file(token_file) if token_file is not None else token)
    except TokenError as error:
        raise WrongUsage(str(error)) from None
