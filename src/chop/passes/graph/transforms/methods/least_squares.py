"""Weights rounded so that their products with given inputs change least."""

from collections.abc import Sequence

import torch
from torch import Tensor

DAMPING = 0.01
"""Part of the mean square of the inputs that is added, so that few rows do not fit too well."""
Grid = tuple[Tensor, Tensor, Tensor]
"""For each row of weights: the unit, the smallest and the largest code."""


def round_for_inputs(parts: Sequence[Tensor], inputs: Sequence[Tensor], grid: Grid) -> Tensor:
    """Return all rows of weights on their grid.

    Args:
        parts: matrices of weights, one for each group of inputs.
        inputs: for each group, what each column is multiplied by.
    """
    sizes = [len(each) for each in parts]
    grids = zip(*(torch.split(each, sizes) for each in grid), strict=True)
    return torch.cat(
        [round_matrix(weight, x, own) for weight, x, own in zip(parts, inputs, grids, strict=True)]
    )


def round_matrix(weight: Tensor, x: Tensor, grid: Grid) -> Tensor:
    """Return one matrix on its grid, column by column, the largest inputs first.

    What rounding a column changes in the products is made up for by columns that are left: with
    the inverse of the inputs' second moments, its Cholesky factor says by how much.
    """
    moments = x @ x.T
    size = moments.diagonal().mean()
    if not float(size) > 0:
        return to_grid(weight, grid)
    order = moments.diagonal().argsort(descending=True)
    moments = moments[order][:, order]
    moments.diagonal().add_(DAMPING * size)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments))
    factor = torch.linalg.cholesky(inverse, upper=True)
    left, found = weight[:, order].clone(), torch.empty_like(weight)
    for place in range(left.shape[1]):
        column = left[:, place : place + 1]
        rounded = to_grid(column, grid)
        error = (column - rounded) / factor[place, place]
        left[:, place:] -= error @ factor[place : place + 1, place:]
        found[:, order[place]] = rounded[:, 0]
    return found


def to_grid(weight: Tensor, grid: Grid) -> Tensor:
    """Return the nearest numbers of a grid."""
    unit, low, high = grid
    return (weight / unit).round().clamp(low, high) * unit
