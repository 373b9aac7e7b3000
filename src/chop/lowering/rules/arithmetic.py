"""Products, sums, pooling and the other rules that add steps of arithmetic."""

from dataclasses import replace
from math import log2, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.lowering import program as steps
from chop.lowering.builder import LARGEST_TABLE
from chop.lowering.dyadic import dyadic
from chop.lowering.formats import LoweringError
from chop.lowering.from_graph import SymbolicCall
from chop.lowering.program import Codes, Numbers, Shape, Value
from chop.lowering.ranges import along, codes, shift_codes
from chop.lowering.rules.functions import entries, index_of_input, of_each_code, rank_codes
from chop.lowering.rules.moves import expand, in_one_unit
from chop.lowering.symbols import Exact, Float, Joined, Raw, Symbol, is_symbolic
from chop.ops.op import lowering

SMALL_BITS = {torch.float32: 8, torch.float64: 30}
"""Numbers in the code of a network that take no more are constants; others make tables."""
CHUNK = 4096
FINER = 8
"""Bits by which sums are finer where their bias is not a multiple of their scale."""


@lowering("linear")
def lower_linear(call: SymbolicCall) -> Symbol:
    """Products with a constant matrix."""
    source = call.value(call.operands["input"])
    weight = call.parameter("weight")
    assert weight is not None
    scale = call.scale_of("weight")
    if source.is_scaled or (scale != 1).any():
        source = call.builder.align(call.name, source)
        matrix, bias, point, whole = scaled_sums(call, source, weight, scale)
        own = {"weight": matrix, "bias": bias, "scale": scale}
        shape = (*source.shape[:-1], len(scale))
        sums = call.emit(steps.Product, [source], shape, point, **own)
        return call.builder.note_terms(sums, whole)
    return lower_products(call, source, *weight, call.parameter("bias"))


def scaled_sums(
    call: SymbolicCall, source: Value, weight: tuple[Codes, int], scale: Numbers
) -> tuple[Codes, Codes, int, bool]:
    """Weights, bias in units of the sums, their binary point, and whether the bias is whole units.

    A bias that is not gets units that are finer, as many as there are `FINER` bits.
    """
    codes_of, frac = weight
    point = int(source.frac.max()) + frac
    unit = float(source.scale.max()) * np.asarray(np.ldexp(scale, -point))
    bias, whole = call.bias_in(unit) or (codes(np.zeros(len(scale))), True)
    if whole:
        return codes_of, bias, point, whole
    finer, whole = call.bias_in(np.ldexp(unit, -FINER)) or (bias, True)
    return shift_codes(codes_of, FINER), finer, point + FINER, whole


def lower_products(
    call: SymbolicCall, source: Value, weight: Codes, frac: int, bias: tuple[Codes, int] | None
) -> Exact:
    """Products of the last dimension, all sums with one binary point."""
    source = one_point(call, source, -1)
    fracs = along(source.frac, source.shape, -1, np.max) + frac
    weight, offset, point = aligned_weights(weight, fracs[None, :], bias)
    shape = (*source.shape[:-1], len(weight))
    return call.emit(steps.Product, [source], shape, point, weight=weight, bias=offset)


def one_point(call: SymbolicCall, value: Value, axis: int) -> Value:
    """The value with a binary point that differs along one dimension at most."""
    same = (along(value.frac, value.shape, axis, side) for side in (np.min, np.max))
    low, high = same
    return value if (low == high).all() else call.builder.align(call.name, value)


def aligned_weights(
    weight: Codes, fracs: Codes, bias: tuple[Codes, int] | None
) -> tuple[Codes, Codes, int]:
    """Weights and bias shifted to the finest binary point of a product, which is given, too."""
    offset, bias_frac = (codes(np.zeros(len(weight))), None) if bias is None else bias
    finest = [int(fracs.max())] + ([] if bias_frac is None or not offset.any() else [bias_frac])
    point = max(finest)
    weight = shift_codes(weight, point - fracs)
    return (
        weight,
        shift_codes(offset, point - (point if bias_frac is None else min(bias_frac, point))),
        point,
    )


def each_dimension(value: Any, dims: int) -> Shape:
    """A setting such as a stride, one for each dimension."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * dims if len(values) == 1 else values


@lowering("conv1d", "conv2d", "conv3d")
def lower_convolution(call: SymbolicCall) -> Symbol:
    """Convolution with constants."""
    source = one_point(call, call.value(call.operands["input"]), 0)
    weight = call.parameter("weight")
    assert weight is not None
    dims = weight[0].ndim - 2
    if len(source.shape) != dims + 1:
        raise LoweringError(f"{call.name} takes rows of {dims + 1} dimensions in integers")
    if call.setting("padding_mode", "zeros") != "zeros":
        raise LoweringError(f"{call.name}: padding_mode must be 'zeros' in integers")
    stride, dilation = (each_dimension(call.setting(n, 1), dims) for n in ("stride", "dilation"))
    groups, padding = int(call.setting("groups", 1)), call.setting("padding", 0)
    if isinstance(padding, str):
        around = [d * (k - 1) for d, k in zip(dilation, weight[0].shape[2:], strict=True)]
        if padding == "same" and any(total % 2 for total in around):
            raise LoweringError(f"{call.name}: 'same' padding is not the same on both sides")
        padding = [total // 2 if padding == "same" else 0 for total in around]
    own = {"stride": stride, "dilation": dilation, "groups": groups}
    own |= {"padding": each_dimension(padding, dims)}
    scale = call.scale_of("weight")
    if source.is_scaled or (scale != 1).any():
        source = call.builder.align(call.name, source)
        kernel, bias, point, whole = scaled_sums(call, source, weight, scale)
        own |= {"weight": kernel, "bias": bias, "scale": scale.reshape((-1,) + (1,) * dims)}
        shape = row_shape(call, source)
        sums = call.emit(steps.Convolution, [source], shape, point, **own)
        return call.builder.note_terms(sums, whole)
    fracs = along(source.frac, source.shape, 0, np.max) + weight[1]
    by_group = np.repeat(fracs.reshape(groups, -1), len(weight[0]) // groups, axis=0)
    by_group = by_group.reshape(by_group.shape + (1,) * dims)
    kernel, bias, point = aligned_weights(weight[0], by_group, call.parameter("bias"))
    own |= {"weight": kernel, "bias": bias}
    return call.emit(steps.Convolution, [source], row_shape(call, source), point, **own)


def row_shape(call: SymbolicCall, *sources: Value) -> Shape:
    """The shape of a row of the result, as PyTorch gives it."""
    result = call.run(*(torch.zeros((1, *s.shape), dtype=call.builder.dtype) for s in sources))
    return tuple(result.shape[1:])


@lowering("matmul", "bmm", "mm")
def lower_matmul(call: SymbolicCall) -> Symbol:
    """Product of two values, or of a value and a constant matrix."""
    left, right = list(call.operands.values())[:2]
    if isinstance(right, Tensor) and right.dim() == 2:
        return lower_products(call, call.value(left), *dyadic(right.T), None)
    sides = [operand_value(call, side) for side in (left, right)]
    if call.op.name == "mm" or any(len(side.shape) < 2 for side in sides):
        raise LoweringError(f"{call.name} multiplies rows of the batch with each other")
    first, second = (call.builder.align(call.name, side) for side in sides)
    lead = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    first, second = (expand(call, s, (*lead, *s.shape[-2:])) for s in (first, second))
    shape = (*first.shape[:-1], second.shape[-1])
    return call.emit(steps.MatMul, [first, second], shape, first.frac + second.frac)


def operand_value(call: SymbolicCall, operand: Any) -> Value:
    """A symbol or a constant tensor as a value; the constant may have a batch dimension of 1."""
    if not isinstance(operand, Tensor):
        return call.value(operand)
    rank = max(len(symbol.shape) for symbol in call.operands.values() if is_symbolic(symbol))
    if operand.dim() == rank + 1 and torch.equal(operand, operand[:1].expand_as(operand)):
        operand = operand[0]
    value = constant_beside(call, operand)
    if len(value.shape) > rank:
        raise LoweringError(f"{call.name} has a constant for each row of the batch")
    return value


def constant_beside(call: SymbolicCall, numbers: Tensor) -> Value:
    """A constant operand; beside a term with a scale, in whole units of that, as sums are read."""
    others = [each.value for each in call.operands.values() if isinstance(each, Exact)]
    if call.op.name not in ("add", "sub") or not any(each.is_scaled for each in others):
        return call.builder.constant(call.name, numbers)
    unit, shape = others[0].unit, tuple(numbers.shape)
    own = {"codes": codes(np.broadcast_to(np.rint(numbers.double().numpy() / unit), shape))}
    frac, scale = int(others[0].frac.max()), others[0].scale
    return call.builder.emit(steps.Constant, call.name, [], shape, frac, scale, **own)


def operand_pair(call: SymbolicCall) -> tuple[Value, Value, Shape]:
    """The two operands with equally many dimensions, and the shape that they broadcast to."""
    sides = [operand_value(call, side) for side in list(call.operands.values())[:2]]
    rank = max(len(side.shape) for side in sides)
    both_vary = all(map(is_symbolic, list(call.operands.values())[:2]))
    if both_vary and any(len(side.shape) != rank for side in sides):
        raise LoweringError(f"{call.name} adds or multiplies tensors of unequal dimensions")
    padded = [(1,) * (rank - len(side.shape)) + side.shape for side in sides]
    one, other = (call.builder.reshape(call.name, s, p) for s, p in zip(sides, padded, strict=True))
    return one, other, tuple(np.broadcast_shapes(one.shape, other.shape))


@lowering("add", "sub")
def addition(call: SymbolicCall) -> Symbol:
    """Sum or difference, of two values or of a value and a number."""
    if call.operands.get("alpha", 1) != 1:
        return call.float_result("has an alpha, which no rule covers")
    numbers = [not isinstance(v, Tensor) and not is_symbolic(v) for v in call.operands.values()]
    if any(numbers[:2]):
        return with_number(call)
    one, other, shape = operand_pair(call)
    one, other, same = in_one_unit(call, one, other)
    point = int(max(one.frac.max(), other.frac.max()))
    factors = [np.left_shift(codes(1), point - side.frac) for side in (one, other)]
    if call.op.name == "sub":
        factors[1] = -factors[1]
    found = call.emit(steps.Sum, [one, other], shape, point, factors=tuple(factors))
    return call.builder.note_terms(found, same)


def with_number(call: SymbolicCall) -> Symbol:
    """Arithmetic of a value and a number in the code: exact where the number is short."""
    left, right = list(call.operands.values())[:2]
    symbol, number = (left, right) if is_symbolic(left) else (right, left)
    if not isinstance(symbol, Exact):
        return of_each_code(call, symbol)
    value, (code, frac) = symbol.value, dyadic(torch.tensor(float(number), dtype=torch.float64))
    if value.is_scaled:
        return with_number_scaled(call, value, float(number), number is left)
    if call.op.name in ("mul", "div"):
        return call.emit(steps.Sum, [value], value.shape, value.frac + frac, factors=(code,))
    point = max(int(value.frac.max()), frac)
    most = SMALL_BITS.get(call.builder.dtype, 0)
    low, high = value.limits
    finer = point - int(value.frac.min())
    is_table = high - low < LARGEST_TABLE <= (high - low) << finer
    if abs(int(code)) >> most or finer > most or (call.lowering.owner and is_table):
        return of_each_code(call, symbol)
    number_value = call.builder.constant(call.name, torch.full((1,) * len(value.shape), number))
    signs = (1, 1 if call.op.name == "add" else -1)
    scale, other = (np.left_shift(codes(1), point - v.frac) for v in (value, number_value))
    if not is_symbolic(left):
        signs = signs[::-1]
    factors = (scale * signs[0], other * signs[1])
    return call.emit(steps.Sum, [value, number_value], value.shape, point, factors=factors)


def with_number_scaled(call: SymbolicCall, value: Value, number: float, first: bool) -> Exact:
    """The same for a value with a scale, which a factor changes; a term is one in its units."""
    if call.op.name in ("mul", "div"):
        own = {"factors": (codes(np.sign(number)),), "scale": abs(number) or 1.0}
        return call.emit(steps.Sum, [value], value.shape, value.frac, **own)
    term = constant_beside(call, torch.full((1,) * len(value.shape), number))
    signs = (1, 1) if call.op.name == "add" else (-1, 1) if first else (1, -1)
    factors = tuple(codes(sign) for sign in signs)
    return call.emit(steps.Sum, [value, term], value.shape, value.frac, factors=factors)


def by_part(call: SymbolicCall, joined: Joined) -> Symbol:
    """The product of each part of what was joined with a number."""
    calls = (replace(call, operands={**call.operands, "input": part}) for part in joined.parts)
    parts: list[Any] = list(map(multiplication, calls))
    failed = next((part for part in parts if isinstance(part, Float)), None)
    return failed or replace(joined, parts=tuple(parts))


def by_number(call: SymbolicCall, left: Any, right: float) -> Symbol:
    """A product with a number, or a quotient: exact where the number is short."""
    number = 1 / right if call.op.name == "div" and right else right
    exact_division = call.op.name == "mul" or (right != 0 and log2(abs(right)).is_integer())
    code = abs(int(dyadic(torch.tensor(float(number), dtype=torch.float64))[0]))
    short = not code >> SMALL_BITS.get(call.builder.dtype, 0)
    scaled_value = isinstance(left, Exact) and left.value.is_scaled and number > 0
    if isinstance(left, Exact) and ((exact_division and short) or scaled_value):
        return with_number(replace(call, operands={**call.operands, "other": number}))
    return of_each_code(call, left)


@lowering("mul", "div")
def multiplication(call: SymbolicCall) -> Symbol:
    """Product of two values, or with a number; a quotient by a power of two."""
    left, right = list(call.operands.values())[:2]
    if call.operands.get("rounding_mode") is not None:
        return call.float_result("rounds its quotient, which no rule covers")
    if isinstance(right, int | float):
        return by_part(call, left) if isinstance(left, Joined) else by_number(call, left, right)
    if call.op.name == "div":
        return call.float_result("divides by something that varies")
    if isinstance(left, int | float):
        swapped: Symbol = multiplication(replace(call, operands={"input": right, "other": left}))
        return swapped
    one, other, shape = operand_pair(call)
    return call.emit(steps.Multiply, [one, other], shape, one.frac + other.frac)


@lowering("embedding")
def embedding(call: SymbolicCall) -> Symbol:
    """Rows of a constant table, chosen by integers: of an input, or codes."""
    source, own = call.source, call.operands.get("weight")
    if isinstance(own, Tensor) and own.shape[1] == 1 and not isinstance(source, Raw):
        return entries(call)
    weight = call.parameter("weight")
    assert weight is not None
    table, frac = weight
    scale = call.scale_of("weight", 1)
    value = index_of_input(call, source).value if isinstance(source, Raw) else call.value(source)
    low, high = value.limits
    if value.frac.any() or low < 0 or high >= len(table):
        raise LoweringError(
            f"{call.name} has {len(table)} entries, and its input may be {low} to {high}"
        )
    own = {"table": table, "scale": scale}
    return call.emit(steps.Lookup, [value], (*value.shape, table.shape[1]), frac, **own)


@lowering(*(f"{kind}max_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)))
def max_pool(call: SymbolicCall) -> Symbol:
    """The largest code of each window; functions of codes are compared by their order."""
    if call.setting("return_indices", False):
        raise LoweringError(f"{call.name} gives indices, which no rule covers")
    source = rank_codes(call)
    value = source.value if isinstance(source, Exact) else source[0]
    value = one_point(call, value, 0)
    windows, shape = pool_window(call, value)
    pooled = call.emit(
        steps.Pool, [value], shape, channel_frac(value, shape), kind="max", **windows
    )
    return pooled if isinstance(source, Exact) else source[1](pooled.value)


def channel_frac(value: Value, shape: Shape) -> Codes:
    """The binary point of each channel, for a result of another size."""
    return along(value.frac, value.shape, 0, np.max).reshape((-1,) + (1,) * (len(shape) - 1))


def pool_window(call: SymbolicCall, value: Value) -> tuple[dict[str, Shape], Shape]:
    """Kernel, stride, padding and dilation of a pool, and the shape of its result."""
    dims = call.op.dims
    if len(value.shape) != dims + 1:
        raise LoweringError(f"{call.name} takes rows of {dims + 1} dimensions in integers")
    shape = row_shape(call, value)
    if call.op.name.startswith("adaptive"):
        if any(a % b for a, b in zip(value.shape[1:], shape[1:], strict=True)):
            raise LoweringError(f"{call.name} has windows of unequal sizes, which no rule covers")
        kernel = tuple(a // b for a, b in zip(value.shape[1:], shape[1:], strict=True))
        return windows_of(kernel, kernel, (0,) * dims, (1,) * dims), shape
    kernel = each_dimension(call.setting("kernel_size"), dims)
    stride = each_dimension(call.setting("stride") or kernel, dims)
    padding, dilation = (
        each_dimension(call.setting(name, default), dims)
        for name, default in (("padding", 0), ("dilation", 1))
    )
    return windows_of(kernel, stride, padding, dilation), shape


def windows_of(kernel: Shape, stride: Shape, padding: Shape, dilation: Shape) -> dict[str, Shape]:
    """The fields of a pool."""
    return {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}


@lowering(*(f"{kind}avg_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)))
def average_pool(call: SymbolicCall) -> Symbol:
    """The sum of each window, divided: by a shift, or as a function of the sum."""
    value = one_point(call, call.value(call.source), 0)
    windows, shape = pool_window(call, value)
    varies = call.setting("ceil_mode", False) or not call.setting("count_include_pad", True)
    if (
        call.setting("divisor_override")
        or (varies and any(windows["padding"]))
        or (call.setting("ceil_mode", False) and not fills(value, windows, shape))
    ):
        raise LoweringError(f"{call.name} divides by numbers that differ between windows")
    return divide_windows(call, value, windows, shape, prod(windows["kernel"]))


def fills(value: Value, windows: dict[str, Shape], shape: Shape) -> bool:
    """True if no window reaches beyond the end."""
    sides = zip(value.shape[1:], shape[1:], windows["kernel"], windows["stride"], strict=True)
    return all((out - 1) * stride + kernel <= size for size, out, kernel, stride in sides)


def divide_windows(
    call: SymbolicCall, value: Value, windows: dict[str, Shape], shape: Shape, count: int
) -> Symbol:
    """Sums of windows, divided by how many elements they have."""
    frac = channel_frac(value, shape)
    shift = log2(count)
    if value.is_scaled:
        own = {"kind": "sum", **windows, "scale": 1 / count}
        return call.emit(steps.Pool, [value], shape, frac, **own)
    point = frac + int(shift) if shift.is_integer() else frac
    total = call.emit(steps.Pool, [value], shape, point, kind="sum", **windows)
    if shift.is_integer():
        return total

    def divide(numbers: Tensor) -> Tensor:
        """PyTorch's result for a window that holds the sum and zeros otherwise."""
        parts = []
        for some in torch.split(numbers.reshape(-1), CHUNK):
            x = torch.zeros((len(some), 1, prod(value.shape[1:])), dtype=some.dtype)
            x[:, 0, 0] = some
            result = call.run(x.reshape(len(some), 1, *value.shape[1:]))
            parts.append(result.reshape(len(some), -1)[:, 0])
        return torch.cat(parts).reshape(numbers.shape)

    return of_each_code(call, total, divide)
