"""The nodes of a graph that multiply, and the bits of their operands.

Running an operation on numbers of bits, in place of its operands, adds up what its products cost:
so a convolution has its stride, groups and padding, whose zeros have no bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from chop.ir.call import NodeCall
from chop.nn.quantized import QuantizedModule
from chop.numerics import Binary, Integer, IntegerScaled, NumberFormat, Ternary
from chop.ops.op import Op
from chop.passes.graph.analysis.flops.liveness import Liveness

Bits = NDArray[np.int64]
SIGNIFICAND = 53


class UncountedError(Exception):
    """A node that cannot be counted; the message is the reason."""


def enclosed_width(magnitudes: Bits) -> Bits:
    """The bits from the first to the last one that is set, of integers below 2**53."""
    lowest = np.maximum(magnitudes & -magnitudes, 1)
    _, exponents = np.frexp((magnitudes // lowest).astype(np.float64))
    return np.asarray(exponents, np.int64)


def enclosed_bits(numbers: Tensor) -> Bits:
    """The bits from the first to the last one that is set in the magnitude of each number."""
    exact = numbers.detach().cpu().to(torch.float64).numpy()
    if not np.isfinite(exact).all():
        raise UncountedError("a constant is infinite or not a number")
    return enclosed_width(np.ldexp(np.abs(np.frexp(exact)[0]), SIGNIFICAND).astype(np.int64))


class ConstantFactor:
    """A factor that is the same for every row."""

    source = None

    def __init__(self, fmt: NumberFormat | None) -> None:
        self.fmt = fmt
        self._bits: Tensor | None = None

    def see(self, value: Any) -> None:
        """Take note of the value, which the node is about to round."""
        if self._bits is None:
            numbers = torch.as_tensor(value)
            rounded = numbers if self.fmt is None else self.fmt(numbers.detach())
            self._bits = torch.from_numpy(enclosed_bits(rounded)).to(torch.float64)

    def bits(self) -> Tensor:
        """The bits that the non-zero bits of each number enclose."""
        assert self._bits is not None
        return self._bits

    def reads(self) -> Tensor:
        """One where a product with the factor depends on the other one."""
        return (self.bits() > 0).to(torch.float64)


@dataclass(eq=False)
class VaryingFactor:
    """A factor that depends on the input of the network.

    Attributes:
        row: its shape in a batch of one row.
        axis: the dimension whose indices are channels; None if each element of a row is one.
    """

    source: fx.Node
    fmt: NumberFormat
    row: torch.Size
    axis: int | None
    seen: Bits | None = None
    """Every bit that was set in the code of an element of a row."""

    @cached_property
    def scale(self) -> Tensor | float:
        """The factor that makes integers of rounded numbers, one for each channel."""
        points = points_of(self.fmt, "data")
        if points.size == 1:
            return float(2.0 ** points.item())
        points = np.broadcast_to(points, self.row)
        if self.axis is not None:
            points = points.max(axis=self._others, keepdims=True)
        return torch.from_numpy(np.ldexp(1.0, points))

    @property
    def _others(self) -> tuple[int, ...]:
        """The dimensions in which elements of one channel differ."""
        assert self.axis is not None
        return tuple(dim for dim in range(len(self.row)) if dim != self.axis % len(self.row))

    def see(self, value: Tensor) -> None:
        """Take note of values, which the node is about to round."""
        scale = self.scale.to(value.device) if isinstance(self.scale, Tensor) else self.scale
        # Integer tensors are not rounded.
        numbers = self.fmt(value) if value.is_floating_point() else value.double()
        codes = numbers.mul(scale).abs_()
        if not codes.max() < 2**SIGNIFICAND:
            raise UncountedError("an operand is not a number in some row, or too wide to count")
        if value.shape[1:] != self.row[1:] or value.shape[0] % self.row[0]:
            raise UncountedError("the shape of an operand differs between batches")
        small = self.fmt.element_bits < 32 and isinstance(self.scale, float)
        integers = codes.to(torch.int32 if small else torch.int64).cpu().numpy()
        found = np.bitwise_or.reduce(integers.reshape(-1, *self.row), axis=0).astype(np.int64)
        self.seen = found if self.seen is None else self.seen | found

    def bits(self) -> Tensor:
        """The bits of the channel that each element of a row belongs to."""
        assert self.seen is not None
        bits = self.seen
        if self.axis is not None:
            bits = np.bitwise_or.reduce(bits, axis=self._others, keepdims=True)
        return torch.from_numpy(enclosed_width(bits)).to(torch.float64).expand(self.row)

    def reads(self) -> Tensor:
        """One where a product with the factor depends on the other one: it may, everywhere."""
        return torch.ones(self.row, dtype=torch.float64)


Factor = ConstantFactor | VaryingFactor


@dataclass(frozen=True, eq=False)
class CountedProduct:
    """A node that multiplies two operands, by the names of its operation's arguments."""

    call: NodeCall
    factors: Mapping[str, Factor]
    results: Mapping[Any, Any]
    """The results of the other nodes for one row."""

    def see(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Take note of the operands of a call."""
        given = own_parameters(self.call) | self.call.bind(args, kwargs)
        for name, factor in self.factors.items():
            factor.see(given[name])

    def run(self, one: Tensor, other: Tensor) -> Tensor:
        """The operation without rounding and bias, on any two tensors in place of the factors."""
        op = self.call.op
        assert op is not None
        if self.call.layer is not None:
            kind = op.module
            assert kind is not None
            twin = kind.__new__(kind)
            twin.__dict__ |= {**vars(self.call.layer), "weight": other, "bias": None}
            return kind.forward(twin, one)  # type: ignore[no-any-return]
        skipped = (*self.factors, "bias", "inplace")
        settings = {n: v for n, v in self.call.arguments.items() if n not in skipped}
        assert op.function is not None
        return op.function(one, other, **fx.map_arg(settings, self.results.__getitem__))  # type: ignore[no-any-return]

    def count(self, liveness: Liveness) -> int:
        """The cost of the results that are read; marks what has to be read for them."""
        live = liveness.live[self.call.node][0].to(torch.float64)
        one, other = self.factors.values()
        found = int((self.run(one.bits(), other.bits()) * live).sum())
        both = [factor.reads() for factor in (one, other)]
        varying = [
            (factor.source, kept.requires_grad_())
            for factor, kept in zip((one, other), both, strict=True)
            if isinstance(factor, VaryingFactor)
        ]
        with torch.inference_mode(False), torch.enable_grad():
            grads = torch.autograd.grad(self.run(*both), [kept for _, kept in varying], live)
        for (source, _), grad in zip(varying, grads, strict=True):
            liveness.read(source, [grad != 0])
        return found


def product_of(call: NodeCall, liveness: Liveness) -> CountedProduct | None:
    """The product that a node computes of what varies; None if it multiplies nothing.

    A product of elements that is not quantised is arithmetic in floating point like any other, and
    adds nothing; a matrix product must be quantised to be counted.
    """
    node, op = call.node, call.op
    if node not in liveness.varying or not node.op.startswith("call_"):
        return None
    if op is None:
        raise UncountedError("it is not an operation of the table, and may multiply")
    if not op.may_multiply:
        return None
    if not call.formats:
        if op.summed is not None and not op.sums_products:
            return None
        raise UncountedError("it is not quantised")
    if op.summed is None:
        raise UncountedError(f"no rule says which numbers {op.name} multiplies")
    refuse_other_code(op, call.layer)
    return CountedProduct(call, factors_of(call, op, liveness), liveness.results)


def factors_of(call: NodeCall, op: Op, liveness: Liveness) -> dict[str, Factor]:
    """The two operands that a node multiplies, by the names of its arguments."""
    given = own_parameters(call) | call.arguments
    names = [name for name, role in call.roles.items() if role and role != "bias"]
    varying = [name for name in names if given[name] in liveness.varying]
    # In a matrix product of two activations, and of elements, each element of a row is a channel.
    by_channel = len(varying) == 1 or op.has_weight_matrix
    factors: dict[str, Factor] = {}
    for name in names:
        role = str(call.roles[name])
        fmt = in_powers_of_two(call.formats.get(role), name)
        if name in varying:
            points_of(fmt, name)
            assert fmt is not None
            row = liveness.results[given[name]].shape
            axis = (op.summed or {}).get(role) if by_channel else None
            factors[name] = VaryingFactor(given[name], fmt, row, axis)
        else:
            check_constant(fmt, name, given[name])
            factors[name] = ConstantFactor(fmt)
    return factors


def own_parameters(call: NodeCall) -> dict[str, Any]:
    """The parameters of a layer, by the names of its operation's arguments."""
    if call.op is None or call.layer is None:
        return {}
    return {name: getattr(call.layer, name) for name in call.op.params}


def refuse_other_code(op: Op, layer: nn.Module | None) -> None:
    """Refuse a layer that does more than its operation."""
    if layer is None:
        return
    if layer._forward_hooks or layer._forward_pre_hooks:
        raise UncountedError("it has hooks, as pruned activations have")
    assert isinstance(layer, QuantizedModule)
    if op.module is not None and layer.base.forward is not op.module.forward:
        raise UncountedError(f"{layer.base.__name__} has its own forward")


def in_powers_of_two(fmt: NumberFormat | None, name: str) -> NumberFormat | None:
    """The format, as fixed point where its scales are powers of two; raises where they are not."""
    if not isinstance(fmt, IntegerScaled):
        return fmt
    found = fmt.as_integer()
    if found is None:
        raise UncountedError(f"its {name} has a scale that is not a power of two, or a zero point")
    return found


def points_of(fmt: NumberFormat | None, name: str) -> Bits:
    """The binary points of a format for data; raises if its numbers have none."""
    refuse_float(fmt, name)
    if isinstance(fmt, Integer):
        points, low, high = fmt.limits
        return np.where(low < high, points, points.min())  # of a width of 0 it means nothing
    if isinstance(fmt, Binary | Ternary):
        return np.zeros((), np.int64)
    raise UncountedError(
        f"the numbers of its {name} ({type(fmt).__name__}) are no integers times one power of two"
    )


def check_constant(fmt: NumberFormat | None, name: str, value: Any) -> None:
    """Raise if a constant is not rounded; a number in the code of a network stays as it is."""
    if not isinstance(value, int | float):
        refuse_float(fmt, name)


def refuse_float(fmt: NumberFormat | None, name: str) -> None:
    """Raise if an operand is in floating point, always another, or has a scale."""
    if fmt is None:
        raise UncountedError(f"its {name} is not rounded")
    if getattr(fmt, "stochastic", False):
        raise UncountedError(f"its {name} is rounded at random")
    if isinstance(fmt, Binary | Ternary) and fmt.scaled:
        raise UncountedError(f"its {name} has a scale that need be no power of two")
