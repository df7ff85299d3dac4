"""The hub's settings in `aboard.toml`, read once at startup.

An unknown key is an error that names the nearest known one: a setting that is silently ignored is
worse than a hub that does not start.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    Strict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic.dataclasses import dataclass

from aboard.boards.model import (
    FIELDS,
    INSTANT,
    BoardsError,
    Engine,
    Limits,
    Unit,
    Visibility,
)
from aboard.executors import (
    BATCHES,
    EXECUTORS,
    PROCESS,
    ConfigError,
    Profiles,
    executor_class,
    explain,
    make_engines,
    personal_file,
    places,
    read_toml,
    unknown,
)
from aboard.index.library import Root
from aboard.runs import RunsError
from aboard.runs.naming import Template
from aboard.runs.units import parse_duration, parse_size
from aboard.sdk.personal import state_directory
from aboard.storage import StorageError, canonical

_FORBID = ConfigDict(extra="forbid")
_SHORTEST_POLL = 0.5  # like `aboard view --poll`, which isolated boards get


def _checked(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a check that raises `ValueError`, which pydantic reports with the key."""

    def checked(value: Any) -> Any:
        try:
            return check(value)
        except (BoardsError, RunsError, StorageError) as error:
            raise ValueError(str(error)) from error

    return checked


def _amount(parse: Callable[[str | float], float]) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError(f"{value!r} is not a number or a string such as '90m' or '2GiB'.")  # noqa: TRY004
        return parse(value)

    return _checked(read)


def _below(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    return (info.context or {}).get("base", Path()) / Path(value).expanduser()


def _database(value: Any, info: ValidationInfo) -> Any:
    is_path = isinstance(value, str) and value and "://" not in value
    return str(_below(value, info)) if is_path else value


def _address(value: str) -> str:
    parts = urlsplit(value)
    if not value:
        return value
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{value!r} is not an address such as https://boards.example.org/aboard.")
    return value.rstrip("/")


def origin_of(url: str) -> tuple[str, str, int]:
    """Return the scheme, host and port of an address, as browsers compare them."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, (parts.hostname or "").lower(), port


def _network(value: Any) -> Any:
    return ipaddress.ip_network(value, strict=False) if isinstance(value, str) else value


def _template(value: str) -> str:
    Template.parse(value)
    return value


def _as(kind: type, make: Callable[[Any, ValidationInfo], Any]) -> WrapValidator:
    def wrap(value: Any, handler: Callable[[Any], Any], info: ValidationInfo) -> Any:
        if isinstance(value, kind):
            return value
        return make(handler({"uri": value} if isinstance(value, str) else value), info)

    return WrapValidator(wrap)


def _make_root(value: Any, info: ValidationInfo) -> Root:
    is_path = "://" not in value.uri
    text = str(_below(value.uri, info)) if is_path else value.uri
    return Root(_checked(canonical)(text), value.name, value.environment)


def _roots(roots: tuple[Root, ...]) -> tuple[Root, ...]:
    names = [root.name for root in roots if root.name]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two roots are named {name!r}. Give each its own name.")
    return roots


Text = Annotated[str, Strict()]
Count = Annotated[
    Annotated[int, Strict(), Field(ge=0)] | None,
    BeforeValidator(lambda value: None if value == "unlimited" else value),
]
Duration = Annotated[float, BeforeValidator(_amount(parse_duration)), Field(ge=0)]
Size = Annotated[int, BeforeValidator(_amount(parse_size)), Field(ge=0)]
Number = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Directory = Annotated[Path, BeforeValidator(_below)]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Networks = tuple[Annotated[Network, BeforeValidator(_network)], ...]
_KINDS = {Unit.DURATION: Duration, Unit.SIZE: Size, float: Number}

if TYPE_CHECKING:
    from aboard.boards.model import Limits as LimitSettings
    from aboard.index.library import Root as RootSettings
else:
    _kinds = {one.name: _KINDS.get(one.about.unit or one.kind, Count) for one in FIELDS.values()}
    _limits = {one.name: (_kinds.get(one.name, Count), one.default) for one in fields(Limits)}
    _limit_table = create_model("Limits", __config__=_FORBID, **_limits)
    LimitSettings = Annotated[_limit_table, _as(Limits, lambda found, _: Limits(**dict(found)))]
    _root = {"uri": (Text, ...), "name": (Text, ""), "environment": (dict[str, Text], {})}
    _root_table = create_model("Root", __config__=_FORBID, **_root)
    RootSettings = Annotated[_root_table, _as(Root, _make_root)]


class Addresses(NamedTuple):
    """The addresses of a hub and, if they have their own origin, its boards."""

    hub: str = ""
    boards: str = ""


@dataclass(frozen=True, config=_FORBID)
class BoardDefaults:
    on: Text = INSTANT
    engine: Engine = Engine.FAST
    visibility: Visibility = Visibility.PRIVATE
    template: Annotated[Text, AfterValidator(_checked(_template))] | None = None
    timeout: Duration | None = None
    idle_timeout: Duration | None = None
    memory: Size | None = None
    cpus: Number | None = None
    poll: Annotated[Duration, Field(ge=_SHORTEST_POLL)] | None = None

    def fields(self) -> dict[str, Any]:
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: value for name, value in named.items() if name in FIELDS and value is not None
        }


@dataclass(frozen=True, config=_FORBID)
class JobSettings:
    """Whether administrators may submit and stop jobs through a team's hub, as the hub's user."""

    submit: Annotated[bool, Strict()] = False


@dataclass(frozen=True, config=_FORBID)
class Config:
    """All settings of a hub; durations are in seconds.

    `url` is the hub's public address, if it is not where the hub listens; its path is the prefix.
    `boards_url` is that of the boards, if they have their own origin. `database` is `hub.db` in the
    directory by default. With `any_path`, boards may show sources outside the roots. `executors`
    has the engines with a table in the file.
    """

    host: Text = "localhost"
    port: Annotated[int, Strict(), Field(ge=0, le=65535)] | None = None
    url: Annotated[Text, AfterValidator(_address)] = ""
    boards_url: Annotated[Text, AfterValidator(_address)] = ""
    certificate: Directory | None = None
    certificate_key: Directory | None = None
    trusted_proxies: Networks = ()
    directory: Directory = field(default_factory=state_directory)
    database: Annotated[Text, BeforeValidator(_database)] = ""
    roots: Annotated[tuple[RootSettings, ...], AfterValidator(_roots)] = ()
    any_path: Annotated[bool, Strict()] = False
    session: Duration = 30 * 86400.0
    share: Duration = 7 * 86400.0
    grace: Duration = 10.0
    limits: LimitSettings = field(default_factory=Limits)
    boards: BoardDefaults = field(default_factory=BoardDefaults)
    jobs: JobSettings = field(default_factory=JobSettings)
    executors: SkipValidation[Mapping[str, Profiles]] = field(default_factory=dict)

    @model_validator(mode="after")
    def _check_certificate(self) -> Config:
        if (self.certificate is None) != (self.certificate_key is None):
            raise ValueError("certificate and certificate_key must be set together.")
        return self

    @model_validator(mode="after")
    def _check_origins(self) -> Config:
        if self.boards_url and not self.url:
            raise ValueError("boards_url requires url, the hub's own address. Set both.")
        if self.boards_url and origin_of(self.boards_url) == origin_of(self.url):
            raise ValueError(
                "boards_url has the same host and port as url. Give boards their own host name or"
                " port."
            )
        return self

    @property
    def prefix(self) -> str:
        """The path prefix of all the hub's addresses; empty, or such as `/aboard`."""
        return urlsplit(self.url).path.rstrip("/")

    @property
    def database_address(self) -> str:
        return self.database or str(self.directory / "hub.db")

    def engines(self, *, personal: bool) -> dict[str, Profiles]:
        """Return the engines that the hub offers, with their settings.

        Both kinds of hub offer the engines with a table. A personal hub also offers all that need
        no settings, a team's hub only processes on its own machine.
        """
        offered = {
            name: self.executors.get(name) or {"": executor_class(name).Settings()}
            for name in EXECUTORS
            if name in self.executors
            or name == PROCESS
            or (personal and not executor_class(name).needs_settings)
        }
        known = [INSTANT, *places(offered)]
        if self.boards.on not in known:
            raise ConfigError(
                f"boards.on: {unknown('place', self.boards.on, known)}"
                " A team's hub offers an engine that has a table, such as [executors.slurm]."
            )
        return offered

    def job_engines(self, *, personal: bool) -> dict[str, Profiles]:
        """Return the engines to which the hub submits jobs, with their settings."""
        return {
            name: self.executors.get(name, {})
            for name in BATCHES
            if personal or name == PROCESS or name in self.executors
        }


_adapter = TypeAdapter(Config)
_TABLES: Mapping[str, type] = {
    "limits": Limits,
    "boards": BoardDefaults,
    "jobs": JobSettings,
    "roots": Root,
    "": Config,
}
_OF_A_PERSONAL_HUB = ("boards", "executors", "limits")


def read_config(path: Path) -> Config:
    """Read a settings file; paths in it are relative to its directory."""
    return make_config(read_toml(path), path.absolute().parent, str(path))


def read_personal_config() -> Config:
    """Read the settings of a personal hub, from ABOARD_CONFIG or the user's configuration.

    It has only some settings, because it listens on loopback and commands find it in the state
    directory.
    """
    path = personal_file()
    if path is None:
        return Config()
    values = read_toml(path)
    if others := sorted(set(values) - set(_OF_A_PERSONAL_HUB)):
        known = f"Known: {', '.join(_OF_A_PERSONAL_HUB)}."
        raise ConfigError(f"{path}: a personal hub has no setting {others[0]!r}. {known}")
    return make_config(values, path.absolute().parent, str(path))


def make_config(values: Mapping[str, Any], base: Path, where: str) -> Config:
    """Check settings; `where` names their file in errors."""
    read = dict(values)
    if "executors" in read:
        read["executors"] = make_engines(read["executors"], base, f"{where}, executors")
    try:
        return _adapter.validate_python(read, context={"base": base})
    except ValidationError as error:
        raise ConfigError(explain(error, where, _TABLES)) from error
