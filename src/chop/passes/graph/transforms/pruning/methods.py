"""Measures of the importance of weights and activations, and the choice of those that go."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chop.registry import Registry

Dims = tuple[int, ...]
Method = Callable[[Tensor, Dims, torch.Generator | None], Tensor]

METHODS: Registry[Method] = Registry("pruning method")


@METHODS.register("random")
def random_importance(values: Tensor, dims: Dims, generator: torch.Generator | None) -> Tensor:
    """Chance decides."""
    shape = [size for dim, size in enumerate(values.shape) if dim not in dims]
    return torch.rand(shape, generator=generator, dtype=torch.float64)


@METHODS.register("l1-norm")
def l1_importance(values: Tensor, dims: Dims, generator: torch.Generator | None) -> Tensor:
    """The mean magnitude over `dims`; of a single element, its magnitude."""
    magnitudes = values.detach().abs().double()
    return magnitudes.mean(dims) if dims else magnitudes


@METHODS.register("l2-norm")
def l2_importance(values: Tensor, dims: Dims, generator: torch.Generator | None) -> Tensor:
    """The root mean square over `dims`; of a single element, its magnitude."""
    values = values.detach().double()
    return values.square().mean(dims).sqrt() if dims else values.abs()


def keep_most_important(scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
    """Masks that drop exactly round(sparsity · n) of the n scores, the lowest of all of them.

    Of equal scores the earlier is dropped first, so the same scores give the same masks.
    """
    flat = torch.cat([part.flatten() for part in scores])
    kept = torch.ones_like(flat, dtype=torch.bool)
    kept[flat.argsort(stable=True)[: round(sparsity * flat.numel())]] = False
    parts = torch.split(kept, [part.numel() for part in scores])
    return [mask.reshape(part.shape) for mask, part in zip(parts, scores, strict=True)]
