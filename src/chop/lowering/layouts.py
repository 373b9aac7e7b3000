"""Results that may lie in memory in another order than their dimensions.

Batch normalisation has other kernels for those, which round otherwise.
"""

from collections.abc import Iterable, Mapping

from torch import fx, nn

from chop.ops.op import Order, op_of_node


def out_of_order(nodes: Iterable[fx.Node], modules: Mapping[str, nn.Module]) -> set[fx.Node]:
    """The nodes whose results may be out of order, of all nodes from the first to the last."""
    found: set[fx.Node] = set()
    for node in nodes:
        op = op_of_node(node, modules)
        order = Order.KEPT if op is None else op.order
        keeps = order is Order.KEPT and not found.isdisjoint(node.all_input_nodes)
        if order is Order.ANY or keeps:
            found.add(node)
    return found
