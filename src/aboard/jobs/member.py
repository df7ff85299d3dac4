"""A task of a job: `python -P -m aboard.jobs.member PAYLOAD NUMBER` becomes `aboard run`.

It reads the member from the payload, and replaces itself with `exec`. With `--call`, it is the
program that `aboard run` records, and calls the submitted function.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aboard.jobs.sweep import JOB, NUMBER, fill
from aboard.storage import StorageError, is_remote, join, open_storage, split

CALL = "--call"
HPARAMS = "ABOARD_HPARAMS"
_GZIP = b"\x1f\x8b"
_RUN = (sys.executable, "-P", "-m", "aboard", "run")
_OF_ANOTHER_RUN = ("ABOARD_RUN", "ABOARD_LOGDIR", "ABOARD_ATTEMPT", "ABOARD_RANKS")


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
