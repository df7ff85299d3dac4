"""The Projector tab: TensorBoard's own plugin, told which directory each run is in.

As it comes, the plugin has one log directory for a whole process, and looks for a
run below it. Here every board has a plugin of its own, whose runs may be anywhere on
this machine. A configuration that is broken or lacks a file hides no other one.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from aboard.events import protos
from aboard.storage.uri import is_remote
from aboard.tensorboard.board import Board, Listing, path_names
from aboard.tensorboard.live import Rhythm
from aboard.tensorboard.projector_config import (
    BadConfig,
    Config,
    Stamp,
    find_config,
    read_config,
    resolve,
    stamp_of,
    tsv_shape,
)
from aboard.tensorboard.provider import Boards, current_request

protos.keep_tensorflow_out()

from tensorboard.backend import http_util  # noqa: E402
from tensorboard.plugins import base_plugin  # noqa: E402
from tensorboard.plugins.projector import projector_plugin  # noqa: E402
from werkzeug import wrappers  # noqa: E402

_logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
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

Directories = Callable[[], Mapping[str, str]]
"""Returns the directory of each run, by the run's name."""


class RunsProjector(projector_plugin.ProjectorPlugin):  # type: ignore[misc]
    """The projector of some runs in directories of this machine.

    Embeddings that are in a TensorFlow checkpoint, and not in a file of their own, are
    left out: reading them takes TensorFlow.
    """

    def __init__(self, directories: Directories) -> None:
        super().__init__(base_plugin.TBContext())
        self._directories = directories
        self._lock = threading.Lock()
        self._rhythm = Rhythm(_LOOK_SECONDS, _LOOK_SECONDS)
        self._next_look = 0.0
        self._stamps: dict[str, tuple[Path, tuple[Stamp | None, ...]]] = {}
        self._configs: dict[str, Config] = {}
        self.config_fpaths: dict[str, str] = {}

    def is_active(self) -> bool:
        """Tell whether any run has embeddings."""
        self._update_configs()
        return bool(self._configs)

    def _update_configs(self) -> None:
        """Look for configurations; the plugin calls this before every answer."""
        with self._lock:
            started = time.monotonic()
            if started < self._next_look:
                return
            changed = self._look()
            ended = time.monotonic()
            self._next_look = ended + self._rhythm.after(changed=changed, cost=ended - started)

    def _look(self) -> bool:
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
            return False
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
        return True

    def _stamps_of(self, run: str, path: Path) -> tuple[Stamp | None, ...]:
        """Return the stamps of a configuration and, where it is known, of its tensors."""
        config = self._configs.get(run)
        tensors = (embedding.tensor_path for embedding in config.embeddings) if config else ()
        return (stamp_of(path), *(stamp_of(path.parent / tensor) for tensor in tensors))


def _usable(path: Path) -> Config | None:
    """Read a configuration; None if nothing of it can be shown."""
    try:
        config = read_config(path)
    except (BadConfig, OSError) as error:
        _logger.warning("The projector leaves out %s: %s", path, error)
        return None
    kept = []
    for embedding in config.embeddings:
        if not embedding.tensor_path:
            _logger.warning(
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
    """Forget files that would block whoever opens them; find the shape of the tensor.

    Those that are elsewhere stay: the plugin refuses them, and says so to who asks.
    """
    sprite = embedding.sprite
    for message, name in (
        (embedding, "tensor_path"),
        (embedding, "metadata_path"),
        (embedding, "bookmarks_path"),
        (sprite, "image_path"),
    ):
        named = getattr(message, name)
        if not named:
            continue
        try:
            found = resolve(named, path)
        except BadConfig as error:
            _logger.warning("The projector does not open a file: %s", error)
            continue
        if found.exists() and not found.is_file():
            _logger.warning("The projector does not open %s: it is no regular file", found)
            message.ClearField(name)
        elif name == "tensor_path" and not embedding.tensor_shape:
            try:
                embedding.tensor_shape.extend(tsv_shape(found) or ())
            except OSError as error:
                _logger.warning("The projector cannot read %s: %s", found, error.strerror)


_Held = tuple[Listing, RunsProjector, Mapping[str, Any]]
"""A board as it was when its projector was made, the projector, and its routes."""


class ProjectorLoader(base_plugin.TBLoader):  # type: ignore[misc]
    """Gives TensorBoard's application a projector for each board that it serves."""

    def __init__(self, boards: Boards) -> None:
        self._boards = boards

    def load(self, context: Any) -> BoardsProjector:  # noqa: ARG002
        """Make the plugin."""
        return BoardsProjector(self._boards)


class BoardsProjector(base_plugin.TBPlugin):  # type: ignore[misc]
    """Sends each request to the projector of the board that is asked."""

    plugin_name = RunsProjector.plugin_name

    def __init__(self, boards: Boards) -> None:
        self._boards = boards
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}

    def get_plugin_apps(self) -> dict[str, Any]:
        """Return what answers each route."""
        routes = RunsProjector(dict).get_plugin_apps()
        return {route: functools.partial(self._answer, route) for route in routes}

    def is_active(self) -> bool:
        """Tell whether the board that is asked has embeddings on this machine."""
        found = self._asked()
        return found is not None and found[1].is_active()

    def frontend_metadata(self) -> Any:
        """Tell the page where the tab's program is."""
        return base_plugin.FrontendMetadata(es_module_path=_MODULE, disable_reload=True)

    def _asked(self) -> _Held | None:
        """Return the projector of the board that the current request is for."""
        request = current_request.get()
        return self._of(request.board) if request is not None else None

    def _of(self, board: str) -> _Held | None:
        with self._lock:
            listing = self._boards.get(board)
            held = self._held.get(board)
            if held is None or held[0] is not listing:
                # Boards come and go: whatever is not served any more is forgotten here.
                self._held = {
                    name: one
                    for name, one in self._held.items()
                    if self._boards.get(name) is one[0]
                }
                if listing is None:
                    return None
                projector = RunsProjector(functools.partial(local_directories, listing))
                self._held[board] = held = (listing, projector, projector.get_plugin_apps())
            return held

    def _answer(self, route: str, environ: Any, start_response: Any) -> Any:
        found = self._asked()
        if found is None:
            return _respond(environ, start_response, "There is no such board", 404)
        listing, projector, apps = found
        if not projector.is_active() and _remote_places(listing.board):
            notice = (
                "The projector needs its files on this machine, and those of this board are in "
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
    """Return the directories of a board's runs on this machine, by the runs' names.

    The directory of a source counts even if it holds no events: that is where the
    embeddings of its runs are often described.
    """
    board = listing.board
    found = {
        name: run.directory for name, run in listing.runs().items() if not is_remote(run.directory)
    }
    taken = set(found.values())
    for member in board.members:
        uri = member.source.uri
        name = path_names(board, [(member, ".")])[0]
        if uri not in taken and name not in found and board.shows(name) and not is_remote(uri):
            found[name] = uri
    return found


def _remote_places(board: Board) -> list[str]:
    return [member.source.uri for member in board.members if is_remote(member.source.uri)]


def _respond(
    environ: Any, start_response: Any, text: str, status: int, kind: str = "text/plain"
) -> Iterable[bytes]:
    request = wrappers.Request(environ)
    answer: Iterable[bytes] = http_util.Respond(request, text, kind, code=status)(
        environ, start_response
    )
    return answer
