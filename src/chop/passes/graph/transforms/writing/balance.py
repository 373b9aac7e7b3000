"""Products whose operands are of one size, as they share a format."""

from collections.abc import Iterable, Mapping
from math import floor, log2
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import run_graph
from chop.ops.op import op_of_node
from chop.passes.graph.transforms.folding import record_again

SCALES = "balances"
"""The key of `node.meta` of products with a power of two that only move a binary point."""


def balance_products(graph: MaseGraph, batches: Iterable[Mapping[str, Any]]) -> list[str]:
    """Multiply the smaller operand of products by a power of two, and results by its inverse.

    Both only move binary points. A gate between 0 and 1 beside large numbers would have few codes
    otherwise, as both operands are rounded to one format.
    """
    products = [node for node in graph.nodes if is_product(node, graph)]
    if not products:
        return []
    largest: dict[fx.Node, float] = {}
    sources = {source for node in products for source in node.all_input_nodes}

    def keep(node: fx.Node, result: Any) -> None:
        is_number = isinstance(result, Tensor) and result.is_floating_point() and result.numel()
        if node in sources and is_number:
            most = float(result.detach().abs().max())
            largest[node] = max(largest.get(node, 0.0), most)

    for batch in batches:
        run_graph(graph, batch, after=keep)
        break
    found = [node.name for node in products if balance(graph, node, largest)]
    if found:
        graph.fx_graph.lint()
        graph.model.recompile()
        record_again(graph)
    return found


def is_product(node: fx.Node, graph: MaseGraph) -> bool:
    """Return True for a product of two different tensors, element by element."""
    op = op_of_node(node, graph.modules)
    if op is None or op.name != "mul" or len(node.all_input_nodes) != 2:
        return False
    return not (str(node.target).endswith("_") or "imul" in str(node.target))


def balance(graph: MaseGraph, node: fx.Node, largest: Mapping[fx.Node, float]) -> bool:
    """Balance one product; return whether that took anything."""
    one, other = node.all_input_nodes
    sizes = [largest.get(each, 0.0) for each in (one, other)]
    if not all(0 < size < float("inf") for size in sizes):
        return False
    octaves = floor(log2(max(sizes) / min(sizes)))
    if not octaves:
        return False
    small = one if sizes[0] < sizes[1] else other
    with graph.fx_graph.inserting_before(node):
        large = graph.fx_graph.call_function(torch.mul, (small, 2.0**octaves))
    node.replace_input_with(small, large)
    with graph.fx_graph.inserting_after(node):
        back = graph.fx_graph.call_function(torch.mul, (node, 2.0**-octaves))
    node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not back)
    for made, source in ((large, small), (back, node)):
        made.meta = dict(source.meta) | {SCALES: True}
    return True
