"""The catalog: which runs are below a root, stored so that the next refresh is quick.

A refresh reads only the records that changed and, on a disk, only the directories that changed.
A run whose record cannot be parsed is listed as a raw directory, and each refresh reports it.
Changes are numbered: a caller that knows the runs as of one change reads only the later ones.
"""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, permutations
from typing import Any, NamedTuple

from aboard.events.files import MADE_BY
from aboard.index.query import describe, logged_names
from aboard.index.schema import next_change, transaction
from aboard.runs import manifest
from aboard.runs.catalog import (
    Found,
    KnownRun,
    find_runs,
    is_of_a_run,
    natural,
    parse_quickly,
    parse_record,
    with_parents,
)
from aboard.runs.manifest import FILE_NAME, Attempt, BadManifest, Manifest, State, newer
from aboard.storage import (
    NoSuchPath,
    Storage,
    StorageError,
    is_below,
    is_remote,
    join,
    open_storage,
    split,
)
from aboard.storage.local import Folder, Folders, LocalStorage

_READERS = 32
_HOST = re.compile(r"(.*?)(?:\.\d+\.\d+.*)?")  # often followed by process and count
_LEVELS = 4  # from a directory of event files up to that of the record
_refreshed: dict[str, float] = {}  # when this process last refreshed a root
_UNREAD = ""  # version of a record that could not be read; no record has it
_COLUMNS = ", ".join(KnownRun._fields)
_CONTENT = (*KnownRun._fields[2:], "linked")
_STORED = ("root", "directory", *_CONTENT, "version", "added", "changed")
_UPSERT = (
    f"INSERT INTO run ({', '.join(_STORED)}) VALUES ({', '.join('?' for _ in _STORED)})"
    " ON CONFLICT (root, directory) DO UPDATE SET version = excluded.version, "
    + ", ".join(f"{name} = excluded.{name}" for name in _CONTENT)
    # The number of the change is kept if the content is the same.
    + f", changed = CASE WHEN ({', '.join(_CONTENT)}) IS"
    f" ({', '.join(f'excluded.{name}' for name in _CONTENT)})"
    " THEN changed ELSE excluded.changed END"
)

CHUNK_SHIFT = 14  # the chunk of a run in columns is its id shifted by this; also in the schema


@dataclass(slots=True)
class CatalogReport:
    """The result of a refresh.

    `marks` maps each run's directory to a value that changes when its event files change. Marks
    are comparable only within one process.
    """

    problems: list[Exception] = field(default_factory=list)
    changed: bool = False
    marks: dict[str, int] = field(default_factory=dict)


def refresh_catalog(
    connection: sqlite3.Connection, root: str, *, marks: bool = True
) -> CatalogReport:
    """Update the catalog of a root. Computing the marks needs a `stat` of every event file.

    Raises:
        StorageError: the root itself cannot be listed.
    """
    storage = open_storage(root)
    unlisted: list[StorageError] = []
    folders: _StoredFolders | None = None
    if isinstance(storage, LocalStorage):
        folders = _StoredFolders(connection, storage, marks=marks)
        found = find_runs(folders.list(on_error=unlisted.append))
    else:
        found = find_runs(storage.list(on_error=unlisted.append))
    known = {
        row[0]: _Known._make(row)
        for row in connection.execute(
            "SELECT directory, version, problem, heartbeat, seen FROM run WHERE root = ?",
            (storage.uri,),
        )
    }
    changed = {
        directory: run
        for directory, run in found.items()
        if directory not in known or known[directory].version != run.version
    }
    report = CatalogReport(list(unlisted))
    if marks:
        report.marks = {one: run.mark for one, run in found.items()}
    now = time.time()
    since = now - _refreshed.get(storage.uri, 0.0)
    rows = [
        (version, _seen(run, known.get(run.directory), now, since))
        for version, run in _read_runs(storage, changed, known.keys(), report.problems)
    ]
    _refreshed[storage.uri] = now
    report.problems += [
        BadManifest(one.problem)
        for directory, one in known.items()
        if one.problem and directory in found and directory not in changed
    ]
    # Runs below a directory that could not be listed may still exist.
    gone = [
        (storage.uri, directory)
        for directory in known.keys() - found.keys()
        if not _is_in_doubt(join(storage.uri, directory), unlisted)
    ]
    if rows or gone:
        store_runs(connection, storage.uri, rows, gone)
        report.changed = True
    if folders is not None:
        folders.store()
    return report


class _Known(NamedTuple):
    directory: str
    version: str | None
    problem: str
    heartbeat: float
    seen: float


def _seen(run: KnownRun, known: _Known | None, now: float, since: float) -> KnownRun:
    """Set when a heartbeat arrived, by the clock of this machine, if the last refresh was recent.

    The clock of the run's host may be wrong.
    """
    if known is None:
        return run
    came_in = run.heartbeat > known.heartbeat and 0 <= since < run.heartbeat_secs * 2
    return run._replace(seen=now if came_in else known.seen)


def _is_in_doubt(directory: str, unlisted: Iterable[StorageError]) -> bool:
    return any(is_below(directory, one.place) or is_below(one.place, directory) for one in unlisted)


def known_runs(connection: sqlite3.Connection, roots: Sequence[str]) -> list[KnownRun]:
    """Return the runs below the roots, as of their last refresh, in natural order.

    A run below two of the roots is returned once, for the first of them.
    """
    runs: list[KnownRun] = []
    for root in sorted(set(roots)):
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM run WHERE root = ? ORDER BY directory", (root,)
        )
        runs += map(KnownRun._make, rows)
    if any(is_below(one, other) for one, other in permutations(set(roots), 2)):
        places = {root: at for at, root in reversed(list(enumerate(roots)))}
        first: dict[str, int] = {}
        for run in runs:
            first[run.uri] = min(places[run.root], first.get(run.uri, len(places)))
        runs = [run for run in runs if first[run.uri] == places[run.root]]
    return sorted(runs, key=lambda run: natural(run.label))


def known_run(connection: sqlite3.Connection, root: str, directory: str) -> KnownRun | None:
    """Return one run as of the last refresh of its root."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM run WHERE root = ? AND directory = ?", (root, directory)
    ).fetchone()
    return None if row is None else KnownRun._make(row)


def runs_by_id(connection: sqlite3.Connection, ids: Sequence[int]) -> dict[int, KnownRun]:
    rows = connection.execute(
        f"SELECT id, {_COLUMNS} FROM run WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(ids),),
    )
    return {row[0]: KnownRun._make(row[1:]) for row in rows}


def ids_of(
    connection: sqlite3.Connection, root: str, directories: Collection[str]
) -> dict[str, int]:
    """Return the ids of the runs among `directories`, by directory."""
    rows = connection.execute(
        "SELECT directory, id FROM run WHERE root = ?"
        " AND directory IN (SELECT value FROM json_each(?))",
        (root, json.dumps(list(directories))),
    )
    return dict(rows.fetchall())


def named_runs(
    connection: sqlite3.Connection, name: str, experiments: Collection[str]
) -> list[int]:
    """Return the ids of the runs with a name in any of the experiments."""
    rows = connection.execute(
        "SELECT id FROM run WHERE experiment IN (SELECT value FROM json_each(?)) AND name = ?",
        (json.dumps(list(experiments)), name),
    )
    return [one for (one,) in rows]


def repeated_runs(connection: sqlite3.Connection, root: str, inner: str) -> list[tuple[int, int]]:
    """Return the runs listed both below `root` and below `inner`, a root inside it.

    Each is a pair of its id below `root` and its id below `inner`.
    """
    below = inner[len(root.rstrip("/")) + 1 :]
    return connection.execute(
        "SELECT outside.id, inside.id FROM run AS inside JOIN run AS outside"
        " ON outside.root = ? AND outside.directory ="
        " CASE inside.directory WHEN '' THEN ? ELSE ? || '/' || inside.directory END"
        " WHERE inside.root = ?",
        (root, below, below, inner),
    ).fetchall()


def put_record(
    connection: sqlite3.Connection, root: str, directory: str, record: Manifest
) -> KnownRun:
    """Store a record that this process just wrote; the next refresh reads it again."""
    known = known_run(connection, root, directory)
    run = KnownRun.of_record(root, directory, record)
    run = run if known is None else run._replace(seen=known.seen)
    store_runs(connection, root, [(_UNREAD, run)], [])
    return known_run(connection, root, directory) or run


def describe_runs(
    connection: sqlite3.Connection, directories: Collection[str], hparams_in: Container[str]
) -> None:
    """Store what event files tell about the runs that contain the directories.

    They fill the same columns as records do: hyperparameters and metrics of raw runs, and the
    hyperparameters of runs whose record has none. The latter are only looked up if they may have
    changed, in the directories `hparams_in`.
    """
    for (root,) in connection.execute("SELECT uri FROM root").fetchall():
        start = len(root.rstrip("/")) + 1
        above = {one: with_parents(one[start:]) for one in directories if is_below(one, root)}
        if not above:
            continue
        ids = ids_of(connection, root, {place for places in above.values() for place in places})
        with_new_hparams: dict[int, bool] = {}
        for one, places in above.items():
            run_id = next((ids[place] for place in places if place in ids), None)
            if run_id is not None:
                with_new_hparams[run_id] = with_new_hparams.get(run_id, False) or one in hparams_in
        found = runs_by_id(connection, list(with_new_hparams))
        before = [run for one, run in found.items() if not run.is_recorded or with_new_hparams[one]]
        if before:
            _store_described(connection, root, before, _described(connection, root, before))


def _described(
    connection: sqlite3.Connection, root: str, runs: Sequence[KnownRun]
) -> dict[str, KnownRun]:
    """Return the runs that have event files, by URI, with what these tell about them."""
    raw = [run.uri for run in runs if not run.is_recorded]
    recorded = [run.uri for run in runs if run.is_recorded]
    below = _runs_below(connection, root, [run.directory for run in runs])
    others = {join(root, one) for one in below}
    of_raw = describe(connection, raw, others)
    of_recorded = describe(connection, recorded, others, with_metrics=False)
    found = {}
    for run in runs:
        if run.uri in of_raw:
            found[run.uri] = run.described(*of_raw[run.uri])
        elif run.uri in of_recorded:
            found[run.uri] = run.described(of_recorded[run.uri].hparams)
    return found


def _runs_below(connection: sqlite3.Connection, root: str, directories: Sequence[str]) -> list[str]:
    """Return the runs below the directories, without the directories themselves."""
    rows = connection.execute(
        "SELECT DISTINCT directory FROM json_each(?) AS given CROSS JOIN run WHERE run.root = ?"
        " AND directory > CASE given.value WHEN '' THEN '' ELSE given.value || '/' END"
        " AND directory < CASE given.value WHEN '' THEN char(0x10ffff) ELSE given.value || '0' END",
        (json.dumps(directories), root),
    )
    return [directory for (directory,) in rows]


def _store_described(
    connection: sqlite3.Connection,
    root: str,
    before: Sequence[KnownRun],
    after: Mapping[str, KnownRun],
) -> None:
    changed, doubtful = [], []
    for known in before:
        run = after.get(known.uri) or known.described({}, None if known.is_recorded else {})
        if not known.is_recorded or known.hparams_json == "{}":
            changed += [(known, run)] * (known != run)
        elif known.hparams != run.hparams:
            doubtful.append(run.directory)
    if not changed and not doubtful:
        return
    with transaction(connection):
        # What a recorded run has may be from its record: the next refresh reads it again.
        connection.executemany(
            "UPDATE run SET version = ? WHERE root = ? AND directory = ? AND recorded_state != ''",
            [(_UNREAD, root, directory) for directory in doubtful],
        )
        if not changed:
            return
        change = next_change(connection)
        connection.executemany(
            "UPDATE run SET hparams_json = ?, metrics_json = ?, changed = ?"
            " WHERE root = ? AND directory = ? AND recorded_state = ?"
            " AND (recorded_state = '' OR hparams_json = '{}')",
            [
                (run.hparams_json, run.metrics_json, change, *run[:2], run.recorded_state)
                for _, run in changed
            ],
        )
        # New values arrive with every point; they only affect selections that read points.
        if any(
            run.hparams_json != known.hparams_json or run.metrics.keys() != known.metrics.keys()
            for known, run in changed
        ):
            connection.execute("UPDATE root SET changes = ? WHERE uri = ?", (change, root))
    _fold_if_due(connection)


def forget_run(connection: sqlite3.Connection, root: str, directory: str) -> None:
    """Remove a run that this process has deleted."""
    store_runs(connection, root, [], [(root, directory)])


class CatalogChanges(NamedTuple):
    """The runs added, changed and removed since a change, and the number of the last change."""

    change: tuple[int, int]
    new: list[KnownRun]
    changed: list[KnownRun]
    gone: list[tuple[str, str]]  # root and directory
    is_complete: bool = True  # if not, more runs may have been removed, and forgotten


def changes_since(
    connection: sqlite3.Connection, since: tuple[int, int] | None, roots: Collection[str]
) -> CatalogChanges | None:
    """Return the changes to the runs of the roots; None if `since` is of another index."""
    epoch, number = last_change(connection)
    if since is None or since[0] != epoch:
        return None
    if since[1] == number:
        return CatalogChanges(since, [], [], [])
    new: list[KnownRun] = []
    changed: list[KnownRun] = []
    gone: list[tuple[str, str]] = []
    for chunk in chunks(connection):
        for row in connection.execute(
            f"SELECT added, {_COLUMNS} FROM run WHERE id >> {CHUNK_SHIFT} = ? AND changed > ?",
            (chunk, since[1]),
        ):
            run = KnownRun._make(row[1:])
            if run.root in roots:
                (new if row[0] > since[1] else changed).append(run)
        gone += connection.execute(
            f"SELECT root, directory FROM gone WHERE id >> {CHUNK_SHIFT} = ? AND changed > ?",
            (chunk, since[1]),
        ).fetchall()
    there = {(run.root, run.directory) for run in new}
    left = [one for one in gone if one[0] in roots]
    again = there & set(left)
    changed += [run for run in new if (run.root, run.directory) in again]
    new = [run for run in new if (run.root, run.directory) not in again]
    gone = [one for one in left if one not in again]
    is_complete = all(built <= since[1] for built in built_chunks(connection).values())
    return CatalogChanges((epoch, number), new, changed, gone, is_complete)


def last_change(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the epoch of the index and the number of the last change to its runs. Cheap."""
    epoch, change = connection.execute("SELECT epoch, change FROM catalog").fetchone()
    return epoch, change


def chunks(connection: sqlite3.Connection) -> range:
    return range((last_id(connection) >> CHUNK_SHIFT) + 1)


def last_id(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'run'").fetchone()
    return row[0] if row else 0


def catalog_changes(connection: sqlite3.Connection, root: str) -> int:
    row = connection.execute("SELECT changes FROM root WHERE uri = ?", (root,)).fetchone()
    return row[0] if row else 0


Row = tuple[str | None, KnownRun]  # the version of a run's record, and the run


def _read_runs(
    storage: Storage,
    changed: dict[str, Found],
    known: Iterable[str],
    problems: list[Exception],
) -> Iterator[Row]:
    recorded = {one: run.version for one, run in changed.items() if run.version is not None}
    for directory in changed.keys() - recorded.keys():
        yield None, KnownRun.of_path(storage.uri, directory)
    answers: Iterable[KnownRun | StorageError]
    if is_remote(storage.uri) and len(recorded) > 1:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(_READERS, len(recorded))) as pool:
            answers = list(pool.map(lambda one: _read_run(storage, one, changed[one]), recorded))
    else:
        answers = (_read_run(storage, one, changed[one]) for one in recorded)
    held = frozenset(known)
    for (directory, version), answer in zip(recorded.items(), answers, strict=True):
        if isinstance(answer, KnownRun):
            if answer.problem:
                problems.append(BadManifest(answer.problem))
            yield version, answer
            continue
        if not isinstance(answer, NoSuchPath):  # deleted since it was listed
            problems.append(answer)
        if directory not in held:
            yield _UNREAD, KnownRun.of_path(storage.uri, directory)


def _read_run(storage: Storage, directory: str, found: Found) -> KnownRun | StorageError:
    name = join(directory, FILE_NAME) if directory else FILE_NAME
    try:
        record = _manifest(storage.read(name), join(storage.uri, name))
        if found.ended and record.state is State.RUNNING:
            copy = join(directory, found.ended) if directory else found.ended
            record = newer(record, Manifest.from_json(storage.read(copy)))
    except StorageError as error:
        return error
    except BadManifest as error:
        return KnownRun.of_path(storage.uri, directory, str(error))
    return KnownRun.of_record(storage.uri, directory, record)


def _manifest(content: bytes, where: str) -> Manifest:
    document = parse_quickly(content)
    if document is None:
        return Manifest.from_json(content, where)
    return Manifest.from_document(document, where)


class _StoredFolders:
    """The directories of a root on a disk, as stored in the index."""

    def __init__(
        self, connection: sqlite3.Connection, storage: LocalStorage, *, marks: bool
    ) -> None:
        self._connection = connection
        self._root = storage.uri
        rows = connection.execute(
            "SELECT mark, files, below, directory FROM folder WHERE root = ?", (storage.uri,)
        )
        self._known = {row[3]: Folder._make(row[:3]) for row in rows}
        described = is_of_a_run if marks else FILE_NAME.__eq__
        self._folders = Folders(storage, self._known, is_of_a_run, described)
        self.list = self._folders.list

    def store(self) -> None:
        found = self._folders.found
        gone = [(self._root, one) for one in self._known if one not in found]
        if not gone and not found:
            return
        with transaction(self._connection):
            self._connection.executemany(
                "DELETE FROM folder WHERE root = ? AND directory = ?", gone
            )
            self._connection.executemany(
                "INSERT OR REPLACE INTO folder VALUES (?, ?, ?, ?, ?)",
                [(self._root, directory, *folder) for directory, folder in found.items()],
            )


def store_runs(
    connection: sqlite3.Connection,
    root: str,
    rows: Sequence[Row],
    gone: Sequence[tuple[str, str]] = (),
) -> None:
    """Store runs below a root with the versions of their records, and delete those in `gone`."""
    is_linked = _link_finder(root)
    with transaction(connection):
        change = next_change(connection)
        connection.executemany(
            "INSERT INTO gone SELECT id, root, directory, ? FROM run"
            " WHERE root = ? AND directory = ?",
            [(change, *one) for one in gone],
        )
        connection.executemany("DELETE FROM run WHERE root = ? AND directory = ?", gone)
        connection.executemany(
            _UPSERT,
            [(*run, is_linked(run.directory), version, change, change) for version, run in rows],
        )
        # What was read from the event files of a run before it was listed, or before its record
        # was replaced. In this transaction, because others read event files meanwhile.
        lacking = [run for _, run in rows if not run.is_recorded or run.hparams_json == "{}"]
        described = _described(connection, root, lacking).values() if lacking else ()
        connection.executemany(
            "UPDATE run SET hparams_json = ?, metrics_json = ? WHERE root = ? AND directory = ?",
            [(run.hparams_json, run.metrics_json, *run[:2]) for run in described],
        )
        connection.execute(
            "INSERT INTO root VALUES (?, ?)"
            " ON CONFLICT (uri) DO UPDATE SET changes = excluded.changes",
            (root, change),
        )
    _fold_if_due(connection)


def _fold_if_due(connection: sqlite3.Connection) -> None:
    most = _most_unfolded(connection)
    if sum(count_unfolded(connection).values()) > most:
        from aboard.index.columns import fold

        fold(connection, most // 2)


def _link_finder(root: str) -> Callable[[str], bool]:
    """Return a test for directories below the root that are behind a symbolic link."""
    if is_remote(root):
        return lambda _: False
    known = {"": False}

    def is_linked(directory: str) -> bool:
        if directory not in known:
            above = directory.rpartition("/")[0]
            known[directory] = is_linked(above) or _is_link(f"{root}/{directory}")
        return known[directory]

    return is_linked


def _is_link(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False


# Rows and columns. The rows of runs are the source of truth; `columns` builds columns from them, a
# chunk at a time, and reads later changes from the rows.

_UNFOLDED, _UNFOLDED_SHARE = 4096, 128


def _most_unfolded(connection: sqlite3.Connection) -> int:
    """Return how many rows may be newer than their columns; reading a row takes 20 microseconds."""
    return _UNFOLDED + last_id(connection) // _UNFOLDED_SHARE


def built_chunks(connection: sqlite3.Connection) -> dict[int, int]:
    return dict(connection.execute("SELECT chunk, built FROM fold").fetchall())


def count_unfolded(connection: sqlite3.Connection) -> dict[int, int]:
    """Return the number of rows that are newer than their columns, by chunk."""
    built, found = built_chunks(connection), {}
    newer = f"WHERE id >> {CHUNK_SHIFT} = ?1 AND changed > ?2"
    for chunk in chunks(connection):
        (count,) = connection.execute(
            f"SELECT (SELECT count(*) FROM run {newer}) + (SELECT count(*) FROM gone {newer})",
            (chunk, built.get(chunk, -1)),
        ).fetchone()
        if count:
            found[chunk] = count
    return found


def forget_removed(connection: sqlite3.Connection) -> None:
    """Forget the removed runs that neither a column nor the stored order has, once it is stored."""
    connection.execute(
        "DELETE FROM gone WHERE changed <="
        f" (SELECT built FROM fold WHERE chunk = gone.id >> {CHUNK_SHIFT})"
    )


Values = dict[str, Any]  # of a run, by the names of columns
Parts = dict[str, tuple[list[int], list[Any]]]  # by column: the rows with a value, and the values


def changed_rows(
    connection: sqlite3.Connection, since: Callable[[int], int]
) -> Iterator[tuple[int, int, Values | None]]:
    """Yield id, change and values of each run changed after `since` of its chunk.

    The values of a deleted run are None.
    """
    for chunk in chunks(connection):
        after = since(chunk)
        for one, changed in connection.execute(
            f"SELECT id, changed FROM gone WHERE id >> {CHUNK_SHIFT} = ? AND changed > ?",
            (chunk, after),
        ):
            yield one, changed, None
        where = f"id >> {CHUNK_SHIFT} = ? AND changed > ?"
        rows, changes, parts = _parts_where(connection, where, chunk, after)
        values: dict[int, Values] = {row: {} for row in rows}
        for name, (of_rows, held) in parts.items():
            for row, value in zip(of_rows, held, strict=True):
                values[row][name] = value
        for row, changed in zip(rows, changes, strict=True):
            yield row, changed, values[row]


def parts_of_chunk(connection: sqlite3.Connection, chunk: int) -> Parts:
    """Return the column values of the runs of a chunk."""
    first = chunk << CHUNK_SHIFT
    where = "id >= ? AND id < ? ORDER BY id"
    return _parts_where(connection, where, first, first + (1 << CHUNK_SHIFT))[2]


def _parts_where(
    connection: sqlite3.Connection, where: str, *arguments: int
) -> tuple[Sequence[int], Sequence[int], Parts]:
    found = connection.execute(
        f"SELECT id, changed, linked, {_COLUMNS} FROM run WHERE {where}", arguments
    ).fetchall()
    if not found:
        return [], [], {}
    rows, changes, linked, *columns = zip(*found, strict=True)
    fields = dict(zip(KnownRun._fields, columns, strict=True))
    return rows, changes, _parts(rows, fields, linked)


_FALSE_IF_EMPTY = (
    "root", "directory", "experiment", "name", "recorded_state", "workspace", "job", "host",
    "user", "git_commit", "created", "started", "heartbeat", "heartbeat_secs", "seen",
)  # fmt: skip


def _parts(
    rows: Sequence[int], fields: Mapping[str, Sequence[Any]], linked: Sequence[int]
) -> Parts:
    """Return the column values of runs, given their fields, without empty values.

    Works on columns where possible, because thousands of runs are folded at once.
    """
    found: Parts = {}

    def put(name: str, held: Sequence[Any], has: Sequence[object]) -> None:
        if any(has):
            found[name] = list(compress(rows, has)), list(compress(held, has))

    for name in _FALSE_IF_EMPTY:
        put(name, fields[name], fields[name])
    reasons = [one or other for one, other in zip(fields["reason"], fields["problem"], strict=True)]
    put("reason", reasons, reasons)
    for name in ("exit_code", "ended"):
        put(name, fields[name], [one is not None for one in fields[name]])
    jobs = fields["attempt_jobs_json"]
    put("attempt_jobs", jobs, [one != "[]" for one in jobs])
    put("linked", [1] * len(rows), linked)
    lacking = zip(fields["recorded_state"], fields["hparams_json"], strict=True)
    put("no_hparams", [1] * len(rows), [bool(one) and text == "{}" for one, text in lacking])
    names = {text: frozenset(parse_record(text)) for text in set(fields["tags_json"])}
    found["tags"] = list(rows), [names[text] for text in fields["tags_json"]]
    for group, convert in (("hparams", _scalar), ("tags", _scalar), ("metrics", _metric)):
        parts: Parts = {}
        for row, text in zip(rows, fields[f"{group}_json"], strict=True):
            for name, value in parse_record(text).items():
                held = convert(value)
                if held is None:
                    continue
                if name not in parts:
                    parts[name] = [], []
                of_rows, values = parts[name]
                of_rows.append(row)
                values.append(held)
        found |= {f"{group}.{name}": one for name, one in parts.items()}
    return found


def _scalar(value: Any) -> str | bool | int | float | None:
    is_plain = value is None or isinstance(value, (str, bool, int, float))
    return value if is_plain else json.dumps(value)


def _metric(value: object) -> float | None:
    """Return the last value of a metric in a record; JSON has NaN and infinities as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None
    except OverflowError:
        return math.copysign(math.inf, value)  # type: ignore[arg-type]


def column_names(connection: sqlite3.Connection, group: str, roots: Collection[str]) -> list[str]:
    """Return the names of the hyperparameters, tags or metrics of the runs below the roots.

    Metrics include those that are only in event files.
    """
    found = {
        name[len(group) + 1 :]
        for name, of_roots in connection.execute(
            "SELECT DISTINCT name, roots FROM run_column WHERE name > ? AND name < ?",
            (f"{group}.", f"{group}/"),
        )
        if not frozenset(json.loads(of_roots)).isdisjoint(roots)
    }
    built = built_chunks(connection)
    for chunk in chunks(connection):
        for root, text in connection.execute(
            f"SELECT root, {group}_json FROM run WHERE id >> {CHUNK_SHIFT} = ? AND changed > ?",
            (chunk, built.get(chunk, -1)),
        ):
            if root in roots:
                found.update(parse_record(text))
    if group == "metrics":
        for root in roots:
            found.update(logged_names(connection, root))
    return sorted(found)


def experiments_like(
    connection: sqlite3.Connection, start: str, roots: Collection[str]
) -> list[str]:
    """Return the experiments that begin with `start`, sorted."""
    rows = connection.execute(
        # One lookup in the index for each experiment, however many runs it has.
        "WITH RECURSIVE found (experiment) AS ("
        " SELECT min(experiment) FROM run WHERE experiment >= ?1"
        " UNION ALL SELECT (SELECT min(experiment) FROM run WHERE experiment > found.experiment)"
        " FROM found WHERE substr(found.experiment, 1, length(?1)) = ?1)"
        " SELECT experiment FROM found WHERE substr(experiment, 1, length(?1)) = ?1",
        (start,),
    )
    return [one for (one,) in rows.fetchall() if labels_of(connection, one, "", roots, 1)]


def labels_of(
    connection: sqlite3.Connection, experiment: str, start: str, roots: Collection[str], most: int
) -> list[str]:
    """Return up to `most` labels of an experiment's runs whose names begin with `start`."""
    rows = connection.execute(
        "SELECT DISTINCT name FROM run WHERE experiment = ?1 AND name >= ?2"
        " AND substr(name, 1, length(?2)) = ?2"
        " AND root IN (SELECT value FROM json_each(?3)) LIMIT ?4",
        (experiment, start, json.dumps(list(roots)), most),
    )
    return sorted((f"{experiment}/{one}" if experiment else one for (one,) in rows), key=natural)


# Which attempt at a run wrote an event file. Names begin with a time, so they sort in the order of
# the attempts if the clocks of all hosts agree. If a directory has files of several hosts, the
# run's record decides.


def number_attempts(connection: sqlite3.Connection, directories: Collection[str]) -> None:
    """Store the attempt of each event file in the directories; 0 if sorting by name is enough."""
    changes = []
    records: dict[str, list[Attempt] | None] = {}  # each is read once
    for directory in directories:
        files = connection.execute(
            "SELECT id, name, attempt FROM file WHERE directory = ?", (directory,)
        ).fetchall()
        names = [name for _, name, _ in files]
        attempts = _attempts_around(directory, records) if len(set(map(_host, names))) > 1 else []
        for file, name, known in files:
            number = attempt_of(name, attempts) if len(attempts) > 1 else 0
            if number != known:
                changes.append((number, file))
    if changes:
        with transaction(connection):
            connection.executemany("UPDATE file SET attempt = ? WHERE id = ?", changes)


def attempt_of(name: str, attempts: Sequence[Attempt]) -> int:
    """Return the number of the attempt that wrote a file; compares only times of one host."""
    made = MADE_BY.search(name)
    if made is None:
        return 0
    rest = f"{made['rest']}."
    for attempt in attempts:
        if rest.startswith(f"{attempt.host}.{attempt.pid}."):
            return attempt.number
    there = [one for one in attempts if one.host and rest.startswith(f"{one.host}.")] or attempts
    begun = [one.number for one in there if int(one.started) <= int(made["second"])]
    return begun[-1] if begun else there[0].number


def _host(name: str) -> str:
    made = MADE_BY.search(name)
    found = _HOST.fullmatch(made["rest"]) if made else None
    return found[1] if found else ""


def _attempts_around(directory: str, records: dict[str, list[Attempt] | None]) -> list[Attempt]:
    for _ in range(_LEVELS):
        if directory not in records:
            records[directory] = _attempts_in(directory)
        if (found := records[directory]) is not None:
            return found
        directory, name = split(directory)
        if not name:
            break
    return []


def _attempts_in(directory: str) -> list[Attempt] | None:
    try:
        return manifest.read(open_storage(directory)).attempts
    except BadManifest:
        return []
    except StorageError:
        return None
