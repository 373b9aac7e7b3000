"""Nodes of the graph of gradients in which widths learn: all weights, or a chain of layers.

`LearnedWidths` uses them; what it says of a step (is the cost due, its gradients) they ask it.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from chop.nn.bit_cost import Parts
from chop.nn.chain import Link, go_back_through, go_through, trainable_chain
from chop.numerics.trained import LN2, TrainedData, half, sum_to_shape

if TYPE_CHECKING:
    from chop.nn.learned import LearnedWidths


class RoundAll(torch.autograd.Function):
    """All weights rounded, the scales of all data, and the cost."""

    @staticmethod
    def forward(ctx: Any, widths: "LearnedWidths", *tensors: Tensor) -> tuple[Tensor, ...]:
        parts = widths.parts
        count = len(parts.weights)
        weights, bits = list(tensors[:count]), list(tensors[count:])
        scales = torch._foreach_round(bits)
        for scale in scales:
            scale.exp2_()
        rounded = half_up(weights, scales[:count])
        if widths.due:
            widths.count(rounded, scales[:count])
        learning = parts.learning
        ctx.sizes, ctx.gradients = (count, learning), widths.gradients
        ctx.shapes = [each.shape for each in bits[:learning]]
        ctx.save_for_backward(*weights[:learning], *rounded[:learning])
        return (*rounded, *scales[count:], widths.value.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        count, learning = ctx.sizes
        saved = ctx.saved_tensors
        of_weights, of_scales, of_cost = list(grads[:count]), list(grads[count:-1]), grads[-1]
        of_bits: list[Tensor] = []
        if learning:
            products = torch._foreach_sub(saved[:learning], saved[learning:])
            torch._foreach_mul_(products, of_weights[:learning])
            of_bits = [*map(sum_to_shape, products, ctx.shapes)]
            torch._foreach_mul_(of_bits, LN2)
        of_data = list(torch._foreach_mul(of_scales, LN2)) if of_scales else []
        if ctx.gradients is not None:
            weight_bits, data_bits, weights = ctx.gradients
            of_bits = with_multiple(of_bits, weight_bits, of_cost)
            of_data = with_multiple(of_data, data_bits, of_cost)
            of_weights[:learning] = with_multiple(of_weights[:learning], weights, of_cost)
        fixed = [None] * (count - learning)
        return (None, *of_weights, *of_bits, *fixed, *of_data)


def half_up(weights: list[Tensor], scales: list[Tensor] | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Each weight rounded to multiples of the reciprocal of its scale."""
    if not weights:
        return ()
    halves = [half(weight.dtype, weight.device) for weight in weights]
    rounded = torch._foreach_addcmul(halves, weights, scales)
    torch._foreach_floor_(rounded)
    torch._foreach_div_(rounded, scales)
    return rounded


def with_multiple(sums: list[Tensor], terms: list[Tensor], factor: Tensor) -> list[Tensor]:
    """To each sum its term added, times a factor that is a tensor."""
    if not sums:
        return sums
    if factor.is_cpu:
        return list(torch._foreach_add(sums, terms, alpha=float(factor)))
    # Reading the factor would wait for the device.
    return list(torch._foreach_add(sums, torch._foreach_mul(terms, factor)))


class InnerContext:
    """Tensors that one node keeps for another, which calls its functions."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors."""
        self.saved_tensors = tensors


class LearnedChain(torch.autograd.Function):
    """The scores of a chain of linear layers whose widths learn, and the cost."""

    @staticmethod
    def forward(
        ctx: Any, widths: "LearnedWidths", x: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        chain = ctx.chain = widths.chain
        ctx.inner = InnerContext()
        *found, cost = RoundAll.forward(ctx.inner, widths, *tensors)
        scales = found[len(widths.parts.weights) :]
        parameters = [(found[w], None if b is None else found[b]) for w, b in chain.parameters]
        rounds = [
            partial(widths.round_data, *both) for both in zip(chain.data, scales, strict=True)
        ]
        scores, ctx.kept = go_through(chain.links, x, parameters, rounds)
        return scores, cost

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        chain = ctx.chain
        of_weights: dict[int, Tensor] = {}
        of_scales: list[Tensor] = []
        places = reversed(range(len(chain.links)))
        back = go_back_through(chain.links, ctx.kept, grads[0], whole=True)
        for place, (weight, bias, data) in zip(places, back, strict=True):
            assert data is not None
            at, bias_at = chain.parameters[place]
            of_weights[at] = weight
            if bias_at is not None:
                of_weights[bias_at] = bias
            given, rounded, _ = ctx.kept[place]
            error = torch.sub(given, rounded, out=rounded).mul_(data)  # it is not read again
            of_scales.insert(0, sum_to_shape(error, chain.data[place].frac_width.shape))
        ctx.kept = None
        ordered = [of_weights[place] for place in range(len(of_weights))]
        _, *found = RoundAll.backward(ctx.inner, *ordered, *of_scales, grads[1])
        return (None, data if ctx.needs_input_grad[1] else None, *found)


class LearningChain(NamedTuple):
    """The layers of a network that is a chain, and where its parts have what they round.

    Attributes:
        parameters: the places of weight and bias of each layer among the weights of the parts.
        data: what rounds the data of each layer.
    """

    links: list[Link]
    parameters: list[tuple[int, int | None]]
    data: list[TrainedData]

    @classmethod
    def of(cls, model: nn.Module, parts: Parts) -> "LearningChain":
        """Return the chain that a model is; without links if it is none or parts do not learn."""
        links = trainable_chain(model)
        place = {(each.layer, each.role): n for n, each in enumerate(parts.weights)}
        found = [(place.get((layer, "weight")), place.get((layer, "bias"))) for layer, _ in links]
        rounded = sum(at is not None for both in found for at in both)
        wanted = sum(
            value is not None for each in links for value in each.layer._parameters.values()
        )
        known = [(at, bias_at) for at, bias_at in found if at is not None]
        fits = rounded == wanted and parts.data == [each.layer.x_quantizer for each in links]
        return cls(links, known, parts.data) if fits else cls([], [], [])
