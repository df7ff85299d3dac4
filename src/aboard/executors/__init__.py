"""Where isolated boards and the tasks of jobs run.

`base` is the contract for boards, `batch` the one for jobs. Each engine is a package whose modules
`boards` and `batch` implement them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType

from aboard.executors.base import (
    Address,
    CommandState,
    EngineReport,
    EngineSettings,
    Executor,
    ExecutorError,
    Found,
    Handle,
    Spec,
    Status,
)

PROCESS = "process"
EXECUTORS: Mapping[str, str] = MappingProxyType(
    {
        PROCESS: "ProcessExecutor",
        "docker": "DockerExecutor",
        "kubernetes": "KubernetesExecutor",
        "slurm": "SlurmExecutor",
        "vertex": "VertexExecutor",
    }
)
"""The class of each executor, by the name of its package."""

Profiles = Mapping[str, EngineSettings]
"""The settings of an engine by profile; those without a profile have an empty name."""

__all__ = [
    "EXECUTORS",
    "PROCESS",
    "Address",
    "CommandState",
    "EngineReport",
    "EngineSettings",
    "Executor",
    "ExecutorError",
    "Found",
    "Handle",
    "Profiles",
    "Spec",
    "Status",
    "executor_class",
    "make_executors",
    "places",
    "split_place",
    "unknown_place",
]


def executor_class(name: str) -> type[Executor]:
    kind: type[Executor] = getattr(
        import_module(f"aboard.executors.{name}.boards"), EXECUTORS[name]
    )
    return kind


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
