"""Products inside functions that a graph does not look into, and torch.export, which may."""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import fx, nn

from chop.errors import GraphError
from chop.ir.graph.recorder import Instead, Recorder, placeholder_values, preserve_model
from chop.ir.graph.tracing import MaseTracer, trace_by_export
from chop.nn.decomposed import decompose
from chop.nn.dispatched import ProductsSeen, ProductWatch, watched_products
from chop.ops.op import op_of_node

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph

logger = logging.getLogger("chop")


def products_by_node(
    model: fx.GraphModule,
    given: list[Any],
    instead: Callable[[ProductWatch], Instead] = lambda watch: {},
) -> dict[fx.Node, ProductsSeen]:
    """The products that run in each node of a graph, which is left as it was.

    Args:
        given: a value for each placeholder.
        instead: what computes some nodes in place of what they call.
    """
    with preserve_model(model), watched_products() as watch:

        def enter(node: fx.Node, *_: Any) -> None:
            watch.place = node

        Recorder(model, enter, instead=instead(watch)).run_on_copies(given)
    return watch.seen


def opaque_products(
    graph: "MaseGraph", inputs: Mapping[str, Any], kept: set[int]
) -> dict[str, int]:
    """The MACs of each function that the table of operations does not have, by its node.

    Args:
        kept: the identities of functions that the user declared to be one node.
    """
    opaque = [
        node
        for node in graph.nodes
        if node.op in ("call_function", "call_method")
        and op_of_node(node, {}) is None
        and id(node.target) not in kept
    ]
    if not opaque:
        return {}
    seen = products_by_node(graph.model, placeholder_values(graph, inputs))
    return {node.name: seen[node].macs for node in opaque if node in seen}


def looked_into(
    graph: "MaseGraph", model: nn.Module, tracer: MaseTracer, inputs: Mapping[str, Any]
) -> fx.GraphModule:
    """The graph of a model, made by torch.export if fx keeps a function with products whole.

    What `torch.fx.wrap` marks, and what no table knows, is one node to fx: nothing can round what
    is multiplied inside. The graph of fx stays if torch.export fails or sees no more.

    Args:
        graph: what fx made.
    """
    kept = tracer._autowrap_function_ids
    inside = opaque_products(graph, inputs, kept)
    if not inside:
        return graph.model
    names = ", ".join(inside)
    try:
        whole = decompose(model, tracer.leaf_layers)
        found = trace_by_export(whole, model, tracer, graph.cf_args or {}, inputs)
        left = opaque_products(type(graph)(found, graph.cf_args), inputs, kept)
    except GraphError as error:
        logger.warning("the products in %s cannot be looked into by torch.export: %s", names, error)
        return graph.model
    if sum(left.values()) >= sum(inside.values()):
        return graph.model
    logger.warning("torch.fx does not look into %s; using torch.export instead", names)
    return found
