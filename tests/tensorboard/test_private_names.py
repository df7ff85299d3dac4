"""Private names of TensorBoard that we use: a version without them fails here first."""

import inspect

from aboard.events.messages import keep_tensorflow_out

keep_tensorflow_out()

from tensorboard.backend.event_processing import (  # noqa: E402
    plugin_event_accumulator,
    plugin_event_multiplexer,
)
from tensorboard.plugins import base_plugin  # noqa: E402
from tensorboard.plugins.core import core_plugin  # noqa: E402
from tensorboard.plugins.metrics import metrics_plugin  # noqa: E402
from tensorboard.plugins.projector import projector_plugin  # noqa: E402


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_the_metrics_plugin_answers_for_one_series():
    plugin = metrics_plugin.MetricsPlugin
    assert parameters(plugin._get_time_series) == ["self", "ctx", "experiment", "series_request"]


def test_the_loader_holds_its_runs(tmp_path):
    loader = plugin_event_multiplexer.EventMultiplexer()
    loader.AddRun(str(tmp_path), "run")
    with loader._accumulators_mutex:
        assert list(loader._accumulators) == ["run"]
        assert loader._paths == {"run": str(tmp_path)}


def test_an_accumulator_reads_from_a_generator(tmp_path):
    accumulator = plugin_event_accumulator.EventAccumulator(str(tmp_path))
    assert callable(accumulator._generator.Load)
    loaded = []

    class Generator:
        def Load(self):  # noqa: N802 - TensorBoard's name
            loaded.append(1)
            return iter(())

    accumulator._generator = Generator()
    accumulator.Reload()
    assert loaded == [1]


def test_the_projector_looks_for_configurations_before_it_answers():
    plugin = projector_plugin.ProjectorPlugin(base_plugin.TBContext())
    calls = []
    plugin._update_configs = lambda: calls.append(1)
    plugin._configs, plugin.config_fpaths = {}, {}
    plugin.tensor_cache = projector_plugin.LRUCache(1)
    assert not plugin.is_active()
    for route in ("_serve_runs", "_serve_config", "_serve_tensor"):
        assert "_update_configs" in inspect.getsource(getattr(plugin, route).__wrapped__)


def test_the_core_plugin_can_hide_the_flags():
    assert "include_debug_info" in parameters(core_plugin.CorePluginLoader.__init__)
