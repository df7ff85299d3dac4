"""What Tab offers: boards that live, runs that the index knows, and values of options.

A question asked while somebody types must be quick and quiet: no hub is started for it, no root
looked through, and whatever goes wrong means that nothing is offered.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from aboard.runs.known import KnownRun

_TO_ANSWER_SECONDS = 1.0

Offers = list[tuple[str, str]]


def boards_like(incomplete: str) -> Offers:
    """Offer the names and ids of live boards."""
    try:
        from aboard.sdk.client import Client

        boards = Client(start=False, seconds=_TO_ANSWER_SECONDS).list()
        named = [(one.name, f"board of {one.owner}, {one.state}") for one in boards]
        named += [(one.id, one.name) for one in boards]
    except Exception:  # noqa: BLE001 - who types wants no error
        return []
    return [(text, about) for text, about in named if text.startswith(incomplete)]


def selectors_like(context: typer.Context, incomplete: str) -> Offers:
    """Offer experiments and runs that the index knows, and directories."""
    try:
        return [*offered_runs(_known(context), incomplete), *_directories(incomplete)]
    except Exception:  # noqa: BLE001 - who types wants no error
        return []


def columns_like(incomplete: str) -> list[str]:
    """Offer one more column for a list of them, separated by commas."""
    from aboard.cli.columns import NAMES

    before, comma, _ = incomplete.rpartition(",")
    given = set(before.split(","))
    return [f"{before}{comma}{name}" for name in NAMES if name not in given]


def offered_runs(runs: Iterable[KnownRun], incomplete: str) -> Offers:
    """Offer experiments; the runs of one as soon as no other can be meant."""
    held: dict[str, list[KnownRun]] = {}
    for run in runs:
        if run.label.startswith(incomplete) or run.experiment.startswith(incomplete):
            held.setdefault(run.experiment, []).append(run)
    offers = [(one, "experiment") for one in held if one and one.startswith(incomplete)]
    shown = held.values() if len(held) == 1 else [held.get("", [])]
    return [*offers, *((run.label, "run") for some in shown for run in some)]


def _known(context: typer.Context) -> list[KnownRun]:
    from aboard.index.schema import FILE_NAME
    from aboard.runs.catalog import find_roots
    from aboard.sdk.finding import last_roots
    from aboard.storage.place import cache_place

    if not (cache_place().directory / FILE_NAME).exists():
        return []
    from aboard.index import Index

    roots = find_roots(context.params.get("root") or ())
    if "root" not in context.params:  # it is asked of a hub, which looks elsewhere too
        roots += last_roots() or []
    with Index() as index:
        return index.known_runs(list(dict.fromkeys(roots)))


def _directories(incomplete: str) -> Offers:
    head, slash, _ = incomplete.rpartition("/")
    place = Path(f"{head}{slash}" or ".").expanduser()
    if not place.is_dir():
        return []
    with os.scandir(place) as entries:
        names = sorted(one.name for one in entries if one.is_dir() and one.name[0] != ".")
    return [(f"{head}{slash}{name}/", "directory") for name in names]
