"""Rows of a loader that are the same whatever its seed, and all rows in one random order."""

import itertools
import math
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from chop.dataset.data_module import TensorLoader, permutation
from chop.errors import DataError

Pair = tuple[Tensor, Tensor]
FIRST_LOOK, SHARES = 32, (16, 8, 4, 2)
"""Rows of the first look at least, and the shares of the rows after which there is one: 1/16 …"""
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


def look_ends(rows: int) -> list[int]:
    """Return after how many rows a trial is looked at; the last time after all of them."""
    ends = {max(FIRST_LOOK, -(-rows // share)) for share in SHARES}
    return [*sorted(end for end in ends if end < rows), rows]


def mix_batches(batches: Sequence[Pair]) -> list[Pair]:
    """Return all rows in one random order, in batches that end wherever `look_ends` says."""
    if len({features.shape[1:] for features, _ in batches}) > 1:
        raise DataError("stop_dominated needs rows of one shape")
    features, labels = (torch.cat(each) for each in zip(*batches, strict=True))
    order, most = permutation(len(labels), 0, SHUFFLED), max(len(y) for _, y in batches)
    places = [
        order[first : min(first + most, end)]
        for start, end in itertools.pairwise([0, *look_ends(len(labels))])
        for first in range(start, end, most)
    ]
    return [(features[each], labels[each]) for each in places]
