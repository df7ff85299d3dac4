"""What instant boards show, kept fresh while somebody looks, and left alone while nobody does.

One look at a root tells which of its runs have changed, and only those that are on a board in use
are read; a raw place is looked at by itself. However many boards there are, a few threads do all
the looking, each root and place in the rhythm of `tensorboard.live`. What a board's selectors mean
is asked anew when runs have changed, or when somebody looks at it after that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from aboard.boards.model import BoardRecord
from aboard.hub.selection import Catalog
from aboard.index import Index, Source
from aboard.storage import StorageError
from aboard.tensorboard.board import Board
from aboard.tensorboard.live import CATCH_UP_SECONDS, UNWATCHED_SECONDS, Rhythm, rhythm_of
from aboard.tensorboard.provider import Boards

LOCAL_ROOT_SECONDS = 1.0
_TICK_SECONDS = 0.2
_LOOKERS, _READERS = 4, 8
_log = logging.getLogger(__name__)


class _Wish(NamedTuple):
    """What a board's record says about what it shows."""

    selectors: tuple[str, ...]
    template: str
    title: str


class _Read(NamedTuple):
    """What came of reading a source."""

    changed: bool
    complete: bool
    """Whether all of it could be read; what could not is tried again at the next look."""


@dataclass(eq=False)
class _Place:
    """A root or a raw source that is looked at as a whole."""

    uri: str
    is_root: bool
    source: Source
    rhythm: Rhythm
    due: float = 0.0
    looks: int = 0
    looked: float | None = None
    """When it was last looked at, counted from the beginning of the look."""
    busy: bool = False
    wanted: bool = False
    """Whether somebody came while it was being looked at, who may not have been seen to."""
    changes: int | None = None
    """How often the runs of a root had changed when boards were last chosen anew."""


@dataclass(eq=False)
class _Shown:
    """A board that is served here."""

    board: Board
    wish: _Wish
    places: list[_Place]
    asked: float = float("-inf")
    runs: int | None = None
    """How many it shows, once they have been counted."""
    is_current: bool = True
    """Whether its members are what its selectors mean by now."""
    sources: dict[str, Source] = field(init=False)
    """Those below roots, by their URIs."""

    def __post_init__(self) -> None:
        self.show(self.board, self.places)

    def show(self, board: Board, places: list[_Place]) -> None:
        """Take other members."""
        self.board, self.places, self.runs = board, places, None
        self.sources = {one.source.uri: one.source for one in board.members if one.name}


class Reader:
    """Serves boards from the index, and keeps the index up to date with them.

    Args:
        index: where the data goes.
        catalog: says what selectors mean.
        boards: the boards that are served.
        poll: seconds between two looks at a bucket where something changes.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        index: Index,
        catalog: Catalog,
        boards: Boards,
        *,
        poll: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = index
        self._catalog = catalog
        self._boards = boards
        self._poll = poll
        self._clock = clock
        self._lock = threading.RLock()
        self._shown: dict[str, _Shown] = {}
        self._places: dict[tuple[str, bool], _Place] = {}
        self._marks: dict[str, int] = {}
        self._listed = float("-inf")
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._looking = ThreadPoolExecutor(_LOOKERS, "aboard-look")
        self._reading = ThreadPoolExecutor(_READERS, "aboard-read")
        for root in catalog.roots:
            self._place(root.uri, is_root=True)
        self._thread = threading.Thread(target=self._run, name="aboard-reader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait until nothing is being read."""
        self._closed.set()
        self._wake.set()
        self._thread.join()
        for pool in (self._looking, self._reading):
            pool.shutdown(cancel_futures=True)

    def show(self, record: BoardRecord) -> None:
        """Serve a board as it is now; costs little where nothing has changed."""
        wish = _Wish(record.selectors, record.template, record.title or record.name)
        with self._lock:
            shown = self._shown.get(record.id)
            if shown is not None and shown.wish == wish:
                return
            board = self._made(record.id, wish)
            places = self._places_of(board)
            asked = shown.asked if shown else float("-inf")
            self._shown[record.id] = _Shown(board, wish, places, asked)
            self._boards.add(board)

    def hide_all_but(self, live: Iterable[str]) -> None:
        """Stop serving boards that have ended."""
        kept = set(live)
        with self._lock:
            for gone in self._shown.keys() - kept:
                del self._shown[gone]
                self._boards.remove(gone)
            used = {id(place) for shown in self._shown.values() for place in shown.places}
            for key, place in list(self._places.items()):
                if not place.is_root and id(place) not in used:
                    del self._places[key]

    def begin(self, board_id: str) -> None:
        """Look at a board's sources soon, because somebody is about to see it."""
        self._note(board_id)

    def asked(self, board_id: str) -> None:
        """Note that somebody looks at a board.

        The first to look after a pause waits a little, so as not to be shown old data.
        """
        waiting = self._note(board_id)
        deadline = time.monotonic() + CATCH_UP_SECONDS
        for place, looks in waiting:
            while place.looks <= looks and time.monotonic() < deadline:
                time.sleep(0.01)

    def _note(self, board_id: str) -> list[tuple[_Place, int]]:
        """Note that a board is in use; return what is worth waiting for, and its looks so far."""
        with self._lock:
            shown = self._shown.get(board_id)
            if shown is None:
                return []
            if not shown.is_current:
                self._choose(board_id, shown)
            now = self._clock()
            slept, shown.asked = now - shown.asked > UNWATCHED_SECONDS, now
            # What nobody has looked at yet is waited for by everybody, and not by the first only.
            waiting = [
                (place, place.looks + place.busy if slept else 0)
                for place in shown.places
                if slept or not place.looks
            ]
            for place, _ in waiting:
                place.due = min(place.due, now)
                place.wanted = place.busy
        if waiting:
            self._wake.set()
        return waiting

    def listed(self) -> None:
        """Note that somebody asks which runs there are."""
        slept = self._clock() - self._listed > UNWATCHED_SECONDS
        self._listed = self._clock()
        if slept:
            self._wake.set()

    def count(self, board_id: str, *, now: bool = False) -> int | None:
        """Return how many runs a board shows, as last counted or now; None if it is not served."""
        shown = self._shown.get(board_id)
        if shown is not None and (now or shown.runs is None):
            self._count(board_id, shown)
        return None if shown is None else shown.runs

    def lag(self) -> float:
        """Return the seconds since that place was looked at which has waited longest."""
        now = self._clock()
        with self._lock:
            looked = [place.looked for place in self._watched()]
        return max((now - at for at in looked if at is not None), default=0.0)

    def _place(self, uri: str, *, is_root: bool, source: Source | None = None) -> _Place:
        key = (uri, is_root)
        if key not in self._places:
            rhythm = rhythm_of(uri, self._poll, LOCAL_ROOT_SECONDS)
            self._places[key] = _Place(uri, is_root, source or Source(uri), rhythm)
        return self._places[key]

    def _made(self, board_id: str, wish: _Wish) -> Board:
        return self._catalog.board(board_id, wish.title, wish.selectors, wish.template)

    def _places_of(self, board: Board) -> list[_Place]:
        """Return what must be looked at for a board."""
        roots = {root.uri for root in self._catalog.roots}
        found = []
        for member in board.members:
            if not member.name:
                uri = f"{member.source.uri}/{member.source.only}"
                found.append(self._place(uri, is_root=False, source=member.source))
        if len(found) < len(board.members) or not board.members:
            found += [self._place(uri, is_root=True) for uri in roots]
        return found

    def _watched(self) -> list[_Place]:
        now = self._clock()
        watched = {
            id(place): place
            for shown in self._shown.values()
            if now - shown.asked <= UNWATCHED_SECONDS
            for place in shown.places
        }
        if now - self._listed <= UNWATCHED_SECONDS:
            watched |= {id(place): place for place in self._places.values() if place.is_root}
        return list(watched.values())

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                now = self._clock()
                due = [place for place in self._watched() if not place.busy and place.due <= now]
                for place in due:
                    place.busy = True
            for place in due:
                with suppress(RuntimeError):  # it is being closed
                    self._looking.submit(self._look, place)
            self._wake.wait(_TICK_SECONDS)
            self._wake.clear()

    def _look(self, place: _Place) -> None:
        started, began = time.thread_time(), self._clock()
        known, changed = self._was_just_looked_at(place), False
        try:
            if not place.is_root:
                changed = self._look_at_raw(place)
            elif known or self._catalog.refresh(place.uri) is not None:
                changed = self._read_changed(place)
        except Exception:  # noqa: BLE001 - a board that stands still for ever is worse
            _log.exception("cannot bring the index up to date with %s", place.uri)
        with self._lock:
            if not known or place.looked is None:
                place.rhythm.after(changed=changed, cost=time.thread_time() - started)
                place.looked = began
            place.due = began if place.wanted else self._clock() + place.rhythm.wait
            place.wanted = place.busy = False
            place.looks += 1

    def _was_just_looked_at(self, place: _Place) -> bool:
        """Say whether what is known of a root is new enough for a board that somebody opens."""
        if not place.is_root or place.looked is None:
            return False
        return self._clock() - place.looked < place.rhythm.shortest

    def _read_changed(self, place: _Place) -> bool:
        """Show runs that came and went, and read those that changed and are on boards in use."""
        changes = self._index.catalog_changes(place.uri)
        others = self._choose_anew() if changes != place.changes else set()
        base = place.uri.rstrip("/")
        marks = {
            f"{base}/{directory}" if directory else place.uri: mark
            for directory, mark in self._catalog.state(place.uri).marks.items()
        }
        unread = {uri: mark for uri, mark in marks.items() if self._marks.get(uri) != mark}
        stale = self._in_use_among(unread)
        jobs: list[Future[_Read]] = [
            self._reading.submit(self._read, one) for one in stale.values()
        ]
        read = [job.result() for job in jobs]
        for uri, one in zip(stale, read, strict=True):
            if one.complete:
                self._marks[uri] = unread[uri]
        self._count_where(
            lambda board_id, shown: board_id in others or not shown.sources.keys().isdisjoint(stale)
        )
        is_new, place.changes = changes != place.changes, changes
        return is_new or any(one.changed for one in read)

    def _look_at_raw(self, place: _Place) -> bool:
        changed = self._read(place.source).changed
        if changed:
            self._count_where(lambda _, shown: place in shown.places)
        return changed

    def _in_use_among(self, uris: Mapping[str, int]) -> dict[str, Source]:
        """Return those sources that are on boards in use."""
        now = self._clock()
        with self._lock:
            return {
                uri: shown.sources[uri]
                for shown in self._shown.values()
                if now - shown.asked <= UNWATCHED_SECONDS
                for uri in shown.sources.keys() & uris.keys()
            }

    def _choose_anew(self) -> set[str]:
        """Let runs join the boards whose selectors mean them, and leave those that are gone.

        Boards that nobody looks at wait for somebody who does.

        Returns:
            The ids of the boards that show others than before.
        """
        with self._lock:
            now = self._clock()
            others = set()
            for board_id, shown in self._shown.items():
                shown.is_current = False
                if now - shown.asked <= UNWATCHED_SECONDS and self._choose(board_id, shown):
                    others.add(board_id)
            return others

    def _choose(self, board_id: str, shown: _Shown) -> bool:
        """Show what a board's selectors mean now; tell whether that is something else."""
        board = self._made(board_id, shown.wish)
        shown.is_current = True
        listing = self._boards.get(board_id)
        if board == shown.board or listing is None:
            return False
        shown.show(board, self._places_of(board))
        listing.show(board)
        return True

    def _read(self, source: Source) -> _Read:
        if self._closed.is_set():
            return _Read(changed=False, complete=False)
        try:
            report = self._index.refresh(source)
        except StorageError as error:
            _log.debug("%s", error)
            return _Read(changed=False, complete=False)
        return _Read(bool(report.files_read or report.files_gone), not report.problems)

    def _count_where(self, is_meant: Callable[[str, _Shown], bool]) -> None:
        with self._lock:
            meant = [one for one in self._shown.items() if is_meant(*one)]
        for board_id, shown in meant:
            self._count(board_id, shown)

    def _count(self, board_id: str, shown: _Shown) -> None:
        listing = self._boards.get(board_id)
        if listing is not None:
            shown.runs = len(listing.runs())
