"""The splits of a data set as loaders of batches."""

import copy
import os
from collections.abc import Iterator, Sequence, Sized
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from chop.dataset.augmentation import Augmentation
from chop.dataset.info import (
    DATASETS,
    DatasetEntry,
    MaseDatasetInfo,
    check_stated_sizes,
    complete_info,
)
from chop.dataset.preprocess import reproduce_rows, rescale_splits, split_classes
from chop.dataset.rows import DatasetRequest, Splits, StoredRows, check_splits, default_cache_dir
from chop.errors import ConfigError, DataError, UnknownNameError
from chop.preprocessing import Preprocessing
from chop.tasks import NUMBERS, task_named

CHUNK_ROWS = 16_384  # rows gathered at a time: large enough to be quick, small enough for the cache
CHUNK_BYTES = 16 << 20  # of these at most, so that pictures are not in memory twice


def permutation(rows: int, seed: int, epoch: int) -> Tensor:
    """The order of `rows` rows in one epoch: a function of seed and epoch and nothing else."""
    state = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(state >> np.uint64(1)))
    return torch.randperm(rows, generator=generator)


class EpochCounter:
    """The epoch that an iteration belongs to: the next one each time, or the one that was set."""

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


class TensorLoader(EpochCounter):
    """Batches `(x, y)` of rows that sit in memory, cut as slices and not row by row.

    A shuffled loader has a fresh order in every epoch. The first iteration is epoch 0 and each
    further `iter()` moves on to the next epoch; after `set_epoch(n)` the next iteration is exactly
    epoch `n`. The order depends on `(seed, epoch)` alone, so training that resumes at epoch `n`
    sees the batches that an uninterrupted run would have seen. Batches never share memory with
    `features`, so a model that works in place cannot spoil the data. Pictures are changed batch by
    batch where an augmentation is given, so the rows are in memory once.
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
        self.augmentation: Augmentation | None = None
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
        epoch = self.epoch
        batches = enumerate(self._batches(self.order()))
        return ((self.augment(x, epoch, number), y) for number, (x, y) in batches)

    def augment(self, images: Tensor, epoch: int, batch: int) -> Tensor:
        """Return the rows of a batch, changed where pictures are to be changed in training."""
        how = self.augmentation
        return images if how is None else how.apply(images, self.seed, epoch, batch)

    def plain(self) -> "TensorLoader":
        """Return a loader of the same rows in the same order as they lie, for counting on them."""
        if self.augmentation is None:
            return self
        twin = copy.copy(self)
        twin.augmentation = None
        return twin

    def _batches(self, order: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        stop = min(len(self) * self.batch_size, len(self.features))
        most = min(CHUNK_ROWS, CHUNK_BYTES // max(1, self.features[:1].nbytes))
        step = max(1, most // self.batch_size) * self.batch_size
        size = min(self.batch_size, max(1, stop))  # torch takes no number of more than 64 bits
        for start in range(0, stop, step):
            features, labels = self._rows(order, start, min(start + step, stop))
            yield from zip(
                torch.split(features, size),
                torch.split(labels, size),
                strict=True,
            )
            if order is None and isinstance(self.dataset, StoredRows):
                self.dataset.forget()

    def _rows(self, order: Tensor | None, start: int, stop: int) -> tuple[Tensor, Tensor]:
        if order is None:
            return self.features[start:stop].clone(), self.labels[start:stop].clone()
        chosen = order[start:stop]
        return self.features.index_select(0, chosen), self.labels.index_select(0, chosen)


class EpochSampler(EpochCounter, Sampler[int]):
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
    dataset: Dataset[Any],
    batch_size: int,
    shuffle: bool,
    seed: int,
    num_workers: int,
    augmentation: Augmentation | None = None,
) -> TensorLoader | DataLoader[Any]:
    """The right loader for a split: `num_workers` counts only for rows that come one by one."""
    if isinstance(dataset, TensorDataset):
        features, labels = dataset.tensors
        if augmentation is not None:
            augmentation.check(features.shape[1:])
        loader = TensorLoader(features, labels, batch_size, shuffle, seed)
        loader.augmentation = augmentation
        loader.dataset = dataset
        return loader
    if augmentation is not None:
        raise ConfigError("--augment changes pictures in memory; these rows come one by one")
    assert isinstance(dataset, Sized)  # `check_splits` made sure
    sampler = EpochSampler(dataset, seed) if shuffle else None
    return DataLoader(
        dataset,
        batch_size=min(batch_size, max(1, len(dataset))),  # torch takes no more than 64 bits
        sampler=sampler,
        num_workers=num_workers,
        generator=torch.Generator().manual_seed(seed),
    )


AnyLoader = TensorLoader | DataLoader[Any]


class MaseDataModule:
    """The rows of a data set and the loaders that serve them.

    `prepare_data` fetches and preprocesses (once per machine), `setup` opens the rows. Either is
    called by itself when it is needed. Every call of `train_dataloader` gives a new loader whose
    first epoch is the same for the same seed.

    Args:
        num_workers: processes for data sets that serve one row at a time; rows in memory are cut
            as slices and need none.
        load_from_cache_file: False preprocesses again even if the result is in the cache.
        max_token_len: accepted as the labs pass it; data sets of text say how long rows are.
        tokenizer: as `max_token_len`.
        model_name: as `max_token_len`.
        path: the file or folder to read in place of a download.
        label_column: the column of `path` that holds the classes, or the numbers to be predicted;
            several of those are parted by commas.
        task: ``regression`` says that labels of `path` are numbers to be predicted.
        odd_class: classes that such a network, which then reproduces rows, is not trained on.
        augment: changes of the pictures that are trained on, such as ``flip,crop:4,cutout:8``.
        cache_dir: where downloads and preprocessed rows are kept (`CHOP_CACHE` by default).
    """

    def __init__(  # noqa: PLR0913, PLR0917  (the labs' signature)
        self,
        name: str,
        batch_size: int,
        num_workers: int = 0,
        max_token_len: int | None = None,
        tokenizer: object | None = None,
        load_from_cache_file: bool = True,
        model_name: str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        label_column: str | None = None,
        task: str = "cls",
        odd_class: str | None = None,
        augment: str | None = None,
        seed: int = 0,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.name = name.lower()
        if self.name not in DATASETS:
            raise UnknownNameError("data set", name, DATASETS)
        regression = task_named(task) is NUMBERS
        self.odd = split_classes(odd_class, regression, augment)
        if regression and not self.odd and self._entry.info.num_classes is not None:
            raise ConfigError(f"data set {self.name!r} has classes: write task 'cls'")
        self.batch_size = _at_least(1, batch_size, "batch_size")
        self.num_workers = _at_least(0, num_workers, "num_workers")
        self.seed = _at_least(0, seed, "seed")
        self.max_token_len = max_token_len
        self.tokenizer = tokenizer
        self.model_name = model_name
        self.augmentation = None if augment is None else Augmentation.parse(augment)
        self.request = DatasetRequest(
            name=self.name,
            cache_dir=Path(cache_dir).expanduser() if cache_dir else default_cache_dir(),
            path=Path(path).expanduser() if path is not None else None,
            label_column=label_column,
            seed=self.seed,
            use_cache=load_from_cache_file,
            regression=(regression and not self.odd) or self._entry.info.regression,
        )
        self._splits: Splits | None = None

    def prepare_data(self) -> None:
        """Fetch, check and preprocess the rows, so that later starts find them in the cache."""
        self.setup()

    def setup(self, stage: str | None = None) -> None:
        """Open the rows of every split; `stage` is accepted as Lightning passes it."""
        if self._splits is None:
            where, tokens = f"data set {self.name!r}", self._entry.info.tokens
            splits = check_splits(
                self._entry.load(self.request), where, tokens=tokens,
                regression=self.request.regression,
            )  # fmt: skip
            check_stated_sizes(self._entry.info, splits)
            self._splits = self._as_asked(splits)
            if self.odd:
                stated = self._entry.info.class_names
                self._splits = reproduce_rows(self._splits, self.odd, stated, where)

    def _as_asked(self, splits: Splits) -> Splits:
        """The rows scaled as the request says, if their function has not done that."""
        wanted, done = self.request.preprocessing, self.request.taken_as or splits.preprocessing
        if wanted is None or done is None:
            return splits
        return rescale_splits(splits, done, wanted)

    def scaled_as(
        self, wanted: Preprocessing, taken_as: Preprocessing | None = None
    ) -> "MaseDataModule":
        """The same data set with its rows scaled in another way; this one stays as it is.

        Args:
            taken_as: what was done to the rows, if they do not say it.
        """
        twin = copy.copy(self)
        twin.request = replace(self.request, preprocessing=wanted, taken_as=taken_as)
        if taken_as is not None or self.odd:  # labels of odd rows are features, too
            twin._splits = None if self.odd else twin._as_asked(self.splits)
        return twin

    def with_classes(self, names: tuple[str, ...]) -> "MaseDataModule":
        """The same file with its classes numbered in the order of `names`, which has them all."""
        twin = copy.copy(self)
        twin.request, twin._splits = replace(self.request, class_names=names), None
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the rows: another process opens them in the cache itself."""
        return vars(self) | {"_splits": None}

    @property
    def _entry(self) -> DatasetEntry:
        return DATASETS[self.name]

    @property
    def splits(self) -> Splits:
        """The rows, opened when first asked for."""
        self.setup()
        assert self._splits is not None
        return self._splits

    @property
    def dataset_info(self) -> MaseDatasetInfo:
        """The facts about the data set; reads the rows if only they can tell."""
        if self._splits is None and self._entry.info.complete and not self.odd:
            return self._entry.info
        return complete_info(self._entry.info, self.splits)

    @property
    def source(self) -> str:
        """One sentence: which rows these are."""
        return self.splits.source

    @property
    def fingerprint(self) -> str:
        """The SHA-256 that names exactly the rows that were read."""
        return self.splits.fingerprint

    @property
    def preprocessing(self) -> Preprocessing | None:
        """Return what was done to the features; None if that is not known."""
        return self.splits.preprocessing

    @property
    def train_dataset(self) -> Dataset[Any]:
        return self.split("train")

    @property
    def val_dataset(self) -> Dataset[Any]:
        return self.split("validation")

    @property
    def test_dataset(self) -> Dataset[Any]:
        return self.split("test")

    @property
    def pred_dataset(self) -> Dataset[Any]:
        return self.split("pred")

    def train_dataloader(self) -> AnyLoader:
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> AnyLoader:
        return self._loader("validation")

    def test_dataloader(self) -> AnyLoader:
        return self._loader("test")

    def pred_dataloader(self) -> AnyLoader:
        return self._loader("pred")

    def all_dataloader(self) -> LoaderChain:
        """The training, validation and test rows, one after the other as they lie."""
        splits = (split for split in self.splits.available if split != "pred")
        return LoaderChain([self._loader(split) for split in splits])

    def _loader(self, split: str, shuffle: bool = False) -> AnyLoader:
        rows, how = self.split(split), self.augmentation if shuffle else None
        return make_loader(rows, self.batch_size, shuffle, self.seed, self.num_workers, how)

    def split(self, split: str) -> Dataset[Any]:
        """The rows of one split: train, validation, test or pred."""
        datasets = self.splits.datasets()
        if split not in datasets:
            raise DataError(
                f"data set {self.name!r} has no {split} split; it has {', '.join(datasets)}"
            )
        return datasets[split]


def _at_least(least: int, value: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number from {least} up (got {value!r})")
    return value
