"""Small readers of nodes and graphs, as the labs call them."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import fx, nn

from chop.errors import GraphError, suggestion
from chop.ir.graph.mase_graph import MaseGraph


def get_mase_op(node: fx.Node) -> str:
    """What the node computes: ``linear``, ``relu``, ``add`` and so on."""
    return _common(node, "mase_op")


def get_mase_type(node: fx.Node) -> str:
    """Which of the MASE types the node has: ``module_related_func``, ``placeholder`` and so on."""
    return _common(node, "mase_type")


def _common(node: fx.Node, key: str) -> str:
    record = node.meta.get("mase")
    if record is None or key not in record["common"]:
        raise GraphError(
            f"node {node.name!r} has no {key}: run add_common_metadata_analysis_pass first"
        )
    value: str = record["common"][key]
    return value


def get_node_actual_target(node: fx.Node) -> Any:
    """The module that a `call_module` node calls, else the node's target itself."""
    if node.op != "call_module":
        return node.target
    owner = node.graph.owning_module
    if owner is None:
        raise GraphError(f"the graph of node {node.name!r} belongs to no GraphModule")
    return owner.get_submodule(str(node.target))


def get_parent_name(target: str) -> tuple[str, str]:
    """The name of the module that holds `target`, and what it is called there."""
    parent, _, name = target.rpartition(".")
    return parent, name


def get_module_by_name(model: nn.Module, name: str) -> nn.Module:
    """The module of this qualified name."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        near = suggestion(name, (known for known, _ in model.named_modules() if known))
        raise GraphError(f"the model has no module {name!r}: {near}") from None


def get_node_by_name(graph: fx.Graph | MaseGraph, name: str) -> fx.Node:
    """The node of this name."""
    for node in graph.nodes:
        if node.name == name:
            found: fx.Node = node
            return found
    near = suggestion(name, (node.name for node in graph.nodes))
    raise GraphError(f"the graph has no node {name!r}: {near}")


def deepcopy_mase_graph(graph: MaseGraph) -> MaseGraph:
    """A graph of its own with its own weights and records; recorded values are shared."""
    return copy.deepcopy(graph)


def replace_modules(graph: MaseGraph, replacements: Mapping[nn.Module, nn.Module]) -> None:
    """Put each module in the place of its key, under every name the graph's model has for that.

    One sweep serves all of them, so the cost does not grow with their number squared.
    """
    for parent in list(graph.model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and child in replacements:
                setattr(parent, name, replacements[child])
