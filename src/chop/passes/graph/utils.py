"""Small readers of nodes and graphs, as the labs call them."""

import copy
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from torch import fx, nn

from chop.errors import ConfigError, GraphError, suggestion
from chop.ir.graph.mase_graph import MaseGraph

By = Literal["type", "name", "regex_name"]


def by_type(node: fx.Node, keys: Collection[str]) -> str | None:
    """The operation of the node, if it is among the keys."""
    op = get_mase_op(node)
    return op if op in keys else None


def key_of_name(node: fx.Node, keys: Collection[str]) -> str | None:
    """The name of the node, if it is among the keys."""
    return node.name if node.name in keys else None


def by_regex_name(node: fx.Node, keys: Collection[str]) -> str | None:
    """The first key that matches the whole name of the node."""
    return next((key for key in keys if re.fullmatch(key, node.name)), None)


SELECTORS: dict[By, Callable[[fx.Node, Collection[str]], str | None]] = {
    "type": by_type,
    "name": key_of_name,
    "regex_name": by_regex_name,
}


def select(
    nodes: Iterable[fx.Node], by: By, keys: Collection[str], where: str
) -> dict[fx.Node, str]:
    """The key of each node that has one, in the order of the nodes.

    A key that matches no node is an error: it is a misspelling, or meant for another model.

    Args:
        where: who asks, for the error message: ``pass 'quantize'``.
    """
    if by == "regex_name":
        check_patterns(keys, where)
    nodes = list(nodes)
    chosen = {node: key for node in nodes if (key := SELECTORS[by](node, keys)) is not None}
    for key in set(keys) - set(chosen.values()):
        # An earlier pattern may have taken every node of this one: it still matches.
        if not any(SELECTORS[by](node, (key,)) for node in nodes):
            raise ConfigError(f"{where}: {no_match(nodes, by, key)}")
    return chosen


def no_match(nodes: Iterable[fx.Node], by: By, key: str) -> str:
    """The message for a key that matches nothing."""
    if by == "regex_name":
        return f"the pattern {key!r} matches no node; names are as in report_graph"
    ends = ("placeholder", "output") if by == "type" else ()  # whose types say nothing
    known = {
        get_mase_op(node) if by == "type" else node.name for node in nodes if node.op not in ends
    }
    return f"no node has the {by} {key!r}: {suggestion(key, known)}"


def check_patterns(patterns: Iterable[str], where: str) -> None:
    """Raise for the first pattern that is not a regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            message = f"{where}: {pattern!r} is not a regular expression: {error}"
            raise ConfigError(message) from None


def get_mase_op(node: fx.Node) -> str:
    """The operation of the node: ``linear``, ``relu``, ``add`` and so on."""
    return _common(node, "mase_op")


def get_mase_type(node: fx.Node) -> str:
    """The MASE type of the node: ``module_related_func``, ``placeholder`` and so on."""
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
    """A separate graph with its own weights and records; recorded values are shared."""
    return copy.deepcopy(graph)


def replace_modules(graph: MaseGraph, replacements: Mapping[nn.Module, nn.Module]) -> None:
    """Put each module in the place of its key, under every name the graph's model has for that.

    One sweep serves all of them, so the cost does not grow with their number squared.
    """
    for parent in list(graph.model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and child in replacements:
                setattr(parent, name, replacements[child])


def deepgetattr(owner: Any, path: str, default: Any = None) -> Any:
    """The attribute at a dotted path such as ``encoder.layer.0``; `default` if there is none."""
    for name in path.split("."):
        owner = getattr(owner, name, default)
        if owner is default:
            return default
    return owner


def deepsetattr(owner: Any, path: str, value: Any) -> None:
    """Set the attribute at a dotted path, whose last part alone may be new."""
    *parents, last = path.split(".")
    for name in parents:
        owner = getattr(owner, name)
    setattr(owner, last, value)
