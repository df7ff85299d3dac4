"""The language in which runs are chosen: `cifar10`, `cifar10/run3-run7`, `hparam:lr<0.1`, a URI.

A text becomes a selector; selectors and the runs that are known give the runs that are meant.
Nothing here looks at a storage; whether a word is a path that exists, the caller says.

    cifar10               every run of the experiment; `cifar*` of several
    cifar10/run3          one run; `cifar10/run*` those whose names match
    cifar10/run3-run7     run3 to run7
    run3                  the runs of that name, where no experiment has it
    job:2300  tag:baseline  tag:team=vision  state:running
    hparam:lr<0.1         also <=, >, >=, =, !=
    not:cifar10/run3      all the others, of what the other selectors mean
    ./logs  /data/logs  s3://bucket/logs      any path or URI
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from aboard.runs.known import KnownRun
from aboard.runs.manifest import State

_PREFIXES = ("job", "tag", "state", "hparam", "not")
_NOT = "not:"
_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[/~]|\.{1,2}(/|$)")
_GLOB = re.compile(r"[*?\[]")
_PLAIN = re.compile(r"[^\s,/:*?\[~.][^,/:*?\[]*")
_PREFIXED = re.compile(r"([a-z]+):(.*)", re.DOTALL)
_COMPARISON = re.compile(r"([^<>=!]+?)\s*(<=|>=|!=|==|=|<|>)\s*(.*)", re.DOTALL)
_RANGE = re.compile(r"(\D*)(\d{1,18})-(\D*)(\d{1,18})")
_NUMBERED = re.compile(r"(\D*)(\d{1,18})")
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EXAMPLES = "Examples: cifar10, cifar10/run3, cifar10/run3-run7, job:2300, hparam:lr<0.1, ./logs"


class BadSelector(ValueError):  # noqa: N818 - named by what is wrong
    """A selector that cannot be understood; the text says why, and what to write."""


class NothingMatches(LookupError):  # noqa: N818 - named by what is wrong
    """A selector that matches no run; the text names the nearest thing that exists."""


class Ambiguous(LookupError):  # noqa: N818 - named by what is wrong
    """A selector that matches more runs than may be meant; the text names some of them."""


Matcher = Callable[[KnownRun, float], bool]


class Selector(NamedTuple):
    """A selector, understood."""

    text: str
    is_place: bool
    """Whether it is a path or URI, and not a question about known runs."""
    matches: Matcher
    """Says whether a run is meant, at a time."""
    otherwise: Matcher | None = None
    """What else is meant where nothing matches."""
    excludes: bool = False
    """Whether what it means is left out of what the others mean."""

    def of(self, runs: Sequence[KnownRun], now: float) -> list[int]:
        """Return the places in `runs` of those that are meant."""
        found = [place for place, run in enumerate(runs) if self.matches(run, now)]
        if not found and self.otherwise is not None:
            found = [place for place, run in enumerate(runs) if self.otherwise(run, now)]
        return found


def parse(text: str, *, exists: Callable[[str], bool] = lambda _: False) -> Selector:
    """Read a selector.

    Args:
        text: what the user wrote.
        exists: says whether a word that could be an experiment is meant as a path instead.

    Raises:
        BadSelector: it has no meaning.
    """
    word = text.strip()
    if not word:
        raise BadSelector(f"an empty selector selects nothing. {EXAMPLES}.")
    if is_path(word) or exists(word):
        return Selector(word, True, _never)
    if word.startswith(_NOT):
        return _excluding(word)
    if found := _PREFIXED.fullmatch(word):
        return Selector(word, False, _prefixed(word, found[1], found[2].strip()))
    experiment, slash, run = word.partition("/")
    if slash and not (experiment and run):
        raise BadSelector(f"{text!r}: write EXPERIMENT/RUN. {EXAMPLES}.")
    if slash:
        return Selector(word, False, _by_name(experiment, run))
    return Selector(word, False, _by_word(word), _by_name("*", word))


def _excluding(word: str) -> Selector:
    meant = parse(word.removeprefix(_NOT))
    if meant.is_place or meant.excludes:
        raise BadSelector(f"{word!r}: only runs can be left out. Example: {_NOT}cifar10/run3.")
    return meant._replace(text=_NOT + meant.text, excludes=True)


def is_path(word: str) -> bool:
    """Say whether a word can mean nothing but a path or URI, whether it exists or not."""
    return _PATH.match(word.strip()) is not None


def parse_all(
    texts: Iterable[str], *, exists: Callable[[str], bool] = lambda _: False
) -> list[Selector]:
    """Read several selectors; commas between them are allowed.

    Raises:
        BadSelector: one of them has no meaning.
    """
    return [
        parse(word, exists=exists)
        for text in texts
        for word in ([text] if exists(text) else _split_commas(text))
    ]


def selector_for(run: KnownRun) -> str:
    """Write the selector of one run: its label where that reads well, else where it is."""
    parts = (run.experiment, run.name)
    plain = all(_PLAIN.fullmatch(part) and part == part.strip() for part in parts)
    return run.label if plain else run.uri


def exclusion_of(text: str) -> str:
    """Write the selector that leaves out what another one means."""
    return _NOT + text


def matching(selectors: Sequence[Selector], runs: Sequence[KnownRun], now: float) -> list[KnownRun]:
    """Return the runs that any selector means and none leaves out, in the order they are known.

    Where all of them leave something out, every other run is meant.
    """
    return _chosen([(one, one.of(runs, now)) for one in selectors], runs)


def _chosen(
    found: Sequence[tuple[Selector, list[int]]], runs: Sequence[KnownRun]
) -> list[KnownRun]:
    """Return the runs that remain of what each selector means."""
    gone = {place for one, places in found if one.excludes for place in places}
    wanted = [places for one, places in found if not one.excludes]
    chosen = {place for places in wanted for place in places}
    if found and not wanted:
        chosen = set(range(len(runs)))
    return [runs[place] for place in sorted(chosen - gone)]


def left_out(selectors: Sequence[Selector], runs: Sequence[KnownRun], now: float) -> list[KnownRun]:
    """Return the runs that selectors leave out, whatever else means them."""
    return [runs[place] for one in selectors if one.excludes for place in one.of(runs, now)]


def select(
    selectors: Sequence[Selector], runs: Sequence[KnownRun], now: float, *, strictly: bool = False
) -> list[KnownRun]:
    """Return the runs that any selector means and none leaves out, in the order they are known.

    Args:
        selectors: what is meant; paths and URIs among them are the caller's.
        runs: what there is.
        now: the time at which states are asked.
        strictly: whether the name of a run alone may mean one run only.

    Raises:
        NothingMatches: a selector means no run at all; one that leaves out may.
        Ambiguous: a name alone means several, and only one may be meant.
    """
    found = [(one, one.of(runs, now)) for one in selectors]
    for selector, places in found:
        if selector.is_place or selector.excludes:
            continue
        if not places:
            raise NothingMatches(_nearest(selector, runs, now))
        is_loose = selector.otherwise is not None and not selector.matches(runs[places[0]], now)
        if strictly and is_loose and len(places) > 1:
            labels = _some([runs[place].label for place in places])
            raise Ambiguous(f"{selector.text!r} is the name of {labels}. Write which is meant.")
    return _chosen(found, runs)


def _split_commas(text: str) -> list[str]:
    if is_path(text):
        return [text]
    return [part for part in (one.strip() for one in text.split(",")) if part] or [""]


def _never(_run: KnownRun, _now: float) -> bool:
    return False


# By name.


def _by_name(experiment: str, name: str) -> Matcher:
    is_experiment, is_named = _glob(experiment), _name_matcher(name)

    def matches(run: KnownRun, _now: float) -> bool:
        return is_experiment(run.experiment) and is_named(run.name)

    return matches


def _by_word(word: str) -> Matcher:
    """Match an experiment, or the name of a run that is part of none."""
    is_experiment, is_named = _glob(word), _name_matcher(word)

    def matches(run: KnownRun, _now: float) -> bool:
        return is_experiment(run.experiment) if run.experiment else is_named(run.name)

    return matches


def _glob(pattern: str) -> Callable[[str], bool]:
    """Match a shell pattern; a name with brackets in it matches itself too."""
    if not _GLOB.search(pattern):
        return lambda name: name == pattern
    return lambda name: name == pattern or fnmatchcase(name, pattern)


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


# By what the record says.


def _prefixed(word: str, prefix: str, rest: str) -> Matcher:
    if prefix not in _PREFIXES:
        near = get_close_matches(prefix, _PREFIXES, n=1)
        meant = f"Did you mean {near[0]}:{rest}? " if near else ""
        known = ", ".join(f"{one}:" for one in _PREFIXES)
        raise BadSelector(f"{word!r}: there is no selector {prefix!r}. {meant}Known are {known}.")
    if not rest:
        raise BadSelector(f"{word!r}: nothing follows the colon. {EXAMPLES}.")
    if prefix == "job":
        is_job = _glob(rest)
        return lambda run, _now: is_job(run.job)
    if prefix == "tag":
        return _tag_matcher(rest)
    if prefix == "state":
        return _state_matcher(word, rest)
    return _hparam_matcher(word, rest)


def _tag_matcher(wanted: str) -> Matcher:
    name, equals, value = wanted.partition("=")
    is_named, is_value = _glob(name), _glob(value)

    def matches(run: KnownRun, _now: float) -> bool:
        return any(
            is_named(tag) and (not equals or is_value(_shown(held)))
            for tag, held in run.tags.items()
        )

    return matches


def _state_matcher(word: str, rest: str) -> Matcher:
    try:
        state = State(rest.lower())
    except ValueError:
        near = get_close_matches(rest.lower(), list(State), n=1)
        meant = f"Did you mean state:{near[0]}? " if near else ""
        known = f"{meant}Known are {', '.join(State)}"
        raise BadSelector(f"{word!r}: there is no such state. {known}.") from None
    return lambda run, now: run.state_at(now) is state


def _hparam_matcher(word: str, rest: str) -> Matcher:
    found = _COMPARISON.fullmatch(rest)
    if found is None or not found[1].strip():
        raise BadSelector(f"{word!r}: write hparam:NAME<VALUE, with <, <=, >, >=, = or !=.")
    name, sign, text = found[1].strip(), found[2], found[3].strip()
    number = _number(text)
    if sign in _ORDERS:
        if number is None:
            raise BadSelector(f"{word!r}: {text!r} is not a number. Compare texts with = or !=.")
        compare, wanted = _ORDERS[sign], number
        return lambda run, _now: any(
            compare(value, wanted) for value in _values(run, name) if _is_number(value)
        )
    is_same = sign != "!="
    return lambda run, _now: any(
        _equals(value, text, number) is is_same for value in _values(run, name)
    )


def _values(run: KnownRun, name: str) -> list[Any]:
    """Return the value of a hyperparameter, if the run has it."""
    hparams = run.hparams
    return [hparams[name]] if name in hparams else []


def _equals(value: object, text: str, number: float | None) -> bool:
    if _is_number(value) and number is not None:
        return value == number
    return _shown(value).lower() == text.lower()


def _shown(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# What to say if nothing matches.


def _nearest(selector: Selector, runs: Sequence[KnownRun], now: float) -> str:
    """Say that nothing matches, and what is nearest to it."""
    text = selector.text
    if not runs:
        return f"{text!r} matches no run: no run is known at all. Give a path, or --root."
    prefix, colon, rest = text.partition(":")
    if colon and prefix in _PREFIXES:
        return f"{text!r} matches no run. {_nearest_value(prefix, rest.strip(), runs, now)}"
    experiments = sorted({run.experiment for run in runs if run.experiment})
    jobs = sorted({f"job:{run.job}" for run in runs if run.job})
    near = get_close_matches(text, [*experiments, *(run.label for run in runs), *jobs], n=1)
    if near:
        return f"{text!r} matches no run. The nearest is {near[0]!r}."
    there_are = experiments or [run.label for run in runs]
    return f"{text!r} matches no run. There are {_some(there_are)}."


def _nearest_value(prefix: str, wanted: str, runs: Sequence[KnownRun], now: float) -> str:
    if prefix == "hparam":
        found = _COMPARISON.fullmatch(wanted)
        name = found[1].strip() if found else wanted
        values = sorted({_shown(value) for run in runs for value in _values(run, name)})
        if values:
            return f"The values of {name!r} are {_some(values)}."
        return _near(name, {one for run in runs for one in run.hparams}, "hyperparameters", "")
    if prefix == "job":
        return _near(wanted, {run.job for run in runs if run.job}, "jobs", "job:")
    if prefix == "tag":
        tags = {tag for run in runs for tag in run.tags}
        return _near(wanted.partition("=")[0], tags, "tags", "tag:")
    states = {str(state) for run in runs if (state := run.state_at(now))}
    return f"The states of runs are {_some(sorted(states))}."


def _near(wanted: str, names: set[str], what: str, prefix: str) -> str:
    near = get_close_matches(wanted, sorted(names), n=1)
    if near:
        return f"The nearest is {prefix + near[0]!r}."
    return f"The {what} are {_some(sorted(names))}." if names else f"No run has {what}."


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(names[:8]) or "none") + more
