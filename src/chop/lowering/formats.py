"""Formats as rows and parameters have them, and the steps between scales of any size.

A value with such a scale has the binary point 0. Where it is rounded to another scale, the ratio of
both becomes a multiplier and a shift; where a format gives the grid that it rounds from, the
simulation computes the same integers.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.errors import ConfigError, GraphError
from chop.lowering.dyadic import dyadic
from chop.lowering.program import PADDING, Codes, Numbers, Shape, Value
from chop.lowering.ranges import codes, compact
from chop.numerics import (
    Binary,
    Encoded,
    Integer,
    IntegerScaled,
    IntTensor,
    NumberFormat,
    Ternary,
)
from chop.numerics.arithmetic import multiplier_and_shift
from chop.numerics.elementwise import ElementFormat
from chop.numerics.granular import code_limits

MOST_BITS = 16
OFF_GRID = 0.25
"""A bias that is further from whole units of the sums may be read otherwise in floating point."""
SAME = 2.0**-20
"""Scales that differ by a smaller share are the same one, stored as float32 by somebody else."""


class LoweringError(GraphError):
    """A graph that has no integer program; names the node and says what would give it one."""


def by_element(fmt: NumberFormat) -> str | None:
    """The reason why a format cannot round data one by one, always alike; None if it does."""
    name = type(fmt).__name__
    if getattr(fmt, "stochastic", False):
        return f"{name} rounds at random"
    if isinstance(fmt, Binary):
        return None if fmt.bipolar else f"{name} takes its scale from the data: set bipolar"
    if isinstance(fmt, Ternary):
        given = (fmt.mean, fmt.max, fmt.median)
        if fmt.scaling_factor or not any(each is not None for each in given):
            return f"{name} takes its threshold or scale from the data: set mean, median or max"
        return None
    each = isinstance(fmt, ElementFormat | IntegerScaled)
    return None if each else f"{name} shares exponents within blocks"


def of_rows(fmt: Integer, shape: Shape, node: str) -> list[Codes]:
    """Width, binary point and sign for rows of a shape; a format of the whole batch is refused."""
    try:
        fmt.require_shape((1, *shape))
    except ConfigError as error:
        raise LoweringError(f"{node}: {error}") from None
    return [of_one_row(each, shape) for each in fmt.arrays]


def of_parts(
    fmt: Integer, index: Codes, shape: Shape, parts: Sequence[Shape], node: str
) -> list[Integer]:
    """The formats of parts from which elements are taken before they are rounded.

    Args:
        index: where each element comes from, as in a `Move`.
    """
    if not fmt.granular:
        return [fmt] * len(parts)
    places = index.reshape(-1)
    ends = np.cumsum([0, *map(prod, parts)])
    found = []
    for each in of_rows(fmt, shape, node):
        wanted = np.broadcast_to(each, shape).reshape(-1)[places != PADDING]
        given = np.zeros(ends[-1], np.int64)  # what is taken nowhere needs no bits
        given[places[places != PADDING]] = wanted
        if (given[places[places != PADDING]] != wanted).any():
            raise LoweringError(
                f"{node} rounds copies of one element to different widths: quantise what it reads"
            )
        found.append(given)
    return [
        with_fields(fmt, [each[start:end].reshape(part or 1) for each in found])
        for part, start, end in zip(parts, ends, ends[1:], strict=False)
    ]


def input_limits(fmt: NumberFormat, shape: Shape, node: str) -> tuple[Codes, ...]:
    """The binary point and the range of the codes of an input that is rounded to a format."""
    if isinstance(fmt, Integer):
        return tuple(compact(side, shape) for side in code_limits(*of_rows(fmt, shape, node)))
    if isinstance(fmt, IntegerScaled):
        point, _ = point_and_scale(scales_of_rows(fmt, shape, node))
        return compact(point, shape), *map(codes, fmt.step_range)
    values, frac = dyadic(_all_numbers(fmt, node))
    return codes(frac), codes(values.min()), codes(values.max())


def with_fields(fmt: Integer, fields: Sequence[Codes]) -> Integer:
    """The format with other widths, binary points and signs."""
    names = ("width", "frac_width", "signed")
    return fmt.model_copy(update=dict(zip(names, map(IntTensor, fields), strict=True)))


def in_binary(fmt: NumberFormat) -> NumberFormat:
    """The format, as fixed point where its scales are powers of two."""
    found = fmt.as_integer() if isinstance(fmt, IntegerScaled) else None
    return fmt if found is None else found


def of_one_row(array: Any, shape: Shape) -> Any:
    """An array that broadcasts against a batch, so that it broadcasts to a row."""
    return array.reshape(array.shape[max(array.ndim - len(shape), 0) :])


def scales_of_rows(fmt: IntegerScaled, shape: Shape, node: str) -> Numbers:
    """The scales of a format for rows of a shape; those of a whole batch are refused."""
    try:
        fmt.require_shape((1, *shape))
    except ConfigError as error:
        raise LoweringError(f"{node}: {error}") from None
    found: Numbers = of_one_row(fmt.scales, shape)
    return found


def point_and_scale(scale: Numbers) -> tuple[Codes, Numbers]:
    """A binary point and a scale for numbers of a scale: one of both says everything."""
    parts, exponents = np.frexp(scale)
    if (parts == 0.5).all():
        return codes(1 - exponents), np.ones(())
    return codes(0), scale


def input_scale(fmt: NumberFormat | None, shape: Shape, node: str) -> Numbers:
    """The scale of the codes of an input that is rounded to a format."""
    if not isinstance(fmt, IntegerScaled):
        return np.ones(())
    return point_and_scale(scales_of_rows(fmt, shape, node))[1]


def rescaling(value: Value, fmt: NumberFormat, node: str) -> dict[str, Any] | None:
    """The fields of the step that brings a value to a format; None if it is there already.

    Args:
        fmt: any scale, or fixed point for a value that has another scale.
    """
    in_integers = False
    if isinstance(fmt, IntegerScaled):
        scale, (low, high) = scales_of_rows(fmt, value.shape, node), fmt.step_range
        rounding, grid = fmt.rounding, value.unit
        if fmt.grids is not None:
            grid, in_integers = of_one_row(fmt.grids, value.shape), True
            if not np.allclose(grid, value.unit, rtol=SAME, atol=0):
                raise LoweringError(
                    f"{node} rounds multiples of {_ends(grid)}, and reads multiples of "
                    f"{_ends(value.unit)}: settle the scales of the graph again"
                )
    else:
        assert isinstance(fmt, Integer)
        if fmt.overflow == "wrap":
            raise LoweringError(f"{node} wraps numbers with scales that are not powers of two")
        point, low, high = (of_one_row(each, value.shape) for each in fmt.limits)
        scale, rounding, grid = np.ldexp(1.0, -point), fmt.rounding, value.unit
    multiplier, shift = multiplier_and_shift(grid / scale)
    inside = (value.low >= low).all() and (value.high <= high).all()
    if (multiplier == 1).all() and (shift == 0).all() and inside:
        return None
    ties = bool((np.maximum(-value.low, value.high) >> np.maximum(shift - 1, 0)).any())
    if ties and rounding == "half_even" and getattr(fmt, "zero_point", 0) % 2:
        raise LoweringError(
            f"{node} makes codes with an odd zero point even, half-way between two: "
            "let it round 'half_up'"
        )
    frac, rest = point_and_scale(scale)
    return {
        "multiplier": compact(multiplier, value.shape),
        "shift": compact(shift, value.shape),
        "low": codes(low),
        "high": codes(high),
        "rounding": "half_even" if ties and rounding != "half_up" else "half_up",
        "in_integers": in_integers,
        "frac": frac,
        "scale": rest,
    }


def _ends(scale: Numbers) -> str:
    return " to ".join(dict.fromkeys(f"{float(end):.6g}" for end in (scale.min(), scale.max())))


def scales_along(fmt: NumberFormat | None, weight: Tensor, axis: int, what: str) -> Numbers:
    """The scale of each index of a dimension of a parameter; 1 where a binary point says it."""
    if not isinstance(fmt, IntegerScaled):
        return np.ones(weight.shape[axis])
    others = tuple(place for place in range(weight.dim()) if place != axis)
    fmt.require_shape(tuple(weight.shape))
    given = fmt.scales
    wide = given.reshape((1,) * (weight.dim() - given.ndim) + given.shape)
    low, high = (reduce(wide, axis=others) for reduce in (np.min, np.max))
    if (low != high).any():
        raise LoweringError(f"{what} has scales that differ within what is summed")
    return np.broadcast_to(low, (weight.shape[axis],))


def codes_in_units(numbers: Tensor, fmt: NumberFormat | None, unit: Numbers) -> tuple[Codes, bool]:
    """Numbers in a format as the nearest whole multiples of units, and whether they are those."""
    if not isinstance(fmt, IntegerScaled):
        exact = (numbers if fmt is None else fmt(numbers)).double().numpy()
    else:
        fmt.require_shape(tuple(numbers.shape))
        exact = fmt.steps(numbers).double().numpy() * fmt.scales
    multiples = exact / unit
    nearest = np.rint(multiples)
    return codes(nearest), bool((np.abs(multiples - nearest) < OFF_GRID).all())


def _all_numbers(fmt: NumberFormat, node: str) -> Tensor:
    """Every finite number of a format."""
    if isinstance(fmt, Ternary):
        return torch.tensor([-1.0, 0.0, 1.0])
    if fmt.element_bits > MOST_BITS:
        raise LoweringError(f"{node}: {fmt.element_bits} bits of {type(fmt).__name__} are too many")
    every = torch.arange(2**fmt.element_bits)
    numbers = fmt.decode(Encoded(every, None, torch.float64))
    return numbers[numbers.isfinite()]
