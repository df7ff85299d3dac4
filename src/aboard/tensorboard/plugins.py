"""TensorBoard's plugins: its own, those of other packages, and ours for the Projector tab.

A plugin that cannot be loaded, or that would break the page, is left out and logged. The projector
is TensorBoard's own, with one instance per board. A broken configuration does not hide others.
Configurations are untrusted: the files that they name are used only if they are in the
configuration's directory or below it.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import re
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from aboard.events.messages import keep_tensorflow_out
from aboard.storage import is_remote
from aboard.tensorboard.board import Board, Listing
from aboard.tensorboard.provider import Boards, current_request

keep_tensorflow_out()

from tensorboard.backend import application, http_util  # noqa: E402
from tensorboard.plugins import base_plugin  # noqa: E402
from tensorboard.plugins.core import core_plugin  # noqa: E402
from tensorboard.plugins.profile_redirect import profile_redirect_plugin  # noqa: E402
from tensorboard.plugins.projector import projector_plugin  # noqa: E402
from werkzeug import wrappers  # noqa: E402

_log = logging.getLogger(__name__)

_GROUP = "tensorboard_plugins"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_PROJECTOR = projector_plugin.ProjectorPlugin.plugin_name
_PROFILE = "profile"

Directories = Callable[[], Mapping[str, str]]  # returns the directory of each run, by name


def static_plugins() -> list[Any]:
    """Return TensorBoard's own plugins, without the route that shows the flags of this process."""
    return [
        # The default loader adds that route.
        core_plugin.CorePluginLoader(include_debug_info=False)
        if isinstance(plugin, core_plugin.CorePluginLoader)
        else plugin
        for plugin in stock_plugins()
    ]


@functools.cache
def stock_plugins() -> list[Any]:
    """Return TensorBoard's own plugins.

    Before TensorBoard 2.21 their module imports `pkg_resources`, which setuptools 82 removed. It is
    only used to find plugins of other packages, which is not needed here.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            from tensorboard import default
    except ModuleNotFoundError as error:
        if error.name != "pkg_resources":
            raise
        sys.modules["pkg_resources"] = ModuleType("pkg_resources")
        try:
            from tensorboard import default
        finally:
            del sys.modules["pkg_resources"]
    found: list[Any] = default.get_static_plugins()
    return found


def all_plugins(directories: Directories) -> list[Any]:
    added = [one for one in entry_points(group=_GROUP) if one.name != _PROJECTOR]
    loaders = [
        application.make_plugin_loader(plugin)
        for plugin in static_plugins()
        # It advises to install a package that is installed, because it checks the old name.
        if plugin is not profile_redirect_plugin.ProfileRedirectPluginLoader
        or all(one.name != _PROFILE for one in added)
    ]
    loaders.append(Loader(lambda: RunsProjector(directories)))
    loaders += [AddedPlugin(one) for one in sorted(added, key=lambda one: one.name)]
    return loaders


def make_flags(loaders: list[Any], **settings: object) -> argparse.Namespace:
    """Return the default options of TensorBoard and its plugins, with `settings` changed."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for loader in loaders:
        loader.define_flags(parser)
    flags = parser.parse_args([])
    for name, value in settings.items():
        setattr(flags, name, value)
    for loader in loaders:
        if isinstance(loader, AddedPlugin):
            loader.fix_flags(flags)
    return flags


class Loader(base_plugin.TBLoader):  # type: ignore[misc]
    """Loads a plugin that does not use TensorBoard's context."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def load(self, context: Any) -> Any:  # noqa: ARG002
        return self._make()


class AddedPlugin(base_plugin.TBLoader):  # type: ignore[misc]
    def __init__(self, entry_point: EntryPoint) -> None:
        self._entry_point = entry_point
        self._loader: Any = None
        self._loader = self._guarded(lambda: application.make_plugin_loader(entry_point.load()))

    def define_flags(self, parser: argparse.ArgumentParser) -> None:
        if self._loader is not None:
            self._guarded(lambda: self._loader.define_flags(parser))

    def fix_flags(self, flags: argparse.Namespace) -> None:
        if self._loader is not None:
            self._guarded(lambda: self._loader.fix_flags(flags))

    def load(self, context: Any) -> Any:
        if self._loader is None:
            return None

        def loaded() -> Any:
            plugin = self._loader.load(context)
            if plugin is not None:
                check_plugin(plugin, context.plugin_name_to_instance)
            return plugin

        return self._guarded(loaded)

    def _guarded(self, act: Callable[[], Any]) -> Any:
        """Run code of the plugin; if it fails, leave the plugin out."""
        try:
            return act()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - third-party code
            self._loader = None
            package = self._entry_point.dist.name if self._entry_point.dist else "?"
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            name = self._entry_point.name
            text = "TensorBoard's plugin %r of the package %r is left out: %s"
            _log.warning(text, name, package, reason)
            return None


def check_plugin(plugin: Any, others: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a plugin that would break TensorBoard's application or its page."""
    name = plugin.plugin_name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"invalid plugin name {name!r}")
    if name in others:
        raise ValueError(f"another plugin has the name {name!r}")
    for route in plugin.get_plugin_apps():
        if not route.startswith("/") or "*" in route.removesuffix("/*"):
            raise ValueError(f"invalid route {route!r}")
    plugin.data_plugin_names()
    metadata = plugin.frontend_metadata()
    if metadata.is_ng_component and (metadata.element_name or metadata.es_module_path):
        raise ValueError("it declares two ways to load its page")


# The projector: its configurations, then its plugins.

CONFIG_FILE = "projector_config.pbtxt"
# Where TensorBoard's writer of plugin assets puts a configuration below the run.
_ASSETS_DIRECTORY = "plugins/org_tensorflow_tensorboard_projector"
_LARGEST_CONFIG = 4 << 20

Config = Any
Stamp = tuple[int, int, int]


class BadConfig(ValueError):
    """An invalid configuration."""


def read_config(path: Path) -> Config:
    """Read a configuration and name its embeddings; raise `BadConfig` or `OSError` on failure."""
    keep_tensorflow_out()
    from google.protobuf import text_format
    from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

    config = ProjectorConfig()
    with path.open("rb") as file:
        text = file.read(_LARGEST_CONFIG + 1)
    if len(text) > _LARGEST_CONFIG:
        raise BadConfig(f"{path} is too large for a projector's configuration")
    try:
        text_format.Parse(text.decode(), config)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not a projector's configuration: {error}") from error
    for embedding in config.embeddings:
        if not embedding.tensor_name:
            embedding.tensor_name = embedding.tensor_path.rpartition("/")[2]
        embedding.tensor_name = embedding.tensor_name.removesuffix(":0")
    return config


def named_files(config: Config) -> Iterator[str]:
    for embedding in config.embeddings:
        sprite = embedding.sprite.image_path
        paths = (embedding.tensor_path, embedding.metadata_path, embedding.bookmarks_path, sprite)
        yield from filter(None, paths)


def find_config(directory: Path) -> Path | None:
    for path in (directory / _ASSETS_DIRECTORY / CONFIG_FILE, directory / CONFIG_FILE):
        if stamp_of(path) is not None:
            return path
    return None


def stamp_of(path: Path) -> Stamp | None:
    """Return a value that changes when a file does; None if it is not a regular file."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def resolve(path: str, config_path: Path) -> Path:
    """Return the file at a path of a configuration; raise `BadConfig` if it is outside."""
    home = config_path.parent.resolve()
    try:
        found = (home / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise BadConfig(f"{path!r} is not a path") from error
    if not found.is_relative_to(home):
        raise BadConfig(f"{path!r} is outside the directory of {config_path}")
    return found


def tsv_shape(path: Path) -> tuple[int, int] | None:
    """Return the rows and columns of a tensor in tab-separated text; None for other files."""
    rows = columns = 0
    with path.open("rb") as file:
        if b"\0" in file.read(4096):
            return None
        file.seek(0)
        for line in file:
            if line.strip(b"\n"):
                columns = columns or line.count(b"\t") + 1
                rows += 1
    return (rows, columns) if rows else None


_POLL_SECONDS = 1.0
_MODULE = "/index.js"
_NOTICE = """\
export function render() {
  const notice = document.createElement("p");
  notice.style.font = "16px Roboto, sans-serif";
  notice.style.margin = "2em";
  notice.textContent = %s;
  document.body.appendChild(notice);
}
"""


class RunsProjector(projector_plugin.ProjectorPlugin):  # type: ignore[misc]
    """The projector of runs in local directories.

    Embeddings in a TensorFlow checkpoint are left out, because reading them needs TensorFlow. The
    base class calls `_update_configs` before every response and reads `_configs`, `config_fpaths`
    and `tensor_cache`: checked with TensorBoard 2.21 by tests/tensorboard/test_private_names.py.
    """

    def __init__(self, directories: Directories) -> None:
        super().__init__(base_plugin.TBContext())
        self._directories = directories
        self._lock = threading.Lock()
        self._next_poll = 0.0
        self._stamps: dict[str, tuple[Path, tuple[Stamp | None, ...]]] = {}
        self._configs: dict[str, Config] = {}
        self.config_fpaths: dict[str, str] = {}

    def is_active(self) -> bool:
        self._update_configs()
        return bool(self._configs)

    def _update_configs(self) -> None:
        with self._lock:
            if time.monotonic() >= self._next_poll:
                self._find_configs()
                self._next_poll = time.monotonic() + _POLL_SECONDS

    def _find_configs(self) -> None:
        places = {}
        for run, directory in self._directories().items():
            path = find_config(Path(directory))
            if path is not None:
                places[run] = path
        gone = self._stamps.keys() - places.keys()
        changed = {
            run: path
            for run, path in places.items()
            if self._stamps.get(run) != (path, self._stamps_of(run, path))
        }
        if not gone and not changed:
            return
        configs = {run: self._configs[run] for run in places.keys() & self._configs.keys()}
        for run, path in changed.items():
            config = _usable(path)
            configs.pop(run, None)
            if config is not None:
                configs[run] = config
        self._configs = {run: configs[run] for run in places if run in configs}
        self.config_fpaths = {run: str(path) for run, path in places.items()}
        self._stamps = {run: (path, self._stamps_of(run, path)) for run, path in places.items()}
        self.tensor_cache = projector_plugin.LRUCache(1)

    def _stamps_of(self, run: str, path: Path) -> tuple[Stamp | None, ...]:
        config = self._configs.get(run)
        tensors = (embedding.tensor_path for embedding in config.embeddings) if config else ()
        return (stamp_of(path), *(stamp_of(path.parent / tensor) for tensor in tensors))


def _usable(path: Path) -> Config | None:
    try:
        config = read_config(path)
    except (BadConfig, OSError) as error:
        _log.warning("the projector leaves out %s: %s", path, error)
        return None
    kept = []
    for embedding in config.embeddings:
        if not embedding.tensor_path:
            _log.warning(
                "%s: the projector leaves out %r, which is in a checkpoint and not in a file",
                path,
                embedding.tensor_name,
            )
            continue
        _check_files(embedding, path)
        kept.append(embedding)
    del config.embeddings[:]
    config.embeddings.extend(kept)
    config.ClearField("model_checkpoint_path")
    return config if kept else None


def _check_files(embedding: Any, path: Path) -> None:
    """Drop files that would block a reader, such as pipes, and find the shape of the tensor.

    Files outside the directory are kept, because the plugin responds with the reason.
    """
    names = ("tensor_path", "metadata_path", "bookmarks_path")
    for message, name in (*((embedding, name) for name in names), (embedding.sprite, "image_path")):
        named = getattr(message, name)
        if not named:
            continue
        try:
            found = resolve(named, path)
        except BadConfig as error:
            _log.warning("the projector does not open a file: %s", error)
            continue
        if found.exists() and not found.is_file():
            _log.warning("the projector does not open %s: it is not a regular file", found)
            message.ClearField(name)
        elif name == "tensor_path" and not embedding.tensor_shape:
            try:
                embedding.tensor_shape.extend(tsv_shape(found) or ())
            except OSError as error:
                _log.warning("the projector cannot read %s: %s", found, error.strerror)


# The board for which a projector was created, the projector, and its routes.
_Held = tuple[Listing, RunsProjector, Mapping[str, Any]]


class BoardsProjector(base_plugin.TBPlugin):  # type: ignore[misc]
    plugin_name = _PROJECTOR

    def __init__(self, boards: Boards) -> None:
        self._boards = boards
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}

    def get_plugin_apps(self) -> dict[str, Any]:
        routes = RunsProjector(dict).get_plugin_apps()
        return {route: functools.partial(self._answer, route) for route in routes}

    def is_active(self) -> bool:
        found = self._current()
        return found is not None and found[1].is_active()

    def frontend_metadata(self) -> Any:
        return base_plugin.FrontendMetadata(es_module_path=_MODULE, disable_reload=True)

    def _current(self) -> _Held | None:
        request = current_request.get()
        if request is None:
            return None
        board = request.board
        with self._lock:
            listing = self._boards.get(board)
            held = self._held.get(board)
            if held is None or held[0] is not listing:
                # Drop boards that are no longer served.
                current = self._boards.get
                self._held = {key: one for key, one in self._held.items() if current(key) is one[0]}
                if listing is None:
                    return None
                projector = RunsProjector(functools.partial(local_directories, listing))
                self._held[board] = held = (listing, projector, projector.get_plugin_apps())
            return held

    def _answer(self, route: str, environ: Any, start_response: Any) -> Any:
        found = self._current()
        if found is None:
            return _respond(environ, start_response, "Board not found.", 404)
        listing, projector, apps = found
        if not projector.is_active() and _remote_places(listing.board):
            notice = (
                "The projector needs local files, and those of this board are in "
                f"{', '.join(_remote_places(listing.board))}. Open the board with "
                "`--engine stock`, which copies them."
            )
            if route == _MODULE:
                script = _NOTICE % json.dumps(notice)
                return _respond(environ, start_response, script, 200, "application/javascript")
            if not route.endswith((".js", ".html")):
                return _respond(environ, start_response, notice, 400)
        return apps[route](environ, start_response)


def local_directories(listing: Listing) -> dict[str, str]:
    """Return the local directories of the runs of a board, by name.

    The directory of a source is included even without events, because it often has the embeddings
    of its runs.
    """
    board = listing.board
    found = {
        name: run.directory
        for name, run in listing.runs().items()
        if run.directory and not is_remote(run.directory)  # a group has none
    }
    taken = set(found.values())
    for member in board.members:
        uri = member.source.uri
        name = board.path_name(member, ".")
        if uri not in taken and name not in found and board.shows(name) and not is_remote(uri):
            found[name] = uri
    return found


def _remote_places(board: Board) -> list[str]:
    return [member.source.uri for member in board.members if is_remote(member.source.uri)]


def _respond(
    environ: Any, start_response: Any, text: str, status: int, kind: str = "text/plain"
) -> Iterable[bytes]:
    request = wrappers.Request(environ)
    response: Any = http_util.Respond(request, text, kind, code=status)
    found: Iterable[bytes] = response(environ, start_response)
    return found
