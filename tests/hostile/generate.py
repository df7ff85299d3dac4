"""Hostile requests, made from what TensorBoard's plugins say of themselves and a random seed."""

import argparse
import inspect
import itertools
import json
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from aboard.tensorboard.plugins import BoardsProjector, Loader, static_plugins
from aboard.tensorboard.provider import BoardDataProvider, Boards

VICTIM = "a" * 40 + "!"  # what no hostile pattern matches in any time


def routes(boards: Boards) -> list[str]:
    """Return every route of every plugin of the application, below a board."""
    from tensorboard.backend import application

    flags = argparse.Namespace(
        logdir="", logdir_spec="", path_prefix="", samples_per_plugin={}, window_title=""
    )
    plugins = [*static_plugins(), Loader(lambda: BoardsProjector(boards))]
    app = application.TensorBoardWSGIApp(flags, plugins, BoardDataProvider(boards))
    prefixes = [f"{prefix}x" for prefix in app.prefix_routes]
    return [route.lstrip("/") for route in (*app.exact_routes, *prefixes) if route != "/"]


@cache
def parameters() -> list[str]:
    """Return the names of the arguments that any plugin reads from a request."""
    from tensorboard import plugins

    found = set()
    for module in _modules(plugins.__path__, "tensorboard.plugins"):
        read = r"""(?:args|form)(?:\.get|\.getlist)?[\[(]\s*["'](\w+)"""
        found |= set(re.findall(read, inspect.getsource(module)))
    assert {"run", "tag", "requests", "sample"} <= found
    return sorted(found)


def _modules(path: Any, name: str) -> Iterator[Any]:
    import pkgutil
    import sys

    for found in pkgutil.walk_packages(path, f"{name}."):
        if found.name in sys.modules and not found.ispkg:
            yield sys.modules[found.name]


def patterns() -> list[str]:
    """Return regular expressions for which `re` needs exponential time on `VICTIM`."""
    atoms = ("a|a", "a|aa", "[a-z]|a", ".|a", "a+", "a*", r"\w+", "(?:a|b?a)+")
    frames = ("({})*$", "^({})+$", "({})*b", "(?:{}){{20,}}$", "((?:{})+)+$")
    return [frame.format(atom) for frame, atom in itertools.product(frames, atoms)]


def texts(size: int) -> dict[str, str]:
    """Return texts that Markdown, or the sanitizer of HTML behind it, may find hard."""
    opened = {"bracket": "[", "image": "![", "quote": "> ", "star": "*", "under": "_ ", "tick": "`"}
    repeated = {
        **opened,
        "tag": "<b>",
        "comment": "<!--",
        "attribute": '<a href="',
        "entity": "&#",
        "link": "[a](",
        "reference": "[a]: ",
        "emphasis": "*a _b ",
        "nested list": "\n- ",
        "heading": "\n#",
        "code": "\n    ",
        "escape": "\\",
        "spaces": " ",
    }
    made = {name: part * (size // len(part)) for name, part in repeated.items()}
    made["deep list"] = "\n".join("  " * depth + "- x" for depth in range(min(size // 40, 400)))
    made["table"] = "|" * (size // 2) + "\n" + "|-" * (size // 2)
    made["wide table"] = "|a" * 100 + "\n" + "|-" * 100 + "\n" + "|b\n" * (size // 30)
    return made


def values(chance: random.Random) -> list[str]:
    """Return values for arguments of any meaning."""
    size = chance.choice([10, 500, 2000])
    return [
        VICTIM,
        "x" * size,
        "9" * size,
        "-1",
        "1e999",
        "NaN",
        "\0",
        "😀\u202e" * (size // 10),
        "../" * 20 + "etc/passwd",
        "%" * size,
        "(" * size,
        "[" * size,
        "{" * size,
        "null",
        '{"a": ' * (size // 10),
        "",
    ]


def documents(chance: random.Random, runs: list[str], tags: list[str]) -> list[Any]:
    """Return bodies of JSON as the plugins read them, and others."""
    pattern = chance.choice(patterns())
    columns = [
        {"hparam": "name", "filterRegexp": pattern, "order": "ORDER_ASC"},
        {"metric": {"tag": chance.choice(tags), "group": pattern}},
        {"hparam": VICTIM, "filterInterval": {"minValue": "NaN", "maxValue": "-Infinity"}},
    ]
    group = {
        "startIndex": chance.choice([0, -1, 2**31 - 1]),
        "sliceSize": chance.choice([0, -1, 2**31 - 1]),
        "allowedStatuses": ["STATUS_SUCCESS", "STATUS_UNKNOWN", "STATUS_RUNNING"],
        "colParams": chance.sample(columns, 2),
    }
    return [
        group,
        {**group, "colParams": columns * 1000},
        {"sessionName": chance.choice(runs), "metricName": {"tag": pattern, "group": pattern}},
        [[]] * 1000,
        json.loads("[" * 200 + "]" * 200),
        {},
    ]
