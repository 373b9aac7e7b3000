"""Weights rounded so that their products with given inputs change least, in any number format."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.numerics import NumberFormat

SHARES = tuple(1 - step / 20 for step in range(11))
"""Shares of its largest weight that a block is cut at, from all of it to half."""
DAMPING = 0.01
"""Part of the mean square of the inputs that is added, so that few rows do not fit too well."""


def round_for_inputs(weight: Tensor, inputs: Sequence[Tensor], fmt: NumberFormat) -> Tensor:
    """Return weights on the numbers of a format, column by column, the largest inputs first.

    What rounding a column changes in the products is made up for by columns that are left: with
    the inverse of the inputs' second moments, its Cholesky factor says by how much. Columns that
    share a block are rounded one after the other, with the scale that the block has when its turn
    comes: only the format knows what a block is, and it is asked for nothing but rounding.

    Args:
        inputs: for each group of rows, what each column of weights is multiplied by.
    """
    moments = torch.stack([x @ x.T for x in inputs])
    size = moments.diagonal(dim1=1, dim2=2).mean(1)
    if not bool((size > 0).any()):
        return fmt.round_to(weight)
    fixed = fmt.fixed_on(weight)
    places = weight[0, 0].numel()
    width = places * channels_of_block(fixed, weight)
    blocks = column_blocks(moments.diagonal(dim1=1, dim2=2).sum(0), width)
    order = torch.cat(blocks)
    factor = compensation(moments, size, order)
    left = weight.detach().double().reshape(len(inputs), -1, order.numel())[:, :, order]
    found = torch.empty_like(left)
    shape, at = (weight.shape[0], -1, *weight.shape[2:]), 0
    for columns in blocks:
        inside = columns - columns.min()
        block = torch.empty_like(left[:, :, : len(columns)])
        block[:, :, inside] = left[:, :, at : at + len(columns)]
        bound = block.abs().amax(2)
        for place in inside.tolist():
            wanted = left[:, :, at].clone()
            kept = block[:, :, place].clone()
            block[:, :, place] = wanted.clamp(-bound, bound)
            rounded = fixed.round_to(block.reshape(shape).to(weight.dtype)).reshape(block.shape)
            block[:, :, place] = kept  # so that the scale stays
            found[:, :, order[at]] = chosen = rounded[:, :, place].double()
            error = (wanted - chosen) / factor[:, at, at][:, None]
            left[:, :, at:] -= error[:, :, None] * factor[:, None, at, at:]
            at += 1
    return fmt.round_to(found.reshape(weight.shape).to(weight.dtype))


def clip_for_inputs(weight: Tensor, sizes: Tensor, fmt: NumberFormat) -> Tensor:
    """Return weights, each row of a block cut at the share of its largest that errs least.

    Args:
        sizes: the mean square of what each weight is multiplied by.
    """
    width = channels_of_block(fmt.fixed_on(weight), weight)
    width = weight.shape[1] if width == 1 else width
    peaks = per_block(weight.abs(), width, torch.amax)
    best, least = weight, torch.full_like(peaks, torch.inf)
    for share in SHARES:
        cut = weight.clamp(-share * peaks, share * peaks)
        error = (fmt.round_to(cut) - weight).square() * sizes.to(weight.dtype)
        sums = per_block(error, width, torch.sum)
        best = torch.where(sums < least, cut, best)
        least = torch.minimum(least, sums)
    return best


def per_block(x: Tensor, width: int, how: Callable[..., Tensor]) -> Tensor:
    """Return for each element what its row of its block comes to."""
    rows = [
        how(part.flatten(1), 1).reshape(-1, *(1,) * (x.dim() - 1)).expand_as(part)
        for part in torch.split(x, width, 1)
    ]
    return torch.cat(rows, 1)


def channels_of_block(fmt: NumberFormat, weight: Tensor) -> int:
    """Return how many input channels have to be rounded together to be rounded as in the whole."""
    whole, count = fmt.round_to(weight), weight.shape[1]
    size = 1
    while size < count:
        try:
            if all(
                torch.equal(fmt.round_to(part), wanted)
                for part, wanted in zip(
                    torch.split(weight, size, 1), torch.split(whole, size, 1), strict=True
                )
            ):
                return size
        except ConfigError:  # it has a setting for each element
            return count
        size *= 2
    return count


def column_blocks(sizes: Tensor, width: int) -> list[Tensor]:
    """Return the columns of each block by the size of their inputs, the largest blocks first."""
    starts = range(0, sizes.numel(), width)
    blocks = sorted(starts, key=lambda start: -float(sizes[start : start + width].mean()))
    return [start + sizes[start : start + width].argsort(descending=True) for start in blocks]


def compensation(moments: Tensor, size: Tensor, order: Tensor) -> Tensor:
    """Return for each group by how much each column makes up for the error of those before it."""
    moments = moments[:, order][:, :, order]
    added = torch.where(size > 0, DAMPING * size, 1.0)
    moments.diagonal(dim1=1, dim2=2).add_(added[:, None])
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor
