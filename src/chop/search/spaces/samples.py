"""Rows of a loader that are the same whatever its seed."""

import math
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import DataLoader, Subset

from chop.dataset.data_module import TensorLoader, permutation

SHUFFLED = 2**31
"""Stands for an epoch when rows are drawn for something else than training."""


def sample_of(loader: Any, most: int | None) -> Iterator[Any]:
    """The batches of a loader, or random rows of it that are the same whatever its seed.

    Of a loader whose rows have no numbers, they are the first.
    """
    loader = loader.plain() if isinstance(loader, TensorLoader) else loader
    rows = getattr(loader, "dataset", None)
    if most is None or not isinstance(rows, Sized) or not hasattr(rows, "__getitem__"):
        return first_rows_of(loader, most)
    chosen = permutation(len(rows), 0, SHUFFLED)[:most]
    if isinstance(loader, TensorLoader):
        size = max(loader.batch_size, most)
        return iter(TensorLoader(loader.features[chosen], loader.labels[chosen], size))
    collate = getattr(loader, "collate_fn", None)
    subset: Any = Subset(rows, chosen.tolist())  # type: ignore[arg-type]  # it has numbers
    return iter(DataLoader(subset, loader.batch_size, collate_fn=collate))


def first_rows_of(loader: Any, most: int | None) -> Iterator[Any]:
    """The batches of a loader until `most` rows are out, or all."""
    left = math.inf if most is None else most
    for features, labels in loader:
        taken = int(min(left, len(labels)))
        yield features[:taken], labels[:taken]
        left -= taken
        if not left:
            return
