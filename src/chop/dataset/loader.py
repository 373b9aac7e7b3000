"""Batches: slices of tensors for rows in memory, torch's loader for rows that come one by one."""

from collections.abc import Iterator, Sequence, Sized
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

CHUNK_ROWS = 16_384  # rows gathered at a time: large enough to be quick, small enough for the cache


def permutation(rows: int, seed: int, epoch: int) -> Tensor:
    """The order of `rows` rows in one epoch: a function of seed and epoch and nothing else."""
    state = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(state >> np.uint64(1)))
    return torch.randperm(rows, generator=generator)


class Epochs:
    """Which epoch an iteration belongs to: the next one each time, or the one that was set."""

    def __init__(self) -> None:
        self.epoch = 0
        self._begun = False

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of `epoch`; Lightning calls this on samplers."""
        self.epoch = epoch
        self._begun = False

    def begin(self) -> None:
        """Note that an iteration begins."""
        if self._begun:
            self.epoch += 1
        self._begun = True


class TensorLoader(Epochs):
    """Batches `(x, y)` of rows that sit in memory, cut as slices and not row by row.

    A shuffled loader has a fresh order in every epoch. The first iteration is epoch 0 and each
    further `iter()` moves on to the next epoch; after `set_epoch(n)` the next iteration is exactly
    epoch `n`. The order depends on `(seed, epoch)` alone, so training that resumes at epoch `n`
    sees the batches that an uninterrupted run would have seen. Batches never share memory with
    `features`, so a model that works in place cannot spoil the data.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__()
        self.features = features
        self.labels = labels
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.dataset = TensorDataset(features, labels)

    def __len__(self) -> int:
        rows = len(self.features)
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def order(self) -> Tensor | None:
        """The row indices of this epoch in the order they are served; None if as they lie."""
        return permutation(len(self.features), self.seed, self.epoch) if self.shuffle else None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.begin()
        return self._batches(self.order())

    def _batches(self, order: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        stop = min(len(self) * self.batch_size, len(self.features))
        step = max(1, CHUNK_ROWS // self.batch_size) * self.batch_size
        size = min(self.batch_size, max(1, stop))  # torch takes no number of more than 64 bits
        for start in range(0, stop, step):
            features, labels = self._rows(order, start, min(start + step, stop))
            yield from zip(
                torch.split(features, size),
                torch.split(labels, size),
                strict=True,
            )

    def _rows(self, order: Tensor | None, start: int, stop: int) -> tuple[Tensor, Tensor]:
        if order is None:
            return self.features[start:stop].clone(), self.labels[start:stop].clone()
        chosen = order[start:stop]
        return self.features.index_select(0, chosen), self.labels.index_select(0, chosen)


class EpochSampler(Epochs, Sampler[int]):
    """The shuffled order of a `TensorLoader` for data sets that serve one row at a time."""

    def __init__(self, rows: Sized, seed: int) -> None:
        super().__init__()
        self.rows = rows
        self.seed = seed

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[int]:
        self.begin()
        return iter(permutation(len(self.rows), self.seed, self.epoch).tolist())


class LoaderChain:
    """The batches of several loaders, one loader after the other."""

    def __init__(self, loaders: Sequence[TensorLoader | DataLoader[Any]]) -> None:
        self.loaders = loaders
        self.batch_size = loaders[0].batch_size

    def __len__(self) -> int:
        return sum(len(loader) for loader in self.loaders)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.loaders)


def make_loader(
    dataset: Dataset[Any], batch_size: int, shuffle: bool, seed: int, num_workers: int
) -> TensorLoader | DataLoader[Any]:
    """The right loader for a split: `num_workers` counts only for rows that come one by one."""
    if isinstance(dataset, TensorDataset):
        features, labels = dataset.tensors
        return TensorLoader(features, labels, batch_size, shuffle, seed)
    assert isinstance(dataset, Sized)  # `checked` made sure
    sampler = EpochSampler(dataset, seed) if shuffle else None
    return DataLoader(
        dataset,
        batch_size=min(batch_size, max(1, len(dataset))),  # torch takes no more than 64 bits
        sampler=sampler,
        num_workers=num_workers,
        generator=torch.Generator().manual_seed(seed),
    )
