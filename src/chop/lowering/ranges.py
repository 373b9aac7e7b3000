"""Exact integer ranges: which codes a step can give, and how large a partial sum can become.

Ranges are of whole channels where a step sums over elements. Nothing here runs a network: every
statement holds for all inputs.
"""

from collections.abc import Callable
from functools import singledispatch
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from chop.errors import GraphError
from chop.lowering import program as steps
from chop.lowering.program import PADDING, Codes, Shape, Step, Value
from chop.numerics.arithmetic import divide_codes

WIDEST = 2.0**62
"""Sums beyond this would not surely fit in 64 bits."""
FURTHEST = 62
"""Shifted right by more, every code that is allowed here is less than a half."""
Bounds = tuple[Codes, Codes]
Kind = TypeVar("Kind", np.int64, np.float64)


class TooWideError(GraphError):
    """Codes that 64-bit integers cannot hold."""


def codes(value: Any) -> Codes:
    """An int64 array."""
    return np.asarray(value, dtype=np.int64)


def compact(array: NDArray[Kind], shape: Shape) -> NDArray[Kind]:
    """The array with size 1 along dimensions in which it does not change; broadcasts to `shape`."""
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    for axis in range(array.ndim):
        first = array.take([0], axis)
        if array.shape[axis] > 1 and (array == first).all():
            array = first
    return array.reshape(()) if array.size == 1 else array


def along(
    array: NDArray[Kind], shape: Shape, axis: int, reduce: Callable[..., Any]
) -> NDArray[Kind]:
    """One entry for each index of a dimension, made of all others by `reduce`."""
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    axis %= len(shape)
    others = tuple(place for place in range(len(shape)) if place != axis)
    return np.broadcast_to(reduce(array, axis=others), (shape[axis],))


def channels(value: Value, axis: int, padded: bool = False) -> Bounds:
    """The range for each index of a dimension; with 0 in it where zeros are put around."""
    low, high = (
        along(value.low, value.shape, axis, np.min),
        along(value.high, value.shape, axis, np.max),
    )
    return (np.minimum(low, 0), np.maximum(high, 0)) if padded else (low, high)


def largest_magnitude(low: Codes, high: Codes) -> Codes:
    """The largest magnitude within a range."""
    return np.maximum(np.abs(low), np.abs(high))


def within_64_bits(magnitude: Any) -> None:
    """Refuse magnitudes, in float64, that int64 might not hold."""
    if np.size(magnitude) and float(np.max(magnitude)) >= WIDEST:
        bits = int(np.ceil(np.log2(float(np.max(magnitude))))) + 1
        raise TooWideError(f"needs {bits} bits, and 64 are the most: take narrower formats")


def shift_codes(value: Codes, shift: Codes | int) -> Codes:
    """Codes times a power of two, if the result fits."""
    within_64_bits(np.abs(value.astype(np.float64)) * np.exp2(np.asarray(shift, np.float64)))
    return np.left_shift(value, shift)


def rounded_shift(value: Codes, shift: Codes, rounding: str) -> Codes:
    """Codes divided by ``2**shift`` and rounded; a negative shift multiplies."""
    left = shift_codes(value, np.maximum(-shift, 0))
    result = divide_codes(left, np.clip(shift, 0, FURTHEST), rounding)
    return np.where(shift > FURTHEST, 0, result)


def wrap_codes(value: Codes, low: Codes, high: Codes) -> Codes:
    """Codes whose high bits are cut off: `high` - `low` + 1 is a power of two."""
    return (value - low) % (high - low + 1) + low


@singledispatch
def bounds(step: Step, *sources: Value) -> Bounds:
    """The smallest and the largest code of each channel or element of the result."""
    raise NotImplementedError(type(step).__name__)


@singledispatch
def peak(step: Step, *sources: Value) -> Codes:
    """The largest magnitude any partial sum can have, in units of the last bit that may be set."""
    return largest_magnitude(step.out.low, step.out.high)


def _affine(positive: Codes, negative: Codes, bias: Codes, low: Codes, high: Codes) -> Bounds:
    total = (positive - negative).astype(np.float64) @ largest_magnitude(low, high).astype(
        np.float64
    )
    within_64_bits(total + np.abs(bias))
    return positive @ low + negative @ high + bias, positive @ high + negative @ low + bias


def trailing_zeros(*parts: Codes) -> Codes:
    """Low bits that are 0 in every entry, for each index of the first dimension."""
    together = np.zeros(parts[0].shape[0], np.int64)
    for part in parts:
        together |= np.bitwise_or.reduce(np.abs(part).reshape(len(part), -1), axis=1)
    lowest = together & -together
    return np.where(lowest > 0, np.round(np.log2(np.maximum(lowest, 1))).astype(np.int64), 0)


@bounds.register
def _(step: steps.Product, source: Value) -> Bounds:
    weight = step.weight
    return _affine(np.maximum(weight, 0), np.minimum(weight, 0), step.bias, *channels(source, -1))


@peak.register
def _(step: steps.Product, source: Value) -> Codes:
    sums = np.abs(step.weight) @ largest_magnitude(*channels(source, -1)) + np.abs(step.bias)
    return sums >> trailing_zeros(step.weight, step.bias)


def _taps(step: steps.Convolution, source: Value) -> tuple[Codes, Codes, Bounds]:
    """Sums of the positive and of the negative weights, a column for each channel of the source."""
    low, high = channels(source, 0, padded=any(step.padding))
    flat = step.weight.reshape(*step.weight.shape[:2], -1)
    within_64_bits(np.abs(flat.astype(np.float64)).sum(-1))
    sides = []
    for part in (np.maximum(flat, 0).sum(-1), np.minimum(flat, 0).sum(-1)):
        wide = np.zeros((len(part), len(low)), np.int64)
        each = len(part) // step.groups
        for group in range(step.groups):
            rows = slice(group * each, (group + 1) * each)
            wide[rows, group * part.shape[1] : (group + 1) * part.shape[1]] = part[rows]
        sides.append(wide)
    return sides[0], sides[1], (low, high)


def _per_channel(array: Codes, shape: Shape) -> Codes:
    return array.reshape((-1,) + (1,) * (len(shape) - 1))


@bounds.register
def _(step: steps.Convolution, source: Value) -> Bounds:
    positive, negative, limits = _taps(step, source)
    low, high = _affine(positive, negative, step.bias, *limits)
    return _per_channel(low, step.out.shape), _per_channel(high, step.out.shape)


@peak.register
def _(step: steps.Convolution, source: Value) -> Codes:
    positive, negative, limits = _taps(step, source)
    sums = (positive - negative) @ largest_magnitude(*limits) + np.abs(step.bias)
    return sums >> trailing_zeros(step.weight, step.bias)


def _corners(low: Codes, high: Codes, other_low: Codes, other_high: Codes) -> Bounds:
    """The range of the products of two ranges."""
    within_64_bits(
        largest_magnitude(low, high).astype(np.float64)
        * largest_magnitude(other_low, other_high).astype(np.float64)
    )
    products = [one * other for one in (low, high) for other in (other_low, other_high)]
    products = list(np.broadcast_arrays(*products))
    return np.minimum.reduce(products), np.maximum.reduce(products)


@bounds.register
def _(step: steps.MatMul, left: Value, right: Value) -> Bounds:
    low, high = _corners(*channels(left, -1), *channels(right, -2))
    within_64_bits(largest_magnitude(low, high).astype(np.float64).sum())
    return codes(low.sum()), codes(high.sum())


@peak.register
def _(step: steps.MatMul, left: Value, right: Value) -> Codes:
    return codes(
        (largest_magnitude(*channels(left, -1)) * largest_magnitude(*channels(right, -2))).sum()
    )


@bounds.register
def _(step: steps.Sum, *sources: Value) -> Bounds:
    terms = []
    for source, factor in zip(sources, step.factors, strict=True):
        terms.append(_corners(source.low, source.high, factor, factor))
    within_64_bits(sum(float(largest_magnitude(*term).max()) for term in terms))
    return codes(sum(low for low, _ in terms)), codes(sum(high for _, high in terms))


@peak.register
def _(step: steps.Sum, *sources: Value) -> Codes:
    sums = codes(
        sum(
            largest_magnitude(source.low, source.high) * np.abs(factor)
            for source, factor in zip(sources, step.factors, strict=True)
        )
    )
    return sums >> trailing_zeros(*(factor.reshape(1, -1) for factor in step.factors)).item()


@bounds.register
def _(step: steps.Multiply, one: Value, other: Value) -> Bounds:
    low, high = _corners(one.low, one.high, other.low, other.high)
    if one.name != other.name:
        return low, high
    inside = (one.low <= 0) & (one.high >= 0)  # a square
    return np.where(inside, 0, np.minimum(one.low**2, one.high**2)), high


@bounds.register
def _(step: steps.Constant) -> Bounds:
    return step.codes, step.codes


@bounds.register
def _(step: steps.Clamp, source: Value) -> Bounds:
    return np.clip(source.low, step.low, step.high), np.clip(source.high, step.low, step.high)


@bounds.register
def _(step: steps.Pool, source: Value) -> Bounds:
    summed = step.kind == "sum"
    low, high = channels(source, 0, padded=summed and any(step.padding))
    if summed:
        times = int(np.prod(step.kernel))
        within_64_bits(largest_magnitude(low, high).astype(np.float64) * times)
        low, high = low * times, high * times
    return _per_channel(low, step.out.shape), _per_channel(high, step.out.shape)


def move_arrays(
    index: Codes | None, arrays: list[NDArray[Kind]], shapes: list[Shape], shape: Shape
) -> NDArray[Kind]:
    """The result of a `Move` of arrays that broadcast to the shapes of its sources."""
    flat = [np.broadcast_to(a, s).reshape(-1) for a, s in zip(arrays, shapes, strict=True)]
    if index is None:
        return compact(flat[0].reshape(shape), shape)
    together = np.append(np.concatenate(flat), 0)  # the last is what PADDING refers to
    assert PADDING == -1
    return compact(together[index].reshape(shape), shape)


@bounds.register
def _(step: steps.Move, *sources: Value) -> Bounds:
    shapes = [source.shape for source in sources]
    low = move_arrays(step.index, [source.low for source in sources], shapes, step.out.shape)
    return low, move_arrays(step.index, [source.high for source in sources], shapes, step.out.shape)


@bounds.register
def _(step: steps.Table, source: Value) -> Bounds:
    return step.table.min(1)[step.rows], step.table.max(1)[step.rows]


@bounds.register
def _(step: steps.Lookup, source: Value) -> Bounds:
    low, high = source.limits
    used = step.table[low : high + 1]
    return used.min(0), used.max(0)


@bounds.register
def _(step: steps.Requantise, source: Value) -> Bounds:
    low = rounded_shift(source.low, step.shift, step.rounding)
    high = rounded_shift(source.high, step.shift, step.rounding)
    if step.overflow == "saturate":
        return np.clip(low, step.low, step.high), np.clip(high, step.low, step.high)
    fits = (low >= step.low) & (high <= step.high)
    return np.where(fits, low, step.low), np.where(fits, high, step.high)


@bounds.register
def _(step: steps.Rescale, source: Value) -> Bounds:
    within_64_bits(
        largest_magnitude(source.low, source.high).astype(np.float64) * step.multiplier
        + np.exp2(step.shift - 1.0)
    )
    low, high = bounds(step.division, step.product_of(source))
    return low, high


def overflows(step: steps.Requantise | steps.Rescale, source: Value) -> bool:
    """True if some input leads beyond the codes that the step can give."""
    if isinstance(step, steps.Rescale):
        return overflows(step.division, step.product_of(source))
    low = rounded_shift(source.low, step.shift, step.rounding)
    high = rounded_shift(source.high, step.shift, step.rounding)
    return bool((low < step.low).any() or (high > step.high).any())


def bit_width(low: int, high: int) -> int:
    """Bits of a two's-complement integer that holds both."""
    return max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0) + 1


def reach(step: Step, sources: list[Value]) -> int:
    """The largest magnitude that occurs while a step is computed, in any order of summation."""
    ends = [max(map(abs, each.limits)) for each in sources]
    if isinstance(step, steps.Product | steps.Convolution):
        taps = np.abs(step.weight).reshape(len(step.weight), -1).astype(np.float64).sum(1)
        return int((taps * ends[0] + np.abs(step.bias)).max())
    if isinstance(step, steps.MatMul):
        return ends[0] * ends[1] * sources[0].shape[-1]
    if isinstance(step, steps.Sum):
        factors = (int(np.abs(factor).max()) for factor in step.factors)
        return sum(end * factor for end, factor in zip(ends, factors, strict=True))
    result = max(map(abs, step.out.limits))
    if isinstance(step, steps.Rescale):
        inside = step.product_of(sources[0])
        return max(reach(step.division, [inside]), *map(abs, inside.limits))
    if isinstance(step, steps.Requantise):
        raised = ends[0] << max(int(-step.shift.min()), 0)
        return max(result, raised, int(step.high.max() - step.low.min()))
    return result
