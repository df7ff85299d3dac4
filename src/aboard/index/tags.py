"""The tags of runs: what is known about them without reading their values.

A *segment* has the values of a tag in one file; a *tag* of a run combines the segments of its
files, in the order of attempts and names. The tags of a run are stored in columns, because there
can be very many. Nothing here imports numpy or queries the index.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import (
    Callable,
    Collection,
    ItemsView,
    Iterator,
    Mapping,
    Sequence,
    ValuesView,
)
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, overload
from weakref import WeakValueDictionary

from aboard.events import messages
from aboard.events.messages import Malformed, Metadata, parse_metadata
from aboard.index.schema import RECORDS, SCALARS
from aboard.index.sources import Source

if TYPE_CHECKING:
    from aboard.runs.naming import Band, Line

DataClass = Literal["scalar", "tensor", "blob_sequence", ""]

_CLASSES: tuple[DataClass, ...] = ("", "scalar", "tensor", "blob_sequence")
_PLUGINS: dict[int, str] = {
    messages.ORIGIN_SIMPLE: "scalars",
    messages.ORIGIN_IMAGE: "images",
    messages.ORIGIN_HISTOGRAM: "histograms",
    messages.ORIGIN_AUDIO: "audio",
    messages.ORIGIN_GRAPH: "graphs",
    messages.ORIGIN_RUN_METADATA: "graph_tagged_run_metadata",
}
_TENSORS = ("histograms", "text", "hparams", "pr_curves", "mesh", "custom_scalars")
_GRAPHS = ("graph_run_metadata", "graph_run_metadata_graph", "graph_keras_model")
_CLASS_OF_PLUGIN: dict[str, DataClass] = {"scalars": "scalar"}
_CLASS_OF_PLUGIN |= dict.fromkeys(_TENSORS, "tensor")
_CLASS_OF_PLUGIN |= dict.fromkeys(("images", "audio", *_GRAPHS), "blob_sequence")
KNOWN_PLUGINS = frozenset({*_PLUGINS.values(), *_CLASS_OF_PLUGIN})


class Kind(NamedTuple):
    plugin: str
    data_class: DataClass
    display_name: str
    description: str


@lru_cache(maxsize=4096)
def kind_of(origin: int, metadata: bytes | None) -> Kind:
    try:
        parsed = parse_metadata(metadata or b"")
    except Malformed:
        parsed = Metadata()
    plugin = _PLUGINS.get(origin, parsed.plugin)
    data_class: DataClass = ""
    if origin in (messages.ORIGIN_GRAPH, messages.ORIGIN_RUN_METADATA):
        data_class = "blob_sequence"
    elif origin not in _PLUGINS and 0 < parsed.data_class < len(_CLASSES):
        data_class = _CLASSES[parsed.data_class]
    data_class = data_class or _CLASS_OF_PLUGIN.get(plugin, "")
    return Kind(plugin, data_class, parsed.display_name, parsed.description)


class Segment(NamedTuple):
    """The values of a tag in one file: a row of the index."""

    directory: str
    file_name: str
    tag: str
    id: int
    form: int
    origin: int
    metadata: bytes | None
    points: int
    min_step: int
    max_step: int
    increasing: bool
    last_step: int
    max_wall: float
    last_wall: float | None
    last_value: float | None
    rows: int


# Its columns in the index after the place of its file.
COLUMNS = tuple("count" if one == "points" else one for one in Segment._fields[2:])


class Segments(Sequence[Segment]):
    """The segments of a tag in many files, in columns, which take a fifth of the memory."""

    __slots__ = ("_columns", "_count")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._count = len(segments)
        self._columns = [_column(values) for values in zip(*segments, strict=True)]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Segment: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Segment, ...]: ...
    def __getitem__(self, place: int | slice) -> Segment | tuple[Segment, ...]:
        if isinstance(place, slice):
            return tuple(self[one] for one in range(*place.indices(self._count)))
        if not -self._count <= place < self._count:
            raise IndexError(place)
        return Segment._make(
            column[0] if len(column) == 1 else column[place] for column in self._columns
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Segments) and self._columns == other._columns

    def __hash__(self) -> int:
        return hash((self._count, self[-1]))


def _column(values: Sequence[Any]) -> Sequence[Any]:
    kinds = {type(value) for value in values}
    if kinds == {float}:
        return array("d", values)
    if len(set(values)) == 1 and float not in kinds:
        return values[:1]
    return array("q", values) if kinds == {int} else values


_FEW_SEGMENTS = 16  # these would take more memory in columns


class TagGroup(NamedTuple):
    """What a tag is computed from: tags of several runs; see `curves`."""

    members: tuple[Tag, ...]
    band: Band
    line: Line


class Tag(NamedTuple):
    """A tag of a run or of a group of runs, and what is known about it without its values."""

    run: str
    directory: str
    name: str
    kind: Kind
    metadata: bytes | None
    first_step: int
    last_step: int
    last_wall_time: float
    max_wall_time: float
    last_value: float | None  # None unless the tag is a scalar
    rows: int
    source: Source
    segments: Sequence[Segment]  # one per file; those of all members
    group: TagGroup | None = None

    def __repr__(self) -> str:
        return f"<Tag {self.name!r} of {self.run!r} in {self.source.uri}>"

    @classmethod
    def of_group(cls, group: TagGroup, name: str = "") -> Tag:
        """Return a tag computed from those of a group, by default with their name."""
        first, *_ = members = group.members
        return cls(
            run="",
            directory=first.directory,
            name=name or first.name,
            kind=first.kind._replace(display_name="") if name else first.kind,
            metadata=first.metadata,
            first_step=min(one.first_step for one in members),
            last_step=max(one.last_step for one in members),
            last_wall_time=max(one.last_wall_time for one in members),
            max_wall_time=max(one.max_wall_time for one in members),
            last_value=None,
            rows=first.rows,
            source=first.source,
            segments=tuple(segment for one in members for segment in one.segments),
            group=group,
        )

    @property
    def points(self) -> int:
        """The number of its values, including those superseded by restarts."""
        return sum(one.points for one in self.segments)

    @property
    def origin(self) -> int:
        return self.segments[0].origin

    @property
    def about(self) -> About:
        return About(self.kind, self.origin, self.metadata)

    @property
    def is_scalar(self) -> bool:
        return self.segments[0].form == SCALARS

    @property
    def in_order(self) -> bool:
        """Whether every step is greater than the previous one: there was no restart."""
        return all(one.increasing for one in self.segments) and all(
            before.max_step < after.min_step for before, after in pairwise(self.segments)
        )


class About(NamedTuple):
    """The metadata of a tag; many tags share the same."""

    kind: Kind
    origin: int
    metadata: bytes | None

    @classmethod
    def of(cls, origin: int, metadata: bytes | None, form: int) -> About:
        return cls(_kind(origin, metadata, form), origin, metadata)


class End(NamedTuple):
    """The extent of a tag: the columns of a list besides its metadata."""

    last_step: int
    max_wall_time: float
    rows: int


class Tags(Mapping[str, Tag]):
    """The tags of a run, in the order of their names."""

    def __init__(self, held: Mapping[str, Tag]) -> None:
        self._held = held

    def __getitem__(self, name: str) -> Tag:
        return self._held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def about(self, name: str) -> About:
        return self[name].about

    def end(self, name: str) -> End:
        tag = self[name]
        return End(tag.last_step, tag.max_wall_time, tag.rows)

    def kinds(self) -> Collection[Kind]:
        return {tag.kind for tag in self.values()}

    def select(self, accepts: Callable[[About], bool]) -> Sequence[str]:
        """Return the names of the tags whose metadata is accepted."""
        return [name for name, tag in self.items() if accepts(tag.about)]


class Names:
    """The names of a run's tags; runs with the same names share them."""

    __slots__ = ("__weakref__", "listed", "places")

    def __init__(self, listed: Sequence[str]) -> None:
        self.listed = listed
        self.places = {name: place for place, name in enumerate(listed)}

    @classmethod
    def of(cls, listed: tuple[str, ...]) -> Names:
        key = hash(listed)
        held = _NAMES.get(key)
        if held is None or held.listed != listed:
            held = _NAMES[key] = cls(listed)
        return held


_NAMES: WeakValueDictionary[int, Names] = WeakValueDictionary()


class DescribedNames:
    """The names of a run's tags, and the metadata of each."""

    def __init__(
        self, names: tuple[str, ...], described: Sequence[tuple[int, bytes | None, int]]
    ) -> None:
        """Take the arguments of `About.of` for each name; only once if they are all the same."""
        shared = Names.of(names)
        self.names, self.places = shared.listed, shared.places
        self._shared = shared  # `_NAMES` keeps it only while it is used
        numbers = {key: number for number, key in enumerate(dict.fromkeys(described))}
        self._about = [About.of(*key) for key in numbers]
        self._numbers = array("I", _equal([numbers[key] for key in described]))  # in `_about`

    def about(self, name: str) -> About:
        place = self.places[name]
        return self._about[self._numbers[0 if len(self._numbers) == 1 else place]]

    def kinds(self) -> Collection[Kind]:
        return {one.kind for one in self._about}

    def select(self, accepts: Callable[[About], bool]) -> Sequence[str]:
        chosen = {number for number, one in enumerate(self._about) if accepts(one)}
        if len(chosen) in (0, len(self._about)):
            return self.names if chosen else ()
        pairs = zip(self.names, self._numbers, strict=True)
        return [name for name, number in pairs if number in chosen]


class TagTable(Tags):
    """The tags of a run in columns, from which a tag is built on request.

    A million tags take a tenth of the memory and a quarter of the time this way. A column of equal
    values stores one of them.
    """

    def __init__(self, source: Source, directory: str, columns: Sequence[Sequence[Any]]) -> None:
        """Take the columns of `Segment` from `file_name` on, sorted by tag."""
        self._source = source
        self._directory = directory
        files, tags, *rest = columns
        names = tuple(dict.fromkeys(tags))
        self._listed: Sequence[str] = names
        self._starts: array[int] | None = None  # of the segments of each tag, unless it has one
        if len(names) < len(tags):
            starts = (at for at in range(1, len(tags)) if tags[at] != tags[at - 1])
            self._starts = array("q", [0, *starts, len(tags)])
        self._columns = [_equal(files), *map(_packed, _CODES, rest)]
        described = list(zip(*[columns[one] for one in _DESCRIBED], strict=True))
        if self._starts is not None:
            whole = map(self._put_together, range(len(names)))
            described = [(tag.origin, tag.metadata, tag.segments[0].form) for tag in whole]
        self._names = DescribedNames(names, described)
        self._listed = self._names.names

    def __getitem__(self, name: str) -> Tag:
        return self._put_together(self._names.places[name])

    def __contains__(self, name: object) -> bool:
        return name in self._names.places

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def _put_together(self, place: int) -> Tag:
        first, last = place, place + 1
        if self._starts is not None:
            first, last = self._starts[place], self._starts[place + 1]
        name = self._listed[place]
        return put_together(self._source, [self._segment(name, at) for at in range(first, last)])

    def _segment(self, name: str, at: int) -> Segment:
        file_name, *rest = [one[0] if len(one) == 1 else one[at] for one in self._columns]
        return Segment(self._directory, file_name, name, *rest)

    def end(self, name: str) -> End:
        if self._starts is not None:
            return super().end(name)
        at = self._names.places[name]
        columns = self._columns
        return End(*[columns[one][0 if len(columns[one]) == 1 else at] for one in _END])

    def about(self, name: str) -> About:
        return self._names.about(name)

    def kinds(self) -> Collection[Kind]:
        return self._names.kinds()

    def select(self, accepts: Callable[[About], bool]) -> Sequence[str]:
        return self._names.select(accepts)


class TagReader(Protocol):
    """Reads the tags of a run: one tag, the names, or all tags."""

    def find(self, name: str) -> Tag | None: ...
    def names(self) -> DescribedNames | None: ...
    def all(self) -> Tags: ...


class LaterTags(Tags):
    """The tags of a run with very many, read on demand.

    The distinct metadata of the tags is given. Two threads may read the same tags at once.
    """

    def __init__(self, described: Sequence[About], reader: TagReader) -> None:
        self._described = described
        self._reader = reader
        self._whole: Tags | None = None
        self._names: DescribedNames | Tags | None = None

    @property
    def _all(self) -> Tags:
        if self._whole is None:
            self._whole = self._names = self._reader.all()
        return self._whole

    @property
    def _known(self) -> DescribedNames | Tags:
        if self._names is None:
            self._names = self._reader.names() or self._all
        return self._names

    def __getitem__(self, name: str) -> Tag:
        tag = self._reader.find(name) if self._whole is None else self._whole[name]
        if tag is None:
            raise KeyError(name)
        return tag

    def __contains__(self, name: object) -> bool:
        if self._names is None:
            return isinstance(name, str) and self._reader.find(name) is not None
        try:
            self._known.about(str(name))
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._known.select(lambda _: True))

    def __len__(self) -> int:
        return len(self._known.select(lambda _: True))

    def values(self) -> ValuesView[Tag]:
        return self._all.values()

    def items(self) -> ItemsView[str, Tag]:
        return self._all.items()

    def about(self, name: str) -> About:
        return self._known.about(name)

    def end(self, name: str) -> End:
        return self._all.end(name)

    def kinds(self) -> Collection[Kind]:
        return {one.kind for one in self._described}

    def select(self, accepts: Callable[[About], bool]) -> Sequence[str]:
        if not any(map(accepts, self._described)):
            return ()
        return self._known.select(accepts)


# Array types of the columns of a table after file and tag: 64-bit integers, if not named here.
_TYPES = {"metadata": "", **dict.fromkeys(("form", "origin", "increasing"), "b")}
_TYPES |= dict.fromkeys(("max_wall", "last_wall", "last_value"), "d")
_CODES = [_TYPES.get(one, "q") for one in Segment._fields[3:]]
# The positions of the arguments of `About.of` among the columns given to a table, which begin with
# the file, and those of the fields of `End` among the columns that it keeps, which lack the tag.
_DESCRIBED = [Segment._fields.index(one) - 1 for one in ("origin", "metadata", "form")]
_END = [Segment._fields.index(one) - 2 for one in ("last_step", "max_wall", "rows")]


def _packed(code: str, values: Sequence[Any]) -> Sequence[Any]:
    if code == "d":
        try:
            return array(code, values)
        except TypeError:  # None stands for NaN
            return values
    equal = _equal(values)
    return array(code, equal) if code else equal


def _equal(values: Sequence[Any]) -> Sequence[Any]:
    """Return a sequence of one value if all are equal, else the values."""
    return values[:1] if values.count(values[0]) == len(values) else values


@lru_cache(maxsize=4096)
def _kind(origin: int, metadata: bytes | None, form: int) -> Kind:
    kind = kind_of(origin, metadata)
    if form == SCALARS and not kind.data_class:
        return kind._replace(data_class="scalar")
    return kind


def put_together(source: Source, segments: list[Segment]) -> Tag:
    """Build a tag from its segments; the first metadata in the run determines its form."""
    described = segments[0]
    chosen = segments
    if len(segments) > 1:
        described = next((one for one in segments if one.metadata is not None), described)
        data_class = kind_of(described.origin, described.metadata).data_class
        form = {"scalar": SCALARS, "": described.form}.get(data_class, RECORDS)
        chosen = [one for one in segments if one.form == form] or segments
        chosen = [one for one in chosen if one.form == chosen[0].form]
    is_scalar = chosen[0].form == SCALARS
    kind = _kind(described.origin, described.metadata, chosen[0].form)
    last = chosen[-1]
    return Tag(
        run=source.run_name(last.directory),
        directory=last.directory,
        name=last.tag,
        kind=kind,
        metadata=described.metadata,
        first_step=min([one.min_step for one in chosen]),
        last_step=last.last_step,
        last_wall_time=number_of(last.last_wall),
        max_wall_time=max([one.max_wall for one in chosen]),
        last_value=number_of(last.last_value) if is_scalar else last.last_value,
        rows=max([one.rows for one in chosen]),
        source=source,
        segments=tuple(chosen) if len(chosen) <= _FEW_SEGMENTS else Segments(chosen),
    )


def number_of(stored: float | None) -> float:
    """Return a number from the index, which has null for NaN."""
    return math.nan if stored is None else stored
