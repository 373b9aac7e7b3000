"""The table of operations, and the way from a module or a function to its row."""

from chop.ops.op import (
    MaseType,
    Op,
    Order,
    Reads,
    lowering,
    op_of_function,
    op_of_method,
    op_of_module,
    op_of_node,
)
from chop.ops.table import OPS

__all__ = [
    "OPS",
    "MaseType",
    "Op",
    "Order",
    "Reads",
    "lowering",
    "op_of_function",
    "op_of_method",
    "op_of_module",
    "op_of_node",
]
