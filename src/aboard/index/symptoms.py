"""What is odd about a log tree: the rules that lead from facts to findings.

Each rule is pure: it knows nothing of how the facts were gathered. It makes one finding of many
alike, and names the first few.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import PurePosixPath

from aboard.index.files import EventFile
from aboard.index.findings import Facts, Finding, Steps, age, counted, named
from aboard.storage.uri import join

SELECTED_RUNS = 500
"""With more runs than this, TensorBoard selects none when it is opened."""
MANY_TAGS = 2000
LIVE_SECONDS = 300.0
AHEAD_SECONDS = 300.0
YEAR_2000 = 946_684_800.0
SHOWN_PLUGINS = frozenset(
    {
        "audio",
        "custom_scalars",
        "distributions",
        "graph_keras_model",
        "graph_run_metadata",
        "graph_run_metadata_graph",
        "graph_tagged_run_metadata",
        "graphs",
        "histograms",
        "hparams",
        "images",
        "mesh",
        "pr_curves",
        "projector",
        "scalars",
        "text",
    }
)


def examine(facts: Facts) -> list[Finding]:
    """Return what all rules find."""
    return [finding for rule in _RULES for finding in rule(facts)]


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Put errors before warnings, and those before what is merely worth knowing."""
    order = ("error", "warning", "info")
    return sorted(findings, key=lambda one: order.index(one.severity))


def no_values(facts: Facts) -> Iterator[Finding]:
    """Find runs whose files hold nothing to show."""
    by_run = defaultdict(list)
    for file in facts.files:
        by_run[facts.run_of(file)].append(file)
    full = {run for run, held in by_run.items() if any(one.values or one.damaged for one in held)}
    # A writer of hyperparameters leaves an empty file above the runs it writes.
    above = {str(parent) for run in full for parent in PurePosixPath(run).parents}
    bare = {run: held for run, held in by_run.items() if run not in full | above}
    for empty in (True, False):
        runs = [run for run, held in bare.items() if any(one.events for one in held) is not empty]
        if not runs:
            continue
        what = (
            "nothing was written" if empty else "only the mark that begins every file was written"
        )
        yield Finding(
            "empty-files" if empty else "no-values",
            "warning" if full else "error",
            f"{what} to the event files of {counted(len(runs), 'run')}",
            named(join(facts.place, run) if run != "." else facts.place for run in runs),
            "The writer has not flushed yet (call flush() or close()), or only rank 0 logs and"
            " these files were made by other ranks.",
        )


def damaged(facts: Facts) -> Iterator[Finding]:
    """Find bytes that are no records."""
    if not facts.damage:
        return
    lost = sum(span.length for span in facts.damage)
    hopeless = [
        join(one.directory, one.name) for one in facts.files if one.damaged and not one.events
    ]
    if hopeless:
        yield Finding(
            "no-good-record",
            "error",
            f"there is no good record in {counted(len(hopeless), 'file')}",
            named(hopeless),
            "It is no event file, or it was overwritten: restore it from a copy.",
        )
    yield Finding(
        "damaged-records",
        "warning",
        f"{counted(len(facts.damage), 'damaged place')}, {lost:,} bytes in all, cannot be read",
        named(
            f"{span.uri} at byte {span.offset:,} ({span.length:,} bytes)" for span in facts.damage
        ),
        "All good records around it are shown. Check that no two processes write one file, and"
        " that the disk was not full.",
    )


def cut_off(facts: Facts) -> Iterator[Finding]:
    """Find files that end within a record though nobody writes them any more."""
    ends = [
        f"{join(file.directory, file.name)} ({file.incomplete:,} bytes)"
        for file in facts.files
        if file.incomplete and not _is_live(facts, file)
    ]
    if ends:
        yield Finding(
            "cut-off",
            "warning",
            f"{counted(len(ends), 'file')} ended in the middle of a record and no longer grew",
            named(ends),
            "The writer was killed, or its disk was full. All records before it are shown; if the"
            " job still runs, check that it can write.",
        )


def freshness(facts: Facts) -> Iterator[Finding]:
    """Say whether data still comes in; `no_values` tells of files in which there is none."""
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
            "Nothing to do: new data shows within seconds.",
        )
    elif newest <= facts.now:
        yield Finding(
            "stale",
            "info",
            f"no new data for {age(facts.now - newest)}",
            (where,),
            "If a job should be writing, check that it runs, and that it flushes its writer.",
        )


def _is_live(facts: Facts, file: EventFile) -> bool:
    when = facts.written(file)
    return when is not None and abs(facts.now - when) < LIVE_SECONDS


def two_writers(facts: Facts) -> Iterator[Finding]:
    """Find directories to which two processes, or two writers of one, wrote at the same time."""
    found = {pair[0].directory: pair for pair in overlapping(facts)}
    if found:
        yield Finding(
            "two-writers",
            "warning",
            "two writers logged the same tags to one directory at the same time in"
            f" {counted(len(found), 'run')}, so their points replace each other's",
            named(
                f"{directory} ({one.name} and {other.name})"
                for directory, (one, other) in found.items()
            ),
            "Log from rank 0 only, or give each process a directory of its own, such as rank-1/.",
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
    """Find files whose steps say that several processes write them, or that steps never move."""
    mixed = [one for one in facts.steps if is_mixed(one)]
    if mixed:
        yield Finding(
            "mixed-steps",
            "warning",
            f"the steps of {counted(len(mixed), 'tag')} go back or repeat again and again within"
            " one file: it looks like several ranks write the same file",
            named(
                f"'{one.tag}' in {one.uri} ({one.backwards:,} times back, {one.repeated:,} times"
                f" the same, of {one.points:,})"
                for one in mixed
            ),
            "Log from rank 0, or give each rank its own directory; if one process logs several"
            " values at a step, count steps up for each.",
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
    """Say whether a tag's step never moves."""
    return one.points >= 5 and one.lowest == one.highest


def is_mixed(one: Steps) -> bool:
    """Say whether steps go back or repeat so often that no restart explains it."""
    if is_fixed(one):
        return False
    often_back = one.backwards >= 3 and one.backwards * 20 >= one.points
    return often_back or (one.points >= 8 and one.repeated * 4 >= one.points)


def restarts(facts: Facts) -> Iterator[Finding]:
    """Find runs that went on from an earlier step."""
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
            f"{counted(len(found), 'run')} went on from an earlier step after a restart; what was"
            " written from that step on before is not shown",
            named(f"{run} (step {step:,})" for run, step in found.items()),
            "Nothing to do, if the job was restarted from a checkpoint.",
        )


def clocks(facts: Facts) -> Iterator[Finding]:
    """Find events from the future, and from before there was anything to train."""
    ahead = [one for one in facts.files if (one.last_wall or 0) > facts.now + AHEAD_SECONDS]
    if ahead:
        most = max(one.last_wall or 0 for one in ahead) - facts.now
        yield Finding(
            "clock-ahead",
            "warning",
            f"events are dated up to {age(most)} in the future",
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
    """Find more than a page can show."""
    if len(facts.runs) > SELECTED_RUNS:
        yield Finding(
            "many-runs",
            "warning",
            f"there are {len(facts.runs):,} runs, and TensorBoard selects none of more than"
            f" {SELECTED_RUNS} when it is opened: the board looks empty",
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
            "Filter tags on the board, and log fewer: no steps or values in a tag's name.",
        )


def plugins(facts: Facts) -> Iterator[Finding]:
    """Find tags that no tab will show."""
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
            f"{counted(len(held), 'tag')} for the plugin '{plugin}', which TensorBoard does not"
            " bring along",
            named(held),
            "They show once the package with that plugin is installed, if it works without the"
            " log directory.",
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
    """Say which values are no numbers any more."""
    if facts.not_finite:
        yield Finding(
            "not-finite",
            "info",
            f"{counted(len(facts.not_finite), 'tag')} ended in values that are no numbers",
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
