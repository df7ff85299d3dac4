"""The engines: where isolated boards and the tasks of jobs run, and the settings of each.

The settings are the tables `[executors.*]` in `aboard.toml`, with every key checked. They are part
of a hub's settings; jobs, which need no hub, read them from the user's own file. `base` is what an
engine implements.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aboard.executors.base import BatchExecutor, EngineSettings, Executor
from aboard.runs import nearest

if TYPE_CHECKING:
    from pydantic import ValidationError

PROCESS = "process"
EXECUTORS: Mapping[str, str] = MappingProxyType(
    {
        PROCESS: "process.ProcessExecutor",
        "docker": "docker.boards.DockerExecutor",
        "kubernetes": "kubernetes.boards.KubernetesExecutor",
        "slurm": "slurm.boards.SlurmExecutor",
        "vertex": "vertex.engine.VertexExecutor",
    }
)
"""The class of each executor for boards, below this package."""
BATCHES: Mapping[str, str] = MappingProxyType(
    {
        PROCESS: "process.ProcessBatches",
        "docker": "docker.batch.DockerBatches",
        "slurm": "slurm.batch.SlurmBatches",
        "kubernetes": "kubernetes.batch.KubernetesBatches",
        "vertex": "vertex.engine.VertexBatches",
    }
)
"""The class of each executor for the tasks of jobs."""
IDENTITIES: Mapping[str, str] = MappingProxyType({"vertex": "gs"})
"""Engines whose tasks have their own identity for a storage, with the scheme of its URIs."""

Profiles = Mapping[str, EngineSettings]
"""The settings of an engine by profile; those without a profile have an empty name."""


def executor_class(engine: str) -> type[Executor]:
    kind: type[Executor] = _find(EXECUTORS[engine])
    return kind


def batch_executor(engine: str) -> type[BatchExecutor]:
    kind: type[BatchExecutor] = _find(BATCHES[engine])
    return kind


def _find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"aboard.executors.{module}"), name)


def make_executors(settings: Mapping[str, Profiles], *, hub: str = "") -> dict[str, Executor]:
    """Create the executors of a hub; `hub` is the id of its database."""
    return {name: executor_class(name)(profiles, hub=hub) for name, profiles in settings.items()}


def places(settings: Mapping[str, Profiles]) -> list[str]:
    """Return where isolated boards can run: `ENGINE`, or `ENGINE:PROFILE`."""
    return [
        f"{engine}:{profile}" if profile else engine
        for engine, profiles in settings.items()
        for profile in profiles
    ]


def split_place(place: str) -> tuple[str, str]:
    """Split a place into engine and profile; the profile may be empty."""
    engine, _, profile = place.partition(":")
    return engine, profile


def unknown_place(place: str, known: Sequence[str]) -> tuple[str, str]:
    """Return the problem with an unknown place, and a hint."""
    engine, profile = split_place(place[:80])
    own = [one for one in known if split_place(one)[0] == engine]
    if own and profile:
        return f"{engine} has no profile {profile!r} here.", f"Use one of: {', '.join(own)}."
    hint = f"Use one of: {', '.join(known)}."
    if engine in EXECUTORS and not own:
        hint = f"Add [executors.{engine}] to the settings of the hub. {hint}"
    return f"boards cannot run on {place[:80]!r} here.", hint


_PROFILE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_TABLE_TYPE = re.compile(r"a valid dictionary or instance of \w+")


class ConfigError(Exception):
    """A setting is invalid: which, where, and what to write instead."""

    code = "invalid"


def settings_class(engine: str) -> type[EngineSettings]:
    return (executor_class(engine) if engine in EXECUTORS else batch_executor(engine)).Settings


def personal_file() -> Path | None:
    """Return the file of the user's settings: ABOARD_CONFIG, or the default if it exists."""
    if chosen := os.environ.get("ABOARD_CONFIG"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(base) if Path(base).is_absolute() else Path.home() / ".config"
    path = home / "aboard" / "aboard.toml"
    return path if path.exists() else None


def read_engines() -> dict[str, Profiles]:
    """Read the tables of engines in the user's own settings."""
    path = personal_file()
    if path is None:
        return {}
    tables = read_toml(path).get("executors", {})
    return make_engines(tables, path.absolute().parent, f"{path}, executors")


def read_toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{path}: {reason}. Check the path of the settings.") from error
    except ValueError as error:
        raise ConfigError(f"{path}: invalid TOML: {error}.") from error


def make_engines(tables: Any, base: Path, where: str) -> dict[str, Profiles]:
    """Check the tables of engines; a profile inherits and overrides the engine's settings."""
    made: dict[str, Profiles] = {}
    for engine, table in _table(tables, where).items():
        known = {**EXECUTORS, **BATCHES}
        if engine not in known:
            raise ConfigError(f"{where}: {unknown('engine', engine, known)}")
        kind = settings_class(engine)
        place = f"{where}.{engine}"
        own = dict(_table(table, place))
        profiles = _table(own.pop("profiles", {}), f"{place}.profiles")
        found = {"": _make_settings(kind, own, base, place, tables=("profiles",))}
        for name, changes in profiles.items():
            within = f"{place}.profiles.{name}"
            if not _PROFILE_NAME.fullmatch(name):
                raise ConfigError(
                    f"{within}: invalid name of a profile. Use up to 32 letters a to z,"
                    " digits, '-' and '_'."
                )
            values = {**own, **_table(changes, within)}
            found[name] = _make_settings(kind, values, base, within)
        made[engine] = found
    return made


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {repr(value)[:80]} should be a table.")
    return value


def _make_settings(
    kind: type[EngineSettings],
    values: Mapping[str, Any],
    base: Path,
    where: str,
    tables: Iterable[str] = (),
) -> EngineSettings:
    from pydantic import TypeAdapter, ValidationError

    known = [one.name for one in fields(kind)]
    for name in values:
        if name not in known:
            raise ConfigError(f"{where}: {unknown('setting', name, [*known, *tables])}")
    try:
        made = TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise ConfigError(explain(error, where, {"": kind})) from error
    paths = {name: value for name in known if isinstance(value := getattr(made, name), Path)}
    return replace(made, **{name: base / path.expanduser() for name, path in paths.items()})


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = nearest(name, names)
    hint = f"Did you mean {near!r}? " if near else ""
    return f"unknown {what} {name!r}. {hint}Known: {', '.join(names) or 'none'}."


def explain(error: ValidationError, where: str, tables: Mapping[str, type]) -> str:
    """Describe the first invalid setting: its key, its value, what to write."""
    extra = ("unexpected_keyword_argument", "extra_forbidden")
    found = min(error.errors(), key=lambda one: one["type"] not in extra)
    # The rest of a location names the type, of several, that was tried.
    keys = {one.name for table in tables.values() for one in fields(table)}
    parts = [str(part) for part in found["loc"] if isinstance(part, int) or part in keys]
    key, message = ".".join(parts), str(found["msg"]).removeprefix("Value error, ")
    match found["type"]:
        case kind if kind in extra:
            *above, name = map(str, found["loc"])
            table = above[0] if above else ""
            place = f"{where}, {table}" if table else where
            known = [one.name for one in fields(tables[table])] if table in tables else ()
            return f"{place}: {unknown('setting', name, known)}"
        case "missing":
            return f"{where}: {key} is missing. Give it a value."
        case "value_error":
            return f"{where}: {key}: {message}" if key else f"{where}: {message}"
    message = _TABLE_TYPE.sub("a table", message.removeprefix("Input ")).replace("tuple", "list")
    return f"{where}: {key}: {repr(found['input'])[:80]} {message}."
