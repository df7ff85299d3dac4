"""Facts about a log tree, and the rules that derive findings from them.

Each rule is a pure function; `examination` gathers the facts. A rule combines similar findings into
one, which names the first few places.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from aboard.index.query import Damage, EventFile
from aboard.index.sources import LONGEST_SECONDS, REMOTE_SECONDS, UNWATCHED_SECONDS
from aboard.index.tags import KNOWN_PLUGINS, Tag
from aboard.runs.units import counted, format_age
from aboard.storage.base import join

Severity = Literal["error", "warning", "info"]

SLOW_WRITE_SECONDS = 0.05
_SHOWN = 3


class Finding(NamedTuple):
    code: str  # stable, for scripts
    severity: Severity
    what: str
    where: tuple[str, ...]  # the first few places, then how many more
    advice: str


class Steps(NamedTuple):
    """The order of the steps of a tag within one file, if they do not simply increase."""

    run: str
    tag: str
    uri: str
    points: int
    backwards: int
    back_to: int | None  # the lowest step it went back to
    repeated: int
    lowest: int
    highest: int


class NotFinite(NamedTuple):
    run: str
    tag: str
    value: float
    since: int
    from_the_start: bool


@dataclass(frozen=True, slots=True)
class Facts:
    place: str
    now: float
    runs: Sequence[str] = ()
    files: Sequence[EventFile] = ()
    modified: dict[str, float] = field(default_factory=dict)  # by URI, if the storage tells
    grown: Collection[str] = ()  # URIs of files that grew while they were read
    tags: Sequence[Tag] = ()
    damage: Sequence[Damage] = ()
    steps: Sequence[Steps] = ()
    not_finite: Sequence[NotFinite] = ()
    ended: bool = False  # all runs, according to their records

    def run_of(self, file: EventFile) -> str:
        return file.directory[len(self.place.rstrip("/")) + 1 :] or "."

    def written(self, file: EventFile) -> float | None:
        return self.modified.get(join(file.directory, file.name), file.last_wall)


def slow_index(path: str, seconds: float, file_system: str = "") -> list[Finding]:
    if seconds < SLOW_WRITE_SECONDS:
        return []
    disk = f" ({file_system})" if file_system else ""
    return [
        Finding(
            "slow-index",
            "warning",
            f"a small write to the index takes {seconds * 1000:,.0f} ms; on a local disk a few ms",
            (f"{path}{disk}",),
            "Set ABOARD_CACHE to a directory on a local disk.",
        )
    ]


def requests(bucket: str, hours: dict[int, tuple[int, int]], pages: int) -> Finding:
    """Report the requests made to a bucket, and those that a board will make to list `pages`."""
    total = sum(count for count, _ in hours.values())
    size = sum(count for _, count in hours.values())
    most = max((count for count, _ in hours.values()), default=0)
    lowest, highest = (int(pages * 3600 // each) for each in (LONGEST_SECONDS, REMOTE_SECONDS))
    return Finding(
        "requests",
        "info",
        f"{counted(total, 'request')} and {size:,} bytes in the last 24 h, at most {most:,}"
        " requests in an hour",
        (bucket,),
        f"A board in use will make {lowest:,} to {highest:,} list requests an hour, and one read"
        f" for each file that grew; it stops {UNWATCHED_SECONDS:g} s after the last viewer has"
        " left.",
    )


def named(places: Iterable[str]) -> tuple[str, ...]:
    held = list(places)
    more = (f"and {len(held) - _SHOWN:,} more",) if len(held) > _SHOWN else ()
    return (*held[:_SHOWN], *more)


SELECTED_RUNS = 500  # if there are more runs, TensorBoard selects none at first
MANY_TAGS = 2000
LIVE_SECONDS = 300.0
AHEAD_SECONDS = 300.0
YEAR_2000 = 946_684_800.0
SHOWN_PLUGINS = KNOWN_PLUGINS | {"distributions", "projector"}


def diagnose(facts: Facts) -> list[Finding]:
    return [finding for rule in _RULES for finding in rule(facts)]


def worst_first(findings: list[Finding]) -> list[Finding]:
    order = ("error", "warning", "info")
    return sorted(findings, key=lambda one: order.index(one.severity))


def no_values(facts: Facts) -> Iterator[Finding]:
    by_run = defaultdict(list)
    for file in facts.files:
        by_run[facts.run_of(file)].append(file)
    full = {run for run, held in by_run.items() if any(one.values or one.damaged for one in held)}
    # A writer of hyperparameters leaves a file without values above its runs.
    above = {str(parent) for run in full for parent in PurePosixPath(run).parents}
    bare = {run: held for run, held in by_run.items() if run not in full | above}
    for empty in (True, False):
        runs = [run for run, held in bare.items() if any(one.events for one in held) is not empty]
        if not runs:
            continue
        what = "nothing was written" if empty else "only the header was written"
        yield Finding(
            "empty-files" if empty else "no-values",
            "warning" if full else "error",
            f"{what} to the event files of {_directories(len(runs))}",
            named(join(facts.place, run) if run != "." else facts.place for run in runs),
            "The writer has not flushed yet (call flush() or close()), or only rank 0 logs and"
            " these files were made by other ranks.",
        )


def damaged(facts: Facts) -> Iterator[Finding]:
    hopeless = dict.fromkeys(
        join(one.directory, one.name) for one in facts.files if _is_hopeless(one)
    )
    if hopeless:
        yield Finding(
            "no-good-record",
            "error",
            f"no good record in {counted(len(hopeless), 'file')}",
            named(hopeless),
            "It is probably not an event file, or it was overwritten: remove it, or restore it from"
            " a copy.",
        )
    damage = [span for span in facts.damage if span.uri not in hopeless]
    if damage:
        lost = sum(span.length for span in damage)
        yield Finding(
            "damaged-records",
            "warning",
            f"{counted(len(damage), 'damaged place')}, {lost:,} bytes in all, cannot be read",
            named(f"{span.uri} at byte {span.offset:,} ({span.length:,} bytes)" for span in damage),
            "All good records around it are shown. Check that no two processes write one file, and"
            " that the disk was not full.",
        )


def _is_hopeless(file: EventFile) -> bool:
    return bool(file.damaged) and not file.events


def cut_off(facts: Facts) -> Iterator[Finding]:
    ends = [
        f"{join(file.directory, file.name)} ({file.incomplete:,} bytes)"
        for file in facts.files
        if file.incomplete and not _is_live(facts, file) and not _is_hopeless(file)
    ]
    if ends:
        yield Finding(
            "cut-off",
            "warning",
            f"{counted(len(ends), 'file')} ended in the middle of a record and stopped growing",
            named(ends),
            "The writer was killed, or its disk was full. All records before it are shown; if the"
            " job is still running, check that it can write.",
        )


def freshness(facts: Facts) -> Iterator[Finding]:
    held = [file for file in facts.files if file.values]
    times = [(when, file) for file in held if (when := facts.written(file)) is not None]
    if not times:
        return
    newest, file = max(times, key=lambda one: one[0])
    where = join(file.directory, file.name)
    live = sum(_is_live(facts, file) for file in held)
    growing = sum(join(file.directory, file.name) in facts.grown for file in held)
    if growing or live:
        of_all = f" of {len(facts.files):,}"
        yield Finding(
            "live",
            "info",
            f"{counted(growing, 'file')}{of_all} grew just now"
            if growing
            else f"{counted(live, 'file')}{of_all} {'was' if live == 1 else 'were'} written in the"
            " last 5 minutes",
            (where,),
            "Nothing to do: new data appears within seconds.",
        )
    elif newest <= facts.now:
        yield Finding(
            "stale",
            "info",
            f"no new data for {format_age(facts.now - newest)}",
            (where,),
            "Nothing to do: the run has ended."
            if facts.ended
            else "If a job should be writing, check that it is running and flushes its writer.",
        )


def _directories(count: int) -> str:
    return f"{count:,} {'directory' if count == 1 else 'directories'}"


def _is_live(facts: Facts, file: EventFile) -> bool:
    when = facts.written(file)
    return when is not None and abs(facts.now - when) < LIVE_SECONDS


def two_writers(facts: Facts) -> Iterator[Finding]:
    found = {pair[0].directory: pair for pair in overlapping(facts)}
    if found:
        yield Finding(
            "two-writers",
            "warning",
            "two writers logged the same tags to the same place at the same time, in"
            f" {_directories(len(found))}, so their points replace each other",
            named(
                f"{directory} ({one.name} and {other.name})"
                for directory, (one, other) in found.items()
            ),
            "Log from rank 0 only, or give each process its own directory, such as rank-1/.",
        )


def overlapping(facts: Facts) -> list[tuple[EventFile, EventFile]]:
    """Return pairs of files of a run that share tags and were written at the same time."""
    tags = defaultdict(set)
    for tag in facts.tags:
        for segment in tag.segments:
            tags[segment.directory, segment.file_name].add(tag.name)
    by_directory = defaultdict(list)
    for file in facts.files:
        if file.first_wall is not None and file.last_wall is not None:
            by_directory[file.directory].append((file.first_wall, file.last_wall, file))
    pairs = []
    for held in by_directory.values():
        active: list[tuple[float, EventFile]] = []
        for start, end, file in sorted(held):
            active = [(until, other) for until, other in active if until > start + 1]
            for _, other in active:
                if tags[file.directory, file.name] & tags[file.directory, other.name]:
                    pairs.append((other, file))
            active.append((end, file))
    return pairs


def step_order(facts: Facts) -> Iterator[Finding]:
    mixed = [one for one in facts.steps if is_mixed(one)]
    if mixed:
        yield Finding(
            "mixed-steps",
            "warning",
            f"the steps of {counted(len(mixed), 'tag')} go back or repeat many times within"
            " one file: several ranks probably write the same file",
            named(
                f"'{one.tag}' in {one.uri} ({one.backwards:,} times back, {one.repeated:,} times"
                f" the same, of {one.points:,})"
                for one in mixed
            ),
            "Log from rank 0, or give each rank its own directory; if one process logs several"
            " values at a step, increase the step for each.",
        )
    fixed = [one for one in facts.steps if is_fixed(one)]
    if fixed:
        yield Finding(
            "fixed-step",
            "warning",
            f"all values of {counted(len(fixed), 'tag')} have the same step, so only the last one"
            " shows",
            named(f"'{one.tag}' in {one.uri} ({one.points:,} at {one.lowest})" for one in fixed),
            "Pass the step when you log: add_scalar(tag, value, global_step).",
        )


def is_fixed(one: Steps) -> bool:
    return one.points >= 5 and one.lowest == one.highest


def is_mixed(one: Steps) -> bool:
    """Return whether steps go back or repeat more often than restarts could explain."""
    if is_fixed(one):
        return False
    often_back = one.backwards >= 3 and one.backwards * 20 >= one.points
    return often_back or (one.points >= 8 and one.repeated * 4 >= one.points)


def restarts(facts: Facts) -> Iterator[Finding]:
    mixed = {file.directory for pair in overlapping(facts) for file in pair}
    found: dict[str, int] = {}
    for tag in facts.tags:
        for before, after in pairwise(tag.segments):
            if after.min_step <= before.max_step and tag.directory not in mixed:
                found[tag.run] = min(after.min_step, found.get(tag.run, after.min_step))
    for one in facts.steps:
        if one.back_to is not None and not is_mixed(one):
            found[one.run] = min(one.back_to, found.get(one.run, one.back_to))
    if found:
        yield Finding(
            "restarts",
            "info",
            f"{counted(len(found), 'run')} continued from an earlier step after a restart; what was"
            " written before from that step on is not shown",
            named(f"{run} (step {step:,})" for run, step in found.items()),
            "Nothing to do if the job was restarted from a checkpoint.",
        )


def clocks(facts: Facts) -> Iterator[Finding]:
    ahead = [one for one in facts.files if (one.last_wall or 0) > facts.now + AHEAD_SECONDS]
    if ahead:
        most = max(one.last_wall or 0 for one in ahead) - facts.now
        yield Finding(
            "clock-ahead",
            "warning",
            f"events are dated up to {format_age(most)} in the future",
            named(join(one.directory, one.name) for one in ahead),
            "Set the clock of the machine that wrote them (or of this one): times on the board"
            " are wrong, steps are not.",
        )
    behind = [one for one in facts.files if one.last_wall is not None and one.last_wall < YEAR_2000]
    if behind:
        yield Finding(
            "clock-behind",
            "warning",
            "events are dated before the year 2000",
            named(join(one.directory, one.name) for one in behind),
            "Set the clock of the machine, or pass seconds since 1970 as wall times: relative"
            " times on the board are wrong, steps are not.",
        )


def amount(facts: Facts) -> Iterator[Finding]:
    if len(facts.runs) > SELECTED_RUNS:
        yield Finding(
            "many-runs",
            "warning",
            f"{len(facts.runs):,} runs: with more than {SELECTED_RUNS}, TensorBoard selects none"
            " when it is opened, and the board looks empty",
            (facts.place,),
            "Open a directory further down, or select runs in the list on the left.",
        )
    per_run: dict[str, int] = defaultdict(int)
    for tag in facts.tags:
        per_run[tag.run] += 1
    large = {run: count for run, count in per_run.items() if count > MANY_TAGS}
    if large:
        yield Finding(
            "many-tags",
            "warning",
            f"{counted(len(large), 'run')} with over {MANY_TAGS:,} tags: the page will be slow",
            named(f"{run} ({count:,} tags)" for run, count in large.items()),
            "Filter tags on the board, and log fewer: do not put steps or values into tag names.",
        )


def plugins(facts: Facts) -> Iterator[Finding]:
    unknown = defaultdict(list)
    bare = []
    for tag in facts.tags:
        shown = f"'{tag.name}' of {tag.run}"
        if tag.kind.plugin and tag.kind.plugin not in SHOWN_PLUGINS:
            unknown[tag.kind.plugin].append(shown)
        elif not tag.kind.plugin and not tag.is_scalar:
            bare.append(shown)
    for plugin, held in sorted(unknown.items()):
        yield Finding(
            "unknown-plugin",
            "info",
            f"{counted(len(held), 'tag')} for the plugin '{plugin}', which is not part of"
            " TensorBoard",
            named(held),
            "Install the package with that plugin to see them; the plugin must work without access"
            " to the log directory.",
        )
    if bare:
        yield Finding(
            "no-metadata",
            "warning",
            f"{counted(len(bare), 'tag')} without metadata, so no tab shows them",
            named(bare),
            "Write them with the functions of tf.summary or SummaryWriter, which add the metadata.",
        )


def not_finite(facts: Facts) -> Iterator[Finding]:
    if facts.not_finite:
        yield Finding(
            "not-finite",
            "info",
            f"{counted(len(facts.not_finite), 'tag')} ended in values that are not finite",
            named(
                f"'{one.tag}' of {one.run} ({_name(one.value)}"
                f" {'from the start' if one.from_the_start else f'since step {one.since:,}'})"
                for one in facts.not_finite
            ),
            "Lower the learning rate or look for a division by zero; the points are kept.",
        )


_RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    no_values,
    damaged,
    cut_off,
    two_writers,
    step_order,
    clocks,
    amount,
    plugins,
    freshness,
    restarts,
    not_finite,
)


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinite"
