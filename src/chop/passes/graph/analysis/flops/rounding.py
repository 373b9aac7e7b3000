"""The part of the arithmetic of a graph that number formats reach, measured as it runs.

Quantised nodes mark their operands in place of rounding them, and a watch at torch's dispatch looks
for the marks on what is multiplied. So it does not matter whether the table of operations knows a
product: an operand without a mark is not rounded.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from chop.errors import GraphError
from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.opaque import products_by_node
from chop.ir.graph.recorder import meta_twin, placeholder_values
from chop.nn.dispatched import ProductsSeen, ProductWatch, marks_for
from chop.passes.graph.analysis.flops.node_count import NodeCount
from chop.passes.graph.analysis.flops.operands import SizedCall, run_cheaply

logger = logging.getLogger("chop")
Seen = Mapping[fx.Node, ProductsSeen]
"""The products that ran in each node that has any."""


class NotRounded(NamedTuple):
    """The MACs of a node with an operand in floating point, as shares of all MACs."""

    node: str
    op: str
    functions: list[str]
    """The functions of torch, or operators, that multiply."""
    share: float
    out_of_reach: float
    """The share that no rule can round: the rest has no rule, or one for some operands only."""


def unrounded_functions(seen: ProductsSeen | None) -> list[str]:
    """The functions with products on operands that are not rounded."""
    return [] if seen is None else list(seen.names)


def out_of_reach(use: SizedCall, measured: NodeCount, claimed: NodeCount) -> int:
    """The MACs of a node that stay in floating point whatever the rules say.

    Args:
        measured: what was seen.
        claimed: what the rule of the operation says.
    """
    work, op = use.work, use.op
    if work is None or op is None or not op.quantizable:
        return (measured.macs or 0) - (measured.rounded_macs or 0)
    known = {*op.roles, *op.inner, *use.parameters}
    never = sum(macs for macs, roles in work.products if not known.issuperset(roles))
    unknown = (measured.macs or 0) - work.macs
    return never + unknown + (claimed.rounded_macs or 0) - (measured.rounded_macs or 0)


def products_seen(graph: MaseGraph, inputs: Mapping[str, Any]) -> Seen:
    """The products of each node in a run of the graph, which is left as it was.

    Where the graph cannot run on these inputs, that is said, and nothing was seen.
    """
    try:
        return run_cheaply(graph, inputs, partial(_products_seen, graph))
    except GraphError as error:
        logger.warning("products in functions that are not known are not counted: %s", error)
        return {}


def _products_seen(graph: MaseGraph, inputs: Mapping[str, Any], on_meta: bool) -> Seen:
    given = placeholder_values(graph, inputs)
    graph.check_inputs(given)
    model = meta_twin(graph.model) if on_meta else graph.model
    originals = dict(zip(model.graph.nodes, graph.nodes, strict=True))
    if on_meta:
        given = [x.detach().to("meta") if isinstance(x, Tensor) else x for x in given]
    with torch.device("meta") if on_meta else nullcontext():
        seen = products_by_node(model, given, partial(marking_calls, originals))
    return {originals[node]: each for node, each in seen.items()}


def marking_calls(
    originals: Mapping[fx.Node, fx.Node], watch: ProductWatch
) -> dict[fx.Node, Callable[..., Any]]:
    """A function for each quantised node that marks its operands in place of rounding them.

    Args:
        originals: the nodes that run, and the nodes of the graph that they stand for.
    """
    calls: dict[fx.Node, Callable[..., Any]] = {}
    for node, original in originals.items():
        quant = NodeCall.of(original).quant
        if quant is not None:
            calls[node] = NodeCall.of(node).rounded_by(marks_for(quant, watch), quant)
    return calls
