"""Sums, means and extremes over dimensions, einsum, and convolutions that spread their input."""

from collections.abc import Callable, Sequence
from math import log2, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.lowering import program as steps
from chop.lowering.dyadic import dyadic
from chop.lowering.formats import LoweringError
from chop.lowering.from_graph import SymbolicCall
from chop.lowering.program import PADDING, Codes, Shape, Value
from chop.lowering.ranges import codes, rounded_shift
from chop.lowering.rules.arithmetic import (
    CHUNK,
    aligned_weights,
    each_dimension,
    lower_products,
    operand_pair,
    row_shape,
    windows_of,
)
from chop.lowering.rules.functions import of_each_code
from chop.lowering.rules.moves import expand
from chop.lowering.symbols import Exact, Symbol, is_symbolic
from chop.ops.op import lowering


def permute(
    call: SymbolicCall, value: Value, order: Sequence[int], shape: Shape | None = None
) -> Value:
    """Dimensions in another order, and then perhaps another shape."""
    places = np.arange(value.size).reshape(value.shape).transpose(tuple(order))
    return call.builder.move(call.name, [value], codes(places.reshape(-1)), shape or places.shape)


def reduced_dims(call: SymbolicCall, rank: int) -> tuple[int, ...] | None:
    """The dimensions of a row that are reduced; None where rows of the batch are, too."""
    given = call.operands.get("dim")
    if given is None or isinstance(given, bool):
        return None
    dims = [given] if isinstance(given, int) else list(given)
    found = sorted({dim % (rank + 1) - 1 for dim in dims})
    return None if not found or found[0] < 0 else tuple(found)


def pool_rows(call: SymbolicCall, value: Value, kind: str, frac: Any, scale: float = 1.0) -> Value:
    """The largest code or the sum of each row of a matrix."""
    (count, length), builder = value.shape, call.builder
    own: dict[str, Any] = {"kind": kind, **windows_of((length,), (length,), (0,), (1,))}
    return builder.emit(steps.Pool, call.name, [value], (count, 1), frac, scale, **own)


def negate(call: SymbolicCall, value: Value) -> Value:
    """Codes with the other sign."""
    own = {"factors": (codes(-1),)}
    return call.builder.emit(steps.Sum, call.name, [value], value.shape, value.frac, **own)


def extreme_of_rows(call: SymbolicCall, matrix: Value, smallest: bool) -> Value:
    """The largest or the smallest code of each row of a matrix."""
    if smallest:
        matrix = negate(call, matrix)
    result = pool_rows(call, matrix, "max", matrix.frac)
    return negate(call, result) if smallest else result


@lowering("sum", "mean", "amax", "amin")
def lower_reduction(call: SymbolicCall) -> Symbol:
    """Over dimensions of a row: a matrix whose rows are pooled."""
    value = call.builder.align(call.name, call.value(call.source))
    dims = reduced_dims(call, len(value.shape))
    if dims is None:
        return call.float_result("has no rule in integers over the rows of the batch")
    if call.operands.get("dtype") is not None:
        return call.float_result("has no rule in integers with another dtype")
    kept = [axis for axis in range(len(value.shape)) if axis not in dims]
    count = prod(value.shape[axis] for axis in dims)
    matrix = permute(call, value, [*kept, *dims], (value.size // count, count))
    shape = row_shape(call, value)
    if call.op.name in ("amax", "amin"):
        found = extreme_of_rows(call, matrix, call.op.name == "amin")
        return Exact(call.builder.reshape(call.name, found, shape))
    if call.op.name == "mean" and value.is_scaled:
        mean = pool_rows(call, matrix, "sum", value.frac, 1 / count)
        return Exact(call.builder.reshape(call.name, mean, shape))
    shift = log2(count) if call.op.name == "mean" else 0.0
    total = pool_rows(call, matrix, "sum", value.frac + int(shift) * shift.is_integer())
    result = Exact(call.builder.reshape(call.name, total, shape))
    return result if shift.is_integer() else of_each_code(call, result, mean_of(call, value))


def mean_of(call: SymbolicCall, value: Value) -> Callable[[Tensor], Tensor]:
    """PyTorch's result for a row that holds a sum and zeros otherwise."""

    def divide(sums: Tensor) -> Tensor:
        parts = []
        for some in torch.split(sums.reshape(-1), CHUNK):
            x = torch.zeros((len(some), value.size), dtype=some.dtype)
            x[:, 0] = some
            parts.append(call.run(x.reshape(-1, *value.shape)).reshape(len(some), -1)[:, 0])
        return torch.cat(parts).reshape(sums.shape)

    return divide


@lowering("argmax", "argmin")
def lower_place(call: SymbolicCall) -> Symbol:
    """The place of the extreme: codes times a power of two, and how far a place is from the end."""
    value = call.builder.align(call.name, call.value(call.source))
    dims, rank = reduced_dims(call, len(value.shape)), len(value.shape)
    if dims is None or len(dims) != 1 or call.setting("keepdim", False):
        return call.float_result("has no rule in integers but for one dimension of a row")
    (axis,), name, emit = dims, call.name, call.builder.emit
    count = value.shape[axis]
    bits = max(count - 1, 1).bit_length()
    left = np.arange(2**bits - 1, 2**bits - 1 - count, -1)
    left = left.reshape([-1 if each == axis else 1 for each in range(rank)])
    places = emit(steps.Constant, name, [], left.shape, 0, codes=codes(left))
    whole = emit(steps.Sum, name, [value], value.shape, 0, factors=(codes(1),))
    factors = codes(2**bits if call.op.name == "argmax" else -(2**bits)), codes(1)
    keys = emit(steps.Sum, name, [whole, places], value.shape, 0, factors=factors)
    order = [each for each in range(rank) if each != axis] + [axis]
    matrix = permute(call, keys, order, (value.size // count, count))
    most = pool_rows(call, matrix, "max", 0)
    half = emit(steps.Constant, name, [], (1, 1), 0, codes=codes([[2 ** (bits - 1)]]))
    low = emit(steps.Sum, name, [most, half], most.shape, 0, factors=(codes(1), codes(-1)))
    ends = (
        rounded_shift(low.low, codes(bits), "half_up"),
        rounded_shift(low.high, codes(bits), "half_up"),
    )
    own: dict[str, Any] = {"shift": codes(bits), "low": ends[0], "high": ends[1]}
    own |= {"rounding": "half_up", "overflow": "saturate"}
    above = emit(steps.Requantise, name, [low], low.shape, -bits, **own)
    rest = emit(
        steps.Sum, name, [most, above], most.shape, 0, factors=(codes(1), codes(-(2**bits)))
    )
    rest = emit(steps.Clamp, name, [rest], rest.shape, 0, low=codes(0), high=codes(2**bits - 1))
    last = emit(steps.Constant, name, [], (1, 1), 0, codes=codes([[2**bits - 1]]))
    found = emit(steps.Sum, name, [last, rest], rest.shape, 0, factors=(codes(1), codes(-1)))
    shape = tuple(size for each, size in enumerate(value.shape) if each != axis)
    return Exact(call.builder.reshape(name, found, shape))


@lowering("maximum", "minimum")
def extreme(call: SymbolicCall) -> Symbol:
    """The larger or smaller of two values: windows of two codes."""
    one, other, shape = operand_pair(call)
    point = int(max(one.frac.max(), other.frac.max()))
    both = [expand(call, call.builder.align(call.name, s, point), shape) for s in (one, other)]
    size = prod(shape)
    index = codes(np.arange(2 * size).reshape(2, size).T.reshape(-1))
    matrix = call.builder.move(call.name, both, index, (size, 2))
    found = extreme_of_rows(call, matrix, call.op.name == "minimum")
    return Exact(call.builder.reshape(call.name, found, shape))


@lowering("einsum")
def lower_einsum(call: SymbolicCall) -> Symbol:
    """Two operands whose products are summed: as a product of matrices."""
    equation = str(call.operands["equation"]).replace(" ", "")
    first, rest = call.operands["operands"], call.operands.get("rest", ())
    sides = list(first) if isinstance(first, list | tuple) else [first, *rest]
    left, _, out = equation.partition("->")
    names = left.split(",")
    if len(sides) != 2 or len(names) != 2 or "." in equation or "->" not in equation:
        return call.float_result("has no rule in integers but for two operands and an arrow")
    if isinstance(sides[0], Tensor):  # the constant comes second
        sides, names = sides[::-1], names[::-1]
    batch = names[0][:1]
    varies = [is_symbolic(side) for side in sides]
    rows = [name[:1] == batch and batch not in name[1:] for name in (*names[: sum(varies)], out)]
    each_once = all(len(set(name)) == len(name) for name in (*names, out))
    summed = set("".join(names)) - set(out)
    if not all(rows) or not each_once or not summed <= set(names[0]) & set(names[1]):
        return call.float_result("has no rule in integers for this equation")
    inner = [name[1:] if vary else name for name, vary in zip(names, varies, strict=True)]
    if any(batch in name for name in inner) or not set(out[1:]) <= set("".join(inner)):
        return call.float_result("has no rule in integers for this equation")
    return contract(call, sides, inner, out[1:])


def contract(call: SymbolicCall, sides: list[Any], names: list[str], out: str) -> Symbol:
    """Sums of products over the letters that the result lacks."""
    left, right = names
    shared = [letter for letter in out if letter in left and letter in right]
    rows = [letter for letter in out if letter in left and letter not in right]
    columns = [letter for letter in out if letter in right and letter not in left]
    inside = [letter for letter in left if letter in right and letter not in out]
    first = call.value(sides[0])
    sizes = dict(zip(left, first.shape, strict=True))
    second = sides[1].detach() if isinstance(sides[1], Tensor) else call.value(sides[1])
    sizes |= dict(zip(right, second.shape, strict=True))
    count = prod(sizes[letter] for letter in rows)
    depth, wide, many = (prod(sizes[each] for each in g) for g in (inside, columns, shared))
    order = [left.index(letter) for letter in (*shared, *rows, *inside)]
    if isinstance(second, Tensor) and not shared:
        one = permute(call, first, order, (count, depth))
        turned = second.permute([right.index(letter) for letter in (*columns, *inside)])
        matrix, frac = dyadic(turned.reshape(wide, depth))
        result = lower_products(call, one, matrix, frac, None).value
    else:
        other = call.builder.constant(call.name, second) if isinstance(second, Tensor) else second
        one, other = (call.builder.align(call.name, value) for value in (first, other))
        one = permute(call, one, order, (many, count, depth))
        swap = [right.index(letter) for letter in (*shared, *inside, *columns)]
        other = permute(call, other, swap, (many, depth, wide))
        shape = (many, count, wide)
        result = call.emit(steps.MatMul, [one, other], shape, one.frac + other.frac).value
    found = [*shared, *rows, *columns]
    result = call.builder.reshape(call.name, result, tuple(sizes[letter] for letter in found))
    return Exact(permute(call, result, [found.index(letter) for letter in out]))


@lowering("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def lower_transposed_convolution(call: SymbolicCall) -> Symbol:
    """A convolution with the turned kernel, of the input with zeros between its elements."""
    source = call.builder.align(call.name, call.value(call.operands["input"]))
    weight = call.parameter("weight")
    assert weight is not None
    kernel = weight[0].shape[2:]
    dims = len(kernel)
    if len(source.shape) != dims + 1:
        raise LoweringError(f"{call.name} takes rows of {dims + 1} dimensions in integers")
    if is_symbolic(call.operands.get("output_size")):
        raise LoweringError(f"{call.name} has an output_size, which no rule covers")
    settings = {"stride": 1, "padding": 0, "dilation": 1}
    stride, padding, dilation = (
        each_dimension(call.setting(name, default), dims) for name, default in settings.items()
    )
    groups, shape = int(call.setting("groups", 1)), row_shape(call, source)
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    sizes = [n + d * (k - 1) for n, d, k in zip(shape[1:], dilation, kernel, strict=True)]
    spread_out = spread_places(source.shape, stride, before, sizes)
    wide = call.emit(  # zeros have any binary point
        steps.Move, [source], (source.shape[0], *sizes), source.frac, index=spread_out
    ).value
    parts = weight[0].reshape(groups, -1, *weight[0].shape[1:]).swapaxes(1, 2)
    turned = np.flip(parts.reshape(-1, *parts.shape[2:]), tuple(range(2, 2 + dims)))
    if source.is_scaled or (call.scale_of("weight", 1) != 1).any():
        raise LoweringError(f"{call.name} has no rule for scales that are not powers of two")
    point = source.frac.reshape((1,) * turned.ndim) + weight[1]
    matrix, bias, frac = aligned_weights(codes(turned.copy()), point, call.parameter("bias"))
    own = {"weight": matrix, "bias": bias, "stride": (1,) * dims, "padding": (0,) * dims}
    own |= {"dilation": dilation, "groups": groups}
    return call.emit(steps.Convolution, [wide], shape, frac, **own)


def spread_places(
    shape: Shape, stride: Shape, before: Sequence[int], sizes: Sequence[int]
) -> Codes:
    """The places of the elements of an input that is spread by a stride, zeros between."""
    index = np.arange(shape[0]).reshape(-1, *(1,) * len(sizes))
    inside = np.ones((), bool)
    for axis, (size, length) in enumerate(zip(shape[1:], sizes, strict=True)):
        places = np.arange(length) - before[axis]
        at = places // stride[axis]
        there = (places % stride[axis] == 0) & (at >= 0) & (at < size)
        wide = [1] * (len(sizes) + 1)
        wide[axis + 1] = length
        index, inside = index * size + at.reshape(wide), inside & there.reshape(wide)
    return codes(np.where(inside, index, PADDING).reshape(-1))
