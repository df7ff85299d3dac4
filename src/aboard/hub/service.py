"""The hub without HTTP: everything it has, put together, and what can be asked of it.

Who may ask is decided before; what boards are and how they live is left to `boards`, what they
show to `reading` and `selection`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from aboard.boards.accounts import User
from aboard.boards.decide import Settings
from aboard.boards.errors import BadValue, DatabaseUnavailable, NotFound
from aboard.boards.lifecycle import Lifecycle
from aboard.boards.limits import settle
from aboard.boards.lookup import the_one_meant
from aboard.boards.model import INSTANT, LIVE, BoardRecord, Engine, State
from aboard.boards.registry import Created, Page, Registry
from aboard.boards.wanted import Wanted, check_number
from aboard.executors.base import Address, ExecutorError, Spec
from aboard.executors.process import ProcessExecutor
from aboard.hub.amounts import read_bytes, read_seconds
from aboard.hub.asking import answers, runs_of
from aboard.hub.auth import Auth, Lifetimes
from aboard.hub.config import Config
from aboard.hub.documents import BoardChange, BoardDocument, NewBoard
from aboard.hub.permissions import Action, may, seen_by
from aboard.hub.proxy import SILENT, NotServing
from aboard.hub.reading import Reader
from aboard.hub.selection import Catalog, EmptySelection
from aboard.hub.visitors import Keys, Visitors
from aboard.index import Index
from aboard.runs.select import is_path
from aboard.storage import is_remote, join
from aboard.storage.clouds import credentials, set_profile
from aboard.storage.confines import confine
from aboard.tensorboard.provider import Boards


class Hub:
    """A hub, running.

    Args:
        config: its settings.
        personal: whether it has one user only.
        settings: how patient it is with isolated boards.
        clock: seconds since 1970.

    Raises:
        DatabaseUnavailable: its database cannot be reached.
        BadDatabase: it cannot be used.
    """

    def __init__(
        self,
        config: Config,
        *,
        personal: bool = False,
        settings: Settings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.personal = personal
        self.clock = clock
        any_path = personal or config.any_path
        with ExitStack() as closing:
            self.registry = closing.enter_context(Registry(config.database_address))
            self.index = closing.enter_context(Index())
            for root in config.roots:
                if root.environment and is_remote(root.uri):
                    set_profile(root.uri, root.environment)
                    closing.callback(set_profile, root.uri, {})
            self._confines: list[str] = []
            if not any_path:
                self._confines = [root.uri for root in config.roots if not is_remote(root.uri)]
                confine(self._confines)
                closing.callback(confine, ())
            self.boards = Boards(self.index)
            self.catalog = Catalog(self.index, config.roots, any_path=any_path)
            self.reader = Reader(self.index, self.catalog, self.boards, poll=config.boards.poll)
            closing.callback(self.reader.close)
            self.executors = {"process": ProcessExecutor()}
            self.lifecycle = Lifecycle(
                self.registry,
                self.executors,
                self._specify,
                limits=lambda _: config.limits,
                settings=settings,
                probe=answers,
            )
            self.auth = Auth(self.registry, lifetimes=Lifetimes(session=config.session))
            self.visitors = Visitors(self.auth)
            self.keys = Keys(self.registry.accounts)
            self._closing = closing.pop_all()

    def start(self) -> None:
        """Look after the boards, those of an earlier life of the hub among them."""
        self.lifecycle.tick()
        self.lifecycle.start()

    def close(self) -> None:
        """Stop looking after boards; isolated ones go on."""
        self.lifecycle.close()
        self._closing.close()

    # Finding boards.

    def find(self, ref: str, user: User) -> BoardRecord:
        """Return the board that an id, its beginning, or a name means to a user.

        Raises:
            NotFound: there is none that he may see.
            Ambiguous: there are several.
        """
        try:
            return self.registry.find(ref, asker=user.name, seen_by=seen_by(user))
        except DatabaseUnavailable:
            mine = [
                board
                for board in self._remembered(user)
                if board.id.startswith(ref) or board.name.startswith(ref)
            ]
            try:
                return the_one_meant(ref, mine, user.name)
            except NotFound:
                pass
            raise

    def page(
        self,
        user: User,
        *,
        states: Collection[State] = (),
        owner: str | None = None,
        name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page:
        """Return a page of the boards that a user may see; the live ones without a database."""
        try:
            return self.registry.list(
                owner=owner,
                states=states,
                name=name,
                seen_by=seen_by(user),
                limit=limit,
                after=after,
            )
        except DatabaseUnavailable:
            if after is not None or not set(states) <= LIVE:
                raise
            found = [
                board
                for board in self._remembered(user)
                if (not states or board.state in states)
                and owner in {None, board.owner}
                and name in {None, board.name}
            ]
            return Page(found[:limit], len(found), None)

    def _remembered(self, user: User) -> list[BoardRecord]:
        boards = self.lifecycle.snapshot().boards.values()
        seen = [board for board in boards if may(user, Action.SEE, board)]
        return sorted(seen, key=lambda board: (board.created, board.id), reverse=True)

    def describe(self, record: BoardRecord, *, closely: bool = True) -> BoardDocument:
        """Describe a board as the API does; closely counts its runs anew."""
        runs: int | None = None
        silent = self.lifecycle.is_silent(record)
        if record.state is State.RUNNING:
            if record.on == INSTANT:
                if closely:
                    self._shown(record)
                runs = self.reader.count(record.id, now=closely)
                if runs is None:
                    runs = len(record.sources)
            elif closely and not silent:
                address = self._address(record)
                runs = runs_of(address) if isinstance(address, Address) else None
            else:
                runs = len(record.sources)
        live = self.lifecycle.known(record.id)
        used = live.last_request if live is not None else None
        last = max((at for at in (used, record.last_request) if at is not None), default=None)
        return BoardDocument.of(
            record, prefix=self.config.prefix, runs=runs, last_request=last, silent=silent
        )

    # Changing boards.

    def create(self, user: User, wish: NewBoard, key: str | None = None) -> Created:
        """Make a board, or find the one that is meant, and let it be as it is wished now.

        Raises:
            BadValue: what is wished cannot go together.
        """
        defaults = self.config.boards
        template, engine = wish.template or "", wish.engine or defaults.engine
        on = wish.on or (
            defaults.on if engine is not Engine.STOCK else _place_of_stock(defaults.on)
        )
        _check_together(on, engine, wish)
        timeout = defaults.timeout if wish.timeout is None else read_seconds(wish.timeout)
        idle = (
            defaults.idle_timeout if wish.idle_timeout is None else read_seconds(wish.idle_timeout)
        )
        memory = defaults.memory if wish.memory is None else read_bytes(wish.memory)
        sources = self.catalog.check(wish.selectors, template)
        wanted = Wanted(
            owner=user.name,
            selectors=self.catalog.words(wish.selectors),
            sources=sources,
            name=wish.name,
            template=template,
            title=wish.title or "",
            engine=engine,
            on=on,
            memory=memory if on != INSTANT else None,
            timeout=timeout,
            idle_timeout=idle,
            visibility=wish.visibility or defaults.visibility,
        )
        made = self.lifecycle.create(wanted, new=wish.new, key=key)
        if not made.is_new:
            made = Created(self._as_wished(made.board, wish), False)
        self._shown(made.board)
        return made

    def _as_wished(self, record: BoardRecord, wish: NewBoard) -> BoardRecord:
        """Let a board that was there already be seen and run as somebody wants it now."""
        if wish.memory is not None and read_bytes(wish.memory) != record.memory:
            raise BadValue(
                f"board {record.name} ({record.id}) of this selection has another memory limit.",
                "Make another board with --new, or stop this one first.",
            )
        change = BoardChange(
            visibility=wish.visibility,
            timeout=wish.timeout,
            idle_timeout=wish.idle_timeout,
            extend=None,
        )
        return self.change(record, change) if change.model_dump(exclude_none=True) else record

    def change(self, record: BoardRecord, wish: BoardChange) -> BoardRecord:
        """Change what a board is called, who sees it, and how long it runs."""
        changes: dict[str, Any] = {}
        if wish.name is not None:
            changes["name"] = wish.name
        if wish.visibility is not None:
            changes["visibility"] = wish.visibility
        if wish.timeout is not None:
            changes["timeout"] = check_number(read_seconds(wish.timeout), "timeout")
        if wish.idle_timeout is not None:
            changes["idle_timeout"] = check_number(read_seconds(wish.idle_timeout), "idle_timeout")
        if changes:
            record = self.lifecycle.change(record.id, lambda now: self._with_end(now, changes))
        if wish.extend is not None:
            record = self.lifecycle.extend(record.id, read_seconds(wish.extend))
        return self._shown(record)

    def select(self, record: BoardRecord, add: Sequence[str], remove: Sequence[str]) -> BoardRecord:
        """Add and remove selectors of a board; an isolated one starts anew with them.

        Raises:
            NotFound: the board does not show what is to be removed.
        """
        if add:
            self.catalog.check(add)

        def changed(now: BoardRecord) -> dict[str, Any]:
            selectors = self.catalog.changed(now.selectors, add, remove)
            if selectors == now.selectors:
                return {}
            return {"selectors": selectors, "sources": self.catalog.sources(selectors)}

        after = self.lifecycle.change(record.id, changed, restart="its selection changed")
        return self._shown(after)

    def delete(self, record: BoardRecord) -> None:
        """Forget a board; an instant one is stopped first.

        Raises:
            Conflict: it has a process that runs.
        """
        if record.is_live and not record.is_isolated:
            record = self.lifecycle.stop(record.id, reason="it was deleted")
        self.registry.delete(record)
        shutil.rmtree(self._directory(record.id), ignore_errors=True)

    def _with_end(self, record: BoardRecord, changes: dict[str, Any]) -> dict[str, Any]:
        """Return changes together with the end that follows from them."""
        if "timeout" not in changes:
            return changes
        seconds = changes["timeout"]
        if record.is_isolated:
            wanted = Wanted(
                owner=record.owner, selectors=record.selectors, on=record.on, timeout=seconds
            )
            settle(wanted, replace(self.config.limits, memory=0))
        if record.state is not State.RUNNING or record.started is None:
            return changes
        return {**changes, "expires": record.started + seconds if seconds else None}

    def _shown(self, record: BoardRecord) -> BoardRecord:
        if record.on == INSTANT and record.state is State.RUNNING:
            self.reader.show(record)
            self.reader.begin(record.id)
        return record

    # Isolated boards.

    def lookup(self, board_id: str) -> Address | NotServing | None:
        """Tell the proxy where a board listens."""
        record = self.lifecycle.known(board_id)
        return None if record is None else self._address(record)

    def _address(self, record: BoardRecord) -> Address | NotServing:
        if record.state is not State.RUNNING:
            return NotServing(record.state, record.reason)
        if self.lifecycle.is_silent(record):
            return NotServing(SILENT)
        try:
            return self.lifecycle.address(record) or NotServing(State.STARTING)
        except ExecutorError as error:
            return NotServing(State.LOST, str(error))

    def logs(self, record: BoardRecord, *, tail: int | None, follow: bool) -> Iterator[bytes]:
        """Yield the log of an isolated board; an instant one has none of its own."""
        executor = self.executors.get(record.on)
        if executor is None or record.handle is None:
            return
        yield from executor.logs(record.handle, tail=tail, follow=follow)

    def _directory(self, board_id: str) -> Path:
        return self.config.directory / "boards" / board_id

    def _temporary(self, record: BoardRecord) -> Path:
        """Return where a process keeps what ends with it; what earlier ones left is removed."""
        directory = self._directory(record.id)
        now = directory / f"tmp-{record.attempt}"
        for old in directory.glob("tmp-*"):
            if old != now:
                shutil.rmtree(old, ignore_errors=True)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        now.mkdir(mode=0o700, exist_ok=True)
        return now

    def _specify(self, record: BoardRecord) -> Spec:
        """Say how an isolated board is started: as `aboard view` of what it selects."""
        title = record.title or record.name
        board = self.catalog.board(record.id, title, record.selectors, record.template)
        options = ["--json", "--no-browser", "--port", "0", "--engine", str(record.engine)]
        options += ["--title", board.title]
        options += [part for root in self._confines for part in ("--confine", root)]
        if record.template:
            options += ["--template", record.template]
        if self.config.boards.poll is not None:
            options += ["--poll", str(self.config.boards.poll)]
        sources = [join(one.source.uri, one.source.only) for one in board.members]
        roots: list[str] = []
        if record.engine is Engine.FAST and not any(map(_is_path_here, record.selectors)):
            # It follows its selectors by itself, so that runs which start later join.
            sources = list(record.selectors)
            roots = [] if all(map(is_path, record.selectors)) else list(board.roots)
            options += [part for root in roots for part in ("--root", root)]
        if not board.members:
            raise EmptySelection("its selectors mean no run by now.", "Add some: aboard boards add")
        return Spec(
            board=record.id,
            command=(sys.executable, "-P", "-m", "aboard", "view", *options, "--", *sources),
            directory=self._directory(record.id),
            environment={
                "TMPDIR": str(self._temporary(record)),
                **credentials(os.environ, [*roots, *sources]),
                **self.catalog.environment(member.source for member in board.members),
            },
            memory=record.memory or None,
        )


def _place_of_stock(default: str) -> str:
    """Return where a board of the stock engine runs, if nobody says."""
    return default if default != INSTANT else "process"


def _check_together(on: str, engine: Engine, wish: NewBoard) -> None:
    if on != INSTANT:
        return
    if engine is Engine.STOCK:
        raise BadValue(
            "the stock engine needs a process of its own.", "Start it with --on process."
        )
    if wish.memory is not None and read_bytes(wish.memory):
        raise BadValue(
            "an instant board is part of the hub, and has no memory limit of its own.",
            "Start it with --on process.",
        )


def _is_path_here(selector: str) -> bool:
    """Say whether a command that is started here would take a selector for a path."""
    return not selector.startswith("/") and Path(selector).exists()
