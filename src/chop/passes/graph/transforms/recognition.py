"""Operations that networks write out as several others, made one node again.

In pieces, each piece would be rounded by itself: the square root of a mean of squares has not
enough bits then. As one operation they have tables, and products see rows of a batch one by one.
"""

from collections.abc import Mapping
from math import isclose
from typing import Any

import torch.nn.functional as F
from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ops.op import Op, op_of_node
from chop.passes.graph.transforms.folding import record_again
from chop.passes.graph.transforms.fusion import recorded_result_shape

X, EPS, SQUARE = "X", "EPS", "SQUARE"
Pattern = Any
"""An operation and what it reads, a number, or a name for whatever stands there."""
ROOT_MEAN_SQUARE: Pattern = (
    "mul", X, ("rsqrt", ("add", ("mean", (SQUARE, X), "DIM", True), EPS))
)  # fmt: skip
CUBIC = ("add", X, ("mul", ("pow", X, 3.0), 0.044715))
GELU: Pattern = (
    "mul", ("mul", X, 0.5), ("add", ("tanh", ("mul", CUBIC, 0.7978845608028654)), 1.0)
)  # fmt: skip
EITHER_WAY = ("add", "mul")


def recognise(graph: MaseGraph) -> list[str]:
    """Make one node of each operation that is written out; return the names of the new nodes."""
    found = []
    for node in list(graph.nodes):
        new = rms_norm_of(node) or gelu_of(node) or linear_of(node)
        if new is not None:
            new.meta = dict(node.meta)  # shapes, until they are recorded again
            node.replace_all_uses_with(new)
            found.append(new.name)
    if found:
        graph.fx_graph.eliminate_dead_code()
        graph.fx_graph.lint()
        graph.model.recompile()
        record_again(graph)
    return found


def rms_norm_of(node: fx.Node) -> fx.Node | None:
    """Return a node that divides by the root mean square, if that is what a node does.

    A weight that the result is multiplied by is taken in, and the product is replaced then.
    """
    if (weight := weight_of_product(node)) is not None:
        inner = next(each for each in node.all_input_nodes if each is not weight)
        found = match(ROOT_MEAN_SQUARE, as_it_was(inner), {})
    else:
        found = match(ROOT_MEAN_SQUARE, node, {})
    if found is None or not isinstance(found[X], fx.Node):
        return None
    shape = recorded_result_shape(found[X])
    if shape is None or found["DIM"] not in (-1, [-1], (-1,), len(shape) - 1):
        return None
    with node.graph.inserting_before(node):
        args = (found[X], (shape[-1],), weight, found[EPS])
        return node.graph.call_function(F.rms_norm, args)


def weight_of_product(node: fx.Node) -> fx.Node | None:
    """Return the parameter that a product multiplies by, if there is one."""
    is_product = (op := function_op(node)) is not None and op.name == "mul"
    reads = node.all_input_nodes
    constants = [each for each in reads if each.op == "get_attr"]
    return constants[0] if is_product and len(constants) == 1 and len(reads) == 2 else None


def gelu_of(node: fx.Node) -> fx.Node | None:
    """Return GELU by its formula with tanh, if that is what a node computes."""
    found = match(GELU, node, {})
    if found is None or not isinstance(found[X], fx.Node):
        return None
    with node.graph.inserting_before(node):
        return node.graph.call_function(F.gelu, (found[X],), {"approximate": "tanh"})


def linear_of(node: fx.Node) -> fx.Node | None:
    """Return an affine map of the last dimension in place of one of all places of a batch.

    Rows are joined before it and parted after it, which the new node does not need.
    """
    op = function_op(node)
    if op is None or op.name != "addmm" or node.kwargs or len(node.args) != 3:
        return None
    bias, flat, weight = node.args
    if not isinstance(flat, fx.Node) or not isinstance(weight, fx.Node):
        return None
    joins, apart = function_op(flat), [function_op(user) for user in node.users]
    shape = recorded_result_shape(flat.all_input_nodes[0]) if flat.all_input_nodes else None
    moves = ("view", "reshape")
    fits = shape is not None and tuple(recorded_result_shape(flat) or ())[-1:] == tuple(shape)[-1:]
    if joins is None or joins.name not in moves or not fits:
        return None
    if not all(each is not None and each.name in moves for each in apart):
        return None
    with node.graph.inserting_before(node):
        turned = node.graph.call_method("t", (weight,))
        return node.graph.call_function(F.linear, (flat.all_input_nodes[0], turned, bias))


def function_op(node: fx.Node) -> Op | None:
    """Return the operation of a function or method node."""
    return None if node.op == "call_module" else op_of_node(node, {})


def as_it_was(value: Any) -> Any:
    """Return a node before its type was changed to one that is as wide, or what is not a node."""
    while isinstance(value, fx.Node) and (op := function_op(value)) is not None and op.name == "to":
        value = value.all_input_nodes[0]
    return value


def match(pattern: Pattern, value: Any, found: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what stands for the names of a pattern; None if a value is something else."""
    value = as_it_was(value)
    if isinstance(pattern, tuple):
        return match_operation(pattern, value, found)
    if isinstance(pattern, str):
        same = pattern not in found or found[pattern] is value
        return {**found, pattern: value} if same else None
    alike = isinstance(value, int | float) and isclose(value, pattern, rel_tol=1e-6)
    return dict(found) if alike else None


def match_operation(
    pattern: tuple[Any, ...], value: Any, found: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the same for an operation with what it reads, in either order where that is equal."""
    if pattern[0] == SQUARE:
        squares = (("pow", X, 2), ("mul", X, X), ("square", X))
        hits = (match(each, value, found) for each in squares)
        return next((each for each in hits if each is not None), None)
    op = function_op(value) if isinstance(value, fx.Node) else None
    if op is None or op.name != pattern[0]:
        return None
    parts = [*value.args, *value.kwargs.values()]
    for order in [parts, parts[::-1]] if op.name in EITHER_WAY else [parts]:
        hit: dict[str, Any] | None = dict(found)
        if len(order) != len(pattern) - 1:
            return None
        for part, each in zip(pattern[1:], order, strict=True):
            hit = None if hit is None else match(part, each, hit)
        if hit is not None:
            return hit
    return None
