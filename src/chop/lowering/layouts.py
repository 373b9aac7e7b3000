"""Which results may lie in memory in another order than their dimensions.

Batch normalisation has other kernels for those, which round otherwise.
"""

from collections.abc import Iterable, Mapping

from torch import fx, nn

from chop.ops.op import op_of_node

IN_ORDER = frozenset(
    ("linear", "matmul", "bmm", "embedding", "contiguous", "stack", "conv2d", "conv3d")
)
"""What gives elements in the order of their dimensions, or with channels last, which are the same
to batch normalisation."""
VIEWS = frozenset(
    (
        *("transpose", "t", "permute", "expand", "broadcast_to", "getitem", "split", "chunk"),
        *("unbind", "narrow", "select", "flip", "roll", "einsum"),
    )
)
"""What may give them in another order or with gaps; all others keep what they read."""


def out_of_order(nodes: Iterable[fx.Node], modules: Mapping[str, nn.Module]) -> set[fx.Node]:
    """The nodes whose results may be out of order, of all nodes from the first to the last."""
    found: set[fx.Node] = set()
    for node in nodes:
        op = op_of_node(node, modules)
        name = None if op is None else op.name
        keeps = name not in IN_ORDER and not found.isdisjoint(node.all_input_nodes)
        if name in VIEWS or keeps:
            found.add(node)
    return found
