"""Shell completion: running boards, runs in the index, and values of options.

Completion must be fast and silent: it starts no hub, lists no root, and offers nothing on an error.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from aboard.index import Index

BASH_SCRIPT = """
%(complete_func)s() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \\
                   COMP_CWORD=$COMP_CWORD \\
                   %(autocomplete_var)s=complete_bash $1 ) )
    # More follows a directory or a group of fields: append no space.
    [[ ${COMPREPLY[0]} == *[./] ]] && compopt -o nospace 2> /dev/null
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""
"""Typer's script, except for the space."""
_BRACKETED = re.compile(r"""\b(hparams|metrics|tags)\[(["'])([^"']*)(?:\2\]\.(\w*))?$""")
_SIGNED = {"--sort"}  # options whose values may begin with a minus
_TO_ANSWER_SECONDS = 1.0
_MOST_OFFERED = 10_000
_MOST_TAGS = 1_000  # of a source; reading them takes about ten milliseconds

Offers = list[tuple[str, str]]


@contextmanager
def whole_words() -> Iterator[None]:
    """Let Bash complete words with a colon, such as `slurm:long`, and values such as `-created`.

    Bash splits words at colons and replaces only what follows the last one: join the words that it
    passes, and remove the preceding part from the offers. Zsh and Fish do not need this.

    Typer takes any word with a leading minus for an option: complete `--sort -created` without it.
    """
    if os.environ.get("_ABOARD_COMPLETE") != "complete_bash":
        yield
        return
    given = os.environ["COMP_WORDS"].split("\n")
    words, kept = join_words(given[: int(os.environ["COMP_CWORD"]) + 1])
    words, sign = without_sign(words)
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    offers = StringIO()
    try:
        with redirect_stdout(offers):
            yield
    finally:
        for line in offers.getvalue().splitlines(keepends=True):
            text = sign + line if line.strip() else line
            sys.stdout.write(text.removeprefix(kept))


def without_sign(words: Sequence[str]) -> tuple[list[str], str]:
    """Remove the minus from the last word if it is the value of a signed option."""
    *before, last = words
    quote = last[:1] if last[:1] in {"'", '"'} else ""
    value = last.removeprefix(quote)
    if not before or before[-1] not in _SIGNED or value[:1] != "-" or value[:2] == "--":
        return list(words), ""
    return [*before, quote + value[1:]], "-"


def join_words(given: Sequence[str]) -> tuple[list[str], str]:
    """Join the words that Bash split; also return the prefix of the last that Bash keeps."""
    words: list[str] = []
    kept = ""
    continues = False  # with the next part
    for part in given:
        is_colon = part != "" and not part.strip(":")
        if part == "=" and words and words[-1].startswith("--"):  # the value of an option
            words.append("")
            continues, kept = True, ""
        elif len(words) > 1 and part and (is_colon or continues):
            words[-1] += part
            continues, kept = is_colon, words[-1] if is_colon else kept
        else:
            words.append(part)
            continues, kept = False, ""
    return words, kept


def boards_like(incomplete: str) -> Offers:
    try:
        from aboard.sdk.client import Client

        boards = Client(start=False, seconds=_TO_ANSWER_SECONDS).list()
        named = [(one.name, f"board of {one.owner}, {one.state}") for one in boards]
        named += [(one.id, one.name) for one in boards]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []
    return [(text, about) for text, about in named if text.startswith(incomplete)]


def jobs_like(context: typer.Context, incomplete: str) -> Offers:
    """Offer jobs, except those in buckets, which take too long to list."""
    try:
        from aboard.jobs.store import JobStore, find_job_roots
        from aboard.storage import is_remote

        roots = find_job_roots(context.params.get("root") or ())
        stores = [JobStore(root) for root in roots if not is_remote(root)]
        return [(job, "job") for one in stores for job in one.ids() if job.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def job_places_like(incomplete: str) -> Offers:
    """Offer the places of jobs: engines, and profiles in the user's settings."""
    try:
        from aboard.executors import BATCHES, places, read_engines

        names = dict.fromkeys([*BATCHES, *places(read_engines())])
        return [(name, "engine") for name in names if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def places_like(incomplete: str) -> Offers:
    """Offer the places of boards: the hub itself, and its engines."""
    from aboard.boards.model import INSTANT

    offers = [(INSTANT, "served by the hub itself")] if INSTANT.startswith(incomplete) else []
    return [*offers, *engines_like(incomplete)]


def engines_like(incomplete: str) -> Offers:
    """Offer the engines of the hub; without a hub, all."""
    try:
        from aboard.sdk.client import Client

        client = Client(start=False, seconds=_TO_ANSWER_SECONDS)
        names = [one["name"] for one in client.engines(probe=False)]
    except Exception:  # noqa: BLE001 - completion must be silent
        from aboard.executors import EXECUTORS

        names = list(EXECUTORS)
    return [(name, "engine") for name in names if name.startswith(incomplete)]


def selectors_like(context: typer.Context, incomplete: str) -> Offers:
    try:
        if named := _named_like(context, incomplete):
            return named
        return [*_offered_runs(context, incomplete), *_directories(incomplete)]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def _named_like(context: typer.Context, incomplete: str) -> Offers:
    """Offer what may follow `tag:`, `state:` and `hparam:`, also after `not:`."""
    before, colon, _ = incomplete.rpartition(":")
    match before.removeprefix("not:"):
        case "tag":
            names = _names(context, "tags")
        case "state":
            from aboard.runs.manifest import State

            names = list(State)
        case "hparam":
            names = _names(context, "hparams")
        case _:
            return []
    texts = [text for name in names if (text := before + colon + name).startswith(incomplete)]
    if before.endswith("hparam") and len(texts) == 1:
        texts.append(f"{texts[0]}=")  # a comparison follows: with one offer, a space would
    return [(text, before) for text in texts]


def metrics_like(context: typer.Context, incomplete: str) -> list[str]:
    """Offer metrics; after the name of one and a dot, its statistics."""
    try:
        from aboard.runs.question import STATISTICS

        names = _names(context, "metrics")
        before, _, _ = incomplete.rpartition(".")
        if before in names:
            names += [f"{before}.{one}" for one in STATISTICS]
        return [one for one in names if one.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def directories_like(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the runs of `ls` and `export`: directories with event files, with their sources."""
    try:
        with _index_of_runs(context) as (index, roots):
            if index is None:
                return []
            found = _directories_of(index, _sources(context)) or _directories_of(index, roots)
        return [one for one in found if one.startswith(incomplete)][:_MOST_OFFERED]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def _directories_of(index: Index, sources: Sequence[str]) -> list[str]:
    from aboard.cli.sources import distinct_labels, place_of, run_label
    from aboard.index import Source

    parsed = [Source.parse(one) for one in sources]
    labels = distinct_labels([place_of(source) for source in parsed])
    return [
        run_label(label, run)
        for source, label in zip(parsed, labels, strict=True)
        for run in sorted(one.name for one in index.runs(source))
    ]


def tags_like(context: typer.Context, incomplete: str) -> list[str]:
    """Offer tags of the sources, or of all roots if the index does not have the sources."""
    try:
        with _index_of_runs(context) as (index, roots):
            if index is None:
                return []
            found = _tags(context, index, _sources(context)) or _tags(context, index, roots)
        # Tags with a leading underscore are internal.
        return [one for one in found if one.startswith(incomplete) and one[:1] != "_"]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def _sources(context: typer.Context) -> Sequence[str]:
    # An option without its value ends the parsing: the arguments are still in `args`.
    return context.params.get("source") or context.args


def _tags(context: typer.Context, index: Index, sources: Sequence[str]) -> list[str]:
    from aboard.index import Source

    tags = [tag for one in sources for tag in index.tags(Source.parse(one), most=_MOST_TAGS)]
    only_scalars = context.info_name == "export"
    return sorted({tag.name for tag in tags if tag.is_scalar or not only_scalars})


def columns_like(context: typer.Context, incomplete: str) -> list[str]:
    from aboard.cli.runs import VALUES

    before, comma, last = incomplete.rpartition(",")
    given = set(before.split(","))
    names = dict.fromkeys(
        [*(one for one in VALUES if one.startswith(last)), *_fields(context, last)]
    )
    return [f"{before}{comma}{name}" for name in names if name not in given]


def fields_like(context: typer.Context, incomplete: str) -> list[str]:
    """Offer fields to sort or group by, also after a comma."""
    before, comma, last = incomplete.rpartition(",")
    sign = "-" if comma and last.startswith("-") else ""
    offers = _fields_within(context, last.removeprefix(sign))
    return [f"{before}{comma}{sign}{name}" for name in offers]


def conditions_like(context: typer.Context, incomplete: str) -> list[str]:
    """Offer fields for the last word of a condition."""
    before, last = _split_word(incomplete)
    return [before + one for one in _fields_within(context, last)]


def _split_word(text: str) -> tuple[str, str]:
    if found := _BRACKETED.search(text):
        return text[: found.start()], found[0]
    at = len(text)
    while at and (text[at - 1].isalnum() or text[at - 1] in "_./-:"):
        at -= 1
    return text[:at], text[at:]


def _fields_within(context: typer.Context, incomplete: str) -> list[str]:
    """Offer fields; with the only group that matches, also its names.

    A shell completes a single offer with a space and a closing quote.
    """
    offers = _fields(context, incomplete)
    if len(offers) == 1 and offers[0].endswith("."):
        offers += _fields(context, offers[0])
    return offers


def _fields(context: typer.Context, incomplete: str) -> list[str]:
    """Offer fields of runs; names in a group, such as hyperparameters, after the group."""
    try:
        from aboard.runs.question import GROUPS, RUN_FIELDS, STATISTICS, field_text

        if found := _BRACKETED.fullmatch(incomplete):
            return _bracketed(context, *found.groups())
        group, dot, _ = incomplete.partition(".")
        if not dot or group not in GROUPS:
            offers = [*RUN_FIELDS, *(f"{one}." for one in GROUPS)]
            return [one for one in offers if one.startswith(incomplete)]
        offers = [field_text(group, name) for name in _names(context, group)]
        before, _, _ = incomplete.rpartition(".")
        if group == "metrics" and before in offers:
            offers += [f"{before}.{one}" for one in STATISTICS]
        return [one for one in offers if one.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def _bracketed(
    context: typer.Context, group: str, quote: str, name: str, statistic: str | None
) -> list[str]:
    """Offer names for `metrics["eval/a`, and statistics for `metrics["eval/acc"].m`."""
    from aboard.runs.question import STATISTICS

    if statistic is None:
        names = [one for one in _names(context, group) if one.startswith(name) and quote not in one]
        return [f"{group}[{quote}{one}{quote}]" for one in names]
    known = STATISTICS if group == "metrics" else ()
    return [f"{group}[{quote}{name}{quote}].{one}" for one in known if one.startswith(statistic)]


def _offered_runs(context: typer.Context, incomplete: str) -> Offers:
    with _index_of_runs(context) as (index, roots):
        return [] if index is None else offered_runs(index, roots, incomplete)


def offered_runs(index: Index, roots: Sequence[str], incomplete: str) -> Offers:
    """Offer experiments, and runs if only one experiment matches."""
    experiment, slash, name = incomplete.partition("/")
    found = [one for one in index.experiments_like(experiment, roots) if one]
    found = [one for one in found if one == experiment] if slash else found
    offers = [(one, "experiment") for one in found if not slash]
    runs = index.labels_of("", incomplete, roots, _MOST_OFFERED)
    if len(found) == 1 and not runs:
        runs = index.labels_of(found[0], name, roots, _MOST_OFFERED)
    return [*offers, *((one, "run") for one in runs)]


def _names(context: typer.Context, group: str) -> list[str]:
    with _index_of_runs(context) as (index, roots):
        if index is None:
            return []
        return index.column_names(group, roots)


@contextmanager
def _index_of_runs(context: typer.Context) -> Iterator[tuple[Index | None, list[str]]]:
    """Open the index if it exists; also return the roots in which a command finds runs."""
    from aboard.index.schema import FILE_NAME
    from aboard.runs.catalog import find_roots
    from aboard.sdk.personal import last_hub
    from aboard.system import cache_place

    if not (cache_place().directory / FILE_NAME).exists():
        yield None, []
        return
    from aboard.index import Index

    roots = find_roots(context.params.get("root") or ())
    if "root" not in context.params:  # the command uses a hub, which has its own roots
        last = last_hub()
        roots += last.roots if last else ()
    with Index() as index:
        yield index, list(dict.fromkeys(roots))


def _directories(incomplete: str) -> Offers:
    head, slash, _ = incomplete.rpartition("/")
    place = Path(f"{head}{slash}" or ".").expanduser()
    if not place.is_dir():
        return []
    with os.scandir(place) as entries:
        names = sorted(one.name for one in entries if one.is_dir() and one.name[0] != ".")
    return [(f"{head}{slash}{name}/", "directory") for name in names]
