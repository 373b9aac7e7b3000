"""The quantisers of a network that learn widths, and an estimate of its EBOPs.

Effective bit operations are the multiplications of a network, each times the bits of both numbers
that meet in it. Here they are estimated from the bits that weights and ranges need now, zeros at
the end of a code included, and come with their gradients. The exact count is of a frozen network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chop.nn.quantized import QuantizedCall, QuantizedModule
from chop.numerics.trained import (
    LN2,
    TrainedData,
    TrainedParameter,
    TrainedQuantizer,
    bit_length,
    sum_to_shape,
)
from chop.ops.op import call_of_function, call_of_module

UNROUNDED = 32.0
"""Bits of an operand that is not rounded."""


class Weight(NamedTuple):
    """A parameter that a quantiser rounds."""

    layer: QuantizedModule
    role: str
    quantizer: TrainedParameter

    @property
    def value(self) -> Tensor:
        """The parameter now; that of a pruned layer is worked out at each use."""
        found = self.layer._parameters.get(self.role)
        value: Tensor = getattr(self.layer, self.role) if found is None else found
        return value


@dataclass(frozen=True, eq=False)
class Parts:
    """The quantisers of a model that learn, with their layers."""

    layers: dict[str, QuantizedModule]
    weights: list[Weight]
    """Those that learn come first."""
    data: list[TrainedData]

    @classmethod
    def of(cls, model: nn.Module) -> "Parts":
        """The parts of a model, in the order of its modules."""
        layers = {
            name: layer
            for name, layer in model.named_modules()
            if isinstance(layer, QuantizedModule) and quantizers_of(layer)
        }
        weights: list[Weight] = []
        data: dict[TrainedData, None] = {}
        for layer in layers.values():
            for role, each in quantizers_of(layer).items():
                if isinstance(each, TrainedParameter):
                    weights.append(Weight(layer, role, each))
                elif isinstance(each, TrainedData):
                    data[each] = None
        return cls(layers, sorted(weights, key=lambda each: not each.quantizer.learns), [*data])

    @cached_property
    def learning(self) -> int:
        """The number of weights that learn."""
        return sum(weight.quantizer.learns for weight in self.weights)

    @cached_property
    def quantizers(self) -> list[TrainedQuantizer]:
        """Every quantiser once."""
        return [*dict.fromkeys([*(weight.quantizer for weight in self.weights), *self.data])]


def quantizers_of(layer: nn.Module) -> dict[str, TrainedQuantizer]:
    """The quantisers of a layer that learn widths, by role."""
    if not isinstance(layer, QuantizedModule) or layer.bypass:
        return {}
    found = layer.quantizers_by_role
    return {role: each for role, each in found.items() if isinstance(each, TrainedQuantizer)}


def learned_bits(model: nn.Module) -> list[nn.Parameter]:
    """The bits after the point that training changes."""
    found = {
        each.frac_width: None
        for layer in model.modules()
        for each in quantizers_of(layer).values()
        if isinstance(each.frac_width, nn.Parameter)
    }
    return [*found]


def learns_widths(model: nn.Module) -> bool:
    """Return whether a model has bits that training changes."""
    return bool(learned_bits(model))


class OperandPair(NamedTuple):
    """Two operands of a layer, and how often they meet in a multiplication for one row of input."""

    layer: str
    operands: tuple[str, ...]
    macs: float


def pairs_of_call(
    name: str, layer: QuantizedModule, call: tuple[Any, Any, Any], rows: int
) -> list[OperandPair]:
    """The pairs of operands that one call of a layer multiplies.

    Args:
        call: the arguments, those by keyword, and the result.
    """
    args, kwargs, result = call
    op = layer.op
    shapes = (
        call_of_function(op, args, kwargs, result)
        if isinstance(layer, QuantizedCall)
        else call_of_module(op, layer, args, result)
    )
    cost = op.cost(shapes)
    products = () if cost is None else cost.products
    return [OperandPair(name, operands, macs / rows) for macs, operands in products]


class Gradients(NamedTuple):
    """Gradients of the cost: by the bits of weights, by those of data, and by the weights."""

    weight_bits: list[Tensor]
    data_bits: list[Tensor]
    weights: list[Tensor]


class BitCost:
    """The cost of a network as it stands, summed over all that meets in it.

    Args:
        rounded: the weights of `parts`, rounded, and then the scales they were rounded with.
        magnitude: the share of a weight in the cost of its bits before the point.
    """

    def __init__(
        self, parts: Parts, rounded: Sequence[Tensor], scales: Sequence[Tensor], magnitude: float
    ) -> None:
        self.parts, self.rounded, self.scales, self.magnitude = parts, rounded, scales, magnitude
        self.total: Tensor | float = 0.0
        self.met: set[TrainedData] = set()
        self.place = {weight.quantizer: place for place, weight in enumerate(parts.weights)}
        self.data_bits = {each: each.magnitude_bits() for each in parts.data}
        self.of_data = {each: torch.zeros_like(bits) for each, bits in self.data_bits.items()}
        learning = parts.weights[: parts.learning]
        self.of_bits = [torch.zeros_like(each.quantizer.frac_width) for each in learning]
        self.of_weights = [torch.zeros_like(each) for each in rounded[: parts.learning]]

    def add(self, meeting: OperandPair) -> None:
        """Add the multiplications of two operands."""
        layer = self.parts.layers[meeting.layer]
        first, second = (layer.quantizers_by_role.get(role) for role in meeting.operands)
        self.met.update(each for each in (first, second) if isinstance(each, TrainedData))
        if isinstance(first, TrainedParameter):
            first, second = second, first
        if isinstance(second, TrainedParameter):
            self._add_weight(meeting, first, self.place[second], getattr(layer, "groups", 1))
            return
        pair: tuple[Any, Any] = first, second
        bits = [self.data_bits.get(each) for each in pair]
        means = [UNROUNDED if each is None else each.mean() for each in bits]
        self.total += meeting.macs * means[0] * means[1]
        for each, own, other in zip(pair, bits, reversed(means), strict=True):
            if own is not None:
                self.of_data[each] += meeting.macs / own.numel() * other * (own > 0)

    def _add_weight(self, meeting: OperandPair, data: Any, place: int, groups: int) -> None:
        rounded, scale = self.rounded[place], self.scales[place]
        uses = meeting.macs / rounded.numel()
        bits = self.data_bits.get(data)
        met = UNROUNDED if bits is None else spread_bits(bits, rounded.shape, groups)
        weight_bits = bit_length(rounded * scale).to(rounded.dtype)
        self.total += (weight_bits * met).sum() * uses
        if bits is not None:
            met_bits = gather_bits(weight_bits, bits.shape, groups)
            self.of_data[data] += met_bits.mul_(uses).mul_(bits > 0)
        if place < self.parts.learning:
            each = (rounded != 0) * met * uses
            self.of_bits[place] += sum_to_shape(each, self.of_bits[place].shape)
            size = torch.maximum(rounded.abs(), scale.reciprocal())
            per_unit = each.mul_(rounded.sign()).div_(size).mul_(self.magnitude / LN2)
            self.of_weights[place] += per_unit

    @property
    def complete(self) -> bool:
        """Return whether something meets, and a range is known of everything that does."""
        return bool(self.met) and all(each.seen for each in self.met)

    @property
    def gradients(self) -> Gradients:
        """The gradients of the cost."""
        return Gradients(self.of_bits, [*self.of_data.values()], self.of_weights)


def spread_bits(bits: Tensor, shape: torch.Size, groups: int) -> Tensor:
    """The bits of input channels, to be broadcast against a weight of this shape."""
    if bits.numel() == 1:
        return bits.reshape(())
    rest = (1,) * (len(shape) - 2)
    if groups == 1:
        return bits.reshape(1, -1, *rest)
    each = bits.reshape(groups, 1, -1).expand(groups, shape[0] // groups, shape[1])
    return each.reshape(shape[0], shape[1], *rest)


def gather_bits(weight_bits: Tensor, shape: torch.Size, groups: int) -> Tensor:
    """The bits of all weights that each input channel meets, in the shape of the channels."""
    if shape.numel() == 1:
        return weight_bits.sum().reshape(shape)
    outputs, inputs = weight_bits.shape[:2]
    by_group = weight_bits.reshape(groups, outputs // groups, inputs, -1)
    return by_group.sum((1, 3)).reshape(shape)
