"""Hyperparameters read off a command line: `--lr=0.1`, `--layers 3`, `--no-bias`, `depth=4`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from aboard.track.about import looks_secret, without_secrets

_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_SETTING = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_WHOLE = re.compile(r"[-+]?\d{1,15}")
_WITH_A_VALUE = {"-m", "-c"}

Plain = bool | int | float | str


def hparams_of(command: Sequence[str]) -> dict[str, Plain]:
    """Return the options of a command as hyperparameters; what looks like a secret is left out."""
    return {
        name.replace("-", "_"): without_secrets(value) if isinstance(value, str) else value
        for name, value in _options(_own_arguments(command))
        if not looks_secret(name)
    }


def _own_arguments(command: Sequence[str]) -> Sequence[str]:
    """Leave out what is meant for the interpreter or launcher in front of a script."""
    for place, argument in enumerate(command[1:], 1):
        if argument.endswith(".py") and not argument.startswith("-"):
            return command[place + 1 :]
    for place, argument in enumerate(command[1:-1], 1):
        if argument in _WITH_A_VALUE:
            return command[place + 2 :]
    return command[1:]


def plain_value(text: str) -> Plain:
    """Read a value as a user means it: a truth value, a number, or text."""
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, Plain]]:
    place = 0
    while place < len(arguments):
        argument = arguments[place]
        place += 1
        if argument == "--":
            return
        if found := _OPTION.fullmatch(argument):
            name, value = found[1], found[2]
            if value is None and place < len(arguments) and not _is_option(arguments[place]):
                value = arguments[place]
                place += 1
            if value is not None:
                yield name, plain_value(value)
            elif name.startswith(("no-", "no_")):
                yield name[3:], False
            else:
                yield name, True
        elif found := _SETTING.fullmatch(argument):
            yield found[1], plain_value(found[2])


def _is_option(argument: str) -> bool:
    """Say whether an argument begins another option; `-1e-3` is a value."""
    return bool(_OPTION.fullmatch(argument) or _SETTING.fullmatch(argument)) or argument == "--"
