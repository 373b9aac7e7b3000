"""A chain of quantised linear layers with ReLUs between them, trained as one node of gradients.

The numbers are those that the layers give one after the other, bit for bit. What is saved is what
torch and Python spend on each node, which is most of a step of a small network.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn

from chop.nn.quantized import QuantizedModule
from chop.numerics import Integer
from chop.numerics.trained import half
from chop.ops.op import op_of_node

Round = Callable[[Tensor], Tensor]
NARROW = 22
"""Bits of codes whose halves float32 holds, too."""


class Link(NamedTuple):
    """A layer of a chain, and whether what it reads goes through a ReLU first."""

    layer: Any
    rectifies: bool


class LinkProduct(NamedTuple):
    """The operands of a layer as they were multiplied, and what it was given."""

    given: Tensor
    rounded: Tensor
    weight: Tensor


def linear_chain(model: nn.Module) -> list[Link] | None:
    """Return the layers of a traced network that is a chain of quantised linear layers, or None.

    Rows may be flattened before the first layer; the last one gives the scores.
    """
    graph = getattr(model, "graph", None)
    nodes = list(graph.nodes) if isinstance(graph, fx.Graph) else []
    if len(nodes) < 2 or nodes[0].op != "placeholder" or nodes[-1].args != (nodes[-2],):
        return None
    links: list[Link] = []
    rectified = False
    for before, node in pairwise(nodes[:-1]):
        name, layer = named_step(node, model) if node.all_input_nodes == [before] else ("", None)
        if name == "relu" and links:
            rectified = True
        elif name == "linear" and isinstance(layer, QuantizedModule):
            links.append(Link(layer, rectified))
            rectified = False
        elif name != "flatten" or links:
            return None
    is_once = len({id(link.layer) for link in links}) == len(links)
    return links if links and is_once and not rectified else None


def named_step(node: fx.Node, model: nn.Module) -> tuple[str, nn.Module | None]:
    """Return the name of the operation of a node, if it is one, and its layer, if it calls one."""
    layer = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    op = op_of_node(node, {} if layer is None else {str(node.target): layer})
    return ("" if op is None else op.name), layer


def trainable_chain(model: nn.Module) -> list[Link]:
    """Return the links of a chain that can be trained as one node; none if they cannot.

    All must be plain: nothing watches a layer, no parameter is worked out, no result is rounded.
    """
    links = linear_chain(model) or []
    is_plain = all(
        set(layer.quant.operands) <= {"data_in", "weight", "bias"}
        and not layer.bypass
        and {"weight", "bias"} <= layer._parameters.keys()
        for layer, _ in links
    )
    return links if is_plain else []


def can_take(links: Sequence[Link], x: Any) -> bool:
    """Return whether a chain computes these rows as one node now."""
    return (
        bool(links)
        and isinstance(x, Tensor)
        and x.dtype == links[0].layer.weight.dtype
        and x.dim() == 2
        and not torch.is_autocast_enabled(x.device.type)
        and not torch.compiler.is_compiling()
        and not any(layer._forward_hooks or layer._forward_pre_hooks for layer, _ in links)
    )


def go_through(
    links: Sequence[Link],
    x: Tensor,
    parameters: Sequence[tuple[Tensor, Tensor | None]],
    rounds: Sequence[Round],
) -> tuple[Tensor, list[LinkProduct]]:
    """Return the scores, and what their gradients need.

    Args:
        parameters: weight and bias of each layer, rounded.
        rounds: what rounds the data of each layer.
    """
    kept = []
    for link, (weight, bias), round_data in zip(links, parameters, rounds, strict=True):
        given = x.relu_() if link.rectifies else x  # sums that nobody else has
        rounded = round_data(given)
        kept.append(LinkProduct(given, rounded, weight))
        across = weight.t()
        x = rounded.mm(across) if bias is None else torch.addmm(bias, rounded, across)
    return x, kept


def go_back_through(
    links: Sequence[Link], kept: Sequence[LinkProduct], grad: Tensor, *, whole: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Yield the gradients of weight, bias and rounded data of each layer, the last layer first.

    Those of data are used up when the next ones are asked for.

    Args:
        whole: whether those of the data of the first layer are wanted.
    """
    for place in reversed(range(len(links))):
        link, product = links[place], kept[place]
        wanted = grad.mm(product.weight) if place or whole else None
        yield grad.t().mm(product.rounded), grad.sum(0), wanted
        if wanted is not None and link.rectifies:
            torch.ops.aten.threshold_backward(wanted, product.given, 0, grad_input=wanted)
        grad = grad if wanted is None else wanted


class SpreadFixedPoint(NamedTuple):
    """Fixed point that saturates and rounds half-way cases up, for a tensor of each element."""

    per_half: Tensor
    """Half units for each one: their whole part tells which side of half-way a number is on."""
    low: Tensor
    high: Tensor
    unit: Tensor

    @classmethod
    def of(cls, fmt: Any, shape: Sequence[int], like: Tensor) -> "SpreadFixedPoint":
        """Return the fixed point of a format, spread over a shape."""
        frac, low, high = (np.broadcast_to(each, shape) for each in fmt.limits)
        numbers = (np.exp2(frac + 1.0), low, high, np.exp2(-frac.astype(np.float64)))
        return cls(*(torch.tensor(each, dtype=like.dtype, device=like.device) for each in numbers))

    def round_exactly(self, x: Tensor) -> Tensor:
        """Return the nearest numbers of the grid, exactly, in a new tensor."""
        halves = torch.mul(x, self.per_half).floor_()
        codes = torch.add(half(x.dtype, x.device), halves, alpha=0.5).floor_()
        return codes.clamp_(self.low, self.high).mul_(self.unit)


class HeldFormats:
    """The formats of a chain, which stay while it is trained."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = links
        roles = [(link.layer, role) for link in links for role in ("weight", "bias")]
        given = [(layer, role, getattr(layer, role)) for layer, role in roles]
        known = [each for each in given if each[2] is not None]
        self.parameters: list[Tensor] = [value for _, _, value in known]
        self.sizes = [value.numel() for value in self.parameters]
        spread = [
            SpreadFixedPoint.of(layer.quant.operands[role], v.shape, v) for layer, role, v in known
        ]
        self.fixed = SpreadFixedPoint(
            *(torch.cat([each.flatten() for each in kind]) for kind in zip(*spread, strict=True))
        )
        self.rounds = [
            SpreadFixedPoint.of(
                layer.quant.operands["data_in"], (layer.in_features,), layer.weight
            ).round_exactly
            for layer, _ in links
        ]

    def round_parameters(self, tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor | None]]:
        """Return weight and bias of each layer, rounded."""
        flat = self.fixed.round_exactly(torch.cat([each.reshape(-1) for each in tensors]))
        parts = zip(torch.split(flat, self.sizes), tensors, strict=True)
        found = iter([part.view(each.shape) for part, each in parts])
        return [
            (next(found), None if link.layer.bias is None else next(found)) for link in self.links
        ]


class HeldChain(torch.autograd.Function):
    """The scores of a chain in formats that stay, whose gradients pass straight through."""

    @staticmethod
    def forward(ctx: Any, formats: HeldFormats, x: Tensor, *tensors: Tensor) -> Tensor:
        parameters = formats.round_parameters(tensors)
        scores, ctx.kept = go_through(formats.links, x, parameters, formats.rounds)
        ctx.links = formats.links
        return scores

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        whole = ctx.needs_input_grad[1]
        back = list(go_back_through(ctx.links, ctx.kept, grads[0], whole=whole))
        found: list[Tensor] = []
        for link, (weight, bias, _) in zip(ctx.links, reversed(back), strict=True):
            found += [weight] if link.layer.bias is None else [weight, bias]
        return (None, back[-1][2], *found)


@contextmanager
def held_chain(model: nn.Module) -> Iterator[bool]:
    """Train a network as one node, if it is a chain in fixed point like that of frozen networks."""
    links = trainable_chain(model)
    formats = HeldFormats(links) if links and all(map(_is_held, links)) else None

    def forward(x: Tensor) -> Any:
        if formats is None or not (model.training and can_take(links, x)):
            return type(model).forward(model, x)
        return HeldChain.apply(formats, x, *formats.parameters)  # type: ignore[no-untyped-call]

    if formats is not None:
        model.__dict__["forward"] = forward
    try:
        yield formats is not None
    finally:
        model.__dict__.pop("forward", None)


def _is_held(link: Link) -> bool:
    """Return whether all operands are in narrow fixed point that rounds half-way cases up."""
    formats = link.layer.quant.operands
    wanted = {"data_in", "weight"} | ({"bias"} if link.layer.bias is not None else set())
    return wanted <= formats.keys() and all(
        isinstance(each, Integer)
        and (each.rounding, each.overflow) == ("half_up", "saturate")
        and int(each.arrays[0].max()) <= NARROW
        for each in formats.values()
    )
