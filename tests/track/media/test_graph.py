"""Graphs of models of every framework."""

import pytest
import torch

from aboard.track.media.graph import graph_of


class KerasModel:
    """What a Keras model has; it need not be installed."""

    def get_config(self):
        return {}

    def to_json(self):
        return '{"class_name": "Sequential", "config": {"name": "net", "layers": []}}'


def test_graphs(log, logged):
    from tensorboard.compat.proto import graph_pb2

    graph = graph_pb2.GraphDef()
    graph.node.add(name="a", op="Const")
    log.log_graph(graph, stage="proto")
    log.log_graph(graph.SerializeToString(), stage="bytes")
    log.log_graph(KerasModel(), stage="keras")
    log.log_graph(torch.nn.Linear(2, 1), torch.zeros(1, 2), stage="torch")
    for run in ("proto", "bytes"):
        assert logged("__run_graph__", run)[0].value == [graph]
    assert any("Linear" in node.name for node in logged("__run_graph__", "torch")[0].value[0].node)
    assert logged("keras", "keras")[0].value == [KerasModel().to_json().encode()]


def test_an_unknown_model_is_an_error():
    with pytest.raises(TypeError, match="cannot make a graph of a builtins"):
        graph_of("model")
