"""Softmax, normalisation and activations by integer steps: exact sums and products, small tables.

Each function here is the one definition of what it computes: quantised networks run it, and
lowering records it to make steps of an integer program. Everything is computed in float64, which
holds all numbers that occur, on numbers that are rounded where a table reads or gives them.
"""

from collections.abc import Callable
from functools import cache
from math import ceil, log, log2
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from chop.errors import ConfigError
from chop.numerics import Integer, NumberFormat

TABLE = "table"
"""The role of what the tables inside an operation give: numbers between 0 and 1."""
SPARE = 4
"""Bits that an index of a table has less, after its leading one, than what the table gives."""
LOGIT_BITS, NORMAL_BITS, CELL_BITS, WIDE = 16, 15, 18, 48
HIDDEN = -1024.0
"""A number that hides a product of attention if it is added to it."""
Function = Callable[[Tensor], Tensor]


def table_bits(rounders: Any) -> int | None:
    """Return the bits of the tables; None if an operation is to be computed in floating point."""
    found = (rounders or {}).get(TABLE)
    if not isinstance(found, NumberFormat):  # what observes a network in floating point is not one
        return None
    if not isinstance(found, Integer) or not isinstance(found.width, int):
        raise ConfigError(f"{TABLE} is the format of tables inside an operation: take 'integer'")
    return found.width


def round_in(x: Tensor, rounder: Any) -> Tensor:
    """Return numbers in a format; what records a computation records this as one call."""
    recorded = has_torch_function_unary(x)
    found: Tensor = handle_torch_function(round_in, (x,), x, rounder) if recorded else rounder(x)
    return found


@cache
def integer_grid(width: int, frac_width: int, signed: bool) -> Integer:
    """Return a fixed-point format."""
    return Integer(width=width, frac_width=frac_width, signed=signed)


def to_fixed_point(x: Tensor, width: int, frac_width: int, signed: bool = False) -> Tensor:
    """Return numbers in fixed point, those beyond its range at its ends."""
    return round_in(x, integer_grid(width, frac_width, signed))


def exact(x: Tensor) -> Tensor:
    """Return numbers in the type that holds every sum and product here."""
    return x.double()


def by_tables(
    x: Tensor, function: Function, start: int, count: int, index: int, frac_width: int
) -> Tensor:
    """Return a function of positive numbers, from a table for each factor of four.

    Each table reads numbers limited to its part, which have as many bits in every part. Beyond its
    part it gives what the function is at the end, and all these ends together are subtracted.

    Args:
        start: the power of two where the first part begins.
        count: the number of parts; outside of them the function is what it is at the nearest end.
        index: bits after the leading one that a table reads.
        frac_width: of the results.
    """
    total, ends = None, 0.0
    for place in range(start, start + 2 * count, 2):
        low = 2.0**place
        part = to_fixed_point(x.clamp(low, 4 * low), index + 3, index - place)
        found = to_fixed_point(function(part), WIDE, frac_width)
        total = found if total is None else total + found
        if place > start:
            end = function(torch.tensor(low, dtype=torch.float64))
            ends += float(integer_grid(WIDE, frac_width, False)(end))
    assert total is not None
    return total - ends if ends else total


def softmax_by_tables(
    x: Tensor, dim: int, bits: int, scale: float = 1.0, mask: Tensor | None = None
) -> Tensor:
    """Return the softmax of ``scale * x``: exponentials of differences, divided by their sum.

    Products with the scale are limited to 128. Where nothing is visible, the result is zero.

    Args:
        mask: truth values that say what is visible, or numbers to add.
    """
    point = bits - SPARE + ceil(log2(scale))
    x, visible = to_fixed_point(exact(x), LOGIT_BITS, point, signed=True), mask
    if mask is not None and mask.dtype != torch.bool:
        added = exact(mask).clamp(min=HIDDEN) * (1 / scale)
        x, visible = x + to_fixed_point(added, LOGIT_BITS, point, signed=True), mask > HIDDEN
    if visible is not None:
        visible = exact(visible)
        x = x + (visible - 1) * 2.0 ** (LOGIT_BITS - point + 2)
    least = ceil(ceil((bits + 1) * log(2)) / scale * 2**point) / 2**point
    apart = (x - x.amax(dim, keepdim=True)).clamp(-least, 0)
    powers = to_fixed_point(torch.exp(apart if scale == 1 else apart * scale), bits, bits)
    powers = powers if visible is None else powers * visible
    octaves = ceil(log2(x.shape[dim]))
    total = powers.sum(dim, keepdim=True)
    inverse = by_tables(
        total, torch.reciprocal, 0, max(1, ceil(octaves / 2)), bits - SPARE, bits + octaves
    )
    return to_fixed_point(powers * inverse, bits + SPARE, bits + SPARE)


def standardise_rows(
    x: Tensor, eps: float, bits: int, largest: float, centred: bool = True
) -> Tensor:
    """Return numbers less their mean, divided by their standard deviation, over the last dimension.

    Results are limited to 32. A deviation is at least a part of the largest number, ``2**-SPARE``
    of what the bits of tables can tell apart.

    Args:
        largest: the largest magnitude of a number.
        centred: subtract the mean; else the numbers are divided by their root mean square.
    """
    top, count = ceil(log2(largest)), x.shape[-1]
    unit = 2.0 ** -ceil(log2(count))
    x = exact(x)
    squares = (x * x).sum(-1, keepdim=True) * unit
    share = factor = 1 / (count * unit)
    if centred:  # times the number of elements, so that nothing is divided
        total = x.sum(-1, keepdim=True) * unit
        squares = squares * (count * unit) - total * total
        x = to_fixed_point(x * (count * unit) - total, bits + 2, bits - top, signed=True)
    else:
        factor = 1.0

    def inverse(power: Tensor) -> Tensor:
        return (power * (share * factor) + eps).rsqrt() * factor

    depth = bits - SPARE
    root = by_tables(squares, inverse, 2 * (top - depth), depth, depth - 1, bits - 3 + top)
    return to_fixed_point(x * root, NORMAL_BITS, NORMAL_BITS - 6, signed=True)


def largest_number(rounders: Any) -> float:
    """Return the largest magnitude of the numbers that an operation reads."""
    found = rounders.get("data_in")
    if not isinstance(found, Integer):
        raise ConfigError(f"with {TABLE}, data_in needs the format 'integer', which has limits")
    frac, low, high = found.limits
    return float(max(abs(low * 2.0**-frac).max(), abs(high * 2.0**-frac).max()))


def softmax(
    input: Tensor,  # noqa: A002 -- the name that callers use, here and below
    dim: int | None = None,
    dtype: torch.dtype | None = None,
    *,
    rounders: Any = None,
) -> Tensor:
    """Return the softmax, by tables if there is a format for them."""
    bits = table_bits(rounders)
    if bits is None:
        return F.softmax(input, dim, dtype=dtype)
    if dim is None:
        dim = 0 if input.dim() in (0, 1, 3) else 1  # as torch guesses
    return softmax_by_tables(input, dim, bits).to(dtype or input.dtype)


def affine(
    x: Tensor, like: Tensor, weight: Tensor | None, bias: Tensor | None, places: int = 0
) -> Tensor:
    """Return numbers times a weight plus a bias, in the type of others.

    Args:
        places: dimensions after those of the weight.
    """
    for parameter, function in ((weight, torch.mul), (bias, torch.add)):
        if parameter is not None:
            x = function(x, exact(parameter).reshape(*parameter.shape, *(1,) * places))
    return x.to(like.dtype)


def layer_norm(  # noqa: PLR0913  # as torch has them
    input: Tensor,  # noqa: A002
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
    *,
    rounders: Any = None,
) -> Tensor:
    """Return the layer normalisation, by tables if there is a format for them."""
    bits = table_bits(rounders)
    if bits is None:
        return torch.layer_norm(input, normalized_shape, weight, bias, eps, cudnn_enable)
    rows = input.flatten(-len(normalized_shape))
    found = standardise_rows(rows, eps, bits, largest_number(rounders)).reshape(input.shape)
    return affine(found, input, weight, bias)


def rms_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    rounders: Any = None,
) -> Tensor:
    """Return numbers divided by their root mean square, by tables if there is a format for them."""
    bits = table_bits(rounders)
    if bits is None:
        return F.rms_norm(input, normalized_shape, weight, eps)
    rows = input.flatten(-len(normalized_shape))
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    found = standardise_rows(rows, eps, bits, largest_number(rounders), centred=False)
    return affine(found.reshape(input.shape), input, weight, None)


def group_norm(
    input: Tensor,  # noqa: A002
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    rounders: Any = None,
) -> Tensor:
    """Return the normalisation of groups of channels, by tables if there is a format for them."""
    bits = table_bits(rounders)
    if bits is None:
        return F.group_norm(input, num_groups, weight, bias, eps)
    groups = input.reshape(input.shape[0], num_groups, -1)
    found = standardise_rows(groups, eps, bits, largest_number(rounders)).reshape(input.shape)
    return affine(found, input, weight, bias, input.dim() - 2)


def layer_form(function: Callable[..., Tensor], *settings: str) -> Callable[..., Tensor]:
    """Return the forward of a layer, which calls a function with attributes of the layer."""

    def forward(layer: Any, *inputs: Any, rounders: Any = None, **named: Any) -> Tensor:
        if table_bits(rounders) is None:  # also where a class of a user has its own
            own_class = getattr(layer, "base", type(layer))
            return own_class.forward(layer, *inputs, **named)  # type: ignore[no-any-return]
        own = {name: getattr(layer, name) for name in settings}
        return function(*inputs, **named, **own, rounders=rounders)

    return forward
