"""The language to select runs: `cifar10`, `cifar10/run3-run7`, `hparam:lr<0.1`, a URI.

Parses text into selectors, and selects rows from a table of known runs. Nothing here accesses a
storage; the caller knows whether a word is an existing path.

    cifar10               every run of the experiment; `cifar*` of several
    cifar10/run3          one run; `cifar10/run*` those whose names match
    cifar10/run3-run7     run3 to run7; also cifar10/run3-7
    cifar10/3-7           the same if the runs are named run3 to run7, not 3 to 7
    run3, 3               the runs of that name, if no experiment has it
    job:2300  tag:baseline  tag:team=vision  state:running  id:1f0c93ab:cifar10:run3
    hparam:lr<0.1         also <=, >, >=, =, !=
    not:cifar10/run3      excludes the run from what the other selectors select
    ./logs  logs/  /data/logs  s3://bucket/logs      any path or URI
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from typing import TYPE_CHECKING, ClassVar, Protocol

from aboard.runs import RunsError, is_number, nearest
from aboard.runs.catalog import KnownRun, run_id
from aboard.runs.manifest import State
from aboard.storage.base import below_any, is_below

if TYPE_CHECKING:
    from aboard.runs.columns import Bools, Column, Held, Ints
    from aboard.runs.question import Field

_PREFIXES = ("id", "job", "tag", "state", "hparam", "not")
_NOT = "not:"
_ANY = "*"
_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|file:/|[/~]|\.{1,2}(/|$)|[^:,]*/$")
_GLOB = re.compile(r"[*?\[]")
_PLAIN = re.compile(r"[^\s,/:*?\[~.][^,/:*?\[]*")
_PREFIXED = re.compile(r"([a-z]+):(.*)", re.DOTALL)
_COMPARISON = re.compile(r"([^<>=!]+)(<=|>=|!=|==|=|<|>)(.*)", re.DOTALL)
_RANGE = re.compile(r"(\D*)(\d{1,18})-(\D*)(\d{1,18})")
_NUMBERED = re.compile(r"(\D*)(\d{1,18})")
_NUMBERS = re.compile(r"\d{1,18}(-\d{1,18})?")
_RUN = "run"  # the prefix of a generated name
_ORDERS = ("<", "<=", ">", ">=")
# How many looks at runs the selectors of one request may take, at a few microseconds each; ten
# selectors may always look at every run.
MOST_LOOKS = 750_000
_LOOKS_OF_A_PATTERN = 50  # the cost of compiling one; a long one costs more
_LOOKS_OF_A_CHARACTER = 10
_LOOKS_AT_EVERY_RUN = 10
_ROWS_OF_A_LOOK = 1000  # compared at once
_MOST_NEAR = 3  # suggested names, if equally near
_MOST_COMPARED = 5000  # names compared to find the nearest, at tens of microseconds each
EXAMPLES = "Examples: cifar10, cifar10/run3, cifar10/run3-run7, job:2300, hparam:lr<0.1, ./logs"


class SelectionError(RunsError):
    """Selectors that are invalid or select nothing."""


class BadSelector(SelectionError):
    code: ClassVar[str] = "bad_selector"


class NothingMatches(SelectionError):
    code: ClassVar[str] = "nothing_matches"


class AmbiguousRun(SelectionError):
    code: ClassVar[str] = "ambiguous"


class NotSelected(SelectionError):
    code: ClassVar[str] = "not_found"


class OutsideRoots(SelectionError):
    code: ClassVar[str] = "outside_roots"


Finder = Callable[["Known"], "Ints"]  # the rows of the runs that are selected, in any order
Exists = Callable[[str], bool]


class NamedRuns(Protocol):
    """A table of runs that finds them by name; see `columns.Table`."""

    now: float

    @property
    def rows(self) -> Ints: ...
    def __len__(self) -> int: ...
    def column(self, field: Field) -> Column: ...

    def named(self, name: str, experiments: Iterable[str]) -> Ints:
        """Return the rows of the runs with a name in the experiments, also of runs not shown."""

    def names(self, group: str) -> list[str]:
        """Return the names of the hyperparameters, tags or metrics of runs."""

    def identified(self, identity: str) -> Ints:
        """Return the rows of the run with an id, also if it is not shown."""


class Known:
    """The known runs at a time; with `rows`, only these.

    If `bounded`, selectors that examine too many runs raise `BadSelector`, since a request may have
    any number of patterns. A thousand names of runs are always within the bound.
    """

    def __init__(
        self, table: NamedRuns, *, bounded: bool = False, rows: Ints | None = None
    ) -> None:
        import numpy as np

        self.table = table
        self.rows = self.table.rows if rows is None else rows
        self.shown: Bools = np.zeros(len(self.table), np.bool_)
        self.shown[self.rows] = True
        most = max(MOST_LOOKS, _LOOKS_AT_EVERY_RUN * len(self.rows))
        self._left = most if bounded else None

    def column(self, name: str, group: str = "") -> Column:
        from aboard.runs.question import Field  # its import is slow, and parsing needs none

        return self.table.column(Field(name, group))

    @property
    def experiments(self) -> list[str]:
        return [*self._words("experiment"), ""]

    def texts(self, name: str) -> list[str]:
        """Return the distinct texts in a column, sorted."""
        held = self.column(name).values(self.rows)
        return sorted({one for one in held if isinstance(one, str)})

    def _words(self, name: str) -> list[str]:
        words = getattr(self.column(name), "words", ())
        return [one for one in words if isinstance(one, str)]

    def where(self, found: Bools) -> Ints:
        """Return the rows of known runs for which `found` is true."""
        import numpy as np

        self.look(_LOOKS_OF_A_PATTERN + len(found) // _ROWS_OF_A_LOOK)
        rows: Ints = np.flatnonzero(found & self.shown)
        return rows

    def matching(self, name: str, test: Callable[[str], bool], among: Ints) -> Ints:
        """Return the rows whose text passes a test; each distinct text is tested once."""
        import numpy as np

        from aboard.runs.columns import Words

        self.look(_LOOKS_OF_A_PATTERN + len(among) // _ROWS_OF_A_LOOK)
        column = self.column(name)
        if not isinstance(column, Words):  # no run has a text
            return among if test("") else among[:0]
        distinct, places = np.unique(column.codes[among], return_inverse=True)
        self.look(len(distinct))
        words = ("" if code < 0 else str(column.words[code]) for code in distinct.tolist())
        return among[np.array([test(one) for one in words], np.bool_)[places]]

    def look(self, times: int) -> None:
        if self._left is None:
            return
        self._left -= times
        if self._left < 0:
            raise BadSelector(
                f"too many patterns and conditions for {len(self.rows):,} runs."
                " Use fewer at a time, or the full names of runs."
            )


@dataclass(frozen=True, slots=True)
class Selector:
    text: str
    place: str = ""  # the path or URI, if the selector is one
    name: str = ""  # given to a place, as in `new=./logs`
    excludes: bool = False  # `not:`
    is_word: bool = field(default=False, repr=False)  # can be an experiment or a run
    # The first one that finds a run decides.
    finders: tuple[Finder, ...] = field(default=(), compare=False, repr=False)

    @property
    def job(self) -> str:
        """The id in `job:ID`; empty for any other selector."""
        prefix, _, rest = self.text.partition(":")
        return rest.strip() if prefix == "job" and not self.place else ""

    @property
    def names_one_run(self) -> bool:
        """Whether it names a run with its experiment: no run that begins later is selected too."""
        if self.place or self.excludes or ":" in self.text:
            return False
        parts = self.text.split("/")
        return len(parts) == 2 and all(map(_is_literal, parts))

    def rows(self, known: Known) -> Ints:
        if _GLOB.search(self.text):
            known.look(_LOOKS_OF_A_CHARACTER * len(self.text))
        for find in self.finders:
            found = find(known)
            found = found[known.shown[found]]
            if len(found):
                known.look(len(found) // _ROWS_OF_A_LOOK + 1)
                return found
        known.look(1)
        return known.rows[:0]


def parse(text: str, *, exists: Exists = lambda _: False) -> Selector:
    """Parse a selector; `exists` is true for a word that is a path, not an experiment."""
    word = text.strip()
    if not word:
        raise BadSelector(f"empty selector. {EXAMPLES}.")
    name, place = ("", word) if exists(word) else split_name(word)
    if is_path(place) or exists(place):
        return Selector(word, place=place, name=name)
    if word.startswith(_NOT):
        return _exclusion(word)
    if found := _PREFIXED.fullmatch(word):
        return Selector(word, finders=(_prefixed(word, found[1], found[2].strip()),))
    experiment, slash, run = word.partition("/")
    if slash and not (experiment and run):
        raise BadSelector(f"{text!r}: write EXPERIMENT/RUN. {EXAMPLES}.")
    if slash:
        return Selector(word, finders=tuple(_by_name(experiment, name) for name in _names(run)))
    anywhere = (_by_name(_ANY, name) for name in _names(word))
    return Selector(word, is_word=True, finders=(_by_word(word), *anywhere))


def _exclusion(word: str) -> Selector:
    inner = parse(word.removeprefix(_NOT))
    if inner.place or inner.excludes:
        raise BadSelector(f"{word!r}: only runs can be excluded. Example: {_NOT}cifar10/run3.")
    return replace(inner, text=_NOT + inner.text, excludes=True)


def _names(pattern: str) -> list[str]:
    """Return the patterns that a pattern may mean; `3-7` can be short for `run3-7`."""
    return [pattern, _RUN + pattern] if _NUMBERS.fullmatch(pattern) else [pattern]


def is_path(word: str) -> bool:
    """Return whether a word can only be a path or URI, which may not exist."""
    return _PATH.match(word.strip()) is not None


def split_name(text: str) -> tuple[str, str]:
    name, equals, place = text.partition("=")
    if equals and place and name and not set(name) & set("/\\:."):
        return name, place
    return "", text


def parse_all(texts: Iterable[str], *, exists: Exists = lambda _: False) -> tuple[Selector, ...]:
    """Parse selectors, which commas may separate; repeated ones are dropped."""
    found = (parse(word, exists=exists) for text in texts for word in _split_commas(text, exists))
    return tuple({one.text: one for one in found}.values())


def selector_for(run: KnownRun) -> str:
    """Return the selector of one run: its label if that is unambiguous, else its URI."""
    parts = (run.experiment, run.name)
    plain = all(_PLAIN.fullmatch(part) and part == part.strip() for part in parts)
    name, place = split_name(run.label)  # `0=/0` would be a path with a name
    return run.label if plain and not (name and is_path(place)) else run.uri


def match(selectors: Sequence[Selector], known: Known) -> Ints:
    """Return the rows that any selector selects and none excludes, in the order of the table.

    If every selector excludes, all other runs are selected. Paths and URIs select nothing here.
    """
    return _chosen([(one, one.rows(known)) for one in selectors], known)


def excluded(selectors: Sequence[Selector], known: Known) -> list[Ints]:
    """Return the rows that each selector excludes."""
    return [one.rows(known) for one in selectors if one.excludes]


def select(
    selectors: Sequence[Selector],
    known: Known,
    *,
    unambiguous: bool = False,
    is_expected: Callable[[Selector], bool] = lambda _: False,
) -> Ints:
    """Return what `match` returns; each selector that does not exclude must select a run.

    With `unambiguous`, the name of a run without its experiment must select one run only.
    `is_expected` is true for a selector that may match nothing, since its runs may still start.

    Raises:
        NothingMatches: a selector selects nothing.
        AmbiguousRun: a name selects several runs.
        BadSelector: the selectors would examine too many runs.
    """
    found = [(one, one.rows(known)) for one in selectors]
    for selector, rows in found:
        if selector.place or selector.excludes:
            continue
        if not len(rows):
            if is_expected(selector):
                continue
            raise NothingMatches(_why_nothing(selector, known))
        may_be_name = unambiguous and selector.is_word and len(rows) > 1
        if may_be_name and not known.shown[selector.finders[0](known)].any():
            labels = known.column("run").values(_in_order(known, [rows]))
            raise AmbiguousRun(
                f"{selector.text!r} is the name of {_some([str(one) for one in labels])}."
                " Write EXPERIMENT/RUN."
            )
    return _chosen(found, known)


def _chosen(found: Sequence[tuple[Selector, Ints]], known: Known) -> Ints:
    selected = [rows for one, rows in found if not one.excludes]
    if found and not selected:
        selected = [known.rows]
    return _in_order(known, selected, [rows for one, rows in found if one.excludes])


def _in_order(known: Known, some: Sequence[Ints], but: Sequence[Ints] = ()) -> Ints:
    import numpy as np

    chosen = np.zeros(len(known.table), np.bool_)
    for rows in some:
        chosen[rows] = True
    for rows in but:
        chosen[rows] = False
    found: Ints = known.rows[chosen[known.rows]]
    return found


def changed(
    selectors: Sequence[Selector],
    add: Sequence[Selector],
    remove: Sequence[Selector],
    known: Known,
) -> tuple[Selector, ...]:
    """Return selectors with some added and some removed.

    Selectors that name removed runs are removed. If another selects them too, a `not:` selector is
    added; adding the run again removes that selector.

    Raises:
        NotSelected: the selectors do not select what is to be removed.
        BadSelector: a run cannot be excluded, or the selectors examine too many runs.
    """

    def rows_of(some: Iterable[Selector]) -> set[int]:
        return set(match(list(some), known).tolist())

    kept = {one.text: one for one in selectors}
    shown: Ints | None = None  # the rows that the kept selectors select
    for one in remove:
        if kept.pop(one.text, None) is not None:
            shown = None
            continue
        if shown is None:
            shown = match(tuple(kept.values()), known)
        known.look(len(shown) // 10)  # names cost less than patterns
        gone = _removed(one, shown, selectors, known)
        for text, held in list(kept.items()):
            is_below_it = one.is_word and text.startswith(f"{one.text}/")
            if is_below_it or (held.names_one_run and rows_of([held]) & gone.keys()):
                del kept[text]
        left_out = parse_all(_NOT + selector_for(run) for run in gone.values())
        kept |= {more.text: more for more in left_out}
        shown = shown[[row not in gone for row in shown.tolist()]]
    added = rows_of(one for one in add if not one.excludes)
    after = kept | {one.text: one for one in add}
    selected = rows_of(one for one in after.values() if not one.excludes)
    given = {one.text for one in add}
    found = []
    for one in after.values():
        left_out_rows = rows_of([replace(one, excludes=False)]) if one.excludes else set()
        is_over = left_out_rows and (left_out_rows <= added or left_out_rows.isdisjoint(selected))
        if one.text in given or not is_over:
            found.append(one)
    selected_all = all(one.excludes for one in selectors)
    if not selected_all and all(one.excludes for one in found):
        return ()
    return tuple(found)


def check_exclusions(selectors: Sequence[Selector], known: Known) -> None:
    """Refuse to exclude a run from a path or URI, which is always shown completely."""
    is_inside = below_any(one.place for one in selectors if one.place)
    for rows in excluded(selectors, known):
        for run in _runs(rows, known).values():
            if is_inside(run.uri):
                raise BadSelector(
                    f"{run.label!r} cannot be excluded from a path or URI that contains it.",
                    "Select runs by name instead of by path.",
                )


def _removed(
    removed: Selector, shown: Ints, selectors: Sequence[Selector], known: Known
) -> dict[int, KnownRun]:
    """Return the shown runs that a selector removes; raise if names cannot exclude them."""
    runs = _runs(shown, known)
    gone: dict[int, KnownRun] = {}
    if removed.place:
        gone = {row: run for row, run in runs.items() if is_below(run.uri, removed.place)}
    elif not removed.excludes:
        rows = removed.rows(Known(known.table, rows=shown)).tolist()
        gone = {row: runs[row] for row in rows if row in runs}
    if not gone:
        hint = f"Its selectors are {', '.join(one.text for one in selectors[:8])}."
        if any(one.place for one in selectors):
            hint += " Part of a path or URI cannot be removed."
        raise NotSelected(f"no selector of this board selects {removed.text[:80]!r}.", hint)
    labels = {run.label for run in gone.values()}
    for row, run in runs.items():
        if run.label in labels and row not in gone:
            raise BadSelector(
                f"{run.label!r} is below several roots, and cannot be excluded from only one.",
                "Select the others by path instead.",
            )
    if odd := [text for text in map(selector_for, gone.values()) if is_path(text)]:
        raise BadSelector(
            f"{odd[0][:200]!r} cannot be excluded by name.",
            "Select the others by name instead.",
        )
    return gone


def _runs(rows: Ints, known: Known) -> dict[int, KnownRun]:
    """Return the places and names of runs by row, without deleted ones."""
    names = ("root", "directory", "experiment", "name")
    columns = (known.column(one).values(rows) for one in names)
    return {
        row: KnownRun(str(root), str(directory or ""), str(experiment or ""), str(name or ""))
        for row, root, directory, experiment, name in zip(rows.tolist(), *columns, strict=True)
        if root is not None
    }


def _split_commas(text: str, exists: Exists) -> list[str]:
    if any(is_path(one) or exists(one) for one in (text, split_name(text)[1])):
        return [text]
    return [part for part in (one.strip() for one in text.split(",")) if part] or [""]


# By name.


def _by_name(experiment: str, name: str) -> Finder:
    is_experiment, is_named = _glob(experiment), _name_matcher(name)

    def find(known: Known) -> Ints:
        if not _is_literal(name):
            inside = known.matching("experiment", is_experiment, known.rows)
            return known.matching("name", is_named, inside)
        if _is_literal(experiment):
            return known.table.named(name, [experiment])
        named = known.table.named(name, known.experiments)
        return named if experiment == _ANY else known.matching("experiment", is_experiment, named)

    return find


def _by_word(word: str) -> Finder:
    """Find an experiment, or the name of a run that has none."""
    is_experiment, is_named = _glob(word), _name_matcher(word)

    def find(known: Known) -> Ints:
        import numpy as np

        if _is_literal(word):
            inside = np.flatnonzero(known.column("experiment").compare("==", word))
            return np.concatenate([inside, known.table.named(word, [""])])
        inside = known.matching(
            "experiment", lambda one: bool(one) and is_experiment(one), known.rows
        )
        alone = known.matching("experiment", lambda one: not one, known.rows)
        return np.concatenate([inside, known.matching("name", is_named, alone)])

    return find


def _by_id(identity: str) -> Finder:
    return lambda known: known.table.identified(identity)


def _is_literal(pattern: str) -> bool:
    """Return whether a pattern matches only the name that is equal to it."""
    return not _GLOB.search(pattern) and not _RANGE.fullmatch(pattern)


def _glob(pattern: str) -> Callable[[str], bool]:
    """Match a shell pattern; a name with brackets also matches itself."""
    if not _GLOB.search(pattern):
        return lambda name: name == pattern
    if pattern == _ANY:
        return lambda _: True
    compiled: list[re.Pattern[str]] = []

    def matches(name: str) -> bool:
        if not compiled:  # on first use, which is counted
            compiled.append(re.compile(translate(pattern)))
        return name == pattern or compiled[0].match(name) is not None

    return matches


def _name_matcher(pattern: str) -> Callable[[str], bool]:
    span = _RANGE.fullmatch(pattern)
    if span is None or (span[3] and span[3] != span[1]):
        return _glob(pattern)
    prefix, first, last = span[1], int(span[2]), int(span[4])
    if last < first:
        raise BadSelector(
            f"{pattern!r}: the range ends before it begins. Write {prefix}{last}-{prefix}{first}."
        )

    def within(name: str) -> bool:
        found = _NUMBERED.fullmatch(name)
        named = found is not None and found[1] == prefix and first <= int(found[2]) <= last
        return named or name == pattern

    return within


# By record.


def _prefixed(word: str, prefix: str, rest: str) -> Finder:
    if prefix not in _PREFIXES:
        near = nearest(prefix, _PREFIXES)
        guess = f"Did you mean {near}:{rest}? " if near else ""
        known = ", ".join(f"{one}:" for one in _PREFIXES)
        raise BadSelector(f"{word!r}: unknown selector {prefix!r}. {guess}Known: {known}.")
    if not rest:
        raise BadSelector(f"{word!r}: a value is missing after the colon. {EXAMPLES}.")
    if prefix == "id":
        return _by_id(rest)
    if prefix == "state":
        state = _state(word, rest)
        return lambda known: known.where(known.column("state").compare("==", state.value))
    if prefix == "job":
        return _by_job(rest)
    return _by_tag(rest) if prefix == "tag" else _by_hparam(word, rest)


def _by_job(text: str) -> Finder:
    """Find a job by id; the id of an array also matches its members, such as `2300_4`."""
    is_given, is_member = _glob(text), re.compile(rf"{re.escape(text)}_[0-9]+").fullmatch

    def is_job(one: Held) -> bool:
        return is_given(str(one)) or is_member(str(one)) is not None

    def find(known: Known) -> Ints:
        others = known.column("attempt_jobs").each(lambda held: any(map(is_job, _listed(held))))
        return known.where(known.column("job").each(is_job) | others)

    return find


def _listed(held: Held) -> list[str]:
    jobs: list[str] = json.loads(str(held))
    return jobs


def _by_tag(text: str) -> Finder:
    name, equals, value = text.partition("=")
    is_named, is_value = _glob(name), _glob(value)

    def find(known: Known) -> Ints:
        found = known.column("tags").each(
            lambda held: isinstance(held, frozenset) and any(map(is_named, held))
        )
        rows = known.where(found)
        if not equals or not len(rows):
            return rows
        found[:] = False
        for one in filter(is_named, known.table.names("tags")):
            column = known.column(one, "tags")
            for row, held in zip(rows.tolist(), column.values(rows), strict=True):
                found[row] |= held is not None and any(map(is_value, _texts(held)))
        return known.where(found)

    return find


def _state(word: str, rest: str) -> State:
    try:
        return State(rest.lower())
    except ValueError:
        near = nearest(rest.lower(), State)
        guess = f"Did you mean state:{near}? " if near else ""
        known = f"{guess}Known: {', '.join(State)}"
        raise BadSelector(f"{word!r}: unknown state. {known}.") from None


def _by_hparam(word: str, rest: str) -> Finder:
    found = _COMPARISON.fullmatch(rest)
    if found is None or not found[1].strip():
        raise BadSelector(f"{word!r}: write hparam:NAME<VALUE, with <, <=, >, >=, = or !=.")
    name, sign, text = found[1].strip(), found[2], found[3].strip()
    number = _number(text)
    if sign in _ORDERS:
        if number is None:
            raise BadSelector(f"{word!r}: {text!r} is not a number. Compare strings with = or !=.")
        limit = number
        return lambda known: known.where(known.column(name, "hparams").compare(sign, limit))

    def find(known: Known) -> Ints:
        column = known.column(name, "hparams")
        lower = text.lower()
        equal = column.each(lambda one: not is_number(one) and _shown(one).lower() == lower)
        if number is not None:
            equal = equal | column.compare("==", number)
        return known.where(column.present & ~equal if sign == "!=" else equal)

    return find


def _texts(value: object) -> list[str]:
    """Return the ways to write a value; a column does not distinguish 3 from 3.0."""
    if isinstance(value, float) and value.is_integer():
        return [str(value), str(int(value))]
    return [_shown(value)]


def _shown(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# Messages if nothing matches.


def _why_nothing(selector: Selector, known: Known) -> str:
    text = selector.text
    if not len(known.rows):
        return f"{text!r} matches no run: no runs were found. Give a path, or --root."
    prefix, colon, rest = text.partition(":")
    if colon and prefix in _PREFIXES:
        return f"{text!r} matches no run. {_nearest_value(prefix, rest.strip(), known)}"
    experiments = known.texts("experiment")
    experiment, slash, name = text.rpartition("/")
    spelled = experiment + slash + _names(name)[-1]
    some = known.rows[:_MOST_COMPARED]
    labels = [str(one) for one in known.column("run").values(some)]
    jobs = [f"job:{job}" for job in _jobs(known)]
    near = _equally_near(spelled, [*experiments, *labels, *jobs][:_MOST_COMPARED])
    if len(near) > 1:
        *others, last = map(repr, near)
        return f"{text!r} matches no run. The nearest are {', '.join(others)} and {last}."
    if near:
        return f"{text!r} matches no run. The nearest is {near[0]!r}."
    return f"{text!r} matches no run. Known here: {_some(experiments or labels)}."


def _equally_near(name: str, names: Iterable[str]) -> list[str]:
    """Return the nearest name, or up to three that are equally near, in order."""
    from difflib import SequenceMatcher, get_close_matches

    distinct = list(dict.fromkeys(names))
    near = get_close_matches(name, distinct, n=len(distinct) or 1)
    ratios = {one: SequenceMatcher(None, one, name).ratio() for one in near}
    best = max(ratios.values(), default=0.0)
    return [one for one in distinct if ratios.get(one, -1.0) == best][:_MOST_NEAR]


def _jobs(known: Known) -> list[str]:
    attempts = (job for held in known.texts("attempt_jobs") for job in _listed(held))
    return sorted({*known.texts("job"), *attempts})


def _nearest_value(prefix: str, text: str, known: Known) -> str:
    if prefix == "id":
        some = known.rows[:_MOST_COMPARED]
        columns = (known.column(name).values(some) for name in ("root", "directory"))
        ids = {run_id(str(root), str(one or "")) for root, one in zip(*columns, strict=True)}
        return _near(text, ids, "ids", "id:")
    if prefix == "hparam":
        found = _COMPARISON.fullmatch(text)
        name = found[1].strip() if found else text
        held = known.column(name, "hparams").values(known.rows)
        values = sorted({_shown(value) for value in held if value is not None})
        if values:
            return f"The values of {name!r} are {_some(values)}."
        return _near(name, set(known.table.names("hparams")), "hyperparameters", "")
    if prefix == "job":
        return _near(text, set(_jobs(known)), "jobs", "job:")
    if prefix == "tag":
        tags = set(known.table.names("tags"))
        return _near(text.partition("=")[0], tags, "tags", "tag:")
    return f"The states of runs are {_some(known.texts('state'))}."


def _near(name: str, names: set[str], what: str, prefix: str) -> str:
    near = nearest(name, sorted(names))
    if near:
        return f"The nearest is {prefix + near!r}."
    return f"The {what} are {_some(sorted(names))}." if names else f"No run has {what}."


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(names[:8]) or "none") + more
