"""The work of a call: products of pairs of operands, and whatever else is computed."""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from torch import nn

from chop.ops.cost import Call
from chop.ops.op import Op


class Product(NamedTuple):
    """Multiply-accumulates in which the same two operands meet.

    An operand is a role or a parameter; any other name is something that the operation makes
    itself, such as the scores of attention, which is not rounded.
    """

    macs: int
    operands: tuple[str, ...]


class Work(NamedTuple):
    """What one call computes."""

    products: tuple[Product, ...] = ()
    other_flops: int = 0

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return sum(product.macs for product in self.products)

    @property
    def flops(self) -> int:
        """Floating-point operations, two for each MAC."""
        return 2 * self.macs + self.other_flops


def work_of(op: Op, call: Call) -> Work | None:
    """The work of a call; None if the operation has no rule that fits."""
    if op.name in SEVERAL_PRODUCTS:
        return SEVERAL_PRODUCTS[op.name](call)
    cost = op.cost(call)
    if cost is None:
        return None
    products = (Product(cost.macs, cost.operands),) if cost.macs else ()
    return Work(products, cost.flops - 2 * cost.macs)


def attention(call: Call) -> Work:
    """Scores, scaled, masked if there is a mask, their softmax, and the weighted sum of values."""
    query, key, value = call.inputs[:3]
    scores = prod(call.output[:-1]) * key[-2]
    masked = len(call.inputs) > 3 or bool(call.attributes.get("is_causal"))
    products = (
        Product(scores * query[-1], ("query", "key")),
        Product(scores * value[-1], ("scores", "value")),
    )
    return Work(products, (SCALE_AND_SOFTMAX + masked) * scores)


def multihead_attention(call: Call) -> Work | None:
    """Attention between projections; only the module is counted, not its function.

    Averaging the weights over the heads, which `need_weights` asks for, is left aside.
    """
    layer = call.module
    if not isinstance(layer, nn.MultiheadAttention):
        return None
    key = call.inputs[1]
    keys = key[1] if layer.batch_first and len(key) == 3 else key[0]
    keys += (layer.bias_k is not None) + layer.add_zero_attn
    rows = prod(call.inputs[0][:-1])
    scores = rows * keys * layer.num_heads
    products = (
        *projections(call, layer),
        Product(scores * layer.head_dim, ("projected query", "projected key")),
        Product(scores * layer.head_dim, ("scores", "projected value")),
        Product(rows * layer.embed_dim**2, ("heads", "out_proj.weight")),
    )
    masked = len(call.inputs) > 3
    return Work(products, (SCALE_AND_SOFTMAX + masked) * scores)


def projections(call: Call, layer: nn.MultiheadAttention) -> list[Product]:
    """The products that make queries, keys and values of the inputs."""
    own = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    weights = own if layer.in_proj_weight is None else ("in_proj_weight",) * 3
    return [
        Product(prod(shape) * layer.embed_dim, (role, weight))
        for role, weight, shape in zip(ROLES, weights, call.inputs[:3], strict=True)
    ]


ROLES = ("query", "key", "value")
SCALE_AND_SOFTMAX = 6  # for each score: one to scale it, five as any softmax
SEVERAL_PRODUCTS: dict[str, Callable[[Call], Work | None]] = {
    "scaled_dot_product_attention": attention,
    "multihead_attention": multihead_attention,
}
"""Operations in which more than one pair of operands meets, so that one `Cost` cannot say it."""
