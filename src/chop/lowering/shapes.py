"""The shape, binary point and scale of the result of a step, from its sources.

Here every field of a step is checked, too, so that nothing in a program from a file leads beyond an
array or a type: kernels and written C trust what they are given.
"""

from functools import singledispatch
from math import log2, prod

import numpy as np

from chop.errors import GraphError
from chop.lowering import program as steps
from chop.lowering.program import PADDING, Codes, Numbers, Shape, Step, Value, own_fields
from chop.lowering.ranges import FURTHEST, along, codes, move_arrays

MOST_ELEMENTS = 2**24
"""Of a row, and as a setting of a window: places are 32-bit integers in C."""
MOST_DIMENSIONS = 16
MOST_CODE = 2**62
MOST_PLACES = 1022
"""Before or after the binary point; a float64 has no more."""


def require(condition: bool, what: str) -> None:
    """Raise unless a condition holds."""
    if not condition:
        raise ValueError(what)


def check_value(value: Value) -> None:
    """Raise unless a value has elements, and a range and a binary point for each."""
    there = all(value.shape) and len(value.shape) <= MOST_DIMENSIONS
    require(there and prod(value.shape) <= MOST_ELEMENTS, f"{value.name} cannot have its shape")
    for array in (value.frac, value.low, value.high, value.scale):
        np.broadcast_to(array, value.shape)
    require(is_scale(value.scale), f"{value.name} cannot have its scale")
    low, high = value.limits
    in_order = bool((value.low <= value.high).all())
    require(in_order and low > -MOST_CODE and high < MOST_CODE, f"{value.name} cannot have codes")
    places = max(-int(value.frac.min()), int(value.frac.max()))
    require(places <= MOST_PLACES, f"{value.name} cannot have its binary point")


def is_scale(scale: Numbers) -> bool:
    """Return True for positive numbers, none of them so large or small that it might vanish."""
    usable = np.isfinite(scale).all() and (scale > 0).all()
    return bool(usable and (np.abs(np.log2(scale)) <= MOST_PLACES / 2).all())


def check_step(step: Step, *sources: Value) -> None:
    """Raise unless the fields, the shape and the binary point of a step follow from its sources."""
    name = step.out.name
    for field in own_fields(type(step)):
        found = getattr(step, field)
        for array in found if isinstance(found, tuple) else (found,):
            if isinstance(array, np.ndarray):
                fits = array.size and array.min() >= -MOST_CODE and array.max() <= MOST_CODE
                require(bool(fits), f"{field} of {name} cannot hold these numbers")
    require(shape_after(step, *sources) == step.out.shape, f"the shape of {name} does not follow")
    for point in points_after(step, *sources):
        if (np.broadcast_to(point, step.out.shape) == step.out.frac).all():
            return
    raise ValueError(f"the binary point of {name} does not follow from its step")


@singledispatch
def shape_after(step: Step, *sources: Value) -> Shape:
    """The shape of the result; fields that do not fit together or lead beyond are refused."""
    raise NotImplementedError(type(step).__name__)


@singledispatch
def points_after(step: Step, *sources: Value) -> list[Codes]:
    """The binary points that the result may have: any, unless a kind of step says more."""
    return [step.out.frac]


@shape_after.register
def _(step: steps.Constant) -> Shape:
    return step.codes.shape


@shape_after.register
def _(step: steps.Product, source: Value) -> Shape:
    count, size = step.weight.shape
    require(step.bias.shape == (count,) and source.shape[-1] == size, "a matrix does not fit")
    return (*source.shape[:-1], count)


def places_of_windows(step: steps.Convolution | steps.Pool, kernel: Shape, source: Value) -> Shape:
    """The number of windows that fit; each setting has as many numbers as there are dimensions."""
    settings = (step.stride, step.dilation, step.padding)
    dims = len(source.shape) - 1
    fit = {len(each) for each in (kernel, *settings)} == {dims} and 1 <= dims <= 3
    least = min((*kernel, *step.stride, *step.dilation), default=0)
    most = max((*kernel, *step.stride, *step.dilation, *step.padding), default=0)
    require(fit and 0 < least <= most <= MOST_ELEMENTS, "a window does not fit")
    return tuple(
        (size + 2 * around - apart * (width - 1) - 1) // stride + 1
        for size, width, stride, apart, around in zip(
            source.shape[1:], kernel, *settings, strict=True
        )
    )


@shape_after.register
def _(step: steps.Convolution, source: Value) -> Shape:
    count, reads, *kernel = step.weight.shape
    require(step.groups > 0 and count % step.groups == 0, "groups do not fit")
    fits = step.bias.shape == (count,) and source.shape[0] == reads * step.groups
    require(fits, "a kernel does not fit")
    return (count, *places_of_windows(step, tuple(kernel), source))


@shape_after.register
def _(step: steps.Pool, source: Value) -> Shape:
    whole = places_of_windows(step, step.kernel, source)
    shape = step.out.shape
    if step.kind == "sum" or len(shape) != len(source.shape):
        return (source.shape[0], *whole)
    for axis, (least, count) in enumerate(zip(whole, shape[1:], strict=True)):
        require(count in (least, least + 1), "windows do not fit")  # the last may be cut short
        starts = np.arange(count) * step.stride[axis] - step.padding[axis]
        taps = starts[:, None] + np.arange(step.kernel[axis]) * step.dilation[axis]
        inside = ((taps >= 0) & (taps < source.shape[1 + axis])).any(1)
        require(bool(inside.all()), "a window lies outside of what there is")
    return (source.shape[0], *shape[1:])


@points_after.register
def _(step: steps.Pool, source: Value) -> list[Codes]:
    ends = [along(source.frac, source.shape, 0, reduce) for reduce in (np.min, np.max)]
    require(bool((ends[0] == ends[1]).all()), "a channel has several binary points")
    point = ends[0].reshape((-1,) + (1,) * (len(step.out.shape) - 1))
    halvings = log2(prod(step.kernel))
    mean = step.kind == "sum" and halvings.is_integer()
    return [point, point + int(halvings)] if mean else [point]


@shape_after.register
def _(step: steps.MatMul, left: Value, right: Value) -> Shape:
    (*lead, rows, inner), (*others, depth, columns) = left.shape, right.shape
    require(lead == others and inner == depth, "matrices do not fit")
    return (*lead, rows, columns)


@points_after.register
def _(step: steps.MatMul, left: Value, right: Value) -> list[Codes]:
    for side in (left, right):
        require(int(side.frac.min()) == int(side.frac.max()), "a matrix has several binary points")
    return [codes(int(left.frac.max()) + int(right.frac.max()))]


def broadcast(*sources: Value) -> Shape:
    """The shape that values of equally many dimensions broadcast to."""
    require(len({len(source.shape) for source in sources}) == 1, "dimensions do not fit")
    return np.broadcast_shapes(*(source.shape for source in sources))


@shape_after.register
def _(step: steps.Sum, *sources: Value) -> Shape:
    shape = broadcast(*sources)
    require(len(step.factors) == len(sources), "there is not one factor for each term")
    return require_arrays(shape, *step.factors)


@shape_after.register
def _(step: steps.Multiply, one: Value, other: Value) -> Shape:
    return broadcast(one, other)


@points_after.register
def _(step: steps.Multiply, one: Value, other: Value) -> list[Codes]:
    return [one.frac + other.frac]


def require_arrays(shape: Shape, *arrays: Codes) -> Shape:
    """The shape, if all arrays broadcast to it."""
    for array in arrays:
        np.broadcast_to(array, shape)
    return shape


@shape_after.register
def _(step: steps.Clamp, source: Value) -> Shape:
    require(bool((step.low <= step.high).all()), "limits are not in order")
    return require_arrays(source.shape, step.low, step.high)


@points_after.register
def _(step: steps.Clamp, source: Value) -> list[Codes]:
    return [source.frac]


@shape_after.register
def _(step: steps.Requantise, source: Value) -> Shape:
    require(bool((step.low <= step.high).all()), "limits are not in order")
    span = step.high - step.low + 1  # which 64 bits may not hold
    of_bits = (span > 0).all() and (span <= MOST_CODE).all() and not (span & (span - 1)).any()
    require(step.overflow == "saturate" or bool(of_bits), "limits are not those of a width")
    far = int(step.shift.min()) >= -FURTHEST and int(step.shift.max()) <= FURTHEST + 1
    require(far, "a shift is too far")
    return require_arrays(source.shape, step.shift, step.low, step.high)


@points_after.register
def _(step: steps.Requantise, source: Value) -> list[Codes]:
    """The builder cuts shifts that are too far, of codes that are or become 0."""
    cut = np.abs(step.shift) >= FURTHEST
    return [np.where(cut, step.out.frac, source.frac - step.shift)]


@shape_after.register
def _(step: steps.Rescale, source: Value) -> Shape:
    multiplier, shift = step.multiplier, step.shift
    require(int(multiplier.min()) >= 0, "a multiplier is negative")
    require(int(shift.min()) >= 0 and int(shift.max()) <= FURTHEST, "a shift is too far")
    require(bool((step.low <= step.high).all()), "limits are not in order")
    return require_arrays(source.shape, multiplier, shift, step.low, step.high)


@shape_after.register
def _(step: steps.Move, *sources: Value) -> Shape:
    total, size = sum(source.size for source in sources), prod(step.out.shape)
    if step.index is None:
        require(len(sources) == 1 and size == total, "elements are lost")
        return step.out.shape
    first, last = int(step.index.min()), int(step.index.max())
    require(bool(sources) and first >= PADDING and last < total, "an index leads beyond")
    require(step.index.shape == (size,), "an index does not fit")
    return step.out.shape


@points_after.register
def _(step: steps.Move, *sources: Value) -> list[Codes]:
    shapes = [source.shape for source in sources]
    point = move_arrays(step.index, [source.frac for source in sources], shapes, step.out.shape)
    if step.index is None or not (step.index == PADDING).any():
        return [point]
    padded = (step.index == PADDING).reshape(step.out.shape)  # a zero has any binary point
    return [np.where(padded, step.out.frac, point)]


@shape_after.register
def _(step: steps.Table, source: Value) -> Shape:
    functions, size = step.table.shape
    low, high = source.limits
    require(step.start <= low and high - step.start < size, "a code leads beyond a table")
    require(int(step.rows.min()) >= 0 and int(step.rows.max()) < functions, "a row is not there")
    return require_arrays(source.shape, step.rows)


@shape_after.register
def _(step: steps.Lookup, source: Value) -> Shape:
    entries, width = step.table.shape
    low, high = source.limits
    require(low >= 0 and high < entries, "a code leads beyond a table")
    return (*source.shape, width)


class UnequalScalesError(GraphError):
    """Numbers of several scales where the codes of one are added or compared."""


HAVE_OWN_SCALES = (
    *(steps.Product, steps.Convolution, steps.Pool, steps.Constant, steps.Lookup, steps.Table),
    *(steps.Requantise, steps.Rescale, steps.Sum),
)
"""Steps whose result may have another scale: of their constants, or of a format."""


def one_scale(*values: Value) -> Numbers:
    """The scale that all elements of values have."""
    ends = [end for value in values for end in (value.scale.min(), value.scale.max())]
    if min(ends) != max(ends):
        raise UnequalScalesError(
            f"adds or compares numbers with scales from {min(ends):.6g} to {max(ends):.6g}"
        )
    return np.asarray(ends[0])


def scale_of_channels(value: Value, axis: int) -> Numbers:
    """The scale of each index of a dimension, which all its elements have."""
    ends = [along(value.scale, value.shape, axis, reduce) for reduce in (np.min, np.max)]
    if (ends[0] != ends[1]).any():
        return one_scale(value)
    return ends[0]


@singledispatch
def scale_after(step: Step, *sources: Value) -> Numbers:
    """The scale of a result, from the scales of what is read; 1 where a format gives it."""
    return np.ones(())


@scale_after.register(steps.Product)
@scale_after.register(steps.Sum)
@scale_after.register(steps.Requantise)
def _(step: Step, *sources: Value) -> Numbers:
    if len(sources) == 1 and not isinstance(step, steps.Product):
        return sources[0].scale
    return one_scale(*sources)


@scale_after.register
def _(step: steps.Convolution, source: Value) -> Numbers:
    return one_scale(source) if step.groups != source.shape[0] else _of_groups(step, source)


def _of_groups(step: steps.Convolution, source: Value) -> Numbers:
    """A convolution of each channel by itself keeps the scale of the channel."""
    each = len(step.weight) // step.groups
    scale = np.repeat(scale_of_channels(source, 0), each)
    return scale.reshape((-1,) + (1,) * (len(step.out.shape) - 1))


@scale_after.register
def _(step: steps.Pool, source: Value) -> Numbers:
    return scale_of_channels(source, 0).reshape((-1,) + (1,) * (len(step.out.shape) - 1))


@scale_after.register
def _(step: steps.MatMul, left: Value, right: Value) -> Numbers:
    return one_scale(left) * one_scale(right)


@scale_after.register
def _(step: steps.Multiply, one: Value, other: Value) -> Numbers:
    return one.scale * other.scale


@scale_after.register
def _(step: steps.Clamp, source: Value) -> Numbers:
    return source.scale


@scale_after.register
def _(step: steps.Move, *sources: Value) -> Numbers:
    if len({float(each) for source in sources for each in source.scale.reshape(-1)}) == 1:
        return np.asarray(sources[0].scale.reshape(-1)[0])  # a zero has any scale
    shapes = [source.shape for source in sources]
    scale = move_arrays(step.index, [source.scale for source in sources], shapes, step.out.shape)
    return np.where(scale == 0, 1.0, scale)
