"""The hub without HTTP: it connects the parts, and implements operations on boards and engines.

Callers check permissions. The lifecycle of boards is left to `boards`. A trial of an engine is a
board that writes a few points and shows them, so that an engine can be tested without a source that
it can reach. `aboard doctor --engine` starts one.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from aboard.boards.accounts import User
from aboard.boards.lifecycle import Lifecycle, Settings
from aboard.boards.model import (
    FIELDS,
    INSTANT,
    LIVE,
    BadValue,
    BoardRecord,
    BoardState,
    DatabaseUnavailable,
    Engine,
    NoSuchName,
    check_timeout,
    fill_limits,
    parse_request,
)
from aboard.boards.registry import Created, Page, Registry, no_such_board, resolve_board
from aboard.executors import PROCESS, make_executors, places, split_place, unknown_place
from aboard.executors.base import (
    PYTHON,
    Address,
    EngineReport,
    Executor,
    ExecutorError,
    Spec,
    log_host,
)
from aboard.hub.auth import Auth
from aboard.hub.config import Config
from aboard.hub.events import Events
from aboard.hub.jobs import HubJobs
from aboard.hub.permissions import Action, may, seen_by
from aboard.hub.proxy import (
    ELSEWHERE,
    IMPERSONATED,
    OTHER_CERTIFICATE,
    SILENT,
    BoardStatus,
    NotServing,
    TrialReport,
    examine_address,
    fetch_status,
    probe,
)
from aboard.hub.runs import HubRuns
from aboard.index import Index
from aboard.index.library import Library, Member
from aboard.index.sources import Source
from aboard.runs import RunsError
from aboard.runs.catalog import KnownRun
from aboard.runs.naming import Band, Grouping, Show, Template
from aboard.runs.question import Question
from aboard.runs.selectors import NothingMatches, Selector
from aboard.runs.units import parse_duration
from aboard.sdk.personal import remember_personal
from aboard.storage import BadUri, canonical, is_below, is_remote, join
from aboard.storage.local import confine
from aboard.storage.settings import credential_files, credentials, set_profile
from aboard.tensorboard.board import BoardSelection
from aboard.tensorboard.follower import Follower
from aboard.tensorboard.provider import Boards

_TRIAL = "tag:aboard-doctor"
"""The first selector of a trial; the others are local roots that it tries to read."""
_TRIAL_SECONDS = 1800.0  # then the engine stops it, even without the hub
_SERVE_TRIAL = "from aboard.cli.engines import serve_trial; serve_trial()"
_ENGINE_SECONDS = 10.0  # for the answer of an engine to a probe
# How long the first description of a board waits for its buckets, so that users see their errors.
_BUCKET_SECONDS = 5.0
_MOST_SOURCES = 100
_COUNT_SECONDS = 1.0  # for counting the runs of listed boards that are not served yet
_LAST_LINES = 10
_LINES_ARE_FRESH = 2.0
_EXTRA_SECONDS = 60.0  # added to the engine's time limit, so that the hub's is reached first


class Hub:
    """A running hub; a `personal` one has a single user."""

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
            self._roots_lock = threading.Lock()
            self._lines_lock = threading.Lock()
            self._last_lines: dict[tuple[str, int], tuple[float, tuple[str, ...]]] = {}
            self.library = Library(self.index, config.roots, any_path=any_path)
            self.boards = Boards(self.library)
            self.follower = Follower(
                self.library, self.boards, poll=config.boards.poll, on_data=self._note_data
            )
            closing.callback(self.follower.close)
            self.runs = HubRuns(self.library, self.follower, clock)
            self.executors = make_executors(
                config.engines(personal=personal), hub=self.registry.hub_id
            )
            for executor in self.executors.values():
                closing.callback(executor.close)
            self.engines = Engines(self.executors)
            self.jobs = HubJobs(
                self.library,
                config.job_engines(personal=personal),
                submits=personal or config.jobs.submit,
                strict=not personal,
            )
            closing.callback(self.jobs.close)
            self.lifecycle = Lifecycle(
                self.registry,
                self.executors,
                self._specify,
                limits=lambda _: config.limits,
                settings=settings,
                probe=probe,
            )
            self.auth = Auth(self.registry, session_seconds=config.session)
            closing.callback(self.auth.close)
            self.events = Events(self)
            closing.callback(self.events.close)
            self._closing = closing.pop_all()

    def start(self) -> None:
        """Start the lifecycle loop, which also adopts boards of an earlier process."""
        self.lifecycle.tick()
        self.lifecycle.start()

    def close(self) -> None:
        """Stop the loop; isolated boards keep running."""
        self.lifecycle.close()
        self._closing.close()

    def add_root(self, text: str) -> tuple[str, bool]:
        """Add a root and list its runs; a personal hub remembers it for its next start.

        Return its URI and whether it is new.
        """
        if "://" not in text and not text.startswith("/"):
            raise BadValue(
                f"{text[:200]!r} is a relative path, and the hub has another working directory.",
                "Use an absolute path, such as /data/runs.",
            )
        try:
            uri = canonical(text)
        except BadUri as error:
            raise BadValue(str(error)) from error
        with self._roots_lock:
            if uri in self.library.uris:
                return uri, False
            if not self.library.any_path and not is_remote(uri):
                self._confines.append(uri)
                confine(self._confines)
            self.library.add_root(uri)
            if self.personal:
                remember_personal(self.config.directory, roots=self.library.uris)
        self.library.refresh(uri)
        return uri, True

    def _note_data(self, uri: str) -> None:
        self.events.note_data(uri)

    # Finding boards.

    def find(self, ref: str, user: User) -> BoardRecord:
        """Return a board by its id, its name, or a prefix of either."""
        try:
            return self.registry.find(ref, user=user.name, seen_by=seen_by(user))
        except DatabaseUnavailable:
            mine = [
                board
                for board in self._live_boards(user)
                if board.id.startswith(ref) or board.name.startswith(ref)
            ]
            with suppress(NoSuchName):
                return resolve_board(ref, mine, user.name)
            raise

    def shows(self, record: BoardRecord, run: KnownRun) -> bool:
        """Return whether a board currently selects a run."""
        return any(is_below(run.uri, one.source.uri) for one in self._members(record))

    def _members(self, record: BoardRecord) -> list[Member]:
        """Return what a board currently selects; empty if its selection cannot be resolved."""
        try:
            selection = _selection_of(record)
            return self.library.members(selection.selectors, selection.question)
        except RunsError:
            return []

    def page(
        self,
        user: User,
        *,
        states: Collection[BoardState] = (),
        owner: str | None = None,
        name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page:
        """Return a page of the boards that a user may see; only live ones without a database."""
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
                for board in self._live_boards(user)
                if (not states or board.state in states)
                and owner in {None, board.owner}
                and name in {None, board.name}
            ]
            return Page(found[:limit], len(found), None)

    def _live_boards(self, user: User) -> list[BoardRecord]:
        boards = self.lifecycle.snapshot().boards.values()
        seen = [board for board in boards if may(user, Action.SEE, board)]
        return sorted(seen, key=lambda board: (board.created, board.id), reverse=True)

    def describe_all(self, records: Iterable[BoardRecord]) -> Iterator[BoardRecord]:
        """Yield boards with their computed fields, without waiting for sources.

        Runs of boards that are not served yet, for example after a restart, are counted in the
        index, for a limited time.
        """
        ends = time.monotonic() + _COUNT_SECONDS
        for record in records:
            serve = _is_served(record) and time.monotonic() < ends
            yield self.describe(record, closely=False, serve=serve)

    def describe(
        self, record: BoardRecord, *, closely: bool = True, serve: bool = False
    ) -> BoardRecord:
        """Return a board with its computed fields; `closely` counts its runs again."""
        try:
            if serve:
                self.show(record)
            runs, problems, missing = self._status(record, closely=closely)
        except RunsError as error:  # stored by a version with other rules
            runs, problems, missing = BoardStatus(problems=[str(error)])
        condition = ""
        if self.lifecycle.is_unhealthy(record):
            condition = "not answering"
            problems = list(filter(None, [self.lifecycle.why_silent(record)]))
        elif problems:
            condition = "source cannot be read"
        elif record.state is BoardState.RUNNING and runs == 0:
            condition = "waiting for data"
            self.follower.runs_requested()  # for the next description
        live = self.lifecycle.known(record.id)
        used = (record.last_request, live.last_request if live is not None else None)
        computed: dict[str, Any] = {
            "url": f"{self.config.prefix}/b/{record.id}/",
            "condition": condition,
            "unit": self.lifecycle.unit(record),
            "problems": tuple(problems),
            "missing_fields": None if missing is None else tuple(missing),
            "runs": runs,
            "last_request": max((at for at in used if at is not None), default=None),
        }
        if closely and record.is_live:
            computed["sources"] = _sources(self._members(record))
        return BoardRecord(**vars(record) | computed)  # three times as fast as `replace`

    def _status(self, record: BoardRecord, *, closely: bool) -> BoardStatus:
        if record.state is not BoardState.RUNNING:
            return BoardStatus()
        if record.on == INSTANT:
            if closely:
                self.probe_buckets(self._served(record))
                self.follower.count(record.id, now=True)
            runs, problems, missing, is_read = self.follower.status(record.id)
            if runs is None:
                runs = self.follower.count(record.id)
            if problems:  # check again for the next description
                self.follower.requested(record.id, wait=False)
            elif not closely:
                problems = self._root_problems(record)
            if runs is None or (runs == 0 and not closely and not is_read):
                runs = self._selected(record)
            if runs is None:  # count for the next description
                self.follower.requested(record.id, wait=False)
            return BoardStatus(runs, problems, missing)
        if closely and not self.lifecycle.is_unhealthy(record):
            address = self._address(record)
            return fetch_status(address) if isinstance(address, Address) else BoardStatus()
        return BoardStatus(self._selected(record), self._root_problems(record))

    def _selected(self, record: BoardRecord) -> int | None:
        """Count the known runs that a board selects; None if some may be unknown."""
        try:
            selection = _selection_of(record)
            places = [one.place for one in selection.selectors if one.place]
            if any(not self._roots_above(place) for place in places):
                return None
            question = selection.question or Question()
            found = len(self.library.members(selection.selectors, question))
        except RunsError:
            return None
        if not found and any(self.library.state(root).at is None for root in self.library.uris):
            return None
        return found

    def _root_problems(self, record: BoardRecord) -> list[str]:
        """Return the errors of the last listing of the roots of a board's paths and URIs."""
        places = [one for one in record.selectors if "://" in one or one.startswith("/")]
        roots = dict.fromkeys(root for place in places for root in self._roots_above(place))
        errors = (self.library.state(root).error for root in roots)
        return [str(error) for error in errors if error is not None]

    def _roots_above(self, place: str) -> list[str]:
        return [root for root in self.library.uris if is_below(place, root)]

    # Changing boards.

    def create(
        self, user: User, request: Mapping[str, Any], *, new: bool = False, key: str | None = None
    ) -> Created:
        """Create a board, or find the live one with the same selection and change it as requested.

        `request` has the fields that the client gave; None stands for the hub's default. With `new`
        a board is created even if the selection has a live one. `key` is the idempotency key.
        """
        given = parse_request(request)
        values = {**self.config.boards.fields(), **given}
        if "on" not in given and values["engine"] is Engine.STOCK and values["on"] == INSTANT:
            values["on"] = PROCESS  # the stock engine needs a process
        if values["on"] == INSTANT:
            _check_instant(values["engine"], given)
            values.pop("memory", None)
            values.pop("cpus", None)
        if template := given.get("template"):
            Template.parse(template)
        if group_by := given.get("group_by"):
            Grouping.parse(group_by)
            if values["engine"] is Engine.STOCK:
                raise BadValue(
                    "the stock engine cannot group runs.", "Start it without --engine stock."
                )
        selectors = self.library.parse(given["selectors"])
        values["selectors"] = tuple(one.text for one in selectors)
        members = self.library.resolve(selectors)
        values = fill_limits(values, self.config.limits)
        draft = BoardRecord(owner=user.name, **values)
        if (question := _question(draft.where, draft.sort, draft.limit)) is not None:
            self._ensure_known(selectors)
            members = self.library.members(selectors, question)
        draft = replace(draft, sources=_sources(members))
        created = self.lifecycle.create(draft, new=new, key=key)
        if not created.is_new:
            created = Created(self._update_existing(created.board, given), False)
        self._served(created.board)
        return created

    def _ensure_known(self, selectors: Sequence[Selector]) -> None:
        """Make sure that the library knows the runs below paths, for a question about them."""
        for one in selectors:
            if not one.place or self._roots_above(one.place):
                continue
            if not self.personal:
                raise BadValue(
                    f"{one.text[:200]!r} is outside the hub's roots, so its runs are unknown.",
                    "Leave out where, sort and limit, or select runs below a root.",
                )
            self.add_root(one.place)

    def _update_existing(self, record: BoardRecord, given: Mapping[str, Any]) -> BoardRecord:
        for name, what in (("memory", "memory limit"), ("cpus", "number of processors")):
            if given.get(name, getattr(record, name)) != getattr(record, name):
                raise BadValue(
                    f"board {record.name} ({record.id}) has this selection and another {what}.",
                    "Create another board with --new, or stop this one first.",
                )
        changes = {
            name: value
            for name, value in given.items()
            if name != "name" and FIELDS[name].about.change and value != getattr(record, name)
        }
        return self.change(record, changes) if changes else record

    def change(
        self, record: BoardRecord, request: Mapping[str, Any], extend: str | float | None = None
    ) -> BoardRecord:
        """Change fields of a board, and extend its time limit."""
        if changes := parse_request(request):
            record = self.lifecycle.change(record.id, lambda now: self._with_expiry(now, changes))
        if extend is not None:
            record = self.lifecycle.extend(record.id, parse_duration(extend))
        return self._served(record)

    def select(self, record: BoardRecord, add: Sequence[str], remove: Sequence[str]) -> BoardRecord:
        """Add and remove selectors of a board; an isolated one restarts with them."""
        added, removed = self.library.parse(add), self.library.parse(remove)
        if added:
            self.library.resolve(added)

        def changed(now: BoardRecord) -> dict[str, Any]:
            before = _selection_of(now)
            selectors = self.library.changed(before.selectors, added, removed)
            texts = tuple(one.text for one in selectors)
            if texts == now.selectors:
                return {}
            members = self.library.members(selectors, before.question)
            return {"selectors": texts, "sources": _sources(members)}

        after = self.lifecycle.change(record.id, changed, restart="its selection changed")
        return self._served(after)

    def delete(self, record: BoardRecord, *, force: bool = False) -> str:
        """Delete a board; an instant one is stopped first.

        With `force`, delete also one that is stopping and whose engine may be gone, and return what
        may still run.
        """
        left = ""
        if record.is_live and not record.is_isolated:
            record = self.lifecycle.stop(record.id, reason="it was deleted")
        elif record.state is BoardState.STOPPING and force:
            left = self.lifecycle.leftover(record)
            record = self.lifecycle.abandon(record.id)
        self.registry.delete(record)
        shutil.rmtree(self._directory(record.id), ignore_errors=True)
        return left

    def _with_expiry(self, record: BoardRecord, changes: dict[str, Any]) -> dict[str, Any]:
        if "timeout" not in changes:
            return changes
        seconds = changes["timeout"]
        check_timeout(replace(record, timeout=seconds), self.config.limits)
        if record.state is not BoardState.RUNNING or record.started is None:
            return changes
        return {**changes, "expires": record.started + seconds if seconds else None}

    def show(self, record: BoardRecord) -> None:
        """Serve an instant board according to its record; cheap if nothing has changed."""
        self.follower.show(_selection_of(record))

    def _served(self, record: BoardRecord) -> BoardRecord:
        if _is_served(record):
            self.show(record)
            self.follower.requested(record.id, wait=False)
        return record

    def may_wait(self, record: BoardRecord) -> bool:
        """Return whether the description of a board waits for a bucket or its own process."""
        return record.on != INSTANT or any("://" in one for one in record.selectors)

    def probe_buckets(self, record: BoardRecord) -> None:
        """Wait a moment for the buckets of a new board."""
        if record.on == INSTANT and self.may_wait(record):
            self.follower.probe(record.id, _BUCKET_SECONDS)

    # Engines.

    def try_engine(self, user: User, name: str, *, roots: bool) -> BoardRecord:
        """Start a trial on an engine; with `roots`, it reads the local roots of the hub."""
        self.engines.executor(name)
        read = [uri for uri in self.library.uris if roots and not is_remote(uri)]
        values = fill_limits({"on": name}, self.config.limits)
        values["timeout"] = min(_TRIAL_SECONDS, values["timeout"] or _TRIAL_SECONDS)
        draft = BoardRecord(owner=user.name, selectors=(_TRIAL, *read), **values)
        return self.lifecycle.create(draft, new=True).board

    def examine_trial(self, user: User, name: str, board_id: str) -> TrialReport:
        """Connect to a user's trial without a token, and report what remains of it."""
        executor = self.engines.executor(name)
        report = TrialReport()
        try:
            record = self.registry.get(board_id)
        except NoSuchName:
            pass  # it was deleted
        else:
            if not _is_trial(record) or not may(user, Action.SEE, record):
                raise no_such_board(board_id)
            report = TrialReport(accepted=record.handle is not None)
            address = self.lifecycle.address(record) if record.is_live else None
            report = report if address is None else examine_address(address)
        starts = [one for one in executor.found() if one.board == board_id]
        left = [f"aboard-{one.board}-{one.attempt} on {name}" for one in starts]
        if self._directory(board_id).exists():
            left.append(str(self._directory(board_id)))
        return replace(report, left=tuple(left))

    # Isolated boards.

    def lookup(self, board_id: str) -> Address | NotServing | None:
        record = self.lifecycle.known(board_id)
        return None if record is None else self._address(record)

    def _address(self, record: BoardRecord) -> Address | NotServing:
        if record.state is not BoardState.RUNNING:
            return NotServing(record.state, record.reason)
        if not self.lifecycle.reaches(record):
            return NotServing(ELSEWHERE)
        if self.lifecycle.is_unhealthy(record):
            why = self.lifecycle.why_silent(record)
            return NotServing(IMPERSONATED if why == OTHER_CERTIFICATE else SILENT)
        try:
            return self.lifecycle.address(record) or NotServing(BoardState.STARTING)
        except ExecutorError as error:
            return NotServing(BoardState.LOST, str(error))

    def logs(self, record: BoardRecord, *, tail: int | None, follow: bool) -> Iterator[bytes]:
        """Yield the log of an isolated board; an instant one has none.

        Raises:
            NoSuchName: the log is on another machine.
        """
        executor = self.executors.get(record.executor)
        if executor is None or record.handle is None:
            return
        place = Path(record.handle.get("directory", "")) / "log"
        host = log_host(record.handle)
        is_here = host in {"", os.uname().nodename} or place.exists()
        if not (self.lifecycle.reaches(record) if record.is_live else is_here):
            raise NoSuchName(
                f"the log of board {record.name} ({record.id}) is on {host}, in {place}.",
                "Use the hub on that machine.",
            )
        yield from executor.logs(record.handle, tail=tail, follow=follow)

    def last_lines(self, record: BoardRecord) -> tuple[str, ...]:
        """Return the end of an isolated board's log, cached because many clients may reload it."""
        key = (record.id, record.attempt)
        with self._lines_lock:
            known = self._last_lines.get(key)
            now = time.monotonic()
            if known is not None and now - known[0] < _LINES_ARE_FRESH:
                return known[1]
            others = {one: read for one, read in self._last_lines.items() if now - read[0] < 60}
            # Other requests get the previous lines meanwhile, so that they need not wait.
            self._last_lines = {**others, key: (now, known[1] if known else ())}
        try:
            text = b"".join(self.logs(record, tail=_LAST_LINES, follow=False))
        except (ExecutorError, NoSuchName):
            text = b""
        lines = tuple(text.decode("utf-8", "replace").splitlines()[-_LAST_LINES:])
        with self._lines_lock:
            self._last_lines[key] = (time.monotonic(), lines)
        return lines

    def _directory(self, board_id: str) -> Path:
        return self.config.directory / "boards" / board_id

    def _temporary(self, record: BoardRecord) -> Path:
        directory = self._directory(record.id)
        now = directory / f"tmp-{record.attempt}"
        for old in directory.glob("tmp-*"):
            if old != now:
                shutil.rmtree(old, ignore_errors=True)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        now.mkdir(mode=0o700, exist_ok=True)
        return now

    def _local_places(self, places: Iterable[str]) -> tuple[Path, ...]:
        """Return the local directories that a board needs for some places.

        A place below a root needs the root, because links may lead there. No result is below
        another one and, if the hub is confined to its roots, none is outside them.
        """
        local = {place for place in places if place.startswith("/")}
        roots = {*self._confines, *map(os.path.realpath, self._confines)}
        found: set[str] = set()
        for path in local | {os.path.realpath(path) for path in local}:
            if not self.library.any_path:
                found.update(root for root in roots if is_below(path, root))
            elif Path(path).exists():
                found.add(path)
        outermost = [
            path for path in found if not any(is_below(path, other) for other in found - {path})
        ]
        return tuple(map(Path, sorted(outermost)))

    def _specify(self, record: BoardRecord) -> Spec:
        """Return the command of an isolated board: `aboard view` of its selection."""
        if _is_trial(record):
            return self._specify_trial(record)
        selection = _selection_of(record)
        selectors, question = selection.selectors, selection.question
        members = self.library.members(selectors, question)
        options = ["--json", "--no-browser", "--wait", "--engine", str(record.engine)]
        options += ["--title", record.title or record.name]
        options += [part for root in self._confines for part in ("--confine", root)]
        if record.template:
            options += ["--template", record.template]
        options += [part for one in record.group_by for part in ("--group-by", one)]
        if record.group_by:
            options += ["--band", str(record.band), "--show", str(record.show)]
        if self.config.boards.poll is not None:
            options += ["--poll", str(self.config.boards.poll)]
        sources = [join(one.source.uri, one.source.only) for one in members]
        read = [member.source for member in members]
        named = [one.place for one in selectors if one.place]
        roots: list[str] = []
        if record.engine is Engine.FAST and not any(map(_is_path_here, record.selectors)):
            # The board follows its selectors itself, so that runs which start later are shown.
            sources = list(record.selectors)
            roots = self.library.uris
            if len(named) == len(selectors):  # a root gives runs the names that a question uses
                above = {root for place in named for root in self._roots_above(place)}
                roots = [root for root in roots if root in above and question is not None]
            options += [part for root in roots for part in ("--root", root)]
            options += _question_options(record)
            if question is not None:
                read = [Source(place) for place in roots or named]
            elif not read:  # the runs of a job may start later
                of_jobs = (self.library.roots_of(one.job) for one in selectors)
                read = [Source(root) for found in of_jobs for root in found]
        if not read:
            raise NothingMatches("its selectors match no runs.", "Add some: aboard boards add")
        own = self.library.environment(read)
        places = [*roots, *sources, *named]
        return Spec(
            board=record.id,
            command=(PYTHON, "-P", "-m", "aboard", "view", *options, "--", *sources),
            directory=self._directory(record.id),
            attempt=record.attempt,
            profile=record.profile,
            environment={
                "TMPDIR": str(self._temporary(record)),
                **credentials(os.environ, [*roots, *sources]),
                **own,
            },
            reads=self._local_places([*places, *(one.uri for one in read)]),
            credential_files=credential_files({**os.environ, **own}, places),
            memory=record.memory or None,
            cpus=record.cpus or None,
            timeout=record.timeout + _EXTRA_SECONDS if record.timeout else None,
        )

    def _specify_trial(self, record: BoardRecord) -> Spec:
        roots = record.selectors[1:]
        return Spec(
            board=record.id,
            command=(PYTHON, "-P", "-c", _SERVE_TRIAL, *roots),
            directory=self._directory(record.id),
            attempt=record.attempt,
            profile=record.profile,
            environment={"TMPDIR": str(self._temporary(record))},
            reads=tuple(map(Path, roots)),
            memory=record.memory or None,
            cpus=record.cpus or None,
            timeout=record.timeout + _EXTRA_SECONDS,
        )


def _is_served(record: BoardRecord) -> bool:
    """Return whether the hub itself serves a board."""
    return record.on == INSTANT and record.state is BoardState.RUNNING


def _sources(members: Sequence[Member]) -> tuple[str, ...]:
    return tuple(member.source.uri for member in members[:_MOST_SOURCES])


def _selection_of(record: BoardRecord) -> BoardSelection:
    return _selection(
        record.id,
        record.title or record.name,
        record.selectors,
        record.template,
        (record.where, record.sort, record.limit),
        (record.group_by, record.band, record.show),
    )


@lru_cache(maxsize=4096)
def _selection(
    board_id: str,
    title: str,
    selectors: tuple[str, ...],
    template: str,
    question: tuple[str, tuple[str, ...], int],
    groups: tuple[tuple[str, ...], Band, Show],
) -> BoardSelection:
    return BoardSelection(
        board_id,
        title,
        Library.parse(selectors),
        Template.parse(template) if template else None,
        question=_question(*question),
        grouping=Grouping.parse(*groups),
    )


def _question(where: str, sort: tuple[str, ...], limit: int) -> Question | None:
    if not (where.strip() or sort or limit):
        return None
    return Question.parse(where, sort, limit or None)


def _question_options(record: BoardRecord) -> list[str]:
    options = [f"--sort={one}" for one in record.sort]
    options += [f"--where={record.where}"] if record.where else []
    return options + ([f"--limit={record.limit}"] if record.limit else [])


def _check_instant(engine: Engine, given: Mapping[str, Any]) -> None:
    if engine is Engine.STOCK:
        raise BadValue("the stock engine needs its own process.", "Start it with --on process.")
    for name, what in (("memory", "memory"), ("cpus", "processor")):
        if given.get(name):
            raise BadValue(
                f"an instant board is part of the hub and cannot have its own {what} limit.",
                "Start it with --on process.",
            )


def _is_path_here(selector: str) -> bool:
    """Return whether a command in this directory would treat a selector as a path."""
    return not selector.startswith("/") and Path(selector).exists()


def _is_trial(record: BoardRecord) -> bool:
    return record.selectors[:1] == (_TRIAL,)


class ProbedEngine(NamedTuple):
    """A place for boards and the report of its engine; None if it was not probed."""

    name: str
    report: EngineReport | None


class Engines:
    """Probes engines, each in its own thread and one probe at a time."""

    def __init__(
        self, executors: Mapping[str, Executor], *, seconds: float = _ENGINE_SECONDS
    ) -> None:
        self._executors = executors
        self._seconds = seconds
        self._lock = threading.Lock()
        self._probes: dict[str, Future[EngineReport]] = {}

    @property
    def names(self) -> list[str]:
        return places({name: one.profiles for name, one in self._executors.items()})

    def executor(self, name: str) -> Executor:
        if name not in self.names:
            raise NoSuchName(*unknown_place(name, self.names))
        return self._executors[split_place(name)[0]]

    def probe(self) -> list[ProbedEngine]:
        """Return the report of each engine; one that does not answer in time is a problem."""
        probes = {name: self._probe(name) for name in self.names}
        wait(probes.values(), self._seconds)
        return [ProbedEngine(name, self._result(probe)) for name, probe in probes.items()]

    def _probe(self, name: str) -> Future[EngineReport]:
        """Start a probe unless one is running, so that an engine that hangs holds one thread."""
        with self._lock:
            before = self._probes.get(name)
            if before is not None and not before.done():
                return before
            probe: Future[EngineReport] = Future()
            self._probes[name] = probe
        thread = threading.Thread(
            target=self._run, args=(name, probe), name=f"probe-{name}", daemon=True
        )
        thread.start()
        return probe

    def _run(self, name: str, probe: Future[EngineReport]) -> None:
        engine, profile = split_place(name)
        try:
            probe.set_result(self._executors[engine].probe(profile))
        except ExecutorError as error:
            probe.set_result(EngineReport(answers=False, problem=str(error)))
        except Exception as error:  # noqa: BLE001 - one engine must not hide the others
            problem = f"the probe failed: {error!r}."
            probe.set_result(EngineReport(answers=False, problem=problem, hint="Report this."))

    def _result(self, probe: Future[EngineReport]) -> EngineReport:
        if probe.done():
            return probe.result()
        problem = f"it did not answer within {self._seconds:g} s."
        return EngineReport(
            answers=False, problem=problem, hint="Check its service and the network."
        )
