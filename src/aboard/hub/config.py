"""The hub's settings: `aboard.toml`, read once and checked to the last key.

Text in, values out. A key that is not known is an error that names the nearest one, because a
setting that is silently ignored is worse than a hub that does not start.
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from aboard.boards.errors import BoardsError
from aboard.boards.limits import Limits
from aboard.boards.model import INSTANT, Engine, Visibility
from aboard.hub.amounts import read_bytes, read_seconds
from aboard.sdk.finding import state_directory
from aboard.storage import StorageError, canonical

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Kind = TypeVar("Kind")


class ConfigError(Exception):
    """A setting that cannot be used: which, where, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Root:
    """A place below which runs are.

    Attributes:
        uri: the path or URI.
        name: what people call it; the last part of its path by default.
        environment: variables that hold for this root alone, such as `AWS_PROFILE`.
    """

    uri: str
    name: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class BoardDefaults:
    """What a board is like for which nothing else was said; durations are seconds."""

    on: str = INSTANT
    engine: Engine = Engine.FAST
    visibility: Visibility = Visibility.PRIVATE
    timeout: float | None = None
    idle_timeout: float | None = None
    memory: int | None = None
    poll: float | None = None
    """How long to wait between two looks at a bucket; for all boards, whatever else is said."""


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of a hub.

    Attributes:
        host: the address to listen on.
        port: the port; None for the first free one from 6006 on, 0 for any.
        url: how browsers reach the hub, where that is not its own address; its path is the prefix.
        certificate: a file with the TLS certificate and those above it, in PEM.
        certificate_key: the file with its key.
        trusted_proxies: addresses or networks whose forwarded headers are believed.
        directory: where the hub keeps its database, and files of isolated boards.
        database: a path or URL; `hub.db` in the directory by default.
        roots: where runs are.
        any_path: whether boards may show what lies below no root.
        session: how long a login lasts, in seconds.
        share: how long a link lasts for which no time was given, in seconds; 0 for ever.
        grace: how long requests under way may take when the hub is stopped, in seconds.
        limits: what one user may have.
        boards: what boards are like by default.
    """

    host: str = "localhost"
    port: int | None = None
    url: str = ""
    certificate: Path | None = None
    certificate_key: Path | None = None
    trusted_proxies: tuple[Network, ...] = ()
    directory: Path = field(default_factory=state_directory)
    database: str = ""
    roots: tuple[Root, ...] = ()
    any_path: bool = False
    session: float = 30 * 86400.0
    share: float = 7 * 86400.0
    grace: float = 10.0
    limits: Limits = field(default_factory=Limits)
    boards: BoardDefaults = field(default_factory=BoardDefaults)

    @property
    def prefix(self) -> str:
        """The path before all addresses of the hub; empty, or `/aboard`."""
        return urlsplit(self.url).path.rstrip("/")

    @property
    def database_address(self) -> str:
        """Where the registry is."""
        return self.database or str(self.directory / "hub.db")


def read_config(path: Path) -> Config:
    """Read a file of settings; paths in it count from where it is.

    Raises:
        ConfigError: it cannot be read, or a setting cannot be used.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{path}: {reason}. Check the path of the settings.") from error
    except ValueError as error:
        raise ConfigError(f"{path}: this is not TOML: {error}.") from error
    return make_config(values, path.absolute().parent, str(path))


def make_config(values: Mapping[str, Any], base: Path, where: str) -> Config:
    """Make settings of what a file says.

    Raises:
        ConfigError: a setting is not known, or cannot be used.
    """
    _check_keys(values, fields(Config), where)
    given = {name: _setting(name, value, base, where) for name, value in values.items()}
    if ("certificate" in given) != ("certificate_key" in given):
        raise ConfigError(f"{where}: certificate and certificate_key go together. Give both.")
    return Config(**given)


def _setting(name: str, value: object, base: Path, where: str) -> Any:
    return _read(where, name, value, lambda one: _READERS[name](one, base, where))


def _check_keys(values: Mapping[str, Any], known: Iterable[Any], where: str) -> None:
    names = [one.name for one in known]
    for name in values:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            meant = f"Did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"{where}: there is no setting {name!r}. {meant}Known are {', '.join(names)}."
            )


def _read(where: str, name: str, value: object, how: Callable[[Any], Any]) -> Any:
    try:
        return how(value)
    except ConfigError:
        raise
    except (BoardsError, StorageError) as error:
        raise ConfigError(f"{where}: {name}: {error}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {name}: {error}. Correct it.") from error


_Readers = Mapping[str, Callable[[Any], Any]]


def _of(kind: type[Kind], what: str) -> Callable[[Any], Kind]:
    def check(value: Any) -> Kind:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{value!r} is not {what}")
        return value

    return check


_text, _whole, _flag = _of(str, "a text"), _of(int, "a whole number"), _of(bool, "true or false")
_list, _table = _of(list, "a list"), _of(dict, "a table")


def _amount(value: Any) -> str | float:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise TypeError(f"{value!r} is not a number, or a text such as '90m' or '2GiB'")
    return value


def _seconds(value: Any) -> float:
    return read_seconds(_amount(value))


_SHORTEST_POLL = 0.5
"""As of `aboard view --poll`, which isolated boards are told."""


def _pause(value: Any) -> float:
    if (seconds := _seconds(value)) < _SHORTEST_POLL:
        raise ValueError(f"{value!r} is less than {_SHORTEST_POLL} seconds")
    return seconds


def _bytes(value: Any) -> int:
    return read_bytes(_amount(value))


def _port(value: Any) -> int:
    if not 0 <= _whole(value) <= 65535:
        raise ValueError(f"port {value} does not exist")
    return int(value)


def _address(value: Any) -> str:
    parts = urlsplit(_text(value))
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{value!r} is not an address such as https://boards.example.org/aboard")
    return str(value).rstrip("/")


def _networks(value: Any) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(_text(one), strict=False) for one in _list(value))


def _below(base: Path, value: Any) -> Path:
    return base / Path(_text(value)).expanduser()


def _database(base: Path, value: Any) -> str:
    return _text(value) if "://" in _text(value) else str(_below(base, value))


def _root(value: Any, base: Path, where: str) -> Root:
    table = {"uri": value} if isinstance(value, str) else _table(value)
    _check_keys(table, fields(Root), f"{where}, roots")
    if not table.get("uri"):
        raise ConfigError(f"{where}, roots: a root needs a uri. Name a directory or a bucket.")
    text = _text(table["uri"])
    is_path = "://" not in text
    uri = canonical(str(_below(base, text)) if is_path else text)
    variables = _table(table.get("environment", {}))
    name = _text(table.get("name", "")) or uri.rstrip("/").rpartition("/")[2]
    return Root(uri, name, {one: _text(text) for one, text in variables.items()})


def _roots(value: Any, base: Path, where: str) -> tuple[Root, ...]:
    roots = [_root(one, base, where) for one in _list(value)]
    names = [root.name for root in roots]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{where}, roots: two are called {name!r}. Give each a name.")
    return tuple(roots)


def _group(kind: type[Kind], name: str, value: Any, readers: _Readers, where: str) -> Kind:
    """Read a table whose settings are the fields of a dataclass."""
    table = _table(value)
    _check_keys(table, fields(kind), f"{where}, {name}")  # type: ignore[arg-type]
    return kind(
        **{one: _read(where, f"{name}.{one}", held, readers[one]) for one, held in table.items()}
    )


def _limits(value: Any, _base: Path, where: str) -> Limits:
    readers: _Readers = {
        "isolated": _count,
        "instant": _count,
        "memory": _bytes,
        "timeout": _seconds,
        "idle_timeout": _seconds,
    }
    return _group(Limits, "limits", value, readers, where)


def _count(value: Any) -> int | None:
    if value == "unlimited":
        return None
    if _whole(value) < 0:
        raise ValueError(f"{value} is less than none; write a number, or 'unlimited'")
    return int(value)


def _boards(value: Any, _base: Path, where: str) -> BoardDefaults:
    readers: _Readers = {
        "on": _text,
        "engine": Engine,
        "visibility": Visibility,
        "timeout": _seconds,
        "idle_timeout": _seconds,
        "memory": _bytes,
        "poll": _pause,
    }
    return _group(BoardDefaults, "boards", value, readers, where)


_READERS: dict[str, Callable[[Any, Path, str], Any]] = {
    "host": lambda value, *_: _text(value),
    "port": lambda value, *_: _port(value),
    "url": lambda value, *_: _address(value),
    "certificate": lambda value, base, _: _below(base, value),
    "certificate_key": lambda value, base, _: _below(base, value),
    "trusted_proxies": lambda value, *_: _networks(value),
    "directory": lambda value, base, _: _below(base, value),
    "database": lambda value, base, _: _database(base, value),
    "roots": _roots,
    "any_path": lambda value, *_: _flag(value),
    "session": lambda value, *_: _seconds(value),
    "share": lambda value, *_: _seconds(value),
    "grace": lambda value, *_: _seconds(value),
    "limits": _limits,
    "boards": _boards,
}
