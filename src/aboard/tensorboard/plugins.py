"""TensorBoard's plugins: its own, and those of other packages.

A plugin that cannot be loaded, or that would break the page, is left out and logged.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from aboard.events import protos
from aboard.tensorboard.projector import Directories, RunsProjector

protos.keep_tensorflow_out()

from tensorboard.backend import application  # noqa: E402
from tensorboard.plugins import base_plugin  # noqa: E402
from tensorboard.plugins.core import core_plugin  # noqa: E402
from tensorboard.plugins.profile_redirect import profile_redirect_plugin  # noqa: E402

_log = logging.getLogger(__name__)

_GROUP = "tensorboard_plugins"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_OURS = RunsProjector.plugin_name
_PROFILE = "profile"


def static_plugins() -> list[Any]:
    """Return TensorBoard's own plugins, without the route that shows the flags of this process."""
    return [
        # The default loader adds that route.
        core_plugin.CorePluginLoader(include_debug_info=False)
        if isinstance(plugin, core_plugin.CorePluginLoader)
        else plugin
        for plugin in protos.static_plugins()
    ]


def all_plugins(directories: Directories) -> list[Any]:
    added = [one for one in entry_points(group=_GROUP) if one.name != _OURS]
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
