"""Graphs of models: PyTorch modules, traced by PyTorch, ONNX files, Keras and TensorFlow."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from os import PathLike
from typing import Any, NamedTuple

from aboard.events import encode, protos


class Graph(NamedTuple):
    """A graph as TensorBoard takes it: of operations, or of the layers of a Keras model."""

    graph_def: bytes = b""
    run_metadata: bytes = b""
    keras_json: str = ""


def graph_of(
    model: Any, example: Any = None, *, verbose: bool = False, strict: bool = True
) -> Graph:
    if isinstance(model, bytes):
        return Graph(model)
    if hasattr(model, "SerializeToString"):
        return Graph(model.SerializeToString())
    if hasattr(model, "as_graph_def"):
        return Graph(model.as_graph_def().SerializeToString())
    if hasattr(model, "to_json") and hasattr(model, "get_config"):  # Keras, on PyTorch perhaps
        return Graph(keras_json=model.to_json())
    if _is_torch(model):
        return _traced(model, example, verbose, strict)
    if hasattr(model, "graph") and hasattr(model.graph, "as_graph_def"):  # a concrete tf.function
        return Graph(model.graph.as_graph_def().SerializeToString())
    kind = f"{type(model).__module__}.{type(model).__name__}"
    raise TypeError(
        f"cannot make a graph of a {kind}; expected a torch.nn.Module, a Keras model, "
        f"a TensorFlow graph or a GraphDef"
    )


def onnx_graph(path: str | PathLike[str]) -> Graph:
    try:
        onnx = import_module("onnx")
    except ImportError as error:
        raise ImportError(
            "reading an ONNX file needs the package onnx: pip install onnx"
        ) from error
    graph = onnx.load(path).graph
    nodes = []
    for end in (*graph.input, *graph.output):
        tensor = end.type.tensor_type
        attributes = {
            "dtype": encode.type_attribute(tensor.elem_type),
            "shape": encode.shape_attribute([size.dim_value for size in tensor.shape.dim]),
        }
        nodes.append(encode.graph_node(end.name, "Variable", (), attributes))
    for node in graph.node:
        parameters = [" = ".join(str(one) for _, one in at.ListFields()) for at in node.attribute]
        attributes = {"parameters": encode.text_attribute(", ".join(parameters))}
        nodes.append(encode.graph_node(node.output[0], node.op_type, node.input, attributes))
    return Graph(encode.graph_def(nodes))


def _is_torch(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(
        model, torch.nn.Module | torch.jit.ScriptFunction | torch.jit.ScriptModule
    )


def _traced(model: Any, example: Any, verbose: bool, strict: bool) -> Graph:
    if example is None:
        raise ValueError(
            f"the graph of a {type(model).__name__} is found by running it: pass an example input"
        )
    if "tensorflow" not in sys.modules:
        protos.keep_tensorflow_out()  # PyTorch's module would import it
    # Private: checked with PyTorch 2.13. tests/track/test_summary.py compares its graphs.
    tracing = import_module("torch.utils.tensorboard._pytorch_graph")
    with warnings.catch_warnings():
        # PyTorch has no other way to get this graph.
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        traced, statistics = tracing.graph(model, example, verbose, strict)
    return Graph(traced.SerializeToString(), statistics.SerializeToString())
