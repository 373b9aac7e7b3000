"""The nodes of a graph that multiply, and the bits of what they multiply.

Running an operation on numbers of bits, in place of its operands, adds up what its products cost:
so a convolution has its stride, groups and padding, whose zeros have no bits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from chop.nn.quantized import QuantizedCall, QuantizedModule
from chop.numerics import Binary, Integer, IntegerScaled, NumberFormat, Ternary
from chop.ops.op import Op, op_of_node
from chop.passes.graph.analysis.flops.liveness import Liveness
from chop.passes.graph.analysis.flops.operands import formats_of_node

Bits = NDArray[np.int64]
SIGNIFICAND = 53


class UncountedError(Exception):
    """A node that cannot be counted; the message is the reason."""


def enclosed(magnitudes: Bits) -> Bits:
    """The bits from the first to the last one that is set, of integers below 2**53."""
    lowest = np.maximum(magnitudes & -magnitudes, 1)
    _, exponents = np.frexp((magnitudes // lowest).astype(np.float64))
    return np.asarray(exponents, np.int64)


def enclosed_bits(numbers: Tensor) -> Bits:
    """The bits from the first to the last one that is set in the magnitude of each number."""
    exact = numbers.detach().cpu().to(torch.float64).numpy()
    if not np.isfinite(exact).all():
        raise UncountedError("a constant is infinite or not a number")
    return enclosed(np.ldexp(np.abs(np.frexp(exact)[0]), SIGNIFICAND).astype(np.int64))


class Constant:
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
class Activation:
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
        """What makes integers of rounded numbers; the same for all elements of a channel."""
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
        return torch.from_numpy(enclosed(bits)).to(torch.float64).expand(self.row)

    def reads(self) -> Tensor:
        """One where a product with the factor depends on the other one: it may, everywhere."""
        return torch.ones(self.row, dtype=torch.float64)


Factor = Constant | Activation


@dataclass(frozen=True, eq=False)
class Product:
    """A node that multiplies two operands, by the names of its operation's arguments."""

    node: fx.Node
    factors: Mapping[str, Factor]
    operands: Callable[[tuple[Any, ...], Mapping[str, Any]], Mapping[str, Any]]
    """The operands of a call by name."""
    run: Callable[[Tensor, Tensor], Tensor]
    """The operation without rounding and bias, on any two tensors in place of the factors."""

    def see(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Take note of the operands of a call."""
        given = self.operands(args, kwargs)
        for name, factor in self.factors.items():
            factor.see(given[name])

    def count(self, liveness: Liveness) -> int:
        """What the results that somebody reads cost; marks what has to be read for them."""
        live = liveness.live[self.node][0].to(torch.float64)
        one, other = self.factors.values()
        found = int((self.run(one.bits(), other.bits()) * live).sum())
        both = [factor.reads() for factor in (one, other)]
        varying = [
            (factor.source, kept.requires_grad_())
            for factor, kept in zip((one, other), both, strict=True)
            if isinstance(factor, Activation)
        ]
        with torch.inference_mode(False), torch.enable_grad():
            grads = torch.autograd.grad(self.run(*both), [kept for _, kept in varying], live)
        for (source, _), grad in zip(varying, grads, strict=True):
            liveness.read(source, [grad != 0])
        return found


class Call:
    """One node as its operation is called: operands by name, whatever way it is written."""

    def __init__(self, node: fx.Node, op: Op, module: nn.Module | None, liveness: Liveness) -> None:
        self.node, self.op, self.liveness = node, op, liveness
        self.layer = None if isinstance(module, QuantizedCall) else module
        self.formats = formats_of_node(node, module)
        self.given = self.operands(node.args, node.kwargs)

    def operands(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, and the parameters of the layer."""
        if self.layer is None:
            bound = self.op.bind(args, kwargs)
            return {name: value for name, value in bound.items() if name != "config"}
        own = {name: getattr(self.layer, name) for name in self.op.params}
        names = [each.name for each in self.op.arguments if each.role not in self.op.params]
        return own | dict(zip(names, args, strict=False)) | dict(kwargs)

    def product(self) -> Product:
        """The node as a product of two factors."""
        roles = {each.name: each.role for each in self.op.arguments if each.role}
        names = [name for name, role in roles.items() if role != "bias"]
        varying = [name for name in names if self.varies(name)]
        factors: dict[str, Factor] = {}
        for name in names:
            fmt = in_binary(self.formats.get(str(roles[name])), name)
            if name in varying:
                points_of(fmt, name)
                assert fmt is not None
                source: fx.Node = self.given[name]
                row = self.liveness.results[source].shape
                factors[name] = Activation(source, fmt, row, self.axis(name, varying))
            else:
                check_constant(fmt, name, self.given[name])
                factors[name] = Constant(fmt)
        return Product(self.node, factors, self.operands, self.run)

    def varies(self, name: str) -> bool:
        """Whether an operand depends on the input of the network."""
        operand = self.given[name]
        return isinstance(operand, fx.Node) and operand in self.liveness.varying

    def axis(self, name: str, varying: list[str]) -> int | None:
        """The dimension of an operand whose indices are channels, which a sum runs over.

        In a matrix product of two activations, and of elements, each element of a row is a channel.
        """
        roles = {each.name: each.role for each in self.op.arguments}
        by_channel = len(varying) == 1 or self.op.has_weight_matrix
        return (self.op.summed or {}).get(str(roles[name])) if by_channel else None

    def run(self, one: Tensor, other: Tensor) -> Tensor:
        """The operation on two tensors in place of its factors."""
        if self.layer is not None:
            kind = self.op.module
            assert kind is not None
            twin = kind.__new__(kind)
            twin.__dict__ |= {**vars(self.layer), "weight": other, "bias": None}
            return kind.forward(twin, one)  # type: ignore[no-any-return]
        names = [each.name for each in self.op.arguments if each.role and each.role != "bias"]
        settings = fx.map_arg(
            {n: v for n, v in self.given.items() if n not in (*names, "bias", "inplace")},
            self.liveness.results.__getitem__,
        )
        assert self.op.function is not None
        return self.op.function(one, other, **settings)  # type: ignore[no-any-return]


def product_of(
    node: fx.Node, modules: Mapping[str, nn.Module], liveness: Liveness
) -> Product | None:
    """The product that a node computes of what varies; None if it multiplies nothing.

    A product of elements that is not quantised is arithmetic in floating point like any other, and
    adds nothing; a matrix product must be quantised to be counted.
    """
    if node not in liveness.varying or not node.op.startswith("call_"):
        return None
    op = op_of_node(node, modules)
    if op is None:
        raise UncountedError("it is no operation of the table, and may multiply")
    if not op.may_multiply:
        return None
    module = modules[str(node.target)] if node.op == "call_module" else None
    if not formats_of_node(node, module):
        if op.summed is not None and not op.sums_products:
            return None
        raise UncountedError("it is not quantised")
    if op.summed is None:
        raise UncountedError(f"no rule says which numbers {op.name} multiplies")
    refuse_own_code(op, module)
    return Call(node, op, module, liveness).product()


def refuse_own_code(op: Op, module: nn.Module | None) -> None:
    """Refuse a layer that does more than its operation."""
    if module is None or isinstance(module, QuantizedCall):
        return
    if module._forward_hooks or module._forward_pre_hooks:
        raise UncountedError("it has hooks, as pruned activations have")
    assert isinstance(module, QuantizedModule)
    if op.module is not None and module.base.forward is not op.module.forward:
        raise UncountedError(f"{module.base.__name__} has its own forward")


def in_binary(fmt: NumberFormat | None, name: str) -> NumberFormat | None:
    """The format, as fixed point where its scales are powers of two; raises where they are not."""
    if not isinstance(fmt, IntegerScaled):
        return fmt
    found = fmt.as_integer()
    if found is None:
        raise UncountedError(f"its {name} has a scale that is no power of two, or a zero point")
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
