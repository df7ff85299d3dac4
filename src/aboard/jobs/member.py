"""The members of a job: the values in which they differ, and the task that runs each.

A sweep is the product of its lists. `{lr}` in a word of the command stands for the value of `lr`;
braces around anything but a name are unchanged, as in JSON, and so is the shell's `${lr}`. `{{lr}}`
is the text `{lr}`.

A task, `python -P -m aboard.jobs.member PAYLOAD NUMBER`, becomes `aboard run`: it reads the member
from the payload, and replaces itself with `exec`. With `--call`, it is the program that
`aboard run` records, and calls the submitted function.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from aboard.jobs import BadJob
from aboard.storage import StorageError, is_remote, join, open_storage, split

NUMBER, JOB, REPEAT = "number", "job", "repeat"
RESERVED = (NUMBER, JOB)
"""The placeholders that every job has."""
MOST_MEMBERS = 100_000

_NAME = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_HPARAM = re.compile(_NAME)
_PLACEHOLDER = re.compile(rf"\{{\{{({_NAME})\}}\}}|(?<!\$)\{{({_NAME})\}}")
_RANGE = re.compile(r"(-?\d{1,15})\.\.(-?\d{1,15})(?:\.\.(-?\d{1,15}))?")
_LIKE_RANGE = re.compile(r"[-+.\de]*\d\.\.[^/]*")
CALL = "--call"
HPARAMS = "ABOARD_HPARAMS"
_GZIP = b"\x1f\x8b"
_RUN = (sys.executable, "-P", "-m", "aboard", "run")
_OF_ANOTHER_RUN = ("ABOARD_RUN", "ABOARD_LOGDIR", "ABOARD_ATTEMPT", "ABOARD_RANKS")


# Values.


def parse_sweeps(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Parse `lr=0.1,0.01` and `depth=2..4`; numbers as in `aboard run --hparam`."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        if not equals or not name.strip():
            raise BadJob(f"--sweep {text!r}: write NAME=VALUES, as in lr=0.1,0.01 or depth=2..4.")
        name = name.strip()
        if name in found:
            raise BadJob(f"--sweep {name} is given twice. Put all its values into one list.")
        found[name] = [value for part in _parts(text, listed) for value in _values(text, part)]
    return found


def _parts(text: str, listed: str) -> list[str]:
    parts = [part.strip() for part in listed.split(",")]
    if not all(parts):
        what = "there are no values" if not any(parts) else "one of the values is empty"
        raise BadJob(f"--sweep {text!r}: {what}. Write its values, as in lr=0.1,0.01.")
    return parts


def _values(text: str, part: str) -> list[Any]:
    from aboard.track.program import parse_hparam

    found = _RANGE.fullmatch(part)
    if found is None:
        if _LIKE_RANGE.fullmatch(part):
            raise BadJob(
                f"--sweep {text!r}: a range has whole numbers, as in 2..4. List the values."
            )
        value = parse_hparam(part)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return [part if is_number and str(value) != part.lstrip("+") else value]  # as in 007
    first, last = int(found[1]), int(found[2])
    step = int(found[3] or 1)
    if step == 0:
        raise BadJob(f"--sweep {text!r}: a range cannot have step 0.")
    values = range(first, last + (1 if step > 0 else -1), step)
    if not values:
        hint = f"Write {last}..{first}." if step > 0 else f"Write {first}..{last}..{-step}."
        raise BadJob(f"--sweep {text!r}: the range {part} is empty. {hint}")
    if len(values) > MOST_MEMBERS:
        raise BadJob(f"--sweep {text!r}: more than {MOST_MEMBERS:,} values.")
    return list(values)


def expand(
    sweep: Mapping[str, Sequence[Any]], *, repeat: int = 1, hparams: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the values of each member: the product of the lists, the last changing fastest."""
    shared = dict(hparams or {})
    count = max(repeat, 1)
    for name in (*sweep, *shared):
        if name in RESERVED or (name == REPEAT and repeat > 1):
            raise BadJob(f"{name!r} is the name of a placeholder that every job has. Use another.")
    for name, values in sweep.items():
        if not _HPARAM.fullmatch(name):
            raise BadJob(f"{name!r} is not a valid name. Use letters, digits and '_'.")
        if name in shared:
            raise BadJob(f"{name!r} has a sweep and a single value. Omit one of them.")
        if not values:
            raise BadJob(f"the sweep of {name!r} is empty. Give it values.")
        if len(set(map(_key, values))) < len(values):
            twice = next(one for one in values if [*map(_key, values)].count(_key(one)) > 1)
            raise BadJob(f"the sweep of {name!r} has {shown(twice)} twice. Use repeat for that.")
        count *= len(values)
    if count > MOST_MEMBERS:
        raise BadJob(f"the job has {count:,} members. At most {MOST_MEMBERS:,} are allowed.")
    names = list(sweep)
    repeats: list[dict[str, Any]] = [{}]
    if repeat > 1:
        repeats = [{REPEAT: number} for number in range(1, repeat + 1)]
    return [
        {**shared, **dict(zip(names, values, strict=True)), **one}
        for values in product(*sweep.values())
        for one in repeats
    ]


def _key(value: Any) -> tuple[bool, str]:
    return isinstance(value, str), str(value)


# Placeholders.


def shown(value: Any) -> str:
    """Return a value as it appears in a command."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Replace placeholders by their values."""

    def replacement(found: re.Match[str]) -> str:
        if found[1]:
            return f"{{{found[1]}}}"
        return shown(values[found[2]]) if found[2] in values else found[0]

    return _PLACEHOLDER.sub(replacement, text)


def placeholders(texts: Iterable[str]) -> set[str]:
    """Return the names of the placeholders in some texts."""
    return {found[2] for text in texts for found in _PLACEHOLDER.finditer(text) if found[2]}


def check_placeholders(texts: Iterable[str], known: Collection[str], where: str) -> None:
    """Raise `BadJob` for a placeholder with an unknown name."""
    for text in texts:
        for found in _PLACEHOLDER.finditer(text):
            name = found[2]
            # An unknown dotted name is text, for example of a template.
            if name and name not in known and "." not in name:
                names = ", ".join(dict.fromkeys([*known, *RESERVED]))
                raise BadJob(
                    f"{where}: unknown placeholder {{{name}}}. Known: {names};"
                    f" write {{{{{name}}}}} for the text {{{name}}}."
                )


# Tasks.


def main() -> None:
    *options, place, number = sys.argv[1:]
    try:
        payload = read_payload(place)
        if options == [CALL]:
            call(payload, int(number))
        else:
            start(payload, place, int(number))
    except (OSError, ValueError, KeyError, IndexError, StorageError) as error:
        if options == [CALL]:
            raise
        sys.exit(f"aboard: {place}: member {number} of the job cannot be started: {error!r:.200}.")


def read_payload(place: str) -> dict[str, Any]:
    """Read a file, or an object if tasks do not see the submitter's files."""
    if is_remote(place):
        directory, name = split(place)
        content = open_storage(directory).read(name)
    else:
        content = Path(place).read_bytes()
    if content.startswith(_GZIP):
        content = gzip.decompress(content)
    payload: dict[str, Any] = json.loads(content)
    return payload


def start(payload: Mapping[str, Any], place: str, number: int) -> None:
    """Replace this process with the `aboard run` of a member."""
    hparams = payload["members"][number - 1]
    values = {**hparams, JOB: payload["job"], NUMBER: number}
    for name in _OF_ANOTHER_RUN:  # a job may be submitted by a run
        os.environ.pop(name, None)
    filled = {name: fill(value, values) for name, value in payload["environment"].items()}
    hidden = {HPARAMS: json.dumps(hparams)} if hparams else {}
    os.environ.update({**filled, **hidden, "ABOARD_JOB": payload["job"]})
    if Path(payload["workdir"]).is_dir():  # an image may have its own
        os.chdir(payload["workdir"])
    command = [fill(word, values) for word in payload["command"]]
    if payload["function"]:
        command = [sys.executable, "-P", "-m", "aboard.jobs.member", CALL, place, str(number)]
    run = fill(payload["run"], values)
    options = ["--experiment", payload["experiment"], "--name", run]
    options += ["--job", payload["job"], "--resume"]
    if payload.get("logs"):  # the engine shows the files of this directory
        directory = f"{payload['experiment']}/{run}/{payload['logs']}"
        os.environ["ABOARD_ROOT"] = payload["root"]
        os.environ["ABOARD_LOGDIR"] = join(payload["root"], directory)
    else:
        options += ["--root", payload["root"]]
    for name, value in payload["tags"].items():
        options += ["--tag", name if value is True else f"{name}={value}"]
    sys.stdout.flush()
    os.execv(_RUN[0], [*_RUN, *options, "--", *command])  # noqa: S606


def call(payload: Mapping[str, Any], number: int) -> None:
    """Call the function of a job with the values of a member."""
    import base64
    import inspect

    from aboard.system import require

    sys.path += [one for one in payload["path"] if one not in sys.path]
    require("cloudpickle", install="aboard[functions]")
    import cloudpickle

    function, arguments = cloudpickle.loads(base64.b64decode(payload["function"]))
    accepted = inspect.signature(function).parameters.values()
    named = {one.name for one in accepted}
    takes_all = any(one.kind is one.VAR_KEYWORD for one in accepted)
    member = payload["members"][number - 1]
    own = {name: value for name, value in member.items() if takes_all or name in named}
    function(**{**own, **arguments})


if __name__ == "__main__":
    main()
