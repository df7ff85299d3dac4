"""A board: its sources, the names of its runs, and their current tags.

A `Board` is a value that can be compared; a `BoardSelection` makes it from the runs that match. A
`Listing` is the index's current view of a board, updated run by run, so that an update costs only
what changed.
"""

from __future__ import annotations

import itertools
import pickle
import posixpath
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from aboard.events.messages import keep_tensorflow_out, load_protos
from aboard.index import Source, Tag
from aboard.index.library import Library, Member
from aboard.index.tags import TagGroup, Tags
from aboard.runs.catalog import KnownRun, is_logdir
from aboard.runs.naming import (
    COUNT_PREFIX,
    GROUPS,
    LINES,
    MISSING,
    Band,
    Grouping,
    Line,
    Show,
    Template,
    distinct,
    fields_of_path,
)
from aboard.storage import is_below, join

if TYPE_CHECKING:
    from aboard.runs.question import Question
    from aboard.runs.selectors import Selector

BOARD_ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


@dataclass(frozen=True)
class Board:
    """A selection of runs and their names."""

    id: str
    title: str  # of the browser's tab
    members: tuple[Member, ...]
    template: Template | None = None
    include: tuple[str, ...] = ()  # shell patterns; if any, a run must match one
    exclude: tuple[str, ...] = ()
    location: str = ""  # where the data is, for display; the URIs by default
    grouping: Grouping | None = None

    def __post_init__(self) -> None:
        if not self.id or not set(self.id) <= BOARD_ID_CHARACTERS:
            raise ValueError(f"invalid board id {self.id!r}: use letters, digits, '_', '-'")
        if not self.location:
            uris = ", ".join(member.source.uri for member in self.members)
            object.__setattr__(self, "location", uris)

    def __getstate__(self) -> dict[str, object]:
        """Return only the fields, without cached properties."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @cached_property
    def pickled(self) -> bytes:
        """The pickled board; with many members this takes a second, so call it in a thread."""
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    def shows(self, name: str) -> bool:
        if self.include and not any(fnmatchcase(name, pattern) for pattern in self.include):
            return False
        return not any(fnmatchcase(name, pattern) for pattern in self.exclude)

    @cached_property
    def labels(self) -> dict[Member, str]:
        if len(self.members) == 1:
            return {self.members[0]: self.members[0].name}
        return dict(zip(self.members, member_labels(self.members), strict=True))

    @cached_property
    def needs_records(self) -> bool:
        return any(needs_records(template) for template in self.templates)

    @cached_property
    def templates(self) -> tuple[Template, ...]:
        """The templates that name its runs and groups."""
        grouping = self.grouping.template if self.grouping else None
        return tuple(one for one in (self.template, grouping) if one is not None)

    def path_name(self, member: Member, run: str) -> str:
        """Name a run by its path; a single unnamed member keeps TensorBoard's names."""
        label = self.labels[member]
        return run if not label else label if run == "." else f"{label}/{run}"


class BoardSelection(NamedTuple):
    """The selection of a board; which runs it matches changes with time."""

    id: str
    title: str
    selectors: tuple[Selector, ...]
    template: Template | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    question: Question | None = None  # filters the runs, also those below a path
    grouping: Grouping | None = None

    @property
    def sources(self) -> list[Source]:
        """The sources that are shown completely."""
        if self.question is not None:
            return []
        return [Source.parse(one.place) for one in self.selectors if one.place]

    @property
    def selects_runs(self) -> bool:
        return self.question is not None or any(not one.place for one in self.selectors)

    @property
    def is_timed(self) -> bool:
        """Whether the selection changes with time, such as `state:lost`."""
        if self.question is not None and self.question.is_timed:
            return True
        return any("state:" in one.text for one in self.selectors)

    def board(self, library: Library) -> Board:
        """Return the board of the runs that match now."""
        members = tuple(library.members(self.selectors, self.question))
        where = [one.place for one in self.selectors if one.place]
        words = [one.text for one in self.selectors if not one.place]
        if words:
            where.append(f"{', '.join(words)} in {', '.join(library.uris)}")
        if self.question is not None:
            where.append(str(self.question))
        names = self.template, self.include, self.exclude
        return Board(self.id, self.title, members, *names, ", ".join(where), self.grouping)


def member_labels(members: Sequence[Member]) -> list[str]:
    """Return the shortest labels that distinguish members.

    A label is the member's name or the end of its URI. Labels that are equal, or that would contain
    the runs of another (`a` and `a/b`), get more of their URIs.
    """
    tails = [_tails(member) for member in members]
    sizes = [0] * len(members)
    while True:
        labels = [tail[size] for tail, size in zip(tails, sizes, strict=True)]
        places: dict[str, str] = {}
        for label, member in zip(labels, members, strict=True):
            places.setdefault(label, member.source.uri)
        held = Counter(labels)
        longer = [
            place
            for place, label in enumerate(labels)
            if sizes[place] + 1 < len(tails[place])
            and (held[label] > 1 or _is_inside(label, members[place].source.uri, places))
        ]
        if not longer:
            return distinct(labels)
        for place in longer:
            sizes[place] += 1


def _tails(member: Member) -> list[str]:
    parts = [part for part in member.source.uri.replace("://", "/").split("/") if part] or ["root"]
    ends = ["/".join(parts[-length:]) for length in range(1, len(parts) + 1)]
    if not member.name:
        return ends
    # A name that the user gave has no slash and is kept.
    is_end = "/" in member.name and member.name in ends
    return ends[ends.index(member.name) :] if is_end else [member.name]


def _is_inside(label: str, uri: str, places: Mapping[str, str]) -> bool:
    """Return whether a label is below that of a member whose source does not contain it."""
    above = posixpath.dirname(label)
    while above:
        if above in places and not is_below(uri, places[above]):
            return True
        above = posixpath.dirname(above)
    return False


@dataclass(frozen=True)
class BoardRun:
    """A run on a board, or a curve of a group of runs, which has no directory."""

    name: str
    directory: str
    start_time: float | None
    tags: Tags = field(repr=False)
    member: Member

    @property
    def only_hparams(self) -> bool:
        return {kind.plugin for kind in self.tags.kinds()} == {"hparams"}

    @property
    def is_session(self) -> bool:
        """Whether it has only what PyTorch's `add_hparams` writes, in a directory for each call.

        That is the start and the end of a session, and one value of each metric.
        """
        if _SESSION_START not in self.tags or _SESSION_END not in self.tags:
            return False
        return all(
            tag.kind.plugin == "hparams" or (tag.is_scalar and tag.points == 1)
            for tag in self.tags.values()
        )


MOST_TAGS = 50_000  # per run; a page with more would not finish loading
MOST_GROUPS = 500

_SESSION_START, _SESSION_END = "_hparams_/session_start_info", "_hparams_/session_end_info"

Key = tuple[Member, str]  # a member, and the directory of a run of it
_VERSIONS = itertools.count()
_NO_TAGS = Tags({})


class Listing:
    def __init__(self, board: Board, library: Library) -> None:
        self.board = board
        self._library = library
        self._index = library.index
        self._lock = threading.Lock()
        self._record_marks: tuple[object, ...] = ()
        self._stamp: int | None = None
        self._marks: dict[Key, tuple[object, ...]] = {}
        self._tags: dict[Key, Tags] = {}
        self._runs: dict[str, BoardRun] = {}
        self._members: dict[str, BoardRun] = {}  # runs without groups
        self._group_count = 0
        self._run_count: int | None = None
        self._crowded: dict[str, int] = {}  # tags of runs with more than are shown, by directory
        self._missing: list[str] = []
        self._version = next(_VERSIONS)

    def problems(self) -> list[str]:
        """Return what the board does not show, as of the last update, and why."""
        problems = [
            f"{directory}: this run has {count:,} tags; the board shows the first {MOST_TAGS:,} by"
            " name. Log fewer tags; 'aboard ls' and 'aboard export' have all of them."
            for directory, count in self._crowded.items()
        ]
        if self._group_count > MOST_GROUPS:
            problems.append(
                f"the runs are in {self._group_count:,} groups; the board shows the first"
                f" {MOST_GROUPS}. Group them by a field with fewer values."
            )
        return problems

    def missing_fields(self) -> list[str]:
        """Return what no run has, but is in a template, as of the last update.

        Without runs that is nothing: the first run may have it.
        """
        return self._missing

    def _missing_fields(self) -> list[str]:
        from aboard.runs.question import BadQuestion, Field, Question

        templates = self.board.templates
        named = (name for one in templates for name in one.fields if "." in name)
        parts = (name.partition(".") for name in dict.fromkeys(named))
        left = [Field(rest, group) for group, _, rest in parts]
        if not left or not self._members:
            return []
        known: dict[str, set[str]] = {group: set() for group in GROUPS}
        by_member = self._by_member()
        for run in self._members.values():
            record, tags = self._record((run.member, run.directory)), by_member[run.member]
            for template in templates:
                found = template_fields(template, run.member.source, run.directory, tags, record)
                for group, names in known.items():
                    held = found.get(group)
                    names.update(held if isinstance(held, dict) else ())
                if "metrics" in found and (stage := found.get("logdir")):
                    scalars = (one for one in run.tags.values() if one.is_scalar)
                    known["metrics"].update(f"{stage}/{one.name}" for one in scalars)
            left = [one for one in left if one.name not in known[one.group]]
            if not left:  # usually after the first run
                break
        errors = []
        for one in left:
            try:
                Question(group_by=(one,)).check_names(known)
            except BadQuestion as error:
                errors.append(f"{error} It is shown as '{MISSING}' until a run has it.")
        return errors

    def version(self) -> int:
        """Return a number that changes with what the board shows and never repeats."""
        with self._lock:
            self._update()
            return self._version

    def runs(self) -> dict[str, BoardRun]:
        with self._lock:
            self._update()
            return self._runs

    def count_runs(self) -> tuple[int, int]:
        """Return the version and the number of runs.

        A run counts once with its stages, and with what `add_hparams` writes below it.
        """
        with self._lock:
            self._update()
            if self._run_count is None:
                self._run_count = len(self._run_directories(self._members.values()))
            return self._version, self._run_count

    def count_runs_of(self, source: Source) -> int:
        """Return the number of runs of one source, counted in the same way."""
        with self._lock:
            self._update()
            runs = [run for run in self._members.values() if run.member.source == source]
            return len(self._run_directories(runs))

    def _run_directories(self, runs: Collection[BoardRun]) -> set[str]:
        sessions = {run.directory for run in runs if run.is_session}
        logged = {run.directory for run in runs if run.tags and not run.only_hparams} - sessions
        inner = {one for one in sessions if posixpath.dirname(one) in logged}
        known = self._library.places_of_runs({run.directory for run in runs})
        known |= {run.directory for run in runs if run.only_hparams}
        return {
            run_of(run.directory, run.member.source.uri, known)
            for run in runs
            if run.directory not in inner
        }

    def show(self, board: Board) -> None:
        """Show the board with other members; runs that are already known are kept."""
        with self._lock:
            self.board = board
            self._stamp = None
            self._record_marks = (object(),)  # so that runs are named again

    def _update(self) -> None:
        stamp = self._index.stamp()  # before the marks, so that later changes show next time
        marks = self._marks if stamp == self._stamp else dict(self._current_marks())
        records = self._current_record_marks(marks)
        if (marks, records) == (self._marks, self._record_marks):
            self._stamp = stamp
            return
        changed: dict[tuple[Source, str], list[Key]] = {}
        for key, mark in marks.items():
            if self._marks.get(key) != mark:
                changed.setdefault((key[0].source, key[1]), []).append(key)
        found, crowded = self._index.tags_of(changed, most=MOST_TAGS) if changed else ({}, {})
        for place, keys in changed.items():
            self._tags |= dict.fromkeys(keys, found.get(place, _NO_TAGS))
        read = {directory for _, directory in changed}
        shown = {directory for _, directory in marks}
        unchanged = {one: count for one, count in self._crowded.items() if one in shown - read}
        self._crowded = unchanged | crowded
        self._tags = {key: self._tags[key] for key in marks}
        self._marks, self._record_marks, self._stamp = marks, records, stamp
        self._members, self._run_count = self._named_runs(), None
        self._runs = self._shown_runs()
        self._missing = self._missing_fields()
        self._version = next(_VERSIONS)

    def _current_marks(self) -> Iterator[tuple[Key, tuple[object, ...]]]:
        members = self.board.members
        of_members = self._index.marks([member.source for member in members])
        for member, marks in zip(members, of_members, strict=True):
            for directory, mark in marks.items():
                yield (member, directory), mark

    def _named_runs(self) -> dict[str, BoardRun]:
        keys = list(self._tags)
        names = self._names(keys)
        return {
            name: BoardRun(name, key[1], _start_time(self._marks[key]), self._tags[key], key[0])
            for name, key in zip(names, keys, strict=True)
            if self.board.shows(name)
        }

    def _shown_runs(self) -> dict[str, BoardRun]:
        """Return the runs, their groups, or both."""
        grouping = self.board.grouping
        if grouping is None or grouping.show is Show.RUNS:
            return self._members
        groups = self._groups(grouping)
        if grouping.show is Show.GROUPS:
            return {run.name: run for run in groups}
        names = distinct([*self._members, *(run.name for run in groups)])[len(self._members) :]
        named = (replace(run, name=name) for run, name in zip(groups, names, strict=True))
        return self._members | {run.name: run for run in named}

    def _groups(self, grouping: Grouping) -> list[BoardRun]:
        """Return the curves of groups of runs with equal values, separately for each stage."""
        by_member = self._by_member()
        groups: dict[tuple[str, str], list[BoardRun]] = {}
        labels: dict[tuple[str, str], str] = {}
        for run in self._members.values():
            source, record = run.member.source, self._record((run.member, run.directory))
            tags = by_member[run.member]
            fields = template_fields(grouping.template, source, run.directory, tags, record)
            stage = str(fields.get("logdir", ""))
            key = repr(grouping.template.values(fields)), stage
            groups.setdefault(key, []).append(run)
            labels[key] = grouping.template.render(fields) + (f"/{stage}" if stage else "")
        self._group_count = len(groups)
        kept = list(groups)[:MOST_GROUPS]
        named = zip(kept, distinct(labels[key] for key in kept), strict=True)
        return [run for key, name in named for run in group_runs(name, groups[key], grouping.band)]

    def _record(self, key: Key) -> KnownRun | None:
        if not self.board.needs_records:
            return None
        return self._library.record_of(key[0].source, key[1])

    def _current_record_marks(self, keys: Iterable[Key]) -> tuple[object, ...]:
        """Return a value that changes when a record changes or a heartbeat stops."""
        if not self.board.needs_records:
            return ()
        marks = self._library.record_marks(member.source for member in self.board.members)
        if not any("state" in template.fields for template in self.board.templates):
            return marks
        now = time.time()
        held = (self._record(key) for key in keys)
        return (*marks, *(one.state_at(now) if one else None for one in held))

    def _names(self, keys: list[Key]) -> list[str]:
        template = self.board.template
        if template is None:
            name = self.board.path_name
            return distinct(name(member, member.source.run_name(run)) for member, run in keys)
        by_member = self._by_member()
        names = []
        for member, run in keys:
            record = self._record((member, run))
            fields = template_fields(template, member.source, run, by_member[member], record)
            names.append(template.render(fields))
        return distinct(names)

    def _by_member(self) -> dict[Member, dict[str, Tags]]:
        by_member: dict[Member, dict[str, Tags]] = {}
        for (member, directory), tags in self._tags.items():
            by_member.setdefault(member, {})[directory] = tags
        return by_member


def group_runs(label: str, members: Sequence[BoardRun], band: Band) -> list[BoardRun]:
    """Return the curves of a group as runs; the first also has the numbers of members."""
    held: dict[str, list[Tag]] = {}
    for run in members:
        for name in run.tags.select(lambda about: about.kind[:2] == ("scalars", "scalar")):
            if (tag := run.tags[name]).is_scalar:
                held.setdefault(name, []).append(tag)
    lines: dict[Line, dict[str, Tag]] = {
        line: {
            name: Tag.of_group(TagGroup(tuple(tags), band, line))
            for name, tags in held.items()
            if line is Line.MIDDLE or len(tags) > 1
        }
        for line in LINES[band]
    }
    for name, tags in held.items():
        counted = COUNT_PREFIX + name
        lines[Line.MIDDLE][counted] = Tag.of_group(TagGroup(tuple(tags), band, Line.COUNT), counted)
    started = [run.start_time for run in members if run.start_time is not None]
    return [
        BoardRun(f"{label} {LINES[band][line]}", "", min(started, default=None), tags, first.member)
        for first in members[:1]
        for line, tags in ((line, Tags(held)) for line, held in lines.items())
        if tags
    ]


def run_of(directory: str, source: str, known: Collection[str] = ()) -> str:
    """Return the directory of the run to which a directory of event files belongs."""
    above = directory
    while above not in known and len(above) > len(source):
        above = posixpath.dirname(above)
    if above in known:
        return above
    while len(directory) > len(source) and is_logdir(posixpath.basename(directory)):
        directory = posixpath.dirname(directory)
    return directory


def _start_time(mark: tuple[object, ...]) -> float | None:
    first = mark[0]  # of the first file: its id, …, and the wall time of its first event
    return first[-1] if isinstance(first, tuple) else None


def needs_records(template: Template | None) -> bool:
    """Return whether a template uses fields that need a run's record."""
    if template is None:
        return False
    known = {"experiment", "run", "logdir", "source", "metrics"}
    return bool(_groups(template) - known) or any("/" in name for name in _metrics(template))


def template_fields(
    template: Template,
    source: Source,
    directory: str,
    tags_of: Mapping[str, Tags],
    record: KnownRun | None = None,
) -> dict[str, object]:
    """Return the fields of a run that a template uses, from its path, tags and record.

    `tags_of` has the tags of all runs of the source by directory, because a run without
    hyperparameters has those of the nearest run above it.
    """
    fields: dict[str, object] = dict(fields_of_path(source.uri, source.run_name(directory)))
    groups = _groups(template)
    if "hparams" in groups:
        fields["hparams"] = _hparams_at(directory, tags_of)
    if "metrics" in groups:
        stage = directory[len(record.uri) + 1 :] if record is not None else fields.get("logdir", "")
        fields["metrics"] = _metrics_at(directory, str(stage), _metrics(template), tags_of)
    return fields if record is None else _with_record(fields, record, directory, groups)


def _groups(template: Template) -> set[str]:
    return {name.partition(".")[0] for name in template.fields}


def _metrics(template: Template) -> list[str]:
    fields = (name.partition(".") for name in template.fields)
    return [name for group, _, name in fields if group == "metrics"]


def _metrics_at(
    directory: str, stage: str, names: Iterable[str], tags_of: Mapping[str, Tags]
) -> dict[str, object]:
    """Return the scalars of a stage of a run by tag, and those of any by `STAGE/TAG` as in `names`.

    `stage` is empty for the directory of the run itself.
    """
    tags = tags_of.get(directory, _NO_TAGS).values()
    found: dict[str, object] = {tag.name: tag.last_value for tag in tags if tag.is_scalar}
    run = directory[: len(directory) - len(stage)].rstrip("/")
    for name in names:
        parts = name.split("/")
        for cut in range(1, len(parts) if name not in found else 0):
            others = tags_of.get(join(run, "/".join(parts[:cut])), _NO_TAGS)
            tag = others.get("/".join(parts[cut:]))
            if tag is not None and tag.is_scalar:
                found[name] = tag.last_value
    return found


def _with_record(
    fields: dict[str, object], record: KnownRun, directory: str, groups: set[str]
) -> dict[str, object]:
    """Prefer the record, except for metrics, which are newer in event files."""
    recorded: dict[str, object] = {
        "experiment": record.experiment,
        "run": record.name,
        "logdir": directory[len(record.uri) + 1 :],
        "workspace": record.workspace,
        "job": record.job,
        "user": record.user,
        "host": record.host,
    }
    if record.created:
        recorded["created"] = datetime.fromtimestamp(record.created).astimezone()
    fields = {name: value for name, value in (fields | recorded).items() if value}
    if "state" in groups:
        fields["state"] = record.state_at(time.time())
    for name, values in (("hparams", record.hparams), ("tags", record.tags)):
        if name in groups:
            held = fields.get(name)
            fields[name] = {**(held if isinstance(held, dict) else {}), **values}
    if "metrics" in groups:
        held = fields.get("metrics")
        fields["metrics"] = {**record.metrics, **(held if isinstance(held, dict) else {})}
    return fields


def _hparams_at(directory: str, tags_of: Mapping[str, Tags]) -> dict[str, object]:
    while directory:
        tag = tags_of.get(directory, _NO_TAGS).get(_SESSION_START)
        if tag is not None and tag.metadata is not None:
            return _read_hparams(tag.metadata)
        directory = directory.rpartition("/")[0]
    return {}


@lru_cache(maxsize=4096)
def _read_hparams(metadata: bytes) -> dict[str, object]:
    keep_tensorflow_out()
    from tensorboard.plugins.hparams import plugin_data_pb2

    tensorboard = load_protos()
    try:
        plugin_data = tensorboard.summary_pb2.SummaryMetadata.FromString(metadata).plugin_data
        data = plugin_data_pb2.HParamsPluginData.FromString(plugin_data.content)
    except tensorboard.NotAMessage:
        return {}
    return {
        name: getattr(value, value.WhichOneof("kind")) if value.WhichOneof("kind") else None
        for name, value in data.session_start_info.hparams.items()
    }
